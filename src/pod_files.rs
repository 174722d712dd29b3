//! The files of `posse submit --file`: finds their names, and reads those that a Secret takes along.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use crate::args::submit::SubmitArgs;
use crate::exit::Failure;
use crate::settings::read_text;
use crate::world::World;
use posse_wire::config::Config;

/// All files in a Secret together, in bytes. A Secret may have 1 MiB, and etcd takes requests of 1.5 MiB,
/// in which the files are base64.
const SECRET_BYTES_MAX: u64 = 700_000;
/// The longest key of a Secret, in bytes.
const KEY_BYTES_MAX: usize = 253;

/// The file that `PATH` or `PATH=NAME` is, and its name in the pods. The path of an existing file may have a `=`.
fn parse(text: &Path, world: &World<'_>) -> Result<(PathBuf, String), Failure> {
    let path = world.dir.join(text);
    let pair = text.to_str().and_then(|text| text.rsplit_once('='));
    if let Some((path, name)) = pair.filter(|_| !path.exists()) {
        return Ok((world.dir.join(path), name.to_owned()));
    }
    match path.file_name().and_then(|name| name.to_str()).map(str::to_owned) {
        Some(name) => Ok((path, name)),
        None => {
            Err(Failure::usage(format!("--file {}: give it a name: PATH=NAME", text.display())))
        }
    }
}

/// The files of a submission, with their names.
///
/// # Errors
/// A file seems to be the configuration, or has no name.
pub fn named(args: &SubmitArgs, world: &World<'_>) -> Result<Vec<(PathBuf, String)>, Failure> {
    let files =
        args.stage.files.iter().map(|text| parse(text, world)).collect::<Result<Vec<_>, _>>()?;
    if args.file.file.is_none()
        && let Some((path, _)) = files.iter().find(|(path, _)| is_configuration(path))
    {
        let shown = path.display();
        return Err(Failure::usage(format!(
            "--file {shown}: --file is for files that the pods need, and this is a configuration of \
             posse: name the configuration with -f {shown}"
        )));
    }
    Ok(files)
}

/// True if the file is a configuration of posse. Nobody has to name the keys `app` and `executors`.
fn is_configuration(path: &Path) -> bool {
    let is_candidate = path.extension().is_some_and(|end| {
        ["yaml", "yml", "json"].iter().any(|known| end.eq_ignore_ascii_case(known))
    });
    let read = || Config::parse("", &read_text("", path).ok()?).ok();
    is_candidate
        && read().is_some_and(|config| config.app.is_some() || !config.executors.is_empty())
}

/// The contents of all files by name, for a Secret.
///
/// # Errors
/// A file cannot be read, two have the same name, a name cannot be a key of a Secret, or they are too
/// large.
pub fn read(files: &[(PathBuf, String)]) -> Result<BTreeMap<String, Vec<u8>>, Failure> {
    let mut names = BTreeSet::new();
    let mut contents = BTreeMap::new();
    let mut n_bytes = 0;
    for (path, name) in files {
        let failed = |why: String| Failure::usage(format!("--file {}: {why}", path.display()));
        if !names.insert(name) {
            return Err(failed(format!("two files are named `{name}`; write PATH=NAME")));
        }
        if !is_key(name) {
            return Err(failed(format!(
                "a Secret cannot have a file named `{name}`: write PATH=NAME, with a name of \
                 [A-Za-z0-9._-]"
            )));
        }
        let content = read_file(path).map_err(failed)?;
        n_bytes += u64::try_from(content.len()).unwrap_or(u64::MAX);
        if n_bytes > SECRET_BYTES_MAX {
            return Err(failed(format!(
                "all files together are larger than {} kB, which is the most for a Secret: put \
                 larger files into the image, or send them by a stage server (--stage-url)",
                SECRET_BYTES_MAX / 1_000
            )));
        }
        contents.insert(name.clone(), content);
    }
    Ok(contents)
}

/// At most one byte more than a Secret may have.
fn read_file(path: &Path) -> Result<Vec<u8>, String> {
    let text = |error: io::Error| error.to_string();
    let file = File::open(path).map_err(text)?;
    let metadata = file.metadata().map_err(text)?;
    if metadata.is_dir() {
        return Err("is a folder: pack it into an archive first, by `tar` for example".to_owned());
    }
    if !metadata.is_file() {
        return Err("not a regular file".to_owned());
    }
    let mut content = Vec::new();
    file.take(SECRET_BYTES_MAX + 1).read_to_end(&mut content).map_err(text)?;
    Ok(content)
}

/// True if a Secret can have this key (apimachinery's IsConfigMapKey).
fn is_key(name: &str) -> bool {
    let is_allowed = |c: u8| c.is_ascii_alphanumeric() || b"-_.".contains(&c);
    !name.is_empty()
        && name.len() <= KEY_BYTES_MAX
        && name.bytes().all(is_allowed)
        && name != "."
        && !name.starts_with("..")
}

#[cfg(test)]
mod tests {
    use crate::testing::Folder;

    const SUBMIT: &str = "submit --image i --kubeconfig no.conf";

    #[test]
    fn invalid_files_are_errors_before_any_request() {
        let folder = Folder::new(&[
            ("a.py", "1"),
            ("sub/a.py", "2"),
            ("a b.py", "3"),
            ("x=y.py", "4"),
            ("posse-2.yaml", "app: a\nexecutors: [{image: i}]"),
            ("data.yaml", "key: value"),
        ]);
        std::fs::write(folder.path().join("large"), vec![0; 699_000]).unwrap();
        for (files, words) in [
            ("--file absent", "absent: No such file"),
            ("--file sub", "sub: is a folder: pack it into an archive"),
            ("--file /dev/null", "/dev/null: not a regular file"),
            ("--file ..", "--file ..: give it a name"),
            ("--file a.py --file sub/a.py", "two files are named `a.py`; write PATH=NAME"),
            ("--file a.py=b --file sub/a.py=b", "two files are named `b`"),
            ("--file a.py=", "cannot have a file named ``"),
            ("--file a.py=x/y", "cannot have a file named `x/y`"),
            ("--file a.py=..x", "cannot have a file named `..x`"),
            ("--file x=y.py", "cannot have a file named `x=y.py`: write PATH=NAME"),
            ("--file large --file large=b", "large: all files together are larger than 700 kB"),
            ("--file posse-2.yaml", "name the configuration with -f "),
            // The files are good: only now the API server is needed.
            ("--file large --file sub/a.py=b.py --file data.yaml", "no.conf: "),
            ("--file x=y.py=z.py --file posse-2.yaml -f posse-2.yaml", "posse_image"),
        ] {
            let (code, out, err) = folder.posse(&format!("{SUBMIT} {files}"));
            assert_eq!((code, out.as_str()), (2, ""), "{files}: {err}");
            assert!(err.contains(words), "{files}: {err}");
        }
    }
}
