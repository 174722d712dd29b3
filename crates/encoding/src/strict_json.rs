//! Reads JSON and refuses an object that has a key twice. Other readers take the first or the last of
//! the two values, so a check by one program would not hold for the next one (RFC 8259, 4).

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// Reads a whole text.
///
/// # Errors
/// It is not JSON, or an object has a key twice; the message has the line and the column.
pub fn parse(text: &[u8]) -> Result<Value, serde_json::Error> {
    serde_json::from_slice::<Strict>(text).map(|Strict(value)| value)
}

struct Strict(Value);

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(StrictVisitor).map(Self)
    }
}

struct StrictVisitor;

impl<'de> Visitor<'de> for StrictVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(Strict(item)) = items.next_element()? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = members.next_key::<String>()? {
            if map.contains_key(&key) {
                return Err(A::Error::custom(format_args!("the key {key:?} is given twice")));
            }
            let Strict(value) = members.next_value()?;
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_is_given_twice_is_an_error() {
        for good in [
            "null",
            " [1, -1, 1.5, true, \"x\", null] ",
            r#"{"a": {"a": 1}, "b": [{"a": 1}, {"a": 2}], "A": 18446744073709551615}"#,
        ] {
            let want = serde_json::from_str::<Value>(good).unwrap();
            assert_eq!(parse(good.as_bytes()).unwrap(), want, "{good}");
        }
        for (bad, words) in [
            (r#"{"a": 1, "a": 1}"#, "the key \"a\" is given twice at line 1 column"),
            (r#"[{"x": {"b": 1, "\u0062": 2}}]"#, "the key \"b\" is given twice"),
            (r#"{"a": 1"#, "EOF"),
            (r#"{} {}"#, "trailing"),
            ("\u{feff}{}", "expected value"),
        ] {
            let error = parse(bad.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(words), "{bad}: {error}");
        }
        let deep = "[".repeat(1_000_000);
        assert!(parse(deep.as_bytes()).unwrap_err().to_string().contains("recursion limit"));
    }

    #[test]
    fn the_deepest_call_fits_on_the_stack_of_a_connection() {
        let deep = format!("{}1{}", r#"{"a":["#.repeat(32), "]}".repeat(32));
        assert_eq!(crate::json::check_size(deep.as_bytes()), Ok(()));
        // Half of what serve/ gives to a connection.
        let thread = std::thread::Builder::new().stack_size(128 << 10);
        let parsed = thread.spawn(move || parse(deep.as_bytes()).is_ok()).unwrap();
        assert!(parsed.join().unwrap());
    }
}
