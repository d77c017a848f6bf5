//! A stream to the server on which each answer comes within a time: a server that stands still, or
//! a proxy in between, lets nobody wait for ever.

use crate::tls::{AnyStream, Plain};
use postgres::Socket;
use postgres::tls::{ChannelBinding, TlsStream};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// The end of each answer: the message `ReadyForQuery`, without its last byte, which has the state
/// of the transaction.
const READY: [u8; 5] = [b'Z', 0, 0, 0, 5];

/// A stream with a bound on the time without a byte while an answer is awaited.
pub(crate) struct Bounded {
    stream: AnyStream,
    limit: Duration,
    /// The end of the wait; `None` while no answer is awaited.
    until: Option<Pin<Box<Sleep>>>,
    tail: Tail,
}

impl Bounded {
    pub(crate) fn new(stream: AnyStream, limit: Duration) -> Self {
        Self { stream, limit, until: None, tail: Tail::default() }
    }

    pub(crate) fn plain(socket: Socket, limit: Duration) -> Self {
        Self::new(Box::pin(Plain(socket)), limit)
    }

    /// Notes that something was sent or received while an answer is awaited. The task is woken at
    /// the end of the wait, also if nobody reads before.
    fn awaits(&mut self, cx: &mut Context<'_>) {
        let until = Instant::now() + self.limit;
        match &mut self.until {
            Some(sleep) => sleep.as_mut().reset(until),
            None => self.until = Some(Box::pin(tokio::time::sleep_until(until))),
        }
        self.until.iter_mut().for_each(|until| _ = until.as_mut().poll(cx));
    }
}

/// The last bytes that were received.
#[derive(Default)]
struct Tail([u8; READY.len() + 1]);

impl Tail {
    /// Takes more bytes. Returns true if they end an answer.
    fn take(&mut self, bytes: &[u8]) -> bool {
        let all = [&self.0[..], bytes].concat();
        let length = self.0.len();
        self.0.copy_from_slice(&all[all.len() - length..]);
        self.0.starts_with(&READY)
    }
}

impl AsyncRead for Bounded {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = into.filled().len();
        if let Poll::Ready(read) = this.stream.as_mut().poll_read(cx, into) {
            let bytes = &into.filled()[before..];
            let start = bytes.len().saturating_sub(READY.len() + 1);
            if this.tail.take(&bytes[start..]) {
                this.until = None;
            } else if this.until.is_some() {
                this.awaits(cx);
            }
            return Poll::Ready(read);
        }
        let Some(until) = &mut this.until else { return Poll::Pending };
        until.as_mut().poll(cx).map(|()| {
            let why = format!("the server has not answered for {:?}", this.limit);
            Err(io::Error::new(io::ErrorKind::TimedOut, why))
        })
    }
}

impl AsyncWrite for Bounded {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.awaits(cx);
        self.stream.as_mut().poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.as_mut().poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.as_mut().poll_shutdown(cx)
    }
}

impl TlsStream for Bounded {
    fn channel_binding(&self) -> ChannelBinding {
        self.stream.channel_binding()
    }
}

impl AsyncRead for Plain {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, into)
    }
}

impl AsyncWrite for Plain {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_an_answer_is_seen_in_whatever_pieces_it_comes() {
        let answer = [b"C\0\0\0\x0dSELECT 1\0".as_slice(), &READY, b"I"].concat();
        for cut in 0..answer.len() {
            let mut tail = Tail::default();
            assert!(!tail.take(&answer[..cut]) && tail.take(&answer[cut..]), "cut at {cut}");
        }
        let mut tail = Tail::default();
        assert!(!tail.take(&answer[..answer.len() - 1]));
        assert!(answer[answer.len() - 1..].iter().all(|byte| tail.take(&[*byte])));
        assert!(!tail.take(b"A"), "a notification that comes behind it");
    }
}
