//! Plain-text tables.

use posse_base::text::one_line;

/// A cell that may have nothing to show.
pub(super) fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// A table with two spaces between the columns and no trailing spaces.
pub(super) fn table<const N: usize>(
    heads: [&str; N],
    rows: impl Iterator<Item = [String; N]>,
) -> String {
    // A line end in a cell would make a row of its own.
    let line = |row: [String; N]| row.map(|cell| one_line(&cell).into_owned());
    let rows: Vec<_> = std::iter::once(heads.map(str::to_owned)).chain(rows.map(line)).collect();
    let mut widths = [0; N];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    let mut text = String::new();
    for row in &rows {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}
