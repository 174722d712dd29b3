//! Lease settings for the tests of this module.

use crate::core::machines::lease::LeaseScope;
use crate::kube::testing::{TestServer, plain_client};
use crate::runtime::leases::handle::LeaseSettings;
use crate::runtime::leases::holder;
use crate::wire::labels::Selection;

/// Settings of an instance's Lease on a test server.
pub(super) fn settings(server: &TestServer) -> LeaseSettings {
    LeaseSettings {
        http: plain_client(server.address),
        scope: LeaseScope::Instance,
        waits_for_holder: false,
        namespace: "ns".to_owned(),
        selection: Selection { app: "w".to_owned(), instance: "a1b2c".to_owned() },
        owner: None,
        identity: holder::identity(None, 1),
    }
}
