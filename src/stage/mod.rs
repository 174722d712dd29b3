//! `posse stage`: serves, uploads or downloads staged files.

use std::cell::RefCell;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::args::ShowProgress;
use crate::args::stage::{GetArgs, PutArgs, ServeArgs, StageCommand, StageFileArgs, TrustArgs};
use crate::connection::{Connection, sources};
use crate::exit::{Code, Failure};
use crate::listing::{Listing, print_listing};
use crate::namespace::start_signals;
use crate::progress::Progress;
use crate::table::table;
use crate::terminal::print;
use crate::world::World;
use posse_base::files;
use posse_core::policy::bundle_expiry::BundleTimeouts;
use posse_kube::config::{ConfigError, read_file};
use posse_kube::http::Http;
use posse_kube::http::transfer::{Authorities, Peer, Transfer};
use posse_serve::token::Token;
use posse_stage::fetch::fetch;
use posse_stage::send::{self, Source, Upload};
use posse_stage::server::{Admission, Options, Quotas, Reviews, Stage, StageError};
use posse_wire::bundle::{Entry, Ticket};

/// How long `posse submit` waits for progress of a stage server.
const SUBMIT_TIMEOUT_MS: u64 = 300_000;

/// `posse stage`.
///
/// # Errors
/// Invalid arguments (exit code 2), or a failed transfer or server (1).
pub fn stage(
    command: &StageCommand,
    world: &World<'_>,
    out: &mut dyn Write,
) -> Result<Code, Failure> {
    match command {
        StageCommand::Serve(args) => serve(args, world, out),
        StageCommand::Put(args) => put(args, world, out),
        StageCommand::Get(args) => get(args, world, out),
    }
}

fn serve(args: &ServeArgs, world: &World<'_>, out: &mut dyn Write) -> Result<Code, Failure> {
    // The handlers come first: a signal while the server starts must stop it.
    let signals = start_signals()?;
    let pods = pods(args, world)?;
    let admission = match (&args.token_file, pods.clone()) {
        (Some(path), _) => {
            let path = world.dir.join(path);
            // Read now, so that an invalid file is an error at the start.
            Token::read(&path).map_err(|error| Failure::usage(error.to_string()))?;
            Admission::Shared(path)
        }
        (None, Some(http)) => Admission::Review(Reviews::new(http)),
        (None, None) => {
            return Err(Failure::usage(
                "--token-review needs an API server: run in a pod, or name --kubeconfig or $KUBECONFIG",
            ));
        }
    };
    if pods.is_none() {
        log::warn!(
            "no API server is configured: bundles are deleted {} s after their last use",
            args.idle / 1000
        );
    }
    let join = |path: &PathBuf| world.dir.join(path);
    let stage = Stage::start(Options {
        listen: args.listen,
        dir: world.dir.join(&args.dir),
        tls: args.cert.as_ref().map(join).zip(args.key.as_ref().map(join)),
        admission,
        quotas: Quotas {
            bundle_bytes_max: args.bundle_bytes_max,
            namespace_bytes_max: args.namespace_bytes_max,
            namespace_bundles_max: args.namespace_bundles_max,
        },
        patience: BundleTimeouts { idle_ms: args.idle, gone_ms: args.gone },
        pods,
    })?;
    let scheme = if args.insecure { "http" } else { "https" };
    let address = stage.local_addr().unwrap_or(args.listen);
    let printed = print(out, &format!("{scheme}://{address}\n"));
    if printed.is_ok() {
        signals.until_stopped();
    }
    drop(stage);
    printed.map(|()| Code::Clean)
}

/// The API server, as every command finds it; `None` if none is configured.
fn pods(args: &ServeArgs, world: &World<'_>) -> Result<Option<Http>, Failure> {
    let is_named = args.server.kubeconfig.is_some() || args.server.context.is_some();
    match sources(None, None, world.env).resolve() {
        Err(ConfigError::Absent { .. }) if !is_named => Ok(None),
        Ok(_) | Err(_) => Ok(Some(Connection::new(&args.server, world)?.http)),
    }
}

fn put(args: &PutArgs, world: &World<'_>, out: &mut dyn Write) -> Result<Code, Failure> {
    let pod_url = args.pod_url.as_ref();
    let name = |path: &PathBuf| match path.file_name().and_then(|name| name.to_str()) {
        Some(name) => Ok((world.dir.join(path), name.to_owned())),
        None => Err(Failure::usage(format!("{}: the file name is not UTF-8", path.display()))),
    };
    let files = args.files.iter().map(name).collect::<Result<Vec<_>, _>>()?;
    let outgoing =
        Outgoing::new((&args.url, pod_url), &args.trust, &args.token_file, &files, world)?;
    let ticket = outgoing.send(&args.namespace, &args.app)?;
    let Some(secret_file) = &args.secret_file else {
        return print(out, &ticket.to_json()).map(|()| Code::Clean);
    };
    let path = world.dir.join(secret_file);
    files::replace(&path, ticket.to_json().as_bytes())
        .map_err(|error| Failure::new(Code::Failed, format!("{}: {error}", path.display())))?;
    print_listing(&Bundles(ticket.bundles), args.output, out)
}

/// The uploaded files.
struct Bundles(Vec<Entry>);

impl Listing for Bundles {
    fn table(&self, _is_wide: bool) -> String {
        let row = |one: &Entry| [one.id.clone(), one.bytes.to_string(), one.file.clone()];
        table(["ID", "BYTES", "FILE"], self.0.iter().map(row))
    }

    /// Without the secrets, which are in the ticket.
    fn json(&self) -> Value {
        let all = self.0.iter();
        all.map(|one| json!({"id": one.id, "bytes": one.bytes, "file": one.file})).collect()
    }

    fn names(&self) -> Vec<String> {
        self.0.iter().map(|one| one.id.clone()).collect()
    }
}

/// Files for an upload, read and checked.
pub(super) struct Outgoing {
    transfer: Transfer,
    token: Token,
    sources: Vec<Source>,
    timeout_ms: u64,
    is_terminal: bool,
    /// The ticket without bundles.
    ticket: Ticket,
}

impl Outgoing {
    /// Reads the files and the token for an upload to `url`. Pods use `pod_url`, if given.
    fn new(
        (url, pod_url): (&str, Option<&String>),
        trust: &TrustArgs,
        token_file: &Path,
        files: &[(PathBuf, String)],
        world: &World<'_>,
    ) -> Result<Self, Failure> {
        let authorities = authorities(trust, world);
        let transfer = transfer(url, trust, authorities.clone(), world)?;
        let token = Token::read(&world.dir.join(token_file))
            .map_err(|error| Failure::usage(error.to_string()))?;
        let sources = send::read(files).map_err(Failure::usage)?;
        let ticket = Ticket {
            url: pod_url.map_or(url, String::as_str).to_owned(),
            ca: pem(&authorities)?,
            insecure: trust.insecure,
            bundles: Vec::new(),
        };
        let timeout_ms = trust.timeout;
        Ok(Self { transfer, token, sources, timeout_ms, is_terminal: world.is_terminal, ticket })
    }

    /// The upload of `posse submit`; `None` if there is none.
    pub(super) fn of_submission(
        args: &StageFileArgs,
        files: &[(PathBuf, String)],
        world: &World<'_>,
    ) -> Result<Option<Self>, Failure> {
        let Some((url, token_file)) = args.stage_url.as_ref().zip(args.stage_token_file.as_ref())
        else {
            return Ok(None);
        };
        if files.is_empty() {
            return Err(Failure::usage("--stage-url needs at least one --file"));
        }
        let trust =
            TrustArgs { ca: args.stage_ca.clone(), insecure: false, timeout: SUBMIT_TIMEOUT_MS };
        let pod_url = args.stage_pod_url.as_ref();
        Self::new((url, pod_url), &trust, token_file, files, world).map(Some)
    }

    /// A ticket for these bundles.
    pub(super) fn ticket(&self, bundles: Vec<Entry>) -> Ticket {
        Ticket { bundles, ..self.ticket.clone() }
    }

    /// Uploads the files for the pods of an application.
    pub(super) fn send(&self, namespace: &str, app: &str) -> Result<Ticket, Failure> {
        let Self { transfer, token, sources, timeout_ms, .. } = self;
        let progress = RefCell::new(Progress::new(ShowProgress::Auto, self.is_terminal, "MiB"));
        let told = |file: &str, n, of| progress.borrow_mut().show_bytes(file, n, of);
        let upload =
            Upload { transfer, token, namespace, app, timeout_ms: *timeout_ms, told: &told };
        let bundles = upload.send(sources).map_err(|why| Failure::new(Code::Failed, why))?;
        Ok(self.ticket(bundles))
    }
}

fn get(args: &GetArgs, world: &World<'_>, out: &mut dyn Write) -> Result<Code, Failure> {
    let path = world.dir.join(&args.secret_file);
    let invalid = |why: String| Failure::usage(format!("{}: {why}", path.display()));
    let bytes = read_file(&path).map_err(|error| invalid(error.to_string()))?;
    let ticket = Ticket::parse(&bytes).map_err(invalid)?;
    let authorities = match (authorities(&args.trust, world), &ticket.ca) {
        (Authorities::Public, Some(pem)) => Authorities::Given(pem.clone()),
        (authorities, _) => authorities,
    };
    let insecure = args.trust.insecure || ticket.insecure;
    let trust = TrustArgs { insecure, ..args.trust.clone() };
    let transfer = transfer(&ticket.url, &trust, authorities, world)?;
    let dir = world.dir.join(&args.dir);
    fs::create_dir_all(&dir)
        .map_err(|error| Failure::new(Code::Failed, format!("{}: {error}", dir.display())))?;
    for entry in &ticket.bundles {
        let file = fetch(&transfer, entry, &dir, args.trust.timeout)
            .map_err(|why| Failure::new(Code::Failed, why))?;
        print(out, &format!("{}\n", file.display()))?;
    }
    Ok(Code::Clean)
}

fn authorities(trust: &TrustArgs, world: &World<'_>) -> Authorities {
    trust.ca.as_ref().map_or(Authorities::Public, |file| Authorities::File(world.dir.join(file)))
}

/// The CA certificates that pods need to trust the server.
fn pem(authorities: &Authorities) -> Result<Option<String>, Failure> {
    match authorities {
        Authorities::File(path) => fs::read_to_string(path)
            .map(Some)
            .map_err(|error| Failure::usage(format!("{}: {error}", path.display()))),
        Authorities::Given(pem) => Ok(Some(pem.clone())),
        Authorities::Public => Ok(None),
    }
}

fn transfer(
    url: &str,
    trust: &TrustArgs,
    authorities: Authorities,
    world: &World<'_>,
) -> Result<Transfer, Failure> {
    let peer = Peer { url: url.to_owned(), authorities, insecure: trust.insecure };
    Transfer::new(&sources(None, None, world.env), &peer)
        .map_err(|error| Failure::usage(error.to_string()))
}

impl From<StageError> for Failure {
    fn from(error: StageError) -> Self {
        let code = match &error {
            StageError::Certificate(_) | StageError::Listen(..) | StageError::Store(_) => {
                Code::Usage
            }
            StageError::Thread(_) | StageError::Tls(_) => Code::Failed,
        };
        Self::new(code, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::Folder;

    const SERVE: &str = "stage serve --listen 127.0.0.1:0 --dir store";
    const PUT: &str = "stage put -n ns --app wc --token-file token --timeout 0s";

    #[test]
    fn invalid_arguments_are_errors_before_any_transfer() {
        let folder = Folder::new(&[
            ("token", "t0ken"),
            ("two", "two words"),
            ("pem", "no certificate"),
            ("a.jar", ""),
            ("sub/a.jar", ""),
            ("ticket", "secret words"),
            ("out-ticket", r#"{"url": "http://127.0.0.1:1", "bundles": [{"id": "x"}]}"#),
        ]);
        for (args, words) in [
            (SERVE.to_owned(), "--cert <FILE> --token-file <FILE>"),
            (format!("{SERVE} --insecure"), "--token-file <FILE>"),
            (format!("{SERVE} --token-file token"), "--cert <FILE>"),
            (format!("{SERVE} --token-file token --cert pem"), "--key <FILE>"),
            (format!("{SERVE} --token-file token --insecure --cert pem --key pem"), "cannot be"),
            (format!("{SERVE} --token-file token --insecure --token-review"), "cannot be used"),
            (format!("{SERVE} --insecure --token-review"), "name --kubeconfig"),
            (format!("{SERVE} --insecure --token-file absent"), "token file "),
            (format!("{SERVE} --insecure --token-file two"), "must hold one word"),
            (format!("{SERVE} --token-file token --cert pem --key pem"), "pem: no PEM certificate"),
            (format!("{SERVE} --token-file token --insecure --bundle-bytes-max 2GB"), "`500Mi`"),
            (format!("{SERVE} --token-file token --insecure --idle soon"), "a duration like"),
            (format!("{PUT} --url http://stage.example.com a.jar"), "plain http is allowed"),
            (format!("{PUT} --url stage:8443 a.jar"), "write https://HOST"),
            (format!("{PUT} --url http://127.0.0.1:1 a.jar sub/a.jar"), "two files have this name"),
            (format!("{PUT} --url http://127.0.0.1:1 sub"), "sub: not a regular file"),
            (format!("{PUT} --url https://127.0.0.1:1 --ca pem a.jar"), "no PEM certificate"),
            ("stage get --secret-file absent --dir out".to_owned(), "absent: No such file"),
            ("stage get --secret-file ticket --dir out".to_owned(), "ticket: not JSON: "),
            (
                "stage get --secret-file out-ticket --dir out".to_owned(),
                "bundles[0].secret is missing",
            ),
            ("submit --stage-url http://127.0.0.1:1".to_owned(), "--stage-token-file <FILE>"),
            ("run --app a --image i --files-image s".to_owned(), "--files-secret <NAME>"),
        ] {
            let (code, out, err) = folder.posse(&args);
            assert_eq!((code, out.as_str()), (2, ""), "{args}: {err}");
            assert!(err.contains(words), "{args}: {err}");
            // The file may be a secret, so its content is not printed.
            assert!(!err.contains("secret words"), "{args}: {err}");
        }
        assert!(!folder.path().join("store").exists() && !folder.path().join("out").exists());
    }

    #[test]
    fn serve_reads_the_kubeconfig_of_the_environment() {
        let folder = Folder::new(&[("token", "t0ken"), ("broken", "clusters: 1")]);
        let broken = folder.path().join("broken").display().to_string();
        let args = format!("{SERVE} --insecure --token-file token");
        let (code, _, err) = folder.posse_with(&args, &[("KUBECONFIG", broken.as_str())]);
        assert_eq!(code, 2, "{err}");
        assert!(err.contains("broken") && err.contains("clusters"), "{err}");
    }

    #[test]
    fn an_unreachable_server_is_named() {
        let folder = Folder::new(&[("token", "t0ken"), ("a.jar", "")]);
        let (code, _, err) = folder.posse(&format!("{PUT} --url http://127.0.0.1:1 a.jar"));
        assert_eq!(code, 1, "{err}");
        assert!(err.contains("a.jar: http://127.0.0.1:1: ") && err.contains("refused"), "{err}");
    }
}
