//! A store on a disk: foreign files in its place, bad stored values, locks, and reopening.

use common::raw::Raw;
use common::*;
use std::cell::RefCell;
use waterline::testing::ProgressSuite;
use waterline::{Consumer, Durability, Engine, Error};

const FAMILY: &str = "waterline.system";

#[test]
fn promise_08_a_later_format_is_refused() {
    let Some(dir) = a_directory() else { return };
    drop(open_in(dir.path()).unwrap());
    Raw::open(dir.path()).put(FAMILY, b"format", &[9]);
    let opened = open_in(dir.path());
    assert!(matches!(&opened, Err(Error::Corrupt { name, .. }) if name == "format"), "{opened:?}");
}

#[test]
fn a_database_that_is_open_elsewhere_is_locked() {
    let Some(dir) = a_directory() else { return };
    let store = open_in(dir.path()).unwrap();
    let second = open_in(dir.path());
    assert!(matches!(&second, Err(Error::Locked { path }) if path == dir.path()), "{second:?}");
    drop(store);
    open_in(dir.path()).unwrap();
}

#[test]
fn a_database_is_locked_under_every_path() {
    let Some(dir) = a_directory() else { return };
    let path = dir.path().join("db");
    let store = open_in(&path).unwrap();
    let mut names = vec![dir.path().join("db/."), dir.path().join("db/../db")];
    #[cfg(unix)]
    {
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        names.push(link);
    }
    for name in &names {
        let second = open_in(name);
        assert!(matches!(&second, Err(Error::Locked { path }) if path == name), "{}: {second:?}", name.display());
    }
    drop(store);
    for name in &names {
        let store = open_in(name).unwrap();
        assert!(matches!(open_in(&path), Err(Error::Locked { .. })), "{}", name.display());
        drop(store);
    }
}

#[test]
fn an_unusable_lock_file_is_not_called_held() {
    let Some(dir) = a_directory() else { return };
    let lock = if engine() == Some(Engine::Sqlite) { "waterline.sqlite-lock" } else { "LOCK" };
    std::fs::create_dir(dir.path().join(lock)).unwrap();
    let opened = open_in(dir.path());
    assert!(matches!(&opened, Err(Error::Store(_))), "{opened:?}");
}

#[test]
fn an_unfit_directory_is_a_store_error() {
    let Some(dir) = a_directory() else { return };
    let file = dir.path().join("file");
    std::fs::write(&file, "mine").unwrap();
    let opened = open_in(&file);
    assert!(matches!(&opened, Err(Error::Store(_))), "{opened:?}");
    assert!(opened.unwrap_err().report().contains(&file.display().to_string()));
}

#[test]
fn rows_survive_reopening_the_store() {
    let Some(dir) = a_directory() else { return };
    for (life, durability) in [(0, Durability::Buffered), (1, Durability::Synced)] {
        let store = on_engine().durability(durability).open(dir.path()).unwrap();
        let table = store.table("t").unwrap();
        assert_eq!(table.iter().count() as u64, life * 50);
        let consumer = Consumer::builder(numbers(100), store.progress("p"))
            .stop_at(life * 50 + 49)
            .start({
                let table = table.clone();
                move |job| Ok(table.put(job.index.to_be_bytes(), "done")?)
            })
            .unwrap();
        assert_eq!(consumer.handle().last_processed_index(), (life * 50).checked_sub(1));
        consumer.join().unwrap();
    }
    let store = open_in(dir.path()).unwrap();
    let keys: Vec<_> = store.table("t").unwrap().iter().map(|row| row.unwrap().0).collect();
    assert_eq!(keys, (0..100u64).map(|i| i.to_be_bytes().to_vec()).collect::<Vec<_>>());
}

#[test]
fn store_progress_on_a_disk_keeps_the_rules() {
    let Some(dir) = a_directory() else { return };
    let store = RefCell::new(Some(open_in(dir.path()).unwrap()));
    ProgressSuite::new(|name| store.borrow().as_ref().unwrap().progress(name))
        .corrupt(|name| {
            store.take();
            let (raw, key) = (Raw::open(dir.path()), format!("p{name}"));
            let mut value = raw.get(FAMILY, key.as_bytes()).unwrap();
            value[3] ^= 1;
            raw.put(FAMILY, key.as_bytes(), &value);
            drop(raw);
            store.replace(Some(open_in(dir.path()).unwrap()));
        })
        .run();
}
