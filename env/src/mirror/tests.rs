//! A mirror sees what differs, and nothing where nothing does.

use std::path::Path;
use std::sync::Arc;

use super::*;
use crate::{CrashPolicy, Fault, FaultEnv, FaultKind, MemEnv, Op, Request, read_batch};

fn mirrored() -> (MemEnv, FaultEnv, MirrorEnv) {
    let first = MemEnv::new();
    let second = FaultEnv::new(Arc::new(MemEnv::new()));
    let mirror = MirrorEnv::recording(
        (Arc::new(first.clone()), PathBuf::new()),
        (Arc::new(second.clone()), "deep/er".into()),
    );
    second.create_dir_all(Path::new("deep/er")).unwrap();
    (first, second, mirror)
}

#[test]
fn a_flipped_bit_on_one_side_is_found_in_single_and_queued_reads() {
    let (_, second, mirror) = mirrored();
    let mut file = mirror.create(Path::new("/a"), FileKind::Table).unwrap();
    file.append(&[7; 1000]).unwrap();
    assert_eq!(file.finish().unwrap(), 1000);
    let file = mirror.open(Path::new("a"), Access::Random).unwrap();
    let request = Request::Read { file: Arc::clone(&file), offset: 10, len: 100 };
    assert_eq!(**read_batch(&mirror, vec![request.clone()])[0].as_ref().unwrap(), [7; 100]);
    assert_eq!(mirror.differences(), []);
    second.add(Fault::new(FaultKind::FlipBit(5)));
    file.read_exact_at(&mut [0; 10], 0).unwrap();
    assert_eq!(mirror.differences().len(), 1);
    assert!(read_batch(&mirror, vec![request])[0].is_ok());
    let differences = mirror.differences();
    assert_eq!(differences[1].call, "queued read a at 10, 100 bytes");
    assert_eq!(differences.len(), 2);
}

#[test]
fn an_error_on_one_side_is_a_difference_and_an_error() {
    let (first, second, mirror) = mirrored();
    second.add(Fault::new(FaultKind::Error(libc::EIO)).on(Op::List).on(Op::Open));
    assert_eq!(mirror.list(Path::new("")).unwrap_err().errno(), Some(libc::EIO));
    drop(mirror.open_rw(Path::new("a")).unwrap());
    assert!(mirror.open(Path::new("a"), Access::Random).is_err());
    assert!(mirror.open(Path::new("none"), Access::Random).is_err());
    assert_eq!(mirror.differences().len(), 3, "{:?}", mirror.differences());
    first.remove(Path::new("a")).unwrap();
    assert!(mirror.metadata(Path::new("a")).is_err() || mirror.differences().len() == 4);
}

#[test]
#[should_panic(expected = "the environments differ")]
fn a_mirror_made_with_new_panics_at_the_first_difference() {
    let first = MemEnv::new();
    first.open_rw(Path::new("a")).unwrap();
    let second = first.crash(CrashPolicy::DropAll);
    let mirror =
        MirrorEnv::new((Arc::new(first), PathBuf::new()), (Arc::new(second), PathBuf::new()));
    drop(mirror.metadata(Path::new("a")));
}
