use super::{Few, MOST, Open, PACE, PATIENCE, UNASKED};
use crate::lines::lines_of;
use crate::{Page, Served};
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::time::Instant;
use waterline::Store;

fn addr(number: u8) -> IpAddr {
    [10, 0, 0, number].into()
}

/// Returns the numbers of the open connections.
fn open(few: &Few) -> Vec<u64> {
    few.0.lock().open.keys().copied().collect()
}

fn ask(few: &Few, number: u64) {
    few.0.lock().open.get_mut(&number).unwrap().has_asked = true;
}

#[test]
fn an_address_drops_its_oldest_idle_connection() {
    let (few, now) = (Arc::new(Few::default()), Instant::now());
    let other = few.enter(addr(1), now);
    let mut places: Vec<_> = (0..UNASKED).map(|_| few.enter(addr(2), now)).collect();
    // A connection that has sent its request does not count.
    ask(&few, 1);
    places.push(few.enter(addr(2), now));
    assert_eq!(open(&few).len(), 2 + UNASKED);
    // An address mapped to IPv6 counts as the same address.
    let mapped: IpAddr = "::ffff:10.0.0.2".parse().unwrap();
    places.push(few.enter(mapped, now));
    assert_eq!(open(&few)[..3], [0, 1, 3], "the oldest one of that address that has not asked");
    drop((other, places));
    assert_eq!(open(&few), [0; 0]);
}

#[test]
fn a_full_page_drops_idle_connections_first() {
    let (few, now) = (Arc::new(Few::default()), Instant::now());
    let places: Vec<_> = (0..MOST).map(|number| few.enter(addr((number / 4) as u8), now)).collect();
    (0..MOST as u64).filter(|number| *number != 7).for_each(|number| ask(&few, number));
    let first = few.enter(addr(200), now);
    assert!(open(&few).len() == MOST && !open(&few).contains(&7));
    ask(&few, first.number);
    let second = few.enter(addr(201), now);
    assert!(open(&few).len() == MOST && !open(&few).contains(&0), "the page is there for a new one");
    drop((places, first, second));
}

#[test]
fn dropped_connections_are_logged_once_a_minute() {
    let (few, now) = (Arc::new(Few::default()), Instant::now());
    let places: Vec<_> = (0..UNASKED).map(|_| few.enter(addr(1), now)).collect();
    let mut all = few.0.lock();
    let mut room = |after: Duration| {
        let told = all.make_room(addr(1), now + after);
        let number = all.next;
        all.next += 1;
        all.open.insert(number, Open { from: addr(1), has_asked: false, gone: Arc::default() });
        told
    };
    assert_eq!(
        [room(Duration::ZERO), room(Duration::ZERO), room(PACE / 2), room(PACE)],
        [Some(1), None, None, Some(3)]
    );
    drop(all);
    drop(places);
    let few = Arc::new(Few::default());
    let told = lines_of(|| drop((0..=UNASKED).map(|_| few.enter(addr(1), now)).collect::<Vec<_>>()));
    assert!(told.len() == 1 && told[0].contains("from=10.0.0.1 closed=1"), "{told:?}");
}

fn served() -> Served {
    Page::new(&Store::in_memory()).serve("127.0.0.1:0").unwrap()
}

/// Requests the page, and returns how long the answer took.
fn look(served: &Served) -> io::Result<Duration> {
    let begun = std::time::Instant::now();
    let mut stream = TcpStream::connect(served.addr())?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    write!(stream, "GET /api/overview HTTP/1.1\r\nHost: {}\r\n\r\n", served.addr())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    Ok(begun.elapsed())
}

/// Waits until the server has closed this, and returns how long that took.
fn is_closed_after(mut stream: TcpStream) -> Duration {
    let begun = std::time::Instant::now();
    stream.set_read_timeout(Some(6 * PATIENCE)).unwrap();
    let mut rest = Vec::new();
    let ended = stream.read_to_end(&mut rest);
    assert!(ended.is_ok() || ended.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionReset));
    begun.elapsed()
}

/// Takes real time, since the timers are those of hyper and tokio.
#[test]
fn headers_and_body_have_ten_seconds_each() {
    let served = served();
    let connect = |head: &str| {
        let mut stream = TcpStream::connect(served.addr()).unwrap();
        stream.write_all(head.as_bytes()).unwrap();
        stream
    };
    let silent = connect("");
    let head = connect("GET / HTTP/1.1\r\nHost: x\r\n");
    let body = connect("POST /login HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nt");
    let closed: Vec<_> = [silent, head, body]
        .map(|stream| std::thread::spawn(|| is_closed_after(stream)))
        .into_iter()
        .map(|thread| thread.join().unwrap())
        .collect();
    // Without the page's own timeout, hyper would end the headers after 30 s.
    assert!(closed.iter().all(|time| (PATIENCE / 2..PATIENCE * 5 / 2).contains(time)), "{closed:?}");
}

/// Returns how many sockets this process may open, with some left for the rest.
fn sockets() -> usize {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find(|line| line.starts_with("Max open files"));
    let soft = line.and_then(|line| line.split_whitespace().nth(3)?.parse().ok()).unwrap_or(1_024_usize);
    soft.saturating_sub(MOST + 200).clamp(100, 2_000)
}

/// Each socket sends a byte now and then, and reconnects when it is closed.
#[test]
fn two_thousand_slow_sockets_block_no_request() {
    let (served, [rounds, again]) = (served(), [0, 0].map(AtomicUsize::new));
    let connect = || {
        let stream = TcpStream::connect(served.addr()).unwrap();
        stream.set_nonblocking(true).unwrap();
        (stream, 0)
    };
    let mut streams: Vec<_> = (0..sockets()).map(|_| connect()).collect();
    let many = streams.len();
    let head = b"GET /api/overview HTTP/1.1\r\nX-Trickle: ";
    let times = std::thread::scope(|scope| {
        scope.spawn(|| {
            while rounds.fetch_add(1, Ordering::Relaxed) < 3 {
                for stream in &mut streams {
                    let byte = head.get(stream.1).copied().unwrap_or(b'x');
                    let is_gone = matches!(stream.0.read(&mut [0]), Ok(0))
                        || stream.0.write(&[byte]).is_err_and(|error| error.kind() != io::ErrorKind::WouldBlock);
                    stream.1 += 1;
                    if is_gone {
                        *stream = connect();
                        again.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
        });
        let mut times = Vec::new();
        while rounds.load(Ordering::Relaxed) <= 3 || times.len() < 50 {
            times.push(look(&served));
            // Request the page now and then while the sockets trickle.
            std::thread::park_timeout(Duration::from_millis(20));
        }
        times
    });
    let looks = times.len();
    let (answered, lost): (Vec<_>, Vec<_>) = times.into_iter().partition(Result::is_ok);
    let mut answered: Vec<_> = answered.into_iter().map(Result::unwrap).collect();
    answered.sort();
    let (median, slowest) = (answered.get(answered.len() / 2), answered.last());
    println!(
        "{many} sockets trickle, and came again {} times: {} of {looks} looks are answered, half of them within {median:?}, all \
         within {slowest:?}",
        again.load(Ordering::Relaxed),
        answered.len()
    );
    assert!(lost.len() * 20 <= looks, "{} of {looks}: {lost:?}", lost.len());
    assert!(slowest.is_some_and(|slowest| *slowest < Duration::from_secs(20)), "{slowest:?}");
}
