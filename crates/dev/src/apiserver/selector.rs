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
        let mut parser = Parser { tokens: tokens(text), at: 0 };
        parser.selector().map_err(StatusError::bad_request)
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

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    End,
    Symbol(&'static str),
    Word(String),
}

impl Token {
    fn text(&self) -> &str {
        match self {
            Self::End => "",
            Self::Symbol(symbol) => symbol,
            Self::Word(word) => word,
        }
    }

    fn is(&self, text: &str) -> bool {
        match self {
            Self::Symbol(symbol) => *symbol == text,
            Self::End | Self::Word(_) => false,
        }
    }
}

/// Longer ones first, so that `==` is not read as two `=`.
const SYMBOLS: [&str; 9] = ["==", "!=", "!", "=", "<", ">", "(", ")", ","];

fn tokens(text: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let symbol = SYMBOLS.into_iter().find(|symbol| rest.starts_with(symbol));
        let length = match symbol {
            Some(symbol) => {
                tokens.push(Token::Symbol(symbol));
                symbol.len()
            }
            None => {
                let end = rest
                    .find(|c: char| c.is_whitespace() || "!=<>(),".contains(c))
                    .unwrap_or(rest.len());
                tokens.push(Token::Word(rest[..end].to_owned()));
                end
            }
        };
        rest = rest[length..].trim_start();
    }
    tokens.push(Token::End);
    tokens
}

struct Parser {
    /// Ends with `Token::End`.
    tokens: Vec<Token>,
    at: usize,
}

impl Parser {
    fn peek(&self) -> &Token {
        self.tokens.get(self.at).unwrap_or(&Token::End)
    }

    fn next(&mut self) -> Token {
        let token = self.peek().clone();
        self.at += 1;
        token
    }

    fn selector(&mut self) -> Result<LabelSelector, String> {
        let mut requirements = Vec::new();
        if *self.peek() == Token::End {
            return Ok(LabelSelector { requirements });
        }
        // Each round takes a token, so that the length of the text bounds the loop.
        loop {
            match self.peek() {
                Token::Word(_) | Token::Symbol("!") => requirements.push(self.requirement()?),
                token @ (Token::End | Token::Symbol(_)) => {
                    return Err(format!(
                        "found '{}', expected: !, identifier, or 'end of string'",
                        token.text()
                    ));
                }
            }
            match self.next() {
                Token::End => return Ok(LabelSelector { requirements }),
                Token::Symbol(",") => match self.peek() {
                    Token::Word(_) | Token::Symbol("!") => {}
                    token @ (Token::End | Token::Symbol(_)) => {
                        return Err(format!(
                            "found '{}', expected: identifier after ','",
                            token.text()
                        ));
                    }
                },
                token @ (Token::Symbol(_) | Token::Word(_)) => {
                    return Err(format!(
                        "found '{}', expected: ',' or 'end of string'",
                        token.text()
                    ));
                }
            }
        }
    }

    fn requirement(&mut self) -> Result<Requirement, String> {
        let absent = self.peek().is("!");
        if absent {
            self.at += 1;
        }
        let key = match self.next() {
            Token::Word(word) => word,
            token @ (Token::End | Token::Symbol(_)) => {
                return Err(unparsable(&format!("found '{}', expected: identifier", token.text())));
            }
        };
        if let Some(wrong) = names::qualified_name(&key).into_iter().next() {
            return Err(unparsable(&format!("<nil>: Invalid value: {key:?}: {wrong}")));
        }
        if absent {
            return Ok(Requirement { key, operator: Operator::Absent });
        }
        let operator = self.operator(&key)?;
        Ok(Requirement { key, operator })
    }

    fn operator(&mut self, key: &str) -> Result<Operator, String> {
        if matches!(self.peek(), Token::End) || self.peek().is(",") {
            return Ok(Operator::Exists);
        }
        match self.next() {
            Token::Symbol("=" | "==") => Ok(Operator::In(vec![self.value(key)?])),
            Token::Symbol("!=") => Ok(Operator::NotIn(vec![self.value(key)?])),
            Token::Symbol(">") => Ok(Operator::GreaterThan(self.bound(key)?)),
            Token::Symbol("<") => Ok(Operator::LessThan(self.bound(key)?)),
            Token::Word(word) if word == "in" => Ok(Operator::In(self.values(key)?)),
            Token::Word(word) if word == "notin" => Ok(Operator::NotIn(self.values(key)?)),
            token @ (Token::End | Token::Symbol(_) | Token::Word(_)) => Err(unparsable(&format!(
                "found '{}', expected: in, notin, =, ==, !=, gt, lt",
                token.text()
            ))),
        }
    }

    /// One value after `=`; the value may be empty.
    fn value(&mut self, key: &str) -> Result<String, String> {
        let value = match self.peek() {
            Token::Word(word) => word.clone(),
            Token::End | Token::Symbol(",") => return Ok(String::new()),
            token @ Token::Symbol(_) => {
                return Err(unparsable(&format!("found '{}', expected: identifier", token.text())));
            }
        };
        self.at += 1;
        checked_value(key, value)
    }

    fn bound(&mut self, key: &str) -> Result<i64, String> {
        let value = self.value(key)?;
        value.parse().map_err(|_| {
            let detail = "for 'Gt', 'Lt' operators, the value must be an integer";
            unparsable(&format!("values[0]: Invalid value: {value:?}: {detail}"))
        })
    }

    fn values(&mut self, key: &str) -> Result<Vec<String>, String> {
        if !self.peek().is("(") {
            return Err(unparsable(&format!("found '{}' expected: '('", self.peek().text())));
        }
        self.at += 1;
        let mut values = Vec::new();
        let mut value = String::new();
        loop {
            match self.next() {
                Token::Word(word) if value.is_empty() => value = checked_value(key, word)?,
                Token::Symbol(",") => values.push(std::mem::take(&mut value)),
                Token::Symbol(")") => {
                    values.push(value);
                    return Ok(values);
                }
                token @ (Token::End | Token::Symbol(_) | Token::Word(_)) => {
                    return Err(unparsable(&format!(
                        "found '{}', expected: ',', ')' or identifier",
                        token.text()
                    )));
                }
            }
        }
    }
}

fn checked_value(key: &str, value: String) -> Result<String, String> {
    match names::label_value(&value).into_iter().next() {
        None => Ok(value),
        Some(wrong) => {
            Err(unparsable(&format!("values[0][{key}]: Invalid value: {value:?}: {wrong}")))
        }
    }
}

fn unparsable(detail: &str) -> String {
    format!("unable to parse requirement: {detail}")
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
            if term.value.contains('=') {
                let message = "invalid field selector: unescaped character in value: 61";
                return Err(StatusError::bad_request(message));
            }
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

    #[test]
    fn labels_match_as_written() {
        let labels = [("app", "w"), ("n", "5"), ("empty", "")];
        for (selector, want) in [
            ("", true),
            ("app", true),
            ("!app", false),
            ("app=w", true),
            ("app == w , n!=4", true),
            ("none!=x", true),
            ("none=x", false),
            ("empty=", true),
            ("app in (a,w)", true),
            ("app in (a,b)", false),
            ("app notin (w)", false),
            ("none notin (w)", true),
            ("empty in (,x)", true),
            ("n>4", true),
            ("n<5", false),
            ("app>4", false),
            ("in=w", false),
        ] {
            check(selector, &labels, want);
        }
    }

    #[test]
    fn fields_match_as_written() {
        let field = |name: &str| if name == "a" { "1".to_owned() } else { String::new() };
        for (selector, want) in
            [("a=1", true), ("a==1,b=", true), ("a!=1", false), ("b!=1", true), ("a=2", false)]
        {
            let parsed = FieldSelector::parse(selector).expect("a selector");
            assert_eq!(parsed.matches(field), want, "{selector}");
        }
    }
}
