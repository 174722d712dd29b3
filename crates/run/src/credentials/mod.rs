//! Credentials that stay fresh: for each entry of `credentials` a thread runs the command, checks the
//! files, gives them to the driver and stores them in a Secret. `core` decides when.

pub mod folder;
pub mod store;

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use log::{debug, info, warn};

use crate::credentials::folder::{EntryFolder, PrivateFolder};
use crate::credentials::store::SecretStore;
use crate::inbox::Message;
use crate::run::settings::RunSettings;
use crate::worker::Worker;
use posse_base::clock::Clock;
use posse_base::rng::Rng;
use posse_base::time::Millis;
use posse_core::machines::renewal_schedule::RenewalSchedule;
use posse_core::model::input::{Input, Renewal};
use posse_kube::api::objects::Objects;
use posse_process::command::{self, Failure, RunningCommand};
use posse_wire::k8s::common_metadata::CommonMetadata;
use posse_wire::k8s::labels::Selection;
use posse_wire::pod::build::OwnerRef;
use posse_wire::pod::credential_files::{CredentialFiles, redact};
use posse_wire::pod::credential_mounts::{Credentials, DIR, MOUNT, expiry_unix_ms};
use posse_wire::time;

/// How often a thread looks whether its Secret still exists: somebody may have deleted it, or the
/// garbage collector, with the pod of an earlier driver.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// Shorter lifetimes are logged, in milliseconds: a fifth has to be left for kubelets, which take up
/// to 90 s to update the files.
const LIFETIME_MS_MIN: u64 = 450_000;
/// How long a run waits at its end for the threads.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
/// The stack of such a thread, bytes.
const STACK_BYTES: usize = 512 << 10;

/// What the threads need besides the entries.
#[derive(Debug)]
pub struct CredentialContext {
    pub objects: Objects,
    pub selection: Selection,
    pub owner: Option<OwnerRef>,
    /// Labels and annotations of the Secrets.
    pub common: Arc<CommonMetadata>,
    /// The embedded cluster updates files at once.
    pub is_embedded: bool,
    pub clock: Clock,
    pub inbox: Sender<Message>,
}

/// Whether the Secrets go with the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecretRelease {
    Delete,
    /// Executors that the run leaves need them.
    Keep,
}

impl SecretRelease {
    pub fn of(keeps: bool) -> Self {
        if keeps { Self::Keep } else { Self::Delete }
    }
}

/// The running threads. The credentials are removed from this machine when this is dropped.
#[derive(Debug)]
pub struct CredentialThreads {
    threads: Vec<CredentialThread>,
    /// After the threads, which write into it. None: the run has no credentials.
    folder: Option<PrivateFolder>,
}

#[derive(Debug)]
struct CredentialThread {
    stop: Sender<SecretRelease>,
    running: RunningCommand,
    worker: Worker,
}

impl CredentialThreads {
    /// Starts a thread for each entry.
    ///
    /// # Errors
    /// There is no folder for the credentials, or the system refuses a thread.
    pub fn start(
        settings: &RunSettings,
        context: &CredentialContext,
        rng: &mut Rng,
    ) -> io::Result<Self> {
        let mut all = Self { threads: Vec::new(), folder: None };
        if settings.credentials.is_empty() {
            return Ok(all);
        }
        let folder = PrivateFolder::create(&settings.private_folders)?;
        for entry in settings.credentials.iter() {
            let (stop, orders) = bounded(1);
            let running = RunningCommand::default();
            let renewer = Renewer {
                entry: entry.clone(),
                folder: folder.entry(&entry.name)?,
                store: SecretStore {
                    objects: context.objects.clone(),
                    name: entry.secret.clone(),
                    selection: context.selection.clone(),
                    owner: context.owner.clone(),
                    common: Arc::clone(&context.common),
                    change: "update",
                },
                is_embedded: context.is_embedded,
                clock: context.clock,
                inbox: context.inbox.clone(),
                running: running.clone(),
                orders,
            };
            let schedule = RenewalSchedule::new(entry.every_ms, Rng::new(rng.next_u64()));
            let worker = Worker::start("credentials", STACK_BYTES, move || renewer.run(schedule))?;
            all.threads.push(CredentialThread { stop, running, worker });
        }
        all.folder = Some(folder);
        Ok(all)
    }

    /// The variables by which the driver finds the files.
    pub fn driver_env(&self, entries: &[Credentials]) -> Vec<(String, String)> {
        let Some(folder) = &self.folder else { return Vec::new() };
        let env = |entry: &Credentials| {
            entry.env_with(&folder.current(&entry.name).display().to_string())
        };
        entries.iter().flat_map(env).collect()
    }

    /// Ends the commands and the threads, and waits for that up to `STOP_TIMEOUT`.
    pub fn stop(self, release: SecretRelease) {
        for thread in &self.threads {
            thread.running.close();
            // The channel has room for the only order.
            let _ = thread.stop.try_send(release);
        }
        let deadline = Instant::now() + STOP_TIMEOUT;
        for thread in self.threads {
            if !thread.worker.join_by(deadline) {
                warn!("a secret with credentials may remain: the API server does not answer");
            }
        }
    }
}

/// One entry's thread.
struct Renewer {
    entry: Credentials,
    folder: EntryFolder,
    store: SecretStore,
    is_embedded: bool,
    clock: Clock,
    inbox: Sender<Message>,
    running: RunningCommand,
    orders: Receiver<SecretRelease>,
}

impl Renewer {
    fn run(&self, mut schedule: RenewalSchedule) {
        self.take_up();
        let mut is_stored = false;
        let mut has_warned = self.is_embedded;
        loop {
            let wait = Duration::from_millis(schedule.due().since(self.clock.now()));
            match self.orders.recv_timeout(wait.min(CHECK_INTERVAL)) {
                Ok(release) => return self.release(release),
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) if wait <= CHECK_INTERVAL => {
                    is_stored |= self.renew(&mut schedule, &mut has_warned);
                }
                Err(RecvTimeoutError::Timeout) if is_stored => self.check(),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// The first run of the command finds the files that the last process of this instance stored: executors that
    /// live on have them.
    fn take_up(&self) {
        let published = self
            .store
            .files_of_ours()
            .and_then(|files| self.folder.publish(&files).map_err(|error| error.to_string()));
        if let Err(problem) = published {
            debug!("the files of the last renewal of {} are not known: {problem}", self.entry.name);
        }
    }

    /// Runs the command once and reports the end. True if the credentials are stored.
    fn renew(&self, schedule: &mut RenewalSchedule, has_warned: &mut bool) -> bool {
        let began = self.clock.now();
        let outcome = self.fetch(began);
        let now = self.clock.now();
        let next_at = match &outcome {
            Ok(expires) => schedule.on_renewed(began, now, *expires),
            Err(_) => schedule.on_failed(now),
        };
        if let Ok(Some(expires)) = &outcome
            && expires.since(began) < LIFETIME_MS_MIN
            && !std::mem::replace(has_warned, true)
        {
            let (name, s) = (&self.entry.name, expires.since(began) / 1_000);
            warn!(
                "credentials {name} last only {s} s: kubelets take up to 90 s to update the files \
                 in running executors, which may then find expired ones"
            );
        }
        let is_stored = outcome.is_ok();
        let renewal = Renewal { name: self.entry.name.clone(), outcome, next_at };
        // If the inbox is closed, the run ends.
        let _ = self.inbox.send(Message::Input(Input::Credentials(renewal)));
        is_stored
    }

    /// Runs the command, checks its files, and stores them. Returns when they expire, if that is known.
    fn fetch(&self, began: Millis) -> Result<Option<Millis>, String> {
        let fetched = self.run_commands(began);
        let fetched = fetched.and_then(|(files, expires)| {
            // The driver needs them even if the API server does not answer.
            let failed = |error| format!("the files cannot be given to the driver: {error}");
            self.folder.publish(&files).map_err(failed)?;
            self.store.write(&files)?;
            Ok(expires)
        });
        // What a command left must not stay, also if it failed.
        if let Err(error) = self.folder.discard() {
            debug!("what the command of {} left cannot be removed: {error}", self.entry.name);
        }
        fetched
    }

    fn run_commands(&self, began: Millis) -> Result<(CredentialFiles, Option<Millis>), String> {
        let failed = |error: io::Error| format!("the private folder cannot be used: {error}");
        let dir = self.folder.begin().map_err(failed)?.display().to_string();
        self.run_command("command", &self.entry.command, &dir)?;
        let files = self.folder.read_next().map_err(|problem| format!("the command {problem}"))?;
        if self.entry.expires.is_empty() {
            return Ok((files, None));
        }
        let output = self.run_command("expires", &self.entry.expires, &dir)?;
        let at_ms = expiry_unix_ms(&output).ok_or(
            "`expires` printed no time: its last line has to be seconds since 1970 or RFC 3339",
        )?;
        let start_ms = time::unix_ms(self.clock.wall(Millis::ZERO));
        let expires = Millis(at_ms.saturating_sub(start_ms));
        match expires > self.clock.now().max(began) {
            true => Ok((files, Some(expires))),
            false => {
                Err("the credentials that the command fetched have expired already".to_owned())
            }
        }
    }

    /// `key`: the command's key in the configuration.
    fn run_command(&self, key: &str, words: &[String], dir: &str) -> Result<String, String> {
        let mount = self.folder.current().display().to_string();
        let fill = |word: &String| word.replace(DIR, dir).replace(MOUNT, &mount);
        let words: Vec<String> = words.iter().map(fill).collect();
        let timeout = Duration::from_millis(self.entry.timeout_ms);
        command::run(&words, timeout, &self.running).map_err(|failure| {
            let Failure { what, said, errors } = failure;
            let n_said = errors.n_bytes;
            if n_said == 0 {
                return format!("`{key}` {what}");
            }
            // A command that fails may print what it has fetched, in any coding, so only who asks for it
            // sees it. Who watches the run sees events and the status, too.
            debug!("{}: `{key}` {what}: {}", self.entry.name, self.redacted(&said));
            format!("`{key}` {what}; it wrote {n_said} bytes to stderr (-v logs the last line)")
        })
    }

    /// A message of a command, without the parts of the text files that it has left.
    fn redacted(&self, said: &str) -> String {
        match self.folder.read_all() {
            Ok(secrets) => redact(said, &secrets),
            Err(problem) => format!("not shown, because the command {problem}"),
        }
    }

    /// Writes the Secret again if it is gone.
    fn check(&self) {
        if self.store.is_there() {
            return;
        }
        let name = &self.entry.secret;
        match self.folder.read_current().and_then(|files| self.store.write(&files)) {
            Ok(()) => info!("secret {name} was deleted, and is written again"),
            Err(problem) => warn!("secret {name} was deleted, and cannot be written: {problem}"),
        }
    }

    fn release(&self, release: SecretRelease) {
        let name = &self.entry.secret;
        match release {
            SecretRelease::Keep => info!("secret {name} stays, because the executors use it"),
            SecretRelease::Delete => {
                if let Err(problem) = self.store.remove() {
                    warn!("secret {name} is not deleted: {problem}");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::Mutex;

    use serde_json::Value;

    use super::*;
    use posse_testing::Folder;
    use posse_testing::{Answer, TestServer, plain_client};

    /// A server with one Secret.
    fn server() -> TestServer {
        let stored = Mutex::new(None::<Value>);
        TestServer::start(None, move |asked| {
            let mut stored = stored.lock().unwrap();
            match asked.line().split(' ').next() {
                Some("POST" | "PUT") => {
                    let mut object: Value = serde_json::from_slice(&asked.body).unwrap();
                    (object["metadata"]["uid"], object["metadata"]["resourceVersion"]) =
                        ("u1".into(), "1".into());
                    Answer::json(200, stored.insert(object).to_string())
                }
                Some("DELETE") => {
                    *stored = None;
                    Answer::json(200, r#"{"kind":"Status"}"#)
                }
                _ => match stored.as_ref() {
                    Some(stored) => Answer::json(200, stored.to_string()),
                    None => Answer::json(404, r#"{"kind":"Status","reason":"NotFound"}"#),
                },
            }
        })
    }

    fn renewer(server: &TestServer, folder: EntryFolder, inbox: Sender<Message>) -> Renewer {
        let (_, orders) = bounded(1);
        let text = |text: &str| text.to_owned();
        let script = "echo token >{{DIR}}/token";
        Renewer {
            entry: Credentials {
                name: text("a"),
                command: vec![text("sh"), text("-c"), text(script)],
                expires: vec![text("echo"), text("4102444800")],
                every_ms: None,
                timeout_ms: 60_000,
                secret: text("wc-a"),
                mount: text("/a"),
                env: Vec::new(),
            },
            folder,
            store: SecretStore {
                objects: Objects::new(plain_client(server.address), Some("n")),
                name: text("wc-a"),
                selection: Selection { app: text("wc"), instance: text("i") },
                owner: None,
                common: Arc::default(),
                change: "update",
            },
            is_embedded: true,
            clock: Clock::start(),
            inbox,
            running: RunningCommand::default(),
            orders,
        }
    }

    #[test]
    fn the_first_renewal_finds_what_the_last_process_stored() {
        let (parent, server) = (Folder::new(), server());
        for script in ["echo first >{{DIR}}/token", "cp {{MOUNT}}/token {{DIR}}/token"] {
            let private = PrivateFolder::create(&[parent.path().to_owned()]).unwrap();
            let (sender, _inbox) = bounded(8);
            let mut renewer = renewer(&server, private.entry("a").unwrap(), sender);
            renewer.entry.command[2] = script.to_owned();
            renewer.take_up();
            renewer.fetch(Millis(0)).unwrap();
            let token = private.current("a").join("token");
            assert_eq!(fs::read_to_string(token).unwrap(), "first\n");
        }
    }

    /// The creates since the last call.
    fn posts(server: &TestServer) -> usize {
        server.seen().iter().filter(|asked| asked.line().starts_with("POST ")).count()
    }

    #[test]
    fn a_secret_that_was_deleted_is_written_again() {
        let (parent, server) = (Folder::new(), server());
        let private = PrivateFolder::create(&[parent.path().to_owned()]).unwrap();
        let (sender, inbox) = bounded(8);
        let renewer = renewer(&server, private.entry("a").unwrap(), sender);
        let mut schedule = RenewalSchedule::new(None, Rng::new(1));
        assert!(renewer.renew(&mut schedule, &mut false));
        let Ok(Message::Input(Input::Credentials(renewal))) = inbox.try_recv() else {
            panic!("no report of the renewal")
        };
        assert!(matches!(renewal.outcome, Ok(Some(_))), "{renewal:?}");
        let token = private.current("a").join("token");
        assert_eq!(fs::read_to_string(token).unwrap(), "token\n");
        renewer.check();
        assert_eq!(posts(&server), 1, "it is there");
        renewer.release(SecretRelease::Keep);
        renewer.release(SecretRelease::Delete);
        renewer.check();
        assert_eq!(posts(&server), 1, "it was gone");
    }

    #[test]
    fn an_expiry_in_the_past_is_a_failure_that_changes_nothing() {
        let (parent, server) = (Folder::new(), server());
        let private = PrivateFolder::create(&[parent.path().to_owned()]).unwrap();
        let (sender, inbox) = bounded(8);
        let mut renewer = renewer(&server, private.entry("a").unwrap(), sender);
        for (expiry, want) in [
            ("1000000000", "the credentials that the command fetched have expired already"),
            ("s3cr3t", "`expires` printed no time"),
        ] {
            renewer.entry.expires = vec!["echo".to_owned(), expiry.to_owned()];
            assert!(!renewer.renew(&mut RenewalSchedule::new(None, Rng::new(1)), &mut false));
            let Ok(Message::Input(Input::Credentials(renewal))) = inbox.try_recv() else {
                panic!("no report of the renewal")
            };
            let problem = renewal.outcome.unwrap_err();
            assert!(problem.starts_with(want) && !problem.contains("s3cr3t"), "{problem}");
        }
        assert_eq!(fs::read_dir(private.current("a")).unwrap().count(), 0);
        assert_eq!(server.seen().len(), 0);
    }

    #[test]
    fn what_a_failed_command_said_is_told_by_its_length() {
        let (parent, server) = (Folder::new(), server());
        let private = PrivateFolder::create(&[parent.path().to_owned()]).unwrap();
        let (sender, _inbox) = bounded(8);
        let mut renewer = renewer(&server, private.entry("a").unwrap(), sender);
        for (script, want) in [
            // The token as it is, turned round, and in another coding.
            ("printf s3cr3t-token >&2", "; it wrote 12 bytes to stderr (-v logs the last line)"),
            ("printf nekot-t3rc3s >&2", "; it wrote 12 bytes to stderr (-v logs the last line)"),
            ("printf czNjcjN0 >&2", "; it wrote 8 bytes to stderr (-v logs the last line)"),
            ("true", ""),
        ] {
            let fail = format!("printf s3cr3t-token >{{{{DIR}}}}/token; {script}; exit 1");
            renewer.entry.command = ["sh", "-c", &fail].map(String::from).into();
            let problem = renewer.fetch(Millis(0)).unwrap_err();
            assert_eq!(problem, format!("`command` ended with exit code 1{want}"));
        }
    }

    #[test]
    fn a_message_is_logged_only_if_all_that_the_command_left_can_be_hidden_in_it() {
        let (parent, server) = (Folder::new(), server());
        let private = PrivateFolder::create(&[parent.path().to_owned()]).unwrap();
        let (sender, _inbox) = bounded(8);
        let renewer = renewer(&server, private.entry("a").unwrap(), sender);
        let left = "not shown, because the command left";
        for (script, want) in [
            ("true", "refused ***".to_owned()),
            ("mkdir $0/sub", format!("{left} something that is not a regular file: sub")),
            ("ln -s token $0/a", format!("{left} a symbolic link: a")),
        ] {
            let dir = renewer.folder.begin().unwrap().display().to_string();
            let script = format!("printf s3cr3t-token >$0/token; {script}");
            let words = ["sh", "-c", &script, &dir].map(String::from);
            command::run(&words, Duration::from_secs(60), &renewer.running).unwrap();
            assert_eq!(renewer.redacted("refused s3cr3t-token"), want);
        }
    }
}
