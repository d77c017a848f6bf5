//! Numbers, times and bytes as people read them.

use serde::{Deserialize, Serialize};
use std::fmt::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Formats a number with commas between the thousands.
pub(crate) fn number(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a rate, with one decimal below 10.
pub(crate) fn rate(rate: f64) -> String {
    // (No rate is so large that the cast would cut it.)
    if rate >= 10.0 { number(rate.round() as u64) } else { format!("{rate:.1}") }
}

/// Formats a number with the right form of its noun: `1 job`, `2,000 jobs`.
pub(crate) fn count(many: u64, noun: &str) -> String {
    format!("{} {noun}{}", number(many), if many == 1 { "" } else { "s" })
}

/// Formats a duration in its two largest units: `2h 5m`, `300ms`.
pub(crate) fn length(time: Duration) -> String {
    if time < Duration::from_secs(1) {
        return format!("{}ms", time.as_millis());
    }
    let mut left = time.as_secs();
    let mut parts = Vec::new();
    for (unit, seconds) in [("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)] {
        let (whole, rest) = (left / seconds, left % seconds);
        // A unit that is 0 ends the text: `2h`, and not `2h 7s`.
        if whole > 0 && parts.len() < 2 {
            parts.push(format!("{}{unit}", number(whole)));
        } else if !parts.is_empty() {
            break;
        }
        left = rest;
    }
    parts.join(" ")
}

/// A time, in milliseconds since 1970.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct At(pub(crate) u64);

impl At {
    pub(crate) fn now() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }

    /// Returns how long ago it is, or how far ahead.
    pub(crate) fn age(self, now: Self) -> String {
        match now.0.checked_sub(self.0) {
            Some(past) => format!("{} ago", length(Duration::from_millis(past))),
            None => format!("in {}", length(Duration::from_millis(self.0 - now.0))),
        }
    }

    /// Returns the date and the time in UTC.
    pub(crate) fn clock(self) -> String {
        // The last moment that the format can express.
        let time = UNIX_EPOCH + Duration::from_millis(self.0.min(253_402_300_799_000));
        humantime::format_rfc3339_seconds(time).to_string().replace('T', " ").replace('Z', " UTC")
    }

    /// Returns it with its age.
    pub(crate) fn moment(self, now: Self) -> String {
        format!("{} ({})", self.clock(), self.age(now))
    }
}

/// Escapes the characters that control a terminal: names and errors are untrusted.
pub(crate) fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '\n' | '\r' | '\t' => plain.push(' '),
            letter if steers(letter) => plain.extend(letter.escape_unicode()),
            letter => plain.push(letter),
        }
    }
    plain
}

/// True for a character that controls a terminal, or the direction of its text.
fn steers(letter: char) -> bool {
    letter.is_control()
        || matches!(letter, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Escapes such characters in a line of JSON. JSON itself escapes only the first 32; the others
/// occur only in strings, where an escape means the same.
pub(crate) fn plain_json(line: &str) -> String {
    let mut plain = String::with_capacity(line.len());
    for letter in line.chars() {
        if steers(letter) {
            let _infallible = write!(plain, "\\u{:04x}", u32::from(letter));
        } else {
            plain.push(letter);
        }
    }
    plain
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _infallible = write!(text, "{byte:02x}");
        text
    })
}

/// Returns bytes as text if they are printable, otherwise as hexadecimal digits after `0x`.
pub(crate) fn readable(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.chars().any(char::is_control) => text.to_owned(),
        _ => format!("0x{}", hex(bytes)),
    }
}

/// Parses the prefix of a key: text, or hexadecimal digits after `0x`.
pub(crate) fn bytes_of(text: &str) -> Option<Vec<u8>> {
    let Some(digits) = text.strip_prefix("0x") else { return Some(text.as_bytes().to_vec()) };
    let digits: Option<Vec<u32>> = digits.chars().map(|digit| digit.to_digit(16)).collect();
    let digits = digits.filter(|digits| digits.len().is_multiple_of(2))?;
    Some(digits.chunks(2).map(|pair| (pair[0] * 16 + pair[1]) as u8).collect())
}

/// Quotes a name for a shell, if it has to be quoted.
pub(crate) fn word(name: &str) -> String {
    let is_plain = |letter: char| letter.is_alphanumeric() || "._-/:@~%+=,".contains(letter);
    if !name.is_empty() && !name.starts_with(['~', '-']) && name.chars().all(is_plain) {
        return name.to_owned();
    }
    format!("'{}'", name.replace('\'', "'\\''"))
}

/// Shortens a text to at most this many characters.
pub(crate) fn cut(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let kept: String = text.chars().take(most.saturating_sub(1)).collect();
    format!("{kept}…")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_times_and_bytes_are_human_readable() {
        assert_eq!([0, 999, 1_000, 12_345_678].map(number), ["0", "999", "1,000", "12,345,678"]);
        assert_eq!([count(1, "job"), count(2_000, "job")], ["1 job", "2,000 jobs"]);
        let lengths = [7, 1_999, 65_000, 7_505_000, 7_207_000, 604_799_000, 86_400_000_000];
        let lengths = lengths.map(|millis| length(Duration::from_millis(millis)));
        assert_eq!(lengths, ["7ms", "1s", "1m 5s", "2h 5m", "2h", "6d 23h", "1,000d"]);
        assert_eq!(plain("a\u{1b}[2Jb\nc\u{9b}\u{202e}ä"), "a\\u{1b}[2Jb c\\u{9b}\\u{202e}ä");
        let text = "\u{1b}\u{7f}\u{9b}\u{202e}ä";
        let line = plain_json(&serde_json::json!({ text: text }).to_string());
        assert!(!line.contains(steers));
        assert_eq!(serde_json::from_str::<serde_json::Value>(&line).unwrap()[text], text);
        assert_eq!([readable(b"k2"), readable(&[0, 255])], ["k2", "0x00ff"]);
        assert_eq!(bytes_of("0x00fF"), Some(vec![0, 255]));
        assert_eq!([bytes_of("0x0"), bytes_of("0xzz")], [None, None]);
        assert_eq!([cut("abc", 3), cut("abcd", 3)], ["abc", "ab…"]);
    }
}
