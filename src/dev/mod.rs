//! The embedded cluster: an API server on loopback and a node that runs pods as local processes.
