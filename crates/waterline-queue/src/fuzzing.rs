//! Arbitrary bytes as records of queues, and in their places.

use crate::embedded::stored::StoredKind;
use crate::{Accept, JobState, NewJob, Queue, QueueOptions, Retention, Unique};
use std::time::{Duration, SystemTime};
use waterline::Store;
use waterline::fuzzing::{Disk, Input};

/// Takes the bytes as records of queues: foreign ones, damaged ones of ours, and a database in
/// which one record is damaged.
///
/// # Panics
/// If a record is read that would not be written so; if damage that the checksum always shows is
/// not refused; and if a call on a damaged database ends with neither a result nor an error.
pub fn queue(bytes: &[u8]) {
    let mut input = Input(bytes);
    match input.byte() % 3 {
        0 => foreign(&mut input),
        1 => damaged(&mut input),
        _ => database(&mut input),
    }
}

fn kind(input: &mut Input<'_>) -> StoredKind {
    use StoredKind::{Durations, Entry, Head, Mark, Number, Periodic, Push, Row};
    let kinds = [Row, Head, Number, Push, Mark, Durations, Periodic, Entry];
    kinds[usize::from(input.byte()) % kinds.len()]
}

/// Checks a foreign record, with a checksum that fits.
fn foreign(input: &mut Input<'_>) {
    let (kind, name, id) = (kind(input), input.name(), input.name());
    let bodies = [input.0.to_vec(), body(kind, input)];
    for body in bodies {
        let sum = kind.checksum(&name, &id, &body);
        for bytes in [body.clone(), [&body[..], sum.as_ref().map_or(&[], |sum| &sum[..])].concat()] {
            let Some(written) = kind.rewritten(&name, &id, &bytes) else { continue };
            assert_eq!(kind.rewritten(&name, &id, &written).as_ref(), Some(&written), "promise 8");
            let is_exact = !matches!(kind, StoredKind::Row | StoredKind::Push);
            assert!(!is_exact || written == bytes, "promise 8: {kind:?} has other bytes for the same");
        }
    }
}

/// Makes up the version and the body of a record that is mostly sound.
fn body(kind: StoredKind, input: &mut Input<'_>) -> Vec<u8> {
    let version = 1 + input.byte() % 2;
    let mut body = vec![version];
    match kind {
        StoredKind::Row => body.extend(row(version, input)),
        StoredKind::Head => {
            let lane = |input: &mut Input<'_>| {
                let mut lane: [u64; 3] = core::array::from_fn(|_| u64::from_be_bytes(input.array()));
                lane.sort_unstable();
                [lane[1], lane[2], lane[0]].map(u64::to_be_bytes).concat()
            };
            (0..10).for_each(|_| body.extend(input.array::<8>()));
            (0..4).for_each(|_| body.extend(lane(input)));
            if version > 1 {
                body.extend(input.array::<8>());
                body.extend(lane(input));
                body.extend(input.array::<8>());
            }
        }
        StoredKind::Mark | StoredKind::Periodic => {
            body[0] = 1;
            body.extend(input.array::<16>());
            body.extend(input.name().as_bytes());
        }
        StoredKind::Number => {
            body[0] = 1;
            body.extend(input.array::<4>());
        }
        StoredKind::Entry => {
            body[0] = 1;
            body.extend(input.name().as_bytes());
        }
        StoredKind::Durations => {
            body[0] = 1;
            body.extend(input.array::<32>());
        }
        StoredKind::Push => {
            let (id, mut row) = (input.name(), [&[version][..], &row(version, input)].concat());
            row.extend(StoredKind::Row.checksum("", "", &row).into_iter().flatten());
            body = [&input.array::<16>()[..], &[input.byte() % 3]].concat();
            [id.len(), row.len()].iter().for_each(|length| body.extend((*length as u32).to_be_bytes()));
            body.extend([id.as_bytes(), &row, input.some()].concat());
        }
    }
    body
}

/// Makes up the fields of a row.
fn row(version: u8, input: &mut Input<'_>) -> Vec<u8> {
    let flags = input.byte() % 16;
    let mut row = vec![input.byte() % 6, input.byte() % 4, flags];
    row.extend(input.array::<40>());
    for flag in [1, 8] {
        if flags & flag != 0 {
            row.extend(input.array::<8>());
        }
    }
    if flags & 4 != 0 {
        row.push(input.byte() % 4);
        row.extend(input.array::<16>());
        let (factor, jitter) = (1.0 + f64::from(input.byte()), f64::from(input.byte()) / 255.0);
        row.extend(factor.to_be_bytes());
        row.extend(input.array::<4>());
        row.extend(jitter.to_be_bytes());
    }
    if version > 1 {
        row.extend(extras(input));
    }
    let (kind, error) = (input.name(), input.name());
    let kind: String = kind.chars().take(60).collect();
    row.push(kind.len() as u8);
    row.extend([kind.as_bytes(), error.as_bytes()].concat());
    row
}

/// Makes up the settings that few jobs have: their bits, and the field of each bit.
fn extras(input: &mut Input<'_>) -> Vec<u8> {
    let bits = u32::from_be_bytes(input.array()) % (1 << 15);
    let text = |input: &mut Input<'_>| {
        let text = input.name();
        [&(text.len() as u16).to_be_bytes()[..], text.as_bytes()].concat()
    };
    let mut extras = bits.to_be_bytes().to_vec();
    for bit in (0..15).filter(|bit| bits & (1 << bit) != 0) {
        match bit {
            0 => extras.push(input.byte() % 3),
            1 => extras.extend(input.array::<16>()),
            2 => extras.extend(input.array::<8>()),
            3 => {
                extras.extend([&[0][..], &input.array::<7>()].concat());
                extras.extend(text(input));
            }
            5 => extras.extend(input.array::<8>()),
            6 | 8 => extras.extend(text(input)),
            7 | 9 => extras.extend(input.array::<4>()),
            10 => extras.push(1),
            12 => extras.push(input.byte() % 2),
            _ => {}
        }
    }
    extras
}

/// Damages a record of ours in ways that a CRC-32 always shows: see `damaged` of other records.
fn damaged(input: &mut Input<'_>) {
    let (kind, name, id) = (kind(input), input.name(), input.name());
    let body = body(kind, input);
    let Some(sum) = kind.checksum(&name, &id, &body) else { return };
    let sealed = [&body[..], &sum].concat();
    let Some(whole) = kind.rewritten(&name, &id, &sealed) else { return };

    let mut bent = whole.clone();
    let (body, sum) = bent.split_at_mut(whole.len() - 4);
    let at = usize::from(input.byte()) % whole.len();
    let part = if at < body.len() { &mut body[at..] } else { sum };
    let width = 1 + usize::from(input.byte() % 4);
    part.iter_mut().zip(input.array::<4>()).take(width).for_each(|(byte, change)| *byte ^= change);
    let want = (bent == whole).then_some(&whole);
    assert_eq!(kind.rewritten(&name, &id, &bent).as_ref(), want, "promise 8: a damaged record is refused");
    let cut = usize::from(input.byte()) % whole.len();
    assert_eq!(kind.rewritten(&name, &id, &whole[..cut]), None, "promise 8: a record that is cut off");
}

/// Damages one record of a small store with a queue, or adds another one, and uses the queue.
fn database(input: &mut Input<'_>) {
    let disk = Disk::default();
    let store = disk.open(&Store::options()).expect("the memory is read");
    let options = QueueOptions::default().retention(Retention::Keep);
    let queue = Queue::open(&store, "q", options.clone()).expect("the memory is read");
    let job = |id: &str| {
        let job = NewJob::new("k", id).expect("a text is JSON").id(id);
        let job = job.unique(Unique::until_done()).skip_if_executed();
        job.root("tree", SystemTime::UNIX_EPOCH).expires(Duration::from_secs(3600))
    };
    let accept = |queue: &Queue| queue.accept(Accept::new());
    for id in ["a", "b", "c", "d"] {
        queue.push(job(id)).expect("the memory takes writes");
    }
    let mut lease = accept(&queue).expect("it is whole").expect("a job is ready");
    lease.finish(Some("done".into())).expect("it is whole");
    let mut lease = accept(&queue).expect("it is whole").expect("a job is ready");
    lease.bury("no way").expect("it is whole");
    let lease = accept(&queue).expect("it is whole").expect("a job is ready");
    let records = disk.records();
    drop((lease, queue, store));

    let disk = Disk::default();
    let mut bent: Vec<_> = records.into_iter().filter(|(family, ..)| family != "waterline.tables").collect();
    let ours: Vec<_> = (0..bent.len()).filter(|at| bent[*at].0 != "waterline.system").collect();
    let record = &mut bent[ours[usize::from(input.byte()) % ours.len()]];
    match input.byte() % 3 {
        0 => record.2 = input.some().to_vec(),
        1 => {
            let at = usize::from(input.byte()) % record.2.len().max(1);
            let change = input.array::<4>();
            record.2.iter_mut().skip(at).zip(change).for_each(|(byte, change)| *byte ^= change);
        }
        _ => {
            // The number of the queue stays, so that the record belongs to it.
            record.1.truncate(4 + usize::from(input.byte() % 2));
            record.1.extend(input.some());
        }
    }
    disk.put(&bent);
    let Ok(store) = disk.open(&Store::options()) else { return };
    let Ok(queue) = Queue::open(&store, "q", options) else { return };
    for id in ["a", "b", "c", "d"] {
        drop((queue.get(id), queue.push(job(id))));
    }
    if let Ok(Some(mut lease)) = accept(&queue) {
        drop(lease.finish(Some(1.into())));
    }
    for state in JobState::ALL.into_iter().chain([JobState::Damaged]) {
        drop(queue.list(state, None, 100));
    }
    drop((queue.requeue_dead(), queue.purge(), queue.status(), accept(&queue)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

        #[test]
        fn any_bytes_are_records_of_a_queue(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            queue(&bytes);
        }
    }
}
