//! The keys of a queue: a fixed list, of which each call in a cluster declares all. Pure.

use std::sync::Arc;

/// What follows the name of the queue, in the order of the functions' arguments.
const WORDS: [&str; 26] = [
    "head", "job", "state", "lane0", "lane1", "lane2", "lane3", "due", "run", "done", "dead", "expires", "forget",
    "index", "use", "held", "turn", "refill", "after", "before", "data", "meta", "shown", "note", "tick", "seen",
];

/// The number of slots in a cluster.
pub(crate) const SLOTS: u16 = 16_384;

/// The keys of one queue.
#[derive(Debug)]
pub(crate) struct Keys {
    pub(crate) name: Arc<str>,
    pub(crate) keys: [String; 26],
    /// All keys are in this slot of a cluster.
    pub(crate) slot: u16,
    /// Rings when a job has become ready.
    pub(crate) bell: String,
}

impl Keys {
    pub(crate) fn new(prefix: &str, tag: Option<&str>, name: &str) -> Self {
        let begin = match tag {
            Some(tag) => format!("{prefix}:{{{tag}}}:{}:", escaped(name)),
            None => format!("{prefix}:{{{}}}:", escaped(name)),
        };
        let keys = WORDS.map(|word| format!("{begin}{word}"));
        let slot = slot_of(&keys[0]);
        Self { name: name.into(), keys, slot, bell: format!("{begin}bell") }
    }
}

/// A pattern for SCAN that matches the heads of all queues.
pub(crate) fn heads(prefix: &str, tag: Option<&str>) -> String {
    let plain = |text: &str| {
        let escape = |char| if "*?[]\\^-".contains(char) { vec!['\\', char] } else { vec![char] };
        text.chars().flat_map(escape).collect::<String>()
    };
    tag.map_or_else(
        || format!("{}:{{*}}:head", plain(prefix)),
        |tag| format!("{}:{{{}}}:*:head", plain(prefix), plain(tag)),
    )
}

/// The name of the queue with this head. `None`: it is the key of something else.
pub(crate) fn name_of(head: &str, prefix: &str, tag: Option<&str>) -> Option<String> {
    let rest = head.strip_prefix(prefix)?.strip_prefix(":{")?;
    let name = match tag {
        Some(tag) => rest.strip_prefix(tag)?.strip_prefix("}:")?.strip_suffix(":head")?,
        None => rest.strip_suffix("}:head")?,
    };
    let name = (!name.contains(['{', '}'])).then(|| unescaped(name))??;
    Some(name).filter(|name| !name.is_empty())
}

/// Braces would begin or end the part of a key that decides about its slot.
fn escaped(name: &str) -> String {
    name.replace('%', "%25").replace('{', "%7B").replace('}', "%7D")
}

fn unescaped(name: &str) -> Option<String> {
    let plain = name.replace("%7B", "{").replace("%7D", "}").replace("%25", "%");
    (escaped(&plain) == name).then_some(plain)
}

/// The slot of a key: the checksum of what is between its first braces.
pub(crate) fn slot_of(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    let hashed = tag.filter(|tag| !tag.is_empty()).unwrap_or(key);
    // CRC-16/XMODEM, as the specification of the cluster says.
    let mut crc = 0_u16;
    for byte in hashed.bytes() {
        crc ^= u16::from(byte) << 8;
        for _ in 0..8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 };
        }
    }
    crc % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn all_keys_of_a_queue_are_in_one_slot_and_lead_back_to_its_name() {
        let mut seen = BTreeSet::new();
        for name in
            ["mail", "a:b", "}{", "{}", "%7B", "%", "%25{", "a}b{c", "é\n\0", "head", "x:head", &"n".repeat(255)]
        {
            for (prefix, tag) in [("wl", None), ("wl", Some("shop")), ("w:l", None), ("wl", Some("a:b"))] {
                let queue = Keys::new(prefix, tag, name);
                for key in queue.keys.iter().chain([&queue.bell]) {
                    assert_eq!(slot_of(key), queue.slot, "{key}");
                    assert!(tag.is_none() || queue.slot == slot_of(tag.unwrap()), "{key}");
                }
                assert_eq!(queue.keys.iter().collect::<BTreeSet<_>>().len(), 26);
                assert_eq!(name_of(&queue.keys[0], prefix, tag).as_deref(), Some(name));
                assert!(seen.insert(queue.keys[0].clone()), "two queues have the key {}", queue.keys[0]);
            }
        }
    }

    #[test]
    fn keys_of_something_else_are_no_queues() {
        for key in
            ["wl:{a}:job", "wl:{}:head", "wl:a:head", "x:{a}:head", "wl:{a}:b:head", "wl:{a%}:head", "wl:{a{b}:head"]
        {
            assert_eq!(name_of(key, "wl", None), None, "{key}");
        }
        assert_eq!(name_of("wl:{a}:head", "wl", Some("a")), None);
        assert_eq!(heads("w*l", None), "w\\*l:{*}:head");
    }

    #[test]
    fn slots_are_those_of_the_specification() {
        assert_eq!([slot_of("123456789"), slot_of("foo"), slot_of("{foo}.bar")], [12739, 12182, 12182]);
        assert_eq!(["foo{}{bar}", "foo{{bar}}zap", "foo{bar}{zap}"].map(slot_of), [8363, 4015, 5061]);
    }
}
