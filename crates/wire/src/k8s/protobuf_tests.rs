//! The same objects in both encodings, as one server (1.20) sent them, and messages made by hand.

use std::time::Duration;

use crate::error::WireError;
use crate::k8s::labels::Selection;
use crate::k8s::list::read_page;
use crate::k8s::status::{Verb, refusal};
use crate::k8s::watch::{Encoded, LineEvent, parse_event};
use crate::pod;
use posse_base::rng::Rng;
use posse_core::model::input::PodAnswer;
use posse_core::model::pod::Pod;
use posse_core::model::refusal::{Refusal, RefusalClass};
use posse_encoding::protobuf::*;

const WATCH: &[u8] = include_bytes!("../../../../fixtures/protobuf/watch.bin");
const WATCH_JSON: &str = include_str!("../../../../fixtures/protobuf/watch.jsonl");
const EXPIRED: &[u8] = include_bytes!("../../../../fixtures/protobuf/expired.bin");
const PAGE: &[u8] = include_bytes!("../../../../fixtures/protobuf/page.bin");
const PAGE_JSON: &[u8] = include_bytes!("../../../../fixtures/protobuf/page.json");

fn selection() -> Selection {
    Selection { app: "wordcount".to_owned(), instance: "ab3de".to_owned() }
}

/// The events of a stream, without the four bytes of their length.
fn events(mut stream: &[u8]) -> Vec<&[u8]> {
    let mut events = Vec::new();
    while let Some((length, rest)) = stream.split_first_chunk() {
        let (event, rest) = rest.split_at(u32::from_be_bytes(*length) as usize);
        (events, stream) = ([events, vec![event]].concat(), rest);
    }
    events
}

/// A field of a message: a text or a message.
fn bytes(number: u8, bytes: &[u8]) -> Vec<u8> {
    let head = [varint(u64::from(number) << 3 | 2), varint(bytes.len() as u64)].concat();
    [&head[..], bytes].concat()
}

fn number(tag: u8, number: i64) -> Vec<u8> {
    [varint(u64::from(tag) << 3), varint(number.cast_unsigned())].concat()
}

fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push(u8::try_from(number & 0x7F).unwrap() | 0x80);
        number >>= 7;
    }
    bytes.push(u8::try_from(number).unwrap());
    bytes
}

fn body(kind: &str, message: &[u8]) -> Vec<u8> {
    let of = [bytes(1, b"v1"), bytes(2, kind.as_bytes())].concat();
    [MAGIC, &bytes(1, &of), &bytes(2, message)].concat()
}

/// A pod of this instance with this spec and status.
fn pod(spec: &[u8], status: &[u8]) -> Pod {
    let labels = [
        ("posse.dev/app", "wordcount"),
        ("posse.dev/instance", "ab3de"),
        ("app.kubernetes.io/component", "executor"),
        ("posse.dev/counted", ""),
    ];
    let label = |(key, value): (&str, &str)| {
        bytes(11, &[bytes(1, key.as_bytes()), bytes(2, value.as_bytes())].concat())
    };
    let mut meta = [bytes(1, b"wordcount-ab3de-exec-7"), bytes(5, b"u7")].concat();
    meta.extend(labels.map(label).concat());
    let whole = [bytes(1, &meta), bytes(2, spec), bytes(3, status)].concat();
    match pod::parse(&body("Pod", &whole), &selection()).unwrap() {
        PodAnswer::Ours(pod) => pod,
        PodAnswer::Foreign(pod) => panic!("{pod:?}"),
    }
}

#[test]
fn a_watch_is_read_as_its_json() {
    let events = events(WATCH);
    assert_eq!(events.len(), WATCH_JSON.lines().count());
    for (event, line) in events.into_iter().zip(WATCH_JSON.lines()) {
        let read = parse_event(Encoded::Protobuf(event), &selection()).unwrap();
        assert_eq!(read, parse_event(Encoded::Json(line.as_bytes()), &selection()).unwrap());
        assert!(read.version_text.is_some());
        assert!(matches!(read.event, LineEvent::Applied(_) | LineEvent::Deleted(_)), "{line}");
    }
}

#[test]
fn a_bookmark_and_an_error_of_a_watch() {
    let meta = bytes(1, &[bytes(1, b""), bytes(6, b"77")].concat());
    let object = bytes(1, &body("Pod", &meta));
    let event = [bytes(1, b"BOOKMARK"), bytes(2, &object)].concat();
    let read = parse_event(Encoded::Protobuf(&event), &selection()).unwrap();
    assert_eq!(read.version_text.as_deref(), Some("77"));
    assert!(matches!(read.event, LineEvent::Bookmark(Some(_))), "{read:?}");

    let read = parse_event(Encoded::Protobuf(events(EXPIRED)[0]), &selection()).unwrap();
    let LineEvent::Error(refusal) = read.event else { panic!("{read:?}") };
    assert_eq!((refusal.class, refusal.code), (RefusalClass::Expired, 410));
    assert_eq!(refusal.message, "too old resource version: 200 (242)");
}

#[test]
fn a_page_is_read_as_its_json() {
    let page = read_page(&mut &PAGE[..], &selection()).unwrap();
    assert_eq!(page, read_page(&mut &PAGE_JSON[..], &selection()).unwrap());
    assert_eq!(page.pods.len(), 2);
    assert!(page.next.is_some() && page.version.is_some());
    for length in 0..PAGE.len() {
        let cut = read_page(&mut &PAGE[..length], &selection());
        // What follows the list says how it is encoded.
        assert!(cut.is_err() || cut.as_ref() == Ok(&page), "{length} bytes: {cut:?}");
    }
}

#[test]
fn a_page_may_have_fields_of_later_versions() {
    let fixed =
        |number: u8, kind: u8, length: usize| [vec![number << 3 | kind], vec![7; length]].concat();
    let others = [number(9, 300), fixed(10, 1, 8), fixed(11, 5, 4), bytes(12, b"later")].concat();
    let list = [others.clone(), bytes(1, &bytes(2, b"77")), others.clone()].concat();
    let whole = [body("PodList", &list), others].concat();
    let page = read_page(&mut whole.as_slice(), &selection()).unwrap();
    assert_eq!((page.version_text.as_str(), page.pods.len()), ("77", 0));
}

#[test]
fn a_list_of_another_kind_is_refused() {
    let page = |body: &[u8]| read_page(&mut &*body, &selection()).map_err(|why| why.to_string());
    let wrong = |kind| Err(format!("its kind is {kind:?}, not PodList"));
    assert_eq!(page(&body("NodeList", b"")), wrong("NodeList"));
    assert_eq!(page(&[MAGIC, &bytes(2, &bytes(1, b""))].concat()), wrong(""));
    let no_version = Err("metadata.resourceVersion is missing".to_owned());
    assert_eq!(page(&body("PodList", &bytes(1, b""))), no_version);
}

#[test]
fn a_status_is_read_as_its_json() {
    let of = |code, json, body: &[u8]| refusal(code, None, json, body, Verb::Create);
    let table: [(u16, &[u8], &[u8]); 4] = [
        (
            404,
            include_bytes!("../../../../fixtures/protobuf/not_found.bin"),
            include_bytes!("../../../../fixtures/protobuf/not_found.json"),
        ),
        (
            409,
            include_bytes!("../../../../fixtures/protobuf/exists.bin"),
            include_bytes!("../../../../fixtures/protobuf/exists.json"),
        ),
        (
            422,
            include_bytes!("../../../../fixtures/protobuf/invalid.bin"),
            include_bytes!("../../../../fixtures/protobuf/invalid.json"),
        ),
        (
            403,
            include_bytes!("../../../../fixtures/protobuf/forbidden.bin"),
            include_bytes!("../../../../fixtures/protobuf/forbidden.json"),
        ),
    ];
    for (code, protobuf, json) in table {
        let read = of(code, false, protobuf);
        assert_eq!(read, of(code, true, json));
        assert!(!read.message.is_empty(), "{read:?}");
    }
    let success = body("Status", &bytes(2, b"Success"));
    let wrong = Err(WireError::Protobuf(ProtobufError::Kind));
    assert_eq!(pod::parse(&success, &selection()), wrong, "a Status is no pod");
    let foreign = of(404, false, &body("Pod", b""));
    assert!(foreign.message.starts_with("the answer is not a Kubernetes Status"), "{foreign:?}");
}

#[test]
fn what_no_fixture_has() {
    let cause = bytes(4, &bytes(1, b"NamespaceTerminating"));
    let details = bytes(5, &[cause, number(5, 7)].concat());
    let Refusal { class, retry_after_ms, .. } =
        refusal(403, Some(Duration::from_secs(1)), false, &body("Status", &details), Verb::Create);
    assert_eq!((class, retry_after_ms), (RefusalClass::NamespaceGone, Some(7_000)));

    let gated = [bytes(1, b"PodScheduled"), bytes(2, b"False"), bytes(5, b"SchedulingGated")];
    let gate = bytes(38, &bytes(1, b"example.com/wait"));
    let gated = pod(&gate, &bytes(2, &gated.concat()));
    assert!(gated.start_problem.unwrap().message.contains("example.com/wait"));
    assert_eq!(gated.counted, Some(0), "the empty value of a label is a value");

    let mut ended =
        [number(1, -1), number(2, 9), bytes(3, b"Error"), bytes(4, b"last words")].concat();
    ended.extend(bytes(6, &number(1, 59)));
    let state = bytes(2, &bytes(3, &ended));
    let containers = [b"main", b"side"].map(|name| bytes(2, &bytes(1, name))).concat();
    let status = bytes(8, &[bytes(1, b"main"), state].concat());
    let later =
        [bytes(1, b"DisruptionTarget"), bytes(2, b"True"), bytes(4, &number(1, 60))].concat();
    let later = bytes(2, &[later, bytes(5, b"TerminationByKubelet")].concat());
    let ended = pod(&containers, &[bytes(1, b"Failed"), status, later].concat());
    let end = ended.end.unwrap();
    assert_eq!(&*end.disruption, "", "the kubelet came later");
    assert_eq!((end.exit_code, end.signal), (Some(-1), Some(9)));
    assert_eq!((&*end.container_reason, &*end.container_message), ("Error", "last words"));
    assert_eq!(ended.main_container.as_deref(), Some("main"));
}

#[test]
fn cut_and_changed_bytes_are_errors_or_other_values() {
    for (seed, event) in (0..).zip(events(WATCH)) {
        let mut rng = Rng::new(seed);
        let at = |rng: &mut Rng| usize::try_from(rng.below(event.len() as u64)).unwrap();
        for _ in 0..200 {
            let mut changed = event[..at(&mut rng)].to_vec();
            assert!(parse_event(Encoded::Protobuf(&changed), &selection()).is_err());
            changed = event.to_vec();
            changed[at(&mut rng)] = u8::try_from(rng.below(256)).unwrap();
            let _ = parse_event(Encoded::Protobuf(&changed), &selection());
        }
    }
    for message in [&b""[..], b"\x08", b"\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x01", b"\x0B"]
    {
        assert!(pod::parse(&[MAGIC, message].concat(), &selection()).is_err(), "{message:x?}");
        assert!(pod::parse(&body("Pod", message), &selection()).is_err(), "{message:x?}");
        assert!(
            read_page(&mut body("PodList", message).as_slice(), &selection()).is_err(),
            "{message:x?}"
        );
    }
}
