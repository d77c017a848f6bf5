//! Followed views, as server-sent events.

use crate::answer::make_exact;
use crate::site::{Site, aside};
use crate::views::{Query, view};
use axum::extract::{Path, Query as Parameters, State};
use axum::http::HeaderMap;
use axum::response::Sse;
use axum::response::sse::{Event, KeepAlive};
use futures_util::stream::{Stream, unfold};
use serde_json::Value;
use std::convert::Infallible;
use std::time::Duration;
use tokio::time::{Interval, MissedTickBehavior, interval};

/// The time between two events of a view.
const EVERY: Duration = Duration::from_millis(500);

/// A client that follows a view.
struct Follower {
    site: Site,
    view: String,
    query: Query,
    headers: HeaderMap,
    ticks: Interval,
    /// The text of the last event. An equal one is not sent again.
    last: Result<String, String>,
}

impl Follower {
    async fn next(mut self) -> Option<(Result<Event, Infallible>, Self)> {
        loop {
            self.ticks.tick().await;
            // Its session may have ended meanwhile.
            self.site.guard.check_token(&self.headers, &self.site.shared.sessions).ok()?;
            let (site, view, query) = (self.site.clone(), self.view.clone(), self.query.clone());
            let text = aside(move || text_of(&site, &view, &query)).await.ok()?;
            if text != self.last {
                self.last = text;
                let event = match &self.last {
                    Ok(text) => Event::default().data(text),
                    // Browsers have their own `error` events.
                    Err(text) => Event::default().event("failure").data(text),
                };
                return Some((Ok(event), self));
            }
        }
    }
}

/// Sends a view whenever it has changed, at most twice a second.
pub(crate) async fn follow(
    State(site): State<Site>,
    Path(view): Path<String>,
    Parameters(query): Parameters<Query>,
    headers: HeaderMap,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    // These read many rows, so they are sent less often. The page itself does not follow them.
    let is_dear = view == "count" || ["kind", "key"].iter().any(|name| query.contains_key(*name));
    let mut ticks = interval(if is_dear { EVERY * 20 } else { EVERY });
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let follower = Follower { site, view, query, headers, ticks, last: Ok(String::new()) };
    Sse::new(unfold(follower, Follower::next)).keep_alive(KeepAlive::default())
}

/// Returns a view, or the failure to read it, as the text of an event.
fn text_of(site: &Site, name: &str, query: &Query) -> Result<String, String> {
    let text = |mut value: Value| {
        make_exact(&mut value);
        value.to_string()
    };
    view(&site.shared, &site.guard, name, query).map(text).map_err(|failure| text(failure.json()))
}
