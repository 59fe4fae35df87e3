//! Columns: many keys as one piece of memory, and their values as another, in Arrow's layout.

use std::fmt;

use super::{ColumnFamily, Db, Snapshot};
use crate::batch::DEFAULT_FAMILY;
use crate::{Error, ReadOptions, Result};

/// Bytes that the values of one call may have together: as many as a write batch, just under 4 GiB.
pub(super) const MAX_COLUMN_SIZE: usize = u32::MAX as usize;

/// The keys of one call, packed one after another, in memory of the caller's. Any order and
/// duplicates are fine.
#[derive(Clone, Copy, Debug)]
pub struct KeyColumn<'a> {
    bytes: &'a [u8],
    shape: Shape<'a>,
}

#[derive(Clone, Copy, Debug)]
enum Shape<'a> {
    /// Each key has so many bytes.
    Width(usize),
    /// Key *i* lies from offset *i* to offset *i* + 1.
    Offsets(&'a [i64]),
}

impl<'a> KeyColumn<'a> {
    /// Keys of `width` bytes each: key *i* is `bytes[i * width..(i + 1) * width]`.
    ///
    /// [`Error::InvalidArgument`] if the width is 0 or `bytes` ends within a key.
    pub fn fixed(bytes: &'a [u8], width: usize) -> Result<Self> {
        if width == 0 {
            return Err(Error::invalid("keys of width 0; a column of them has no length"));
        }
        if !bytes.len().is_multiple_of(width) {
            let len = bytes.len();
            let what = format!("{len} bytes are no whole number of keys of {width} bytes");
            return Err(Error::invalid(what));
        }
        Ok(Self { bytes, shape: Shape::Width(width) })
    }

    /// Keys of any length, as in Arrow's `LargeBinary`: key *i* is
    /// `bytes[offsets[i]..offsets[i + 1]]`, so there is one offset more than there are keys. The
    /// first offset need not be 0, and bytes outside all keys are ignored, so a slice of a larger
    /// column can be given. No offsets at all are no keys.
    ///
    /// [`Error::InvalidArgument`], which names the offset, if one is smaller than the one before,
    /// negative, or beyond the end of `bytes`. Looks at every offset once.
    pub fn offsets(bytes: &'a [u8], offsets: &'a [i64]) -> Result<Self> {
        let mut least = 0;
        for (index, &offset) in offsets.iter().enumerate() {
            if offset < least {
                let what = match index.checked_sub(1) {
                    Some(before) => format!("smaller than offset {before}, {least}"),
                    None => "negative".to_owned(),
                };
                return Err(Error::invalid(format!("key offset {index}, {offset}, is {what}")));
            }
            least = offset;
        }
        // The last one is the largest.
        if usize::try_from(least).map_or(true, |end| end > bytes.len()) {
            let len = bytes.len();
            return Err(Error::invalid(format!("key offset {least} is beyond the {len} bytes")));
        }
        Ok(Self { bytes, shape: Shape::Offsets(offsets) })
    }

    /// How many keys there are.
    pub fn len(&self) -> usize {
        match self.shape {
            Shape::Width(width) => self.bytes.len() / width,
            Shape::Offsets(offsets) => offsets.len().saturating_sub(1),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The keys, in order.
    pub(super) fn iter(self) -> impl ExactSizeIterator<Item = &'a [u8]> {
        (0..self.len()).map(move |index| match self.shape {
            Shape::Width(width) => &self.bytes[index * width..][..width],
            Shape::Offsets(offsets) => &self.bytes[place(offsets, index)],
        })
    }
}

/// Where element `index` of a column lies.
fn place(offsets: &[i64], index: usize) -> std::ops::Range<usize> {
    let offset = |index: usize| usize::try_from(offsets[index]).expect("offsets are not negative");
    offset(index)..offset(index + 1)
}

/// The values of many keys, as in Arrow's `LargeBinary`: value *i* is
/// `data[offsets[i]..offsets[i + 1]]` if bit *i* of `validity` is set, else there is none and the
/// range is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ValueColumn {
    /// All values, one after another in the order of the keys.
    pub data: Vec<u8>,
    /// Where in `data` each value begins, in bytes, and behind them where the last one ends: one
    /// offset more than there are keys, the first of them 0.
    pub offsets: Vec<i64>,
    /// One bit for each key, set if it has a value: bit `i % 8`, counted from the lowest, of byte
    /// `i / 8`. The bits behind the last key are 0.
    pub validity: Vec<u8>,
}

impl ValueColumn {
    /// How many keys it answers.
    pub fn len(&self) -> usize {
        self.offsets.len().saturating_sub(1)
    }

    /// Whether it answers none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The value of key `index`; `None` if it has none.
    ///
    /// # Panics
    /// If there is no such key.
    pub fn get(&self, index: usize) -> Option<&[u8]> {
        let place = place(&self.offsets, index);
        (self.validity[index / 8] >> (index % 8) & 1 == 1).then(|| &self.data[place])
    }
}

/// Memory of the caller's for the values of many keys, all of one width.
pub struct FixedColumn<'a> {
    /// Value *i* goes to `values[i * width..(i + 1) * width]`; zeros, where there is none.
    pub values: &'a mut [u8],
    /// Bytes of each value, at least 1.
    pub width: usize,
    /// A bit for each key, as in [`ValueColumn::validity`]: one byte for each eight keys begun.
    pub validity: &'a mut [u8],
}

impl fmt::Debug for FixedColumn<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (values, validity) = (self.values.len(), self.validity.len());
        write!(f, "FixedColumn({values} bytes of width {}, {validity} of validity)", self.width)
    }
}

impl FixedColumn<'_> {
    /// Whether there is room for so many answers.
    pub(super) fn check(&self, keys: usize) -> Result<()> {
        if self.width == 0 {
            return Err(Error::invalid("values of width 0; a column of them has no length"));
        }
        let need = keys.checked_mul(self.width);
        if need.is_none_or(|need| need > self.values.len()) {
            let (len, width) = (self.values.len(), self.width);
            let what = format!("room for {len} bytes; {keys} values of {width} bytes need more");
            return Err(Error::invalid(what));
        }
        if self.validity.len() < keys.div_ceil(8) {
            let what = format!("{} bytes of validity for {keys} keys", self.validity.len());
            return Err(Error::invalid(what));
        }
        Ok(())
    }
}

/// The keys of a call whose read failed, by their index, ascending, each with its own error. In the
/// column they have no value, as keys that are missing.
#[derive(Clone, Debug, Default)]
#[must_use = "a key that failed looks like a missing one in the column"]
pub struct FailedKeys(Vec<(usize, Error)>);

impl FailedKeys {
    pub(super) fn push(&mut self, index: usize, error: Error) {
        self.0.push((index, error));
    }

    /// Whether every key was answered.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many keys failed.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The index of each key that failed, and why.
    pub fn as_slice(&self) -> &[(usize, Error)] {
        &self.0
    }

    /// The first error, if there is one: for callers who take all answers or none.
    pub fn into_result(self) -> Result<()> {
        self.0.into_iter().next().map_or(Ok(()), |(_, error)| Err(error))
    }
}

impl IntoIterator for FailedKeys {
    type Item = (usize, Error);
    type IntoIter = std::vec::IntoIter<(usize, Error)>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl Db {
    /// [`Db::multi_get`] for analytics: packed keys in, one column of values out, all as of one
    /// moment, with no allocation for each key. Answer *i* is for key *i*; a missing key has no
    /// value. Any number of threads may call it at once.
    ///
    /// A key whose read failed is told in [`FailedKeys`] with its own error and has no value; it
    /// disturbs no other. An error of the call as a whole is [`Error::Closed`],
    /// [`Error::FamilyDropped`], or [`Error::InvalidArgument`] if the values have more than
    /// 4 GiB - 1 byte together, a value counted as often as its key was given.
    ///
    /// Blocks are read as by [`Db::multi_get`]. Each value is copied out of its block at once, and
    /// once more unless the answers came in the order of the keys, as those of ascending keys
    /// mostly do when they are cached. Memory: the values, for a moment twice, and about 150 bytes
    /// for each key while the call lasts.
    ///
    /// ```
    /// # use treering_lsm::{Db, KeyColumn, Options};
    /// # let env = std::sync::Arc::new(treering_env::MemEnv::new());
    /// # let db = Db::open(env, "db", Options::default())?;
    /// db.put(7_u32.to_be_bytes(), "seven")?;
    /// db.put(9_u32.to_be_bytes(), "nine")?;
    /// let keys = [9_u32, 8, 7].map(u32::to_be_bytes);
    /// let keys = KeyColumn::fixed(keys.as_flattened(), 4)?;
    /// let (column, failed) = db.multi_get_columns(keys)?;
    /// failed.into_result()?; // all answers or none
    /// assert_eq!(column.data, b"nineseven");
    /// assert_eq!(column.offsets, [0, 4, 4, 9]);
    /// assert_eq!(column.validity, [0b101]);
    /// assert_eq!((column.get(0), column.get(1)), (Some(&b"nine"[..]), None));
    /// # Ok::<(), treering_lsm::Error>(())
    /// ```
    pub fn multi_get_columns(&self, keys: KeyColumn<'_>) -> Result<(ValueColumn, FailedKeys)> {
        self.multi_get_columns_opt(keys, &ReadOptions::default())
    }

    /// [`Db::multi_get_columns`] with options.
    pub fn multi_get_columns_opt(
        &self,
        keys: KeyColumn<'_>,
        options: &ReadOptions,
    ) -> Result<(ValueColumn, FailedKeys)> {
        self.handle.shared.multi_get_columns(None, DEFAULT_FAMILY, keys, options)
    }

    /// [`Db::multi_get_columns`] for values that all have one width, straight into memory of the
    /// caller's: each value is copied once, to its place.
    ///
    /// A value of another length is that key's [`Error::InvalidArgument`], which names the index
    /// of the key. An error of the call as a whole is [`Error::Closed`], [`Error::FamilyDropped`],
    /// or [`Error::InvalidArgument`] if the width is 0 or there is too little room; memory beyond
    /// what the keys need is left alone.
    ///
    /// ```
    /// # use treering_lsm::{Db, FixedColumn, KeyColumn, Options};
    /// # let env = std::sync::Arc::new(treering_env::MemEnv::new());
    /// # let db = Db::open(env, "db", Options::default())?;
    /// db.put("ab", 1_u16.to_le_bytes())?;
    /// db.put("c", 2_u16.to_le_bytes())?;
    /// let keys = KeyColumn::offsets(b"cabx", &[0, 1, 3, 4])?; // c, ab, x
    /// let (mut values, mut validity) = ([0; 6], [0; 1]);
    /// let out = FixedColumn { values: &mut values, width: 2, validity: &mut validity };
    /// db.multi_get_fixed(keys, out)?.into_result()?;
    /// assert_eq!(values, [2, 0, 1, 0, 0, 0]);
    /// assert_eq!(validity, [0b011]);
    /// # Ok::<(), treering_lsm::Error>(())
    /// ```
    pub fn multi_get_fixed(&self, keys: KeyColumn<'_>, out: FixedColumn<'_>) -> Result<FailedKeys> {
        self.multi_get_fixed_opt(keys, out, &ReadOptions::default())
    }

    /// [`Db::multi_get_fixed`] with options.
    pub fn multi_get_fixed_opt(
        &self,
        keys: KeyColumn<'_>,
        out: FixedColumn<'_>,
        options: &ReadOptions,
    ) -> Result<FailedKeys> {
        self.handle.shared.multi_get_fixed(None, DEFAULT_FAMILY, keys, out, options)
    }
}

impl ColumnFamily {
    /// The values of many keys as one column; see [`Db::multi_get_columns`].
    pub fn multi_get_columns(&self, keys: KeyColumn<'_>) -> Result<(ValueColumn, FailedKeys)> {
        self.multi_get_columns_opt(keys, &ReadOptions::default())
    }

    /// [`ColumnFamily::multi_get_columns`] with options.
    pub fn multi_get_columns_opt(
        &self,
        keys: KeyColumn<'_>,
        options: &ReadOptions,
    ) -> Result<(ValueColumn, FailedKeys)> {
        self.handle.shared.multi_get_columns(None, self.id, keys, options)
    }

    /// Values of one width into memory of the caller's; see [`Db::multi_get_fixed`].
    pub fn multi_get_fixed(&self, keys: KeyColumn<'_>, out: FixedColumn<'_>) -> Result<FailedKeys> {
        self.multi_get_fixed_opt(keys, out, &ReadOptions::default())
    }

    /// [`ColumnFamily::multi_get_fixed`] with options.
    pub fn multi_get_fixed_opt(
        &self,
        keys: KeyColumn<'_>,
        out: FixedColumn<'_>,
        options: &ReadOptions,
    ) -> Result<FailedKeys> {
        self.handle.shared.multi_get_fixed(None, self.id, keys, out, options)
    }
}

impl Snapshot {
    /// The values of many keys as one column; see [`Db::multi_get_columns`].
    pub fn multi_get_columns(&self, keys: KeyColumn<'_>) -> Result<(ValueColumn, FailedKeys)> {
        self.multi_get_columns_opt(keys, &ReadOptions::default())
    }

    /// [`Snapshot::multi_get_columns`] with options.
    pub fn multi_get_columns_opt(
        &self,
        keys: KeyColumn<'_>,
        options: &ReadOptions,
    ) -> Result<(ValueColumn, FailedKeys)> {
        self.shared().multi_get_columns(Some(self.sequence()), DEFAULT_FAMILY, keys, options)
    }

    /// [`Snapshot::multi_get_columns`] in a column family.
    pub fn multi_get_columns_in(
        &self,
        family: &ColumnFamily,
        keys: KeyColumn<'_>,
    ) -> Result<(ValueColumn, FailedKeys)> {
        let (at, id) = (Some(self.sequence()), self.id_of(family)?);
        self.shared().multi_get_columns(at, id, keys, &ReadOptions::default())
    }

    /// Values of one width into memory of the caller's; see [`Db::multi_get_fixed`].
    pub fn multi_get_fixed(&self, keys: KeyColumn<'_>, out: FixedColumn<'_>) -> Result<FailedKeys> {
        self.multi_get_fixed_opt(keys, out, &ReadOptions::default())
    }

    /// [`Snapshot::multi_get_fixed`] with options.
    pub fn multi_get_fixed_opt(
        &self,
        keys: KeyColumn<'_>,
        out: FixedColumn<'_>,
        options: &ReadOptions,
    ) -> Result<FailedKeys> {
        self.shared().multi_get_fixed(Some(self.sequence()), DEFAULT_FAMILY, keys, out, options)
    }

    /// [`Snapshot::multi_get_fixed`] in a column family.
    pub fn multi_get_fixed_in(
        &self,
        family: &ColumnFamily,
        keys: KeyColumn<'_>,
        out: FixedColumn<'_>,
    ) -> Result<FailedKeys> {
        let (at, id) = (Some(self.sequence()), self.id_of(family)?);
        self.shared().multi_get_fixed(at, id, keys, out, &ReadOptions::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys<'a>(column: &KeyColumn<'a>) -> Vec<&'a [u8]> {
        column.iter().collect()
    }

    fn refusal<T: fmt::Debug>(result: Result<T>) -> String {
        result.unwrap_err().to_string()
    }

    #[test]
    fn packed_keys_of_one_width_and_of_any_length_are_taken_apart() {
        assert_eq!(keys(&KeyColumn::fixed(b"abcdef", 2).unwrap()), [b"ab", b"cd", b"ef"]);
        assert!(KeyColumn::fixed(b"", 2).unwrap().is_empty());
        let column = KeyColumn::offsets(b"abcdef", &[1, 1, 4, 5]).unwrap();
        assert_eq!(keys(&column), [&b""[..], b"bcd", b"e"]);
        for none in [&[][..], &[0], &[3]] {
            let column = KeyColumn::offsets(b"abc", none).unwrap();
            assert!(column.is_empty() && keys(&column).is_empty());
        }
        assert_eq!(keys(&KeyColumn::offsets(b"", &[0, 0]).unwrap()), [b""]);
    }

    #[test]
    fn key_columns_of_a_wrong_shape_are_refused_with_what_is_wrong() {
        let cases = [
            (refusal(KeyColumn::fixed(b"abc", 0)), "width 0"),
            (refusal(KeyColumn::fixed(b"", 0)), "width 0"),
            (refusal(KeyColumn::fixed(b"abcde", 2)), "5 bytes are no whole number"),
            (refusal(KeyColumn::offsets(b"abc", &[-1, 2])), "key offset 0, -1, is negative"),
            (refusal(KeyColumn::offsets(b"abc", &[0, 2, 1])), "key offset 2, 1, is smaller"),
            (refusal(KeyColumn::offsets(b"abc", &[0, 4])), "key offset 4 is beyond the 3 bytes"),
            (refusal(KeyColumn::offsets(b"abc", &[0, i64::MAX])), "is beyond"),
            (refusal(KeyColumn::offsets(b"", &[1])), "is beyond"),
        ];
        for (message, expected) in cases {
            assert!(message.starts_with("invalid argument: "), "{message}");
            assert!(message.contains(expected), "{message}");
        }
    }

    #[test]
    fn memory_too_small_for_the_answers_is_refused_before_anything_is_read() {
        let check = |values: usize, width, validity: usize, keys| {
            let (mut values, mut validity) = (vec![0; values], vec![0; validity]);
            FixedColumn { values: &mut values, width, validity: &mut validity }.check(keys)
        };
        check(0, 1, 0, 0).unwrap();
        check(16, 2, 1, 8).unwrap();
        check(18, 2, 2, 9).unwrap();
        check(100, 2, 9, 9).unwrap();
        assert!(refusal(check(10, 0, 1, 1)).contains("width 0"));
        assert!(refusal(check(15, 2, 1, 8)).contains("room for 15 bytes; 8 values of 2 bytes"));
        assert!(refusal(check(15, usize::MAX / 2, 1, 8)).contains("need more"));
        assert!(refusal(check(18, 2, 1, 9)).contains("1 bytes of validity for 9 keys"));
    }
}
