//! Limits the connections of a served page. They are few, and idle ones are closed: each takes a
//! file descriptor of the program, whose stores need some, too.
//!
//! A connection carries one request. Until that is complete, a newer connection may evict it, so
//! clients that open sockets and send little or nothing block no others.

use crate::answer::{LONGEST, refuse_long};
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::serve::Listener;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::time::{Instant, Sleep, sleep, timeout};

/// The maximum number of connections. A browser has up to six.
pub(crate) const MOST: usize = 256;

/// The maximum number of connections per address without a complete request. (A proxy is one
/// address for all clients, but sends only complete requests.)
pub(crate) const UNASKED: usize = 16;

/// The timeout for the headers of a request, and then for its body.
const PATIENCE: Duration = Duration::from_secs(10);

/// The idle timeout of a connection. A followed view sends a keep-alive each 15 s.
const SILENCE: Duration = Duration::from_secs(60);

/// The shortest time between two log lines.
const PACE: Duration = Duration::from_secs(60);

/// Serves these routes, as long as it is polled.
pub(crate) async fn serve(mut listener: TcpListener, router: Router) {
    let few = Arc::new(Few::default());
    loop {
        let (stream, addr) = Listener::accept(&mut listener).await;
        let place = few.enter(addr.ip(), Instant::now());
        tokio::spawn(place.hold(stream, router.clone()));
        // Let it read its request before the next connections come, which may evict it.
        tokio::task::yield_now().await;
    }
}

#[derive(Default)]
struct Few(Mutex<All>);

#[derive(Default)]
struct All {
    next: u64,
    /// By number, so the oldest comes first.
    open: BTreeMap<u64, Open>,
    /// How many connections were evicted since the last log line.
    closed: u64,
    told: Option<Instant>,
}

struct Open {
    from: IpAddr,
    has_asked: bool,
    gone: Arc<Notify>,
}

impl All {
    /// Returns the connection to evict for a new one of this address.
    fn victim(&self, from: IpAddr) -> Option<u64> {
        let mut unasked = self.open.iter().filter(|(_, open)| !open.has_asked);
        let of_it = || self.open.iter().filter(|(_, open)| !open.has_asked && open.from == from);
        if of_it().count() >= UNASKED {
            return of_it().next().map(|(number, _)| *number);
        }
        let is_full = self.open.len() >= MOST;
        let oldest = unasked.next().or_else(|| self.open.iter().next());
        oldest.filter(|_| is_full).map(|(number, _)| *number)
    }

    /// Evicts a connection for a new one, if necessary. Returns how many were evicted since the
    /// last log line, if a new line is due.
    fn make_room(&mut self, from: IpAddr, now: Instant) -> Option<u64> {
        let victim = self.victim(from).and_then(|number| self.open.remove(&number))?;
        victim.gone.notify_one();
        self.closed += 1;
        if self.told.is_some_and(|told| now.saturating_duration_since(told) < PACE) {
            return None;
        }
        self.told = Some(now);
        Some(std::mem::take(&mut self.closed))
    }
}

impl Few {
    /// Gives a new connection its place, for which the oldest one may be evicted.
    fn enter(self: &Arc<Self>, from: IpAddr, now: Instant) -> ConnSlot {
        let from = from.to_canonical();
        let gone = Arc::new(Notify::new());
        let mut all = self.0.lock();
        let closed = all.make_room(from, now);
        let number = all.next;
        all.next += 1;
        all.open.insert(number, Open { from, has_asked: false, gone: gone.clone() });
        drop(all);
        if let Some(closed) = closed {
            tracing::warn!(target: "waterline", %from, closed, "the page has closed connections without a whole request, since newer ones came: one address may have 16 of them, and all together have 256 places");
        }
        ConnSlot { few: self.clone(), number, gone }
    }
}

struct ConnSlot {
    few: Arc<Few>,
    number: u64,
    gone: Arc<Notify>,
}

impl ConnSlot {
    /// Answers the one request of a connection, unless it is evicted.
    async fn hold(self, stream: TcpStream, router: Router) {
        let answer = service_fn(|request| self.answer(request, router.clone()));
        let mut builder = http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(PATIENCE).keep_alive(false);
        let connection = builder.serve_connection(TokioIo::new(Heard::new(stream)), answer);
        tokio::select! {
            // The request is answered or invalid, or the client is gone.
            _ended = connection => {}
            () = self.gone.notified() => {}
        }
    }

    async fn answer(&self, request: Request<Incoming>, router: Router) -> Result<Response, Infallible> {
        let (parts, body) = request.into_parts();
        // A body that trickles in does not complete a request.
        let Ok(body) = timeout(PATIENCE, to_bytes(Body::new(body), LONGEST)).await else {
            return Ok(StatusCode::REQUEST_TIMEOUT.into_response());
        };
        let Ok(body) = body else { return Ok(refuse_long()) };
        if let Some(open) = self.few.0.lock().open.get_mut(&self.number) {
            open.has_asked = true;
        }
        TowerToHyperService::new(router).call(Request::from_parts(parts, Body::from(body))).await
    }
}

impl Drop for ConnSlot {
    fn drop(&mut self) {
        self.few.0.lock().open.remove(&self.number);
    }
}

/// A connection with an idle timeout.
struct Heard {
    stream: TcpStream,
    silent: Pin<Box<Sleep>>,
}

impl Heard {
    fn new(stream: TcpStream) -> Self {
        Self { stream, silent: Box::pin(sleep(SILENCE)) }
    }

    /// Resets the timeout if bytes were read or written, and fails if it is over.
    fn heard<R>(&mut self, went: Poll<io::Result<R>>, cx: &mut Context<'_>) -> Poll<io::Result<R>> {
        if went.is_ready() {
            self.silent.as_mut().reset(Instant::now() + SILENCE);
            return went;
        }
        self.silent.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Heard {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        self.heard(read, cx)
    }
}

impl AsyncWrite for Heard {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.heard(written, cx)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests;
