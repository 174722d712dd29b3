//! Server and client certificates, tokens and plugins, and their rotation.

use super::*;

#[test]
fn only_a_server_with_a_trusted_certificate_is_accepted() {
    for versions in [&BOTH[..], &[&TLS12], &[&TLS13]] {
        let (folder, authority) = (Folder::new(), Authority::new());
        folder.write("ca", &authority.pem);
        let tls = authority.server(&["127.0.0.1"], versions, None);
        let server = TestServer::start(Some(tls), |_| ok("{}"));
        let right = cluster(&server, &folder);
        assert_eq!(get(&Http::connect(right.clone()).unwrap()).unwrap().status, 200);

        let other = folder.write("other", Authority::new().pem);
        let wrong = Cluster { trust: Trust::Roots(file("ca-field", other)), ..right.clone() };
        let outcome = http_post(&Http::connect(wrong.clone()).unwrap());
        assert_untrusted(outcome.clone(), "UnknownIssuer");
        assert_untrusted(outcome, "(trusted authorities: ca-field (");
        let careless = Cluster { trust: Trust::Anything, ..wrong };
        assert_eq!(get(&Http::connect(careless).unwrap()).unwrap().status, 200);

        server.set_tls(authority.server(&["10.1.1.1", "other.example.com"], versions, None));
        assert_untrusted(http_post(&Http::connect(right).unwrap()), "not valid for name");
    }
}

/// The remedy of a failed handshake.
#[track_caller]
fn remedy(outcome: Result<Response, TransportError>) -> &'static str {
    match outcome {
        Err(TransportError::Tls { remedy, .. }) => remedy,
        outcome => panic!("{outcome:?}"),
    }
}

/// A kubeconfig may have the server's own certificate in place of its authority.
#[test]
fn a_certificate_of_the_kubeconfig_itself_is_trusted() {
    for versions in [&BOTH[..], &[&TLS12], &[&TLS13]] {
        let (folder, authority) = (Folder::new(), Authority::new());
        let start = |pair: &(String, String)| {
            TestServer::start(Some(server_with(pair, versions, false)), |_| ok("{}"))
        };
        let leaf = authority.issue(&["127.0.0.1"]);
        let own = Authority::own(&["127.0.0.1"]);
        for pair in [&leaf, &own] {
            let server = start(pair);
            folder.write("ca", &pair.0);
            let right = cluster(&server, &folder);
            assert_eq!(get(&Http::connect(right.clone()).unwrap()).unwrap().status, 200);
            // Among others.
            folder.write("ca", format!("{}{}", Authority::new().pem, pair.0));
            assert_eq!(get(&Http::connect(right.clone()).unwrap()).unwrap().status, 200);
            folder.write("ca", authority.issue(&["127.0.0.1"]).0);
            let said = remedy(get(&Http::connect(right).unwrap()));
            assert!(said.contains("this certificate itself") || said.contains("exactly this one"));
        }
        for (pair, text, part) in [
            (authority.issue(&["10.1.1.1"]), "not valid for name", "tls-server-name"),
            (Authority::own(&["10.1.1.1"]), "not valid for name", "tls-server-name"),
            (authority.issue_expired(&["127.0.0.1"]), "expired", "renew the server's certificate"),
        ] {
            let server = start(&pair);
            folder.write("ca", &pair.0);
            let outcome = get(&Http::connect(cluster(&server, &folder)).unwrap());
            assert!(remedy(outcome.clone()).contains(part), "{outcome:?}");
            assert_untrusted(outcome, text);
        }
    }
}

/// As with kubectl: "any purpose" stands for each, also for that of a server.
#[test]
fn a_server_needs_a_certificate_for_its_purpose() {
    use posse_testing::ExtendedKeyUsagePurpose::{Any, ClientAuth, ServerAuth};
    let (folder, authority) = (Folder::new(), Authority::new());
    let here = "127.0.0.1";
    for (purposes, name, ca, want) in [
        (&[ServerAuth][..], here, &authority.pem, None),
        (&[Any], here, &authority.pem, None),
        (&[ClientAuth, Any], here, &authority.pem, None),
        (&[ClientAuth], here, &authority.pem, Some("extended key usage")),
        (&[Any], "10.1.1.1", &authority.pem, Some("not valid for name")),
        (&[Any], here, &Authority::new().pem, Some("UnknownIssuer")),
    ] {
        let pair = authority.issue_for(&[name], purposes);
        let server = TestServer::start(Some(server_with(&pair, &BOTH, false)), |_| ok("{}"));
        folder.write("ca", ca);
        let outcome = get(&Http::connect(cluster(&server, &folder)).unwrap());
        match want {
            None => assert_eq!(outcome.unwrap().status, 200, "{purposes:?}"),
            Some(text) => assert_untrusted(outcome, text),
        }
    }
}

/// The server judges a client certificate, and not we: MicroK8s and plain openssl make X.509 v1.
#[test]
fn a_version_1_client_certificate_is_sent() {
    for versions in [&BOTH[..], &[&TLS12], &[&TLS13]] {
        let (folder, authority) = (Folder::new(), Authority::new());
        folder.write("ca", &authority.pem);
        let tls = server_with(&authority.issue(&["127.0.0.1"]), versions, true);
        let server = TestServer::start(Some(tls), |_| ok("{}"));
        let mut with = with_certificate(&server, &folder, &authority);
        let (chain, key) = authority.issue(&["me"]);
        folder.write("chain", as_version_1(&chain));
        // As `openssl ecparam -genkey` writes it.
        let parameters =
            "-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n";
        folder.write("key", format!("{parameters}{key}"));
        assert_eq!(get(&Http::connect(with.clone()).unwrap()).unwrap().status, 200);
        folder.write("key", authority.issue(&["you"]).1);
        let error = Http::connect(with.clone()).unwrap_err().to_string();
        assert!(error.contains("UnsupportedCertVersion"), "{error}");
        // SEC1, with the curve's name.
        let p521 = "MAkCAQCgBwYFK4EEACM=";
        let p521 =
            format!("-----BEGIN EC PRIVATE KEY-----\n{p521}\n-----END EC PRIVATE KEY-----\n");
        with.identity.client_cert.as_mut().unwrap().key =
            file("client-key", folder.write("p521", p521));
        let error = Http::connect(with).unwrap_err().to_string();
        assert!(error.contains("a P-521 key, which posse cannot use: take a"), "{error}");
    }
}

#[test]
fn tls_server_name_replaces_the_host_in_the_certificate_check() {
    let folder = Folder::new();
    let server = secure(&folder, &["kube.internal"], |_| ok("{}"));
    let plain_name = cluster(&server, &folder);
    assert_untrusted(get(&Http::connect(plain_name.clone()).unwrap()), "not valid for name");
    let named = Cluster { tls_server_name: Some("kube.internal".to_owned()), ..plain_name };
    assert_eq!(get(&Http::connect(named).unwrap()).unwrap().status, 200);
    assert_eq!(server.wait().header("host"), Some(server.address.to_string().as_str()));
}

#[test]
fn a_rotated_authority_is_used_at_once() {
    let folder = Folder::new();
    let server = secure(&folder, &["127.0.0.1"], |_| {
        Answer::Reply(200, "Connection: close\r\n", Vec::new())
    });
    let http = Http::connect(cluster(&server, &folder)).unwrap();
    assert_eq!(http_post(&http).unwrap().status, 200);

    let next = Authority::new();
    server.set_tls(next.server(&["127.0.0.1"], &BOTH, None));
    assert_untrusted(http_post(&http), "UnknownIssuer");
    folder.write("ca", "half a fi");
    assert_untrusted(http_post(&http), "UnknownIssuer");
    folder.write("ca", &next.pem);
    assert_eq!(http_post(&http).unwrap().status, 200);
    let mut stream =
        http.open_stream("/logs", STREAM_HEAD_TIMEOUT, Duration::from_secs(20)).unwrap();
    let mut text = String::new();
    stream.reader().read_to_string(&mut text).unwrap();
}

/// A cluster whose user has the certificate in the folder's `chain` and `key`.
fn with_certificate(server: &TestServer, folder: &Folder, authority: &Authority) -> Cluster {
    let (chain, key) = authority.issue(&["me"]);
    let mut cluster = cluster(server, folder);
    cluster.identity.client_cert = Some(ClientCert {
        chain: file("client-certificate", folder.write("chain", chain)),
        key: file("client-key", folder.write("key", key)),
    });
    cluster
}

#[test]
fn a_rotated_client_certificate_is_used() {
    for versions in [&BOTH[..], &[&TLS12], &[&TLS13]] {
        let (folder, authority, clients) = (Folder::new(), Authority::new(), Authority::new());
        folder.write("ca", &authority.pem);
        let tls = |clients| authority.server(&["127.0.0.1"], versions, Some(clients));
        let server = TestServer::start(Some(tls(&clients)), |_| {
            Answer::Reply(200, "Connection: close\r\n", Vec::new())
        });
        let http = Http::connect(with_certificate(&server, &folder, &clients)).unwrap();
        assert_eq!(http_post(&http).unwrap().status, 200);
        let nobody = Http::connect(cluster(&server, &folder)).unwrap();
        assert_untrusted(http_post(&nobody), "received fatal alert");

        let next = Authority::new();
        server.set_tls(tls(&next));
        assert_untrusted(http_post(&http), "received fatal alert");
        let (chain, key) = next.issue(&["me"]);
        folder.write("chain", chain);
        folder.write("key", key);
        assert_eq!(http_post(&http).unwrap().status, 200);
    }
}

/// kube-apiserver accepts any client certificate in the TLS handshake and answers 401 if it does not
/// trust it.
#[test]
fn after_a_401_the_client_certificate_is_read_again() {
    let (folder, clients) = (Folder::new(), Authority::new());
    let server = secure(&folder, &["127.0.0.1"], |seen| {
        Answer::Reply(if seen.connection == 0 { 401 } else { 200 }, "", Vec::new())
    });
    let http = Http::connect(with_certificate(&server, &folder, &clients)).unwrap();
    assert_eq!(get(&http).unwrap().status, 401);
    assert_eq!(server.seen().len(), 1, "nothing has changed, so there is no retry");
    let (chain, key) = clients.issue(&["me"]);
    folder.write("chain", chain);
    folder.write("key", key);
    assert_eq!(get(&http).unwrap().status, 200);
}

#[test]
fn after_a_401_the_token_file_is_read_again_and_the_request_repeated() {
    let folder = Folder::new();
    let server = secure(&folder, &["127.0.0.1"], |seen| match seen.header("authorization") {
        Some("Bearer new") => ok("{}"),
        _ => Answer::Reply(401, "", b"Unauthorized".to_vec()),
    });
    let mut cluster = cluster(&server, &folder);
    let path = folder.write("token", "old");
    cluster.identity.authorization = AuthSource::TokenFile { path, first: Secret::new("old") };
    let http = Http::connect(cluster).unwrap();
    assert_eq!(http_post(&http).unwrap().status, 401);
    assert_eq!(server.seen().len(), 1, "there is no retry with the same token");

    folder.write("token", "new\n");
    assert_eq!(http_post(&http).unwrap().status, 200);
    let headers: Vec<_> = server
        .seen()
        .iter()
        .map(|seen| seen.header("authorization").unwrap_or_default().to_owned())
        .collect();
    assert_eq!(headers, ["Bearer old", "Bearer new"]);
    assert_eq!(server.n_connections(), 1);

    // The same for a stream.
    folder.write("token", "old");
    let (own, _streams) = http.with_own_streams();
    assert_eq!(
        own.open_stream("/watch", STREAM_HEAD_TIMEOUT, Duration::from_secs(20)).unwrap().status,
        200
    );
}

#[test]
fn after_a_401_the_plugin_runs_once_more() {
    let folder = Folder::new();
    let server = secure(&folder, &["127.0.0.1"], |seen| match seen.header("authorization") {
        Some("Bearer t2") => ok("{}"),
        _ => Answer::Reply(401, "", Vec::new()),
    });
    let mut cluster = cluster(&server, &folder);
    let plugin = counting_plugin(&folder, "", None);
    cluster.identity.authorization = AuthSource::Exec(Box::new(plugin.clone()));
    let http = Http::connect(cluster.clone()).unwrap();
    assert!(!folder.path().join("runs").exists(), "the plugin runs only when it is needed");
    assert_eq!(get(&http).unwrap().status, 200);
    assert_eq!(server.seen().len(), 2);

    std::fs::write(folder.path().join("runs"), "\n".repeat(8)).unwrap();
    let outcome = get(&Http::connect(cluster).unwrap());
    let Err(TransportError::Credentials(problem)) = outcome else { panic!("{outcome:?}") };
    assert!(problem.contains("exit code 1"), "{problem}");
    assert_eq!(server.seen().len(), 0);
}

#[test]
fn the_run_of_a_plugin_does_not_count_against_the_timeout() {
    let folder = Folder::new();
    let server = secure(&folder, &["127.0.0.1"], |_| ok("{}"));
    let mut cluster = cluster(&server, &folder);
    let mut plugin = counting_plugin(&folder, "", None);
    plugin.args = vec!["-c".to_owned(), format!("sleep 5; . {}", plugin.args[0])];
    cluster.identity.authorization = AuthSource::Exec(Box::new(plugin));
    let http = Http::connect(cluster).unwrap();
    let short = Request { timeout: Duration::from_secs(5), ..request(Method::Get, None) };
    assert_eq!(http.call(&short).unwrap().status, 200);
}

#[test]
fn the_certificate_of_a_plugin_is_used() {
    let (folder, authority, clients) = (Folder::new(), Authority::new(), Authority::new());
    folder.write("ca", &authority.pem);
    let tls = authority.server(&["127.0.0.1"], &BOTH, Some(&clients));
    let server = TestServer::start(Some(tls), |_| ok("{}"));
    let (chain, key) = clients.issue(&["me"]);
    let credential = serde_json::json!({
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"clientCertificateData": chain, "clientKeyData": key},
    });
    let mut cluster = cluster(&server, &folder);
    let plugin = plugin(&folder, &format!("cat <<'END'\n{credential}\nEND"));
    cluster.identity.authorization = AuthSource::Exec(Box::new(plugin));
    assert_eq!(get(&Http::connect(cluster).unwrap()).unwrap().status, 200);
}
