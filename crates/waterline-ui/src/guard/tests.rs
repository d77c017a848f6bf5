use super::*;

fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
    pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
}

fn address(url: &str) -> Option<Address> {
    Some(Address::parse(url).unwrap())
}

const TOKEN: &str = "a token of some length";

fn token() -> Option<Token> {
    Some(Token::new(TOKEN.to_owned()))
}

fn own() -> SocketAddr {
    "127.0.0.1:4100".parse().unwrap()
}

#[test]
fn an_origin_is_parsed_or_refused() {
    let parsed = Address::parse("HTTPS://Ops.Example.org:443/waterline/").unwrap();
    let path = Some("/waterline/".to_owned());
    assert_eq!(parsed, Address { origin: "https://ops.example.org".into(), host: "ops.example.org".into(), path });
    assert_eq!(address("http://[::1]:8080").unwrap().host, "[::1]:8080");
    for none in
        ["", "ops", "ftp://a", "https://", "https:///x", "https://a b", "https://a/<x>", "https://a@b", "https://a/?q"]
    {
        assert!(Address::parse(none).is_err(), "{none}");
    }
}

#[test]
fn a_foreign_host_is_refused() {
    let served = Guard::served(own(), None, None, false);
    let proxied = Guard::served(own(), address("https://ops.example.org"), None, false);
    let mounted = Guard::mounted(None, None, false);
    let mounted_behind = Guard::mounted(address("https://ops.example.org"), None, false);
    for (host, of_served, of_proxied, of_mounted, of_behind) in [
        ("127.0.0.1:4100", true, true, true, true),
        ("localhost:4100", true, true, true, true),
        ("LOCALHOST:4100", true, true, true, true),
        ("[::1]:4100", true, true, true, true),
        ("127.0.0.1:4101", false, false, true, true),
        ("127.0.0.1", false, false, true, true),
        ("ops.example.org", false, true, true, true),
        ("evil.example:4100", false, false, true, false),
        ("127.0.0.1.evil.example:4100", false, false, true, false),
        ("", false, false, true, false),
    ] {
        let is_let_in = |guard: &Guard| guard.check_site(&headers(&[("host", host)])).is_ok();
        let found = [&served, &proxied, &mounted, &mounted_behind].map(is_let_in);
        assert_eq!(found, [of_served, of_proxied, of_mounted, of_behind], "{host}");
    }
}

#[test]
fn a_foreign_origin_is_refused_for_reads_too() {
    let mounted = Guard::mounted(None, None, true);
    let behind = Guard::mounted(address("https://ops.example.org"), None, true);
    for (host, origin, of_mounted, of_behind) in [
        ("app.example:8080", "http://app.example:8080", true, false),
        ("app.example", "https://app.example", true, false),
        ("app.example", "https://evil.example", false, false),
        ("app.example", "null", false, false),
        ("app.example:8080", "http://app.example", false, false),
        ("10.0.0.7:8080", "https://ops.example.org", false, true),
        ("ops.example.org", "https://ops.example.org", true, true),
        ("ops.example.org", "https://ops.example.org.evil.example", false, false),
    ] {
        let is_let_in = |guard: &Guard| guard.check_site(&headers(&[("host", host), ("origin", origin)])).is_ok();
        assert_eq!([&mounted, &behind].map(is_let_in), [of_mounted, of_behind], "{host} {origin}");
    }
    let cross = headers(&[("host", "a"), ("sec-fetch-site", "cross-site")]);
    assert_eq!(mounted.check_data(&cross), Err(Refusal::CrossSite));
    // A link on another site may open the page.
    assert_eq!(mounted.check_site(&cross), Ok(()));
}

#[test]
fn a_change_needs_each_of_its_headers() {
    let all = [
        ("host", "a"),
        ("content-type", "application/json; charset=utf-8"),
        (OURS, "1"),
        ("sec-fetch-site", "same-origin"),
    ];
    let guard = Guard::mounted(None, None, true);
    let check = |guard: &Guard, pairs: &[(&'static str, &str)]| guard.check_change(&Method::POST, &headers(pairs));
    assert_eq!(check(&guard, &all), Ok(()));
    let without = |name: &str| all.iter().filter(|pair| pair.0 != name).copied().collect::<Vec<_>>();
    assert_eq!(check(&guard, &without("content-type")), Err(Refusal::ContentType));
    assert_eq!(check(&guard, &without(OURS)), Err(Refusal::OurHeader));
    assert_eq!(check(&guard, &without("sec-fetch-site")), Err(Refusal::SameOrigin));
    for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""] {
        let other = [&without("content-type")[..], &[("content-type", kind)]].concat();
        assert_eq!(check(&guard, &other), Err(Refusal::ContentType), "{kind}");
    }
    for site in ["same-site", "cross-site", "none", ""] {
        let other = [&without("sec-fetch-site")[..], &[("sec-fetch-site", site), ("origin", "http://a")]].concat();
        assert_eq!(check(&guard, &other), Err(Refusal::SameOrigin), "{site}");
    }
    // An older browser sends only its origin, which is compared before.
    assert_eq!(check(&guard, &[&without("sec-fetch-site")[..], &[("origin", "http://a")]].concat()), Ok(()));
    assert_eq!(guard.check_change(&Method::PUT, &headers(&all)), Err(Refusal::ContentType));
    assert_eq!(check(&Guard::mounted(None, None, false), &all), Err(Refusal::ReadOnly));
    assert_eq!(check(&Guard::served(own(), None, None, true), &all), Err(Refusal::NeedsToken));
    assert_eq!(check(&Guard::served(own(), None, token(), false), &all), Err(Refusal::ReadOnly));
    let with_token = Guard::served(own(), None, token(), true);
    assert_eq!(check(&with_token, &all), Ok(()));
    // A program with the token is no browser that another site could misuse.
    let bearer = format!("Bearer {TOKEN}");
    let program = [&without("sec-fetch-site")[..], &[("authorization", &bearer)]].concat();
    assert_eq!(check(&with_token, &program), Ok(()));
    assert_eq!(check(&guard, &program), Err(Refusal::SameOrigin));
}

#[test]
fn a_token_is_accepted_as_header_or_session() {
    let guard = Guard::served(own(), None, token(), true);
    let sessions = Sessions::default();
    let secret = sessions.begin(Instant::now()).unwrap();
    let check = |name: &'static str, value: String| guard.check_token(&headers(&[(name, &value)]), &sessions);
    assert_eq!(check("authorization", format!("Bearer {TOKEN}")), Ok(()));
    assert_eq!(check("authorization", format!("bearer  {TOKEN} ")), Ok(()));
    assert_eq!(check("cookie", format!("a=b; waterline_page_4100={secret}; c=d")), Ok(()));
    for (name, wrong) in [
        ("authorization", TOKEN.to_owned()),
        ("authorization", format!("Bearer {TOKEN}x")),
        ("authorization", "Bearer ".to_owned()),
        ("cookie", format!("waterline_page_4101={secret}")),
        ("cookie", "waterline_page_4100=".to_owned()),
        ("cookie", format!("waterline_page_4100={TOKEN}")),
    ] {
        assert_eq!(check(name, wrong.clone()), Err(Refusal::Token), "{name}: {wrong}");
    }
    assert!(!guard.cookie_settings().contains("Secure"));
    let encrypted = Guard::served(own(), address("https://ops.example.org"), token(), true);
    assert!(encrypted.cookie_settings().ends_with("; Secure"));
    assert_eq!(Guard::served(own(), None, None, false).check_token(&HeaderMap::new(), &sessions), Ok(()));
}
