//! One workload over all peers: their processes are started, take turns in an order that moves on
//! by one each round, and end together.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::{Value, json};

use crate::args::Args;
use crate::data::{Data, Stream};
use crate::failure::{Result, on_file};
use crate::fio;
use crate::limit::MemoryGroup;
use crate::peer::{Name, floor};
use crate::place::{self, Scratch};
use crate::work::{self, Sample, Spec, Workload};
use crate::worker::Worker;

/// The least memory a cold process gets by default: below this it runs short itself.
const LEAST_MEMORY: u64 = 96 << 20;
/// Keys that hot workloads touch at most by default: each peer has a block cache for all of them.
const MOST_HOT: u64 = 1_000_000;
/// The block cache where nothing shall be hot in it is the data divided by this, or the least: it
/// holds what a peer without other memory for indexes needs, and hardly more.
const COLD_CACHE_SHARE: u64 = 64;
const LEAST_CACHE: u64 = 8 << 20;

/// The outcome of one workload.
pub struct Section {
    pub workload: Workload,
    /// How it was measured, for the head of the table.
    pub conditions: String,
    pub cells: Vec<Cell>,
}

/// The turns of one peer.
pub struct Cell {
    pub peer: Name,
    /// One for each turn.
    pub samples: Vec<Sample>,
    pub facts: Vec<String>,
    pub error: Option<String>,
}

/// Where the database of a peer is.
fn database(args: &Args, peer: Name) -> PathBuf {
    let data = format!("{}-{}-{}", args.keys, args.value_size, args.seed);
    args.dir.join(data).join(peer.database().0)
}

/// Builds the databases that are missing; name, bytes and bytes for each byte put.
pub fn prepare(args: &Args, peers: &[Name], data: &Data) -> Result<Vec<Value>> {
    let mut kinds: Vec<Name> = Vec::new();
    if !args.workloads.iter().all(|workload| workload.loads()) {
        for &peer in peers {
            if kinds.iter().all(|kind| kind.database().0 != peer.database().0) {
                kinds.push(peer);
            }
        }
    }
    let mut databases = Vec::new();
    for peer in kinds {
        let (dir, (name, settings)) = (database(args, peer), peer.database());
        // Written when the database is complete; other settings would have built another one.
        let mark = dir.with_extension("complete");
        if args.rebuild || fs::read_to_string(&mark).ok().as_deref() != Some(settings) {
            let _ = fs::remove_file(&mark);
            let _ = fs::remove_dir_all(&dir);
            fs::create_dir_all(&dir).map_err(|error| on_file("create", &dir, error))?;
            let start = Instant::now();
            work::build(peer, &dir, data, args.seed)
                .map_err(|error| format!("cannot build the database of {name}: {error}"))?;
            fs::write(&mark, settings).map_err(|error| on_file("write", &mark, error))?;
            println!("built {name} in {:.1} s", start.elapsed().as_secs_f64());
        }
        let bytes = place::size(&dir)?;
        let ratio = bytes as f64 / data.bytes() as f64;
        println!("{name}: {:.2} GB on disk, {ratio:.2} of the entries", bytes as f64 / 1e9);
        databases.push(json!({ "name": name, "bytes": bytes, "of_entries": ratio }));
    }
    Ok(databases)
}

/// A peer of a workload: its process, or the program that stands for it.
struct Entrant {
    cell: Cell,
    worker: Option<Worker>,
    // Removed after the process has ended.
    _group: Option<MemoryGroup>,
    _scratch: Option<Scratch>,
}

/// Measures one workload.
pub fn workload(args: &Args, peers: &[Name], data: &Data, workload: Workload) -> Result<Section> {
    let (mut entrants, conditions) = start(args, peers, data, workload)?;
    let mut orders = Stream::new(args.seed);
    let count = entrants.len();
    for turn in 0..args.repeat as usize {
        // The same order of keys for all peers of a turn.
        let seed = orders.next();
        for place in 0..count {
            let entrant = &mut entrants[(turn + place) % count];
            if entrant.cell.error.is_some() {
                continue;
            }
            let outcome = match &mut entrant.worker {
                Some(worker) => worker.turn(seed),
                None => run_fio(args, workload),
            };
            match outcome {
                Ok(sample) => entrant.cell.samples.push(sample),
                Err(error) => entrant.cell.error = Some(error.to_string()),
            }
        }
    }
    let cells = entrants.into_iter().map(finish).collect();
    Ok(Section { workload, conditions, cells })
}

fn finish(entrant: Entrant) -> Cell {
    let Entrant { mut cell, worker, .. } = entrant;
    if let (Some(worker), None) = (worker, &cell.error) {
        match worker.end() {
            Ok(facts) => cell.facts = facts,
            Err(error) => cell.error = Some(error.to_string()),
        }
    }
    cell
}

fn start(
    args: &Args,
    peers: &[Name],
    data: &Data,
    workload: Workload,
) -> Result<(Vec<Entrant>, String)> {
    let memory = args.memory.unwrap_or((data.bytes() * 3 / 10).max(LEAST_MEMORY));
    let mut hot = args.keys;
    if !workload.is_cold() && !workload.loads() {
        hot = args.hot_keys.unwrap_or(hot.min(MOST_HOT)).min(args.keys);
    }
    let small = (data.bytes() / COLD_CACHE_SHARE).max(LEAST_CACHE);
    // Blocks, not entries, are cached: twice the room is enough for all peers.
    let cache = if workload.in_block_cache() { 2 * hot * data.entry_bytes() } else { small };
    let keys = if workload.loads() {
        args.load_keys.unwrap_or(args.keys / 4).clamp(1, args.keys)
    } else {
        args.keys
    };
    let mut limited = Ok(());
    let mut entrants = Vec::new();
    for &peer in peers.iter().filter(|peer| workload.suits(**peer)) {
        let cell = Cell { peer, samples: Vec::new(), facts: Vec::new(), error: None };
        let mut entrant = Entrant { cell, worker: None, _group: None, _scratch: None };
        if peer != Name::FloorFio {
            if workload.is_cold() {
                match MemoryGroup::create(entrants.len(), memory) {
                    Ok(group) => entrant._group = Some(group),
                    Err(why) => limited = Err(why.to_string()),
                }
            }
            let scratch = directory(args, peer, workload)?;
            let spec = Spec {
                peer,
                workload,
                dir: scratch.as_ref().map_or(database(args, peer), |view| view.path().into()),
                seed: args.seed,
                keys,
                sizes: args.value_size.to_string(),
                hot,
                batch: args.batch as usize,
                threads: args.threads as usize,
                seconds: args.seconds,
                cache: usize::try_from(cache)?,
                door: entrant._group.as_ref().map(MemoryGroup::door),
            };
            entrant._scratch = scratch;
            match Worker::start(&spec) {
                Ok(worker) => entrant.worker = Some(worker),
                Err(error) => entrant.cell.error = Some(error.to_string()),
            }
        }
        entrants.push(entrant);
    }
    let memory = match limited {
        _ if !workload.is_cold() => String::new(),
        Ok(()) => format!(
            "; files dropped from the page cache before each turn, {} MiB of memory (cgroup)",
            memory >> 20
        ),
        Err(why) => format!("; files dropped from the page cache, NO MEMORY LIMIT ({why})"),
    };
    let touched = if workload.loads() { keys } else { hot };
    let conditions = format!(
        "{touched} keys, batch {}, threads {}, block cache {} MiB{memory}",
        args.batch,
        args.threads,
        cache >> 20
    );
    Ok((entrants, conditions))
}

/// The directory of a peer's process, where it is not the database itself: a view that it need not
/// share with another process, or an empty one to load into.
fn directory(args: &Args, peer: Name, workload: Workload) -> Result<Option<Scratch>> {
    let path: &Path = &args.dir.join("running").join(peer.text());
    if workload.loads() {
        return Scratch::new(path.into()).map(Some);
    }
    match peer.database().0 {
        "fjall" | "redb" | "floor" => Ok(None),
        _ => Scratch::view(&database(args, peer), path.into()).map(Some),
    }
}

fn run_fio(args: &Args, workload: Workload) -> Result<Sample> {
    let depth = if workload == Workload::ColdGet { 1 } else { args.batch as usize };
    let file = floor::file(&database(args, Name::FloorFio));
    fio::random_reads(&file, depth, args.threads as usize, args.seconds)
}
