//! The health endpoints `/healthz`, `/livez` and `/readyz`. A server that answers is healthy.

use posse_serve::Request;

const PATHS: [&str; 3] = ["healthz", "livez", "readyz"];
/// The checks in the order of `?verbose`; each has its own path.
const CHECKS: [&str; 3] = ["ping", "log", "etcd"];

/// True for `/livez`, `/livez/ping` and the like.
pub(crate) fn knows(path: &str) -> bool {
    paths().any(|known| known == path)
}

pub(crate) fn paths() -> impl Iterator<Item = String> {
    PATHS.into_iter().flat_map(|path| {
        let checks = CHECKS.into_iter().map(move |check| format!("/{path}/{check}"));
        [format!("/{path}")].into_iter().chain(checks)
    })
}

/// The body for a health path.
pub(crate) fn text(request: &Request) -> Vec<u8> {
    let path = request.path.trim_start_matches('/');
    if request.query("verbose").is_none() || !PATHS.contains(&path) {
        return b"ok".to_vec();
    }
    let excluded = |check: &str| request.query.iter().any(|(k, v)| k == "exclude" && v == check);
    let lines = CHECKS.into_iter().map(|check| {
        let word = if excluded(check) { " excluded:" } else { "" };
        format!("[+]{check}{word} ok\n")
    });
    let all: String = lines.collect();
    format!("{all}{path} check passed\n").into_bytes()
}
