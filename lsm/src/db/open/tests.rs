//! Files of a newer format under a whole database: refused by name, and nothing is touched.

use treering_env::{Access, Env, FileKind, MemEnv};

use super::*;
use crate::checksum;
use crate::record::{HEADER_SIZE, Header};

const DIR: &str = "db";

fn opened(env: &MemEnv) -> Result<Db> {
    let options = Options { background_threads: 0, ..Options::default() };
    Db::open(Arc::new(env.clone()), DIR, options)
}

/// Every file of the directory with its bytes.
fn files(env: &MemEnv) -> Vec<(String, Vec<u8>)> {
    let names = env.list(DIR.as_ref()).unwrap().into_iter().map(|entry| entry.name);
    let mut files: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
    files.sort_unstable();
    let bytes = |name: &String| {
        let file = env.open(&Path::new(DIR).join(name), Access::Sequential).unwrap();
        let mut bytes = vec![0; usize::try_from(file.size()).unwrap()];
        file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    };
    files.into_iter().map(|name| (name.clone(), bytes(&name))).collect()
}

/// The first record says that it is of version 9, under a right checksum.
fn newer_record(bytes: &mut [u8]) {
    let (mut header, _) = Header::decode(bytes, 0).unwrap();
    header.version = 9;
    bytes[..HEADER_SIZE].copy_from_slice(&header.encode(0).0);
}

/// So does the footer of a table.
fn newer_table(bytes: &mut [u8]) {
    let start = bytes.len() - 64;
    let id = u64::from_le_bytes(bytes[start..start + 8].try_into().unwrap());
    bytes[start + 52] = 9;
    let crc = checksum::crc(id, start as u64, &[&bytes[start..start + 48], &bytes[start + 52..]]);
    bytes[start + 48..start + 52].copy_from_slice(&crc.to_le_bytes());
}

#[test]
fn a_newer_log_manifest_or_table_is_named_with_its_version_and_left_as_it_is() {
    type Forgery = (&'static str, fn(&mut [u8]));
    let forgeries: [Forgery; 3] =
        [(".log", newer_record), ("MANIFEST", newer_record), (".sst", newer_table)];
    for (which, forge) in forgeries {
        let env = MemEnv::new();
        let db = opened(&env).unwrap();
        db.put("in a table", "1").unwrap();
        db.flush().unwrap();
        db.put("in the log", "2").unwrap();
        db.close().unwrap();
        drop(db);
        let sound = files(&env);
        let (name, mut bytes) =
            sound.iter().find(|(name, _)| name.contains(which)).unwrap().clone();
        let path = Path::new(DIR).join(name);
        forge(&mut bytes);
        let write = |bytes: &[u8]| {
            let mut file = env.create(&path, FileKind::Table).unwrap();
            file.append(bytes).unwrap();
            file.finish().unwrap();
        };
        env.remove(&path).unwrap();
        write(&bytes);
        let forged = files(&env);
        let error = opened(&env).and_then(|db| db.get("in a table")).unwrap_err();
        let Error::UnsupportedVersion { path: named, found: 9, supported: 0 } = &error else {
            panic!("{which}: {error}");
        };
        assert_eq!(*named, path);
        if which != ".sst" {
            assert!(files(&env) == forged, "{which}: an open that is refused changes nothing");
        }
        env.remove(&path).unwrap();
        write(&sound.iter().find(|(name, _)| path.ends_with(name)).unwrap().1);
        let db = opened(&env).unwrap();
        assert_eq!(db.get("in a table").unwrap().as_deref(), Some(&b"1"[..]), "{which}");
        assert_eq!(db.get("in the log").unwrap().as_deref(), Some(&b"2"[..]), "{which}");
    }
}
