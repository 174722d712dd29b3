//! Reads and merges kubeconfig files and resolves one context. Errors name the file and the field and
//! contain no secrets.

mod user;

#[cfg(test)]
mod kubectl;
#[cfg(test)]
mod tests;

use std::io;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rustls::pki_types::ServerName;

use self::user::{RawUser, identity};
use super::{
    Blob, BlobSource, ClientIdentity, Cluster, ConfigError, Server, Sources, Trust, incluster,
    proxy, read_file,
};
use posse_encoding::yaml::{Node, Position};
use posse_wire::config::section::{self, Section};

/// The namespace of a context without one.
const NAMESPACE_DEFAULT: &str = "default";

/// The extension of a cluster entry that is passed on to plugins.
const EXEC_EXTENSION: &str = "client.authentication.k8s.io/exec";

/// The fields of a cluster entry. Missing and empty values mean the same.
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

struct RawContext {
    cluster: Option<String>,
    namespace: Option<String>,
    user: Option<String>,
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
            disable_compression: cluster.flag("disable-compression")?.unwrap_or(false),
            exec_extension,
            insecure_skip_tls_verify: cluster.flag("insecure-skip-tls-verify")?.unwrap_or(false),
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

/// What a kubeconfig says.
pub(super) enum Choice {
    /// The chosen context has a cluster.
    Cluster(Box<Cluster>),
    /// No context is chosen, or the chosen one has neither cluster nor user: in a pod, the cluster is the pod's.
    /// `missing` is the error elsewhere.
    Open { namespace: Option<String>, missing: ConfigError },
}

/// A file that was read. Only what the chosen context needs is checked: kubectl reads files that have broken entries
/// beside it, too.
struct Loaded {
    path: PathBuf,
    node: Node,
}

impl Loaded {
    fn parse(path: &Path, bytes: &[u8]) -> Result<Self, ConfigError> {
        let wrong = |at: Position, problem: String| syntax(path, at, problem);
        let text = std::str::from_utf8(bytes)
            .map_err(|_| wrong(Position::default(), "is not UTF-8".to_owned()))?;
        let node = Node::read_loosely(text).map_err(|error| wrong(error.at, error.message))?;
        let loaded = Self { path: path.to_owned(), node };
        for list in ["clusters", "contexts", "users"] {
            loaded.checked(loaded.top().and_then(|top| top.list(list)))?;
        }
        Ok(loaded)
    }

    fn top(&self) -> Result<Section<'_>, section::ConfigError> {
        Section::new("", String::new(), &self.node)
    }

    /// Adds the file to an error.
    fn checked<T>(&self, read: Result<T, section::ConfigError>) -> Result<T, ConfigError> {
        read.map_err(|error| {
            // The message must not contain the unexpected value, which may be a secret.
            let message = error.message.split(", found `").next().unwrap_or_default();
            syntax(&self.path, error.at, message.to_owned())
        })
    }

    /// The entries of `clusters`, `contexts` or `users`, each with its index and name. No name is an empty name.
    fn entries(&self, list: &str) -> Vec<(usize, String, Section<'_>)> {
        let items = self.top().ok().and_then(|top| top.list(list).ok()?).unwrap_or_default();
        let entry = |(i, item)| {
            let section = Section::new("", format!("{list}[{i}]"), item).ok()?;
            let name = section.given("name").ok()?.unwrap_or_default();
            Some((i, name, section))
        };
        items.iter().enumerate().filter_map(entry).collect()
    }
}

fn syntax(path: &Path, at: Position, problem: String) -> ConfigError {
    ConfigError::Syntax { file: path.to_owned(), line: at.line, column: at.column, problem }
}

/// The location of an entry: its file and its path in the file.
struct EntryLocation<'a> {
    file: &'a Path,
    field: String,
    /// The file and the name, for the log.
    origin: String,
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

/// What the context in `--context` says, else the current context.
pub(super) fn choose(sources: &Sources<'_>) -> Result<Choice, ConfigError> {
    let files = load(sources)?;
    let (location, context) = match chosen_context(sources, &files)? {
        Ok(chosen) => chosen,
        Err(missing) => return Ok(Choice::Open { namespace: None, missing }),
    };
    let cluster_name = context.cluster.unwrap_or_default();
    let found = entry(&files, "cluster", &cluster_name, RawCluster::read)?;
    let Some((cluster_location, raw_cluster)) = found else {
        let missing = match cluster_name.as_str() {
            "" => location.error("cluster", "missing: a context needs a cluster"),
            name => location.error("cluster", format!("there is no cluster {name:?}")),
        };
        // Who names a cluster or a user means no other one.
        return match cluster_name.is_empty() && context.user.is_none() {
            true => Ok(Choice::Open { namespace: context.namespace, missing }),
            false => Err(missing),
        };
    };
    let user_name = context.user.unwrap_or_default();
    let user = entry(&files, "user", &user_name, RawUser::read)?;
    if user.is_none() && !user_name.is_empty() {
        return Err(location.error("user", format!("there is no user {user_name:?}")));
    }
    let mut cluster = endpoint(sources, &cluster_location, &raw_cluster)?;
    cluster.origin = location.origin;
    // As kubectl does: in a pod, the default is the pod's namespace.
    cluster.namespace = context
        .namespace
        .or_else(|| incluster::Home::of(sources).map(|home| home.namespace))
        .unwrap_or_else(|| NAMESPACE_DEFAULT.to_owned());
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
    Ok(Choice::Cluster(Box::new(cluster)))
}

/// True if `$KUBECONFIG` names a file. One that does not exist is an empty one, as in client-go.
pub(super) fn is_listed(sources: &Sources<'_>) -> bool {
    listed(sources).is_some_and(|paths| paths.iter().any(|path| path.try_exists().unwrap_or(true)))
}

/// The files of `$KUBECONFIG`, each once.
fn listed(sources: &Sources<'_>) -> Option<Vec<PathBuf>> {
    let list = sources.var("KUBECONFIG")?;
    let mut paths: Vec<PathBuf> = Vec::new();
    for path in std::env::split_paths(&list).filter(|path| !path.as_os_str().is_empty()) {
        if !paths.contains(&path) {
            paths.push(path);
        }
    }
    Some(paths)
}

/// Reads `--kubeconfig`, else the files of `$KUBECONFIG`, else `~/.kube/config`.
fn load(sources: &Sources<'_>) -> Result<Vec<Loaded>, ConfigError> {
    if let Some(path) = sources.kubeconfig {
        let bytes = read_file(path)
            .map_err(|e| ConfigError::File { file: path.to_owned(), problem: e.to_string() })?;
        return Ok(vec![Loaded::parse(path, &bytes)?]);
    }
    let listed = listed(sources);
    let is_named = listed.is_some();
    let at_home = || {
        let home = sources.var("HOME");
        home.map(|home| Path::new(&home).join(".kube").join("config")).into_iter().collect()
    };
    let paths: Vec<PathBuf> = listed.unwrap_or_else(at_home);
    let mut files = Vec::new();
    for path in &paths {
        match read_file(path) {
            Ok(bytes) => files.push(Loaded::parse(path, &bytes)?),
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
            vec!["$KUBECONFIG".to_owned(), "KUBERNETES_SERVICE_HOST (not a pod)".to_owned()];
        searched.extend(paths.iter().map(|path| path.display().to_string()));
        return Err(ConfigError::Absent { searched });
    }
    Ok(files)
}

type Chosen<'a> = (EntryLocation<'a>, RawContext);

/// The context that is chosen; the inner error: none is. Of several files, the first one that chooses counts.
fn chosen_context<'a>(
    sources: &Sources<'_>,
    files: &'a [Loaded],
) -> Result<Result<Chosen<'a>, ConfigError>, ConfigError> {
    let mut current = None;
    for file in files {
        current = file.checked(file.top().and_then(|top| top.given("current-context")))?;
        if current.is_some() {
            break;
        }
    }
    let (source, name) = match (sources.context, current) {
        (Some(name), _) => ("--context", name.to_owned()),
        (None, name) => ("current-context", name.unwrap_or_default()),
    };
    let missing = |problem: &str| {
        let problem = format!("{problem}; the contexts are: {}", context_names(files));
        ConfigError::field(source, problem).in_file(&files[0].path)
    };
    match entry(files, "context", &name, RawContext::read)? {
        Some(chosen) => Ok(Ok(chosen)),
        None if name.is_empty() && sources.context.is_none() => {
            Ok(Err(missing("not set, and there is no --context")))
        }
        None => Err(missing(&format!("there is no context {name:?}"))),
    }
}

/// The names of all contexts. None if a file cannot be read.
pub(super) fn contexts(sources: &Sources<'_>) -> Vec<String> {
    let files = load(sources).unwrap_or_default();
    let all = files.iter().flat_map(|file| file.entries("contexts"));
    all.map(|(_, name, _)| name.to_owned()).collect()
}

fn context_names(files: &[Loaded]) -> String {
    let all = files.iter().flat_map(|file| file.entries("contexts"));
    let names: Vec<_> = all.map(|(_, name, _)| format!("{name:?}")).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// The entry with this name in the first file that has one. Entries of several files are not merged, as in kubectl.
fn entry<'a, T>(
    files: &'a [Loaded],
    kind: &str,
    name: &str,
    read: fn(&Section<'_>) -> Result<T, section::ConfigError>,
) -> Result<Option<(EntryLocation<'a>, T)>, ConfigError> {
    for file in files {
        let mut found =
            file.entries(&format!("{kind}s")).into_iter().filter(|(_, found, _)| found == name);
        let Some((i, _, section)) = found.next() else { continue };
        let location = EntryLocation {
            file: &file.path,
            field: format!("{kind}s[{i}].{kind}"),
            origin: format!("{}, context {name:?}", file.path.display()),
        };
        if let Some((second, ..)) = found.next() {
            let problem = format!("there is another one with the name {name:?}, {kind}s[{second}]");
            let field = format!("{kind}s[{i}].name");
            return Err(ConfigError::field(field, problem).in_file(&file.path));
        }
        let value = file.checked(section.section(kind).and_then(|section| read(&section)))?;
        return Ok(Some((location, value)));
    }
    Ok(None)
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
    // client-go's `DefaultServerURL`.
    let has_tls = raw.insecure_skip_tls_verify
        || raw.certificate_authority.is_some()
        || raw.certificate_authority_data.is_some();
    let url = match (url.contains("://"), has_tls) {
        (true, _) => url,
        (false, true) => format!("https://{url}"),
        (false, false) => format!("http://{url}"),
    };
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
        home: None,
        origin: String::new(),
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
