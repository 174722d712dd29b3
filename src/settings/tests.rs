//! Settings from flags and file, and the message of each error in them.

use std::collections::BTreeMap;

use clap::Parser as _;

use super::*;
use crate::args::{Command, CommandLine};
use crate::testing::Folder;
use posse_core::model::ids::GroupName;
use posse_core::model::pod_text::PodOverrides;
use posse_core::model::settings::{Limit, Policy};
use posse_run::random::random_bits;
use posse_run::run::settings::RunIdentity;

const FULL: &str = include_str!("../../fixtures/config/full.yaml");
const EXECUTOR: &str = include_str!("../../fixtures/config/executor.yaml");
const TWO: &str = "app: a\nexecutors: [{group: x, image: i}, {group: y, image: i}]";

/// The settings of `posse run ARGS` in a folder with these files.
fn settings(
    files: &[(&str, &str)],
    args: &str,
    env: &[(&str, &str)],
) -> Result<RunSettings, Failure> {
    let folder = Folder::new(files);
    let line = ["posse", "run"].into_iter().chain(args.split_whitespace());
    let Command::Run(args) = CommandLine::try_parse_from(line).unwrap().command else {
        panic!("not `posse run`")
    };
    let env: BTreeMap<&str, &str> = env.iter().copied().collect();
    let lookup = |name: &str| env.get(name).map(|value| (*value).to_owned());
    let settings = run_settings(&args, &World::new(&lookup, folder.path()));
    // The folder is temporary: show the path inside it.
    settings.map(|mut settings| {
        if let Some(EventTarget::File(path)) = &mut settings.events {
            *path = path.strip_prefix(folder.path()).unwrap().to_owned();
        }
        settings
    })
}

fn identity() -> RunIdentity {
    RunIdentity {
        instance: "k3f9x".to_owned(),
        namespace: "n".to_owned(),
        owner: None,
        instance_owner: None,
        controller: None,
        driver_host: "h".to_owned(),
        driver_port: None,
    }
}

fn pod(settings: &RunSettings, group: usize) -> serde_json::Value {
    let group = &settings.groups[group];
    let compiled = group.template.compile(&settings.identity(Some(group), &identity())).unwrap();
    serde_json::from_slice(&compiled.render(1, 0, &PodOverrides::default())).unwrap()
}

#[test]
fn the_example_file_becomes_settings() {
    let files = [("posse.yaml", FULL), ("executor.yaml", EXECUTOR)];
    let got = settings(&files, "", &[]).unwrap();
    assert_eq!((got.app.as_str(), got.namespace.as_deref()), ("wordcount", Some("analytics")));
    assert_eq!(got.policy, Policy::default());
    assert_eq!((got.poll_interval_ms, got.lease), (300_000, true));
    assert_eq!(got.grace_ms, 15_000);
    assert_eq!((got.instance.clone(), got.events.clone(), got.keep), (None, None, false));
    let [group] = got.groups.as_slice() else { panic!("one group") };
    let want =
        GroupSpec { target: 10, from_file: true, ..GroupSpec::bare(GroupName::from("default")) };
    assert_eq!(group.spec, want);
    let pod = pod(&got, 0);
    assert_eq!(pod["spec"]["containers"][0]["image"], "proxy:1");
    assert_eq!(pod["spec"]["containers"][1]["image"], "...");
    assert_eq!(pod["metadata"]["annotations"]["posse.dev/container"], "worker");
    assert_eq!(pod["metadata"]["name"], "wordcount-k3f9x-exec-1");
}

#[test]
fn flags_win_over_the_file() {
    let file = "app: a\nnamespace: n\ndriver: {command: [old], host: h}\n\
                failures: {app: 3}\nexecutors: [{count: 1, max: 9, image: i}]";
    let files = [("etc/p.yaml", file), ("t.yaml", EXECUTOR), ("token", "x")];
    let args = "-f etc/p.yaml --app b --namespace m --instance k --executors 7 --image new \
                --template t.yaml --kubeconfig k.conf --context c --events e.jsonl \
                --control 127.0.0.1:0 --control-token-file token --keep -- run --me -x";
    let got = settings(&files, args, &[("POD_IP", "10.0.0.9")]).unwrap();
    assert_eq!((got.app.as_str(), got.namespace.as_deref()), ("b", Some("m")));
    assert_eq!(got.instance.as_deref(), Some("k"));
    assert_eq!(got.driver.command, ["run", "--me", "-x"]);
    assert_eq!(got.driver.host.as_deref(), Some("h"), "the file's host wins over $POD_IP");
    assert_eq!(got.groups[0].spec.target, 7);
    assert_eq!(pod(&got, 0)["spec"]["containers"][0]["image"], "new");
    assert_eq!(got.events, Some(EventTarget::File("e.jsonl".into())));
    assert_eq!(got.control, Control::At(ControlAddr::parse("127.0.0.1:0").unwrap()));
    assert_eq!(got.control_token_file, Some("token".into()));
    assert_eq!(got.policy.failures_app, Limit::Max(3));
    assert!(got.keep);
}

#[test]
fn flags_can_replace_the_file() {
    let got = settings(&[], "--app a --image x:1 --executors 3 --events -", &[]).unwrap();
    assert_eq!((got.groups.len(), got.groups[0].spec.target), (1, 3));
    assert_eq!(got.events, Some(EventTarget::Stdout));
    let got = settings(&[("t.yaml", EXECUTOR)], "--app a --template t.yaml", &[]).unwrap();
    assert_eq!(got.groups[0].spec.target, 1);
    assert_eq!(pod(&got, 0)["metadata"]["labels"]["team"], "words");
    // Also without groups: the control API can add them.
    assert!(settings(&[("posse.yaml", "app: a")], "", &[]).unwrap().groups.is_empty());
}

#[test]
fn one_command_needs_no_file() {
    let args = "--image r.example:5000/my-worker:1 --executors 2 --cpu 500m --memory 64Mi";
    let got = settings(&[], args, &[]).unwrap();
    assert_eq!((got.app.as_str(), got.groups[0].spec.target), ("my-worker", 2));
    let container = &pod(&got, 0)["spec"]["containers"][0];
    let amounts = serde_json::json!({"cpu": "500m", "memory": "64Mi"});
    let both = serde_json::json!({"requests": amounts, "limits": amounts});
    assert_eq!((&container["resources"], container.get("command")), (&both, None));
    let got = settings(&[], "--image i --command ./my_worker.sh", &[]).unwrap();
    assert_eq!(got.app, "my-worker");
    let container = &pod(&got, 0)["spec"]["containers"][0];
    assert_eq!(container["command"], serde_json::json!(["./my_worker.sh"]));
    assert_eq!((&container["image"], container.get("args")), (&"i".into(), None));
    // The flags win over the file, whose arguments belong to its own command.
    let file = "driver: {command: [sh, x/Count.sh]}\n\
                executors: [{count: 3, image: i, command: [a], args: [b], cpu: 1}]";
    let got = settings(&[("posse.yaml", file)], "--command w --cpu 2", &[]).unwrap();
    assert_eq!((got.app.as_str(), got.groups[0].spec.target), ("count", 3));
    let container = &pod(&got, 0)["spec"]["containers"][0];
    assert_eq!((&container["command"][0], container.get("args")), (&"w".into(), None));
    assert_eq!(container["resources"]["limits"]["cpu"], "2");
}

#[cfg(feature = "dev")]
#[test]
fn executors_of_the_embedded_cluster_need_no_image() {
    let args = "--dev --executors 3 --command w -- python3 my_driver.py --in a.b";
    let got = settings(&[], args, &[]).unwrap();
    assert_eq!((got.app.as_str(), got.groups[0].spec.target), ("my-driver", 3));
    let container = &pod(&got, 0)["spec"]["containers"][0];
    assert_eq!((&container["image"], &container["command"][0]), (&"none".into(), &"w".into()));
    let got = settings(&[], "--dev --image i --command w --app x -- driver", &[]).unwrap();
    assert_eq!(
        (got.app.as_str(), &pod(&got, 0)["spec"]["containers"][0]["image"]),
        ("x", &"i".into())
    );
    // A file that names no command either is still an error.
    fails(Some("app: a\nexecutors: [{}]"), "--dev", "executors[0]: no pod is given");
}

#[test]
fn template_paths_are_relative_to_the_configuration_file() {
    let files =
        [("etc/p.yaml", "app: a\nexecutors: [{template: t.yaml}]"), ("etc/t.yaml", EXECUTOR)];
    settings(&files, "-f etc/p.yaml", &[]).unwrap();
    let files = [("etc/p.yaml", "app: a\nexecutors: [{template: t.yaml}]"), ("t.yaml", EXECUTOR)];
    assert!(settings(&files, "-f etc/p.yaml", &[]).is_err());
    settings(&files, "-f etc/p.yaml --template t.yaml", &[]).unwrap();
}

#[test]
fn pod_ip_is_the_default_driver_host() {
    let host =
        |env: &[(&str, &str)]| settings(&[], "--app a --image i", env).map(|s| s.driver.host);
    assert_eq!(host(&[]).unwrap(), None);
    assert_eq!(host(&[("POD_IP", "fd00::1")]).unwrap().as_deref(), Some("fd00::1"));
    assert_eq!(host(&[("POD_IP", "")]).unwrap(), None);
    assert!(host(&[("POD_IP", "a b")]).unwrap_err().message.starts_with("POD_IP: `a b` is not"));
}

/// Checks an error: posse.yaml, the arguments, and a part of the message. The exit code is 2.
#[track_caller]
fn fails(file: Option<&str>, args: &str, want: &str) {
    let files: Vec<(&str, &str)> = file.iter().map(|text| ("posse.yaml", *text)).collect();
    let failure = settings(&files, args, &[]).expect_err(want);
    assert_eq!(failure.code, crate::exit::Code::Usage);
    assert!(failure.message.contains(want), "\n got: {}\nwant: {want}", failure.message);
}

#[test]
fn an_exclusive_run_needs_its_lease() {
    fails(
        Some("app: a\nlease: false"),
        "--exclusive",
        "posse.yaml: exclusive needs the lease, and lease is false",
    );
    let got = settings(&[("posse.yaml", "app: a\nexecutors: []")], "--exclusive", &[]).unwrap();
    assert!(got.exclusive && got.lease);
}

#[test]
fn errors_name_a_remedy() {
    fails(None, "", "there is no ./posse.yaml: give -f FILE, or the executors' --image");
    fails(None, "--app a --executors 3", "there is no ./posse.yaml");
    fails(None, "--command w", "--command: give --image IMAGE or --template FILE too");
    fails(None, "--image i --command a|b", "--command `a|b`: posse starts no shell");
    fails(None, "--template t.yaml", "the command line: the application has no name; set app");
    fails(None, "--image 数据", "the command line: the application has no name; set app, or --app");
    fails(None, "-f no.yaml", "no.yaml: cannot be read: No such file");
    fails(None, "-f .", ".: cannot be read: Is a directory");
    fails(Some("{}"), "", "posse.yaml: the application has no name; set app, or --app NAME");
    fails(Some("app: a\nx: 1"), "", "posse.yaml:2:1: x: unknown key");
    fails(Some("app: a\nexecutors: [{}]"), "", "posse.yaml: executors[0]: no pod is given: set");
    fails(Some("app: a\nexecutors: [{template: t.yaml}]"), "", "t.yaml: cannot be read: No such");
    fails(
        Some("app: a\nexecutors: [{pod: {spec: {}}}]"),
        "",
        "posse.yaml: executors[0].pod: spec.containers: is missing",
    );
    fails(
        Some("app: a\nexecutors: [{image: i, container: w}]"),
        "",
        "posse.yaml: executors[0]: spec.containers: none is named `w`; the containers are: executor",
    );
    fails(
        Some("app: a\nexecutors: [{image: i, args: ['{{NOPE}}']}]"),
        "",
        "posse.yaml: executors[0]: spec.containers[0].args[0]: unknown placeholder {{NOPE}}",
    );
}

#[test]
fn flags_that_do_not_fit_the_file_are_errors() {
    for flag in ["--executors 1", "--image i", "--template t"] {
        let name = flag.split(' ').next().unwrap();
        fails(
            Some(TWO),
            flag,
            &format!("{name} needs a single group, and posse.yaml has several: x, y"),
        );
    }
    fails(Some("app: a"), "--executors 1", "--executors: posse.yaml has no group; give --image");
    fails(
        Some("app: a\nexecutors: [{image: i, max: 2}]"),
        "--executors 3",
        "--executors: 3 is not within min 0 and max 2",
    );
    let app = "a".repeat(40);
    fails(None, &format!("--image i --app {app} --instance abcdefghij"), "up to 67 characters");
    fails(Some(TWO), "--events - -- driver", "--events - would mix the events with the driver's");
    fails(Some(TWO), "--control 127.0.0.1:1", "needs --control-token-file FILE");
    fails(Some(TWO), "--control 1.2.3.4:1", "--control: `1.2.3.4:1` is not a loopback address");
    fails(
        Some(TWO),
        "--control-token-file t",
        "--control-token-file is for a control API on HOST:PORT",
    );
    fails(Some("app: a\ncontrol: 127.0.0.1:1"), "", "needs --control-token-file FILE");
    fails(
        Some("app: a\ncontrol: off\ndriver: {ready: control}"),
        "",
        "driver.ready: control needs the control API, which is off",
    );
    fails(
        Some("app: a\ndriver: {command: [d]}\nshutdown: {idle_end: 5m}"),
        "",
        "shutdown.idle_end is for a run without a driver",
    );
    for ready in ["tcp", "http:/ready"] {
        let file = format!("app: a\nexecutors: []\ndriver: {{ready: '{ready}'}}");
        fails(Some(&file), "", "posse.yaml: driver.ready has no port: write tcp:PORT or");
        settings(&[("posse.yaml", &file)], "--driver-port auto", &[]).unwrap();
    }
    fails(
        Some("app: a\nexecutors: []\ndriver: {port: auto, ready: socket}"),
        "",
        "posse.yaml: driver.ready: socket is for a driver that posse starts: name driver.command",
    );
    // The words after `--` are the last ones.
    for (command, args) in [
        ("posse-spark-submit, app.py", ""),
        ("sh, -c, 'exec /opt/spark/bin/spark-submit app.py'", ""),
        ("sleep, '9'", "-- /opt/spark/bin/spark-submit app.py"),
    ] {
        let file = format!(
            "app: a\nexecutors: []\ndriver: {{keep_executors: true, command: [{command}]}}"
        );
        fails(
            Some(&file),
            args,
            "posse.yaml: driver.keep_executors: Spark's executors end with their",
        );
        settings(&[("posse.yaml", &file)], "-- sleep 9", &[]).unwrap();
    }
    fails(
        Some("app: a\ndriver: {command: ['']}"),
        "",
        "the first word of the driver command is empty",
    );
    fails(
        Some("app: a\nwatch: false"),
        "",
        "posse.yaml:2:1: watch: unknown key (it was removed: posse always watches)",
    );
}

#[test]
fn a_page_that_others_can_reach_needs_a_token() {
    let page = |file: &str, args: &str| settings(&[("posse.yaml", file)], args, &[]).unwrap().page;
    let at = |text: &str| Some(ListenAddr::parse(text).unwrap());
    assert_eq!(page("app: a\nexecutors: []", ""), None);
    assert_eq!(page("app: a\nexecutors: []\npage: off", ""), None);
    let file = "app: a\nexecutors: []\npage: localhost:8080";
    assert_eq!(page(file, ""), at("127.0.0.1:8080"));
    assert_eq!(page(file, "--page [::1]:9"), at("[::1]:9"));
    assert_eq!(page(file, "--page off"), None);
    assert_eq!(page(file, "--page :80 --page-token-file t"), at(":80"));
    assert_eq!(page(file, "--page 0.0.0.0:80 --page-token-file t"), at("0.0.0.0:80"));
    // It is also the token that reads at a control API.
    let control = "--control 127.0.0.1:0 --control-token-file c --page-token-file t";
    assert_eq!(page("app: a\nexecutors: []", control), None);
    let file = Some("app: a\nexecutors: []\npage: 10.0.0.1:80");
    fails(file, "", "a page on 10.0.0.1:80 needs --page-token-file FILE");
    fails(Some(TWO), "--page [::]:80", "127.0.0.1:80 needs none");
    fails(
        Some(TWO),
        "--page host:80",
        "--page: expected HOST:PORT with an IP address, or :PORT, or off, found `host:80`",
    );
    fails(Some(TWO), "--page-token-file t", "--page-token-file needs --page HOST:PORT");
    fails(
        Some("app: a\npage: here"),
        "",
        "page: expected HOST:PORT with an IP address, or :PORT, or off, found `here`",
    );
}

#[test]
fn random_instances_are_names_that_differ() {
    let made: std::collections::BTreeSet<String> =
        (0..50).map(|_| names::instance_from_bits(random_bits())).collect();
    assert!(made.len() > 45, "{made:?}");
    assert!(made.iter().all(|name| names::instance_name_error(name).is_none() && name.len() == 5));
}
