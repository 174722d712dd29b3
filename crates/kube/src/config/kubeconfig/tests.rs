//! The error for every kind of invalid kubeconfig, merging of files, and a seeded fuzz test.

use std::ffi::OsString;
use std::path::Path;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

use crate::config::{AuthSource, BlobSource, Cluster, ConfigError, Sources, Trust};
use crate::http::Http;
use crate::testing::{no_env, sources};
use posse_base::rng::Rng;
use posse_testing::{Authority, Folder};

/// All fields that the tools of several clouds write.
const FULL: &str = include_str!("../../../../../fixtures/kubeconfig/full.yaml");
/// The format that kind and kubeadm write.
const JSON: &str = include_str!("../../../../../fixtures/kubeconfig/config.json");

const HEAD: &str = "current-context: c\ncontexts: [{name: c, context: {cluster: k, user: u}}]\n";

fn resolve(text: &str) -> Result<Cluster, ConfigError> {
    let folder = Folder::new();
    let path = folder.write("config", text);
    sources(Some(&path), &no_env).resolve().map_err(|e| strip(e, &folder))
}

/// Removes the name of the temporary folder.
fn strip(error: ConfigError, folder: &Folder) -> ConfigError {
    let text = error.to_string().replace(&format!("{}/", folder.path().display()), "");
    ConfigError::field("", text)
}

#[track_caller]
fn check(text: &str, want: &str) {
    let error = resolve(text).expect_err("an error").to_string();
    assert_eq!(error, format!(": kubeconfig {want}"));
}

/// An error in the user entry.
#[track_caller]
fn check_user(user: &str, want: &str) {
    let text = format!(
        "{HEAD}clusters: [{{name: k, cluster: {{server: \"https://a\", insecure-skip-tls-verify: true}}}}]\n\
         users: [{{name: other}}, {{name: u, user: {user}}}]\n"
    );
    check(&text, &format!("config: users[1].user.{want}"));
}

/// An error in the cluster entry.
#[track_caller]
fn check_cluster(cluster: &str, want: &str) {
    let text = format!("{HEAD}users: [{{name: u}}]\nclusters: [{{name: k, cluster: {cluster}}}]\n");
    check(&text, &format!("config: clusters[0].cluster.{want}"));
}

#[test]
fn a_token_that_nobody_renews_says_when_it_expires() {
    for (token, want) in [
        ("tok", "identity: a token (from"),
        (
            "e30.eyJleHAiOjg5MzQ0NDg1NTAuNX0.e30",
            "identity: a token, which expires at 2253-02-13T23:15:50Z and is not renewed (from",
        ),
    ] {
        let text = format!(
            "{HEAD}clusters: [{{name: k, cluster: {{server: \"https://a\", insecure-skip-tls-verify: true}}}}]\n\
             users: [{{name: u, user: {{token: {token}}}}}]\n"
        );
        let cluster = resolve(&text).unwrap().to_string();
        assert!(cluster.contains(want), "{cluster}");
    }
}

#[test]
fn errors_in_a_user_entry_name_the_field() {
    check_user("{client-certificate-data: '!'}", "client-certificate-data: not base64");
    check_user("{client-key-data: '!'}", "client-key-data: not base64");
    check_user("{client-key: a.pem}", "client-certificate: missing, but there is a client key");
    check_user(
        "{client-certificate: a.pem}",
        "client-key: missing, but there is a client certificate",
    );
    check_user(
        "{token: abc, username: me}",
        "username: together with a token: remove one of the two",
    );
    check_user(
        "{tokenFile: t, password: p}",
        "username: together with a token: remove one of the two",
    );
    check_user("{tokenFile: none}", "tokenFile: none: No such file or directory (os error 2)");
    check_user(
        "{token: \"a\\nb\"}",
        "token: contains a character that is not allowed in an HTTP header",
    );
    check_user(
        "{auth-provider: {name: gcp}}",
        "auth-provider.name: Kubernetes clients no longer support \"gcp\": use an exec plugin",
    );
    check_user(
        "{auth-provider: {name: oidc, config: {id-token: e30.eyJleHAiOjF9.e30}}}",
        "auth-provider.config.id-token: there is none, or it has expired: run kubectl once, which \
         renews it, or use an exec plugin",
    );
    check_user(
        "{auth-provider: {name: oidc, config: {id-token: \"e30.eyJleHAiOjg5MzQ0NDg1NTAwMH0.e30\\n\"}}}",
        "auth-provider.config.id-token: contains a character that is not allowed in an HTTP header",
    );
    check_user("{as-groups: [g]}", "as: missing, but other as-* fields are set");
    check_user(
        "{exec: {apiVersion: client.authentication.k8s.io/v1alpha1, command: x}}",
        "exec.apiVersion: must be one of client.authentication.k8s.io/v1, \
         client.authentication.k8s.io/v1beta1",
    );
    let v1 = "apiVersion: client.authentication.k8s.io/v1";
    check_user(
        &format!("{{exec: {{{v1}, command: x}}}}"),
        "exec.interactiveMode: must be Never or IfAvailable",
    );
    check_user(
        &format!("{{exec: {{{v1}, command: x, interactiveMode: Always}}}}"),
        "exec.interactiveMode: Always: the plugin needs a terminal, but posse does not provide one",
    );
    check_user(
        &format!("{{exec: {{{v1}, interactiveMode: Never}}}}"),
        "exec.command: missing: set it to the program to run",
    );
    check_user(
        &format!("{{exec: {{{v1}, interactiveMode: Never, command: x, env: [{{name: A=B}}]}}}}"),
        "exec.env[0]: not a valid environment variable",
    );
}

#[test]
fn errors_in_a_cluster_entry_name_the_field() {
    check_cluster("{}", "server: missing: set it to https://HOST:PORT");
    check_cluster(
        "{server: kube.example.com}",
        "server: \"http://kube.example.com\": plain http is allowed for loopback only, use https://",
    );
    check_cluster(
        "{server: 'http://kube.example.com'}",
        "server: \"http://kube.example.com\": plain http is allowed for loopback only, use https://",
    );
    check_cluster("{server: 'ftp://a'}", "server: \"ftp://a\" is neither https:// nor http://");
    check_cluster("{server: 'https://a?b'}", "server: \"https://a?***\" has a query");
    check_cluster("{server: 'https://a:x'}", "server: the port is not a number from 1 to 65535");
    check_cluster("{server: 'https://a:0'}", "server: the port is not a number from 1 to 65535");
    check_cluster(
        "{server: 'https://a:99999'}",
        "server: the port is not a number from 1 to 65535",
    );
    check_cluster(
        "{server: 'https://me:secret@a'}",
        "server: contains a user name: put it into the user's entry",
    );
    let https = "server: 'https://a'";
    check_cluster(
        &format!("{{{https}, certificate-authority-data: '?'}}"),
        "certificate-authority-data: not base64",
    );
    check_cluster(
        &format!("{{{https}, certificate-authority: ca, insecure-skip-tls-verify: true}}"),
        "insecure-skip-tls-verify: true together with a certificate authority: remove one of the two",
    );
    check_cluster(
        &format!("{{{https}, insecure-skip-tls-verify: true, tls-server-name: 'a b'}}"),
        "tls-server-name: neither a DNS name nor an IP address",
    );
    check_cluster(
        &format!("{{{https}, proxy-url: 'ftp://me:secret@p'}}"),
        "proxy-url: not a proxy URL: it starts with none of http://, https://, socks5://, \
         socks5h://",
    );
    check_cluster(
        &format!("{{{https}}}"),
        "certificate-authority: missing, SSL_CERT_FILE is not set and none of  exists: there is no \
         certificate authority to verify the server with",
    );
}

#[test]
fn unresolved_references_are_reported() {
    check(
        "",
        "config: current-context: not set, and there is no --context; the contexts are: none",
    );
    check(
        "kind: Config\n",
        "config: current-context: not set, and there is no --context; the contexts are: none",
    );
    check(
        "contexts: [{name: a}, {name: b}]",
        "config: current-context: not set, and there is no --context; the contexts are: \"a\", \"b\"",
    );
    check(
        "current-context: x\ncontexts: [{name: a}]",
        "config: current-context: there is no context \"x\"; the contexts are: \"a\"",
    );
    check(
        "current-context: a\ncontexts: [{name: a}]",
        "config: contexts[0].context.cluster: missing: a context needs a cluster",
    );
    check(HEAD, "config: contexts[0].context.cluster: there is no cluster \"k\"");
    check(
        &format!("{HEAD}clusters: [{{name: k}}]"),
        "config: contexts[0].context.user: there is no user \"u\"",
    );
}

#[test]
fn syntax_errors_name_line_and_column_without_values() {
    // Only what the chosen context needs is checked.
    let used = format!("{HEAD}clusters: [{{name: k, cluster: {{server: 'http://[::1]'}}}}]\n");
    check(
        &format!("{used}users:\n- name: u\n  user: s3cr3t\n"),
        "config:6:9: users[0].user: expected a map",
    );
    for text in [
        "users:\n- name: u\n  user: {token: [s3cr3t]}\n",
        "users:\n- name: u\n  user: {exec: s3cr3t}\n",
        "users:\n- name: u\n  user: {exec: {provideClusterInfo: s3cr3t}}\n",
        "users:\n- name: u\n  user: {token: \"s3cr3t}\n",
        "users:\n- name: u\n  user: {as-groups: s3cr3t}\n",
        "users:\n- name: u\n  user: {token: !!binary s3cr3t}\n",
        "users:\n- name: u\n  user: {token: *s3cr3t}\n",
        "users: s3cr3t",
        "s3cr3t",
        "\u{1}s3cr3t",
        "{\"current-context\": {\"a\": \"s3cr3t\"}}",
    ] {
        let text = match text.starts_with("users:\n- name") {
            true => format!("{used}{text}"),
            false => text.to_owned(),
        };
        let error = resolve(&text).expect_err(&text).to_string();
        assert!(!error.contains("s3cr3t"), "{error}");
        let rest = error.strip_prefix(": kubeconfig config:").expect("the file's name");
        let mut parts = rest.split(':');
        let at: Vec<u64> = parts.by_ref().take(2).map(|n| n.parse().expect("a number")).collect();
        assert!(at[0] > 0 && at[1] > 0, "{error}");
        assert!(parts.next().is_some_and(|what| what.len() > 5), "{error}");
    }
}

/// client-go takes the scheme from whether TLS is configured.
#[test]
fn a_server_without_a_scheme_has_the_one_of_its_trust() {
    for (cluster, want) in [
        (
            "server: 'k.example.com:6443', insecure-skip-tls-verify: true",
            "https://k.example.com:6443",
        ),
        ("server: '127.0.0.1:8001'", "http://127.0.0.1:8001"),
    ] {
        let text = format!(
            "{HEAD}users: [{{name: u}}]\nclusters: [{{name: k, cluster: {{{cluster}}}}}]\n"
        );
        assert_eq!(resolve(&text).unwrap().server.origin(), want);
    }
}

#[test]
fn all_fields_are_read() {
    let folder = Folder::new();
    let path = folder.write("config", FULL);
    folder.write("token", "from-the-file\n");
    let cluster_of = |context| {
        Sources { context: Some(context), ..sources(Some(&path), &no_env) }.resolve().unwrap()
    };

    let rancher = cluster_of("rancher");
    assert_eq!(rancher.server.to_string(), "https://rancher.example.com/k8s/clusters/c-abc");
    assert_eq!((rancher.server.port, rancher.server.prefix.as_str()), (443, "/k8s/clusters/c-abc"));
    assert_eq!(rancher.namespace, "analytics");
    assert_eq!(rancher.tls_server_name.as_deref(), Some("kube.internal"));
    assert_eq!(rancher.proxy.as_ref().map(|proxy| proxy.host()), Some("10.0.0.1"));
    let Trust::Roots(roots) = &rancher.trust else { panic!("{rancher:?}") };
    assert!(
        matches!(&roots.source, BlobSource::File(file) if *file == folder.path().join("pki/ca.crt"))
    );
    assert!(
        matches!(&rancher.identity.authorization, AuthSource::Token(token) if token.reveal() == "t0ken")
    );
    let headers: Vec<_> = rancher
        .identity
        .impersonate
        .iter()
        .map(|(name, value)| (name.as_str(), value.to_str().unwrap()))
        .collect();
    assert_eq!(
        headers,
        [
            ("impersonate-user", "jane"),
            ("impersonate-uid", "42"),
            ("impersonate-group", "dev"),
            ("impersonate-group", "ops"),
            ("impersonate-extra-scopes%2fview", "a"),
            ("impersonate-extra-scopes%2fview", "b"),
        ]
    );

    let six = cluster_of("six");
    assert_eq!((six.server.host.as_str(), six.server.port), ("fd00::1", 6443));
    assert_eq!(six.server.to_string(), "https://[fd00::1]:6443");
    assert_eq!(six.namespace, "default");
    assert!(matches!(
        &six.identity.authorization,
        AuthSource::TokenFile { first, .. } if first.reveal() == "from-the-file"
    ));

    let cloud = cluster_of("cloud");
    let AuthSource::Exec(plugin) = &cloud.identity.authorization else { panic!("{cloud:?}") };
    assert_eq!(plugin.command, folder.path().join("bin/get-token"));
    assert_eq!(plugin.args, ["--cluster", "x"]);
    assert_eq!(plugin.env, [("REGION".to_owned(), OsString::from("eu"))]);
    assert_eq!(
        plugin.cluster.as_ref().unwrap().to_string(),
        "{\"config\":{\"audience\":\"a\"},\"insecure-skip-tls-verify\":true,\
         \"server\":\"https://10.0.0.7:6443\"}"
    );

    let local = cluster_of("local");
    assert!(!local.server.tls);
    // Without TLS the user's credentials are not used.
    assert!(matches!(local.identity.authorization, AuthSource::Absent));
}

#[test]
fn secrets_are_not_printed() {
    let text = format!(
        "{HEAD}clusters: [{{name: k, cluster: {{server: 'https://a', \
         insecure-skip-tls-verify: true, proxy-url: 'http://me:s3cr3t@p'}}}}]\n\
         users: [{{name: u, user: {{username: u, password: s3cr3t, as: s3cr3t, \
         client-certificate-data: {secret}, client-key-data: {secret}, \
         exec: {{apiVersion: client.authentication.k8s.io/v1beta1, command: c, args: [s3cr3t], \
         env: [{{name: A, value: s3cr3t}}]}}}}}}]",
        secret = BASE64_STANDARD.encode("s3cr3t")
    );
    for text in [text.clone(), text.replace("username: u, password: s3cr3t, ", "")] {
        let cluster = resolve(&text).unwrap();
        assert!(!format!("{cluster:?}").contains("s3cr3t"), "{cluster:?}");
        let error = Http::connect(cluster).expect_err("no certificate").to_string();
        assert!(error.contains("client-certificate-data"), "{error}");
        assert!(!error.contains("s3cr3t"), "{error}");
    }
}

#[test]
fn unusable_certificates_are_refused_by_connect() {
    let (authority, folder) = (Authority::new(), Folder::new());
    let (chain, key) = authority.issue(&["me"]);
    let (_, other_key) = authority.issue(&["you"]);
    folder.write("ca", &authority.pem);
    folder.write("chain", &chain);
    folder.write("key", &key);
    folder.write("other-key", other_key);
    folder.write("empty", "");
    folder.write("junk-ca", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    folder.write("junk", "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n");
    let connect = |ca: &str, chain: &str, key: &str| {
        let text = format!(
            "{HEAD}clusters: [{{name: k, cluster: {{server: 'https://a', \
             certificate-authority: {ca}}}}}]\n\
             users: [{{name: u, user: {{client-certificate: {chain}, client-key: {key}}}}}]\n"
        );
        let path = folder.write("config", text);
        let cluster = sources(Some(&path), &no_env).resolve().unwrap();
        Http::connect(cluster).map_err(|e| strip(e, &folder).to_string())
    };
    assert!(connect("ca", "chain", "key").is_ok());
    for (ca, chain, key, want) in [
        ("none", "chain", "key", "clusters[0].cluster.certificate-authority: none: No such file"),
        ("empty", "chain", "key", "clusters[0].cluster.certificate-authority (empty): no PEM"),
        ("junk", "chain", "key", "clusters[0].cluster.certificate-authority (junk): not valid"),
        ("junk-ca", "chain", "key", "certificate-authority (junk-ca): none of its 1 certificates"),
        ("ca", "empty", "key", "users[0].user.client-certificate (empty): no PEM certificate"),
        ("ca", "chain", "empty", "users[0].user.client-key (empty): no PEM private key"),
        ("ca", "chain", "chain", "users[0].user.client-key (chain): no PEM private key"),
        ("ca", "chain", "other-key", "users[0].user.client-key (other-key): keys may not be"),
    ] {
        let error = connect(ca, chain, key).expect_err(want);
        assert!(error.contains(want) && error.contains("config: "), "{error}\nwanted {want}");
    }
}

#[test]
fn missing_files_are_named() {
    let error = sources(None, &no_env).resolve().expect_err("nothing").to_string();
    assert_eq!(
        error,
        "no Kubernetes configuration found; searched $KUBECONFIG, KUBERNETES_SERVICE_HOST \
         (not a pod); set --kubeconfig"
    );
    let none = Path::new("/nonexistent/config");
    let error = sources(Some(none), &no_env).resolve().expect_err("nothing").to_string();
    assert_eq!(error, "kubeconfig /nonexistent/config: No such file or directory (os error 2)");
}

#[test]
fn public_authorities_are_the_default() {
    let folder = Folder::new();
    let text = format!(
        "{HEAD}users: [{{name: u}}]\nclusters: [{{name: k, cluster: {{server: 'https://a'}}}}]"
    );
    let path = folder.write("config", text);
    let bundle = folder.write("bundle", Authority::new().pem);
    let bundle_text = bundle.to_str().unwrap();
    let root_of = |sources: &Sources<'_>| match sources.resolve().unwrap().trust {
        Trust::Roots(blob) => blob.location(),
        Trust::Anything => "anything".to_owned(),
    };
    let bundles = ["/nonexistent", bundle_text];
    let plain = Sources { ca_bundles: &bundles, ..sources(Some(&path), &no_env) };
    assert_eq!(root_of(&plain), format!("{bundle_text} ({bundle_text})"));
    let env = |name: &str| (name == "SSL_CERT_FILE").then(|| "/some/file".to_owned());
    let with_variable = Sources { env: &env, ..plain };
    assert_eq!(root_of(&with_variable), "SSL_CERT_FILE (/some/file)");
    let error = Http::connect(with_variable.resolve().unwrap()).expect_err("no file");
    assert_eq!(
        error.to_string(),
        "SSL_CERT_FILE: /some/file: No such file or directory (os error 2)"
    );
}

/// A mutated kubeconfig never causes a panic or an endless loop.
#[test]
fn fuzz() {
    let folder = Folder::new();
    let path = folder.path().join("config");
    for seed in 0..1000_u64 {
        let mut rng = Rng::new(seed);
        let text = if rng.chance(80) { FULL } else { JSON };
        let mut bytes = text.as_bytes().to_vec();
        for _ in 0..=rng.below(6) {
            mutate(&mut bytes, &mut rng);
        }
        std::fs::write(&path, &bytes).unwrap();
        let context = ["rancher", "six", "cloud", "local"][usize::try_from(rng.below(4)).unwrap()];
        // Success and failure are both fine.
        let ended = std::panic::catch_unwind(|| {
            let asked = Sources { context: Some(context), ..sources(Some(&path), &no_env) };
            if let Ok(cluster) = asked.resolve() {
                let _ = Http::connect(cluster);
            }
        });
        assert!(ended.is_ok(), "seed {seed} panicked");
    }
}

fn mutate(bytes: &mut Vec<u8>, rng: &mut Rng) {
    let mut at = |n: usize| usize::try_from(rng.below(n as u64)).unwrap();
    let (from, to) = (at(bytes.len().max(1)), at(bytes.len().max(1)));
    let (from, to) = (from.min(to), from.max(to));
    let odd = b"{}[]:,-&*!|>'\"#%@`\t\n\r\0\xff~?=<";
    match at(6) {
        0 if !bytes.is_empty() => bytes[from] = odd[at(odd.len())],
        1 => drop(bytes.drain(from..to.min(from + 40))),
        2 => {
            let piece = bytes[from..to.min(from + 200)].to_vec();
            bytes.splice(to..to, piece);
        }
        3 => bytes.truncate(to),
        4 => drop(bytes.splice(from..from, b"[{".repeat(at(3000)))),
        _ => bytes.insert(from, odd[at(odd.len())]),
    }
}
