//! Lease settings for the tests of this module.

use std::sync::Arc;

use crate::leases::holder;
use crate::leases::thread::LeaseSettings;
use posse_core::machines::lease::{HolderWait, LeaseScope, LeaseTerms};
use posse_testing::{TestServer, plain_client};
use posse_wire::k8s::labels::Selection;

/// Settings of an instance's Lease on a test server.
pub(super) fn settings(server: &TestServer) -> LeaseSettings {
    LeaseSettings {
        http: plain_client(server.address),
        scope: LeaseScope::Instance,
        terms: LeaseTerms::USUAL,
        wait: HolderWait::No,
        ended_pod: None,
        namespace: "ns".to_owned(),
        selection: Selection { app: "w".to_owned(), instance: "a1b2c".to_owned() },
        owners: Vec::new(),
        common: Arc::default(),
        identity: holder::identity(None, 1),
    }
}
