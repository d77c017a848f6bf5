//! A page in the user's own web server, under each kind of path.

use crate::http::{Answer, send};
use crate::world::{TOKEN, World};
use axum::Router;
use serde_json::json;
use std::net::SocketAddr;
use waterline::State;
use waterline_ui::Page;

/// Starts the user's own web server.
fn serve(app: Router) -> (tokio::runtime::Runtime, SocketAddr) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let addr = listener.local_addr().unwrap();
    runtime.spawn(async move { axum::serve(listener, app).await });
    (runtime, addr)
}

fn get(addr: SocketAddr, path: &str) -> Answer {
    send(addr, "GET", path, &[], "")
}

#[test]
fn a_page_works_with_and_without_a_trailing_slash() {
    let world = World::new();
    let page = world.page();
    let app = Router::new()
        .merge(page.at("/admin/waterline"))
        .merge(page.at("/ops/"))
        .nest("/a", Router::new().nest("/b", page.router()))
        .nest("/c/", page.router())
        .nest_service("/d", page.router())
        .route("/", axum::routing::get(|| async { "the user's own" }));
    let (_runtime, addr) = serve(app);
    assert_eq!(get(addr, "/").body, "the user's own");
    for (prefix, bare, slash) in [
        ("/admin/waterline", true, true),
        ("/ops", true, true),
        ("/d", true, true),
        ("/a/b", true, false),
        ("/c", false, true),
    ] {
        // The page says where the browser finds its files.
        for (path, base, is_there) in
            [(prefix.to_owned(), format!("{prefix}/"), bare), (format!("{prefix}/"), "./".to_owned(), slash)]
        {
            let page = get(addr, &path);
            assert_eq!(page.status, if is_there { 200 } else { 404 }, "{path}: {page:?}");
            assert!(!is_there || page.body.contains(&format!("src=\"{base}assets/page.js\"")), "{path}: {}", page.body);
        }
        for file in ["assets/page.js", "assets/page.css", "assets/uplot.js", "api/overview", "api/", "api"] {
            assert_eq!(get(addr, &format!("{prefix}/{file}")).status, 200, "{prefix}/{file}");
        }
        assert_eq!(get(addr, &format!("{prefix}/nothing")).status, 404);
    }
    for app in [page.router(), page.at("/")] {
        let (_runtime, addr) = serve(app);
        assert!(get(addr, "/").body.contains("src=\"./assets/page.js\""));
    }
}

#[test]
fn the_login_form_leads_back_to_the_page() {
    let world = World::new();
    let page = world.page().token(TOKEN);
    let app = Router::new().nest("/bare", page.router()).merge(page.at("/both"));
    let (_runtime, addr) = serve(app);
    let own = format!("http://{addr}");
    for (path, action, back) in
        [("/bare", "/bare/login", "/bare"), ("/both", "/both/login", "/both"), ("/both/", "./login?slash", "/both/")]
    {
        let form = get(addr, path);
        assert_eq!(form.status, 401);
        assert!(form.body.contains(&format!("action=\"{action}\"")), "{}", form.body);
        let action = action.replace("./", "/both/");
        let entered = send(addr, "POST", &action, &[("origin", &own)], &format!("token={}", TOKEN.replace(' ', "+")));
        assert_eq!((entered.status, entered.headers.get("location")), (303, Some(back)), "{path}");
    }
}

#[test]
fn a_mounted_page_takes_only_same_origin_changes() {
    let world = World::new();
    let post = |addr: SocketAddr, headers: &[(&str, &str)]| {
        let marks = [("content-type", "application/json"), ("x-waterline-page", "1")];
        let pause = json!({"action": "pause", "stream": "blocks"}).to_string();
        send(addr, "POST", "/w/api/change", &[&marks, headers].concat(), &pause).status
    };
    let mount = |page: Page| serve(Router::new().nest("/w", page.router()));
    let (_runtime, addr) = mount(world.page());
    assert_eq!(post(addr, &[("sec-fetch-site", "same-origin")]), 403);
    let (_runtime, addr) = mount(world.page().allow_writes(true));
    let own = format!("http://{addr}");
    assert_eq!(post(addr, &[]), 403);
    assert_eq!(post(addr, &[("sec-fetch-site", "cross-site"), ("origin", &own)]), 403);
    assert_eq!(post(addr, &[("origin", "https://evil.example"), ("sec-fetch-site", "same-origin")]), 403);
    // A proxy has changed the host, and the page has no `origin`.
    assert_eq!(post(addr, &[("origin", "https://ops.example.org"), ("sec-fetch-site", "same-origin")]), 403);
    assert_eq!(world.blocks.handle().status().state, State::Running);
    assert_eq!(post(addr, &[("origin", &own)]), 200);
    assert_eq!(world.blocks.handle().status().state, State::Paused);
    let (_runtime, addr) = mount(world.page().allow_writes(true).origin("https://ops.example.org/deep/"));
    assert_eq!(post(addr, &[("origin", "https://ops.example.org"), ("sec-fetch-site", "same-origin")]), 200);
    assert_eq!(post(addr, &[("host", "evil.example"), ("sec-fetch-site", "same-origin")]), 421);
    assert!(get(addr, "/w").body.contains("src=\"/deep/assets/page.js\""));
}
