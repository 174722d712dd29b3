//! The page's files. They are the same for every run.

use std::io;

use crate::answer::NO_SNIFFING;
use posse_serve::{Request, Responder};

/// One file.
#[derive(Debug)]
pub struct File {
    path: &'static str,
    media_type: &'static str,
    text: &'static str,
}

const FILES: [File; 3] = [
    File { path: "/", media_type: "text/html; charset=utf-8", text: include_str!("page.html") },
    File {
        path: "/page.css",
        media_type: "text/css; charset=utf-8",
        text: include_str!("page.css"),
    },
    File {
        path: "/page.js",
        media_type: "text/javascript; charset=utf-8",
        text: include_str!("page.js"),
    },
];

/// The page loads its own two files and talks to its own server, nothing else. No page may show it in a
/// frame. Text can never become markup or code (Trusted Types).
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
                      require-trusted-types-for 'script'; trusted-types 'none'";

/// The file that a request reads, if it reads one.
pub fn find(request: &Request) -> Option<&'static File> {
    let is_read = matches!(request.method.as_str(), "GET" | "HEAD");
    FILES.iter().find(|file| is_read && file.path == request.path)
}

impl File {
    /// Answers with the file.
    pub fn send(&self, responder: Responder<'_>) -> io::Result<()> {
        let headers = [
            ("content-type", self.media_type),
            ("content-security-policy", POLICY),
            NO_SNIFFING,
            // A new version of posse brings a new page.
            ("cache-control", "no-cache"),
            ("referrer-policy", "no-referrer"),
            // Keeps the page's window apart from those of other sites.
            ("cross-origin-opener-policy", "same-origin"),
            ("cross-origin-resource-policy", "same-origin"),
        ];
        responder.send(200, &headers, self.text.as_bytes())
    }
}
