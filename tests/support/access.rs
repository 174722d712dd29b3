//! The address and the credentials for a server, written to and read from kubeconfig files.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use posse_encoding::yaml::Node;
use serde_json::{Value, json};

use super::certs::Pair;

/// A server's address and an identity.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// `https://127.0.0.1:6443`, without a slash at the end.
    pub url: String,
    /// PEM.
    pub ca: Option<String>,
    pub client: Option<Pair>,
    pub token: Option<String>,
    /// The client reads the file again at any time.
    pub token_file: Option<String>,
}

impl Access {
    /// A kubeconfig (JSON is YAML) with one context.
    pub fn kubeconfig(&self, namespace: &str) -> String {
        let data = |pem: &str| Value::from(STANDARD.encode(pem));
        let mut cluster = json!({"server": self.url});
        if let Some(ca) = &self.ca {
            cluster["certificate-authority-data"] = data(ca);
        }
        let mut user = json!({});
        if let Some(pair) = &self.client {
            user["client-certificate-data"] = data(&pair.cert);
            user["client-key-data"] = data(&pair.key);
        }
        if let Some(token) = &self.token {
            user["token"] = token.as_str().into();
        }
        if let Some(file) = &self.token_file {
            user["tokenFile"] = file.as_str().into();
        }
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "test", "user": user}],
            "contexts": [{"name": "test", "context":
                {"cluster": "test", "user": "test", "namespace": namespace}}],
        });
        format!("{config:#}\n")
    }

    /// The first cluster and the first user of a kubeconfig with inline data.
    pub fn from_kubeconfig(path: &Path) -> Self {
        let text = std::fs::read_to_string(path).expect("the kubeconfig can be read");
        let config = Node::read(&text).expect("a kubeconfig is YAML").to_json();
        let text_of = |value: &Value| value.as_str().map(str::to_owned);
        let pem_of = |value: &Value| {
            let bytes = STANDARD.decode(value.as_str()?).expect("base64 in the kubeconfig");
            Some(String::from_utf8(bytes).expect("PEM in the kubeconfig"))
        };
        let cluster = &config["clusters"][0]["cluster"];
        let user = &config["users"][0]["user"];
        let client = pem_of(&user["client-certificate-data"])
            .zip(pem_of(&user["client-key-data"]))
            .map(|(cert, key)| Pair { cert, key });
        Self {
            url: text_of(&cluster["server"]).expect("a server in the kubeconfig"),
            ca: pem_of(&cluster["certificate-authority-data"]),
            client,
            token: text_of(&user["token"]),
            token_file: text_of(&user["tokenFile"]),
        }
    }
}
