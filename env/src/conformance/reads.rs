//! Reading at any offset.

use std::sync::Arc;

use super::{Site, done, failed, names_file, pattern, read_all, to_usize};
use crate::mem::Random;
use crate::{Access, ErrorKind, Request, Result, read_batch};

/// One read, done alone and through a queue, which must say the same.
fn read_both_ways(site: &Site, name: &str, offset: u64, len: usize) -> Result<Vec<u8>> {
    let file = site.open(name);
    let mut bytes = vec![0xAA; len];
    let single = file.read_exact_at(&mut bytes, offset).map(|()| bytes);
    let mut batch = read_batch(&*site.env, vec![Request::Read { file, offset, len }]);
    let queued = batch.pop().expect("a batch of one has one result");
    match (&single, &queued) {
        (Ok(one), Ok(other)) => assert_eq!(one.as_slice(), &**other, "{len} bytes at {offset}"),
        (Err(one), Err(other)) => assert_eq!(one.kind(), other.kind(), "{len} bytes at {offset}"),
        _ => panic!("{len} bytes at {offset}: alone {single:?}, through a queue {queued:?}"),
    }
    single
}

/// ENV-01
pub(super) fn exact_inside_the_file_and_an_error_beyond_it(site: &Site) {
    let bytes = pattern(1, 10_000);
    site.write("f", &bytes);
    for (offset, len) in [(9_900, 100), (0, 10_000), (4095, 2), (4096, 4096), (1, 1), (9_999, 1)] {
        let read = done("a read inside", read_both_ways(site, "f", offset, len));
        assert_eq!(read, bytes[to_usize(offset)..][..len], "{len} bytes at {offset}");
    }
    for (offset, len) in
        [(9_995, 10), (10_000, 1), (10_000 + (1 << 20), 10), (0, 10_001), (u64::MAX - 1, 8)]
    {
        let error = failed("a read beyond the end", read_both_ways(site, "f", offset, len));
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof, "{len} bytes at {offset}");
        assert_eq!(error.offset(), Some(offset), "{error}");
        assert!(names_file(&error, "f"), "{error}");
    }
    for offset in [0, 5_000, 10_000, 20_000] {
        assert_eq!(done("an empty read", read_both_ways(site, "f", offset, 0)), []);
    }
}

pub(super) fn a_reader_knows_its_size_and_path(site: &Site) {
    site.write("f", &pattern(2, 4_097));
    for access in [Access::Random, Access::Sequential] {
        let file = done("open", site.env.open(&site.path("f"), access));
        assert_eq!(file.size(), 4_097);
        assert_eq!(file.path(), site.path("f"));
    }
}

pub(super) fn an_empty_file_can_be_read(site: &Site) {
    site.write("f", &[]);
    assert_eq!(site.open("f").size(), 0);
    assert_eq!(done("an empty read", read_both_ways(site, "f", 0, 0)), []);
    let error = failed("a read of nothing", read_both_ways(site, "f", 0, 1));
    assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
}

/// ENV-10, the part that needs no other user and no broken device.
pub(super) fn opening_what_is_not_a_file_is_an_error(site: &Site) {
    site.write("f", b"x");
    done("create_dir_all", site.env.create_dir_all(&site.path("d")));
    let open = |name: &str| site.env.open(&site.path(name), Access::Random);
    for name in ["none", "none/f", "d/none"] {
        assert_eq!(failed("open", open(name)).kind(), ErrorKind::NotFound, "{name}");
    }
    let error = failed("open below a file", open("f/x"));
    assert_ne!(error.kind(), ErrorKind::NotFound, "{error}");
    // Some systems open a directory and then refuse to read it.
    let read = open("d").and_then(|file| file.read_exact_at(&mut [0], 0));
    assert_ne!(failed("reading a directory", read).kind(), ErrorKind::NotFound);
    assert!(site.env.open_rw(&site.path("d")).is_err());
    assert_eq!(
        failed("open_rw", site.env.open_rw(&site.path("none/f"))).kind(),
        ErrorKind::NotFound
    );
}

/// ENV-12
pub(super) fn many_threads_read_one_file(site: &Site) {
    let bytes = pattern(3, 300_000);
    site.write("f", &bytes);
    let file = site.open("f");
    std::thread::scope(|scope| {
        for seed in 0..8 {
            let (file, bytes) = (&file, &bytes);
            scope.spawn(move || {
                let mut random = Random::new(seed);
                for _ in 0..60 {
                    let offset = random.below(290_000);
                    let len = to_usize(random.below(10_000));
                    let expected = &bytes[to_usize(offset)..][..len];
                    if seed % 2 == 0 {
                        let mut read = vec![0; len];
                        done("read", file.read_exact_at(&mut read, offset));
                        assert!(read == expected, "{len} bytes at {offset}");
                    } else {
                        let request = Request::Read { file: Arc::clone(file), offset, len };
                        for result in read_batch(&*site.env, vec![request; 3]) {
                            assert!(*done("queued read", result) == *expected, "at {offset}");
                        }
                    }
                }
            });
        }
    });
}

pub(super) fn hints_change_nothing(site: &Site) {
    let bytes = pattern(4, 50_000);
    site.write("f", &bytes);
    let file = done("open", site.env.open(&site.path("f"), Access::Sequential));
    for (offset, len) in [(0, 50_000), (49_000, 10_000), (60_000, 1), (0, 0), (u64::MAX, u64::MAX)]
    {
        file.will_need(offset, len);
    }
    assert!(read_all(&*file) == bytes);
}
