//! What many applications cost one real API server: calls, bytes and processor time at rest, while all of them
//! restart at once, and while the server itself restarts. `KUBEBUILDER_ASSETS=... cargo bench --bench many_apps
//! [-- APPLICATIONS MINUTES]`. A test program plays scheduler and kubelet. Calls are those of the server's audit
//! log, where a watch counts when it begins; beside them stand those of the server's metric
//! `apiserver_request_total`, which has the watches that ended, and the node's calls. Bytes are those of the
//! connections, with TLS.

#![allow(unreachable_pub, dead_code)]
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]

#[path = "figures/audit.rs"]
mod audit_log;
mod figures;
#[path = "figures/relay.rs"]
mod relay;
#[path = "../tests/support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::fs::File;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use audit_log::{AuditLog, Entry};
use figures::{cpu, memory, quantile, spread};
use relay::{Relay, Traffic};
use serde_json::{Value, json};
use support::access::Access;
use support::http::Client;
use support::posse::{Posse, Run, command, said};
use support::real::Real;
use support::reaper::Guarded;
use support::scene::TempDir;
use support::server::{Server as _, Who};
use support::wait::{PATIENCE, wait_value};

const APPLICATIONS: u32 = 300;
const EXECUTORS: u32 = 10;
/// How many start at once at first: their executors cost much more than they.
const WAVE: u32 = 25;
/// How long they are watched at rest, in minutes.
const MINUTES: u32 = 5;
const LIMIT: Duration = Duration::from_secs(1_200);
/// The metrics of a server have some megabytes.
const METRICS_BYTES_MAX: u64 = 64 << 20;
const NAMESPACE: &str = "many";
/// How often `posse apps` is called, and how many readers its page has for how long.
const LOOKS: usize = 5;
const READERS: usize = 20;
const READ: Duration = Duration::from_secs(30);
const READ_PAUSE: Duration = Duration::from_secs(5);
/// How long the server is away when it restarts.
const AWAY: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    let Some(assets) = std::env::var_os("KUBEBUILDER_ASSETS").map(PathBuf::from) else {
        println!("KUBEBUILDER_ASSETS names no control plane: nothing is measured");
        return ExitCode::SUCCESS;
    };
    let mut numbers = std::env::args().skip(1).filter_map(|arg| arg.parse::<u32>().ok());
    let n = numbers.next().unwrap_or(APPLICATIONS);
    let minutes = numbers.next().unwrap_or(MINUTES);
    let real = Real::start(&assets, false);
    let dir = TempDir::new("many");
    real.open_namespace(NAMESPACE);
    let _node = real.node(NAMESPACE, dir.path());
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [
        {"name": "worker", "image": "example.com/worker:1", "command": ["worker"]}]}});
    std::fs::write(dir.path().join("pod.json"), pod.to_string()).unwrap();
    let relay = Relay::start(&real.access(Who::Posse).url);
    let access = Access { url: relay.url(), ..real.access(Who::Posse) };
    let log = AuditLog::open(&real.audit_log().unwrap());
    let mut bench = Bench { real, log, dir, relay, access, n };

    let before = bench.counts(&[]);
    let apps = bench.start(WAVE);
    bench.print("start", &before, &apps, 1.0);

    let before = bench.counts(&apps);
    thread::sleep(Duration::from_secs(60) * minutes);
    bench.print("a minute at rest", &before, &apps, f64::from(minutes));
    let mut rss: Vec<f64> =
        apps.iter().map(|posse| memory(posse.pid()).rss_kb as f64 / 1e3).collect();
    println!(
        "  RSS of one: {:.1} MB, at most {:.1} MB",
        quantile(&mut rss, 50),
        quantile(&mut rss, 100)
    );

    bench.look();

    let before = bench.counts(&[]);
    // As when their node, or all of them, get a new version: nobody says goodbye.
    apps.into_iter().for_each(Posse::kill);
    let apps = bench.start(n);
    bench.print("restart of all at once", &before, &apps, 1.0);

    let before = bench.counts(&apps);
    bench.real.down();
    thread::sleep(AWAY);
    bench.real.up();
    bench.wait_watched();
    bench.print("restart of the server, until all watch again", &before, &apps, 1.0);
    let before = bench.counts(&apps);
    thread::sleep(Duration::from_secs(60));
    bench.print("the minute after it", &before, &apps, 1.0);
    ExitCode::SUCCESS
}

/// Reads the page's state for a while, as an open page does. Gives the milliseconds that each answer took.
fn read_page(browser: Client) -> JoinHandle<Vec<f64>> {
    thread::spawn(move || {
        let (begun, mut times) = (Instant::now(), Vec::new());
        while begun.elapsed() < READ {
            let asked = Instant::now();
            browser.get("/v1/apps").ok();
            times.push(asked.elapsed().as_secs_f64() * 1e3);
            thread::sleep(READ_PAUSE);
        }
        times
    })
}

struct Bench {
    real: Real,
    log: AuditLog,
    dir: TempDir,
    relay: Relay,
    access: Access,
    n: u32,
}

/// What has been counted so far.
struct Counts {
    n_entries: usize,
    /// By the server's metric, and its processor time: a server that was started again counts from 0.
    pid: u32,
    n_by_metric: f64,
    traffic: Traffic,
    server: Duration,
    ours: Duration,
    at: Instant,
}

impl Bench {
    /// Starts all applications, so many at once, and waits until each of them knows its executors. One that the server
    /// does not let begin is started again, as its kubelet would.
    fn start(&self, n_at_once: u32) -> Vec<Posse> {
        let (mut apps, mut n_again) = (Vec::new(), 0);
        for first in (0..self.n).step_by(n_at_once as usize) {
            let mut wave: Vec<Posse> =
                (first..self.n.min(first + n_at_once)).map(|i| self.run(i)).collect();
            for (i, posse) in (first..).zip(&mut wave) {
                wait_value(LIMIT, "the executors of an application", || {
                    if posse.is_over() {
                        *posse = self.run(i);
                        n_again += 1;
                    }
                    let body = match posse.control().try_call("GET", "/v1/status", "") {
                        Ok((200, body)) => body,
                        Ok((code, body)) => return Err(format!("{code}: {body}")),
                        Err(error) => return Err(error.to_string()),
                    };
                    let status: Value = serde_json::from_str(&body).unwrap();
                    let running = &status["groups"][0]["running"];
                    if *running == EXECUTORS { Ok(()) } else { Err(running.to_string()) }
                });
            }
            apps.extend(wave);
        }
        println!("{n_again} were not let begin by the server, and were started again");
        apps
    }

    fn run(&self, i: u32) -> Posse {
        let settings = json!({"app": format!("app-{i}"), "failures": {"app": "off"}});
        let run = Run::new(self.dir.path(), NAMESPACE, &self.access).executors(EXECUTORS);
        let posse = run.settings(settings).instance("many").env("POSSE_LOG", "warn").start();
        posse.may_end();
        posse
    }

    /// `posse apps` a few times, and its page with some readers.
    fn look(&mut self) {
        let kubeconfig = self.dir.path().join("admin.kubeconfig");
        let url = self.relay.url();
        let access = Access { url, ..self.real.access(Who::Admin) };
        std::fs::write(&kubeconfig, access.kubeconfig(NAMESPACE)).unwrap();
        // Runs on this host are asked by their sockets, and count for nothing here: the folder is another one.
        let dir = TempDir::new("look");
        let mut times = Vec::new();
        for _ in 0..LOOKS {
            let begun = Instant::now();
            let mut apps = command(dir.path());
            apps.args(["apps", "-o", "json", "--kubeconfig"]).arg(&kubeconfig);
            let output = apps.output().unwrap();
            assert!(output.status.success(), "{}", said(&output));
            times.push(begun.elapsed().as_secs_f64() * 1e3);
            let n = serde_json::from_slice::<Value>(&output.stdout).unwrap();
            assert_eq!(n.as_array().map(Vec::len), Some(self.n as usize));
        }
        println!("posse apps: {} ms", spread(&mut times));
        let printed = dir.path().join("printed");
        let mut page = command(dir.path());
        page.args(["apps", "--page", "--kubeconfig"]).arg(&kubeconfig);
        let page = Guarded::spawn(page.stdout(File::create(&printed).unwrap())).unwrap();
        let address = wait_value(PATIENCE, "the page's address", || {
            let text = std::fs::read_to_string(&printed).unwrap();
            text.strip_suffix('\n').map(str::to_owned).ok_or(text)
        });
        let (url, token) = address.split_once("/#token=").unwrap();
        let (url, token) = (url.to_owned(), Some(token.to_owned()));
        let browser = Client::new(&Access { url, token, ..Access::default() }, "test-browser");
        let before = self.counts(&[]);
        let readers: Vec<_> = (0..READERS).map(|_| browser.clone()).map(read_page).collect();
        let mut times: Vec<f64> =
            readers.into_iter().flat_map(|reader| reader.join().unwrap()).collect();
        self.print("the page's readers", &before, &[], 1.0);
        let bytes = browser.get("/v1/apps").ok().to_string().len();
        println!(
            "  the page: {} answers of {bytes} bytes, {} ms; {}, {:.2} s of processor time",
            times.len(),
            spread(&mut times),
            memory(page.pid()),
            cpu(page.pid()).as_secs_f64()
        );
    }

    /// Waits until the server has a watch of each application, besides the node's.
    fn wait_watched(&self) {
        wait_value(LIMIT, "all to watch", || {
            let n = self
                .metric("apiserver_longrunning_requests", &["verb=\"WATCH\"", "resource=\"pods\""]);
            if n >= f64::from(self.n + 1) { Ok(()) } else { Err(n) }
        });
    }

    /// The sum of a metric of the server over the series with these labels.
    fn metric(&self, name: &str, labels: &[&str]) -> f64 {
        let admin = self.real.client(Who::Admin, "test-admin");
        let Ok(answer) = admin.raw("GET", "/metrics", &[], &[], Some(LIMIT)) else { return 0.0 };
        let text = answer.into_body().with_config().limit(METRICS_BYTES_MAX).read_to_string();
        let text = text.unwrap_or_default();
        let has = |line: &&str| {
            line.starts_with(&format!("{name}{{"))
                && labels.iter().all(|label| line.contains(label))
        };
        text.lines()
            .filter(has)
            .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
            .sum()
    }

    fn counts(&mut self, apps: &[Posse]) -> Counts {
        self.log.update();
        Counts {
            n_entries: self.log.entries.len(),
            pid: self.real.apiserver_pid(),
            n_by_metric: ["pods", "leases"]
                .map(|resource| {
                    self.metric("apiserver_request_total", &[&format!("resource=\"{resource}\"")])
                })
                .into_iter()
                .sum(),
            traffic: self.relay.traffic(),
            server: cpu(self.real.apiserver_pid()),
            ours: apps.iter().map(|posse| cpu(posse.pid())).sum(),
            at: Instant::now(),
        }
    }

    fn print(&mut self, what: &str, before: &Counts, apps: &[Posse], parts: f64) {
        let now = self.counts(apps);
        let took_s = (now.at - before.at).as_secs_f64();
        println!("{what}, {} applications of {EXECUTORS} executors, {took_s:.0} s:", self.n);
        let (mut kinds, mut seconds) = (BTreeMap::new(), BTreeMap::new());
        let ours = |entry: &&Entry| entry.agent.starts_with("posse/");
        for call in self.log.entries[before.n_entries..now.n_entries].iter().filter(ours) {
            *kinds.entry(format!("{} {}", call.what, call.code)).or_insert(0_u32) += 1;
            *seconds.entry(call.arrival_us / 1_000_000).or_insert(0_u32) += 1;
        }
        let n_calls: u32 = kinds.values().sum();
        for (kind, n) in &kinds {
            println!("  {kind}: {:.1}", f64::from(*n) / parts);
        }
        let is_same = now.pid == before.pid;
        let by_metric = now.n_by_metric - if is_same { before.n_by_metric } else { 0.0 };
        let server = now.server - if is_same { before.server } else { Duration::ZERO };
        let mb = |now: u64, before: u64| (now - before) as f64 / 1e6 / parts;
        println!(
            "  in all {:.0} calls ({:.0} by the metric), at most {} in a second; {:.2} MB to the server, {:.2} MB from it, {} new connections",
            f64::from(n_calls) / parts,
            by_metric / parts,
            seconds.into_values().max().unwrap_or(0),
            mb(now.traffic.sent, before.traffic.sent),
            mb(now.traffic.received, before.traffic.received),
            now.traffic.n_connections - before.traffic.n_connections,
        );
        println!(
            "  processor time: {:.2} s of the server, {:.2} s of all applications",
            server.as_secs_f64() / parts,
            (now.ours - before.ours).as_secs_f64() / parts,
        );
    }
}
