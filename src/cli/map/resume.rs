//! The file of `posse map --resume`.

use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;

use crate::cli::exit::{Code, Failure};
use crate::core::model::hash::stable_hash;

/// The lines that have succeeded, in the file of `--resume`: a number and a hash of the text.
#[derive(Default)]
pub(super) struct Done {
    file: Option<File>,
    shown: String,
    /// From earlier runs, by number.
    before: Vec<(u64, u64)>,
    /// The hashes of lines that are open.
    open: Vec<(u64, u64)>,
}

impl Done {
    pub(super) fn open(path: Option<&Path>) -> Result<Self, Failure> {
        let Some(path) = path else { return Ok(Self::default()) };
        let shown = path.display().to_string();
        let fail = |what: String| Failure::usage(format!("{shown}: {what}"));
        let file = OpenOptions::new().read(true).append(true).create(true).open(path);
        let file = file.map_err(|error| fail(format!("cannot be opened: {error}")))?;
        let mut before = Vec::new();
        for (i, line) in BufReader::new(&file).lines().enumerate() {
            let line = line.map_err(|error| fail(format!("cannot be read: {error}")))?;
            let parsed = line
                .split_once(' ')
                .and_then(|(n, hash)| Some((n.parse().ok()?, u64::from_str_radix(hash, 16).ok()?)));
            before.push(parsed.ok_or_else(|| {
                fail(format!("line {} is none that `posse map --resume` has written", i + 1))
            })?);
        }
        before.sort_unstable();
        Ok(Self { file: Some(file), shown, before, open: Vec::new() })
    }

    /// True if an earlier run has done this line.
    pub(super) fn has(&self, n: u64, text: &str) -> Result<bool, Failure> {
        let Ok(i) = self.before.binary_search_by_key(&n, |(line, _)| *line) else {
            return Ok(false);
        };
        if self.before[i].1 == stable_hash(text) {
            return Ok(true);
        }
        let shown = &self.shown;
        Err(Failure::usage(format!(
            "line {n} is another one than in the run that wrote {shown}: delete {shown} to run all lines"
        )))
    }

    /// This line was handed on.
    pub(super) fn note(&mut self, n: u64, text: &str) {
        if self.file.is_some() {
            self.open.push((n, stable_hash(text)));
        }
    }

    /// This line has succeeded.
    pub(super) fn add(&mut self, n: u64) -> Result<(), Failure> {
        let Some(file) = &mut self.file else { return Ok(()) };
        let Some(i) = self.open.iter().position(|(line, _)| *line == n) else { return Ok(()) };
        let (_, hash) = self.open.swap_remove(i);
        writeln!(file, "{n} {hash:x}").map_err(|error| {
            Failure::new(Code::Failed, format!("{}: cannot be written: {error}", self.shown))
        })
    }
}
