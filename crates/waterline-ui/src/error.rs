//! The errors of a page.

use std::io;
use std::net::SocketAddr;

/// Why a page cannot be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The address is no address, or cannot be listened on.
    #[error("the page cannot listen on that address: {0}; use a free port, or port 0 for any")]
    Listen(#[source] io::Error),
    /// The address is no loopback, and there is no token.
    #[error("{addr} can be reached from other machines: set a token with Page::token, or serve on 127.0.0.1")]
    NeedsToken {
        /// The address.
        addr: SocketAddr,
    },
    /// The token is too short.
    #[error("the token of the page has fewer than {least} bytes: one that can be guessed protects nothing")]
    ShortToken {
        /// The least number of bytes.
        least: usize,
    },
    /// The address of [`Page::origin`](crate::Page::origin) is not valid.
    #[error(transparent)]
    Origin(#[from] NotAnOrigin),
    /// The thread of the server cannot be started.
    #[error("the thread of the page cannot be started: {0}")]
    Thread(#[source] io::Error),
}

/// A text that is not the address of a page.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{url:?} is no address of a page: write it as https://ops.example.org or http://10.0.0.7:8080/waterline")]
pub struct NotAnOrigin {
    pub(crate) url: String,
}
