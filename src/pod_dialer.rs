//! The way to the control API of a run whose driver is in a pod: only its own pod can reach it. `pods/exec` starts
//! `posse bridge` there, which joins the streams of the command with a connection to the run.

use std::collections::BTreeSet;
use std::fmt;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::Duration;

use crate::exit::{Code, Failure};
use crate::namespace::Namespace;
use posse_base::sync::lock;
use posse_base::text::sanitize;
use posse_control::client::{Dialer, Stream};
use posse_core::model::pod::ContainerState;
use posse_core::model::refusal::Refusal;
use posse_kube::api::objects::Objects;
use posse_kube::api::pod_exec::{ContainerPath, ExecError, Input, Output, exec};
use posse_kube::http::Http;
use posse_submit::state::{newest, pod_line};
use posse_submit::stop::drivers;
use posse_wire::k8s::exec_channels::CommandEnd;
use posse_wire::k8s::labels::DRIVER;
use posse_wire::pod::details::PodDetails;

/// The command if the container's own one is not posse, as in an image that starts posse by a script.
const PROGRAM: &str = "posse";
/// The exit code of a posse that has no command `bridge`.
const UNKNOWN_COMMAND: u8 = 2;
/// What a bridge says on stderr, in bytes; more is left out.
const ERRORS_BYTES_MAX: usize = 4 << 10;

/// The way to a run in the cluster. Each dial looks for the pod that leads then.
#[derive(Debug)]
pub struct PodDialer {
    namespace: Namespace,
    /// The last pod that was found.
    way: Mutex<PodWay>,
    is_dialed: AtomicBool,
}

/// The way into the driver's container.
#[derive(Clone, Debug)]
struct PodWay {
    http: Http,
    target: ContainerPath,
    command: Vec<String>,
    app: String,
}

impl PodDialer {
    /// Finds the driver's container of `app`.
    ///
    /// # Errors
    /// No driver of it runs in the namespace.
    pub fn find(namespace: &Namespace, app: &str) -> Result<Self, Failure> {
        let way = Mutex::new(PodWay::find(namespace, app)?);
        Ok(Self { namespace: namespace.clone(), way, is_dialed: AtomicBool::new(false) })
    }
}

impl PodWay {
    fn find(namespace: &Namespace, app: &str) -> Result<Self, Failure> {
        let failed = |message: String| Failure::new(Code::Failed, message);
        let pods = driver_pods(&namespace.objects(), app).map_err(|refusal| {
            namespace.refused("its driver cannot be looked up", app, &refusal)
        })?;
        let is_other = |pod: &&PodDetails| pod.runs() && pod.meta.label(DRIVER.0) != Some(DRIVER.1);
        let others: Vec<&str> = pods.iter().filter(is_other).map(PodDetails::name).collect();
        if others.len() > 1 {
            return Err(Failure::usage(format!(
                "application {app} has several runs in namespace {}, by the pods {}: `posse exec POD -- \
                 posse COMMAND` asks one of them",
                namespace.name,
                others.join(", ")
            )));
        }
        let Some(pod) = newest(&pods) else {
            return Err(failed(format!(
                "namespace {} has no driver of application {app}",
                namespace.name
            )));
        };
        if pod.facts.container != ContainerState::Running {
            let line = pod_line(pod);
            return Err(failed(format!(
                "the driver of application {app} is not running: {line}; see `posse logs {app}`"
            )));
        }
        let target = ContainerPath {
            namespace: namespace.name.clone(),
            pod: pod.name().to_owned(),
            container: pod.main.clone(),
        };
        let command = vec![program(pod), "bridge".to_owned(), format!("--app={app}")];
        let http = namespace.connection.http.clone();
        Ok(Self { http, target, command, app: app.to_owned() })
    }

    /// Runs the bridge with `socket` as its stdin and stdout. The error says why it has ended early.
    fn run(&self, socket: &UnixStream) -> Result<(), String> {
        let stdin = socket.try_clone().map_err(|error| error.to_string())?.into();
        let mut errors = Vec::new();
        let mut each = |output: Output<'_>| match output {
            Output::Stdout(bytes) => (&mut &*socket).write_all(bytes),
            Output::Stderr(bytes) => {
                let room = ERRORS_BYTES_MAX.saturating_sub(errors.len());
                errors.extend_from_slice(&bytes[..bytes.len().min(room)]);
                Ok(())
            }
        };
        let input = Input { stdin: Some(stdin), terminal: None };
        let ended = exec(&self.http, &self.target, &self.command, input, &mut each);
        let said = || {
            let said = String::from_utf8_lossy(&errors);
            sanitize(said.trim().trim_start_matches("posse: "), ERRORS_BYTES_MAX)
        };
        let (pod, container) = (&self.target.pod, &self.target.container);
        match ended {
            // Nobody reads any more.
            Ok(CommandEnd::Exited(0)) | Err(ExecError::Output(_)) => Ok(()),
            Ok(CommandEnd::Exited(UNKNOWN_COMMAND)) => Err(format!(
                "pod {pod}: its posse is older than this one and has no `bridge` ({}): give the command to it, by \
                 `kubectl exec {pod} -c {container} -- {} COMMAND --app {}`",
                said(),
                self.command[0],
                self.app
            )),
            // It was killed together with the run.
            Ok(CommandEnd::Exited(_)) if errors.is_empty() => Err(format!("pod {pod} has ended")),
            Ok(CommandEnd::Exited(_)) => Err(format!("pod {pod}: {}", said())),
            Ok(CommandEnd::Failed(why)) => Err(format!(
                "pod {pod}: `{}` cannot run in container {container}: {why}",
                self.command[0]
            )),
            Err(ExecError::Refused(refusal)) => Err(format!(
                "application {}: no command can be run in pod {pod}: {}: {refusal}",
                self.app,
                self.http.server()
            )),
            Err(error @ (ExecError::Cut(_) | ExecError::Stopped)) => Err(error.to_string()),
        }
    }
}

impl fmt::Display for PodDialer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pod {}", lock(&self.way).target.pod)
    }
}

impl Dialer for PodDialer {
    fn dial(&self) -> io::Result<Box<dyn Stream>> {
        let mut way = lock(&self.way).clone();
        if self.is_dialed.swap(true, Ordering::Relaxed) {
            let found = PodWay::find(&self.namespace, &way.app);
            way = found.map_err(|failure| io::Error::other(failure.message))?;
            lock(&self.way).clone_from(&way);
        }
        let (ours, theirs) = UnixStream::pair()?;
        let ended = Arc::new(OnceLock::new());
        let why = Arc::clone(&ended);
        let work = move || {
            if let Err(problem) = way.run(&theirs) {
                // Before the other end sees that this one is closed.
                drop(why.set(problem));
            }
        };
        // It ends with the other end of the socket, or with the process.
        thread::Builder::new().name("bridge".to_owned()).spawn(work)?;
        Ok(Box::new(Bridge { socket: ours, ended }))
    }
}

/// A connection through a pod.
#[derive(Debug)]
struct Bridge {
    socket: UnixStream,
    /// Why it has ended, if that was no good end.
    ended: Arc<OnceLock<String>>,
}

impl Read for Bridge {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match (self.socket.read(buffer), self.ended.get()) {
            (Ok(0), Some(why)) => Err(io::Error::other(why.clone())),
            (read, _) => read,
        }
    }
}

impl Write for Bridge {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Stream for Bridge {
    fn limit_reads(&self, limit: Duration) -> io::Result<()> {
        self.socket.set_read_timeout(Some(limit))
    }
}

/// The pods that may run the driver: those with a driver's labels, else the owners of the executors.
fn driver_pods(objects: &Objects, app: &str) -> Result<Vec<PodDetails>, Refusal> {
    let labelled = drivers(objects, app)?;
    if !labelled.is_empty() {
        return Ok(labelled);
    }
    let executors = objects.executors(app, None)?;
    let owners = executors.iter().flat_map(|pod| &pod.meta.owner_references);
    let owner_names: BTreeSet<&str> =
        owners.filter(|owner| owner.kind == "Pod").map(|owner| owner.name.as_str()).collect();
    let mut pods = Vec::new();
    for name in owner_names {
        pods.extend(objects.pod(name)?);
    }
    Ok(pods)
}

/// The path of posse in the main container.
fn program(pod: &PodDetails) -> String {
    let is_posse = |first: &&str| first.rsplit('/').next() == Some(PROGRAM);
    pod.spec.program(&pod.main).filter(is_posse).unwrap_or(PROGRAM).to_owned()
}

#[cfg(test)]
mod tests {
    use posse_testing::{Answer, TestServer};
    use serde_json::json;

    use crate::testing::Folder;

    /// Drivers in pods of the user, which the executors name.
    #[test]
    fn a_name_of_several_runs_is_none() {
        let server = TestServer::start(None, |request| {
            let pod = |name: &str| {
                let owner = format!("{name}-driver");
                let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": owner, "uid": "d"});
                json!({"metadata": {"name": name, "uid": name, "ownerReferences": [owner]},
                    "spec": {"containers": [{"name": "c"}]}, "status": {"phase": "Running"}})
            };
            let path = request.line().split(' ').nth(1).unwrap();
            let answer = match path.split_once('?') {
                Some((_, query)) if query.contains("driver") => {
                    json!({"metadata": {"resourceVersion": "1"}, "items": []})
                }
                Some(_) => {
                    json!({"metadata": {"resourceVersion": "1"}, "items": [pod("a"), pod("b")]})
                }
                None => pod(path.rsplit('/').next().unwrap()),
            };
            Answer::json(200, answer.to_string())
        });
        let told = Folder::with_server(server.address).posse("status --app a -n n --kubeconfig k");
        let want = "posse: application a has several runs in namespace n, by the pods a-driver, b-driver: `posse exec \
                    POD -- posse COMMAND` asks one of them\n";
        assert_eq!((told.0, told.2.as_str()), (2, want));
    }

    /// Its phase is that of a side-car.
    #[test]
    fn a_driver_that_has_ended_is_not_said_to_run() {
        let server = TestServer::start(None, |_| {
            let pod = json!({"metadata": {"name": "d", "uid": "u"},
                "spec": {"containers": [{"name": "driver"}, {"name": "proxy"}]},
                "status": {"phase": "Running", "containerStatuses": [
                    {"name": "driver", "state": {"terminated": {"exitCode": 137}}},
                    {"name": "proxy", "state": {"running": {}}}]}});
            Answer::json(
                200,
                json!({"metadata": {"resourceVersion": "1"}, "items": [pod]}).to_string(),
            )
        });
        let folder = Folder::with_server(server.address);
        let (code, _, told) = folder.posse("status --app a -n n --kubeconfig k");
        let want = "posse: the driver of application a is not running: pod d has failed: exit code \
                    137; proxy runs on in it; see `posse logs a`\n";
        assert_eq!((code, told.as_str()), (1, want));
    }
}
