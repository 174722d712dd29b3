//! The output of ended tasks, kept in a folder: a file for each task, which outlives its pod and the run. A file is
//! named by group, key and pod. Where an output could not be had, a file says why.

use std::collections::BTreeMap;
use std::fs::{self, DirEntry};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime};

use log::{debug, warn};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use posse_base::files;
use posse_base::sync::lock;
use posse_base::text::sanitize;
use posse_core::model::ids::{ExecutorId, GroupName};
use posse_core::model::refusal::{Refusal, RefusalClass};
use posse_core::model::task::TaskOutput;

/// The most bytes that are kept of one task: its last ones.
pub const OUTPUT_BYTES_MAX: usize = 1 << 20;
/// The most bytes of all outputs together. The oldest are removed first.
const ALL_BYTES_MAX: u64 = 256 << 20;
/// The most outputs: as many as a run remembers tasks that have ended.
const FILES_MAX: usize = 20_000;
/// The most entries of a folder that are looked at when it is opened.
const ENTRIES_MAX: usize = 2 * FILES_MAX;
/// The most groups whose folders are looked at.
const GROUPS_MAX: usize = 1_000;
/// The longest name of a file, in bytes. While it is written it has 30 more, and file systems take 255.
const NAME_BYTES_MAX: usize = 220;
/// The longest reason, in bytes.
const WHY_BYTES_MAX: usize = 1_024;
/// So many outputs that are not kept are told one by one.
const TOLD_MAX: u32 = 10;
/// How long no log is asked for after the server has refused the right to read logs.
const FORBIDDEN_PAUSE: Duration = Duration::from_secs(60);

/// The characters that stay as they are in a name. A group's dots are encoded, so that none is `..`.
const GROUP: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_');
/// A pod's uid is what follows the last dot of a key.
const KEY: &AsciiSet = &GROUP.remove(b'.');
const UID: &AsciiSet = GROUP;

/// The end of a file's name.
const OUTPUT: &str = ".log";
const WHY: &str = ".why";

/// The outputs in one folder.
#[derive(Debug)]
pub struct TaskOutputs {
    folder: PathBuf,
    state: Mutex<State>,
}

type Name = (String, String);

#[derive(Debug, Default)]
struct State {
    /// By group and key.
    kept: BTreeMap<Name, Kept>,
    /// Their order: the oldest first.
    by_age: BTreeMap<u64, Name>,
    next_age: u64,
    n_bytes: u64,
    n_failed: u32,
    has_told_limit: bool,
    forbidden: Option<(Instant, Refusal)>,
}

/// The file of one task.
#[derive(Clone, Debug)]
struct Kept {
    path: PathBuf,
    uid: String,
    /// None: found when the folder was opened.
    executor: Option<ExecutorId>,
    n_bytes: u64,
    age: u64,
    /// The file has the output, and not the reason why there is none.
    is_output: bool,
}

impl TaskOutputs {
    /// Creates the folder, or finds what earlier processes have kept there.
    ///
    /// # Errors
    /// The folder cannot be created, or is not this user's alone.
    pub fn open(folder: &Path) -> io::Result<Self> {
        files::own_folder(folder)?;
        // What nobody needs: of earlier attempts, and what a killed process has left half written.
        let mut older = Vec::new();
        let mut found: Vec<(SystemTime, Name, Kept)> = Vec::new();
        for group in fs::read_dir(folder)?.take(GROUPS_MAX) {
            let group = group?;
            let name = group.file_name().to_str().and_then(decode);
            if let Some(name) = name.filter(|_| group.file_type().is_ok_and(|kind| kind.is_dir())) {
                for entry in fs::read_dir(group.path())?.take(ENTRIES_MAX).flatten() {
                    older.extend(files::is_unfinished(&entry.file_name()).then(|| entry.path()));
                    found.extend(read_entry(&name, &entry));
                }
            }
        }
        found.sort_by(|(a, name_a, _), (b, name_b, _)| (a, name_a).cmp(&(b, name_b)));
        let mut state = State::default();
        for (_, name, kept) in found {
            older.extend(state.insert(name, kept).map(|old| old.path));
        }
        older.iter().for_each(|path| remove(path));
        let surplus = state.take_surplus();
        let all = Self { folder: folder.to_owned(), state: Mutex::new(state) };
        all.remove_surplus(&surplus);
        Ok(all)
    }

    /// Keeps the output of a task. `read` asks the server for it.
    pub fn keep(
        &self,
        output: &TaskOutput,
        n_skipped: u32,
        read: impl FnOnce() -> Result<Vec<u8>, Refusal>,
    ) {
        if n_skipped > 0 {
            warn!("the outputs of {n_skipped} tasks are not kept: too many ended at once");
        }
        let name = (output.group.to_string(), output.key.to_string());
        let uid = output.uid.to_string();
        let is_there = |state: &State| {
            let kept = state.kept.get(&name);
            kept.is_some_and(|kept| kept.uid == uid && kept.is_output)
        };
        if output.is_earlier && is_there(&lock(&self.state)) {
            return;
        }
        let forbidden = lock(&self.state).forbidden();
        let was_forbidden = forbidden.is_some();
        let read = forbidden.map_or_else(read, Err);
        let kept = match &read {
            Ok(bytes) => self.write(output, OUTPUT, bytes),
            Err(refusal) => {
                let why = describe(refusal);
                self.tell(output, &why, was_forbidden);
                if refusal.class == RefusalClass::Forbidden && !was_forbidden {
                    lock(&self.state).forbidden = Some((Instant::now(), refusal.clone()));
                }
                self.write(output, WHY, why.as_bytes())
            }
        };
        if let Err(error) = kept {
            self.tell(output, &format!("{}: {error}", self.folder.display()), false);
        }
    }

    fn tell(&self, output: &TaskOutput, why: &str, is_known: bool) {
        let mut state = lock(&self.state);
        state.n_failed = state.n_failed.saturating_add(1);
        let TaskOutput { group, key, .. } = output;
        match state.n_failed {
            _ if is_known => debug!("task {key} of group {group}: its output is not kept: {why}"),
            ..TOLD_MAX => warn!("task {key} of group {group}: its output is not kept: {why}"),
            TOLD_MAX => warn!(
                "task {key} of group {group}: its output is not kept: {why}; of further ones `posse task logs` tells \
                 the reason"
            ),
            _ => debug!("task {key} of group {group}: its output is not kept: {why}"),
        }
    }

    fn write(&self, output: &TaskOutput, end: &str, bytes: &[u8]) -> io::Result<()> {
        let name = (output.group.to_string(), output.key.to_string());
        let uid = output.uid.to_string();
        let group = self.folder.join(utf8_percent_encode(&name.0, GROUP).to_string());
        let (key_part, uid_part) =
            (utf8_percent_encode(&name.1, KEY), utf8_percent_encode(&uid, UID));
        let file = format!("{key_part}.{uid_part}{end}");
        if file.len() > NAME_BYTES_MAX {
            return Err(io::Error::other("its name is too long"));
        }
        files::own_folder(&group)?;
        let path = group.join(file);
        files::replace(&path, bytes)?;
        let kept = Kept {
            path,
            uid,
            executor: Some(output.executor),
            n_bytes: bytes.len() as u64,
            age: 0,
            is_output: end == OUTPUT,
        };
        let mut state = lock(&self.state);
        let is_late = state.kept.get(&name).is_some_and(|other| other.executor > kept.executor);
        let old = if is_late { Some(kept) } else { state.insert(name, kept) };
        let surplus = state.take_surplus();
        let tells = !surplus.is_empty() && !std::mem::replace(&mut state.has_told_limit, true);
        drop(state);
        if let Some(old) = old {
            remove(&old.path);
        }
        if tells {
            warn!(
                "the outputs of tasks are more than {FILES_MAX} or {} MiB: the oldest are removed from {}",
                ALL_BYTES_MAX >> 20,
                self.folder.display()
            );
        }
        self.remove_surplus(&surplus);
        Ok(())
    }

    fn remove_surplus(&self, surplus: &[Kept]) {
        for old in surplus {
            debug!("{}: removed {}", self.folder.display(), old.path.display());
            remove(&old.path);
        }
    }
}

impl posse_control::TaskOutputs for TaskOutputs {
    fn find(&self, group: &GroupName, key: &str) -> Result<Vec<u8>, String> {
        let name = (group.to_string(), key.to_owned());
        let kept = lock(&self.state).kept.get(&name).cloned();
        let Some(kept) = kept else {
            return Err(format!(
                "is not in {}: none was kept, it was one of the oldest and removed, or it went with an earlier pod of the driver, \
                 which a folder on a volume outlives (task_output)",
                self.folder.display()
            ));
        };
        let bytes = files::read(&kept.path, OUTPUT_BYTES_MAX as u64)
            .map_err(|error| format!("cannot be read: {}: {error}", kept.path.display()))?;
        match kept.is_output {
            true => Ok(bytes),
            false => {
                let why = sanitize(&String::from_utf8_lossy(&bytes), WHY_BYTES_MAX);
                Err(format!("was not kept: {why}"))
            }
        }
    }
}

impl State {
    /// Adds a file, as the newest one. Gives the one that it replaces.
    fn insert(&mut self, name: Name, mut kept: Kept) -> Option<Kept> {
        kept.age = self.next_age;
        self.next_age += 1;
        self.by_age.insert(kept.age, name.clone());
        self.n_bytes += kept.n_bytes;
        let path = kept.path.clone();
        let old = self.kept.insert(name, kept)?;
        self.by_age.remove(&old.age);
        self.n_bytes -= old.n_bytes;
        // The same file, written again.
        Some(old).filter(|old| old.path != path)
    }

    /// The oldest ones beyond the limits, which are forgotten.
    fn take_surplus(&mut self) -> Vec<Kept> {
        let mut surplus = Vec::new();
        while (self.n_bytes > ALL_BYTES_MAX || self.kept.len() > FILES_MAX)
            && let Some((_, name)) = self.by_age.pop_first()
        {
            if let Some(old) = self.kept.remove(&name) {
                self.n_bytes -= old.n_bytes;
                surplus.push(old);
            }
        }
        surplus
    }

    /// The refusal of the right to read logs, if it is new.
    fn forbidden(&self) -> Option<Refusal> {
        let (at, refusal) = self.forbidden.as_ref()?;
        (at.elapsed() < FORBIDDEN_PAUSE).then(|| refusal.clone())
    }
}

/// The file of a task, if the entry is one.
fn read_entry(group: &str, entry: &DirEntry) -> Option<(SystemTime, Name, Kept)> {
    let file = entry.file_name();
    let file = file.to_str()?;
    let is_output = file.ends_with(OUTPUT);
    let name = file.strip_suffix(OUTPUT).or_else(|| file.strip_suffix(WHY))?;
    let (key, uid) = name.rsplit_once('.')?;
    let (key, uid) = (decode(key)?, decode(uid)?);
    // Not that of the target of a link.
    let facts = entry.metadata().ok().filter(fs::Metadata::is_file)?;
    let kept =
        Kept { path: entry.path(), uid, executor: None, n_bytes: facts.len(), age: 0, is_output };
    Some((facts.modified().ok()?, (group.to_owned(), key), kept))
}

fn decode(name: &str) -> Option<String> {
    percent_decode_str(name).decode_utf8().ok().map(String::from).filter(|name| !name.is_empty())
}

fn remove(path: &Path) {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            debug!("{} cannot be removed: {error}", path.display());
        }
        Ok(()) | Err(_) => {}
    }
}

fn describe(refusal: &Refusal) -> String {
    let remedies = [
        (RefusalClass::Forbidden, "; grant get for pods/log"),
        (RefusalClass::NotFound, "; the pod was gone before its log was read"),
    ];
    let remedy = remedies.iter().find(|(class, _)| *class == refusal.class).map_or("", |one| one.1);
    sanitize(&format!("{refusal}{remedy}"), WHY_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use super::*;
    use posse_control::TaskOutputs as _;
    use posse_core::model::ids::Uid;
    use posse_testing::Folder;

    fn output(key: &str, id: u64) -> TaskOutput {
        TaskOutput {
            group: "g".into(),
            key: key.into(),
            executor: ExecutorId(id),
            uid: Uid::new(&format!("u-{id}")),
            pod: format!("a-x-exec-{id}"),
            container: None,
            is_earlier: false,
        }
    }

    fn keep(all: &TaskOutputs, key: &str, id: u64, text: &str) {
        all.keep(&output(key, id), 0, || Ok(text.as_bytes().to_vec()));
    }

    fn found(all: &TaskOutputs, key: &str) -> String {
        match all.find(&"g".into(), key) {
            Ok(bytes) => String::from_utf8(bytes).unwrap(),
            Err(why) => format!("no: {why}"),
        }
    }

    fn n_files(folder: &Path) -> usize {
        fs::read_dir(folder.join("g")).unwrap().count()
    }

    #[test]
    fn outputs_outlive_the_process_and_are_private() {
        let folder = Folder::new();
        let path = folder.path().join("out");
        let all = TaskOutputs::open(&path).unwrap();
        keep(&all, "a.b", 1, "one\n");
        keep(&all, "a", 2, "two\n");
        keep(&all, "a", 3, "three\n");
        // An earlier attempt, whose log came later.
        keep(&all, "a", 2, "late\n");
        assert_eq!((found(&all, "a").as_str(), n_files(&path)), ("three\n", 2));
        // What killed processes leave.
        fs::write(path.join("g/a.u-0.log"), "older").unwrap();
        fs::File::open(path.join("g/a.u-0.log"))
            .unwrap()
            .set_modified(SystemTime::UNIX_EPOCH)
            .unwrap();
        fs::write(path.join("g/.a.u-9.log.77.0.new"), "half").unwrap();
        let again = TaskOutputs::open(&path).unwrap();
        assert_eq!(n_files(&path), 2);
        for all in [all, again] {
            assert_eq!(
                (found(&all, "a.b").as_str(), found(&all, "a").as_str()),
                ("one\n", "three\n")
            );
            assert!(found(&all, "b").starts_with("no: is not in "), "{}", found(&all, "b"));
        }
        for entry in fs::read_dir(path.join("g")).unwrap() {
            assert_eq!(entry.unwrap().metadata().unwrap().mode() & 0o777, 0o600);
        }
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
    }

    #[test]
    fn what_an_earlier_process_has_kept_is_not_read_again() {
        let folder = Folder::new();
        let path = folder.path().join("out");
        keep(&TaskOutputs::open(&path).unwrap(), "a", 1, "one");
        let all = TaskOutputs::open(&path).unwrap();
        for (key, id, want) in [("a", 1, 0), ("a", 2, 1), ("b", 1, 1)] {
            let n_reads = Cell::new(0);
            let earlier = TaskOutput { is_earlier: true, ..output(key, id) };
            all.keep(&earlier, 0, || {
                n_reads.set(n_reads.get() + 1);
                Ok(b"again".to_vec())
            });
            assert_eq!(n_reads.get(), want, "{key} {id}");
        }
    }

    #[test]
    fn a_failed_read_leaves_the_reason_and_takes_the_older_output_away() {
        let folder = Folder::new();
        let path = folder.path().join("out");
        let all = TaskOutputs::open(&path).unwrap();
        keep(&all, "a", 1, "one");
        let gone = Refusal { code: 404, ..Refusal::local(RefusalClass::NotFound, "no pod") };
        all.keep(&output("a", 2), 0, || Err(gone.clone()));
        let again = TaskOutputs::open(&path).unwrap();
        for all in [&all, &again] {
            let why = found(all, "a");
            assert!(why.starts_with("no: was not kept: ") && why.contains("was gone"), "{why}");
        }
        assert_eq!(n_files(&path), 1);
        // Without the right, no further log is asked for at once.
        let n_reads = Cell::new(0);
        for id in 3..6 {
            all.keep(&output("a", id), 0, || {
                n_reads.set(n_reads.get() + 1);
                Err(Refusal::local(RefusalClass::Forbidden, "pods is forbidden"))
            });
        }
        assert_eq!(n_reads.get(), 1);
        assert!(found(&all, "a").ends_with("grant get for pods/log"), "{}", found(&all, "a"));
    }

    #[test]
    fn the_oldest_go_when_there_is_too_much() {
        let folder = Folder::new();
        let path = folder.path().join("out");
        let all = TaskOutputs::open(&path).unwrap();
        for (key, id) in [("old", 1), ("new", 2)] {
            keep(&all, key, id, "text");
        }
        // Its length is all that counts.
        let old = fs::File::options().write(true).open(path.join("g/old.u-1.log")).unwrap();
        old.set_len(ALL_BYTES_MAX - 4).unwrap();
        old.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        let all = TaskOutputs::open(&path).unwrap();
        assert_eq!(n_files(&path), 2);
        keep(&all, "newest", 3, "x");
        assert_eq!((found(&all, "new").as_str(), found(&all, "newest").as_str()), ("text", "x"));
        assert!(found(&all, "old").contains("removed"), "{}", found(&all, "old"));
        assert_eq!(n_files(&path), 2);
        let mut state = State::default();
        let kept = |n: usize| Kept {
            path: PathBuf::from(n.to_string()),
            uid: String::new(),
            executor: None,
            n_bytes: 0,
            age: 0,
            is_output: true,
        };
        for n in 0..FILES_MAX + 3 {
            state.insert(("g".to_owned(), n.to_string()), kept(n));
        }
        let gone: Vec<PathBuf> = state.take_surplus().into_iter().map(|old| old.path).collect();
        assert_eq!(gone, ["0", "1", "2"].map(PathBuf::from));
    }

    #[test]
    fn names_lead_nowhere_else_and_links_are_not_followed() {
        let folder = Folder::new();
        let path = folder.path().join("out");
        let all = TaskOutputs::open(&path).unwrap();
        for (group, key) in [("..", "x"), ("a/b", "../../x"), ("g", ".."), ("g", "/etc/passwd")] {
            let strange = TaskOutput {
                group: group.into(),
                key: key.into(),
                uid: Uid::new("../u"),
                ..output("", 1)
            };
            all.keep(&strange, 0, || Ok(key.as_bytes().to_vec()));
            assert_eq!(
                all.find(&group.into(), key).as_deref(),
                Ok(key.as_bytes()),
                "{group} {key}"
            );
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing beside the folder");
        let target = folder.path().join("target");
        fs::write(&target, "theirs").unwrap();
        keep(&all, "l", 7, "mine");
        let file = path.join("g/l.u-7.log");
        fs::remove_file(&file).unwrap();
        symlink(&target, &file).unwrap();
        assert!(found(&all, "l").contains("symbolic link"), "{}", found(&all, "l"));
        keep(&all, "l", 7, "again");
        assert_eq!(
            (found(&all, "l").as_str(), fs::read(&target).unwrap().as_slice()),
            ("again", &b"theirs"[..])
        );
        // A group's folder that is a link, a folder of others, and one that others can write.
        symlink(folder.path(), path.join("linked")).unwrap();
        let linked = TaskOutput { group: "linked".into(), ..output("x", 1) };
        all.keep(&linked, 0, || Ok(Vec::new()));
        assert!(!folder.path().join("x.u-1.log").exists());
        let link = folder.path().join("link");
        symlink(&path, &link).unwrap();
        assert!(TaskOutputs::open(&link).unwrap_err().to_string().contains("not a folder"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o770)).unwrap();
        assert!(TaskOutputs::open(&path).unwrap_err().to_string().contains("chmod go-w"));
    }
}
