//! Accepted values of posse.yaml, and the text of every error.

use serde_json::json;

use super::*;
use crate::pod::build::PodSettings;
use crate::pod::memory::MemoryScaling;
use crate::pod::template::Shorthands;
use posse_base::rng::Rng;
use posse_core::model::settings::{BadNodes, GroupSpec, Replace, ScaleDown};

const FULL: &str = include_str!("../../../../fixtures/config/full.yaml");
const FULL_JSON: &str = include_str!("../../../../fixtures/config/full.json");

#[test]
fn the_documented_example_contains_the_defaults() {
    let config = Config::parse("posse.yaml", FULL).unwrap();
    let want = Config {
        app: Some("wordcount".to_owned()),
        namespace: Some("analytics".to_owned()),
        driver: Driver {
            command: vec!["python".to_owned(), "driver.py".to_owned()],
            host: Some("10.1.2.3".to_owned()),
            ..Driver::default()
        },
        executors: vec![Group {
            spec: GroupSpec { target: 10, ..Group::default().spec },
            source: PodSource::File("executor.yaml".to_owned()),
            pod: PodSettings { container: Some("worker".to_owned()), ..PodSettings::default() },
            shorthands: Shorthands { image: Some("...".to_owned()), ..Shorthands::default() },
            ..Group::default()
        }],
        control: Control::At(ControlAddr::Unix("PATH".into())),
        metrics: Metrics::Off,
        log_lines: Some(0),
        ..Config::default()
    };
    assert_eq!(config, want);
    assert_eq!(Config::parse("posse.json", FULL_JSON).unwrap(), want);
}

#[test]
fn an_empty_file_gives_the_defaults() {
    for text in ["", "# nothing", "{}", "executors: []", "executors:", "allocation:\nqueue:"] {
        assert_eq!(Config::parse("posse.yaml", text).unwrap(), Config::default(), "{text:?}");
    }
}

#[test]
fn every_value_is_read() {
    let text = "
driver: {ready: 'tcp:7077'}
executors:
  - {group: a, image: x, min: 3}
  - group: b
    count: 4
    min: 1
    max: 9
    scale_down: pending
    replace: gone
    pod: {spec: {containers: [{name: c}]}}
    command: [run, 1, 1.10, on]
    args: []
    env: {A: 1.10, B: '', C: off}
    cpu: 1.50
    memory: 512Mi
    resources: {limits: {nvidia.com/gpu: 1}}
  - group: c
    image: x
    env: [{name: A, value: 1}, {name: B}, {name: C, valueFrom: {fieldRef: {fieldPath: x}}}]
allocation: {in_flight_max: 0, pending_max: 1, poll_interval: 0, start_timeout: 0}
bad_nodes: off
failures: {app: 7, cluster: auto, start: 0, window: 2m, keep_failed: 0, log_lines: 200}
lease: false
exclusive: true
shutdown: {grace: 1s, timeout: 2s}
control: off";
    let config = Config::parse("posse.yaml", text).unwrap();
    let [a, b, c] = config.executors.as_slice() else { panic!("three groups") };
    assert_eq!((a.spec.target, a.spec.min, a.spec.max), (3, 3, None), "no count: at least min");
    assert_eq!((b.spec.target, b.spec.min, b.spec.max), (4, 1, Some(9)));
    assert_eq!((b.spec.scale_down, b.spec.replace), (ScaleDown::Pending, Replace::Gone));
    assert_eq!(b.source, PodSource::Inline(json!({ "spec": { "containers": [{ "name": "c" }] } })));
    let want = Shorthands {
        image: None,
        command: Some(["run", "1", "1.10", "on"].map(str::to_owned).to_vec()),
        args: Some(Vec::new()),
        env: vec![
            json!({ "name": "A", "value": "1.10" }),
            json!({ "name": "B", "value": "" }),
            json!({ "name": "C", "value": "off" }),
        ],
        cpu: Some("1.50".to_owned()),
        memory: Some("512Mi".to_owned()),
        resources: Some(json!({ "limits": { "nvidia.com/gpu": 1 } })),
    };
    assert_eq!(b.shorthands, want);
    assert_eq!(
        c.shorthands.env,
        [
            json!({ "name": "A", "value": "1" }),
            json!({ "name": "B", "value": "" }),
            json!({ "name": "C", "valueFrom": { "fieldRef": { "fieldPath": "x" } } }),
        ]
    );
    assert_eq!(config.policy, every_policy());
    assert_eq!((config.poll_interval_ms, config.exclusive), (0, Some(true)));
    assert_eq!((config.grace_ms, config.lease), (1_000, false));
    assert_eq!((config.driver.ready, config.control), (Ready::Tcp(Some(7077)), Control::Off));
}

#[test]
fn every_value_of_the_drivers_pod_is_read() {
    let text = "
driver:
  command: [python, driver.py]
  args: [--fast]
  kind: job
  keep_executors: true
  image: my/driver:1
  env: {A: b}
  cpu: 1
  memory: 2Gi
  template: driver.yaml
  container: main
  posse_image: posse:1
  standby: 1
  retries: 7
  deadline: 2h";
    let driver = Config::parse("posse.yaml", text).unwrap().driver;
    assert_eq!(driver.command, ["python", "driver.py", "--fast"]);
    assert_eq!(driver.keep_executors, Some(true));
    let want = DriverPod {
        kind: DriverKind::Job,
        source: PodSource::File("driver.yaml".to_owned()),
        container: Some("main".to_owned()),
        shorthands: Shorthands {
            image: Some("my/driver:1".to_owned()),
            env: vec![json!({ "name": "A", "value": "b" })],
            cpu: Some("1".to_owned()),
            memory: Some("2Gi".to_owned()),
            ..Shorthands::default()
        },
        posse_image: Some(PosseImage::Copied("posse:1".to_owned())),
        standby: 1,
        retries: 7,
        deadline_ms: 7_200_000,
    };
    assert_eq!(driver.pod, want);
    let mounted = "driver: {posse_image: 'volume:posse:1'}";
    let mounted = Config::parse("posse.yaml", mounted).unwrap().driver.pod;
    assert_eq!(mounted.posse_image, Some(PosseImage::Mounted("posse:1".to_owned())));
    for none in ["volume:", "volume: a"] {
        let error = Config::parse("f", &format!("driver: {{posse_image: '{none}'}}")).unwrap_err();
        let want = format!("driver.posse_image: expected IMAGE or volume:IMAGE, found `{none}`");
        assert_eq!(error.message, want);
    }
    let bare = Config::parse("posse.yaml", "driver: {kind: pod}").unwrap().driver.pod;
    assert_eq!(bare.kind, DriverKind::Pod);
}

fn every_policy() -> Policy {
    Policy {
        in_flight_max: IN_FLIGHT_LIMIT,
        pending_max: 1,
        start_timeout_ms: 0,
        bad_nodes: BadNodes { losses: 0, ..BadNodes::default() },
        failures_app: Limit::Max(7),
        failures_cluster: Limit::Auto,
        failures_start: Limit::Max(0),
        failures_window_ms: 120_000,
        keep_failed: 0,
        log_lines: 200,
        stop_timeout_ms: 2_000,
        ..Policy::default()
    }
}

#[test]
fn the_timeouts_of_driver_reports_are_read() {
    let text = "driver: {silence: 90s}\nheartbeat: {timeout: 5m}";
    let policy = Config::parse("posse.yaml", text).unwrap().policy;
    assert_eq!((policy.driver_silence_ms, policy.heartbeat_timeout_ms), (90_000, 300_000));
}

/// One error: the text, and the beginning of the message.
#[track_caller]
pub(crate) fn fails(text: &str, want: &str) {
    match Config::parse("posse.yaml", text) {
        Ok(config) => panic!("{text:?} was taken: {config:?}"),
        Err(error) => {
            let got = error.to_string();
            let want = format!("posse.yaml:{want}");
            assert!(got.starts_with(&want), "{text:?}\n got: {got}\nwant: {want}");
        }
    }
}

#[test]
fn unknown_keys_are_errors_that_list_the_known_ones() {
    fails(
        "app: a\nexecuters: []",
        "2:1: executers: unknown key (did you mean `executors`?); known here: allocation, annotations, app, ",
    );
    fails("driver:\n  cmd: x", "2:3: driver.cmd: unknown key; known here: args, command, ");
    fails(
        "executors:\n- group: a\n  cuont: 1",
        "3:3: executors[0].cuont: unknown key (did you mean `count`?); known here: args, ",
    );
    fails("allocation: {x: 1}", "1:14: allocation.x: unknown key; known here: in_flight_max, ");
    fails("failures: {x: 1}", "1:12: failures.x: unknown key; known here: app, cluster, ");
    fails("heartbeat: {x: 1}", "1:13: heartbeat.x: unknown key; known here: timeout");
    fails(
        "shutdown: {x: 1}",
        "1:12: shutdown.x: unknown key; known here: grace, idle_end, timeout",
    );
    fails(
        "executors: [{image: x, env: [{name: A, vlaue: x}]}]",
        "1:40: executors[0].env[0].vlaue: unknown key (did you mean `value`?); known here: name, value, valueFrom",
    );
}

#[test]
fn errors_about_types_name_the_expected_type() {
    fails("[]", "1:1: the file: expected a map, found a list");
    fails("text", "1:1: the file: expected a map, found `text`");
    fails("app: [a]", "1:6: app: expected a text, found a list");
    fails("app: ''", "1:6: app: is empty; leave the key out instead");
    fails("driver: x", "1:9: driver: expected a map, found `x`");
    fails("driver: {command: run it}", "1:19: driver.command: expected a list, found `run it`");
    fails("driver: {command: [a, {}]}", "1:23: driver.command[1]: expected a text, found a map");
    fails("driver: {command: [a, ~]}", "1:23: driver.command[1]: expected a text, found nothing");
    fails("executors: {}", "1:12: executors: expected a list, found a map");
    fails("executors: [x]", "1:13: executors[0]: expected a map, found `x`");
    for wrong in ["ten", "-1", "1.5", "4000000000", "1000001", "'1'", "[1]"] {
        let text = format!("executors: [{{count: {wrong}}}]");
        fails(&text, "1:21: executors[0].count: expected a whole number from 0 to 1000000, found ");
    }
    fails("executors: [{pod: x}]", "1:19: executors[0].pod: expected a map, found `x`");
    fails(
        "executors: [{env: x}]",
        "1:19: executors[0].env: expected a map of NAME: value, or a list",
    );
    fails(
        "executors: [{env: {A: ~}}]",
        "1:20: executors[0].env.A: expected a text (\"\" for none), found nothing",
    );
    for (env, place) in [
        ("{'A=B': x}", "1:19: executors[0].env"),
        ("[{name: A=B}]", "1:27: executors[0].env[0].name"),
    ] {
        let want = format!("{place}: `A=B` is not the name of a variable");
        fails(&format!("executors: [{{env: {env}}}]"), &want);
    }
    fails("executors: [{env: [{value: x}]}]", "1:20: executors[0].env[0].name: is missing");
    fails(
        "executors: [{env: [{name: A, value: x, valueFrom: {}}]}]",
        "1:37: executors[0].env[0].value: give either value or valueFrom",
    );
    fails("lease: maybe", "1:8: lease: expected true or false, found `maybe`");
    fails("shutdown: {grace: 5}", "1:19: shutdown.grace: expected a duration like `90s`, ");
    fails(
        "shutdown: {grace: 1001d}",
        "1:19: shutdown.grace: expected a duration like `90s`, `5m`, `1h`, `1d`, `1m30s` or `250ms`, of at most 1000d, found `1001d`",
    );
    fails("a: [", "1:4: unclosed bracket");
    fails("app: a\napp: b", "2:1: duplicate mapping key: app");
    fails("app: a\n---\napp: b", "2:1: contains several documents; exactly one is expected");
}

#[test]
fn errors_about_values_name_the_allowed_values() {
    fails(
        "app: Foo",
        "1:6: app: `Foo` is not a name for an application: it has at most 40 of [a-z0-9-]",
    );
    fails("app: 1a", "1:6: app: `1a` is not a name for an application");
    fails("namespace: a.b", "1:12: namespace: `a.b` is not a namespace");
    for host in ["a b", "host:80", "fe80::1%eth0", "[a]"] {
        let error = format!("1:16: driver.host: `{host}` is not a host name or an address");
        fails(&format!("driver: {{host: '{host}'}}"), &error);
    }
    fails(
        "driver: {ready: 'tcp:'}",
        "1:17: driver.ready: expected none, control, socket, tcp, tcp:PORT, http:PORT/PATH or file:PATH, found `tcp:`",
    );
    for wrong in [
        "tcp:0",
        "socket:",
        "http",
        "http:",
        "http:/a b",
        "http:80/a b",
        "http:0/",
        "file:",
        "none:1",
        "control:2",
        "udp:1",
    ] {
        fails(
            &format!("driver: {{ready: '{wrong}'}}"),
            "1:17: driver.ready: expected none, control",
        );
    }
    fails("executors: [{group: A}]", "1:21: executors[0].group: `A` is not a name for a group");
    fails(
        "executors:\n- group: a\n- group: a",
        "3:10: executors[1].group: `a` is already the name of executors[0]; each group needs",
    );
    fails(
        "executors: [{}, {}]",
        "1:17: executors[1].group: `default` is already the name of executors[0]",
    );
    fails(
        "executors: [{count: 1, min: 2}]",
        "1:21: executors[0].count: 1 is below min, which is 2",
    );
    fails(
        "executors: [{count: 3, max: 2}]",
        "1:21: executors[0].count: 3 is above max, which is 2",
    );
    fails("executors: [{min: 3, max: 2}]", "1:13: executors[0].count: 3 is above max, which is 2");
    fails(
        "executors: [{template: x, pod: {}}]",
        "1:32: executors[0].pod: give either pod or template",
    );
}

#[test]
fn a_driver_has_a_port_of_its_own_or_one_that_posse_chooses() {
    let driver = |text: &str| Config::parse("posse.yaml", text).unwrap().driver;
    assert_eq!(driver("driver: {}").port, None);
    assert_eq!(driver("driver: {port: auto}").port, Some(PortChoice::Auto));
    assert_eq!(driver("driver: {port: 65535}").port, Some(PortChoice::Number(65_535)));
    assert_eq!(driver("driver: {ready: tcp}").ready, Ready::Tcp(None));
    assert_eq!(driver("driver: {ready: socket}").ready, Ready::Socket);
    assert_eq!(driver("driver: {ready: 'http:/a'}").ready, Ready::Http(None, "/a".to_owned()));
    for (wrong, found) in [("0", "0"), ("65536", "65536"), ("any", "any"), ("-1", "-1")] {
        fails(
            &format!("driver: {{port: {wrong}}}"),
            &format!("1:16: driver.port: expected auto or 1 to 65535, found `{found}`"),
        );
    }
}

#[test]
fn errors_about_driver_keys_name_the_allowed_values() {
    for (driver, want) in [
        ("{kind: pod, retries: 1}", "driver.retries: a bare pod is not retried"),
        ("{kind: pod, standby: 1}", "driver.standby: a bare pod has no successor"),
        ("{standby: 3}", "driver.standby: expected a whole number from 0 to 2"),
        ("{standby: -1}", "driver.standby: expected a whole number from 0 to 2"),
        ("{standby: yes}", "driver.standby: expected a whole number from 0 to 2"),
        (
            "{standby: 1}\nexclusive: false",
            "driver.standby: needs the application's Lease: leave out `exclusive: false`",
        ),
        (
            "{standby: 1}\nlease: false",
            "driver.standby: needs the application's Lease: leave out `lease: false`",
        ),
        ("{args: [a]}", "driver.args: needs driver.command"),
        ("{template: a, pod: {}}", "driver.pod: give either pod or template"),
    ] {
        let said = Config::parse("posse.yaml", &format!("driver: {driver}")).unwrap_err();
        assert!(said.at.line == 1 && said.to_string().contains(want), "{driver}: {said}");
    }
}

#[test]
fn settings_that_exclude_stable_slots_are_errors_that_say_what_to_write() {
    for (group, want) in [
        (
            "slots: stable, replace: terminating",
            "1:38: executors[0].replace: excludes `slots: stable`: a replacement gets the slot of the \
             lost executor, so it must wait until that one has ended; leave `replace` out, or write \
             `replace: gone`",
        ),
        (
            "slots: stable, scale_down: pending",
            "1:41: executors[0].scale_down: excludes `slots: stable`: a lower target ends the executors \
             with the highest slots, also if they run; leave `scale_down` out",
        ),
        (
            "slots: stable, restart: never",
            "1:38: executors[0].restart: excludes `slots: stable`: without `completions` each executor \
             that completes lowers the target, which ends the one with the highest slot; write \
             `completions: N`",
        ),
        (
            "on_loss: group, slots: lowest",
            "1:37: executors[0].slots: excludes `on_loss: group`: the next attempt has the slots of the \
             one before; leave `slots` out",
        ),
        (
            "on_loss: group, completions: 2, restart: never",
            "1:55: executors[0].restart: excludes `on_loss: group`: a failed executor is not given up; \
             write `restart: on-failure`",
        ),
    ] {
        fails(&format!("executors: [{{{group}}}]"), want);
    }
    for group in [
        "slots: stable, replace: gone, scale_down: any, restart: always",
        "slots: lowest, replace: terminating, scale_down: pending",
        "on_loss: group, slots: stable, restart: on-failure, completions: 4",
    ] {
        let text = format!("executors: [{{{group}, image: x}}]");
        assert!(Config::parse("posse.yaml", &text).is_ok(), "{group}");
    }
}

#[test]
fn errors_about_words_and_amounts_name_the_allowed_values() {
    fails(
        "executors: [{scale_down: all}]",
        "1:26: executors[0].scale_down: expected any or pending, found `all`",
    );
    fails(
        "executors: [{resources: {limit: {}}}]",
        "1:26: executors[0].resources.limit: unknown key",
    );
    fails(
        "executors: [{resources: {limits: {cpu: two}}}]",
        "1:35: executors[0].resources.limits.cpu: expected an amount like 1 or 4Gi",
    );
    for wrong in ["1", "11", "1.01", "more", "-2", "[2]"] {
        fails(
            &format!("executors: [{{oom_growth: {wrong}, memory_max: 1Gi}}]"),
            "1:26: executors[0].oom_growth: expected a factor from 1.05 to 10, like 1.25",
        );
    }
    fails(
        "executors: [{oom_growth: {grow_at: 0.4}, memory_max: 1Gi}]",
        "1:36: executors[0].oom_growth.grow_at: expected a part of the limit from 0.5 to 1, like 0.9",
    );
    fails(
        "executors: [{oom_growth: {factor: 1}, memory_max: 1Gi}]",
        "1:35: executors[0].oom_growth.factor: expected a factor from 1.05 to 10, like 1.25",
    );
    fails(
        "executors: [{oom_growth: 1.5}]",
        "1:13: executors[0].memory_max: is missing; oom_growth needs an upper limit",
    );
    fails(
        "executors: [{memory_max: 1Gi}]",
        "1:26: executors[0].memory_max: does nothing without oom_growth",
    );
    fails(
        "executors: [{oom_growth: 2, memory_max: big}]",
        "1:41: executors[0].memory_max: expected an amount of memory like 512Mi or 2Gi",
    );
}

#[test]
fn errors_about_nodes_and_limits_name_the_allowed_values() {
    fails("bad_nodes: on", "1:12: bad_nodes: expected off, found `on`");
    fails("bad_nodes: {}", "1:12: bad_nodes: expected off, found a map");
    fails(
        "executors: [{cpu: 2x}]",
        "1:19: executors[0].cpu: expected a number of CPUs like 2, 0.5 or 500m, found `2x`",
    );
    fails(
        "executors: [{memory: 512m}]",
        "1:22: executors[0].memory: expected an amount of memory like 512Mi or 2Gi, found \
         `512m`; did you mean 512Mi",
    );
    fails("executors: [{memory: lots}]", "1:22: executors[0].memory: expected an amount of memory");
    fails(
        "failures: {log_lines: 201}",
        "1:23: failures.log_lines: 201 is above 200, the most that is supported",
    );
    fails(
        "allocation: {in_flight_max: 257}",
        "1:29: allocation.in_flight_max: 257 is above 256, the most",
    );
    fails(
        "failures: {app: true}",
        "1:17: failures.app: expected auto, off or a whole number, found `true`",
    );
    fails("failures: {window: 0s}", "1:20: failures.window: must be longer than 0s");
    fails("control: 0.0.0.0:80", "1:10: control: `0.0.0.0:80` is not a loopback address");
    fails("control: on", "1:10: control: expected unix:PATH or a loopback HOST:PORT, found `on`");
}

#[test]
fn metrics_are_off_or_at_an_address() {
    let metrics = |text: &str| Config::parse("posse.yaml", text).unwrap().metrics;
    assert_eq!(metrics("app: a"), Metrics::Default);
    assert_eq!((metrics("metrics: off"), metrics("metrics: false")), (Metrics::Off, Metrics::Off));
    assert_eq!(metrics("metrics: :9760"), Metrics::At(ListenAddr::All(9760)));
    let loopback = ListenAddr::parse("127.0.0.1:9760").unwrap();
    assert_eq!(metrics("metrics: 127.0.0.1:9760"), Metrics::At(loopback));
    for (text, want) in [
        ("metrics: 9760", "1:10: metrics: expected HOST:PORT with an IP address, or :PORT, or off"),
        ("metrics: on", "1:10: metrics: expected HOST:PORT with an IP address, or :PORT, or off"),
        ("metrics: [1]", "1:10: metrics: expected HOST:PORT, :PORT or off, found"),
    ] {
        let error = Config::parse("posse.yaml", text).unwrap_err().to_string();
        assert!(error.contains(want), "{error}");
    }
}

#[test]
fn no_text_causes_a_panic() {
    const ROUNDS: u64 = 4_000;
    let mut taken = 0;
    for seed in 0..ROUNDS {
        let text = mangled(FULL, seed);
        match Config::parse("posse.yaml", &text) {
            Ok(_) => taken += 1,
            Err(error) => assert!(error.to_string().starts_with("posse.yaml"), "seed {seed}"),
        }
    }
    assert!((1..ROUNDS).contains(&taken), "{taken} of {ROUNDS} were taken: it mangles nothing");
}

/// The text with a few bytes or pieces changed.
pub(crate) fn mangled(text: &str, seed: u64) -> String {
    const SPICES: &[u8] = b"{}[]:,-#&*!|>'\"%@`\n\t \\\0?<=~019ae\xff\xc3";
    let mut rng = Rng::new(seed);
    let mut bytes = text.as_bytes().to_vec();
    for _ in 0..=rng.below(4) {
        let below = |rng: &mut Rng, n: usize| usize::try_from(rng.below(n as u64)).unwrap();
        let at = below(&mut rng, bytes.len().max(1));
        let end = (at + below(&mut rng, 40)).min(bytes.len());
        match rng.below(4) {
            0 => bytes.insert(at, SPICES[below(&mut rng, SPICES.len())]),
            1 => drop(bytes.drain(at..end)),
            2 => {
                let stretch = bytes[at..end].to_vec();
                let to = below(&mut rng, bytes.len());
                bytes.splice(to..to, stretch);
            }
            _ => bytes[at] = SPICES[below(&mut rng, SPICES.len())],
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[test]
fn the_growth_of_memory_and_the_age_are_read() {
    let text = "
executors:
  - {group: a, image: x, oom_growth: 1.25, memory_max: 2Gi, max_age: 1500ms}
  - {group: b, image: x, oom_growth: {grow_at: 0.9}, memory_max: 1Gi}
";
    let config = Config::parse("posse.yaml", text).unwrap();
    let [a, b] = config.executors.as_slice() else { panic!("two groups") };
    let scaling = |max: &str, grow_at_permille| {
        Some(MemoryScaling { permille: 1_250, max: max.to_owned(), grow_at_permille })
    };
    assert_eq!(a.pod.memory_scaling, scaling("2Gi", None));
    assert_eq!(b.pod.memory_scaling, scaling("1Gi", Some(900)));
    assert_eq!((a.pod.max_age_s, b.pod.max_age_s), (Some(2), None), "whole seconds, never less");
}

#[test]
fn bad_nodes_can_be_off() {
    let losses = |text: &str| Config::parse("posse.yaml", text).unwrap().policy.bad_nodes.losses;
    for (text, want) in [("bad_nodes: off", 0), ("bad_nodes: false", 0), ("", 3)] {
        assert_eq!(losses(text), want, "{text}");
    }
}
