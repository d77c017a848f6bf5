//! What the row of a name means for the life that asks. Pure: no I/O.

use std::time::Duration;

/// What a life knows of its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mine {
    pub(crate) epoch: i64,
    pub(crate) token: i64,
    pub(crate) timeline: i64,
}

#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) epoch: i64,
    pub(crate) token: i64,
    /// The timeline on which the life of the row began.
    pub(crate) timeline: i64,
    /// The timeline of the server that answers.
    pub(crate) server_timeline: i64,
    pub(crate) saves: i64,
    pub(crate) holder: String,
    /// How long the holder still has the name.
    pub(crate) left: Duration,
}

/// What became of a save.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Written,
    NotWritten,
    /// The name is lost, for this reason.
    Lost(String),
}

impl Mine {
    /// Returns why this life has lost the name; `None` if the row is its own.
    pub(crate) fn lost(&self, found: Option<&Found>) -> Option<String> {
        let Some(found) = found else {
            return Some("its row is gone: somebody removed it, or this is another database".to_owned());
        };
        let (Found { epoch, holder, .. }, mine) = (found, self.epoch);
        if *epoch > mine && found.left.is_zero() {
            return Some(format!("life {epoch}, of {holder}, had it after this one, which is life {mine}"));
        }
        if *epoch > mine {
            return Some(format!("{holder} has it, as life {epoch}; this is life {mine}"));
        }
        if *epoch < mine {
            return Some(format!(
                "its row is of life {epoch}, and this is life {mine}: an older copy of the database was restored"
            ));
        }
        if found.timeline != self.timeline || found.server_timeline != self.timeline {
            return Some(format!(
                "the server goes on from another history (timeline {}, and {} when this life began), which may lack \
                 what this life knows",
                found.server_timeline, self.timeline
            ));
        }
        (found.token != self.token).then(|| format!("{holder} has it, as another life {epoch}"))
    }

    /// Returns what became of the save that follows this number of saves.
    pub(crate) fn verdict(&self, saves: i64, found: Option<&Found>) -> Verdict {
        match (self.lost(found), found) {
            (None, Some(found)) if found.saves == saves => Verdict::NotWritten,
            (None, Some(found)) if found.saves == saves + 1 => Verdict::Written,
            (None, found) => Verdict::Lost(format!(
                "its row has {} saves, and this life knows of {saves}: somebody else changed it",
                found.map_or(0, |found| found.saves)
            )),
            (Some(why), _) => Verdict::Lost(why),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_its_own_row_tells_what_became_of_a_save() {
        let mine = Mine { epoch: 7, token: 1, timeline: 1 };
        let row = Found {
            epoch: 7,
            token: 1,
            timeline: 1,
            server_timeline: 1,
            saves: 20,
            holder: "b".to_owned(),
            left: Duration::from_secs(1),
        };
        assert_eq!(mine.verdict(20, Some(&row)), Verdict::NotWritten);
        assert_eq!(mine.verdict(20, Some(&Found { saves: 21, ..row.clone() })), Verdict::Written);
        let lost = |found: Option<Found>, why: &str| match mine.verdict(20, found.as_ref()) {
            Verdict::Lost(said) => assert!(said.contains(why), "{said}"),
            other => panic!("{why}: {other:?}"),
        };
        lost(None, "gone");
        lost(Some(Found { epoch: 8, ..row.clone() }), "b has it");
        lost(Some(Found { epoch: 8, left: Duration::ZERO, saves: 21, ..row.clone() }), "had it");
        lost(Some(Found { epoch: 6, ..row.clone() }), "restored");
        lost(Some(Found { token: 2, saves: 21, ..row.clone() }), "another life");
        lost(Some(Found { server_timeline: 2, saves: 21, ..row.clone() }), "history");
        lost(Some(Found { timeline: 2, ..row.clone() }), "history");
        lost(Some(Found { saves: 22, ..row.clone() }), "22 saves");
        lost(Some(Found { saves: 19, ..row }), "19 saves");
    }
}
