//! The version set, its files, and what damages them.

use treering_env::{Access, CountEnv, Fault, FaultEnv, FaultKind, FileKind, MemEnv, Op};

use super::*;
use crate::version::state::tests::table;

const EIO: i32 = 5;
const ENOSPC: i32 = 28;

pub(super) fn dir() -> &'static Path {
    Path::new("db")
}

pub(super) fn bytes_of(env: &dyn Env, name: FileName) -> Vec<u8> {
    let file = env.open(&name.path(dir()), Access::Sequential).unwrap();
    let mut bytes = vec![0; usize::try_from(file.size()).unwrap()];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

fn replace(env: &dyn Env, name: FileName, bytes: &[u8]) {
    let path = name.path(dir());
    if env.metadata(&path).unwrap().is_some() {
        env.remove(&path).unwrap();
    }
    let mut file = env.create(&path, FileKind::Other).unwrap();
    file.append(bytes).unwrap();
    file.finish().unwrap();
    env.sync_dir(dir()).unwrap();
}

/// A durable file in the place of a table, and what the manifest says of it.
pub(super) fn write_table(
    env: &dyn Env,
    set: &VersionSet,
    (first, last, newest): (&str, &str, u64),
) -> Result<Arc<FileMeta>> {
    let file = table(set.numbers().next(), first, last, newest);
    let mut written = env.create(&FileName::Table(file.number).path(dir()), FileKind::Table)?;
    written.append(&[7; 1000])?;
    written.finish()?;
    env.sync_dir(dir())?;
    Ok(file)
}

pub(super) fn add(level: usize, file: &Arc<FileMeta>) -> VersionEdit {
    VersionEdit { added: vec![(0, level, Arc::clone(file))], ..VersionEdit::default() }
}

/// Levels and numbers of all tables of the default family.
pub(super) fn tables(set: &VersionSet) -> Vec<(usize, u64)> {
    let version = set.family(0).unwrap().current;
    let level = |level| version.files(level).iter().map(move |file| (level, file.number));
    (0..super::super::LEVELS).flat_map(level).collect()
}

fn created(env: &Arc<dyn Env>) -> VersionSet {
    env.create_dir_all(dir()).unwrap();
    let mut set = VersionSet::create(Arc::clone(env), dir()).unwrap();
    let _ = set.roll(VersionEdit::default()).unwrap();
    set
}

/// A database with three tables, each added by an edit of its own.
fn with_tables(env: &Arc<dyn Env>) -> VersionSet {
    let mut set = created(env);
    for newest in 1..=3 {
        let file = write_table(&**env, &set, ("a", "z", newest)).unwrap();
        let _ = set.log_and_apply(add(0, &file)).unwrap();
    }
    set
}

fn recover(env: &Arc<dyn Env>) -> Result<VersionSet> {
    VersionSet::recover(Arc::clone(env), dir()).map(|set| set.expect("there is a CURRENT"))
}

#[test]
fn what_was_logged_is_recovered_and_nothing_is_there_before_the_first_manifest() {
    let env: Arc<dyn Env> = Arc::new(MemEnv::new());
    env.create_dir_all(dir()).unwrap();
    assert!(VersionSet::recover(Arc::clone(&env), dir()).unwrap().is_none());
    let mut set = with_tables(&env);
    let before = tables(&set);
    assert_eq!(before.len(), 3);
    let users = VersionEdit {
        added_families: vec![(set.next_family_id(), "users".to_owned())],
        family_logs: vec![FamilyLog { family: 1, log_number: 1, flushed_sequence: 3 }],
        ..VersionEdit::default()
    };
    let installed = set.log_and_apply(users).unwrap();
    assert_eq!(installed.versions.len(), 1);
    let again = recover(&env).unwrap();
    assert_eq!(tables(&again), before);
    assert_eq!(again.last_sequence(), 3);
    assert_eq!(again.next_family_id(), 2);
    let users = again.family(1).unwrap();
    assert_eq!((users.name.as_str(), users.log_number, users.flushed_sequence), ("users", 1, 3));
    assert_eq!(again.cut(), None);
    assert!(again.numbers().peek() >= set.numbers().peek());
}

/// MAN-03
#[test]
fn a_damaged_current_is_refused_by_name_and_nothing_is_changed() {
    let mem = MemEnv::new();
    let env: Arc<dyn Env> = Arc::new(mem.clone());
    let before = tables(&with_tables(&env));
    let good = bytes_of(&mem, FileName::Current);
    let cut = &good[..good.len() - 1];
    let garbage = vec![b'x'; 1 << 20];
    let missing = current::encode(999);
    let bad: [&[u8]; 6] =
        [b"", cut, &garbage, missing.as_bytes(), b"MANIFEST-000001\n", b"../MANIFEST-000001\n"];
    for bytes in bad {
        replace(&mem, FileName::Current, bytes);
        let fingerprint = mem.fingerprint();
        let error = recover(&env).unwrap_err();
        let Error::Corruption { path, .. } = &error else { panic!("{error}") };
        assert_eq!(path, &FileName::Current.path(dir()));
        assert_eq!(mem.fingerprint(), fingerprint);
    }
    replace(&mem, FileName::Current, &good);
    assert_eq!(tables(&recover(&env).unwrap()), before);
    let faults = FaultEnv::new(Arc::clone(&env));
    for op in [Op::Metadata, Op::Open, Op::Read] {
        let rule = faults.add(Fault::new(FaultKind::Error(EIO)).on(op).path("CURRENT"));
        let faulty: Arc<dyn Env> = Arc::new(faults.clone());
        assert!(matches!(recover(&faulty).unwrap_err(), Error::Io(_)));
        assert_eq!(rule.fired(), 1);
        rule.remove();
    }
}

/// MAN-12
#[test]
fn a_live_table_that_is_missing_or_of_another_size_is_named() {
    let env: Arc<dyn Env> = Arc::new(MemEnv::new());
    let set = with_tables(&env);
    let name = FileName::Table(tables(&set)[1].1);
    replace(&*env, name, &[7; 999]);
    let error = recover(&env).unwrap_err();
    assert_eq!(error.to_string(), "corruption: db/000003.sst: 999 bytes long, 1000 recorded");
    env.remove(&name.path(dir())).unwrap();
    for _ in 0..2 {
        let error = recover(&env).unwrap_err();
        assert!(matches!(error, Error::MissingFile(path) if path == name.path(dir())));
    }
    env.create_dir_all(&name.path(dir())).unwrap();
    assert!(matches!(recover(&env).unwrap_err(), Error::Corruption { .. }));
}

/// MAN-04
#[test]
fn a_manifest_cut_inside_its_last_edit_shows_the_state_before_it() {
    let env: Arc<dyn Env> = Arc::new(MemEnv::new());
    let mut set = with_tables(&env);
    let name = FileName::Manifest(set.manifest().0.unwrap());
    let whole_before = bytes_of(&*env, name).len();
    let before = tables(&set);
    let file = write_table(&*env, &set, ("a", "z", 9)).unwrap();
    let _ = set.log_and_apply(add(0, &file)).unwrap();
    let bytes = bytes_of(&*env, name);
    for cut in whole_before..bytes.len() {
        replace(&*env, name, &bytes[..cut]);
        let again = recover(&env).unwrap();
        assert_eq!(tables(&again), before, "cut at {cut}");
        assert_eq!(again.cut().is_some(), cut > whole_before, "cut at {cut}");
    }
    replace(&*env, name, &bytes);
    assert_eq!(tables(&recover(&env).unwrap()), tables(&set));
}

/// MAN-05, HOST-05
#[test]
fn no_flipped_bit_of_a_synced_manifest_shortens_its_history() {
    let env: Arc<dyn Env> = Arc::new(MemEnv::new());
    let mut set = with_tables(&env);
    let name = FileName::Manifest(set.manifest().0.unwrap());
    let last_edit = bytes_of(&*env, name).len();
    let before = tables(&set);
    let _ = set.log_and_apply(VersionEdit::default()).unwrap();
    let bytes = bytes_of(&*env, name);
    for bit in 0..bytes.len() * 8 {
        let mut bad = bytes.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        replace(&*env, name, &bad);
        match recover(&env) {
            // Only what no later record witnesses can look like a torn write.
            Ok(again) => {
                assert!(bit / 8 >= last_edit, "bit {bit}");
                assert_eq!(tables(&again), before, "bit {bit}");
            }
            Err(Error::Corruption { path, offset, .. }) => {
                assert_eq!(path, name.path(dir()));
                assert!(offset.unwrap() <= (bit / 8) as u64, "bit {bit}");
            }
            Err(Error::UnsupportedVersion { .. }) => {}
            Err(error) => panic!("bit {bit}: {error}"),
        }
    }
    for cut in 0..bytes_of_first_state(&bytes) {
        replace(&*env, name, &bytes[..cut]);
        assert!(matches!(recover(&env), Err(Error::Corruption { .. })), "cut at {cut}");
    }
}

/// Where the first edit of a manifest ends.
fn bytes_of_first_state(bytes: &[u8]) -> usize {
    let mut end = 0;
    for _ in 0..2 {
        let length = u32::from_le_bytes(bytes[end + 4..end + 8].try_into().unwrap());
        end += usize::try_from(crate::record::record_size(u64::from(length))).unwrap();
    }
    end
}

/// MAN-07
#[test]
fn after_a_failed_append_or_sync_no_record_is_ever_written_behind_it() {
    let kinds = [
        (Op::Append, FaultKind::Error(ENOSPC)),
        (Op::Append, FaultKind::Short { bytes: 20, errno: ENOSPC }),
        (Op::Flush, FaultKind::Error(EIO)),
        (Op::Sync, FaultKind::Error(ENOSPC)),
        (Op::Sync, FaultKind::ErrorAfter(EIO)),
    ];
    for (op, kind) in kinds {
        let mem = MemEnv::new();
        let count = Arc::new(CountEnv::new(Arc::new(mem.clone())));
        let faults = FaultEnv::new(count.clone());
        let env: Arc<dyn Env> = Arc::new(faults.clone());
        let mut set = with_tables(&env);
        let before = tables(&set);
        let file = write_table(&*env, &set, ("a", "z", 9)).unwrap();
        let obsolete = Arc::clone(set.obsolete());
        let rule = faults.add(Fault::new(kind).on(op).path("MANIFEST-000001").times(1));
        let removed = VersionEdit { removed: vec![(0, 0, before[0].1)], ..add(0, &file) };
        let first = set.log_and_apply(removed.clone()).unwrap_err().to_string();
        assert_eq!(rule.fired(), 1, "{op:?}");
        assert_eq!(tables(&set), before);
        let operations = mem.operations();
        for edit in [add(0, &file), removed, VersionEdit::default()] {
            assert_eq!(set.log_and_apply(edit).unwrap_err().to_string(), first);
        }
        assert_eq!(set.roll(VersionEdit::default()).unwrap_err().to_string(), first);
        assert_eq!(mem.operations(), operations, "nothing is written after a failure");
        drop(set);
        assert!(obsolete.is_empty(), "what an edit of unknown outcome removes must stay");

        let mut again = recover(&env).unwrap();
        let seen = tables(&again);
        let after = [&[(0, file.number)], &before[1..]].concat();
        assert!(seen == before || seen == after, "{seen:?}");
        let _ = again.roll(VersionEdit::default()).unwrap();
        assert!(again.numbers().peek() > file.number);
        let other = write_table(&*env, &again, ("a", "z", 10)).unwrap();
        let _ = again.log_and_apply(add(0, &other)).unwrap();
        assert_eq!(tables(&recover(&env).unwrap()), tables(&again));
    }
}

/// MAN-08, MAN-09
#[test]
fn when_a_switch_fails_both_manifests_stay_and_the_next_open_works() {
    let faults_of_a_roll = [
        (Op::Create, "MANIFEST-000005", FaultKind::Error(ENOSPC)),
        (Op::Append, "MANIFEST-000005", FaultKind::Error(ENOSPC)),
        (Op::Sync, "MANIFEST-000005", FaultKind::Error(EIO)),
        (Op::Create, "CURRENT.tmp", FaultKind::Error(ENOSPC)),
        (Op::Append, "CURRENT.tmp", FaultKind::Short { bytes: 3, errno: ENOSPC }),
        (Op::Finish, "CURRENT.tmp", FaultKind::Error(EIO)),
        (Op::Rename, "CURRENT", FaultKind::Error(EIO)),
        (Op::Rename, "CURRENT", FaultKind::ErrorAfter(EIO)),
        (Op::SyncDir, "db", FaultKind::Error(EIO)),
    ];
    for (op, path, kind) in faults_of_a_roll {
        for nth in 1..=2 {
            if nth == 2 && op != Op::SyncDir {
                continue;
            }
            let mem = MemEnv::new();
            let faults = FaultEnv::new(Arc::new(mem.clone()));
            let env: Arc<dyn Env> = Arc::new(faults.clone());
            let mut set = with_tables(&env);
            let before = tables(&set);
            let rule = faults.add(Fault::new(kind).on(op).path(path).nth(nth));
            let error = set.roll(VersionEdit::default()).unwrap_err();
            assert_eq!(rule.fired(), 1, "{op:?} {path}: {error}");
            assert!(set.obsolete().is_empty(), "nothing may be removed: {op:?} {path}");
            assert!(set.log_and_apply(VersionEdit::default()).is_err());
            for policy in treering_env::CrashPolicy::all(nth) {
                let image: Arc<dyn Env> = Arc::new(mem.crash(policy));
                let mut again = recover(&image).unwrap();
                assert_eq!(tables(&again), before, "{op:?} {path} {policy:?}");
                let _ = again.roll(VersionEdit::default()).unwrap();
                for name in again.leftovers().unwrap() {
                    image.remove(&name.path(dir())).unwrap();
                }
                assert_eq!(tables(&recover(&image).unwrap()), before);
            }
        }
    }
}

/// HOST-03
#[test]
fn a_manifest_that_repeats_itself_is_refused_or_takes_no_more_memory_than_its_state() {
    let env: Arc<dyn Env> = Arc::new(MemEnv::new());
    let mut set = created(&env);
    let file = write_table(&*env, &set, ("a", "z", 1)).unwrap();
    for _ in 0..2000 {
        let _ = set.log_and_apply(add(0, &file)).unwrap();
        let gone = VersionEdit { removed: vec![(0, 0, file.number)], ..VersionEdit::default() };
        let _ = set.log_and_apply(gone).unwrap();
    }
    let again = recover(&env).unwrap();
    assert_eq!(again.state.tables().count(), 0);
    let offset = set.manifest().1.unwrap();
    // Past the checks of the set, as a hostile manifest is.
    let writer = set.writer.as_mut().unwrap();
    for _ in 0..1000 {
        writer.append(&add(0, &file)).unwrap();
    }
    let Err(Error::Corruption { offset: Some(found), what, .. }) = recover(&env) else {
        panic!("a table that is added twice must be refused");
    };
    assert_eq!(what, "a table is added twice");
    assert!(found > offset);
}

#[test]
#[should_panic(expected = "two tables of a level overlap")]
fn an_edit_of_ours_that_breaks_a_rule_is_never_written() {
    let env: Arc<dyn Env> = Arc::new(MemEnv::new());
    let mut set = created(&env);
    for newest in 1..=2 {
        let file = write_table(&*env, &set, ("a", "z", newest)).unwrap();
        let _ = set.log_and_apply(add(1, &file)).unwrap();
    }
}

/// MAN-21, MAN-23
#[test]
fn numbers_go_beyond_stray_files_and_foreign_names_are_left_alone() {
    let env: Arc<dyn Env> = Arc::new(MemEnv::new());
    let set = with_tables(&env);
    let live = tables(&set);
    let strays = [FileName::Log(50), FileName::Table(77), FileName::Manifest(60)];
    for name in strays {
        replace(&*env, name, b"half a file");
    }
    let foreign = ["._000012.sst", "notes.txt", "000012.sst.bak", "12.log"];
    let huge = [FileName::Table(u64::MAX), FileName::Log(crate::filename::MAX_NUMBER + 1)];
    for name in foreign.iter().map(|name| (*name).to_owned()).chain(huge.map(FileName::name)) {
        env.create(&dir().join(name), FileKind::Other).unwrap().finish().unwrap();
    }
    env.create_dir_all(&FileName::Table(78).path(dir())).unwrap();
    let mut again = recover(&env).unwrap();
    assert_eq!(again.numbers().peek(), 79);
    let log = FamilyLog { family: 0, log_number: 51, flushed_sequence: 0 };
    let edit = VersionEdit { family_logs: vec![log], ..VersionEdit::default() };
    let old_manifest = again.manifest().0.unwrap();
    let _ = again.roll(edit).unwrap();
    assert_eq!(again.obsolete().take(), [FileName::Manifest(old_manifest)]);
    let mut leftovers = again.leftovers().unwrap();
    leftovers.sort();
    let mut expected = strays.to_vec();
    expected.push(FileName::Manifest(old_manifest));
    expected.sort();
    assert_eq!(leftovers, expected);
    for name in leftovers {
        env.remove(&name.path(dir())).unwrap();
    }
    let third = recover(&env).unwrap();
    assert_eq!(tables(&third), live);
    assert!(third.numbers().peek() >= 80, "{}", third.numbers().peek());
}

/// SNAP-11
#[test]
fn a_table_is_queued_for_removal_when_its_last_holder_is_gone() {
    let env: Arc<dyn Env> = Arc::new(MemEnv::new());
    let mut set = with_tables(&env);
    let reader = set.family(0).unwrap().current;
    let file = Arc::clone(&reader.files(0)[0]);
    let moved = Arc::clone(&reader.files(0)[2]);
    let edit =
        VersionEdit { removed: vec![(0, 0, file.number), (0, 0, moved.number)], ..add(1, &moved) };
    let _ = set.log_and_apply(edit).unwrap();
    assert!(set.obsolete().is_empty(), "a version still names it");
    drop(reader);
    assert!(set.obsolete().is_empty(), "somebody still holds it");
    let number = file.number;
    drop(file);
    assert_eq!(set.obsolete().take(), [FileName::Table(number)]);
    drop(moved);
    assert!(set.obsolete().is_empty(), "a table that moved is still in use");
}

#[test]
fn an_edit_about_a_dropped_family_does_nothing_and_harms_nothing() {
    let env: Arc<dyn Env> = Arc::new(MemEnv::new());
    let mut set = created(&env);
    let users =
        VersionEdit { added_families: vec![(1, "users".to_owned())], ..VersionEdit::default() };
    let _ = set.log_and_apply(users).unwrap();
    let file = write_table(&*env, &set, ("a", "z", 1)).unwrap();
    let add_users =
        VersionEdit { added: vec![(1, 0, Arc::clone(&file))], ..VersionEdit::default() };
    let _ = set.log_and_apply(add_users).unwrap();
    let drop_users = VersionEdit { dropped_families: vec![1], ..VersionEdit::default() };
    let number = file.number;
    drop(file);
    let _ = set.log_and_apply(drop_users.clone()).unwrap();
    assert_eq!(set.obsolete().take(), [FileName::Table(number)]);
    let late = write_table(&*env, &set, ("a", "z", 2)).unwrap();
    let late = VersionEdit { added: vec![(1, 0, late)], ..VersionEdit::default() };
    assert!(matches!(set.log_and_apply(late), Err(Error::FamilyDropped { .. })));
    assert!(matches!(set.log_and_apply(drop_users), Err(Error::FamilyDropped { .. })));
    let _ = set.log_and_apply(VersionEdit::default()).unwrap();
    let again = recover(&env).unwrap();
    assert_eq!(again.families().count(), 1);
    assert_eq!(again.next_family_id(), 2, "an id is never given out again");
}
