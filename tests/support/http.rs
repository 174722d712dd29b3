//! A small independent HTTP client: raw JSON to and from a server, without code of posse.

use std::fmt;
use std::io::{BufRead, BufReader};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use ureq::http::Response;
use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig};
use ureq::{Agent, Body};

use super::access::Access;
use super::wait::PATIENCE;

/// The timeout of a request, so that a paused server is noticed.
const REQUEST_LIMIT: Duration = Duration::from_secs(60);

/// An answer: its status and its body, `Null` if the body is not JSON.
#[derive(Clone, Debug)]
pub struct Answer {
    pub code: u16,
    pub body: Value,
}

impl Answer {
    /// The body of a success.
    #[track_caller]
    pub fn ok(self) -> Value {
        assert!((200..300).contains(&self.code), "refused with {}: {}", self.code, self.body);
        self.body
    }

    /// The same for something that may be gone already.
    #[track_caller]
    pub fn ok_or_gone(self) {
        if self.code != 404 {
            self.ok();
        }
    }
}

/// A request, sent unchanged.
#[derive(Clone, Copy, Debug)]
pub struct Exchange<'a> {
    pub method: &'a str,
    pub path: &'a str,
    pub headers: &'a [(&'a str, &'a str)],
    pub body: Option<&'a [u8]>,
}

/// A client with one identity at one server.
#[derive(Clone)]
pub struct Client {
    url: String,
    bearer: Option<String>,
    agent: Agent,
    name: &'static str,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.name, self.url)
    }
}

impl Client {
    /// `name` is the user agent, by which the audit log shows who wrote what.
    pub fn new(access: &Access, name: &'static str) -> Self {
        let mut tls = TlsConfig::builder()
            .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()));
        if let Some(ca) = &access.ca {
            let ca = Certificate::from_pem(ca.as_bytes()).expect("the CA is PEM");
            tls = tls.root_certs(RootCerts::new_with_certs(&[ca]));
        }
        if let Some(pair) = &access.client {
            let cert = Certificate::from_pem(pair.cert.as_bytes()).expect("the certificate is PEM");
            let key = PrivateKey::from_pem(pair.key.as_bytes()).expect("the key is PEM");
            tls = tls.client_cert(Some(ClientCert::new_with_certs(&[cert], key)));
        }
        let agent = Agent::config_builder()
            .proxy(None)
            .http_status_as_error(false)
            .max_redirects(0)
            .user_agent(name)
            .timeout_connect(Some(PATIENCE))
            .tls_config(tls.build())
            .build()
            .new_agent();
        let bearer = access.token.as_ref().map(|token| format!("Bearer {token}"));
        Self { url: access.url.clone(), bearer, agent, name }
    }

    /// Sends a request unchanged and returns the answer with its body unread.
    pub fn raw(
        &self,
        method: &str,
        path: &str,
        headers: &[(String, String)],
        body: &[u8],
        limit: Option<Duration>,
    ) -> Result<Response<Body>, ureq::Error> {
        let url = format!("{}{path}", self.url);
        let mut all = headers.to_vec();
        all.extend(self.bearer.iter().map(|b| ("authorization".to_owned(), b.clone())));
        macro_rules! with_headers {
            ($request:expr) => {{
                let mut request = $request;
                for (name, value) in &all {
                    request = request.header(name, value);
                }
                request.config().timeout_global(limit).build()
            }};
        }
        match method {
            "GET" => with_headers!(self.agent.get(&url)).call(),
            "DELETE" => with_headers!(self.agent.delete(&url).force_send_body()).send(body),
            "PATCH" => with_headers!(self.agent.patch(&url)).send(body),
            "POST" => with_headers!(self.agent.post(&url)).send(body),
            "PUT" => with_headers!(self.agent.put(&url)).send(body),
            other => panic!("no test sends {other}"),
        }
    }

    /// Sends any method with any body, or none; returns status, headers and the whole body.
    pub fn exchange(&self, exchange: &Exchange<'_>) -> Result<Response<Vec<u8>>, ureq::Error> {
        let mut request = ureq::http::Request::builder()
            .method(exchange.method)
            .uri(format!("{}{}", self.url, exchange.path));
        for (name, value) in exchange.headers {
            request = request.header(*name, *value);
        }
        if let Some(bearer) = &self.bearer {
            request = request.header("authorization", bearer);
        }
        let answer = match exchange.body {
            Some(body) => {
                let request = self.agent.configure_request(request.body(body)?);
                self.agent.run(request.allow_non_standard_methods(true).build())
            }
            None => {
                let request = self.agent.configure_request(request.body(())?);
                self.agent.run(request.allow_non_standard_methods(true).build())
            }
        }?;
        let (parts, body) = answer.into_parts();
        let bytes = body.into_with_config().limit(256 << 20).read_to_vec()?;
        Ok(Response::from_parts(parts, bytes))
    }

    /// One call; an error if there was no answer.
    pub fn try_call(
        &self,
        method: &str,
        path: &str,
        content_type: &str,
        body: &Value,
    ) -> Result<Answer, ureq::Error> {
        let headers = [("content-type".to_owned(), content_type.to_owned())];
        let bytes = body.to_string();
        let answer = self.raw(method, path, &headers, bytes.as_bytes(), Some(REQUEST_LIMIT))?;
        let code = answer.status().as_u16();
        let body = answer.into_body().with_config().limit(256 << 20).read_to_vec()?;
        Ok(Answer { code, body: serde_json::from_slice(&body).unwrap_or(Value::Null) })
    }

    #[track_caller]
    fn call(&self, method: &str, path: &str, content_type: &str, body: &Value) -> Answer {
        match self.try_call(method, path, content_type, body) {
            Ok(answer) => answer,
            Err(e) => panic!("{self:?}: no answer to {method} {path}: {e}"),
        }
    }

    #[track_caller]
    pub fn get(&self, path: &str) -> Answer {
        self.call("GET", path, "application/json", &Value::Null)
    }

    #[track_caller]
    pub fn post(&self, path: &str, body: &Value) -> Answer {
        self.call("POST", path, "application/json", body)
    }

    #[track_caller]
    pub fn merge_patch(&self, path: &str, body: &Value) -> Answer {
        self.call("PATCH", path, "application/merge-patch+json", body)
    }

    #[track_caller]
    pub fn delete(&self, path: &str, options: &Value) -> Answer {
        self.call("DELETE", path, "application/json", options)
    }

    /// Watches `path` (including its query) from `version` on, until `on_line` returns false.
    pub fn watch(&self, path: &str, mut on_line: impl FnMut(Value) -> bool) {
        let Ok(answer) = self.raw("GET", path, &[], &[], None) else { return };
        if answer.status() != 200 {
            return;
        }
        for line in BufReader::new(answer.into_body().into_reader()).lines() {
            let Ok(line) = line else { return };
            let Ok(line) = serde_json::from_str(&line) else { return };
            if !on_line(line) {
                return;
            }
        }
    }

    /// Ends all requests of this client, blocked reads too; it cannot be used afterwards.
    pub fn shutdown(&self) {
        self.agent.clone().shutdown();
    }
}

/// DeleteOptions: without grace, and only this uid.
pub fn gone_now(uid: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0,
           "preconditions": {"uid": uid}})
}

/// DeleteOptions with a grace, as `kubectl delete` sends them.
pub fn gone_in(seconds: u32) -> Value {
    json!({"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": seconds})
}
