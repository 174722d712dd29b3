//! What stands for the embedded cluster in a program without it.

use std::path::Path;

use crate::args::RunArgs;
use crate::exit::Failure;
use posse_run::run::settings::RunSettings;

/// No cluster.
#[derive(Debug)]
pub(super) struct Embedded;

impl Embedded {
    pub(super) fn start(_: &RunArgs, _: &RunSettings) -> Result<Self, Failure> {
        Ok(Self)
    }

    pub(super) fn kubeconfig(&self) -> Option<&Path> {
        None
    }

    pub(super) fn stop(self) {}
}
