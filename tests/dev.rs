//! Tests of whole embedded clusters over their sockets: pods as real processes, controllers, faults.

// Items that are `pub` in a module are used by other modules of this program only.
#![allow(unreachable_pub)]
#![allow(clippy::unwrap_used)]

mod dev {
    mod clusters;
    mod controllers;
    mod faults;
    mod http;
    mod nodes;
    mod tls;
}
