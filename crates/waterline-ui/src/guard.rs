//! The checks of each request, as pure functions of its method and headers.

use crate::error::NotAnOrigin;
use crate::session::{Sessions, Token};
use axum::http::{HeaderMap, Method, StatusCode, header};
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

/// The header that each change needs. A form on another site cannot send it.
pub(crate) const OURS: &str = "x-waterline-page";

/// The address of a page in a browser, in its parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    /// `https://ops.example.org`, in lower case, without the port that its scheme has anyway.
    pub(crate) origin: String,
    /// `ops.example.org`, as a `Host` header has it.
    pub(crate) host: String,
    /// `/waterline/`: it begins and ends with a slash. `None` if the address has no path.
    pub(crate) path: Option<String>,
}

impl Address {
    pub(crate) fn parse(url: &str) -> Result<Self, NotAnOrigin> {
        let not = || NotAnOrigin { url: url.to_owned() };
        let (scheme, rest) = url.split_once("://").ok_or_else(not)?;
        let (host, path) = rest.split_once('/').map_or((rest, ""), |(host, path)| (host, path.trim_matches('/')));
        let (scheme, host) = (scheme.to_ascii_lowercase(), host.to_ascii_lowercase());
        let usual = match scheme.as_str() {
            "http" => ":80",
            "https" => ":443",
            _ => return Err(not()),
        };
        let host = host.strip_suffix(usual).unwrap_or(&host).to_owned();
        let is_plain = |c: char| c.is_ascii_alphanumeric() || ".-:[]_".contains(c);
        let is_path = |c: char| c.is_ascii_alphanumeric() || "/-._~%".contains(c);
        if host.is_empty() || !host.chars().all(is_plain) || !path.chars().all(is_path) {
            return Err(not());
        }
        let path = if path.is_empty() { None } else { Some(format!("/{path}/")) };
        Ok(Self { origin: format!("{scheme}://{host}"), host, path })
    }
}

/// The rules of one router or server of a page.
#[derive(Clone, Debug)]
pub(crate) struct Guard {
    origin: Option<Address>,
    /// The address that it is served on; `None` if it is mounted.
    own: Option<SocketAddr>,
    token: Option<Token>,
    writes: bool,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    Host,
    CrossSite,
    Token,
    ReadOnly,
    NeedsToken,
    ContentType,
    OurHeader,
    SameOrigin,
}

impl Refusal {
    pub(crate) fn status(self) -> StatusCode {
        match self {
            Self::Token => StatusCode::UNAUTHORIZED,
            Self::Host => StatusCode::MISDIRECTED_REQUEST,
            Self::ContentType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            _ => StatusCode::FORBIDDEN,
        }
    }

    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Host => {
                "this page is not served under that name: use its own address, or name yours with Page::origin"
            }
            Self::CrossSite => "the request comes from another site: open the page itself",
            Self::Token => "a token is needed: send it as `Authorization: Bearer …`, or log in at the page",
            Self::ReadOnly => "the page is read-only: the program that serves it does not say allow_writes(true)",
            Self::NeedsToken => {
                "the page is read-only, since it is served by itself without a token: set one with Page::token"
            }
            Self::ContentType => "a change is sent as `Content-Type: application/json`",
            Self::OurHeader => "a change is sent with the header `X-Waterline-Page: 1`",
            Self::SameOrigin => "a change is sent with `Sec-Fetch-Site: same-origin`, or with the page's own `Origin`",
        }
    }
}

fn text<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name).map(|value| value.to_str().unwrap_or("\u{fffd}"))
}

impl Guard {
    pub(crate) fn mounted(origin: Option<Address>, token: Option<Token>, writes: bool) -> Self {
        Self { origin, own: None, token, writes }
    }

    pub(crate) fn served(own: SocketAddr, origin: Option<Address>, token: Option<Token>, writes: bool) -> Self {
        Self { origin, own: Some(own), token, writes }
    }

    pub(crate) fn token(&self) -> Option<&Token> {
        self.token.as_ref()
    }

    /// Returns the path of the page as a browser sees it, if it was set.
    pub(crate) fn path(&self) -> Option<&str> {
        self.origin.as_ref()?.path.as_deref()
    }

    /// Returns the name of the cookie, with the port: the ports of a host share its cookies.
    pub(crate) fn cookie(&self) -> String {
        self.own.map_or_else(|| "waterline_page".to_owned(), |own| format!("waterline_page_{}", own.port()))
    }

    /// Returns the settings of the cookie. Behind TLS it is sent only over TLS.
    pub(crate) fn cookie_settings(&self) -> &'static str {
        let is_encrypted = self.origin.as_ref().is_some_and(|origin| origin.origin.starts_with("https:"));
        if is_encrypted { "Path=/; HttpOnly; SameSite=Strict; Secure" } else { "Path=/; HttpOnly; SameSite=Strict" }
    }

    /// Returns why the page is read-only, if it is.
    pub(crate) fn why_read_only(&self) -> Option<Refusal> {
        if !self.writes {
            Some(Refusal::ReadOnly)
        } else if self.own.is_some() && self.token.is_none() {
            Some(Refusal::NeedsToken)
        } else {
            None
        }
    }

    /// Checks where a request comes from. Fails as [`Refusal::Host`] or [`Refusal::CrossSite`].
    pub(crate) fn check_site(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let host = text(headers, header::HOST.as_str()).unwrap_or_default().to_ascii_lowercase();
        if !self.has_host(&host) {
            return Err(Refusal::Host);
        }
        match text(headers, header::ORIGIN.as_str()) {
            Some(origin) if !self.is_own_origin(origin, &host) => Err(Refusal::CrossSite),
            _ => Ok(()),
        }
    }

    /// Checks a request for data, which must not come from another site.
    pub(crate) fn check_data(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        self.check_site(headers)?;
        match text(headers, "sec-fetch-site") {
            None | Some("same-origin" | "none") => Ok(()),
            Some(_) => Err(Refusal::CrossSite),
        }
    }

    /// Checks the token or the session, if one is needed. Fails as [`Refusal::Token`].
    pub(crate) fn check_token(&self, headers: &HeaderMap, sessions: &Sessions) -> Result<(), Refusal> {
        let Some(token) = &self.token else { return Ok(()) };
        let is_right = bearer(headers).is_some_and(|given| token.is(given))
            || self.session(headers).is_some_and(|secret| sessions.has(secret, Instant::now()));
        if is_right { Ok(()) } else { Err(Refusal::Token) }
    }

    /// Checks a change, in addition to the checks of each request.
    pub(crate) fn check_change(&self, method: &Method, headers: &HeaderMap) -> Result<(), Refusal> {
        self.why_read_only().map_or(Ok(()), Err)?;
        let kind = text(headers, header::CONTENT_TYPE.as_str()).unwrap_or_default();
        let kind = kind.split(';').next().unwrap_or_default().trim();
        if method != Method::POST || !kind.eq_ignore_ascii_case("application/json") {
            return Err(Refusal::ContentType);
        }
        if !headers.contains_key(OURS) {
            return Err(Refusal::OurHeader);
        }
        self.check_same_origin(headers)
    }

    /// Checks that a request comes from the page itself, or from a program with the token.
    pub(crate) fn check_same_origin(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let is_same = match text(headers, "sec-fetch-site") {
            Some(site) => site == "same-origin",
            // An `Origin`, if there is one, has been compared already.
            None => {
                headers.contains_key(header::ORIGIN)
                    || self.token.as_ref().zip(bearer(headers)).is_some_and(|(token, given)| token.is(given))
            }
        };
        if is_same { Ok(()) } else { Err(Refusal::SameOrigin) }
    }

    /// Returns the secret of the session that the cookie names.
    pub(crate) fn session<'h>(&self, headers: &'h HeaderMap) -> Option<&'h str> {
        let name = self.cookie();
        let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
        let mut pairs = cookies.flat_map(|cookies| cookies.split(';')).filter_map(|pair| pair.trim().split_once('='));
        pairs.find(|(key, _)| *key == name).map(|(_, secret)| secret)
    }

    /// True if a request may name this host. A foreign name may point here (*DNS rebinding*); an
    /// address cannot.
    fn has_host(&self, host: &str) -> bool {
        if self.origin.as_ref().is_some_and(|origin| origin.host == host) {
            return true;
        }
        let (name, port) = split_port(host);
        let is_address = name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok() || name == "localhost";
        match self.own {
            Some(own) => is_address && port.unwrap_or("80") == own.port().to_string(),
            // Without an origin, names are up to the server. With one, a proxy may name an address.
            None => self.origin.is_none() || is_address,
        }
    }

    fn is_own_origin(&self, origin: &str, host: &str) -> bool {
        let Ok(origin) = Address::parse(origin) else { return false };
        match &self.origin {
            Some(own) if own.origin == origin.origin => true,
            // The page may be opened without the proxy, under an address.
            _ => origin.host == host.strip_suffix(":80").or(host.strip_suffix(":443")).unwrap_or(host),
        }
    }
}

/// Returns the token that a program has sent.
pub(crate) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = text(headers, header::AUTHORIZATION.as_str())?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
}

fn split_port(host: &str) -> (&str, Option<&str>) {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|digit| digit.is_ascii_digit()) => (name, Some(port)),
        _ => (host, None),
    }
}

#[cfg(test)]
mod tests;
