//! waterline
extern crate alloc;

mod config;
mod consumer;
mod driver;
mod error;
mod index;
mod jobs;
mod kv;
mod notifier;
mod pool;
mod progress;
mod reader;
mod retry;
mod saver;
mod status;
mod store;
mod sync;
mod wakeup;
pub mod window;
mod worker;
mod writer;

pub use config::{ConfigError, OnExhausted};
pub use consumer::{Builder, Consumer, Handle};
pub use error::{Error, StoreError};
pub use index::{BoxError, Index};
pub use jobs::{Jobs, MemoryJobs};
pub use progress::{Checkpoint, MemoryProgress, Progress, StoreProgress};
pub use retry::Retry;
pub use status::{Blocked, State, Status};
pub use store::{Durability, Rows, Store, StoreOptions, Table};
pub use wakeup::Wakeup;
pub use worker::{Done, Job, Worker};

/// design
pub mod design {}
