//! Owns reading JSON by its tokens: what is wanted is taken, the rest is passed over without being
//! built. For what comes thousands of times a second; everything else is read into values. Does not
//! check what it passes over, beyond its brackets and strings.

use std::borrow::Cow;

/// What is wrong, and after how many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::wire) struct Bad {
    pub(super) expected: &'static str,
    pub(super) at: usize,
}

const ONES: u64 = u64::from_ne_bytes([1; 8]);
const QUOTES: u64 = u64::from_ne_bytes([b'"'; 8]);
const BACKSLASHES: u64 = u64::from_ne_bytes([b'\\'; 8]);

/// The highest bit of each byte that is zero; above the lowest of them others may be set as well.
fn zero_bytes(word: u64) -> u64 {
    word.wrapping_sub(ONES) & !word & (ONES << 7)
}

/// A place in a text.
#[derive(Debug)]
pub(super) struct Json<'a> {
    text: &'a str,
    at: usize,
}

type Done = Result<(), Bad>;

impl<'a> Json<'a> {
    /// The beginning of a text.
    pub(super) fn new(bytes: &'a [u8]) -> Result<Self, Bad> {
        let text = std::str::from_utf8(bytes)
            .map_err(|error| Bad { expected: "UTF-8", at: error.valid_up_to() })?;
        Ok(Self { text, at: 0 })
    }

    /// Nothing may follow.
    pub(super) fn end(mut self) -> Done {
        if self.next_byte().is_some() { self.bad("the end") } else { Ok(()) }
    }

    /// An object; false for null. `each` gets every key and may take its value.
    pub(super) fn object(
        &mut self,
        each: &mut dyn FnMut(&str, &mut Self) -> Done,
    ) -> Result<bool, Bad> {
        self.nested(b'{', b'}', "an object", &mut |json| {
            let key = json.string()?;
            json.expect(b':', "`:`")?;
            let before = json.at;
            each(&key, json)?;
            if json.at == before { json.skip() } else { Ok(()) }
        })
    }

    /// A list; false for null. `each` may take the item.
    pub(super) fn list(&mut self, each: &mut dyn FnMut(&mut Self) -> Done) -> Result<bool, Bad> {
        self.nested(b'[', b']', "a list", &mut |json| {
            let before = json.at;
            each(json)?;
            if json.at == before { json.skip() } else { Ok(()) }
        })
    }

    /// A string; none for null.
    pub(super) fn text(&mut self) -> Result<Option<Cow<'a, str>>, Bad> {
        if self.next_byte() == Some(b'"') {
            return self.string().map(Some);
        }
        self.null("a string")?;
        Ok(None)
    }

    /// A whole number; none for null.
    pub(super) fn number(&mut self) -> Result<Option<i64>, Bad> {
        if self.next_byte() == Some(b'n') {
            self.null("a number")?;
            return Ok(None);
        }
        let word = self.word();
        let number = word.parse().or(Err(Bad { expected: "a whole number", at: self.at }))?;
        self.at += word.len();
        Ok(Some(number))
    }

    /// A truth; null is false.
    pub(super) fn is_true(&mut self) -> Result<bool, Bad> {
        self.next_byte();
        let word = self.word();
        if !matches!(word, "true" | "false" | "null") {
            return self.bad("true or false");
        }
        self.at += word.len();
        Ok(word == "true")
    }

    /// Whether there is something other than null.
    pub(super) fn is_given(&mut self) -> Result<bool, Bad> {
        self.next_byte();
        let is_null = self.word() == "null";
        self.skip()?;
        Ok(!is_null)
    }

    /// One value as it is written.
    pub(super) fn raw(&mut self) -> Result<&'a str, Bad> {
        let begin = self.at;
        self.skip()?;
        Ok(self.text.get(begin..self.at).unwrap_or_default())
    }

    /// Passes over one value.
    pub(super) fn skip(&mut self) -> Done {
        self.at = match self.next_byte() {
            Some(b'"') => self.string_end(self.at + 1)?.0 + 1,
            Some(b'[' | b'{') => self.nested_end()?,
            _ => match self.word().len() {
                0 => return self.bad("a value"),
                n_bytes => self.at + n_bytes,
            },
        };
        Ok(())
    }

    /// Behind the list or object that begins here: most of what comes is passed over in this loop.
    fn nested_end(&self) -> Result<usize, Bad> {
        let bytes = self.text.as_bytes();
        let (mut at, mut depth) = (self.at, 0_usize);
        loop {
            match bytes.get(at) {
                Some(b'"') => at = self.string_end(at + 1)?.0,
                Some(b'[' | b'{') => depth += 1,
                Some(b']' | b'}') => {
                    depth -= 1;
                    if depth == 0 {
                        return Ok(at + 1);
                    }
                }
                Some(_) => {}
                None => return Err(Bad { expected: "the end of a value", at }),
            }
            at += 1;
        }
    }

    fn nested(
        &mut self,
        open: u8,
        close: u8,
        what: &'static str,
        each: &mut dyn FnMut(&mut Self) -> Done,
    ) -> Result<bool, Bad> {
        if self.next_byte() != Some(open) {
            self.null(what)?;
            return Ok(false);
        }
        self.at += 1;
        if self.next_byte() == Some(close) {
            self.at += 1;
            return Ok(true);
        }
        loop {
            each(self)?;
            match self.next_byte() {
                Some(b',') => self.at += 1,
                Some(byte) if byte == close => {
                    self.at += 1;
                    return Ok(true);
                }
                _ => return self.bad("`,` or the end of it"),
            }
        }
    }

    fn null(&mut self, instead_of: &'static str) -> Done {
        if self.word() != "null" {
            return self.bad(instead_of);
        }
        self.at += 4;
        Ok(())
    }

    fn string(&mut self) -> Result<Cow<'a, str>, Bad> {
        self.expect(b'"', "a string")?;
        let begin = self.at;
        let (end, is_escaped) = self.string_end(begin)?;
        self.at = end + 1;
        if !is_escaped {
            return Ok(Cow::Borrowed(self.text.get(begin..end).unwrap_or_default()));
        }
        // Rare enough for the parser that knows every escape.
        let whole = self.text.get(begin - 1..=end).unwrap_or_default();
        let text = serde_json::from_str::<String>(whole);
        text.map(Cow::Owned).or(Err(Bad { expected: "a string's escapes", at: begin }))
    }

    /// Where the closing quote is of the string whose first byte is at `at`, and whether anything
    /// in it is escaped. Eight bytes at a time: most strings are short, and there are hundreds.
    fn string_end(&self, mut at: usize) -> Result<(usize, bool), Bad> {
        let bytes = self.text.as_bytes();
        let mut is_escaped = false;
        loop {
            if let Some(eight) = bytes.get(at..).and_then(<[u8]>::first_chunk) {
                let word = u64::from_le_bytes(*eight);
                let found = zero_bytes(word ^ QUOTES) | zero_bytes(word ^ BACKSLASHES);
                at += found.trailing_zeros() as usize / 8;
                if found == 0 {
                    continue;
                }
            }
            match bytes.get(at) {
                Some(b'"') => return Ok((at, is_escaped)),
                Some(b'\\') => (at, is_escaped) = (at + 2, true),
                Some(_) => at += 1,
                None => return Err(Bad { expected: "the end of a string", at: bytes.len() }),
            }
        }
    }

    fn expect(&mut self, byte: u8, what: &'static str) -> Done {
        if self.next_byte() != Some(byte) {
            return self.bad(what);
        }
        self.at += 1;
        Ok(())
    }

    /// The first byte that is not white, which is where we are then.
    fn next_byte(&mut self) -> Option<u8> {
        let bytes = self.text.as_bytes();
        loop {
            let byte = *bytes.get(self.at)?;
            if !matches!(byte, b' ' | b'\t' | b'\n' | b'\r') {
                return Some(byte);
            }
            self.at += 1;
        }
    }

    /// The number or word that begins here; may be empty.
    fn word(&self) -> &'a str {
        let rest = self.text.get(self.at..).unwrap_or_default();
        let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || b"+-.".contains(byte);
        let n_bytes = rest.bytes().take_while(is_part).count();
        rest.get(..n_bytes).unwrap_or_default()
    }

    fn bad<T>(&self, expected: &'static str) -> Result<T, Bad> {
        Err(Bad { expected, at: self.at })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value, json};

    use super::*;
    use crate::core::model::rng::Rng;

    /// The whole value, built with nothing but the reader.
    fn value(json: &mut Json<'_>) -> Result<Value, Bad> {
        Ok(match json.next_byte() {
            Some(b'{') => {
                let mut map = Map::new();
                json.object(&mut |key, json| {
                    map.insert(key.to_owned(), value(json)?);
                    Ok(())
                })?;
                map.into()
            }
            Some(b'[') => {
                let mut items = Vec::new();
                json.list(&mut |json| {
                    items.push(value(json)?);
                    Ok(())
                })?;
                items.into()
            }
            Some(b'"') => json.text()?.map(|text| text.into_owned()).into(),
            Some(b't' | b'f') => json.is_true()?.into(),
            _ => json.number()?.into(),
        })
    }

    fn read(text: &[u8]) -> Result<Value, Bad> {
        let mut json = Json::new(text)?;
        let value = value(&mut json)?;
        json.end()?;
        Ok(value)
    }

    fn skipped(text: &[u8]) -> Result<(), Bad> {
        let mut json = Json::new(text)?;
        json.skip()?;
        json.end()
    }

    fn any(rng: &mut Rng, depth: u32) -> Value {
        const TEXTS: [&str; 6] = ["", "a", "é\"\\\n", "\u{1F600}", "}],", "\u{0}\\\""];
        let text = |rng: &mut Rng| TEXTS[usize::try_from(rng.below(6)).unwrap()].to_owned();
        match rng.below(if depth == 0 { 4 } else { 6 }) {
            0 => Value::Null,
            1 => json!(rng.below(2) == 0),
            2 => json!(i64::from_ne_bytes(rng.next_u64().to_ne_bytes())),
            3 => text(rng).into(),
            4 => (0..rng.below(4)).map(|_| any(rng, depth - 1)).collect(),
            _ => {
                let pairs = (0..rng.below(4)).map(|_| (text(rng), any(rng, depth - 1)));
                Value::Object(pairs.collect())
            }
        }
    }

    #[test]
    fn it_reads_what_the_library_writes_and_no_half_of_it() {
        for seed in 0..3_000 {
            let mut rng = Rng::new(seed);
            let wanted = any(&mut rng, 4);
            for text in [wanted.to_string(), format!(" {wanted:#}\r\n")] {
                assert_eq!(read(text.as_bytes()), Ok(wanted.clone()), "seed {seed}: {text}");
                assert_eq!(skipped(text.as_bytes()), Ok(()), "seed {seed}: {text}");
                let cut = usize::try_from(rng.below(text.len() as u64)).unwrap();
                if serde_json::from_slice::<Value>(&text.as_bytes()[..cut]).is_err() {
                    assert!(read(&text.as_bytes()[..cut]).is_err(), "seed {seed}: {text}");
                }
                assert!(read(format!("{text}]").as_bytes()).is_err(), "seed {seed}: {text}");
            }
        }
    }

    #[test]
    fn bytes_that_are_not_json_are_an_error() {
        for text in [
            "",
            "[",
            "{",
            "{\"",
            "{\"a",
            "{\"a\"",
            "{\"a\":",
            "{\"a\":1",
            "{\"a\":}",
            "{a:1}",
            "[1",
            "[1,",
            "[,]",
            "[1 2]",
            "\"",
            "\"\\",
            "\"\\x\"",
            "nul",
            "nulll",
            "1 1",
            "-",
            "+",
            "1e2",
            "tru",
            "]",
            "}",
            "{\"a\":1,}",
            "{\"a\" 1}",
            "\u{feff}1",
        ] {
            assert!(read(text.as_bytes()).is_err(), "{text}");
        }
        assert_eq!(read(b"\"\xff\""), Err(Bad { expected: "UTF-8", at: 1 }));
        let deep = "[".repeat(1_000_000);
        assert_eq!(
            skipped(deep.as_bytes()),
            Err(Bad { expected: "the end of a value", at: 1_000_000 })
        );
    }

    #[test]
    fn what_nobody_takes_is_passed_over() {
        let text =
            br#"{"a":{"x":["]}",{}],"y":"\""},"b":[1,{"c":2}],"c":true,"d":null,"e":1.5e3,"f":3}"#;
        let mut seen = Vec::new();
        let mut json = Json::new(text).unwrap();
        let read = json.object(&mut |key, json| {
            seen.push(match key {
                "c" => format!("c {}", json.is_true()?),
                "d" => format!("d {}", json.is_given()?),
                "e" => format!("e {}", json.is_given()?),
                "f" => format!("f {:?}", json.number()?),
                key => key.to_owned(),
            });
            Ok(())
        });
        assert_eq!(read, Ok(true));
        assert_eq!(seen, ["a", "b", "c true", "d false", "e true", "f Some(3)"]);
        assert_eq!(json.end(), Ok(()));
    }
}
