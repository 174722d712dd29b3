//! Owns kubeconfig files: which are read, how they are merged, and what one context of them means.
//! Every mistake is an error that names file and field and shows no secret.

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
    Blob, BlobSource, Cluster, ConfigError, Identity, Server, Sources, Trust, proxy, read_file,
};
use crate::wire::section::{self, Section};
use crate::wire::yaml::{Node, Position};

/// The namespace of a context that names none.
const NAMESPACE_DEFAULT: &str = "default";

/// The extension of a cluster that plugins are told.
const EXEC_EXTENSION: &str = "client.authentication.k8s.io/exec";

/// One file as it is written; absent and empty mean the same in it.
struct RawConfig {
    clusters: Vec<Named<RawCluster>>,
    contexts: Vec<Named<RawContext>>,
    current_context: Option<String>,
    users: Vec<Named<RawUser>>,
}

/// An entry of a list.
struct Named<T> {
    name: String,
    value: T,
}

#[derive(Clone)]
struct RawCluster {
    certificate_authority: Option<String>,
    certificate_authority_data: Option<String>,
    disable_compression: bool,
    /// Of the extension that plugins are told: none where there is no such; `Null` where it says
    /// nothing.
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

/// The entries of a list, whose values stand under `key`.
fn named<T>(
    file: &Section<'_>,
    list: &str,
    key: &str,
    read: fn(&Section<'_>) -> Result<T, section::ConfigError>,
) -> Result<Vec<Named<T>>, section::ConfigError> {
    let entry = |entry: Section<'_>| {
        let name = entry.given("name")?.ok_or_else(|| entry.error("name", "absent"))?;
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

/// One file that was read.
struct Loaded {
    path: PathBuf,
    raw: RawConfig,
}

/// Where an entry stands: its file, and its path in there.
struct Place<'a> {
    file: &'a Path,
    field: String,
}

impl Place<'_> {
    fn error(&self, field: &str, problem: impl Into<String>) -> ConfigError {
        let field = format!("{}.{field}", self.field);
        ConfigError::Field { file: Some(self.file.to_owned()), field, problem: problem.into() }
    }

    /// A path as the file means it.
    fn path(&self, path: &str) -> PathBuf {
        self.file.parent().unwrap_or_else(|| Path::new("")).join(path)
    }

    /// Bytes given in place, else in a file.
    fn blob(
        &self,
        data: (&str, Option<String>),
        file: (&str, Option<String>),
    ) -> Result<Option<Blob>, ConfigError> {
        let name = |field| format!("{}: {}.{field}", self.file.display(), self.field);
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

/// The cluster of the context that is asked for, or of the current one.
pub(super) fn cluster(sources: &Sources<'_>) -> Result<Cluster, ConfigError> {
    let files = load(sources)?;
    let (place, context) = context(sources, &files)?;
    let cluster_name = context
        .cluster
        .ok_or_else(|| place.error("cluster", "absent: a context needs a cluster"))?;
    let (cluster_place, raw_cluster) =
        entry(&files, "cluster", &cluster_name, |raw| raw.clusters.as_slice()).ok_or_else(
            || place.error("cluster", format!("there is no cluster {cluster_name:?}")),
        )?;
    let user = context
        .user
        .map(|name| {
            entry(&files, "user", &name, |raw| raw.users.as_slice())
                .ok_or_else(|| place.error("user", format!("there is no user {name:?}")))
        })
        .transpose()?;
    let mut cluster = endpoint(sources, &cluster_place, &raw_cluster)?;
    if let Some(namespace) = context.namespace {
        cluster.namespace = namespace;
    }
    match user {
        Some(_) if !cluster.server.tls => {
            log::debug!("{}: credentials go over https only, none are sent", cluster.server);
        }
        Some((place, user)) => {
            let info = || exec_cluster(&cluster_place, &raw_cluster, &cluster);
            cluster.identity = identity(&place, user, &info)?;
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
    if files.is_empty() {
        let mut looked_at =
            vec!["KUBERNETES_SERVICE_HOST (not a pod)".to_owned(), "$KUBECONFIG".to_owned()];
        looked_at.extend(paths.iter().map(|path| path.display().to_string()));
        return Err(ConfigError::Absent { looked_at });
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
    let node = Node::read(text).map_err(|mistake| wrong(mistake.at, mistake.message))?;
    let raw = Section::new("", String::new(), &node)
        .and_then(|file| RawConfig::read(&file))
        .map_err(|error| {
            // A value that is out of place may be a secret, so it is not quoted.
            let message = error.message.split(", found `").next().unwrap_or_default();
            wrong(error.at, message.to_owned())
        })?;
    Ok(Loaded { path: path.to_owned(), raw })
}

fn context<'a>(
    sources: &Sources<'_>,
    files: &'a [Loaded],
) -> Result<(Place<'a>, RawContext), ConfigError> {
    let current = || files.iter().find_map(|file| file.raw.current_context.clone());
    let (asked_by, name) = match sources.context {
        Some(name) => ("--context", name.to_owned()),
        None => match current() {
            Some(name) => ("current-context", name),
            None => {
                let error = ConfigError::field(
                    "current-context",
                    format!("not set: name one of {} with --context", context_names(files)),
                );
                return Err(error.in_file(&files[0].path));
            }
        },
    };
    entry(files, "context", &name, |raw| raw.contexts.as_slice()).ok_or_else(|| {
        let problem = format!("there is no context {name:?}, only {}", context_names(files));
        ConfigError::field(asked_by, problem).in_file(&files[0].path)
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

/// The first entry of that name over all files: it wins whole, nothing is merged into it.
fn entry<'a, T: Clone + 'a>(
    files: &'a [Loaded],
    kind: &str,
    name: &str,
    list: fn(&'a RawConfig) -> &'a [Named<T>],
) -> Option<(Place<'a>, T)> {
    files.iter().find_map(|file| {
        let entries = list(&file.raw);
        let index = entries.iter().position(|entry| entry.name == name)?;
        let place = Place { file: &file.path, field: format!("{kind}s[{index}].{kind}") };
        Some((place, entries[index].value.clone()))
    })
}

/// A cluster entry, with nobody's identity yet.
fn endpoint(
    sources: &Sources<'_>,
    place: &Place<'_>,
    raw: &RawCluster,
) -> Result<Cluster, ConfigError> {
    let url = raw
        .server
        .clone()
        .ok_or_else(|| place.error("server", "absent: write https://HOST:PORT"))?;
    let server = Server::parse(&url).map_err(|e| place.error("server", e))?;
    let proxy = match raw.proxy_url.clone() {
        Some(url) => Some(proxy::parse(&url).map_err(|e| place.error("proxy-url", e))?),
        None => proxy::from_env(sources, &server)?,
    };
    let tls_server_name = raw.tls_server_name.clone();
    if let Some(name) = &tls_server_name {
        ServerName::try_from(name.as_str())
            .map_err(|_| place.error("tls-server-name", "neither a DNS name nor an address"))?;
    }
    Ok(Cluster {
        trust: trust(sources, place, raw, &server)?,
        server,
        namespace: NAMESPACE_DEFAULT.to_owned(),
        pod: None,
        tls_server_name,
        proxy,
        identity: Identity::default(),
    })
}

fn trust(
    sources: &Sources<'_>,
    place: &Place<'_>,
    raw: &RawCluster,
    server: &Server,
) -> Result<Trust, ConfigError> {
    let roots = place.blob(
        ("certificate-authority-data", raw.certificate_authority_data.clone()),
        ("certificate-authority", raw.certificate_authority.clone()),
    )?;
    match (raw.insecure_skip_tls_verify, roots) {
        (true, Some(_)) => Err(place.error(
            "insecure-skip-tls-verify",
            "true beside a certificate authority: remove one of the two",
        )),
        (true, None) => Ok(Trust::Anything),
        (false, Some(roots)) => Ok(Trust::Roots(roots)),
        // Nothing is verified over plain http, so nothing need be found.
        (false, None) if !server.tls => Ok(Trust::Anything),
        (false, None) => {
            let field = format!("{}.certificate-authority", place.field);
            sources.public_roots(&field).map_err(|e| e.in_file(place.file))
        }
    }
}

/// What a plugin is told of the cluster.
fn exec_cluster(
    place: &Place<'_>,
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
            return Err(place.error("extensions", format!("{EXEC_EXTENSION} has no extension")));
        }
        Some(extension) => info["config"] = extension.clone(),
    }
    Ok(info)
}
