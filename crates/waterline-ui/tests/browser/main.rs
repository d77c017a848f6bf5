//! The page in a real browser: what a person sees, clicks and types.
#![allow(missing_docs, reason = "these are tests")]

mod driver;
#[path = "../page/http.rs"]
mod http;
mod looks;
mod screens;
mod steers;
mod world;
