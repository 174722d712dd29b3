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
    fn json(&self) -> Value;

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
        Some(Format::Json) => print_json(out, &format!("{:#}\n", listing.json())),
        Some(Format::Yaml) => print_json(out, &document(&listing.json())),
        Some(Format::Name) => {
            let lines = listing.names().into_iter().map(|name| one_line(&name).into_owned() + "\n");
            print(out, &lines.collect::<String>())
        }
    }
    .map(|()| Code::Clean)
}
