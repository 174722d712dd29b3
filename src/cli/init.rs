//! `posse init`: writes a commented posse.yaml, or a small project.

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::path::Path;

use crate::cli::args::InitArgs;
use crate::cli::exit::{Code, Failure};
use crate::cli::terminal::print;
use crate::cli::world::World;
use crate::wire::yaml::Node;

#[cfg(feature = "dev")]
mod projects;

/// The written file: every key with its meaning.
pub const SAMPLE: &str = include_str!("init.yaml");

/// The default file.
const DEFAULT_FILE: &str = "posse.yaml";

/// Writes the sample, to a new file or to stdout; or a project.
///
/// # Errors
/// The file exists already, or cannot be written.
pub fn init(args: &InitArgs, world: &World<'_>, out: &mut dyn Write) -> Result<Code, Failure> {
    #[cfg(feature = "dev")]
    if let Some(kind) = args.project {
        let folder = args.file.as_deref().unwrap_or_else(|| Path::new("."));
        return projects::init(kind, folder, world, out);
    }
    let file = args.file.as_deref().unwrap_or_else(|| Path::new(DEFAULT_FILE));
    if file.as_os_str() == "-" {
        return print(out, SAMPLE).map(|()| Code::Clean);
    }
    let text = match file.extension().is_some_and(|end| end.eq_ignore_ascii_case("json")) {
        true => sample_as_json()?,
        false => SAMPLE.to_owned(),
    };
    let shown = file.display();
    let path = world.dir.join(file);
    let written = write_new(&path, &text);
    match written {
        Ok(()) => print(out, &format!("created {shown}; next: posse run --dev -f {shown}\n"))
            .map(|()| Code::Clean),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Err(Failure::usage(format!(
            "{shown} exists already; name another file, or `-` for stdout"
        ))),
        Err(error) => Err(Failure::usage(format!("{shown}: cannot be written: {error}"))),
    }
}

/// Writes a new file with the permissions that the user's umask gives: the copy of it in an image must be
/// readable for the image's user. It has no secrets.
fn write_new(path: &Path, text: &str) -> io::Result<()> {
    File::create_new(path)?.write_all(text.as_bytes())
}

/// The keys that the sample sets. JSON has no comments.
fn sample_as_json() -> Result<String, Failure> {
    let node = Node::read(SAMPLE).map_err(|error| Failure::usage(error.message))?;
    Ok(format!("{:#}\n", node.to_json()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::testing::Folder;
    use crate::wire::config::{Config, KEYS};

    #[test]
    fn a_json_file_has_the_keys_of_the_sample() {
        let folder = Folder::new(&[]);
        let (code, out, err) = folder.posse("init posse.json");
        assert_eq!((code, err.as_str()), (0, ""));
        assert!(out.ends_with("next: posse run --dev -f posse.json\n"), "{out}");
        let text = std::fs::read_to_string(folder.path().join("posse.json")).unwrap();
        assert!(text.starts_with("{\n"), "{text}");
        let yaml = Config::parse("posse.yaml", SAMPLE).unwrap();
        assert_eq!(Config::parse("posse.json", &text).unwrap(), yaml);
    }

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
