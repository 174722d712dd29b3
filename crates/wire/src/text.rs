//! Texts in objects.

use std::borrow::Cow;

use posse_encoding::fields::Value;
use serde::Deserialize;

/// A string: borrowed from the input unless it contains escapes.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(transparent)]
pub(crate) struct Text<'a>(#[serde(borrow)] pub(crate) Cow<'a, str>);

impl<'a> Text<'a> {
    /// A string. None for null.
    pub(crate) fn read<V: Value<'a>>(value: &mut V) -> Result<Option<Self>, V::Error> {
        Ok(value.text()?.map(Self))
    }

    pub(crate) fn boxed(&self) -> Box<str> {
        Box::from(&*self.0)
    }
}

pub(crate) fn text_of<'t>(text: Option<&'t Text<'_>>) -> &'t str {
    text.map_or("", |text| &text.0)
}

/// Parses a text. None if it is absent or cannot be parsed.
pub(crate) fn number<T: std::str::FromStr>(text: Option<&Text<'_>>) -> Option<T> {
    text?.0.parse().ok()
}

/// The longest prefix of `text` with at most `bytes_max` bytes.
pub(crate) fn clipped(text: &str, bytes_max: usize) -> &str {
    &text[..text.floor_char_boundary(bytes_max)]
}
