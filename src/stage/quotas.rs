//! What each namespace uses of its limits, and which upload ends if there is no room for another.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::serve::Client;
use crate::stage::store::{Bundle, StoreError};
use crate::wire::bundle::Label;

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

/// The stored bundles and the running uploads. There are at most `BUNDLES_MAX`, so linear searches
/// are fast enough.
#[derive(Debug, Default)]
pub(super) struct Index {
    pub(super) bundles: Vec<Arc<Bundle>>,
    uploads: Vec<Upload>,
    n_begun: u64,
}

impl Index {
    /// Stored bundles and running uploads.
    pub(super) fn len(&self) -> usize {
        self.bundles.len() + self.uploads.len()
    }

    /// Begins an upload, if the bundle fits beside the stored ones and the bytes that were received
    /// of others. Announced lengths of others do not count: they may never come. Returns the
    /// upload's number.
    pub(super) fn begin(
        &mut self,
        label: &Label,
        client: Arc<dyn Uploader>,
        quotas: &Quotas,
    ) -> Result<u64, StoreError> {
        self.n_begun += 1;
        let number = self.n_begun;
        let namespace = label.namespace.clone();
        self.uploads.push(Upload { number, namespace, n_received: 0, client });
        let room = self.make_room(number, label.bytes, quotas);
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
        quotas: &Quotas,
    ) -> Result<(), StoreError> {
        let upload = self.uploads.iter_mut().find(|upload| upload.number == number);
        upload.ok_or(StoreError::Displaced)?.n_received = n_received;
        self.make_room(number, n_received, quotas)
    }

    /// Forgets an upload. False if it was ended for another one.
    pub(super) fn end(&mut self, number: u64) -> bool {
        let n_before = self.uploads.len();
        self.uploads.retain(|upload| upload.number != number);
        self.uploads.len() < n_before
    }

    /// Checks that `n_bytes` of an upload fit. While they do not, ends the slowest upload of the
    /// namespace, if that is another one.
    fn make_room(&mut self, number: u64, n_bytes: u64, quotas: &Quotas) -> Result<(), StoreError> {
        let position = self.uploads.iter().position(|upload| upload.number == number);
        let own = position.ok_or(StoreError::Displaced)?;
        let namespace = self.uploads[own].namespace.clone();
        loop {
            let stored = self.bundles.iter().map(|bundle| &bundle.label);
            let stored = stored.filter(|label| label.namespace == namespace).map(|l| l.bytes);
            let others = self.uploads.iter().filter(|upload| upload.namespace == namespace);
            let others = others.filter(|upload| upload.number != number).map(|u| u.n_received);
            let costs: Vec<u64> = stored.chain(others).map(cost).collect();
            let used = costs.iter().sum::<u64>();
            let max = quotas.namespace_bytes_max;
            let error = if costs.len() >= quotas.namespace_bundles_max {
                StoreError::TooManyOfNamespace { max: quotas.namespace_bundles_max }
            } else if used.saturating_add(cost(n_bytes)) > max {
                StoreError::Quota { used, max }
            } else {
                return Ok(());
            };
            let rivals = self.uploads.iter().filter(|upload| upload.namespace == namespace);
            let slowest = rivals.max_by_key(|upload| (upload.client.behind(), upload.number));
            let Some(slowest) = slowest
                .filter(|slowest| slowest.number != number && slowest.client.behind() >= PATIENCE)
            else {
                return Err(error);
            };
            log::warn!("ended a slow upload for {namespace}: another one needs its room");
            slowest.client.cut();
            let slowest = slowest.number;
            self.end(slowest);
        }
    }
}

fn cost(n_bytes: u64) -> u64 {
    n_bytes.max(BUNDLE_COST_MIN)
}
