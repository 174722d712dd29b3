//! What a pod needs to find files that come along: the Secret that has them, or the Secret with the
//! ticket and an init container that fetches them from a stage server.

use serde_json::{Map, Value, json};

use crate::pod::security::own_container;
use crate::pod::template::{Template, TemplateError, containers_mut};

/// Directory of the files, in every container.
pub const FILES_DIR: &str = "/var/posse/files";
/// Environment variable with that directory.
pub const FILES_DIR_VARIABLE: &str = "POSSE_FILES_DIR";
/// Key of the ticket in its Secret.
pub const TICKET_KEY: &str = "ticket";

/// Also the name of the container that fetches them.
pub(super) const FILES_VOLUME: &str = "posse-files";
const TICKET_VOLUME: &str = "posse-ticket";

/// Files that come along with an application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Staged {
    /// Name of the Secret with the ticket, or with the files.
    pub secret: String,
    /// An image that contains posse and fetches the files. None: the Secret has them.
    pub image: Option<String>,
}

impl Staged {
    /// Adds the files to `spec`, the spec of `template`. A fetching init container comes first,
    /// because other init containers may need the files. The template's own mounts and variables
    /// win.
    ///
    /// # Errors
    /// A field that has to be extended has the wrong type.
    pub fn mount(
        &self,
        template: &Template,
        spec: &mut Map<String, Value>,
    ) -> Result<(), TemplateError> {
        for (field, container) in containers_mut(spec) {
            let mounts =
                template.list(container, "volumeMounts", &format!("{field}.volumeMounts"))?;
            if !mounts.iter().any(|theirs| theirs["mountPath"] == FILES_DIR) {
                mounts.push(mount(FILES_VOLUME, FILES_DIR, true));
            }
            let env = template.list(container, "env", &format!("{field}.env"))?;
            if !env.iter().any(|theirs| theirs["name"] == FILES_DIR_VARIABLE) {
                env.push(json!({ "name": FILES_DIR_VARIABLE, "value": FILES_DIR }));
            }
        }
        let volumes = template.list(spec, "volumes", "spec.volumes")?;
        let Some(image) = &self.image else {
            // Any user can read the files and run the scripts among them.
            let source = json!({ "secretName": self.secret, "defaultMode": 0o555 });
            volumes.push(json!({ "name": FILES_VOLUME, "secret": source }));
            return Ok(());
        };
        volumes.push(json!({ "name": FILES_VOLUME, "emptyDir": {} }));
        volumes.push(json!({ "name": TICKET_VOLUME, "secret": { "secretName": self.secret } }));
        let mut fetcher: Value = serde_json::from_slice(FETCHER.as_bytes())
            .expect("our own text is JSON; a test reads it");
        fetcher["image"] = image.as_str().into();
        fetcher["securityContext"] = own_container(spec);
        template.list(spec, "initContainers", "spec.initContainers")?.insert(0, fetcher);
        Ok(())
    }
}

fn mount(name: &str, path: &str, read_only: bool) -> Value {
    json!({ "name": name, "mountPath": path, "readOnly": read_only })
}

/// With limits, because a quota may require them.
const FETCHER: &str = r#"{
    "name": "posse-files",
    "command": ["posse", "stage", "get"],
    "args": ["--secret-file", "/var/run/posse/ticket/ticket", "--dir", "/var/posse/files"],
    "volumeMounts": [
        {"name": "posse-files", "mountPath": "/var/posse/files", "readOnly": false},
        {"name": "posse-ticket", "mountPath": "/var/run/posse/ticket", "readOnly": true}
    ],
    "resources": {"requests": {"cpu": "50m", "memory": "32Mi"},
                  "limits": {"cpu": "1", "memory": "128Mi"}}
}"#;

#[cfg(test)]
mod tests {
    use super::*;

    const TICKET_DIR: &str = "/var/run/posse/ticket";

    fn laid(spec: Value) -> Result<Value, TemplateError> {
        let template = Template::from_json("pod.yaml", json!({ "spec": spec })).unwrap();
        let image = Some("posse:1".to_owned());
        let staged = Staged { secret: "wc-driver".to_owned(), image };
        let mut spec = template.spec.clone();
        staged.mount(&template, &mut spec)?;
        Ok(Value::Object(spec))
    }

    #[test]
    fn every_container_mounts_the_files_and_one_the_ticket() {
        let spec = laid(json!({
            "initContainers": [{ "name": "first", "image": "i" }],
            "containers": [{ "name": "worker", "image": "w", "env": [{ "name": "A", "value": "b" }] },
                           { "name": "own", "image": "o",
                             "env": [{ "name": FILES_DIR_VARIABLE, "value": "/mine" }],
                             "volumeMounts": [{ "name": "mine", "mountPath": FILES_DIR }] }],
            "volumes": [{ "name": "mine", "emptyDir": {} }],
        }))
        .unwrap();
        let fetcher = &spec["initContainers"][0];
        assert_eq!(fetcher["image"], "posse:1");
        assert_eq!(fetcher["args"][1], format!("{TICKET_DIR}/{TICKET_KEY}"));
        assert_eq!(fetcher["args"][3], FILES_DIR);
        let mounts =
            [mount(FILES_VOLUME, FILES_DIR, false), mount(TICKET_VOLUME, TICKET_DIR, true)];
        assert_eq!(fetcher["volumeMounts"], json!(mounts));
        for container in [&spec["initContainers"][1], &spec["containers"][0]] {
            let want = json!([{ "name": "posse-files", "mountPath": FILES_DIR, "readOnly": true }]);
            assert_eq!(container["volumeMounts"], want);
            let env = container["env"].as_array().unwrap();
            assert_eq!(env.last().unwrap()["value"], FILES_DIR);
        }
        let own = &spec["containers"][1];
        assert_eq!(own["env"], json!([{ "name": FILES_DIR_VARIABLE, "value": "/mine" }]));
        assert_eq!(own["volumeMounts"], json!([{ "name": "mine", "mountPath": FILES_DIR }]));
        assert_eq!(spec["volumes"][2]["secret"]["secretName"], "wc-driver");
        // Only the fetching container mounts the ticket, and no argument contains it.
        assert_eq!(spec.to_string().matches(TICKET_DIR).count(), 2);
    }

    #[test]
    fn fields_of_the_wrong_type_are_errors() {
        let error = laid(json!({ "volumes": {}, "containers": [{ "name": "w", "image": "i" }] }));
        assert!(error.unwrap_err().to_string().contains("spec.volumes: expected a list"));
    }
}
