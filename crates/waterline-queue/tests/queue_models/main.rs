//! The rules of the queue, in memory: random calls beside the model, a disk that stops or
//! fails at each write in turn, and single rules that a random test meets too seldom.

mod crash;
mod damaged;
mod limits;
mod lives;
mod many;
mod mixed;
mod ops;
mod rules;
mod suspects;
