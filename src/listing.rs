//! Output of the commands that list something: a table for people, or the format of `-o`.

use std::io::Write;

use serde_json::Value;

use crate::args::format::{Format, FormatArgs};
use crate::exit::{Code, Failure};
use crate::manifest::document;
use crate::terminal::{print, print_json};
use posse_base::text::one_line;

/// What a command lists.
pub(super) trait Listing {
    /// The table for people; `is_wide`: with more columns.
    fn table(&self, is_wide: bool) -> String;

    /// One JSON value.
    fn json(&self) -> String;

    /// The names of what is listed.
    fn names(&self) -> Vec<String>;
}

/// Prints a listing in the format of `-o`.
pub(super) fn print_listing(
    listing: &dyn Listing,
    output: FormatArgs,
    out: &mut dyn Write,
) -> Result<Code, Failure> {
    match output.format() {
        None => print(out, &listing.table(false)),
        Some(Format::Wide) => print(out, &listing.table(true)),
        Some(Format::Json) => print_json(out, &indented(&listing.json())),
        Some(Format::Yaml) => print_json(out, &yaml(&listing.json())),
        Some(Format::Name) => {
            let lines = listing.names().into_iter().map(|name| one_line(&name).into_owned() + "\n");
            print(out, &lines.collect::<String>())
        }
    }
    .map(|()| Code::Clean)
}

/// JSON for people too, as kubectl prints it.
fn indented(json: &str) -> String {
    let value = serde_json::from_str::<Value>(json);
    value.map_or_else(|_| json.to_owned(), |value| format!("{value:#}")) + "\n"
}

/// JSON as a YAML document.
pub(super) fn yaml(json: &str) -> String {
    document(&serde_json::from_str::<Value>(json).unwrap_or_default())
}
