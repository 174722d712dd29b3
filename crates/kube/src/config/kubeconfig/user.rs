//! User entries of a kubeconfig: tokens, certificates, plugins and impersonation.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use ureq::http::{HeaderName, HeaderValue};

use super::EntryLocation;
use crate::config::exec_plugin::{ExecPlugin, ExecVersion};
use crate::config::token_claims::expiry;
use crate::config::{
    AuthSource, ClientCert, ClientIdentity, ConfigError, Secret, header_value, read_token,
};
use posse_encoding::yaml::Entry;
use posse_wire::config::section::{self, Section};

/// The provider of OpenID Connect: the only one that Kubernetes clients still have.
const OIDC: &str = "oidc";

/// How long an id-token must be valid at least, as client-go has it.
const ID_TOKEN_LEFT_MIN: Duration = Duration::from_secs(10);

/// The fields of a user entry.
pub(super) struct RawUser {
    as_user: Option<String>,
    as_groups: Vec<String>,
    as_uid: Option<String>,
    as_user_extra: BTreeMap<String, Vec<String>>,
    auth_provider: Option<RawProvider>,
    client_certificate: Option<String>,
    client_certificate_data: Option<String>,
    client_key: Option<String>,
    client_key_data: Option<String>,
    exec: Option<RawExec>,
    password: Option<String>,
    token: Option<String>,
    token_file: Option<String>,
    username: Option<String>,
}

struct RawProvider {
    name: String,
    id_token: Option<String>,
}

struct RawExec {
    api_version: Option<String>,
    args: Vec<String>,
    command: Option<String>,
    /// Pairs of name and value.
    env: Vec<(String, String)>,
    install_hint: Option<String>,
    interactive_mode: Option<String>,
    provide_cluster_info: bool,
}

impl RawUser {
    pub(super) fn read(user: &Section<'_>) -> Result<Self, section::ConfigError> {
        let extra = user.section("as-user-extra")?;
        let mut as_user_extra = BTreeMap::new();
        for Entry { key, .. } in extra.entries {
            as_user_extra.insert(key.clone(), extra.texts(key)?.unwrap_or_default());
        }
        Ok(Self {
            as_user: user.given("as")?,
            as_groups: user.texts("as-groups")?.unwrap_or_default(),
            as_uid: user.given("as-uid")?,
            as_user_extra,
            auth_provider: match user.get("auth-provider") {
                Some(_) => Some(RawProvider::read(&user.section("auth-provider")?)?),
                None => None,
            },
            client_certificate: user.given("client-certificate")?,
            client_certificate_data: user.given("client-certificate-data")?,
            client_key: user.given("client-key")?,
            client_key_data: user.given("client-key-data")?,
            exec: match user.get("exec") {
                Some(_) => Some(RawExec::read(&user.section("exec")?)?),
                None => None,
            },
            password: user.given("password")?,
            token: user.given("token")?,
            token_file: user.given("tokenFile")?,
            username: user.given("username")?,
        })
    }
}

impl RawProvider {
    fn read(provider: &Section<'_>) -> Result<Self, section::ConfigError> {
        Ok(Self {
            name: provider.given("name")?.unwrap_or_default(),
            id_token: provider.section("config")?.given("id-token")?,
        })
    }
}

impl RawExec {
    fn read(exec: &Section<'_>) -> Result<Self, section::ConfigError> {
        let variable = |entry: Section<'_>| {
            Ok((
                entry.given("name")?.unwrap_or_default(),
                entry.given("value")?.unwrap_or_default(),
            ))
        };
        Ok(Self {
            api_version: exec.given("apiVersion")?,
            args: exec.texts("args")?.unwrap_or_default(),
            command: exec.given("command")?,
            env: exec.sections("env")?.into_iter().map(variable).collect::<Result<_, _>>()?,
            install_hint: exec.given("installHint")?,
            interactive_mode: exec.given("interactiveMode")?,
            provide_cluster_info: exec.flag("provideClusterInfo")?.unwrap_or(false),
        })
    }
}

/// Resolves a user entry. `cluster_info` makes the `spec.cluster` for a plugin.
pub(super) fn identity(
    location: &EntryLocation<'_>,
    mut user: RawUser,
    cluster_info: &dyn Fn() -> Result<serde_json::Value, ConfigError>,
) -> Result<ClientIdentity, ConfigError> {
    if let Some(provider) = user.auth_provider.as_ref().filter(|provider| provider.name != OIDC) {
        let problem =
            format!("Kubernetes clients no longer support {:?}: use an exec plugin", provider.name);
        return Err(location.error("auth-provider.name", problem));
    }
    let chain = location.blob(
        ("client-certificate-data", user.client_certificate_data.clone()),
        ("client-certificate", user.client_certificate.clone()),
    )?;
    let key = location.blob(
        ("client-key-data", user.client_key_data.clone()),
        ("client-key", user.client_key.clone()),
    )?;
    let client_cert = match (chain, key) {
        (Some(chain), Some(key)) => Some(ClientCert { chain, key }),
        (None, None) => None,
        (Some(_), None) => {
            return Err(location.error("client-key", "missing, but there is a client certificate"));
        }
        (None, Some(_)) => {
            return Err(location.error("client-certificate", "missing, but there is a client key"));
        }
    };
    let impersonate = impersonation(location, &user)?;
    // As in client-go: who has a certificate needs no plugin.
    let exec = user.exec.take().filter(|_| client_cert.is_none());
    let user = RawUser { exec, ..user };
    Ok(ClientIdentity {
        authorization: authorization(location, user, cluster_info)?,
        client_cert,
        impersonate,
    })
}

fn authorization(
    location: &EntryLocation<'_>,
    user: RawUser,
    cluster_info: &dyn Fn() -> Result<serde_json::Value, ConfigError>,
) -> Result<AuthSource, ConfigError> {
    let (token, token_file) = (user.token, user.token_file);
    let basic = match (user.username, user.password) {
        (None, None) => None,
        (username, password) => {
            Some((username.unwrap_or_default(), Secret::new(password.unwrap_or_default())))
        }
    };
    if basic.is_some() && (token.is_some() || token_file.is_some()) {
        return Err(location.error("username", "together with a token: remove one of the two"));
    }
    if let Some(token) = &token {
        header_value(token).map_err(|e| location.error("token", e))?;
    }
    if let Some(path) = token_file {
        let path = location.path(&path);
        let first = match (read_token(&path), token) {
            (Ok(first), _) => first,
            (Err(_), Some(token)) => Secret::new(token),
            (Err(e), None) => return Err(location.error("tokenFile", e)),
        };
        return Ok(AuthSource::TokenFile { path, first });
    }
    if let Some(token) = token {
        return Ok(AuthSource::Token(Secret::new(token)));
    }
    if let Some((username, password)) = basic {
        return Ok(AuthSource::Basic { username, password });
    }
    match (user.exec, user.auth_provider) {
        (Some(raw), _) => Ok(AuthSource::Exec(Box::new(exec(location, raw, cluster_info)?))),
        (None, Some(provider)) => id_token(location, provider).map(AuthSource::Token),
        (None, None) => Ok(AuthSource::Absent),
    }
}

/// The token that kubectl has written into the kubeconfig. Only kubectl renews it: that takes requests to the issuer,
/// and a file that is written.
fn id_token(location: &EntryLocation<'_>, provider: RawProvider) -> Result<Secret, ConfigError> {
    let is_valid = |token: &String| {
        let left = expiry(token).and_then(|at| at.duration_since(SystemTime::now()).ok());
        left.is_some_and(|left| left > ID_TOKEN_LEFT_MIN)
    };
    let field = "auth-provider.config.id-token";
    let Some(token) = provider.id_token.filter(is_valid) else {
        let problem = "there is none, or it has expired: run kubectl once, which renews it, or use an exec plugin";
        return Err(location.error(field, problem));
    };
    header_value(&token).map_err(|e| location.error(field, e))?;
    Ok(Secret::new(token))
}

fn exec(
    location: &EntryLocation<'_>,
    raw: RawExec,
    cluster_info: &dyn Fn() -> Result<serde_json::Value, ConfigError>,
) -> Result<ExecPlugin, ConfigError> {
    let version = raw.api_version.as_deref().and_then(ExecVersion::parse).ok_or_else(|| {
        let known = [ExecVersion::V1, ExecVersion::V1beta1].map(ExecVersion::as_str);
        location.error("exec.apiVersion", format!("must be one of {}", known.join(", ")))
    })?;
    match (raw.interactive_mode.as_deref(), version) {
        (Some("Never" | "IfAvailable"), _) | (None | Some(""), ExecVersion::V1beta1) => {}
        (Some("Always"), _) => {
            return Err(location.error(
                "exec.interactiveMode",
                "Always: the plugin needs a terminal, but posse does not provide one",
            ));
        }
        (_, ExecVersion::V1 | ExecVersion::V1beta1) => {
            return Err(location.error("exec.interactiveMode", "must be Never or IfAvailable"));
        }
    }
    let command = raw
        .command
        .ok_or_else(|| location.error("exec.command", "missing: set it to the program to run"))?;
    let command =
        if command.contains('/') { location.path(&command) } else { PathBuf::from(command) };
    let mut env = Vec::new();
    for (i, (name, value)) in raw.env.into_iter().enumerate() {
        if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
            return Err(
                location.error(&format!("exec.env[{i}]"), "not a valid environment variable")
            );
        }
        env.push((name, value.into()));
    }
    let cluster = if raw.provide_cluster_info { Some(cluster_info()?) } else { None };
    Ok(ExecPlugin {
        version,
        command,
        args: raw.args,
        env,
        install_hint: raw.install_hint,
        cluster,
        timeout: ExecPlugin::TIMEOUT,
    })
}

/// The characters that need no escape in a header's name (RFC 9110, token).
const HEADER_NAME: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'!')
    .remove(b'#')
    .remove(b'$')
    .remove(b'&')
    .remove(b'\'')
    .remove(b'*')
    .remove(b'+')
    .remove(b'-')
    .remove(b'.')
    .remove(b'^')
    .remove(b'_')
    .remove(b'`')
    .remove(b'|')
    .remove(b'~');

fn impersonation(
    location: &EntryLocation<'_>,
    user: &RawUser,
) -> Result<Vec<(HeaderName, HeaderValue)>, ConfigError> {
    let mut headers = Vec::new();
    let mut add = |field: &str, name: &str, value: &str| {
        let name = HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| location.error(field, "cannot be used in an HTTP header"))?;
        headers.push((name, header_value(value).map_err(|e| location.error(field, e))?));
        Ok(())
    };
    if let Some(name) = &user.as_user {
        add("as", "impersonate-user", name)?;
    }
    if let Some(uid) = &user.as_uid {
        add("as-uid", "impersonate-uid", uid)?;
    }
    for group in &user.as_groups {
        add("as-groups", "impersonate-group", group)?;
    }
    for (key, values) in &user.as_user_extra {
        let key = utf8_percent_encode(key, HEADER_NAME);
        for value in values {
            add("as-user-extra", &format!("impersonate-extra-{key}"), value)?;
        }
    }
    if user.as_user.is_none() && !headers.is_empty() {
        return Err(location.error("as", "missing, but other as-* fields are set"));
    }
    Ok(headers)
}
