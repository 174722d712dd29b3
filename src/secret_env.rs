//! The values of `posse task add --secret-env`: they come from the environment, from files or from stdin, never from an
//! argument, which every user of the host can read.

use std::collections::BTreeMap;
use std::io::{self, BufRead as _, PipeReader, Read as _, Write as _};
use std::thread;

use serde_json::json;

use crate::exit::Failure;
use crate::settings::read_text;
use crate::world::World;

/// The line on stdin that `@-` asks for, in bytes: a task has 32 KiB, and JSON may need six bytes for one.
const LINE_BYTES_MAX: u64 = 256 << 10;
/// Stands for an object of names and values on stdin, in one line.
pub(super) const FROM_STDIN: &str = "@-";

/// The values by name. An error never has what might be a value.
pub(super) fn read(
    args: &[String],
    world: &World<'_>,
) -> Result<BTreeMap<String, String>, Failure> {
    let mut values = BTreeMap::new();
    for arg in args {
        match arg.split_once('=') {
            None if arg == FROM_STDIN => values.extend(from_stdin()?),
            None => {
                let value = (world.env)(arg).ok_or_else(|| {
                    failure(&format!(
                        "{arg}: the environment has no such variable, or no text in it"
                    ))
                })?;
                values.insert(arg.clone(), value);
            }
            Some((name, path)) => {
                let path = path.strip_prefix('@').ok_or_else(|| {
                    failure(&format!(
                        "{name}: the value must not be an argument, which others can read: give {name}, to take it \
                         from the environment, or {name}=@FILE"
                    ))
                })?;
                let text = read_text(path, &world.dir.join(path))?;
                let value = text.strip_suffix('\n').unwrap_or(&text);
                values.insert(name.to_owned(), value.to_owned());
            }
        }
    }
    Ok(values)
}

fn from_stdin() -> Result<BTreeMap<String, String>, Failure> {
    let mut line = String::new();
    // A line and not the whole input: the end of what goes through some API servers is not told.
    let read = io::stdin().lock().take(LINE_BYTES_MAX).read_line(&mut line);
    read.map_err(|error| failure(&format!("{FROM_STDIN}: stdin cannot be read: {error}")))?;
    // The error of serde_json may have a part of the line.
    serde_json::from_str(&line).map_err(|_| {
        failure(&format!(
            "{FROM_STDIN}: expected one line on stdin, at most {LINE_BYTES_MAX} bytes: an object of texts, such as \
             {{\"TOKEN\": \"...\"}}"
        ))
    })
}

fn failure(what: &str) -> Failure {
    Failure::usage(format!("--secret-env {what}"))
}

/// The input of a `posse task add --secret-env @-` that runs elsewhere.
pub(super) fn as_stdin(values: &BTreeMap<String, String>) -> Result<PipeReader, Failure> {
    let broken = |error: io::Error| failure(&format!("cannot be passed on: {error}"));
    let (reader, mut writer) = io::pipe().map_err(broken)?;
    let line = format!("{}\n", json!(values));
    // A pipe takes 64 KiB before somebody reads. If nobody reads, the write fails with the reader's end.
    let write = move || drop(writer.write_all(line.as_bytes()));
    thread::Builder::new().name("secret-env".to_owned()).spawn(write).map_err(broken)?;
    Ok(reader)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn values_come_from_the_environment_and_from_files() {
        let folder = posse_testing::Folder::new();
        std::fs::write(folder.path().join("token"), "from a file\n").unwrap();
        let env = |name: &str| (name == "TOKEN").then(|| "s3cr3t".to_owned());
        let world = World::new(&env, folder.path());
        let read = |args: &[&str]| {
            let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
            read(&args, &world).map_err(|failure| failure.message)
        };
        let want = [("A", "from a file"), ("TOKEN", "s3cr3t")];
        let want = want.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        assert_eq!(read(&["TOKEN", "A=@token"]), Ok(want));
        for (arg, want) in [
            ("NONE", "--secret-env NONE: the environment has no such variable"),
            ("A=s3cr3t", "--secret-env A: the value must not be an argument"),
            ("A=@none", "none: cannot be read"),
        ] {
            let problem = read(&[arg]).unwrap_err();
            assert!(problem.starts_with(want) && !problem.contains("s3cr3t"), "{problem}");
        }
        assert_eq!(world.dir, Path::new(folder.path()));
    }

    #[test]
    fn what_is_passed_on_is_one_line() {
        let value = "a \"b\"\nc ".repeat(20_000);
        let values = [("A".to_owned(), value)].into();
        let mut line = String::new();
        as_stdin(&values).unwrap().read_to_string(&mut line).unwrap();
        assert_eq!(line.lines().count(), 1);
        assert_eq!(serde_json::from_str::<BTreeMap<String, String>>(&line).unwrap(), values);
    }
}
