//! The command line as its users meet it: every command through the real binary, its output, its
//! messages and its exit codes.

mod bench;
mod damage;
mod entries;
mod machine;
mod real_data;
mod tool;
mod transfer;
mod usage;
