//! The source: the first-parent history of a repository.

use git2::{ErrorCode, Oid, Repository};
use std::path::Path;
use waterline::{BoxError, Index, Jobs};

pub(crate) fn open(path: Option<&Path>) -> Result<Repository, BoxError> {
    // If the user names a path, it must be the repository itself: a search above it could find
    // another one.
    match path {
        Some(path) => Repository::open(path).map_err(|e| format!("no repository at {}: {e}", path.display()).into()),
        None => {
            Repository::discover(".").map_err(|e| format!("no repository around the current directory: {e}").into())
        }
    }
}

/// The source: the first-parent history of `HEAD`, the root first. It is read once, since the jobs
/// of a source must be final.
pub(crate) struct Chain(Vec<Oid>);

impl Chain {
    pub(crate) fn collect(repository: &Repository) -> Result<Self, BoxError> {
        let head = match repository.head() {
            Ok(head) => head.peel_to_commit().map_err(|e| format!("HEAD is no commit: {e}"))?,
            // The repository has no commit yet.
            Err(e) if matches!(e.code(), ErrorCode::UnbornBranch | ErrorCode::NotFound) => return Ok(Self(Vec::new())),
            Err(e) => return Err(format!("HEAD cannot be read: {e}").into()),
        };
        let mut chain = vec![head.id()];
        let mut commit = head;
        // In a shallow clone the last commits have no parents here.
        while commit.parent_count() > 0 {
            commit =
                commit.parent(0).map_err(|e| format!("the first parent of {} cannot be read: {e}", commit.id()))?;
            chain.push(commit.id());
        }
        chain.reverse();
        Ok(Self(chain))
    }

    pub(crate) fn get(&self, index: Index) -> Option<Oid> {
        self.0.get(usize::try_from(index).ok()?).copied()
    }

    pub(crate) fn last(&self) -> Option<Index> {
        (self.0.len() as Index).checked_sub(1)
    }
}

impl Jobs for Chain {
    type Job = Oid;

    fn head(&self) -> Result<Option<Index>, BoxError> {
        Ok(self.last())
    }

    fn at_index(&self, index: Index) -> Result<Option<Oid>, BoxError> {
        Ok(self.get(index))
    }
}
