//! The configuration inside a pod: the KUBERNETES_SERVICE variables and the service account's files.

use std::path::Path;

use super::server::bracketed;
use super::token_claims::bound_pod;
use super::{
    AuthSource, Blob, BlobSource, ClientIdentity, Cluster, ConfigError, Server, Sources, Trust,
    proxy, read_file, read_token,
};

const HOST: &str = "KUBERNETES_SERVICE_HOST";
const PORT: &str = "KUBERNETES_SERVICE_PORT";

/// The namespace if the service account's folder does not contain one.
const NAMESPACE_DEFAULT: &str = "default";

/// The API server's URL; `None` outside of a pod.
pub(super) fn address(sources: &Sources<'_>) -> Option<String> {
    let host = sources.var(HOST)?;
    let port = sources.var(PORT)?;
    Some(format!("https://{}:{port}", bracketed(host.trim())))
}

/// The configuration for the cluster that this pod runs in.
pub(super) fn cluster(sources: &Sources<'_>, url: &str) -> Result<Cluster, ConfigError> {
    let server = Server::parse(url).map_err(|e| ConfigError::field(format!("{HOST}/{PORT}"), e))?;
    let dir = sources.service_account_dir;
    let token = dir.join("token");
    let first = read_token(&token).map_err(|e| {
        ConfigError::field(
            "service account token",
            format!(
                "{e}; {HOST} is set, so this is a pod: mount a service account token \
                 (automountServiceAccountToken) or use --kubeconfig"
            ),
        )
    })?;
    let roots = Blob {
        field: "service account ca.crt".to_owned(),
        source: BlobSource::File(dir.join("ca.crt")),
    };
    roots.read()?;
    Ok(Cluster {
        proxy: proxy::from_env(sources, &server)?,
        namespace: namespace(dir),
        pod: bound_pod(first.reveal()),
        server,
        trust: Trust::Roots(roots),
        tls_server_name: None,
        identity: ClientIdentity {
            authorization: AuthSource::TokenFile { path: token, first },
            ..ClientIdentity::default()
        },
    })
}

fn namespace(dir: &Path) -> String {
    let path = dir.join("namespace");
    let text = read_file(&path).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    match text.as_deref().map(str::trim) {
        Some(name) if !name.is_empty() => name.to_owned(),
        Some(_) | None => {
            log::warn!("{} contains no namespace: using {NAMESPACE_DEFAULT}", path.display());
            NAMESPACE_DEFAULT.to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use base64::Engine as _;
    use base64::prelude::BASE64_URL_SAFE_NO_PAD;

    use super::*;
    use crate::config::BoundPod;
    use crate::config::token_claims::subject;
    use crate::http::Http;
    use crate::testing::sources;
    use posse_testing::{Authority, Folder};

    const VARIABLES: [(&str, &str); 2] = [(HOST, "10.96.0.1"), (PORT, "443")];

    fn resolve(
        folder: &Folder,
        variables: &[(&str, &str)],
        context: Option<&str>,
    ) -> Result<Cluster, String> {
        let env = |name: &str| {
            variables.iter().find(|(given, _)| *given == name).map(|(_, v)| OsString::from(v))
        };
        let sources =
            Sources { context, service_account_dir: folder.path(), ..sources(None, &env) };
        let dir = format!("{}/", folder.path().display());
        sources.resolve().map_err(|e| e.to_string().replace(&dir, ""))
    }

    fn account() -> Folder {
        let folder = Folder::new();
        folder.write("token", "abc\n");
        folder.write("ca.crt", Authority::new().pem);
        folder.write("namespace", "analytics\n");
        folder
    }

    #[test]
    fn the_cluster_is_read_from_the_pod() {
        let folder = account();
        let cluster = resolve(&folder, &VARIABLES, None).unwrap();
        assert_eq!(cluster.server.to_string(), "https://10.96.0.1");
        assert_eq!(cluster.namespace, "analytics");
        assert!(matches!(
            &cluster.identity.authorization,
            AuthSource::TokenFile { path, first }
                if *path == folder.path().join("token") && first.reveal() == "abc"
        ));
        assert_eq!(cluster.proxy, None);
        assert!(Http::connect(cluster).is_ok());

        let six = [(HOST, "fd00::1"), (PORT, "6443")];
        let cluster = resolve(&folder, &six, None).unwrap();
        assert_eq!(cluster.server.to_string(), "https://[fd00::1]:6443");
    }

    #[test]
    fn the_pod_is_read_from_the_token() {
        let token = |claims: &str| format!("e30.{}.c2ln", BASE64_URL_SAFE_NO_PAD.encode(claims));
        let bound = r#"{"aud":["a"],"kubernetes.io":{"namespace":"n","node":{"name":"m"},
            "pod":{"name":"driver","uid":"3f25"},"serviceaccount":{"name":"s","uid":"1"}}}"#;
        let pod = BoundPod { name: "driver".to_owned(), uid: "3f25".to_owned() };
        assert_eq!(bound_pod(&token(bound)), Some(pod.clone()));
        assert_eq!(subject(&token(bound)), None);
        assert_eq!(subject(&token(r#"{"sub":"me"}"#)).as_deref(), Some("me"));
        for unbound in ["{}", r#"{"kubernetes.io":{}}"#, r#"{"kubernetes.io":{"pod":7}}"#, "x"] {
            assert_eq!(bound_pod(&token(unbound)), None, "{unbound}");
        }
        for other in ["", "abc", "a.b.c", "..", "a.!.c"] {
            assert_eq!(bound_pod(other), None, "{other}");
        }
        let folder = account();
        folder.write("token", token(bound));
        assert_eq!(resolve(&folder, &VARIABLES, None).unwrap().pod, Some(pod));
    }

    #[test]
    fn the_proxy_is_read_from_the_pods_environment() {
        let folder = account();
        let with = |more: &[(&'static str, &'static str)]| {
            let variables = [&VARIABLES[..], more].concat();
            resolve(&folder, &variables, None).unwrap().proxy
        };
        assert!(with(&[("HTTPS_PROXY", "p:3128")]).is_some());
        assert!(with(&[("HTTPS_PROXY", "p:3128"), ("NO_PROXY", "10.96.0.0/12")]).is_none());
    }

    #[test]
    fn missing_files_and_variables_are_reported() {
        let folder = account();
        let absent = "no Kubernetes configuration";
        for variables in [&VARIABLES[..1], &VARIABLES[1..], &[(HOST, ""), (PORT, "443")]] {
            let error = resolve(&folder, variables, None).expect_err("no pod");
            assert!(error.starts_with(absent), "{error}");
        }
        let error =
            resolve(&folder, &VARIABLES, Some("c")).expect_err("--context needs a kubeconfig");
        assert!(error.starts_with(absent), "{error}");
        let error = resolve(&folder, &[(HOST, "10.96.0.1"), (PORT, "x")], None).expect_err("port");
        assert_eq!(
            error,
            "KUBERNETES_SERVICE_HOST/KUBERNETES_SERVICE_PORT: the port is not a number from 1 to 65535"
        );

        std::fs::remove_file(folder.path().join("namespace")).unwrap();
        assert_eq!(resolve(&folder, &VARIABLES, None).unwrap().namespace, "default");
        std::fs::remove_file(folder.path().join("ca.crt")).unwrap();
        let error = resolve(&folder, &VARIABLES, None).expect_err("no ca.crt");
        assert_eq!(error, "service account ca.crt: ca.crt: No such file or directory (os error 2)");
        folder.write("token", " \n");
        let error = resolve(&folder, &VARIABLES, None).expect_err("an empty token");
        assert!(error.starts_with("service account token: token: empty; "), "{error}");
        std::fs::remove_file(folder.path().join("token")).unwrap();
        let error = resolve(&folder, &VARIABLES, None).expect_err("no token");
        assert!(error.contains("No such file") && error.contains("--kubeconfig"), "{error}");
    }
}
