//! The arguments of `posse stage`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::format::FormatArgs;
use super::{ServerArgs, duration_ms, named};
use posse_encoding::quantity::Quantity;
use posse_wire::names;

/// The commands of `posse stage`.
#[derive(Clone, Debug, Subcommand)]
pub enum StageCommand {
    /// Run a server in the cluster that stores files for pods
    Serve(ServeArgs),
    /// Upload files to a stage server, each as one bundle
    Put(PutArgs),
    /// Download the files of a ticket into a folder, and verify them
    Get(GetArgs),
}

/// `posse stage serve`.
#[derive(Args, Clone, Debug)]
pub struct ServeArgs {
    /// The address to listen on; port 0 chooses a free port
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:8443")]
    pub listen: SocketAddr,
    /// The folder for the bundles, for this server alone; created if missing
    #[arg(long, value_name = "FOLDER")]
    pub dir: PathBuf,
    /// The certificate with its chain, PEM; posse reads it again when it changes
    #[arg(long, value_name = "FILE", requires = "key", required_unless_present = "insecure")]
    pub cert: Option<PathBuf>,
    /// The certificate's key, PEM
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub key: Option<PathBuf>,
    /// Serve plain HTTP: others on the network can read the files and their secrets
    #[arg(long, conflicts_with = "cert")]
    pub insecure: bool,
    /// Accept uploads with the token in this file
    #[arg(long, value_name = "FILE", required_unless_present = "token_review")]
    pub token_file: Option<PathBuf>,
    /// Accept uploads with a cluster token whose user may create pods in the bundle's namespace
    #[arg(long, conflicts_with = "token_file")]
    pub token_review: bool,
    /// The size limit of one bundle, as a Kubernetes quantity
    #[arg(long, value_name = "QUANTITY", default_value = "2Gi", value_parser = byte_count)]
    pub bundle_bytes_max: u64,
    /// The size limit of all bundles of one namespace together
    #[arg(long, value_name = "QUANTITY", default_value = "20Gi", value_parser = byte_count)]
    pub namespace_bytes_max: u64,
    /// The number of bundles of one namespace; a bundle counts as 4Ki at least
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    pub namespace_bundles_max: usize,
    /// Delete a bundle that nobody downloaded for this time, if its application has no pods
    #[arg(long, value_name = "DURATION", default_value = "30m", value_parser = duration_ms)]
    pub idle: u64,
    /// Delete a bundle this long after the last pod of its application is gone
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = duration_ms)]
    pub gone: u64,
    #[command(flatten)]
    pub server: ServerArgs,
}

/// `posse stage put`.
#[derive(Args, Clone, Debug)]
// Without --secret-file the output is the ticket, which is JSON.
#[command(mut_arg("output", |arg| arg.requires("secret_file")))]
pub struct PutArgs {
    /// The stage server: https://HOST:PORT
    #[arg(long, value_name = "URL")]
    pub url: String,
    #[command(flatten)]
    pub trust: TrustArgs,
    /// A file with the token for the stage server
    #[arg(long, value_name = "FILE")]
    pub token_file: PathBuf,
    /// The application that the files are for
    #[arg(long, value_name = "NAME", value_parser = named(names::app_name_error))]
    pub app: String,
    /// The namespace of the application's pods
    #[arg(short, long, value_name = "NS", value_parser = named(names::namespace_error))]
    pub namespace: String,
    /// The URL by which pods reach the same server [default: --url]
    #[arg(long, value_name = "URL")]
    pub pod_url: Option<String>,
    /// Write the ticket for `get`, which contains secrets, to this file (mode 0600), and print only
    /// the bundles' ids [default: print the ticket]
    #[arg(long, value_name = "FILE")]
    pub secret_file: Option<PathBuf>,
    #[command(flatten)]
    pub output: FormatArgs,
    /// The files to upload
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
}

/// `posse stage get`.
#[derive(Args, Clone, Debug)]
pub struct GetArgs {
    /// The ticket that `put` wrote
    #[arg(long, value_name = "FILE")]
    pub secret_file: PathBuf,
    /// The folder to write into; created if missing
    #[arg(long, value_name = "FOLDER")]
    pub dir: PathBuf,
    #[command(flatten)]
    pub trust: TrustArgs,
}

/// Files for a submitted application.
#[derive(Args, Clone, Debug, Default)]
pub struct StageFileArgs {
    /// A file for the driver and its executors, which find it in $POSSE_FILES_DIR, by this NAME; can be
    /// repeated. Without --stage-url, 700 kB in all, by a Secret
    #[arg(
        id = "staged",
        long = "file",
        value_name = "PATH[=NAME]",
        help_heading = "Files for the pods"
    )]
    pub files: Vec<PathBuf>,
    /// The stage server that takes the files: https://HOST:PORT
    #[arg(
        long,
        value_name = "URL",
        requires = "stage_token_file",
        help_heading = "Files for the pods"
    )]
    pub stage_url: Option<String>,
    /// The URL by which pods reach the same server [default: --stage-url]
    #[arg(long, value_name = "URL", requires = "stage_url", help_heading = "Files for the pods")]
    pub stage_pod_url: Option<String>,
    /// A file with the token for the stage server
    #[arg(long, value_name = "FILE", help_heading = "Files for the pods")]
    pub stage_token_file: Option<PathBuf>,
    /// The CA of the stage server, PEM [default: SSL_CERT_FILE, then the system's CAs]
    #[arg(long, value_name = "FILE", help_heading = "Files for the pods")]
    pub stage_ca: Option<PathBuf>,
}

/// Trust in a stage server, and the time-out.
#[derive(Args, Clone, Debug, Default)]
pub struct TrustArgs {
    /// The CA of the server, PEM [default: SSL_CERT_FILE, then the system's CAs]
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Allow plain http://: others on the network can read the files and their secrets
    #[arg(long)]
    pub insecure: bool,
    /// Give up if no data moves for this time
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = duration_ms)]
    pub timeout: u64,
}

fn byte_count(text: &str) -> Result<u64, String> {
    let amount = Quantity::parse(text).map(Quantity::rounded_up_to_bytes);
    let bytes = amount.and_then(|bytes| u64::try_from(bytes).ok()).filter(|bytes| *bytes > 0);
    bytes.ok_or_else(|| "expected a number of bytes like `500Mi` or `2Gi`".to_owned())
}
