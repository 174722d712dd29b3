//! Entries of `credentials`: their commands, and what executors get of them.

use std::fmt;

use serde_json::{Map, Value, json};

use crate::pod::placeholders;
use crate::pod::template::{Template, TemplateError, containers_mut};

/// The folder into which the command writes.
pub const DIR: &str = "{{DIR}}";
/// The folder in which the driver or the executors find the files.
pub const MOUNT: &str = "{{MOUNT}}";

/// Any user of the pod can read them: the Secret's volume is for this pod alone.
const FILE_MODE: u32 = 0o444;
/// One entry of `credentials`.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    pub name: String,
    /// Writes the files into `DIR`.
    pub command: Vec<String>,
    /// Prints when the files expire. Empty: nobody knows.
    pub expires: Vec<String>,
    /// None: the expiry alone decides.
    pub every_ms: Option<u64>,
    /// How long each of the two commands may take.
    pub timeout_ms: u64,
    /// The Secret's name.
    pub secret: String,
    /// The folder in the executors.
    pub mount: String,
    /// Variables of the driver and the executors, with `MOUNT`.
    pub env: Vec<(String, String)>,
}

impl fmt::Debug for Credentials {
    /// Without commands and variables, because they may contain secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, secret, mount, .. } = self;
        f.debug_struct("Credentials")
            .field("name", name)
            .field("secret", secret)
            .field("mount", mount)
            .finish_non_exhaustive()
    }
}

impl Credentials {
    /// The variables of a process that finds the files in `folder`.
    pub fn env_with(&self, folder: &str) -> Vec<(String, String)> {
        let fill = |(name, value): &(String, String)| (name.clone(), value.replace(MOUNT, folder));
        self.env.iter().map(fill).collect()
    }

    /// Mounts the Secret into all containers of `spec`, the spec of `template`, as a whole folder:
    /// kubelets do not update single files (`subPath`). The template's own mounts and variables win.
    ///
    /// # Errors
    /// A field that has to be extended has the wrong type.
    pub fn mount(
        &self,
        template: &Template,
        spec: &mut Map<String, Value>,
    ) -> Result<(), TemplateError> {
        let volume = format!("posse-credentials-{}", self.name);
        for (field, container) in containers_mut(spec) {
            let mounts =
                template.list(container, "volumeMounts", &format!("{field}.volumeMounts"))?;
            if !mounts.iter().any(|theirs| theirs["mountPath"] == *self.mount) {
                let path = &self.mount;
                mounts.push(json!({ "name": volume, "mountPath": path, "readOnly": true }));
            }
            let env = template.list(container, "env", &format!("{field}.env"))?;
            for (name, value) in self.env_with(&self.mount) {
                if !env.iter().any(|theirs| theirs["name"] == *name) {
                    env.push(json!({ "name": name, "value": value }));
                }
            }
        }
        let source = json!({ "secretName": self.secret, "defaultMode": FILE_MODE });
        template
            .list(spec, "volumes", "spec.volumes")?
            .push(json!({ "name": volume, "secret": source }));
        Ok(())
    }
}

/// The first `{{WORD}}` in a text that is not one of `known`.
pub fn unknown_placeholder<'t>(text: &'t str, known: &[&str]) -> Option<&'t str> {
    text.match_indices("{{").find_map(|(at, _)| {
        let word = placeholders::word(&text[at..])?;
        let word = &text[at..at + "{{".len() + word.len() + "}}".len()];
        (!known.contains(&word)).then_some(word)
    })
}

/// The expiry that a command printed: the last line, as seconds since 1970 or as RFC 3339. In
/// milliseconds since 1970.
pub fn expiry_unix_ms(output: &str) -> Option<u64> {
    let line = output.lines().map(str::trim).rfind(|line| !line.is_empty())?;
    if let Ok(seconds) = line.parse::<u64>() {
        return seconds.checked_mul(1_000);
    }
    let at: jiff::Timestamp = line.parse().ok()?;
    u64::try_from(at.as_millisecond()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> Credentials {
        let text = |text: &str| text.to_owned();
        Credentials {
            name: text("hdfs"),
            command: vec![text("kinit")],
            expires: Vec::new(),
            every_ms: None,
            timeout_ms: 1,
            secret: text("wc-hdfs"),
            mount: text("/creds"),
            env: vec![(text("KRB5CCNAME"), text("FILE:{{MOUNT}}/ccache"))],
        }
    }

    #[test]
    fn every_container_gets_the_folder_and_the_variables() {
        let own = json!({"name": "own", "image": "o", "env": [{"name": "KRB5CCNAME", "value": "mine"}],
            "volumeMounts": [{"name": "mine", "mountPath": "/creds"}]});
        let template = Template::from_json(
            "pod.yaml",
            json!({"spec": {"initContainers": [{"name": "first", "image": "i"}],
                "containers": [{"name": "worker", "image": "w"}, own]}}),
        )
        .unwrap();
        let mut spec = template.spec.clone();
        entry().mount(&template, &mut spec).unwrap();
        for container in [&spec["initContainers"][0], &spec["containers"][0]] {
            assert_eq!(
                container["volumeMounts"],
                json!([{"name": "posse-credentials-hdfs", "mountPath": "/creds", "readOnly": true}])
            );
            let want = json!([{"name": "KRB5CCNAME", "value": "FILE:/creds/ccache"}]);
            assert_eq!(container["env"], want);
        }
        assert_eq!(spec["containers"][1], own);
        let source = json!({"secretName": "wc-hdfs", "defaultMode": 0o444});
        let want = json!([{"name": "posse-credentials-hdfs", "secret": source}]);
        assert_eq!(spec["volumes"], want);

        let wrong = json!({"spec": {"containers": [{"name": "w"}], "volumes": {}}});
        let template = Template::from_json("pod.yaml", wrong).unwrap();
        let error = entry().mount(&template, &mut template.spec.clone()).unwrap_err();
        assert!(error.to_string().contains("spec.volumes: expected a list"), "{error}");
    }

    #[test]
    fn an_expiry_is_seconds_or_rfc_3339() {
        for (output, want) in [
            ("1767225600\n", Some(1_767_225_600_000)),
            ("note\n2026-01-01T00:00:00Z\n\n", Some(1_767_225_600_000)),
            ("2026-01-01T01:00:00+01:00", Some(1_767_225_600_000)),
            ("", None),
            ("\n", None),
            ("soon", None),
            ("-5", None),
            ("1.5", None),
            ("18446744073709551615", None),
            ("1960-01-01T00:00:00Z", None),
        ] {
            assert_eq!(expiry_unix_ms(output), want, "{output:?}");
        }
    }

    #[test]
    fn unknown_placeholders_are_found() {
        for (text, want) in [
            ("FILE:{{MOUNT}}/ccache", None),
            ("{{DIR}}", Some("{{DIR}}")),
            ("a{{MOUNT}}{{FOO}}", Some("{{FOO}}")),
            ("{{.Values}} {{ x }} {{", None),
        ] {
            assert_eq!(unknown_placeholder(text, &[MOUNT]), want, "{text}");
        }
    }
}
