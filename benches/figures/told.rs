//! What posse's events tell of executors, and what a watch tells of their pods: two accounts of the same
//! executors, for programs that compare them.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::sync_channel;
use std::thread;

use serde_json::Value;

use crate::support::http::Client;
use crate::support::node::{Line, watch_pods};

/// The most queued changes of pods.
pub const LINES_MAX: usize = 10_000;

/// Gives all changes of the pods in a namespace to `learn`, as long as the program runs.
pub fn follow_pods(
    client: Client,
    namespace: &'static str,
    learn: impl FnMut(Line) + Send + 'static,
) {
    let (sender, lines) = sync_channel(LINES_MAX);
    thread::spawn(move || watch_pods(&client, namespace, &AtomicBool::new(false), &sender));
    thread::spawn(move || lines.into_iter().for_each(learn));
}

/// What posse has told of its executors.
#[derive(Debug, Default)]
pub struct Told {
    requested: BTreeMap<u64, u32>,
    /// The ends: each event with its reason.
    ends: BTreeMap<u64, Vec<String>>,
    /// The newest event.
    seq: u64,
    /// Events that are missing.
    pub missing: Vec<String>,
}

impl Told {
    /// For events that follow this one.
    pub fn after(seq: u64) -> Self {
        Self { seq, ..Self::default() }
    }

    pub fn learn(&mut self, event: &Value) {
        let text = |name: &str| event[name].as_str().unwrap_or_default().to_owned();
        let seq = event["seq"].as_u64().unwrap_or_default();
        if seq != self.seq + 1 {
            self.missing.push(format!("{seq} follows {}", self.seq));
        }
        self.seq = seq;
        let id = event["executor"].as_u64().unwrap_or_default();
        match event["event"].as_str().unwrap_or_default() {
            "executor_requested" => *self.requested.entry(id).or_default() += 1,
            kind @ ("executor_lost" | "executor_deleted" | "executor_completed") => {
                let why = format!("{kind} {}{}", text("reason"), text("cause"));
                self.ends.entry(id).or_default().push(why);
            }
            "missed" => self.missing.push(event.to_string()),
            _ => {}
        }
    }

    pub fn n_requested(&self) -> usize {
        self.requested.len()
    }

    pub fn has_requested(&self, id: u64) -> bool {
        self.requested.contains_key(&id)
    }

    /// How many executors have no end yet.
    pub fn n_open(&self) -> usize {
        self.requested.keys().filter(|id| !self.ends.contains_key(id)).count()
    }

    /// The end of each executor, or what is wrong if it was not requested once and its end told once.
    pub fn ends(&self) -> impl Iterator<Item = (u64, Result<&str, String>)> {
        self.requested.iter().map(|(&id, n)| {
            let end = match self.ends.get(&id).map_or(&[][..], Vec::as_slice) {
                [end] if *n == 1 => Ok(end.as_str()),
                ends => Err(format!("executor {id}: requested {n} times, its ends: {ends:?}")),
            };
            (id, end)
        })
    }

    /// How often each kind of end was told.
    pub fn kinds(&self) -> BTreeMap<&str, usize> {
        let mut kinds = BTreeMap::new();
        for end in self.ends.values().flatten() {
            *kinds.entry(end.as_str()).or_default() += 1;
        }
        kinds
    }
}
