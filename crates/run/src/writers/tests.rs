//! The writers against a scripted server.

use std::collections::BTreeMap;
use std::time::Duration;

use crossbeam_channel::{RecvTimeoutError, bounded};

use super::*;
use crate::claims::SlotClaims;
use crate::events::EventLog;
use crate::pod_groups::PodGroups;
use posse_base::clock::Clock;
use posse_core::model::ids::{ExecutorId, Uid};
use posse_core::model::input::Watermark;
use posse_core::model::refusal::RefusalClass;
use posse_kube::api::objects::Objects;
use posse_kube::api::pods::Pods;
use posse_testing::{Answer, TestServer, plain_client};
use posse_wire::k8s::labels::Selection;

/// Much longer than any step takes.
const PATIENCE: Duration = Duration::from_secs(60);

fn requests(server: &TestServer) -> Requests {
    let http = plain_client(server.address);
    let selection = Selection { app: "a".to_owned(), instance: "b".to_owned() };
    Requests {
        pods: Pods::new(http.clone(), "n", selection.clone()),
        claims: SlotClaims::new(Objects::new(http.clone(), Some("n")), selection),
        pod_groups: Arc::new(PodGroups::new(http, "n", BTreeMap::new())),
        log: Arc::new(EventLog::new("r", Clock::start())),
        outputs: None,
    }
}

fn get(id: u64) -> Action {
    Action::Get { id: ExecutorId(id), watermark: Watermark::default() }
}

#[test]
fn the_threads_end_with_the_writers() {
    let server = TestServer::start(None, |_| Answer::Reply(404, "", Vec::new()));
    let (inbox, answers) = bounded(16);
    let mut writers = Writers::new(requests(&server), inbox, 4);
    let (uid, name) = (Uid::new("u"), "x".to_owned());
    let actions = [
        get(1),
        get(2),
        Action::Delete { uid: uid.clone(), name: name.clone(), grace_s: None },
        // These two have threads that block.
        Action::GetNode { name: name.as_str().into() },
        Action::ReadLog { uid, name, container: None, n_lines: 1 },
    ];
    let n = actions.len();
    actions.into_iter().for_each(|action| writers.send(action));
    for _ in 0..n {
        assert!(matches!(answers.recv_timeout(PATIENCE), Ok(Message::Input(_))));
    }
    drop(writers);
    // Each of them has a sender of the inbox.
    assert!(matches!(answers.recv_timeout(PATIENCE), Err(RecvTimeoutError::Disconnected)));
}

/// What one thread for several requests cannot do, a thread that blocks does: here it renews credentials in vain.
#[test]
fn a_declined_request_is_sent_by_a_thread_that_blocks() {
    let server = TestServer::start(None, |_| Answer::Reply(401, "", Vec::new()));
    let (inbox, answers) = bounded(16);
    let mut writers = Writers::new(requests(&server), inbox, 4);
    writers.send(get(7));
    let answer = answers.recv_timeout(PATIENCE).unwrap();
    let Message::Input(Input::Got { id, answer, .. }) = answer else { panic!("{answer:?}") };
    assert_eq!((id, answer.unwrap_err().class), (ExecutorId(7), RefusalClass::Unauthorized));
    assert_eq!(server.seen().len(), 2);
}
