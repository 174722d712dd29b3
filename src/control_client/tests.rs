//! The client commands against a control API on a temporary socket.

use crate::testing::Folder;
use std::sync::atomic::Ordering;
use std::time::Duration;

use posse_core::model::command::{Command, GroupCommand};
use posse_testing::{Answer, Fixture, TestServer};

/// Runs posse so that it finds the fixture's socket first, and no cluster.
fn posse(fixture: &Fixture, args: &str) -> (u8, String, String) {
    let runtime = fixture.folder.path().to_str().unwrap().to_owned();
    let env = [("XDG_RUNTIME_DIR", &*runtime), ("KUBECONFIG", "no.conf")];
    Folder::new(&[]).posse_with(args, &env)
}

#[test]
fn answers_are_printed() {
    let fixture = Fixture::new();
    for (args, want) in [
        (
            "status --app w",
            "app w  instance a1b2c  namespace ns  pods w-a1b2c-exec-ID\ndriver running ",
        ),
        ("status --app w --json", "{\n  \"app\": \"w\",\n  \"avoided_nodes\": "),
        ("scale --app w 7 --group default", "group default: the target is 7 now\n"),
        (
            "scale --app w 70 --group default",
            "group default: the target is 20 now; 70 is outside of its min and max\n",
        ),
        (
            "kill --app w 1 2 9 --reason slow",
            "killed: 1 (posse replaces them)\nbusy, not killed (use --force): 2\nno such executor: 9\n",
        ),
        ("kill --app w 1 --target 4 --json", "{\n  \"busy\": [\n    2\n  ],\n  \"killed\": ["),
        ("scale --app w 70 --group default --json", "{\n  \"target\": 20\n}\n"),
        ("status w", "app w  instance a1b2c  namespace ns"),
        ("scale w 7 --group default", "group default: the target is 7 now\n"),
        ("kill w 1 2 9", "killed: 1 (posse replaces them)\n"),
        ("explain w 1", "executor 1 of group default: running since"),
        ("explain w/1", "executor 1 of group default: running since"),
        ("explain w --group big", "group big: 7 of 10 running"),
        ("explain --app w", "group default: 7 of 10 running (1 requested, 2 pending,"),
        ("explain --app w 1", "executor 1 of group default: running since 1970-01-01 00:00:01 UTC"),
        ("explain --app w --group big", "group big: 7 of 10 running"),
        (
            "explain --app w --group big --json",
            "{\n  \"groups\": [\n    {\n      \"attempt\": null,",
        ),
        ("explain --app w 1 --json", "{\n  \"events\": ["),
    ] {
        let (code, out, err) = posse(&fixture, args);
        // There is no executor 9.
        let want_code = u8::from(args.starts_with("kill"));
        assert_eq!((code, err.as_str()), (want_code, ""), "{args}");
        assert!(out.starts_with(want), "{args}: {out}");
    }
}

#[test]
fn errors_are_one_line_and_an_exit_code() {
    let fixture = Fixture::new();
    for (args, code, want) in [
        ("scale --app w 3", 2, "posse: which group? the run has several: default, big\n"),
        (
            "scale --app w --group other 3",
            1,
            "posse: there is no such group: other; the groups are: default, big\n",
        ),
        ("scale --app w b 3", 2, "posse: name the application by the first word, b, or by --app"),
        ("scale w big 3", 2, "posse: big: only the first word may be a name, the application's; a"),
        ("scale w 3 4", 2, "posse: expected one TARGET, and there are 2"),
        ("scale w", 2, "posse: name the TARGET, a number of executors, at most 1000000: "),
        ("scale big 3", 1, "posse: no live run of application big on this host"),
        ("kill w", 2, "posse: name the executors by their ids: `posse kill [APP] ID...`"),
        ("kill w 1 --replace", 2, "posse: unexpected argument '--replace' found (it was removed: "),
        ("status 1", 2, "posse: unexpected argument 1: the name of an application begins with a"),
        ("status w -n ns", 2, "posse: kubeconfig no.conf: "),
        ("status -n ns", 2, "posse: name the application too: with -n, --kubeconfig or --context"),
        ("kill 1 --context c", 2, "posse: name the application too: with -n, --kubeconfig or"),
        ("exec 1 --context c -- ls", 2, "posse: name the application too: with -n, --kubeconfig"),
        ("logs 1 --kubeconfig c", 2, "posse: name the application too: with -n, --kubeconfig or"),
        ("status other", 1, "posse: no live run of application other on this host"),
        ("scale w 3", 2, "posse: which group? the run has several: default, big\n"),
        ("logs w --app w", 2, "posse: name the application by the first word, w, or by --app"),
        ("logs w/1 2", 2, "posse: expected one ID, and there are 2"),
        ("logs w --executor 2", 2, "posse: unexpected argument '--executor' found (it was remove"),
        ("logs", 2, "posse: the following required arguments were not provided: <APP>..."),
        ("stop", 2, "posse: the following required arguments were not provided: <APP>..."),
        (
            "stop q q/1",
            2,
            "posse: invalid value 'q/1' for '[APP]...': `q/1` is not a name for an ap",
        ),
        ("apps ../x", 2, "posse: invalid value '../x' for '[NAME]...': `../x` is not a name for"),
        (
            "task wait --app w --group default b a --timeout 1ms",
            1,
            "posse: 2 of 2 tasks have not ended after 0 s, first b\n",
        ),
        ("bridge --app other", 1, "posse: its run does not answer yet\n"),
        ("stop w --app w", 2, "posse: the argument '[APP]...' cannot be used with '--app <NAME>'"),
        ("kill --app w", 2, "posse: the following required arguments were not provided: <ID>..."),
        ("explain --app w --logs 5", 2, "posse: --logs needs the ID of an executor"),
        ("explain w 1 --group big", 2, "posse: --group and the ID of an executor cannot be used"),
        (
            "kill --app w 1 --target 2 --no-replace",
            2,
            "posse: the argument '--target <TARGET>' can",
        ),
        ("explain --app w 7", 1, "posse: there is no executor 7 now"),
        ("explain --app w --group z --json", 1, "posse: there is no group `z`; the groups are: "),
        ("explain --app w 1 --logs 0", 2, "posse: invalid value '0' for '--logs <N>': 0 is not in"),
        (
            "explain --app w --group z",
            1,
            "posse: there is no group `z`; the groups are: default, big\n",
        ),
        ("status --app no-such-app", 1, "posse: no live run of application no-such-app on this"),
        ("status --control here", 2, "posse: control address: expected unix:PATH or a loopback"),
        ("status --control 127.0.0.1:1", 2, "posse: control address 127.0.0.1:1 needs --control-t"),
        ("status --control unix:/nowhere", 1, "posse: the run at unix:/nowhere does not answer: "),
        ("events --app w --run other", 1, "posse: refused: "),
    ] {
        let (got, out, err) = posse(&fixture, args);
        assert_eq!((got, out.as_str()), (code, ""), "{args}: {err}");
        assert!(err.starts_with(want), "{args}: {err}");
    }
    let (_, _, err) = posse(&fixture, "scale big 3");
    assert!(err.ends_with("; a group is named by --group\n"), "{err}");
}

#[test]
fn events_are_printed_as_they_came() {
    let fixture = Fixture::new();
    let stopped = "{\"seq\":2,\"event\":\"stopped\"}\n";
    fixture.events.push("{\"seq\":1}\n");
    assert_eq!(posse(&fixture, "events --app w --json").1, "{\"seq\":1}\n");
    fixture.events.push(stopped);
    fixture.events.end();
    assert_eq!(
        posse(&fixture, "events --app w -o json --follow --after 1"),
        (0, stopped.into(), "".into())
    );
}

#[test]
fn a_run_is_found_by_flag_then_environment_then_socket() {
    let fixture = Fixture::new();
    let (socket, folder) = (fixture.address().to_string(), Folder::new(&[]));
    let dead = ("POSSE_CONTROL", "unix:/nowhere");
    assert_eq!(folder.posse_with("status", &[("POSSE_CONTROL", &socket)]).0, 0);
    assert_eq!(folder.posse_with(&format!("status --control {socket}"), &[dead]).0, 0);
    let (code, _, err) = folder.posse_with("status", &[dead]);
    assert_eq!(code, 1, "{err}");

    // A second instance of the same application: the user has to choose.
    let other = fixture.second("zzzzz");
    let (code, _, err) = posse(&fixture, "status --app w");
    assert_eq!(code, 2);
    let choose = "posse: several live runs, choose one with --control unix:PATH: ";
    assert!(err.starts_with(choose) && err.contains("w.zzzzz.sock"), "{err}");
    drop(other);
    assert_eq!(posse(&fixture, "status --app w").0, 0);
}

/// An address may be that of any run, and two runs may have one name.
#[test]
fn nothing_is_done_to_another_run_than_the_named_one() {
    let fixture = Fixture::new();
    let (socket, folder) = (fixture.address().to_string(), Folder::new(&[]));
    let runtime = fixture.folder.path().to_str().unwrap().to_owned();
    let env = [("XDG_RUNTIME_DIR", &*runtime), ("KUBECONFIG", "no.conf")];
    let own = [env[0], env[1], ("POSSE_CONTROL", &*socket)];
    let is = "is another one than the named one: its application is w, in namespace ns";
    for (args, env, want) in [
        ("scale other 7 --group default --control ADDRESS", &env[..], is),
        ("kill other 1 --control ADDRESS", &env, is),
        ("exec other/1 --control ADDRESS -- ls", &env, is),
        ("logs other 1 --control ADDRESS", &env, is),
        ("status other --control ADDRESS", &env, is),
        ("scale w 7 --group default --control ADDRESS -n elsewhere", &env, is),
        ("scale other 7 --group default", &own, is),
        ("events other", &own, is),
        // A cluster is named, so neither the address of the driver's run nor a run of this host counts.
        ("scale w 7 --group default -n ns", &own, "kubeconfig no.conf: "),
        ("kill w 1 --kubeconfig no.conf", &own, "no.conf: No such file"),
        ("exec w/1 --context c -- ls", &own, "kubeconfig no.conf: "),
    ] {
        let (code, out, err) = folder.posse_with(&args.replace("ADDRESS", &socket), env);
        assert_eq!((code, out.as_str()), (2, ""), "{args}: {err}");
        assert!(err.contains(want), "{args}: {err}");
    }
    let asked = fixture.core.asked.lock().unwrap().clone();
    assert!(asked.iter().all(|command| *command == Command::View), "{asked:?}");
    for right in ["status w --control ADDRESS", "status w --control ADDRESS -n ns"] {
        assert_eq!(folder.posse_with(&right.replace("ADDRESS", &socket), &env).0, 0, "{right}");
    }
    let _second = fixture.second("zzzzz");
    for args in ["exec w/1 -- ls", "logs w 1", "explain w 1"] {
        let (code, _, err) = folder.posse_with(args, &env);
        assert_eq!(code, 2, "{args}: {err}");
        assert!(err.contains("several live runs, choose one with --control unix:PATH: "), "{err}");
    }
}

#[test]
fn a_list_without_the_cluster_is_no_success() {
    let fixture = Fixture::new();
    let runtime = fixture.folder.path().to_str().unwrap().to_owned();
    let kubeconfig = "{current-context: a, contexts: [{name: a, context: {cluster: c, user: u}}], \
                      clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}], \
                      users: [{name: u, user: {}}]}";
    let folder = Folder::new(&[("kubeconfig", kubeconfig)]);
    let env = [("XDG_RUNTIME_DIR", &*runtime)];
    let (code, out, _) = folder.posse_with("apps w -o name --kubeconfig kubeconfig", &env);
    assert_eq!((code, out.as_str()), (1, "w\n"));
    // Nobody has named a cluster.
    let (code, out, _) = folder.posse_with("apps w -o name", &env);
    assert_eq!((code, out.as_str()), (0, "w\n"));
}

#[test]
fn a_refusal_of_the_server_has_one_code() {
    let server = TestServer::start(None, |_| {
        let status = r#"{"kind":"Status","reason":"Forbidden","message":"pods is forbidden"}"#;
        Answer::json(403, status)
    });
    let folder = Folder::with_server(server.address);
    for command in
        ["events a", "exec a/1 ls", "explain a", "explain a 1", "kill a 1", "logs a", "status a"]
    {
        let (command, words) = command.split_once(' ').unwrap();
        let (code, _, err) = folder.posse(&format!("{command} -n n --kubeconfig k {words}"));
        assert_eq!((code, err.contains("pods is forbidden")), (3, true), "{command}: {err}");
    }
}

/// A user who repeats the command without a name adds another task.
#[test]
fn a_call_with_a_key_of_our_own_is_repeated() {
    let fixture = Fixture::new();
    let keys = || -> Vec<String> {
        let asked = std::mem::take(&mut *fixture.core.asked.lock().unwrap());
        let tasks = asked.into_iter().filter_map(|command| {
            let Command::Group(_, GroupCommand::AddTasks { tasks, .. }) = command else {
                return None;
            };
            Some(tasks)
        });
        tasks.flatten().map(|task| task.key.to_string()).collect()
    };
    for (name, n_unrecorded, want_code, n_calls) in
        [("", 1, 0, 2), ("", 9, 1, 4), ("--name a", 1, 1, 1), ("--name a", 0, 0, 1)]
    {
        fixture.core.n_unrecorded.store(n_unrecorded, Ordering::Relaxed);
        let args = format!("task add --app w --group default {name}");
        let (code, out, err) = posse(&fixture, &args);
        let keys = keys();
        assert_eq!((code, keys.len()), (want_code, n_calls), "{args}: {out}{err}");
        assert!(keys.iter().all(|key| *key == keys[0]), "{keys:?}");
        let is_named = err.contains(&format!("--name {} repeats the call", keys[0]));
        assert_eq!(is_named, name.is_empty() && code == 1, "{err}");
        assert_eq!(out.trim() == keys[0], code == 0, "{out}");
    }
}

/// A wait outlives a new process of the run, and ends with its time or when the run does not come back.
#[test]
fn a_wait_outlives_its_run_for_a_while() {
    for (is_back, want) in [(true, "of 1000 run after 4 s"), (false, "does not answer")] {
        let mut fixture = Fixture::new();
        let server = fixture.server.take();
        let fixture = &fixture;
        let (code, _, err) = std::thread::scope(|scope| {
            scope.spawn(move || {
                std::thread::sleep(Duration::from_secs(1));
                drop(server);
                std::thread::sleep(Duration::from_secs(1));
                let next = is_back.then(|| fixture.second("a1b2c"));
                std::thread::sleep(Duration::from_secs(4));
                drop(next);
            });
            posse(fixture, "wait --app w --running 1000 --timeout 4s")
        });
        assert_eq!(code, 1, "{err}");
        assert!(err.contains(want), "{err}");
    }
}
