//! The routes, and the checks before them.

use crate::answer::{LONGEST, answer, html, refuse};
use crate::assets::{self, Place};
use crate::changes::Change;
use crate::failure::Failure;
use crate::guard::{Guard, Refusal};
use crate::live;
use crate::session::LASTS;
use crate::shared::Shared;
use crate::site::{Site, aside};
use crate::views::{Query, VIEWS, view};
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, OriginalUri, Path, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Router, extract};
use serde_json::json;
use std::sync::Arc;
use std::time::Instant;
use waterline::Verdict;

pub(crate) fn router(shared: Arc<Shared>, guard: Guard) -> Router {
    let site = Site { shared, guard: Arc::new(guard) };
    Router::new()
        .route("/", get(home))
        .route("/login", post(log_in))
        .route("/logout", post(log_out))
        .route("/assets/{name}", get(asset))
        .route("/api", get(index))
        .route("/api/", get(index))
        .route("/api/change", post(change))
        .route("/api/live/{view}", get(live::follow))
        .route("/api/{view}", get(look))
        .fallback(other)
        .layer(from_fn_with_state(site.clone(), check))
        .layer(DefaultBodyLimit::max(LONGEST))
        .with_state(site)
}

/// Checks each request, and tells the browser what the page may do.
async fn check(State(site): State<Site>, mut request: Request, next: Next) -> Response {
    // HTTP/2 has the host in the URI.
    let authority = request.uri().authority().and_then(|host| HeaderValue::from_str(host.as_str()).ok());
    if let (false, Some(host)) = (request.headers().contains_key(header::HOST), authority) {
        request.headers_mut().insert(header::HOST, host);
    }
    let path = request.uri().path().to_owned();
    let headers = request.headers();
    let is_data = path.starts_with("/api");
    let checked = if is_data { site.guard.check_data(headers) } else { site.guard.check_site(headers) };
    let is_open = path == "/login" || path.starts_with("/assets/");
    let checked = checked.and_then(|()| {
        let token = site.guard.check_token(headers, &site.shared.sessions);
        if is_open { Ok(()) } else { token }
    });
    if checked == Err(Refusal::Token) && crate::guard::bearer(headers).is_some() {
        site.shared.wrong.noted().await;
    }
    let mut response = match checked {
        Ok(()) => next.run(request).await,
        // A person gets a form, and a program the reason.
        Err(Refusal::Token) if !is_data && request.method() == Method::GET => {
            let place = place(&site.guard, request.uri().path(), request.extensions().get::<OriginalUri>());
            html(StatusCode::UNAUTHORIZED, assets::login(&place, false))
        }
        Err(refusal) => refuse(refusal),
    };
    let headers = response.headers_mut();
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

/// The headers of each answer.
const HEADERS: [(header::HeaderName, &str); 5] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; \
         base-uri 'none'; frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    // With `no-referrer`, a browser would hide the origin of a form, too.
    (header::REFERRER_POLICY, "same-origin"),
    (header::CACHE_CONTROL, "no-store"),
];

/// Returns where the page is, as the browser sees it.
fn place(guard: &Guard, path: &str, original: Option<&OriginalUri>) -> Place {
    let original = original.map_or(path, |original| original.path());
    let slash = original.ends_with('/');
    if let Some(path) = guard.path() {
        return Place { base: path.to_owned(), slash };
    }
    // The path of the page is what precedes the route.
    let mount = original.strip_suffix(path).unwrap_or(original).trim_end_matches('/');
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/-._~%".contains(c);
    // A proxy may have changed that, so prefer a path relative to the address in the browser.
    let is_here = slash && matches!(path, "" | "/");
    let base = if is_here || !mount.chars().all(is_plain) { "./".to_owned() } else { format!("{mount}/") };
    Place { base, slash }
}

/// Returns where the form leads back to. The form says whether the address of the page had a
/// trailing slash, since a server may know it only with or only without that.
fn back(guard: &Guard, path: &str, original: &OriginalUri) -> String {
    let Place { base, .. } = place(guard, path, Some(original));
    let bare = base.trim_end_matches('/');
    if original.query() == Some("slash") || bare.is_empty() { base } else { bare.to_owned() }
}

async fn home(State(site): State<Site>, original: OriginalUri, request: Request) -> Response {
    let place = place(&site.guard, request.uri().path(), Some(&original));
    html(StatusCode::OK, assets::page(&place, &site.shared.title))
}

/// Answers a path without a route. A mounted router may get its own path here.
async fn other(State(site): State<Site>, original: OriginalUri, request: Request) -> Response {
    if matches!(request.uri().path(), "" | "/") && request.method() == Method::GET {
        return home(State(site), original, request).await;
    }
    Failure::not_found("there is nothing here: the page is at its root, and its data below api/").into_response()
}

async fn asset(Path(name): Path<String>) -> Response {
    match assets::named(&name) {
        Some((kind, text)) => ([(header::CONTENT_TYPE, kind)], Body::from(text)).into_response(),
        None => Failure::not_found(format!("there is no file {name:?}")).into_response(),
    }
}

async fn index() -> Response {
    answer(StatusCode::OK, json!({"views": VIEWS, "change": "POST api/change", "follow": "GET api/live/{view}"}))
}

async fn look(
    State(site): State<Site>,
    Path(name): Path<String>,
    extract::Query(query): extract::Query<Query>,
) -> Response {
    let is_health = name == "health";
    let looked = aside(move || view(&site.shared, &site.guard, &name, &query)).await;
    match looked.and_then(|looked| looked) {
        // The health check says by its status whether an operator has to act.
        Ok(value) if value["verdict"] == json!(Verdict::NeedsYou) && is_health => {
            answer(StatusCode::SERVICE_UNAVAILABLE, value)
        }
        Ok(value) => answer(StatusCode::OK, value),
        Err(failure) => failure.into_response(),
    }
}

async fn change(State(site): State<Site>, method: Method, headers: HeaderMap, body: Bytes) -> Response {
    if let Err(refusal) = site.guard.check_change(&method, &headers) {
        return refuse(refusal);
    }
    let change = match serde_json::from_slice::<Change>(&body) {
        Ok(change) => change,
        Err(error) => return Failure::bad(format!("the body is no change: {error}")).into_response(),
    };
    let made = aside(move || change.make(&site.shared)).await;
    match made.and_then(|made| made) {
        Ok(value) => answer(StatusCode::OK, value),
        Err(failure) => failure.into_response(),
    }
}

/// Reads the token of the login form.
fn token_in(form: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(form).ok()?;
    let value = text.split('&').find_map(|pair| pair.strip_prefix("token="))?;
    let mut bytes = Vec::new();
    let mut rest = value.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

async fn log_in(State(site): State<Site>, original: OriginalUri, headers: HeaderMap, body: Bytes) -> Response {
    if let Err(refusal) = site.guard.check_same_origin(&headers) {
        return refuse(refusal);
    }
    let given = token_in(&body);
    let is_right = site.guard.token().zip(given).is_some_and(|(token, given)| token.is(given.trim()));
    if !is_right {
        site.shared.wrong.noted().await;
        let mut again = place(&site.guard, "/login", Some(&original));
        again.slash = original.query() == Some("slash");
        return html(StatusCode::UNAUTHORIZED, assets::login(&again, true));
    }
    let Some(secret) = site.shared.sessions.begin(Instant::now()) else {
        let text = "the system has no random numbers, so nobody can log in: send the token as a header";
        return Failure { status: StatusCode::INTERNAL_SERVER_ERROR, text: text.to_owned() }.into_response();
    };
    let (lasts, settings) = (LASTS.as_secs(), site.guard.cookie_settings());
    let cookie = format!("{}={secret}; Max-Age={lasts}; {settings}", site.guard.cookie());
    let back = back(&site.guard, "/login", &original);
    (StatusCode::SEE_OTHER, [(header::LOCATION, back), (header::SET_COOKIE, cookie)]).into_response()
}

async fn log_out(State(site): State<Site>, original: OriginalUri, headers: HeaderMap) -> Response {
    if let Err(refusal) = site.guard.check_same_origin(&headers) {
        return refuse(refusal);
    }
    if let Some(secret) = site.guard.session(&headers) {
        site.shared.sessions.end(secret);
    }
    let back = back(&site.guard, "/logout", &original);
    let cookie = format!("{}=; Max-Age=0; {}", site.guard.cookie(), site.guard.cookie_settings());
    (StatusCode::SEE_OTHER, [(header::LOCATION, back), (header::SET_COOKIE, cookie)]).into_response()
}
