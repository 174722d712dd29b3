//! Reads an object in protobuf while it arrives. One field is held at a time, so a list needs no more memory than its
//! longest item.

use std::io::{self, BufRead, Read};

use crate::protobuf::{ProtobufError, kind_of, number_of, varint};

/// Why it cannot be read.
#[derive(Debug)]
pub enum StreamError {
    /// What the connection says.
    Body(io::Error),
    /// An object of another kind than `wanted`.
    Kind {
        kind: String,
        wanted: String,
    },
    Protobuf(ProtobufError),
}

impl From<io::Error> for StreamError {
    fn from(error: io::Error) -> Self {
        Self::Body(error)
    }
}

impl From<ProtobufError> for StreamError {
    fn from(error: ProtobufError) -> Self {
        Self::Protobuf(error)
    }
}

/// Reads what follows the magic bytes, to the end of the body. Calls `each` with the number and the bytes of the object's
/// fields; an integer is given without its bytes.
///
/// # Errors
/// The body is cut, it is no object of this kind, or `each` fails. The kind has to come first, as Kubernetes writes it
/// (`Unknown` in k8s.io/apimachinery/pkg/runtime/generated.proto).
pub fn read_object<E: From<StreamError>>(
    body: &mut dyn BufRead,
    kind: &str,
    mut each: impl FnMut(u32, &[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let (mut came, mut bytes) = (String::new(), Vec::new());
    let mut envelope = Message { body, n_left: None };
    while let Some((number, length)) = envelope.next_field()? {
        match number {
            1 => {
                envelope.read(length, &mut bytes)?;
                came = kind_of(&bytes).map_err(StreamError::from)?.into_owned();
            }
            2 if came == kind => {
                let mut object = Message { body: &mut *envelope.body, n_left: Some(length) };
                while let Some((number, length)) = object.next_field()? {
                    object.read(length, &mut bytes)?;
                    each(number, &bytes)?;
                }
            }
            2 => {
                let wanted = kind.to_owned();
                return Err(StreamError::Kind { kind: came, wanted }.into());
            }
            _ => envelope.read(length, &mut bytes)?,
        }
    }
    Ok(())
}

/// The rest of a message that arrives.
struct Message<'r> {
    body: &'r mut dyn BufRead,
    /// In bytes. `None`: all of the body.
    n_left: Option<u64>,
}

impl Message<'_> {
    /// The next field's number, and the length of its bytes, which have to be read then: an integer is skipped and has none.
    /// `None` at the end of the message.
    fn next_field(&mut self) -> Result<Option<(u32, u64)>, StreamError> {
        let mut first = self.next_byte()?;
        if first.is_none() {
            return Ok(None);
        }
        let key = varint(|| first.take().map_or_else(|| self.byte(), Ok))?;
        let length = match key & 7 {
            0 => {
                varint(|| self.byte())?;
                0
            }
            1 => 8,
            2 => varint(|| self.byte())?,
            5 => 4,
            _ => return Err(ProtobufError::WireType.into()),
        };
        Ok(Some((number_of(key)?, length)))
    }

    /// Replaces `bytes` by the next ones. It grows as they arrive, whatever length the server names.
    fn read(&mut self, length: u64, bytes: &mut Vec<u8>) -> Result<(), StreamError> {
        if let Some(n_left) = &mut self.n_left {
            *n_left = n_left.checked_sub(length).ok_or(ProtobufError::Cut)?;
        }
        bytes.clear();
        let n_read = (&mut *self.body).take(length).read_to_end(bytes)?;
        if (n_read as u64) < length { Err(ProtobufError::Cut.into()) } else { Ok(()) }
    }

    fn byte(&mut self) -> Result<u8, StreamError> {
        Ok(self.next_byte()?.ok_or(ProtobufError::Cut)?)
    }

    /// `None` at the end of the message.
    fn next_byte(&mut self) -> Result<Option<u8>, StreamError> {
        if self.n_left == Some(0) {
            return Ok(None);
        }
        let byte = (&mut *self.body).bytes().next().transpose()?;
        if let Some(n_left) = &mut self.n_left {
            byte.ok_or(ProtobufError::Cut)?;
            *n_left -= 1;
        }
        Ok(byte)
    }
}
