//! A database of queues in plain maps, with which engines are compared.

mod model;

pub use self::model::QueueModel;
