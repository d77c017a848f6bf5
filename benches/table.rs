//! tmp
use std::time::{Duration, Instant};
use waterline::*;
fn hop(n: u64) -> Duration {
    let t = Instant::now();
    let (s, r) = crossbeam_channel::bounded::<u64>(1024);
    let p = std::thread::spawn(move || {
        for i in 0..n {
            s.send(i).unwrap();
        }
    });
    let mut c = 0u64;
    for x in r.iter() {
        c = c.wrapping_add(std::hint::black_box(x));
    }
    p.join().unwrap();
    std::hint::black_box(c);
    t.elapsed()
}
struct Numbers(u64);
impl Jobs for Numbers {
    type Job = u64;
    fn head(&self) -> Result<Option<u64>, BoxError> {
        Ok(Some(self.0 - 1))
    }
    fn at_index(&self, i: u64) -> Result<Option<u64>, BoxError> {
        Ok(Some(i))
    }
    fn read(&self, run: std::ops::RangeInclusive<u64>, into: &mut Vec<u64>) -> Result<(), BoxError> {
        into.extend(run);
        Ok(())
    }
}
fn run(n: u64, mp: usize) -> (Duration, u64) {
    let t = Instant::now();
    let c = Consumer::builder(Numbers(n), MemoryProgress::new())
        .max_processing(mp)
        .max_search_ahead(100_000)
        .stop_at(n - 1)
        .start(|j| {
            std::hint::black_box(j.payload);
            Ok(())
        })
        .unwrap();
    let h = c.handle();
    c.join().unwrap();
    (t.elapsed(), h.status().saves)
}
fn med(mut v: Vec<f64>) -> f64 {
    v.sort_by(|a, b| a.total_cmp(b));
    v[v.len() / 2]
}
fn main() {
    let n = 500_000;
    for mp in [1usize, 2, 8, 64, 1024] {
        let (mut h, mut s, mut sv) = (vec![], vec![], 0);
        for _ in 0..7 {
            h.push(hop(n).as_nanos() as f64 / n as f64);
            let (d, x) = run(n, mp);
            s.push(d.as_nanos() as f64 / n as f64);
            sv = x;
        }
        println!(
            "mp {mp}: hop {:.0} ns, job {:.0} ns (min {:.0} max {:.0}), ratio {:.2}, saves {sv}",
            med(h.clone()),
            med(s.clone()),
            s.iter().cloned().fold(f64::MAX, f64::min),
            s.iter().cloned().fold(0., f64::max),
            med(s.clone()) / med(h.clone())
        );
    }
}
