//! The bytes of the progress of a job.

use crate::commit::sealed::{Fields, Kind, SUM};
use crate::queue::words::progress::JobProgress;

pub(crate) const SEAL: Kind = Kind { label: "queue.progress", versions: &[1] };

impl JobProgress {
    pub(crate) fn encode(&self, queue: &str, id: &str) -> Vec<u8> {
        let at = crate::queue::words::job::millis(self.at).unwrap_or(0);
        let mut bytes = SEAL.begin(1 + 2 * 8 + self.note.len() + SUM);
        bytes.extend_from_slice(&self.fraction.to_be_bytes());
        bytes.extend_from_slice(&at.to_be_bytes());
        bytes.extend_from_slice(self.note.as_bytes());
        SEAL.close(queue, id.as_bytes(), &mut bytes);
        bytes
    }

    pub(crate) fn decode(queue: &str, id: &str, bytes: &[u8]) -> Result<Self, String> {
        let mut rest = Fields(SEAL.open(queue, id.as_bytes(), bytes)?.body);
        let mut read = || {
            let (fraction, wall) = (f64::from_be_bytes(rest.take()?), rest.number()?);
            Self::new(fraction, std::str::from_utf8(rest.0).ok()?, wall).ok()
        };
        read().ok_or_else(|| "its fields are no progress".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_bytes_of_progress_stay_as_they_are() {
        let progress = JobProgress::new(0.5, "row 3", 258).unwrap();
        let bytes = progress.encode("q", "id");
        assert_eq!(bytes[..bytes.len() - SUM], *b"\x01\x3f\xe0\0\0\0\0\0\0\0\0\0\0\0\0\x01\x02row 3");
        assert_eq!(JobProgress::decode("q", "id", &bytes), Ok(progress));
        assert!(JobProgress::decode("q", "other", &bytes).is_err());
    }

    proptest! {
        #[test]
        fn progress_is_read_as_it_was_written(fraction in any::<f64>(), note in ".{0,300}", wall in 0..1u64 << 47) {
            let Ok(progress) = JobProgress::new(fraction, &note, wall) else {
                prop_assert!(!(0.0..=1.0).contains(&fraction) || note.len() > 1024);
                return Ok(());
            };
            prop_assert_eq!(JobProgress::decode("q", "id", &progress.encode("q", "id")), Ok(progress));
        }

        #[test]
        fn no_bytes_make_a_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = JobProgress::decode("q", "id", &bytes);
        }
    }
}
