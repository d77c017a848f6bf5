//! The text of an error: one line with its causes, within a bound.
//!
//! User code makes the text. It may be endless, it may panic, and its causes may form a cycle.

use crate::base::{Index, guard::guarded};
use std::error::Error;
use std::fmt::{self, Write};

/// The bound, in bytes, of a stored text: in the record of a failed job, a status, a log line.
const KEPT: usize = 4 << 10;

/// The bound, in bytes, of a report. A `Display` that writes more is stopped there.
const READ: usize = 1 << 20;

/// How many causes a text includes at most.
const CAUSES: usize = 32;

/// Returns the error with its causes, in one line of at most 4 KiB. It calls user code, so never
/// call it with a lock held.
pub fn describe(error: &(dyn Error + 'static)) -> String {
    text_of(error, KEPT)
}

/// Returns the error with its causes, in one line of at most 1 MiB. It calls user code, so never
/// call it with a lock held.
pub(super) fn report(error: &(dyn Error + 'static)) -> String {
    text_of(error, READ)
}

/// True if this halt is due to a job that failed for good or killed its process.
pub(crate) fn is_halt_of_job(index: Index, text: &str) -> bool {
    text.starts_with(&format!("job {index} failed")) || text.starts_with("the process died")
}

fn text_of(error: &(dyn Error + 'static), most: usize) -> String {
    let mut text = Bounded { kept: String::new(), most, length: 0 };
    let written = guarded(|| Ok(write_chain(error, &mut text)));
    let how = match written {
        Ok(Ok(())) => None,
        Ok(Err(fmt::Error)) if text.is_over() => None,
        Ok(Err(fmt::Error)) => Some("fails"),
        Err(_panic) => Some("panics"),
    };
    if let Some(how) = how {
        let before = if text.length == 0 { "an error whose text " } else { " … and here the text of the error " };
        // `Bounded` itself stops the write if no room is left.
        let _ = write!(text, "{before}{how}");
    }
    text.finish()
}

fn write_chain(error: &(dyn Error + 'static), text: &mut Bounded) -> fmt::Result {
    write!(text, "{error}")?;
    let mut cause = error.source();
    for _ in 0..CAUSES {
        let Some(error) = cause else { return Ok(()) };
        write!(text, ": {error}")?;
        cause = error.source();
    }
    if cause.is_some() { write!(text, ": … (more than {CAUSES} causes)") } else { Ok(()) }
}

/// Keeps the beginning of a text that is written to it, and counts the rest.
struct Bounded {
    kept: String,
    /// How many bytes to keep.
    most: usize,
    /// How many bytes were written.
    length: usize,
}

impl Bounded {
    /// True if more was written than the bound of a report.
    fn is_over(&self) -> bool {
        self.length > READ
    }

    /// Returns the beginning of the text, with a mark at its end if something is missing.
    fn finish(mut self) -> String {
        if self.length > self.kept.len() {
            let at_least = if self.is_over() { "at least " } else { "" };
            let mark = format!(" … (cut off: the text has {at_least}{} bytes)", self.length);
            self.kept.truncate(boundary(&self.kept, self.most.saturating_sub(mark.len())));
            self.kept.push_str(&mark);
        }
        self.kept.shrink_to_fit();
        self.kept
    }
}

impl Write for Bounded {
    fn write_str(&mut self, piece: &str) -> fmt::Result {
        if self.length == self.kept.len() {
            self.kept.push_str(&piece[..boundary(piece, self.most - self.kept.len())]);
        }
        self.length = self.length.saturating_add(piece.len());
        if self.is_over() { Err(fmt::Error) } else { Ok(()) }
    }
}

/// Returns the start of the character at this position, or the end of the text if that is lower.
pub(crate) fn boundary(text: &str, at: usize) -> usize {
    (0..=at.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

/// Returns the sentence for a name under which nothing is stored.
pub(super) fn not_found(what: &str, name: &str) -> String {
    match what {
        "store" => format!(
            "there is no store at {name}, and `create(false)` and `read_only` make none: check the path, or make the store \
             with `create(true)`"
        ),
        _ => format!(
            "there is no {what} {name:?} in the store, which makes none (by `create(false)` or `read_only`): check the name, \
             or make it in a store that writes, with `create(true)`"
        ),
    }
}

/// Returns a number of times in words: `once`, `2 times`.
pub(super) fn times(count: u32) -> String {
    match count {
        1 => "once".to_owned(),
        more => format!("{more} times"),
    }
}

/// Returns the beginning of the sentence about jobs that were still running.
pub(super) fn still(running: &[Index]) -> String {
    match running {
        [] => "no job was running, but a call into the source, a callback, a closure or a destructor had not returned"
            .to_owned(),
        [one] => format!("job {one} was still running, and runs again in the next life,"),
        [first, .., last] => {
            format!("{} jobs from {first} to {last} were still running, and run again in the next life,", running.len())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An error with this text and this cause.
    #[derive(Debug)]
    struct Said(fn(&mut fmt::Formatter<'_>) -> fmt::Result, fn(&Said) -> Option<&(dyn Error + 'static)>);

    impl fmt::Display for Said {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.0(f)
        }
    }

    impl Error for Said {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            self.1(self)
        }
    }

    fn said(text: fn(&mut fmt::Formatter<'_>) -> fmt::Result) -> Said {
        Said(text, |_| None)
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        for length in [0, 1, 4_095, 4_096, 4_097, 4_098, 4_099, 50_000] {
            for letter in ["a", "ü", "水", "🌊"] {
                let text = letter.repeat(length / letter.len());
                let kept = describe(&*Box::<dyn Error>::from(text.clone()));
                assert!(kept.len() <= 4_096, "{} bytes", kept.len());
                if text.len() <= 4_096 {
                    assert_eq!(kept, text);
                } else {
                    let mark = format!(" … (cut off: the text has {} bytes)", text.len());
                    let begin = kept.strip_suffix(&mark).expect("it has the mark");
                    assert!(text.starts_with(begin) && begin.len() > 4_000, "{begin}");
                }
                assert_eq!(report(&*Box::<dyn Error>::from(text.clone())), text);
            }
        }
    }

    #[test]
    fn an_endless_display_is_stopped() {
        let endless = said(|f| {
            loop {
                f.write_str("all work and no play ")?;
            }
        });
        let text = describe(&endless);
        assert!(text.len() <= 4_096 && text.ends_with("(cut off: the text has at least 1048593 bytes)"), "{text}");
        assert!(report(&endless).len() <= 1 << 20);
        // This one ignores the error that stops it, but it ends.
        let deaf = said(|f| {
            (0..1_000_000).for_each(|_| _ = f.write_str("all work and no play "));
            Ok(())
        });
        assert!(describe(&deaf).ends_with("(cut off: the text has at least 21000000 bytes)"));
    }

    #[test]
    fn a_text_that_panics_or_fails_keeps_its_beginning() {
        assert_eq!(describe(&said(|_| panic!("no"))), "an error whose text panics");
        assert_eq!(describe(&said(|_| Err(fmt::Error))), "an error whose text fails");
        let halfway = said(|f| f.write_str("the disk is").map(|()| panic!("no")));
        assert_eq!(report(&halfway), "the disk is … and here the text of the error panics");
        let cause = Said(|f| f.write_str("outer"), |_| panic!("no"));
        assert_eq!(report(&cause), "outer … and here the text of the error panics");
    }
}
