//! The values of `posse task add --secret-env` and `--file`: they come from the environment, from files or from stdin,
//! never from an argument, which every user of the host can read.

use std::collections::BTreeMap;
use std::io::{self, BufRead as _, PipeReader, Read as _, Write as _};
use std::thread;

use serde_json::json;

use crate::exit::Failure;
use crate::settings::read_text;
use crate::world::World;

/// The line on stdin that `@-` asks for, in bytes: the files of a task have 256 KiB, and JSON may need six bytes for one.
const LINE_BYTES_MAX: u64 = 2 << 20;
/// Stands for an object of names and values on stdin, in one line.
pub(super) const FROM_STDIN: &str = "@-";
const SECRET_ENV: &str = "--secret-env";
const FILE: &str = "--file";

/// The values by name.
pub(super) type Values = BTreeMap<String, String>;

/// What a call has instead of arguments.
pub(super) struct TaskValues {
    pub(super) secret_env: Values,
    /// By path.
    pub(super) files: Values,
}

impl TaskValues {
    /// An error never has what might be a value.
    pub(super) fn read(
        secret_env: &[String],
        files: &[String],
        world: &World<'_>,
    ) -> Result<Self, Failure> {
        // `flags_with_stdin` has the same order.
        let secret_env = secret_env.iter().map(|arg| one_of_env(arg, world));
        let secret_env = secret_env.collect::<Result<Vec<Values>, _>>()?;
        let files = files.iter().map(|arg| one_file(arg, world));
        let files = files.collect::<Result<Vec<Values>, _>>()?;
        let [secret_env, files] =
            [secret_env, files].map(|all| all.into_iter().flatten().collect());
        Ok(Self { secret_env, files })
    }

    /// The flags of a `posse task add` that runs elsewhere and reads its stdin, and what is to be there.
    pub(super) fn flags_with_stdin(
        &self,
    ) -> Result<(Vec<&'static str>, Option<PipeReader>), Failure> {
        let mut flags = Vec::new();
        let mut lines = String::new();
        for (flag, values) in [(SECRET_ENV, &self.secret_env), (FILE, &self.files)] {
            if !values.is_empty() {
                flags.push(flag);
                lines.push_str(&format!("{}\n", json!(values)));
            }
        }
        let stdin = if flags.is_empty() { None } else { Some(as_stdin(lines)?) };
        Ok((flags, stdin))
    }
}

fn one_of_env(arg: &str, world: &World<'_>) -> Result<Values, Failure> {
    match arg.split_once('=') {
        None if arg == FROM_STDIN => from_stdin(SECRET_ENV, "{\"TOKEN\": \"...\"}"),
        None => {
            let value = (world.env)(arg).ok_or_else(|| {
                let what = "the environment has no such variable, or no text in it";
                failure(SECRET_ENV, &format!("{arg}: {what}"))
            })?;
            Ok([(arg.to_owned(), value)].into())
        }
        Some((name, path)) => {
            let path = path.strip_prefix('@').ok_or_else(|| {
                failure(
                    SECRET_ENV,
                    &format!(
                        "{name}: the value must not be an argument, which others can read: give {name}, to take it \
                         from the environment, or {name}=@FILE"
                    ),
                )
            })?;
            let text = read_text(path, &world.dir.join(path))?;
            let value = text.strip_suffix('\n').unwrap_or(&text);
            Ok([(name.to_owned(), value.to_owned())].into())
        }
    }
}

fn one_file(arg: &str, world: &World<'_>) -> Result<Values, Failure> {
    if arg == FROM_STDIN {
        return from_stdin(FILE, "{\"/etc/app.conf\": \"...\"}");
    }
    // The path in the container may have the sign too, and the file here at its end as well.
    let (path, file) = arg.split_once("=@").ok_or_else(|| {
        let name = arg.split_once('=').map_or(arg, |(name, _)| name);
        let what = "expected PATH=@FILE, such as /etc/app.conf=@app.conf: the content must be in a file here";
        failure(FILE, &format!("{name}: {what}"))
    })?;
    Ok([(path.to_owned(), read_text(file, &world.dir.join(file))?)].into())
}

fn from_stdin(flag: &str, example: &str) -> Result<Values, Failure> {
    let mut line = String::new();
    // A line and not the whole input: the end of what goes through some API servers is not told.
    let read = io::stdin().lock().take(LINE_BYTES_MAX).read_line(&mut line);
    read.map_err(|error| failure(flag, &format!("{FROM_STDIN}: stdin cannot be read: {error}")))?;
    // The error of serde_json may have a part of the line.
    serde_json::from_str(&line).map_err(|_| {
        failure(
            flag,
            &format!(
                "{FROM_STDIN}: expected one line on stdin, at most {LINE_BYTES_MAX} bytes: an object of texts, such as \
                 {example}"
            ),
        )
    })
}

fn failure(flag: &str, what: &str) -> Failure {
    Failure::usage(format!("{flag} {what}"))
}

fn as_stdin(lines: String) -> Result<PipeReader, Failure> {
    let broken = |error: io::Error| {
        Failure::usage(format!(
            "the values of {SECRET_ENV} and {FILE} cannot be passed on: {error}"
        ))
    };
    let (reader, mut writer) = io::pipe().map_err(broken)?;
    // A pipe takes 64 KiB before somebody reads. If nobody reads, the write fails with the reader's end.
    let write = move || drop(writer.write_all(lines.as_bytes()));
    thread::Builder::new().name("task-values".to_owned()).spawn(write).map_err(broken)?;
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
            let values = TaskValues::read(&args, &[], &world).map_err(|failure| failure.message)?;
            assert!(values.files.is_empty());
            Ok::<_, String>(values.secret_env)
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
    fn files_are_taken_as_they_are() {
        let folder = posse_testing::Folder::new();
        std::fs::write(folder.path().join("app=@.conf"), "a = 1\n").unwrap();
        std::fs::write(folder.path().join("binary"), [0xff, 0xfe]).unwrap();
        let env = |_: &str| None;
        let world = World::new(&env, folder.path());
        let read = |arg: &str| {
            let values = TaskValues::read(&[], &[arg.to_owned()], &world);
            values.map(|values| values.files).map_err(|failure| failure.message)
        };
        let want = [("/etc/a=b".to_owned(), "a = 1\n".to_owned())].into();
        assert_eq!(read("/etc/a=b=@app=@.conf"), Ok(want));
        let is_expected = "expected PATH=@FILE, such as /etc/app.conf=@app.conf";
        for (arg, want) in [
            ("/etc/a", format!("--file /etc/a: {is_expected}")),
            ("/etc/a=s3cr3t", format!("--file /etc/a: {is_expected}")),
            ("/etc/a=@none", "none: cannot be read: No such file".to_owned()),
            ("/etc/a=@.", ".: cannot be read: Is a directory".to_owned()),
            (
                "/etc/a=@binary",
                "binary: cannot be read: stream did not contain valid UTF-8".to_owned(),
            ),
        ] {
            let problem = read(arg).unwrap_err();
            assert!(problem.starts_with(&want) && !problem.contains("s3cr3t"), "{problem}");
        }
    }

    #[test]
    fn what_is_passed_on_is_one_line_for_each_flag() {
        let value = "a \"b\"\nc ".repeat(20_000);
        let values = |name: &str| Values::from([(name.to_owned(), value.clone())]);
        let passed_on = |secret_env: Values, files: Values| {
            let (flags, stdin) = TaskValues { secret_env, files }.flags_with_stdin().unwrap();
            let mut text = String::new();
            stdin.map(|mut stdin| stdin.read_to_string(&mut text)).transpose().unwrap();
            (flags, text)
        };
        let (flags, lines) = passed_on(values("A"), values("/f"));
        assert_eq!(flags, ["--secret-env", "--file"]);
        let read: Vec<Values> =
            lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(read, [values("A"), values("/f")]);
        assert_eq!(passed_on(Values::new(), values("/f")).0, ["--file"]);
        assert_eq!(passed_on(Values::new(), Values::new()), (Vec::new(), String::new()));
    }
}
