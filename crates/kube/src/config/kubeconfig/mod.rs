//! Reads and merges kubeconfig files and resolves one context. Errors name the file and the field and
//! contain no secrets.

mod user;

#[cfg(test)]
mod tests;

use std::io;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rustls::pki_types::ServerName;

use self::user::{RawUser, identity};
use super::{
    Blob, BlobSource, ClientIdentity, Cluster, ConfigError, Server, Sources, Trust, proxy,
    read_file,
};
use posse_encoding::yaml::{Node, Position};
use posse_wire::config::section::{self, Section};

/// The namespace of a context without one.
const NAMESPACE_DEFAULT: &str = "default";

/// The extension of a cluster entry that is passed on to plugins.
const EXEC_EXTENSION: &str = "client.authentication.k8s.io/exec";

/// A kubeconfig file. Missing and empty values mean the same.
struct RawConfig {
    clusters: Vec<Named<RawCluster>>,
    contexts: Vec<Named<RawContext>>,
    current_context: Option<String>,
    users: Vec<Named<RawUser>>,
}

/// A named entry of a list.
struct Named<T> {
    name: String,
    value: T,
}

#[derive(Clone)]
struct RawCluster {
    certificate_authority: Option<String>,
    certificate_authority_data: Option<String>,
    disable_compression: bool,
    /// The extension for plugins. `None` if there is no such entry, `Null` if the entry is empty.
    exec_extension: Option<serde_json::Value>,
    insecure_skip_tls_verify: bool,
    proxy_url: Option<String>,
    server: Option<String>,
    tls_server_name: Option<String>,
}

#[derive(Clone)]
struct RawContext {
    cluster: Option<String>,
    namespace: Option<String>,
    user: Option<String>,
}

impl RawConfig {
    fn read(file: &Section<'_>) -> Result<Self, section::ConfigError> {
        Ok(Self {
            clusters: named(file, "clusters", "cluster", RawCluster::read)?,
            contexts: named(file, "contexts", "context", RawContext::read)?,
            current_context: file.given("current-context")?,
            users: named(file, "users", "user", RawUser::read)?,
        })
    }
}

/// Reads a list of entries with a `name` and a value under `key`.
fn named<T>(
    file: &Section<'_>,
    list: &str,
    key: &str,
    read: fn(&Section<'_>) -> Result<T, section::ConfigError>,
) -> Result<Vec<Named<T>>, section::ConfigError> {
    let entry = |entry: Section<'_>| {
        let name = entry.given("name")?.ok_or_else(|| entry.error("name", "missing"))?;
        Ok(Named { name, value: read(&entry.section(key)?)? })
    };
    file.sections(list)?.into_iter().map(entry).collect()
}

impl RawCluster {
    fn read(cluster: &Section<'_>) -> Result<Self, section::ConfigError> {
        let mut exec_extension = None;
        for entry in cluster.sections("extensions")? {
            if entry.given("name")?.as_deref() == Some(EXEC_EXTENSION) {
                let value = entry.get("extension").map(Node::to_json);
                exec_extension = Some(value.unwrap_or_default());
            }
        }
        Ok(Self {
            certificate_authority: cluster.given("certificate-authority")?,
            certificate_authority_data: cluster.given("certificate-authority-data")?,
            disable_compression: cluster.flag("disable-compression", false)?,
            exec_extension,
            insecure_skip_tls_verify: cluster.flag("insecure-skip-tls-verify", false)?,
            proxy_url: cluster.given("proxy-url")?,
            server: cluster.given("server")?,
            tls_server_name: cluster.given("tls-server-name")?,
        })
    }
}

impl RawContext {
    fn read(context: &Section<'_>) -> Result<Self, section::ConfigError> {
        Ok(Self {
            cluster: context.given("cluster")?,
            namespace: context.given("namespace")?,
            user: context.given("user")?,
        })
    }
}

/// A file that was read.
struct Loaded {
    path: PathBuf,
    raw: RawConfig,
}

/// The location of an entry: its file and its path in the file.
struct EntryLocation<'a> {
    file: &'a Path,
    field: String,
}

impl EntryLocation<'_> {
    fn error(&self, field: &str, problem: impl Into<String>) -> ConfigError {
        let field = format!("{}.{field}", self.field);
        ConfigError::Field { file: Some(self.file.to_owned()), field, problem: problem.into() }
    }

    /// Resolves a path relative to the file's folder.
    fn path(&self, path: &str) -> PathBuf {
        self.file.parent().unwrap_or_else(|| Path::new("")).join(path)
    }

    /// Base64 bytes in the field `data`, else the file that the field `file` names.
    fn blob(
        &self,
        data: (&str, Option<String>),
        file: (&str, Option<String>),
    ) -> Result<Option<Blob>, ConfigError> {
        let name = |field| format!("kubeconfig {}: {}.{field}", self.file.display(), self.field);
        if let Some(text) = data.1 {
            let text: String = text.split_ascii_whitespace().collect();
            let bytes =
                BASE64_STANDARD.decode(text).map_err(|_| self.error(data.0, "not base64"))?;
            return Ok(Some(Blob { field: name(data.0), source: BlobSource::Inline(bytes) }));
        }
        Ok(file
            .1
            .map(|path| Blob { field: name(file.0), source: BlobSource::File(self.path(&path)) }))
    }
}

/// The configuration for the context in `--context`, else for the current context.
pub(super) fn cluster(sources: &Sources<'_>) -> Result<Cluster, ConfigError> {
    let files = load(sources)?;
    let (location, context) = context(sources, &files)?;
    let cluster_name = context
        .cluster
        .ok_or_else(|| location.error("cluster", "missing: a context needs a cluster"))?;
    let (cluster_location, raw_cluster) =
        entry(&files, "cluster", &cluster_name, |raw| raw.clusters.as_slice()).ok_or_else(
            || location.error("cluster", format!("there is no cluster {cluster_name:?}")),
        )?;
    let user = context
        .user
        .map(|name| {
            entry(&files, "user", &name, |raw| raw.users.as_slice())
                .ok_or_else(|| location.error("user", format!("there is no user {name:?}")))
        })
        .transpose()?;
    let mut cluster = endpoint(sources, &cluster_location, &raw_cluster)?;
    if let Some(namespace) = context.namespace {
        cluster.namespace = namespace;
    }
    match user {
        Some(_) if !cluster.server.tls => {
            log::debug!("{}: no credentials are sent without https", cluster.server);
        }
        Some((location, user)) => {
            let info = || exec_cluster(&cluster_location, &raw_cluster, &cluster);
            cluster.identity = identity(&location, user, &info)?;
        }
        None => {}
    }
    Ok(cluster)
}

fn load(sources: &Sources<'_>) -> Result<Vec<Loaded>, ConfigError> {
    if let Some(path) = sources.kubeconfig {
        let bytes = read_file(path)
            .map_err(|e| ConfigError::File { file: path.to_owned(), problem: e.to_string() })?;
        return Ok(vec![parse(path, &bytes)?]);
    }
    let listed = (sources.env)("KUBECONFIG").filter(|list| !list.is_empty());
    let home = (sources.env)("HOME").filter(|home| !home.is_empty());
    let mut paths: Vec<PathBuf> = Vec::new();
    let is_named = listed.is_some();
    match (listed, home) {
        (Some(list), _) => {
            for path in std::env::split_paths(&list).filter(|path| !path.as_os_str().is_empty()) {
                if !paths.contains(&path) {
                    paths.push(path);
                }
            }
        }
        (None, Some(home)) => paths.push(Path::new(&home).join(".kube").join("config")),
        (None, None) => {}
    }
    let mut files = Vec::new();
    for path in &paths {
        match read_file(path) {
            Ok(bytes) => files.push(parse(path, &bytes)?),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => {
                return Err(ConfigError::File { file: path.clone(), problem: e.to_string() });
            }
        }
    }
    if let Some(path) = paths.first().filter(|_| is_named && files.is_empty()) {
        let problem = "$KUBECONFIG names this file, which does not exist".to_owned();
        return Err(ConfigError::File { file: path.clone(), problem });
    }
    if files.is_empty() {
        let mut searched =
            vec!["KUBERNETES_SERVICE_HOST (not a pod)".to_owned(), "$KUBECONFIG".to_owned()];
        searched.extend(paths.iter().map(|path| path.display().to_string()));
        return Err(ConfigError::Absent { searched });
    }
    Ok(files)
}

fn parse(path: &Path, bytes: &[u8]) -> Result<Loaded, ConfigError> {
    let wrong = |at: Position, problem: String| ConfigError::Syntax {
        file: path.to_owned(),
        line: at.line,
        column: at.column,
        problem,
    };
    let text = std::str::from_utf8(bytes)
        .map_err(|_| wrong(Position::default(), "is not UTF-8".to_owned()))?;
    let node = Node::read(text).map_err(|error| wrong(error.at, error.message))?;
    let raw = Section::new("", String::new(), &node)
        .and_then(|file| RawConfig::read(&file))
        .map_err(|error| {
            // The message must not contain the unexpected value, which may be a secret.
            let message = error.message.split(", found `").next().unwrap_or_default();
            wrong(error.at, message.to_owned())
        })?;
    Ok(Loaded { path: path.to_owned(), raw })
}

fn context<'a>(
    sources: &Sources<'_>,
    files: &'a [Loaded],
) -> Result<(EntryLocation<'a>, RawContext), ConfigError> {
    let current = || files.iter().find_map(|file| file.raw.current_context.clone());
    let (source, name) = match sources.context {
        Some(name) => ("--context", name.to_owned()),
        None => match current() {
            Some(name) => ("current-context", name),
            None => {
                let error = ConfigError::field(
                    "current-context",
                    format!(
                        "not set, and there is no --context; the contexts are: {}",
                        context_names(files)
                    ),
                );
                return Err(error.in_file(&files[0].path));
            }
        },
    };
    entry(files, "context", &name, |raw| raw.contexts.as_slice()).ok_or_else(|| {
        let problem =
            format!("there is no context {name:?}; the contexts are: {}", context_names(files));
        ConfigError::field(source, problem).in_file(&files[0].path)
    })
}

fn context_names(files: &[Loaded]) -> String {
    let names: Vec<_> = files
        .iter()
        .flat_map(|file| &file.raw.contexts)
        .map(|entry| format!("{:?}", entry.name))
        .collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// The first entry with this name in all files. Entries are not merged, as in kubectl.
fn entry<'a, T: Clone + 'a>(
    files: &'a [Loaded],
    kind: &str,
    name: &str,
    list: fn(&'a RawConfig) -> &'a [Named<T>],
) -> Option<(EntryLocation<'a>, T)> {
    files.iter().find_map(|file| {
        let entries = list(&file.raw);
        let index = entries.iter().position(|entry| entry.name == name)?;
        let location =
            EntryLocation { file: &file.path, field: format!("{kind}s[{index}].{kind}") };
        Some((location, entries[index].value.clone()))
    })
}

/// Resolves a cluster entry. The identity is added later.
fn endpoint(
    sources: &Sources<'_>,
    location: &EntryLocation<'_>,
    raw: &RawCluster,
) -> Result<Cluster, ConfigError> {
    let url = raw
        .server
        .clone()
        .ok_or_else(|| location.error("server", "missing: set it to https://HOST:PORT"))?;
    let server = Server::parse(&url).map_err(|e| location.error("server", e))?;
    let proxy = match raw.proxy_url.clone() {
        Some(url) => Some(proxy::parse(&url).map_err(|e| location.error("proxy-url", e))?),
        None => proxy::from_env(sources, &server)?,
    };
    let tls_server_name = raw.tls_server_name.clone();
    if let Some(name) = &tls_server_name {
        ServerName::try_from(name.as_str()).map_err(|_| {
            location.error("tls-server-name", "neither a DNS name nor an IP address")
        })?;
    }
    Ok(Cluster {
        trust: trust(sources, location, raw, &server)?,
        server,
        namespace: NAMESPACE_DEFAULT.to_owned(),
        pod: None,
        tls_server_name,
        proxy,
        identity: ClientIdentity::default(),
    })
}

fn trust(
    sources: &Sources<'_>,
    location: &EntryLocation<'_>,
    raw: &RawCluster,
    server: &Server,
) -> Result<Trust, ConfigError> {
    let roots = location.blob(
        ("certificate-authority-data", raw.certificate_authority_data.clone()),
        ("certificate-authority", raw.certificate_authority.clone()),
    )?;
    match (raw.insecure_skip_tls_verify, roots) {
        (true, Some(_)) => Err(location.error(
            "insecure-skip-tls-verify",
            "true together with a certificate authority: remove one of the two",
        )),
        (true, None) => Ok(Trust::Anything),
        (false, Some(roots)) => Ok(Trust::Roots(roots)),
        // Without TLS there is nothing to verify.
        (false, None) if !server.tls => Ok(Trust::Anything),
        (false, None) => {
            let field = format!("{}.certificate-authority", location.field);
            sources.public_roots(&field).map_err(|e| e.in_file(location.file))
        }
    }
}

/// The `spec.cluster` for a plugin.
fn exec_cluster(
    location: &EntryLocation<'_>,
    raw: &RawCluster,
    cluster: &Cluster,
) -> Result<serde_json::Value, ConfigError> {
    let mut info = serde_json::json!({"server": cluster.server.to_string()});
    if let Some(name) = &cluster.tls_server_name {
        info["tls-server-name"] = name.as_str().into();
    }
    let own_roots = raw.certificate_authority.is_some() || raw.certificate_authority_data.is_some();
    match &cluster.trust {
        Trust::Anything => info["insecure-skip-tls-verify"] = true.into(),
        Trust::Roots(blob) if own_roots => {
            let pem = BASE64_STANDARD.encode(blob.read()?);
            info["certificate-authority-data"] = pem.into();
        }
        Trust::Roots(_) => {}
    }
    if let Some(url) = raw.proxy_url.clone() {
        info["proxy-url"] = url.into();
    }
    if raw.disable_compression {
        info["disable-compression"] = true.into();
    }
    match &raw.exec_extension {
        None => {}
        Some(serde_json::Value::Null) => {
            return Err(location.error("extensions", format!("{EXEC_EXTENSION} has no extension")));
        }
        Some(extension) => info["config"] = extension.clone(),
    }
    Ok(info)
}
