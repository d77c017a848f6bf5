//! A read-only page for a store that no application serves, until it is interrupted.

use crate::end::End;
use crate::error::Fault;
use crate::format::plain;
use crate::wait::wait;
use std::env::{self, VarError};
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;
use waterline::Store;
use waterline_ui::Page;

/// The variable with the token, without which the page is for this machine alone.
const TOKEN: &str = "WATERLINE_TOKEN";

/// Serves the page for as long as the process lives.
pub(crate) fn run(path: &Path, addr: &str) -> Result<(), End> {
    let store = crate::backend::files::open(Store::options().read_only(), path)?;
    let mut page = Page::new(&store).stored().title(path.display().to_string());
    match env::var(TOKEN) {
        Ok(token) => page = page.token(token),
        Err(VarError::NotPresent) => {}
        Err(VarError::NotUnicode(_)) => return Err(Fault::new(format!("{TOKEN} has bytes that are no text")).into()),
    }
    let served = page.serve(addr).map_err(|error| {
        let text = error.to_string();
        // The error of the library names its method, not the variable.
        Fault::new(text.replace("with Page::token", &format!("in {TOKEN}")))
    })?;
    let (shown, mut out) = (plain(&path.display().to_string()), io::stdout().lock());
    writeln!(out, "http://{}/ shows {shown} as it is saved, read-only; Ctrl-C ends it", served.addr())?;
    out.flush()?;
    drop(out);
    loop {
        wait(Duration::from_secs(3_600));
    }
}
