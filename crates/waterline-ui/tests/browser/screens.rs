//! The screenshots of the documentation, which `.ci/screens` makes.

use crate::driver::Browser;
use crate::looks::VIEWS;
use crate::world::World;
use serde_json::json;
use std::path::Path;

#[test]
fn each_view_has_a_picture_that_the_readmes_show() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let names = |file: &str, picture: &str| {
        let text = std::fs::read_to_string(root.join(file)).unwrap();
        text.contains(&format!("({picture})")) || text.contains(&format!(": {picture}\n"))
    };
    for (name, ..) in VIEWS {
        let (file, folder) = if name == "overview" { ("page", "docs") } else { (name, "crates/waterline-ui/docs") };
        let picture = std::fs::read(root.join(format!("{folder}/{file}.png"))).unwrap_or_default();
        assert!(picture.starts_with(b"\x89PNG"), "{name} has no picture: bash .ci/screens");
        let is_named = if name == "overview" {
            names("README.md", "docs/page.png") && names("crates/waterline-ui/README.md", "../../docs/page.png")
        } else {
            names("crates/waterline-ui/README.md", &format!("docs/{file}.png"))
        };
        assert!(is_named, "{name}");
    }
}

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
    // Wait until the plots have enough points to show something.
    let lines = "[...document.querySelectorAll('.plot')].every((plot) => plot.plot?.data[0].length > 20)";
    for (name, hash, text) in VIEWS {
        browser.run(&format!("location.hash = {}", json!(hash)));
        browser.until_said(text);
        browser.until(lines);
        browser.picture(&Path::new(&folder).join(format!("{name}.png")));
    }
}
