//! Puts to the embedded server the requests that were put to a real kube-apiserver 1.20, and
//! compares answer by answer. What differs on purpose is listed here with its reason.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::sync::Arc;

use serde_json::Value;

use super::api::Api;
use super::faults::Faults;
use super::server;
use super::testing::send;
use crate::runtime::clock::Clock;

const TRANSCRIPT: &str = include_str!("../../fixtures/dev/transcript.jsonl");

/// Of these only the code, the reason and the causes' fields are compared.
const WORDED_OTHERWISE: [(&str, &str); 21] = [
    ("containers a map", DECODER),
    ("image a number", DECODER),
    ("labels a number", DECODER),
    ("env a number", DECODER),
    ("invalid: bad quantity", DECODER),
    ("patch label type", DECODER),
    ("status bad", DECODER),
    ("delete type", DECODER),
    ("lease time", DECODER),
    ("lease time seconds", DECODER),
    ("lease type", DECODER),
    ("unsupported media", "YAML and protobuf are not taken"),
    ("invalid: two controllers", "the real one prints pointers"),
    ("patch spec", "the real one adds a difference of Go structs"),
    ("patch grace", "the real one adds a difference of Go structs"),
    ("get /apis/coordination.k8s.io", "no beta version here"),
    ("path /nothing", "other things are served"),
    ("path /openapi/v2x", "other things are served"),
    ("get /version", "another build"),
    ("get /apis/authorization.k8s.io", "other versions"),
    ("get /apis/authorization.k8s.io/v1", "other resources"),
];
const DECODER: &str = "Go's newer decoder words it so, the older one quoted the bytes around";

fn normal_text(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        if let Some(uuid) =
            rest.get(..36).filter(|uuid| is_like(uuid, "hhhhhhhh-hhhh-hhhh-hhhh-hhhhhhhhhhhh"))
        {
            out.push_str("<uid>");
            rest = &rest[uuid.len()..];
        } else if let Some(time) =
            rest.get(..20).filter(|time| is_like(time, "dddd-dd-ddTdd:dd:ddZ"))
        {
            out.push_str("<time>");
            rest = &rest[time.len()..];
        } else {
            out.push(c);
            rest = &rest[c.len_utf8()..];
        }
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

/// Takes out what differs from run to run.
fn normal(value: &mut Value) {
    match value {
        Value::Object(members) => {
            // A field that no type has is kept here and dropped there; hashes are of no use here.
            members.retain(|key, member| {
                !member.is_null() && !["foo", "storageVersionHash"].contains(&key.as_str())
            });
            for (key, member) in members.iter_mut() {
                match (key.as_str(), &member) {
                    ("resourceVersion", Value::String(text)) if !text.is_empty() => {
                        *member = "<version>".into();
                    }
                    ("serverAddress", _) => *member = "<address>".into(),
                    ("continue", _) => *member = "<token>".into(),
                    ("message", Value::String(text)) if text.contains("ersion") => {
                        *member = without_numbers(&normal_text(text)).into();
                    }
                    ("name", Value::String(text)) if is_like(&text[..2.min(text.len())], "g-") => {
                        *member = "g-".into();
                    }
                    _ => normal(member),
                }
            }
            if let Some(Value::Array(causes)) = members.get_mut("causes") {
                // The real server names some causes twice.
                causes.dedup();
            }
        }
        Value::Array(items) => items.iter_mut().for_each(normal),
        Value::String(text) => *text = normal_text(text),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Code, reason and the causes' fields.
fn gist(answer: &Value) -> (Value, Value, Vec<Value>) {
    let causes = answer.pointer("/details/causes").and_then(Value::as_array);
    let fields = causes.into_iter().flatten().map(|cause| cause["field"].clone());
    (answer["code"].clone(), answer["reason"].clone(), fields.collect())
}

/// What earlier answers gave, for the requests after them.
#[derive(Default)]
struct Seen(BTreeMap<String, String>);

impl Seen {
    fn note(&mut self, row: &str, answer: &Value) {
        let text = |pointer: &str| answer.pointer(pointer).and_then(Value::as_str);
        let (name, uid) = (text("/metadata/name"), text("/metadata/uid"));
        if let (Some(name), Some(uid)) = (name, uid) {
            let version = text("/metadata/resourceVersion").unwrap_or_default();
            for of in [row, name] {
                self.0.insert(format!("{{{{uid:{of}}}}}"), uid.to_owned());
                self.0.insert(format!("{{{{rv:{of}}}}}"), version.to_owned());
                self.0.insert(format!("{{{{name:{of}}}}}"), name.to_owned());
            }
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

#[test]
fn answers_equal_those_of_a_real_server() {
    let api = Arc::new(Api::new(Clock::start(), Faults::default(), 1, "/nonexistent".into()));
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let (server, address) = server::start(listener, api).expect("threads");
    let mut seen = Seen::default();
    let mut wrong = Vec::new();
    let mut n_rows = 0;
    for line in TRANSCRIPT.lines() {
        let row: Value = serde_json::from_str(line).expect("a row");
        let text = |field: &str| row[field].as_str().unwrap_or_default();
        let body = row
            .get("body")
            .map(|body| body.as_str().map_or_else(|| body.to_string(), str::to_owned));
        let body = body.map(|body| seen.fill_in(&body));
        let body = body.as_deref().map(|body| (text("type"), body));
        let reply = send(address, text("method"), &seen.fill_in(text("path")), body);
        let mut got = reply.json();
        if text("path").contains("watch") && reply.status == 200 && row["answer"].is_array() {
            let events = reply.body.lines().map(|line| serde_json::from_str(line).expect("JSON"));
            got = events.collect::<Vec<Value>>().into();
        }
        seen.note(text("name"), &got);
        let mut want = row["answer"].clone();
        let status = row["status"].as_u64().expect("a status");
        normal(&mut got);
        normal(&mut want);
        let (got, want) = match WORDED_OTHERWISE.iter().any(|(name, _)| *name == text("name")) {
            true => (format!("{:?}", gist(&got)), format!("{:?}", gist(&want))),
            false => (got.to_string(), want.to_string()),
        };
        n_rows += 1;
        if u64::from(reply.status) != status || got != want {
            let status = (reply.status, status);
            wrong.push(format!("{}: {status:?}\n got {got}\nwant {want}\n", text("name")));
        }
    }
    server.stop();
    assert!(n_rows > 120, "{n_rows} rows");
    assert!(wrong.is_empty(), "{} of {n_rows} differ\n{}", wrong.len(), wrong.join("\n"));
}
