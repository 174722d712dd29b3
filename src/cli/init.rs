//! `posse init`: writes a commented posse.yaml.

use std::io::{ErrorKind, Write};

use crate::cli::args::InitArgs;
use crate::cli::exit::{Code, Failure};
use crate::cli::terminal::print;
use crate::cli::world::World;
use crate::files;

/// The written file: every key with its meaning.
pub const SAMPLE: &str = include_str!("init.yaml");

/// Writes the sample, to a new file or to stdout.
///
/// # Errors
/// The file exists already, or cannot be written.
pub fn init(args: &InitArgs, world: &World<'_>, out: &mut dyn Write) -> Result<Code, Failure> {
    if args.file.as_os_str() == "-" {
        return print(out, SAMPLE).map(|()| Code::Clean);
    }
    let shown = args.file.display();
    let path = world.dir.join(&args.file);
    let written = files::create_new(&path).and_then(|mut file| file.write_all(SAMPLE.as_bytes()));
    match written {
        Ok(()) => print(out, &format!("created {shown}; next: posse run --dev -f {shown}\n"))
            .map(|()| Code::Clean),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Err(Failure::usage(format!(
            "{shown} exists already; name another file, or `-` for stdout"
        ))),
        Err(error) => Err(Failure::usage(format!("{shown}: cannot be written: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::config::{Config, KEYS};

    /// The sample with all commented keys enabled, except `pod`, which excludes `template`.
    fn uncommented() -> String {
        let in_force = |line: &str| {
            let bare = line.trim_start();
            let is_key = bare.strip_prefix('#').is_some_and(|rest| !rest.starts_with(' '));
            match is_key && !bare.starts_with("#pod:") {
                true => format!("{}\n", line.replacen('#', "", 1)),
                false => format!("{line}\n"),
            }
        };
        SAMPLE.lines().map(in_force).collect()
    }

    #[test]
    fn the_sample_is_a_valid_configuration() {
        let config = Config::parse("posse.yaml", SAMPLE).unwrap();
        let rest = Config { app: None, executors: Vec::new(), ..config.clone() };
        assert_eq!(
            rest,
            Config::default(),
            "except app and executors, the sample has the defaults"
        );
        Config::parse("posse.yaml", &uncommented()).unwrap();
    }

    #[test]
    fn the_sample_lists_every_key() {
        let words: Vec<&str> =
            SAMPLE.split(|c: char| !c.is_ascii_lowercase() && !"_:".contains(c)).collect();
        for (section, keys) in KEYS {
            for key in *keys {
                let wanted = format!("{key}:");
                assert!(words.contains(&wanted.as_str()), "{section}.{key}");
            }
        }
    }
}
