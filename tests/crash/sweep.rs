//! The sweep: every operation of a workload as the moment at which the power goes.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use treering::Durability;
use treering::env::{CrashPolicy, MemEnv, When};
use treering::{Db, WriteOptions};

use crate::oracle::{History, State};
use crate::variants::{Variant, VariantEnv};
use crate::workload::{Place, Workload, open};

/// How often the policies that draw lots are tried at each point, each time with another seed.
const ROUNDS: u64 = 8;

/// Which of the points of a sweep are run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Points {
    stride: usize,
}

/// One point in `stride`, or all of them with `TREERING_CRASH_ALL=1`.
pub(crate) fn every(stride: usize) -> Points {
    Points { stride: if std::env::var_os("TREERING_CRASH_ALL").is_some() { 1 } else { stride } }
}

/// A workload to be cut at each of its operations.
pub(crate) struct Sweep<'a> {
    name: &'static str,
    workload: Workload<'a>,
    points: Points,
    depth: usize,
    seed: u64,
    variant: Option<Variant>,
}

/// What a sweep did, so that one that did nothing is noticed.
#[derive(Debug, Default)]
struct Tally {
    cuts: usize,
    images: usize,
    second_cuts: usize,
}

impl<'a> Sweep<'a> {
    pub(crate) fn new(name: &'static str, workload: Workload<'a>) -> Self {
        let seed = std::env::var("TREERING_SEED").ok().map_or(1, |seed| seed.parse().unwrap());
        Self { name, workload, points: every(1), depth: 1, seed, variant: None }
    }

    pub(crate) fn points(mut self, points: Points) -> Self {
        self.points = points;
        self
    }

    /// At depth 2, the open after each crash is itself cut at each of its operations.
    pub(crate) fn depth(mut self, depth: usize) -> Self {
        self.depth = depth;
        self
    }

    /// The same sweep over an engine with a fault of its own.
    pub(crate) fn variant(mut self, variant: Variant) -> Self {
        self.variant = Some(variant);
        self
    }

    fn place(&self, env: &MemEnv) -> Place {
        match self.variant {
            None => Place::Plain(env.clone()),
            Some(variant) => Place::Variant(VariantEnv::new(env, variant)),
        }
    }

    /// The first operation whose cut shows the variant's fault, if there is one.
    pub(crate) fn first_noticed(&self) -> Option<(u64, When)> {
        let env = MemEnv::new();
        let place = self.place(&env);
        self.workload.run(&place, &mut History::new()).unwrap();
        if let Place::Variant(variant) = place {
            variant.assert_effective();
        }
        for operation in (0..env.operations()).step_by(self.points.stride) {
            for when in [When::Before, When::Inside, When::After] {
                let (env, history, was_met) = self.run_until(operation, when);
                // Up to there the two engines are one.
                if !was_met {
                    continue;
                }
                let mut tally = Tally::default();
                let look = || self.look(&env, &history, operation, when, &mut tally);
                if catch_unwind(AssertUnwindSafe(look)).is_err() {
                    return Some((operation, when));
                }
            }
        }
        None
    }

    pub(crate) fn run(&self) {
        println!("{}: TREERING_SEED={}", self.name, self.seed);
        let env = MemEnv::new();
        self.workload.run(&self.place(&env), &mut History::new()).unwrap();
        let operations = env.operations();
        assert!(operations > 20, "{operations} operations: the workload does nothing");
        let mut tally = Tally::default();
        for operation in (0..operations).step_by(self.points.stride) {
            for when in [When::Before, When::Inside, When::After] {
                self.cut(operation, when, &mut tally);
            }
        }
        println!("{}: {operations} operations, {tally:?}", self.name);
        assert!(tally.cuts as u64 >= operations / self.points.stride as u64);
        assert!(tally.images > tally.cuts, "the crash policies make no difference");
        assert_eq!(tally.second_cuts > 0, self.depth > 1);
    }

    /// Runs the workload until the power goes at `operation`, then looks at every image.
    fn cut(&self, operation: u64, when: When, tally: &mut Tally) {
        let (env, history, _) = self.run_until(operation, when);
        self.look(&env, &history, operation, when, tally);
    }

    /// The same for one operation, which must be there.
    pub(crate) fn stands(&self, operation: u64, when: When) {
        let env = MemEnv::new();
        self.workload.run(&self.place(&env), &mut History::new()).unwrap();
        let operations = env.operations();
        let name = self.name;
        assert!(
            operation < operations,
            "{name}: there is no operation {operation} to stand a cut at"
        );
        self.cut(operation, when, &mut Tally::default());
    }

    /// Also tells whether the step of a variant was met.
    fn run_until(&self, operation: u64, when: When) -> (MemEnv, History, bool) {
        let env = MemEnv::new();
        let mut history = History::new();
        env.cut_power_at(operation, when);
        let place = self.place(&env);
        let result = self.workload.run(&place, &mut history);
        assert!(env.power_is_off(), "{}: operation {operation} did not happen", self.name);
        // A cut after the last operation of a call may let that call, and the whole run, succeed.
        drop(result);
        let was_met = matches!(place, Place::Variant(variant) if variant.met() > 0);
        (env, history, was_met)
    }

    fn look(&self, env: &MemEnv, history: &History, operation: u64, when: When, tally: &mut Tally) {
        tally.cuts += 1;
        let mut seen = HashSet::new();
        let seed = self.seed.wrapping_mul(1 << 20) + operation * ROUNDS;
        for policy in (0..ROUNDS).flat_map(|round| CrashPolicy::all(seed + round)) {
            let image = env.crash(policy);
            if !seen.insert(image.fingerprint()) {
                continue;
            }
            let hit = env.cut_operation().unwrap_or_default();
            let context =
                format!("{}: {when:?} operation {operation} ({hit}), {policy:?}", self.name);
            self.check(&image, history, true, &context, tally);
        }
        let context = format!("{}: kill {when:?} operation {operation}", self.name);
        self.check(&env.kill(), history, false, &context, tally);
    }

    /// Opens an image and compares it with the model; twice, and then once more after a write.
    fn check(
        &self,
        image: &MemEnv,
        history: &History,
        power_loss: bool,
        context: &str,
        tally: &mut Tally,
    ) {
        tally.images += 1;
        // The untouched image stays for the second cuts.
        let (first, untouched) = (image.kill(), image.kill());
        let state = recover_and_read(&self.place(&first), context);
        if let Err(what) = history.prefix_of(&state, power_loss) {
            panic!("{context}: {what}");
        }
        let again = recover_and_read(&self.place(&first), context);
        assert_eq!(state, again, "{context}: the second open differs");
        self.write_after_recovery(&first, &state, context);
        if self.depth > 1 {
            // Of a killed process the recovery may lose what was not synced, if the power goes too.
            let allowed = |found: &State| {
                if power_loss { *found == state } else { history.prefix_of(found, true).is_ok() }
            };
            self.cut_recovery(&untouched, &allowed, context, tally);
        }
    }

    /// A synced write after the recovery survives a power loss that drops everything else.
    fn write_after_recovery(&self, env: &MemEnv, state: &State, context: &str) {
        let db = open(&self.place(env)).unwrap();
        let mut batch = treering::WriteBatch::new();
        batch.put("zz after", "recovery");
        let synced = WriteOptions { durability: Some(Durability::Synced) };
        db.write_opt(batch, &synced).unwrap_or_else(|error| panic!("{context}: write: {error}"));
        let mut expected = state.clone();
        expected.put(0, b"zz after", b"recovery");
        let after = env.crash(CrashPolicy::DropAll);
        drop::<Db>(db);
        let found = recover_and_read(&self.place(&after), context);
        assert_eq!(found, expected, "{context}: a write after the recovery");
    }

    /// Cuts the open that recovers `image` at each of its operations.
    fn cut_recovery(
        &self,
        image: &MemEnv,
        allowed: &dyn Fn(&State) -> bool,
        context: &str,
        tally: &mut Tally,
    ) {
        let measured = image.kill();
        let before = measured.operations();
        drop(open(&self.place(&measured)).unwrap());
        let operations = measured.operations() - before;
        for operation in 0..operations {
            let env = image.kill();
            let start = env.operations();
            env.cut_power_at(start + operation, When::Inside);
            drop(open(&self.place(&env)));
            if !env.power_is_off() {
                continue;
            }
            tally.second_cuts += 1;
            let policies = [
                CrashPolicy::DropAll,
                CrashPolicy::NamesFirst,
                CrashPolicy::UnlinkEarly,
                CrashPolicy::Seeded(self.seed + operation),
            ];
            for policy in policies {
                let context = format!("{context}; then inside {operation} of the open, {policy:?}");
                let found = recover_and_read(&self.place(&env.crash(policy)), &context);
                assert!(allowed(&found), "{context}: recovered {found:?}");
            }
        }
    }
}

/// Opens a database, reads all of it, and closes it.
fn recover_and_read(place: &Place, context: &str) -> State {
    let db = open(place).unwrap_or_else(|error| panic!("{context}: open: {error}"));
    let state = State::read(&db).unwrap_or_else(|error| panic!("{context}: read: {error}"));
    db.close().unwrap_or_else(|error| panic!("{context}: close: {error}"));
    state
}
