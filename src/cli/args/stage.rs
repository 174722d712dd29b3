//! Owns the command line of `posse stage`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{ServerArgs, duration_ms, named};
use crate::wire::names;
use crate::wire::quantity::Quantity;

/// `posse stage`.
#[derive(Args, Clone, Debug)]
pub struct StageArgs {
    #[command(subcommand)]
    pub command: StageCommand,
}

/// What is to be done with files.
#[derive(Clone, Debug, Subcommand)]
pub enum StageCommand {
    /// Keep files for pods, until a signal
    Serve(ServeArgs),
    /// Leave files with a stage server, each as one bundle
    Put(PutArgs),
    /// Fetch what was put, verify it and write it into a folder
    Get(GetArgs),
}

/// `posse stage serve`.
#[derive(Args, Clone, Debug)]
pub struct ServeArgs {
    /// The address to serve at; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:8443")]
    pub listen: SocketAddr,
    /// Where the bundles lie; made where it is not there, for one server alone
    #[arg(long, value_name = "FOLDER")]
    pub dir: PathBuf,
    /// The certificate and what leads to its authority, PEM; read again when it is renewed
    #[arg(long, value_name = "FILE", requires = "key", required_unless_present = "insecure")]
    pub cert: Option<PathBuf>,
    /// The certificate's key, PEM
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub key: Option<PathBuf>,
    /// Serve plain HTTP: everybody on the way can read the files and their secrets
    #[arg(long, conflicts_with = "cert")]
    pub insecure: bool,
    /// Who shows the token in this file may leave bundles
    #[arg(long, value_name = "FILE", required_unless_present = "token_review")]
    pub token_file: Option<PathBuf>,
    /// Who shows a token of the cluster, and may create pods in a bundle's namespace, may leave it
    #[arg(long, conflicts_with = "token_file")]
    pub token_review: bool,
    /// The largest bundle, as Kubernetes writes amounts
    #[arg(long, value_name = "QUANTITY", default_value = "2Gi", value_parser = byte_count)]
    pub bundle_bytes_max: u64,
    /// All bundles of one namespace
    #[arg(long, value_name = "QUANTITY", default_value = "20Gi", value_parser = byte_count)]
    pub namespace_bytes_max: u64,
    /// A bundle that nobody fetched for so long, and for which no pod came, is dropped
    #[arg(long, value_name = "DURATION", default_value = "30m", value_parser = duration_ms)]
    pub idle: u64,
    /// A bundle is dropped so long after the last pod of its application went
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = duration_ms)]
    pub gone: u64,
    #[command(flatten)]
    pub server: ServerArgs,
}

/// `posse stage put`.
#[derive(Args, Clone, Debug)]
pub struct PutArgs {
    /// Where the stage server is: https://HOST:PORT
    #[arg(long, value_name = "URL")]
    pub url: String,
    #[command(flatten)]
    pub trust: TrustArgs,
    /// The token by which the server lets us in
    #[arg(long, value_name = "FILE")]
    pub token_file: PathBuf,
    /// The application that the files are for
    #[arg(long, value_name = "NAME", value_parser = named(names::app_name_error))]
    pub app: String,
    /// The namespace of its pods
    #[arg(short, long, value_name = "NS", value_parser = named(names::namespace_error))]
    pub namespace: String,
    /// Where the pods reach the same server [default: the same URL]
    #[arg(long, value_name = "URL")]
    pub pod_url: Option<String>,
    /// Write what `get` needs, secrets and all, to this file (0600), and print the ids; without it
    /// that is printed itself
    #[arg(long, value_name = "FILE")]
    pub secret_file: Option<PathBuf>,
    /// The files
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
}

/// `posse stage get`.
#[derive(Args, Clone, Debug)]
pub struct GetArgs {
    /// What `put` wrote
    #[arg(long, value_name = "FILE")]
    pub secret_file: PathBuf,
    /// The folder to write into; made where it is not there
    #[arg(long, value_name = "FOLDER")]
    pub dir: PathBuf,
    #[command(flatten)]
    pub trust: TrustArgs,
}

/// Files that a submission takes along.
#[derive(Args, Clone, Debug, Default)]
pub struct StageFileArgs {
    /// A file for the driver and its executors, who find it in $POSSE_FILES_DIR; once for each
    #[arg(id = "staged", long = "file", value_name = "FILE", requires = "stage_url")]
    pub files: Vec<PathBuf>,
    /// The stage server that takes the files: https://HOST:PORT
    #[arg(long, value_name = "URL", requires = "stage_token_file")]
    pub stage_url: Option<String>,
    /// Where the pods reach the same server [default: the same URL]
    #[arg(long, value_name = "URL", requires = "stage_url")]
    pub stage_pod_url: Option<String>,
    /// The token by which the stage server lets us in
    #[arg(long, value_name = "FILE")]
    pub stage_token_file: Option<PathBuf>,
    /// The authority that vouches for it, PEM [default: SSL_CERT_FILE, then the machine's]
    #[arg(long, value_name = "FILE")]
    pub stage_ca: Option<PathBuf>,
}

/// How a stage server is believed, and waited for.
#[derive(Args, Clone, Debug, Default)]
pub struct TrustArgs {
    /// The authority that vouches for the server, PEM [default: SSL_CERT_FILE, then the machine's]
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Take plain http:// for good: everybody on the way can read the files and their secrets
    #[arg(long)]
    pub insecure: bool,
    /// Give up after so long without progress
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = duration_ms)]
    pub timeout: u64,
}

fn byte_count(text: &str) -> Result<u64, String> {
    let amount = Quantity::parse(text).map(Quantity::rounded_up_to_bytes);
    let bytes = amount.and_then(|bytes| u64::try_from(bytes).ok()).filter(|bytes| *bytes > 0);
    bytes.ok_or_else(|| "expected an amount of bytes like `500Mi` or `2Gi`".to_owned())
}
