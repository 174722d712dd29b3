//! What the answer to a dry run of a pod tells.

use crate::api::unreadable;
use posse_core::model::refusal::{Refusal, RefusalClass};
use posse_wire::pod::changed::unusable_change;

/// The parameter that asks the server to check a request, and to keep nothing.
pub(super) const DRY_RUN: &str = "&dryRun=All";

/// Refuses a pod that the server accepts, but changes so that posse could not work with it.
pub(super) fn check_answer(sent: &[u8], status: u16, answer: &[u8]) -> Result<(), Refusal> {
    match unusable_change(sent, answer) {
        Ok(None) => Ok(()),
        Ok(Some(why)) => Err(Refusal::local(RefusalClass::Invalid, why)),
        Err(problem) => Err(unreadable(status, &problem.to_string())),
    }
}
