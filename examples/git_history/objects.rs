//! What the stages read from the repository: what a commit changes, and how many lines a file has.

use git2::{Delta, DiffDelta, DiffOptions, ObjectType, Oid, Repository, Tree};
use serde_json::{Value, json};
use std::cell::OnceCell;
use std::path::Path;

/// A NUL among so many bytes makes a file binary to git.
const BINARY_CHECK: usize = 8000;

/// A changed file: its path, the id of its blob, and git's letter for the change: A, D, M or T. S is a submodule, which has no
/// blob, whatever became of it; neither has D.
pub(crate) type Change = (String, String, char);

thread_local! {
    /// A repository must not be used by two threads at a time, and opening one is dear: each worker thread has its own.
    static REPOSITORY: OnceCell<Repository> = const { OnceCell::new() };
}

pub(crate) fn with_repository<R>(
    git_dir: &Path,
    run: impl FnOnce(&Repository) -> Result<R, git2::Error>,
) -> Result<R, git2::Error> {
    REPOSITORY.with(|cell| match cell.get() {
        Some(repository) => run(repository),
        None => {
            let repository = Repository::open(git_dir)?;
            run(cell.get_or_init(|| repository))
        }
    })
}

/// The row of a commit, and the files that it changes.
pub(crate) fn describe(repository: &Repository, id: Oid) -> Result<(Value, Vec<Change>), git2::Error> {
    let commit = repository.find_commit(id)?;
    let tree = commit.tree()?;
    // The root, and the last commit of a shallow clone, is compared with the empty tree.
    let before = match commit.parent_count() {
        0 => None,
        _ => Some(commit.parent(0)?.tree()?),
    };
    let mut options = DiffOptions::new();
    // A file that becomes a symlink or a submodule is one change, as git sees it, not a deletion and an addition.
    options.include_typechange(true);
    let diff = repository.diff_tree_to_tree(before.as_ref(), Some(&tree), Some(&mut options))?;
    let mut changes = Vec::with_capacity(diff.deltas().len());
    for delta in diff.deltas() {
        if is_change(&delta, before.as_ref(), &tree)? {
            changes.push(change(&delta, &tree)?);
        }
    }
    let summary = String::from_utf8_lossy(commit.summary_bytes().unwrap_or_default());
    let author_time = commit.author().when().seconds();
    let paths: Vec<&str> = changes.iter().map(|(path, ..)| path.as_str()).collect();
    let row = json!({ "commit": id.to_string(), "author_time": author_time, "summary": summary, "paths": paths });
    Ok((row, changes))
}

fn change(delta: &DiffDelta<'_>, after: &Tree<'_>) -> Result<Change, git2::Error> {
    let file = delta.new_file();
    let is_submodule = |path: &Path| Ok::<_, git2::Error>(after.get_path(path)?.kind() == Some(ObjectType::Commit));
    let kind = match (delta.status(), file.path()) {
        (Delta::Deleted, _) => 'D',
        // Asked of the tree: the delta would have the mode as it was written, and that may be one of old.
        (_, Some(path)) if is_submodule(path)? => 'S',
        (Delta::Added, _) => 'A',
        (Delta::Typechange, _) => 'T',
        _ => 'M',
    };
    // JSON has no bytes: an odd name may come out approximate, but it counts.
    let path = String::from_utf8_lossy(file.path_bytes().unwrap_or_default()).into_owned();
    Ok((path, file.id().to_string(), kind))
}

/// Whether git calls it a change, too: old histories have modes like 100664, which git takes for 100644, and libgit2 does not.
fn is_change(delta: &DiffDelta<'_>, before: Option<&Tree<'_>>, after: &Tree<'_>) -> Result<bool, git2::Error> {
    if delta.status() != Delta::Modified || delta.old_file().id() != delta.new_file().id() {
        return Ok(true);
    }
    match (before, delta.new_file().path()) {
        (Some(before), Some(path)) => Ok(before.get_path(path)?.filemode() != after.get_path(path)?.filemode()),
        _ => Ok(true),
    }
}

/// How many lines a changed file has now, as `git diff --numstat` counts those of a new file: the last one need not end. What
/// is binary to git has none, nor has what was deleted, or is a submodule.
pub(crate) fn count_lines(repository: &Repository, (_, blob, kind): &Change) -> Result<i64, git2::Error> {
    if matches!(kind, 'D' | 'S') {
        return Ok(0);
    }
    let blob = repository.find_blob(Oid::from_str(blob)?)?;
    let content = blob.content();
    if content[..content.len().min(BINARY_CHECK)].contains(&0) {
        return Ok(0);
    }
    let feeds = content.iter().filter(|byte| **byte == b'\n').count() as i64;
    Ok(feeds + i64::from(content.last().is_some_and(|last| *last != b'\n')))
}

/// What follows the last dot of the file's name; nothing where there is none but at the beginning.
pub(crate) fn extension(path: &str) -> &str {
    let name = path.rsplit_once('/').map_or(path, |(_, name)| name);
    name.rsplit_once('.').filter(|(stem, _)| !stem.is_empty()).map_or("", |(_, extension)| extension)
}
