//! The page for the browser, which needs the feature `page`: a web server takes longer to compile
//! than the rest.

use crossbeam_channel::Receiver;
use waterline::{BoxError, PipelineHandle, Store};

/// A page that is served.
pub(crate) struct Page {
    #[cfg(feature = "page")]
    served: waterline_ui::Served,
}

/// Serves a page that shows the stages.
#[cfg(feature = "page")]
pub(crate) fn serve(store: &Store, pipeline: &PipelineHandle) -> Result<Page, BoxError> {
    let page = waterline_ui::Page::new(store).watch(pipeline.clone()).title("the history of a git repository");
    let served = page.serve("127.0.0.1:0")?;
    eprintln!("the page is at http://{}/", served.addr());
    Ok(Page { served })
}

#[cfg(not(feature = "page"))]
pub(crate) fn serve(_store: &Store, _pipeline: &PipelineHandle) -> Result<Page, BoxError> {
    Err("this program was compiled without its page: make demo ARGS=\"--page\"".into())
}

impl Page {
    /// Says where the page is, and stays until somebody presses Ctrl-C, or has done so.
    #[cfg(feature = "page")]
    pub(crate) fn stay(self, interrupted: &Receiver<()>) {
        if interrupted.is_empty() {
            eprintln!("all is indexed; look at http://{}/ until you press Ctrl-C", self.served.addr());
            // The sender lives as long as the process.
            let _ = interrupted.recv();
        }
    }

    #[cfg(not(feature = "page"))]
    pub(crate) fn stay(self, _interrupted: &Receiver<()>) {}
}
