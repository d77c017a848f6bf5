//! Reads of the repository for the stages: the changes of a commit, and the lines of a file.

use git2::{Delta, DiffOptions, FileMode, Oid, Repository, Tree, TreeEntry};
use serde_json::{Value, json};
use std::cell::OnceCell;
use std::collections::HashMap;
use std::path::Path;

/// A NUL among this many bytes makes a file binary to git.
const BINARY_CHECK: usize = 8000;

/// A changed file: its path, the id of its blob, and git's letter for the change: A, D, M or T. S
/// stands for a submodule, which has no blob, whatever its change is; D has none either.
pub(crate) type Change = (String, String, char);

thread_local! {
    /// Two threads must not use one repository at a time, and opening one is expensive. So each
    /// worker thread has its own.
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

/// Returns the row of a commit, and the files that it changes.
pub(crate) fn describe(repository: &Repository, id: Oid) -> Result<(Value, Vec<Change>), git2::Error> {
    let commit = repository.find_commit(id)?;
    let tree = commit.tree()?;
    // The root, and the last commit of a shallow clone, is compared with the empty tree.
    let before = match commit.parent_count() {
        0 => None,
        _ => Some(commit.parent(0)?.tree()?),
    };
    let mut options = DiffOptions::new();
    // If a file becomes a symlink or a submodule, git sees one change, not a deletion and an
    // addition.
    options.include_typechange(true);
    let diff = repository.diff_tree_to_tree(before.as_ref(), Some(&tree), Some(&mut options))?;
    let (mut old, mut new) = (before.map(|tree| Entries::new(repository, tree)), Entries::new(repository, tree));
    let mut changes = Vec::with_capacity(diff.deltas().len());
    for delta in diff.deltas() {
        let path = delta.new_file().path_bytes().unwrap_or_default();
        let mode = match delta.status() {
            Delta::Deleted => None,
            _ => Some(new.mode(path)?),
        };
        // Old histories have modes like 100664. Git reads them as 100644, and libgit2 does not.
        let same = delta.status() == Delta::Modified && delta.old_file().id() == delta.new_file().id();
        if same && old.as_mut().map(|old| old.mode(path)).transpose()? == mode {
            continue;
        }
        let kind = match delta.status() {
            _ if mode == Some(FileMode::Commit.into()) => 'S',
            Delta::Deleted => 'D',
            Delta::Added => 'A',
            Delta::Typechange => 'T',
            _ => 'M',
        };
        // JSON has no bytes. An odd name may be only approximate, but it counts.
        changes.push((String::from_utf8_lossy(path).into_owned(), delta.new_file().id().to_string(), kind));
    }
    let summary = String::from_utf8_lossy(commit.summary_bytes().unwrap_or_default());
    let author_time = commit.author().when().seconds();
    let paths: Vec<&str> = changes.iter().map(|(path, ..)| path.as_str()).collect();
    let row = json!({ "commit": id.to_string(), "author_time": author_time, "summary": summary, "paths": paths });
    Ok((row, changes))
}

/// The modes of the entries of a commit, as git reads them. Each folder is read once, since libgit2
/// does not keep large ones.
struct Entries<'r> {
    repository: &'r Repository,
    folders: HashMap<Vec<u8>, Tree<'r>>,
}

impl<'r> Entries<'r> {
    fn new(repository: &'r Repository, root: Tree<'r>) -> Self {
        Self { repository, folders: HashMap::from([(Vec::new(), root)]) }
    }

    fn mode(&mut self, path: &[u8]) -> Result<i32, git2::Error> {
        Ok(self.get(path)?.filemode())
    }

    fn get(&mut self, path: &[u8]) -> Result<TreeEntry<'static>, git2::Error> {
        let (folder, name) = match path.iter().rposition(|byte| *byte == b'/') {
            Some(slash) => (&path[..slash], &path[slash + 1..]),
            None => (&path[..0], path),
        };
        let entry = self.folder(folder)?.get_name_bytes(name).map(|entry| entry.to_owned());
        entry.ok_or_else(|| git2::Error::from_str(&format!("there is no {}", path.escape_ascii())))
    }

    fn folder(&mut self, path: &[u8]) -> Result<Tree<'r>, git2::Error> {
        if let Some(tree) = self.folders.get(path) {
            return Ok(tree.clone());
        }
        let tree = self.repository.find_tree(self.get(path)?.id())?;
        self.folders.insert(path.to_owned(), tree.clone());
        Ok(tree)
    }
}

/// Returns how many lines a changed file has now. `git diff --numstat` counts those of a new file
/// in the same way: the last line need not end. A binary file, a deletion and a submodule have
/// none.
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

/// Returns the part after the last dot of the file's name, or nothing if the only dot is at its
/// beginning.
pub(crate) fn extension(path: &str) -> &str {
    let name = path.rsplit_once('/').map_or(path, |(_, name)| name);
    name.rsplit_once('.').filter(|(stem, _)| !stem.is_empty()).map_or("", |(_, extension)| extension)
}
