//! Reads JSON into the structs of `fields`. serde_json checks and skips what they do not want.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::fields::{Fields, Value};

/// Limits of JSON that any client may send, before a tree is built of it. Trees are walked
/// recursively on threads with small stacks, and a map of one byte takes some hundred.
pub const DEPTH_MAX: usize = 64;
pub const VALUES_MAX: usize = 100_000;

/// Checks that a text has at most `DEPTH_MAX` levels and `VALUES_MAX` values. Does not check whether
/// it is JSON.
///
/// # Errors
/// Which limit it exceeds, for a sentence that begins with "the body".
pub fn check_size(bytes: &[u8]) -> Result<(), String> {
    let (mut depth, mut n_values) = (0_usize, 1_usize);
    let mut rest = bytes.iter();
    while let Some(byte) = rest.next() {
        match byte {
            b'"' => skip_string(&mut rest),
            b'[' | b'{' => (depth, n_values) = (depth + 1, n_values + 1),
            b']' | b'}' => depth = depth.saturating_sub(1),
            b',' => n_values += 1,
            _ => {}
        }
        if depth > DEPTH_MAX {
            return Err(format!("is nested deeper than {DEPTH_MAX}"));
        }
        if n_values > VALUES_MAX {
            return Err(format!("has more than {VALUES_MAX} values"));
        }
    }
    Ok(())
}

/// Skips a string after its first quote.
fn skip_string(rest: &mut std::slice::Iter<'_, u8>) {
    while let Some(byte) = rest.next() {
        match byte {
            b'"' => return,
            b'\\' => drop(rest.next()),
            _ => {}
        }
    }
}

/// Reads an object. `None` for null.
///
/// # Errors
/// It is not JSON, or a field has another type than the struct expects.
pub fn read<'a, T: Default + Fields<'a>>(bytes: &'a [u8]) -> Result<Option<T>, serde_json::Error> {
    let mut whole = T::default();
    Ok(fill(bytes, &mut whole)?.then_some(whole))
}

/// Fills a struct with the fields of an object. False for null.
///
/// # Errors
/// It is not JSON, or a field has another type than the struct expects.
pub fn fill<'a, T: Fields<'a>>(bytes: &'a [u8], whole: &mut T) -> Result<bool, serde_json::Error> {
    let text = str::from_utf8(bytes).map_err(serde_json::Error::custom)?;
    let mut json = serde_json::Deserializer::from_str(text);
    let is_given = Object(whole).deserialize(&mut json)?;
    json.end()?;
    Ok(is_given)
}

/// An object whose fields go into a struct. False for null.
struct Object<'t, T>(&'t mut T);

impl<'de, T: Fields<'de>> DeserializeSeed<'de> for Object<'_, T> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<bool, D::Error> {
        json.deserialize_any(self)
    }
}

impl<'de, T: Fields<'de>> Visitor<'de> for Object<'_, T> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_unit<E: Error>(self) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<bool, A::Error> {
        while let Some(key) = map.next_key_seed(Text)? {
            let mut value = Member { map: &mut map, is_read: false };
            self.0.field(&key, &mut value)?;
            if !value.is_read {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(true)
    }
}

/// A list of objects. Nothing for null.
struct List<'e, T>(&'e mut dyn FnMut(Option<T>));

impl<'de, T: Default + Fields<'de>> DeserializeSeed<'de> for List<'_, T> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_any(self)
    }
}

impl<'de, T: Default + Fields<'de>> Visitor<'de> for List<'_, T> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let mut item = T::default();
        while let Some(is_given) = list.next_element_seed(Object(&mut item))? {
            (self.0)(is_given.then(|| std::mem::take(&mut item)));
        }
        Ok(())
    }
}

/// A string, borrowed if it has no escapes. Empty for null.
struct Text;

impl<'de> DeserializeSeed<'de> for Text {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Self::Value, D::Error> {
        json.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Text {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok("".into())
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(text.into())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(text.to_owned().into())
    }
}

/// The value of a key that was just read.
struct Member<'m, A> {
    map: &'m mut A,
    is_read: bool,
}

impl<'a, A: MapAccess<'a>> Member<'_, A> {
    fn read<S: DeserializeSeed<'a>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        self.is_read = true;
        self.map.next_value_seed(seed)
    }
}

impl<'a, A: MapAccess<'a>> Value<'a> for Member<'_, A> {
    type Error = A::Error;

    fn text(&mut self) -> Result<Cow<'a, str>, A::Error> {
        self.read(Text)
    }

    fn number(&mut self) -> Result<Option<i64>, A::Error> {
        self.read(PhantomData::<Option<i64>>)
    }

    fn is_true(&mut self) -> Result<bool, A::Error> {
        Ok(self.read(PhantomData::<Option<bool>>)?.unwrap_or_default())
    }

    fn is_given(&mut self) -> Result<bool, A::Error> {
        Ok(self.read(PhantomData::<Option<IgnoredAny>>)?.is_some())
    }

    fn raw(&mut self) -> Result<&'a [u8], A::Error> {
        Ok(self.read(PhantomData::<&'a RawValue>)?.get().as_bytes())
    }

    fn fields<T: Default + Fields<'a>>(&mut self) -> Result<Option<T>, A::Error> {
        let mut whole = T::default();
        Ok(self.read(Object(&mut whole))?.then_some(whole))
    }

    fn each<T: Default + Fields<'a>>(
        &mut self,
        each: &mut dyn FnMut(Option<T>),
    ) -> Result<(), A::Error> {
        self.read(List(each))
    }

    fn entries<T: Default + Fields<'a>>(&mut self, map: &mut T) -> Result<(), A::Error> {
        *map = self.fields()?.unwrap_or_default();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One field of each kind. Other keys are skipped.
    #[derive(Debug, Default, PartialEq)]
    struct Sample<'a> {
        text: Cow<'a, str>,
        number: Option<i64>,
        is_true: bool,
        is_given: bool,
        raw: &'a [u8],
        inner: Option<Box<Self>>,
        list: Vec<Self>,
        /// The keys as they came.
        keys: Vec<String>,
    }

    impl<'a> Fields<'a> for Sample<'a> {
        const NUMBERS: &'static [(u32, &'static str)] = &[];

        fn field<V: Value<'a>>(&mut self, key: &str, value: &mut V) -> Result<(), V::Error> {
            self.keys.push(key.to_owned());
            match key {
                "text" => self.text = value.text()?,
                "number" => self.number = value.number()?,
                "true" => self.is_true = value.is_true()?,
                "given" => self.is_given = value.is_given()?,
                "raw" => self.raw = value.raw()?,
                "inner" => self.inner = value.fields()?.map(Box::new),
                "list" => value.items(&mut self.list)?,
                _ => {}
            }
            Ok(())
        }
    }

    fn sample(text: &str) -> Result<Option<Sample<'_>>, serde_json::Error> {
        read(text.as_bytes())
    }

    #[test]
    fn wanted_fields_are_read_and_others_skipped() {
        let text = r#" {"a": {"x": ["]}", {}], "y": "\""}, "text": "t", "b": [1, {"c": 2}], "number": -3,
            "true": true, "given": {"z": null}, "raw": [1, 2 ],
            "inner": {"text": "\u00e9\n", "c": 1.5e3}, "list": [{"number": 1}, null, {}]}
            "#;
        let got = sample(text).unwrap().unwrap();
        let names = ["a", "text", "b", "number", "true", "given", "raw", "inner", "list"];
        assert_eq!(got.keys, names);
        assert!(matches!(got.text, Cow::Borrowed("t")), "{got:?}");
        assert_eq!((got.number, got.is_true, got.is_given), (Some(-3), true, true));
        assert_eq!(got.raw, b"[1, 2 ]");
        assert_eq!(got.inner.unwrap().text, "é\n");
        let numbers: Vec<Option<i64>> = got.list.iter().map(|one| one.number).collect();
        assert_eq!(numbers, [Some(1), None]);
    }

    #[test]
    fn null_is_nothing_and_the_last_of_two_values_counts() {
        assert_eq!(sample("null").unwrap(), None);
        let text = r#"{"text":"a","number":1,"true":true,"given":1,"inner":{},
            "text":null,"number":null,"true":null,"given":null,"inner":null,"list":null}"#;
        let got = Sample { keys: Vec::new(), ..sample(text).unwrap().unwrap() };
        assert_eq!(got, Sample::default());
        let text = r#"{"text":"a","text":"b","list":[{"number":1}],"list":[{"number":2}]}"#;
        let got = sample(text).unwrap().unwrap();
        assert_eq!((&*got.text, got.list.len()), ("b", 2));
    }

    #[test]
    fn bytes_that_are_not_json_are_an_error() {
        for text in [
            "",
            "[]",
            "1",
            "{",
            "{\"",
            "{\"a",
            "{\"a\"",
            "{\"a\":",
            "{\"a\":1",
            "{\"a\":}",
            "{a:1}",
            "{\"a\":[1,]}",
            "{\"a\":[1 2]}",
            "{\"a\":\"\\x\"}",
            "{\"a\":nulll}",
            "{\"a\":1,}",
            "{\"a\" 1}",
            "{} 1",
            "{}]",
            "\u{feff}{}",
            "{\"text\":1}",
            "{\"number\":\"1\"}",
            "{\"number\":1.5}",
            "{\"number\":1e2}",
            "{\"number\":9223372036854775808}",
            "{\"true\":1}",
            "{\"inner\":[]}",
            "{\"list\":{}}",
            "{\"list\":[1]}",
        ] {
            assert!(sample(text).is_err(), "{text}");
        }
        assert!(read::<Sample<'_>>(b"{\"a\":\"\xff\"}").is_err());
    }

    #[test]
    fn deep_and_large_texts_are_refused_before_they_are_read() {
        let nested = |n: usize| format!("{}1{}", "[".repeat(n), "]".repeat(n));
        let deep = Err(format!("is nested deeper than {DEPTH_MAX}"));
        let large = Err(format!("has more than {VALUES_MAX} values"));
        for (text, want) in [
            (String::new(), Ok(())),
            (nested(DEPTH_MAX), Ok(())),
            (nested(DEPTH_MAX + 1), deep.clone()),
            ("{\"a\":".repeat(DEPTH_MAX + 1), deep.clone()),
            // Closing brackets too many do not make room.
            (format!("{}{}", "]".repeat(9), nested(DEPTH_MAX + 1)), deep),
            (format!("\"{}\"", "[{,\\\"".repeat(200_000)), Ok(())),
            ("[[],".repeat(3) + "1]]]", Ok(())),
            (format!("[{}1]", "1,".repeat(VALUES_MAX - 2)), Ok(())),
            (format!("[{}1]", "1,".repeat(VALUES_MAX - 1)), large.clone()),
            (format!("[{}1]", "[],".repeat(VALUES_MAX)), large),
        ] {
            assert_eq!(check_size(text.as_bytes()), want, "{}", &text[..text.len().min(40)]);
        }
    }

    /// 256 KiB is the stack of a server's connection. Tests are not optimised.
    #[test]
    fn the_deepest_texts_fit_into_a_small_stack() {
        let deepest = || {
            let deep = format!("{}1{}", "{\"a\":[".repeat(32), "]}".repeat(32));
            check_size(deep.as_bytes()).unwrap();
            let value: serde_json::Value = serde_json::from_str(&deep).unwrap();
            assert_eq!(value.clone().to_string(), deep);
            for key in ["skipped", "given", "raw", "text"] {
                let deeper = format!("{{\"{key}\":{}", "[".repeat(1 << 20));
                assert!(sample(&deeper).is_err(), "{key}");
            }
        };
        std::thread::Builder::new().stack_size(256 << 10).spawn(deepest).unwrap().join().unwrap();
    }
}
