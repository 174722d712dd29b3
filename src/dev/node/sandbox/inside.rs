//! Owns the container's side of its start: the namespace, the mounts, the program. Runs in a process
//! of its own, which has one thread and does nothing else.

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
use super::{Mount, READY, ROOT, SPARE, Trouble};
use crate::dev::node::start_error::{chdir_error, exec_error};
use crate::dev::storage::object::{array_at, text_at};

/// Program, arguments and mounts; Linux takes 2 MiB of arguments.
const PLAN_BYTES_MAX: u64 = 16 << 20;

/// Becomes a container's program; comes back only where that fails and the node was told why.
///
/// # Errors
/// Standard input is not the embedded node.
pub fn enter() -> Result<(), String> {
    let node = io::stdin().as_fd().try_clone_to_owned().map_err(|error| error.to_string())?;
    let mut node = UnixStream::from(node);
    let mut plan = Vec::new();
    let read = Read::by_ref(&mut node).take(PLAN_BYTES_MAX).read_to_end(&mut plan);
    let plan: Option<Value> = read.ok().and_then(|_| serde_json::from_slice(&plan).ok());
    let Some(plan) = plan else {
        return Err("this command is for the embedded node, which starts containers by it".into());
    };
    let trouble = match prepare(&plan) {
        Err(trouble) => trouble,
        Ok(mut command) => {
            node.write_all(READY).map_err(|error| error.to_string())?;
            let error = command.exec();
            Trouble::Failed(exec_error(text_at(&plan, "/program"), &error))
        }
    };
    let report = trouble.report().to_string();
    node.write_all(report.as_bytes()).map_err(|error| error.to_string())
}

fn prepare(plan: &Value) -> Result<Command, Trouble> {
    own_namespace()?;
    let folder = Path::new(text_at(plan, "/folder"));
    let mut mounts: Vec<Mount> = array_at(plan, "/mounts")
        .iter()
        .map(|mount| Mount {
            source: text_at(mount, "/source").into(),
            target: text_at(mount, "/target").to_owned(),
            read_only: mount["readOnly"] == true,
        })
        .collect();
    // What lies in another mount comes after it.
    mounts.sort_by_cached_key(|mount| Path::new(&mount.target).components().count());
    let mut tree = Tree::new(&folder.join(ROOT), &folder.join(SPARE)).map_err(Trouble::Failed)?;
    for mount in &mounts {
        tree.add(mount).map_err(Trouble::Failed)?;
    }
    change_root(&folder.join(ROOT))
        .map_err(|error| Trouble::Failed(format!("error changing the root: {error}")))?;
    match text_at(plan, "/workingDir") {
        // A volume may lie over the folder that posse was started in; then it is the root.
        "" => drop(rustix::process::chdir(text_at(plan, "/startedIn"))),
        folder => rustix::process::chdir(folder)
            .map_err(|error| Trouble::Failed(chdir_error(folder, &error.into())))?,
    }
    let mut command = Command::new(text_at(plan, "/program"));
    command.args(array_at(plan, "/args").iter().filter_map(Value::as_str));
    command.stdin(Stdio::null());
    Ok(command)
}

/// Moves this process into a mount namespace of its own; users other than root get one in a user
/// namespace in which they stay who they are.
fn own_namespace() -> Result<(), Trouble> {
    // Asked before: in the new namespace nobody is anybody.
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
        // Nothing of what follows may be seen outside.
        let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
        Ok(rustix::mount::mount_change("/", private)?)
    };
    enter().map_err(|error| {
        Trouble::NoNamespace(format!(
            "the machine gives this user no mount namespace ({error}), and without one the \
             embedded node cannot mount volumes: run posse as root, or allow user namespaces \
             (sysctl kernel.unprivileged_userns_clone=1, user.max_user_namespaces=10000, \
             kernel.apparmor_restrict_unprivileged_userns=0)"
        ))
    })
}

#[expect(deprecated, reason = "its danger lies in FILES, which nobody asks for here")]
fn unshare(what: UnshareFlags) -> rustix::io::Result<()> {
    rustix::thread::unshare(what)
}

fn change_root(root: &Path) -> rustix::io::Result<()> {
    rustix::process::chdir(root)?;
    match rustix::process::pivot_root(".", ".") {
        // The old root is now below the new one.
        Ok(()) => rustix::mount::unmount(".", UnmountFlags::DETACH)?,
        // The first root of all, a RAM disk's, cannot be exchanged.
        Err(Errno::INVAL) => rustix::process::chroot(".")?,
        Err(error) => return Err(error),
    }
    rustix::process::chdir("/")
}
