//! What kind of file a path stands for: by its name, or by its content if the name is foreign.

use std::path::Path;
use std::sync::Arc;

use treering_env::{Access, Env};

use crate::block_cache::BlockCache;
use crate::filename::FileName;
use crate::record::{Begin, FileRole, RecordReader};
use crate::table::Table;
use crate::{Error, Result};

/// A kind of file that can be printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Log,
    Manifest,
    Table,
    Current,
}

/// The kind of the file at `path`.
pub(super) fn kind_of(env: &dyn Env, path: &Path) -> Result<Kind> {
    let foreign = |why: &str| {
        Err(Error::invalid(format!("{} is no file of a Treering database: {why}", path.display())))
    };
    if env.metadata(path)?.is_some_and(|metadata| metadata.is_dir) {
        return foreign("it is a directory; name one of the files in it");
    }
    match path.file_name().and_then(FileName::parse) {
        Some(FileName::Log(_)) => return Ok(Kind::Log),
        Some(FileName::Manifest(_)) => return Ok(Kind::Manifest),
        Some(FileName::Table(_)) => return Ok(Kind::Table),
        Some(FileName::Current | FileName::CurrentTemp) => return Ok(Kind::Current),
        Some(FileName::Lock) => return foreign("a lock file holds nothing"),
        None => {}
    }
    let mut records = RecordReader::open(env, path)?;
    if let Some(record) = records.read_next()? {
        match Begin::decode(record.payload).map(|begin| begin.role) {
            Some(FileRole::Log) => return Ok(Kind::Log),
            Some(FileRole::Manifest) => return Ok(Kind::Manifest),
            None => {}
        }
    }
    let file = env.open(path, Access::Random)?;
    let size = file.size();
    match Table::open(file, size, &Arc::new(BlockCache::new(0))) {
        Ok(_) => Ok(Kind::Table),
        Err(_) => foreign("neither its name nor its content is that of a log, manifest or table"),
    }
}
