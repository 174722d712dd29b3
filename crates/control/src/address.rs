//! Addresses of the control API: where a run listens, and how clients find its socket.

use std::fmt;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, sockopt};

use posse_base::system::new_socket;
use posse_serve::Listen;
use posse_serve::token::TokenError;
use posse_wire::config::control_addr::{ControlAddr, SOCKET_PATH_BYTES_MAX};
use posse_wire::config::listen_addr::ListenAddr;

/// A listening socket. The file of a unix socket is removed at the end.
#[derive(Debug)]
pub struct Bound {
    /// The address, with the actual port.
    pub address: ControlAddr,
    /// For the server.
    pub listen: Listen,
    /// Removes the socket's file when dropped; `None` for TCP.
    pub file: Option<SocketFile>,
}

/// The file of a unix socket. Dropping this removes the file, unless it was replaced.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    identity: (u64, u64),
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if identity(&self.path).is_some_and(|found| found == self.identity) {
            // If this fails, the next run replaces the dead socket.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|facts| (facts.dev(), facts.ino()))
}

/// Listens on a configured address.
///
/// # Errors
/// A live process uses the address, or the system refuses it.
pub fn bind(address: &ControlAddr) -> Result<Bound, ControlError> {
    match address {
        ControlAddr::Tcp(wanted) => {
            let failed = |error| ControlError::Bind { address: address.clone(), error };
            let listener = TcpListener::bind(wanted).map_err(failed)?;
            let address = ControlAddr::Tcp(listener.local_addr().map_err(failed)?);
            Ok(Bound { address, listen: Listen::Tcp(listener), file: None })
        }
        ControlAddr::Unix(path) => bind_unix(path),
    }
}

/// Listens on TCP. A socket of IPv6 takes connections of IPv4 too; a kernel without IPv6 has only the other
/// one.
///
/// # Errors
/// The system refuses the address.
pub(super) fn listen(address: ListenAddr) -> io::Result<TcpListener> {
    match address {
        ListenAddr::At(address) => TcpListener::bind(address),
        ListenAddr::All(port) => match TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)) {
            Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
                TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))
            }
            bound => bound,
        },
    }
}

/// Listens on `<folder>/posse-<uid>/<app>.<instance>.sock` in the first of `folders` that works. See
/// `default_folders`.
///
/// # Errors
/// A live process uses the socket, or no folder works.
pub fn bind_default(app: &str, instance: &str, folders: &[PathBuf]) -> Result<Bound, ControlError> {
    let mut tried = Vec::new();
    for folder in folders {
        let private = private_folder(folder);
        let path = private.join(format!("{app}.{instance}.sock"));
        if path.as_os_str().len() > SOCKET_PATH_BYTES_MAX {
            tried.push(format!("{}: path too long", path.display()));
            continue;
        }
        if let Err(error) = make_private(&private) {
            tried.push(format!("{}: {error}", private.display()));
            continue;
        }
        match bind_unix(&path) {
            Err(ControlError::Bind { error, .. }) => {
                tried.push(format!("{}: {error}", path.display()));
            }
            bound => return bound,
        }
    }
    Err(ControlError::NoFolder { tried })
}

/// The sockets of `app` that a live process listens on; without `app`, of all applications.
pub fn live_sockets(app: Option<&str>, folders: &[PathBuf]) -> Vec<PathBuf> {
    let mut live = Vec::new();
    for folder in folders {
        let private = private_folder(folder);
        // A folder that others can write to may contain their sockets.
        if check_private(&private).is_err() {
            continue;
        }
        let Ok(entries) = fs::read_dir(private) else { continue };
        for path in entries.flatten().map(|entry| entry.path()) {
            if is_socket_of(&path, app) && is_live(&path) {
                live.push(path);
            }
        }
    }
    live.sort();
    live.dedup();
    live
}

/// The names of the applications of which a run is live.
pub fn live_apps(folders: &[PathBuf]) -> Vec<String> {
    let sockets = live_sockets(None, folders);
    sockets.iter().filter_map(|socket| app_of(socket)).map(str::to_owned).collect()
}

/// The application in the name of a default socket.
pub fn app_of(socket: &Path) -> Option<&str> {
    let stem = socket.file_name()?.to_str()?.strip_suffix(".sock")?;
    stem.split_once('.').map(|(app, _)| app)
}

/// The folders for control sockets, in order of preference, from two environment variables.
pub fn default_folders(xdg_runtime_dir: Option<&str>, tmpdir: Option<&str>) -> Vec<PathBuf> {
    let candidates = [xdg_runtime_dir, Some("/run/posse"), tmpdir, Some("/tmp"), Some("/dev/shm")];
    let mut folders: Vec<PathBuf> = Vec::new();
    for folder in candidates.into_iter().flatten().map(PathBuf::from) {
        if folder.is_absolute() && !folders.contains(&folder) {
            folders.push(folder);
        }
    }
    folders
}

fn private_folder(folder: &Path) -> PathBuf {
    folder.join(format!("posse-{}", rustix::process::geteuid().as_raw()))
}

/// A folder that only this user can access, in the first of `folders` that can have one.
pub fn first_private(folders: &[PathBuf]) -> Option<PathBuf> {
    let mut private = folders.iter().map(|folder| private_folder(folder));
    private.find(|path| make_private(path).is_ok())
}

/// Creates a folder that only this user can access, or checks an existing one.
fn make_private(folder: &Path) -> Result<(), String> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => check_private(folder),
        Err(error) => Err(error.to_string()),
    }
}

fn check_private(folder: &Path) -> Result<(), String> {
    // Symbolic links are not followed, because another user may have created the link.
    let facts = fs::symlink_metadata(folder).map_err(|error| error.to_string())?;
    let is_own = facts.uid() == rustix::process::geteuid().as_raw();
    if facts.is_dir() && is_own && facts.mode() & 0o077 == 0 {
        return Ok(());
    }
    Err("not a folder of this user with mode 0700".to_owned())
}

fn is_socket_of(path: &Path, app: Option<&str>) -> bool {
    app_of(path).is_some_and(|found| app.is_none_or(|app| app == found))
}

/// Connects to a unix socket. If its queue is full, waits up to `timeout`.
pub(crate) fn connect_unix(path: &Path, timeout: Duration) -> io::Result<UnixStream> {
    let socket = new_socket(AddressFamily::UNIX, SocketType::STREAM)?;
    // On Linux, the send time-out also applies to connecting.
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(timeout))?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(UnixStream::from(socket))
}

/// True if a process listens on the socket. A full queue also means that a process listens.
fn is_live(path: &Path) -> bool {
    match connect_unix(path, PROBE_TIMEOUT) {
        Ok(_) => true,
        Err(error) => error.kind() == io::ErrorKind::WouldBlock,
    }
}

fn bind_unix(path: &Path) -> Result<Bound, ControlError> {
    let address = ControlAddr::Unix(path.to_owned());
    let failed = |error| ControlError::Bind { address: address.clone(), error };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or_else(|| Path::new("."));
    // The lock prevents two processes from replacing the same dead socket. In a folder that other users
    // can open they could hold the lock, or wait for ours, so such a folder is not locked.
    let _lock = match check_private(folder) {
        Ok(()) => Some(lock_folder(folder).map_err(failed)?),
        Err(_) => None,
    };
    let listener = match listen_private(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            let is_socket = fs::symlink_metadata(path).is_ok_and(|facts| is_socket(&facts));
            if !is_socket {
                return Err(failed(io::Error::other("the file exists and is not a socket")));
            }
            if is_live(path) {
                return Err(ControlError::InUse { path: path.to_owned() });
            }
            fs::remove_file(path).map_err(failed)?;
            listen_private(path).map_err(failed)?
        }
        listener => listener.map_err(failed)?,
    };
    let identity = identity(path).ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
    let file = SocketFile { path: path.to_owned(), identity };
    Ok(Bound { address, listen: Listen::Unix(listener), file: Some(file) })
}

fn is_socket(facts: &fs::Metadata) -> bool {
    use std::os::unix::fs::FileTypeExt;
    facts.file_type().is_socket()
}

/// Creates a listening socket whose file has mode 0600 from the start: on Linux, bind uses the mode of
/// the socket.
fn listen_private(path: &Path) -> io::Result<UnixListener> {
    let socket = new_socket(AddressFamily::UNIX, SocketType::STREAM)?;
    rustix::fs::fchmod(&socket, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(UnixListener::from(socket))
}

/// Locks a folder against other posse processes, until the returned file is dropped.
fn lock_folder(folder: &Path) -> io::Result<File> {
    use rustix::fs::{FlockOperation, flock};
    let file = File::open(folder)?;
    for _ in 0..LOCK_TRIES_MAX {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(rustix::io::Errno::AGAIN) => thread::park_timeout(LOCK_PAUSE),
            Err(error) => return Err(error.into()),
        }
    }
    Err(io::Error::other("another process holds the lock of its folder"))
}

/// An unusable control address. At the start of a run: exit code 2.
#[derive(Debug)]
pub enum ControlError {
    /// Not a valid address.
    Address { why: String },
    /// The system refuses the address.
    Bind { address: ControlAddr, error: io::Error },
    /// Another process listens on this socket.
    InUse { path: PathBuf },
    /// No folder works.
    NoFolder { tried: Vec<String> },
    /// A TCP address without a token file.
    NoToken { address: ControlAddr },
    /// The token file is invalid.
    TokenFile(TokenError),
}

impl fmt::Display for ControlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address { why } => write!(f, "control address: {why}"),
            Self::Bind { address, error } => {
                write!(f, "cannot listen on control address {address}: {error}")
            }
            Self::InUse { path } => write!(
                f,
                "control socket {} is in use by a live process; end that process, or choose another \
                 socket with --control or another --instance",
                path.display()
            ),
            Self::NoFolder { tried } => write!(
                f,
                "no folder for the control socket ({}); name one with --control unix:PATH, \
                 or set control: off",
                tried.join("; ")
            ),
            Self::NoToken { address } => write!(
                f,
                "control address {address} needs --control-token-file: every user of this host can \
                 reach it"
            ),
            Self::TokenFile(error) => write!(f, "control {error}"),
        }
    }
}

impl std::error::Error for ControlError {}

impl From<TokenError> for ControlError {
    fn from(error: TokenError) -> Self {
        Self::TokenFile(error)
    }
}

/// How long the check for a live socket waits for a full queue.
const PROBE_TIMEOUT: Duration = Duration::from_millis(200);

/// The queue of connections that are not accepted yet.
const BACKLOG: i32 = 128;

/// With the pause: up to one second.
const LOCK_TRIES_MAX: u32 = 100;
const LOCK_PAUSE: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use posse_testing::Folder;

    #[test]
    fn the_socket_is_private_and_removed_at_the_end() {
        let folder = Folder::new();
        let bound = bind_default("w", "a1b2c", &[folder.path().to_owned()]).unwrap();
        let ControlAddr::Unix(path) = bound.address.clone() else { panic!("a unix socket") };
        assert!(path.ends_with("w.a1b2c.sock"), "{path:?}");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&path), 0o600);
        assert_eq!(mode(path.parent().unwrap()), 0o700);
        drop(bound);
        assert!(!path.exists());
    }

    #[test]
    fn a_folder_that_others_can_open_is_neither_locked_nor_changed() {
        use rustix::fs::{FlockOperation, flock};

        let folder = Folder::new();
        let shared = folder.path().join("shared");
        fs::create_dir(&shared).unwrap();
        fs::set_permissions(&shared, fs::Permissions::from_mode(0o1777)).unwrap();
        let other = File::open(&shared).unwrap();
        flock(&other, FlockOperation::NonBlockingLockExclusive).unwrap();
        let address = ControlAddr::Unix(shared.join("socket"));
        let Bound { listen, file, .. } =
            bind(&address).expect("another user's lock is no hindrance");
        // As after kill -9: the dead socket is replaced without a lock, too.
        drop(listen);
        std::mem::forget(file);
        drop(bind(&address).unwrap());
        assert_eq!(fs::metadata(&shared).unwrap().permissions().mode() & 0o7777, 0o1777);
    }

    #[test]
    fn a_live_socket_is_an_error_and_a_dead_socket_is_replaced() {
        let folder = Folder::new();
        let folders = [folder.path().to_owned()];
        let bound = bind_default("w", "a", &folders).unwrap();
        let ControlAddr::Unix(path) = bound.address.clone() else { panic!("a unix socket") };
        let error = bind_default("w", "a", &folders).expect_err("the socket is live");
        assert!(matches!(error, ControlError::InUse { .. }), "{error}");

        // As after kill -9: the listener is gone, the file still exists.
        let Bound { listen, file, .. } = bound;
        drop(listen);
        std::mem::forget(file);
        assert!(path.exists());
        let again = bind_default("w", "a", &folders).unwrap();
        assert!(is_live(&path));
        drop(again);
        assert!(!path.exists());
    }

    #[test]
    fn a_replaced_socket_is_not_removed() {
        let folder = Folder::new();
        let folders = [folder.path().to_owned()];
        let first = bind_default("w", "a", &folders).unwrap();
        let ControlAddr::Unix(path) = first.address.clone() else { panic!("a unix socket") };
        fs::rename(&path, folder.path().join("moved")).unwrap();
        let second = bind_default("w", "a", &folders).unwrap();
        drop(first);
        assert!(is_live(&path));
        drop(second);
    }

    #[test]
    fn a_file_that_is_not_a_socket_is_kept() {
        let folder = Folder::new();
        let path = folder.path().join("precious");
        fs::write(&path, "data").unwrap();
        let error =
            bind(&ControlAddr::Unix(path.clone())).expect_err("the path is a file").to_string();
        assert!(error.contains("not a socket"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "data");
    }

    #[test]
    fn unusable_folders_are_skipped_and_named() {
        let folder = Folder::new();
        let missing = folder.path().join("missing");
        let open = folder.path().join("open");
        let linked = folder.path().join("linked");
        for base in [&open, &linked] {
            fs::create_dir(base).unwrap();
        }
        fs::create_dir(private_folder(&open)).unwrap();
        fs::set_permissions(private_folder(&open), fs::Permissions::from_mode(0o755)).unwrap();
        std::os::unix::fs::symlink(folder.path(), private_folder(&linked)).unwrap();
        let long = folder.path().join("l".repeat(80));
        let bad = [missing, open, linked, long];

        let error = bind_default("w", "a", &bad).expect_err("no folder works").to_string();
        for part in ["missing", "open", "linked", "0700", "too long", "--control"] {
            assert!(error.contains(part), "{part} is not in {error}");
        }
        let good = folder.path().to_owned();
        let all: Vec<PathBuf> = bad.into_iter().chain([good.clone()]).collect();
        let bound = bind_default("w", "a", &all).unwrap();
        let want = private_folder(&good).join("w.a.sock");
        assert_eq!(bound.address, ControlAddr::Unix(want.clone()));
        assert_eq!(live_sockets(None, &all), live_sockets(Some("w"), &all));
        assert_eq!(live_sockets(Some("w"), &all), [want]);
        assert!(live_sockets(Some("other"), &all).is_empty());
        drop(bound);
        assert!(live_sockets(Some("w"), &all).is_empty());
    }

    #[test]
    fn folders_come_in_the_documented_order() {
        let got = default_folders(Some("/run/user/1"), Some("/var/tmp"));
        let want = ["/run/user/1", "/run/posse", "/var/tmp", "/tmp", "/dev/shm"];
        assert_eq!(got, want.map(PathBuf::from));
        let got = default_folders(Some(""), Some("/tmp"));
        assert_eq!(got, ["/run/posse", "/tmp", "/dev/shm"].map(PathBuf::from));
    }
}
