//! The values of `posse task add --secret-env` and `--file`: they come from the environment or from files, never from an
//! argument, which every user of the host can read.

use std::collections::BTreeMap;

use crate::exit::Failure;
use crate::settings::read_text;
use crate::world::World;

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
        let secret_env = secret_env.iter().map(|arg| one_of_env(arg, world));
        let files = files.iter().map(|arg| one_file(arg, world));
        Ok(Self {
            secret_env: secret_env.collect::<Result<_, _>>()?,
            files: files.collect::<Result<_, _>>()?,
        })
    }
}

fn one_of_env(arg: &str, world: &World<'_>) -> Result<(String, String), Failure> {
    match arg.split_once('=') {
        None => {
            let value = (world.env)(arg).ok_or_else(|| {
                let what = "the environment has no such variable, or no text in it";
                failure(SECRET_ENV, &format!("{arg}: {what}"))
            })?;
            Ok((arg.to_owned(), value))
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
            Ok((name.to_owned(), value.to_owned()))
        }
    }
}

fn one_file(arg: &str, world: &World<'_>) -> Result<(String, String), Failure> {
    // The path in the container may have the sign too, and the file here at its end as well.
    let (path, file) = arg.split_once("=@").ok_or_else(|| {
        let name = arg.split_once('=').map_or(arg, |(name, _)| name);
        let what = "expected PATH=@FILE, such as /etc/app.conf=@app.conf: the content must be in a file here";
        failure(FILE, &format!("{name}: {what}"))
    })?;
    Ok((path.to_owned(), read_text(file, &world.dir.join(file))?))
}

fn failure(flag: &str, what: &str) -> Failure {
    Failure::usage(format!("{flag} {what}"))
}

#[cfg(test)]
mod tests {
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
}
