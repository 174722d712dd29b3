//! The health endpoints `/healthz`, `/livez` and `/readyz`. A server that answers is healthy.

const PATHS: [&str; 3] = ["/healthz", "/livez", "/readyz"];

pub(crate) fn knows(path: &str) -> bool {
    PATHS.contains(&path)
}

pub(crate) fn paths() -> impl Iterator<Item = String> {
    PATHS.into_iter().map(str::to_owned)
}
