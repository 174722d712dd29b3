//! Decodes request bodies in protobuf by the field numbers of the schema: kubectl sends them when it makes an object
//! by itself (`kubectl create namespace`), evicts (`kubectl drain`) and asks (`kubectl auth can-i`).

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Map, Value, json};

use crate::schema::{Shape, Type};
use posse_encoding::json::check_size;
use posse_encoding::protobuf::{Part, Reader};

/// The limit of nested messages.
const DEPTH_MAX: usize = 64;

/// Decodes a message of a type.
pub(crate) fn message(of: &Type, bytes: &[u8]) -> Result<Value, String> {
    let mut members = Map::new();
    read_fields(of, None, bytes, DEPTH_MAX, &mut members)?;
    Ok(Value::Object(members))
}

/// Decodes the fields of a type, which are in its own message or in the message `inside` it.
fn read_fields(
    of: &Type,
    inside: Option<u32>,
    bytes: &[u8],
    depth: usize,
    members: &mut Map<String, Value>,
) -> Result<(), String> {
    let depth = depth.checked_sub(1).ok_or("exceeded max depth")?;
    let mut reader = Reader { bytes };
    while let Some((tag, part)) = reader.next_field()? {
        if inside.is_none() && of.fields.iter().any(|field| field.inside == Some(tag)) {
            read_fields(of, Some(tag), part.bytes()?, depth, members)?;
            continue;
        }
        let named = |field: &&crate::schema::Field| field.inside == inside && field.tag == tag;
        let Some(field) = of.fields.iter().find(named) else { continue };
        let slot = members.entry(field.name).or_insert(Value::Null);
        if let Shape::List(item) = &field.shape {
            push(slot, value(item, &part, depth)?);
        } else if let Shape::Map(item) = &field.shape {
            let (key, value) = read_entry(item, part.bytes()?, depth)?;
            if !slot.is_object() {
                *slot = json!({});
            }
            slot[key] = value;
        } else {
            *slot = value(&field.shape, &part, depth)?;
        }
    }
    Ok(())
}

fn any(text: &str) -> Value {
    let is_small = check_size(text.as_bytes()).is_ok();
    let read = is_small.then(|| serde_json::from_str(text).ok()).flatten();
    read.unwrap_or_else(|| json!({}))
}

fn push(list: &mut Value, item: Value) {
    if let Some(items) = list.as_array_mut() {
        items.push(item);
    } else {
        *list = json!([item]);
    }
}

fn read_entry(shape: &Shape, bytes: &[u8], depth: usize) -> Result<(String, Value), String> {
    let mut entry = (String::new(), Value::Null);
    let mut reader = Reader { bytes };
    while let Some((tag, part)) = reader.next_field()? {
        match tag {
            1 => entry.0 = part.text()?.into_owned(),
            2 => entry.1 = value(shape, &part, depth)?,
            _ => {}
        }
    }
    Ok(entry)
}

fn value(shape: &Shape, part: &Part<'_>, depth: usize) -> Result<Value, String> {
    Ok(match shape {
        Shape::Boolean => (part.bits()? != 0).into(),
        Shape::Bytes => BASE64_STANDARD.encode(part.bytes()?).into(),
        Shape::Double => f64::from_bits(part.bits()?).into(),
        Shape::Int32 | Shape::Int64 => part.integer()?.into(),
        Shape::Text => part.text()?.into_owned().into(),
        Shape::Quantity => first_text(part.bytes()?)?.into(),
        Shape::IntOrString => read_int_or_string(part.bytes()?)?,
        Shape::MicroTime | Shape::Time => read_time(shape, *part)?,
        // Raw JSON, else nothing: its type is unknown.
        Shape::Any => any(&first_text(part.bytes()?).unwrap_or_default()),
        Shape::Object(inner) => {
            let mut members = Map::new();
            read_fields(inner.get(), None, part.bytes()?, depth, &mut members)?;
            members.into()
        }
        // A list as the value of a map is a message with one field.
        Shape::List(item) => {
            let mut list = json!([]);
            let mut reader = Reader { bytes: part.bytes()? };
            while let Some((_, part)) = reader.next_field()? {
                push(&mut list, value(item, &part, depth.saturating_sub(1))?);
            }
            list
        }
        Shape::Map(_) => Value::Null,
    })
}

/// The first field of a message, a text.
fn first_text(bytes: &[u8]) -> Result<String, String> {
    match (Reader { bytes }).next_field()? {
        Some((1, part)) => Ok(part.text()?.into_owned()),
        _ => Ok(String::new()),
    }
}

fn read_int_or_string(bytes: &[u8]) -> Result<Value, String> {
    let (mut is_text, mut number, mut text) = (false, 0, String::new());
    let mut reader = Reader { bytes };
    while let Some((tag, part)) = reader.next_field()? {
        match tag {
            1 => is_text = part.bits()? != 0,
            2 => number = part.integer()?,
            3 => text = part.text()?.into_owned(),
            _ => {}
        }
    }
    Ok(if is_text { text.into() } else { number.into() })
}

/// A time without fields is null.
fn read_time(shape: &Shape, part: Part<'_>) -> Result<Value, String> {
    let Some(at) = part.timestamp()? else { return Ok(Value::Null) };
    Ok(if *shape == Shape::Time { format!("{at:.0}") } else { format!("{at:.6}") }.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema;

    /// A message to encode.
    #[derive(Debug, Default)]
    struct Message(Vec<u8>);

    impl Message {
        fn text(self, tag: u32, text: &str) -> Self {
            self.bytes(tag, text.as_bytes())
        }

        fn message(self, tag: u32, inner: &Self) -> Self {
            self.bytes(tag, &inner.0)
        }

        fn bytes(mut self, tag: u32, bytes: &[u8]) -> Self {
            self.varint(u64::from(tag << 3 | 2));
            self.varint(bytes.len() as u64);
            self.0.extend_from_slice(bytes);
            self
        }

        fn number(mut self, tag: u32, number: u64) -> Self {
            self.varint(u64::from(tag << 3));
            self.varint(number);
            self
        }

        fn varint(&mut self, mut number: u64) {
            while number >= 0x80 {
                self.0.push(u8::try_from(number & 0x7F).unwrap_or_default() | 0x80);
                number >>= 7;
            }
            self.0.push(u8::try_from(number).unwrap_or_default());
        }
    }

    #[test]
    fn a_pod_is_decoded_by_its_field_numbers() {
        let port = Message::default().number(1, 1).number(2, 0).text(3, "http");
        let get = Message::default().message(2, &port);
        let handler = Message::default().message(2, &get);
        let probe = Message::default().message(1, &handler).number(2, 5);
        let amount = Message::default().text(1, "500m");
        let limit = Message::default().text(1, "cpu").message(2, &amount);
        let resources = Message::default().message(1, &limit);
        let container = Message::default()
            .text(1, "c")
            .text(3, "sh")
            .text(3, "-c")
            .message(8, &resources)
            .message(10, &probe);
        let claim = Message::default().text(1, "data").number(2, 1);
        let source = Message::default().message(10, &claim);
        let volume = Message::default().text(1, "v").message(2, &source);
        let spec =
            Message::default().message(1, &volume).message(2, &container).number(25, -3_i64 as u64);
        let created = Message::default().number(1, 1_600_000_000);
        let label = Message::default().text(1, "a").text(2, "b");
        let metadata =
            Message::default().text(1, "p").message(8, &created).message(11, &label).number(99, 7);
        let pod = Message::default().message(1, &metadata).message(2, &spec);
        let read = message(schema::named("Pod").expect("a type"), &pod.0).expect("a message");
        let expected = json!({
            "metadata": {
                "name": "p", "creationTimestamp": "2020-09-13T12:26:40Z", "labels": { "a": "b" },
            },
            "spec": {
                "priority": -3,
                "volumes": [
                    { "name": "v", "persistentVolumeClaim": { "claimName": "data", "readOnly": true } },
                ],
                "containers": [{
                    "name": "c",
                    "command": ["sh", "-c"],
                    "resources": { "limits": { "cpu": "500m" } },
                    "livenessProbe": { "httpGet": { "port": "http" }, "initialDelaySeconds": 5 },
                }],
            },
        });
        assert_eq!(read, expected);
    }

    #[test]
    fn malformed_messages_are_refused() {
        let pod = schema::named("Pod").expect("a type");
        for bytes in [&[0x0A][..], &[0x0A, 0x7F], &[0x0F], &[0xFF; 12], &[0x08, 0x01]] {
            assert!(message(pod, bytes).is_err(), "{bytes:x?}");
        }
    }
}
