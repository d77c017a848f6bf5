//! The bytes of the settings that few jobs have. The row of a job without any of them has no byte
//! for them.

use crate::commit::sealed::Fields;
use crate::queue::words::related::{OnDead, Root, Skipped};
use crate::queue::words::row::{Extras, NO_EXTRAS};
use crate::queue::words::unique::{Fingerprint, Until};
use std::time::{Duration, UNIX_EPOCH};

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

    /// Appends its bytes: a bit for each field that is not the default (4 bytes), and these fields.
    pub(crate) fn encode(&self, bytes: &mut Vec<u8>) {
        let text = |bytes: &mut Vec<u8>, text: &str| {
            bytes.extend_from_slice(&(text.len() as u16).to_be_bytes());
            bytes.extend_from_slice(text.as_bytes());
        };
        bytes.extend_from_slice(&self.bits().to_be_bytes());
        bytes.extend(self.unique.map(|until| until as u8));
        bytes.extend(self.fingerprint.iter().flat_map(|fingerprint| fingerprint.0));
        bytes.extend(self.skips_from.iter().flat_map(|token| token.to_be_bytes()));
        if let Some(root) = &self.root {
            bytes.extend_from_slice(&root.millis().to_be_bytes());
            text(bytes, &root.signature);
        }
        bytes.extend(self.expires.iter().flat_map(|time| time.to_be_bytes()));
        self.key.iter().for_each(|key| text(bytes, key));
        if self.cost != NO_EXTRAS.cost {
            bytes.extend_from_slice(&self.cost.to_be_bytes());
        }
        self.held.iter().for_each(|limit| text(bytes, limit));
        if self.after > 0 {
            bytes.extend_from_slice(&self.after.to_be_bytes());
        }
        if self.on_dead != NO_EXTRAS.on_dead {
            bytes.push(self.on_dead as u8);
        }
        bytes.extend(self.awaited.iter().flat_map(|list| list.to_be_bytes()));
        bytes.extend(self.skipped.map(|reason| reason as u8));
        bytes.extend(self.held_up.iter().flat_map(|list| list.to_be_bytes()));
    }

    /// Reads what [`encode`](Self::encode) has written, and nothing that it never writes.
    pub(crate) fn decode(rest: &mut Fields<'_>) -> Option<Self> {
        let bits = u32::from_be_bytes(rest.take()?);
        let has = |bit: u32| bits & bit != 0;
        let mut extras = NO_EXTRAS.clone();
        if has(UNIQUE) {
            extras.unique = Some(*Until::ALL.get(usize::from(rest.take::<1>()?[0]))?);
        }
        if has(FINGERPRINT) {
            extras.fingerprint = Some(Fingerprint(rest.take()?));
        }
        if has(SKIPS_FROM) {
            extras.skips_from = Some(rest.number()?);
        }
        if has(ROOT) {
            let timestamp = UNIX_EPOCH.checked_add(Duration::from_millis(rest.number()?))?;
            extras.root = Some(Root { signature: rest.text()?, timestamp });
        }
        if has(EXPIRES) {
            extras.expires = Some(rest.number()?);
        }
        if has(KEY) {
            extras.key = Some(rest.text()?);
        }
        if has(COST) {
            extras.cost = u32::from_be_bytes(rest.take()?);
        }
        if has(HELD) {
            extras.held = Some(rest.text()?);
        }
        if has(AFTER) {
            extras.after = u32::from_be_bytes(rest.take()?);
        }
        if has(ON_DEAD) {
            extras.on_dead = *OnDead::ALL.get(usize::from(rest.take::<1>()?[0]))?;
        }
        if has(AWAITED) {
            extras.awaited = Some(rest.number()?);
        }
        if has(SKIPPED) {
            extras.skipped = Some(*Skipped::ALL.get(usize::from(rest.take::<1>()?[0]))?);
        }
        if has(HELD_UP) {
            extras.held_up = Some(rest.number()?);
        }
        extras.is_root = has(IS_ROOT);
        (extras.has_meta, extras.has_progress) = (has(HAS_META), has(HAS_PROGRESS));
        (extras.is_stopping, extras.is_suspect) = (has(IS_STOPPING), has(IS_SUSPECT));
        Some(extras).filter(|extras| bits > 0 && bits <= ALL && extras.bits() == bits)
    }
}
