//! A web page that shows the consumers and queues of [`waterline`], served by your own program: one
//! sentence says why each of them does not move, with the button that helps beside it.
//!
//! [`Page`] has an example. Mount it in your own web server, or let it serve itself.
//!
//! # What it costs
//!
//! A thread samples each name once a second, from counters in memory, and keeps an hour of samples.
//! All else is read only for an open tab, at most twice a second. With ten consumers, ten queues
//! and 100,000 jobs in memory, on two busy virtual cores, that is 0.009 % of a core without a tab,
//! 0.19 % with an open overview, and as much again for a list of jobs.
//!
//! # Who may do what
//!
//! | | a mounted [router](Page::router) | a page that [serves](Page::serve) itself |
//! |---|---|---|
//! | to look | your server decides | from this machine: every caller, or with the [token](Page::token) if there is one; from elsewhere: with the token |
//! | to change something | with [`allow_writes`](Page::allow_writes): your server decides | with `allow_writes` and the token |
//!
//! Each change is a `POST` with `Content-Type: application/json` and `X-Waterline-Page: 1`, and
//! with `Sec-Fetch-Site: same-origin` or an `Origin` that is the page's own. Behind a proxy that
//! changes the `Host`, set the address that browsers use: [`Page::origin`]. A program that sends
//! the token as `Authorization: Bearer …` needs no `Origin`. A page that serves itself answers
//! under its address and under `localhost`, and under no other name. Nothing is loaded from other
//! sites, no script is inline, and what your jobs and users wrote is shown as text.
//!
//! A page that serves itself has at most 256 connections. Each carries one request, with 10 seconds
//! for its headers and 10 for its body. One address may have at most 16 connections without a
//! complete request: a further one closes the oldest of them, which is logged. With 2,000 sockets
//! that trickle bytes, a request is answered within milliseconds. From the 20th wrong token within
//! a minute on, each wrong one is answered a second later.
//!
//! [`Page::serve`] has no TLS. An address that other machines reach belongs behind a proxy that
//! encrypts.
//!
//! # The API
//!
//! The page is drawn from JSON that your programs may use, too. Times are milliseconds since 1970,
//! and durations are milliseconds, unless the name says otherwise. An integer above 2^53 is a
//! string, since a browser would round it. An error is `{"error": "…"}`.
//!
//! | `GET` | parameters | answers |
//! |---|---|---|
//! | `api/overview` | | `title`, `writes`, `why_read_only`, and a row for each of `streams`, `pipelines`, `queues`, and `stored` where [they are shown](Page::stored) |
//! | `api/health` | | the worst `verdict` of them, and what `needs_you`, each with its `sentence`: 503 if anything does, otherwise 200. It is for monitoring, not a liveness probe: do not kill a process that needs an operator |
//! | `api/saved` | | the [`consumers`](waterline::Store::consumers) and the [`logs`](waterline::Store::logs) of the store, also those that are not on the page |
//! | `api/stream` | `name` | the row, the window as a `strip` with its `running` and its `retries`, and the `last_halt` |
//! | `api/stored` | `name` | a consumer of [`Page::stored`], its parked `jobs` and its `moves`, at most 100 of each |
//! | `api/parked` | `stream`, `from`, `limit` | a page of parked `jobs`, their `count`, and the index of the `next` page |
//! | `api/history` | `stream`, `skip`, `limit` | the `moves` by an operator, newest first |
//! | `api/plots` | `stream` or `queue`, `span` (`minute`, `hour`) | a list of numbers for each plot, with their `time` in seconds |
//! | `api/queue` | `name` | the row, the `limits`, the `gate`, the `slots` of the runner, and the run times of each of the `kinds` |
//! | `api/schedules` | `queue` | the periodic jobs |
//! | `api/workers` | `queue`, `skip`, `limit` | a page of the [`workers`](waterline_queue::Queue::workers), silent ones with jobs first; their `count`, and the `next` page; how many are `taking` jobs, their `slots` (`null` if one has no bound), and how many of these are `busy`; how many are `stopping` and `silent` |
//! | `api/jobs` | `queue`, `state`, `kind`, `key`, `cursor`, `limit` | a page of `jobs`, and the cursor of the `next` one |
//! | `api/count` | `queue`, `state`, `kind`, `key` | the `count` of these jobs, and whether that `is_all` |
//! | `api/job` | `queue`, `id` | all that is kept of a job, with the jobs `after` which and `before` which it runs |
//! | `api/live/VIEW` | those of the view | the view as server-sent events whenever it changes, at most twice a second; the event `failure` is an error |
//!
//! `api/parked` and `api/history` take a consumer of `api/saved`, too.
//!
//! The row of a stream has its [`status`](waterline::Status), `jobs_per_second`, `behind_seconds`
//! (the age of the oldest unprocessed job), `seconds_left`, and `advice`. That of a queue has its
//! [`status`](waterline_queue::QueueStatus), `pushes_per_second`, `starts_per_second`,
//! `ends_per_second`, and `advice`. Rates are of the last minute, and `null` where this process
//! knows none. `of_this_process` says that other processes may have the queue, too, whose jobs the
//! rates do not count.
//!
//! `advice` is that of the library ([`Status::advice`](waterline::Status::advice)): a `sentence`,
//! its `reason` as a word, a `verdict` (`goes_well`, `waits`: it goes on by itself, `needs_you`: an
//! operator has to act), and a line of `help`. The page adds the `action` that helps: a `label`,
//! and a `change` to post or a `link` of the page. A row has the first one as `advice`, what is
//! left over (parked and dead jobs) as a list in `also`, and the worst verdict of them as
//! `verdict`.
//!
//! A filter by kind or by key reads at most 10,000 rows per request: `read` says how many, and
//! `next` where to go on. The letters of the `cells` of a strip are those of
//! [`StripCell`](waterline::StripCell). The percentiles of run times count from the start of the
//! page.
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
//! | `push`, as the program does it. The answer also has the `id`, and whether the job `is_new` | `kind`, `payload`, and the `id` if it is yours |
//! | `requeue_all`, `run_all_now`, `cancel_all`, `remove_all` | the filter, and the `count` that the caller has seen: no more are changed |
//! | `set_max_processing` (of its [runner](Page::runner)) | `value` |
//! | `remove_schedule` | `name` |
//!
//! The tool for the terminal, `waterline --url`, uses this API.
//!
//! `run_now` is [`Queue::run_now`](waterline_queue::Queue::run_now): a push of the same id that is
//! due now. `cancel` removes the job.

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
