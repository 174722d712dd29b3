//! Writes kubeconfig files, for the user and for pods.

use std::io;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use posse_base::files;

/// How the reader of the file reaches the server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Access<'a> {
    pub(crate) url: &'a str,
    /// The authority of the server's certificate, PEM.
    pub(crate) authority: &'a str,
    pub(crate) namespace: &'a str,
    /// `None` if clients do not authenticate.
    pub(crate) token: Option<&'a str>,
}

/// Writes a kubeconfig atomically: a process that waits for the file may read it as soon as it
/// exists.
pub(crate) fn write(path: &Path, access: &Access<'_>) -> io::Result<()> {
    let Access { url, authority, namespace, token } = access;
    let authority = STANDARD.encode(authority);
    // A context without a user in the list is an error to some clients, even if no token is needed.
    let user = token.map_or_else(|| "{}".to_owned(), |token| format!("{{token: \"{token}\"}}"));
    let text = format!(
        "apiVersion: v1\n\
         kind: Config\n\
         current-context: posse-dev\n\
         contexts:\n\
         - name: posse-dev\n\
         \x20 context: {{cluster: posse-dev, namespace: {namespace}, user: posse-dev}}\n\
         clusters:\n\
         - name: posse-dev\n\
         \x20 cluster: {{server: \"{url}\", certificate-authority-data: \"{authority}\"}}\n\
         users:\n\
         - name: posse-dev\n\
         \x20 user: {user}\n"
    );
    files::replace(path, text.as_bytes())
}
