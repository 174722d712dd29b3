//! Checks calls and answers of the control API against `/openapi.json`. Supports the part of JSON
//! Schema that the document uses, and fails on unknown keywords.

use serde_json::{Map, Value};

/// The document.
#[derive(Clone, Debug)]
pub struct OpenApi(pub Value);

/// One call of the document.
#[derive(Clone, Debug)]
pub struct Operation<'a> {
    pub path: &'a str,
    /// In capital letters.
    pub method: String,
    pub facts: &'a Value,
}

impl OpenApi {
    pub fn parse(text: &str) -> Self {
        Self(serde_json::from_str(text).expect("the document is JSON"))
    }

    /// All calls.
    pub fn operations(&self) -> Vec<Operation<'_>> {
        let paths = self.0["paths"].as_object().expect("paths");
        let calls = paths.iter().flat_map(|(path, item)| {
            let item = item.as_object().expect("a path is a map");
            item.iter().filter(|(key, _)| *key != "parameters").map(move |(method, facts)| {
                Operation { path, method: method.to_uppercase(), facts }
            })
        });
        calls.collect()
    }

    /// The call of a request, found by its method and its path without the query.
    pub fn operation(&self, method: &str, path: &str) -> Option<Operation<'_>> {
        let fits = |pattern: &str| {
            let (ours, theirs) = (path.split('/'), pattern.split('/'));
            ours.clone().count() == theirs.clone().count()
                && ours.zip(theirs).all(|(our, their)| our == their || their.starts_with('{'))
        };
        self.operations().into_iter().find(|call| call.method == method && fits(call.path))
    }

    /// The error in an answer to a call, if there is one.
    pub fn answer_error(&self, method: &str, path: &str, code: u16, body: &str) -> Option<String> {
        let path = path.split('?').next().unwrap_or_default();
        let Some(call) = self.operation(method, path) else {
            return Some(format!("{method} {path} is not in the document"));
        };
        let responses = &call.facts["responses"];
        let named = responses.get(code.to_string());
        if named.is_none() && code < 300 {
            return Some(format!("{method} {path}: {code} is not in the document"));
        }
        let response = self.resolve(named.unwrap_or_else(|| &responses["default"]));
        let Some((kind, content)) = response["content"].as_object()?.iter().next() else {
            return Some(format!("{method} {path}: {code} has no content in the document"));
        };
        let texts: Vec<&str> = match kind.as_str() {
            "application/x-ndjson" => body.lines().filter(|line| !line.is_empty()).collect(),
            _ => vec![body],
        };
        let wrong = texts.into_iter().find_map(|text| match serde_json::from_str(text) {
            Ok(value) => self.error(&content["schema"], &value, ""),
            Err(error) => Some(format!("not JSON: {error}")),
        });
        wrong.map(|wrong| format!("{method} {path}: {code}: {wrong}: {body}"))
    }

    fn resolve<'a>(&'a self, value: &'a Value) -> &'a Value {
        match value.get("$ref").and_then(Value::as_str) {
            Some(place) => {
                let found = self.0.pointer(place.strip_prefix('#').expect("a place in here"));
                found.unwrap_or_else(|| panic!("{place} is not in the document"))
            }
            None => value,
        }
    }

    /// The first error of `value` against `schema`; `at` is its path.
    pub fn error(&self, schema: &Value, value: &Value, at: &str) -> Option<String> {
        let schema = self.resolve(schema).as_object().expect("a schema is a map");
        schema.iter().find_map(|(word, rule)| self.broken(schema, word, rule, value, at))
    }

    fn broken(
        &self,
        schema: &Map<String, Value>,
        word: &str,
        rule: &Value,
        value: &Value,
        at: &str,
    ) -> Option<String> {
        let fail = |holds: bool| (!holds).then(|| format!("{at}: {word} {rule}, found {value}"));
        let number = |rule: &Value| rule.as_i64().expect("a bound is a whole number");
        match word {
            "type" => fail(match rule.as_array() {
                Some(kinds) => kinds.iter().any(|kind| is_of(kind, value)),
                None => is_of(rule, value),
            }),
            "enum" => fail(rule.as_array().expect("a list").contains(value)),
            "minimum" => fail(value.as_i64().is_none_or(|n| n >= number(rule))),
            "maximum" => fail(value.as_i64().is_none_or(|n| n <= number(rule))),
            "maxLength" => {
                let n_chars = value.as_str().map_or(0, |text| text.chars().count());
                fail(n_chars as i64 <= number(rule))
            }
            "maxProperties" => fail(value.as_object().map_or(0, Map::len) as i64 <= number(rule)),
            "required" => {
                let mut names = rule.as_array().expect("a list").iter().filter_map(Value::as_str);
                // The word says nothing about other types than objects.
                fail(!value.is_object() || names.all(|name| value.get(name).is_some()))
            }
            "properties" => {
                let known = rule.as_object().expect("a map");
                let mut there = value.as_object()?.iter();
                there.find_map(|(name, value)| {
                    self.error(known.get(name)?, value, &format!("{at}.{name}"))
                })
            }
            "additionalProperties" => {
                assert_eq!(rule, false, "only false is understood");
                let known = schema.get("properties").and_then(Value::as_object);
                let mut names = value.as_object()?.keys();
                fail(names.all(|name| known.is_some_and(|known| known.contains_key(name))))
            }
            "items" => {
                value.as_array()?.iter().find_map(|item| self.error(rule, item, &format!("{at}[]")))
            }
            "oneOf" => {
                let fits = |schema: &&Value| self.error(schema, value, at).is_none();
                fail(rule.as_array().expect("a list").iter().filter(fits).count() == 1)
            }
            "description" | "pattern" => None,
            other => panic!("{at}: the checker does not know `{other}`"),
        }
    }
}

fn is_of(kind: &Value, value: &Value) -> bool {
    match kind.as_str().expect("a type is a word") {
        "array" => value.is_array(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "null" => value.is_null(),
        "object" => value.is_object(),
        "string" => value.is_string(),
        other => panic!("the checker does not know the type `{other}`"),
    }
}
