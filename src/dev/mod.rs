//! `posse dev`: runs the embedded cluster until a signal.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use crate::args::dev::{Command, DevArgs};
use crate::exit::{Code, Failure};
use crate::namespace::start_signals;
use crate::terminal::print;
use crate::world::World;
use posse_dev::{Cluster, DevError, Options};

/// Calls the command.
///
/// # Errors
/// As the command says.
pub fn run(command: Command, world: &World<'_>, out: &mut dyn Write) -> Result<Code, Failure> {
    match command {
        Command::Dev(args) => dev(&args, world, out),
        Command::DevContainer => container(),
    }
}

/// Starts the cluster, prints the path of its kubeconfig, and serves until a signal.
fn dev(args: &DevArgs, world: &World<'_>, out: &mut dyn Write) -> Result<Code, Failure> {
    // The handlers come first: a signal while the cluster starts must stop it.
    let signals = start_signals()?;
    serve(args, world, out, &mut |_| signals.until_stopped())
}

/// Replaces this process by a container's program. Returns only on failure, which the node reports.
fn container() -> Result<Code, Failure> {
    posse_dev::enter().map(|()| Code::Failed).map_err(Failure::usage)
}

/// As `dev`, until `wait` returns.
fn serve(
    args: &DevArgs,
    world: &World<'_>,
    out: &mut dyn Write,
    wait: &mut dyn FnMut(&Cluster),
) -> Result<Code, Failure> {
    let cluster = Cluster::start(Options {
        listen: args.listen,
        kubeconfig: args.kubeconfig.as_ref().map(|path| absolute(world.dir.join(path))),
        simulate: args.simulate,
        nodes: args.nodes,
        start_delay: Duration::from_millis(args.start_delay.unwrap_or(0)),
        memory_limits: args.memory_limits,
        faults: args.fault.clone(),
        rbac: args.rbac,
        insecure_no_auth: args.insecure_no_auth,
        disabled_admission: args.disable_admission_plugins.clone(),
        seed: args.seed,
        ..Options::default()
    })?;
    let kubeconfig = cluster.kubeconfig().display();
    log::info!("serving at {}; in another shell: export KUBECONFIG={kubeconfig}", cluster.url());
    if args.insecure_no_auth {
        log::warn!("without authentication, every user of this machine can run commands as you");
    }
    let printed = print(out, &format!("{}\n", cluster.kubeconfig().display()));
    if printed.is_ok() {
        wait(&cluster);
    }
    cluster.stop();
    printed.map(|()| Code::Clean)
}

fn absolute(path: PathBuf) -> PathBuf {
    std::path::absolute(&path).unwrap_or(path)
}

impl From<DevError> for Failure {
    fn from(error: DevError) -> Self {
        let code = match &error {
            DevError::Fault(_)
            | DevError::File(..)
            | DevError::Listen(..)
            | DevError::NotLoopback(_) => Code::Usage,
            DevError::Thread(_) => Code::Failed,
        };
        Self::new(code, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::args::{Command, CommandLine, dev};
    use crate::testing::Folder;

    /// Runs `posse dev ARGS` in `folder` until `wait` returns. Returns the output, too.
    fn served(
        folder: &Folder,
        args: &str,
        wait: &mut dyn FnMut(&Cluster),
    ) -> (Result<Code, Failure>, String) {
        let line = ["posse", "dev"].into_iter().chain(args.split_whitespace());
        let Command::Dev(dev::Command::Dev(args)) =
            CommandLine::try_parse_from(line).unwrap().command
        else {
            panic!("not `posse dev`")
        };
        let mut out = Vec::new();
        let world = World::new(&|_| None, folder.path());
        let done = serve(&args, &world, &mut out, wait);
        (done, String::from_utf8(out).unwrap())
    }

    #[test]
    fn check_uses_the_clusters_kubeconfig() {
        let folder = Folder::new(&[("posse.yaml", "app: a\nexecutors: [{image: 'i:1'}]")]);
        let mut seen = Vec::new();
        let (done, out) = served(&folder, "--simulate --kubeconfig k", &mut |_| {
            seen.push(folder.posse("check --kubeconfig k"));
            seen.push(folder.posse("check --kubeconfig k --namespace gone"));
        });
        assert_eq!(done, Ok(Code::Clean));
        assert_eq!(out, format!("{}\n", folder.path().join("k").display()));
        assert_eq!((seen[0].0, seen[1].0), (0, 3));
        assert!(seen[0].1.contains("the server accepts the pod"), "{}", seen[0].1);
        assert!(seen[1].1.contains("namespaces \"gone\" not found (404)"), "{}", seen[1].1);
        let (code, out, _) = folder.posse("check --kubeconfig k");
        assert_eq!(code, 3, "{out}");
        assert!(out.contains("https://127.0.0.1:"), "{out}");
    }

    #[test]
    fn a_cluster_that_cannot_start_is_an_error() {
        let folder = Folder::new(&[]);
        for (args, want) in
            [("--fault flood=1", "flood"), ("--kubeconfig no/such/k", "no/such/k: No such file")]
        {
            let (done, out) = served(&folder, args, &mut |_| panic!("the cluster must not start"));
            let failure = done.unwrap_err();
            assert_eq!((failure.code, out.as_str()), (Code::Usage, ""), "{failure}");
            assert!(failure.message.contains(want), "{failure}");
        }
    }
}
