//! Finds and checks the client's configuration: the kubeconfig that a flag or `$KUBECONFIG` names, then the pod's
//! service account, then `~/.kube/config`. Sends no request and reads the environment only through `Sources`.

pub(crate) mod exec_plugin;
mod incluster;
mod kubeconfig;
pub mod pem;
pub(crate) mod proxy;
pub(crate) mod server;
pub(crate) mod token_claims;

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use ureq::Proxy;
use ureq::http::{HeaderName, HeaderValue};

use self::exec_plugin::ExecPlugin;
use self::kubeconfig::Choice;
use self::token_claims::expiry;

pub use self::incluster::Home;
pub use self::server::Server;

/// The folder of the service account's files in a pod.
pub const SERVICE_ACCOUNT_DIR: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// The files in which Linux distributions store the public certificate authorities.
pub const CA_BUNDLES: [&str; 5] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// The largest file that is read as configuration, in bytes: kubeconfigs, certificates, tokens.
pub(crate) const FILE_BYTES_MAX: u64 = 16 << 20;

/// Everything that determines the configuration. Tests pass their own values.
#[derive(Clone, Copy)]
pub struct Sources<'a> {
    /// `--kubeconfig`: only this file is read; it must exist.
    pub kubeconfig: Option<&'a Path>,
    /// `--context`: use this context of the kubeconfig, also inside a pod.
    pub context: Option<&'a str>,
    /// Reads an environment variable; `None` also if it is not UTF-8.
    pub env: &'a dyn Fn(&str) -> Option<String>,
    /// The folder of the service account's token, ca.crt and namespace.
    pub service_account_dir: &'a Path,
    /// Files with public certificate authorities, for a kubeconfig without one. The first file that
    /// exists is used.
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
    /// Finds the cluster: the kubeconfig that a flag or `$KUBECONFIG` names, else the pod we run in if it has a service
    /// account, else `~/.kube/config`. A kubeconfig that names no cluster, but perhaps a namespace, leaves the cluster to
    /// the pod.
    ///
    /// # Errors
    /// There is no configuration, or it has an error. The error names the file and the field.
    pub fn resolve(&self) -> Result<Cluster, ConfigError> {
        let pod = incluster::address(self);
        let is_named =
            self.kubeconfig.is_some() || self.context.is_some() || kubeconfig::is_listed(self);
        if let Some(address) = pod.as_ref().filter(|_| !is_named && incluster::has_account(self)) {
            // As kubectl does, for a file that has no more than a namespace.
            return match kubeconfig::choose(self) {
                Ok(Choice::Open { namespace, .. }) => incluster::cluster(self, address, namespace),
                Ok(Choice::Cluster(other)) => {
                    log::debug!("{} is not used in a pod: --kubeconfig names it", other.origin);
                    incluster::cluster(self, address, None)
                }
                Err(error) => {
                    log::log!(self.unused_level(), "no kubeconfig is used in a pod: {error}");
                    incluster::cluster(self, address, None)
                }
            };
        }
        match (kubeconfig::choose(self), pod) {
            (Ok(Choice::Cluster(cluster)), _) => Ok(Cluster { home: Home::of(self), ..*cluster }),
            (Ok(Choice::Open { namespace, .. }), Some(address)) => {
                incluster::cluster(self, &address, namespace)
            }
            (Ok(Choice::Open { missing, .. }), None) => Err(missing.of_kubeconfig()),
            // The error says what the pod lacks.
            (Err(ConfigError::Absent { .. }), Some(address)) if !is_named => {
                incluster::cluster(self, &address, None)
            }
            (Err(error), _) => Err(error.of_kubeconfig()),
        }
    }

    /// How loudly a configuration is named that a pod does not use. As client-go does it, a slip in the variable is told.
    pub(super) fn unused_level(&self) -> log::Level {
        match self.var("KUBECONFIG").is_some() {
            true => log::Level::Warn,
            false => log::Level::Debug,
        }
    }

    /// The names of the contexts that `--context` can choose.
    pub fn contexts(&self) -> Vec<String> {
        kubeconfig::contexts(self)
    }

    /// An environment variable; `None` if it is empty.
    pub(crate) fn var(&self, name: &str) -> Option<String> {
        (self.env)(name).filter(|value| !value.is_empty())
    }

    /// The certificate authorities to trust if the configuration names none. `field` is the field
    /// that the error names.
    pub(crate) fn public_roots(&self, field: &str) -> Result<Trust, ConfigError> {
        if let Some(path) = self.var("SSL_CERT_FILE") {
            return Ok(Trust::roots_file(PathBuf::from(path), "SSL_CERT_FILE".to_owned()));
        }
        match self.ca_bundles.iter().find(|path| Path::new(path).is_file()) {
            Some(path) => Ok(Trust::roots_file(PathBuf::from(path), (*path).to_owned())),
            None => Err(ConfigError::field(
                field,
                format!(
                    "missing, SSL_CERT_FILE is not set and none of {} exists: there is no \
                     certificate authority to verify the server with",
                    self.ca_bundles.join(", ")
                ),
            )),
        }
    }
}

/// A checked configuration: one API server and our identity.
#[derive(Clone, Debug)]
pub struct Cluster {
    pub server: Server,
    /// The namespace of the context or of the service account.
    pub namespace: String,
    /// We run in a pod with a service account.
    pub home: Option<Home>,
    /// Where this was found, for the log.
    pub(crate) origin: String,
    pub(crate) trust: Trust,
    /// The name in the server's certificate, if it differs from the host of the URL.
    pub(crate) tls_server_name: Option<String>,
    pub(crate) proxy: Option<Proxy>,
    pub(crate) identity: ClientIdentity,
}

impl Cluster {
    /// The proxy on the way to the server, without its user and password.
    pub(crate) fn way(&self) -> Option<String> {
        let proxy = self.proxy.as_ref()?;
        Some(format!("through the proxy {}:{}", proxy.host(), proxy.port()))
    }
}

impl fmt::Display for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { server, namespace, origin, identity, .. } = self;
        write!(f, "API server {server}")?;
        if let Some(way) = self.way() {
            write!(f, ", {way}")?;
        }
        write!(f, ", namespace {namespace}, identity: {}", identity.kind())?;
        if let Some(end) = identity.end() {
            write!(f, ", which expires at {end} and is not renewed")?;
        }
        write!(f, " (from {origin})")
    }
}

/// A pod that a token is bound to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundPod {
    pub name: String,
    pub uid: String,
}

/// Which server certificates are trusted.
#[derive(Clone, Debug)]
pub(crate) enum Trust {
    /// All: `insecure-skip-tls-verify`.
    Anything,
    /// Those that these certificate authorities have signed.
    Roots(Blob),
}

impl Trust {
    fn roots_file(path: PathBuf, field: String) -> Self {
        Self::Roots(Blob { field, source: BlobSource::File(path) })
    }
}

/// Bytes that a field of the configuration contains or that are in a file that it names.
#[derive(Clone, Debug)]
pub(crate) struct Blob {
    pub(crate) field: String,
    pub(crate) source: BlobSource,
}

/// The place of the bytes of a `Blob`.
#[derive(Clone)]
pub(crate) enum BlobSource {
    /// A file, which may change at any time.
    File(PathBuf),
    /// The configuration itself.
    Inline(Vec<u8>),
}

impl fmt::Debug for BlobSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            // The bytes may be a private key.
            Self::Inline(bytes) => write!(f, "[{} bytes]", bytes.len()),
        }
    }
}

impl Blob {
    /// Reads the bytes.
    pub(crate) fn read(&self) -> Result<Vec<u8>, ConfigError> {
        match &self.source {
            BlobSource::Inline(bytes) => Ok(bytes.clone()),
            BlobSource::File(path) => read_file(path)
                .map_err(|e| ConfigError::field(&self.field, format!("{}: {e}", path.display()))),
        }
    }

    /// The field and, if there is one, the file: for messages.
    pub(crate) fn location(&self) -> String {
        match &self.source {
            BlobSource::File(path) => format!("{} ({})", self.field, path.display()),
            BlobSource::Inline(_) => self.field.clone(),
        }
    }
}

/// Our identity: the `Authorization` header, a client certificate, and the headers for
/// impersonation.
#[derive(Clone, Debug, Default)]
pub struct ClientIdentity {
    pub(crate) authorization: AuthSource,
    pub(crate) client_cert: Option<ClientCert>,
    pub(crate) impersonate: Vec<(HeaderName, HeaderValue)>,
}

impl ClientIdentity {
    /// What requests are sent with, for the log.
    pub fn kind(&self) -> &'static str {
        match (&self.authorization, &self.client_cert) {
            (AuthSource::Absent, None) => "no credentials",
            (AuthSource::Absent, Some(_)) => "a client certificate",
            (AuthSource::Basic { .. }, _) => "a user name and password",
            (AuthSource::Exec(_), _) => "a credential plugin",
            (AuthSource::Token(_), _) => "a token",
            (AuthSource::TokenFile { .. }, _) => "a token file",
        }
    }

    /// When a token ends that is not read again: a run that lasts longer loses the cluster.
    fn end(&self) -> Option<Timestamp> {
        let AuthSource::Token(token) = &self.authorization else { return None };
        expiry(token.reveal()).and_then(|at| Timestamp::try_from(at).ok())
    }
}

/// The client's certificate chain and its private key, both PEM.
#[derive(Clone, Debug)]
pub(crate) struct ClientCert {
    pub(crate) chain: Blob,
    pub(crate) key: Blob,
}

/// The source of the `Authorization` header.
#[derive(Clone, Debug, Default)]
pub(crate) enum AuthSource {
    /// No header.
    #[default]
    Absent,
    Basic {
        username: String,
        password: Secret,
    },
    /// A credential plugin prints the token.
    Exec(Box<ExecPlugin>),
    /// A fixed token.
    Token(Secret),
    /// A file that is rewritten before the token expires. `first` is used if the file cannot be read
    /// the first time.
    TokenFile {
        path: PathBuf,
        first: Secret,
    },
}

/// Text that `Debug` does not print.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(String);

impl Secret {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text, for a request.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

/// A header value from the configuration. The error contains nothing of it.
pub(crate) fn header_value(text: &str) -> Result<HeaderValue, String> {
    let mut value = HeaderValue::from_str(text)
        .map_err(|_| "contains a character that is not allowed in an HTTP header".to_owned())?;
    value.set_sensitive(true);
    Ok(value)
}

/// Reads a file of at most `FILE_BYTES_MAX` bytes.
pub fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let n_read = File::open(path)?.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if n_read as u64 > FILE_BYTES_MAX {
        return Err(io::Error::other(format!("larger than {FILE_BYTES_MAX} bytes")));
    }
    Ok(bytes)
}

/// Reads a token file, without leading and trailing white space.
pub(crate) fn read_token(path: &Path) -> Result<Secret, String> {
    let bytes = read_file(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let text = String::from_utf8(bytes).map_err(|_| format!("{}: not text", path.display()))?;
    if text.trim().is_empty() {
        return Err(format!("{}: empty", path.display()));
    }
    header_value(text.trim()).map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(Secret::new(text.trim()))
}

/// Why there is no usable configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// No configuration was found.
    Absent {
        /// The places that were searched.
        searched: Vec<String>,
    },
    /// A value is wrong.
    Field {
        /// The file with the value; `None` for the environment and the flags.
        file: Option<PathBuf>,
        /// The path of the field in the file, or the name of the variable.
        field: String,
        problem: String,
    },
    /// Another error, in the kubeconfig.
    Kubeconfig(Box<Self>),
    /// A file cannot be read.
    File {
        file: PathBuf,
        /// The error of the operating system.
        problem: String,
    },
    /// A file has a syntax error.
    Syntax {
        file: PathBuf,
        /// Counts from 1; 0 if unknown.
        line: u64,
        /// Counts from 1; 0 if unknown.
        column: u64,
        problem: String,
    },
}

impl ConfigError {
    pub(crate) fn field(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Field { file: None, field: field.into(), problem: problem.into() }
    }

    /// Says that the file with the error is the kubeconfig.
    fn of_kubeconfig(self) -> Self {
        match self {
            Self::Field { file: Some(_), .. } | Self::File { .. } | Self::Syntax { .. } => {
                Self::Kubeconfig(Box::new(self))
            }
            Self::Field { file: None, .. } | Self::Absent { .. } | Self::Kubeconfig(_) => self,
        }
    }

    /// Adds the file that contains the field.
    pub(crate) fn in_file(self, path: &Path) -> Self {
        match self {
            Self::Field { file: None, field, problem } => {
                Self::Field { file: Some(path.to_owned()), field, problem }
            }
            other @ (Self::Absent { .. }
            | Self::Field { .. }
            | Self::File { .. }
            | Self::Kubeconfig(_)
            | Self::Syntax { .. }) => other,
        }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent { searched } => write!(
                f,
                "no Kubernetes configuration found; searched {}; set --kubeconfig",
                searched.join(", ")
            ),
            Self::Field { file: Some(file), field, problem } => {
                write!(f, "{}: {field}: {problem}", file.display())
            }
            Self::Field { file: None, field, problem } => write!(f, "{field}: {problem}"),
            Self::File { file, problem } => write!(f, "{}: {problem}", file.display()),
            Self::Kubeconfig(error) => write!(f, "kubeconfig {error}"),
            Self::Syntax { file, line, column, problem } => {
                write!(f, "{}:{line}:{column}: {problem}", file.display())
            }
        }
    }
}

impl std::error::Error for ConfigError {}
