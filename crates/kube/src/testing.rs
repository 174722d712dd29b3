//! Test support: credential plugins as scripts, and clients that depend on no environment.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use posse_testing::{Folder, PATIENCE};

use super::config::exec_plugin::{ExecPlugin, ExecVersion};
use super::config::{ClientIdentity, Cluster, Server, Sources, Trust};
use super::http::Http;

/// Not a test: a plugin's supervisor is this program, and the name of this function is what it asks for.
#[test]
fn supervise() {
    if std::env::args().nth(1).as_deref() == Some(posse_process::supervisor::COMMAND) {
        posse_process::enter().unwrap();
    }
}

/// A plugin that runs this script with /bin/sh. The script is an argument and not the program:
/// executing a file that was just written fails with ETXTBSY if another thread forks meanwhile.
pub(super) fn plugin(folder: &Folder, script: &str) -> ExecPlugin {
    ExecPlugin {
        version: ExecVersion::V1,
        command: PathBuf::from("/bin/sh"),
        args: vec![folder.write("plugin", script).to_str().unwrap().to_owned()],
        env: Vec::new(),
        install_hint: None,
        cluster: None,
        timeout: PATIENCE,
    }
}

/// A plugin that runs `before` and counts its runs. The first run prints the token `t1`, the ninth fails.
pub(super) fn counting_plugin(folder: &Folder, before: &str, expires: Option<&str>) -> ExecPlugin {
    let expiry = expires.map(|at| format!(",\"expirationTimestamp\":\"{at}\""));
    let script = format!(
        "{before} echo >>{runs}; n=$(wc -l <{runs}); test $n = 9 && exit 1\ncat <<END\n\
         {{\"apiVersion\":\"client.authentication.k8s.io/v1\",\"kind\":\"ExecCredential\",\
         \"status\":{{\"token\":\"t$((n))\"{}}}}}\nEND\n",
        expiry.unwrap_or_default(),
        runs = folder.path().join("runs").display(),
    );
    plugin(folder, &script)
}

/// Sources that do not depend on the environment of the test process.
pub(super) fn sources<'a>(
    kubeconfig: Option<&'a Path>,
    env: &'a dyn Fn(&str) -> Option<String>,
) -> Sources<'a> {
    Sources {
        kubeconfig,
        context: None,
        env,
        service_account_dir: Path::new("/nonexistent"),
        ca_bundles: &[],
    }
}

/// An empty environment.
pub(super) fn no_env(_: &str) -> Option<String> {
    None
}

/// A client of a plain HTTP server on loopback.
pub(crate) fn plain_client(address: SocketAddr) -> Http {
    let cluster = Cluster {
        server: Server::parse(&format!("http://{address}")).unwrap(),
        namespace: "analytics".to_owned(),
        home: None,
        origin: String::new(),
        trust: Trust::Anything,
        tls_server_name: None,
        proxy: None,
        identity: ClientIdentity::default(),
    };
    Http::connect(cluster).unwrap()
}
