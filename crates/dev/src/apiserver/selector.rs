//! Label and field selectors: parsing with the server's errors, and matching.

use serde_json::Value;

use crate::schema::names;
use crate::schema::status::StatusError;
use crate::storage::object::{array_at, text_at};

/// A label selector; all requirements must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LabelSelector {
    requirements: Vec<Requirement>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Requirement {
    key: String,
    operator: Operator,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Operator {
    Absent,
    Exists,
    GreaterThan(i64),
    In(Vec<String>),
    LessThan(i64),
    NotIn(Vec<String>),
}

/// The terms of a field selector: field, value, and whether they must be equal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FieldSelector {
    pub(crate) terms: Vec<FieldTerm>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FieldTerm {
    pub(crate) field: String,
    pub(crate) value: String,
    pub(crate) equal: bool,
}

impl LabelSelector {
    /// Parses `a=b,c in (d,e),!f`.
    pub(crate) fn parse(text: &str) -> Result<Self, StatusError> {
        let mut within = false;
        // A comma within brackets separates values.
        let ends = |c: char| {
            within = c == '(' || within && c != ')';
            c == ',' && !within
        };
        let terms: Vec<&str> = text.split(ends).filter(|_| !text.trim().is_empty()).collect();
        let requirements = terms.into_iter().map(Requirement::parse).collect::<Result<_, _>>();
        let requirements = requirements.map_err(|why: String| {
            StatusError::bad_request(format!("unable to parse requirement: {why}"))
        })?;
        Ok(Self { requirements })
    }

    /// Reads `matchLabels` and `matchExpressions`; `None` if an operator is unknown.
    pub(crate) fn of_object(selector: &Value) -> Option<Self> {
        let mut requirements = Vec::new();
        let labels = selector.get("matchLabels").and_then(Value::as_object);
        for (key, value) in labels.into_iter().flatten() {
            let operator = Operator::In(vec![value.as_str().unwrap_or_default().to_owned()]);
            requirements.push(Requirement { key: key.clone(), operator });
        }
        for expression in array_at(selector, "/matchExpressions") {
            let values = array_at(expression, "/values").iter().filter_map(Value::as_str);
            let values: Vec<String> = values.map(str::to_owned).collect();
            let bound = || number(values.first().map(String::as_str));
            let operator = match text_at(expression, "/operator") {
                // Of node selectors only.
                "Gt" => Operator::GreaterThan(bound()?),
                "Lt" => Operator::LessThan(bound()?),
                "In" => Operator::In(values),
                "NotIn" => Operator::NotIn(values),
                "Exists" => Operator::Exists,
                "DoesNotExist" => Operator::Absent,
                _ => return None,
            };
            requirements
                .push(Requirement { key: text_at(expression, "/key").to_owned(), operator });
        }
        Some(Self { requirements })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }

    /// `label` looks up a label's value by its key.
    pub(crate) fn matches<'a>(&self, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.requirements.iter().all(|requirement| {
            let value = label(&requirement.key);
            match &requirement.operator {
                Operator::Absent => value.is_none(),
                Operator::Exists => value.is_some(),
                Operator::GreaterThan(bound) => number(value).is_some_and(|n| n > *bound),
                Operator::In(values) => value.is_some_and(|v| values.iter().any(|w| w == v)),
                Operator::LessThan(bound) => number(value).is_some_and(|n| n < *bound),
                Operator::NotIn(values) => value.is_none_or(|v| values.iter().all(|w| w != v)),
            }
        })
    }
}

fn number(value: Option<&str>) -> Option<i64> {
    value?.parse().ok()
}

impl Requirement {
    fn parse(term: &str) -> Result<Self, String> {
        let term = term.trim();
        if let Some(key) = term.strip_prefix('!') {
            return Self::new(key, Operator::Absent);
        }
        // The longer symbols first: the others are parts of them.
        for symbol in ["!=", "==", "="] {
            let Some((key, value)) = term.split_once(symbol) else { continue };
            let value = checked_value(value)?;
            let operator = match symbol {
                "!=" => Operator::NotIn(vec![value]),
                _ => Operator::In(vec![value]),
            };
            return Self::new(key, operator);
        }
        let (key, rest) = term.split_once(char::is_whitespace).unwrap_or((term, ""));
        let values = |list: &str| -> Result<Vec<String>, String> {
            let list = list.trim().strip_prefix('(').and_then(|list| list.strip_suffix(')'));
            let list = list.ok_or_else(|| format!("found '{rest}', expected: (values)"))?;
            list.split(',').map(checked_value).collect()
        };
        let operator = match rest.trim() {
            "" => Operator::Exists,
            set => match (set.strip_prefix("notin"), set.strip_prefix("in")) {
                (Some(list), _) => Operator::NotIn(values(list)?),
                (None, Some(list)) => Operator::In(values(list)?),
                (None, None) => {
                    return Err(format!("found '{set}', expected: in, notin, =, ==, !="));
                }
            },
        };
        Self::new(key, operator)
    }

    fn new(key: &str, operator: Operator) -> Result<Self, String> {
        let key = key.trim();
        match names::qualified_name(key).into_iter().next() {
            None => Ok(Self { key: key.to_owned(), operator }),
            Some(wrong) => Err(format!("{key:?}: {wrong}")),
        }
    }
}

fn checked_value(value: &str) -> Result<String, String> {
    let value = value.trim();
    match names::label_value(value).into_iter().next() {
        None => Ok(value.to_owned()),
        Some(wrong) => Err(format!("{value:?}: {wrong}")),
    }
}

impl FieldSelector {
    /// Parses `a=b,c!=d`. The caller checks which fields exist.
    pub(crate) fn parse(text: &str) -> Result<Self, StatusError> {
        let mut terms = Vec::new();
        for term in text.split(',').filter(|term| !term.is_empty()) {
            let found = ["!=", "==", "="].into_iter().find_map(|operator| {
                let (field, value) = term.split_once(operator)?;
                Some(FieldTerm {
                    field: field.to_owned(),
                    value: value.to_owned(),
                    equal: operator != "!=",
                })
            });
            let Some(term) = found else {
                return Err(StatusError::bad_request(format!(
                    "invalid selector: '{text}'; can't understand '{term}'"
                )));
            };
            terms.push(term);
        }
        Ok(Self { terms })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    /// `field` looks up a field's value; absent fields are empty.
    pub(crate) fn matches(&self, field: impl Fn(&str) -> String) -> bool {
        self.terms.iter().all(|term| (field(&term.field) == term.value) == term.equal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(selector: &str, labels: &[(&str, &str)], want: bool) {
        let parsed = LabelSelector::parse(selector).expect("a selector");
        let got =
            parsed.matches(|key| labels.iter().find(|(name, _)| *name == key).map(|(_, v)| *v));
        assert_eq!(got, want, "{selector} on {labels:?}");
    }

    /// The transcript has the others, and those of fields.
    #[test]
    fn labels_match_as_written() {
        let labels = [("app", "w"), ("n", "5"), ("empty", "")];
        for (selector, want) in [
            ("none!=x", true),
            ("empty=", true),
            ("none notin (w)", true),
            ("empty in (,x)", true),
            ("in=w", false),
        ] {
            check(selector, &labels, want);
        }
    }
}
