//! Errors: one line on standard error, and the exit code.

use crate::application::Application;
use crate::program::{At, bytes, call, call_with, database, text};
use std::path::Path;

fn hex(text: &str) -> String {
    text.bytes().map(|byte| format!("{byte:02X}")).collect()
}

fn refused(store: &Path, line: &str, code: i32, parts: &[&str]) {
    At::store(store).refused(line, code, parts);
}

#[test]
fn a_path_without_a_store_fails_and_makes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    for line in ["list", "doctor", "queues", "redrive blocks 3 --yes", "push mail k 1 --yes"] {
        let missing = directory.path().join("missing");
        refused(&missing, line, 1, &["there is no store at ", "missing: check the path"]);
        assert!(!missing.exists(), "{line} has made a directory");
        refused(directory.path(), line, 1, &["there is no store at "]);
        assert_eq!(bytes(directory.path()).len(), 0, "{line} has made a file");
    }
}

#[test]
fn an_unknown_name_fails_and_suggests_the_nearest() {
    let left = Application::halted();
    let store = &left.store();
    let before = bytes(store);
    for (line, parts) in [
        ("show blokcs", &["there is no consumer or log \"blokcs\": did you mean \"blocks\"?"][..]),
        ("parked Blocks", &["no consumer", "did you mean \"blocks\"?"]),
        ("history prizes", &["did you mean \"prices\"?"]),
        ("log peek wrods", &["no log \"wrods\"", "did you mean \"words\"?"]),
        ("table hieghts", &["no table", "did you mean \"heights\"?"]),
        ("jobs mial", &["no queue", "did you mean \"mail\"?"]),
        ("job mail nobody", &["the queue \"mail\" has no job \"nobody\""]),
        ("redrive blocks 4 --yes", &["job 4 of \"blocks\" is not parked: `waterline parked blocks`"]),
        ("redrive zzzzzzzzzzzz --all --yes", &["no consumer", "there are 3, from \"blocks\" to \"words\""]),
        ("skip blocks 2 --reason no --yes", &["is done or parked"]),
        ("seek blokcs 2 --reason no --yes", &["did you mean \"blocks\"?"]),
        ("requeue mail ann --yes", &["is ready, and not dead"]),
        ("run-now mail carl --yes", &["is dead, and not scheduled"]),
        ("cancel mail nobody --yes", &["has no job \"nobody\""]),
        ("push mial k 1 --yes", &["did you mean \"mail\"?"]),
        ("table heights --prefix 0x1", &["hexadecimal digits"]),
    ] {
        refused(store, line, 1, parts);
        assert!(bytes(store) == before, "{line} has changed the store");
    }
    for line in
        ["", "lits", "show", "list --limit x", "jobs mail --state gone", "redrive blocks", "redrive blocks 3 --all"]
    {
        refused(store, line, 2, &[]);
    }
    refused(store, "skip blocks 10", 2, &["--reason"]);
    refused(store, "push mail k {", 2, &["JSON"]);
    refused(store, "pause mail --watch", 2, &["--watch"]);
    let without = std::process::Command::new(env!("CARGO_BIN_EXE_waterline")).arg("list").output().unwrap();
    assert_eq!(without.status.code(), Some(2));
    assert!(bytes(store) == before);
}

#[test]
fn a_change_of_an_open_store_names_its_holder() {
    let application = Application::start();
    let store = &application.store();
    let before = bytes(store);
    let open = format!("process {} (", application.process());
    for line in ["redrive blocks --all", "seek blocks 2 --reason no", "pause mail", "requeue mail --dead"] {
        refused(store, &format!("{line} --yes"), 1, &["nothing was changed, since", &open, "stop it", "--url"]);
        let dry = text(store, line);
        assert!(dry.starts_with("Would ") && dry.contains(&open), "{dry}");
    }
    assert!(bytes(store) == before);
}

#[test]
fn a_damaged_record_fails_and_hides_no_other() {
    let left = Application::halted();
    let store = &left.store();
    let Some(database) = database(store) else { return };
    // Damage the page of one progress, and the row of one job.
    let damage = |table: &str, key: &str| {
        let of = format!("WHERE hex(k) LIKE '%{}'", hex(key));
        let select = format!("SELECT v FROM {table} {of}");
        let mut value: Vec<u8> = database.query_row(&select, [], |row| row.get(0)).unwrap();
        value[1] ^= 1;
        assert_eq!(database.execute(&format!("UPDATE {table} SET v = ?1 {of}"), [value]).unwrap(), 1, "{key}");
    };
    damage("waterline_system", "pblocks");
    damage("waterline_queue", "jann");
    drop(database);
    for (line, part) in [("job mail ann", "the row of the job \"ann\""), ("seek blocks 2 --reason no --yes", "blocks")]
    {
        refused(store, line, 1, &["cannot be read", part]);
    }
    let list = text(store, "list");
    assert!(
        list.contains("damaged: the stored value of \"blocks\" cannot be read") && list.contains("prices"),
        "{list}"
    );
    assert!(text(store, "show blocks").contains("cannot be read"));
    let jobs = text(store, "jobs mail");
    assert!(jobs.contains("carl") && jobs.contains("bob"), "{jobs}");
    let doctor = call(store, "doctor");
    assert_eq!(doctor.code, 1);
    for part in ["the consumer \"blocks\" is damaged", "the job \"ann\", which is damaged", "cancel mail ann"] {
        assert!(doctor.out.contains(part), "{part}: {}", doctor.out);
    }
    // The suggested commands do help.
    assert!(text(store, "cancel mail ann --yes").starts_with("Done: remove the damaged job \"ann\""));
    assert!(text(store, "remove blocks --yes").contains("which cannot be read"));
    let doctor = call(store, "doctor").out;
    assert!(!doctor.contains("damaged"), "{doctor}");
}

#[test]
fn a_damaged_parked_job_is_discarded_on_its_own() {
    let left = Application::halted();
    let store = &left.store();
    let Some(database) = database(store) else { return };
    let key = format!("%{}{:016X}", hex("blocks"), 3);
    let of = "FROM waterline_parked WHERE hex(k) LIKE ?1";
    let mut value: Vec<u8> = database.query_row(&format!("SELECT v {of}"), [&key], |row| row.get(0)).unwrap();
    value[1] ^= 1;
    let set = "UPDATE waterline_parked SET v = ?2 WHERE hex(k) LIKE ?1";
    assert_eq!(database.execute(set, rusqlite::params![key, value]).unwrap(), 1);
    drop(database);
    let doctor = call(store, "doctor");
    assert_eq!(doctor.code, 1);
    for part in [
        "the consumer \"blocks\" is damaged: ",
        "the record of the parked job 3: ",
        "; its next job would be 10",
        "    restore a backup; without one: discard blocks 3, which gives that job up",
        // The doctor goes on.
        "the consumer \"prices\": the consumer halted at 5",
        "the queue \"mail\" has 1 dead job",
    ] {
        assert!(doctor.out.contains(part), "{part}: {}", doctor.out);
    }
    refused(store, "redrive blocks 3 --yes", 1, &["cannot be read"]);
    refused(store, "discard blocks 4 --yes", 1, &["is not parked"]);
    let before = bytes(store);
    assert!(text(store, "discard blocks 3").contains("Would discard job 3"));
    assert!(bytes(store) == before, "the dry run has changed the store");
    assert!(text(store, "discard blocks 3 --yes").starts_with("Done: discard job 3 of \"blocks\""));
    assert!(text(store, "parked blocks").contains("the block has no header"));
    assert!(!call(store, "doctor").out.contains("damaged"));
}

#[test]
fn the_doctor_goes_on_past_unreadable_lists() {
    let left = Application::halted();
    let store = &left.store();
    let Some(database) = database(store) else { return };
    // Add a key that belongs to no table and sorts before all others.
    assert_eq!(database.execute("INSERT INTO waterline_tables (k, v) VALUES (x'00', x'00')", []).unwrap(), 1);
    drop(database);
    refused(store, "tables", 1, &["cannot be read"]);
    let doctor = call(store, "doctor");
    assert_eq!((doctor.code, doctor.error.as_str()), (1, ""));
    for part in [
        "problem: the list \"of tables\" cannot be looked at: ",
        "is in no table",
        "    restore a backup",
        "the consumer \"prices\": the consumer halted at 5",
        // The findings after it.
        "has 1 item that the consumer of the same name",
        "the queue \"mail\" has 1 dead job",
    ] {
        assert!(doctor.out.contains(part), "{part}: {}", doctor.out);
    }
}

#[test]
fn a_newer_store_is_refused_and_stays_unchanged() {
    let left = Application::sound();
    let store = &left.store();
    let Some(database) = database(store) else { return };
    let newer = [&[3][..], &crc32fast::hash(b"format\x03").to_be_bytes()].concat();
    let change = "UPDATE waterline_system SET v = ?1 WHERE CAST(k AS TEXT) = 'format'";
    assert_eq!(database.execute(change, [newer]).unwrap(), 1);
    drop(database);
    let before = bytes(store);
    for line in ["list", "queues", "doctor", "pause mail --yes", "remove words --yes"] {
        refused(store, line, 1, &["a newer version of waterline has written it"]);
        assert!(bytes(store) == before, "{line} has changed the store");
    }
}

#[test]
fn control_characters_are_shown_as_text() {
    let left = Application::sound();
    let store = &left.store();
    let pushed = call_with(store, "push mail --yes", &["\u{1b}[2Jkind", "1", "--id", "x\ny"]);
    assert_eq!(pushed.code, 0, "{pushed:?}");
    let out = text(store, "jobs mail");
    assert!(!out.contains('\u{1b}') && out.contains("\\u{1b}[2Jkind"), "{out}");
}
