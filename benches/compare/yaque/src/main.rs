//! yaque: a queue in files, with a sender and a receiver. Nothing is flushed to the disk.

use futures_executor::block_on;
use protocol::{Answer, Question};
use std::hint::black_box;
use std::process::ExitCode;
use yaque::{Receiver, Sender};

const LATENCIES: u64 = 1_000;
const ITEM: [u8; 100] = [b'x'; 100];

fn main() -> ExitCode {
    let about = "{yaque} with its defaults: a guard is committed for each read; nothing is flushed";
    protocol::answer(&[("yaque", about.to_owned())], |question| match question.word("question") {
        "log" => log(question),
        "pushed" if question.word("store") != "memory" => pushed(question),
        _ => Answer::None("not asked"),
    })
}

fn log(question: &Question) -> Answer {
    let (path, jobs, block) = (question.directory().join("log"), question.jobs(), question.number("block").max(1));
    let mut sender = Sender::open(&path).expect("the directory can be written");
    match question.word("call") {
        "push" => protocol::timed(|| push(&mut sender, jobs, block)),
        "consume" => {
            push(&mut sender, jobs, block);
            drop(sender);
            let mut receiver = Receiver::open(&path).expect("it is there");
            protocol::timed(|| {
                for first in (0..jobs).step_by(block as usize) {
                    let read = block_on(receiver.recv_batch(block.min(jobs - first) as usize)).expect("it is read");
                    read.iter().for_each(|item| _ = black_box(item.len()));
                    read.commit().expect("it is new");
                }
                receiver.save().expect("the disk takes it");
            })
        }
        _ => Answer::None("it flushes nothing"),
    }
}

fn push(sender: &mut Sender, jobs: u64, block: u64) {
    for first in (0..jobs).step_by(block as usize) {
        let pushed = match block {
            1 => block_on(sender.send(ITEM)),
            _ => block_on(sender.send_batch((first..jobs.min(first + block)).map(|_| ITEM))),
        };
        pushed.expect("the disk takes it");
    }
}

/// Measures a push to a receiver that waits on another thread.
fn pushed(question: &Question) -> Answer {
    let path = question.directory().join("log");
    let (mut sender, mut receiver) = yaque::channel(path).expect("the directory can be written");
    let (say, said) = crossbeam_channel::bounded(1);
    let reader = std::thread::spawn(move || {
        for _ in 0..LATENCIES {
            let item = block_on(receiver.recv()).expect("it is read");
            if say.send(()).is_err() {
                break;
            }
            item.commit().expect("it is new");
        }
    });
    let answer = protocol::each_timed(LATENCIES, |_| {
        block_on(sender.send(ITEM)).expect("the disk takes it");
        said.recv().expect("the thread lives");
    });
    reader.join().expect("it does not panic");
    answer
}
