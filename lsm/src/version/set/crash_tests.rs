//! Goal: whatever a power loss leaves while the set creates a database, logs edits, replaces its
//! manifest and reopens, the next open finds every edit that was acknowledged, at most one more,
//! and every table that it names.
//!
//! How: one workload is run once for every operation it makes, with the power cut before, inside
//! and after that operation; of each cut, images are taken by every crash policy and opened. Opens
//! of a sample of the images are cut in the same way, and opened again.

use std::collections::HashSet;

use treering_env::{CrashPolicy, MemEnv, When};

use super::tests::{add, dir, tables, write_table};
use super::*;

/// The tables after each acknowledged step; `None`: there is no database.
type History = Vec<Option<Vec<(usize, u64)>>>;

/// Removes what the set says may be removed.
fn clean(env: &dyn Env, names: Vec<FileName>) -> Result<()> {
    for name in names {
        env.remove(&name.path(dir()))?;
    }
    Ok(())
}

/// Runs until it is done or the power is cut; notes each acknowledged state.
fn workload(env: &Arc<dyn Env>, history: &mut History) -> Result<()> {
    env.create_dir_all(dir())?;
    let mut set = VersionSet::create(Arc::clone(env), dir())?;
    let _ = set.roll(VersionEdit::default())?;
    history.push(Some(tables(&set)));
    for step in 1..=7_u64 {
        let file = write_table(&**env, &set, ("a", "z", step))?;
        let mut edit = add(usize::from(step % 3 == 0), &file);
        if step % 3 == 0 {
            edit.removed =
                tables(&set).iter().map(|(level, number)| (0, *level, *number)).collect();
        }
        drop(file);
        if step == 4 {
            set.writer.as_mut().expect("rolled above").set_slack(0);
        }
        let _ = set.log_and_apply(edit)?;
        history.push(Some(tables(&set)));
        clean(&**env, set.obsolete().take())?;
    }
    drop(set);
    reopen(env)
}

fn reopen(env: &Arc<dyn Env>) -> Result<()> {
    let Some(mut set) = VersionSet::recover(Arc::clone(env), dir())? else { return Ok(()) };
    let _ = set.roll(VersionEdit::default())?;
    clean(&**env, set.leftovers()?)
}

fn state(image: &MemEnv) -> Option<Vec<(usize, u64)>> {
    let env: Arc<dyn Env> = Arc::new(image.clone());
    image.metadata(dir()).unwrap()?;
    let set = VersionSet::recover(env, dir());
    set.unwrap_or_else(|error| panic!("an image must open: {error}")).map(|set| tables(&set))
}

const WHENS: [When; 3] = [When::Before, When::Inside, When::After];

/// MAN-01, MAN-02, MAN-04, MAN-06, MAN-10, MAN-16
#[test]
fn after_any_power_loss_the_acknowledged_edits_are_there_and_so_are_their_tables() {
    let clean_run = MemEnv::new();
    let mut full: History = vec![None];
    let env: Arc<dyn Env> = Arc::new(clean_run.clone());
    workload(&env, &mut full).unwrap();
    let manifests = clean_run.list(dir()).unwrap().into_iter();
    let manifests: Vec<_> =
        manifests.filter(|entry| entry.name.to_string_lossy().starts_with("MANIFEST")).collect();
    assert_eq!(manifests.len(), 1, "{manifests:?}");
    let mut seen = HashSet::new();
    for operation in 0..clean_run.operations() {
        for when in WHENS {
            let mem = MemEnv::new();
            mem.cut_power_at(operation, when);
            let env: Arc<dyn Env> = Arc::new(mem.clone());
            let mut acknowledged: History = vec![None];
            // The last operations may be removals, whose failure nobody reports.
            let _ = workload(&env, &mut acknowledged);
            let at_least = acknowledged.len() - 1;
            for policy in CrashPolicy::all(operation) {
                let image = mem.crash(policy);
                let found = state(&image);
                let context = || format!("{:?} {when:?} {policy:?}", mem.cut_operation());
                let allowed = &full[at_least..full.len().min(at_least + 2)];
                assert!(allowed.contains(&found), "{}: {found:?} not in {allowed:?}", context());
                if seen.insert(image.fingerprint()) && operation % 4 == 0 {
                    crash_the_open(&image, found.as_deref(), &context());
                }
            }
        }
    }
    assert!(seen.len() > 100, "{} images are too few to mean much", seen.len());
}

/// Cuts the open of `image` at each of its operations: the state stays what it was.
fn crash_the_open(image: &MemEnv, found: Option<&[(usize, u64)]>, context: &str) {
    if found.is_none() {
        return;
    }
    let trial = image.kill();
    let before = trial.operations();
    reopen(&(Arc::new(trial.clone()) as Arc<dyn Env>)).unwrap();
    let operations = trial.operations() - before;
    assert!(operations > 5, "an open for writing starts a manifest");
    for operation in 0..operations {
        for when in WHENS {
            let mem = image.kill();
            mem.cut_power_at(mem.operations() + operation, when);
            let _ = reopen(&(Arc::new(mem.clone()) as Arc<dyn Env>));
            for policy in
                [CrashPolicy::DropAll, CrashPolicy::UnlinkEarly, CrashPolicy::Seeded(operation)]
            {
                let again = state(&mem.crash(policy));
                let what = mem.cut_operation();
                assert_eq!(again.as_deref(), found, "{context}, then {what:?} {when:?} {policy:?}");
            }
        }
    }
}
