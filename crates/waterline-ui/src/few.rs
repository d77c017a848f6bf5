//! The connections of a page that is served by itself. They are few, and none stays that says
//! nothing: each takes a file descriptor of the program, whose stores need some, too.

use axum::serve::Listener;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep};

/// The most connections at once. A browser has up to six.
pub(crate) const MOST: usize = 256;

/// The time after which a connection is closed on which nothing goes either way. Views that are
/// followed say something each 15 s.
const SILENCE: Duration = Duration::from_secs(60);

/// Accepts a connection when there is a place for it.
pub(crate) struct Few {
    listener: TcpListener,
    places: Arc<Semaphore>,
}

impl Few {
    pub(crate) fn new(listener: TcpListener) -> Self {
        Self { listener, places: Arc::new(Semaphore::new(MOST)) }
    }
}

impl Listener for Few {
    type Io = Held;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Held, SocketAddr) {
        // (Nobody closes the semaphore.)
        let place = self.places.clone().acquire_owned().await.ok();
        let (stream, addr) = Listener::accept(&mut self.listener).await;
        (Held { stream, _place: place, silent: Box::pin(sleep(SILENCE)) }, addr)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection with its place.
pub(crate) struct Held {
    stream: TcpStream,
    _place: Option<OwnedSemaphorePermit>,
    silent: Pin<Box<Sleep>>,
}

impl Held {
    fn heard(&mut self) {
        self.silent.as_mut().reset(Instant::now() + SILENCE);
    }
}

impl AsyncRead for Held {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        if read.is_ready() {
            self.heard();
            return read;
        }
        self.silent.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncWrite for Held {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        if written.is_ready() {
            self.heard();
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use crate::Page;
    use std::io::{Read as _, Write as _};
    use std::net::TcpStream;
    use std::time::Duration;
    use waterline::Store;

    #[test]
    fn a_connection_waits_for_its_place_while_others_have_them_all() {
        let served = Page::new(&Store::in_memory()).serve("127.0.0.1:0").unwrap();
        let silent: Vec<_> = (0..super::MOST).map(|_| TcpStream::connect(served.addr()).unwrap()).collect();
        let mut one = TcpStream::connect(served.addr()).unwrap();
        write!(one, "GET /api/overview HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", served.addr()).unwrap();
        one.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        assert!(one.read(&mut [0; 1]).is_err(), "there is no place");
        drop(silent);
        one.set_read_timeout(None).unwrap();
        let mut answer = String::new();
        one.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
}
