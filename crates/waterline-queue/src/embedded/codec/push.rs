//! The bytes of a push, as an operation of a write.

use crate::rules::pushing::Push;
#[cfg(doc)]
use crate::types::error::QueueError;
use crate::types::related::OnDead;
use crate::types::row::Row;
use crate::types::unique::Clash;
use waterline::seam::{Fields, Writer};

/// The name and the place in the checksum of a row in an operation, which is not stored.
const NOWHERE: &str = "";

/// Returns the operation of pushes, each with its length (4 bytes). Of several, the last job waits
/// for the others.
pub(crate) fn encode_pushes(pushes: &[Push]) -> Vec<u8> {
    let ops = pushes.iter().map(encode_push);
    ops.fold(Writer::operation(0), |all, op| all.count(op.len() as u32).bytes(&op)).bytes
}

pub(crate) fn decode_pushes(op: &[u8]) -> Option<Vec<Push>> {
    let (mut rest, mut pushes) = (Fields::of(op), Vec::new());
    while !rest.rest.is_empty() {
        let length = rest.count()?;
        pushes.push(decode_push(rest.bytes(length as usize)?)?);
    }
    Some(pushes)
}

/// Returns the bytes of a push: the number in its id (8 bytes; the highest one: none), the window
/// of a unique job (8), the treatment of its twin (1), the setting of a job that is to wait for it
/// (1, from 1; 0: none is), the number of jobs that it is to wait for (4), the lengths of the id
/// and of the row (4 each), the id, the row, the ids of the others (each with its length in 1 byte)
/// and the payload. If the row says that the job has metadata, its length (4 bytes) and text come
/// before the payload.
pub(crate) fn encode_push(push: &Push) -> Vec<u8> {
    let row = push.row.encode(NOWHERE, NOWHERE);
    let op = Writer::operation(30 + push.id.len() + row.len() + push.payload.len());
    let op = op.number(push.made.unwrap_or(u64::MAX)).number(push.window).byte(push.clash as u8);
    let op = op.byte(push.awaited_by.map_or(0, |on_dead| on_dead as u8 + 1)).count(push.after.len() as u32);
    let op = op.count(push.id.len() as u32).count(row.len() as u32).bytes(push.id.as_bytes()).bytes(&row);
    let op = push.after.iter().fold(op, |op, id| op.short_text(id));
    let meta = push.row.extras().has_meta.then_some(&push.meta);
    op.optional(meta, |op, meta| op.count(meta.len() as u32).bytes(meta)).bytes(&push.payload).bytes
}

pub(crate) fn decode_push(op: &[u8]) -> Option<Push> {
    let mut rest = Fields::of(op);
    let made = Some(rest.number()?).filter(|made| *made < u64::MAX);
    let (window, clash) = (rest.number()?, rest.one_of(&Clash::ALL)?);
    let awaited_by = match rest.byte()? {
        0 => None,
        number => Some(*OnDead::ALL.get(usize::from(number - 1))?),
    };
    let (count, id, row) = (rest.count()?, rest.count()?, rest.count()?);
    let id = rest.text_of(id as usize)?;
    let row = Row::decode(NOWHERE, NOWHERE, rest.bytes(row as usize)?).ok()?;
    let after = (0..count).map(|_| rest.short_text()).collect::<Option<_>>()?;
    let meta = rest.optional(row.extras().has_meta, |rest| {
        let length = rest.count()?;
        rest.bytes(length as usize)
    })?;
    let (payload, meta) = (rest.rest.to_vec(), meta.unwrap_or_default().to_vec());
    Some(Push { id, made, row, payload, meta, clash, window, after, awaited_by, is_delayed: false })
}
