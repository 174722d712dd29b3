//! The files of the pages. They are the same for every run and every cluster.

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

impl File {
    const fn html(text: &'static str) -> Self {
        Self { path: "/", media_type: "text/html; charset=utf-8", text }
    }

    const fn program(path: &'static str, text: &'static str) -> Self {
        Self { path, media_type: "text/javascript; charset=utf-8", text }
    }
}

const COMMON: File = File::program("/common.js", include_str!("common.js"));
const STYLE: File = File {
    path: "/page.css",
    media_type: "text/css; charset=utf-8",
    text: include_str!("page.css"),
};

/// The page of a run.
pub static RUN: [File; 4] = [
    File::html(include_str!("page.html")),
    STYLE,
    COMMON,
    File::program("/page.js", include_str!("page.js")),
];

/// The page of all applications.
pub static APPS: [File; 4] = [
    File::html(include_str!("apps.html")),
    STYLE,
    COMMON,
    File::program("/apps.js", include_str!("apps.js")),
];

/// A page loads its own files and talks to its own server, nothing else. No page may show it in a
/// frame. Text can never become markup or code (Trusted Types).
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
                      require-trusted-types-for 'script'; trusted-types 'none'";

/// The file of a page that a request reads, if it reads one.
pub fn find(files: &'static [File], request: &Request) -> Option<&'static File> {
    let is_read = matches!(request.method.as_str(), "GET" | "HEAD");
    files.iter().find(|file| is_read && file.path == request.path)
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
