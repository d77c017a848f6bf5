//! The ways in which a record of a store is damaged.

/// Returns the value of a record as each damage leaves it, with a name of the damage. `other` is
/// the value of another record.
pub fn damages<'a>(value: &'a [u8], other: &'a [u8]) -> impl Iterator<Item = (&'static str, Vec<u8>)> + 'a {
    let changed = |at: usize, by: u8| {
        let mut value = value.to_vec();
        value.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= by);
        value
    };
    let ways = [
        ("a flipped bit", changed(value.len() / 2, 1)),
        ("of a later version", changed(0, 0x40)),
        ("cut", value[..value.len() / 2].to_vec()),
        ("emptied", Vec::new()),
        ("that of another", other.to_vec()),
    ];
    ways.into_iter().filter(move |(_, left)| left != value)
}
