//! `posse init`: writes a commented posse.yaml, or a small project.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::Path;

use crate::args::tools::InitArgs;
use crate::exit::{Code, Failure};
use crate::terminal::print;
use crate::world::World;
use posse_encoding::yaml::Node;

mod projects;
mod sample;

pub use sample::sample;

/// The default file.
const DEFAULT_FILE: &str = "posse.yaml";

/// Writes the sample, to a new file or to stdout; or a project.
///
/// # Errors
/// The file exists already, or cannot be written.
pub fn init(args: &InitArgs, world: &World<'_>, out: &mut dyn Write) -> Result<Code, Failure> {
    if let Some(kind) = args.project {
        if args.file.as_deref().is_some_and(|folder| folder.as_os_str() == "-") {
            return Err(Failure::usage(
                "a project is a folder with several files: name the folder",
            ));
        }
        let folder = args.file.as_deref().unwrap_or_else(|| Path::new("."));
        return projects::init(kind, folder, world, out);
    }
    let file = args.file.as_deref().unwrap_or_else(|| Path::new(DEFAULT_FILE));
    if file.as_os_str() == "-" {
        return print(out, &sample()).map(|()| Code::Clean);
    }
    let text = match file.extension().is_some_and(|end| end.eq_ignore_ascii_case("json")) {
        true => sample_as_json()?,
        false => sample(),
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
    let mut file = File::create_new(path)?;
    // Half a file would be taken for the user's own.
    file.write_all(text.as_bytes()).inspect_err(|_| drop(fs::remove_file(path)))
}

/// The keys that the sample sets. JSON has no comments.
fn sample_as_json() -> Result<String, Failure> {
    let node = Node::read(&sample()).map_err(|error| Failure::usage(error.message))?;
    Ok(format!("{:#}\n", node.to_json()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Folder;
    use posse_wire::config::{Config, SECTIONS};

    #[test]
    fn a_json_file_has_the_keys_of_the_sample() {
        let folder = Folder::new(&[]);
        let (code, out, err) = folder.posse("init posse.json");
        assert_eq!((code, err.as_str()), (0, ""));
        assert!(out.ends_with("next: posse run --dev -f posse.json\n"), "{out}");
        let text = std::fs::read_to_string(folder.path().join("posse.json")).unwrap();
        assert!(text.starts_with("{\n"), "{text}");
        let yaml = Config::parse("posse.yaml", &sample()).unwrap();
        assert_eq!(Config::parse("posse.json", &text).unwrap(), yaml);
    }

    /// The sample with all commented keys enabled, except those that exclude others: `pod` and `template`,
    /// `completions` and `restart: always`.
    fn uncommented() -> String {
        let in_force = |line: &str| {
            let bare = line.trim_start();
            let is_key = bare.strip_prefix('#').is_some_and(|rest| !rest.starts_with(' '));
            let is_excluded = bare.starts_with("#pod:") || bare.starts_with("#completions:");
            match is_key && !is_excluded {
                true => format!("{}\n", line.replacen('#', "", 1)),
                false => format!("{line}\n"),
            }
        };
        sample().lines().map(in_force).collect()
    }

    #[test]
    fn the_sample_is_a_valid_configuration() {
        let config = Config::parse("posse.yaml", &sample()).unwrap();
        let rest = Config { app: None, executors: Vec::new(), ..config.clone() };
        assert_eq!(
            rest,
            Config::default(),
            "except app and executors, the sample has the defaults"
        );
        Config::parse("posse.yaml", &uncommented()).unwrap();
    }

    /// In lines of their own, or in the example of the map around them.
    #[test]
    fn the_sample_lists_every_key() {
        let text = sample();
        let words: Vec<&str> =
            text.split(|c: char| !c.is_ascii_lowercase() && !"_:".contains(c)).collect();
        for (place, keys) in SECTIONS {
            for key in *keys {
                let wanted = format!("{}:", key.name);
                assert!(words.contains(&wanted.as_str()), "{place}.{}", key.name);
            }
        }
    }
}
