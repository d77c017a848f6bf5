//! The bytes of the settings that few jobs have. The row of a job without any has none of them.

use crate::types::related::{OnDead, Root, Skipped};
use crate::types::row::{Extras, NO_EXTRAS};
use crate::types::unique::{Fingerprint, Until};
use std::time::{Duration, UNIX_EPOCH};
use waterline::seam::{Fields, Writer};

// The bit of each field that is stored. A record has them in this order.
const UNIQUE: u32 = 1;

const FINGERPRINT: u32 = 1 << 1;

const SKIPS_FROM: u32 = 1 << 2;

const ROOT: u32 = 1 << 3;

const IS_ROOT: u32 = 1 << 4;

const EXPIRES: u32 = 1 << 5;

const KEY: u32 = 1 << 6;

const COST: u32 = 1 << 7;

const HELD: u32 = 1 << 8;

const AFTER: u32 = 1 << 9;

const ON_DEAD: u32 = 1 << 10;

const AWAITED: u32 = 1 << 11;

const SKIPPED: u32 = 1 << 12;

const HAS_META: u32 = 1 << 13;

const HAS_PROGRESS: u32 = 1 << 14;

const HELD_UP: u32 = 1 << 15;

const IS_STOPPING: u32 = 1 << 16;

const IS_SUSPECT: u32 = 1 << 17;

const ALL: u32 = (1 << 18) - 1;

impl Extras {
    fn bits(&self) -> u32 {
        let fields = [
            (self.unique.is_some(), UNIQUE),
            (self.fingerprint.is_some(), FINGERPRINT),
            (self.skips_from.is_some(), SKIPS_FROM),
            (self.root.is_some(), ROOT),
            (self.is_root, IS_ROOT),
            (self.expires.is_some(), EXPIRES),
            (self.key.is_some(), KEY),
            (self.cost != NO_EXTRAS.cost, COST),
            (self.held.is_some(), HELD),
            (self.after > 0, AFTER),
            (self.on_dead != NO_EXTRAS.on_dead, ON_DEAD),
            (self.awaited.is_some(), AWAITED),
            (self.skipped.is_some(), SKIPPED),
            (self.has_meta, HAS_META),
            (self.has_progress, HAS_PROGRESS),
            (self.held_up.is_some(), HELD_UP),
            (self.is_stopping, IS_STOPPING),
            (self.is_suspect, IS_SUSPECT),
        ];
        fields.iter().filter(|(is_set, _)| *is_set).map(|(_, bit)| bit).sum()
    }

    /// Writes a bit for each field that is not the default (4 bytes), and these fields.
    pub(crate) fn write(&self, row: Writer) -> Writer {
        let row = row.count(self.bits());
        let row = row.optional(self.unique, |row, until| row.byte(until as u8));
        let row = row.optional(self.fingerprint, |row, fingerprint| row.bytes(&fingerprint.0));
        let row = row.optional(self.skips_from, Writer::number);
        let row = row.optional(self.root.as_ref(), |row, root| row.number(root.millis()).text(&root.signature));
        let row = row.optional(self.expires, Writer::number).optional(self.key.as_deref(), Writer::text);
        let row = row.optional(Some(self.cost).filter(|cost| *cost != NO_EXTRAS.cost), Writer::count);
        let row = row.optional(self.held.as_deref(), Writer::text);
        let row = row.optional(Some(self.after).filter(|after| *after > 0), Writer::count);
        let on_dead = Some(self.on_dead).filter(|on_dead| *on_dead != NO_EXTRAS.on_dead);
        let row = row.optional(on_dead, |row, on_dead| row.byte(on_dead as u8));
        let row = row.optional(self.awaited, Writer::number);
        let row = row.optional(self.skipped, |row, reason| row.byte(reason as u8));
        row.optional(self.held_up, Writer::number)
    }

    /// Reads what [`write`](Self::write) wrote, and refuses all else.
    pub(crate) fn read(rest: &mut Fields<'_>) -> Option<Self> {
        let bits = rest.count()?;
        let has = |bit: u32| bits & bit != 0;
        // The fields are read in this order.
        let extras = Self {
            unique: rest.optional(has(UNIQUE), |rest| rest.one_of(&Until::ALL))?,
            fingerprint: rest.optional(has(FINGERPRINT), |rest| rest.take().map(Fingerprint))?,
            skips_from: rest.optional(has(SKIPS_FROM), Fields::number)?,
            root: rest.optional(has(ROOT), |rest| {
                let timestamp = UNIX_EPOCH.checked_add(Duration::from_millis(rest.number()?))?;
                Some(Root { signature: rest.text()?, timestamp })
            })?,
            expires: rest.optional(has(EXPIRES), Fields::number)?,
            key: rest.optional(has(KEY), Fields::text)?,
            cost: rest.optional(has(COST), Fields::count)?.unwrap_or(NO_EXTRAS.cost),
            held: rest.optional(has(HELD), Fields::text)?,
            after: rest.optional(has(AFTER), Fields::count)?.unwrap_or(0),
            on_dead: rest.optional(has(ON_DEAD), |rest| rest.one_of(&OnDead::ALL))?.unwrap_or(NO_EXTRAS.on_dead),
            awaited: rest.optional(has(AWAITED), Fields::number)?,
            skipped: rest.optional(has(SKIPPED), |rest| rest.one_of(&Skipped::ALL))?,
            held_up: rest.optional(has(HELD_UP), Fields::number)?,
            is_root: has(IS_ROOT),
            has_meta: has(HAS_META),
            has_progress: has(HAS_PROGRESS),
            is_stopping: has(IS_STOPPING),
            is_suspect: has(IS_SUSPECT),
        };
        Some(extras).filter(|extras| bits > 0 && bits <= ALL && extras.bits() == bits)
    }
}
