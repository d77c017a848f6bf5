//! The page for the browser (feature `page`): a web server takes longer to compile than the rest.

use crossbeam_channel::Receiver;
use waterline::{BoxError, PipelineHandle, Store};

/// A page that is served.
#[cfg(feature = "page")]
pub(crate) struct Page {
    served: waterline_ui::Served,
    /// Receives a message on Ctrl-C.
    interrupted: Receiver<()>,
}

#[cfg(feature = "page")]
impl Page {
    /// Serves a page that shows the stages.
    pub(crate) fn serve(store: &Store, pipeline: &PipelineHandle, interrupted: Receiver<()>) -> Result<Self, BoxError> {
        let page = waterline_ui::Page::new(store).watch(pipeline.clone()).title("the history of a git repository");
        let served = page.serve("127.0.0.1:0")?;
        eprintln!("the page is at http://{}/", served.addr());
        Ok(Self { served, interrupted })
    }

    /// Prints the address of the page, and waits for Ctrl-C.
    pub(crate) fn stay(self) {
        eprintln!("look at http://{}/ until you press Ctrl-C", self.served.addr());
        // The sender lives as long as the process.
        let _ = self.interrupted.recv();
    }
}

/// The program was compiled without the page.
#[cfg(not(feature = "page"))]
pub(crate) enum Page {}

#[cfg(not(feature = "page"))]
impl Page {
    pub(crate) fn serve(_: &Store, _: &PipelineHandle, _: Receiver<()>) -> Result<Self, BoxError> {
        Err("this program was compiled without its page: make demo ARGS=\"--page\"".into())
    }

    pub(crate) fn stay(self) {
        match self {}
    }
}
