//! The OpenAPI document of the control API against the API: both have the same calls, and all
//! answers are as documented.

use std::collections::BTreeSet;

use posse_base::rng::Rng;
use serde_json::{Map, Value, json};

use crate::support::control::{Control, DOCUMENT};
use crate::support::openapi::OpenApi;
use crate::support::scene::Scene;
use crate::support::server::Server;
use crate::support::wait::{PATIENCE, wait_for};

const ROUTER: &str = include_str!("../../crates/control/src/api.rs");
const METHODS: [&str; 6] = ["DELETE", "GET", "OPTIONS", "PATCH", "POST", "PUT"];
const REQUESTS: u32 = 1_500;

/// A path with its variables filled in.
fn example(path: &str) -> String {
    path.replace("{group}", "default").replace("{id}", "1").replace("{key}", "t-1")
}

/// The calls that the router's source matches, with variables as `{}`.
fn routes() -> BTreeSet<(String, String)> {
    let one = |line: &str| {
        let (method, rest) = line.trim().strip_prefix("(\"")?.split_once("\", [")?;
        let (segments, _) = rest.split_once("]) =>")?;
        let segment = |text: &str| {
            text.trim().strip_prefix('"').map_or("{}", |s| &s[..s.len() - 1]).to_owned()
        };
        let path: Vec<String> = segments.split(',').map(segment).collect();
        Some((method.to_owned(), format!("/{}", path.join("/"))))
    };
    let mut routes: BTreeSet<(String, String)> = ROUTER.lines().filter_map(one).collect();
    // The router handles the event stream separately.
    assert!(ROUTER.contains("request.path == \"/v1/events\""));
    routes.insert(("GET".to_owned(), "/v1/events".to_owned()));
    routes
}

/// The API and the document have the same calls; a 405 lists the allowed methods.
pub fn openapi_and_router(server: &dyn Server) {
    let scene = Scene::new(server);
    let posse = scene.run().start();
    posse.wait_ready();
    let (control, document) = (posse.control(), OpenApi::parse(DOCUMENT));
    let plain =
        |path: &str| path.replace("{group}", "{}").replace("{id}", "{}").replace("{key}", "{}");
    let described: BTreeSet<(String, String)> =
        document.operations().iter().map(|call| (call.method.clone(), plain(call.path))).collect();
    assert_eq!(described, routes());

    let paths: BTreeSet<&str> = document.operations().iter().map(|call| call.path).collect();
    for path in paths {
        for method in METHODS {
            let (code, said) = control.try_call(method, &example(path), "{}").unwrap();
            let is_there = document.operation(method, path).is_some();
            assert_eq!(code != 405, is_there, "{method} {path}: {code} {said}");
            assert!(!said.contains("no such call"), "{method} {path}: {said}");
        }
    }
    posse.stop();
    scene.finish();
}

/// The checker finds each kind of error.
pub fn openapi_checker() {
    let document = OpenApi::parse(DOCUMENT);
    let wrong = |path: &str, code: u16, body: &str| {
        document.answer_error("GET", path, code, body).is_some()
    };
    assert!(!wrong("/healthz", 200, "{}"));
    assert!(!wrong(
        "/v1/events?after=1",
        200,
        "{\"run\":\"a\",\"seq\":1,\"time\":\"t\",\"event\":\"e\"}\n\n"
    ));
    assert!(!wrong("/v1/status", 429, r#"{"error":"x","field":"y"}"#));
    assert!(wrong("/healthz", 200, "{\"a\":1}"));
    assert!(wrong("/healthz", 204, "{}"));
    assert!(wrong("/nothing", 200, "{}"));
    assert!(wrong("/v1/events", 200, "{\"run\":\"a\"}\n"));
    assert!(wrong("/v1/status", 429, r#"{"error":1}"#));
    assert!(wrong("/v1/status", 429, r#"{"error":"x","fields":"y"}"#));
    assert!(wrong("/v1/status", 200, "[]"));
    assert!(wrong("/v1/status", 200, ""));
    let rejects = |schema: Value, value: Value| document.error(&schema, &value, "").is_some();
    assert!(rejects(json!({"type": "integer", "minimum": 1}), json!(0)));
    assert!(rejects(json!({"type": ["string", "null"], "maxLength": 1}), json!("ab")));
    assert!(rejects(json!({"enum": ["a", null]}), json!("b")));
    assert!(rejects(json!({"type": "array", "items": {"type": "boolean"}}), json!([true, 1])));
    assert!(rejects(json!({"oneOf": [{"type": "null"}, {"maxProperties": 0}]}), json!(null)));
}

/// Random requests from the document: valid, nearly valid, and invalid.
pub fn openapi_fuzzed(server: &dyn Server) {
    let scene = Scene::new(server);
    let posse = scene.run().start();
    posse.wait_ready();
    let fuzzer = Fuzzer {
        document: OpenApi::parse(DOCUMENT),
        control: posse.control(),
        template: scene.template(),
    };
    let mut rng = Rng::new(7);
    let mut n_by_code = Map::new();
    for _ in 0..REQUESTS {
        let code = fuzzer.request(&mut rng).to_string();
        let n = n_by_code.get(&code).and_then(Value::as_u64).unwrap_or(0);
        n_by_code.insert(code, (n + 1).into());
    }
    for code in ["200", "400", "404", "409"] {
        assert!(n_by_code.contains_key(code), "{n_by_code:?}");
    }
    let control = posse.control();
    for group in control.status()["groups"].as_array().unwrap() {
        control.delete(group["group"].as_str().unwrap()).ok();
    }
    wait_for(PATIENCE, "no group to be left", || control.status()["groups"] == json!([]));
    posse.stop();
    scene.finish();
}

struct Fuzzer {
    document: OpenApi,
    control: Control,
    template: Value,
}

impl Fuzzer {
    /// Makes one request. Panics if the answer is not as documented.
    fn request(&self, rng: &mut Rng) -> u16 {
        let calls = self.document.operations();
        let call = &calls[below(rng, calls.len())];
        let group = ["default", "0", "a-b", "A", "", "x%20y", "../status"][below(rng, 7)];
        let id = ["1", "2", "0", "999", "x", "18446744073709551616"][below(rng, 6)];
        let key = ["t-1", "0", "-a", "", "x%20y"][below(rng, 5)];
        let mut path = call.path.replace("{group}", group).replace("{id}", id);
        path = path.replace("{key}", key);
        if rng.chance(70) {
            path += self.query(rng);
        }
        let schema = &call.facts["requestBody"]["content"]["application/json"]["schema"];
        let mut body = match schema.is_null() {
            true => String::new(),
            false => self.value(schema, rng).to_string(),
        };
        if !body.is_empty() && rng.chance(10) {
            body.truncate(below(rng, body.len()));
        }
        let (code, said) = self.control.try_call(&call.method, &path, &body).unwrap();
        let about = format!("{} {path} {body}: {code} {said}", call.method);
        assert!(code < 500, "{about}");
        let is_known = self.document.operation(&call.method, path.split('?').next().unwrap());
        if is_known.is_some() {
            let error = self.document.answer_error(&call.method, &path, code, &said);
            assert_eq!(error, None, "{about}");
        }
        code
    }

    fn query(&self, rng: &mut Rng) -> &'static str {
        // A followed event stream would never end.
        [
            "?after=0",
            "?after=1&follow=false",
            "?after=-1",
            "?after=99999999",
            "?run=none",
            "?follow=perhaps",
            "?after=%00&run=&x=y",
            "?&&==",
        ][below(rng, 8)]
    }

    /// A value that the schema accepts, or nearly.
    fn value(&self, schema: &Value, rng: &mut Rng) -> Value {
        if rng.chance(4) {
            return self.anything(rng);
        }
        if let Some(place) = schema["$ref"].as_str() {
            return self.value(self.document.0.pointer(&place[1..]).unwrap(), rng);
        }
        if let Some(choices) = schema["oneOf"].as_array().or_else(|| schema["enum"].as_array()) {
            let chosen = &choices[below(rng, choices.len())];
            return if schema["enum"].is_null() { self.value(chosen, rng) } else { chosen.clone() };
        }
        let kind = match schema["type"].as_array() {
            Some(kinds) => &kinds[below(rng, kinds.len())],
            None => &schema["type"],
        };
        match kind.as_str().unwrap_or("null") {
            "array" => (0..below(rng, 4)).map(|_| self.value(&schema["items"], rng)).collect(),
            "boolean" => rng.chance(50).into(),
            // Few executors, because each is a process.
            "integer" => (schema["minimum"].as_u64().unwrap_or(0) + rng.below(3)).into(),
            "string" => ["", "worker", "\u{0}\"\\", "a long one"][below(rng, 4)].into(),
            "object" if schema["properties"].is_null() => self.template.clone(),
            "object" => {
                let properties = schema["properties"].as_object().unwrap();
                let required = schema["required"].as_array().cloned().unwrap_or_default();
                let mut map = Map::new();
                for (name, property) in properties {
                    if rng.chance(if required.contains(&json!(name)) { 95 } else { 40 }) {
                        map.insert(name.clone(), self.value(property, rng));
                    }
                }
                if rng.chance(3) {
                    map.insert("another".to_owned(), self.anything(rng));
                }
                map.into()
            }
            _ => Value::Null,
        }
    }

    fn anything(&self, rng: &mut Rng) -> Value {
        let mut broken = self.template.clone();
        broken["spec"]["containers"] = json!([null, {"name": 1}]);
        let all = [
            Value::Null,
            json!(-1),
            json!(1.5),
            json!(u64::MAX),
            json!(1e300),
            json!("x"),
            json!([]),
            json!({}),
            json!([[[[]]]]),
            json!(true),
            broken,
        ];
        all[below(rng, all.len())].clone()
    }
}

pub fn below(rng: &mut Rng, n: usize) -> usize {
    usize::try_from(rng.below(n as u64)).unwrap()
}
