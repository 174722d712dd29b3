//! A JSON reader for pods: takes the wanted fields straight from the bytes and skips the rest
//! without building it. Skipped values are only checked for brackets and strings.
//!
//! Hand-written because watch lines are the hottest path: with optimisation level 3 it reads 24 %
//! more lines per second than serde derive on borrowed data (`cargo bench --bench watch`).
//! Everything else uses serde_json. The small functions are always inlined, because the shipped binary
//! is compiled for size.

use std::borrow::Cow;

use crate::wire::fields::{Fields, Value};

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

/// What is wrong, and at which byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JsonError {
    pub(super) expected: &'static str,
    pub(super) at: usize,
}

const ONES: u64 = u64::from_ne_bytes([1; 8]);
const QUOTES: u64 = u64::from_ne_bytes([b'"'; 8]);
const BACKSLASHES: u64 = u64::from_ne_bytes([b'\\'; 8]);

/// Sets the highest bit of every zero byte. Only the lowest set bit is reliable: a borrow may set
/// bits above it.
#[inline(always)]
fn zero_bytes(word: u64) -> u64 {
    word.wrapping_sub(ONES) & !word & (ONES << 7)
}

/// A position in a text.
#[derive(Debug)]
pub(super) struct Json<'a> {
    text: &'a str,
    at: usize,
}

type JsonResult = Result<(), JsonError>;

impl<'a> Json<'a> {
    /// The start of a text.
    pub(super) fn new(bytes: &'a [u8]) -> Result<Self, JsonError> {
        let text = std::str::from_utf8(bytes)
            .map_err(|error| JsonError { expected: "UTF-8", at: error.valid_up_to() })?;
        Ok(Self { text, at: 0 })
    }

    /// Fails if anything but white space follows.
    pub(super) fn end(mut self) -> JsonResult {
        if self.next_byte().is_some() { self.error("the end") } else { Ok(()) }
    }

    /// An object; false for null. `each` gets every key and may read its value, else the value is
    /// skipped.
    pub(super) fn object(
        &mut self,
        each: &mut dyn FnMut(&str, &mut Self) -> JsonResult,
    ) -> Result<bool, JsonError> {
        self.nested(b'{', b'}', "an object", &mut |json| {
            let key = json.string()?;
            json.expect(b':', "`:`")?;
            let before = json.at;
            each(&key, json)?;
            if json.at == before { json.skip() } else { Ok(()) }
        })
    }

    /// A list; false for null. `each` may read the item, else the item is skipped.
    pub(super) fn list(
        &mut self,
        each: &mut dyn FnMut(&mut Self) -> JsonResult,
    ) -> Result<bool, JsonError> {
        self.nested(b'[', b']', "a list", &mut |json| {
            let before = json.at;
            each(json)?;
            if json.at == before { json.skip() } else { Ok(()) }
        })
    }

    /// The text of one value.
    pub(super) fn raw(&mut self) -> Result<&'a str, JsonError> {
        let begin = self.at;
        self.skip()?;
        Ok(self.text.get(begin..self.at).unwrap_or_default())
    }

    /// Skips one value.
    pub(super) fn skip(&mut self) -> JsonResult {
        self.at = match self.next_byte() {
            Some(b'"') => self.string_end(self.at + 1)?.0 + 1,
            Some(b'[' | b'{') => self.nested_end()?,
            _ => match self.word().len() {
                0 => return self.error("a value"),
                n_bytes => self.at + n_bytes,
            },
        };
        Ok(())
    }

    /// The position after the list or object that starts here. Most bytes are skipped in this loop.
    #[inline(always)]
    fn nested_end(&self) -> Result<usize, JsonError> {
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
                None => return Err(JsonError { expected: "the end of a value", at }),
            }
            at += 1;
        }
    }

    #[inline(always)]
    fn nested(
        &mut self,
        open: u8,
        close: u8,
        what: &'static str,
        each: &mut dyn FnMut(&mut Self) -> JsonResult,
    ) -> Result<bool, JsonError> {
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
                _ => return self.error("`,` or the end"),
            }
        }
    }

    fn null(&mut self, instead_of: &'static str) -> JsonResult {
        if self.word() != "null" {
            return self.error(instead_of);
        }
        self.at += 4;
        Ok(())
    }

    #[inline(always)]
    fn string(&mut self) -> Result<Cow<'a, str>, JsonError> {
        self.expect(b'"', "a string")?;
        let begin = self.at;
        let (end, is_escaped) = self.string_end(begin)?;
        self.at = end + 1;
        if !is_escaped {
            return Ok(Cow::Borrowed(self.text.get(begin..end).unwrap_or_default()));
        }
        // Rare: serde_json decodes the escapes.
        let whole = self.text.get(begin - 1..=end).unwrap_or_default();
        let text = serde_json::from_str::<String>(whole);
        text.map(Cow::Owned).or(Err(JsonError { expected: "a string's escapes", at: begin }))
    }

    /// Position of the closing quote, and whether the string contains escapes. `at` is the position
    /// of its first byte. Compares eight bytes at a time, because a pod has hundreds of short
    /// strings.
    #[inline(always)]
    fn string_end(&self, mut at: usize) -> Result<(usize, bool), JsonError> {
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
                None => return Err(JsonError { expected: "the end of a string", at: bytes.len() }),
            }
        }
    }

    #[inline(always)]
    fn expect(&mut self, byte: u8, what: &'static str) -> JsonResult {
        if self.next_byte() != Some(byte) {
            return self.error(what);
        }
        self.at += 1;
        Ok(())
    }

    /// Skips white space and returns the next byte without taking it.
    #[inline(always)]
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

    /// The number or word that starts here. May be empty.
    #[inline(always)]
    fn word(&self) -> &'a str {
        let rest = self.text.get(self.at..).unwrap_or_default();
        let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || b"+-.".contains(byte);
        let n_bytes = rest.bytes().take_while(is_part).count();
        rest.get(..n_bytes).unwrap_or_default()
    }

    fn error<T>(&self, expected: &'static str) -> Result<T, JsonError> {
        Err(JsonError { expected, at: self.at })
    }
}

impl<'a> Value<'a> for Json<'a> {
    type Error = JsonError;

    fn text(&mut self) -> Result<Option<Cow<'a, str>>, JsonError> {
        if self.next_byte() == Some(b'"') {
            return self.string().map(Some);
        }
        self.null("a string")?;
        Ok(None)
    }

    fn number(&mut self) -> Result<Option<i64>, JsonError> {
        if self.next_byte() == Some(b'n') {
            self.null("a number")?;
            return Ok(None);
        }
        let word = self.word();
        let number = word.parse().or(Err(JsonError { expected: "a whole number", at: self.at }))?;
        self.at += word.len();
        Ok(Some(number))
    }

    fn is_true(&mut self) -> Result<bool, JsonError> {
        self.next_byte();
        let word = self.word();
        if !matches!(word, "true" | "false" | "null") {
            return self.error("true or false");
        }
        self.at += word.len();
        Ok(word == "true")
    }

    fn is_given(&mut self) -> Result<bool, JsonError> {
        self.next_byte();
        let is_null = self.word() == "null";
        self.skip()?;
        Ok(!is_null)
    }

    fn time(&mut self) -> Result<Option<Cow<'a, str>>, JsonError> {
        self.text()
    }

    fn fields<T: Fields<'a>>(&mut self) -> Result<Option<T>, JsonError> {
        let mut whole = T::default();
        let is_given = self.object(&mut |key, json| whole.field(key, json))?;
        Ok(is_given.then_some(whole))
    }

    fn items<T: Fields<'a>>(&mut self, items: &mut Vec<T>) -> JsonResult {
        self.list(&mut |json| {
            items.extend(json.fields()?);
            Ok(())
        })
        .map(drop)
    }

    fn entries<T: Fields<'a>>(&mut self, map: &mut Option<T>) -> JsonResult {
        *map = self.fields()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value, json};

    use super::{Value as _, *};
    use crate::core::model::rng::Rng;

    /// Builds the whole value with this reader.
    fn value(json: &mut Json<'_>) -> Result<Value, JsonError> {
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

    fn read(text: &[u8]) -> Result<Value, JsonError> {
        let mut json = Json::new(text)?;
        let value = value(&mut json)?;
        json.end()?;
        Ok(value)
    }

    fn skipped(text: &[u8]) -> Result<(), JsonError> {
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
    fn whole_values_are_read_and_cut_ones_are_errors() {
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
        assert_eq!(read(b"\"\xff\""), Err(JsonError { expected: "UTF-8", at: 1 }));
        let deep = "[".repeat(1_000_000);
        assert_eq!(
            skipped(deep.as_bytes()),
            Err(JsonError { expected: "the end of a value", at: 1_000_000 })
        );
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
        let read = || {
            let deep = format!("{}1{}", "{\"a\":[".repeat(32), "]}".repeat(32));
            check_size(deep.as_bytes()).unwrap();
            let value: Value = serde_json::from_str(&deep).unwrap();
            assert_eq!(value.clone().to_string(), deep);
            let deeper = "[".repeat(1 << 20);
            assert!(serde_json::from_str::<Value>(&deeper).is_err());
            assert!(skipped(deeper.as_bytes()).is_err());
        };
        std::thread::Builder::new().stack_size(256 << 10).spawn(read).unwrap().join().unwrap();
    }

    #[test]
    fn values_that_nobody_reads_are_skipped() {
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
