//! The server's audit log, read while it grows: which requests came, when, and who sent them.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

/// How often the log is read while something is awaited.
const STEP: Duration = Duration::from_millis(20);

/// A finished request.
#[derive(Clone, Debug)]
pub struct Entry {
    /// `create pods`, `patch pods/status` ...
    pub what: String,
    pub namespace: String,
    pub name: String,
    pub agent: String,
    pub code: u64,
    /// Microseconds since 1970.
    pub arrival_us: i64,
    pub answer_us: i64,
}

impl Entry {
    pub fn is_create(&self) -> bool {
        self.what == "create pods" && self.code == 201
    }
}

/// The log so far, and its reader.
#[derive(Debug)]
pub struct AuditLog {
    reader: BufReader<File>,
    line: Vec<u8>,
    pub entries: Vec<Entry>,
}

impl AuditLog {
    pub fn open(path: &Path) -> Self {
        let file = File::open(path).expect("the server writes its audit log");
        Self { reader: BufReader::new(file), line: Vec::new(), entries: Vec::new() }
    }

    /// Reads what was written since the last time.
    pub fn update(&mut self) {
        while self.reader.read_until(b'\n', &mut self.line).expect("the log can be read") > 0 {
            // The server is in the middle of this line.
            if !self.line.ends_with(b"\n") {
                return;
            }
            self.entries.extend(entry(&self.line));
            self.line.clear();
        }
    }

    /// Waits until `n` requests satisfy `fits`; false after `limit`, or if there is no reason to wait.
    pub fn wait(
        &mut self,
        limit: Duration,
        n: usize,
        fits: impl Fn(&Entry) -> bool,
        mut is_over: impl FnMut() -> bool,
    ) -> bool {
        let begun = Instant::now();
        let (mut n_seen, mut n_fitting) = (0, 0);
        loop {
            self.update();
            n_fitting += self.entries[n_seen..].iter().filter(|entry| fits(entry)).count();
            n_seen = self.entries.len();
            if n_fitting >= n {
                return true;
            }
            if begun.elapsed() > limit || is_over() {
                return false;
            }
            thread::sleep(STEP);
        }
    }

    pub fn of<'a>(&'a self, namespace: &'a str) -> impl Iterator<Item = &'a Entry> {
        self.entries.iter().filter(move |entry| entry.namespace == namespace)
    }
}

fn entry(line: &[u8]) -> Option<Entry> {
    let line: Value = serde_json::from_slice(line).expect("an audit line is JSON");
    // A watch has a line at its start, too, which its last line replaces.
    let stage = line["stage"].as_str().unwrap_or_default();
    if stage != "ResponseComplete" && !(stage == "ResponseStarted" && line["verb"] == "watch") {
        return None;
    }
    if stage == "ResponseComplete" && line["verb"] == "watch" {
        return None;
    }
    let object = &line["objectRef"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut what = format!("{} {}", text(&line["verb"]), text(&object["resource"]));
    if let Some(part) = object["subresource"].as_str() {
        what = format!("{what}/{part}");
    }
    Some(Entry {
        what,
        namespace: text(&object["namespace"]),
        name: text(&object["name"]),
        agent: text(&line["userAgent"]),
        code: line["responseStatus"]["code"].as_u64().unwrap_or_default(),
        arrival_us: time_us(&line["requestReceivedTimestamp"]),
        answer_us: time_us(&line["stageTimestamp"]),
    })
}

fn time_us(text: &Value) -> i64 {
    let time: jiff::Timestamp = text.as_str().expect("a time").parse().expect("a time");
    time.as_microsecond()
}
