//! Everything that a page refuses.

use crate::http::{Answer, send};
use crate::world::{TOKEN, World, change, look, until, view};
use serde_json::json;
use waterline::State;
use waterline_ui::{Page, ServeError, Served};

fn post(served: &Served, headers: &[(&str, &str)], body: &str) -> Answer {
    send(served.addr(), "POST", "/api/change", headers, body)
}

#[test]
fn a_page_without_a_token_is_read_only_and_says_why() {
    let world = World::new();
    let pause = json!({"action": "pause", "stream": "blocks"}).to_string();
    let marks = [("content-type", "application/json"), ("x-waterline-page", "1"), ("sec-fetch-site", "same-origin")];
    for (writes, why) in [(false, "allow_writes(true)"), (true, "without a token")] {
        let served = world.page().allow_writes(writes).serve("127.0.0.1:0").unwrap();
        let overview = look(&served, "/api/overview").json();
        assert_eq!(overview["writes"], json!(false));
        assert!(overview["why_read_only"].as_str().unwrap().contains(why), "{overview}");
        let refused = post(&served, &marks, &pause);
        assert!(refused.status == 403 && refused.body.contains(why), "{refused:?}");
    }
    assert_eq!(world.blocks.handle().status().state, State::Running);
}

#[test]
fn a_change_without_one_of_its_headers_is_refused() {
    let world = World::new();
    let served = world.writable();
    let bearer = format!("Bearer {TOKEN}");
    let own = format!("http://{}", served.addr());
    let marks = [
        ("authorization", bearer.as_str()),
        ("content-type", "application/json"),
        ("x-waterline-page", "1"),
        ("sec-fetch-site", "same-origin"),
        ("origin", own.as_str()),
    ];
    let pause = json!({"action": "pause", "stream": "blocks"}).to_string();
    let with = |name: &str, value: Option<&'static str>| {
        let mut headers: Vec<_> = marks.iter().filter(|mark| mark.0 != name).copied().collect();
        headers.extend(
            value.map(|value| marks.iter().find(|mark| mark.0 == name).map_or(("host", value), |mark| (mark.0, value))),
        );
        headers
    };
    for (headers, status, why) in [
        (with("authorization", None), 401, "a token is needed"),
        (with("authorization", Some("Bearer the token of the testx")), 401, "a token is needed"),
        (with("content-type", None), 415, "application/json"),
        (with("content-type", Some("text/plain")), 415, "application/json"),
        (with("x-waterline-page", None), 403, "X-Waterline-Page"),
        (with("sec-fetch-site", Some("cross-site")), 403, "another site"),
        (with("sec-fetch-site", Some("same-site")), 403, "another site"),
        (with("origin", Some("https://evil.example")), 403, "another site"),
        (with("origin", Some("null")), 403, "another site"),
        (with("host", Some("evil.example")), 421, "not served under that name"),
    ] {
        let refused = post(&served, &headers, &pause);
        assert!(refused.status == status && refused.body.contains(why), "{headers:?}: {refused:?}");
    }
    for method in ["GET", "PUT", "DELETE", "PATCH"] {
        let refused = send(served.addr(), method, "/api/change", &marks, &pause);
        assert!(refused.status >= 400, "{method}: {refused:?}");
    }
    assert_eq!(world.blocks.handle().status().state, State::Running);
    assert_eq!(post(&served, &marks, &pause).status, 200);
    assert_eq!(world.blocks.handle().status().state, State::Paused);
}

#[test]
fn a_bad_body_is_refused_with_the_reason() {
    let world = World::new();
    let served = world.writable();
    for (wrong, status, why) in [
        (json!({}), 400, "action"),
        (json!({"action": "pause"}), 400, "stream"),
        (json!({"action": "pause", "stream": "blocks", "queue": "mail"}), 400, "either"),
        (json!({"action": "explode", "stream": "blocks"}), 400, "explode"),
        (json!({"action": "explode", "queue": "mail"}), 400, "explode"),
        (json!({"action": "pause", "stream": "nobody"}), 404, "nobody"),
        (json!({"action": "pause", "stream": "blocks", "colour": "red"}), 400, "colour"),
        (json!({"action": "redrive", "stream": "blocks"}), 400, "index"),
        (json!({"action": "redrive", "stream": "blocks", "index": 7}), 404, "not parked"),
        (json!({"action": "set_max_processing", "stream": "blocks", "value": 0}), 400, "max_processing"),
        (json!({"action": "set_max_processing", "queue": "mail", "value": 3}), 400, "Page::runner"),
        (json!({"action": "skip", "stream": "blocks", "index": 1, "reason": "x"}), 409, "in use"),
        (json!({"action": "requeue", "queue": "mail", "id": "m/0"}), 409, "ready"),
        (json!({"action": "cancel", "queue": "mail", "id": "nobody"}), 404, "nobody"),
        (json!({"action": "requeue_all", "queue": "mail", "state": "ready", "count": 5}), 400, "ready"),
        (json!({"action": "cancel_all", "queue": "mail", "state": "ready"}), 400, "count"),
        (json!({"action": "remove_schedule", "queue": "mail", "name": "nobody"}), 404, "nobody"),
    ] {
        let (found, said) = change(&served, &wrong);
        assert!(found == status && said["error"].as_str().unwrap().contains(why), "{wrong}: {found} {said}");
    }
    let bearer = format!("Bearer {TOKEN}");
    let headers = [("authorization", bearer.as_str()), ("content-type", "application/json"), ("x-waterline-page", "1")];
    assert_eq!(post(&served, &headers, "no JSON").status, 400);
    assert_eq!(post(&served, &headers, &" ".repeat(65 * 1024)).status, 413);
}

#[test]
fn a_public_address_needs_a_long_token() {
    let world = World::new();
    assert!(matches!(world.page().serve("0.0.0.0:0"), Err(ServeError::NeedsToken { .. })));
    assert!(matches!(world.page().token("short").serve("127.0.0.1:0"), Err(ServeError::ShortToken { .. })));
    assert!(matches!(world.page().origin("ops").serve("127.0.0.1:0"), Err(ServeError::Origin(_))));
    assert!(matches!(world.page().serve("nowhere"), Err(ServeError::Listen(_))));
    let taken = world.page().serve("127.0.0.1:0").unwrap();
    assert!(matches!(world.page().serve(taken.addr()), Err(ServeError::Listen(_))));
    let served = world.page().token(TOKEN).serve("0.0.0.0:0").unwrap();
    assert_eq!(look_at(&served, "/api/overview").status, 401);
}

/// Requests a path of a page that is served on all addresses.
fn look_at(served: &Served, path: &str) -> Answer {
    let addr = ([127, 0, 0, 1], served.addr().port()).into();
    send(addr, "GET", path, &[], "")
}

#[test]
fn the_form_logs_in_and_out() {
    let world = World::new();
    let served = world.writable();
    let form = look(&served, "/");
    assert!(form.status == 401 && form.body.contains("<form method=\"post\" action=\"./login?slash\">"), "{form:?}");
    // Its style needs no token.
    assert_eq!(look(&served, "/assets/page.css").status, 200);
    let own = format!("http://{}", served.addr());
    let log_in = |origin: &str, body: &str| {
        let headers = [("origin", origin), ("content-type", "application/x-www-form-urlencoded")];
        send(served.addr(), "POST", "/login", &headers, body)
    };
    let right = format!("token={}", TOKEN.replace(' ', "+"));
    assert_eq!(log_in("https://evil.example", &right).status, 403);
    assert_eq!(send(served.addr(), "POST", "/login", &[], &right).status, 403);
    for wrong in ["", "token=", "token=%", "token=%zz", "token=wrong"] {
        let refused = log_in(&own, wrong);
        assert!(refused.status == 401 && refused.body.contains("That is not the token"), "{refused:?}");
    }
    let entered = log_in(&own, &right);
    assert_eq!((entered.status, entered.headers.get("location")), (303, Some("/")));
    let cookie = entered.headers.get("set-cookie").unwrap();
    assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict") && !cookie.contains(TOKEN), "{cookie}");
    let session = cookie.split(';').next().unwrap();
    let with =
        |method: &str, path: &str| send(served.addr(), method, path, &[("cookie", session), ("origin", &own)], "");
    assert_eq!(with("GET", "/api/overview").json()["writes"], json!(true));
    assert_eq!(with("POST", "/logout").status, 303);
    assert_eq!(with("GET", "/api/overview").status, 401);
}

#[test]
fn each_answer_forbids_foreign_scripts_and_frames() {
    let world = World::new();
    let served = world.page().serve("127.0.0.1:0").unwrap();
    let page = look(&served, "/");
    assert!(page.body.contains("&lt;indexer&gt;") && !page.body.contains("<indexer>"), "{}", page.body);
    // No script or style is inline, and nothing is loaded from other sites.
    assert!(!page.body.contains("<style") && !page.body.contains(" style=") && !page.body.contains("://"));
    assert!(page.body.matches("<script").count() == page.body.matches("<script src=\"./assets/").count());
    for path in ["/", "/api/overview", "/assets/page.js", "/nothing", "/api/nothing"] {
        let answer = look(&served, path);
        let policy = answer.headers.get("content-security-policy").unwrap();
        assert!(policy.contains("default-src 'none'") && policy.contains("script-src 'self';"), "{policy}");
        assert!(policy.contains("frame-ancestors 'none'") && !policy.contains("unsafe"), "{policy}");
        assert_eq!(answer.headers.get("x-content-type-options"), Some("nosniff"));
        assert_eq!(answer.headers.get("access-control-allow-origin"), None);
        assert!(answer.body.len() > 1, "{path}");
    }
    // Another name that points here is refused.
    assert_eq!(send(served.addr(), "GET", "/", &[("host", "evil.example")], "").status, 421);
}

#[test]
fn names_are_unique_and_sampling_ends_with_the_page() {
    let world = World::new();
    let page = Page::new(&world.store);
    let twice = page.watch(world.blocks.handle()).watch(world.blocks.handle()).queue(&world.mails).queue(&world.mails);
    let served = twice.clone().token(TOKEN).serve("127.0.0.1:0").unwrap();
    let overview = view(&served, "/api/overview");
    let names =
        |rows: &str| overview[rows].as_array().unwrap().iter().map(|row| row["name"].clone()).collect::<Vec<_>>();
    assert_eq!((names("streams"), names("queues")), (vec![json!("blocks")], vec![json!("mail"), json!("mail (2)")]));
    let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
    let before = threads();
    let another = twice.title("another").serve("127.0.0.1:0").unwrap();
    until(|| threads() >= before + 2);
    drop(another);
    until(|| threads() <= before);
}

/// Takes real time, since the pause is that of tokio.
#[test]
fn wrong_tokens_are_delayed_but_not_the_right_one() {
    let world = World::new();
    let served = world.writable();
    let ask = |token: &str| {
        let begun = std::time::Instant::now();
        let answer = send(served.addr(), "GET", "/api/overview", &[("authorization", &format!("Bearer {token}"))], "");
        (answer.status, begun.elapsed().as_secs())
    };
    for _ in 0..19 {
        assert_eq!(ask("a token that is wrong").0, 401);
    }
    for _ in 0..2 {
        let (status, seconds) = ask("a token that is wrong");
        assert!(status == 401 && seconds >= 1, "{status} after {seconds} s");
    }
    let own = format!("http://{}", served.addr());
    let begun = std::time::Instant::now();
    let headers = [("origin", own.as_str()), ("content-type", "application/x-www-form-urlencoded")];
    assert_eq!(send(served.addr(), "POST", "/login", &headers, "token=wrong").status, 401);
    assert!(begun.elapsed().as_secs() >= 1, "the form, too");
    assert_eq!(ask(TOKEN).0, 200);
    // A request without a token is refused at once.
    assert_eq!(look(&served, "/api/overview").status, 401);
}
