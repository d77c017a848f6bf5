//! Calls of a consumer to its progress for which a store's progress has a faster or fuller way than
//! the trait. A struct around such a progress is not recognized here.

use super::transactional::{self, Commits, Opening};
use super::{Earlier, Life, Owned, Progress, SaveBackend, Saved, StoreProgress};
use crate::base::{Error, config::check_supported};
use std::any::Any;
use std::sync::Arc;

/// Returns the progress as that of a store, if it is one.
fn inside<P: Progress>(progress: &mut P) -> Option<&mut StoreProgress> {
    let any: &mut dyn Any = progress;
    any.downcast_mut()
}

/// Returns the shared writer of a store's progress, once its name is taken. The writer only makes
/// saves faster: a struct around such a progress saves the same with [`Progress::save_all`].
pub(crate) fn shared_writer<P: Progress>(progress: &mut P) -> Option<Arc<dyn SaveBackend>> {
    inside(progress)?.writer()
}

/// Returns the records of single jobs and of the previous life, of a store's progress that has its
/// name; `None` for any other progress. With `parks` the store notes that there may be more.
pub(crate) fn load_earlier<P: Progress>(progress: &mut P, parks: bool) -> Result<Option<Earlier>, Error> {
    let Some(progress) = inside(progress) else { return Ok(None) };
    if parks {
        progress.note_parking()?;
    }
    progress.load_earlier().map(Some)
}

/// Notes in the first save of a store's progress which log (of which store) the consumer reads.
pub(crate) fn note_log<P: Progress>(progress: &mut P, log: Option<(&str, usize)>) -> Result<(), Error> {
    inside(progress).map_or(Ok(()), |progress| progress.note_log(log))
}

/// Returns an error unless the progress can keep what belongs to it.
pub(crate) fn check_owned<P: Progress>(progress: &mut P, owns: &[Owned]) -> Result<(), Error> {
    let why = "tables and logs belong only to the progress of a store: use `Store::progress`, or leave `owns` out";
    match inside(progress) {
        Some(progress) => Ok(Owned::check(owns, progress.store())?),
        None => Ok(check_supported("owns", owns.is_empty(), why)?),
    }
}

/// Stores what belongs to a store's progress, which has its name.
pub(crate) fn note_owned<P: Progress>(progress: &mut P, owns: &[Owned]) -> Result<(), Error> {
    inside(progress).map_or(Ok(()), |progress| progress.note_owned(owns))
}

/// Writes the records that open a life, in one write.
pub(crate) fn open_life<P: Progress>(
    progress: &mut P,
    commits: Option<&mut dyn Commits<P>>,
    opening: Opening<'_>,
) -> Result<(), Error> {
    if let Some(store) = inside(progress) {
        return store.open_life(opening.life, opening.suspects.into_iter(), opening.passed);
    }
    transactional::open_life(progress, commits, opening)
}

/// Closes the record of a life in which nothing ran. `name` is the progress, if it is a store's.
pub(crate) fn close_unused(name: &mut (dyn Any + Send), closed: &Life) -> Result<(), Error> {
    name.downcast_mut::<StoreProgress>().map_or(Ok(()), |progress| progress.open_life(closed, std::iter::empty(), &[]))
}

/// Takes the name, and loads everything that is done. A store's progress need not sort it.
pub(crate) fn acquire_all<P: Progress>(progress: &mut P) -> Result<Option<Saved>, Error> {
    match inside(progress) {
        Some(store) => store.acquire_loaded(),
        None => progress.acquire_all(),
    }
}
