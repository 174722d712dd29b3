//! The watcher and the poller against a scripted server.
#![allow(clippy::wildcard_enum_match_arm)] // A test names the variants that it expects, and panics on the others.

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, bounded};

use crate::inbox::Message;
use crate::watch::lines::{Lines, WATCH_BATCH_MAX};
use crate::watch::lister::{Lister, ListerControl};
use crate::watch::poller::poll;
use crate::watch::watcher::watch;
use crate::watermark::SharedWatermark;
use posse_base::clock::Clock;
use posse_base::rng::Rng;
use posse_core::machines::watch::WatchEnd;
use posse_core::model::ids::ExecutorId;
use posse_core::model::input::{Input, ListPage, PodEvent, Watermark};
use posse_kube::api::pods::Pods;
use posse_testing::{Answer, PATIENCE, TestServer, plain_client};
use posse_wire::k8s::labels::Selection;
use posse_wire::k8s::watch::Encoded;

/// A stop or a relist ends a blocked read within this time on an idle machine.
const STOP_MAX: Duration = Duration::from_millis(100);
/// A busy machine may delay a thread; one of so many attempts is not delayed.
const STOP_ATTEMPTS: u32 = 50;

fn pod(id: u64, version: u64) -> String {
    format!(
        r#"{{"kind":"Pod","metadata":{{"name":"a-b-exec-{id}","uid":"u{id}","resourceVersion":"{version}",
        "labels":{{"posse.dev/app":"a","posse.dev/instance":"b","posse.dev/group":"g",
        "posse.dev/executor-id":"{id}","app.kubernetes.io/component":"executor"}}}}}}"#
    )
    .replace('\n', "")
}

fn line(kind: &str, object: &str) -> String {
    format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n")
}

fn bookmark(version: &str) -> String {
    line("BOOKMARK", &format!(r#"{{"metadata":{{"resourceVersion":"{version}"}}}}"#))
}

fn status(code: u16, reason: &str) -> String {
    format!(r#"{{"kind":"Status","code":{code},"reason":"{reason}","message":"{reason}!"}}"#)
}

fn list(version: &str, pods: &[String]) -> Answer {
    page(version, "", pods)
}

fn page(version: &str, next: &str, pods: &[String]) -> Answer {
    let body = format!(
        r#"{{"kind":"PodList","metadata":{{"resourceVersion":"{version}","continue":"{next}"}},"items":[{}]}}"#,
        pods.join(",")
    );
    Answer::json(200, body)
}

fn refused(code: u16, headers: &'static str) -> Answer {
    Answer::Reply(code, headers, status(code, "No").into_bytes())
}

const HEAD: &str = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\
                    Transfer-Encoding: chunked\r\n\r\n";

fn chunk(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("{:x}\r\n{text}\r\n", text.len()) }
}

/// A watch that sends `text` and ends regularly.
fn ended(text: &str) -> Answer {
    Answer::Raw(format!("{HEAD}{}0\r\n\r\n", chunk(text)).into_bytes())
}

/// A watch that sends `text`; then the connection is cut.
fn cut(text: &str) -> Answer {
    Answer::ThenCut(format!("{HEAD}{}", chunk(text)).into_bytes())
}

/// A watch that sends `text` and stays open.
fn open(text: &str) -> Answer {
    Answer::Stall(format!("{HEAD}{}", chunk(text)).into_bytes())
}

/// A message as a short text.
fn short(message: &Message) -> String {
    match message {
        Message::Input(Input::List(list)) => format!(
            "list {:?}{} {:?} epoch {} at {}",
            list.source,
            match list.page {
                ListPage::WHOLE => String::new(),
                ListPage { number, is_last: false } => format!(" page {number}"),
                ListPage { number, is_last: true } => format!(" last page {number}"),
            },
            list.pods.iter().map(|pod| pod.id.0).collect::<Vec<_>>(),
            list.watermark.epoch,
            list.version.map_or_else(String::new, |version| version.to_string()),
        ),
        Message::Input(Input::Watch { epoch, events }) => {
            let events: Vec<String> = events
                .iter()
                .map(|event| match event {
                    PodEvent::Applied(pod) => format!("+{}@{}", pod.id, pod.version.unwrap()),
                    PodEvent::Deleted(pod) => format!("-{}@{}", pod.id, pod.version.unwrap()),
                    PodEvent::Bookmark(version) => format!("={version}"),
                })
                .collect();
            format!("watch {epoch} {}", events.join(" "))
        }
        Message::Input(Input::WatchRestarted { cause, .. }) => format!("restarted: {cause}"),
        Message::ReadRefused(refusal) => format!("refused: {refusal}"),
        Message::Input(Input::WatchOpened) => "opened".to_owned(),
        other => panic!("{other:?}"),
    }
}

/// What a test can use while the thread runs.
struct Running<'a> {
    inbox: &'a Receiver<Message>,
    control: &'a ListerControl,
    server: &'a TestServer,
    watermark: &'a SharedWatermark,
}

impl Running<'_> {
    fn expect(&self, wanted: &str) {
        let message = self.inbox.recv_timeout(PATIENCE).expect("a message arrives");
        let got = short(&message);
        assert!(got.starts_with(wanted), "got {got:?}, wanted {wanted:?}");
    }

    /// Checks the next request: "list" or "watch VERSION".
    fn expect_request(&self, wanted: &str) {
        let seen = self.server.wait();
        let value = |name: &str| {
            let (_, rest) = seen.line().split_once(name)?;
            rest.split(['&', ' ']).next().map(str::to_owned)
        };
        let got = match (value("watch="), value("resourceVersion="), value("continue=")) {
            (Some(_), Some(version), None) => format!("watch {version}"),
            (None, None, None) => "list".to_owned(),
            (None, None, Some(token)) => format!("list {token}"),
            other => panic!("{other:?}"),
        };
        assert_eq!(got, wanted);
    }
}

/// The thread under test.
enum Body {
    Poll(Duration),
    Watch { idle: Duration, inbox_max: usize },
}

const WATCH: Body = Body::Watch { idle: PATIENCE, inbox_max: 64 };

/// Runs a thread against a server that sends `answers` in turn and then stalls. The thread must end
/// soon after the test. Returns how long the stop took.
fn check(body: Body, answers: Vec<Answer>, test: impl FnOnce(&Running<'_>)) -> Duration {
    let answers = Mutex::new(answers.into_iter());
    let server = TestServer::start(None, move |_| {
        answers.lock().unwrap().next().unwrap_or_else(|| Answer::Stall(Vec::new()))
    });
    let (idle, inbox_max) = match body {
        Body::Poll(_) => (PATIENCE, 64),
        Body::Watch { idle, inbox_max } => (idle, inbox_max),
    };
    let (send, inbox) = bounded::<Message>(inbox_max);
    let control = ListerControl::new();
    let watermark = Arc::new(SharedWatermark::default());
    let selection = Selection { app: "a".to_owned(), instance: "b".to_owned() };
    let lister = Lister {
        pods: Pods::new(plain_client(server.address), "n", selection),
        inbox: send,
        watermark: Arc::clone(&watermark),
        watch_idle: idle,
        clock: Clock::start(),
        rng: Rng::new(1),
        control: control.clone(),
    };
    thread::scope(|scope| {
        let thread = scope.spawn(|| match body {
            Body::Poll(schedule) => poll(&lister, schedule),
            Body::Watch { .. } => watch(&lister),
        });
        let (inbox, control, server) = (&inbox, &control, &server);
        let running = Running { inbox, control, server, watermark: &watermark };
        // If the test fails, the thread must end too: the scope waits for it.
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| test(&running)));
        let stopped_at = Instant::now();
        control.stop();
        thread.join().unwrap();
        let took = stopped_at.elapsed();
        if let Err(failure) = result {
            std::panic::resume_unwind(failure);
        }
        // Otherwise the idle timeout has ended it, not the stop.
        assert!(took < PATIENCE / 2, "the stop took {took:?}");
        took
    })
}

/// Repeats `attempt` until it takes less than `STOP_MAX`.
#[track_caller]
fn check_quick(mut attempt: impl FnMut() -> Duration) {
    let quickest = (0..STOP_ATTEMPTS).map(|_| attempt()).find(|took| *took < STOP_MAX);
    assert!(quickest.is_some(), "none of {STOP_ATTEMPTS} attempts took less than {STOP_MAX:?}");
}

#[test]
fn a_watch_starts_at_the_lists_version() {
    let events = line("ADDED", &pod(2, 11)) + &line("DELETED", &pod(1, 12));
    check(WATCH, vec![list("10", &[pod(1, 9)]), open(&events)], |running| {
        running.expect("list Watch [1] epoch 0 at 10");
        running.expect("watch 0 +2@11 -1@12");
        running.expect_request("list");
        running.expect_request("watch 10");
    });
}

#[test]
fn a_batch_has_only_the_last_event_of_each_pod() {
    let events = [
        line("ADDED", &pod(1, 11)),
        line("ADDED", &pod(2, 12)),
        bookmark("13"),
        line("MODIFIED", &pod(1, 14)),
        bookmark("15"),
        line("DELETED", &pod(2, 16)),
        line("SURPRISE", "{}"),
    ];
    check(WATCH, vec![list("10", &[]), open(&events.concat())], |running| {
        running.expect("list");
        running.expect("watch 0 +1@14 -2@16 =15");
    });
}

#[test]
fn long_batches_are_split() {
    let events: String = (1..=300).map(|i| line("ADDED", &pod(i, 10 + i))).collect();
    check(WATCH, vec![list("10", &[]), open(&events)], |running| {
        running.expect("list");
        let mut n_pods = 0;
        while n_pods < 300 {
            match running.inbox.recv_timeout(PATIENCE).unwrap() {
                Message::Input(Input::Watch { events, .. }) => {
                    assert!(events.len() <= WATCH_BATCH_MAX);
                    for event in events {
                        n_pods += 1;
                        assert!(
                            matches!(event, PodEvent::Applied(pod) if pod.id == ExecutorId(n_pods))
                        );
                    }
                }
                other => panic!("{other:?}"),
            }
        }
    });
}

#[test]
fn an_incomplete_line_is_discarded() {
    let events = line("ADDED", &pod(1, 11)) + &line("ADDED", &pod(2, 12))[..50];
    check(WATCH, vec![list("10", &[]), cut(&events), open("")], |running| {
        running.expect("list");
        running.expect("watch 0 +1@11");
        running.expect("restarted: the connection was cut");
        running.expect_request("list");
        running.expect_request("watch 10");
        running.expect_request("watch 11");
    });
}

#[test]
fn blindness_between_watches_is_told_and_its_end_too() {
    let answers = vec![list("10", &[]), cut(""), cut(""), cut(""), open("")];
    check(WATCH, answers, |running| {
        running.expect("list");
        let mut told = Vec::new();
        while !told.iter().any(|what: &String| what == "opened") {
            match running.inbox.recv_timeout(PATIENCE).unwrap() {
                Message::ReadRefused(refusal) => told.push(refusal.to_string()),
                Message::Input(Input::WatchOpened) => told.push("opened".to_owned()),
                _ => {}
            }
        }
        let what = "posse does not see its pods for";
        assert!(told[0].contains("the connection was cut") && told[0].contains(what), "{told:?}");
    });
}

#[test]
fn a_clean_end_in_the_middle_of_a_line_is_a_cut() {
    let events = line("ADDED", &pod(1, 11)) + "{\"type\":";
    check(WATCH, vec![list("10", &[]), ended(&events), open("")], |running| {
        running.expect("list");
        running.expect("watch 0 +1@11");
        running.expect("restarted: the connection was cut: it ended in the middle of an event");
    });
}

#[test]
fn a_regular_end_is_not_reported() {
    let events = line("ADDED", &pod(1, 11));
    let more = line("ADDED", &pod(2, 12));
    check(WATCH, vec![list("10", &[]), ended(&events), open(&more)], |running| {
        running.expect("list");
        running.expect("watch 0 +1@11");
        running.expect("watch 0 +2@12");
        running.expect_request("list");
        running.expect_request("watch 10");
        running.expect_request("watch 11");
    });
}

#[test]
fn an_expired_version_causes_a_new_list() {
    let event = line("ERROR", &status(410, "Expired"));
    for expired in [ended(&event), refused(410, "Content-Type: application/json\r\n")] {
        check(
            WATCH,
            vec![list("10", &[]), expired, list("20", &[pod(5, 15)]), open("")],
            |running| {
                running.expect("list Watch [] epoch 0 at 10");
                running.expect("restarted: ");
                running.expect("list Watch [5] epoch 0 at 20");
                running.expect_request("list");
                running.expect_request("watch 10");
                running.expect_request("list");
                running.expect_request("watch 20");
            },
        );
    }
}

#[test]
fn a_list_whose_token_expires_starts_over() {
    let answers = vec![
        page("10", "t1", &[pod(1, 1)]),
        refused(410, "Content-Type: application/json\r\n"),
        page("20", "t2", &[pod(2, 2)]),
        page("20", "", &[pod(3, 3)]),
        open(""),
    ];
    check(WATCH, answers, |running| {
        running.expect("list Watch page 0 [1] epoch 0 at 10");
        running.expect("list Watch page 0 [2] epoch 0 at 20");
        running.expect("list Watch last page 1 [3] epoch 0 at 20");
        for wanted in ["list", "list t1", "list", "list t2", "watch 20"] {
            running.expect_request(wanted);
        }
    });
}

#[test]
fn a_throttled_watch_waits_for_retry_after() {
    let throttled = refused(429, "Content-Type: application/json\r\nRetry-After: 2\r\n");
    let started_at = Instant::now();
    check(WATCH, vec![list("10", &[]), throttled, open("")], |running| {
        running.expect("list");
        running.expect("refused: No! (429)");
        running.expect("restarted: the server refused the watch");
        running.expect("opened");
        running.expect_request("list");
        running.expect_request("watch 10");
        running.expect_request("watch 10");
        assert!(started_at.elapsed() >= Duration::from_secs(2));
    });
}

#[test]
fn a_silent_watch_is_reopened() {
    let idle = Body::Watch { idle: Duration::from_secs(2), inbox_max: 64 };
    let events = line("ADDED", &pod(1, 11));
    check(idle, vec![list("10", &[]), open(&events), open("")], |running| {
        running.expect("list");
        running.expect("watch 0 +1@11");
        running.expect("restarted: no byte from the server within the idle timeout");
        running.expect_request("list");
        running.expect_request("watch 10");
        running.expect_request("watch 11");
    });
}

#[test]
fn bookmarks_advance_the_version() {
    let answers = vec![list("10", &[]), ended(&bookmark("30")), open(&bookmark("v-odd"))];
    check(WATCH, answers, |running| {
        running.expect("list");
        running.expect("watch 0 =30");
        running.expect_request("list");
        running.expect_request("watch 10");
        running.expect_request("watch 30");
    });
}

#[test]
fn a_full_inbox_ends_the_watch_and_causes_a_list() {
    let tiny = Body::Watch { idle: PATIENCE, inbox_max: 1 };
    let events = line("ADDED", &pod(1, 11));
    let answers = vec![list("10", &[]), open(&events), list("20", &[pod(1, 11)]), open("")];
    check(tiny, answers, |running| {
        running.expect_request("list");
        running.expect_request("watch 10");
        // The first list still fills the inbox, so the watch events do not fit.
        running.expect_request("list");
        assert_eq!(running.control.n_overruns(), 1);
        running.expect("list Watch [] epoch 0 at 10");
        running.expect("list Watch [1] epoch 0 at 20");
        running.expect_request("watch 20");
    });
}

#[test]
fn an_unreadable_line_causes_a_new_list() {
    let events = line("ADDED", &pod(1, 11)) + "what?\n" + &line("ADDED", &pod(2, 12));
    let answers = vec![list("10", &[]), open(&events), list("20", &[]), open("")];
    check(WATCH, answers, |running| {
        running.expect("list Watch [] epoch 0 at 10");
        running.expect("watch 0 +1@11");
        running.expect("restarted: invalid line");
        running.expect("list Watch [] epoch 0 at 20");
    });
}

#[test]
fn a_relist_ends_a_blocked_read() {
    check_quick(|| {
        let answers = vec![list("10", &[]), open(""), list("5", &[pod(1, 4)]), open("")];
        let mut took = Duration::MAX;
        check(WATCH, answers, |running| {
            running.expect("list Watch [] epoch 0 at 10");
            running.expect_request("list");
            running.expect_request("watch 10");
            running.watermark.publish(Watermark { epoch: 1, position: None });
            let requested_at = Instant::now();
            running.control.relist();
            running.expect_request("list");
            took = requested_at.elapsed();
            running.expect("restarted: resourceVersion rollback");
            running.expect("list Watch [1] epoch 1 at 5");
            running.expect_request("watch 5");
        });
        took
    });
}

#[test]
fn a_failed_list_is_retried() {
    let status = Answer::json(200, r#"{"kind":"Status","metadata":{},"status":"Failure"}"#);
    let answers = vec![refused(500, ""), status, list("10", &[]), open("")];
    check(WATCH, answers, |running| {
        running.expect("refused: ");
        running.expect("restarted: the list failed");
        // What is no list must not count as "there are no pods".
        running.expect("refused: ");
        running.expect(
            "restarted: the list failed: the answer cannot be read: its kind is \"Status\"",
        );
        running.expect("list Watch [] epoch 0 at 10");
    });
}

#[test]
fn a_stop_ends_a_blocked_watch() {
    check_quick(|| {
        check(WATCH, vec![list("10", &[]), open("")], |running| {
            running.expect_request("list");
            running.expect_request("watch 10");
        })
    });
}

#[test]
fn a_stop_ends_a_blocked_list() {
    let blocked = || Answer::Stall(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{".to_vec());
    let poll = || Body::Poll(Duration::ZERO);
    for body in [|| WATCH, poll] {
        check_quick(|| check(body(), vec![blocked()], |running| running.expect_request("list")));
    }
}

#[test]
fn a_stop_ends_a_backoff_and_a_blocked_delivery() {
    let headers = "Content-Type: application/json\r\nRetry-After: 100\r\n";
    check(WATCH, vec![refused(429, headers)], |running| {
        running.expect("refused: ");
        running.expect("restarted: the list failed");
    });
    let tiny = Body::Watch { idle: PATIENCE, inbox_max: 0 };
    check(tiny, vec![list("10", &[])], |running| running.expect_request("list"));
}

#[test]
fn lines_that_are_too_long_are_rejected() {
    let mut lines = Lines::default();
    let piece = vec![b'x'; 1 << 20];
    for _ in 0..8 {
        let n_lines = std::cell::Cell::new(0);
        let mut reader = &piece[..];
        lines
            .fill(&mut reader, |_| {
                n_lines.set(1);
                Ok(())
            })
            .unwrap();
        assert_eq!(n_lines.get(), 0);
    }
    let end = lines.fill(&mut &b"x\n"[..], |_| Ok(())).unwrap_err();
    assert!(matches!(end, WatchEnd::Undecodable(_)), "{end:?}");
}

#[test]
fn events_in_both_encodings_are_split_wherever_a_read_ends() {
    let long = [&[0, 0, 1, 4][..], &[b'\n'; 260]].concat();
    let small = b"{\"a\":1}\n\0\0\0\x03one\n\n\0\0\0\0{\"bc\":2}\r\n";
    let stream = [&small[..], &long].concat();
    for n_bytes in 1..=stream.len() {
        let (mut lines, seen) = (Lines::default(), std::cell::RefCell::new(Vec::new()));
        for mut piece in stream.chunks(n_bytes) {
            let on_event = |event: Encoded<'_>| {
                seen.borrow_mut().push(match event {
                    Encoded::Json(line) => format!("line of {}", line.len()),
                    Encoded::Protobuf(message) => format!("message of {}", message.len()),
                });
                Ok(())
            };
            lines.fill(&mut piece, on_event).unwrap();
        }
        let whole = ["line of 7", "message of 3", "message of 0", "line of 8", "message of 260"];
        assert_eq!(seen.take(), whole, "pieces of {n_bytes} bytes");
    }
}

#[test]
fn the_poller_lists_on_schedule_and_on_request() {
    let answers = vec![list("10", &[]), list("11", &[pod(1, 10)])];
    check(Body::Poll(Duration::from_millis(100)), answers, |running| {
        running.expect("list Poll [] epoch 0 at 10");
        running.expect("list Poll [1] epoch 0 at 11");
    });
    let answers = vec![refused(503, ""), list("10", &[]), list("11", &[])];
    check(Body::Poll(Duration::from_secs(3_600)), answers, |running| {
        running.control.request_list();
        // The first answer is an error, so the requested list is still needed.
        running.expect("refused: ");
        running.expect("list Poll [] epoch 0 at 10");
        running.control.request_list();
        running.expect("list Poll [] epoch 0 at 11");
    });
}
