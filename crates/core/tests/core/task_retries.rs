//! Tasks that are run again by a call, after they have ended without success.
#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm)]

use std::sync::Arc;

use super::starts::live;
use super::task_restarts::restart;
use super::tasks::{creates, ends, group, say, settle, show, state, task};
use crate::core_run::{Run, end_with, policy, refusal};
use posse_core::model::action::Action;
use posse_core::model::command::{Command, GroupCommand, Reply};
use posse_core::model::ids::GroupName;
use posse_core::model::input::Input;
use posse_core::model::pod::{Pod, StartProblem, StartProblemKind};
use posse_core::model::pod_text::{Part, PodText};
use posse_core::model::refusal::RefusalClass;
use posse_core::model::settings::GroupSpec;
use posse_core::model::task::{After, Task};
use posse_core::state::ledger::CREATE_OPEN_MS;

fn retry(run: &mut Run, key: &str) -> Reply {
    let key = key.into();
    run.call(Command::Group(GroupName::from("g"), GroupCommand::RetryTask { key }))
}

#[test]
fn a_task_that_did_not_succeed_runs_again_with_all_its_retries() {
    let mut run = Run::new(policy(), vec![group(0, None)]);
    let after = [("a".into(), After::Ok)].into();
    say(&mut run, &[task("a", 1), Task { after, ..task("b", 0) }]);
    settle(&mut run);
    assert!(matches!(retry(&mut run, "a"), Reply::Tasks(_)), "an open one stays as it is");
    assert_eq!(settle(&mut run), []);
    run.watch(&[1], end_with(1));
    settle(&mut run);
    run.watch(&[2], end_with(1));
    assert_eq!((state(&mut run, "a"), state(&mut run, "b")), ("failed", "skipped"));
    ends(&mut run);
    assert!(matches!(retry(&mut run, "b"), Reply::Tasks(_)));
    assert_eq!(ends(&mut run), [("b".to_owned(), "skipped", None, 0)], "a has still failed");
    for key in ["a", "b"] {
        assert!(matches!(retry(&mut run, key), Reply::Tasks(_)));
    }
    assert_eq!(state(&mut run, "b"), "held");
    assert_eq!(settle(&mut run), [(3, "a".to_owned(), 3)]);
    run.watch(&[3], end_with(1));
    assert_eq!(settle(&mut run), [(4, "a".to_owned(), 4)]);
    run.watch(&[4], end_with(0));
    assert_eq!(ends(&mut run), [("a".to_owned(), "succeeded", Some(0), 4)]);
    assert_eq!(settle(&mut run), [(5, "b".to_owned(), 1)]);
    let Reply::Refused { what, field } = retry(&mut run, "a") else { panic!() };
    assert_eq!((what.as_str(), field), ("task a has succeeded", "key"));
    assert_eq!(retry(&mut run, "nobody"), Reply::UnknownTask);
}

/// The keys of the Secret that tasks need.
fn keys(run: &mut Run) -> Vec<String> {
    let Reply::TaskSecretKeys(keys) = run.call(Command::TaskSecretKeys) else { panic!() };
    keys.iter().map(|key| key.to_string()).collect()
}

#[test]
fn secret_values_are_needed_until_no_call_can_run_the_task_again() {
    let mut run = Run::new(policy(), vec![group(0, None)]);
    let with = |key: &str, secret: &str| Task {
        secret_env: [("TOKEN".to_owned(), secret.into())].into(),
        ..task(key, 0)
    };
    let with_file = Task { files: [("/f".to_owned(), "k2".into())].into(), ..task("c", 0) };
    say(&mut run, &[with("a", "k1"), with("b", "k2"), with_file]);
    settle(&mut run);
    assert_eq!(keys(&mut run), ["k1", "k2"]);
    let reply = say(&mut run, &[with("a", "k2")]);
    assert!(matches!(reply, Reply::TaskDiffers { field: "secret_env", .. }), "{reply:?}");
    let reply = say(&mut run, &[task("c", 0)]);
    assert!(matches!(reply, Reply::TaskDiffers { field: "files", .. }), "{reply:?}");
    run.watch(&[1], end_with(1));
    run.watch(&[2], end_with(0));
    assert_eq!(keys(&mut run), ["k1", "k2"], "a can run again, and c is open");
    run.watch(&[3], end_with(0));
    assert_eq!(keys(&mut run), ["k1"]);
    // The pods tell the next process.
    retry(&mut run, "a");
    settle(&mut run);
    let mut next = restart(run, group(0, None));
    assert_eq!(keys(&mut next), ["k1"]);
}

#[test]
fn a_file_has_no_place_where_the_template_has_a_volume() {
    let mount_paths = ["/data", "/etc/app/conf.d"].map(str::to_owned).into();
    let pod = Arc::new(PodText { mount_paths, ..PodText::default() });
    let mut run = Run::new(policy(), vec![GroupSpec { pod: Some(pod), ..group(0, None) }]);
    let with = |key: &str, file: &str| Task {
        files: [(file.to_owned(), "k1".into())].into(),
        ..task(key, 0)
    };
    for (file, volume) in [("/data", "/data"), ("/etc/app", "/etc/app/conf.d")] {
        let reply = say(&mut run, &[task("other", 0), with("a", file)]);
        let Reply::Refused { what, field: "files" } = reply else { panic!("{reply:?}") };
        let want = format!(
            "task a: {file} is no place for a file, because the template of group g has a volume at {volume}: take \
             another path"
        );
        assert_eq!(what, want);
    }
    assert!(show(&mut run, "other").is_none(), "all or none");
    for file in ["/data/a", "/data2", "/dat", "/etc/app/conf", "/etc/app/conf.d/a"] {
        let reply = say(&mut run, &[with(&file.replace('/', "-"), file)]);
        assert!(matches!(reply, Reply::Tasks(_)), "{file}: {reply:?}");
    }
}

#[test]
fn a_pod_that_fills_etcds_limit_has_no_room_for_a_task() {
    for (n_bytes, fits) in [(1_572_864 - (128 << 10), true), (1_572_865 - (128 << 10), false)] {
        let parts = vec![Part::Text("x".repeat(n_bytes)), Part::PodName];
        let pod = Arc::new(PodText { parts, ..PodText::default() });
        let mut run = Run::new(policy(), vec![GroupSpec { pod: Some(pod), ..group(0, None) }]);
        match say(&mut run, &[task("a", 0)]) {
            Reply::Tasks(_) => assert!(fits),
            Reply::Refused { what, field: "executors" } => {
                assert!(!fits);
                assert!(what.contains("has 1441793 bytes") && what.contains("(1.5 MiB)"), "{what}");
            }
            reply => panic!("{reply:?}"),
        }
    }
}

#[test]
fn a_task_that_cannot_start_fails_with_the_words_of_the_server() {
    let mut run = Run::new(policy(), vec![group(0, None)]);
    say(&mut run, &[task("a", 0)]);
    settle(&mut run);
    run.watch(&[1], |pod| {
        end_with(1)(pod);
        if let Some(end) = &mut pod.end {
            end.pod_reason = "DeadlineExceeded".into();
            end.pod_message = "it took too long".into();
        }
    });
    let end = show(&mut run, "a").unwrap().end.unwrap();
    assert_eq!(end.reason, Some("deadline_exceeded"));
    assert!(end.message.as_ref().unwrap().contains("it took too long"), "{end:?}");
}

fn cannot_pull(pod: &mut Pod) {
    let message = "Back-off pulling image \"no:1\"".into();
    let problem = StartProblem { kind: StartProblemKind::Image, message, n_started: 0 };
    pod.start_problem = Some(problem.into());
    pod.node = Some("n1".into());
}

/// Alone in its group and beside others, and whatever they do.
#[test]
fn a_task_whose_image_cannot_be_pulled_fails_after_its_retries_with_the_words_of_the_server() {
    for others in [0, 1] {
        let mut run = Run::new(policy(), vec![group(0, None)]);
        let keys = ["bad", "other"].into_iter().take(1 + others);
        let image = |key| (key == "bad").then(|| "no:1".to_owned());
        let tasks: Vec<Task> = keys.map(|key| Task { image: image(key), ..task(key, 1) }).collect();
        say(&mut run, &tasks);
        let mut told = Vec::new();
        while run.now < 60 * 60_000 && told.is_empty() {
            for action in run.take() {
                match action {
                    Action::Create { id, overrides, .. } => {
                        run.created(&[id.0]);
                        match overrides.task.is_some_and(|run| &*run.task.key == "bad") {
                            true => run.watch(&[id.0], cannot_pull),
                            false => run.running(&[id.0]),
                        }
                    }
                    Action::Delete { uid, .. } => {
                        run.gone(&[uid.to_string()[1..].parse().unwrap()])
                    }
                    Action::Patch { uid, .. } => run.tell(Input::Patched { uid, answer: Ok(()) }),
                    other => panic!("{other:?}"),
                }
            }
            live(&mut run, 1_000);
            told = ends(&mut run);
        }
        assert_eq!(told, [("bad".to_owned(), "failed", None, 2)], "{others} others");
        let end = show(&mut run, "bad").unwrap().end.unwrap();
        assert_eq!(end.reason, Some("image_error"));
        assert!(end.message.as_ref().unwrap().contains("pulling image \"no:1\""), "{end:?}");
    }
}

/// The pods of the attempts before are records: none of them tells an end of what was opened again since.
#[test]
fn a_restarted_posse_knows_the_last_attempt() {
    for (code, is_labelled) in [(None, false), (Some(0), false), (Some(0), true)] {
        let mut run = Run::new(policy(), vec![group(0, None)]);
        say(&mut run, &[task("a", 0)]);
        settle(&mut run);
        run.watch(&[1], end_with(1));
        run.watch(&[1], |pod| pod.counted = Some(9));
        retry(&mut run, "a");
        assert_eq!(settle(&mut run), [(2, "a".to_owned(), 2)]);
        if let Some(code) = code {
            run.watch(&[2], end_with(code));
            run.watch(&[2], |pod| pod.completed = is_labelled);
        }
        let Run { pods, version, now, .. } = run;
        let mut run = Run { pods, version, now, ..Run::unlisted(policy(), vec![group(0, None)]) };
        say(&mut run, &[task("a", 0)]);
        run.list();
        let want = if code.is_some() { "succeeded" } else { "running" };
        assert_eq!((state(&mut run, "a"), creates(&mut run)), (want, vec![]));
        let end = code.map(|_| ("a".to_owned(), "succeeded", code, 2));
        assert_eq!(ends(&mut run), Vec::from_iter(end), "{is_labelled}");
    }
}

/// The executor of a cancelled task has a grace period, and a create of unknown outcome may take effect late.
#[test]
fn a_task_that_is_opened_again_waits_for_its_last_executor() {
    let again = |run: &mut Run| {
        let key = "a".into();
        run.call(Command::Group(GroupName::from("g"), GroupCommand::CancelTask { key }));
        assert_eq!(ends(run), [("a".to_owned(), "cancelled", None, 1)]);
        retry(run, "a");
        run.wait(1_000);
        assert_eq!((state(run, "a"), creates(run)), ("waiting", vec![]));
    };
    let mut run = Run::new(policy(), vec![group(0, None)]);
    say(&mut run, &[task("a", 1)]);
    settle(&mut run);
    again(&mut run);
    run.watch(&[1], end_with(0));
    assert_eq!(ends(&mut run), [], "it belongs to the cancelled attempt");
    assert_eq!(settle(&mut run), [(2, "a".to_owned(), 2)]);
    run.watch(&[2], end_with(0));
    assert_eq!(ends(&mut run), [("a".to_owned(), "succeeded", Some(0), 2)]);

    let mut run = Run::new(policy(), vec![group(0, None)]);
    say(&mut run, &[task("a", 1)]);
    assert_eq!(creates(&mut run), [(1, "a".to_owned(), 1)]);
    run.refused(1, refusal(RefusalClass::OutcomeUnknown, 500));
    again(&mut run);
    run.wait(CREATE_OPEN_MS);
    assert_eq!(settle(&mut run), [(2, "a".to_owned(), 1)]);
}

/// The values of a task that has succeeded go, and have other keys when they are stored again.
#[test]
fn other_keys_of_values_are_other_contents_until_the_task_has_succeeded() {
    for (code, is_same) in [(0, true), (1, false)] {
        let mut run = Run::new(policy(), vec![group(0, None)]);
        let with = |key: &str| Task {
            secret_env: [("TOKEN".to_owned(), key.into())].into(),
            files: [("/token".to_owned(), key.into())].into(),
            ..task("a", 0)
        };
        say(&mut run, &[with("i.1")]);
        settle(&mut run);
        let reply = say(&mut run, &[with("i.2")]);
        assert_eq!(reply, Reply::TaskDiffers { key: "a".into(), field: "files" });
        run.watch(&[1], end_with(code));
        let reply = say(&mut run, &[with("i.2")]);
        assert_eq!(matches!(reply, Reply::Tasks(_)), is_same, "{reply:?}");
        let other = Task { files: Default::default(), ..with("i.2") };
        let reply = say(&mut run, &[other]);
        assert_eq!(reply, Reply::TaskDiffers { key: "a".into(), field: "files" });
    }
}
