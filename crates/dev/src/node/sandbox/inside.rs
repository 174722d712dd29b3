//! The container's side of a start: enters a mount namespace, mounts the volumes and executes the
//! program. Runs in its own process with a single thread.

use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, UnmountFlags};
use rustix::thread::UnshareFlags;
use serde_json::Value;

use super::tree::Tree;
use super::{Mount, READY, ROOT, SCRATCH, SandboxError};
use crate::node::start_error::{chdir_error, exec_error};
use crate::storage::object::{array_at, text_at};

/// Limit of the plan: program, arguments (Linux allows 2 MiB) and mounts.
const PLAN_BYTES_MAX: u64 = 16 << 20;

/// Executes a container's program. Returns only if that failed and the node has got the error.
///
/// # Errors
/// Standard input is not a connection to the embedded node.
pub fn enter() -> Result<(), String> {
    let node = io::stdin().as_fd().try_clone_to_owned().map_err(|error| error.to_string())?;
    let mut node = UnixStream::from(node);
    let mut plan = Vec::new();
    let read = Read::by_ref(&mut node).take(PLAN_BYTES_MAX).read_to_end(&mut plan);
    let plan: Option<Value> = read.ok().and_then(|_| serde_json::from_slice(&plan).ok());
    let Some(plan) = plan else {
        return Err("only the embedded node uses this command, to start containers".into());
    };
    let error = match prepare(&plan) {
        Err(error) => error,
        Ok(mut command) => {
            node.write_all(READY).map_err(|error| error.to_string())?;
            let error = command.exec();
            SandboxError::Failed(exec_error(text_at(&plan, "/program"), &error))
        }
    };
    let report = error.report().to_string();
    node.write_all(report.as_bytes()).map_err(|error| error.to_string())
}

fn prepare(plan: &Value) -> Result<Command, SandboxError> {
    // Opened first: in the new namespace the path may mean something else.
    let stdin = match text_at(plan, "/stdin") {
        "" => Stdio::null(),
        path => fs::File::open(path)
            .map(Stdio::from)
            .map_err(|error| SandboxError::Failed(format!("stdin: {error}")))?,
    };
    enter_namespace()?;
    let folder = Path::new(text_at(plan, "/folder"));
    let mut mounts: Vec<Mount> = array_at(plan, "/mounts")
        .iter()
        .map(|mount| Mount {
            source: text_at(mount, "/source").into(),
            target: text_at(mount, "/target").to_owned(),
            read_only: mount["readOnly"] == true,
        })
        .collect();
    // A mount inside another one has to come after it.
    mounts.sort_by_key(|mount| Path::new(&mount.target).components().count());
    let mut tree =
        Tree::new(&folder.join(ROOT), &folder.join(SCRATCH)).map_err(SandboxError::Failed)?;
    for mount in &mounts {
        tree.add(mount).map_err(SandboxError::Failed)?;
    }
    change_root(&folder.join(ROOT))
        .map_err(|error| SandboxError::Failed(format!("error changing the root: {error}")))?;
    match text_at(plan, "/workingDir") {
        // If this fails, because a volume hides the folder, the working directory stays the root.
        "" => drop(rustix::process::chdir(text_at(plan, "/startedIn"))),
        folder => rustix::process::chdir(folder)
            .map_err(|error| SandboxError::Failed(chdir_error(folder, &error.into())))?,
    }
    let mut command = Command::new(text_at(plan, "/program"));
    command.args(array_at(plan, "/args").iter().filter_map(Value::as_str));
    command.stdin(stdin);
    Ok(command)
}

/// Moves this process into a new mount namespace. Users other than root also need a user namespace,
/// in which their ids are mapped to themselves.
fn enter_namespace() -> Result<(), SandboxError> {
    // Read before `unshare`: without a mapping, all ids in the new namespace are the overflow id.
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let enter = || -> io::Result<()> {
        match unshare(UnshareFlags::NEWNS) {
            Ok(()) => {}
            Err(Errno::PERM) => {
                unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNS)?;
                fs::write("/proc/self/setgroups", "deny")?;
                fs::write("/proc/self/uid_map", format!("{uid} {uid} 1"))?;
                fs::write("/proc/self/gid_map", format!("{gid} {gid} 1"))?;
            }
            Err(error) => return Err(error.into()),
        }
        // Mounts made from here on must not propagate to other namespaces.
        let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
        Ok(rustix::mount::mount_change("/", private)?)
    };
    enter().map_err(|error| {
        SandboxError::NoNamespace(format!(
            "this user cannot create a mount namespace ({error}), which the embedded node \
             needs for volumes: run posse as root, or allow user namespaces \
             (sysctl kernel.unprivileged_userns_clone=1, user.max_user_namespaces=10000, \
             kernel.apparmor_restrict_unprivileged_userns=0)"
        ))
    })
}

#[expect(deprecated, reason = "only UnshareFlags::FILES is unsafe, and it is not used here")]
fn unshare(what: UnshareFlags) -> rustix::io::Result<()> {
    rustix::thread::unshare(what)
}

fn change_root(root: &Path) -> rustix::io::Result<()> {
    rustix::process::chdir(root)?;
    match rustix::process::pivot_root(".", ".") {
        // The old root is now mounted on top of the new one.
        Ok(()) => rustix::mount::unmount(".", UnmountFlags::DETACH)?,
        // pivot_root does not work on an initramfs (rootfs), see pivot_root(2).
        Err(Errno::INVAL) => rustix::process::chroot(".")?,
        Err(error) => return Err(error),
    }
    rustix::process::chdir("/")
}
