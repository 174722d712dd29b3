//! Reads one event of a watch: a line of JSON, or a message of protobuf.

use crate::core::model::ids::Version;
use crate::core::model::input::PodAnswer;
use crate::core::model::pod::Pod;
use crate::core::model::refusal::Refusal;
use crate::wire::fields::Value as _;
use crate::wire::json::Json;
use crate::wire::labels::Selection;
use crate::wire::pod::{RawPod, WireError, read_pod};
use crate::wire::protobuf::Reader;
use crate::wire::status::{RawApiStatus, read_status};

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
    let mut json = Json::new(line)?;
    let (mut raw, mut early) = (RawLine::default(), None);
    json.object(&mut |key, json| {
        match (key, raw.kind) {
            ("type", _) => raw.kind = json.text()?.map(|text| Kind::of(&text)),
            ("object", Some(Kind::Pod(_))) => raw.pod = json.fields()?,
            ("object", Some(Kind::Error)) => raw.error = json.fields()?,
            // Servers write the type first. If one does not, the object is read once the type is
            // known.
            ("object", None) => early = Some(json.raw()?),
            _ => {}
        }
        Ok(())
    })?;
    json.end()?;
    match (early, raw.kind) {
        (Some(text), Some(Kind::Pod(_))) => raw.pod = Json::new(text.as_bytes())?.fields()?,
        (Some(text), Some(Kind::Error)) => raw.error = Json::new(text.as_bytes())?.fields()?,
        _ => {}
    }
    Ok(raw)
}

fn read_message(message: &[u8]) -> Result<RawLine<'_>, WireError> {
    let (mut kind, mut object) = (None, None);
    let mut reader = Reader { bytes: message };
    while let Some((number, part)) = reader.next()? {
        match number {
            1 => kind = Some(Kind::of(&part.text()?)),
            // A `runtime.RawExtension`: its first field is a body.
            2 => object = Reader { bytes: part.bytes()? }.next()?,
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::model::refusal::RefusalClass;

    const SESSION: &str = include_str!("../../fixtures/watch/session.jsonl");
    const EXPIRED: &str = include_str!("../../fixtures/watch/expired.jsonl");

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
