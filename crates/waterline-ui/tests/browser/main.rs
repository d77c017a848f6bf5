//! The page in a real browser: what a person sees, clicks and types.
#![allow(missing_docs, reason = "these are tests")]

mod driver;
#[allow(dead_code, reason = "the other program looks at headers")]
#[path = "../page/http.rs"]
mod http;
mod looks;
mod screens;
mod steers;
mod world;
