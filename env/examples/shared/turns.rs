//! What these programs have in common: who is measured when, what is told of it, and that nothing
//! is left behind.

use std::path::Path;

/// The order in which turn number `turn` measures so many ways: each turn begins with another one,
/// and every other goes backwards, so that none is always behind the same one.
pub(crate) fn order(turn: usize, ways: usize) -> impl Iterator<Item = usize> {
    (0..ways).map(move |n| {
        let n = if turn.is_multiple_of(2) { n } else { ways - 1 - n };
        (turn + n) % ways
    })
}

/// The least, the median and the most of some values.
pub(crate) fn spread(values: impl IntoIterator<Item = f64>) -> [f64; 3] {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    [values[0], values[values.len() / 2], values[values.len() - 1]]
}

/// A file that is removed in the end, however that comes about, if it is there.
pub(crate) struct Removed<'a>(pub(crate) &'a Path);

impl Drop for Removed<'_> {
    fn drop(&mut self) {
        // A file that was never made is none to be removed, and an end has nobody to tell more to.
        let _ = std::fs::remove_file(self.0);
    }
}
