//! A time as text, for the log.

/// Formats a time, in milliseconds since 1970, as RFC 3339: `2026-11-28T10:15:00.250Z`.
pub(crate) fn rfc3339(millis: u64) -> String {
    // A year begins with March here, so that the leap day is its last day.
    let (days, rest) = (millis / 86_400_000 + 719_468, millis % 86_400_000);
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day = day_of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (day, month) = (day - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    let year = era * 400 + year + u64::from(month <= 2);
    let (hour, minute, second) = (rest / 3_600_000, rest / 60_000 % 60, rest / 1_000 % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", rest % 1_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leap_days_and_year_ends_are_written_as_rfc_3339() {
        for (millis, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (68_256_000_000, "1972-03-01T00:00:00.000Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_709_164_800_250, "2024-02-29T00:00:00.250Z"),
            (4_107_542_399_999, "2100-02-28T23:59:59.999Z"),
            (253_402_300_799_998, "9999-12-31T23:59:59.998Z"),
        ] {
            assert_eq!(rfc3339(millis), text);
        }
        assert!(!rfc3339(u64::MAX).is_empty());
    }
}
