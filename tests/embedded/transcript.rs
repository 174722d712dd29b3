//! Sends the same requests to the embedded cluster and to a real kube-apiserver and compares the
//! answers. The requests and the answers of a real 1.36 are in `fixtures/transcript/AREA.jsonl`, with
//! the answer of an older server where that is another. If KUBEBUILDER_ASSETS names a real server,
//! its current answers are compared as well; one of a version without answers is NOT TESTED.
//! `fixtures/transcript/differences.md` lists the intended differences. The test fails on an unlisted difference and
//! on a listed one that has disappeared.
//!
//! A row is a request: `name` (unique in the area), `method`, `path`, and optionally `type`
//! (Content-Type), `accept`, `body` (JSON, or a text that is sent as it is), `until` (JSON pointers
//! and the values to wait for, for a GET whose answer a controller changes), `after` (a JSON pointer: the row is
//! sent when a controller has written this value of the object whose status it changes), `bookmarks` (true: compare
//! BOOKMARKs), `racy` (true: a real controller
//! may act before or after the request, or the order of a map is random, so only the recorded
//! answer counts, not the current one of a real server). `{{uid:R}}`, `{{rv:R}}` and `{{name:R}}`
//! stand for the values of row R, or of the object with that name; `{{continue:R}}` for its
//! continue token, `{{first:R}}` for the name of the first item of its list, `{{policy}}` for the
//! version of that group. `status`, `answer` and
//! `retry_after` are recorded. A member named like a version, `1.20`, has the three of that server
//! and, if it has to wait for something else, its `until`:
//!
//! ```text
//! POSSE_TRANSCRIPT_RECORD=AREA KUBEBUILDER_ASSETS=... cargo test --test embedded -- real::transcript
//! ```
//!
//! writes the real server's answers into the rows of that area (`all`: of all areas), also for new
//! rows: first with the newest server, then with the older one. An area has its own namespaces; there are no nodes, so a row that needs a running pod
//! patches its status.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::support::embedded::Embedded;
use crate::support::http::{Client, Exchange};
use crate::support::real::Real;
use crate::support::runner::{ASSETS, each_of};
use crate::support::server::{Server, Who};
use crate::support::wait::wait_value;
use serde_json::{Map, Value};

/// The version of the answers that stand in the rows themselves. The embedded cluster gives the same.
const NEWEST: &str = "1.36";
const OLDER: &str = "1.20";
const FOLDER: &str = "fixtures/transcript";
const DOCUMENT: &str = "fixtures/transcript/differences.md";
const PAGE: &str = "docs/EMBEDDED.md";
const RECORD: &str = "POSSE_TRANSCRIPT_RECORD";
const AREA: &str = "POSSE_TRANSCRIPT_AREA";
/// How long a row waits for a controller.
const UNTIL_LIMIT: Duration = Duration::from_secs(60);
/// A real server's controllers race with the requests, so a difference counts only if it appears in
/// this many runs of an area.
const REAL_RUNS_MAX: u32 = 3;
/// A busy server may not send all events within the second that a watch lasts.
const WATCH_ATTEMPTS: u32 = 5;
/// How many areas are compared at a time.
const N_PARALLEL: usize = 5;
const UNTIL_EVERY: Duration = Duration::from_millis(50);

/// Which part of an answer is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Depth {
    Nothing,
    Code,
    /// The code, and from a `Status` its reason and the fields of its causes.
    Gist,
    Whole,
}

/// A row of the document: what differs, and which part is compared.
#[derive(Debug)]
struct Difference {
    /// `area: name`; a star at its end matches any ending.
    rows: String,
    depth: Depth,
}

/// A server's answer.
#[derive(Clone, Debug)]
struct Said {
    status: u16,
    answer: Value,
    retry_after: Option<String>,
}

/// Values of earlier answers for later requests.
struct Seen(BTreeMap<String, String>);

impl Seen {
    /// With the version of disruption budgets: 1.20 has only v1beta1, and 1.25 removed it.
    fn of(client: &Client) -> Self {
        let group = client.get("/apis/policy").ok();
        let version = group["preferredVersion"]["version"].as_str().expect("every server has it");
        Self([("{{policy}}".to_owned(), version.to_owned())].into())
    }

    fn note(&mut self, row: &str, answer: &Value) {
        let text = |pointer: &str| answer.pointer(pointer).and_then(Value::as_str);
        let version = text("/metadata/resourceVersion").unwrap_or_default();
        self.0.insert(format!("{{{{rv:{row}}}}}"), version.to_owned());
        if let (Some(name), Some(uid)) = (text("/metadata/name"), text("/metadata/uid")) {
            for of in [row, name] {
                self.0.insert(format!("{{{{uid:{of}}}}}"), uid.to_owned());
                self.0.insert(format!("{{{{rv:{of}}}}}"), version.to_owned());
                self.0.insert(format!("{{{{name:{of}}}}}"), name.to_owned());
            }
        }
        if let Some(name) = text("/items/0/metadata/name") {
            self.0.insert(format!("{{{{first:{row}}}}}"), name.to_owned());
        }
        if let Some(token) = text("/metadata/continue") {
            self.0.insert(format!("{{{{continue:{row}}}}}"), token.to_owned());
        }
    }

    fn fill_in(&self, text: &str) -> String {
        let fill = |text: String, (mark, value): (&String, &String)| text.replace(mark, value);
        self.0.iter().fold(text.to_owned(), fill)
    }
}

fn text<'r>(row: &'r Value, field: &str) -> &'r str {
    row[field].as_str().unwrap_or_default()
}

/// Sends a row to a server, repeatedly if it has `until`.
fn put(client: &Client, row: &Value, seen: &mut Seen, version: &str) -> Said {
    let path = seen.fill_in(text(row, "path"));
    // The controller of 1.20 does not store the start of a job of which nothing else has changed.
    if let Some(pointer) = row["after"].as_str().filter(|_| version != OLDER) {
        wait_value(UNTIL_LIMIT, pointer, || {
            let object = client.get(path.trim_end_matches("/status")).body;
            if object.pointer(pointer).is_some() { Ok(()) } else { Err(object) }
        });
    }
    let body =
        row.get("body").map(|body| body.as_str().map_or_else(|| body.to_string(), str::to_owned));
    let body = body.map(|body| seen.fill_in(&body).into_bytes());
    let mut headers = Vec::new();
    for (field, name) in [("type", "content-type"), ("accept", "accept")] {
        if row.get(field).is_some() {
            headers.push((name, text(row, field)));
        }
    }
    let exchange = Exchange {
        method: text(row, "method"),
        path: &path,
        headers: &headers,
        body: body.as_deref(),
    };
    let deadline = Instant::now() + UNTIL_LIMIT;
    loop {
        let answer = client.exchange(&exchange).unwrap_or_else(|e| panic!("{row}: {e}"));
        let header = |name: &str| {
            answer.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
        };
        let said = Said {
            status: answer.status().as_u16(),
            retry_after: header("retry-after"),
            answer: read(row, answer.body()),
        };
        let own = row.get(version).and_then(|of| of.get("until"));
        let reached = own.unwrap_or_else(|| &row["until"]).as_object().is_none_or(|until| {
            until
                .iter()
                .all(|(pointer, want)| said.answer.pointer(pointer).unwrap_or(&Value::Null) == want)
        });
        if reached || Instant::now() > deadline {
            seen.note(text(row, "name"), &said.answer);
            return said;
        }
        std::thread::sleep(UNTIL_EVERY);
    }
}

fn is_watch(row: &Value) -> bool {
    let path = text(row, "path");
    path.contains("watch=") || path.contains("/watch/")
}

fn n_events(said: &Said) -> usize {
    said.answer.as_array().map_or(0, Vec::len)
}

/// Parses a body: JSON, the lines of a watch, or a text.
fn read(row: &Value, body: &[u8]) -> Value {
    if is_watch(row) {
        let events: Option<Vec<Value>> = String::from_utf8_lossy(body)
            .lines()
            .map(|line| serde_json::from_str(line).ok())
            .collect();
        if let Some(events) = events
            && events.iter().all(|event| event.get("type").is_some())
        {
            let told = |event: &Value| event["type"] != "BOOKMARK" || row["bookmarks"] == true;
            return events.into_iter().filter(told).collect();
        }
    }
    serde_json::from_slice(body).unwrap_or_else(|_| String::from_utf8_lossy(body).into())
}

fn normal_text(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let like = |pattern: &str| rest.get(..pattern.len()).filter(|t| is_like(t, pattern));
        let (found, word) = if let Some(uid) = like("hhhhhhhh-hhhh-hhhh-hhhh-hhhhhhhhhhhh") {
            (uid.len(), "<uid>")
        } else if let Some(time) = like("dddd-dd-ddTdd:dd:ddZ") {
            (time.len(), "<time>")
        } else if let Some(time) = like("dddd-dd-ddTdd:dd:dd.ddddddZ") {
            (time.len(), "<micro time>")
        } else if let Some(moment) = like(".hhhhhhhhhhhhhhhh") {
            // The suffix of an Event's name.
            (moment.len(), "<moment>")
        } else if let Some(pointer) = like("0xhhhhhhhhhh") {
            // Of Go, in the messages of older servers.
            (pointer.len(), "<pointer>")
        } else {
            out.push(c);
            rest = &rest[c.len_utf8()..];
            continue;
        };
        out.push_str(word);
        rest = &rest[found..];
    }
    out
}

/// `h` stands for a hexadecimal digit, `d` for a decimal one.
fn is_like(text: &str, pattern: &str) -> bool {
    text.len() == pattern.len()
        && text.bytes().zip(pattern.bytes()).all(|(c, p)| match p {
            b'h' => c.is_ascii_hexdigit(),
            b'd' => c.is_ascii_digit(),
            p => c == p,
        })
}

/// `5s`, `3m20s`, `2d`: an age.
fn without_age(cell: &Value) -> Value {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit());
    let is_age = cell.as_str().is_some_and(|text| {
        text.split_inclusive(['s', 'm', 'h', 'd', 'y']).all(|part| {
            part.ends_with(['s', 'm', 'h', 'd', 'y']) && digits(&part[..part.len() - 1])
        }) && !text.is_empty()
    });
    if is_age { "<age>".into() } else { cell.clone() }
}

fn without_description(column: &Value) -> Value {
    let mut column = column.clone();
    if let Some(members) = column.as_object_mut() {
        members.remove("description");
    }
    column
}

fn without_numbers(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        if !c.is_ascii_digit() {
            out.push(c);
        } else if !out.ends_with('#') {
            out.push('#');
        }
    }
    out
}

/// Removes values that differ from run to run.
fn normal(value: &mut Value, generated: &[String]) {
    match value {
        Value::Object(members) => {
            members.retain(|key, member| {
                !member.is_null() && key != "storageVersionHash" && key != "managedFields"
            });
            for (key, member) in members.iter_mut() {
                normal(member, generated);
                match (key.as_str(), &member) {
                    ("resourceVersion", Value::String(text)) if !text.is_empty() => {
                        *member = "<version>".into();
                    }
                    ("serverAddress", _) => *member = "<address>".into(),
                    ("continue", _) => *member = "<token>".into(),
                    // A Table's ages, and the descriptions of its columns.
                    ("cells", Value::Array(cells)) => {
                        *member = cells.iter().map(without_age).collect();
                    }
                    ("columnDefinitions", Value::Array(columns)) => {
                        *member = columns.iter().map(without_description).collect();
                    }
                    ("message", Value::String(text)) if text.contains("ersion") => {
                        *member = without_numbers(text).into();
                    }
                    _ => {}
                }
            }
            if let Some(Value::Array(causes)) = members.get_mut("causes") {
                // The real server repeats some causes.
                causes.dedup();
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| normal(item, generated)),
        Value::String(text) => {
            *text = normal_text(text);
            // Generated names; their prefixes are in the requests.
            for base in generated {
                if let Some(at) = text.find(base.as_str())
                    && let Some(suffix) = text.get(at + base.len()..at + base.len() + 5)
                    && suffix.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit())
                {
                    text.replace_range(at + base.len()..at + base.len() + 5, "<any>");
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Every `generateName` of an area's requests and answers, and the names of its jobs.
fn generated(rows: &[Value]) -> Vec<String> {
    fn collect(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(members) => {
                for (key, member) in members {
                    if key == "generateName" {
                        let base = member.as_str().filter(|base| !base.is_empty());
                        found.extend(base.map(str::to_owned));
                    } else {
                        collect(member, found);
                    }
                }
            }
            Value::Array(items) => items.iter().for_each(|item| collect(item, found)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    let mut found = Vec::new();
    rows.iter().for_each(|row| collect(row, &mut found));
    found.sort();
    found.dedup();
    found
}

/// The part of an answer that counts at this depth.
fn view(said: &Said, depth: Depth, generated: &[String]) -> String {
    let mut answer = said.answer.clone();
    normal(&mut answer, generated);
    match depth {
        Depth::Nothing => String::new(),
        Depth::Code => said.status.to_string(),
        Depth::Gist => {
            let causes = answer.pointer("/details/causes").and_then(Value::as_array);
            let fields: Vec<&Value> = causes.into_iter().flatten().map(|c| &c["field"]).collect();
            format!("{} {} {fields:?}", said.status, answer["reason"])
        }
        Depth::Whole => format!("{} {:?} {answer}", said.status, said.retry_after),
    }
}

/// The differences that the document lists: table rows `| area: name | what counts | reason |`.
fn differences() -> Vec<Difference> {
    let document = fs::read_to_string(DOCUMENT).unwrap_or_default();
    let mut found = Vec::new();
    for line in document.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [rows, depth, reason] = cells.as_slice() else { continue };
        let depth = match *depth {
            "nothing" => Depth::Nothing,
            "code" => Depth::Code,
            "code, reason, fields" => Depth::Gist,
            _ => continue,
        };
        assert!(!reason.is_empty(), "{DOCUMENT}: a difference without a reason: {line}");
        for rows in rows.split("<br>").map(|rows| rows.trim().trim_matches('`')) {
            found.push(Difference { rows: rows.to_owned(), depth });
        }
    }
    found
}

impl Difference {
    fn covers(&self, row: &str) -> bool {
        match self.rows.strip_suffix('*') {
            Some(beginning) => row.starts_with(beginning),
            None => row == self.rows,
        }
    }
}

fn rows_of(file: &Path) -> Vec<Value> {
    let content = fs::read_to_string(file).expect("the transcript can be read");
    let lines = content.lines().filter(|line| !line.trim().is_empty());
    let rows: Vec<Value> = lines
        .map(|line| {
            serde_json::from_str(line).unwrap_or_else(|e| panic!("{}: {e}: {line}", file.display()))
        })
        .collect();
    let mut names: Vec<&str> = rows.iter().map(|row| text(row, "name")).collect();
    names.sort_unstable();
    let twice: Vec<&[&str]> = names.windows(2).filter(|pair| pair[0] == pair[1]).collect();
    assert!(twice.is_empty(), "{}: names stand twice: {twice:?}", file.display());
    rows
}

/// The areas by name.
fn areas() -> BTreeMap<String, PathBuf> {
    let mut areas = BTreeMap::new();
    for entry in fs::read_dir(FOLDER).expect("there is a transcript") {
        let path = entry.expect("the folder can be read").path();
        if path.extension().is_some_and(|extension| extension == "jsonl") {
            let name = path.file_stem().expect("a file has a name").to_string_lossy();
            areas.insert(name.into_owned(), path.clone());
        }
    }
    areas
}

/// The version of a server, as `1.36`.
fn version_of(client: &Client) -> String {
    let version = client.get("/version").ok();
    let digits = |field: &str| text(&version, field).trim_end_matches('+').to_owned();
    match (digits("major"), digits("minor")) {
        // A build of a developer, which does not know its version.
        (major, _) if major.is_empty() => OLDER.to_owned(),
        (major, minor) => format!("{major}.{minor}"),
    }
}

/// Sends all rows of an area to a real server and records its answers.
fn record(client: &Client, file: &Path) {
    let (mut seen, version) = (Seen::of(client), version_of(client));
    let rows = rows_of(file);
    let generated = generated(&rows);
    let mut out = String::new();
    for mut row in rows {
        let said = put(client, &row, &mut seen, &version);
        let shown = |said: &Said| view(said, Depth::Whole, &generated);
        let is_same = version != NEWEST && shown(&said) == shown(&recorded(&row, NEWEST));
        let members: &mut Map<String, Value> = row.as_object_mut().expect("a row is an object");
        let mut answer = Map::new();
        answer.insert("status".to_owned(), said.status.into());
        answer.insert("answer".to_owned(), said.answer);
        if let Some(seconds) = said.retry_after {
            answer.insert("retry_after".to_owned(), seconds.into());
        }
        if version == NEWEST {
            members.remove("retry_after");
            members.extend(answer);
        } else if is_same {
            members.remove(&version);
        } else {
            if let Some(until) = members.get(&version).and_then(|of| of.get("until")) {
                answer.insert("until".to_owned(), until.clone());
            }
            members.insert(version.clone(), answer.into());
        }
        writeln!(out, "{row}").expect("a text takes everything");
    }
    fs::write(file, out).expect("the transcript can be written");
}

fn recorded(row: &Value, version: &str) -> Said {
    let of = row.get(version).unwrap_or(row);
    let status = of["status"].as_u64().and_then(|status| u16::try_from(status).ok());
    Said {
        status: status.unwrap_or_else(|| panic!("not recorded yet ({RECORD}): {row}")),
        answer: of["answer"].clone(),
        retry_after: of["retry_after"].as_str().map(str::to_owned),
    }
}

/// Sends all rows of an area to a server; returns the differences from the record.
fn compare(
    client: &Client,
    area: &str,
    rows: &[Value],
    depth_of: impl Fn(&str) -> Depth,
    mut on_whole: impl FnMut(&str, bool),
) -> Vec<String> {
    let (mut seen, version) = (Seen::of(client), version_of(client));
    let generated = generated(rows);
    let mut wrong = Vec::new();
    for row in rows {
        let name = format!("{area}: {}", text(row, "name"));
        let mut said = put(client, row, &mut seen, &version);
        let recorded = recorded(row, &version);
        for _ in 1..WATCH_ATTEMPTS {
            if !is_watch(row) || n_events(&said) >= n_events(&recorded) {
                break;
            }
            said = put(client, row, &mut seen, &version);
        }
        let at = |depth| (view(&said, depth, &generated), view(&recorded, depth, &generated));
        let (got, want) = at(Depth::Whole);
        on_whole(&name, got == want);
        let (got, want) = at(depth_of(&name));
        if got != want {
            wrong.push(format!("{name}\n got {got}\nwant {want}\n"));
        }
    }
    wrong
}

/// The same for real servers: each area has its own, and two run at a time.
fn compare_real(
    assets: &Path,
    areas: &BTreeMap<String, PathBuf>,
    depth_of: &(dyn Fn(&str) -> Depth + Sync),
) -> Vec<String> {
    let waiting = Mutex::new(areas.iter());
    let wrong = Mutex::new(Vec::new());
    let work = || {
        loop {
            let Some((area, file)) = waiting.lock().unwrap().next() else { return };
            let rows = rows_of(file);
            let racy = |name: &str| {
                let row =
                    rows.iter().find(|row| name.ends_with(&format!(": {}", text(row, "name"))));
                row.is_some_and(|row| row["racy"] == true)
            };
            let depth = |name: &str| match racy(name) {
                true => Depth::Nothing,
                false => depth_of(name),
            };
            let differing = || {
                let real = Real::start_whole(assets);
                compare(&admin(&real), area, &rows, depth, |_, _| {})
            };
            let mut stale = differing();
            for _ in 1..REAL_RUNS_MAX {
                if stale.is_empty() {
                    break;
                }
                let again = differing();
                let name = |row: &str| row.lines().next().map(str::to_owned);
                stale.retain(|row| again.iter().any(|other| name(other) == name(row)));
            }
            let stale = stale.iter().map(|row| format!("the real server no more: {row}"));
            wrong.lock().unwrap().extend(stale);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(work);
        scope.spawn(work);
    });
    wrong.into_inner().unwrap()
}

fn admin(server: &dyn Server) -> Client {
    Client::new(&server.access(Who::Admin), "transcript")
}

/// All areas, or the one that the environment names.
fn wanted_areas() -> BTreeMap<String, PathBuf> {
    let only = std::env::var(AREA).ok();
    let is_wanted = |area: &String| only.as_ref().is_none_or(|only| only == area);
    areas().into_iter().filter(|(area, _)| is_wanted(area)).collect()
}

fn depth_of(differences: &[Difference], row: &str) -> Depth {
    let listed = differences.iter().find(|difference| difference.covers(row));
    listed.map_or(Depth::Whole, |difference| difference.depth)
}

fn check_equal(wrong: &[String], n_rows: usize) {
    assert!(wrong.is_empty(), "{} of {n_rows} differ\n{}", wrong.len(), wrong.join("\n"));
    println!("{n_rows} rows equal");
}

/// The page says how many requests are compared, and how many answers are equal in full.
fn check_numbers(n_rows: usize, n_whole: usize) {
    let page = fs::read_to_string(PAGE).unwrap_or_default();
    let number = |n: usize| match n / 1000 {
        0 => n.to_string(),
        thousands => format!("{thousands},{:03}", n % 1000),
    };
    for claim in [format!("{} requests", number(n_rows)), format!("{} answers", number(n_whole))] {
        assert!(page.contains(&claim), "{PAGE} does not say: {claim}");
    }
}

pub fn the_embedded_cluster_answers_as_a_real_server() {
    if std::env::var_os(RECORD).is_some() {
        return;
    }
    let differences = differences();
    let depth = |row: &str| depth_of(&differences, row);
    let areas: Vec<(String, Vec<Value>)> =
        wanted_areas().into_iter().map(|(area, file)| (area, rows_of(&file))).collect();
    let wrong = Mutex::new(Vec::new());
    let truly = Mutex::new(vec![false; differences.len()]);
    // They wait for the ends of watches most of the time.
    each_of(&areas, N_PARALLEL, |(area, rows)| {
        // The real server also runs without this plugin, which would wait for a controller's token.
        let plugins = ["--disable-admission-plugins", "ServiceAccount"];
        let embedded = Embedded::start_with(&[&["--nodes", "0"], &plugins[..]].concat());
        let found = compare(&admin(&embedded), area, rows, depth, |row, equal| {
            for (difference, truly) in differences.iter().zip(&mut *truly.lock().unwrap()) {
                *truly |= !equal && difference.covers(row);
            }
        });
        wrong.lock().unwrap().extend(found);
    });
    let (wrong, truly) = (wrong.into_inner().unwrap(), truly.into_inner().unwrap());
    let n_rows = areas.iter().map(|(_, rows)| rows.len()).sum();
    let names = areas.iter().flat_map(|(area, rows)| {
        rows.iter().map(move |row| format!("{area}: {}", text(row, "name")))
    });
    let n_whole = names.filter(|name| depth(name) == Depth::Whole).count();
    check_equal(&wrong, n_rows);
    if std::env::var_os(AREA).is_none() {
        let stale = differences.iter().zip(&truly).filter(|(_, truly)| !**truly);
        let stale: Vec<&str> = stale.map(|(difference, _)| difference.rows.as_str()).collect();
        assert!(stale.is_empty(), "{DOCUMENT} lists what does not differ: {stale:?}");
        check_numbers(n_rows, n_whole);
    }
}

/// Compares the recorded answers with a real server's, or records them.
pub fn a_real_server_answers_as_recorded() {
    let assets = std::env::var_os(ASSETS).map(PathBuf::from).expect("the runner looks for it");
    if let Ok(wanted) = std::env::var(RECORD) {
        let areas = areas().into_iter().filter(|(area, _)| wanted == "all" || wanted == *area);
        areas.for_each(|(_, file)| record(&admin(&Real::start_whole(&assets)), &file));
        return;
    }
    let version = version_of(&admin(&Real::start(&assets, false)));
    if ![NEWEST, OLDER].contains(&version.as_str()) {
        println!("NOT TESTED: the transcript has no answers of {version}");
        return;
    }
    let (differences, areas) = (differences(), wanted_areas());
    let n_rows = areas.values().map(|file| rows_of(file).len()).sum();
    let wrong = compare_real(&assets, &areas, &|row| depth_of(&differences, row));
    check_equal(&wrong, n_rows);
}
