//! Random calls on a queue, beside a simple model.

mod after;
mod compared;
mod mixed;
mod model;
mod random;
