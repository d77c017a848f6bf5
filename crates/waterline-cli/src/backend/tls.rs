//! The connection to a database over TLS.
//!
//! The driver takes from `sslmode` only whether TLS is wanted. So this module reads the parameters
//! that the programs of PostgreSQL know, and is stricter: with TLS, a server has to prove its name.

use crate::error::Fault;
use percent_encoding::percent_decode_str;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio_postgres_rustls::MakeRustlsConnect;

/// A URL, split into what the driver knows and what it does not.
#[derive(Debug, PartialEq)]
pub(super) struct Address {
    /// The URL for the driver.
    pub(super) rest: String,
    /// The file of trusted authorities; `None` for those of the system.
    pub(super) authorities: Option<PathBuf>,
}

impl Address {
    pub(super) fn of(url: &str) -> Result<Self, Fault> {
        let (mut rest, mut authorities) = (url.to_owned(), None);
        // The driver takes everything before the first @ as user and password.
        let behind = url.find('@').unwrap_or_default();
        if let Some((server, query)) = url[behind..].split_once('?') {
            let (mut kept, mut is_encrypted, mut has_authorities) = (Vec::new(), false, false);
            for part in query.split('&') {
                match part.split_once('=') {
                    Some(("sslmode", "require" | "verify-ca" | "verify-full")) => {
                        is_encrypted = true;
                        kept.push("sslmode=require");
                    }
                    // Each of these allows a connection without TLS.
                    Some(("sslmode", "disable" | "allow" | "prefer")) => kept.push("sslmode=disable"),
                    Some(("sslmode", _)) => return Err(Fault::new(MODES)),
                    Some(("sslrootcert", file)) => {
                        has_authorities = true;
                        let name = percent_decode_str(file).decode_utf8_lossy().into_owned();
                        authorities = (name != "system").then(|| name.into());
                    }
                    _ => kept.push(part),
                }
            }
            // Whoever names authorities does not want to send a password unencrypted.
            if has_authorities && !is_encrypted {
                return Err(Fault::new("sslrootcert is for a connection over TLS: add sslmode=require to the URL"));
            }
            rest = format!("{}{server}?{}", &url[..behind], kept.join("&"));
        }
        Ok(Self { rest, authorities })
    }

    /// Makes a connector that trusts these authorities and no others.
    pub(super) fn connector(&self) -> Result<MakeRustlsConnect, Fault> {
        let (mut roots, mut why) = (RootCertStore::empty(), String::new());
        match &self.authorities {
            Some(file) => read(file, &mut roots)?,
            // Every system has some certificates that this library cannot parse.
            None => {
                let found = rustls_native_certs::load_native_certs();
                roots.add_parsable_certificates(found.certs);
                why = found.errors.first().map_or_else(String::new, |error| format!(" ({error})"));
            }
        }
        if roots.is_empty() {
            let file = self.authorities.as_ref().map(|file| file.display().to_string());
            let place = file.unwrap_or_else(|| "this machine".to_owned());
            return Err(Fault::new(format!("{place} has no authority that vouches for a server{why}: {NAME_IT}")));
        }
        let none = |error: rustls::Error| Fault::new(format!("there is no TLS: {error}"));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        Ok(MakeRustlsConnect::new(config.map_err(none)?.with_root_certificates(roots).with_no_client_auth()))
    }
}

/// Reads the authorities in a file.
fn read(file: &Path, roots: &mut RootCertStore) -> Result<(), Fault> {
    let bad = |error: &dyn std::fmt::Display| {
        Fault::new(format!("the authorities in {} cannot be read: {error}", file.display()))
    };
    for authority in CertificateDer::pem_file_iter(file).map_err(|error| bad(&error))? {
        roots.add(authority.map_err(|error| bad(&error))?).map_err(|error| bad(&error))?;
    }
    Ok(())
}

const MODES: &str =
    "this tool does not know that sslmode: it is require or verify-full, or disable for a connection without TLS";

/// What helps if no authority vouches for a server.
const NAME_IT: &str = "name the file of its authority with sslrootcert=FILE in the URL";

/// Says what helps if a server has not proved its name, judged by the text of the error.
pub(super) fn advice(text: &str) -> Option<&'static str> {
    let helps = [
        ("UnknownIssuer", NAME_IT),
        // Another authority has the same name.
        ("BadSignature", NAME_IT),
        (
            "CaUsedAsEndEntity",
            "a certificate that is its own authority needs CA:FALSE, and its names in subjectAltName",
        ),
        ("not valid for name", "the URL needs the name for which the certificate is made"),
    ];
    let refused = text.contains("invalid peer certificate");
    helps.into_iter().find(|(word, _)| refused && text.contains(word)).map(|(_, help)| help)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tls_parameters_are_translated_for_the_driver() {
        let file = |name: &str| Some(PathBuf::from(name));
        for (url, rest, authorities) in [
            ("postgres://h/d", "postgres://h/d", None),
            ("postgres://h/d?sslmode=require", "postgres://h/d?sslmode=require", None),
            (
                "postgres://h/d?sslmode=verify-full&connect_timeout=3",
                "postgres://h/d?sslmode=require&connect_timeout=3",
                None,
            ),
            ("postgres://h/d?sslrootcert=system&sslmode=verify-ca", "postgres://h/d?sslmode=require", None),
            (
                "postgres://h/d?sslrootcert=/etc/my%20ca.pem&sslmode=require",
                "postgres://h/d?sslmode=require",
                file("/etc/my ca.pem"),
            ),
            ("postgres://u:a?b@h/d?sslmode=verify-full", "postgres://u:a?b@h/d?sslmode=require", None),
            ("postgres://h/d?sslmode=allow", "postgres://h/d?sslmode=disable", None),
            ("host=h user=u password=a?b&c", "host=h user=u password=a?b&c", None),
        ] {
            assert_eq!(Address::of(url).unwrap(), Address { rest: rest.to_owned(), authorities }, "{url}");
        }
        for (url, part) in [
            ("postgres://h/d?sslrootcert=ca.pem", "add sslmode=require"),
            ("postgres://h/d?sslrootcert=system&sslmode=prefer", "add sslmode=require"),
            ("postgres://h/d?sslmode=verify", "require or verify-full"),
        ] {
            assert!(Address::of(url).unwrap_err().to_string().contains(part), "{url}");
        }
    }
}
