//! The command line as its users meet it: every command through the real binary, its output, its
//! messages and its exit codes.

#[cfg(test)]
mod bench;
#[cfg(test)]
mod damage;
#[cfg(test)]
mod denied;
#[cfg(test)]
mod device;
#[cfg(test)]
mod entries;
#[cfg(test)]
mod interrupted;
#[cfg(test)]
mod machine;
#[cfg(test)]
mod odd_files;
#[cfg(test)]
mod real_data;
#[cfg(test)]
mod tool;
#[cfg(test)]
mod transfer;
#[cfg(test)]
mod unwritable;
#[cfg(test)]
mod usage;
