//! Reads one event of a watch: a line of JSON, or a message of protobuf.

use crate::error::WireError;
use crate::k8s::labels::Selection;
use crate::k8s::status::{RawApiStatus, read_status};
use crate::pod::{RawPod, read_pod};
use posse_core::model::ids::Version;
use posse_core::model::input::PodAnswer;
use posse_core::model::pod::Pod;
use posse_core::model::refusal::Refusal;
use posse_encoding::fields::{Fields, Value};
use posse_encoding::json;
use posse_encoding::protobuf::Reader;

/// One event as the server sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoded<'a> {
    /// A line without its end.
    Json(&'a [u8]),
    /// A `metav1.WatchEvent`.
    Protobuf(&'a [u8]),
}

impl Encoded<'_> {
    /// Its size in bytes.
    pub fn n_bytes(self) -> usize {
        match self {
            Self::Json(bytes) | Self::Protobuf(bytes) => bytes.len(),
        }
    }
}

/// One line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchLine {
    pub event: LineEvent,
    /// Text of the object's resourceVersion, if it has one.
    pub version_text: Option<String>,
}

/// Meaning of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LineEvent {
    /// ADDED or MODIFIED.
    Applied(Pod),
    /// BOOKMARK. None: the version is not a number.
    Bookmark(Option<Version>),
    /// DELETED.
    Deleted(Pod),
    /// ERROR: the watch ends.
    Error(Refusal),
    /// An unknown type, or a pod of somebody else. Its version still counts.
    Ignored,
}

/// Reads an event.
///
/// # Errors
/// It is not a watch event, or its object does not fit its type.
pub fn parse_event(event: Encoded<'_>, selection: &Selection) -> Result<WatchLine, WireError> {
    let raw = match event {
        Encoded::Json(line) => read(line)?,
        Encoded::Protobuf(message) => read_message(message)?,
    };
    if let Some(status) = raw.error {
        let event = LineEvent::Error(status.of_event());
        return Ok(WatchLine { event, version_text: None });
    }
    let (Some(Kind::Pod(kind)), Some(pod)) = (raw.kind, raw.pod) else {
        return match raw.kind {
            Some(Kind::Other) => Ok(WatchLine { event: LineEvent::Ignored, version_text: None }),
            Some(Kind::Error | Kind::Pod(_)) => Err(WireError::Missing("object")),
            None => Err(WireError::Missing("type")),
        };
    };
    let version_text = pod.version_text().map(str::to_owned);
    let event = match kind {
        PodKind::Bookmark => LineEvent::Bookmark(version_text.as_deref().and_then(Version::parse)),
        PodKind::Applied => ours(pod, selection)?.map_or(LineEvent::Ignored, LineEvent::Applied),
        PodKind::Deleted => ours(pod, selection)?.map_or(LineEvent::Ignored, LineEvent::Deleted),
    };
    Ok(WatchLine { event, version_text })
}

fn ours(pod: RawPod<'_>, selection: &Selection) -> Result<Option<Pod>, WireError> {
    Ok(match pod.seen(selection)? {
        PodAnswer::Ours(pod) => Some(pod),
        PodAnswer::Foreign(_) => None,
    })
}

fn read(line: &[u8]) -> Result<RawLine<'_>, WireError> {
    let mut raw: RawLine<'_> = json::read(line)?.unwrap_or_default();
    match (raw.early, raw.kind) {
        (Some(object), Some(Kind::Pod(_))) => raw.pod = json::read(object)?,
        (Some(object), Some(Kind::Error)) => raw.error = json::read(object)?,
        _ => {}
    }
    Ok(raw)
}

fn read_message(message: &[u8]) -> Result<RawLine<'_>, WireError> {
    let (mut kind, mut object) = (None, None);
    let mut reader = Reader { bytes: message };
    while let Some((number, mut part)) = reader.next_field()? {
        match number {
            1 => kind = Some(Kind::of(&part.text()?)),
            // A `runtime.RawExtension`: its first field is a body.
            2 => object = Reader { bytes: part.bytes()? }.next_field()?,
            _ => {}
        }
    }
    let mut raw = RawLine { kind, ..RawLine::default() };
    match (kind, object) {
        (Some(Kind::Pod(_)), Some((1, body))) => raw.pod = read_pod(body.bytes()?)?,
        (Some(Kind::Error), Some((1, body))) => raw.error = read_status(body.bytes()?)?,
        _ => {}
    }
    Ok(raw)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PodKind {
    Applied,
    Bookmark,
    Deleted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Error,
    Other,
    Pod(PodKind),
}

impl Kind {
    fn of(text: &str) -> Self {
        match text {
            "ADDED" | "MODIFIED" => Self::Pod(PodKind::Applied),
            "BOOKMARK" => Self::Pod(PodKind::Bookmark),
            "DELETED" => Self::Pod(PodKind::Deleted),
            "ERROR" => Self::Error,
            _ => Self::Other,
        }
    }
}

#[derive(Default)]
struct RawLine<'a> {
    kind: Option<Kind>,
    pod: Option<RawPod<'a>>,
    error: Option<RawApiStatus<'a>>,
    /// The object in JSON, if the type follows it. Servers write the type first.
    early: Option<&'a [u8]>,
}

impl<'a> Fields<'a> for RawLine<'a> {
    // In protobuf the object is a body of its own: `read_message`.
    const NUMBERS: &'static [(u32, &'static str)] = &[];

    fn field<V: Value<'a>>(&mut self, key: &str, value: &mut V) -> Result<(), V::Error> {
        match (key, self.kind) {
            ("type", _) => self.kind = Some(Kind::of(&value.text()?)),
            ("object", Some(Kind::Pod(_))) => self.pod = value.fields()?,
            ("object", Some(Kind::Error)) => self.error = value.fields()?,
            ("object", None) => self.early = Some(value.raw()?),
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use posse_core::model::refusal::RefusalClass;

    const SESSION: &str = include_str!("../../../../fixtures/watch/session.jsonl");
    const EXPIRED: &str = include_str!("../../../../fixtures/watch/expired.jsonl");

    fn selection() -> Selection {
        Selection { app: "wordcount".to_owned(), instance: "ab3de".to_owned() }
    }

    fn read_line(line: &str) -> Result<WatchLine, WireError> {
        parse_event(Encoded::Json(line.as_bytes()), &selection())
    }

    #[test]
    fn a_session_of_a_real_server() {
        let told: Vec<&str> = SESSION
            .lines()
            .map(|line| {
                let line = read_line(line).unwrap();
                assert!(line.version_text.is_some());
                match line.event {
                    LineEvent::Applied(_) => "applied",
                    LineEvent::Bookmark(_) => "bookmark",
                    LineEvent::Deleted(_) => "deleted",
                    LineEvent::Error(_) => "error",
                    LineEvent::Ignored => "ignored",
                }
            })
            .collect();
        let (last, others) = told.split_last().unwrap();
        assert_eq!(*last, "deleted");
        assert!(others.iter().all(|told| *told == "applied"), "{told:?}");
    }

    #[test]
    fn an_error_event_is_a_refusal() {
        let line = read_line(EXPIRED.trim_end()).unwrap();
        let LineEvent::Error(refusal) = line.event else { panic!("{line:?}") };
        assert_eq!((refusal.class, refusal.code), (RefusalClass::Expired, 410));
        assert_eq!(refusal.message, "too old resource version: 1 (104)");
    }

    #[test]
    fn lines_of_every_type() {
        let bookmark = |version| LineEvent::Bookmark(version);
        let table = [
            (
                r#"{"type":"BOOKMARK","object":{"kind":"Pod","metadata":{"resourceVersion":"77"}}}"#,
                Ok((bookmark(Some(Version(77))), Some("77"))),
            ),
            (
                r#"{"object":{"metadata":{"resourceVersion":"77"}},"type":"BOOKMARK"}"#,
                Ok((bookmark(Some(Version(77))), Some("77"))),
            ),
            (
                r#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"x"}}}"#,
                Ok((bookmark(None), Some("x"))),
            ),
            (r#"{"type":"SURPRISE","object":[1,{"a":null}]}"#, Ok((LineEvent::Ignored, None))),
            (
                r#"{"type":"ADDED","object":{"metadata":{"name":"a","uid":"b","resourceVersion":"9"}}}"#,
                Ok((LineEvent::Ignored, Some("9"))),
            ),
            (r#"{"type":"ADDED"}"#, Err(())),
            (r#"{"object":{}}"#, Err(())),
            (r#"{"type":"ADDED","object":{}}"#, Err(())),
            (r#"{"type":"ADDED","object":{"metadata":{"name":"a"}}}"#, Err(())),
            (r#"{"type":"ADDED","object":{"meta"#, Err(())),
            (r#"{"type":"BOOKMARK","object":{"metadata":{}}} x"#, Err(())),
            ("<html>", Err(())),
            ("", Err(())),
        ];
        for (line, wanted) in table {
            let got = read_line(line).map(|line| (line.event, line.version_text)).map_err(drop);
            let wanted = wanted.map(|(event, text)| (event, text.map(str::to_owned)));
            assert_eq!(got, wanted, "{line}");
        }
    }
}
