//! The command line: `treering COMMAND`. For the binary only; nothing here is a stable interface.
//!
//! Every command answers on standard output and talks on standard error. How it ended is its exit
//! code: 0 done, 1 no, 2 wrong command line, 3 failed, 4 damage, 128 and more ended by a signal.

mod access;
mod args;
mod bench;
mod doctor;
mod encoding;
mod environment;
mod failure;
mod interrupt;
mod layout;
mod lines;
mod new_file;
mod output;
mod overlay;
mod size;
mod transfer;
mod upkeep;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};

use self::args::{Cli, Command};
use self::failure::{Failure, Result};

/// Runs the command that the process's arguments ask for.
pub fn main() -> ExitCode {
    interrupt::survive_file_size_limit();
    let cli = parse();
    let ended = run(&cli.command);
    interrupt::settle();
    match ended {
        Ok(exit) => ExitCode::from(exit.code()),
        Err(failure) => {
            if !matches!(failure, Failure::OutputClosed) {
                output::note(format_args!("treering: {failure}"));
            }
            ExitCode::from(failure.code())
        }
    }
}

/// The command line. A negative number is the value of what stands before it, which tells its
/// range, or a key, and no unknown option.
fn parse() -> Cli {
    let mut grammar = with_negative_numbers(Cli::command());
    let matches = grammar.get_matches_mut();
    Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.format(&mut grammar).exit())
}

fn with_negative_numbers(command: clap::Command) -> clap::Command {
    command
        .mut_args(|arg| {
            let takes = arg.get_action().takes_values();
            if takes { arg.allow_negative_numbers(true) } else { arg }
        })
        .mut_subcommands(with_negative_numbers)
}

fn run(command: &Command) -> Result {
    match command {
        Command::Put(args) => access::put(args),
        Command::Get(args) => access::get(args),
        Command::Delete(args) => access::delete(args),
        Command::Scan(args) => access::scan(args),
        Command::MultiGet(args) => access::multi_get(args),
        Command::Import(args) => transfer::import(args),
        Command::Export(args) => transfer::export(args),
        Command::Stats(args) => upkeep::stats(args),
        Command::Verify(args) => upkeep::verify(args),
        Command::Dump(args) => upkeep::dump(args),
        Command::Compact(args) => upkeep::compact(args),
        Command::Doctor(args) => doctor::doctor(args),
        Command::Bench(command) => bench::bench(command),
    }
}
