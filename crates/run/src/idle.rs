//! The command that tells which executors have no work (`driver.idle`), for engines that do not tell it themselves.
//! Its list means the same as that of the call.

use std::collections::BTreeSet;
use std::ffi::OsString;

use crate::polled::{Reader, TIMEOUT};
use posse_base::text::sanitize;
use posse_core::model::ids::ExecutorId;
use posse_core::model::input::Input;
use posse_core::state::driver_reports::IDLE_VALID_MS;
use posse_process::command::Output;
use posse_wire::config::polled::PolledCommand;

/// The longest list, in bytes: more than 100,000 ids.
const OUTPUT_BYTES_MAX: usize = 1 << 20;
/// What is shown of a word that is no id, in bytes.
const SHOWN_BYTES_MAX: usize = 80;

/// How the command is read. `env`: the driver's environment.
pub fn reader(command: PolledCommand, env: Vec<(OsString, OsString)>) -> Reader {
    let timeout_ms = u64::try_from(TIMEOUT.as_millis()).unwrap_or(u64::MAX);
    // Until the next list is there. If the command fails, all are busy.
    let valid_ms = IDLE_VALID_MS.max(command.every_ms.saturating_add(timeout_ms));
    Reader {
        command,
        env,
        output_bytes_max: OUTPUT_BYTES_MAX,
        what: "the command of `driver.idle`".to_owned(),
        consequence: "until it works again, all executors that run are busy",
        read: Box::new(move |output| match output.and_then(|output| ids(&output)) {
            Ok(executors) => (Some(Input::IdleRead { executors, valid_ms }), None),
            Err(failure) => (None, Some(failure)),
        }),
    }
}

/// The ids that a command printed, with space between them.
fn ids(output: &Output) -> Result<BTreeSet<ExecutorId>, String> {
    if output.n_bytes > OUTPUT_BYTES_MAX as u64 {
        return Err(format!("printed {} bytes, more than {OUTPUT_BYTES_MAX}", output.n_bytes));
    }
    let id = |word: &str| {
        let id = word.parse().ok().filter(|id| *id > 0).map(ExecutorId);
        id.ok_or_else(|| {
            format!("printed `{}` instead of an executor's id", sanitize(word, SHOWN_BYTES_MAX))
        })
    };
    output.end.split_whitespace().map(id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<u64>, String> {
        let output = Output { end: text.to_owned(), n_bytes: text.len() as u64 };
        ids(&output).map(|ids| ids.into_iter().map(|id| id.0).collect())
    }

    #[test]
    fn ids_stand_one_in_a_line_or_beside_each_other() {
        assert_eq!(read("3\n1\n"), Ok(vec![1, 3]));
        assert_eq!(read(" 7 12\t7\n"), Ok(vec![7, 12]));
        assert_eq!(read(""), Ok(vec![]), "all are busy");
        for (text, word) in [("1\nx", "x"), ("-1", "-1"), ("0", "0"), ("\x1b[2J", "\\u{1b}[2J")] {
            let want = format!("printed `{word}` instead of an executor's id");
            assert_eq!(read(text), Err(want), "{text:?}");
        }
    }

    #[test]
    fn a_list_that_is_cut_is_no_list() {
        let output = Output { end: "45".to_owned(), n_bytes: OUTPUT_BYTES_MAX as u64 + 2 };
        assert_eq!(ids(&output), Err("printed 1048578 bytes, more than 1048576".to_owned()));
    }
}
