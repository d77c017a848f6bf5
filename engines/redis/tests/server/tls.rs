//! Certificates for servers that speak TLS, and for their clients.

use std::path::{Path, PathBuf};
use std::process::Command;
use waterline_redis::redis::{ClientTlsConfig, TlsCertificates};

/// An authority, and what it vouches for: a server of the name `localhost`, one of another name,
/// and a client. They are gone when this is dropped.
pub struct Certificates(tempfile::TempDir);

/// The names of a certificate.
const NAMES: [(&str, &str); 3] = [("server", "localhost"), ("other", "elsewhere.example"), ("client", "client")];

impl Certificates {
    pub fn new() -> Self {
        let made = Self(tempfile::tempdir().expect("a directory"));
        let request = |name: &str, subject: &str, more: &[&str]| {
            let mut openssl = Command::new("openssl");
            openssl.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]);
            openssl.args(["-days", "2", "-subj", &format!("/CN={subject}"), "-config", "/dev/null"]);
            openssl.args(["-keyout", &format!("{name}.key"), "-out", &format!("{name}.crt")]).args(more);
            let output = openssl.current_dir(made.0.path()).output();
            let output = output.expect("there is no openssl on this machine: apt-get install openssl");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        };
        request("authority", "authority", &["-addext", "basicConstraints=critical,CA:TRUE"]);
        for (name, subject) in NAMES {
            let names = format!("subjectAltName=DNS:{subject}");
            let by = ["-CA", "authority.crt", "-CAkey", "authority.key", "-addext", &names];
            request(name, subject, &[&by[..], &["-addext", "basicConstraints=critical,CA:FALSE"]].concat());
        }
        made
    }

    /// The settings of a server with the certificate of this name, which asks for one, too.
    pub fn settings(&self, name: &str) -> Vec<(&'static str, String)> {
        let path = |file: String| self.0.path().join(file).to_str().expect("a short name").to_owned();
        vec![
            ("tls-cert-file", path(format!("{name}.crt"))),
            ("tls-key-file", path(format!("{name}.key"))),
            ("tls-ca-cert-file", path("authority.crt".to_owned())),
        ]
    }

    pub fn file(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.0.path().join(name)).expect("it was made")
    }
}

/// What a client needs for a server with these settings.
pub fn of_client(authority: &Path) -> TlsCertificates {
    let read = |name: &str| std::fs::read(authority.with_file_name(name)).expect("it was made");
    let client_tls = Some(ClientTlsConfig { client_cert: read("client.crt"), client_key: read("client.key") });
    TlsCertificates { client_tls, root_cert: Some(read("authority.crt")) }
}

/// The file of the authority, if the settings of a server name one.
pub fn authority_of(settings: &[String]) -> Option<PathBuf> {
    let at = settings.iter().position(|setting| setting == "--tls-ca-cert-file")?;
    Some(PathBuf::from(&settings[at + 1]))
}
