//! What `posse map` changes in the configuration.

use crate::exit::Failure;
use posse_wire::config::control_addr::ControlAddr;
use posse_wire::config::{Config, Control, Group, Ready};

/// The application's name if neither the file nor a flag has one.
const APP: &str = "map";

/// Applies what `posse map` needs: at most `jobs` executors, one for each line, and nothing that the file
/// says about another driver than the one that hands the lines on.
///
/// # Errors
/// The file has keys that cannot go with it.
pub(super) fn lay_map_over(config: &mut Config, jobs: u32, file: &str) -> Result<(), Failure> {
    let wrong = |what: String| Failure::usage(format!("{file}: {what}"));
    if matches!(config.control, Control::Off | Control::At(ControlAddr::Tcp(_))) {
        let what = "`posse map` needs the control API on a socket: remove the key `control`";
        return Err(wrong(what.to_owned()));
    }
    if config.executors.is_empty() {
        config.executors.push(Group::default());
    }
    let [group] = config.executors.as_mut_slice() else {
        let names: Vec<&str> =
            config.executors.iter().map(|group| group.spec.name.as_str()).collect();
        let names = names.join(", ");
        return Err(wrong(format!("`posse map` needs one group, and there are several: {names}")));
    };
    if group.scale.is_some() {
        let what =
            "executors[0].scale: `posse map` starts an executor for each line: remove the key";
        return Err(wrong(what.to_owned()));
    }
    (group.spec.target, group.spec.min, group.spec.max) = (0, 0, Some(jobs));
    config.driver.ready = Ready::None;
    // It calls when a line begins or ends, which may take as long as it likes.
    (config.policy.driver_silence_ms, config.policy.heartbeat_timeout_ms) = (0, 0);
    config.policy.idle_end_ms = 0;
    // The output of a line that failed is printed. Its pod would be taken for a line of the next run of the instance.
    config.policy.keep_failed = 0;
    config.app.get_or_insert_with(|| APP.to_owned());
    Ok(())
}
