//! The figures of the rounds: one table, one JSON.

use std::fmt::{self, Write as _};

use serde_json::{Value, json};

use crate::figures::quantile;
use crate::peer::Peer;

/// One round of one peer.
pub struct Figures {
    pub peer: Peer,
    /// Creates a second, from the arrival of the first to the answer of the last.
    pub rate: f64,
    /// Processor time for each executor until all are seen running, microseconds.
    pub cpu_us: f64,
    pub memory_kb: u64,
    pub replaced_ms: Vec<f64>,
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { peer, rate, cpu_us, memory_kb, .. } = self;
        let memory = *memory_kb as f64 / 1e3;
        write!(f, "{}: {rate:.0}/s, {cpu_us:.0} us each, {memory:.1} MB", peer.name())
    }
}

/// For each executor, from the start until it is seen running; connections in all.
pub struct Calls {
    pub peer: Peer,
    pub calls: f64,
    pub connections: u64,
    pub sent: f64,
    pub received: f64,
}

fn of(rounds: &[Figures], peer: Peer, figure: impl Fn(&Figures) -> f64) -> Vec<f64> {
    rounds.iter().filter(|round| round.peer == peer).map(figure).collect()
}

fn replaced(rounds: &[Figures], peer: Peer) -> Vec<f64> {
    let of_peer = rounds.iter().filter(|round| round.peer == peer);
    of_peer.flat_map(|round| round.replaced_ms.iter().copied()).collect()
}

/// `median (least .. most)`.
fn spread(values: &mut [f64], digits: usize) -> String {
    if values.is_empty() {
        return "-".to_owned();
    }
    let mut at = |percent| quantile(values, percent);
    let (median, least, most) = (at(50), at(0), at(100));
    format!("{median:.digits$} ({least:.digits$} .. {most:.digits$})")
}

/// The rates of a peer by those of the bare loop in the same round.
fn ratios(rounds: &[Figures], peer: Peer) -> Vec<f64> {
    let limits = of(rounds, Peer::LoopBare, |figures| figures.rate);
    of(rounds, peer, |figures| figures.rate).iter().zip(limits).map(|(a, b)| a / b).collect()
}

pub fn table(peers: &[Peer], rounds: &[Figures], calls: &[Calls]) -> String {
    let mut table = String::from(
        "| peer | creates/s | of the bare loop's rate | failed -> successor created, ms | RSS, MB \
         | processor time an executor, us | calls an executor | KB sent, received |\n\
         |---|---|---|---|---|---|---|---|\n",
    );
    for &peer in peers.iter().filter(|peer| rounds.iter().any(|round| round.peer == **peer)) {
        let counted = calls.iter().find(|calls| calls.peer == peer).map_or_else(
            || "- | -".to_owned(),
            |calls| {
                let kb = |bytes: f64| bytes / 1e3;
                format!("{:.2} | {:.1}, {:.1}", calls.calls, kb(calls.sent), kb(calls.received))
            },
        );
        let row = [
            peer.about().to_owned(),
            spread(&mut of(rounds, peer, |figures| figures.rate), 0),
            spread(&mut ratios(rounds, peer), 2),
            spread(&mut replaced(rounds, peer), 1),
            spread(&mut of(rounds, peer, |figures| figures.memory_kb as f64 / 1e3), 1),
            spread(&mut of(rounds, peer, |figures| figures.cpu_us), 0),
            counted,
        ];
        writeln!(table, "| {} |", row.join(" | ")).expect("a String takes everything");
    }
    table
}

pub fn json(peers: &[Peer], executors: u32, rounds: &[Figures], calls: &[Calls]) -> Value {
    let rows = peers.iter().map(|&peer| {
        let counted = calls.iter().find(|calls| calls.peer == peer).map(|calls| {
            json!({"calls": calls.calls, "connections": calls.connections,
                   "sent_bytes": calls.sent, "received_bytes": calls.received})
        });
        json!({
            "peer": peer.name(), "about": peer.about(),
            "creates_per_s": of(rounds, peer, |figures| figures.rate),
            "ratios_to_loop_bare": ratios(rounds, peer),
            "replaced_ms": replaced(rounds, peer),
            "rss_kb": of(rounds, peer, |figures| figures.memory_kb as f64),
            "processor_us_per_executor": of(rounds, peer, |figures| figures.cpu_us),
            "per_executor": counted,
        })
    });
    json!({"executors": executors, "peers": rows.collect::<Vec<_>>()})
}
