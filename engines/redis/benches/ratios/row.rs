//! A row of the table.

/// Prints a row. Returns whether it is within its limit.
pub fn row(what: &str, is: f64, most: f64, unit: &str) -> bool {
    let mark = if is <= most { "" } else { "  <- beyond" };
    println!("{what:<72} {is:>9.2} {unit:<6} (at most {most}){mark}");
    is <= most
}
