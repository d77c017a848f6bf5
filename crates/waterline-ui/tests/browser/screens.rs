//! The pictures of the documentation, which `.ci/screens` has made.

use crate::driver::Browser;
use crate::looks::VIEWS;
use crate::world::World;
use serde_json::json;
use std::path::Path;

#[test]
#[ignore = "it writes the pictures of the documentation: bash .ci/screens"]
fn each_view_has_its_picture() {
    let folder = std::env::var("WATERLINE_SCREENS").expect("WATERLINE_SCREENS names the folder of the pictures");
    let world = World::harmless();
    let served = world.page().allow_writes(true).router();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let addr = listener.local_addr().unwrap();
    runtime.spawn(async move { axum::serve(listener, served).await });
    let browser = Browser::start();
    browser.devtools(
        "Emulation.setEmulatedMedia",
        &json!({"features": [{"name": "prefers-color-scheme", "value": "light"}]}),
    );
    browser.resize(1_100, 900);
    browser.open(&format!("http://{addr}/"));
    // A plot of one point shows nothing.
    let lines = "[...document.querySelectorAll('.plot')].every((plot) => plot.plot?.data[0].length > 20)";
    for (name, hash, text) in VIEWS {
        browser.run(&format!("location.hash = {}", json!(hash)));
        browser.until_said(text);
        browser.until(lines);
        browser.picture(&Path::new(&folder).join(format!("{name}.png")));
    }
}
