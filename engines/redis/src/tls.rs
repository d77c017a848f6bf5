//! Connections over TLS: whom this process trusts, and how it shows who it is.

use crate::error::Error;
use redis::{Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo, RedisError, TlsCertificates};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{AlertDescription, CertificateError, ClientConfig, RootCertStore};
use std::error::Error as StdError;
use std::io;
use std::sync::Arc;

/// The certificates of a store, each as PEM.
#[derive(Clone, Default)]
pub(crate) struct Tls {
    /// Those of the authorities that vouch for the servers. Default: those of the machine.
    pub(crate) authority: Option<Vec<u8>>,
    /// The certificate of this process, and its key.
    pub(crate) identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl Tls {
    /// Gives the certificates to a server's address, and so to all that are found by it.
    pub(crate) fn on(&self, info: ConnectionInfo) -> Result<ConnectionInfo, Error> {
        let ConnectionAddr::TcpTls { insecure, .. } = info.addr() else {
            if self.authority.is_none() && self.identity.is_none() {
                return Ok(info);
            }
            let what = format!("there are certificates for {}, whose address is one without TLS", info.addr());
            return Err(Error::config(what, "begin the address with rediss://"));
        };
        if *insecure {
            let what = format!("the address of {} wants a server of any name to be trusted", info.addr());
            let advice = "take #insecure out of it, and give the authority of its certificate by \
                `RedisOptions::authority`";
            return Err(Error::config(what, advice));
        }
        choose_cryptography();
        self.check().map_err(|what| {
            Error::config(what, "give a certificate and a key as PEM, the text between BEGIN and END")
        })?;
        let client_tls =
            self.identity.clone().map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key });
        let certificates = TlsCertificates { client_tls, root_cert: self.authority.clone() };
        let at = info.addr().to_string();
        let client = Client::build_with_tls(info, certificates).map_err(|source| Error::Lost { at, source })?;
        Ok(client.get_connection_info().clone())
    }

    /// Reads the certificates as each connection will. `Err` says what is wrong.
    fn check(&self) -> Result<(), String> {
        let read = |what: &str, pem: &[u8]| {
            let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
            match read {
                Ok(read) if read.is_empty() => Err(format!("there is no certificate in that of {what}")),
                Ok(read) => Ok(read),
                Err(error) => Err(format!("the certificate of {what} cannot be read ({error})")),
            }
        };
        let mut trusted = RootCertStore::empty();
        for certificate in self.authority.iter().map(|pem| read("the authority", pem)) {
            for one in certificate? {
                trusted.add(one).map_err(|error| format!("the certificate of the authority is none ({error})"))?;
            }
        }
        let Some((certificate, key)) = &self.identity else { return Ok(()) };
        let certificate = read("this process", certificate)?;
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|error| format!("the key of this process cannot be read ({error})"))?;
        let config = ClientConfig::builder().with_root_certificates(trusted).with_client_auth_cert(certificate, key);
        config.map(drop).map_err(|error| format!("the certificate and the key of this process do not fit ({error})"))
    }
}

/// A program with two sets of cryptography has to choose one. If it has not, this one is taken.
fn choose_cryptography() {
    _ = rustls::crypto::ring::default_provider().install_default();
}

/// The error of a server that one of the two sides does not trust. `None`: it is another failure.
pub(crate) fn refused(at: &str, error: &RedisError) -> Option<Error> {
    let mut cause = error.source();
    while let Some(one) = cause {
        // The driver shares its causes.
        let one = one.downcast_ref::<Arc<dyn StdError + Send + Sync>>().map_or(one, |shared| &**shared);
        let inner = one.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        if let Some(fault) = inner.and_then(|inner| inner.downcast_ref()).or_else(|| one.downcast_ref()) {
            let (what, advice) = told(fault);
            return Some(Error::server(at, what, advice));
        }
        cause = one.source();
    }
    None
}

fn told(fault: &rustls::Error) -> (String, &'static str) {
    use rustls::Error as Fault;
    let (what, advice) = match fault {
        // (A bad signature is one of another authority of the same name.)
        Fault::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => {
            ("has a certificate of an unknown authority", "give that by `RedisOptions::authority`")
        }
        Fault::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => {
            ("has a certificate for another name", "connect by a name in its certificate, or give it one for this name")
        }
        Fault::InvalidCertificate(
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. },
        ) => ("has a certificate that holds at another time", "renew it, or correct the clock of this machine"),
        Fault::InvalidCertificate(_) => ("has a certificate that cannot be trusted", "give it a better one"),
        Fault::AlertReceived(
            AlertDescription::CertificateRequired
            | AlertDescription::HandshakeFailure
            | AlertDescription::BadCertificate
            | AlertDescription::UnknownCA,
        ) => (
            "wants another certificate of this process",
            "give one that it trusts by `RedisOptions::identity`, or let it ask for none: `tls-auth-clients no`",
        ),
        Fault::InvalidMessage(_) => ("speaks no TLS at this port", "take its port for TLS, or begin with redis://"),
        _ => ("makes no connection over TLS", "look at its log, and at its setting `tls-protocols`"),
    };
    (format!("{what} ({fault})"), advice)
}
