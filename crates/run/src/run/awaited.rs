//! What a start waits for, because an earlier process has had it.

use std::time::Duration;

use log::warn;

use crate::record::OpenError;
use crate::run::error::RunError;
use posse_core::machines::retry::{RetryLimit, RetryRule};
use posse_kube::api::retry::Retries;

/// How a start tries to open its record, or to take a Lease: for half a minute and more.
const OPEN_RULE: RetryRule =
    RetryRule { delay_ms: 1_000, delay_ms_max: 8_000, limit: RetryLimit::Failures(6) };

/// Opens a record or takes a Lease, and tries it again while it may be there later. The inner error: there is none, because
/// that is not permitted, and no earlier process has had one. `what` is not possible now.
pub(super) fn open_in_time<T>(
    what: &str,
    mut open: impl FnMut() -> Result<Result<T, OpenError>, RunError>,
    has_had: impl Fn() -> bool,
    mut rest: impl FnMut(Duration) -> Result<(), RunError>,
) -> Result<Result<T, String>, RunError> {
    let mut retries = Retries::new(OPEN_RULE);
    loop {
        let why = match open()? {
            Ok(opened) => return Ok(Ok(opened)),
            Err(OpenError::Forbidden(why)) if !has_had() => return Ok(Err(why)),
            Err(OpenError::Misnamed(why)) if !has_had() => {
                return Err(RunError::Settings(why));
            }
            Err(OpenError::Unusable(why)) => return Err(RunError::Settings(why)),
            Err(
                OpenError::Forbidden(why) | OpenError::Misnamed(why) | OpenError::Unavailable(why),
            ) => why,
        };
        if retries.n_failures() == 0 {
            warn!("{what}, and posse tries it again: {why}");
        }
        let Some(delay) = retries.on_failure(None) else {
            return Err(RunError::Unavailable(why));
        };
        rest(delay)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signals::Signal;
    use std::cell::Cell;

    fn text(error: OpenError, was_recorded: bool) -> Result<Result<(), String>, RunError> {
        open_in_time("", || Ok(Err(error.clone())), || was_recorded, |_| Ok(()))
    }

    #[test]
    fn only_what_can_never_be_opened_is_an_error_of_the_settings() {
        let why = || "why".to_owned();
        let unavailable = Err(RunError::Unavailable(why()));
        let settings = Err(RunError::Settings(why()));
        for (error, new, later) in [
            (OpenError::Unusable(why()), settings.clone(), settings.clone()),
            (OpenError::Misnamed(why()), settings, unavailable.clone()),
            (OpenError::Forbidden(why()), Ok(Err(why())), unavailable.clone()),
            (OpenError::Unavailable(why()), unavailable.clone(), unavailable),
        ] {
            let told = [text(error.clone(), false), text(error.clone(), true)];
            assert_eq!(told, [new, later], "{error:?}");
        }
    }

    #[test]
    fn a_record_that_cannot_be_opened_now_is_opened_later() {
        let (n, waited) = (Cell::new(0), Cell::new(Duration::ZERO));
        let open = || {
            n.set(n.get() + 1);
            let busy = || OpenError::Unavailable("busy".to_owned());
            Ok(if n.get() < 4 { Err(busy()) } else { Ok(n.get()) })
        };
        let rest = |delay| {
            waited.set(waited.get() + delay);
            Ok(())
        };
        assert_eq!(open_in_time("", open, || false, rest), Ok(Ok(4)));
        assert!(waited.get() > Duration::from_secs(3), "{waited:?}");
    }

    #[test]
    fn a_signal_ends_the_wait() {
        let open = || Ok(Err::<(), _>(OpenError::Unavailable("busy".to_owned())));
        let interrupted = RunError::Interrupted { signal: Signal::Term, waited_for: None };
        let ended = open_in_time("", open, || false, |_| Err(interrupted.clone()));
        assert_eq!(ended, Err(interrupted.clone()));
    }
}
