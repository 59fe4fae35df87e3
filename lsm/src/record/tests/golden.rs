//! The worked bytes of `docs/format/record.md`.

use std::fmt::Write as _;

use super::*;

const PAGE: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/format/record.md"));

/// The file that the page works out.
fn worked_file() -> Vec<u8> {
    let env = MemEnv::new();
    let path = Path::new("000007.log");
    let file = env.create(path, FileKind::Log).unwrap();
    let predecessor = Predecessor { number: 6, end: 4096, last_wal_seq: 40, last_crc: 0xaabb_ccdd };
    let begin = Begin::new(FileRole::Log, 7, Some(predecessor));
    let mut writer = RecordWriter::begin(file, EPOCH, 41, &begin).unwrap();
    writer.sync().unwrap();
    writer.append(RecordType::Data, &[b"hello"]).unwrap();
    let successor = Successor { number: 8, epoch: 0xfedc_ba98_7654_3210, prepared: 1 << 20 };
    let end = End { successor: Some(successor) };
    writer.append(RecordType::End, &[&end.encode()]).unwrap();
    let file = env.open(path, Access::Sequential).unwrap();
    let mut bytes = vec![0; usize::try_from(file.size()).unwrap()];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::new();
    for (index, line) in bytes.chunks(16).enumerate() {
        write!(text, "{:04x} ", index * 16).unwrap();
        for byte in line {
            write!(text, " {byte:02x}").unwrap();
        }
        text.push('\n');
    }
    text
}

#[test]
fn the_worked_bytes_of_the_page_are_what_is_written() {
    let (_, after) = PAGE.split_once("```worked\n").unwrap();
    let (worked, _) = after.split_once("```").unwrap();
    let written = hex(&worked_file());
    assert_eq!(worked, written, "the page should say:\n{written}");
}

#[test]
fn the_worked_bytes_read_back() {
    let bytes = worked_file();
    let scan = scan(&bytes);
    assert_eq!(scan.data(), [b"hello"]);
    assert_eq!(scan.offsets, [0, 96, 152, 232]);
    assert_eq!(scan.verdict(), Verdict::CleanEnd);
}
