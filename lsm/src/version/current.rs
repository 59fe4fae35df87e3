//! `CURRENT`: the small file that names the manifest (`docs/format/manifest.md`).
//!
//! It is replaced as a whole: written under another name, synced, renamed over the old one. What
//! it names is synced, with its name, before that.

use std::path::Path;

use treering_env::{Access, Env, ErrorKind, FileKind};

use crate::checksum;
use crate::filename::FileName;
use crate::{Error, Result};

/// A valid `CURRENT` is shorter; a longer one is not even read.
const MAX_SIZE: u64 = 64;

/// The contents of a `CURRENT` that names manifest `number`.
pub(crate) fn encode(number: u64) -> String {
    let name = FileName::Manifest(number).name();
    let crc = checksum::crc(0, 0, &[name.as_bytes()]);
    format!("{name} {crc:08x}\n")
}

/// The number of the manifest that `bytes` name; `None` if they are not exactly what
/// [`encode`] gives for some number.
pub(crate) fn decode(bytes: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(bytes).ok()?;
    let (name, _) = text.split_once(' ')?;
    let FileName::Manifest(number) = FileName::parse(name.as_ref())? else { return None };
    (text == encode(number)).then_some(number)
}

/// The number of the manifest that the database in `dir` uses; `None` if there is no `CURRENT`.
///
/// A damaged `CURRENT` is `Corruption`: nothing is guessed from the other files.
pub(crate) fn read(env: &dyn Env, dir: &Path) -> Result<Option<u64>> {
    let path = FileName::Current.path(dir);
    let damaged = |what: &'static str| Err(Error::corruption(&path, None, what));
    let Some(metadata) = env.metadata(&path)? else { return Ok(None) };
    if metadata.is_dir {
        return damaged(
            "a directory stands where CURRENT should; restore the whole directory from one copy",
        );
    }
    let file = match env.open(&path, Access::Sequential) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let size = file.size();
    let what = "CURRENT does not name a manifest; restore the whole directory from one copy";
    if size == 0 || size > MAX_SIZE {
        return damaged(what);
    }
    let mut bytes = vec![0; usize::try_from(size).expect("bounded above")];
    file.read_exact_at(&mut bytes, 0).map_err(Error::from_read)?;
    match decode(&bytes) {
        Some(number) => Ok(Some(number)),
        None => damaged(what),
    }
}

/// Makes `CURRENT` name manifest `number`, whose contents are durable. When this returns, the
/// manifest's name and the switch are durable too. After an error either manifest may be the
/// current one: both must be kept until an open has read which, and has made it durable.
pub(crate) fn switch(env: &dyn Env, dir: &Path, number: u64) -> Result<()> {
    let temp = FileName::CurrentTemp.path(dir);
    if env.metadata(&temp)?.is_some() {
        // The left-over of an earlier switch. It names nothing.
        env.remove(&temp)?;
    }
    let mut file = env.create(&temp, FileKind::Other)?;
    file.append(encode(number).as_bytes())?;
    file.finish()?;
    // Without this the rename could be durable before the name of the manifest is.
    env.sync_dir(dir)?;
    env.rename(&temp, &FileName::Current.path(dir))?;
    env.sync_dir(dir)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn current_holds_the_worked_bytes_of_the_format_page() {
        assert_eq!(encode(12), "MANIFEST-000012 64cd908f\n");
        let page = include_str!("../../../docs/format/manifest.md");
        assert!(page.contains("    MANIFEST-000012 64cd908f\\n"), "the page shows these bytes");
        for number in [1, 12, 999_999, 1_000_000, crate::filename::MAX_NUMBER] {
            assert_eq!(decode(encode(number).as_bytes()), Some(number));
        }
    }

    /// MAN-03
    #[test]
    fn no_cut_flip_or_extension_of_current_names_a_manifest() {
        let good = encode(12).into_bytes();
        for cut in 0..good.len() {
            assert_eq!(decode(&good[..cut]), None);
        }
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode(&bad), None, "bit {bit}");
        }
        assert_eq!(decode(&[&good[..], b"\n"].concat()), None);
        let crc = checksum::crc(0, 0, &[b"../MANIFEST-000012"]);
        assert_eq!(decode(format!("../MANIFEST-000012 {crc:08x}\n").as_bytes()), None);
        assert_eq!(decode(encode(u64::MAX).as_bytes()), None);
        assert_eq!(decode(encode(0).as_bytes()), None);
    }
}
