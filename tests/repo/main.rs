//! The repository: its layout, its prose, its links, its scripts, and its lists of tests.

mod architecture;
mod circles;
mod map;
mod mutants;
mod names;
mod operating;
mod parity;
mod prose;
mod readme;
#[cfg(unix)]
mod tooling;
