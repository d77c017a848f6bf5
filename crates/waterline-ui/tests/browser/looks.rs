//! The page on a narrow screen, without a mouse, and with a screen reader.

use crate::driver::Browser;
use crate::world::{TOKEN, World};
use serde_json::{Value, json};
use waterline::{Consumer, MemoryJobs, OnExhausted, Store};
use waterline_queue::{Accept, NewJob, Outcome, Queue, QueueOptions, Runner, RunnerBuilder};
use waterline_ui::Page;

/// The views, with a text that each of them shows.
pub(crate) const VIEWS: [(&str, &str, &str); 7] = [
    ("overview", "#/", "needs you"),
    ("stream", "#/stream?name=blocks", "2 jobs failed for good"),
    ("pipeline", "#/streams", "slowest"),
    ("queue", "#/queue?name=mail", "Limits and how full they are"),
    ("schedules", "#/queue?name=thumbnails", "sweep"),
    ("jobs", "#/jobs?queue=mail&state=ready", "Next page"),
    ("job", "#/job?queue=mail&id=mail%2F0", "2 of 5 recipients"),
];

/// Finds the elements that have no name for a screen reader.
const NAMELESS: &str = "
    const named = (e) => e.getAttribute('aria-label') || e.getAttribute('title') || e.innerText?.trim()
        || (e.labels && e.labels.length) || e.getAttribute('aria-labelledby');
    const all = document.querySelectorAll('button, a, input, select, [role=img], [role=region], meter + *, progress');
    return [...all].filter((e) => e.checkVisibility() && !named(e)).map((e) => e.outerHTML.slice(0, 200));";

#[test]
fn each_view_fits_400_pixels_in_dark_and_light() {
    let world = World::new();
    let served = world.page().serve("127.0.0.1:0").unwrap();
    let browser = Browser::start();
    browser.open(&format!("http://{}/", served.addr()));
    let mut papers = Vec::new();
    for scheme in ["light", "dark"] {
        let features = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        browser.devtools("Emulation.setEmulatedMedia", &features);
        browser.resize(400, 800);
        for (name, hash, text) in VIEWS {
            browser.run(&format!("location.hash = {}", json!(hash)));
            browser.until_said(text);
            let wide =
                browser.run("return document.documentElement.scrollWidth - document.documentElement.clientWidth");
            assert_eq!(wide, json!(0), "{name} is too wide");
            assert_eq!(browser.run(NAMELESS), json!([]), "{name}");
            // The headings begin with the first level, and leave out none.
            let heads =
                browser.run("return [...document.querySelectorAll('h1, h2, h3')].map((h) => h.tagName).join(' ')");
            assert!(heads.as_str().unwrap().starts_with("H1 H2"), "{name}: {heads}");
        }
        papers.push(browser.run("return getComputedStyle(document.body).backgroundColor"));
    }
    assert_ne!(papers[0], papers[1]);
    assert_eq!(browser.complaints(), [] as [String; 0]);
}

#[test]
fn the_keyboard_reaches_all_and_keeps_the_focus() {
    let world = World::new();
    let served = world.page().serve("127.0.0.1:0").unwrap();
    let browser = Browser::start();
    browser.open(&format!("http://{}/", served.addr()));
    browser.until_said("blocks");
    let focus = || browser.run("return document.activeElement.innerText || document.activeElement.tagName");
    browser.press("\u{e004}");
    assert_eq!(focus(), json!("Skip to the content"));
    // From there, Tab leads to the first consumer, whose name is a link.
    let mut seen = Vec::new();
    while focus() != json!("blocks") {
        browser.press("\u{e004}");
        seen.push(focus());
        assert!(seen.len() < 40, "{seen:?}");
    }
    // A redraw keeps the focus.
    world.blocks.handle().pause();
    browser.until_said("the consumer is paused");
    assert_eq!(focus(), json!("blocks"));
    browser.press("\u{e007}");
    browser.until("location.hash === '#/stream?name=blocks'");
    browser.until_said("Attempts");
    let shown: Value = browser.run("return document.title");
    assert_eq!(shown, json!("Stream blocks – indexer <of the tests>"));
    assert_eq!(browser.run("return document.activeElement.id"), json!("main"));
    // The plots have a text, too.
    browser.until("document.querySelector('.plot')?.getAttribute('aria-label')?.includes('over the last minute')");
    browser.click("button", "Last hour");
    browser.until("document.querySelector('.plot').getAttribute('aria-label').includes('over the last hour')");
}

#[test]
fn on_a_narrow_screen_each_job_is_a_labelled_card() {
    let world = World::new();
    let served = world.page().serve("127.0.0.1:0").unwrap();
    let browser = Browser::start();
    browser.resize(390, 844);
    browser.open(&format!("http://{}/#/jobs?queue=mail&state=dead", served.addr()));
    browser.until_said("dead/0");
    let cards = browser.run(
        "return [...document.querySelectorAll('tbody tr')].map((row) => {
            const cells = [...row.children].filter((cell) => cell.checkVisibility());
            const tops = new Set(cells.map((cell) => Math.round(cell.getBoundingClientRect().top)));
            const box = row.getBoundingClientRect();
            return { cells: cells.length, lines: tops.size, right: Math.ceil(box.right), display: getComputedStyle(row).display,
                labels: cells.map((cell) => getComputedStyle(cell, '::before').content).join(' ') };
        })",
    );
    let cards = cards.as_array().unwrap();
    assert_eq!(cards.len(), 6);
    for card in cards {
        assert!(card["display"] == "block" && card["right"].as_u64() <= Some(390), "{card}");
        assert!(card["cells"].as_u64() >= Some(6) && card["cells"] == card["lines"], "each cell has a line: {card}");
        let labels = card["labels"].as_str().unwrap();
        assert!(
            ["id", "kind", "since", "error"].iter().all(|label| labels.contains(&format!("\"{label}\""))),
            "{card}"
        );
    }
    let wide = browser.run("return document.documentElement.scrollWidth - document.documentElement.clientWidth");
    assert_eq!(wide, json!(0), "nothing is to be scrolled to the side");
    // On a wide screen it is a table.
    browser.resize(1_280, 900);
    assert_eq!(browser.run("return getComputedStyle(document.querySelector('tbody tr')).display"), json!("table-row"));
}

#[test]
fn on_a_narrow_screen_workers_are_bounded_cards() {
    let store = Store::in_memory();
    let queue = Queue::open(&store, "mail", QueueOptions::default()).unwrap();
    queue.push_all((0..12).map(|n| NewJob::new("welcome", &n).unwrap().id(format!("m/{n}")))).unwrap();
    let leases: Vec<_> = (0..12).map(|_| queue.accept(Accept::new()).unwrap().unwrap()).collect();
    let none = |builder: RunnerBuilder, n: u32| builder.on(format!("kind {n}"), |_job, ()| Ok(Outcome::Done));
    let runner = (0..9).fold(Runner::builder(&queue), none).max_processing(40).start().unwrap();
    let served = Page::new(&store).queue(&queue).serve("127.0.0.1:0").unwrap();
    let browser = Browser::start();
    browser.resize(390, 844);
    browser.open(&format!("http://{}/#/queue?name=mail", served.addr()));
    browser.until_said("1 worker, 12 of 40 slots busy.");
    for text in ["kind 5, and 3 more", "m/7 welcome, for ", "and 4 more", "12 of 40", &std::process::id().to_string()] {
        browser.until_said(text);
    }
    let said = browser.run("return document.querySelector('main').innerText");
    assert!(!said.as_str().unwrap().contains("m/8"), "{said}");
    let wide = browser.run("return document.documentElement.scrollWidth - document.documentElement.clientWidth");
    assert_eq!((wide, browser.run(NAMELESS)), (json!(0), json!([])));
    // Show workers that no store has: one that is stopping, and one that is silent.
    let worker = |more: Value| {
        let mut worker = json!({"name": "w1", "process": 7, "host": "node", "language": "python", "version": "3.12", "kinds": null, "slots": 4,
            "busy": 0, "began": 0, "silent_for": 2_000, "is_silent": false, "is_stopping": false, "jobs": [], "lease_left": null});
        more.as_object().unwrap().iter().for_each(|(name, value)| worker[name] = value.clone());
        worker
    };
    let job = json!({"id": "h0", "kind": "welcome", "ran_for": 720_000});
    let fleet = json!({"count": 30, "next": 20, "taking": 1, "slots": 4, "busy": 0, "stopping": 1, "silent": 3, "workers": [
        worker(json!({"is_silent": true, "busy": 1, "lease_left": 12_000, "jobs": [job]})), worker(json!({"is_silent": true, "busy": 70, "lease_left": 5_000})),
        worker(json!({"is_silent": true})), worker(json!({"is_stopping": true})), worker(json!({}))]});
    browser.run(&format!(
        "const real = window.fetch;
         window.fetch = (at, how) => String(at).includes('api/workers') ? Promise.resolve(new Response({})) : real(at, how)",
        json!(fleet.to_string())
    ));
    for text in [
        "1 worker, 0 of 4 slots busy; 1 stops; 3 are no longer heard of.",
        "no longer heard of; its job comes back in 12 s",
        "no longer heard of; its 70 jobs come back in 5 s",
        "no longer heard of; it has no job",
        "h0 welcome, for 12 min 0 s",
        "2 s ago",
        "stopping",
        "And 25 more",
        "node:7",
        "python 3.12",
    ] {
        browser.until_said(text);
    }
    drop(leases);
    runner.stop().unwrap();
    assert_eq!(browser.complaints(), [] as [String; 0]);
}

/// Returns the roles and names that a screen reader gets, without what it ignores.
fn tree(browser: &Browser) -> Vec<(String, String)> {
    let all = browser.devtools("Accessibility.getFullAXTree", &json!({}));
    let nodes = all["nodes"].as_array().unwrap().iter().filter(|node| node["ignored"] != true);
    let text = |value: &Value| value["value"].as_str().unwrap_or_default().to_owned();
    nodes.map(|node| (text(&node["role"]), text(&node["name"]))).collect()
}

/// Asserts that a screen reader gets these.
#[track_caller]
fn says(tree: &[(String, String)], wanted: &[(&str, &str)]) {
    for (role, name) in wanted {
        let is_it = |node: &&(String, String)| node.0 == *role && node.1.starts_with(name);
        assert!(tree.iter().any(|node| is_it(&node)), "there is no {role} {name:?}: {tree:#?}");
    }
}

#[test]
fn a_screen_reader_gets_roles_and_names() {
    let world = World::new();
    let served = world.page().serve("127.0.0.1:0").unwrap();
    let browser = Browser::start();
    browser.open(&format!("http://{}/#/stream?name=blocks", served.addr()));
    browser.until_said("2 jobs failed for good");
    for width in [1_280, 390] {
        browser.resize(width, 900);
        let tree = tree(&browser);
        says(
            &tree,
            &[
                ("banner", ""),
                ("navigation", "Views"),
                ("main", ""),
                ("heading", "blocks"),
                ("heading", "Parked jobs"),
                ("group", "Steer the consumer"),
                ("button", "Pause"),
                ("link", "Look at these jobs"),
                ("image", "The window, from 77"),
                ("table", "2 jobs failed for good"),
                ("columnheader", "error"),
                ("cell", ""),
                ("StaticText", "40"),
                ("status", ""),
            ],
        );
        let roles = ["button", "link", "image", "table", "heading", "dialog", "textbox", "combobox"];
        let nameless: Vec<_> = tree.iter().filter(|(role, name)| roles.contains(&&**role) && name.is_empty()).collect();
        assert!(nameless.is_empty(), "at {width}: {nameless:?}");
    }
    assert_eq!(browser.complaints(), [] as [String; 0]);
}

#[test]
fn a_dialog_works_by_keyboard_and_has_a_name() {
    let world = World::new();
    let served = world.page().allow_writes(true).token(TOKEN).serve("127.0.0.1:0").unwrap();
    let browser = Browser::start();
    browser.open(&format!("http://{}/#/stream?name=blocks", served.addr()));
    browser.type_into("#token", &format!("{TOKEN}\u{e007}"));
    // The form leads to the overview.
    browser.until_said("need you.");
    browser.run("location.hash = '#/stream?name=blocks'");
    browser.until_said("At once: 4");
    let focus = || browser.run("return document.activeElement.innerText || document.activeElement.tagName");
    let mut seen = Vec::new();
    while focus() != json!("At once: 4") {
        browser.press("\u{e004}");
        seen.push(focus());
        assert!(seen.len() < 40, "{seen:?}");
    }
    let (tab, enter, escape) = ("\u{e004}", "\u{e007}", "\u{e00c}");
    browser.press(enter);
    browser.until("document.querySelector('dialog').open");
    assert_eq!(focus(), json!("INPUT"), "the field has the focus");
    says(&tree(&browser), &[("dialog", "Jobs at once"), ("spinbutton", "Jobs at once"), ("button", "Leave it")]);
    // What is behind the dialog is out of reach.
    for _ in 0..6 {
        browser.press(tab);
        let inside =
            "return document.activeElement === document.body || Boolean(document.activeElement.closest('dialog'))";
        assert_eq!(browser.run(inside), json!(true), "{}", focus());
    }
    browser.press(escape);
    browser.until("!document.querySelector('dialog').open");
    assert_eq!(focus(), json!("At once: 4"), "the focus is where it was");
    assert_eq!(world.blocks.handle().strip(1).max_processing, 4);
    browser.press(enter);
    browser.until("document.querySelector('dialog').open");
    browser.press(&format!("\u{e017}\u{e003}7{enter}"));
    browser.until_said("At once: 7");
    assert_eq!(world.blocks.handle().strip(1).max_processing, 7);
    // A change that loses something.
    browser.until_said("2 jobs failed for good");
    browser.run("[...document.querySelectorAll('button')].find((button) => button.innerText === 'Discard').focus()");
    browser.press(enter);
    browser.until("document.querySelector('dialog').open");
    says(&tree(&browser), &[("dialog", "Discard"), ("button", "Discard"), ("button", "Leave it")]);
    browser.press(&format!("{tab}{enter}"));
    browser.until("!document.querySelector('dialog').open");
    assert_eq!(world.blocks.handle().status().parked, 2, "it was left");
    assert_eq!(browser.complaints(), [] as [String; 0]);
}

#[test]
fn a_filtered_list_shows_new_jobs_by_itself() {
    let world = World::new();
    let served = world.page().serve("127.0.0.1:0").unwrap();
    let browser = Browser::start();
    browser.open(&format!("http://{}/#/jobs?queue=mail&state=ready&kind=postcard", served.addr()));
    browser.until_said("No job that is ready fits.");
    world.mails.push(NewJob::new("postcard", "from the sea").unwrap().id("the first one")).unwrap();
    browser.until_said("the first one");
    world.mails.remove("the first one").unwrap();
    browser.until_said("No job that is ready fits.");
}

#[test]
fn a_page_of_a_store_shows_saved_consumers() {
    let store = Store::in_memory();
    let park = OnExhausted::Park { budget: 9 };
    let jobs: MemoryJobs<u64> = (0..4).collect();
    let consumer = Consumer::builder(jobs, store.progress("blocks")).stop_at(3).on_exhausted(park);
    let run = |job: &waterline::Job<u64>| if job.index == 2 { Err("no <b>header</b>".into()) } else { Ok(()) };
    consumer.start(move |job| run(&job)).unwrap().join().unwrap();
    let served = Page::new(&store).stored().serve("127.0.0.1:0").unwrap();
    let browser = Browser::start();
    browser.open(&format!("http://{}/", served.addr()));
    browser.until_said("Streams, as they are saved");
    browser.until_said("1 of 1 needs you.");
    browser.click("a", "blocks");
    browser.until_said("no <b>header</b>");
    browser.until_said("Nobody has moved it on purpose.");
    assert_eq!(browser.run(NAMELESS), json!([]));
    assert_eq!(browser.complaints(), [] as [String; 0]);
}
