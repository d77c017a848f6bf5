//! Requests to a page, and a one-line error for each way in which they fail.

use crate::error::Fault;
use crate::format::{cut, plain};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use std::io;
use std::time::Duration;
use ureq::http::header::{AUTHORIZATION, CONTENT_TYPE, LOCATION, ORIGIN};
use ureq::http::uri::Scheme;
use ureq::http::{HeaderName, HeaderValue, Response, StatusCode, Uri};
use ureq::{Agent, Body};

/// The variable with the token of a page.
const TOKEN: &str = "WATERLINE_TOKEN";

/// The variable with headers for a login proxy before a page: one `Name: value` per line.
const HEADER: &str = "WATERLINE_HEADER";

/// The variable with the timeout for an answer, in seconds.
const TIMEOUT: &str = "WATERLINE_TIMEOUT";

/// The default timeout for an answer: a look may wait for a disk.
const PATIENCE: Duration = Duration::from_secs(30);

/// The timeout for a connection.
const CONNECT: Duration = Duration::from_secs(5);

/// The largest answer. A page of 500 jobs with long errors has some 10 MB.
const LARGEST: u64 = 64 * 1024 * 1024;

/// The longest part of a server's text in an error, in characters.
const TEXT: usize = 500;

/// An HTTP client of a `waterline-ui` page.
pub(super) struct Client {
    agent: Agent,
    /// The address of the page, without a slash at its end.
    pub(super) base: String,
    origin: HeaderValue,
    headers: Vec<(HeaderName, HeaderValue)>,
    patience: Duration,
}

/// The page has refused a request, or cannot do it.
pub(super) struct Refused {
    pub(super) status: StatusCode,
    pub(super) fault: Fault,
}

impl From<Refused> for Fault {
    fn from(refused: Refused) -> Self {
        refused.fault
    }
}

/// A failure before there was an answer.
impl From<Fault> for Refused {
    fn from(fault: Fault) -> Self {
        Self { status: StatusCode::BAD_GATEWAY, fault }
    }
}

impl Client {
    /// Reads the address and the variables. Nothing is sent.
    pub(super) fn new(url: &str) -> Result<Self, Fault> {
        let (base, uri) = address(url)?;
        let host = uri.authority().map(ToString::to_string).unwrap_or_default();
        let scheme = uri.scheme_str().unwrap_or("http");
        let origin = header_value(&format!("{scheme}://{host}"), "the host of the URL")?;
        let patience = seconds(variable(TIMEOUT)?.as_deref())?;
        // A token for this machine must not go through a proxy.
        let is_here = matches!(uri.host(), Some("localhost" | "127.0.0.1" | "[::1]"));
        let mut config = Agent::config_builder()
            .timeout_global(Some(patience))
            .timeout_connect(Some(CONNECT.min(patience)))
            // A redirect leads to a login form, or to another host, which must not get the token.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .http_status_as_error(false)
            .user_agent(concat!("waterline-cli/", env!("CARGO_PKG_VERSION")));
        if is_here {
            config = config.proxy(None);
        }
        Ok(Self { agent: config.build().into(), base, origin, headers: headers()?, patience })
    }

    /// Gets a view, with these parameters.
    pub(super) fn get(&self, view: &str, query: &[(&str, &str)]) -> Result<Value, Refused> {
        let pairs: Vec<_> = query.iter().map(|(name, value)| format!("{name}={}", encoded(value))).collect();
        let mark = if pairs.is_empty() { "" } else { "?" };
        let mut request = self.agent.get(format!("{}/api/{view}{mark}{}", self.base, pairs.join("&")));
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        self.read(request.call(), false)
    }

    pub(super) fn change(&self, change: &Value) -> Result<Value, Refused> {
        let mut request = self.agent.post(format!("{}/api/change", self.base));
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let request = request.header(CONTENT_TYPE, "application/json").header("X-Waterline-Page", "1");
        self.read(request.header(ORIGIN, &self.origin).send(change.to_string()), true)
    }

    fn read(&self, answer: Result<Response<Body>, ureq::Error>, is_change: bool) -> Result<Value, Refused> {
        let mut answer = answer.map_err(|error| self.unreached(error, is_change))?;
        let status = answer.status();
        let text = |name| answer.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let (kind, location) = (text(CONTENT_TYPE), text(LOCATION));
        let body = answer.body_mut().with_config().limit(LARGEST).read_to_vec();
        let body = body.map_err(|error| self.unreached(error, is_change))?;
        let json = serde_json::from_slice::<Value>(&body).ok().filter(Value::is_object);
        let refuse = |text: String| Refused { status, fault: Fault::new(text) };
        match (status.as_u16(), json) {
            (200, Some(json)) => Ok(json),
            (300..400, _) => {
                let to = location.map_or_else(|| "elsewhere".to_owned(), |to| format!("to {}", cut(&to, TEXT)));
                Err(refuse(format!("{} leads {to}: name the page itself, or pass its login with {HEADER}", self.base)))
            }
            // A proxy has given up, but the page may go on with the change.
            (502 | 504, None) if is_change => Err(refuse(self.in_doubt(&format!("the answer is {status}")))),
            (_, json) => Err(refuse(self.why(status, kind.as_deref(), json.as_ref()))),
        }
    }

    /// Explains an answer that is an error, or that does not come from a page.
    fn why(&self, status: StatusCode, kind: Option<&str>, json: Option<&Value>) -> String {
        let said = json.and_then(|json| json["error"].as_str()).map(|text| cut(text, TEXT));
        match (status.as_u16(), said) {
            (401, Some(_)) if self.headers.iter().any(|(name, _)| *name == AUTHORIZATION) => {
                format!("the page at {} does not take this token: set another one in {TOKEN}", self.base)
            }
            (401, Some(_)) => format!("the page at {} needs its token: set it in {TOKEN}", self.base),
            (_, Some(said)) => said,
            (401 | 403 | 407, None) => {
                format!("what stands before the page at {} refuses this with {status}: set {HEADER}", self.base)
            }
            (413, None) => "the page takes no change of more than 64 KiB".to_owned(),
            (_, None) => format!(
                "there is no page of waterline-ui at {}: it answers {status} with {}",
                self.base,
                kind.map_or_else(|| "a body of no type".to_owned(), |kind| cut(kind, TEXT))
            ),
        }
    }

    /// Says why there is no answer.
    fn unreached(&self, error: ureq::Error, is_change: bool) -> Fault {
        let mut is_sent = is_change;
        let why = match error {
            ureq::Error::Timeout(_) => format!("it has not answered within {} s", self.patience.as_secs_f64()),
            ureq::Error::HostNotFound => {
                is_sent = false;
                "there is no such host".to_owned()
            }
            ureq::Error::Io(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                is_sent = false;
                "nobody listens there: start the application, or correct the address".to_owned()
            }
            ureq::Error::BodyExceedsLimit(_) => "its answer is larger than 64 MiB".to_owned(),
            ureq::Error::TlsRequired => {
                is_sent = false;
                "this program was built without TLS: build it with the feature `tls`".to_owned()
            }
            error => format!("the connection fails: {error}"),
        };
        Fault::new(match is_sent {
            true => self.in_doubt(&why),
            false => format!("the page at {} cannot be reached: {why}", self.base),
        })
    }

    fn in_doubt(&self, why: &str) -> String {
        let base = &self.base;
        format!("the page at {base} gave no answer, and may have made the change: look before you repeat it ({why})")
    }
}

/// Parses the address of a page, which may be copied from a browser.
fn address(url: &str) -> Result<(String, Uri), Fault> {
    let bare = url.split('#').next().unwrap_or_default();
    let whole = if bare.contains("://") { bare.to_owned() } else { format!("http://{bare}") };
    let whole = whole.trim_end_matches('/').to_owned();
    // Never show a password.
    let shown = || match whole.rsplit_once('@') {
        Some((_, host)) => format!("…@{host}"),
        None => whole.clone(),
    };
    let no = |why: &str| Fault::new(format!("{:?} is no address of a page: {why}", plain(&shown())));
    let uri: Uri = whole.parse().map_err(|_| no("write it as http://127.0.0.1:8080/path"))?;
    match (uri.scheme(), uri.authority()) {
        (Some(scheme), Some(_)) if *scheme != Scheme::HTTP && *scheme != Scheme::HTTPS => {
            Err(no("it begins with http:// or https://"))
        }
        (Some(_), Some(authority)) if authority.as_str().contains('@') => Err(no(&format!(
            "everybody who lists the processes sees a password in it. Set {HEADER}, for example to \"Authorization: Basic …\""
        ))),
        (Some(_), Some(authority)) if !authority.host().is_empty() && uri.query().is_none() => Ok((whole, uri)),
        _ => Err(no("write it as http://127.0.0.1:8080/path")),
    }
}

/// Returns an environment variable, unless it is empty.
fn variable(name: &str) -> Result<Option<String>, Fault> {
    match std::env::var(name) {
        Ok(value) if !value.trim().is_empty() => Ok(Some(value)),
        Err(std::env::VarError::NotUnicode(_)) => Err(Fault::new(format!("the variable {name} is no text"))),
        _ => Ok(None),
    }
}

fn seconds(text: Option<&str>) -> Result<Duration, Fault> {
    let Some(text) = text else { return Ok(PATIENCE) };
    let time = text.trim().parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let time = time.filter(|time| !time.is_zero() && time.as_secs() <= 86_400);
    time.ok_or_else(|| {
        Fault::new(format!("the variable {TIMEOUT} is a number of seconds up to 86400, and not {text:?}"))
    })
}

/// Returns the headers of each request. An error never repeats a variable, which may be secret.
fn headers() -> Result<Vec<(HeaderName, HeaderValue)>, Fault> {
    let mut headers = Vec::new();
    for line in variable(HEADER)?.unwrap_or_default().lines().filter(|line| !line.trim().is_empty()) {
        let pair = line.split_once(':').and_then(|(name, value)| Some((name.trim().parse().ok()?, value.trim())));
        let (name, value): (HeaderName, _) =
            pair.ok_or_else(|| Fault::new(format!("the variable {HEADER} has a line that is not `Name: value`")))?;
        headers.push((name, secret(value, HEADER)?));
    }
    if let Some(token) = variable(TOKEN)? {
        headers.push((AUTHORIZATION, secret(&format!("Bearer {}", token.trim()), TOKEN)?));
    }
    Ok(headers)
}

fn secret(value: &str, variable: &str) -> Result<HeaderValue, Fault> {
    let mut value = header_value(value, &format!("the variable {variable}"))?;
    value.set_sensitive(true);
    Ok(value)
}

fn header_value(value: &str, what: &str) -> Result<HeaderValue, Fault> {
    HeaderValue::from_str(value).map_err(|_| Fault::new(format!("{what} has characters that no header has")))
}

/// Percent-encodes a part of a URL.
fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unanswered_change_is_in_doubt_once_sent() {
        let page = Client::new("http://127.0.0.1:8080").unwrap();
        let timeout = || ureq::Error::Timeout(ureq::Timeout::Global);
        let refused = || ureq::Error::Io(io::ErrorKind::ConnectionRefused.into());
        let reset = || ureq::Error::Io(io::ErrorKind::ConnectionReset.into());
        let doubts = |error: ureq::Error, is_change| {
            page.unreached(error, is_change).to_string().contains("may have made the change: look before you repeat it")
        };
        assert!(doubts(timeout(), true) && doubts(reset(), true));
        assert!(!doubts(refused(), true) && !doubts(ureq::Error::HostNotFound, true));
        assert!(!doubts(timeout(), false) && !doubts(reset(), false));
    }

    #[test]
    fn addresses_are_normalised_and_passwords_refused() {
        for (url, base) in [
            ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
            ("http://h/admin/waterline/", "http://h/admin/waterline"),
            ("https://h/w/#/stream?name=a%20b", "https://h/w"),
            ("h:8080/w", "http://h:8080/w"),
            ("http://[::1]:80/", "http://[::1]:80"),
        ] {
            assert_eq!(address(url).unwrap().0, base, "{url}");
        }
        for url in ["", "http://", "ftp://h", "http://h/?a=b", "http://h h/", "http://:80", "/w", "http://h/\u{1b}"] {
            let fault = address(url).unwrap_err().to_string();
            assert!(fault.contains("is no address of a page") && !fault.contains('\u{1b}'), "{url}: {fault}");
        }
        for url in ["http://ann:s3cret@h/", "ann:s3cret@h", "http://ann:s3cret@h h/", "ftp://ann:s3cret@h"] {
            let fault = address(url).unwrap_err().to_string();
            assert!(!fault.contains("s3cret"), "{fault}");
        }
        assert_eq!(encoded("a b/&?#ä"), "a%20b%2F%26%3F%23%C3%A4");
    }

    #[test]
    fn the_answer_timeout_is_a_number_of_seconds() {
        assert_eq!(seconds(Some(" 0.5 ")).unwrap(), Duration::from_millis(500));
        assert!(["0", "-1", "x", "1e9", "inf", "NaN"].iter().all(|text| seconds(Some(text)).is_err()));
    }
}
