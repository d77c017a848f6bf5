//! A result with any error, whose text is for the person who runs the driver.

use std::error::Error;

pub type Result<T> = std::result::Result<T, Box<dyn Error>>;
