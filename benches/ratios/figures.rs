//! Figures without a floor, and the highest value that each may have.

use crate::measures;
use crate::ours::JOBS;
use crate::sources::Numbers;
use crate::table::Table;
use cap::Cap;
use cpu_time::ProcessTime;
use std::alloc::System;
use std::time::Duration;
use waterline::{Consumer, MemoryProgress, Store};

/// It counts the allocations of the program.
#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

/// How long an idle consumer is measured.
const IDLE: Duration = Duration::from_secs(10);

pub(crate) fn print(table: &Table) {
    println!("\n| {:<48} | {:>10} | {:>10} |", "figure", "at most", "ours");
    println!("|{:-<50}|{:->12}|{:->12}|", "", ":", ":");
    let line = |name: &str, most: &str, ours: &dyn Fn() -> String| {
        if table.wants(name) {
            let ours = ours();
            println!("| {name:<48} | {most:>10} | {ours:>10} |");
            if let (Ok(most), Ok(ours)) = (most.parse(), ours.parse()) {
                table.note(name, ours, most);
            }
        }
    };
    line("memory: bits per job done ahead", "3", &|| {
        format!(
            "{:.2}",
            measures::bits_done_ahead(MemoryProgress::new(), measures::SLACK, || (), || ALLOCATOR.allocated())
        )
    });
    line("memory: bytes per job in flight, 4096 of them", "200", &|| {
        format!("{:.0}", measures::bytes_in_flight(4096, || ALLOCATOR.allocated()))
    });
    line("saves per 1,000 jobs that do nothing", "100", &|| format!("{:.2}", saves_per_thousand()));
    line("gaps: reads a job, one in 1,000 indices", "0.1", &|| format!("{:.3}", crate::gaps::reads_a_job()));
    line("gaps: ms in the core for a save, 100,000 ahead", "2", &|| format!("{:.2}", crate::gaps::save_ms()));
    line("saves: ms late (p99), 4 busy threads per core", "5", &|| format!("{:.1}", crate::late::ms_late()));
    #[cfg(feature = "rocksdb")]
    {
        line("resume: ms to start, 500,000 of 1,000,000 done", "50", &|| {
            format!("{:.1}", crate::resume::start_ms(|path| Store::open(path).expect("the database opens")))
        });
        line("log: MB on disk, 10 million pushed, 5,120 kept", "250", &|| crate::log::megabytes_left().to_string());
        line("saves: share of 24 bytes each and 3 a job", "1", &|| format!("{:.2}", crate::resume::share_of_bytes()));
    }
    #[cfg(feature = "sqlite")]
    {
        use crate::on_sqlite::{megabytes_left, open, trim_ms};
        let open = |path: &std::path::Path| open(path, waterline::Durability::Buffered);
        line("SQLite: resume: ms to start, 500,000 done", "50", &|| format!("{:.1}", crate::resume::start_ms(open)));
        line("SQLite: log: MB on disk, a million pushed", "250", &|| megabytes_left().to_string());
        line("SQLite: log: ms of a trim, median and longest", "", &|| {
            let (longest, median) = trim_ms();
            format!("{median:.1} {longest:.1}")
        });
    }
    line("idle: ms of CPU in 10 s", "10", &|| format!("{:.2}", idle().0));
    line("idle: saves in 10 s", "0", &|| idle().1.to_string());
}

fn saves_per_thousand() -> f64 {
    let store = Store::in_memory();
    let consumer = Consumer::builder(Numbers(JOBS), store.progress("busy"))
        .max_search_ahead(100_000)
        .stop_at(JOBS - 1)
        .start(|_| Ok(()))
        .expect("it starts");
    let handle = consumer.handle();
    consumer.join().expect("jobs that do nothing do not fail");
    handle.status().saves as f64 * 1000.0 / JOBS as f64
}

/// Measures a consumer that has caught up. It polls its source every second, since the source never
/// notifies it. Returns the CPU time of the process in milliseconds, and the number of saves.
fn idle() -> (f64, u64) {
    let store = Store::in_memory();
    let consumer = Consumer::builder(Numbers(100), store.progress("idle")).start(|_| Ok(())).expect("it starts");
    let handle = consumer.handle();
    assert!(handle.wait_for(99, IDLE), "a hundred jobs are soon done");
    let (before, saves) = (ProcessTime::now(), handle.status().saves);
    assert!(!handle.wait_for(100, IDLE), "there is no such job");
    let figures = (before.elapsed().as_secs_f64() * 1000.0, handle.status().saves - saves);
    consumer.stop().expect("nothing fails");
    figures
}
