//! What each namespace uses of its limits, and which upload ends if there is no room for another.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use posse_serve::Client;

/// A bundle counts as this many bytes at least: a file, its label and its entry in the index.
const BUNDLE_COST_MIN: u64 = 4 << 10;

/// How far an upload must be behind its pace before it is ended for another one.
const PATIENCE: Duration = Duration::from_secs(1);

/// Limits of bundles.
#[derive(Clone, Copy, Debug)]
pub struct Quotas {
    /// Bytes of one bundle.
    pub bundle_bytes_max: u64,
    /// Bytes of all bundles of a namespace.
    pub namespace_bytes_max: u64,
    /// Number of bundles of a namespace.
    pub namespace_bundles_max: usize,
}

/// The client of an upload.
pub(super) trait Uploader: fmt::Debug + Send + Sync {
    /// How far it is behind its pace.
    fn behind(&self) -> Duration;
    /// Ends its body early.
    fn cut(&self);
}

impl Uploader for Client {
    fn behind(&self) -> Duration {
        Self::behind(self)
    }

    fn cut(&self) {
        Self::cut(self);
    }
}

/// A running upload.
#[derive(Debug)]
struct Upload {
    number: u64,
    namespace: String,
    n_received: u64,
    client: Arc<dyn Uploader>,
}

/// What the stored bundles of a namespace use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Usage {
    n_bundles: usize,
    n_bytes: u64,
}

impl Usage {
    /// Of bundles with these lengths.
    pub(super) fn of(lengths: impl Iterator<Item = u64>) -> Self {
        let none = Self { n_bundles: 0, n_bytes: 0 };
        lengths.fold(none, |Self { n_bundles, n_bytes }, length| Self {
            n_bundles: n_bundles + 1,
            n_bytes: n_bytes.saturating_add(length.max(BUNDLE_COST_MIN)),
        })
    }
}

/// Why an upload has no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoRoom {
    /// The upload was ended for another one, because it was slow.
    Displaced,
    /// The bundle would exceed the bytes of its namespace.
    Bytes { used: u64, max: u64 },
    /// The namespace has its maximum number of bundles.
    Bundles { max: usize },
}

impl fmt::Display for NoRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Displaced => f.write_str(
                "the upload was slow, and its namespace has no room for it and a faster one",
            ),
            Self::Bytes { used, max } => write!(
                f,
                "the bundle does not fit into its namespace's limit: {used} of {max} bytes are used"
            ),
            Self::Bundles { max } => write!(f, "the namespace already has its {max} bundles"),
        }
    }
}

/// The running uploads, at most one for each connection.
#[derive(Debug, Default)]
pub(super) struct Uploads {
    running: Vec<Upload>,
    n_begun: u64,
}

impl Uploads {
    pub(super) fn len(&self) -> usize {
        self.running.len()
    }

    /// Begins an upload, if the bundle fits beside the stored ones and the bytes that were received
    /// of others. Announced lengths of others do not count: they may never come. Returns the
    /// upload's number.
    pub(super) fn begin(
        &mut self,
        namespace: &str,
        n_bytes: u64,
        client: Arc<dyn Uploader>,
        stored: Usage,
        quotas: &Quotas,
    ) -> Result<u64, NoRoom> {
        self.n_begun += 1;
        let number = self.n_begun;
        let namespace = namespace.to_owned();
        self.running.push(Upload { number, namespace, n_received: 0, client });
        let room = self.make_room(number, n_bytes, stored, quotas);
        if room.is_err() {
            self.end(number);
        }
        room.map(|()| number)
    }

    /// Counts the bytes of an upload.
    ///
    /// # Errors
    /// The namespace has no room for them, or the upload was ended for another one.
    pub(super) fn receive(
        &mut self,
        number: u64,
        n_received: u64,
        stored: Usage,
        quotas: &Quotas,
    ) -> Result<(), NoRoom> {
        let upload = self.running.iter_mut().find(|upload| upload.number == number);
        upload.ok_or(NoRoom::Displaced)?.n_received = n_received;
        self.make_room(number, n_received, stored, quotas)
    }

    /// Forgets an upload. False if it was ended for another one.
    pub(super) fn end(&mut self, number: u64) -> bool {
        let n_before = self.running.len();
        self.running.retain(|upload| upload.number != number);
        self.running.len() < n_before
    }

    /// Checks that `n_bytes` of an upload fit. While they do not, ends the slowest upload of the
    /// namespace, if that is another one.
    fn make_room(
        &mut self,
        number: u64,
        n_bytes: u64,
        stored: Usage,
        quotas: &Quotas,
    ) -> Result<(), NoRoom> {
        let own = self.running.iter().find(|upload| upload.number == number);
        let namespace = own.ok_or(NoRoom::Displaced)?.namespace.clone();
        loop {
            let rivals = || self.running.iter().filter(|upload| upload.namespace == namespace);
            let others = rivals().filter(|upload| upload.number != number);
            let others = Usage::of(others.map(|upload| upload.n_received));
            let used = stored.n_bytes.saturating_add(others.n_bytes);
            let max = quotas.namespace_bytes_max;
            let no_room = if stored.n_bundles + others.n_bundles >= quotas.namespace_bundles_max {
                NoRoom::Bundles { max: quotas.namespace_bundles_max }
            } else if used.saturating_add(n_bytes.max(BUNDLE_COST_MIN)) > max {
                NoRoom::Bytes { used, max }
            } else {
                return Ok(());
            };
            let slowest = rivals().max_by_key(|upload| (upload.client.behind(), upload.number));
            let Some(slowest) = slowest
                .filter(|slowest| slowest.number != number && slowest.client.behind() >= PATIENCE)
            else {
                return Err(no_room);
            };
            log::warn!("ended a slow upload for {namespace}: another one needs its room");
            slowest.client.cut();
            let slowest = slowest.number;
            self.end(slowest);
        }
    }
}
