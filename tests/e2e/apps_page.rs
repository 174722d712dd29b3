//! `posse apps --page`: the applications of a namespace for browsers, also while the server is away.

use std::fs::{self, File};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::access::Access;
use crate::support::http::Client;
use crate::support::posse::command;
use crate::support::reaper::Guarded;
use crate::support::scene::{APP, Scene, TempDir};
use crate::support::server::{Server, Who, pods_path};
use crate::support::wait::{PATIENCE, wait_value};

/// A reason of a pod, which whoever may write its status chooses.
const HOSTILE: &str = "<img src=x onerror=\"document.title='owned'\"> \\ \"'&amp;\u{1b}[31m";

/// Starts the page, and returns a client that has its token.
fn page(scene: &Scene<'_>, dir: &TempDir) -> (Guarded, Client) {
    let kubeconfig = dir.path().join("kubeconfig");
    // An outage cuts the way of this identity.
    let text = scene.server.access(Who::Posse).kubeconfig(&scene.namespace);
    fs::write(&kubeconfig, text).unwrap();
    let printed = dir.path().join("printed");
    let mut page = command(dir.path());
    page.args(["apps", "--page", "--kubeconfig"]).arg(&kubeconfig);
    page.stdout(File::create(&printed).unwrap());
    let page = Guarded::spawn(&mut page).unwrap();
    let address = wait_value(PATIENCE, "the page's address", || {
        let text = fs::read_to_string(&printed).unwrap();
        text.strip_suffix('\n').map(str::to_owned).ok_or(text)
    });
    let (url, token) = address.split_once("/#token=").expect("the address has the token");
    let access = Access {
        url: url.to_owned(),
        token: Some(token.to_owned()),
        token_file: None,
        ca: None,
        client: None,
    };
    (page, Client::new(&access, "test-browser"))
}

fn find(read: &Value, app: &str) -> Option<Value> {
    read["apps"].as_array().unwrap().iter().find(|one| one["app"] == app).cloned()
}

/// Text of others arrives unchanged, as JSON; while the server is away the last state stays, with its age.
pub fn apps_page_over_an_outage(server: &dyn Server) {
    let own = server.fresh();
    let scene = Scene::new(&*own);
    let posse = scene.run().executors(2).start();
    scene.wait_running(2);
    let mut pod = scene.template();
    pod["metadata"]["name"] = "html".into();
    pod["metadata"]["labels"] = json!({"app.kubernetes.io/managed-by": "posse",
        "app.kubernetes.io/component": "executor", "posse.dev/app": "html", "posse.dev/group": "g"});
    // The cluster's own scheduler would write another reason.
    pod["spec"]["schedulerName"] = json!("nobody");
    scene.admin.post(&pods_path(&scene.namespace), &pod).ok();
    let said = json!({"status": {"conditions": [{"type": "PodScheduled", "status": "False", "reason": HOSTILE}]}});
    scene.admin.merge_patch(&format!("{}/html/status", pods_path(&scene.namespace)), &said).ok();
    // Its runs on this host are none of ours: it has a folder of its own.
    let dir = TempDir::new("page");
    let (mut page, browser) = page(&scene, &dir);
    let read = || browser.get("/v1/apps").ok();
    let shown = wait_value(PATIENCE, "both applications", || {
        let shown = read();
        let is_there = find(&shown, APP).is_some() && find(&shown, "html").is_some();
        if is_there { Ok(shown) } else { Err(shown) }
    });
    assert_eq!((&shown["error"], &shown["namespace"]), (&Value::Null, &json!(scene.namespace)));
    let ours = find(&shown, APP).unwrap();
    assert_eq!(ours["executors"]["running"], 2, "{ours}");
    assert!(ours["groups"]["default"]["cpu_hours"].is_number(), "{ours}");
    let html = find(&shown, "html").unwrap();
    assert_eq!((&html["waiting"], &html["groups"]["g"]["pending"]), (&json!(HOSTILE), &json!(1)));
    own.down();
    let cut = wait_value(PATIENCE, "the outage", || {
        let cut = read();
        if cut["error"].is_string() { Ok(cut) } else { Err(cut) }
    });
    assert_eq!(find(&cut, APP).map(|app| app["executors"]["running"].clone()), Some(json!(2)));
    assert!(cut["age_ms"].as_u64() > Some(0), "{cut}");
    own.up();
    wait_value(PATIENCE, "the next list", || {
        let back = read();
        if back["error"].is_null() { Ok(()) } else { Err(back) }
    });
    page.signal(Signal::TERM);
    let code = wait_value(PATIENCE, "the page's end", || page.status().ok_or("it runs"));
    assert_eq!(code.code(), Some(0));
    scene
        .admin
        .delete(&format!("{}/html", pods_path(&scene.namespace)), &json!({"gracePeriodSeconds": 0}))
        .ok();
    posse.stop();
    scene.finish();
}
