//! Lays out the lines of the screen.

use super::history::Histories;
use super::seen::Seen;
use super::state::Top;
use crate::format::{count, length, number, plain, rate};
use crate::rows::{Advice, Consumer, Queue, Verdict, Worker};
use crate::workers::summed;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use std::time::Duration;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// The widest plot, in columns.
const PLOT: usize = 24;

/// How many lost workers of a queue are named.
const LOST: usize = 3;

/// The style of a text, with a colour where colours are wanted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Paint {
    Plain,
    Faint,
    Head,
    Good,
    Bad,
}

impl Paint {
    fn style(self, colour: bool) -> Style {
        let style = Style::default();
        match self {
            Self::Plain => style,
            Self::Faint => style.add_modifier(Modifier::DIM),
            Self::Head => style.add_modifier(Modifier::BOLD),
            Self::Good if colour => style.fg(Color::Green),
            Self::Bad if colour => style.fg(Color::Red).add_modifier(Modifier::BOLD),
            Self::Good => style,
            Self::Bad => style.add_modifier(Modifier::BOLD),
        }
    }
}

/// The columns of a row, and the lines below it.
type Row = (Vec<LineCell>, Vec<(String, Paint)>);

/// Makes lines of one width and with or without colours.
struct Pen {
    width: usize,
    colour: bool,
}

/// A cell of a row, aligned left or right.
enum LineCell {
    Left(String),
    Right(String),
}

impl Pen {
    fn line(&self, text: &str, look: Paint) -> Line<'static> {
        Line::from(Span::styled(fit(&plain(text), self.width), look.style(self.colour)))
    }

    /// Lays out rows in columns as wide as needed, each with its lines below it.
    fn table(&self, head: &[&str], rows: Vec<Row>) -> Vec<Line<'static>> {
        let text = |part: &LineCell| match part {
            LineCell::Left(text) | LineCell::Right(text) => text.width(),
        };
        let widths: Vec<usize> = (0..head.len())
            .map(|at| rows.iter().map(|(parts, _)| text(&parts[at])).chain([head[at].width()]).max().unwrap_or(0))
            .collect();
        let join = |parts: &[LineCell]| {
            let padded = parts.iter().zip(&widths).map(|(part, width)| match part {
                LineCell::Left(text) => format!("{text}{}", " ".repeat(width.saturating_sub(text.width()))),
                LineCell::Right(text) => format!("{}{text}", " ".repeat(width.saturating_sub(text.width()))),
            });
            padded.collect::<Vec<_>>().join("  ")
        };
        let is_right = |at: usize| rows.first().is_some_and(|(parts, _)| matches!(parts[at], LineCell::Right(_)));
        let heads: Vec<_> =
            (0..head.len())
                .map(|at| {
                    if is_right(at) {
                        LineCell::Right(head[at].to_owned())
                    } else {
                        LineCell::Left(head[at].to_owned())
                    }
                })
                .collect();
        let mut lines = vec![self.line(&join(&heads), Paint::Head)];
        for (parts, said) in &rows {
            lines.push(self.line(&join(parts), Paint::Plain));
            lines.extend(said.iter().map(|(text, look)| self.line(&format!("  {text}"), *look)));
        }
        lines
    }
}

/// Shortens a text to at most `width` columns.
fn fit(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let (mut cut, mut used) = (String::new(), 1);
    for letter in text.chars() {
        used += letter.width().unwrap_or(0);
        if used > width {
            break;
        }
        cut.push(letter);
    }
    if width > 0 { cut + "…" } else { String::new() }
}

/// Returns the head, the lines that can be scrolled, and the foot.
pub(super) fn all(top: &Top, width: u16, colour: bool) -> (Vec<Line<'static>>, Vec<Line<'static>>, Line<'static>) {
    let pen = Pen { width: usize::from(width), colour };
    let (mut head, mut body) = (Vec::new(), Vec::new());
    if let Some(seen) = &top.seen {
        head.push(pen.line(&format!("waterline  {}", seen.at.clock()), Paint::Head));
        head.push(pen.line(&format!("({})", seen.freshness), Paint::Faint));
        let (text, look) = summary(seen);
        head.push(pen.line(&text, look));
        body = streams(&pen, seen, &top.histories);
        body.push(Line::default());
        body.extend(queues(&pen, seen, &top.histories));
    }
    if let Some(failed) = &top.failed {
        head.push(pen.line(&format!("the last look has failed: {failed}"), Paint::Bad));
    }
    head.push(Line::default());
    (head, body, pen.line("q quits, arrows scroll", Paint::Faint))
}

/// Says how many need an operator.
fn summary(seen: &Seen) -> (String, Paint) {
    let stuck = seen.consumers.iter().filter(|consumer| consumer.all_advice().any(Advice::needs_you)).count()
        + seen.queues.iter().filter(|queue| queue.as_ref().map_or(true, Queue::needs_you)).count();
    match (stuck, seen.consumers.len() + seen.queues.len()) {
        (_, 0) => ("There is no consumer and no queue.".to_owned(), Paint::Plain),
        (0, _) => ("Nothing needs you.".to_owned(), Paint::Good),
        (1, all) => (format!("1 of {all} needs you."), Paint::Bad),
        (stuck, all) => (format!("{stuck} of {all} need you."), Paint::Bad),
    }
}

fn streams(pen: &Pen, seen: &Seen, histories: &Histories) -> Vec<Line<'static>> {
    if seen.consumers.is_empty() {
        return vec![pen.line("There is no consumer.", Paint::Faint)];
    }
    let row = |consumer: &Consumer| {
        let live = consumer.live.as_ref();
        let head = live.and_then(|live| live.head).or_else(|| log_head(seen, consumer));
        let lag = live.map_or_else(|| lag_in_log(seen, consumer), |live| live.lag);
        let left = live.and_then(|live| live.seconds_left).and_then(|left| Duration::try_from_secs_f64(left).ok());
        let parts = vec![
            LineCell::Left(plain(&consumer.name)),
            maybe(consumer.last_processed),
            maybe(head),
            maybe(lag),
            LineCell::Right(histories.rate(&consumer.name).map_or_else(dash, rate)),
            LineCell::Right(left.map_or_else(dash, length)),
            LineCell::Right(number(consumer.parked)),
            LineCell::Left(histories.of_stream(&consumer.name, PLOT)),
        ];
        (parts, of_stream(consumer))
    };
    pen.table(
        &["STREAM", "PROCESSED", "HEAD", "LAG", "JOBS/S", "LEFT", "PARKED", ""],
        seen.consumers.iter().map(row).collect(),
    )
}

fn dash() -> String {
    "-".to_owned()
}

fn maybe(value: Option<u64>) -> LineCell {
    LineCell::Right(value.map_or_else(dash, number))
}

/// A store does not know who reads a log. Mostly it is the consumer of the same name.
fn log_head(seen: &Seen, consumer: &Consumer) -> Option<u64> {
    seen.logs.iter().find(|log| log.name == consumer.name)?.head
}

fn lag_in_log(seen: &Seen, consumer: &Consumer) -> Option<u64> {
    Some(log_head(seen, consumer)?.saturating_add(1).saturating_sub(consumer.next?))
}

/// Returns the lines below a consumer: why it does not move, what is left over, and what helps.
fn of_stream(consumer: &Consumer) -> Vec<(String, Paint)> {
    // For a consumer that is only saved, its life says the same in fewer words.
    let is_plain = |advice: &&Advice| advice.reason != "saved";
    let saved = match consumer.life_open {
        _ if consumer.advice.reason != "saved" => None,
        Some(true) => Some("its life is open: only its process knows what it waits for"),
        Some(false) => Some("it has ended"),
        None => Some("only its process knows if it runs"),
    };
    let said = consumer.all_advice().filter(is_plain).flat_map(of_advice);
    saved.map(|saved| (saved.to_owned(), Paint::Faint)).into_iter().chain(said).collect()
}

fn of_advice(advice: &Advice) -> impl Iterator<Item = (String, Paint)> {
    let look = match advice.verdict {
        Verdict::GoesWell => Paint::Good,
        Verdict::NeedsYou => Paint::Bad,
        Verdict::Waits => Paint::Plain,
    };
    let help = [Some(advice.help.clone()), advice.command.clone()].into_iter().flatten();
    let help = help.filter(|help| !help.is_empty()).map(|help| (format!("  {help}"), Paint::Faint));
    std::iter::once((advice.sentence.clone(), look)).chain(help)
}

fn queues(pen: &Pen, seen: &Seen, histories: &Histories) -> Vec<Line<'static>> {
    if seen.queues.is_empty() {
        return vec![pen.line("There is no queue.", Paint::Faint)];
    }
    let row = |queue: &Result<Queue, (String, String)>| {
        let name = queue.as_ref().map_or_else(|(name, _)| name, |queue| &queue.name);
        let known = queue.as_ref().ok();
        let of = |number: fn(&Queue) -> u64| maybe(known.map(number));
        let speed = |speed: fn(&Queue) -> Option<f64>| LineCell::Right(known.and_then(speed).map_or_else(dash, rate));
        let oldest = known.and_then(|queue| queue.oldest_ready.as_ref());
        let parts = vec![
            LineCell::Left(plain(name)),
            of(|queue| queue.counts.ready),
            of(|queue| queue.counts.running),
            of(|queue| queue.counts.scheduled),
            of(|queue| queue.counts.waiting),
            of(|queue| queue.counts.dead),
            LineCell::Right(oldest.map_or_else(dash, |oldest| length(Duration::from_millis(oldest.age_ms)))),
            speed(|queue| queue.pushes_per_second),
            speed(|queue| queue.ends_per_second),
            LineCell::Left(histories.of_queue(name, PLOT)),
        ];
        let workers = seen.workers.get(name).into_iter().flat_map(of_workers);
        (parts, of_queue(queue.as_ref()).into_iter().chain(workers).collect())
    };
    pen.table(
        &["QUEUE", "READY", "RUNNING", "SCHEDULED", "WAITING", "DEAD", "OLDEST", "PUSHES/S", "ENDS/S", ""],
        seen.queues.iter().map(row).collect(),
    )
}

/// Returns the lines below a queue.
fn of_queue(queue: Result<&Queue, &(String, String)>) -> Vec<(String, Paint)> {
    match queue {
        Ok(queue) => queue.all_advice().flat_map(of_advice).collect(),
        Err((_, error)) => vec![(error.clone(), Paint::Bad)],
    }
}

/// Returns a line for all workers of a queue, and one for each of the first silent workers that
/// still have jobs.
fn of_workers(workers: &Result<Vec<Worker>, String>) -> Vec<(String, Paint)> {
    let workers = match workers {
        Ok(workers) => workers,
        Err(error) => return vec![(error.clone(), Paint::Bad)],
    };
    let lost = || workers.iter().filter(|worker| worker.busy > 0).filter_map(|worker| Some((worker, worker.lost()?)));
    let line = |(worker, lost): (&Worker, String)| (format!("  {}: {lost}", worker.shown()), Paint::Bad);
    let more = lost().count().saturating_sub(LOST) as u64;
    let more = (more > 0).then(|| (format!("  and {} more", count(more, "worker")), Paint::Bad));
    std::iter::once((summed(workers), Paint::Faint)).chain(lost().take(LOST).map(line)).chain(more).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_is_wider_than_its_column() {
        let cuts =
            [("abc", 3, "abc"), ("abcd", 3, "ab…"), ("日本語", 5, "日本…"), ("日本語", 4, "日…"), ("abc", 0, "")];
        for (text, width, wanted) in cuts {
            assert_eq!(fit(text, width), wanted);
            assert!(fit(text, width).width() <= width, "{text}");
        }
    }

    #[test]
    fn workers_share_a_line_and_three_lost_ones_have_their_own() {
        let silent = |n: u32, busy| Worker {
            name: Some(format!("w{n}")),
            busy,
            is_silent: true,
            lease_left: Some(12_000),
            ..Worker::default()
        };
        let works = Worker { slots: Some(16), busy: 14, ..Worker::default() };
        let lines = |workers: Vec<Worker>| of_workers(&Ok(workers)).into_iter().map(|line| line.0).collect::<Vec<_>>();
        assert_eq!(lines(vec![]), ["no worker"]);
        let few = lines(vec![works.clone(), silent(1, 2), silent(2, 0)]);
        let lost = |n: u32| format!("  w{n}: no longer heard of; its 2 jobs come back in 12s");
        assert_eq!(few, ["1 worker, 14 of 16 slots busy; 2 are no longer heard of".to_owned(), lost(1)]);
        let many = lines((0..9).map(|n| silent(n, 2)).collect());
        assert_eq!(many[1..], [lost(0), lost(1), lost(2), "  and 6 workers more".to_owned()]);
        assert_eq!(of_workers(&Err("no".to_owned()))[0].0, "no");
    }
}
