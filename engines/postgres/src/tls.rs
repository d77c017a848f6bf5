//! The connector of a store: one type for whatever connector the user has, with or without TLS.

use postgres::Socket;
use postgres::tls::{ChannelBinding, MakeTlsConnect, NoTls, TlsConnect, TlsStream};
use std::any::TypeId;
use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use waterline::BoxError;

type Connecting = Pin<Box<dyn Future<Output = Result<Stream, BoxError>> + Send>>;
type Connect = Box<dyn FnOnce(Socket) -> Connecting + Send>;

/// The connector of the user's. All clones make connections of one kind.
#[derive(Clone)]
pub(crate) struct Connector {
    make: Arc<dyn Fn(&str) -> Result<Connect, BoxError> + Send + Sync>,
    /// True if it makes no TLS at all.
    plain: bool,
}

impl Connector {
    pub(crate) fn new<T>(tls: T) -> Self
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
                    Ok(Stream(Box::new(stream)))
                })
            }))
        };
        Self { make: Arc::new(make), plain: TypeId::of::<T>() == TypeId::of::<NoTls>() }
    }

    /// True if it makes no TLS at all.
    pub(crate) fn is_plain(&self) -> bool {
        self.plain
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector").field("plain", &self.plain).finish_non_exhaustive()
    }
}

impl MakeTlsConnect<Socket> for Connector {
    type Stream = Stream;
    type TlsConnect = Handshake;
    type Error = BoxError;

    fn make_tls_connect(&mut self, host: &str) -> Result<Handshake, BoxError> {
        (self.make)(host).map(Handshake)
    }
}

/// One handshake to come.
pub(crate) struct Handshake(Connect);

impl TlsConnect<Socket> for Handshake {
    type Stream = Stream;
    type Error = BoxError;
    type Future = Connecting;

    fn connect(self, socket: Socket) -> Connecting {
        (self.0)(socket)
    }
}

/// A stream of any connector.
pub(crate) struct Stream(Box<dyn TlsStreamOfAnyKind>);

trait TlsStreamOfAnyKind: TlsStream + Unpin + Send {}

impl<S: TlsStream + Unpin + Send> TlsStreamOfAnyKind for S {}

impl AsyncRead for Stream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_read(cx, into)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_shutdown(cx)
    }
}

impl TlsStream for Stream {
    fn channel_binding(&self) -> ChannelBinding {
        self.0.channel_binding()
    }
}
