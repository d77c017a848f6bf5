//! What the answer of a server means for a call, and what is done next. Pure: no I/O.

use std::time::Duration;

/// How often a call looks for the place of its queue before it gives up.
const LOOKS: u32 = 2;
/// How many redirections a call follows. (Each tells where the slot is now.)
const REDIRECTIONS: u32 = 16;
/// The pause before a call is made again whose slot is moving.
const PAUSE: Duration = Duration::from_millis(20);

/// Why an attempt to make a call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// There was no connection, or it was lost before the call was sent.
    NotSent,
    /// The connection was lost after that.
    NoAnswer,
    /// The slot has another place (`MOVED`, `ASK`).
    Redirected,
    /// The slot is moving between two places (`TRYAGAIN`).
    Moving,
    /// The server is not the one that takes writes, or no longer.
    Elsewhere,
    /// The server takes no such call now.
    Passing,
    /// The same call would fail again.
    Final,
}

impl Fault {
    /// True if the queue may be on another server now, and a connection to this one is of no use.
    pub(crate) fn is_of_place(self) -> bool {
        matches!(self, Self::NotSent | Self::NoAnswer | Self::Elsewhere)
    }
}

/// What is done after a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Fail,
    /// Goes where the server said.
    Follow,
    /// Looks for the place anew, and tries again.
    LookAgain,
    /// Tries again after this time.
    Wait(Duration),
}

/// Decides after this many failed attempts since the last pause, for a call that began so long ago.
/// One that `repeats` changes nothing, or nothing the second time.
pub(crate) fn next(fault: Fault, repeats: bool, failed: u32, since: Duration, limit: Duration) -> Step {
    match fault {
        Fault::Redirected if failed < REDIRECTIONS => Step::Follow,
        Fault::Moving if since < limit => Step::Wait(PAUSE),
        Fault::NotSent | Fault::Elsewhere if failed < LOOKS => Step::LookAgain,
        Fault::NoAnswer if repeats && failed < LOOKS => Step::LookAgain,
        _ => Step::Fail,
    }
}

/// The first words of answers, what they mean, and what to do.
const WORDS: [(&str, Fault, &str); 16] = [
    ("MISCONF", Fault::Passing, "the server cannot write to its disk: make room, or mend it (`INFO persistence`)"),
    ("READONLY", Fault::Elsewhere, "it is a replica now: give all addresses, or connect by Sentinel"),
    ("LOADING", Fault::Passing, "the server has started and reads its data: it takes calls once it is done"),
    ("BUSY", Fault::Passing, "a script or function runs too long: SCRIPT KILL or FUNCTION KILL ends it"),
    ("OOM", Fault::Passing, "raise `maxmemory`, or let workers go on: claims and ends are taken all the same"),
    ("NOAUTH", Fault::Final, "give a user and a password in the address: redis://user:password@host"),
    ("WRONGPASS", Fault::Final, "correct the user or the password of the address"),
    ("NOPERM", Fault::Final, "give this user the commands and keys of the queue, by ACL SETUSER"),
    ("TRYAGAIN", Fault::Moving, "the slot of the queue moves to another node: call again once it has arrived"),
    ("MOVED", Fault::Redirected, "the slot of the queue moves to and fro: look at `redis-cli --cluster check`"),
    ("ASK", Fault::Redirected, "the slot of the queue moves to and fro: look at `redis-cli --cluster check`"),
    ("CLUSTERDOWN", Fault::Elsewhere, "bring back the nodes that `redis-cli --cluster check` misses"),
    ("MASTERDOWN", Fault::Elsewhere, "it is a replica without its master: bring back the master"),
    ("NOREPLICAS", Fault::Passing, "bring back its replicas, or lower `min-replicas-to-write`"),
    ("CROSSSLOT", Fault::Final, "these queues are in several slots: give all of them one tag (`RedisOptions::tag`)"),
    ("WRONGTYPE", Fault::Final, "another program writes to these keys: take another `RedisOptions::prefix`"),
];

fn word(code: &str) -> Option<&'static (&'static str, Fault, &'static str)> {
    WORDS.iter().find(|(word, ..)| *word == code)
}

pub(crate) fn fault_of(code: &str) -> Fault {
    word(code).map_or(Fault::Final, |(_, fault, _)| *fault)
}

/// What to do about an answer of the server itself. `None`: it is one of a function.
pub(crate) fn advice(code: &str, text: &str) -> Option<&'static str> {
    let lacks_right = text.starts_with("The user executing the script can't");
    let code = if lacks_right { "NOPERM" } else { code };
    if let Some((.., advice)) = word(code) {
        return Some(advice);
    }
    if code != "ERR" {
        return None;
    }
    Some(if text.contains("max number of clients") {
        "raise `maxclients` of the server, or run fewer processes"
    } else if text.contains("unknown command") || text.contains("unknown subcommand") {
        "the server does not know or not allow a command: it needs FCALL and FUNCTION of Redis 7.0"
    } else if text.contains("DB index") {
        "correct the number of the database, at the end of the address"
    } else {
        "look at the log of the server"
    })
}

/// True if the server does not have a function of the library.
pub(crate) fn lacks_function(code: &str, text: &str) -> bool {
    code == "ERR" && text.starts_with("Function not found")
}

/// The parts of an error of a function: its queue, a detail and a hint (empty if there is none),
/// and the sentence.
pub(crate) fn parts(text: &str) -> [Box<str>; 4] {
    let mut words = text.splitn(4, ' ');
    let mut next = || words.next().unwrap_or_default();
    let coded = [next(), next(), next()].map(|word| if word == "-" { "".into() } else { decoded(word).into() });
    let [queue, detail, hint] = coded;
    [queue, detail, hint, next().into()]
}

/// Reads a word in which `%` and two digits stand for a byte, and a single one for nothing.
fn decoded(word: &str) -> String {
    let mut rest = word.split('%');
    let mut bytes = rest.next().unwrap_or_default().as_bytes().to_vec();
    for part in rest {
        let byte = part.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.extend(byte);
        bytes.extend(part.get(2..).unwrap_or_default().as_bytes());
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fault_is_tried_again_as_often_as_it_may() {
        let (no_time, limit) = (Duration::ZERO, Duration::from_secs(1));
        for (fault, repeats, first, last) in [
            (Fault::NotSent, false, Step::LookAgain, 2),
            (Fault::NoAnswer, false, Step::Fail, 1),
            (Fault::NoAnswer, true, Step::LookAgain, 2),
            (Fault::Redirected, false, Step::Follow, 16),
            (Fault::Elsewhere, false, Step::LookAgain, 2),
            (Fault::Final, true, Step::Fail, 1),
            (Fault::Passing, true, Step::Fail, 1),
        ] {
            assert_eq!(next(fault, repeats, 1, no_time, limit), first, "{fault:?}");
            assert_eq!(next(fault, repeats, last, no_time, limit), Step::Fail, "{fault:?}");
            assert!(last == 1 || next(fault, repeats, last - 1, no_time, limit) == first, "{fault:?}");
        }
        assert_eq!(next(Fault::Moving, false, 40, limit - PAUSE, limit), Step::Wait(PAUSE));
        assert_eq!(next(Fault::Moving, false, 40, limit, limit), Step::Fail);
    }

    #[test]
    fn each_word_has_a_meaning_and_a_cure() {
        assert_eq!(["TRYAGAIN", "READONLY", "OOM", "WQ001"].map(fault_of), {
            [Fault::Moving, Fault::Elsewhere, Fault::Passing, Fault::Final]
        });
        assert!(advice("WQ001", "queue - -").is_none() && advice("ERR", "any other").is_some());
        assert!(advice("ERR", "max number of clients reached").unwrap().contains("maxclients"));
        assert!(lacks_function("ERR", "Function not found") && !lacks_function("ERR", "value is not an integer"));
    }

    #[test]
    fn the_words_of_a_function_are_read_back() {
        let read = |text: &str| parts(text).map(String::from);
        assert_eq!(read("mail j%201 - waterline: no such job"), ["mail", "j 1", "", "waterline: no such job"]);
        assert_eq!(read("%C3%A9 %2D %"), ["é", "-", "", ""]);
        assert_eq!(read(""), [""; 4]);
        assert_eq!([decoded("a%zz%4"), decoded("%é")], ["a", ""]);
    }
}
