//! The connector of a store: one type for whatever connector the user has, with or without TLS.
//!
//! The driver hands it each socket before it sends a byte (`sslmode=require` with
//! `sslnegotiation=direct`). So all streams, even those without TLS, are of one type, and each read
//! of an answer is bounded.

use crate::bounded::{Bounded, Process};
use crate::stream::AnyStream;
use postgres::Socket;
use postgres::config::{SslMode, SslNegotiation};
use postgres::tls::{MakeTlsConnect, NoTls, TlsConnect};
use std::any::TypeId;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use waterline::BoxError;

/// The message that asks a server for TLS: its length, and a number that no version has.
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];

type Connecting<S> = Pin<Box<dyn Future<Output = Result<S, BoxError>> + Send>>;
type Connect = Box<dyn FnOnce(Socket) -> Connecting<AnyStream> + Send>;
type Make = dyn Fn(&str) -> Result<Connect, BoxError> + Send + Sync;

/// The user's connector. All clones make connections of one kind.
#[derive(Clone)]
pub(crate) struct Connector {
    make: Arc<Make>,
    mode: SslMode,
    /// True if the server waits for TLS from the first byte on.
    direct: bool,
    /// How long an answer may take, the handshake included.
    limit: Duration,
    /// Where the connection notes its process at the server.
    process: Process,
}

impl Connector {
    /// Returns the connector for one connection, and where that notes its process.
    pub(crate) fn for_one(&self) -> (Self, Process) {
        let process = Process::default();
        (Self { process: Arc::clone(&process), ..self.clone() }, process)
    }

    /// Makes a connector that asks for TLS as `mode` says.
    pub(crate) fn new<T>(tls: T, mode: SslMode, negotiation: SslNegotiation, limit: Duration) -> Self
    where
        T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
        T::TlsConnect: Send + 'static,
        T::Stream: Send + 'static,
        <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
    {
        let make = move |host: &str| -> Result<Connect, BoxError> {
            let connect = tls.clone().make_tls_connect(host).map_err(Into::into)?;
            Ok(Box::new(move |socket| {
                Box::pin(async move {
                    let stream = connect.connect(socket).await.map_err(Into::into)?;
                    Ok(Box::pin(stream) as AnyStream)
                })
            }))
        };
        // `NoTls` makes no TLS, so a server that has some is not asked for it.
        let none = TypeId::of::<T>() == TypeId::of::<NoTls>() && mode == SslMode::Prefer;
        let mode = if none { SslMode::Disable } else { mode };
        let direct = negotiation == SslNegotiation::Direct;
        Self { make: Arc::new(make), mode, direct, limit, process: Process::default() }
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector").field("mode", &self.mode).field("limit", &self.limit).finish_non_exhaustive()
    }
}

impl MakeTlsConnect<Socket> for Connector {
    type Stream = Bounded;
    type TlsConnect = Handshake;
    type Error = BoxError;

    fn make_tls_connect(&mut self, host: &str) -> Result<Handshake, BoxError> {
        let Self { mode, direct, limit, .. } = *self;
        let connect = if mode == SslMode::Disable { None } else { Some((self.make)(host)?) };
        Ok(Handshake { connect, mode, direct, limit, process: Arc::clone(&self.process) })
    }
}

pub(crate) struct Handshake {
    connect: Option<Connect>,
    mode: SslMode,
    direct: bool,
    limit: Duration,
    process: Process,
}

impl TlsConnect<Socket> for Handshake {
    type Stream = Bounded;
    type Error = BoxError;
    type Future = Connecting<Bounded>;

    fn connect(self, socket: Socket) -> Connecting<Bounded> {
        let limit = self.limit;
        Box::pin(async move {
            let stream = tokio::time::timeout(limit, self.shake(socket)).await;
            stream.unwrap_or_else(|_| Err("the server did not answer in time".into()))
        })
    }
}

impl Handshake {
    async fn shake(self, mut socket: Socket) -> Result<Bounded, BoxError> {
        let Some(connect) = self.connect else { return Ok(Bounded::plain(socket, self.limit, self.process)) };
        if !self.direct {
            socket.write_all(&SSL_REQUEST).await?;
            let mut answer = [0];
            socket.read_exact(&mut answer).await?;
            match (answer, self.mode) {
                ([b'S'], _) => {}
                (_, SslMode::Prefer) => return Ok(Bounded::plain(socket, self.limit, self.process)),
                _ => return Err("the server does not support TLS".into()),
            }
        }
        Ok(Bounded::new(connect(socket).await?, self.limit, self.process))
    }
}
