//! Owns a kubeconfig's user entries: tokens, certificates, plugins, whom they impersonate.

use std::collections::BTreeMap;
use std::path::PathBuf;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use ureq::http::{HeaderName, HeaderValue};

use super::{Place, given};
use crate::kube::config::{
    Bearer, ClientCert, ConfigError, Identity, Secret, header_value, read_token,
};
use crate::kube::exec::{ExecPlugin, ExecVersion};

#[derive(Clone, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub(super) struct RawUser {
    #[serde(rename = "as")]
    as_user: Option<String>,
    as_groups: Option<Vec<String>>,
    as_uid: Option<String>,
    as_user_extra: Option<BTreeMap<String, Vec<String>>>,
    auth_provider: Option<serde::de::IgnoredAny>,
    client_certificate: Option<String>,
    client_certificate_data: Option<String>,
    client_key: Option<String>,
    client_key_data: Option<String>,
    exec: Option<RawExec>,
    password: Option<String>,
    token: Option<String>,
    #[serde(rename = "tokenFile")]
    token_file: Option<String>,
    username: Option<String>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RawExec {
    api_version: Option<String>,
    args: Option<Vec<String>>,
    command: Option<String>,
    env: Option<Vec<RawEnv>>,
    install_hint: Option<String>,
    interactive_mode: Option<String>,
    provide_cluster_info: Option<bool>,
}

#[derive(Clone, Deserialize)]
struct RawEnv {
    name: String,
    value: Option<String>,
}

/// What a user entry means; `cluster_info` is what a plugin may be told of the cluster.
pub(super) fn identity(
    place: &Place<'_>,
    user: RawUser,
    cluster_info: &dyn Fn() -> Result<serde_json::Value, ConfigError>,
) -> Result<Identity, ConfigError> {
    if user.auth_provider.is_some() {
        return Err(
            place.error("auth-provider", "was removed from Kubernetes clients: use an exec plugin")
        );
    }
    let chain = place.blob(
        ("client-certificate-data", user.client_certificate_data.clone()),
        ("client-certificate", user.client_certificate.clone()),
    )?;
    let key = place.blob(
        ("client-key-data", user.client_key_data.clone()),
        ("client-key", user.client_key.clone()),
    )?;
    let client_cert = match (chain, key) {
        (Some(chain), Some(key)) => Some(ClientCert { chain, key }),
        (None, None) => None,
        (Some(_), None) => return Err(place.error("client-key", "absent beside a certificate")),
        (None, Some(_)) => {
            return Err(place.error("client-certificate", "absent beside a key"));
        }
    };
    let impersonate = impersonation(place, &user)?;
    Ok(Identity { bearer: bearer(place, user, cluster_info)?, client_cert, impersonate })
}

fn bearer(
    place: &Place<'_>,
    user: RawUser,
    cluster_info: &dyn Fn() -> Result<serde_json::Value, ConfigError>,
) -> Result<Bearer, ConfigError> {
    let (token, token_file) = (given(user.token), given(user.token_file));
    let basic = match (given(user.username), given(user.password)) {
        (None, None) => None,
        (username, password) => {
            Some((username.unwrap_or_default(), Secret::new(password.unwrap_or_default())))
        }
    };
    if basic.is_some() && (token.is_some() || token_file.is_some()) {
        return Err(place.error("username", "beside a token: remove one of the two"));
    }
    if let Some(token) = &token {
        header_value(token).map_err(|e| place.error("token", e))?;
    }
    if let Some(path) = token_file {
        let path = place.path(&path);
        let first = match (read_token(&path), token) {
            (Ok(first), _) => first,
            (Err(_), Some(token)) => Secret::new(token),
            (Err(e), None) => return Err(place.error("tokenFile", e)),
        };
        return Ok(Bearer::TokenFile { path, first });
    }
    if let Some(token) = token {
        return Ok(Bearer::Token(Secret::new(token)));
    }
    if let Some((username, password)) = basic {
        return Ok(Bearer::Basic { username, password });
    }
    match user.exec {
        Some(raw) => Ok(Bearer::Exec(Box::new(exec(place, raw, cluster_info)?))),
        None => Ok(Bearer::Absent),
    }
}

fn exec(
    place: &Place<'_>,
    raw: RawExec,
    cluster_info: &dyn Fn() -> Result<serde_json::Value, ConfigError>,
) -> Result<ExecPlugin, ConfigError> {
    let version = raw.api_version.as_deref().and_then(ExecVersion::parse).ok_or_else(|| {
        let known = [ExecVersion::V1, ExecVersion::V1beta1].map(ExecVersion::as_str);
        place.error("exec.apiVersion", format!("must be one of {}", known.join(", ")))
    })?;
    match (raw.interactive_mode.as_deref(), version) {
        (Some("Never" | "IfAvailable"), _) | (None | Some(""), ExecVersion::V1beta1) => {}
        (Some("Always"), _) => {
            return Err(place.error(
                "exec.interactiveMode",
                "Always: the plugin wants a terminal, and posse gives it none",
            ));
        }
        (_, ExecVersion::V1 | ExecVersion::V1beta1) => {
            return Err(place.error("exec.interactiveMode", "must be Never or IfAvailable"));
        }
    }
    let command = given(raw.command)
        .ok_or_else(|| place.error("exec.command", "absent: name the program to run"))?;
    let command = if command.contains('/') { place.path(&command) } else { PathBuf::from(command) };
    let mut env = Vec::new();
    for (i, RawEnv { name, value }) in raw.env.into_iter().flatten().enumerate() {
        let value = value.unwrap_or_default();
        if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
            return Err(place.error(&format!("exec.env[{i}]"), "not a variable"));
        }
        env.push((name, value.into()));
    }
    let cluster = match raw.provide_cluster_info {
        Some(true) => Some(cluster_info()?),
        Some(false) | None => None,
    };
    Ok(ExecPlugin {
        version,
        command,
        args: raw.args.unwrap_or_default(),
        env,
        install_hint: given(raw.install_hint),
        cluster,
        timeout: ExecPlugin::TIMEOUT,
    })
}

/// What may stand in a header's name unescaped, other than letters and digits.
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
    place: &Place<'_>,
    user: &RawUser,
) -> Result<Vec<(HeaderName, HeaderValue)>, ConfigError> {
    let mut headers = Vec::new();
    let mut add = |field: &str, name: &str, value: &str| {
        let name = HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| place.error(field, "makes no HTTP header"))?;
        headers.push((name, header_value(value).map_err(|e| place.error(field, e))?));
        Ok(())
    };
    let as_user = given(user.as_user.clone());
    if let Some(name) = &as_user {
        add("as", "impersonate-user", name)?;
    }
    if let Some(uid) = given(user.as_uid.clone()) {
        add("as-uid", "impersonate-uid", &uid)?;
    }
    for group in user.as_groups.iter().flatten() {
        add("as-groups", "impersonate-group", group)?;
    }
    for (key, values) in user.as_user_extra.iter().flatten() {
        let key = utf8_percent_encode(key, HEADER_NAME);
        for value in values {
            add("as-user-extra", &format!("impersonate-extra-{key}"), value)?;
        }
    }
    if as_user.is_none() && !headers.is_empty() {
        return Err(place.error("as", "absent: who is impersonated beside the rest?"));
    }
    Ok(headers)
}
