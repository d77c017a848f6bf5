//! The files of the page, embedded in the binary.

const PAGE: &str = include_str!("../assets/page.html");
const LOGIN: &str = include_str!("../assets/login.html");

/// The files by their names, with their types.
const FILES: [(&str, &str, &str); 9] = [
    ("page.css", "text/css; charset=utf-8", include_str!("../assets/page.css")),
    ("dom.js", JS, include_str!("../assets/dom.js")),
    ("parts.js", JS, include_str!("../assets/parts.js")),
    ("streams.js", JS, include_str!("../assets/streams.js")),
    ("queues.js", JS, include_str!("../assets/queues.js")),
    ("page.js", JS, include_str!("../assets/page.js")),
    ("uplot.js", JS, include_str!("../assets/uplot/uPlot.iife.min.js")),
    ("icon.svg", "image/svg+xml", include_str!("../assets/icon.svg")),
    ("uplot.css", "text/css; charset=utf-8", include_str!("../assets/uplot/uPlot.min.css")),
];

const JS: &str = "text/javascript; charset=utf-8";

pub(crate) fn named(name: &str) -> Option<(&'static str, &'static str)> {
    FILES.iter().find(|file| file.0 == name).map(|file| (file.1, file.2))
}

/// Where the page is, as the browser sees it.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// The path of the page with a trailing slash, which is the prefix of its files.
    pub(crate) base: String,
    /// True if the address in the browser has that slash.
    pub(crate) slash: bool,
}

fn placed(text: &str, place: &Place) -> String {
    text.replace("{slash}", if place.slash { "?slash" } else { "" }).replace("{base}", &escaped(&place.base))
}

pub(crate) fn page(place: &Place, title: &str) -> String {
    placed(PAGE, place).replace("{title}", &escaped(title))
}

/// Returns the login form; `again` if the last token was wrong.
pub(crate) fn login(place: &Place, again: bool) -> String {
    let wrong = if again { "<p role=\"alert\">That is not the token.</p>" } else { "" };
    placed(LOGIN, place).replace("{wrong}", wrong)
}

/// Escapes a text for HTML, also within an attribute.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_title_and_a_path_cannot_be_html() {
        let place = Place { base: "/a\"b/".to_owned(), slash: false };
        let page = page(&place, "<script>alert('x')</script>&{base}");
        assert!(page.contains("&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&amp;{base}"), "{page}");
        assert!(page.contains("/a&quot;b/assets/page.js") && !page.contains("<script>"), "{page}");
    }
}
