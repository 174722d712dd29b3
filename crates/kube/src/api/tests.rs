//! Requests against a scripted server: what is sent, and how answers are read.

use super::leases::Leases;
use super::objects::{LogQuery, Objects};
use super::pods::{Pods, WATCH_IDLE};
use super::preflight::version;
use super::reviews::access_review;
use super::*;
use crate::testing::plain_client;
use posse_core::model::ids::Uid;
use posse_core::model::input::PodAnswer;
use posse_core::model::pod::StartProblemKind;
use posse_testing::{Answer, Seen as Asked, TestServer};
use posse_wire::k8s::labels::Selection;
use posse_wire::k8s::review::Access;

const POD: &str = include_str!("../../../../fixtures/pods/running.json");
const PAGE_1: &str = include_str!("../../../../fixtures/pods/page1.json");
const PAGE_2: &str = include_str!("../../../../fixtures/pods/page2.json");
const EXPIRED: &str = include_str!("../../../../fixtures/status/410-continue.json");

const SELECTOR: &str = "labelSelector=posse.dev%2Fapp%3Dwordcount%2Cposse.dev%2Finstance%3Dab3de\
                        %2Capp.kubernetes.io%2Fcomponent%3Dexecutor";
const PODS: &str = "/api/v1/namespaces/analytics/pods";

/// A server that gives `answers` one after the other.
fn server(answers: Vec<(u16, &'static str)>) -> TestServer {
    let answers = std::sync::Mutex::new(answers.into_iter());
    TestServer::start(None, move |_| match answers.lock().unwrap().next() {
        Some((status, body)) => Answer::json(status, body),
        None => Answer::Cut,
    })
}

fn pods(server: &TestServer) -> Pods {
    let selection = Selection { app: "wordcount".to_owned(), instance: "ab3de".to_owned() };
    Pods::new(plain_client(server.address), "analytics", selection)
}

fn lines(server: &TestServer) -> Vec<String> {
    let short = |line: &str| line.replace(SELECTOR, "SEL").replace(" HTTP/1.1", "");
    server.seen().iter().map(|asked| short(asked.line()).replace(PODS, "PODS")).collect()
}

/// Sends one request. Returns the result and the request as the server received it.
fn sent<T>(answer: (u16, &'static str), ask: impl Fn(&Pods) -> T) -> (T, Asked) {
    let server = server(vec![answer]);
    let got = ask(&pods(&server));
    (got, server.wait())
}

#[test]
fn requests_are_sent_as_documented() {
    let (seen, asked) = sent((201, POD), |pods| pods.create(b"{}"));
    assert!(matches!(seen, Ok(PodAnswer::Ours(pod)) if pod.id.0 == 1));
    assert_eq!(
        asked.line(),
        format!("POST {PODS}?fieldManager=posse&fieldValidation=Strict HTTP/1.1")
    );
    assert_eq!(asked.header("content-type"), Some("application/json"));
    assert_eq!(asked.header("accept"), Some(PROTOBUF));
    assert_eq!(asked.body, b"{}");

    let (raw, asked) = sent((201, POD), |pods| pods.dry_run(b"{}"));
    assert_eq!(
        asked.line(),
        format!("POST {PODS}?fieldManager=posse&fieldValidation=Strict&dryRun=All HTTP/1.1")
    );
    assert_eq!(asked.header("accept"), Some("application/json"));
    assert_eq!(raw.unwrap(), POD.as_bytes());

    let (there, asked) = sent((200, "{}"), |pods| pods.get_node("a/b"));
    assert_eq!(asked.line(), "GET /api/v1/nodes/a%2Fb HTTP/1.1");
    assert!(there.is_ok());

    let (_, asked) = sent((200, POD), |pods| pods.get("a/../b?c").unwrap());
    assert_eq!(asked.line(), format!("GET {PODS}/a%2F..%2Fb%3Fc HTTP/1.1"));

    let (_, asked) = sent((200, POD), |pods| pods.patch("x", b"{\"metadata\":{}}").unwrap());
    assert_eq!(asked.line(), format!("PATCH {PODS}/x?fieldManager=posse HTTP/1.1"));
    assert_eq!(asked.header("content-type"), Some("application/strategic-merge-patch+json"));
}

#[test]
fn a_delete_carries_uid_grace_and_selector() {
    let uid = Uid::new("3f2504e0-4f89-41d3-9a0c-0305e82c3301");
    let (gone, asked) = sent((200, POD), |pods| pods.delete("x", Some(&uid), Some(10)));
    assert!(matches!(gone, Ok(Some(pod)) if pod.id.0 == 1));
    assert_eq!(asked.line(), format!("DELETE {PODS}/x?fieldManager=posse HTTP/1.1"));
    let wanted = r#"{"apiVersion":"v1","gracePeriodSeconds":10,"kind":"DeleteOptions","preconditions":{"uid":"3f2504e0-4f89-41d3-9a0c-0305e82c3301"},"propagationPolicy":"Background"}"#;
    assert_eq!(String::from_utf8(asked.body).unwrap(), wanted);

    let done = r#"{"kind":"Status","status":"Success"}"#;
    let (gone, asked) = sent((200, done), |pods| pods.delete("x", None, None));
    assert_eq!(gone, Ok(None));
    let wanted = r#"{"apiVersion":"v1","kind":"DeleteOptions","propagationPolicy":"Background"}"#;
    assert_eq!(String::from_utf8(asked.body).unwrap(), wanted);
}

#[test]
fn a_lost_or_unreadable_answer_has_an_unknown_outcome() {
    let server = TestServer::start(None, |_| Answer::Cut);
    let refusal = pods(&server).create(b"{}").unwrap_err();
    assert_eq!((refusal.class, refusal.code), (RefusalClass::OutcomeUnknown, 0));

    let (refusal, _) = sent((201, "{\"kind\":\"Pod\"}"), |pods| pods.create(b"{}"));
    let refusal = refusal.unwrap_err();
    assert_eq!((refusal.class, refusal.code), (RefusalClass::OutcomeUnknown, 201));

    // Nobody listens on this port: it was bound and released a moment ago.
    let address = {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        socket.local_addr().unwrap()
    };
    let selection = Selection { app: "a".to_owned(), instance: "b".to_owned() };
    let nowhere = Pods::new(plain_client(address), "n", selection);
    let refusal = nowhere.create(b"{}").unwrap_err();
    assert_eq!((refusal.class, refusal.code), (RefusalClass::Transient, 0));
}

#[test]
fn lists_follow_their_pages() {
    for own_streams in [false, true] {
        let server = server(vec![(200, PAGE_1), (200, PAGE_2)]);
        let plain = pods(&server);
        let pods = if own_streams { plain.with_own_streams().0 } else { plain };
        let listed = pods.list().unwrap();
        assert_eq!(listed.pods.len(), 8);
        assert_eq!(listed.version.map(|v| v.to_string()), Some(listed.version_text));
        let lines = lines(&server);
        assert_eq!(lines[0], "GET PODS?SEL&limit=500");
        assert!(lines[1].starts_with("GET PODS?SEL&limit=500&continue=eyJ"), "{}", lines[1]);
        assert_eq!(lines.len(), 2);
    }
}

#[test]
fn pods_are_listed_with_what_people_read_of_them() {
    let pages = vec![
        (
            200,
            r#"{"metadata":{"resourceVersion":"7","continue":"t/1"},"items":[
            {"metadata":{"name":"a","uid":"u1"},"status":{"phase":"Pending","containerStatuses":[
                {"name":"c","state":{"waiting":{"reason":"RegistryUnavailable"}}}]}}]}"#,
        ),
        (
            200,
            r#"{"metadata":{"resourceVersion":"7"},"items":[{"metadata":{"name":"b","uid":"u2"}}]}"#,
        ),
        (200, r#"{"metadata":{"resourceVersion":"7"},"items":[{"metadata":{"name":"c"}}]}"#),
        (
            404,
            r#"{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}"#,
        ),
    ];
    let server = server(pages);
    let objects = Objects::new(plain_client(server.address), Some("analytics"));
    let (pods, version) = objects.pods("a=b").unwrap();
    assert_eq!((pods.len(), version.as_str()), (2, "7"));
    assert_eq!(pods[0].waiting().map(|waits| waits.problem()), Some(StartProblemKind::Image));
    let first = "GET PODS?labelSelector=a%3Db&limit=500";
    assert_eq!(lines(&server), [first, &format!("{first}&continue=t%2F1")]);
    // One pod without a uid: the answer must not count as a list without it.
    assert_eq!(objects.pods("a=b").unwrap_err().class, RefusalClass::OutcomeUnknown);
    assert!(objects.pod("gone").unwrap().is_none());
}

#[test]
fn an_expired_page_restarts_the_list() {
    let server = server(vec![(200, PAGE_1), (410, EXPIRED), (200, PAGE_2)]);
    let listed = pods(&server).list().unwrap();
    // The restarted list contains no pod of the first attempt.
    assert_eq!(listed.pods.len(), 3);
    assert_eq!(lines(&server).len(), 3);
}

#[test]
fn a_list_whose_pages_keep_expiring_is_read_without_pages() {
    let round = [(200, PAGE_1), (410, EXPIRED)];
    let mut answers: Vec<_> = round.iter().copied().cycle().take(8).collect();
    answers.push((200, PAGE_2));
    let server = server(answers);
    assert_eq!(pods(&server).list().unwrap().pods.len(), 3);
    let lines = lines(&server);
    assert_eq!(lines.len(), 9);
    assert_eq!(lines[8], "GET PODS?SEL");
}

#[test]
fn pages_of_different_versions_are_not_mixed() {
    let other = PAGE_2.replacen("\"resourceVersion\":\"", "\"resourceVersion\":\"9", 1);
    let other: &'static str = Box::leak(other.into_boxed_str());
    let server = server(vec![(200, PAGE_1), (200, other), (200, PAGE_1), (200, PAGE_2)]);
    assert_eq!(pods(&server).list().unwrap().pods.len(), 8);
    assert_eq!(lines(&server).len(), 4);
}

#[test]
fn a_truncated_list_is_refused() {
    let whole = format!("HTTP/1.1 200 X\r\nContent-Length: {}\r\n\r\n{}", PAGE_2.len() + 9, PAGE_2);
    for own_streams in [false, true] {
        let whole = whole.clone().into_bytes();
        let server = TestServer::start(None, move |_| Answer::ThenCut(whole.clone()));
        let plain = pods(&server);
        let pods = if own_streams { plain.with_own_streams().0 } else { plain };
        assert_eq!(pods.list().unwrap_err().class, RefusalClass::OutcomeUnknown);
    }
}

#[test]
fn a_refused_watch_returns_the_refusal() {
    let body = include_str!("../../../../fixtures/status/403-rbac-list.json");
    let (opened, asked) =
        sent((403, body), |pods| pods.open_watch("12 3", 300, WATCH_IDLE).map(drop));
    assert_eq!(opened.unwrap_err().class, RefusalClass::Forbidden);
    let wanted = format!(
        "GET {PODS}?watch=1&{SELECTOR}&resourceVersion=12%203&allowWatchBookmarks=true\
         &timeoutSeconds=300 HTTP/1.1"
    );
    assert_eq!(asked.line(), wanted);
}

#[test]
fn version_access_review_and_lease_requests() {
    let server = server(vec![
        (200, r#"{"gitVersion":"v1.36.2"}"#),
        (201, r#"{"status":{"allowed":false,"reason":"no RBAC policy matched"}}"#),
        (404, include_str!("../../../../fixtures/status/404-pod.json")),
    ]);
    let http = plain_client(server.address);
    assert_eq!(version(&http).unwrap(), "v1.36.2");
    let access = Access {
        namespace: "n",
        verb: "create",
        group: "",
        resource: "pods",
        subresource: "",
        name: "",
    };
    assert!(!access_review(&http, access).unwrap().allowed);
    assert_eq!(Leases::new(http, "n").get("a-b"), Ok(None));
    let asked = server.seen();
    assert_eq!(asked[0].line(), "GET /version HTTP/1.1");
    assert_eq!(
        asked[2].line(),
        "GET /apis/coordination.k8s.io/v1/namespaces/n/leases/a-b HTTP/1.1"
    );
}

/// A server under load works on a page, and a kubelet sends no head before a container's first line.
#[test]
fn the_heads_of_lists_and_logs_may_take_their_time() {
    let server = TestServer::start(None, |asked| {
        std::thread::sleep(Duration::from_secs(31));
        match asked.line().contains("/log?") {
            true => Answer::Reply(200, "", b"line\n".to_vec()),
            false => Answer::json(200, r#"{"metadata":{"resourceVersion":"1"},"items":[]}"#),
        }
    });
    let objects = Objects::new(plain_client(server.address), Some("ns"));
    let (pods, _streams) = pods(&server).with_own_streams();
    std::thread::scope(|scope| {
        let list = scope.spawn(|| pods.list().map(drop));
        let query = LogQuery { follow: true, ..LogQuery::default() };
        let log = objects.log("p", &query).map(drop);
        assert_eq!((list.join().unwrap(), log), (Ok(()), Ok(())));
    });
    assert_eq!(server.seen().len(), 2);
}
