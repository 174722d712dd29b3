//! Writes kubeconfig files, for the user and for pods.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

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
    let (user, users) = match token {
        None => ("\"\"", " []".to_owned()),
        Some(token) => {
            ("posse-dev", format!("\n- name: posse-dev\n  user: {{token: \"{token}\"}}"))
        }
    };
    let text = format!(
        "apiVersion: v1\n\
         kind: Config\n\
         current-context: posse-dev\n\
         contexts:\n\
         - name: posse-dev\n\
         \x20 context: {{cluster: posse-dev, namespace: {namespace}, user: {user}}}\n\
         clusters:\n\
         - name: posse-dev\n\
         \x20 cluster: {{server: \"{url}\", certificate-authority-data: \"{authority}\"}}\n\
         users:{users}\n"
    );
    let mut part = path.to_owned().into_os_string();
    part.push(format!(".{}", std::process::id()));
    // The file has a token: it must be new, so that no other user can have it open or have put a link
    // there. An old part of a process with this number is removed first.
    let _ = fs::remove_file(&part);
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&part)?;
    let written = file.write_all(text.as_bytes()).and_then(|()| fs::rename(&part, path));
    written.inspect_err(|_| drop(fs::remove_file(&part)))
}
