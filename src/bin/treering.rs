//! The `treering` command; see `treering --help`.

use std::process::ExitCode;

fn main() -> ExitCode {
    treering::cli::main()
}
