//! The Secret of tasks, against a server that changes one as a real server does.

use std::sync::atomic::Ordering;

use super::*;
use posse_testing::{Answer, FakeCore, TestServer, plain_client};

/// A server with one Secret, which it changes as a real one does.
#[derive(Clone, Default)]
struct Secrets {
    secret: Arc<Mutex<Option<Value>>>,
    n_created: Arc<Mutex<u32>>,
    /// Answers everything with this code, by the method.
    refuses: Arc<Mutex<Option<(&'static str, u16)>>>,
}

impl Secrets {
    fn start(&self) -> TestServer {
        let own = self.clone();
        TestServer::start(None, move |asked| {
            let method = asked.line().split(' ').next().unwrap_or_default().to_owned();
            let (code, body) = own.answer(&method, &asked.body);
            Answer::json(code, body.to_string())
        })
    }

    fn answer(&self, method: &str, body: &[u8]) -> (u16, Value) {
        let status = |code: u16, reason: &str| {
            (code, json!({"kind": "Status", "reason": reason, "message": reason, "code": code}))
        };
        match *self.refuses.lock().unwrap() {
            Some((which, 403)) if which == method => {
                let (code, mut body) = status(403, "Forbidden");
                body["message"] = json!("secrets is forbidden: User \"u\" cannot do it");
                return (code, body);
            }
            Some((which, code)) if which == method => return status(code, "InternalError"),
            Some(_) | None => {}
        }
        let mut secret = self.secret.lock().unwrap();
        let given: Value = serde_json::from_slice(body).unwrap_or_default();
        match (method, secret.as_mut()) {
            ("POST", Some(_)) => status(409, "AlreadyExists"),
            ("POST", None) => {
                let mut new = given;
                let mut n_created = self.n_created.lock().unwrap();
                *n_created += 1;
                new["metadata"]["uid"] = json!(format!("u{n_created}"));
                new["metadata"]["resourceVersion"] = json!("1");
                *secret = Some(new.clone());
                (201, new)
            }
            (_, None) => status(404, "NotFound"),
            ("PATCH", Some(there)) => {
                let uid = &given["metadata"]["uid"];
                if uid.is_string() && *uid != there["metadata"]["uid"] {
                    return status(409, "Conflict");
                }
                for (key, value) in given["data"].as_object().into_iter().flatten() {
                    let data = there["data"].as_object_mut().unwrap();
                    if value.is_null() {
                        data.remove(key);
                    } else {
                        data.insert(key.clone(), value.clone());
                    }
                }
                if let Some(owners) = given["metadata"].get("ownerReferences") {
                    there["metadata"]["ownerReferences"] = owners.clone();
                }
                (200, there.clone())
            }
            ("DELETE", Some(_)) => {
                *secret = None;
                status(200, "")
            }
            (_, Some(there)) => (200, there.clone()),
        }
    }

    /// The stored values, sorted.
    fn values(&self, instance: &str) -> Vec<String> {
        let selection = Selection { app: "q".to_owned(), instance: instance.to_owned() };
        let secret = self.secret.lock().unwrap();
        let mut values: Vec<String> =
            secret.iter().flat_map(|one| stored(one, &selection).values.into_values()).collect();
        values.sort_unstable();
        values
    }

    fn process(&self, server: &TestServer, instance: &str, core: &Arc<FakeCore>) -> TaskSecrets {
        let owner = OwnerRef::pod(format!("driver-{instance}"), format!("pod-{instance}"));
        core.ready.store(true, Ordering::Relaxed);
        let secret = TaskSecret::new(
            Objects::new(plain_client(server.address), Some("n")),
            Selection { app: "q".to_owned(), instance: instance.to_owned() },
            Some(owner),
            Arc::default(),
            Arc::clone(core) as Arc<dyn RunHandle>,
        );
        TaskSecrets::new(secret, true)
    }
}

fn task(key: &str, value: &str) -> NewTask {
    let task = Task { key: key.into(), ..Task::default() };
    NewTask {
        task,
        secrets: [("TOKEN".to_owned(), value.to_owned())].into(),
        files: BTreeMap::new(),
    }
}

/// Adds the tasks. Gives the keys of their values.
fn add(secrets: &TaskSecrets, tasks: &[NewTask]) -> Result<Vec<Arc<str>>, StoreError> {
    let mut keys = Vec::new();
    secrets.store(tasks.to_vec(), &mut |tasks| {
        keys.extend(tasks.iter().flat_map(|task| task.secret_env.values()).cloned());
    })?;
    Ok(keys)
}

/// The methods that the server was asked with since the last call.
fn asked(server: &TestServer) -> String {
    let seen = server.seen();
    let methods: Vec<&str> = seen.iter().filter_map(|one| one.line().split(' ').next()).collect();
    methods.join(" ")
}

#[test]
fn a_value_is_stored_once_and_found_after_a_restart() {
    let (there, core) = (Secrets::default(), Arc::new(FakeCore::default()));
    let server = there.start();
    let first = there.process(&server, "i", &core);
    let plain = NewTask { secrets: BTreeMap::new(), ..task("plain", "") };
    assert_eq!(add(&first, &[plain]).unwrap(), []);
    assert_eq!(asked(&server), "", "a run without such a task asks for nothing");
    let keys = add(&first, &[task("a", "s1"), task("b", "s1"), task("c", "s2")]).unwrap();
    assert_eq!((keys.len(), &keys[0], keys[0] == keys[2]), (3, &keys[1], false));
    assert_eq!(asked(&server), "GET POST");
    add(&first, &[task("d", "s2")]).unwrap();
    assert_eq!(asked(&server), "", "it is there");
    add(&first, &[task("e", "s3")]).unwrap();
    let seen = server.seen();
    let patch: Value = serde_json::from_slice(&seen[0].body).unwrap();
    assert_eq!(patch["data"].as_object().unwrap().len(), 1, "the others are not written again");
    // The next process gives the same tasks the same keys, and becomes an owner.
    drop(first);
    let next = there.process(&server, "i", &core);
    let again = add(&next, &[task("a", "s1"), task("c", "s2")]).unwrap();
    assert_eq!([&again[0], &again[1]], [&keys[0], &keys[2]]);
    assert_eq!(there.values("i"), ["s1", "s2", "s3"]);
}

#[test]
fn values_that_no_task_needs_go() {
    let (there, core) = (Secrets::default(), Arc::new(FakeCore::default()));
    let server = there.start();
    let own = there.process(&server, "i", &core);
    let other = there.process(&server, "other", &core);
    let key = add(&own, &[task("a", "s1"), task("b", "s2")]).unwrap().swap_remove(0);
    add(&other, &[task("a", "s1")]).unwrap();
    assert_eq!(there.values("other"), ["s1"]);
    *core.needed.lock().unwrap() = [key].into();
    core.ready.store(false, Ordering::Relaxed);
    own.secret.sweep();
    assert_eq!(there.values("i"), ["s1", "s2"], "tasks of an earlier process are not known yet");
    core.ready.store(true, Ordering::Relaxed);
    // What a call is about to add is not known to the core either.
    let held = ["s2".to_owned()].into();
    own.secret.hold(&held).unwrap();
    own.secret.sweep();
    assert_eq!(there.values("i"), ["s1", "s2"]);
    own.secret.release(&held);
    own.secret.sweep();
    assert_eq!(there.values("i"), ["s1"]);
    // Removed by somebody: the next write, or look, brings it back.
    *there.secret.lock().unwrap() = None;
    own.secret.sweep();
    assert_eq!(there.values("i"), ["s1"]);
    *there.secret.lock().unwrap() = None;
    add(&own, &[task("c", "s3")]).unwrap();
    assert_eq!(there.values("i"), ["s1", "s3"]);
    // At the end all go, but not those of another instance.
    add(&other, &[task("b", "s4")]).unwrap();
    own.stop(SecretRelease::Delete);
    assert_eq!(
        (there.values("i").len(), there.values("other")),
        (0, vec!["s1".to_owned(), "s4".to_owned()])
    );
    other.stop(SecretRelease::Keep);
    assert_eq!(there.values("other").len(), 2);
}

#[test]
fn values_of_an_earlier_process_that_no_task_needs_go() {
    let (there, core) = (Secrets::default(), Arc::new(FakeCore::default()));
    let server = there.start();
    let first = there.process(&server, "i", &core);
    let key = add(&first, &[task("a", "s1"), task("b", "s2")]).unwrap().swap_remove(0);
    drop(first);
    *core.needed.lock().unwrap() = [key].into();
    let next = there.process(&server, "i", &core);
    next.secret.sweep();
    assert_eq!(there.values("i"), ["s1"]);
    // Who may not read the Secret asks once.
    *there.refuses.lock().unwrap() = Some(("GET", 403));
    let other = there.process(&server, "other", &core);
    server.seen();
    other.secret.sweep();
    other.secret.sweep();
    assert_eq!(asked(&server), "GET");
    // A refusal does not end the looks at what is stored.
    next.secret.sweep();
    *there.refuses.lock().unwrap() = None;
    *there.secret.lock().unwrap() = None;
    next.secret.sweep();
    assert_eq!(there.values("i"), ["s1"]);
    // Nor at what is stored after it.
    *core.needed.lock().unwrap() = add(&other, &[task("c", "s3")]).unwrap().into_iter().collect();
    *there.secret.lock().unwrap() = None;
    other.secret.sweep();
    assert_eq!(there.values("other"), ["s3"]);
}

#[test]
fn the_last_instance_deletes_the_secret_and_without_the_right_empties_it() {
    for refuses in [None, Some(("DELETE", 403))] {
        let (there, core) = (Secrets::default(), Arc::new(FakeCore::default()));
        let server = there.start();
        let own = there.process(&server, "i", &core);
        add(&own, &[task("a", "s1")]).unwrap();
        *there.refuses.lock().unwrap() = refuses;
        own.stop(SecretRelease::Delete);
        let left = there.secret.lock().unwrap();
        assert_eq!(left.is_some(), refuses.is_some());
        assert!(left.iter().all(|left| left["data"] == json!({})), "{left:?}");
    }
}

#[test]
fn a_refusal_says_what_to_do_and_no_value() {
    let (there, core) = (Secrets::default(), Arc::new(FakeCore::default()));
    let server = there.start();
    let own = there.process(&server, "i", &core);
    let refused = |refuses, value: &str| {
        *there.refuses.lock().unwrap() = refuses;
        let problem = add(&own, &[task("a", value)]).unwrap_err();
        assert!(!format!("{problem:?}").contains("s3cr3t"), "{problem:?}");
        problem
    };
    let grant = |problem: &StoreError| match problem {
        StoreError::Refused(what) => what.contains("get, patch and delete for the secret q-tasks"),
        StoreError::Unavailable(_) => false,
    };
    assert!(grant(&refused(Some(("GET", 403)), "s3cr3t")));
    assert!(grant(&refused(Some(("POST", 403)), "s3cr3t")));
    assert!(matches!(refused(Some(("POST", 500)), "s3cr3t"), StoreError::Unavailable(_)));
    let many = "s3cr3t".repeat(TASK_SECRET_BYTES_MAX / 6 + 1);
    let StoreError::Refused(what) = refused(None, &many) else { panic!("it is for ever") };
    assert!(what.contains("secret q-tasks would have") && what.contains("900000"), "{what}");
    // A failed write is not taken for one that was done.
    *there.refuses.lock().unwrap() = None;
    add(&own, &[task("a", "s3cr3t")]).unwrap();
    assert_eq!(there.values("i"), ["s3cr3t"]);
    *there.secret.lock().unwrap() = Some(json!({"metadata": {"name": "q-tasks", "uid": "u9"}}));
    let foreign = there.process(&server, "j", &core);
    let StoreError::Refused(what) = add(&foreign, &[task("a", "x")]).unwrap_err() else {
        panic!("it is not ours");
    };
    assert!(what.contains("exists and is not posse's"), "{what}");
}
