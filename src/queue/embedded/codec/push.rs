//! The bytes of a push, as an operation of a write.

use crate::queue::rules::pushing::Push;
#[cfg(doc)]
use crate::queue::words::error::QueueError;
use crate::queue::words::related::OnDead;
use crate::queue::words::row::Row;
use crate::queue::words::unique::Clash;

/// The checksum of the row in an operation has this name and no place, since it is not stored.
const NOWHERE: &str = "";

/// Returns the operation of one push, or of a batch whose last job waits for the others: each with
/// its length (4 bytes).
pub(crate) fn encode_pushes(pushes: &[Push]) -> Vec<u8> {
    let mut op = Vec::new();
    for push in pushes {
        let push = encode_push(push);
        op.extend_from_slice(&(push.len() as u32).to_be_bytes());
        op.extend_from_slice(&push);
    }
    op
}

pub(crate) fn decode_pushes(mut op: &[u8]) -> Option<Vec<Push>> {
    let mut pushes = Vec::new();
    while let Some((length, rest)) = op.split_first_chunk::<4>() {
        let (push, rest) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        pushes.push(decode_push(push)?);
        op = rest;
    }
    op.is_empty().then_some(pushes)
}

/// Returns the bytes of a push: the number in its id (8 bytes; the highest one: none), the
/// window of a unique job (8 bytes), the treatment of its twin (1 byte), the setting of a job that
/// is to wait for it (1 byte, from 1; 0: none is), the number of those that it is to wait for (4
/// bytes), the lengths of the id and of the row (4 bytes each), the id, the row, the ids of the
/// others (each with its length in 1 byte) and the payload. If the row says that the job has
/// metadata, its length (4 bytes) and its text are before the payload.
pub(crate) fn encode_push(push: &Push) -> Vec<u8> {
    let row = push.row.encode(NOWHERE, NOWHERE);
    let mut op = Vec::with_capacity(30 + push.id.len() + row.len() + push.payload.len());
    op.extend_from_slice(&push.made.unwrap_or(u64::MAX).to_be_bytes());
    op.extend_from_slice(&push.window.to_be_bytes());
    op.push(push.clash as u8);
    op.push(push.awaited_by.map_or(0, |on_dead| on_dead as u8 + 1));
    op.extend_from_slice(&(push.after.len() as u32).to_be_bytes());
    [push.id.len(), row.len()].iter().for_each(|length| op.extend_from_slice(&(*length as u32).to_be_bytes()));
    op.extend_from_slice(push.id.as_bytes());
    op.extend_from_slice(&row);
    for id in &push.after {
        op.push(id.len() as u8);
        op.extend_from_slice(id.as_bytes());
    }
    if push.row.extras().has_meta {
        op.extend_from_slice(&(push.meta.len() as u32).to_be_bytes());
        op.extend_from_slice(&push.meta);
    }
    op.extend_from_slice(&push.payload);
    op
}

pub(crate) fn decode_push(op: &[u8]) -> Option<Push> {
    let (made, rest) = op.split_first_chunk::<8>()?;
    let (window, rest) = rest.split_first_chunk::<8>()?;
    let ([clash, awaited_by], rest) = rest.split_first_chunk::<2>()?;
    let (count, rest) = rest.split_first_chunk::<4>()?;
    let (id, rest) = rest.split_first_chunk::<4>()?;
    let (row, rest) = rest.split_first_chunk::<4>()?;
    let (id, rest) = rest.split_at_checked(u32::from_be_bytes(*id) as usize)?;
    let (row, mut payload) = rest.split_at_checked(u32::from_be_bytes(*row) as usize)?;
    let mut after = Vec::new();
    for _ in 0..u32::from_be_bytes(*count) {
        let ([length], others) = payload.split_first_chunk::<1>()?;
        let (id, others) = others.split_at_checked(usize::from(*length))?;
        after.push(std::str::from_utf8(id).ok()?.to_owned());
        payload = others;
    }
    let awaited_by = match awaited_by {
        0 => None,
        number => Some(*OnDead::ALL.get(usize::from(number - 1))?),
    };
    let made = Some(u64::from_be_bytes(*made)).filter(|made| *made < u64::MAX);
    let id = std::str::from_utf8(id).ok()?.to_owned();
    let row = Row::decode(NOWHERE, NOWHERE, row).ok()?;
    let mut meta = &[][..];
    if row.extras().has_meta {
        let (length, rest) = payload.split_first_chunk::<4>()?;
        (meta, payload) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
    }
    let (clash, window) = (*Clash::ALL.get(usize::from(*clash))?, u64::from_be_bytes(*window));
    let (payload, meta) = (payload.to_vec(), meta.to_vec());
    Some(Push { id, made, row, payload, meta, clash, window, after, awaited_by })
}
