//! The arguments of `posse dev`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::args::duration_ms;

/// The commands of the embedded cluster.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the embedded cluster in the foreground
    Dev(DevArgs),
    /// Become a container with volumes of the embedded cluster (started by its node)
    #[command(name = posse_dev::COMMAND, hide = true)]
    DevContainer,
}

/// `posse dev`.
#[derive(Args, Clone, Debug)]
#[command(after_help = posse_dev::fault_table())]
pub struct DevArgs {
    /// The loopback address to listen on; port 0 chooses a free port
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0", value_parser = loopback)]
    pub listen: SocketAddr,
    /// The kubeconfig file to write [default: in a private folder]
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Start no processes: pods only change their phases, on nodes with room for all
    #[arg(long)]
    pub simulate: bool,
    /// The number of nodes; with 0 all pods stay pending, unless a client plays the node
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub nodes: u32,
    /// The delay before each pod starts, such as 2s
    #[arg(long, value_name = "DURATION", value_parser = duration_ms)]
    pub start_delay: Option<u64>,
    /// Whether to kill containers that exceed their memory limit
    #[arg(long, value_name = "on|off", default_value = "on", value_parser = on_or_off,
          action = clap::ArgAction::Set)]
    pub memory_limits: bool,
    /// Enforce the roles in the cluster (RBAC)
    #[arg(long)]
    pub rbac: bool,
    /// Serve without a token: every user of this machine can then run commands as you
    #[arg(long, conflicts_with = "rbac")]
    pub insecure_no_auth: bool,
    /// A fault to inject (listed below); can be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = name_and_value)]
    pub fault: Vec<(String, String)>,
    /// An admission plugin to turn off; can be repeated
    #[arg(long, value_name = "PLUGIN",
          value_parser = ["LimitRanger", "ResourceQuota", "ServiceAccount"])]
    pub disable_admission_plugins: Vec<String>,
    /// The seed of all random choices
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

fn on_or_off(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("expected on or off".to_owned()),
    }
}

fn loopback(text: &str) -> Result<SocketAddr, String> {
    let address: SocketAddr =
        text.parse().map_err(|_| "expected an address like 127.0.0.1:0".to_owned())?;
    match address.ip().is_loopback() {
        true => Ok(address),
        false => Err("the embedded cluster serves loopback addresses only".to_owned()),
    }
}

fn name_and_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        Some(_) | None => Err("expected NAME=VALUE".to_owned()),
    }
}
