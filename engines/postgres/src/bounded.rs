//! A stream to the server on which each answer has a deadline, so that a frozen server or proxy
//! blocks no caller for ever. It counts requests and answers, since the driver may give up a
//! statement without waiting for its answer and send the next request meanwhile.

use crate::stream::{AnyStream, Plain};
use postgres::Socket;
use postgres::tls::{ChannelBinding, TlsStream};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// The client messages that get an answer of their own (a query, and the end of a group of
/// messages), and the server message that ends each answer.
const ASKS: [u8; 2] = [b'Q', b'S'];
const READY: [u8; 1] = [b'Z'];

/// The most bytes of a server's greeting. A few hundred are usual.
const GREETING: usize = 1 << 14;

/// The server process of a connection, as the greeting told it; 0: none.
pub(crate) type Process = Arc<AtomicI32>;

/// A stream with a bound on the time without a byte while an answer is awaited.
pub(crate) struct Bounded {
    stream: AnyStream,
    limit: Duration,
    /// The server's bytes until it is ready, in which the process is looked for.
    greeting: Option<Vec<u8>>,
    process: Process,
    /// The deadline; `None` while no answer is awaited.
    until: Option<Pin<Box<Sleep>>>,
    asked: Messages,
    answered: Messages,
    /// How many answers are awaited. The client's first message, which has no kind, gets one, too.
    awaited: usize,
}

impl Bounded {
    pub(crate) fn new(stream: AnyStream, limit: Duration, process: Process) -> Self {
        let (asked, answered) = (Messages::from_the_first(), Messages::default());
        Self { stream, limit, greeting: Some(Vec::new()), process, until: None, asked, answered, awaited: 1 }
    }

    pub(crate) fn plain(socket: Socket, limit: Duration, process: Process) -> Self {
        Self::new(Box::pin(Plain(socket)), limit, process)
    }

    /// Takes bytes of the greeting, which ends with the first answer.
    fn greet(&mut self, bytes: &[u8], is_over: bool) {
        let Some(greeting) = &mut self.greeting else { return };
        greeting.extend_from_slice(bytes);
        if is_over || greeting.len() > GREETING {
            self.process.store(process_of(greeting).unwrap_or(0), Ordering::Release);
            self.greeting = None;
        }
    }

    /// Restarts the deadline, since something was sent or received. The task is woken at the
    /// deadline even if nothing reads before.
    fn awaits(&mut self, cx: &mut Context<'_>) {
        let until = Instant::now() + self.limit;
        match &mut self.until {
            Some(sleep) => sleep.as_mut().reset(until),
            None => self.until = Some(Box::pin(tokio::time::sleep_until(until))),
        }
        self.until.iter_mut().for_each(|until| _ = until.as_mut().poll(cx));
    }
}

/// Finds the number of the server's process among its first messages (`BackendKeyData`).
fn process_of(mut greeting: &[u8]) -> Option<i32> {
    while let [kind, a, b, c, d, rest @ ..] = greeting {
        let length = usize::try_from(u32::from_be_bytes([*a, *b, *c, *d])).ok()?.checked_sub(4)?;
        let body = rest.get(..length)?;
        if *kind == b'K' {
            return Some(i32::from_be_bytes(body.get(..4)?.try_into().ok()?));
        }
        greeting = &rest[length..];
    }
    None
}

/// The messages of one direction, in pieces of any size. Each has a kind, and a length that counts
/// itself and not the kind.
#[derive(Debug, Default)]
struct Messages {
    /// The bytes of an incomplete head: a kind and a length.
    head: Vec<u8>,
    /// The bytes that are left of the current message.
    left: usize,
}

impl Messages {
    /// The messages of a client, of which the first one has no kind.
    fn from_the_first() -> Self {
        Self { head: vec![0], left: 0 }
    }

    /// Takes more bytes, and returns how many messages of these kinds begin in them.
    fn count(&mut self, mut bytes: &[u8], kinds: &[u8]) -> usize {
        let mut count = 0;
        while let Some((first, rest)) = bytes.split_first() {
            if self.left > 0 {
                let skipped = self.left.min(bytes.len());
                self.left -= skipped;
                bytes = &bytes[skipped..];
                continue;
            }
            self.head.push(*first);
            bytes = rest;
            if let [kind, a, b, c, d] = self.head[..] {
                let length = usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or(usize::MAX);
                self.left = length.saturating_sub(4);
                count += usize::from(kinds.contains(&kind));
                self.head.clear();
            }
        }
        count
    }
}

impl AsyncRead for Bounded {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = into.filled().len();
        if let Poll::Ready(read) = this.stream.as_mut().poll_read(cx, into) {
            let answers = this.answered.count(&into.filled()[before..], &READY);
            this.greet(&into.filled()[before..], answers > 0);
            this.awaited = this.awaited.saturating_sub(answers);
            if this.awaited == 0 {
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
        let written = self.stream.as_mut().poll_write(cx, bytes);
        if let Poll::Ready(Ok(count)) = written {
            self.awaited += self.asked.count(&bytes[..count], &ASKS);
        }
        self.awaits(cx);
        written
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

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u8, body: &[u8]) -> Vec<u8> {
        [&[kind][..], &(body.len() as u32 + 4).to_be_bytes(), body].concat()
    }

    #[test]
    fn answers_are_counted_in_pieces_of_any_size() {
        let row = message(b'D', b"Z\0\0\0\x05I");
        let answer =
            [row, message(b'C', b"SELECT 1\0"), message(b'Z', b"I"), message(b'A', b"a notification")].concat();
        for cut in 0..=answer.len() {
            let mut messages = Messages::default();
            let count = messages.count(&answer[..cut], &READY) + messages.count(&answer[cut..], &READY);
            assert_eq!(count, 1, "cut at {cut}");
        }
        let mut messages = Messages::default();
        assert_eq!(answer.iter().map(|byte| messages.count(&[*byte], &READY)).sum::<usize>(), 1);
        assert_eq!(messages.count(&[message(b'Z', b"I"), message(b'Z', b"T")].concat(), &READY), 2);
    }

    #[test]
    fn the_process_is_found_only_in_a_whole_greeting() {
        let settings = message(b'S', b"server_version\0K\0\0\0\x0c");
        let key = message(b'K', &[0, 0, 2, 1, 9, 9, 9, 9]);
        let greeting = [message(b'R', &[0; 4]), settings.clone(), key.clone(), message(b'Z', b"I")].concat();
        assert_eq!(process_of(&greeting), Some(513));
        assert_eq!(process_of(&[key, settings.clone()].concat()), Some(513));
        assert_eq!(process_of(&settings), None);
        let without_end = greeting.len() - 11;
        assert!((0..without_end).all(|cut| process_of(&greeting[..cut]).is_none()));
    }

    #[test]
    fn requests_are_counted_from_the_first_message() {
        let mut messages = Messages::from_the_first();
        // It has a length and no kind, and looks like anything.
        let first = [&(4 + 6_u32).to_be_bytes()[..], b"QQQSSS"].concat();
        assert_eq!(messages.count(&first, &ASKS), 0);
        assert_eq!(messages.count(&message(b'p', b"password"), &ASKS), 0);
        let parts = [message(b'P', b"SELECT"), message(b'B', b""), message(b'E', b""), message(b'S', b"")];
        assert_eq!(messages.count(&parts.concat(), &ASKS), 1);
        // A statement is given up, and the next query follows before that is answered.
        let close = [message(b'C', b"Ss1\0"), message(b'S', b""), message(b'Q', b"COMMIT\0")];
        assert_eq!(messages.count(&close.concat(), &ASKS), 2);
    }
}
