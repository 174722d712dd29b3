//! Validates objects by the table `rules.txt`. Checks that compare several fields are functions of
//! the modules beside this one, called by their names in `super::CALLS`.
//!
//! A line of the table is a type. A line that begins with a blank is a field and a rule, in the
//! order of the real server's checks. The field `-` is the object itself, `a.b` is a subfield, and
//! `a=b` is reported as `b`. A rule accepts absent and empty values unless `+` stands before it. A
//! rule that begins with a capital is a type whose rules follow. It applies to each item of a list,
//! and so does a rule after `[]`; after `.` the path has no index.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use serde_json::Value;

use super::{CALLS, Causes, NameRule, join, push_invalid};
use crate::schema::names;
use crate::schema::status::Cause;

const TEXT: &str = include_str!("rules.txt");

/// Rules for texts.
const FORMATS: &[(&str, NameRule)] = &[
    ("env", names::env_name),
    ("key", names::config_key),
    ("label", names::dns_label),
    ("local_path", names::local_path),
    ("no_backsteps", names::no_backsteps),
    ("qualified", names::qualified_name),
    ("subdomain", names::dns_subdomain),
];

/// Rules for numbers: the range and the message.
const RANGES: &[(&str, i64, i64, &str)] = &[
    ("deadline", 1, 2_147_483_647, "must be between 1 and 2147483647, inclusive"),
    ("id", 0, 2_147_483_647, "must be between 0 and 2147483647, inclusive"),
    ("min", 0, i64::MAX, "must be greater than or equal to 0"),
    ("mode", 0, 0o777, "must be a number between 0 and 0777 (octal), both inclusive"),
    ("one", 1, 1, "must be 1"),
    ("port", 1, 65_535, "must be between 1 and 65535, inclusive"),
];

#[derive(Debug)]
struct Rule {
    field: &'static str,
    shown: &'static str,
    name: &'static str,
    rest: &'static str,
}

fn table() -> &'static BTreeMap<&'static str, Vec<Rule>> {
    static RULES: OnceLock<BTreeMap<&'static str, Vec<Rule>>> = OnceLock::new();
    RULES.get_or_init(|| {
        let mut rules: BTreeMap<&'static str, Vec<Rule>> = BTreeMap::new();
        let mut owner = "";
        for line in TEXT.lines() {
            let Some(line) = line.strip_prefix(' ') else {
                owner = line;
                continue;
            };
            let (field, rule) = line.split_once(' ').unwrap_or((line, ""));
            let (field, shown) = field.split_once('=').unwrap_or((field, field));
            let (name, rest) = rule.split_once(' ').unwrap_or((rule, ""));
            rules.entry(owner).or_default().push(Rule { field, shown, name, rest });
        }
        rules
    })
}

/// Validates an object by the rules of a type.
pub(super) fn check(of: &str, value: &Value, path: &str, causes: &mut Causes) {
    for rule in table().get(of).map_or(&[][..], Vec::as_slice) {
        if rule.field == "-" {
            apply(rule, rule.name, value, path, causes);
            continue;
        }
        let pointer = format!("/{}", rule.field.replace('.', "/"));
        let value = value.pointer(&pointer).unwrap_or(&Value::Null);
        let field = join(path, rule.shown);
        if let Some(name) = rule.name.strip_prefix('+') {
            apply(rule, name, value, &field, causes);
        } else if rule.name == "required" {
            if is_empty(value) {
                causes.push(Cause::required(field, rule.rest));
            }
        } else if !value.is_null() && value != "" {
            apply_to_items(rule, value, &field, causes);
        }
    }
}

/// Applies a rule to a value or to each of its items.
fn apply_to_items(rule: &Rule, value: &Value, field: &str, causes: &mut Causes) {
    let items = value.as_array().map_or(&[][..], Vec::as_slice);
    if let Some(name) = rule.name.strip_prefix("[]") {
        for (i, item) in items.iter().enumerate() {
            apply(rule, name, item, &format!("{field}[{i}]"), causes);
        }
    } else if let Some(name) = rule.name.strip_prefix('.') {
        items.iter().for_each(|item| apply(rule, name, item, field, causes));
    } else if value.is_array() && rule.name.starts_with(char::is_uppercase) {
        for (i, item) in items.iter().enumerate() {
            apply(rule, rule.name, item, &format!("{field}[{i}]"), causes);
        }
    } else {
        apply(rule, rule.name, value, field, causes);
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(_) => false,
        Value::Number(number) => number.as_i64() == Some(0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(_) => false,
    }
}

fn apply(rule: &Rule, name: &str, value: &Value, field: &str, causes: &mut Causes) {
    let text = value.as_str().unwrap_or_default();
    if name.starts_with(char::is_uppercase) {
        check(name, value, field, causes);
    } else if let Some((_, call)) = CALLS.iter().find(|(known, _)| *known == name) {
        call(value, field, causes);
    } else if let Some((_, format)) = FORMATS.iter().find(|(known, _)| *known == name) {
        push_invalid(causes, field, text, format(text));
    } else if let Some((_, low, high, detail)) = RANGES.iter().find(|(known, ..)| *known == name) {
        let number = value.as_i64().unwrap_or_default();
        // Port 0 means no port.
        let none = name == "port" && number == 0;
        if !none && !(*low..=*high).contains(&number) {
            causes.push(Cause::invalid_raw(field, &number, detail));
        }
    } else if name == "in" {
        let known: Vec<&str> =
            rule.rest.split(' ').map(|word| if word == "\"\"" { "" } else { word }).collect();
        if !known.contains(&text) {
            causes.push(Cause::not_supported(field, text, &known));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rule_of_the_table_is_known_and_each_call_is_used() {
        let own = ["in", "required"];
        for (owner, rules) in table() {
            for rule in rules {
                let name = rule.name.trim_start_matches(['+', '.']);
                let name = name.strip_prefix("[]").unwrap_or(name);
                let known = own.contains(&name)
                    || table().contains_key(name)
                    || CALLS.iter().any(|(call, _)| *call == name)
                    || FORMATS.iter().any(|(format, _)| *format == name)
                    || RANGES.iter().any(|(range, ..)| *range == name);
                assert!(known, "{owner}: {rule:?}");
            }
        }
        for (call, _) in CALLS {
            assert!(TEXT.lines().any(|line| line.ends_with(&*call)), "{call}");
        }
    }
}
