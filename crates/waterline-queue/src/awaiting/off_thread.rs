//! Calls that block their thread, on the threads that a runtime has for them.

use tokio::runtime::Handle;
use waterline::Error;

/// Runs a blocking call on the runtime's pool for such calls. Once polled, it runs to its end.
///
/// # Errors
/// [`Error::Runtime`] outside of a runtime, and if it shuts down before the call has begun.
pub(crate) async fn off_thread<R: Send + 'static>(call: impl FnOnce() -> R + Send + 'static) -> Result<R, Error> {
    let span = tracing::Span::current();
    let runtime = Handle::try_current().map_err(|_| Error::Runtime)?;
    match runtime.spawn_blocking(move || span.in_scope(call)).await {
        Ok(answer) => Ok(answer),
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(Error::Runtime),
        },
    }
}
