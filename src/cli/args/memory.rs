//! Options of the environment's memory.

use clap::Args;

use crate::cli::size::size_within;

/// Memory of the environment.
#[derive(Args, Clone, Copy, Debug, Default)]
pub(crate) struct Memory {
    /// Bytes of unused buffers that the environment keeps for later reads, 0 to 64GiB [default:
    /// 64MiB].
    #[arg(long, value_name = "SIZE", value_parser = parse_memory)]
    pub(crate) buffer_pool: Option<usize>,
    /// Bytes of direct files that `io_uring-direct` reads ahead, 0 to 64GiB [default: 32MiB].
    #[arg(long, value_name = "SIZE", value_parser = parse_memory)]
    pub(crate) read_ahead: Option<usize>,
}

fn parse_memory(text: &str) -> Result<usize, String> {
    let size = size_within(text, 0, 64 << 30, "from 0 to 64GiB")?;
    usize::try_from(size).map_err(|_| "it is more than this machine can address".to_owned())
}
