//! The file of `posse map --resume`.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::Path;

use crate::exit::{Code, Failure};
use posse_base::files;
use posse_core::model::hash::stable_hash;

/// The lines that have succeeded, in the file of `--resume`: a number and a hash of the text.
#[derive(Default)]
pub(super) struct Done {
    file: Option<File>,
    shown: String,
    /// From earlier runs, by number.
    before: Vec<(u64, u64)>,
    /// The hashes of lines that are open.
    open: Vec<(u64, u64)>,
}

impl Done {
    pub(super) fn open(path: Option<&Path>) -> Result<Self, Failure> {
        let Some(path) = path else { return Ok(Self::default()) };
        let shown = path.display().to_string();
        let fail = |what: String| Failure::usage(format!("{shown}: {what}"));
        let file = files::open_own(path);
        let file = file.map_err(|error| fail(format!("cannot be opened: {error}")))?;
        let mut text = String::new();
        let read = (&file).read_to_string(&mut text);
        read.map_err(|error| fail(format!("cannot be read: {error}")))?;
        let whole = text.rfind('\n').map_or(0, |at| at + 1);
        let (whole, cut_off) = match is_beginning(&text[whole..]) {
            true => text.split_at(whole),
            false => (text.as_str(), ""),
        };
        let mut before = Vec::new();
        for (i, line) in whole.lines().enumerate() {
            let parsed = line
                .split_once(' ')
                .and_then(|(n, hash)| Some((n.parse().ok()?, u64::from_str_radix(hash, 16).ok()?)));
            before.push(parsed.ok_or_else(|| {
                fail(format!("line {} is none that `posse map --resume` has written", i + 1))
            })?);
        }
        files::make_own(&file).map_err(|error| fail(format!("cannot be opened: {error}")))?;
        if !cut_off.is_empty() {
            let cut = file.set_len(whole.len() as u64);
            cut.map_err(|error| fail(format!("cannot be cut: {error}")))?;
        }
        before.sort_unstable();
        Ok(Self { file: Some(file), shown, before, open: Vec::new() })
    }

    /// The file's name; none without `--resume`.
    pub(super) fn shown(&self) -> Option<&str> {
        self.file.as_ref().map(|_| self.shown.as_str())
    }

    /// True if an earlier run has done this line.
    pub(super) fn has(&self, n: u64, text: &str) -> Result<bool, Failure> {
        let Ok(i) = self.before.binary_search_by_key(&n, |(line, _)| *line) else {
            return Ok(false);
        };
        if self.before[i].1 == stable_hash(text) {
            return Ok(true);
        }
        let shown = &self.shown;
        Err(Failure::usage(format!(
            "line {n} is another one than in the run that wrote {shown}: delete {shown} to run all lines"
        )))
    }

    /// This line was handed on.
    pub(super) fn note(&mut self, n: u64, text: &str) {
        if self.file.is_some() {
            self.open.push((n, stable_hash(text)));
        }
    }

    /// This line has succeeded.
    pub(super) fn add(&mut self, n: u64) -> Result<(), Failure> {
        let Some(file) = &mut self.file else { return Ok(()) };
        let Some(i) = self.open.iter().position(|(line, _)| *line == n) else { return Ok(()) };
        let (_, hash) = self.open.swap_remove(i);
        // In one write, so that an end of posse leaves no half of it, if the system takes it whole.
        file.write_all(format!("{n} {hash:x}\n").as_bytes()).map_err(|error| {
            Failure::new(Code::Failed, format!("{}: cannot be written: {error}", self.shown))
        })
    }
}

/// True for what may be the beginning of a line that posse could not write whole.
fn is_beginning(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_digit())
        && text.bytes().all(|c| c == b' ' || c.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};

    use super::*;
    use crate::testing::Folder;

    /// The file may be in a folder that all users can write to.
    #[test]
    fn the_file_is_an_own_private_one_and_no_link() {
        let folder = Folder::new(&[("done", ""), ("victim", "precious")]);
        let at = |name: &str| folder.path().join(name);
        let mode = |name: &str| std::fs::metadata(at(name)).unwrap().mode() & 0o777;
        std::fs::set_permissions(at("done"), Permissions::from_mode(0o644)).unwrap();
        for name in ["done", "fresh"] {
            Done::open(Some(&at(name))).unwrap();
            assert_eq!(mode(name), 0o600, "{name}");
        }
        symlink(at("victim"), at("link")).unwrap();
        std::fs::create_dir(at("folder")).unwrap();
        let null = std::path::PathBuf::from("/dev/null");
        for (path, why) in [
            (at("link"), "symbolic link"),
            (at("folder"), "cannot be opened: "),
            (null, "not a regular file"),
        ] {
            let error = Done::open(Some(&path)).map(drop).unwrap_err();
            assert!(error.message.contains(why), "{}", error.message);
        }
        // Only root can make another user's file.
        if chown(at("done"), Some(65_534), None).is_ok() {
            let error = Done::open(Some(&at("done"))).map(drop).unwrap_err();
            assert!(error.message.contains("belongs to another user"), "{}", error.message);
        }
    }

    /// posse may be killed, or the disk may be full, in the middle of a line.
    #[test]
    fn a_line_that_was_cut_off_runs_again() {
        let hash = |text| format!("{:x}", stable_hash(text));
        let whole = format!("1 {}\n", hash("a"));
        for cut in ["", "2", "2 ", "2 0"] {
            let folder = Folder::new(&[("done", &format!("{whole}{cut}"))]);
            let path = folder.path().join("done");
            let mut done = Done::open(Some(&path)).unwrap();
            assert_eq!((done.has(1, "a"), done.has(2, "b")), (Ok(true), Ok(false)), "{cut:?}");
            done.note(2, "b");
            done.add(2).unwrap();
            let want = format!("{whole}2 {}\n", hash("b"));
            assert_eq!(std::fs::read_to_string(&path).unwrap(), want, "{cut:?}");
        }
        let folder = Folder::new(&[("done", "1 ff\nother\n2")]);
        let error = Done::open(Some(&folder.path().join("done"))).map(drop).unwrap_err();
        assert!(error.message.contains("line 2 is none that"), "{}", error.message);
    }
}
