//! The rules of the queue, in memory: random calls beside a simple model, a disk that stops or
//! fails at each write in turn, and single rules that a random test meets too seldom.

mod compared;
mod crash;
mod damaged;
mod limits;
mod lives;
mod many;
mod mixed;
mod model;
mod ops;
mod random;
mod related;
mod rules;
mod suspects;
