//! `posse submit --file` without a stage server: a Secret takes small files to the driver and its
//! executors.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::submit::{ask, expect, path, pod_of, run};
use crate::support::posse::said;
use crate::support::proxy::{Proxy, ProxyAction, status};
use crate::support::scene::{APP, Scene};
use crate::support::server::{Server, Who};
use crate::support::wait::{PATIENCE, wait_value};

/// As much as fits, with every byte that base64 could damage.
const LARGE_BYTES: usize = 690_000;

/// The driver waits for its executor, and both copy their files into the scene's folder.
fn settings(scene: &Scene<'_>) -> Value {
    let driver = r#"cp "$POSSE_FILES_DIR/a.txt" "$SCENE/driver.got"; turns=0
        while ! test -e "$SCENE/executor.got" && test $turns -lt 1200; do
            sleep 0.1; turns=$((turns + 1))
        done"#;
    let mut pod = scene.template();
    pod["spec"]["containers"][0]["command"] =
        json!(["sh", "-c", r#""$POSSE_FILES_DIR/run.sh"; exec sleep 60"#]);
    json!({
        "executors": [{"group": "default", "count": 1, "pod": pod}],
        "driver": {"command": ["sh", "-c", driver], "image": "example.com/driver:1",
                   "pod": pod_of("default"),
                   "env": [{"name": "SCENE", "value": scene.dir.path().display().to_string()}]},
    })
}

/// The files arrive whole and executable, under their names, in a Secret that the Job owns.
pub fn submit_takes_small_files_in_a_secret(server: &dyn Server) {
    let scene = Scene::new(server);
    let large: Vec<u8> = (0..=250).cycle().take(LARGE_BYTES).collect();
    let script = r#"#!/bin/sh
        cp "$POSSE_FILES_DIR/large.bin" "$SCENE/executor.part"
        mv "$SCENE/executor.part" "$SCENE/executor.got""#;
    fs::create_dir(scene.file("sub")).unwrap();
    fs::write(scene.file("a.txt"), "for the driver").unwrap();
    fs::write(scene.file("large.bin"), &large).unwrap();
    fs::write(scene.file("sub/work"), script).unwrap();
    let submit = |words: &[&str]| {
        let files = ["--file", "a.txt", "--file", "large.bin", "--file", "sub/work=run.sh"];
        run(&scene).settings(settings(&scene)).once(&[&["submit"], &files[..], words].concat())
    };
    let secret = format!("{}/{APP}-driver", path(&scene, "/api/v1", "secrets"));
    expect(&submit(&["--dry-run"]), 0, &["kind: Secret\n", "mountPath: \"/var/posse/files\""]);
    assert_eq!(scene.admin.get(&secret).code, 404, "a dry run creates nothing");

    let is_real = server.real().is_some();
    expect(&submit(if is_real { &["--no-wait"] } else { &[] }), 0, &["submitted"]);
    let stored = scene.admin.get(&secret).ok();
    assert_eq!(stored["metadata"]["ownerReferences"][0]["kind"], "Job", "{}", stored["metadata"]);
    let data = stored["data"].as_object().expect("a Secret has data");
    assert_eq!(data.keys().collect::<Vec<_>>(), ["a.txt", "large.bin", "run.sh"]);
    assert!(STANDARD.decode(data["large.bin"].as_str().unwrap()).unwrap() == large);
    if !is_real {
        assert_eq!(fs::read(scene.file("driver.got")).unwrap(), b"for the driver");
        assert!(fs::read(scene.file("executor.got")).unwrap() == large);
    }
    expect(&ask(&scene, &["stop", APP]), 0, &["stopped"]);
    wait_value(PATIENCE, "the Secret to go with its Job", || match scene.admin.get(&secret).code {
        404 => Ok(()),
        code => Err(format!("HTTP {code}")),
    });
    scene.finish();
}

/// Nothing is created without the permissions for Secrets, and the error says which are missing.
pub fn submit_files_without_permission_for_secrets(server: &dyn Server) {
    let scene = Scene::new(server);
    fs::write(scene.file("a.txt"), "text").unwrap();
    for (method, code) in [("GET", 3), ("POST", 3), ("PATCH", 3)] {
        let n_refused = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&n_refused);
        let proxy = Proxy::start(&server.access(Who::Admin), move |request, _| {
            if request.method != method || !request.path.contains("/secrets") {
                return ProxyAction::Pass;
            }
            counted.fetch_add(1, Ordering::SeqCst);
            ProxyAction::Reply(403, status(403, "Forbidden", "secrets is forbidden: User \"x\""))
        });
        let refused = scene
            .run_with(&proxy.access())
            .settings(settings(&scene))
            .once(&["submit", "--file", "a.txt"]);
        expect(&refused, code, &["--file needs the permissions get, create, patch and delete"]);
        assert!(n_refused.load(Ordering::SeqCst) > 0, "{method}: {}", said(&refused));
        let secret = format!("{}/{APP}-driver", path(&scene, "/api/v1", "secrets"));
        assert_eq!(scene.admin.get(&secret).code, 404, "{method}");
    }
    scene.finish();
}
