//! Generated histories with everything that git can record.

use crate::program::{git, piped};
use std::collections::BTreeMap;
use std::path::PathBuf;
use tempfile::TempDir;

/// Makes a repository with this many commits on the first-parent line, which do everything that
/// git can record.
pub fn imported(dir: &TempDir, name: &str, commits: usize, seed: u64) -> PathBuf {
    let repo = dir.path().join(name);
    git(dir.path(), ["init", "-q", name]);
    piped(&repo, ["fast-import", "--quiet", "--force"], &History::new(seed).write(commits));
    repo
}

/// Returns a stream of commits with this many new files each, of a few hundred lines, so that
/// reading them takes longer than finding them.
pub fn wide(commits: usize, files: usize) -> Vec<u8> {
    let mut history = History::new(0);
    let lines = "a line of a file\n".repeat(300);
    let mut last = None;
    for commit in 0..commits {
        let next = history.begin("main", last, &[]);
        for file in 0..files {
            let content = format!("{commit} {file}\n{lines}");
            history.line(&format!("M 100644 inline {commit}/{file}.{}\ndata {}\n{content}\n", file % 7, content.len()));
        }
        last = Some(next);
    }
    history.line("done\n");
    history.stream
}

/// Names for both files and directories, so that each may become the other. Some sort differently
/// as a directory.
const NAMES: &[u8] =
    b"a|a-|a.b|a0|b|c|src|lib|.dot|.a.b|end.|two.parts.rs|odd.\xfe|main.rs|with space| lead|quo\"te|new\nline|back\\slash|-dash|\xff\xfe raw|\xc3\xbcml";
const BLOBS: usize = 50;
const MODES: [&str; 4] = ["100644", "100644", "100755", "120000"];

/// A stream for `git fast-import`.
struct History {
    rng: fastrand::Rng,
    stream: Vec<u8>,
    /// The mode and the blob of each path. Paths that a directory or a file has replaced may stay,
    /// which does no harm.
    files: BTreeMap<Vec<u8>, (&'static str, usize)>,
    commits: usize,
}

impl History {
    fn new(seed: u64) -> Self {
        Self { rng: fastrand::Rng::with_seed(seed), stream: Vec::new(), files: BTreeMap::new(), commits: 0 }
    }

    fn write(mut self, commits: usize) -> Vec<u8> {
        for blob in 1..=BLOBS {
            let content = content(blob);
            self.line(&format!("blob\nmark :{blob}\ndata {}\n", content.len()));
            self.stream.extend_from_slice(&content);
            self.line("\n");
        }
        let mut main = vec![];
        for _ in 0..commits {
            let last = main.last().copied();
            let changes = match self.rng.u8(..) {
                0..20 => 0,
                20..240 => self.rng.usize(1..5),
                _ => self.rng.usize(5..60),
            };
            // A side branch starts at one of the last commits.
            let recent = main.len().saturating_sub(20)..main.len();
            if last.is_some() && self.rng.u8(..) < 24 {
                let from: Vec<_> = (0..self.rng.usize(1..3)).map(|_| main[self.rng.usize(recent.clone())]).collect();
                let sides: Vec<_> = from.into_iter().map(|from| self.side(from)).collect();
                let merged: Vec<usize> = sides.iter().map(|(commit, _)| *commit).collect();
                main.push(self.begin("main", last, &merged));
                // A merge brings the changes of the side branch to the first-parent line.
                sides.iter().for_each(|(_, brought)| self.stream.extend_from_slice(brought));
                (0..changes % 3).for_each(|_| self.change());
            } else {
                main.push(self.begin("main", last, &[]));
                (0..changes).for_each(|_| self.change());
            }
        }
        self.line("done\n");
        self.stream
    }

    /// Adds a commit on a side branch, and returns its changes.
    fn side(&mut self, from: usize) -> (usize, Vec<u8>) {
        let commit = self.begin("side", Some(from), &[]);
        let begun = self.stream.len();
        (0..self.rng.usize(1..4)).for_each(|_| self.change());
        (commit, self.stream[begun..].to_vec())
    }

    fn begin(&mut self, branch: &str, from: Option<usize>, merged: &[usize]) -> usize {
        self.commits += 1;
        let (mark, time) = (BLOBS + self.commits, 1_000_000_000 + self.commits * 60);
        let who = format!("A U Thor <author@example.com> {time} +0100");
        self.line(&format!("commit refs/heads/{branch}\nmark :{mark}\nauthor {who}\ncommitter {who}\n"));
        let message: &[u8] = self.rng.choice([b"plain".as_slice(), b"", b"not \xff UTF-8", b"two\n\nparts"]).unwrap();
        self.line(&format!("data {}\n", message.len()));
        self.stream.extend_from_slice(message);
        self.line("\n");
        if let Some(from) = from {
            self.line(&format!("from :{from}\n"));
        }
        merged.iter().for_each(|commit| self.line(&format!("merge :{commit}\n")));
        mark
    }

    /// Adds, replaces, deletes or renames a path, or changes its mode or type.
    fn change(&mut self) {
        let known = match self.files.len() {
            0 => None,
            n => self.files.iter().nth(self.rng.usize(..n)).map(|(path, file)| (path.clone(), *file)),
        };
        let (mode, blob) = (self.rng.choice(MODES).unwrap(), self.rng.usize(1..=BLOBS));
        match (self.rng.u8(..100), known) {
            (0..20, Some((path, _))) => self.delete(&path),
            (20..35, Some((path, (mode, blob)))) => {
                self.delete(&path);
                let path = self.path();
                self.put(path, mode, blob);
            }
            (35..45, Some((path, (_, blob)))) => self.put(path, mode, blob),
            (45..65, Some((path, (mode, _)))) => self.put(path, mode, blob),
            (65..73, _) => {
                let path = self.path();
                let id: String = (0..40).map(|_| self.rng.digit(16)).collect();
                self.modify(&path, "160000", &id);
            }
            _ => {
                let path = self.path();
                self.put(path, mode, blob);
            }
        }
    }

    fn put(&mut self, path: Vec<u8>, mode: &'static str, blob: usize) {
        self.modify(&path, mode, &format!(":{blob}"));
        self.files.insert(path, (mode, blob));
    }

    fn modify(&mut self, path: &[u8], mode: &str, what: &str) {
        self.line(&format!("M {mode} {what} {}\n", quoted(path)));
    }

    fn delete(&mut self, path: &[u8]) {
        self.line(&format!("D {}\n", quoted(path)));
        self.files.remove(path);
    }

    fn path(&mut self) -> Vec<u8> {
        let depth = self.rng.usize(1..5);
        let names: Vec<&[u8]> = NAMES.split(|byte| *byte == b'|').collect();
        let parts: Vec<&[u8]> = (0..depth).map(|_| names[self.rng.usize(..names.len())]).collect();
        parts.join(&b'/')
    }

    fn line(&mut self, line: &str) {
        self.stream.extend_from_slice(line.as_bytes());
    }
}

/// Returns content of every kind: no lines, no final line feed, binary for git, or just not, since
/// the NUL is too far from the beginning.
fn content(blob: usize) -> Vec<u8> {
    let mut content = format!("{blob}\n").repeat(blob % 13).into_bytes();
    match blob % 10 {
        0 => content.extend_from_slice(b"the last line does not end"),
        1 => content.extend_from_slice(b"\r\r\n\n\n\x01\xff\xfe"),
        2 => content.push(0),
        far @ 3..=5 => {
            content.resize(7_995 + far, b'\n');
            content.push(0);
        }
        _ => {}
    }
    content
}

/// Escapes every byte as C does.
fn quoted(path: &[u8]) -> String {
    let escaped: String = path.iter().map(|byte| format!("\\{byte:03o}")).collect();
    format!("\"{escaped}\"")
}
