//! The control API over real sockets, with a scripted reconciler and event log.

#![allow(clippy::unwrap_used)]

mod apps;
mod bridge;
mod doors;
mod page;

use std::collections::BTreeSet;
use std::io::{Read as _, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use posse_control::address::bind_default;
use posse_control::client::{Client, ClientError, LiveRun, RunSelector};
use posse_core::model::command::{AfterKill, Command, GroupCommand};
use posse_core::model::ids::{ExecutorId, GroupName};
use posse_testing::{Fixture, PATIENCE, Wait, encoded_status, identity};
use posse_wire::config::control_addr::ControlAddr;
use posse_wire::control::Killed;

#[test]
fn a_status_is_encoded_once_until_the_wall_clock_is_set() {
    let fixture = Fixture::new();
    for (clock_ms, encoded_at_ms) in [(0, 0), (900, 0), (3_600_000, 3_600_000), (0, 0)] {
        fixture.core.epoch_ms.store(clock_ms, Ordering::Relaxed);
        let want = encoded_status(encoded_at_ms);
        let got = fixture.call("GET", "/v1/status", "");
        assert_eq!(got, (200, want), "at {clock_ms} ms");
    }
    let status = encoded_status(0);
    let (_, executors) = status.split_once(r#","executors":"#).unwrap();
    let (executors, _) = executors.split_once(r#","avoided_nodes""#).unwrap();
    let alone = format!(r#"{{"executors":{executors}}}"#);
    assert_eq!(fixture.call("GET", "/v1/executors", ""), (200, alone));
}

#[test]
fn calls_and_their_answers() {
    let fixture = Fixture::new();
    let status = encoded_status(0);
    let killed = r#"{"busy":[2],"killed":[1],"target":4,"unknown":[9]}"#;
    fixture.check(&[
        ("GET", "/v1/status", "", 200, status.as_str()),
        ("PUT", "/v1/groups/default", r#"{"target":7}"#, 200, r#"{"target":7}"#),
        ("PUT", "/v1/groups/default", r#"{"target":70}"#, 200, r#"{"target":20}"#),
        (
            "PUT",
            "/v1/groups/other",
            r#"{"target":7}"#,
            404,
            r#"{"error":"there is no such group","field":"group"}"#,
        ),
        (
            "PUT",
            "/v1/groups/No%20such",
            r#"{"target":7}"#,
            400,
            r#"{"error":"`No such` is not a name for a group: it has at most 40 of [a-z0-9-] and neither begins nor ends with `-`","field":"group"}"#,
        ),
        (
            "PUT",
            "/v1/groups/default",
            r#"{"target":"7"}"#,
            400,
            r#"{"error":"must be a whole number from 0 to 1000000","field":"target"}"#,
        ),
        (
            "PUT",
            "/v1/groups/default",
            r#"{"target":7,"template":{}}"#,
            400,
            r#"{"error":"is missing","field":"template.spec"}"#,
        ),
        (
            "PUT",
            "/v1/groups/default",
            r#"{"template":{"spec":null}}"#,
            429,
            r#"{"error":"the API server cannot check the template now: it is away"}"#,
        ),
        ("PUT", "/v1/groups/0", r#"{"target":3,"template":{"spec":1}}"#, 200, r#"{"target":3}"#),
        ("DELETE", "/v1/groups/0", "", 200, "{}"),
        (
            "DELETE",
            "/v1/groups/other",
            "",
            404,
            r#"{"error":"there is no such group","field":"group"}"#,
        ),
        ("POST", "/v1/executors/kill", r#"{"executors":[1,2,9],"replace":false}"#, 200, killed),
        (
            "POST",
            "/v1/executors/kill",
            r#"{"executors":[66]}"#,
            400,
            r#"{"error":"not these","field":"executors"}"#,
        ),
        ("POST", "/v1/driver/ready", "", 200, "{}"),
        ("GET", "/healthz", "", 200, "{}"),
        ("GET", "/readyz", "", 503, r#"{"error":"not now"}"#),
    ]);
    fixture.core.ready.store(true, Ordering::Relaxed);
    assert_eq!(fixture.call("GET", "/readyz", "").0, 200);
    fixture.core.full.store(true, Ordering::Relaxed);
    assert_eq!(fixture.call("GET", "/v1/status", "").0, 429);
}

#[test]
fn secret_values_are_stored_before_a_task_is_added() {
    let fixture = Fixture::new();
    fixture.check(&[
        (
            "POST",
            "/v1/groups/default/executors",
            r#"{"executors":[{"key":"t-1","secret_env":{"TOKEN":"s3cr3t"}}]}"#,
            200,
            r#"{"executors":[{"attempts":0,"executor":null,"exit_code":null,"key":"t-1","message":null,"reason":null,"state":"waiting"}]}"#,
        ),
        (
            "POST",
            "/v1/groups/default/executors",
            r#"{"executors":[{"key":"t-1","secret_env":{"TOKEN":"full"}}]}"#,
            400,
            r#"{"error":"the Secret is full","field":"secret_env"}"#,
        ),
        (
            "POST",
            "/v1/groups/default/executors",
            r#"{"executors":[{"key":"t-1","secret_env":{"TOKEN":"away"}}]}"#,
            429,
            r#"{"error":"the server is away","field":"secret_env"}"#,
        ),
        (
            "POST",
            "/v1/groups/default/executors",
            r#"{"executors":[{"key":"t-1","files":{"/etc/a":"full"}}]}"#,
            400,
            r#"{"error":"the Secret is full","field":"files"}"#,
        ),
    ]);
    let asked = format!("{:?}", fixture.core.asked.lock().unwrap());
    assert_eq!(asked.matches("AddTasks").count(), 1, "{asked}");
}

#[test]
fn calls_about_tasks() {
    Fixture::new().check(&[
        (
            "POST",
            "/v1/groups/default/executors",
            r#"{"executors":[{"key":"t-1"}]}"#,
            200,
            r#"{"executors":[{"attempts":0,"executor":null,"exit_code":null,"key":"t-1","message":null,"reason":null,"state":"waiting"}]}"#,
        ),
        (
            "POST",
            "/v1/groups/default/executors",
            r#"{"executors":[{"key":"t-1","retries":7}]}"#,
            409,
            r#"{"error":"the key t-1 was given before with another retries","field":"retries"}"#,
        ),
        (
            "POST",
            "/v1/groups/default/executors",
            r#"{"executors":[{"key":"t-1","retries":8}]}"#,
            429,
            r#"{"error":"too many","field":"executors"}"#,
        ),
        (
            "DELETE",
            "/v1/groups/default/executors/a",
            "",
            200,
            r#"{"attempts":0,"executor":null,"exit_code":null,"key":"a","message":null,"reason":null,"state":"waiting"}"#,
        ),
        (
            "DELETE",
            "/v1/groups/d%65fault/executors/%61",
            "",
            200,
            r#"{"attempts":0,"executor":null,"exit_code":null,"key":"a","message":null,"reason":null,"state":"waiting"}"#,
        ),
        (
            "POST",
            "/v1/groups/default/executors/a",
            "",
            200,
            r#"{"attempts":0,"executor":null,"exit_code":null,"key":"a","message":null,"reason":null,"state":"waiting"}"#,
        ),
        (
            "GET",
            "/v1/groups/default/executors/b",
            "",
            404,
            r#"{"error":"the group has no task with this key","field":"key"}"#,
        ),
    ]);
}

#[test]
fn unknown_paths_and_wrong_methods() {
    let no_call = r#"{"error":"there is no such call"}"#;
    let no_method = r#"{"error":"wrong method for this call"}"#;
    Fixture::new().check(&[
        ("GET", "/", "", 404, no_call),
        ("GET", "/v1/status/", "", 404, no_call),
        ("GET", "/v2/status", "", 404, no_call),
        ("POST", "/v1/status", "", 405, no_method),
        ("DELETE", "/v1/events", "", 405, no_method),
        ("GET", "/v1/groups/default", "", 405, no_method),
        ("GET", "/v1/executors/kill", "", 405, no_method),
        ("PUT", "/v1/driver/ready", "", 405, no_method),
        ("GET", "/v1/executors/idle", "", 405, no_method),
        ("PUT", "/v1/executors/1/disconnected", "", 405, no_method),
        ("POST", "/v1/executors/1", "", 404, no_call),
    ]);
}

#[test]
fn driver_reports_about_executors() {
    let fixture = Fixture::new();
    for (call, known) in
        [("/v1/executors/heartbeat", "executors, memory"), ("/v1/executors/idle", "executors")]
    {
        let unknown =
            format!(r#"{{"error":"unknown field, expected one of {known}","field":"force"}}"#);
        fixture.check(&[
            ("POST", call, r#"{"executors":[2,9,1,9]}"#, 200, r#"{"unknown":[9]}"#),
            ("POST", call, r#"{"executors":[]}"#, 200, r#"{"unknown":[]}"#),
            ("POST", call, "{}", 400, r#"{"error":"is missing","field":"executors"}"#),
            ("POST", call, r#"{"executors":[1],"force":true}"#, 400, &unknown),
        ]);
    }
    let no_id = r#"{"error":"must be an executor id: a whole number from 1","field":"executor"}"#;
    let unknown = r#"{"error":"there is no such executor","field":"executor"}"#;
    fixture.check(&[
        ("POST", "/v1/executors/2/disconnected", "", 200, "{}"),
        ("POST", "/v1/executors/3/disconnected", "", 404, unknown),
        ("POST", "/v1/executors/0/disconnected", "", 400, no_id),
        ("POST", "/v1/executors/-1/disconnected", "", 400, no_id),
    ]);
}

#[test]
fn events_are_read_from_a_number_of_a_run() {
    let fixture = Fixture::new();
    fixture.events.push("{\"seq\":1}\n");
    fixture.events.push("{\"seq\":2}\n");
    fixture.check(&[
        ("GET", "/v1/events", "", 200, "{\"seq\":1}\n{\"seq\":2}\n"),
        ("GET", "/v1/events?after=1&run=k3f9&follow=false", "", 200, "{\"seq\":2}\n"),
        ("GET", "/v1/events?after=2", "", 200, ""),
        ("HEAD", "/v1/events?follow=true", "", 200, ""),
        (
            "GET",
            "/v1/events?after=3",
            "",
            409,
            r#"{"error":"the newest event is 2: start again from event 0","field":"after"}"#,
        ),
        (
            "GET",
            "/v1/events?run=other",
            "",
            409,
            r#"{"error":"this is run k3f9, and events of earlier runs are gone: start again from event 0","field":"run"}"#,
        ),
        (
            "GET",
            "/v1/events?after=-1",
            "",
            400,
            r#"{"error":"must be a whole number","field":"after"}"#,
        ),
        (
            "GET",
            "/v1/events?follow=yes",
            "",
            400,
            r#"{"error":"must be true or false","field":"follow"}"#,
        ),
    ]);
}

#[test]
fn commands_reach_the_reconciler() {
    let fixture = Fixture::new();
    let client = fixture.client();
    let ids: BTreeSet<ExecutorId> = [ExecutorId(1), ExecutorId(2)].into();
    assert_eq!(client.scale("default", 70).unwrap(), 20);
    let answer = client.kill(&ids, AfterKill::Target(3), true, Some("slow")).unwrap();
    let want = Killed { killed: vec![1], busy: vec![2], unknown: vec![9], target: Some(4) };
    assert_eq!(answer, want);
    assert_eq!(client.status().unwrap().identity, identity());
    let asked = std::mem::take(&mut *fixture.core.asked.lock().unwrap());
    let want = [
        Command::Group(GroupName::from("default"), GroupCommand::SetTarget { target: 70 }),
        Command::Kill {
            executors: ids,
            after: AfterKill::Target(3),
            force: true,
            is_silent: false,
            reason: Some("slow".into()),
        },
        Command::Status,
    ];
    assert_eq!(asked, want);

    let error = client.scale("other", 1).expect_err("no such group");
    assert_eq!(error.to_string(), "refused: group: there is no such group (404)");
}

#[test]
fn events_are_followed_line_by_line_to_their_end() {
    let fixture = Fixture::new();
    fixture.events.push("{\"event\":\"started\"}\n");
    let mut seen = Vec::new();
    let events = Arc::clone(&fixture.events);
    fixture
        .client()
        .events(0, Some("k3f9"), true, &mut |line| {
            // The next line is pushed when the line before has arrived.
            seen.push(line.to_owned());
            match seen.len() {
                1 => events.push("{\"event\":\"stopping\"}\n"),
                2 => events.push("{\"event\":\"stopped\"}\n"),
                _ => events.end(),
            }
            Ok(())
        })
        .unwrap();
    let want = [r#"{"event":"started"}"#, r#"{"event":"stopping"}"#, r#"{"event":"stopped"}"#];
    assert_eq!(seen, want);
}

#[test]
fn the_last_event_reaches_its_followers_before_the_end() {
    let mut fixture = Fixture::new();
    fixture.events.push("{\"event\":\"started\"}\n");
    let client = fixture.client();
    let (mut server, events) = (fixture.server.take(), Arc::clone(&fixture.events));
    let (mut stop, mut last) = (None, String::new());
    client
        .events(0, None, true, &mut |line| {
            last = line.to_owned();
            if let Some(server) = server.take() {
                events.push("{\"event\":\"stopped\"}\n");
                events.end();
                stop = Some(std::thread::spawn(move || server.stop()));
            }
            Ok(())
        })
        .unwrap();
    assert_eq!(last, r#"{"event":"stopped"}"#);
    stop.expect("the stop was started").join().unwrap();
}

#[test]
fn a_cut_connection_is_an_error_for_a_follower() {
    let mut fixture = Fixture::new();
    fixture.events.push("{\"event\":\"started\"}\n");
    let client = fixture.client();
    let mut server = fixture.server.take();
    let start = Instant::now();
    let mut failed_stop = None;
    let followed = client.events(0, None, true, &mut |_| {
        // The server stops although the events have not ended, so the connection is cut.
        let server = server.take().expect("there is only one line");
        failed_stop = Some(std::thread::spawn(move || server.stop()));
        Ok(())
    });
    assert!(matches!(followed, Err(ClientError::Unreachable { .. })), "{followed:?}");
    failed_stop.unwrap().join().unwrap();
    assert!(start.elapsed() < PATIENCE / 2, "{:?}", start.elapsed());
    let error = client.status().expect_err("the run is gone").to_string();
    assert!(error.contains("does not answer"), "{error}");
}

#[test]
fn followers_cannot_use_all_connections() {
    let fixture = Fixture::new();
    fixture.events.push("{}\n");
    let Some(ControlAddr::Unix(socket)) = fixture.server.as_ref().map(|s| s.address().clone())
    else {
        panic!("a unix socket");
    };
    let followers: Vec<_> = (0..128)
        .map(|_| {
            let mut stream = std::os::unix::net::UnixStream::connect(&socket).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream.write_all(b"GET /v1/events?follow=true HTTP/1.0\r\n\r\n").unwrap();
            stream.read_exact(&mut [0; 20]).unwrap();
            stream
        })
        .collect();
    assert_eq!(fixture.call("GET", "/v1/events", "").0, 429);
    assert_eq!(fixture.call("GET", "/v1/status", "").0, 200);
    drop(followers);
    let mut wait = Wait::new("the permits to be released", PATIENCE);
    while fixture.call("GET", "/v1/events", "").0 != 200 {
        assert!(wait.goes_on(), "the permits were not released");
    }
}

#[test]
fn a_run_is_found_by_its_socket() {
    let fixture = Fixture::new();
    let find = |app: Option<&str>, folders: Vec<PathBuf>| {
        let selector =
            RunSelector { app: app.map(str::to_owned), folders, ..RunSelector::default() };
        Client::find(&selector).map(|_| ()).map_err(|error| error.to_string())
    };
    let here = || vec![fixture.folder.path().to_owned()];
    assert_eq!(find(None, here()), Ok(()));
    let error = find(Some("other"), here()).expect_err("not this one");
    assert!(error.contains("no live run of application other"), "{error}");
    let second = bind_default("w", "zzzzz", &[fixture.folder.path().to_owned()]).unwrap();
    let error = find(Some("w"), here()).expect_err("two of them");
    assert!(error.contains("w.a1b2c.sock") && error.contains("w.zzzzz.sock"), "{error}");
    let facts = format!(" old, in {})", std::env::current_dir().unwrap().display());
    assert_eq!(error.matches(&facts).count(), 2, "{error}");
    drop(second);
    assert_eq!(find(Some("w"), here()), Ok(()));
}

#[test]
fn several_runs_are_told_apart_by_the_shortest_flag() {
    let several = |names: &[&str]| {
        let run = |name: &&str| LiveRun {
            socket: format!("/run/posse/{name}.sock").into(),
            age_s: Some(200),
            folder: Some("/home/me".into()),
        };
        ClientError::Several { runs: names.iter().map(run).collect() }.to_string()
    };
    assert_eq!(
        several(&["a.k3f9x", "b.k3f9y"]),
        "several live runs, choose one with --app: a (3m20s old, in /home/me), b (3m20s old, in \
         /home/me)"
    );
    let of_one = several(&["a.k3f9x", "a.k3f9y"]);
    let first = "--control unix:PATH: /run/posse/a.k3f9x.sock (3m20s old, in /home/me), ";
    assert!(of_one.contains(first), "{of_one}");
}
