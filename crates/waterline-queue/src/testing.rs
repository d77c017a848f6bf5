//! A database of queues in plain maps, against which engines are compared.

mod model;

pub use self::model::QueueModel;
