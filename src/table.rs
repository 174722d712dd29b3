//! Plain-text tables.

use posse_base::text::one_line;

/// A table with two spaces between the columns and no trailing spaces.
pub(super) fn table<const N: usize>(heads: &[String; N], rows: Vec<[String; N]>) -> String {
    // A line end in a cell would make a row of its own.
    let rows: Vec<[String; N]> =
        rows.into_iter().map(|row| row.map(|cell| one_line(&cell).into_owned())).collect();
    let mut widths = [0; N];
    for row in std::iter::once(heads).chain(&rows) {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    let mut text = String::new();
    for row in std::iter::once(heads).chain(&rows) {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}
