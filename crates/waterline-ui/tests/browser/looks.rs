//! The page for those who have a narrow screen, no mouse, or a screen reader.

use crate::driver::Browser;
use crate::world::World;
use serde_json::{Value, json};
use waterline::queue::NewJob;
use waterline::{Consumer, MemoryJobs, OnExhausted, Store};
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

/// Returns the elements that a screen reader would have no name for.
const NAMELESS: &str = "
    const named = (e) => e.getAttribute('aria-label') || e.getAttribute('title') || e.innerText?.trim()
        || (e.labels && e.labels.length) || e.getAttribute('aria-labelledby');
    const all = document.querySelectorAll('button, a, input, select, [role=img], [role=region], meter + *, progress');
    return [...all].filter((e) => e.checkVisibility() && !named(e)).map((e) => e.outerHTML.slice(0, 200));";

#[test]
fn each_view_is_readable_at_400_pixels_in_dark_and_in_light_and_has_a_name_for_everything() {
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
            // One heading of each level leads to the next one.
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
fn a_person_with_a_keyboard_alone_gets_everywhere_and_keeps_the_focus_while_the_page_moves() {
    let world = World::new();
    let served = world.page().serve("127.0.0.1:0").unwrap();
    let browser = Browser::start();
    browser.open(&format!("http://{}/", served.addr()));
    browser.until_said("blocks");
    let focus = || browser.run("return document.activeElement.innerText || document.activeElement.tagName");
    browser.press("\u{e004}");
    assert_eq!(focus(), json!("Skip to the content"));
    // From there on Tab leads to the first consumer, whose name is a link.
    let mut seen = Vec::new();
    while focus() != json!("blocks") {
        browser.press("\u{e004}");
        seen.push(focus());
        assert!(seen.len() < 40, "{seen:?}");
    }
    // The page is drawn anew, and the focus stays.
    world.blocks.handle().pause();
    browser.until_said("the consumer is paused");
    assert_eq!(focus(), json!("blocks"));
    browser.press("\u{e007}");
    browser.until("location.hash === '#/stream?name=blocks'");
    browser.until_said("Attempts");
    let shown: Value = browser.run("return document.title");
    assert_eq!(shown, json!("Stream blocks – indexer <of the tests>"));
    assert_eq!(browser.run("return document.activeElement.id"), json!("main"));
    // The plots say in words what they draw.
    browser.until("document.querySelector('.plot')?.getAttribute('aria-label')?.includes('over the last minute')");
    browser.click("button", "Last hour");
    browser.until("document.querySelector('.plot').getAttribute('aria-label').includes('over the last hour')");
}

#[test]
fn a_list_with_a_filter_shows_new_jobs_by_itself() {
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
fn a_page_of_a_store_shows_its_consumers_as_they_are_saved() {
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
