//! `driver.port`: two runs at once get two ports, driver and executors learn the port, and a port in use
//! is an error before the driver starts.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Output, Stdio};
use std::thread;

use super::projects::has_python;
use crate::support::posse::{command, said};
use crate::support::scene::TempDir;
use crate::support::wait::{PATIENCE, wait_value};

/// An executor that writes down which driver it was given, and the driver that prints it.
const CONFIG: &str = r#"app: port
driver: {port: auto}
executors:
  - count: 1
    image: none
    command: [sh, -c, 'echo "$0" >dialled.new && mv dialled.new dialled && exec sleep 600',
              "{{DRIVER_PORT}} $(POSSE_DRIVER_PORT)"]
"#;
const DRIVER: &str = r#"await() { n=0; until [ -e "$1" ]; do n=$((n + 1)); [ $n -le 600 ] || exit 8; sleep 0.1; done; }
await dialled
echo "$POSSE_DRIVER_PORT $(cat dialled)""#;

/// An instance that no other test of this machine uses: two of one name would want one port.
fn instance(name: &str) -> String {
    format!("{name}{}", std::process::id())
}

/// `posse run --dev ARGS` with a driver in sh.
fn run(dir: &Path, args: &[&str], driver: &str) -> Output {
    fs::write(dir.join("posse.yaml"), CONFIG).unwrap();
    // Of the run before.
    let _ = fs::remove_file(dir.join("dialled"));
    let mut command = command(dir);
    command.args(["run", "--dev"]).args(args).args(["--", "sh", "-eu", "-c", driver]);
    command.stdin(Stdio::null()).output().expect("the binary can be started")
}

/// The port of the driver and of the executor, which must be one.
#[track_caller]
fn port(output: &Output) -> u16 {
    assert_eq!(output.status.code(), Some(0), "{}", said(output));
    let line = String::from_utf8_lossy(&output.stdout).into_owned();
    let ports: Vec<u16> = line.split_whitespace().map(|port| port.parse().unwrap()).collect();
    assert!(ports.len() == 3 && ports.iter().all(|port| *port == ports[0]), "{line}");
    ports[0]
}

/// The ports of two runs with the same names come from the same list, so they would collide.
pub fn two_runs_at_once_get_two_ports() {
    let dirs = [TempDir::new("port"), TempDir::new("port")];
    let name = instance("two");
    // Each driver ends when both have started.
    let wait = |other: &Path| format!("{DRIVER}\nawait {}/dialled", other.display());
    let ports = thread::scope(|scope| {
        let runs = [(&dirs[0], &dirs[1]), (&dirs[1], &dirs[0])].map(|(dir, other)| {
            let name = &name;
            scope.spawn(move || run(dir.path(), &["--instance", name], &wait(other.path())))
        });
        runs.map(|run| port(&run.join().unwrap()))
    });
    assert_ne!(ports[0], ports[1]);
}

pub fn a_restarted_run_gets_the_same_port() {
    let dir = TempDir::new("port");
    let name = instance("again");
    let first = port(&run(dir.path(), &["--instance", &name], DRIVER));
    let listener = TcpListener::bind(("127.0.0.1", first)).unwrap();
    let moved = run(dir.path(), &["--instance", &name], DRIVER);
    let warning =
        format!("port {first} is in use on this host, so the driver's port is {}", port(&moved));
    assert!(said(&moved).contains(&warning), "{}", said(&moved));
    drop(listener);
    assert_eq!(port(&run(dir.path(), &["--instance", &name], DRIVER)), first);
}

pub fn a_port_in_use_is_an_error_before_the_driver_starts() {
    let dir = TempDir::new("port");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let number = listener.local_addr().unwrap().port();
    let flag = format!("--driver-port={number}");
    let output = run(dir.path(), &[&flag], "touch started");
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    let want = format!("driver.port: {number} is in use on this host");
    assert!(said(&output).contains(&want), "{}", said(&output));
    assert!(!dir.path().join("started").exists(), "{}", said(&output));
}

/// The driver takes a line from its executor at the port that posse has opened for it.
const SOCKET_DRIVER: &str = r#"import os, socket
assert (os.environ["LISTEN_FDS"], os.environ["LISTEN_PID"]) == ("1", str(os.getpid())), os.environ
listener = socket.socket(fileno=3)
assert listener.getsockname() == (os.environ["POSSE_DRIVER_HOST"], int(os.environ["POSSE_DRIVER_PORT"]))
line = ""
while not line:  # posse looks whether the port is open
    line = listener.accept()[0].makefile().readline()
print(line, end="")"#;
const SOCKET_EXECUTOR: &str = r#"import os, socket, time
address = os.environ["POSSE_DRIVER_HOST"], int(os.environ["POSSE_DRIVER_PORT"])
socket.create_connection(address).sendall(b"hello\n")
time.sleep(600)"#;

/// With `ready: socket` nobody can take the port from the driver: it has it before the first executor.
pub fn the_driver_gets_its_port_as_an_open_socket() {
    if !has_python() {
        return;
    }
    let dir = TempDir::new("port");
    let config = "app: port\ndriver: {port: auto, ready: socket}\nexecutors:\n  - {count: 1, image: none, \
                  command: [python3, executor.py]}\n";
    fs::write(dir.path().join("posse.yaml"), config).unwrap();
    fs::write(dir.path().join("executor.py"), SOCKET_EXECUTOR).unwrap();
    let run = |driver: &[&str]| {
        let mut command = command(dir.path());
        command.args(["run", "--dev", "--"]).args(driver).stdin(Stdio::null());
        command.output().expect("the binary can be started")
    };
    let output = run(&["python3", "-c", SOCKET_DRIVER]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "hello\n", "{}", said(&output));
    let output = run(&["./no-such-program", "--flag"]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    let want = "cannot start ./no-such-program: No such file or directory";
    assert!(said(&output).contains(want), "{}", said(&output));
}

/// `ready: tcp` waits for the port that posse has chosen.
pub fn executors_wait_for_the_drivers_port() {
    let dir = TempDir::new("port");
    let config = CONFIG.replace("{port: auto}", "{port: auto, ready: tcp}");
    fs::write(dir.path().join("posse.yaml"), config).unwrap();
    let driver = format!(
        r#"! "$POSSE_EXE" wait --running 1 --timeout 1s || exit 9
echo "$POSSE_DRIVER_PORT" >port.new && mv port.new port
{DRIVER}"#
    );
    let mut command = command(dir.path());
    command.args(["run", "--dev", "--", "sh", "-eu", "-c", &driver]).stdin(Stdio::null());
    let output = thread::scope(|scope| {
        let run = scope.spawn(move || command.output().expect("the binary can be started"));
        let written = dir.path().join("port");
        let port = wait_value(PATIENCE, "the driver's port", || {
            fs::read_to_string(&written).map(|text| text.trim().parse::<u16>().unwrap())
        });
        let _listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
        run.join().unwrap()
    });
    port(&output);
}
