//! A page for the browser that shows the consumers and the queues of [`waterline`], served by your
//! own program: why each of them does not move, in one sentence, and the right button beside it.
//!
//! [`Page`] has an example. Mount it in your own server, or let it be served by itself.
//!
//! # What it costs
//!
//! A thread takes a sample of each name once a second, of counters that are in memory, and keeps an
//! hour of them. All else is read when somebody looks: at most twice a second for each open tab.
//! With ten consumers, ten queues and 100,000 jobs in memory, on two busy virtual cores, that is
//! 0.009 % of a core while nobody looks, 0.19 % for an open overview, and as much again for a list
//! of jobs.
//!
//! # Who may do what
//!
//! | | a mounted [router](Page::router) | [served](Page::serve) by itself |
//! |---|---|---|
//! | to look | your server decides | from this machine: everybody, or who has the [token](Page::token); from elsewhere: who has it |
//! | to change something | with [`allow_writes`](Page::allow_writes): your server decides | with `allow_writes` and the token |
//!
//! Each change is a `POST` with `Content-Type: application/json` and `X-Waterline-Page: 1`, and
//! with `Sec-Fetch-Site: same-origin` or an `Origin` that is the page's own. Behind a proxy that
//! changes the `Host`, say the address that people have: [`Page::origin`]. A program that sends the
//! token as `Authorization: Bearer …` needs no `Origin`. A page that is served by itself answers
//! under its address and under `localhost`, and under no other name. Nothing is loaded from
//! elsewhere, no script stands in the page itself, and what your jobs and users wrote is shown as
//! text.
//!
//! A page that is served by itself has 256 connections at most, each for one request, which has 10
//! seconds for its headers and 10 for its body. One address has at most 16 that have sent no whole
//! request: for a new one the oldest of them goes, and a line of the log says so. With 2,000
//! sockets that send a byte now and then, a look is answered within milliseconds. From 20 wrong
//! tokens a minute on, each wrong one is answered a second later.
//!
//! [`Page::serve`] has no TLS. An address that other machines reach belongs behind something that
//! encrypts.
//!
//! # The API
//!
//! The page is drawn from JSON that you may use, too. Times are in milliseconds since 1970, and
//! durations in milliseconds, if the name says nothing else. An integer above 2^53 is a text, since
//! a browser would round it. An answer that is no success is `{"error": "…"}`.
//!
//! | `GET` | parameters | answers |
//! |---|---|---|
//! | `api/overview` | | `title`, `writes`, `why_read_only`, and a row of each of `streams`, `pipelines`, `queues`, and of `stored` where [they are shown](Page::stored) |
//! | `api/health` | | the worst `verdict` of them, and what `needs_you`, with the `sentence` of each: 503 if anything does, otherwise 200. It is for a monitor; a process that needs an operator is not to be killed |
//! | `api/saved` | | the [`consumers`](waterline::Store::consumers) and the [`logs`](waterline::Store::logs) of the store, those that are not on the page too |
//! | `api/stream` | `name` | the row, the window as a `strip` with its `running` and its `retries`, and the `last_halt` |
//! | `api/stored` | `name` | a consumer of [`Page::stored`], its parked `jobs` and its `moves`, 100 of each at most |
//! | `api/parked` | `stream`, `from`, `limit` | a page of parked `jobs`, their `count`, and the index of the `next` page |
//! | `api/history` | `stream`, `skip`, `limit` | the `moves` that an operator made on purpose, the newest first |
//! | `api/plots` | `stream` or `queue`, `span` (`minute`, `hour`) | a list of numbers for each plot, with their `time` in seconds |
//! | `api/queue` | `name` | the row, the `limits`, the `gate`, the `slots` of the runner, and the run times of each of the `kinds` |
//! | `api/schedules` | `queue` | the periodic jobs |
//! | `api/workers` | `queue`, `skip`, `limit` | a page of the [`workers`](waterline_queue::Queue::workers), those first that are no longer heard of and have jobs; their `count`, the `next` page, and of those that are `taking` jobs the `slots` (`null`: one has no bound) and how many are `busy`; the numbers of those that are `stopping` and `silent` |
//! | `api/jobs` | `queue`, `state`, `kind`, `key`, `cursor`, `limit` | a page of `jobs`, and the cursor of the `next` one |
//! | `api/count` | `queue`, `state`, `kind`, `key` | the `count` of them, and if that `is_all` |
//! | `api/job` | `queue`, `id` | all that is kept of a job, with those `after` which it runs, and those `before` which it runs |
//! | `api/live/VIEW` | those of the view | the view as server-sent events, when it has changed, at most twice a second; an event `failure` is an error |
//!
//! `api/parked` and `api/history` take a consumer of `api/saved`, too.
//!
//! The row of a stream has its [`status`](waterline::Status), `jobs_per_second`, `behind_seconds`
//! (the time for which the oldest unprocessed job has been there), `seconds_left`, and `advice`.
//! That of a queue has its [`status`](waterline_queue::QueueStatus), `pushes_per_second`,
//! `starts_per_second`, `ends_per_second`, and `advice`. Rates are those of the last minute, and
//! `null` where this process knows none. `of_this_process` says that others may have the queue,
//! too, which they do not count.
//!
//! `advice` is that of the library ([`Status::advice`](waterline::Status::advice)): a `sentence`,
//! its `reason` as a word, a `verdict` (`goes_well`, `waits`: it goes on by itself, `needs_you`: an
//! operator has to act), and a line of `help`. The page adds the `action` that helps: a `label`,
//! and a `change` to post or a `link` of the page. A row has the first one as `advice`, what is
//! left over (parked and dead jobs) as a list in `also`, and the worst verdict of them as
//! `verdict`.
//!
//! A filter by kind or by key reads at most 10,000 rows for a request: `read` says how many it has
//! read, and `next` where to go on. The letters of the `cells` of a strip are those of
//! [`StripCell`](waterline::StripCell). The percentiles of run times are those since the page
//! began.
//!
//! `POST api/change` takes an object with an `action`, and answers `{"said": "…"}`:
//!
//! | `action` of a `stream` | also needs |
//! |---|---|
//! | `pause`, `resume`, `check` (look at the source now), `redrive_all` | |
//! | `redrive`, `discard` (a parked job) | `index` |
//! | `skip`, `seek` to the next job (once the program has let go of the consumer) | `index`, `reason` |
//! | `remove` (once the program has let go of the consumer): its progress is removed | |
//! | `set_max_processing`, `set_max_search_ahead` | `value` |
//!
//! | `action` of a `queue` | also needs |
//! |---|---|
//! | `pause` (for some `seconds`, or until it is resumed), `resume` | |
//! | `requeue_dead`. The answer has their number, too (`requeued`) | |
//! | `requeue`, `run_now`, `cancel`, `remove` | `id` |
//! | `push`, as the program does it. The answer has the `id`, too, and if the job `is_new` | `kind`, `payload`, and the `id` if it is yours |
//! | `requeue_all`, `run_all_now`, `cancel_all`, `remove_all` | the filter, and the `count` that the person has seen: no more are changed |
//! | `set_max_processing` (of its [runner](Page::runner)) | `value` |
//! | `remove_schedule` | `name` |
//!
//! The tool for the terminal, `waterline --url`, uses this API.
//!
//! Running now is a push of the same id that is due now:
//! [`Queue::run_now`](waterline_queue::Queue::run_now). Cancelling is removing.

mod advice;
mod answer;
mod assets;
mod changes;
mod conn_limit;
mod error;
mod failure;
mod guard;
#[cfg(test)]
mod lines;
mod live;
mod page;
mod parts;
mod samples;
mod serve;
mod session;
mod shared;
mod site;
mod views;
mod web;

pub use error::{NotAnOrigin, ServeError};
pub use page::Page;
pub use parts::Watched;
pub use serve::Served;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
