//! The repository: its layout, its links, its lists, and the planted bugs.

mod aliases;
mod architecture;
mod circles;
mod mutants;
mod operating;
mod readme;
mod width;
