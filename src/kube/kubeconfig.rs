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
use serde::Deserialize;

use self::user::{RawUser, identity};
use super::config::read_file;
use super::config::{Blob, BlobSource, Cluster, ConfigError, Identity, Server, Sources, Trust};
use super::proxy;

/// How deep a kubeconfig may be nested; real ones need seven levels.
const DEPTH_MAX: usize = 64;

/// The namespace of a context that names none.
const NAMESPACE_DEFAULT: &str = "default";

/// The extension of a cluster that plugins are told.
const EXEC_EXTENSION: &str = "client.authentication.k8s.io/exec";

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
struct RawConfig {
    clusters: Option<Vec<RawNamedCluster>>,
    contexts: Option<Vec<RawNamedContext>>,
    current_context: Option<String>,
    users: Option<Vec<RawNamedUser>>,
}

#[derive(Deserialize)]
struct RawNamedCluster {
    name: String,
    cluster: Option<RawCluster>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
struct RawCluster {
    certificate_authority: Option<String>,
    certificate_authority_data: Option<String>,
    disable_compression: Option<bool>,
    extensions: Option<Vec<RawExtension>>,
    insecure_skip_tls_verify: Option<bool>,
    proxy_url: Option<String>,
    server: Option<String>,
    tls_server_name: Option<String>,
}

#[derive(Clone, Deserialize)]
struct RawExtension {
    name: String,
    extension: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct RawNamedContext {
    name: String,
    context: Option<RawContext>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct RawContext {
    cluster: Option<String>,
    namespace: Option<String>,
    user: Option<String>,
}

#[derive(Deserialize)]
struct RawNamedUser {
    name: String,
    user: Option<RawUser>,
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
        if let Some(text) = given(data.1) {
            let text: String = text.split_ascii_whitespace().collect();
            let bytes =
                BASE64_STANDARD.decode(text).map_err(|_| self.error(data.0, "not base64"))?;
            return Ok(Some(Blob { field: name(data.0), source: BlobSource::Inline(bytes) }));
        }
        Ok(given(file.1)
            .map(|path| Blob { field: name(file.0), source: BlobSource::File(self.path(&path)) }))
    }
}

/// Absent and empty mean the same in a kubeconfig.
fn given(text: Option<String>) -> Option<String> {
    text.filter(|text| !text.is_empty())
}

/// The cluster of the context that is asked for, or of the current one.
pub(super) fn cluster(sources: &Sources<'_>) -> Result<Cluster, ConfigError> {
    let files = load(sources)?;
    let (place, context) = context(sources, &files)?;
    let cluster_name = given(context.cluster)
        .ok_or_else(|| place.error("cluster", "absent: a context needs a cluster"))?;
    let (cluster_place, raw_cluster) = entry(&files, "cluster", &cluster_name, |raw| {
        named(raw.clusters.as_deref(), |entry| (&entry.name, entry.cluster.as_ref()))
    })
    .ok_or_else(|| place.error("cluster", format!("there is no cluster {cluster_name:?}")))?;
    let user = given(context.user)
        .map(|name| {
            entry(&files, "user", &name, |raw| {
                named(raw.users.as_deref(), |entry| (&entry.name, entry.user.as_ref()))
            })
            .ok_or_else(|| place.error("user", format!("there is no user {name:?}")))
        })
        .transpose()?;
    let mut cluster = endpoint(sources, &cluster_place, &raw_cluster)?;
    if let Some(namespace) = given(context.namespace) {
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
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_depth: DEPTH_MAX },
        with_snippet: false,
    };
    let raw: Option<RawConfig> = serde_saphyr::from_slice_with_options(bytes, options)
        .map_err(|e| syntax_error(path, &e))?;
    Ok(Loaded { path: path.to_owned(), raw: raw.unwrap_or_default() })
}

/// Where the YAML is wrong and how. The messages quote no value, and the lines around it, which
/// may hold a secret, are left out.
fn syntax_error(path: &Path, error: &serde_saphyr::Error) -> ConfigError {
    let (line, column) = error.location().map_or((0, 0), |at| (at.line(), at.column()));
    let rendered = error.render_with_options(serde_saphyr::render_options! {
        formatter: &serde_saphyr::UserMessageFormatter,
        snippets: serde_saphyr::SnippetMode::Off,
    });
    let message = rendered.rsplit_once(" at line ").map_or(rendered.as_str(), |split| split.0);
    let problem = message.to_owned();
    ConfigError::Syntax { file: path.to_owned(), line, column, problem }
}

fn context<'a>(
    sources: &Sources<'_>,
    files: &'a [Loaded],
) -> Result<(Place<'a>, RawContext), ConfigError> {
    let current = || files.iter().find_map(|file| given(file.raw.current_context.clone()));
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
    let lister = |raw: &'a RawConfig| {
        named(raw.contexts.as_deref(), |entry| (&entry.name, entry.context.as_ref()))
    };
    entry(files, "context", &name, lister).ok_or_else(|| {
        let problem = format!("there is no context {name:?}, only {}", context_names(files));
        ConfigError::field(asked_by, problem).in_file(&files[0].path)
    })
}

fn context_names(files: &[Loaded]) -> String {
    let names: Vec<_> = files
        .iter()
        .flat_map(|file| file.raw.contexts.iter().flatten())
        .map(|entry| format!("{:?}", entry.name))
        .collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// The names and values of a list.
fn named<'a, E, T>(
    list: Option<&'a [E]>,
    split: impl Fn(&'a E) -> (&'a String, Option<&'a T>),
) -> Vec<(&'a str, Option<&'a T>)> {
    let split = |entry| {
        let (name, value) = split(entry);
        (name.as_str(), value)
    };
    list.into_iter().flatten().map(split).collect()
}

/// The first entry of that name over all files: it wins whole, nothing is merged into it.
fn entry<'a, T: Clone + Default + 'a>(
    files: &'a [Loaded],
    kind: &str,
    name: &str,
    list: impl Fn(&'a RawConfig) -> Vec<(&'a str, Option<&'a T>)>,
) -> Option<(Place<'a>, T)> {
    files.iter().find_map(|file| {
        let entries = list(&file.raw);
        let index = entries.iter().position(|(given, _)| *given == name)?;
        let place = Place { file: &file.path, field: format!("{kind}s[{index}].{kind}") };
        Some((place, entries[index].1.cloned().unwrap_or_default()))
    })
}

/// A cluster entry, with nobody's identity yet.
fn endpoint(
    sources: &Sources<'_>,
    place: &Place<'_>,
    raw: &RawCluster,
) -> Result<Cluster, ConfigError> {
    let url = given(raw.server.clone())
        .ok_or_else(|| place.error("server", "absent: write https://HOST:PORT"))?;
    let server = Server::parse(&url).map_err(|e| place.error("server", e))?;
    let proxy = match given(raw.proxy_url.clone()) {
        Some(url) => Some(proxy::parse(&url).map_err(|e| place.error("proxy-url", e))?),
        None => proxy::from_env(sources, &server)?,
    };
    let tls_server_name = given(raw.tls_server_name.clone());
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
        compression: !raw.disable_compression.unwrap_or(false),
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
    match (raw.insecure_skip_tls_verify.unwrap_or(false), roots) {
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
    if let Some(url) = given(raw.proxy_url.clone()) {
        info["proxy-url"] = url.into();
    }
    if !cluster.compression {
        info["disable-compression"] = true.into();
    }
    let extension = raw.extensions.iter().flatten().find(|entry| entry.name == EXEC_EXTENSION);
    if let Some(extension) = extension {
        info["config"] = extension.extension.clone().ok_or_else(|| {
            place.error("extensions", format!("{EXEC_EXTENSION} has no extension"))
        })?;
    }
    Ok(info)
}
