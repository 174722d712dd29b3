//! Owns the server's calls: what is asked over HTTP, and in which words it is refused. Where bundles
//! lie and how long is `store`'s and `sweep`'s.

use std::io;
use std::sync::Arc;

use ring::digest::{SHA256, digest};
use ring::rand::SystemRandom;

use crate::serve::token::bearer;
use crate::serve::{Body, Handler, Receiver, Request, Responder};
use crate::stage::admission::{Admission, Denied};
use crate::stage::store::{Bundle, Refused, Store, random_hex};
use crate::wire::bundle::{Label, accepted, hex};
use crate::wire::control::error_body;
use crate::wire::range::{self, Range};

/// Where bundles are left, and, with an id behind it, fetched.
pub(super) const BUNDLES: &str = "/v1/bundles";

/// The bytes of a bundle's secret.
const SECRET_BYTES: usize = 32;

/// What a bundle that is not given is answered with: from outside nobody learns why not.
const NO_BUNDLE: &str = "there is no such bundle, or no longer, or this secret does not open it";

/// Serves one store.
#[derive(Debug)]
pub(super) struct Api {
    pub(super) store: Arc<Store>,
    pub(super) admission: Admission,
    pub(super) random: SystemRandom,
}

/// An answer that carries no bundle.
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
    fn receive(
        &self,
        request: Request,
        body: &mut Body<'_, '_>,
        responder: Responder<'_>,
    ) -> io::Result<()> {
        self.take(&request, body).unwrap_or_else(|refusal| refusal).send(responder)
    }
}

impl Handler for Api {
    fn receiver(&self, request: &Request) -> Option<&dyn Receiver> {
        (request.method == "POST" && request.path == BUNDLES).then_some(self)
    }

    fn handle(&self, request: Request, responder: Responder<'_>) -> io::Result<()> {
        let id = request.path.strip_prefix(BUNDLES).and_then(|rest| rest.strip_prefix('/'));
        match (request.method.as_str(), request.path.as_str(), id) {
            ("GET" | "HEAD", _, Some(id)) => self.give(&request, id, responder),
            ("GET" | "HEAD", "/healthz", _) => responder.send(200, &[], b"ok\n"),
            ("GET" | "HEAD", "/readyz", _) => match self.store.room() {
                Ok(_) => responder.send(200, &[], b"ok\n"),
                Err(error) => Answer::error(503, &format!("the folder: {error}")).send(responder),
            },
            (_, BUNDLES | "/healthz" | "/readyz", _) | (_, _, Some(_)) => {
                Answer::error(405, "this method is not for this path").send(responder)
            }
            _ => Answer::error(404, "there is nothing at this path").send(responder),
        }
    }
}

impl Api {
    /// Takes a bundle in. All that can be refused is refused before the client is asked for it.
    fn take(&self, request: &Request, body: &mut Body<'_, '_>) -> Result<Answer, Answer> {
        let namespace = request.query("namespace").unwrap_or_default();
        self.admission.admit(request.header("authorization"), namespace).map_err(denied)?;
        let secret = random_hex(&self.random, SECRET_BYTES)
            .map_err(|error| Answer::error(500, &error.to_string()))?;
        let text = |name: &str| request.query(name).unwrap_or_default().to_owned();
        let label = Label {
            namespace: namespace.to_owned(),
            owner: text("app"),
            file: text("file"),
            bytes: body.length(),
            sha256: text("sha256"),
            secret_sha256: hex(digest(&SHA256, secret.as_bytes()).as_ref()),
        };
        if let Some((field, why)) = label.mistake() {
            return Err(Answer { status: 400, body: error_body(&why, Some(field)) });
        }
        let what =
            format!("{} ({} bytes) for {namespace}/{}", label.file, label.bytes, label.owner);
        let filled = self.store.reserve(label).and_then(|reserved| reserved.fill(body));
        let id = filled.map_err(|refused| {
            log::warn!("{what}: {refused}");
            Answer::error(status_of(&refused), &refused.to_string())
        })?;
        log::info!("{what}: bundle {id}");
        Ok(Answer { status: 201, body: accepted(&id, &secret).into_bytes() })
    }

    /// Gives a bundle, or the part of it that is asked for.
    fn give(&self, request: &Request, id: &str, responder: Responder<'_>) -> io::Result<()> {
        let secret = bearer(request.header("authorization")).unwrap_or_default();
        let opened = self.store.find(id, secret).and_then(|bundle| {
            let whole = bundle.label.bytes;
            let range = range::parse(request.header("range"), whole);
            let from = if let Range::Part { from, .. } = range { from } else { 0 };
            match self.store.read(&bundle, from) {
                Ok(file) => Some((bundle, range, file)),
                Err(error) => {
                    log::warn!("bundle {id} cannot be read: {error}");
                    None
                }
            }
        });
        let Some((bundle, range, mut file)) = opened else {
            return Answer::error(404, NO_BUNDLE).send(responder);
        };
        let whole = bundle.label.bytes;
        let (status, from, to) = match range {
            Range::Part { from, to } => (206, from, to),
            Range::Whole => (200, 0, whole),
            Range::Unsatisfiable => {
                let headers = [("content-range", format!("bytes */{whole}"))];
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
        // What took long to send was in use all the time.
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

fn denied(denied: Denied) -> Answer {
    match denied {
        Denied::Forbidden(why) => Answer::error(403, &why),
        Denied::NotNow(why) => Answer::error(503, &why),
        Denied::Unknown => Answer::error(401, "this takes a bearer token that is known here"),
    }
}

fn status_of(refused: &Refused) -> u16 {
    match refused {
        Refused::Broken(_) => 500,
        Refused::Cut(_) => 408,
        Refused::DiskFull | Refused::TooMany => 507,
        Refused::Mismatch => 422,
        // As the API server answers where a quota is full.
        Refused::Quota { .. } => 403,
        Refused::TooLarge { .. } => 413,
    }
}
