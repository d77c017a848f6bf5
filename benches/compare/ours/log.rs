//! A log of items of 100 bytes: pushed, and read by one consumer whose progress is kept.

use crate::protocol::{Answer, Question, timed};
use std::hint::black_box;
use waterline::{Bytes, Consumer, Durability, JobLog};

const ITEM: [u8; 100] = [b'x'; 100];

pub(crate) fn answer(question: &Question) -> Answer {
    let column = question.word("column");
    let flushed = question.word("call") == "flushed";
    match column {
        "on RocksDB" | "on SQLite" => {
            let durability = if flushed { Durability::Synced } else { Durability::Buffered };
            let Some(store) = crate::asked::open(question, crate::asked::engine(column), durability) else {
                return Answer::None("built without it");
            };
            let log = store.log_with("l", Bytes).expect("a good name");
            if question.word("call") != "consume" {
                return timed(|| push(&log, question));
            }
            push(&log, question);
            timed(|| {
                Consumer::builder(log, store.progress("p"))
                    .stop_at(question.jobs() - 1)
                    .start(|job| {
                        black_box(job.payload);
                        Ok(())
                    })
                    .and_then(Consumer::join)
                    .expect("no job fails");
            })
        }
        #[cfg(feature = "sqlite")]
        "SQLite NORMAL" if !flushed => by_hand::answer(question, "NORMAL"),
        #[cfg(feature = "sqlite")]
        "SQLite FULL" if flushed => by_hand::answer(question, "FULL"),
        _ => crate::asked::OTHER,
    }
}

fn push(log: &JobLog<Vec<u8>, Bytes>, question: &Question) {
    let (jobs, block) = (question.jobs(), question.number("block").max(1));
    let items = vec![ITEM.to_vec(); block as usize];
    for first in (0..jobs).step_by(block as usize) {
        match block {
            1 => drop(log.push(&items[0]).expect("the disk takes it")),
            _ => drop(log.push_all(&items[..block.min(jobs - first) as usize]).expect("the disk takes it")),
        }
    }
}

#[cfg(feature = "sqlite")]
mod by_hand {
    use super::{ITEM, black_box};
    use crate::protocol::{Answer, Question, timed};
    use rusqlite::Connection;

    pub(super) fn answer(question: &Question, synchronous: &str) -> Answer {
        let connection = Connection::open(question.directory().join("raw.db")).expect("it can be written");
        let tables = "CREATE TABLE log (id INTEGER PRIMARY KEY, item BLOB NOT NULL);
            CREATE TABLE progress (id INTEGER PRIMARY KEY, value INTEGER NOT NULL);";
        let settings = format!("PRAGMA journal_mode = WAL; PRAGMA synchronous = {synchronous}; {tables}");
        connection.execute_batch(&settings).expect("the file is new");
        if question.word("call") != "consume" {
            return timed(|| push(&connection, question));
        }
        push(&connection, question);
        timed(|| consume(&connection, question))
    }

    fn push(connection: &Connection, question: &Question) {
        let (jobs, block) = (question.jobs(), question.number("block").max(1));
        let sql = |sql: &str| connection.prepare_cached(sql).expect("the table is there");
        for first in (0..jobs).step_by(block as usize) {
            sql("BEGIN IMMEDIATE").execute([]).expect("nobody else writes");
            let mut insert = sql("INSERT INTO log VALUES (?1, ?2)");
            for id in first..jobs.min(first + block) {
                insert.execute((id.cast_signed(), ITEM)).expect("the disk takes it");
            }
            sql("COMMIT").execute([]).expect("the disk takes it");
        }
    }

    /// Reads the log in pages, and saves the position after each of them.
    fn consume(connection: &Connection, question: &Question) {
        let block = question.number("block").max(1);
        let sql = |sql: &str| connection.prepare_cached(sql).expect("the table is there");
        let mut page = sql("SELECT item FROM log WHERE id >= ?1 ORDER BY id LIMIT ?2");
        let mut save = sql("INSERT OR REPLACE INTO progress VALUES (0, ?1)");
        for first in (0..question.jobs()).step_by(block as usize) {
            let mut items = page.query([first.cast_signed(), block.cast_signed()]).expect("it is read");
            while let Some(item) = items.next().expect("it is read") {
                black_box(item.get::<_, Vec<u8>>(0).expect("it is bytes"));
            }
            drop(items);
            save.execute([(first + block).cast_signed()]).expect("the disk takes it");
        }
    }
}
