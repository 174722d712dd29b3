//! Owns `posse apps`, `posse logs` and `posse stop`.

use std::io::Write;

use crate::cli::World;
use crate::cli::args::submit::{AppsArgs, LogsArgs, StopArgs};
use crate::cli::exit::{Code, Failure};

/// `posse apps`.
pub fn apps(_: &AppsArgs, _: &World<'_>, _: &mut dyn Write) -> Result<Code, Failure> {
    Ok(Code::Clean)
}
/// `posse logs`.
pub fn logs(_: &LogsArgs, _: &World<'_>, _: &mut dyn Write) -> Result<Code, Failure> {
    Ok(Code::Clean)
}
/// `posse stop`.
pub fn stop(_: &StopArgs, _: &World<'_>, _: &mut dyn Write) -> Result<Code, Failure> {
    Ok(Code::Clean)
}
