//! Credentials that posse renews: the Secret, the driver's files, failures, and the end of the run.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use crate::support::http::gone_now;
use crate::support::posse::{Posse, Run, said};
use crate::support::scene::{Scene, uid_of};
use crate::support::server::{End, Server};
use crate::support::wait::{PATIENCE, stays_true, wait_for, wait_value};

/// What only the command may read.
const CANARY: &str = "canary-4f1c9a7e";
const SECRET: &str = "shop-token";
const MOUNT: &str = "/var/posse/credentials/token";

/// A scene with the file that the command reads, and a command that counts its runs.
fn scene(server: &dyn Server) -> Scene<'_> {
    let scene = Scene::new(server);
    fs::write(scene.file("keytab"), CANARY).unwrap();
    set_command(&scene, "echo \"token-$n\" >\"$dir/token\"");
    scene
}

/// Replaces what the command does: `$dir` is its folder, `$n` counts its runs.
fn set_command(scene: &Scene<'_>, script: &str) {
    let script = format!(
        "set -e; dir=$1; cd \"$2\"; grep -q canary keytab\n\
         n=$(cat runs 2>/dev/null || echo 0); n=$((n + 1)); echo $n >runs.new; mv runs.new runs\n\
         {script}\n"
    );
    let new = scene.file("command.new");
    fs::write(&new, script).unwrap();
    fs::rename(new, scene.file("command.sh")).unwrap();
}

fn entry(scene: &Scene<'_>, shape: &Value) -> Value {
    let folder = scene.dir.path().display().to_string();
    let script = scene.file("command.sh").display().to_string();
    let mut entry = json!({
        "name": "token", "command": ["sh", script, "{{DIR}}", folder], "secret": SECRET,
        "mount": MOUNT, "env": {"TOKEN_FILE": "{{MOUNT}}/token"},
    });
    for (key, value) in shape.as_object().unwrap() {
        entry[key] = value.clone();
    }
    entry
}

fn run(scene: &Scene<'_>, shape: &Value) -> Run {
    scene.run().executors(1).settings(json!({"credentials": [entry(scene, shape)]}))
}

fn secret_path(scene: &Scene<'_>) -> String {
    format!("/api/v1/namespaces/{}/secrets/{SECRET}", scene.namespace)
}

fn secret(scene: &Scene<'_>) -> Option<Value> {
    let answer = scene.admin.get(&secret_path(scene));
    (answer.code == 200).then_some(answer.body)
}

/// The content of a file in the Secret; empty if there is none.
fn content(secret: &Value, key: &str) -> String {
    let encoded = secret["data"][key].as_str().unwrap_or_default();
    String::from_utf8(BASE64_STANDARD.decode(encoded).unwrap()).unwrap()
}

/// The private folders of runs of this scene.
fn private_folders(scene: &Scene<'_>) -> Vec<PathBuf> {
    let entries = fs::read_dir(scene.dir.path()).unwrap().map(|entry| entry.unwrap().path());
    let is_one = |path: &PathBuf| path.to_string_lossy().contains("posse-credentials-");
    entries.filter(is_one).collect()
}

/// Waits for this number of different contents of the Secret.
fn wait_renewals(scene: &Scene<'_>, n: usize) {
    let mut seen = BTreeSet::new();
    wait_for(PATIENCE, &format!("{n} different contents of the secret"), || {
        seen.extend(secret(scene).map(|secret| content(&secret, "token")));
        seen.len() >= n
    });
}

/// Nothing that posse shows or stores has the canary.
fn assert_no_canary(scene: &Scene<'_>, posse: &Posse) {
    let stored = secret(scene).map(|secret| content(&secret, "token")).unwrap_or_default();
    let events: Vec<String> = posse.events().iter().map(Value::to_string).collect();
    let status = posse.status().to_string();
    let pods: Vec<String> = scene.pods().iter().map(Value::to_string).collect();
    let kube = scene.admin.get(&format!("/api/v1/namespaces/{}/events", scene.namespace));
    let texts =
        [posse.stderr(), stored, events.join(""), status, pods.join(""), kube.body.to_string()];
    for text in texts {
        assert!(!text.contains(CANARY), "{text}");
    }
}

pub fn credentials_are_renewed(server: &dyn Server) {
    let scene = scene(server);
    let driver = r#"cp "$TOKEN_FILE" first; echo "$TOKEN_FILE" >where; exec sleep 1000"#;
    let posse = run(&scene, &json!({"every": "1s"})).driver(&["sh", "-c", driver]).start();
    let pod = scene.wait_running(1).remove(0);
    let container = &pod["spec"]["containers"][0];
    let env = container["env"].as_array().unwrap();
    assert!(env.contains(&json!({"name": "TOKEN_FILE", "value": format!("{MOUNT}/token")})));
    let mount = |mount: &Value| mount["mountPath"] == MOUNT && mount.get("subPath").is_none();
    assert!(container["volumeMounts"].as_array().unwrap().iter().any(mount), "{container}");

    let first = secret(&scene).unwrap();
    let labels = &first["metadata"]["labels"];
    assert_eq!(labels["posse.dev/app"], "shop");
    assert_eq!(labels["app.kubernetes.io/managed-by"], "posse");
    assert!(first["metadata"].get("ownerReferences").is_none(), "{first}");
    wait_renewals(&scene, 3);
    assert_eq!(uid_of(&secret(&scene).unwrap()), uid_of(&first), "it is changed, not made again");
    // posse tells of a renewal after the server has the Secret.
    wait_for(PATIENCE, "events of three renewals", || {
        posse.events_of("credentials_renewed").len() >= 3
    });
    let renewed = posse.events_of("credentials_renewed").remove(0);
    assert!(renewed["name"] == "token" && renewed["expires"].is_null(), "{renewed}");

    // The driver started with the first token, and finds the next ones at the same place.
    let read = |name: &str| fs::read_to_string(scene.file(name)).unwrap_or_default();
    wait_for(PATIENCE, "the driver to start", || read("where").ends_with('\n'));
    assert!(read("first").starts_with("token-"), "{:?}", read("first"));
    let theirs = PathBuf::from(read("where").trim());
    wait_for(PATIENCE, "the driver's file to change", || {
        fs::read_to_string(&theirs)
            .is_ok_and(|now| now != read("first") && now.starts_with("token-"))
    });
    assert_no_canary(&scene, &posse);
    posse.signal(rustix::process::Signal::TERM);
    posse.wait_exit(PATIENCE);
    assert_eq!(secret(&scene), None, "the secret goes with the run");
    assert_eq!(private_folders(&scene), Vec::<PathBuf>::new());
    scene.finish();
}

pub fn credentials_expire_and_come_back(server: &dyn Server) {
    // posse renews when four fifths are over; on a busy machine the command may take seconds.
    const LIFETIME_S: u32 = 20;
    let scene = scene(server);
    let away = scene.file("away");
    set_command(
        &scene,
        "if test -e away; then echo 'cannot contact any KDC' >&2; exit 1; fi\n\
         echo \"token-$n\" >\"$dir/token\"",
    );
    let expires = format!("echo $(($(date +%s) + {LIFETIME_S}))");
    let posse = run(&scene, &json!({"expires": ["sh", "-c", expires]})).start();
    let pod = scene.wait_running(1).remove(0);
    posse.wait_event("credentials_renewed", |event| event["expires"].is_string());
    fs::write(&away, "").unwrap();
    let failed = posse.wait_event("credentials_failed", |_| true);
    let words = failed["message"].as_str().unwrap();
    let told = "; it wrote 23 bytes to stderr (-v logs the last line)";
    assert_eq!(words, format!("`command` ended with exit code 1{told}"));
    // Failed renewals change nothing before the credentials expire.
    let is_expired = |event: &Value| {
        event["seq"].as_u64() > failed["seq"].as_u64()
            && event["for"] == "credentials"
            && event["message"].as_str().is_some_and(|said| said.starts_with("token: expired: "))
    };
    posse.wait_event("waiting", is_expired);
    assert_eq!(scene.wait_running(1)[0]["metadata"]["uid"], uid_of(&pod), "it runs on");
    scene.end(&pod, End::Exit(1));
    posse.wait_event("executor_lost", |event| event["uid"] == uid_of(&pod));
    let requested = posse.events_of("executor_requested").len();
    stays_true(Duration::from_secs(1), "no new executor", || {
        posse.events_of("executor_requested").len() == requested
    });
    posse.wait_group("a wait for credentials", |group| group["waiting"] == "credentials");
    fs::remove_file(&away).unwrap();
    scene.wait_running(1);
    posse.stop();
    scene.finish();
}

pub fn credentials_of_others_are_left_alone(server: &dyn Server) {
    let scene = scene(server);
    let path = format!("/api/v1/namespaces/{}/secrets", scene.namespace);
    let theirs = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET},
        "data": {"password": "aHVudGVy"}});
    let theirs = scene.admin.post(&path, &theirs).ok();
    let posse = run(&scene, &json!({"every": "1h"})).start();
    let failed = posse.wait_event("credentials_failed", |_| true);
    let words = failed["message"].as_str().unwrap();
    assert!(words.starts_with("secret shop-token exists and is not posse's"), "{words}");
    posse.wait_event("waiting", |event| event["for"] == "credentials");
    assert_eq!(scene.pods(), [] as [Value; 0]);
    assert_eq!(secret(&scene).unwrap(), theirs);
    // Somebody removes it: the run goes on.
    let uid = &theirs["metadata"]["uid"];
    scene.admin.delete(&secret_path(&scene), &gone_now(uid)).ok();
    scene.wait_running(1);
    posse.stop();
    assert_eq!(secret(&scene), None);
    scene.finish();
}

pub fn credentials_over_kill_9(server: &dyn Server) {
    let scene = scene(server);
    let run = || run(&scene, &json!({"every": "1s"})).instance("i");
    let posse = run().start();
    let before = scene.wait_running(1);
    wait_renewals(&scene, 2);
    let killed = private_folders(&scene);
    assert_eq!(killed.len(), 1);
    posse.kill();
    let left = secret(&scene).unwrap();
    let posse = run().start();
    wait_value(PATIENCE, "the secret to be renewed", || {
        let now = secret(&scene).map(|secret| content(&secret, "token"));
        if now.as_ref().is_some_and(|now| *now != content(&left, "token")) {
            Ok(())
        } else {
            Err(format!("{now:?}"))
        }
    });
    wait_renewals(&scene, 3);
    assert_eq!(uid_of(&secret(&scene).unwrap()), uid_of(&left));
    assert_eq!(uid_of(&scene.wait_running(1)[0]), uid_of(&before[0]), "it was adopted");
    let folders = private_folders(&scene);
    assert!(folders.len() == 1 && folders != killed, "the next run removes it: {folders:?}");
    assert_no_canary(&scene, &posse);
    posse.stop();
    assert_eq!(secret(&scene), None);
    scene.finish();
}

pub fn credentials_that_are_wrong(server: &dyn Server) {
    let scene = scene(server);
    const GOOD: &str = "echo \"token-$n\" >\"$dir/token\"";
    let posse = run(&scene, &json!({"every": "1s", "timeout": "5s"})).start();
    scene.wait_running(1);
    for (bad, want) in [
        ("exit 7", "`command` ended with exit code 7"),
        (
            "echo slow >&2; sleep 600",
            "`command` did not end within 5 s; it wrote 5 bytes to stderr (-v logs the last line)",
        ),
        (
            "echo bad-secret >\"$dir/token\"; echo bad-secret; echo \"got bad-secret\" >&2; exit 1",
            "`command` ended with exit code 1; it wrote 15 bytes to stderr (-v logs the last line)",
        ),
        (
            "echo bad >\"$dir/one\"; head -c 2000000 /dev/zero >\"$dir/token\"",
            "left more than 900000 bytes, the most that a Secret takes: token",
        ),
        (":", "the command left no file in {{DIR}}"),
        ("ln -s \"$PWD/keytab\" \"$dir/token\"", "the command left a symbolic link: token"),
        (
            "echo bad >\"$dir/one\"; ln \"$PWD/keytab\" \"$dir/token\"",
            "the command left a hard link to a file outside of the folder: token",
        ),
        (
            "printf '\\005\\002bad' >\"$dir/token\"",
            "the command left a keytab: token; a keytab stays valid and must not leave this machine",
        ),
    ] {
        set_command(&scene, bad);
        let failed = posse.wait_event("credentials_failed", |event| {
            event["message"].as_str().is_some_and(|said| said.ends_with(want))
        });
        assert!(failed["until"].is_string(), "{failed}");
        let stored = secret(&scene).unwrap();
        assert_eq!(stored["data"].as_object().unwrap().len(), 1, "{want}: nothing half-done");
        assert!(content(&stored, "token").starts_with("token-"), "{want}");
        assert!(scene.dir.path().join("keytab").exists());
        let before = posse.events_of("credentials_renewed").len();
        set_command(&scene, GOOD);
        wait_for(PATIENCE, "the next renewal", || {
            posse.events_of("credentials_renewed").len() > before
        });
    }
    assert_no_canary(&scene, &posse);
    assert!(!posse.stderr().contains("bad-secret"), "the log shows a secret");
    let events: String = posse.events().iter().map(Value::to_string).collect();
    assert!(!events.contains("bad-secret"), "the events show a secret");
    posse.stop();
    scene.finish();
}

pub fn credentials_with_a_driver_pod(server: &dyn Server) {
    let scene = scene(server);
    let driver = scene.make_foreign("driver");
    let posse = run(&scene, &json!({"every": "1s"})).in_pod("driver", uid_of(&driver)).start();
    scene.wait_running(1);
    let owner = secret(&scene).unwrap()["metadata"]["ownerReferences"].clone();
    assert_eq!(owner.as_array().map(Vec::len), Some(1), "{owner}");
    assert_eq!((&owner[0]["kind"], &owner[0]["uid"]), (&json!("Pod"), &json!(uid_of(&driver))));
    posse.stop();
    assert_eq!(secret(&scene), None);
    scene.remove(&driver);
    scene.finish();
}

/// The embedded cluster mounts the Secret and updates the files, as kubelets do.
pub fn executors_read_renewed_credentials(server: &dyn Server) {
    let scene = scene(server);
    scene.write_template("pod.json", |pod| {
        let script = r#"touch "$SCENE/$POSSE_POD_NAME.up"
            while test -d "$SCENE"; do cat "$TOKEN_FILE" >>"$SCENE/seen"; sleep 0.2; done"#;
        pod["spec"]["containers"][0]["command"] = json!(["sh", "-c", script]);
    });
    let posse = run(&scene, &json!({"every": "1s"})).start();
    scene.wait_running(1);
    wait_for(PATIENCE, "three tokens in the executor", || {
        let seen = fs::read_to_string(scene.file("seen")).unwrap_or_default();
        seen.lines().collect::<BTreeSet<_>>().len() >= 3
    });
    posse.stop();
    scene.finish();
}

/// The server's words, and the rule to add.
pub fn credentials_without_permission(server: &dyn Server) {
    let scene = scene(server);
    let posse = run(&scene, &json!({"every": "1h", "secret": "not-granted"})).start();
    let failed = posse.wait_event("credentials_failed", |_| true);
    let words = failed["message"].as_str().unwrap();
    for want in ["cannot get resource \"secrets\"", "grant create for secrets", "not-granted"] {
        assert!(words.contains(want), "{words}");
    }
    posse.wait_event("waiting", |event| event["for"] == "credentials");
    assert_eq!(scene.pods(), [] as [Value; 0]);
    posse.stop();
    // `check` says it before the run.
    let checked = said(&run(&scene, &json!({"every": "1h"})).once(&["check"]));
    assert!(checked.contains("token: secret shop-token can be written"), "{checked}");
    let missing = json!({"every": "1h", "secret": "not-granted"});
    let output = run(&scene, &missing).once(&["check"]);
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    assert!(said(&output).contains("cannot get resource \"secrets\""), "{}", said(&output));
    scene.finish();
}

/// A stop does not wait for a command that hangs; with `--keep` the executors keep their credentials.
pub fn credentials_at_the_end(server: &dyn Server) {
    let scene = scene(server);
    let posse = run(&scene, &json!({"every": "1s", "timeout": "1h"})).arg("--keep").start();
    scene.wait_running(1);
    set_command(&scene, "echo $$ >hanging.new; mv hanging.new hanging; exec sleep 3600");
    let is_hanging = || scene.file("hanging").exists();
    wait_for(PATIENCE, "the command to hang", is_hanging);
    posse.stop();
    let pid = fs::read_to_string(scene.file("hanging")).unwrap();
    assert!(!PathBuf::from("/proc").join(pid.trim()).exists(), "the command runs on");
    assert!(secret(&scene).is_some(), "the executors use it");
    assert_eq!(private_folders(&scene), Vec::<PathBuf>::new());
    for pod in scene.ours() {
        scene.delete(&pod);
    }
    scene.finish();
}
