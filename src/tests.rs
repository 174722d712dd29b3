//! The whole command line: exit codes, stdout and stderr.

use clap::CommandFactory as _;
use posse_testing::{Answer, TestServer};
use serde_json::Value;

use crate::args::CommandLine;
use crate::testing::Folder;
use crate::tools::init::sample;

#[test]
fn the_arguments_are_consistent() {
    CommandLine::command().debug_assert();
}

#[test]
fn help_and_version_go_to_stdout() {
    let folder = Folder::new(&[]);
    for args in ["--help", "-h", "run --help", "help render", "dev --help"] {
        let (code, out, err) = folder.posse(args);
        assert_eq!((code, err.as_str()), (0, ""), "{args}");
        assert!(out.contains("Usage: posse"), "{args}: {out}");
    }
    let (code, out, _) = folder.posse("--version");
    assert_eq!((code, out), (0, format!("posse {}\n", env!("CARGO_PKG_VERSION"))));
}

/// Each of these quoted the password.
#[test]
fn passwords_in_urls_are_not_quoted() {
    let kubeconfig = |server: &str, proxy: &str| {
        format!(
            "{{current-context: a, contexts: [{{name: a, context: {{cluster: c, user: u}}}}], \
             clusters: [{{name: c, cluster: {{server: '{server}', proxy-url: '{proxy}'}}}}], \
             users: [{{name: u, user: {{}}}}]}}"
        )
    };
    let bad = [
        "me:s3cret@stage:8443",
        "https://me:s3cret@stage:port",
        "https://me:s3 cret@stage",
        "https://me:s3/cret@stage",
        "https://stage/?token=s3cret",
        "ftp://me:s3cret@stage",
        "http://me:s3cret@stage",
        "https://me:s3cret@",
    ];
    for url in bad {
        let config = format!("{{app: a, control: '{url}', executors: [{{image: i}}]}}");
        let folder = Folder::new(&[
            ("posse.yaml", &config),
            ("server", &kubeconfig(url, "")),
            ("proxy", &kubeconfig("https://127.0.0.1:1", url)),
            ("token", "t"),
            ("a.jar", "x"),
            ("ticket", &serde_json::json!({"url": url, "bundles": []}).to_string()),
        ]);
        let word = url.replace(' ', "");
        // Others are valid for a proxy, which would be called.
        if !url.starts_with("http") || url.ends_with("port") {
            // No run on this host is in that namespace.
            let (code, _, err) = folder.posse("apps -n none --kubeconfig proxy");
            assert!(code == 2 && !err.contains("s3"), "{url}: {err}");
        }
        let put = "stage put --namespace n --app a --token-file token a.jar --url";
        for (args, env) in [
            (format!("{put} {word}"), vec![]),
            ("stage get --secret-file ticket --dir out".to_owned(), vec![]),
            (format!("status --control {word}"), vec![]),
            ("status".to_owned(), vec![("POSSE_CONTROL", url)]),
            ("render".to_owned(), vec![]),
            ("apps --kubeconfig server".to_owned(), vec![]),
            ("check -f none --kubeconfig server".to_owned(), vec![]),
            #[cfg(feature = "dev")]
            (format!("dev --listen {word}"), vec![]),
        ] {
            let (code, out, err) = folder.posse_with(&args, &env);
            assert_ne!(code, 0, "{args} {url}: {out}");
            assert!(!(out + &err).contains("s3"), "{args} {url}: {err}");
        }
    }
}

#[test]
fn usage_errors_are_one_line_on_stderr() {
    let folder = Folder::new(&[("posse.yaml", "app: a\nexecutors: [{image: i}]")]);
    for (args, want) in [
        ("", "posse: a command is missing; `posse --help` lists them\n"),
        ("fly", "posse: unrecognized subcommand 'fly'; see `posse --help`\n"),
        (
            "statsu",
            "posse: unrecognized subcommand 'statsu' (did you mean `status`?); see `posse --help`\n",
        ),
        (
            "run --exectors 3",
            "posse: unexpected argument '--exectors' found (did you mean `--executors`?); see \
             `posse run --help`\n",
        ),
        (
            "--color never -q run --exectors 3",
            "posse: unexpected argument '--exectors' found (did you mean `--executors`?); see \
             `posse run --help`\n",
        ),
        (
            "stage putt",
            "posse: unrecognized subcommand 'putt' (did you mean `put`?); see `posse stage",
        ),
        ("kill Upper", "posse: invalid value 'Upper' for '<ID>...': "),
        ("run --fast", "posse: unexpected argument '--fast' found"),
        (
            "run --executors ten",
            "posse: invalid value 'ten' for '--executors <N>': expected a whole number; see",
        ),
        (
            "run --app A",
            "posse: invalid value 'A' for '--app <NAME>': `A` is not a name for an app",
        ),
        (
            "cleanup",
            "posse: the following required arguments were not provided: <--app <NAME>|--all-apps>; see",
        ),
        (
            "cleanup --app a --stale soon",
            "posse: invalid value 'soon' for '--stale <DURATION>': expected a dur",
        ),
        ("render --group z", "posse: --group: there is no group `z`; the groups are: default\n"),
        ("render -f no.yaml", "posse: no.yaml: cannot be read: No such file"),
    ] {
        let (code, out, err) = folder.posse(args);
        assert_eq!((code, out.as_str()), (2, ""), "{args}: {err}");
        assert!(err.starts_with(want), "{args}: {err}");
        assert!(err.ends_with('\n') && err.lines().count() == 1, "{args}: {err}");
    }
}

#[test]
fn init_writes_a_valid_file_and_never_overwrites() {
    let folder = Folder::new(&[]);
    let (code, out, err) = folder.posse("init -");
    assert_eq!((code, out.as_str(), err.as_str()), (0, sample().as_str(), ""));
    let (code, _, err) = folder.posse("init");
    assert_eq!((code, err.as_str()), (0, ""));
    assert_eq!(std::fs::read_to_string(folder.path().join("posse.yaml")).unwrap(), sample());
    let (code, out, err) = folder.posse("render");
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(out.contains("  name: my-app-xxxxx-exec-1\n"), "{out}");
    std::fs::write(folder.path().join("posse.yaml"), "mine").unwrap();
    let (code, _, err) = folder.posse("init");
    assert_eq!(code, 2);
    assert_eq!(err, "posse: posse.yaml exists already; name another file, or `-` for stdout\n");
    assert_eq!(std::fs::read_to_string(folder.path().join("posse.yaml")).unwrap(), "mine");
    assert_eq!(folder.posse("init no/such/folder.yaml").0, 2);
}

#[test]
fn render_prints_one_pod_for_each_group() {
    let two =
        "app: a\nnamespace: n\nexecutors: [{group: x, image: 'i:1'}, {group: y, image: 'i:2'}]";
    let folder = Folder::new(&[("posse.yaml", two)]);
    let (code, out, _) = folder.posse("render --id 41 --instance k");
    assert_eq!((code, out.matches("---\n").count()), (0, 2));
    assert!(out.contains("name: a-k-exec-41\n") && out.contains("name: a-k-exec-42\n"), "{out}");
    let (_, out, _) = folder.posse("render --group y -o json");
    let list: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(list["kind"], "List");
    assert_eq!(list["items"][0]["spec"]["containers"][0]["image"], "i:2");
    assert_eq!(list["items"].as_array().unwrap().len(), 1);
}

/// Of two submits at once, one is refused wherever the other gets ahead of it.
#[test]
fn a_second_submit_at_once_is_refused() {
    const DRY: &str = "dryRun=All";
    for (kind, is_dry) in [("configmaps", true), ("configmaps", false), ("services", false)] {
        let server = TestServer::start(None, move |asked| {
            let line = asked.line();
            if line.starts_with("GET") && line.contains("-driver") {
                return Answer::json(404, r#"{"kind":"Status","reason":"NotFound"}"#);
            }
            if !line.starts_with("POST") {
                return Answer::json(200, r#"{"metadata":{"resourceVersion":"1"},"items":[]}"#);
            }
            if line.contains(kind) && line.contains(DRY) == is_dry {
                return Answer::json(409, r#"{"kind":"Status","reason":"AlreadyExists"}"#);
            }
            let mut object: Value = serde_json::from_slice(&asked.body).unwrap();
            object["metadata"]["uid"] = "u".into();
            Answer::json(201, object.to_string())
        });
        let folder = Folder::with_server(server.address);
        std::fs::write(
            folder.path().join("posse.yaml"),
            "{app: tw, executors: [{count: 1, image: i, command: [x]}], driver: {image: i}}",
        )
        .unwrap();
        let (code, _, told) = folder.posse("submit --kubeconfig k -n n");
        let word = kind.trim_end_matches('s');
        let want = format!("{word} tw-driver exists already: another `posse submit` has just ");
        assert!(told.contains(&want), "{kind} {is_dry}: {told}");
        assert_eq!(code, 3, "{kind} {is_dry}: {told}");
    }
}
