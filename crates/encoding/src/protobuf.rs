//! Reads protobuf (<https://protobuf.dev/programming-guides/encoding>): what the API server sends to a client
//! that accepts it. A field is skipped by its length, so that a pod is read several times as fast as from JSON.

use std::borrow::Cow;
use std::fmt;

use jiff::Timestamp;

use crate::fields::{Fields, Value};

/// The first bytes of each body.
pub const MAGIC: &[u8] = b"k8s\0";

/// Why a message cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtobufError {
    /// It is cut, or a length is too large.
    Cut,
    /// Another kind of object.
    Kind,
    /// A number has more than ten bytes.
    Overflow,
    /// A time that no calendar has.
    Time,
    /// A wire type that does not exist, or not the one that the field has.
    WireType,
}

impl fmt::Display for ProtobufError {
    /// The words of Go's decoder, where it has some.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cut => "unexpected EOF",
            Self::Kind => "another kind of object",
            Self::Overflow => "proto: integer overflow",
            Self::Time => "time is out of range",
            Self::WireType => "proto: wrong wireType",
        })
    }
}

/// The message of an object of this kind, which is in the envelope of a body (`runtime.Unknown`). `None` if the body does
/// not begin with the magic bytes: it is no protobuf.
///
/// # Errors
/// The bytes after the magic ones are no envelope, or one of another kind, whose numbers are other fields.
pub fn message_of<'a>(body: &'a [u8], kind: &str) -> Result<Option<&'a [u8]>, ProtobufError> {
    let Some(bytes) = body.strip_prefix(MAGIC) else { return Ok(None) };
    let (mut came, mut raw) = (Cow::default(), &bytes[..0]);
    let mut reader = Reader { bytes };
    while let Some((number, part)) = reader.next_field()? {
        match (number, part) {
            (1, Part::Bytes(bytes)) => came = kind_of(bytes)?,
            (2, Part::Bytes(bytes)) => raw = bytes,
            _ => {}
        }
    }
    if came == kind { Ok(Some(raw)) } else { Err(ProtobufError::Kind) }
}

/// The kind of an object (`runtime.TypeMeta`).
pub(crate) fn kind_of(bytes: &[u8]) -> Result<Cow<'_, str>, ProtobufError> {
    text_field(bytes, 2)
}

/// The text in the field of this number; empty without it.
fn text_field(bytes: &[u8], wanted: u32) -> Result<Cow<'_, str>, ProtobufError> {
    let mut reader = Reader { bytes };
    let mut text = Cow::default();
    while let Some((number, mut part)) = reader.next_field()? {
        if number == wanted {
            text = part.text()?;
        }
    }
    Ok(text)
}

/// Reads a message.
pub fn message<'a, T: Default + Fields<'a>>(bytes: &'a [u8]) -> Result<T, ProtobufError> {
    let mut whole = T::default();
    let mut reader = Reader { bytes };
    while let Some((number, mut part)) = reader.next_field()? {
        if let Some((_, key)) = T::NUMBERS.iter().find(|(known, _)| *known == number) {
            whole.field(key, &mut part)?;
        }
    }
    Ok(whole)
}

/// The value of one field on the wire.
#[derive(Clone, Copy, Debug)]
pub enum Part<'a> {
    Bytes(&'a [u8]),
    Number(u64),
}

impl<'a> Part<'a> {
    pub fn bytes(self) -> Result<&'a [u8], ProtobufError> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            Self::Number(_) => Err(ProtobufError::WireType),
        }
    }

    /// A number without a sign, or the bits of one.
    pub fn bits(self) -> Result<u64, ProtobufError> {
        match self {
            Self::Number(number) => Ok(number),
            Self::Bytes(_) => Err(ProtobufError::WireType),
        }
    }

    /// Negative numbers are encoded in two's complement.
    pub fn integer(self) -> Result<i64, ProtobufError> {
        self.bits().map(u64::cast_signed)
    }
}

impl<'a> Value<'a> for Part<'a> {
    type Error = ProtobufError;

    /// Bytes that are not UTF-8 are replaced, as everywhere where the server does not check them.
    fn text(&mut self) -> Result<Cow<'a, str>, ProtobufError> {
        let bytes = self.bytes()?;
        Ok(str::from_utf8(bytes).map_or_else(|_| String::from_utf8_lossy(bytes), Cow::Borrowed))
    }

    /// `metav1.Time` and its like. Without fields it is the zero time, which JSON does not have.
    fn time(&mut self) -> Result<Cow<'a, str>, ProtobufError> {
        let bytes = self.bytes()?;
        if bytes.is_empty() {
            return Ok(Cow::default());
        }
        let (mut seconds, mut nanos) = (0, 0);
        let mut reader = Reader { bytes };
        while let Some((number, part)) = reader.next_field()? {
            match number {
                1 => seconds = part.integer()?,
                2 => nanos = part.integer()?,
                _ => {}
            }
        }
        let nanos = i32::try_from(nanos).unwrap_or_default();
        let at = Timestamp::new(seconds, nanos).map_err(|_| ProtobufError::Time)?;
        Ok(format!("{at:.0}").into())
    }

    fn quantity(&mut self) -> Result<Cow<'a, str>, ProtobufError> {
        text_field(self.bytes()?, 1)
    }

    fn number(&mut self) -> Result<Option<i64>, ProtobufError> {
        self.integer().map(Some)
    }

    fn is_true(&mut self) -> Result<bool, ProtobufError> {
        Ok(self.bits()? != 0)
    }

    fn is_given(&mut self) -> Result<bool, ProtobufError> {
        Ok(true)
    }

    fn raw(&mut self) -> Result<&'a [u8], ProtobufError> {
        self.bytes()
    }

    fn fields<T: Default + Fields<'a>>(&mut self) -> Result<Option<T>, ProtobufError> {
        message(self.bytes()?).map(Some)
    }

    fn each<T: Default + Fields<'a>>(
        &mut self,
        each: &mut dyn FnMut(Option<T>),
    ) -> Result<(), ProtobufError> {
        each(Some(message(self.bytes()?)?));
        Ok(())
    }

    fn entries<T: Default + Fields<'a>>(&mut self, map: &mut T) -> Result<(), ProtobufError> {
        let (mut key, mut value) = (Cow::default(), Part::Bytes(&[]));
        let mut reader = Reader { bytes: self.bytes()? };
        while let Some((number, mut part)) = reader.next_field()? {
            match number {
                1 => key = part.text()?,
                2 => value = part,
                _ => {}
            }
        }
        map.field(&key, &mut value)
    }
}

/// The rest of a message.
#[derive(Debug)]
pub struct Reader<'a> {
    pub bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    /// The next field's number and value.
    pub fn next_field(&mut self) -> Result<Option<(u32, Part<'a>)>, ProtobufError> {
        if self.bytes.is_empty() {
            return Ok(None);
        }
        let key = self.varint()?;
        let number = number_of(key)?;
        let part = match key & 7 {
            0 => Part::Number(self.varint()?),
            1 => Part::Number(little_endian(self.take(8)?)),
            2 => {
                let length = usize::try_from(self.varint()?).map_err(|_| ProtobufError::Cut)?;
                Part::Bytes(self.take(length)?)
            }
            5 => Part::Number(little_endian(self.take(4)?)),
            _ => return Err(ProtobufError::WireType),
        };
        Ok(Some((number, part)))
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], ProtobufError> {
        let (taken, rest) = self.bytes.split_at_checked(length).ok_or(ProtobufError::Cut)?;
        self.bytes = rest;
        Ok(taken)
    }

    fn varint(&mut self) -> Result<u64, ProtobufError> {
        varint(|| {
            let (&byte, rest) = self.bytes.split_first().ok_or(ProtobufError::Cut)?;
            self.bytes = rest;
            Ok(byte)
        })
    }
}

/// A number, from as many bytes as it has.
pub(crate) fn varint<E: From<ProtobufError>>(
    mut next: impl FnMut() -> Result<u8, E>,
) -> Result<u64, E> {
    const BYTES_MAX: u32 = 10;
    let mut number = 0;
    for i in 0..BYTES_MAX {
        let byte = next()?;
        number |= u64::from(byte & 0x7F).wrapping_shl(7 * i);
        if byte & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err(ProtobufError::Overflow.into())
}

/// The number of a field, from its key.
pub(crate) fn number_of(key: u64) -> Result<u32, ProtobufError> {
    u32::try_from(key >> 3).map_err(|_| ProtobufError::Cut)
}

fn little_endian(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}
