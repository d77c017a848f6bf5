//! Addresses of servers: what may be written in a URL, and how they are shown.

use crate::error::Error;
use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo};
use std::fmt;
use std::sync::Arc;

/// The addresses of servers, each as a URL.
///
/// `redis://user:password@host:port/database`, where all but the host may be left out, and for a
/// Unix socket `unix:///path?db=0`. With the feature `tls`, `rediss://` is a connection over TLS.
/// `valkey://` and `valkeys://` are the same.
#[derive(Clone)]
pub struct Urls(Vec<String>);

impl From<&str> for Urls {
    fn from(url: &str) -> Self {
        Self(vec![url.to_owned()])
    }
}

impl From<String> for Urls {
    fn from(url: String) -> Self {
        Self(vec![url])
    }
}

impl<T: Into<String>> From<Vec<T>> for Urls {
    fn from(urls: Vec<T>) -> Self {
        Self(urls.into_iter().map(Into::into).collect())
    }
}

impl<T: Into<String>, const N: usize> From<[T; N]> for Urls {
    fn from(urls: [T; N]) -> Self {
        Self(urls.into_iter().map(Into::into).collect())
    }
}

/// Without the passwords.
impl fmt::Debug for Urls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|url| shown(url))).finish()
    }
}

/// One server.
pub(crate) type Node = Arc<ConnectionAddr>;

/// Reads the addresses. `Err`: one of them cannot be an address.
pub(crate) fn read(urls: &Urls) -> Result<Vec<ConnectionInfo>, Error> {
    if urls.0.is_empty() {
        return Err(Error::config("there is no address", "give at least one: redis://localhost"));
    }
    urls.0.iter().map(|url| read_one(url)).collect()
}

fn read_one(url: &str) -> Result<ConnectionInfo, Error> {
    let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme);
    let advice = match scheme {
        "rediss" | "valkeys" if cfg!(not(feature = "tls")) => {
            return Err(Error::config(
                format!("the address {:?} is one with TLS", shown(url)),
                "switch on the feature `tls` of waterline-redis",
            ));
        }
        "redis" | "valkey" | "rediss" | "valkeys" => "write redis://user:password@host:port/database",
        "unix" | "redis+unix" | "valkey+unix" => "write unix:///path?db=0",
        _ => "begin with redis://, with rediss:// for TLS, or with unix:// for a socket",
    };
    let info = url.into_connection_info().map_err(|error| {
        // The text of the error may have a part of the address, but not its password.
        Error::config(format!("the address {:?} cannot be read ({error})", shown(url)), advice)
    })?;
    if info.redis_settings().db() < 0 {
        return Err(Error::config(format!("the address {:?} has a database below 0", shown(url)), advice));
    }
    Ok(info)
}

/// The address without its password.
pub(crate) fn shown(url: &str) -> String {
    let secret = url.find("://").map(|at| at + 3).and_then(|from| {
        let host = url[from..].rfind('@')? + from;
        let colon = url[from..host].find(':')? + from;
        Some((colon + 1, host))
    });
    let mut url = url.to_owned();
    if let Some((from, to)) = secret {
        url.replace_range(from..to, "…");
    }
    match url.find("pass=") {
        Some(at) => url[..at + 5].to_owned() + "…",
        None => url,
    }
}

/// Another server, which is reached in the same way as this one: with TLS or without.
pub(crate) fn like(one: &ConnectionAddr, host: &str, port: u16) -> Node {
    let host = host.to_owned();
    Arc::new(match one {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
            ConnectionAddr::TcpTls { host, port, insecure: *insecure, tls_params: tls_params.clone() }
        }
        _ => ConnectionAddr::Tcp(host, port),
    })
}

/// The server of a redirection: `host:port`. Without a host it is that of the server that said so.
pub(crate) fn redirected(from: &ConnectionAddr, to: &str) -> Option<Node> {
    let (host, port) = to.rsplit_once(':')?;
    let host = if host.is_empty() { host_of(from)? } else { host };
    Some(like(from, host, port.parse().ok()?))
}

pub(crate) fn host_of(addr: &ConnectionAddr) -> Option<&str> {
    match addr {
        ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => Some(host),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_or_refused_in_words_without_their_password() {
        for url in ["redis://localhost", "redis://:pw@h:1/3", "valkey://u:p@[::1]:7/", "unix:///run/redis.sock?db=1"] {
            assert!(read(&url.into()).is_ok(), "{url}");
        }
        for (url, says) in [
            ("", "begin with redis://"),
            ("localhost:6379", "begin with redis://"),
            ("http://localhost", "begin with redis://"),
            ("redis://", "redis://user:password@host:port/database"),
            ("redis://h:port", "redis://user:password@host:port/database"),
            ("redis://app:secret@h/one", "redis://app:…@h/one"),
            ("redis://app:secret@h/-1", "database below 0"),
            ("redis://h/?protocol=9", "redis://user"),
            ("redis://0.0.0.0", "wildcard"),
            ("unix:///s?db=x&pass=secret", "write unix:///path"),
        ] {
            let error = read(&url.into()).unwrap_err();
            let text = error.to_string();
            assert!(matches!(error, Error::Config { .. }) && text.contains(says), "{url}: {text}");
            assert!(!text.contains("secret"), "{text}");
        }
        assert!(matches!(read(&Vec::<String>::new().into()), Err(Error::Config { .. })));
        assert!(!format!("{:?}", Urls::from(["redis://:secret@h"])).contains("secret"));
        assert_eq!(cfg!(feature = "tls"), read(&"rediss://localhost".into()).is_ok());
    }

    #[test]
    fn a_redirection_names_its_server_or_leaves_out_the_host() {
        let from = ConnectionAddr::Tcp("here".to_owned(), 1);
        let of = |to: &str| redirected(&from, to).map(|node| node.to_string());
        assert_eq!(of("there:7"), Some("there:7".to_owned()));
        assert_eq!(of("::1:7"), Some("::1:7".to_owned()));
        assert_eq!(of(":7"), Some("here:7".to_owned()));
        assert_eq!([of("there"), of("there:x"), of("there:70000")], [None, None, None]);
    }
}
