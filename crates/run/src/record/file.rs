//! A record in a file: lines are appended and synced before a call is answered. The last line may be torn by a power
//! failure; it is cut off, because nobody was told that it is there.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use log::{info, warn};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::OpenError;
use posse_base::files::{self, Replacement};
use posse_core::model::fact::{Fact, Topic};
use posse_kube::http::WriteLimit;
use posse_wire::control::record::{RECORD_FORMAT, RecordOwner, header, line, parse, parse_header};

/// The largest file that is read, bytes: ten times what a run may have open and remember.
const FILE_BYTES_MAX: u64 = 512 << 20;
/// Below this size a file is not written anew, bytes.
const SMALL_BYTES: u64 = 1 << 20;

/// An open file.
#[derive(Debug)]
pub(super) struct FileRecord {
    path: PathBuf,
    file: File,
    owner: RecordOwner,
    /// How long the file is.
    n_bytes: u64,
    /// The last line about each topic.
    lines: BTreeMap<Topic, String>,
    n_live_bytes: u64,
    /// A part of a write may be behind `n_bytes`.
    is_torn: bool,
    /// Up to this size it is not written anew, because that has failed. Bytes.
    keeps_bytes: u64,
    /// How long the Leases permit writes.
    limit: Option<WriteLimit>,
}

impl FileRecord {
    pub(super) fn open(
        path: PathBuf,
        owner: &RecordOwner,
        limit: Option<WriteLimit>,
    ) -> Result<(Self, Vec<Fact>), OpenError> {
        let name = path.display().to_string();
        let failed = |error: io::Error| {
            let why = format!("record {name}: {error}");
            let hint = "name another file, or set `record: off`";
            match error.raw_os_error() {
                Some(_) if is_of_name(&error) => OpenError::Misnamed(format!("{why}: {hint}")),
                Some(_) => OpenError::Unavailable(format!("{why}: {hint}")),
                None => OpenError::Unusable(why),
            }
        };
        let mut file = files::open_own(&path).map_err(failed)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|error| match error {
            Errno::WOULDBLOCK => OpenError::Unavailable(format!(
                "record {name}: another posse has it open: end that one, or name another file"
            )),
            error => failed(error.into()),
        })?;
        let n_bytes = file.metadata().map_err(failed)?.len();
        if n_bytes > FILE_BYTES_MAX {
            return Err(OpenError::Unusable(format!(
                "record {name} has {n_bytes} bytes, and the maximum is {FILE_BYTES_MAX}: it is no record of posse"
            )));
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(failed)?;
        let n_whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let text = std::str::from_utf8(bytes.get(..n_whole).unwrap_or_default()).map_err(|_| {
            OpenError::Unusable(format!(
                "record {name} is no text, so it is no record of posse: name another file"
            ))
        })?;
        let facts = read(text, owner, &name).map_err(OpenError::Unusable)?;
        if n_whole == 0 && !header(owner).as_bytes().starts_with(&bytes) {
            return Err(OpenError::Unusable(format!(
                "record {name} has no whole line, so it is no record of posse: name another file"
            )));
        }
        files::make_own(&file).map_err(failed)?;
        if n_whole < bytes.len() {
            warn!(
                "record {name}: its last line is torn ({} bytes): it is cut off, and was never acknowledged",
                bytes.len() - n_whole
            );
            file.set_len(n_whole as u64).map_err(failed)?;
        }
        let lines: BTreeMap<Topic, String> =
            facts.iter().map(|fact| (fact.topic.clone(), line(fact))).collect();
        let n_live_bytes = lines.values().map(|line| line.len() as u64 + 1).sum();
        let n_bytes = n_whole as u64;
        let (owner, is_torn, keeps_bytes) = (owner.clone(), false, SMALL_BYTES);
        let mut record =
            Self { path, file, owner, n_bytes, lines, n_live_bytes, is_torn, keeps_bytes, limit };
        if n_whole == 0 {
            record.write(&(header(&record.owner) + "\n")).map_err(failed)?;
            sync_folder(&record.path);
        }
        Ok((record, facts))
    }

    pub(super) fn append(&mut self, facts: &[Fact]) -> Result<(), String> {
        let mut text = String::new();
        for fact in facts {
            let line = line(fact);
            text.push_str(&line);
            text.push('\n');
            self.note(fact, line);
        }
        let name = self.path.display().to_string();
        let is_changed = self.is_changed();
        // The next posse would not read more.
        let is_full = self.n_bytes + text.len() as u64 > FILE_BYTES_MAX;
        let is_wasteful = self.n_bytes > self.keeps_bytes.max(self.n_live_bytes.saturating_mul(2));
        if is_changed || is_full || is_wasteful {
            let held = is_changed.then(|| self.hold_path()).transpose();
            match held.and_then(|_held| self.rewrite()) {
                Ok(()) if is_changed => {
                    warn!(
                        "record {name}: others had removed or changed it, and it was written anew"
                    );
                    return Ok(());
                }
                Ok(()) => return Ok(()),
                // What is appended to a file without a name is lost.
                Err(error) if is_changed => {
                    return Err(format!(
                        "record {name}: others have removed or changed it: {error}"
                    ));
                }
                Err(error) if is_full => {
                    return Err(format!(
                        "record {name}: more than {FILE_BYTES_MAX} bytes, and it cannot be written anew: {error}"
                    ));
                }
                // A full disk, or a folder in which nothing can be made. What is old in it stays.
                Err(error) => {
                    warn!("record {name}: it cannot be written anew, and grows: {error}");
                    self.keeps_bytes = self.n_bytes.saturating_mul(2);
                }
            }
        }
        self.write(&text).map_err(|error| format!("record {name}: {error}"))
    }

    /// Looks whether others have changed it. Without the Leases it may be they who write it now.
    pub(super) fn check(&mut self) -> Result<(), String> {
        let may_write = self.limit.as_ref().is_none_or(|limit| limit.0() > Duration::ZERO);
        match may_write && (self.is_torn || self.is_changed()) {
            true => self.append(&[]),
            false => Ok(()),
        }
    }

    /// Locks what has the path now, so that nobody opens it before it is replaced. What is not of this run stays.
    fn hold_path(&self) -> io::Result<File> {
        let there = files::open_own(&self.path)?;
        let (open, other) = (self.file.metadata()?, there.metadata()?);
        // A second lock on a file excludes the first one, also in the same process.
        if (open.dev(), open.ino()) != (other.dev(), other.ino()) {
            flock(&there, FlockOperation::NonBlockingLockExclusive).map_err(
                |error| match error {
                    Errno::WOULDBLOCK => {
                        io::Error::other("another posse has it open: end that one")
                    }
                    error => error.into(),
                },
            )?;
        }
        let own = header(&self.owner) + "\n";
        let mut begin = Vec::new();
        (&there).take(own.len() as u64).read_to_end(&mut begin)?;
        match own.as_bytes().starts_with(&begin) {
            true => Ok(there),
            false => Err(io::Error::other("it is not the record of this run: move it away")),
        }
    }

    /// A lock keeps nobody from removing the file, moving it away or writing to it.
    fn is_changed(&self) -> bool {
        match (self.file.metadata(), fs::metadata(&self.path)) {
            (Ok(open), Ok(there)) => {
                let is_long = self.is_torn || there.len() == self.n_bytes;
                !is_long || (open.dev(), open.ino()) != (there.dev(), there.ino())
            }
            (_, Err(error)) => error.kind() == ErrorKind::NotFound,
            (Err(_), Ok(_)) => false,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    pub(super) fn remove(&mut self) -> Result<(), String> {
        self.remove_by(|path| fs::remove_file(path))
    }

    /// A mount, or a file in a folder of another user, can be written and not be removed. Without a line it is a new record:
    /// with its lines the next run would find all work done.
    fn remove_by(&mut self, unlink: impl FnOnce(&Path) -> io::Result<()>) -> Result<(), String> {
        let name = self.path.display();
        let held = self.hold_path().map_err(|error| format!("{name}: {error}"))?;
        let Err(error) = unlink(&self.path) else { return Ok(()) };
        match held.set_len(0).and_then(|()| held.sync_all()) {
            Ok(()) => {
                info!("record {name}: it cannot be removed, and was emptied: {error}");
                Ok(())
            }
            Err(of_content) => Err(format!(
                "{name}: {error}; nor can it be emptied ({of_content}), so the next run of this instance goes on from it: \
                 remove it"
            )),
        }
    }

    fn note(&mut self, fact: &Fact, line: String) {
        let n = line.len() as u64 + 1;
        let before = match fact.knowledge {
            Some(_) => {
                self.n_live_bytes += n;
                self.lines.insert(fact.topic.clone(), line)
            }
            None => self.lines.remove(&fact.topic),
        };
        self.n_live_bytes -= before.map_or(0, |line| line.len() as u64 + 1);
    }

    /// Appends and syncs. A part of it, from a full disk, is taken back.
    fn write(&mut self, text: &str) -> io::Result<()> {
        self.mend()?;
        let written = self.file.write_all(text.as_bytes()).and_then(|()| self.file.sync_data());
        match written {
            Ok(()) => self.n_bytes += text.len() as u64,
            Err(_) => {
                self.is_torn = true;
                self.mend()?;
            }
        }
        written
    }

    /// Cuts off a part of a write. Until that succeeds nothing is written: it would be behind the part.
    fn mend(&mut self) -> io::Result<()> {
        if self.is_torn {
            self.file.set_len(self.n_bytes)?;
            self.file.seek(SeekFrom::End(0))?;
            self.is_torn = false;
        }
        Ok(())
    }

    /// Replaces the file by one that has only the last line about each topic.
    fn rewrite(&mut self) -> io::Result<()> {
        let mut text = header(&self.owner) + "\n";
        for line in self.lines.values() {
            text.push_str(line);
            text.push('\n');
        }
        let mut new = Replacement::new(&self.path)?;
        new.file.write_all(text.as_bytes())?;
        let file = new.file.try_clone()?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        // Nothing may fail after it: what is appended to the old file is lost then.
        new.finish(files::PRIVATE)?;
        sync_folder(&self.path);
        (self.file, self.n_bytes) = (file, text.len() as u64);
        (self.is_torn, self.keeps_bytes) = (false, SMALL_BYTES);
        Ok(())
    }
}

/// Another name would do. What else fails may be of this node or this moment.
pub fn is_of_name(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::NotFound
            | ErrorKind::PermissionDenied
            | ErrorKind::NotADirectory
            | ErrorKind::IsADirectory
            | ErrorKind::InvalidFilename
    )
}

/// Without it the name of a new file may be lost with the power.
fn sync_folder(path: &Path) {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let synced =
        File::open(folder.unwrap_or_else(|| Path::new("."))).and_then(|folder| folder.sync_all());
    if let Err(error) = synced {
        warn!("record {}: its folder cannot be synced: {error}", path.display());
    }
}

/// The facts in a file.
fn read(text: &str, owner: &RecordOwner, name: &str) -> Result<Vec<Fact>, String> {
    let mut lines = text.lines().enumerate();
    let Some((_, first)) = lines.next() else { return Ok(Vec::new()) };
    let Some((format, found)) = parse_header(first) else {
        return Err(format!("record {name}, line 1: it is no record of posse: name another file"));
    };
    if format > RECORD_FORMAT {
        return Err(format!(
            "record {name} has format {format}, and this posse knows {RECORD_FORMAT}: use the posse that wrote it, or \
             a newer one"
        ));
    }
    if found != *owner {
        let RecordOwner { app, instance, namespace, server } = &found;
        // Without `--instance` each start is another one.
        let own = RecordOwner { instance: instance.clone(), ..owner.clone() };
        let goes_on = match found == own {
            true => format!("--instance {instance} goes on with it, or "),
            false => String::new(),
        };
        return Err(format!(
            "record {name} is of application {app}, instance {instance}, namespace {namespace} at {server}: {goes_on}name \
             another file"
        ));
    }
    let mut known = BTreeMap::new();
    for (i, line) in lines {
        let fact = parse(line).map_err(|error| {
            format!("record {name}, line {}: {error}: mend or delete the line", i + 1)
        })?;
        match fact.knowledge {
            Some(_) => known.insert(fact.topic.clone(), fact),
            None => known.remove(&fact.topic),
        };
    }
    Ok(known.into_values().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use posse_core::model::fact::{Knowledge, Target};
    use posse_core::model::ids::GroupName;
    use posse_testing::Folder;
    use std::os::unix::fs::PermissionsExt as _;
    use std::sync::Arc;

    fn owner() -> RecordOwner {
        let [app, instance, namespace, server] = ["a", "i", "n", "s"].map(str::to_owned);
        RecordOwner { app, instance, namespace, server }
    }

    fn target(group: &str, target: u32) -> Fact {
        let topic = Topic::Target(GroupName::from(group));
        Fact {
            topic,
            knowledge: Some(Knowledge::Target(Target { target, of_file: 1, ..Target::default() })),
        }
    }

    fn open(path: &Path) -> Result<(FileRecord, Vec<Fact>), OpenError> {
        FileRecord::open(path.to_owned(), &owner(), None)
    }

    fn texts() -> Vec<Fact> {
        (0..40_000).map(|i| target("g", i)).collect()
    }

    #[test]
    fn only_what_is_no_record_of_this_run_is_an_error_of_the_settings() {
        let folder = Folder::new();
        let error = |path: &Path| open(path).map(|_| ()).unwrap_err();
        let missing = error(&folder.path().join("none/r"));
        assert!(matches!(missing, OpenError::Misnamed(_)), "{missing:?}");
        let is_folder = error(folder.path());
        assert!(matches!(is_folder, OpenError::Misnamed(_)), "{is_folder:?}");
        let rubbish = folder.path().join("rubbish");
        fs::write(&rubbish, "rubbish\n").unwrap();
        let rubbish = error(&rubbish);
        assert!(matches!(rubbish, OpenError::Unusable(_)), "{rubbish:?}");
        for (code, is_unavailable) in [(5, true), (28, true), (30, true), (116, true), (2, false)] {
            let error = io::Error::from_raw_os_error(code);
            assert_eq!(!is_of_name(&error), is_unavailable, "{error}");
        }
    }

    #[test]
    fn a_file_that_cannot_be_written_anew_is_appended_to() {
        let folder = Folder::new();
        // The name of the new file would be too long.
        let path = folder.path().join("r".repeat(250));
        let (mut record, _) = open(&path).unwrap();
        record.append(&texts()).unwrap();
        let n_bytes = record.n_bytes;
        assert!(n_bytes > SMALL_BYTES);
        record.append(&[target("h", 2)]).unwrap();
        assert_eq!(record.keeps_bytes, 2 * n_bytes, "it is tried again then");
        record.append(&[target("h", 3)]).unwrap();
        assert_eq!(record.keeps_bytes, 2 * n_bytes);
        drop(record);
        assert_eq!(open(&path).unwrap().1, [target("g", 39_999), target("h", 3)]);
    }

    #[test]
    fn no_file_grows_so_large_that_nobody_reads_it() {
        let folder = Folder::new();
        let path = folder.path().join("r".repeat(250));
        let (mut record, _) = open(&path).unwrap();
        // Of its size only: it has no blocks on the disk.
        record.n_bytes = FILE_BYTES_MAX - 9;
        record.file.set_len(record.n_bytes).unwrap();
        for _ in 0..2 {
            let refused = record.append(&[target("g", 1)]).unwrap_err();
            assert!(refused.contains("more than 536870912 bytes, and it cannot"), "{refused}");
            assert_eq!(record.file.metadata().unwrap().len(), FILE_BYTES_MAX - 9);
        }
    }

    #[test]
    fn nothing_is_written_behind_a_torn_write() {
        let folder = Folder::new();
        let path = folder.path().join("r");
        let (mut record, _) = open(&path).unwrap();
        record.append(&[target("g", 1)]).unwrap();
        let broken = File::open(&path).unwrap();
        let file = std::mem::replace(&mut record.file, broken);
        assert!(record.append(&[target("h", 2)]).is_err());
        // A part of the write has arrived, and what takes it back fails.
        fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"torn").unwrap();
        assert!(record.append(&[target("h", 2)]).is_err());
        record.file = file;
        record.append(&[target("i", 3)]).unwrap();
        drop(record);
        assert_eq!(open(&path).unwrap().1, [target("g", 1), target("i", 3)]);
    }

    #[test]
    fn a_file_that_others_remove_or_change_is_written_anew() {
        let folder = Folder::new();
        let path = folder.path().join("r");
        let (mut record, _) = open(&path).unwrap();
        record.append(&[target("g", 1)]).unwrap();
        let more = || fs::OpenOptions::new().append(true).open(&path).unwrap();
        let others: [&dyn Fn(); 4] = [
            &|| fs::remove_file(&path).unwrap(),
            &|| fs::rename(&path, folder.path().join("moved")).unwrap(),
            &|| fs::write(&path, "").unwrap(),
            &|| more().write_all(b"more\n").unwrap(),
        ];
        for (n, change) in (2..).zip(others) {
            change();
            record.append(&[target("h", n)]).unwrap();
            change();
            record.append(&[]).unwrap();
            let text = fs::read_to_string(&path).unwrap();
            assert_eq!(read(&text, &owner(), "r").unwrap(), [target("g", 1), target("h", n)]);
        }
        // Nobody is told that something is recorded in a file that has no name.
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(record.append(&[target("i", 9)]).is_err());
        fs::remove_dir(&path).unwrap();
        record.append(&[]).unwrap();
        drop(record);
        assert_eq!(open(&path).unwrap().1.len(), 3);
    }

    #[test]
    fn what_is_not_of_this_run_is_not_replaced() {
        let folder = Folder::new();
        let path = folder.path().join("r");
        let other = RecordOwner { app: "b".to_owned(), ..owner() };
        let notes = |path: &Path| fs::write(path, "my own notes\n").unwrap();
        let (mut record, _) = open(&path).unwrap();
        let moves: [&dyn Fn() -> Option<FileRecord>; 4] = [
            &|| {
                notes(&path);
                None
            },
            &|| {
                fs::remove_file(&path).unwrap();
                notes(&path);
                None
            },
            &|| {
                fs::remove_file(&path).unwrap();
                Some(FileRecord::open(path.clone(), &other, None).unwrap().0)
            },
            // The same run, where a lock does not keep two of them apart.
            &|| {
                fs::remove_file(&path).unwrap();
                Some(open(&path).unwrap().0)
            },
        ];
        for change in moves {
            let held = change();
            let text = fs::read_to_string(&path).unwrap();
            for done in [record.append(&[target("h", 2)]), record.check(), record.remove()] {
                assert!(done.is_err(), "{text}");
            }
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
            drop(held);
        }
        // The last one was of this run, and nobody has it open now.
        record.check().unwrap();
        assert!(fs::read_to_string(&path).unwrap().contains("\"h\""));
    }

    #[test]
    fn the_look_writes_only_if_it_must_and_may() {
        let folder = Folder::new();
        let path = folder.path().join("r");
        let (mut record, _) = open(&path).unwrap();
        record.append(&texts()).unwrap();
        record.check().unwrap();
        assert!(record.n_bytes > SMALL_BYTES, "an unchanged file is left as it is");
        fs::remove_file(&path).unwrap();
        record.limit = Some(WriteLimit(Arc::new(|| Duration::ZERO)));
        record.check().unwrap();
        assert!(!path.exists(), "the Lease is lost");
        record.limit = Some(WriteLimit(Arc::new(|| Duration::from_secs(1))));
        record.check().unwrap();
        assert!(path.exists());
    }

    #[test]
    fn the_last_fact_about_each_topic_is_found_again() {
        let folder = Folder::new();
        let path = folder.path().join("r");
        let (mut record, facts) = open(&path).unwrap();
        assert_eq!(facts, []);
        record.append(&[target("g", 1), target("h", 2)]).unwrap();
        let gone = Fact { knowledge: None, ..target("h", 2) };
        record.append(&[target("g", 3), gone]).unwrap();
        let OpenError::Unavailable(second) = open(&path).unwrap_err() else { panic!() };
        assert!(second.contains("another posse has it open"), "{second}");
        drop(record);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let (mut record, facts) = open(&path).unwrap();
        assert_eq!(facts, [target("g", 3)]);
        record.remove().unwrap();
        assert!(!path.exists());
    }

    /// Else the next run of this instance would find all its work done.
    #[test]
    fn a_file_that_cannot_be_removed_is_emptied() {
        let folder = Folder::new();
        let path = folder.path().join("r");
        let (mut record, _) = open(&path).unwrap();
        record.append(&[target("g", 1), target("h", 2)]).unwrap();
        // As of a mount, and of a folder of another user.
        record.remove_by(|_| Err(ErrorKind::ResourceBusy.into())).unwrap();
        drop(record);
        let (mut record, facts) = open(&path).unwrap();
        assert_eq!(facts, []);
        record.append(&[target("g", 3)]).unwrap();
        drop(record);
        assert_eq!(open(&path).unwrap().1, [target("g", 3)]);
    }

    #[test]
    fn a_torn_line_is_cut_off() {
        let folder = Folder::new();
        let path = folder.path().join("r");
        let (mut record, _) = open(&path).unwrap();
        record.append(&[target("g", 1)]).unwrap();
        drop(record);
        let whole = fs::read(&path).unwrap();
        for n in 1..40 {
            let more = line(&target("h", 2));
            let torn = [&whole[..], &more.as_bytes()[..n]].concat();
            fs::write(&path, torn).unwrap();
            let (mut record, facts) = open(&path).unwrap();
            assert_eq!(facts, [target("g", 1)]);
            record.append(&[target("i", 3)]).unwrap();
            drop(record);
            assert_eq!(open(&path).unwrap().1.len(), 2);
        }
        // Of a file that was torn in its first line nothing was acknowledged.
        fs::write(&path, &whole[..9]).unwrap();
        assert_eq!(open(&path).unwrap().1, []);
    }

    #[test]
    fn a_file_with_much_that_is_old_is_written_anew() {
        let folder = Folder::new();
        let path = folder.path().join("r");
        let (mut record, _) = open(&path).unwrap();
        record.append(&texts()).unwrap();
        assert!(fs::metadata(&path).unwrap().len() > SMALL_BYTES);
        record.append(&[target("h", 2)]).unwrap();
        assert!(fs::metadata(&path).unwrap().len() < 1_000);
        record.append(&[target("i", 3)]).unwrap();
        drop(record);
        assert_eq!(open(&path).unwrap().1, [target("g", 39_999), target("h", 2), target("i", 3)]);
    }

    #[test]
    fn a_file_that_is_no_record_of_this_run_is_refused() {
        let folder = Folder::new();
        let path = folder.path().join("r");
        let header = |format: u32, app: &str| {
            format!(
                r#"{{"posse_record":{format},"app":"{app}","instance":"i","namespace":"n","server":"s"}}"#
            )
        };
        let of_instance = |name| header(1, "a").replace("\"i\"", name) + "\n";
        for (text, part) in [
            ("hello\n".to_owned(), "line 1: it is no record"),
            ("hello".to_owned(), "has no whole line, so it is no record of posse"),
            (header(1, "b"), "has no whole line, so it is no record of posse"),
            ("\u{fffd}\n".to_owned(), "line 1: it is no record"),
            (header(2, "a") + "\n", "has format 2, and this posse knows 1"),
            (
                header(1, "b") + "\n",
                "is of application b, instance i, namespace n at s: name another file",
            ),
            (of_instance("\"j\""), "at s: --instance j goes on with it, or name another file"),
            (header(1, "a") + "\n{}\n", "line 2: it is no line of a record"),
        ] {
            fs::write(&path, &text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
            let OpenError::Unusable(error) = open(&path).unwrap_err() else { panic!() };
            assert!(error.contains(part), "{error}");
            assert_eq!(fs::read_to_string(&path).unwrap(), text, "it stays as it is");
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o644);
        }
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/dev/null", &path).unwrap();
        assert!(open(&path).is_err());
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(open(&path).is_err());
    }
}
