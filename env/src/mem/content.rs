//! The bytes of one file: a sparse map of shared pages, cheap to copy and to compare by hand-over.

use std::collections::BTreeMap;
use std::sync::Arc;

const PAGE_BYTES: usize = 4096;
const PAGE: u64 = PAGE_BYTES as u64;

type Page = [u8; PAGE_BYTES];

/// Bytes from 0 to `len`; a page that is not there is zeros.
///
/// Invariants: no page starts at or beyond `len`; bytes of the last page beyond `len` are zeros.
#[derive(Clone, Default)]
pub(super) struct Content {
    len: u64,
    pages: BTreeMap<u64, Arc<Page>>,
}

impl Content {
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Fills `buf` from `offset`; what lies beyond the end reads as zeros.
    pub(super) fn read(&self, buf: &mut [u8], offset: u64) {
        let mut done = 0;
        for (page, within) in pieces(offset, buf.len() as u64) {
            let part = &mut buf[done..done + within.len()];
            done += within.len();
            match self.pages.get(&page) {
                Some(bytes) => part.copy_from_slice(&bytes[within]),
                None => part.fill(0),
            }
        }
    }

    /// Writes `data` at `offset`, growing the file if needed.
    pub(super) fn write(&mut self, data: &[u8], offset: u64) {
        let mut rest = data;
        for (page, within) in pieces(offset, data.len() as u64) {
            let (part, after) = rest.split_at(within.len());
            rest = after;
            let bytes = self.pages.entry(page).or_insert_with(|| Arc::new([0; PAGE_BYTES]));
            Arc::make_mut(bytes)[within].copy_from_slice(part);
        }
        if !data.is_empty() {
            self.len = self.len.max(offset + data.len() as u64);
        }
    }

    /// Writes `len` zeros at `offset`, growing the file if needed.
    pub(super) fn zero(&mut self, offset: u64, len: u64) {
        self.clear(offset, offset + len);
        self.len = self.len.max(offset + len);
    }

    /// Cuts or extends the file; an extension reads as zeros.
    pub(super) fn set_len(&mut self, len: u64) {
        if len < self.len {
            self.clear(len, self.len);
        }
        self.len = len;
    }

    /// Takes over from `newer` the pages that hold the `len` bytes at `offset`. The length is not
    /// changed, so the caller sets it at the end.
    pub(super) fn adopt(&mut self, newer: &Content, offset: u64, len: u64) {
        if len == 0 {
            return;
        }
        for page in offset / PAGE..=(offset + len - 1) / PAGE {
            match newer.pages.get(&page) {
                Some(bytes) => self.pages.insert(page, Arc::clone(bytes)),
                None => self.pages.remove(&page),
            };
        }
    }

    /// The pages that are not holes, as byte ranges that start in `from..to`.
    pub(super) fn data_ranges(&self, from: u64, to: u64) -> Vec<(u64, u64)> {
        if from >= to {
            return Vec::new();
        }
        let pages = self.pages.range(from / PAGE..to.div_ceil(PAGE));
        pages.map(|(page, _)| (page * PAGE, (page + 1) * PAGE)).collect()
    }

    fn clear(&mut self, from: u64, to: u64) {
        if from >= to {
            return;
        }
        let touched: Vec<u64> =
            self.pages.range(from / PAGE..to.div_ceil(PAGE)).map(|(page, _)| *page).collect();
        for page in touched {
            let start = from.max(page * PAGE);
            let end = to.min((page + 1) * PAGE);
            if end - start == PAGE {
                self.pages.remove(&page);
            } else if let Some(bytes) = self.pages.get_mut(&page) {
                Arc::make_mut(bytes)[within_page(start, end)].fill(0);
            }
        }
    }
}

/// Cuts a byte range at page borders: page number and the range inside that page.
fn pieces(offset: u64, len: u64) -> impl Iterator<Item = (u64, std::ops::Range<usize>)> {
    let end = offset + len;
    let pages = if len == 0 { 0..0 } else { offset / PAGE..end.div_ceil(PAGE) };
    pages.map(move |page| {
        let start = offset.max(page * PAGE);
        (page, within_page(start, end.min((page + 1) * PAGE)))
    })
}

fn within_page(start: u64, end: u64) -> std::ops::Range<usize> {
    let first = index(start % PAGE);
    first..first + index(end - start)
}

/// A byte count or position inside memory.
pub(super) fn index(bytes: u64) -> usize {
    usize::try_from(bytes).expect("what is in memory fits the address space")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(content: &Content) -> Vec<u8> {
        let mut all = vec![7; index(content.len())];
        content.read(&mut all, 0);
        all
    }

    #[test]
    fn content_agrees_with_a_plain_vector_under_random_changes() {
        let mut random = crate::mem::crash::Random::new(11);
        let mut content = Content::default();
        let mut model: Vec<u8> = Vec::new();
        for round in 0..2000_u64 {
            let offset = random.below(20_000);
            let len = random.below(9_000);
            let (from, to) = (index(offset), index(offset + len));
            match random.below(4) {
                0 => {
                    content.set_len(offset);
                    model.resize(from, 0);
                }
                1 => {
                    content.zero(offset, len);
                    model.resize(model.len().max(to), 0);
                    model[from..to].fill(0);
                }
                _ if len > 0 => {
                    let data: Vec<u8> =
                        (0..len).map(|i| ((i + round) % 251).to_le_bytes()[0]).collect();
                    content.write(&data, offset);
                    model.resize(model.len().max(to), 0);
                    model[from..to].copy_from_slice(&data);
                }
                _ => {}
            }
            assert_eq!(content.len(), model.len() as u64, "round {round}");
            assert!(bytes(&content) == model, "round {round}");
        }
    }

    #[test]
    fn a_copy_does_not_see_later_writes() {
        let mut first = Content::default();
        first.write(&[1; 5000], 0);
        let copy = first.clone();
        first.write(&[2; 10], 4090);
        assert_eq!(bytes(&copy), vec![1; 5000]);
    }
}
