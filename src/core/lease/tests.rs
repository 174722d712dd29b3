//! Tables over the Lease machine.
