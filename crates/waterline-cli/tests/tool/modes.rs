//! What the application does, by its mode.

use crate::application::{MODE, READY, STORE, tell};
use crate::program::TOKEN;
use std::io::Read;
use std::mem::ManuallyDrop;
use std::path::Path;
use std::time::Duration;
use waterline::{Consumer, Error, MemoryJobs, OnExhausted};
use waterline_queue::{Accept, Every, NewJob, Queue, QueueOptions};

#[test]
#[ignore = "other tests start it as their application"]
fn an_application() {
    let (Ok(path), Ok(mode)) = (std::env::var(STORE), std::env::var(MODE)) else { return };
    run(Path::new(&path), &mode).unwrap();
}

fn run(path: &Path, mode: &str) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    if mode == "stuck" {
        return crate::stuck::run();
    }
    let store = common::open_in(path)?;
    if mode == "fails" {
        let first = Consumer::builder((0..9).collect::<MemoryJobs<u64>>(), store.progress("assets"));
        let first = first.max_crashes(5).max_processing(1);
        assert!(first.start(|_| Err("the first asset is missing".into()))?.join().is_err());
        return Ok(());
    }
    let heights = store.table("heights")?;
    heights.put("everest", "8849")?;
    heights.put("k2", "8611")?;
    heights.put("visits", 12i64.to_be_bytes())?;
    let words: Vec<String> = ["to", "be", "or", "not"].map(str::to_owned).to_vec();
    store.log::<String>("words")?.push_all(&words)?;
    let read = Consumer::builder(store.log::<String>("words")?, store.progress("words")).stop_at(3);
    read.start(|_| Ok(()))?.join()?;
    if mode == "ends" {
        let mail = Queue::open(&store, "mail", QueueOptions::default())?;
        mail.push(NewJob::new("welcome", "ann")?.id("ann"))?;
        mail.accept(Accept::new())?.expect("it is ready").finish(None)?;
        return Ok(());
    }

    let mail = Queue::open(&store, "mail", QueueOptions::default())?;
    mail.push(NewJob::new("welcome", "carl")?.id("carl"))?;
    mail.accept(Accept::new())?.expect("it is ready").bury("no such customer")?;
    mail.push(NewJob::new("welcome", "dora")?.id("dora"))?;
    let runs = mail.accept(Accept::new())?.expect("it is ready");
    mail.push(NewJob::new("welcome", "ann")?.id("ann").meta("by", "the shop")?)?;
    mail.push(NewJob::new("digest", "bob")?.id("bob").delay(Duration::from_secs(86_400)))?;
    let daily = mail.periodic("daily", Every::new(Duration::from_secs(86_400)), NewJob::new("report", &())?);
    daily.start_at_next().start()?;

    // Blocks 3 and 5 have no header. The parking budget of `blocks` allows for both, that of
    // `prices` does not.
    let blocks = |name: &str, budget| {
        let jobs: MemoryJobs<u64> = (0..10).collect();
        let blocks = Consumer::builder(jobs, store.progress(name)).max_processing(1).max_search_ahead(1);
        blocks.on_exhausted(OnExhausted::Park { budget }).start(|job| match job.index {
            3 | 5 => Err("the block has no header".into()),
            _ => Ok(()),
        })
    };
    let prices = if mode == "runs" { None } else { Some(blocks("prices", 1)?) };
    let halted = prices.as_ref().map(Consumer::handle);
    if let Some(prices) = prices {
        assert!(matches!(prices.join(), Err(Error::Job { index: 5, .. })));
    }
    let consumer = blocks("blocks", 9)?;
    assert!(consumer.handle().wait_for(9, Duration::MAX));
    if mode == "halts" {
        consumer.stop()?;
        // The lease is never dropped, so its job still runs when the process ends.
        let _runs = ManuallyDrop::new(runs);
        return Ok(());
    }
    if let Some(halted) = halted {
        let handles = [consumer.handle(), halted];
        let page = handles.iter().fold(waterline_ui::Page::new(&store), |page, handle| page.watch(handle.clone()));
        let page = page.queue(&mail).title("the shop").allow_writes(true).token(TOKEN);
        tell(&page.serve("127.0.0.1:0")?, &handles, &[mail])?;
        return Ok(());
    }
    println!("{READY}");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    drop(runs);
    Ok(())
}
