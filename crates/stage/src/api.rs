//! The HTTP interface of the stage server: uploads, downloads and health checks.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use ring::digest::{SHA256, digest};

use crate::admission::Admission;
use crate::quotas::NoRoom;
use crate::range::{self, Range};
use crate::reviews::Denied;
use crate::store::{Bundle, Store, StoreError, random_hex};
use posse_serve::token::bearer;
use posse_serve::{Body, Handler, Receiver, Rejection, Request, Responder};
use posse_wire::bundle::{Label, accepted, hex};
use posse_wire::control::error_body;
use posse_wire::names::namespace_error;

/// The path of uploads. With `/ID` appended, the path of a bundle.
pub(super) const BUNDLES: &str = "/v1/bundles";

/// Length of a bundle's secret.
const SECRET_BYTES: usize = 32;

/// The one answer to all failed downloads. A client cannot tell whether the bundle exists.
const NO_BUNDLE: &str = "there is no such bundle, or it was dropped, or the secret does not match";

/// Serves one store.
#[derive(Debug)]
pub(super) struct Api {
    pub(super) store: Arc<Store>,
    pub(super) admission: Admission,
}

/// A response without a bundle.
struct Answer {
    status: u16,
    body: Vec<u8>,
}

impl Answer {
    fn error(status: u16, what: &str) -> Self {
        Self { status, body: error_body(what, None) }
    }

    fn send(&self, responder: Responder<'_>) -> io::Result<()> {
        let mut headers = vec![("content-type", "application/json")];
        match self.status {
            401 => headers.push(("www-authenticate", "Bearer")),
            503 => headers.push(("retry-after", "5")),
            _ => {}
        }
        responder.send(self.status, &headers, &self.body)
    }
}

impl Receiver for Api {
    fn authorize_waits(&self) -> bool {
        self.admission.waits()
    }

    fn authorize(&self, request: &Request, source: Option<IpAddr>) -> Result<(), Rejection> {
        let namespace = request.query("namespace").unwrap_or_default();
        let reject = |status, body| Rejection { status, body };
        if let Some(why) = namespace_error(namespace) {
            return Err(reject(400, error_body(&why, Some("namespace"))));
        }
        let token = request.header("authorization");
        self.admission.admit(token, namespace, source).map_err(|denied| match denied {
            Denied::Forbidden(why) => reject(403, error_body(&why, None)),
            Denied::Unavailable(why) => reject(503, error_body(&why, None)),
            Denied::Unauthenticated(why) => reject(401, error_body(&why, None)),
        })
    }

    fn receive(
        &self,
        request: Request,
        body: &mut Body<'_, '_>,
        responder: Responder<'_>,
    ) -> io::Result<()> {
        self.receive_bundle(&request, body).unwrap_or_else(|refusal| refusal).send(responder)
    }
}

impl Handler for Api {
    fn is_probe(&self, request: &Request) -> bool {
        matches!(request.path.as_str(), "/healthz" | "/readyz")
    }

    fn receiver(&self, request: &Request) -> Option<&dyn Receiver> {
        (request.method == "POST" && request.path == BUNDLES).then_some(self)
    }

    fn handle(&self, request: Request, responder: Responder<'_>) -> io::Result<()> {
        let id = request.path.strip_prefix(BUNDLES).and_then(|rest| rest.strip_prefix('/'));
        match (request.method.as_str(), request.path.as_str(), id) {
            ("GET" | "HEAD", _, Some(id)) => self.send_bundle(&request, id, responder),
            ("GET" | "HEAD", "/healthz", _) => responder.send(200, &[], b"ok\n"),
            ("GET" | "HEAD", "/readyz", _) => match self.store.free_bytes() {
                Ok(_) => responder.send(200, &[], b"ok\n"),
                Err(error) => {
                    Answer::error(503, &format!("the bundle folder cannot be used: {error}"))
                        .send(responder)
                }
            },
            (_, BUNDLES | "/healthz" | "/readyz", _) | (_, _, Some(_)) => {
                Answer::error(405, "this path does not support this method").send(responder)
            }
            _ => Answer::error(404, "there is nothing at this path").send(responder),
        }
    }
}

impl Api {
    /// Stores a bundle. All checks that do not need the content come before it is received.
    fn receive_bundle(&self, request: &Request, body: &mut Body<'_, '_>) -> Result<Answer, Answer> {
        let namespace = request.query("namespace").unwrap_or_default();
        let secret =
            random_hex(SECRET_BYTES).map_err(|error| Answer::error(500, &error.to_string()))?;
        let text = |name: &str| request.query(name).unwrap_or_default().to_owned();
        let label = Label {
            namespace: namespace.to_owned(),
            owner: text("app"),
            file: text("file"),
            bytes: body.length(),
            sha256: text("sha256"),
            secret_sha256: hex(digest(&SHA256, secret.as_bytes()).as_ref()),
        };
        if let Some((field, why)) = label.error() {
            return Err(Answer { status: 400, body: error_body(&why, Some(field)) });
        }
        let what =
            format!("{} ({} bytes) for {namespace}/{}", label.file, label.bytes, label.owner);
        let client = Arc::new(body.client());
        let stored = self.store.begin(label, client).and_then(|incoming| incoming.store(body));
        let id = stored.map_err(|error| {
            log::warn!("refused {what}: {error}");
            Answer::error(status_of(&error), &error.to_string())
        })?;
        log::info!("stored {what} as bundle {id}");
        Ok(Answer { status: 201, body: accepted(&id, &secret).into_bytes() })
    }

    /// Sends a bundle, or the requested range of it.
    fn send_bundle(&self, request: &Request, id: &str, responder: Responder<'_>) -> io::Result<()> {
        let secret = bearer(request.header("authorization")).unwrap_or_default();
        let found = self.store.find(id, secret).and_then(|bundle| {
            let length = bundle.label.bytes;
            let range = range::parse(request.header("range"), length);
            let from = if let Range::Part { from, .. } = range { from } else { 0 };
            match self.store.read(&bundle, from) {
                Ok(file) => Some((bundle, range, file)),
                Err(error) => {
                    log::warn!("bundle {id} cannot be read: {error}");
                    None
                }
            }
        });
        let Some((bundle, range, mut file)) = found else {
            return Answer::error(404, NO_BUNDLE).send(responder);
        };
        let length = bundle.label.bytes;
        let (status, from, to) = match range {
            Range::Part { from, to } => (206, from, to),
            Range::Whole => (200, 0, length),
            Range::Unsatisfiable => {
                let headers = [("content-range", format!("bytes */{length}"))];
                return responder.send(
                    416,
                    &headers.each_ref().map(|(k, v)| (*k, v.as_str())),
                    &[],
                );
            }
        };
        let last = to.saturating_sub(1);
        let headers = headers_of(&bundle, (status == 206).then_some((from, last)));
        let headers: Vec<(&str, &str)> = headers.iter().map(|(k, v)| (*k, v.as_str())).collect();
        let sent = responder.send_from(status, &headers, to - from, &mut file);
        // A long download counts as used until its end.
        self.store.touch(&bundle, &file);
        sent
    }
}

fn headers_of(bundle: &Bundle, part: Option<(u64, u64)>) -> Vec<(&'static str, String)> {
    let Label { bytes, file, sha256, .. } = &bundle.label;
    let name = percent_encoding::utf8_percent_encode(file, percent_encoding::NON_ALPHANUMERIC);
    let mut headers = vec![
        ("content-type", "application/octet-stream".to_owned()),
        ("content-disposition", format!("attachment; filename*=UTF-8''{name}")),
        ("accept-ranges", "bytes".to_owned()),
        ("etag", format!("\"{sha256}\"")),
    ];
    headers
        .extend(part.map(|(from, last)| ("content-range", format!("bytes {from}-{last}/{bytes}"))));
    headers
}

fn status_of(error: &StoreError) -> u16 {
    match error {
        StoreError::Broken(_) => 500,
        StoreError::Cut(_) => 408,
        StoreError::DiskFull | StoreError::TooMany => 507,
        StoreError::Mismatch => 422,
        // The status that the API server uses for an exceeded quota.
        StoreError::NoRoom(NoRoom::Bytes { .. } | NoRoom::Bundles { .. }) => 403,
        // A later try may find room.
        StoreError::NoRoom(NoRoom::Displaced) => 503,
        StoreError::TooLarge { .. } => 413,
    }
}
