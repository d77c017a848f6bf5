//! Sealed records as stored on disks. Each room lists those of its kinds in a module `samples`.

use super::{Kind, SUM};
use std::fmt::Debug;

/// A record as stored on disks.
pub struct Sample {
    pub kind: Kind,
    pub name: &'static str,
    pub place: &'static str,
    pub bytes: Vec<u8>,
    /// The bytes that are now written for its value.
    pub written: Vec<u8>,
    pub(super) read: Box<ReadSample>,
}

/// Reads a record of this name at this place. Returns whether it has the value of the sample.
type ReadSample = dyn Fn(&str, &str, &[u8]) -> Result<bool, String>;

/// Returns records of a kind with the same name and place, given by values and bytes
/// [in words](in_words).
pub fn samples<T: Debug + PartialEq + Clone + 'static>(
    kind: Kind,
    (name, place): (&'static str, &'static str),
    write: fn(&T, &str, &str) -> Vec<u8>,
    read: fn(&str, &str, &[u8]) -> Result<T, String>,
    records: impl IntoIterator<Item = (T, &'static str)>,
) -> Vec<Sample> {
    let sample = |(value, words): (T, &str)| {
        let (bytes, written) = (in_words(words), write(&value, name, place));
        let read = move |name: &str, place: &str, bytes: &[u8]| {
            let found = read(name, place, bytes)?;
            let again = read(name, place, &write(&found, name, place));
            assert_eq!(again.as_ref(), Ok(&found), "what is written is read");
            Ok(found == value)
        };
        Sample { kind, name, place, bytes, written, read: Box::new(read) }
    };
    records.into_iter().map(sample).collect()
}

/// Parses bytes: `2a00` in hexadecimal digits, `8:42` for a number in 8 bytes, and `'text'`.
fn in_words(words: &str) -> Vec<u8> {
    let number = |digits: &str, radix| u64::from_str_radix(digits, radix).expect("digits");
    let word = |word: &str| match word.split_once(':') {
        Some((length, digits)) => number(digits, 10).to_be_bytes()[8 - number(length, 10) as usize..].to_vec(),
        None => (0..word.len()).step_by(2).map(|at| number(&word[at..at + 2], 16) as u8).collect(),
    };
    let part = |(at, part): (usize, &str)| match at % 2 {
        0 => part.split_whitespace().flat_map(word).collect(),
        _ => part.as_bytes().to_vec(),
    };
    words.split('\'').enumerate().flat_map(part).collect()
}

impl Sample {
    /// Reads other bytes under its key.
    pub fn read(&self, bytes: &[u8]) -> Result<bool, String> {
        (self.read)(self.name, self.place, bytes)
    }

    pub fn seal(&self, body: &[u8]) -> Vec<u8> {
        let mut record = body.to_vec();
        self.kind.close(self.name, self.place.as_bytes(), &mut record);
        record
    }

    pub fn body(&self) -> &[u8] {
        &self.bytes[..self.bytes.len() - SUM]
    }

    pub fn key(&self) -> (&str, &str, &str) {
        (self.kind.label, self.name, self.place)
    }
}
