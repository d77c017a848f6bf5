//! The rules of the queue, in memory: random lives, disks that stop or fail at each write in turn,
//! and rules that random tests meet too seldom.

mod crash;
mod damaged;
mod lives;
mod many;
mod mixed;
mod ops;
mod rules;
mod suspects;
