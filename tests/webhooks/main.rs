//! The example `webhooks` as a process: its calls, kills and stops, with a receiver of the test.
#![cfg_attr(not(any(feature = "rocksdb", feature = "sqlite")), allow(dead_code, reason = "some tests need a disk"))]

mod calls;
#[cfg(all(any(feature = "rocksdb", feature = "sqlite"), target_os = "linux"))]
mod figures;
#[cfg(all(any(feature = "rocksdb", feature = "sqlite"), unix))]
mod kills;
#[cfg(target_os = "linux")]
mod polls;
mod receiver;
mod service;
#[cfg(all(any(feature = "rocksdb", feature = "sqlite"), unix))]
mod stop;

use std::future::Future;

/// Awaits what must come soon, and fails if it does not.
#[track_caller]
fn soon<T>(what: &str, future: impl Future<Output = T>) -> impl Future<Output = T> {
    let (what, place) = (what.to_owned(), std::panic::Location::caller());
    async move {
        let done = tokio::time::timeout(common::LONG, future).await;
        done.unwrap_or_else(|_| panic!("{place}: waited in vain for {what}"))
    }
}
