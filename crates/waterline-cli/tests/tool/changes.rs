//! Changes of a store that no process has open.

use crate::application::Application;
use crate::program::{At, bytes, call, records, text};
use serde_json::{Value, json};
use std::path::Path;
use waterline::{Consumer, Failure, MemoryJobs, OnExhausted, Store};

/// Makes a change after a dry run, which must change no byte. Returns its record.
fn change(store: &Path, line: &str, what: &str) -> Value {
    let before = bytes(store);
    let dry = text(store, line);
    assert!(dry.starts_with(&format!("Would {what}")), "{line}: {dry}");
    assert!(dry.contains("Nothing was changed. Add --yes to do it."), "{dry}");
    assert_eq!(records(store, line)[0]["made"], false);
    assert!(bytes(store) == before, "the dry run of {line} has changed the store");
    let made = records(store, &format!("{line} --yes")).remove(0);
    assert_eq!((&made["type"], &made["made"]), (&json!("change"), &json!(true)), "{line}");
    assert!(made["what"].as_str().unwrap().starts_with(what), "{made}");
    made
}

fn consumer(store: &Path, name: &str) -> Value {
    records(store, &format!("show {name}")).remove(0)
}

fn job(store: &Path, id: &str) -> Value {
    records(store, &format!("job mail {id}")).remove(0)
}

#[test]
fn a_consumer_and_its_parked_jobs_are_changed() {
    let left = Application::halted();
    let store = &left.store();
    let made = change(store, "redrive blocks 3 --reason mended", "redrive job 3 of \"blocks\"");
    assert_eq!((&made["change"], &made["reason"]), (&json!("redrive"), &json!("mended")));
    let wanted = |store| -> Vec<bool> {
        records(store, "parked blocks").iter().map(|job| job["redrive_wanted"].as_bool().unwrap()).collect()
    };
    assert_eq!(wanted(store), [true, false]);
    change(store, "redrive blocks --all", "redrive 2 parked jobs of \"blocks\"");
    assert_eq!(wanted(store), [true, true]);
    change(store, "discard blocks 5", "discard job 5 of \"blocks\"");
    assert_eq!(records(store, "parked blocks").len(), 1);
    assert_eq!(change(store, "discard blocks --from 4 --to 9", "discard 0 parked jobs of \"blocks\"")["discarded"], 0);
    let made = change(store, "discard blocks --from 2", "discard 1 parked job of \"blocks\"");
    assert_eq!((&made["indices"], &made["discarded"]), (&json!([3]), &json!(1)));
    assert_eq!(records(store, "parked blocks").len(), 0);

    change(store, "skip prices 5 --reason empty", "skip job 5 of \"prices\"");
    let prices = consumer(store, "prices");
    assert_eq!(
        (&prices["last_processed"], &prices["halted"], &prices["parked"]),
        (&json!(5), &json!(false), &json!(2))
    );
    change(
        store,
        "seek prices 2 --reason wrong",
        "make 2 the next job of \"prices\", where it is 6 now: jobs 2 to 5 run",
    );
    assert_eq!(consumer(store, "prices")["next"], 2);
    let moves = records(store, "history prices");
    let moves: Vec<_> =
        moves.iter().map(|made| (made["move"].as_str().unwrap(), made["reason"].as_str().unwrap())).collect();
    assert_eq!(moves, [("skip", "empty"), ("seek", "wrong")]);
    assert!(text(store, "history prices").contains("skip"));

    change(store, "remove words", "remove the progress \"words\", which has processed jobs up to 3");
    assert!(records(store, "list").iter().all(|record| record["type"] != "consumer" || record["name"] != "words"));
}

#[test]
fn a_consumer_takes_the_name_of_another_one() {
    let directory = tempfile::tempdir().unwrap();
    let path = &directory.path().join("data");
    {
        let store = Store::open(path).unwrap();
        for (name, last) in [("balances", 3), ("balances-2", 7), ("bare", 1)] {
            let table = store.table(name).unwrap();
            table.put("from", name).unwrap();
            let jobs: MemoryJobs<u64> = (0..=last).collect();
            let consumer = Consumer::builder(jobs, store.progress(name)).stop_at(last);
            let consumer = if name == "bare" { consumer } else { consumer.owns(&table) };
            consumer.start(|_| Ok(())).unwrap().join().unwrap();
        }
    }
    assert!(text(path, "show balances").contains("the table \"balances\""));
    let what = "give \"balances-2\" the name \"balances\": what comes is \"balances-2\", which has processed jobs up to 7, \
                with 0 parked jobs, its history and the table \"balances-2\"; what goes is \"balances\", which has processed \
                jobs up to 3, with 0 parked jobs, its history and the table \"balances\"";
    let made = change(path, "replace balances-2 balances", what);
    assert_eq!((&made["comes"], &made["goes"]), (&json!(7), &json!(3)));
    assert_eq!(consumer(path, "balances")["last_processed"], 7);
    assert_eq!(records(path, "tables").len(), 2);
    assert!(text(path, "table balances").contains("balances-2"), "the value of its row");
    At::store(path).refused("replace balances-2 balances --yes", 1, &["there is no consumer \"balances-2\""]);
    At::store(path).refused(
        "replace bare balances --yes",
        1,
        &["nothing cannot take the names of the table \"balances\""],
    );
    let made = change(path, "remove balances", "remove the progress \"balances\", which has processed jobs up to 7");
    assert!(made["what"].as_str().unwrap().contains("the table \"balances\" is cleared"), "{made}");
    assert_eq!(records(path, "tables").len(), 1);
}

#[test]
fn a_queue_is_changed_without_counting_a_crash() {
    let left = Application::halted();
    let store = &left.store();
    change(store, "requeue mail carl", "requeue the dead job \"carl\" of the queue \"mail\" (no such customer)");
    assert_eq!((&job(store, "carl")["state"], &job(store, "carl")["failures"]), (&json!("ready"), &json!(0)));
    assert_eq!(change(store, "requeue mail --dead", "requeue 0 dead jobs")["requeued"], 0);
    change(store, "run-now mail bob", "make the scheduled job \"bob\" of the queue \"mail\" due now");
    assert_eq!(job(store, "bob")["state"], "ready");
    change(store, "cancel mail ann", "remove the ready job \"ann\" of the queue \"mail\"");
    assert_eq!(call(store, "job mail ann").code, 1);
    let pushed = change(store, "push mail welcome {\"to\":\"eve\"}", "push a job of the kind \"welcome\"");
    let pushed = job(store, pushed["id"].as_str().unwrap());
    assert_eq!((&pushed["state"], &pushed["payload"]), (&json!("ready"), &json!({ "to": "eve" })));
    change(store, "pause mail", "pause the queue \"mail\"");
    let queue = || records(store, "queues").remove(0);
    assert_eq!(queue()["sentence"], "the queue \"mail\" is paused until somebody resumes it");
    change(store, "resume mail", "end the pause of the queue \"mail\"");
    assert_eq!(queue()["paused"], false);
    // The job that ran when the process ended is left to the application, which has the options.
    let dora = job(store, "dora");
    assert_eq!((&dora["state"], &dora["crashes"]), (&json!("running"), &json!(0)));
}

#[test]
fn a_seek_below_the_start_of_the_log_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = &directory.path().join("data");
    {
        let store = Store::open(path).unwrap();
        let log = store.log::<u64>("lines").unwrap();
        log.push_all(&(1..=10).collect::<Vec<_>>()).unwrap();
        let park = OnExhausted::Park { budget: 9 };
        let consumer = Consumer::builder(log.clone(), store.progress("words")).on_exhausted(park);
        let consumer = consumer
            .start(|job| if job.index == 2 { Err(Failure::permanent("no word").into()) } else { Ok(()) })
            .unwrap();
        assert!(consumer.handle().wait_for(10, std::time::Duration::from_secs(60)));
        log.trim(..=4).unwrap();
        consumer.stop().unwrap();
        let other = Consumer::builder((0..3).collect::<MemoryJobs<u64>>(), store.progress("other")).stop_at(2);
        other.start(|_| Ok(())).unwrap().join().unwrap();
    }
    let gone = "job 2 is gone: its log \"lines\" has the items 5 to 10; seek to 5 or above";
    for line in ["seek words 2 --reason again", "seek words 2 --reason again --yes"] {
        At::store(path).refused(line, 1, &[gone]);
    }
    let twice = "jobs 6 to 10 run once more (a transactional consumer makes their effects twice; to make them anew, remove \
                 them with the progress in one write: StoreProgress::remove_with); its log \"lines\" has the items 5 to 10";
    let made = change(path, "seek words 6 --reason again", "make 6 the next job of \"words\", where it is 11 now: ");
    assert!(made["what"].as_str().unwrap().ends_with(twice) && made["log"] == "lines", "{made}");
    let made = change(path, "seek words 13 --reason ahead", "make 13 the next job of \"words\"");
    assert!(made["what"].as_str().unwrap().ends_with("has the items 5 to 10, so it waits for item 13"), "{made}");
    let made = change(path, "seek other 1 --reason again", "make 1 the next job of \"other\"");
    assert!(made["what"].as_str().unwrap().contains("its source is not known here"), "{made}");
    // The item of the parked job is below the first one.
    assert!(text(path, "show lines").contains("Parked jobs alone keep 1 item below the first one"));
    let log = records(path, "show lines").remove(0);
    assert_eq!(
        (&log["first"], &log["head"], &log["items"], &log["parked"]),
        (&json!(5), &json!(10), &json!(6), &json!(1))
    );
}
