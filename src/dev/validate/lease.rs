//! Owns the checks of a Lease's spec.

use serde_json::Value;

use crate::dev::refused::Cause;

pub(super) fn check(lease: &Value, causes: &mut Vec<Cause>) {
    let number = |field: &str| lease.pointer(&format!("/spec/{field}")).and_then(Value::as_i64);
    if let Some(seconds) = number("leaseDurationSeconds")
        && seconds <= 0
    {
        let field = "spec.leaseDurationSeconds";
        causes.push(Cause::invalid_raw(field, &seconds, "must be greater than 0"));
    }
    if let Some(transitions) = number("leaseTransitions")
        && transitions < 0
    {
        let field = "spec.leaseTransitions";
        // The grammar is the real server's.
        let detail = "must to greater or equal than 0";
        causes.push(Cause::invalid_raw(field, &transitions, detail));
    }
}
