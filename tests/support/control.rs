//! A simple client of the control API, with one connection for each call. Every answer is checked
//! against the OpenAPI document.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;

use serde_json::Value;

use super::openapi::OpenApi;

/// The document in the source.
pub const DOCUMENT: &str = include_str!("../../crates/control/src/openapi.json");

static OPENAPI: LazyLock<OpenApi> = LazyLock::new(|| OpenApi::parse(DOCUMENT));

/// An answer may wait for the API server.
const LIMIT: Duration = Duration::from_secs(60);

/// The socket of a run. Threads may share it.
#[derive(Clone, Debug)]
pub struct Control {
    pub socket: PathBuf,
}

/// A status code and a body.
#[derive(Clone, Debug)]
pub struct Said {
    pub code: u16,
    pub body: Value,
}

impl Said {
    #[track_caller]
    pub fn ok(self) -> Value {
        assert_eq!(self.code, 200, "{}", self.body);
        self.body
    }
}

impl Control {
    pub fn connect(&self) -> std::io::Result<UnixStream> {
        let stream = UnixStream::connect(&self.socket)?;
        stream.set_read_timeout(Some(LIMIT))?;
        Ok(stream)
    }

    /// One call with any outcome; an error if there was no answer.
    pub fn try_call(&self, method: &str, path: &str, body: &str) -> std::io::Result<(u16, String)> {
        let mut stream = self.connect()?;
        let length = body.len();
        let head = format!("{method} {path} HTTP/1.0\r\ncontent-length: {length}\r\n\r\n");
        // A call that is refused early is answered before it was read completely.
        let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes()));
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        let (head, body) = text.split_once("\r\n\r\n").ok_or(std::io::ErrorKind::InvalidData)?;
        let code = head.split(' ').nth(1).and_then(|code| code.parse().ok());
        Ok((code.ok_or(std::io::ErrorKind::InvalidData)?, body.to_owned()))
    }

    /// One documented call.
    #[track_caller]
    pub fn call(&self, method: &str, path: &str, body: &Value) -> Said {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let (code, text) = match self.try_call(method, path, &body) {
            Ok(answer) => answer,
            Err(error) => panic!("no answer to {method} {path}: {error}"),
        };
        if let Some(error) = OPENAPI.answer_error(method, path, code, &text) {
            panic!("not as the document has it: {error}");
        }
        Said { code, body: serde_json::from_str(&text).unwrap_or(Value::Null) }
    }

    #[track_caller]
    pub fn put(&self, group: &str, body: &Value) -> Said {
        self.call("PUT", &format!("/v1/groups/{group}"), body)
    }

    #[track_caller]
    pub fn delete(&self, group: &str) -> Said {
        self.call("DELETE", &format!("/v1/groups/{group}"), &Value::Null)
    }

    #[track_caller]
    pub fn status(&self) -> Value {
        self.call("GET", "/v1/status", &Value::Null).ok()
    }

    /// One group of the status; none if it is unknown.
    #[track_caller]
    pub fn group(&self, name: &str) -> Option<Value> {
        let status = self.status();
        status["groups"].as_array().unwrap().iter().find(|group| group["group"] == name).cloned()
    }
}
