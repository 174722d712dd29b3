//! Owns where the API server is and who we are to it: which sources are asked, in which order, and
//! the checked result. Makes no request; the process environment is only read through `Sources`.

pub(crate) mod exec_plugin;
mod incluster;
mod kubeconfig;
pub mod pem;
pub(crate) mod proxy;
pub(crate) mod server;
pub(crate) mod token_claims;

use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use ureq::Proxy;
use ureq::http::{HeaderName, HeaderValue};

use self::exec_plugin::ExecPlugin;

pub use self::server::Server;

/// Where a pod finds its service account.
pub const SERVICE_ACCOUNT_DIR: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Where distributions keep the certificates of the public authorities.
pub const CA_BUNDLES: [&str; 5] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// The largest file that is read as configuration, in bytes: kubeconfigs, certificates, tokens.
pub(crate) const FILE_BYTES_MAX: u64 = 16 << 20;

/// Everything that decides which API server is meant; an argument, so that tests set it.
#[derive(Clone, Copy)]
pub struct Sources<'a> {
    /// `--kubeconfig`: this file and no other; it must exist.
    pub kubeconfig: Option<&'a Path>,
    /// `--context`: this context, and a kubeconfig even inside a cluster.
    pub context: Option<&'a str>,
    /// The environment.
    pub env: &'a dyn Fn(&str) -> Option<OsString>,
    /// The folder of the service account's token, ca.crt and namespace.
    pub service_account_dir: &'a Path,
    /// Files with public authorities, for servers whose kubeconfig names none; the first counts.
    pub ca_bundles: &'a [&'a str],
}

impl fmt::Debug for Sources<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sources")
            .field("kubeconfig", &self.kubeconfig)
            .field("context", &self.context)
            .field("service_account_dir", &self.service_account_dir)
            .finish_non_exhaustive()
    }
}

impl<'a> Sources<'a> {
    /// Finds the cluster: the flags, else the pod we run in, else $KUBECONFIG, else ~/.kube/config.
    ///
    /// # Errors
    /// When there is no configuration, or a mistake in it: the error names file and field.
    pub fn resolve(&self) -> Result<Cluster, ConfigError> {
        match self.in_cluster() {
            Some(address) => incluster::cluster(self, &address),
            None => kubeconfig::cluster(self),
        }
    }

    /// The API server's URL by the pod that we run in, where no flag names another.
    fn in_cluster(&self) -> Option<String> {
        let flagged = self.kubeconfig.is_some() || self.context.is_some();
        incluster::address(self).filter(|_| !flagged)
    }

    /// True where the pod that we run in tells the cluster, and no flag another.
    #[must_use]
    pub fn is_in_cluster(&self) -> bool {
        self.in_cluster().is_some()
    }

    /// A variable of the environment, as text; empty counts as unset.
    pub(crate) fn var(&self, name: &str) -> Option<String> {
        (self.env)(name)?.into_string().ok().filter(|value| !value.is_empty())
    }

    /// The authorities to trust where nothing names any.
    pub(crate) fn public_roots(&self, field: &str) -> Result<Trust, ConfigError> {
        if let Some(path) = (self.env)("SSL_CERT_FILE").filter(|path| !path.is_empty()) {
            return Ok(Trust::roots_file(PathBuf::from(path), "SSL_CERT_FILE".to_owned()));
        }
        match self.ca_bundles.iter().find(|path| Path::new(path).is_file()) {
            Some(path) => Ok(Trust::roots_file(PathBuf::from(path), (*path).to_owned())),
            None => Err(ConfigError::field(
                field,
                format!(
                    "absent, SSL_CERT_FILE is not set and none of {} exists: no authority can \
                     vouch for the server",
                    self.ca_bundles.join(", ")
                ),
            )),
        }
    }
}

/// A checked configuration: one API server, and who we are to it.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// The API server.
    pub server: Server,
    /// The service account's namespace, or the context's.
    pub namespace: String,
    /// The pod that the service account's token was made for: the one we run in.
    pub pod: Option<BoundPod>,
    pub(crate) trust: Trust,
    /// The name in the server's certificate, where it is not the host of the URL.
    pub(crate) tls_server_name: Option<String>,
    pub(crate) proxy: Option<Proxy>,
    pub(crate) identity: Identity,
}

/// A pod that a token is bound to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundPod {
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
}

/// Which certificates of the server are believed.
#[derive(Clone, Debug)]
pub(crate) enum Trust {
    /// Any: `insecure-skip-tls-verify`.
    Anything,
    /// Those that these authorities vouch for.
    Roots(Blob),
}

impl Trust {
    fn roots_file(path: PathBuf, field: String) -> Self {
        Self::Roots(Blob { field, source: BlobSource::File(path) })
    }
}

/// Bytes that a configuration gives in place or in a file, and the field that does so.
#[derive(Clone, Debug)]
pub(crate) struct Blob {
    pub(crate) field: String,
    pub(crate) source: BlobSource,
}

/// Where the bytes of a `Blob` are.
#[derive(Clone)]
pub(crate) enum BlobSource {
    /// In a file, which may be rewritten at any time.
    File(PathBuf),
    /// In the configuration itself.
    Inline(Vec<u8>),
}

impl fmt::Debug for BlobSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            // May be a private key.
            Self::Inline(bytes) => write!(f, "[{} bytes]", bytes.len()),
        }
    }
}

impl Blob {
    /// The bytes as they are now.
    pub(crate) fn read(&self) -> Result<Vec<u8>, ConfigError> {
        match &self.source {
            BlobSource::Inline(bytes) => Ok(bytes.clone()),
            BlobSource::File(path) => read_file(path)
                .map_err(|e| ConfigError::field(&self.field, format!("{}: {e}", path.display()))),
        }
    }

    /// The field, and the file where there is one.
    pub(crate) fn place(&self) -> String {
        match &self.source {
            BlobSource::File(path) => format!("{} ({})", self.field, path.display()),
            BlobSource::Inline(_) => self.field.clone(),
        }
    }
}

/// Who we are: at most one `Authorization`, a client certificate, whom we impersonate.
#[derive(Clone, Debug, Default)]
pub(crate) struct Identity {
    pub(crate) bearer: Bearer,
    pub(crate) client_cert: Option<ClientCert>,
    pub(crate) impersonate: Vec<(HeaderName, HeaderValue)>,
}

/// A certificate chain and its private key, both PEM.
#[derive(Clone, Debug)]
pub(crate) struct ClientCert {
    pub(crate) chain: Blob,
    pub(crate) key: Blob,
}

/// What the `Authorization` header is made from.
#[derive(Clone, Debug, Default)]
pub(crate) enum Bearer {
    /// There is none.
    #[default]
    Absent,
    /// `Basic`.
    Basic { username: String, password: Secret },
    /// A program prints it.
    Exec(Box<ExecPlugin>),
    /// It never changes.
    Token(Secret),
    /// A file that is rewritten before it expires, and what to send until it was first read.
    TokenFile { path: PathBuf, first: Secret },
}

/// Text that no log, error or Debug print may show.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(String);

impl Secret {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself, for the wire.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

/// A header value from configuration; the problem names no byte of it.
pub(crate) fn header_value(text: &str) -> Result<HeaderValue, String> {
    let mut value = HeaderValue::from_str(text)
        .map_err(|_| "holds a character that no HTTP header can carry".to_owned())?;
    value.set_sensitive(true);
    Ok(value)
}

/// A whole file, at most `FILE_BYTES_MAX`.
pub(crate) fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let n_read = File::open(path)?.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if n_read as u64 > FILE_BYTES_MAX {
        return Err(io::Error::other(format!("larger than {FILE_BYTES_MAX} bytes")));
    }
    Ok(bytes)
}

/// A token file's content, without the white space around it.
pub(crate) fn read_token(path: &Path) -> Result<Secret, String> {
    let bytes = read_file(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let text = String::from_utf8(bytes).map_err(|_| format!("{}: not text", path.display()))?;
    if text.trim().is_empty() {
        return Err(format!("{}: empty", path.display()));
    }
    header_value(text.trim()).map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(Secret::new(text.trim()))
}

/// Why no usable configuration was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// There is none.
    Absent {
        /// Where it was looked for.
        looked_at: Vec<String>,
    },
    /// A value is wrong.
    Field {
        /// The file that holds it; none for the environment and the flags.
        file: Option<PathBuf>,
        /// Its path in the file, or the variable's name.
        field: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A file cannot be read.
    File {
        /// Which.
        file: PathBuf,
        /// The system's words.
        problem: String,
    },
    /// A file is not what it should be.
    Syntax {
        /// Which.
        file: PathBuf,
        /// Line and column, from 1; 0 where unknown.
        line: u64,
        /// See `line`.
        column: u64,
        /// What is wrong there.
        problem: String,
    },
}

impl ConfigError {
    pub(crate) fn field(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Field { file: None, field: field.into(), problem: problem.into() }
    }

    /// The same error, with the file that holds the field.
    pub(crate) fn in_file(self, path: &Path) -> Self {
        match self {
            Self::Field { file: None, field, problem } => {
                Self::Field { file: Some(path.to_owned()), field, problem }
            }
            other @ (Self::Absent { .. }
            | Self::Field { .. }
            | Self::File { .. }
            | Self::Syntax { .. }) => other,
        }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent { looked_at } => write!(
                f,
                "no Kubernetes configuration: looked at {}; name one with --kubeconfig",
                looked_at.join(", ")
            ),
            Self::Field { file: Some(file), field, problem } => {
                write!(f, "{}: {field}: {problem}", file.display())
            }
            Self::Field { file: None, field, problem } => write!(f, "{field}: {problem}"),
            Self::File { file, problem } => write!(f, "{}: {problem}", file.display()),
            Self::Syntax { file, line, column, problem } => {
                write!(f, "{}:{line}:{column}: {problem}", file.display())
            }
        }
    }
}

impl std::error::Error for ConfigError {}
