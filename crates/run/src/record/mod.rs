//! The record of a run: where it is, how it is opened, and the thread that writes it. It holds the last fact about each
//! topic (`posse_core::model::fact`), as lines of JSON.

mod cluster;
mod file;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{RecvTimeoutError, Sender, bounded};
use log::{info, warn};

use crate::inbox::Message;
use crate::worker::Worker;
use posse_core::model::fact::Fact;
use posse_core::model::input::{Input, RecordError};
use posse_kube::api::objects::Objects;
use posse_kube::http::WriteLimit;
use posse_wire::control::record::RecordOwner;
use posse_wire::k8s::common_metadata::CommonMetadata;
use posse_wire::pod::build::OwnerRef;

use self::cluster::ClusterRecord;
use self::file::FileRecord;
pub use self::file::is_of_name;

/// The stack of the thread that writes, bytes.
const STACK_BYTES: usize = 256 << 10;
/// How often it is looked at whether others have changed the record.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// How long the end of a run waits for a write that is under way.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// What a record in the cluster is made with.
#[derive(Clone, Debug)]
pub struct ClusterPlace {
    pub objects: Objects,
    pub app: String,
    /// The Job, or the driver's pod.
    pub owner: OwnerRef,
    pub common: Arc<CommonMetadata>,
}

/// Why a record cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpenError {
    /// The server does not permit it. What to do.
    Forbidden(String),
    /// No file can have this name here. What to do.
    Misnamed(String),
    /// It may be opened later, or by a process elsewhere. Why not now.
    Unavailable(String),
    /// It is not to be read by this posse: what is wrong, and what to do.
    Unusable(String),
}

/// An open record.
#[derive(Debug)]
pub struct Record {
    store: Store,
}

#[derive(Debug)]
enum Store {
    Cluster(Box<ClusterRecord>),
    File(FileRecord),
}

impl Record {
    /// Opens the record in the cluster, and takes it over from an earlier process: its writes are refused from now on.
    pub fn in_cluster(place: ClusterPlace) -> Result<(Self, Vec<Fact>), OpenError> {
        let (record, facts) = ClusterRecord::open(place)?;
        Ok((Self { store: Store::Cluster(Box::new(record)) }, facts))
    }

    /// Opens the record in this file, or creates it. `limit`: how long the Leases permit writes.
    pub fn in_file(
        path: PathBuf,
        owner: &RecordOwner,
        limit: Option<WriteLimit>,
    ) -> Result<(Self, Vec<Fact>), OpenError> {
        let (record, facts) = FileRecord::open(path, owner, limit)?;
        Ok((Self { store: Store::File(record) }, facts))
    }

    /// It is in the cluster, and there was nothing of it.
    pub fn is_first(&self) -> bool {
        matches!(&self.store, Store::Cluster(record) if record.is_first())
    }

    fn append(&mut self, facts: Vec<Fact>) -> Result<(), RecordError> {
        match &mut self.store {
            Store::Cluster(record) => record.append(facts),
            Store::File(record) => record.append(&facts).map_err(RecordError::failed),
        }
    }

    /// Looks whether it is as it was written.
    fn check(&mut self) -> Result<(), RecordError> {
        match &mut self.store {
            Store::Cluster(record) => record.check(),
            Store::File(record) => record.check().map_err(RecordError::failed),
        }
    }

    /// Writes these last facts. A file without any is removed. ConfigMaps go with their owner: to the next pod of a Job it
    /// is a loss that there are none.
    fn keep(&mut self, facts: Vec<Fact>) -> Result<(), RecordError> {
        if !facts.is_empty() {
            self.append(facts)?;
        }
        match &self.store {
            Store::File(record) if record.is_empty() => self.remove(),
            Store::Cluster(_) | Store::File(_) => Ok(()),
        }
    }

    /// The run has nothing left to do, and nobody needs the record.
    fn remove(&mut self) -> Result<(), RecordError> {
        match &mut self.store {
            Store::Cluster(record) => record.remove(),
            Store::File(record) => record.remove().map_err(RecordError::failed),
        }
    }
}

/// What becomes of the record at the end of the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordEnd {
    /// It gets these last facts, and the next process of the run goes on from it.
    Keep(Vec<Fact>),
    /// All work is done.
    Remove,
}

enum Order {
    Write(Vec<Fact>),
    End(RecordEnd),
}

/// The thread that writes the record.
#[derive(Debug)]
pub struct RecordThread {
    orders: Sender<Order>,
    worker: Worker,
}

impl RecordThread {
    pub fn start(mut record: Record, inbox: Sender<Message>) -> std::io::Result<Self> {
        // One write is under way at a time, and then there is the end.
        let (orders, received) = bounded(2);
        let body = move || {
            let (mut is_failing, mut checked) = (false, Instant::now());
            loop {
                let left = CHECK_INTERVAL.saturating_sub(checked.elapsed());
                match received.recv_timeout(left) {
                    Ok(Order::Write(facts)) => {
                        let answer = record.append(facts);
                        tell(&mut is_failing, answer.as_ref().err());
                        // The send fails if the run has ended: then the end of the record comes next.
                        let _ = inbox.send(Message::Input(Input::Recorded { answer }));
                    }
                    Ok(Order::End(end)) => return finish(&mut record, end),
                    Err(RecvTimeoutError::Timeout) => {
                        checked = Instant::now();
                        let answer = record.check();
                        // That nobody has changed it does not mean that it can be written.
                        if let Err(error) = &answer {
                            tell(&mut is_failing, Some(error));
                        }
                        if answer.as_ref().is_err_and(|error| error.is_taken_over) {
                            let _ = inbox.send(Message::Input(Input::Recorded { answer }));
                        }
                    }
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            }
        };
        let worker = Worker::start("record", STACK_BYTES, body)?;
        Ok(Self { orders, worker })
    }

    /// Writes these facts. `Input::Recorded` answers.
    pub fn write(&self, facts: Vec<Fact>) {
        // The core asks for one write at a time, so there is room.
        let sent = self.orders.try_send(Order::Write(facts));
        debug_assert!(sent.is_ok(), "a write is under way");
    }

    pub fn stop(self, end: RecordEnd) {
        let Self { orders, worker } = self;
        let deadline = Instant::now() + STOP_TIMEOUT;
        let sent = orders.send_deadline(Order::End(end), deadline);
        drop(orders);
        if sent.is_err() || !worker.join_by(deadline) {
            warn!("the record was not written to its end: the server or the disk does not answer");
        }
    }
}

fn finish(record: &mut Record, end: RecordEnd) {
    let (done, what) = match end {
        RecordEnd::Keep(facts) => (record.keep(facts), "not written to its end"),
        RecordEnd::Remove => (record.remove(), "not removed"),
    };
    if let Err(error) = done {
        warn!("the record was {what}: {}", error.why);
    }
}

/// Says once that writes fail, and once that they succeed again.
fn tell(is_failing: &mut bool, error: Option<&RecordError>) {
    match (error, *is_failing) {
        (Some(RecordError { why, .. }), false) => {
            warn!(
                "the record cannot be written, so calls that add something are not answered: {why}"
            );
        }
        (None, true) => info!("the record is written again"),
        (None, false) | (Some(_), true) => {}
    }
    *is_failing = error.is_some();
}
