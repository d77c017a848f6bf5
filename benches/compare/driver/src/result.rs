//! A result with any error: whoever runs the driver reads its text.

use std::error::Error;

pub type Result<T> = std::result::Result<T, Box<dyn Error>>;
