//! No process outlives its container or its driver, however the container, the driver or posse ends.

use std::fs;
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;

use crate::support::posse::{Posse, command};
use crate::support::reaper::Guarded;
use crate::support::runner::show_on_failure;
use crate::support::scene::{APP, Scene, TempDir};
use crate::support::server::Server;
use crate::support::wait::{PATIENCE, wait_value};

/// Seconds that no other process of this machine sleeps for; more digits may follow.
fn mark() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("98765.{}00{n}0", std::process::id())
}

/// How many processes sleep for this long.
fn count(mark: &str) -> usize {
    let line = format!("sleep\0{mark}\0");
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let lines = entries.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    lines.filter(|found| found == line.as_bytes()).count()
}

#[track_caller]
fn wait_count(mark: &str, n: usize) {
    wait_value(PATIENCE, &format!("{n} processes with {mark}"), || {
        let found = count(mark);
        if found == n { Ok(()) } else { Err(found) }
    });
}

/// A shell script that starts three processes: one in its process group, one in a session of its
/// own, and one in a session of its own that has lost its parent, as a daemon has.
fn three(mark: &str) -> String {
    format!("sleep {mark} & setsid sleep {mark} & (setsid sleep {mark} &)")
}

/// A `posse run --dev`. Each container has four such processes: the fourth one is a daemon of its
/// hook. The driver has three.
struct DevRun {
    folder: TempDir,
    posse: Guarded,
    mark: String,
}

impl DevRun {
    fn start() -> Self {
        let folder = TempDir::new("leaks");
        let mark = mark();
        let container = format!("{mark}{{{{EXECUTOR_ID}}}}");
        let work = format!(
            "{}; until test -e $FOLDER/end.$POSSE_EXECUTOR_ID; do sleep 0.1; done; exit 3",
            three(&container)
        );
        let hook = format!("setsid sleep {container} > /dev/null 2>&1 &");
        let settings = json!({
            "app": APP,
            "executors": [{"count": 1, "pod": {"apiVersion": "v1", "kind": "Pod", "spec": {
                "terminationGracePeriodSeconds": 1,
                "containers": [{
                    "name": "worker", "image": "none:1", "command": ["sh", "-c", work],
                    "env": [{"name": "FOLDER", "value": folder.path().display().to_string()}],
                    "lifecycle": {"postStart": {"exec": {"command": ["sh", "-c", hook]}}},
                }],
            }}}],
            "shutdown": {"grace": "20s", "timeout": "20s"},
        });
        fs::write(folder.path().join("posse.yaml"), settings.to_string()).expect("writable");
        let driver = format!(
            "{}; until test -e end; do sleep 0.1; done; exit 0",
            three(&format!("{mark}7"))
        );
        let log = folder.path().join("log");
        show_on_failure(&log);
        let mut run = command(folder.path());
        run.args(["run", "--dev", "--control=unix:sock", "--", "sh", "-c", &driver]);
        run.stdout(Stdio::null()).stderr(fs::File::create(&log).expect("writable"));
        let posse = Guarded::spawn(&mut run).expect("the binary can be started");
        let run = Self { folder, posse, mark };
        wait_count(&run.driver(), 3);
        wait_count(&run.executor(1), 4);
        run
    }

    fn driver(&self) -> String {
        format!("{}7", self.mark)
    }

    fn executor(&self, id: u32) -> String {
        format!("{}{id}", self.mark)
    }

    fn touch(&self, name: &str) {
        fs::write(self.folder.path().join(name), "").expect("writable");
    }

    fn end(&mut self) -> Option<i32> {
        let posse = &mut self.posse;
        wait_value(PATIENCE, "posse to end", || posse.status().ok_or("it runs")).code()
    }
}

/// A container's descendants end with it: after a kill, after its own end, at a clean end of the run.
pub fn no_process_outlives_a_container() {
    let mut run = DevRun::start();
    let kill = command(run.folder.path()).args(["kill", "1", "--control=unix:sock"]).output();
    let kill = kill.expect("the binary can be started");
    assert!(kill.status.success(), "{}", String::from_utf8_lossy(&kill.stderr));
    wait_count(&run.executor(1), 0);
    // The killed one is not replaced, the target is lower.
    let scale = command(run.folder.path()).args(["scale", "1", "--control=unix:sock"]).output();
    assert!(scale.expect("the binary can be started").status.success());
    wait_count(&run.executor(2), 4);
    run.touch("end.2");
    wait_count(&run.executor(2), 0);
    wait_count(&run.executor(3), 4);
    run.touch("end");
    assert_eq!(run.end(), Some(0));
    wait_count(&run.executor(3), 0);
    wait_count(&run.driver(), 0);
}

/// Nothing is left of a run that was told to end, and of one that was killed with SIGKILL.
pub fn no_process_outlives_a_stopped_or_killed_run() {
    for signal in [Signal::TERM, Signal::KILL] {
        let mut run = DevRun::start();
        run.posse.signal(signal);
        let code = run.end();
        assert_eq!(code, (signal == Signal::TERM).then_some(143), "{signal:?}");
        wait_count(&run.executor(1), 0);
        wait_count(&run.driver(), 0);
    }
}

/// A credential plugin that hangs ends with the command that waits for it, however that ends.
pub fn no_credential_plugin_outlives_posse() {
    let folder = TempDir::new("plugin");
    fs::write(folder.path().join("posse.yaml"), "{app: plugin, executors: [{image: i, count: 1}]}")
        .expect("writable");
    for words in [&["check"][..], &["run"], &["apps"]] {
        for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
            let mark = mark();
            let script = format!("echo s3cr3t; {}; wait; sleep {mark}", three(&mark));
            let kubeconfig = json!({
                "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
                "clusters": [{"name": "k", "cluster":
                    {"server": "https://127.0.0.1:1", "insecure-skip-tls-verify": true}}],
                "users": [{"name": "u", "user": {"exec": {
                    "apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never",
                    "command": "sh", "args": ["-c", script]}}}],
            });
            fs::write(folder.path().join("kc"), kubeconfig.to_string()).expect("writable");
            let mut run = command(folder.path());
            run.args(words).env("KUBECONFIG", folder.path().join("kc"));
            run.stdout(Stdio::null()).stderr(Stdio::null());
            let mut posse = Guarded::spawn(&mut run).expect("the binary can be started");
            wait_count(&mark, 3);
            posse.signal(signal);
            let began = Instant::now();
            wait_value(PATIENCE, &format!("the end of {words:?} by {signal:?}"), || {
                posse.status().map(drop).ok_or("it runs")
            });
            // It does not wait for the time-out of the plugin.
            assert!(began.elapsed() < Duration::from_secs(30), "{words:?} {signal:?}");
            wait_count(&mark, 0);
        }
    }
}

/// The same for the driver of a run on a cluster of somebody else.
pub fn no_process_outlives_a_driver(server: &dyn Server) {
    let scene = Scene::new(server);
    let go = scene.file("go");
    let start = |before: &str, mark: &str| {
        let three = three(mark);
        let go = go.display();
        let script = format!("{before}; {three}; until test -e {go}; do sleep 0.1; done; exit 5");
        let settings = json!({"shutdown": {"grace": "2s"}});
        let run = scene.run().executors(0).settings(settings);
        let posse = run.driver(&["sh", "-c", &script]).start();
        wait_count(mark, 3);
        posse
    };
    let ends: [(&str, &dyn Fn(Posse)); 3] = [
        ("true", &|posse| {
            posse.signal(Signal::TERM);
            posse.expect_exit(143);
        }),
        // It ends only by SIGKILL, after its grace period.
        ("trap '' TERM", &|posse| {
            posse.signal(Signal::TERM);
            posse.expect_exit(137);
        }),
        ("true", &Posse::kill),
    ];
    for (before, end) in ends {
        let mark = mark();
        end(start(before, &mark));
        wait_count(&mark, 0);
    }
    let mark = mark();
    let posse = start("true", &mark);
    fs::write(&go, "").expect("the folder can be written");
    posse.expect_exit(5);
    wait_count(&mark, 0);
    // The killed posse has released no Lease.
    scene.finish_with_pods();
}
