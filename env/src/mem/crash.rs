//! What a power loss leaves: policies, and the building of the surviving image.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use super::inode::{Inode, choice};
use super::names::{DirId, Directory, NameOp, Names, Namespace, Node, ROOT};

/// What survives of the changes that no sync covers; see [`MemEnv::crash`](crate::MemEnv::crash).
///
/// Operations are counted over the whole environment, in the order they were made; an operation
/// is one write, one change of a length, or one change of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CrashPolicy {
    /// Nothing.
    DropAll,
    /// Everything.
    KeepAll,
    /// The first so many operations.
    Prefix(usize),
    /// The last so many operations: late ones survive, early ones do not.
    LastOnly(usize),
    /// Every name and no bytes.
    NamesFirst,
    /// All bytes and no names.
    NamesLast,
    /// Every name and every length, no bytes: what grew reads as zeros.
    SizeFirst,
    /// Removals, and nothing else.
    UnlinkEarly,
    /// Everything but the newest write, of which each sector survives or not by this seed.
    Tear(u64),
    /// A free choice for each sector, length and name, by this seed.
    Seeded(u64),
}

impl CrashPolicy {
    /// One of each kind, the counted and seeded ones with the given number: what a sweep tries at
    /// every point.
    pub fn all(number: u64) -> [CrashPolicy; 10] {
        let count = usize::try_from(number % 64).expect("below 64") + 1;
        [
            CrashPolicy::DropAll,
            CrashPolicy::KeepAll,
            CrashPolicy::Prefix(count),
            CrashPolicy::LastOnly(count),
            CrashPolicy::NamesFirst,
            CrashPolicy::NamesLast,
            CrashPolicy::SizeFirst,
            CrashPolicy::UnlinkEarly,
            CrashPolicy::Tear(number),
            CrashPolicy::Seeded(number),
        ]
    }
}

/// What a [`CrashChoice`] is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CrashSubject {
    /// The content of the sector of this number (of 512 bytes, from the start of the file).
    Sector(u64),
    /// The length of a file.
    Length,
    /// A name. `removed`: the newest operation took it away.
    Name {
        /// Whether the newest operation took the name away.
        removed: bool,
    },
}

/// One thing that a power loss leaves in one of several versions.
///
/// Version 0 is the durable one; version `i` is the one after `operations[i - 1]`.
#[derive(Clone, Copy, Debug)]
pub struct CrashChoice<'a> {
    /// What it is.
    pub subject: CrashSubject,
    /// The name, or the path the file was created by.
    pub path: &'a Path,
    /// The operations that made the versions, oldest first, as positions among all `total`
    /// unsynced operations of the environment. Never empty.
    pub operations: &'a [usize],
    /// How many unsynced operations there are.
    pub total: usize,
}

/// Chooses for a policy. `newest_write` is the position of the newest write of bytes.
pub(super) fn chooser(
    policy: CrashPolicy,
    newest_write: Option<usize>,
) -> Box<dyn FnMut(&CrashChoice<'_>) -> usize> {
    match policy {
        CrashPolicy::DropAll => Box::new(|_| 0),
        CrashPolicy::KeepAll => Box::new(newest),
        CrashPolicy::Prefix(count) => {
            Box::new(move |c| c.operations.partition_point(|o| *o < count))
        }
        CrashPolicy::LastOnly(count) => Box::new(move |c| {
            let from = c.total.saturating_sub(count);
            if c.operations.iter().any(|o| *o >= from) { newest(c) } else { 0 }
        }),
        CrashPolicy::NamesFirst => Box::new(|c| if is_name(c) { newest(c) } else { 0 }),
        CrashPolicy::NamesLast => Box::new(|c| if is_name(c) { 0 } else { newest(c) }),
        CrashPolicy::SizeFirst => Box::new(|c| match c.subject {
            CrashSubject::Sector(_) => 0,
            CrashSubject::Length | CrashSubject::Name { .. } => newest(c),
        }),
        CrashPolicy::UnlinkEarly => Box::new(|c| match c.subject {
            CrashSubject::Name { removed: true } => newest(c),
            _ => 0,
        }),
        CrashPolicy::Tear(seed) => {
            let mut random = Random::new(seed);
            Box::new(move |c| {
                let torn = c.operations.last().copied() == newest_write && !is_name(c);
                newest(c) - usize::from(torn && random.below(2) == 0)
            })
        }
        CrashPolicy::Seeded(seed) => seeded(seed),
    }
}

/// A free choice, with a bias that differs from seed to seed: images in which nearly everything
/// or nearly nothing survives find other faults than those in the middle.
fn seeded(seed: u64) -> Box<dyn FnMut(&CrashChoice<'_>) -> usize> {
    let mut random = Random::new(seed);
    let keep_percent = [5, 30, 50, 70, 95][pick(&mut random, 5)];
    Box::new(move |c| match random.below(4) {
        0 => pick(&mut random, c.operations.len() + 1),
        _ if random.below(100) < keep_percent => newest(c),
        _ => 0,
    })
}

fn newest(choice: &CrashChoice<'_>) -> usize {
    choice.operations.len()
}

fn is_name(choice: &CrashChoice<'_>) -> bool {
    matches!(choice.subject, CrashSubject::Name { .. })
}

fn pick(random: &mut Random, below: usize) -> usize {
    usize::try_from(random.below(below as u64)).expect("below a usize")
}

/// A small generator of its own (splitmix64), so that a seed means the same image for ever.
pub(crate) struct Random {
    state: u64,
}

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `limit`, which must not be zero.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// Sequences of every unsynced operation, oldest first, and of the newest write.
pub(super) fn unsynced(names: &Namespace) -> (Vec<u64>, Option<u64>) {
    let mut sequences: Vec<u64> = names.pending.iter().map(|op| op.sequence).collect();
    let mut newest_write = None;
    for inode in every_inode(names).values() {
        let data = inode.data.read();
        sequences.extend(data.unsynced());
        newest_write = newest_write.max(data.newest_write());
    }
    sequences.sort_unstable();
    (sequences, newest_write)
}

/// Every file that a name leads to, now or after some power loss.
fn every_inode(names: &Namespace) -> BTreeMap<u64, Arc<Inode>> {
    let mut inodes = BTreeMap::new();
    let held = names.dirs.values().flat_map(|d| d.durable.values().chain(d.current.values()));
    for node in held.chain(names.pending.iter().filter_map(|op| op.node.as_ref())) {
        if let Node::File(inode) = node {
            inodes.entry(inode.id).or_insert_with(|| Arc::clone(inode));
        }
    }
    inodes
}

/// The image a power loss leaves when `choose` decides: everything in it is durable.
pub(super) fn image(
    names: &Namespace,
    sequences: &[u64],
    choose: &mut dyn FnMut(&CrashChoice<'_>) -> usize,
) -> Namespace {
    let total = sequences.len();
    let mut pick = |subject: CrashSubject, path: &Path, made_by: &[u64]| {
        let positions: Vec<usize> =
            made_by.iter().map(|s| sequences.partition_point(|other| other < s)).collect();
        let version = choose(&choice(subject, path, &positions, total));
        assert!(version <= positions.len(), "a crash choice has {} versions", positions.len() + 1);
        version
    };
    let surviving = surviving_names(names, &mut pick);
    let mut built = BTreeMap::new();
    let mut files = BTreeMap::new();
    let mut waiting = vec![ROOT];
    while let Some(id) = waiting.pop() {
        if built.contains_key(&id) {
            continue;
        }
        let mut survivors = Names::new();
        for (name, node) in surviving.get(&id).into_iter().flatten() {
            let node = match node {
                Node::Dir(child) => {
                    waiting.push(*child);
                    Node::Dir(*child)
                }
                Node::File(inode) => {
                    let file = files.entry(inode.id).or_insert_with(|| {
                        let content = inode.data.read().survivor(&inode.path, &mut pick);
                        Inode::with_content(inode.id, &inode.path, content)
                    });
                    file.data.write().links += 1;
                    Node::File(Arc::clone(file))
                }
            };
            survivors.insert(name.clone(), node);
        }
        built.insert(id, Directory { durable: survivors.clone(), current: survivors });
    }
    Namespace::with_dirs(built)
}

fn surviving_names(
    names: &Namespace,
    pick: &mut dyn FnMut(CrashSubject, &Path, &[u64]) -> usize,
) -> BTreeMap<DirId, Names> {
    let mut histories: BTreeMap<(DirId, OsString), Vec<&NameOp>> = BTreeMap::new();
    for op in &names.pending {
        histories.entry((op.dir, op.name.clone())).or_default().push(op);
    }
    let mut kept: BTreeMap<(DirId, OsString), usize> = BTreeMap::new();
    for (key, history) in &histories {
        let sequences: Vec<u64> = history.iter().map(|op| op.sequence).collect();
        let newest = history.last().expect("a history has an operation");
        let subject = CrashSubject::Name { removed: newest.node.is_none() };
        kept.insert(key.clone(), pick(subject, &newest.path, &sequences));
    }
    while drop_unfounded(&histories, &mut kept) {}
    let mut surviving: BTreeMap<DirId, Names> =
        names.dirs.iter().map(|(id, dir)| (*id, dir.durable.clone())).collect();
    for (key, count) in kept.into_iter().filter(|(_, count)| *count > 0) {
        let directory = surviving.entry(key.0).or_default();
        match &histories[&key][count - 1].node {
            Some(node) => directory.insert(key.1, node.clone()),
            None => directory.remove(&key.1),
        };
    }
    surviving
}

/// Takes back the removing half of a rename whose other half did not survive. Returns whether it
/// took back anything.
fn drop_unfounded(
    histories: &BTreeMap<(DirId, OsString), Vec<&NameOp>>,
    kept: &mut BTreeMap<(DirId, OsString), usize>,
) -> bool {
    let survives: Vec<u64> = histories
        .iter()
        .flat_map(|(key, history)| history[..kept[key]].iter().map(|op| op.sequence))
        .collect();
    let mut dropped = false;
    for (key, history) in histories {
        let count = kept.get_mut(key).expect("each history has a choice");
        let unfounded = history[..*count].iter().position(|op| {
            op.needs
                .is_some_and(|needed| is_pending(histories, needed) && !survives.contains(&needed))
        });
        if let Some(first) = unfounded {
            *count = first;
            dropped = true;
        }
    }
    dropped
}

fn is_pending(histories: &BTreeMap<(DirId, OsString), Vec<&NameOp>>, sequence: u64) -> bool {
    histories.values().flatten().any(|op| op.sequence == sequence)
}
