//! The configuration inside a pod: the KUBERNETES_SERVICE variables and the service account's files.

use std::path::Path;

use super::server::bracketed;
use super::token_claims::bound_pod;
use super::{
    AuthSource, Blob, BlobSource, BoundPod, ClientIdentity, Cluster, ConfigError, Server, Sources,
    Trust, proxy, read_file, read_token,
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

/// True if the pod has the token of a service account, as client-go asks before it uses one.
pub(super) fn has_account(sources: &Sources<'_>) -> bool {
    sources.service_account_dir.join("token").is_file()
}

/// The configuration for the cluster that this pod runs in. `namespace` comes before the pod's own.
pub(super) fn cluster(
    sources: &Sources<'_>,
    url: &str,
    namespace: Option<String>,
) -> Result<Cluster, ConfigError> {
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
    let ca = dir.join("ca.crt");
    let field = "service account ca.crt";
    let trust = match ca.exists() {
        true => Trust::Roots(Blob { field: field.to_owned(), source: BlobSource::File(ca) }),
        // As client-go does: a volume may have the token alone.
        false => sources.public_roots(field)?,
    };
    if let Trust::Roots(roots) = &trust {
        roots.read()?;
    }
    let home =
        Home { namespace: own_namespace(dir), pod: bound_pod(first.reveal()), is_used: true };
    Ok(Cluster {
        proxy: proxy::from_env(sources, &server)?,
        namespace: namespace.unwrap_or_else(|| home.namespace.clone()),
        home: Some(home),
        origin: "the pod's service account".to_owned(),
        server,
        trust,
        tls_server_name: None,
        identity: ClientIdentity {
            authorization: AuthSource::TokenFile { path: token, first },
            ..ClientIdentity::default()
        },
    })
}

/// The pod that we run in, as its service account tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Home {
    pub namespace: String,
    /// The pod that the token is bound to.
    pub pod: Option<BoundPod>,
    /// The account is our identity, so the server is that of the pod's own cluster.
    pub is_used: bool,
}

impl Home {
    /// `None` if this is no pod, or one without a service account.
    pub(super) fn of(sources: &Sources<'_>) -> Option<Self> {
        address(sources).filter(|_| has_account(sources))?;
        let dir = sources.service_account_dir;
        let token = read_token(&dir.join("token")).ok();
        let pod = token.and_then(|token| bound_pod(token.reveal()));
        Some(Self { namespace: own_namespace(dir), pod, is_used: false })
    }
}

fn own_namespace(dir: &Path) -> String {
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
    use base64::Engine as _;
    use base64::prelude::BASE64_URL_SAFE_NO_PAD;

    use super::*;
    use log::Level;

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
            variables.iter().find(|(given, _)| *given == name).map(|(_, v)| (*v).to_owned())
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

    /// `$KUBECONFIG`, `~/.kube/config`, `--context`, has an account; server, namespace.
    type Case<'a> = (
        Option<&'a str>,
        Option<&'a str>,
        Option<&'a str>,
        bool,
        Result<(&'a str, &'a str), &'a str>,
    );

    fn resolve_case(folder: &Folder, case: &Case<'_>) -> Result<Cluster, String> {
        let (kubeconfig, home, context, has_account, _) = *case;
        let path = |name: &str| folder.path().join(name).display().to_string();
        let (config, at_home, home_folder) = (path("config"), path(".kube/config"), path(""));
        let mut variables = VARIABLES.to_vec();
        variables.push(("HOME", &home_folder));
        for (text, path) in [(kubeconfig, &config), (home, &at_home)] {
            let _ = std::fs::remove_file(path);
            if let Some(text) = text {
                std::fs::write(path, text).unwrap();
            }
        }
        if kubeconfig.is_some() {
            variables.push(("KUBECONFIG", &config));
        }
        match has_account {
            true => std::fs::write(path("token"), "abc").unwrap(),
            false => std::fs::remove_file(path("token")).unwrap(),
        }
        resolve(folder, &variables, context)
    }

    #[test]
    fn a_kubeconfig_that_is_named_comes_before_the_pods_account() {
        let folder = account();
        std::fs::create_dir(folder.path().join(".kube")).unwrap();
        let whole = |server: &str, more: &str| {
            format!(
                "{{current-context: c, contexts: [{{name: c, context: {{cluster: k, user: u{more}}}}}], \
                 clusters: [{{name: k, cluster: {{server: '{server}', insecure-skip-tls-verify: true}}}}], \
                 users: [{{name: u, user: {{token: other}}}}]}}"
            )
        };
        let only_namespace = "{clusters: null, users: null, current-context: dask, \
            contexts: [{name: dask, context: {cluster: '', user: '', namespace: my-ns}}]}";
        let other = whole("https://other.example.com", "");
        let named = whole("https://other.example.com", ", namespace: theirs");
        let ours = whole("https://10.96.0.1:443", ", namespace: theirs");
        let dangling = named.replace("name: k", "name: l");
        let (there, here) = ("https://other.example.com", "https://10.96.0.1");
        let cases: [Case<'_>; 20] = [
            (None, None, None, true, Ok((here, "analytics"))),
            (None, None, None, false, Err("mount a service account token")),
            (Some(&named), None, None, true, Ok((there, "theirs"))),
            (Some(&named), None, None, false, Ok((there, "theirs"))),
            // As with kubectl.
            (Some(&other), None, None, true, Ok((there, "analytics"))),
            (Some(&other), None, None, false, Ok((there, "default"))),
            (Some(&ours), None, None, true, Ok((here, "theirs"))),
            (None, Some(&named), None, true, Ok((here, "analytics"))),
            (None, Some(&named), None, false, Ok((there, "theirs"))),
            (None, Some(&named), Some("c"), true, Ok((there, "theirs"))),
            (None, Some("not: [a kubeconfig"), None, true, Ok((here, "analytics"))),
            (None, Some(only_namespace), None, true, Ok((here, "my-ns"))),
            (None, Some(only_namespace), Some("dask"), true, Ok((here, "my-ns"))),
            (None, Some(only_namespace), Some("none"), true, Err("there is no context \"none\"")),
            (Some(only_namespace), Some(&named), None, true, Ok((here, "my-ns"))),
            (Some(only_namespace), None, Some("dask"), true, Ok((here, "my-ns"))),
            (Some(only_namespace), None, None, false, Err("mount a service account token")),
            (Some(""), None, None, true, Ok((here, "analytics"))),
            (Some("{contexts: ["), None, None, true, Err("config:1:")),
            (Some(&dangling), None, None, true, Err("there is no cluster \"k\"")),
        ];
        for case in cases {
            std::fs::write(folder.path().join("token"), "abc").unwrap();
            let found = resolve_case(&folder, &case);
            let (kubeconfig, home, context, has_account, want) = case;
            let row = format!("{kubeconfig:?} {home:?} {context:?} {has_account}");
            match (found, want) {
                (Ok(cluster), Ok((server, namespace))) => {
                    let got = (cluster.server.to_string(), cluster.namespace.as_str());
                    assert_eq!(got, (server.to_owned(), namespace), "{row}");
                    let is_account = cluster.to_string().contains("the pod's service account");
                    assert_eq!(is_account, server == here && kubeconfig != Some(&ours), "{row}");
                    // Its address does not tell whether another server is the pod's own.
                    let is_used = cluster.home.map(|home| home.is_used);
                    assert_eq!(is_used, has_account.then_some(is_account), "{row}");
                }
                (Err(error), Err(part)) => assert!(error.contains(part), "{row}: {error}"),
                (found, want) => panic!("{row}: {found:?} instead of {want:?}"),
            }
        }
    }

    /// As with client-go: an image may name a kubeconfig that is there elsewhere alone.
    #[test]
    fn a_kubeconfig_that_is_nowhere_leaves_the_pods_account() {
        for (list, want) in
            [(None, Level::Debug), (Some(""), Level::Debug), (Some("/x"), Level::Warn)]
        {
            let env = |name: &str| list.filter(|_| name == "KUBECONFIG").map(str::to_owned);
            assert_eq!(sources(None, &env).unused_level(), want, "{list:?}");
        }
        let folder = account();
        let config = folder.write("config", "{contexts: [");
        let nowhere = "/nonexistent/config";
        let with_list = |list: &str, context| {
            resolve(&folder, &[&VARIABLES[..], &[("KUBECONFIG", list)]].concat(), context)
        };
        for list in [nowhere, "/nonexistent/config:/nonexistent/other", ":"] {
            let cluster = with_list(list, None).unwrap();
            assert_eq!(cluster.namespace, "analytics", "{list}");
            assert!(cluster.to_string().contains("the pod's service account"), "{list}");
        }
        let broken = with_list(&format!("{nowhere}:{}", config.display()), None);
        assert!(broken.is_err_and(|error| error.contains("config:1:")));
        let of_context = with_list(nowhere, Some("c")).expect_err("it is in no file");
        assert!(of_context.contains("which does not exist"), "{of_context}");
        std::fs::remove_file(folder.path().join("token")).unwrap();
        let error = with_list(nowhere, None).expect_err("no account");
        assert!(error.contains("$KUBECONFIG names this file, which does not exist"), "{error}");
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
        assert_eq!(resolve(&folder, &VARIABLES, None).unwrap().home.unwrap().pod, Some(pod));
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
        assert!(error.starts_with("service account ca.crt: missing, SSL_CERT_FILE"), "{error}");
        // A volume with the token alone, before a server with a public certificate.
        let public = folder.write("public.crt", Authority::new().pem).display().to_string();
        let with_public = [&VARIABLES[..], &[("SSL_CERT_FILE", public.as_str())]].concat();
        let cluster = resolve(&folder, &with_public, None).unwrap();
        assert!(Http::connect(cluster).is_ok());
        folder.write("token", " \n");
        let error = resolve(&folder, &VARIABLES, None).expect_err("an empty token");
        assert!(error.starts_with("service account token: token: empty; "), "{error}");
        std::fs::remove_file(folder.path().join("token")).unwrap();
        let error = resolve(&folder, &VARIABLES, None).expect_err("no token");
        assert!(error.contains("No such file") && error.contains("--kubeconfig"), "{error}");
    }
}
