//! A page that serves itself.

use crate::error::ServeError;
use crate::guard::Guard;
use crate::shared::Shared;
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::Arc;
use std::thread::JoinHandle;
use tokio::sync::oneshot;

/// A page that serves itself, from [`Page::serve`](crate::Page::serve). It ends on drop.
#[must_use = "the page is gone when this is dropped"]
pub struct Served {
    addr: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Listens on the first of these addresses that works.
pub(crate) fn listen(addr: impl ToSocketAddrs, has_token: bool) -> Result<TcpListener, ServeError> {
    let all: Vec<SocketAddr> = addr.to_socket_addrs().map_err(ServeError::Listen)?.collect();
    if let Some(addr) = all.iter().find(|addr| !addr.ip().is_loopback() && !has_token) {
        return Err(ServeError::NeedsToken { addr: *addr });
    }
    let listener = TcpListener::bind(&all[..]).map_err(ServeError::Listen)?;
    listener.set_nonblocking(true).map_err(ServeError::Listen)?;
    Ok(listener)
}

impl Served {
    pub(crate) fn start(
        listener: TcpListener,
        addr: SocketAddr,
        shared: Arc<Shared>,
        guard: Guard,
    ) -> Result<Self, ServeError> {
        let router = crate::web::router(shared, guard);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .thread_name("wl-page-look")
            .max_blocking_threads(4)
            .build();
        let runtime = runtime.map_err(ServeError::Thread)?;
        let (stop, stopped) = oneshot::channel();
        let serve = move || {
            let ended = runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener)?;
                tokio::select! {
                    () = crate::conn_limit::serve(listener, router) => {}
                    _ = stopped => {}
                }
                Ok::<_, io::Error>(())
            });
            // Requests that wait for a store end by themselves.
            runtime.shutdown_background();
            if let Err(error) = ended {
                tracing::error!(target: "waterline", %error, "the page is served no more");
            }
        };
        let thread = std::thread::Builder::new().name("wl-page".to_owned()).spawn(serve).map_err(ServeError::Thread)?;
        Ok(Self { addr, stop: Some(stop), thread: Some(thread) })
    }

    /// Returns the address that it is served on.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It panics only if the runtime does, which has reported it.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Served").field("addr", &self.addr).finish_non_exhaustive()
    }
}
