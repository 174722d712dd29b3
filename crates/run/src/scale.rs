//! The commands that set the targets of groups (`scale`). `core` turns their numbers into targets.

use crate::polled::Reader;
use crate::run::settings::GroupSettings;
use posse_base::clock::Clock;
use posse_base::text::sanitize;
use posse_core::machines::scale::Scaler;
use posse_core::model::input::Input;

/// What is shown of an output that is no number, in bytes.
const SHOWN_BYTES_MAX: usize = 80;
/// A number and the space around it, in bytes.
const OUTPUT_BYTES_MAX: usize = 4 << 10;

/// How the command of a group is read; none if it has none. `env`: the variables of `credentials`, which the driver
/// gets too.
pub fn reader(group: &GroupSettings, env: &[(String, String)], clock: Clock) -> Option<Reader> {
    let scale = group.scale.clone()?;
    let group = group.spec.name.clone();
    let mut scaler = Scaler::new(scale.rule);
    let own = std::env::vars_os();
    Some(Reader {
        command: scale.polled,
        env: own.chain(env.iter().map(|(name, value)| (name.into(), value.into()))).collect(),
        output_bytes_max: OUTPUT_BYTES_MAX,
        what: format!("group {group}: the command of `scale`"),
        consequence: "the target stays",
        read: Box::new(move |output| {
            let outcome = output
                .and_then(|output| number(&output.end))
                .map(|n_entries| scaler.target(n_entries, clock.now()));
            let failure = outcome.as_ref().err().cloned();
            (Some(Input::ScaleRead { group: group.clone(), outcome }), failure)
        }),
    })
}

/// The number that a command printed.
fn number(output: &str) -> Result<u64, String> {
    let text = output.trim();
    text.parse().map_err(|_| match text {
        "" => "printed nothing instead of a number".to_owned(),
        text => format!("printed `{}` instead of a whole number", sanitize(text, SHOWN_BYTES_MAX)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_whole_number_is_accepted() {
        assert_eq!(number("45\n"), Ok(45));
        assert_eq!(number(" 0 "), Ok(0));
        for (output, want) in [
            ("", "printed nothing instead of a number"),
            ("\n", "printed nothing instead of a number"),
            ("-1", "printed `-1` instead of a whole number"),
            ("4.5", "printed `4.5` instead of a whole number"),
            ("4 5", "printed `4 5` instead of a whole number"),
            ("\x1b[2J", "printed `\\u{1b}[2J` instead of a whole number"),
            ("99999999999999999999", "printed `99999999999999999999` instead of a whole number"),
        ] {
            assert_eq!(number(output), Err(want.to_owned()), "{output:?}");
        }
    }
}
