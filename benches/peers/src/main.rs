//! Treering beside RocksDB, fjall, redb, coordinode-lsm-tree and the bare machine.

mod args;
mod data;
mod failure;
mod fio;
mod limit;
mod machine;
mod peer;
mod place;
mod run;
mod table;
mod work;
mod worker;

use std::fs::{self, File};
use std::io::Write;
use std::process::ExitCode;

use clap::ValueEnum;
use serde_json::json;

use crate::args::Args;
use crate::data::Data;
use crate::failure::{Result, on_file};
use crate::peer::Name;
use crate::run::Section;

fn main() -> ExitCode {
    let is_worker = std::env::args_os().nth(1).is_some_and(|first| first == worker::WORKER);
    let outcome = if is_worker { worker::serve().map(|()| true) } else { compare() };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("peers: {error}");
            ExitCode::from(3)
        }
    }
}

/// The comparison; `false` if a peer failed in it.
fn compare() -> Result<bool> {
    let args = Args::read();
    if !(args.seconds > 0.0 && args.seconds < 3600.0) {
        return Err("--seconds must be above 0 and below 3600".into());
    }
    if args.keys > u64::from(u32::MAX) {
        return Err("--keys must be below 4.29 G".into());
    }
    let peers = peers(&args)?;
    // Begun before the work, so that a wrong path does not cost the results.
    let json = args.json.as_ref().map(|path| {
        File::create(path).map(|file| (file, path)).map_err(|error| on_file("create", path, error))
    });
    let json = json.transpose()?;
    fs::create_dir_all(&args.dir).map_err(|error| on_file("create", &args.dir, error))?;
    let machine = machine::describe(&args.dir);
    println!("{}", machine::line(&machine));
    let data = Data::new(args.seed, args.keys, args.value_size);
    println!(
        "{} keys of 16 B, values of {} B, {:.2} GB of entries; seed {}",
        args.keys,
        args.value_size,
        data.bytes() as f64 / 1e9,
        args.seed
    );
    let databases = run::prepare(&args, &peers, &data)?;
    if args.prepare {
        return Ok(true);
    }
    let mut sections: Vec<Section> = Vec::new();
    for &workload in &args.workloads {
        let section = run::workload(&args, &peers, &data, workload)?;
        println!("\n{}", table::text(&section));
        sections.push(section);
    }
    if let Some((mut file, path)) = json {
        let all = json!({
            "machine": machine,
            "arguments": std::env::args().skip(1).collect::<Vec<_>>(),
            "keys": args.keys,
            "value_size": args.value_size.to_string(),
            "batch": args.batch,
            "threads": args.threads,
            "seconds": args.seconds,
            "databases": databases,
            "workloads": sections.iter().map(table::json).collect::<Vec<_>>(),
        });
        writeln!(file, "{all:#}").map_err(|error| on_file("write", path, error))?;
    }
    Ok(sections.iter().all(|section| section.cells.iter().all(|cell| cell.error.is_none())))
}

/// The peers asked for, or all that can run.
fn peers(args: &Args) -> Result<Vec<Name>> {
    for peer in &args.peers {
        if let Some(why) = peer.missing() {
            return Err(format!("{} cannot run here: {why}", peer.text()).into());
        }
    }
    if !args.peers.is_empty() {
        return Ok(args.peers.clone());
    }
    let (there, missing): (Vec<Name>, Vec<Name>) =
        Name::value_variants().iter().partition(|peer| peer.missing().is_none());
    for peer in missing {
        eprintln!("{} is left out: {}", peer.text(), peer.missing().unwrap_or_default());
    }
    Ok(there)
}
