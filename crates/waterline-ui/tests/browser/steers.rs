//! Changes that are made with clicks and keys.

use crate::driver::Browser;
use crate::world::{TOKEN, World, until};
use serde_json::json;
use waterline::State;
use waterline_queue::JobState;
use waterline_ui::Served;

/// Opens a page that takes changes, and types the token.
fn enter(browser: &Browser, served: &Served) {
    browser.open(&format!("http://{}/", served.addr()));
    browser.type_into("#token", TOKEN);
    browser.press("\u{e007}");
    // These are the stream with parked jobs and the queue with dead ones.
    browser.until_said("2 of 6 need you.");
}

#[test]
fn a_stream_is_controlled_by_its_buttons() {
    let world = World::new();
    let served = world.page().allow_writes(true).token(TOKEN).serve("127.0.0.1:0").unwrap();
    let browser = Browser::start();
    let handle = world.blocks.handle();
    world.mails.pause(None).unwrap();
    enter(&browser, &served);
    // The error of a job is shown as text.
    browser.until_said("<script>alert('no')</script>");
    browser.click("a", "blocks");
    browser.until("document.querySelector('.strip canvas')?.getAttribute('aria-label').includes('4 failed')");
    browser.click("button", "Pause");
    browser.until_said("the consumer is paused; resume it to go on");
    assert_eq!(handle.status().state, State::Paused);
    browser.click("main//div[contains(@class,'advice')]//button", "Resume");
    browser.until_said("blocks: running");
    assert_eq!(handle.status().state, State::Running);
    // Type the number in the dialog, and send it with Enter.
    browser.click("button", "At once: 4");
    browser.until("document.querySelector('dialog').open");
    browser.run("document.querySelector('dialog input').select()");
    browser.press("9\u{e007}");
    browser.until_said("At once: 9");
    assert_eq!(handle.strip(1).max_processing, 9);
    // A redriven job succeeds, now that the cause of its failure is gone.
    world.broken.lock().clear();
    browser.until_said("2 jobs failed for good");
    browser.click("tr[td[1]='40']//button", "Redrive");
    until(|| handle.status().parked == 1);
    browser.until_said("1 jobs failed for good");
    browser.click("tr[td[1]='41']//button", "Discard");
    browser.click("dialog//button", "Leave it");
    assert_eq!(handle.status().parked, 1);
    browser.click("tr[td[1]='41']//button", "Discard");
    browser.click("dialog//button", "Discard");
    browser.until_said("No job is parked");
    assert!(world.store.parked("blocks").unwrap().is_empty());
    assert_eq!(browser.complaints(), [] as [String; 0]);
}

#[test]
fn jobs_are_found_and_changed_by_filter() {
    let world = World::new();
    let served = world.page().allow_writes(true).token(TOKEN).serve("127.0.0.1:0").unwrap();
    let browser = Browser::start();
    world.mails.pause(None).unwrap();
    enter(&browser, &served);
    browser.click("a", "mail");
    browser.until_said("is paused until somebody resumes it");
    browser.click("main//div[contains(@class,'advice')]//button", "Resume");
    browser.until_said("the queue \"mail\" runs its jobs");
    // Find a job by its id.
    browser.type_into("input[name=id]", "tomorrow\u{e007}");
    browser.until("location.hash.startsWith('#/job')");
    browser.until_said("\"text\": \"<b>hello</b>\"");
    browser.until_said("Is awaited by");
    browser.click("button", "Run now");
    browser.until_said("is due now");
    assert_eq!(world.mails.state("tomorrow").unwrap(), Some(JobState::Ready));
    browser.click("main//a", "report");
    browser.until_said("Waits for");
    // Filter by state and key; the dialog says how many jobs it will change.
    browser.click("main//a", "mail");
    browser.until("location.hash.startsWith('#/queue')");
    browser.click("a[contains(@class,'button')]", "Jobs");
    browser.type_into("input[name=key]", "tenant 3\u{e007}");
    browser.until_said("rows were read");
    browser.click("button", "Cancel all of these");
    browser.until_said("These are all jobs that the filter shows: 17.");
    browser.click("dialog//button", "Cancel 17 jobs");
    browser.until_said("17 jobs are removed");
    assert_eq!(world.mails.counts().ready, 120 - 2 - 17 + 1);
    // Dead jobs have their errors.
    browser.run("location.hash = '#/jobs?queue=mail&state=dead'");
    browser.until_said("<img src=x onerror=alert(1)>");
    browser.click("main//a", "dead/0");
    browser.until("document.querySelector('pre.error')");
    browser.click("button", "Requeue");
    browser.until_said("is requeued");
    browser.run("history.back()");
    browser.until_said("Jobs that are dead");
    browser.click("button", "Requeue all of these");
    browser.click("dialog//button", "Requeue 5 jobs");
    browser.until_said("5 jobs are requeued");
    assert_eq!(world.mails.counts().dead, 0);
    // Resize the runner of the other queue.
    browser.run("location.hash = '#/queue?name=thumbnails'");
    browser.until_said("At once: 3");
    browser.until_said("p50");
    browser.click("tr[td[1]='sweep']//button", "Remove");
    browser.click("dialog//button", "Remove");
    browser.until_said("It has no periodic job.");
    assert!(world.thumbs.periodics().unwrap().is_empty());
    assert_eq!(browser.complaints(), [] as [String; 0]);
}

#[test]
fn without_rights_the_page_hides_data_or_says_why() {
    let world = World::new();
    let closed = world.page().allow_writes(true).token(TOKEN).serve("127.0.0.1:0").unwrap();
    let browser = Browser::start();
    browser.open(&format!("http://{}/", closed.addr()));
    browser.type_into("#token", "a token that is wrong\u{e007}");
    browser.until_said("That is not the token.");
    assert!(!browser.text("body").contains("blocks"));
    let open = world.page().serve("127.0.0.1:0").unwrap();
    browser.open(&format!("http://{}/#/stream?name=blocks", open.addr()));
    browser.until_said("Attempts");
    let button = "[...document.querySelectorAll('button')].find((button) => button.innerText === 'Pause')";
    assert_eq!(browser.run(&format!("return {button}.disabled")), json!(true));
    let why = browser.run(&format!("return {button}.title"));
    assert!(why.as_str().unwrap().contains("allow_writes(true)"), "{why}");
    // The page says when its program has gone.
    drop(open);
    browser.until_said("not connected");
}
