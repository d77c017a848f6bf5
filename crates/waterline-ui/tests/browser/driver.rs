//! A headless browser, driven over the WebDriver protocol.

use crate::http::send;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long the page may take to show something on a busy machine.
const PATIENCE: Duration = Duration::from_secs(90);

/// The key by which the protocol names an element.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// A Chromium and its driver. Both end when this is dropped.
pub(crate) struct Browser {
    driver: Child,
    addr: SocketAddr,
    session: String,
    _profile: tempfile::TempDir,
}

impl Browser {
    pub(crate) fn start() -> Self {
        let mut driver = Command::new("chromedriver")
            .arg("--port=0")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("chromedriver: {error}; install it with: bash .ci/setup ui"));
        let said = BufReader::new(driver.stdout.take().unwrap());
        let lines = said.lines().map(Result::unwrap);
        let port = lines
            .filter_map(|line| line.strip_suffix('.')?.rsplit_once("started successfully on port ")?.1.parse().ok())
            .next();
        let port: u16 = port.expect("it says its port");
        let profile = tempfile::tempdir().unwrap();
        let args = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            "--force-color-profile=srgb",
            "--lang=en",
            &format!("--user-data-dir={}", profile.path().display()),
        ];
        let options = json!({"args": args, "binary": chromium()});
        let wanted =
            json!({"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}});
        let mut browser =
            Self { driver, addr: ([127, 0, 0, 1], port).into(), session: String::new(), _profile: profile };
        let begun = browser.call("POST", "/session", &json!({"capabilities": {"alwaysMatch": wanted}}));
        browser.session = begun["sessionId"].as_str().unwrap_or_else(|| panic!("no session: {begun}")).to_owned();
        browser.resize(1_280, 900);
        browser
    }

    fn call(&self, method: &str, path: &str, body: &Value) -> Value {
        self.try_call(method, path, body).unwrap_or_else(|error| panic!("{method} {path}: {error}"))
    }

    fn try_call(&self, method: &str, path: &str, body: &Value) -> Result<Value, Value> {
        let body = if method == "POST" { body.to_string() } else { String::new() };
        let answer = send(self.addr, method, path, &[("content-type", "application/json")], &body);
        let value = answer.json()["value"].clone();
        if answer.status == 200 { Ok(value) } else { Err(value) }
    }

    fn of_session(&self, method: &str, path: &str, body: &Value) -> Result<Value, Value> {
        self.try_call(method, &format!("/session/{}{path}", self.session), body)
    }

    pub(crate) fn resize(&self, width: u32, height: u32) {
        // A window with a frame cannot be as narrow as a telephone.
        self.devtools(
            "Emulation.setDeviceMetricsOverride",
            &json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false}),
        );
    }

    /// Calls the DevTools protocol.
    pub(crate) fn devtools(&self, name: &str, params: &Value) -> Value {
        self.of_session("POST", "/goog/cdp/execute", &json!({"cmd": name, "params": params})).unwrap()
    }

    pub(crate) fn open(&self, url: &str) {
        self.of_session("POST", "/url", &json!({"url": url})).unwrap();
    }

    /// Runs a script in the page, and returns its result.
    pub(crate) fn run(&self, script: &str) -> Value {
        self.of_session("POST", "/execute/sync", &json!({"script": script, "args": []}))
            .unwrap_or_else(|error| panic!("{script}: {error}"))
    }

    /// Waits until a script returns true.
    #[track_caller]
    pub(crate) fn until(&self, script: &str) {
        let begun = Instant::now();
        while self.run(&format!("return Boolean({script})")) != json!(true) {
            assert!(begun.elapsed() < PATIENCE, "it never came: {script}\nthe page says:\n{}", self.text("body"));
        }
    }

    /// Waits until the page shows this text.
    #[track_caller]
    pub(crate) fn until_said(&self, text: &str) {
        self.until(&format!("document.body.innerText.includes({})", json!(text)));
    }

    /// Returns the text of the first element that matches.
    pub(crate) fn text(&self, selector: &str) -> String {
        let text =
            self.run(&format!("return (document.querySelector({}) || {{innerText: ''}}).innerText", json!(selector)));
        text.as_str().unwrap_or_default().to_owned()
    }

    /// Clicks on the element with this text, which has to be visible.
    #[track_caller]
    pub(crate) fn click(&self, kind: &str, text: &str) {
        let find = format!("(//{kind}[normalize-space(.)={}])[1]", quoted(text));
        self.click_on("xpath", &find);
    }

    #[track_caller]
    pub(crate) fn click_on(&self, by: &str, find: &str) {
        let begun = Instant::now();
        loop {
            // The page may have redrawn the element meanwhile.
            let found = self.of_session("POST", "/element", &json!({"using": by, "value": find}));
            let clicked = found.and_then(|found| {
                let id = found[ELEMENT].as_str().unwrap_or_default().to_owned();
                self.of_session("POST", &format!("/element/{id}/click"), &json!({}))
            });
            let Err(error) = clicked else { return };
            assert!(begun.elapsed() < PATIENCE, "{find}: {error}\nthe page says:\n{}", self.text("body"));
        }
    }

    /// Types into the element that matches, or wherever the focus is.
    #[track_caller]
    pub(crate) fn type_into(&self, selector: &str, text: &str) {
        self.until(&format!("document.querySelector({})", json!(selector)));
        self.run(&format!("document.querySelector({}).focus()", json!(selector)));
        self.press(text);
    }

    /// Presses keys one after the other. `\u{e004}` is Tab, `\u{e007}` Enter.
    pub(crate) fn press(&self, keys: &str) {
        let each = |key: char| ["keyDown", "keyUp"].map(|kind| json!({"type": kind, "value": key.to_string()}));
        let actions: Vec<_> = keys.chars().flat_map(each).collect();
        let actions = json!({"actions": [{"type": "key", "id": "keys", "actions": actions}]});
        self.of_session("POST", "/actions", &actions).unwrap();
    }

    /// Returns what the browser logs as severe: errors of scripts, and violations of the policy.
    pub(crate) fn complaints(&self) -> Vec<String> {
        let entries = self.of_session("POST", "/se/log", &json!({"type": "browser"})).unwrap();
        let all = entries.as_array().unwrap().iter().filter(|entry| entry["level"] == "SEVERE");
        // Without the token, the page answers with the login form.
        let messages = all.map(|entry| entry["message"].to_string());
        messages.filter(|message| !message.contains("401 (Unauthorized)")).collect()
    }

    /// Writes a screenshot of the page.
    pub(crate) fn picture(&self, path: &Path) {
        let height = self.run("return Math.min(document.documentElement.scrollHeight, 1400)").as_u64().unwrap() as u32;
        let width = self.run("return innerWidth").as_u64().unwrap() as u32;
        self.resize(width, height);
        self.run("window.dispatchEvent(new Event('redraw'))");
        let shot = self.devtools("Page.captureScreenshot", &json!({"format": "png"}));
        std::fs::write(path, unbase64(shot["data"].as_str().unwrap())).unwrap();
        self.resize(width, 900);
    }
}

fn chromium() -> &'static str {
    let known = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"];
    known
        .into_iter()
        .find(|path| Path::new(path).exists())
        .expect("chromium is missing: install it with: bash .ci/setup ui")
}

fn quoted(text: &str) -> String {
    if text.contains('"') { format!("'{text}'") } else { format!("\"{text}\"") }
}

fn unbase64(text: &str) -> Vec<u8> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let values = text.bytes().filter_map(|byte| DIGITS.iter().position(|digit| *digit == byte)).collect::<Vec<_>>();
    let group = |group: &[usize]| {
        let bits = group.iter().fold(0, |bits, value| bits << 6 | value) << (6 * (4 - group.len()));
        [bits >> 16, bits >> 8, bits].map(|byte| byte as u8).into_iter().take(group.len() * 3 / 4).collect::<Vec<_>>()
    };
    values.chunks(4).flat_map(group).collect()
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The end of the session ends the browser, which is no child of this process.
        let end = std::panic::AssertUnwindSafe(|| self.of_session("DELETE", "", &Value::Null));
        let _ = std::panic::catch_unwind(end);
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}
