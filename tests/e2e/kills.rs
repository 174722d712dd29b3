//! posse is killed at each of its API calls: the next process reaches the target, leaves nothing
//! behind and creates nothing twice. The calls are those of one whole run, from start to stop.

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::posse::{Posse, Run};
use crate::support::proxy::{Hook, Proxy, ProxyAction, Request, Upstream};
use crate::support::runner;
use crate::support::scene::{
    APP, Scene, describe, executor_id, is_over, is_running, name_of, uid_of,
};
use crate::support::server::{End, Server, Who};
use crate::support::wait::{PATIENCE, wait_for, wait_value};

/// The target. One executor fails, and later the target is lower by one.
const N: u32 = 2;
/// Parallel runs: they wait most of the time.
const THREADS: usize = 6;
/// The interval at which the state of a run is checked.
const LOOK: Duration = Duration::from_millis(15);

/// The moment of the kill, relative to one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    /// The server does not receive the call.
    Unsent,
    /// The call takes effect, but the answer is lost.
    Committed,
    /// The answer was sent.
    Answered,
}

const MOMENTS: [Moment; 3] = [Moment::Unsent, Moment::Committed, Moment::Answered];

/// The process after the one that was killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Heir {
    /// The same instance.
    Same,
    /// A new pod and instance; the old pod has failed.
    AfterFailure,
    /// A new pod and instance; the old pod is deleted.
    AfterLoss,
}

/// One case.
#[derive(Debug)]
struct Job {
    heir: Heir,
    /// The number of the call, from 1; 0: no kill.
    call: usize,
    moment: Moment,
}

/// The state of the proxy between the runs of a job and the server.
#[derive(Default)]
struct Gate {
    calls: Mutex<Vec<String>>,
    is_struck: AtomicBool,
    /// The process, once it is started.
    pid: AtomicU32,
    /// How often the server created each pod.
    made: Mutex<BTreeMap<String, usize>>,
    /// The instance's Lease was deleted, so the run is over and its ids need not be kept.
    is_life_over: AtomicBool,
}

impl Gate {
    fn kill(&self) {
        wait_for(PATIENCE, "the process to have a number", || self.pid.load(Ordering::SeqCst) > 0);
        let pid = self.pid.load(Ordering::SeqCst) as i32;
        // An error means that it has ended by itself since the answer to its last call.
        let _ = kill_process(Pid::from_raw(pid).expect("not 0"), Signal::KILL);
    }

    fn rule(self: &Arc<Self>, job: &Job, request: &Request, upstream: &Upstream) -> ProxyAction {
        let n = {
            let mut calls = self.calls.lock().expect("no panic in here");
            let path = request.path.split('?').next().unwrap_or_default();
            calls.push(format!("{} {path}", request.method));
            calls.len()
        };
        let is_struck = n == job.call && !self.is_struck.swap(n == job.call, Ordering::SeqCst);
        let send = || {
            let answer = upstream.send(request);
            if request.is_create() && answer.code == 201 {
                let name = name_of(&answer.body).to_owned();
                *self.made.lock().expect("no panic in here").entry(name).or_insert(0) += 1;
            }
            if request.ends_life() && answer.code == 200 {
                self.is_life_over.store(true, Ordering::SeqCst);
            }
            ProxyAction::Reply(answer.code, answer.body)
        };
        match (is_struck, job.moment) {
            (true, Moment::Unsent) => {
                self.kill();
                ProxyAction::Cut
            }
            (true, Moment::Committed) => {
                // A watch changes nothing on the server.
                if !request.is_watch() {
                    send();
                }
                self.kill();
                ProxyAction::Cut
            }
            (is_struck, _) => {
                let is_noted = request.is_create() || request.ends_life();
                let verdict = if is_noted { send() } else { ProxyAction::Pass };
                if !is_struck {
                    return verdict;
                }
                let gate = Arc::clone(self);
                ProxyAction::Then(Box::new(verdict), Hook(Box::new(move || gate.kill())))
            }
        }
    }
}

impl Request {
    /// True for the delete of the instance's Lease if the Lease has no owner.
    fn ends_life(&self) -> bool {
        self.method == "DELETE" && self.path.contains(&format!("/leases/{APP}-heirs"))
    }
}

/// The driver: waits for orders in files, lowers the target, and makes one report.
fn driver(turn: u32) -> String {
    format!(
        r#"wait_for() {{ until test -e "$1"; do kill -0 $PPID || exit 9; sleep 0.02; done; }}
        wait_for less.{turn}; "$POSSE_EXE" scale 1 >&2; wait_for end.{turn}; echo the end"#
    )
}

/// Leads a run through its phases: all run, one fails and is replaced, the target is lowered by
/// one, the stop. Returns when the process has ended.
fn lead(scene: &Scene<'_>, posse: &Posse, turn: u32, met: impl Fn(&[Value])) {
    let word = |name: &str| fs::write(scene.file(&format!("{name}.{turn}")), "").expect("writable");
    let (mut started, mut n_before) = (Instant::now(), 0);
    let mut n_done = 0;
    while !posse.is_over() {
        if n_done != n_before {
            (started, n_before) = (Instant::now(), n_done);
        }
        let mut ours = scene.ours();
        let at = format!("turn {turn}, step {n_done}, {}", describe(&ours));
        assert!(started.elapsed() < PATIENCE, "it takes too long: {at}\n{}", posse.stderr());
        ours.retain(|pod| !is_over(pod));
        let all_run = ours.iter().all(is_running);
        match n_done {
            0 if all_run && ours.len() == N as usize => {
                met(&ours);
                ours.sort_by_key(executor_id);
                scene.end(&ours[0], End::Exit(3));
                // The failure must be seen before the next phase.
                let uid = uid_of(&ours[0]).to_owned();
                wait_value(PATIENCE, "the one to fail", || {
                    let fits = |pod: &Value| uid_of(pod) == uid && !is_over(pod);
                    if posse.is_over() || !scene.ours().iter().any(fits) {
                        return Ok(());
                    }
                    Err("it lives")
                });
                n_done = 1;
            }
            1 if all_run && ours.len() == N as usize => {
                word("less");
                n_done = 2;
            }
            2 if all_run && ours.len() == 1 => {
                word("end");
                n_done = 3;
            }
            _ => thread::sleep(LOOK),
        }
    }
}

/// Plays one case; returns the calls of the whole run if there was no kill, and whether there was
/// one.
fn play(server: &dyn Server, job: &Job) -> (Vec<String>, bool) {
    let scene = Scene::new(server);
    let gate = Arc::new(Gate::default());
    let proxy = {
        let gate = Arc::clone(&gate);
        let Job { heir, call, moment } = *job;
        Proxy::start(&server.access(Who::Posse), move |request, upstream| {
            gate.rule(&Job { heir, call, moment }, request, upstream)
        })
    };
    let run = |turn: u32, pod: Option<&Value>| -> Run {
        let script = driver(turn);
        let run = scene.run_with(&proxy.access()).executors(N).arg("--exclusive");
        let run = run.driver(&["sh", "-c", &script]);
        match pod {
            Some(pod) => run.in_pod(name_of(pod), uid_of(pod)),
            // A run that is over is not continued: the next one starts again at id 1.
            None if gate.is_life_over.load(Ordering::SeqCst) => run.instance("next"),
            None => run.instance("heirs"),
        }
    };
    let pod = |name: &str| (job.heir != Heir::Same).then(|| scene.make_driver_pod(name));
    let first_pod = pod("driver-1");
    let mut last = run(1, first_pod.as_ref()).start();
    last.may_end();
    gate.pid.store(last.pid(), Ordering::SeqCst);
    lead(&scene, &last, 1, |_| {});
    let is_struck = gate.is_struck.load(Ordering::SeqCst);
    if is_struck {
        // A request that was sent may still take effect.
        proxy.wait_until_quiet();
        if let Some(pod) = &first_pod {
            end_driver(&scene, pod, job.heir);
        }
        let second_pod = pod("driver-2");
        last = run(2, second_pod.as_ref()).start();
        last.may_end();
        lead(&scene, &last, 2, |met| {
            let instance = |pod: &Value| pod["metadata"]["labels"]["posse.dev/instance"].clone();
            assert!(met.iter().all(|pod| instance(pod) == instance(&met[0])), "{}", describe(met));
        });
    }
    last.expect_exit(0);
    assert_eq!(last.stdout(), "the end\n", "the driver's output; it said:\n{}", last.stderr());
    for (name, n) in &*gate.made.lock().expect("no panic in here") {
        assert_eq!(*n, 1, "{name} was made {n} times");
    }
    let calls = gate.calls.lock().expect("no panic in here").clone();
    finish(scene);
    (calls, is_struck)
}

/// The pod of the driver fails or is deleted.
fn end_driver(scene: &Scene<'_>, pod: &Value, heir: Heir) {
    match heir {
        Heir::Same => {}
        Heir::AfterFailure => {
            scene.end(pod, End::Exit(137));
            wait_for(PATIENCE, "the driver's pod to fail", || {
                scene.pod(name_of(pod)).is_some_and(|pod| is_over(&pod))
            });
        }
        Heir::AfterLoss => scene.remove(pod),
    }
}

/// The drivers' pods are deleted; then nothing may be left.
fn finish(scene: Scene<'_>) {
    for pod in scene.pods().iter().filter(|pod| name_of(pod).starts_with("driver-")) {
        scene.remove(pod);
    }
    scene.finish();
}

/// Plays a run without a kill, and then one for each of its calls, each moment and each successor
/// that `takes` accepts.
fn kill_at_every_call(server: &dyn Server, takes: impl Fn(usize, usize, usize) -> bool) {
    let began = Instant::now();
    let heirs = [Heir::Same, Heir::AfterFailure, Heir::AfterLoss];
    let mut jobs = Vec::new();
    let mut n_all = 0;
    for (h, heir) in heirs.into_iter().enumerate() {
        let (calls, _) = play(server, &Job { heir, call: 0, moment: Moment::Unsent });
        println!("kill_9 {heir:?}: N = {} calls: {}", calls.len(), summary(&calls));
        for call in 1..=calls.len() {
            for (m, moment) in MOMENTS.into_iter().enumerate() {
                n_all += 1;
                if takes(call, m, h) {
                    jobs.push(Job { heir, call, moment });
                }
            }
        }
    }
    let n_struck = AtomicUsize::new(0);
    runner::each_of(&jobs, THREADS, |job| {
        let (_, is_struck) = play(server, job);
        n_struck.fetch_add(usize::from(is_struck), Ordering::SeqCst);
    });
    let n_struck = n_struck.into_inner();
    println!(
        "kill_9: {n_struck} kills in {} runs, of {n_all} calls and moments; {} runs had fewer calls; \
         {:.0} s",
        jobs.len(),
        jobs.len() - n_struck,
        began.elapsed().as_secs_f64()
    );
    // A run may make one LIST less than the recorded one, but not many.
    assert!(n_struck * 10 >= jobs.len() * 8, "{n_struck} kills in {} runs", jobs.len());
}

/// The number of calls of each kind.
fn summary(calls: &[String]) -> String {
    let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
    for call in calls {
        let (method, path) = call.split_once(' ').unwrap_or((call, ""));
        let kind = path.split('/').rfind(|part| matches!(*part, "pods" | "leases"));
        *kinds.entry(format!("{method} {}", kind.unwrap_or(path))).or_insert(0) += 1;
    }
    kinds.iter().map(|(kind, n)| format!("{n} {kind}")).collect::<Vec<_>>().join(", ")
}

/// In full: each call, moment and successor, on the real server with the moments in turn. Else each call once, with
/// moment and successor in turn.
pub fn kill_9_at_every_call(server: &dyn Server) {
    let (in_full, is_real) = (runner::is_in_full(), server.real().is_some());
    kill_at_every_call(server, |call, m, h| match (in_full, is_real) {
        (true, false) => true,
        (true, true) => (call + h) % 3 == m,
        (false, _) => (call % 3, call / 3 % 3) == (m, h),
    });
}
