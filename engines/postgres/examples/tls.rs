//! A store whose connections are encrypted, and whose server has to prove who it is, by rustls.
//!
//! ```sh
//! cargo run --example tls -- "host=db.example.com user=app dbname=bank sslmode=require" ca.pem
//! ```
//!
//! Any connector for `tokio-postgres` that is `Clone` works in the same way.

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use tokio_postgres_rustls::MakeRustlsConnect;
use waterline::{Consumer, MemoryJobs};
use waterline_postgres::postgres::Config;
use waterline_postgres::{PgOptions, PgStore};

/// Makes a connector that trusts the authorities in this file, and no others.
pub(crate) fn connector(authorities: &Path) -> Result<MakeRustlsConnect, Box<dyn Error>> {
    let mut roots = RootCertStore::empty();
    for authority in CertificateDer::pem_file_iter(authorities)? {
        roots.add(authority?)?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let config = config.with_root_certificates(roots).with_no_client_auth();
    Ok(MakeRustlsConnect::new(config))
}

#[allow(dead_code, reason = "a test has the part above")]
fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: tls CONFIGURATION AUTHORITIES";
    let config: Config = arguments.next().ok_or(usage)?.parse()?;
    let connector = connector(Path::new(&arguments.next().ok_or(usage)?))?;
    let store = PgStore::connect(config, connector, PgOptions::new())?;
    store.migrate()?;
    let jobs: MemoryJobs<u64> = (0..100).collect();
    Consumer::builder(jobs, store.progress("tls")).stop_at(99).start(|_| Ok(()))?.join()?;
    println!("{:?}", store.consumers()?);
    Ok(())
}
