//! The folders that the driver reads and writes.

use std::path::PathBuf;

/// Returns the folder of the checkout.
pub fn checkout() -> PathBuf {
    let own = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    own.ancestors().nth(3).expect("it is benches/compare/driver").to_owned()
}

/// Returns the folder of the raw figures.
pub fn raw() -> PathBuf {
    checkout().join("benches/compare/raw")
}
