//! The text of an error: in one line with its causes, and within a bound.
//!
//! The text comes from code of the user's: it may be long or endless, its causes may go round in a
//! circle, and it may panic.

use crate::base::guard::guarded;
use std::error::Error;
use std::fmt::{self, Write};

/// The bound, in bytes, of a text that is kept: for each failed job, in a status, in a line of a log.
const KEPT: usize = 4 << 10;

/// The bound, in bytes, of a report. A `Display` that writes more is stopped there.
const READ: usize = 1 << 20;

/// So many causes are followed.
const CAUSES: usize = 32;

/// The error with its causes, in one line of at most 4 KiB: the text that is kept. Calls the user's
/// code, so never with a lock held.
pub(crate) fn describe(error: &(dyn Error + 'static)) -> String {
    text_of(error, KEPT)
}

/// The error with its causes, in one line of at most 1 MiB. Calls the user's code, so never with a lock held.
pub(super) fn report(error: &(dyn Error + 'static)) -> String {
    text_of(error, READ)
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
        // It stops by itself where there is no room left.
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

/// Keeps the beginning of what is written to it, and counts the rest.
struct Bounded {
    kept: String,
    /// So many bytes are kept.
    most: usize,
    /// So many bytes were written.
    length: usize,
}

impl Bounded {
    /// More was written than anybody is let write.
    fn is_over(&self) -> bool {
        self.length > READ
    }

    /// What was kept, with a mark at its end if that is not everything.
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

/// The highest place up to this one where a character begins, or the end.
fn boundary(text: &str, at: usize) -> usize {
    (0..=at.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An error whose text and whose cause are what the test says.
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
    fn a_text_of_every_length_is_kept_whole_or_cut_between_characters_with_a_mark() {
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
    fn a_display_without_an_end_is_stopped() {
        let endless = said(|f| {
            loop {
                f.write_str("all work and no play ")?;
            }
        });
        let text = describe(&endless);
        assert!(text.len() <= 4_096 && text.ends_with("(cut off: the text has at least 1048593 bytes)"), "{text}");
        assert!(report(&endless).len() <= 1 << 20);
        // This one does not hear that it is to stop, but it ends.
        let deaf = said(|f| {
            (0..1_000_000).for_each(|_| _ = f.write_str("all work and no play "));
            Ok(())
        });
        assert!(describe(&deaf).ends_with("(cut off: the text has at least 21000000 bytes)"));
    }

    #[test]
    fn causes_that_go_round_in_a_circle_end_after_32() {
        let circle = Said(|f| f.write_str("a"), |this| Some(this));
        assert_eq!(describe(&circle), ["a"; 33].join(": ") + ": … (more than 32 causes)");
        assert_eq!(report(&circle), describe(&circle));
    }

    #[test]
    fn a_text_that_panics_or_fails_keeps_what_it_had_said() {
        assert_eq!(describe(&said(|_| panic!("no"))), "an error whose text panics");
        assert_eq!(describe(&said(|_| Err(fmt::Error))), "an error whose text fails");
        let halfway = said(|f| f.write_str("the disk is").map(|()| panic!("no")));
        assert_eq!(report(&halfway), "the disk is … and here the text of the error panics");
        let cause = Said(|f| f.write_str("outer"), |_| panic!("no"));
        assert_eq!(report(&cause), "outer … and here the text of the error panics");
    }
}
