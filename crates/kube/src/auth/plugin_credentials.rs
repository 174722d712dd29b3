//! Runs credential plugins (no shell, limited time and output), reads the ExecCredential that they
//! print, and says when it is renewed.

use std::ffi::OsString;
use std::io::{self, IsTerminal as _};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::{Access, access};

use posse_base::safe_text::SafeText;
use posse_base::text::sanitize_end;
use posse_encoding::yaml::Node;
use posse_process::command::{Call, Failure, Live, RunningCommand, run_call};
use serde::Deserialize;

use crate::config::exec_plugin::ExecPlugin;
use crate::config::pem::{CertPair, client_identity};
use crate::config::{Secret, header_value};

/// The largest output of a plugin, in bytes. A longer output is an error.
const STDOUT_BYTES_MAX: usize = 1 << 20;

/// How much of a plugin's standard error is shown in an error message, in bytes.
const STDERR_BYTES_MAX: usize = 2 << 10;

/// How long a plugin may take that tells a person at a terminal what to do: to open a page and to log in.
const PERSON_TIMEOUT: Duration = Duration::from_secs(600);

/// How long before its expiry a credential from a plugin is renewed.
pub(super) const EXPIRY_MARGIN: Duration = Duration::from_secs(60);

/// The shortest time between two runs of a plugin whose credentials expire almost at once.
const EXEC_AGE_MIN: Duration = Duration::from_secs(10);

/// The credentials that a plugin printed.
#[derive(Debug)]
pub(super) struct PluginCredentials {
    pub(super) token: Option<Secret>,
    pub(super) client_cert: Option<CertPair>,
    expires: Option<SystemTime>,
}

impl PluginCredentials {
    /// When to run the plugin again, which ran at `now`; `None` means never.
    pub(super) fn renew_at(&self, now: Instant) -> Option<Instant> {
        let left = self.expires?.duration_since(SystemTime::now()).unwrap_or_default();
        Some(now + left.saturating_sub(EXPIRY_MARGIN).max(EXEC_AGE_MIN))
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawCredential {
    api_version: Option<String>,
    kind: Option<String>,
    status: Option<RawStatus>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawStatus {
    token: Option<String>,
    client_certificate_data: Option<String>,
    client_key_data: Option<String>,
    expiration_timestamp: Option<String>,
}

/// Runs a plugin and reads what it prints. The error contains nothing of its standard output.
pub(super) fn run(plugin: &ExecPlugin) -> Result<PluginCredentials, String> {
    let output = plugin.output().map_err(|problem| plugin.error(&problem))?;
    plugin.read(&output).map_err(|problem| plugin.error(&problem))
}

impl ExecPlugin {
    fn error(&self, problem: &str) -> String {
        let command = self.command.display();
        match &self.install_hint {
            Some(hint) => format!("credential plugin {command}: {problem}; {}", hint.trim()),
            None => format!("credential plugin {command}: {problem}"),
        }
    }

    fn output(&self) -> Result<String, String> {
        let call = Call {
            words: self.words(),
            env: self.whole_env(),
            timeout: self.timeout,
            output_bytes_max: STDOUT_BYTES_MAX,
            live: io::stderr().is_terminal().then(|| Live {
                errors: Box::new(SafeText::new(io::stderr())),
                timeout: PERSON_TIMEOUT,
            }),
        };
        let output = run_call(call, &RunningCommand::default()).map_err(|failure| {
            let Failure { what, errors, .. } = failure;
            match sanitize_end(errors.end.trim(), STDERR_BYTES_MAX).as_str() {
                "" => what,
                said => format!("{what}: {said}"),
            }
        })?;
        match output.n_bytes > STDOUT_BYTES_MAX as u64 {
            true => Err(format!("printed more than {STDOUT_BYTES_MAX} bytes")),
            false => Ok(output.end),
        }
    }

    fn words(&self) -> Vec<OsString> {
        let args = self.args.iter().map(OsString::from);
        std::iter::once(self.program().into_os_string()).chain(args).collect()
    }

    /// As client-go finds it: in our PATH, whatever the plugin's own is.
    fn program(&self) -> PathBuf {
        let is_name = self.command.components().count() == 1;
        let path = std::env::var_os("PATH").filter(|_| is_name).unwrap_or_default();
        let mut found = std::env::split_paths(&path).map(|folder| folder.join(&self.command));
        let is_program = |at: &PathBuf| at.is_file() && access(at, Access::EXEC_OK).is_ok();
        found.find(is_program).unwrap_or_else(|| self.command.clone())
    }

    /// Ours, and what the kubeconfig and the protocol add.
    fn whole_env(&self) -> Vec<(OsString, OsString)> {
        let mut info = serde_json::json!({
            "apiVersion": self.version.as_str(),
            "kind": "ExecCredential",
            "spec": {"interactive": false},
        });
        if let Some(cluster) = &self.cluster {
            info["spec"]["cluster"] = cluster.clone();
        }
        let own = self.env.iter().map(|(name, value)| (name.into(), value.clone()));
        let info = ("KUBERNETES_EXEC_INFO".into(), info.to_string().into());
        std::env::vars_os().chain(own).chain([info]).collect()
    }

    fn read(&self, output: &str) -> Result<PluginCredentials, String> {
        // serde's message may contain the value, which may be a secret.
        let raw: RawCredential = serde_json::from_str(output).or_else(|e| {
            read_loosely(output).ok_or_else(|| {
                format!("printed no ExecCredential (line {}, column {})", e.line(), e.column())
            })
        })?;
        let version = self.version.as_str();
        if raw.kind.as_deref() != Some("ExecCredential") {
            return Err("printed something whose kind is not ExecCredential".to_owned());
        }
        if raw.api_version.as_deref() != Some(version) {
            return Err(format!("printed another apiVersion than the {version} of the kubeconfig"));
        }
        let status = raw.status.ok_or_else(|| "printed no status".to_owned())?;
        let expires = status.expiration_timestamp.as_deref().map(timestamp).transpose()?;
        let client_cert = pair(status.client_certificate_data, status.client_key_data)?;
        let token = status.token.filter(|token| !token.is_empty()).map(Secret::new);
        if let Some(token) = &token {
            header_value(token.reveal()).map_err(|e| format!("status.token {e}"))?;
        }
        if token.is_none() && client_cert.is_none() {
            return Err("printed neither status.token nor status.clientCertificateData".to_owned());
        }
        Ok(PluginCredentials { token, client_cert, expires })
    }
}

/// As client-go reads it: also YAML, behind a byte order mark, and the last one of equal keys.
fn read_loosely(output: &str) -> Option<RawCredential> {
    let text = output.strip_prefix('\u{feff}').unwrap_or(output);
    let value = match text.trim_start().starts_with('{') {
        true => serde_json::from_str(text).ok()?,
        false => Node::read_loosely(text).ok()?.to_json(),
    };
    serde_json::from_value(value).ok()
}

fn timestamp(text: &str) -> Result<SystemTime, String> {
    text.parse::<jiff::Timestamp>()
        .map(SystemTime::from)
        .map_err(|_| "status.expirationTimestamp is not an RFC 3339 time".to_owned())
}

fn pair(chain: Option<String>, key: Option<String>) -> Result<Option<CertPair>, String> {
    let given = |text: Option<String>| text.filter(|text| !text.is_empty());
    match (given(chain), given(key)) {
        (Some(chain), Some(key)) => {
            let pair = CertPair { chain: chain.into_bytes(), key: key.into_bytes() };
            let fields = ["status.clientCertificateData", "status.clientKeyData"];
            client_identity(&pair, fields.map(str::to_owned).into()).map_err(|e| e.to_string())?;
            Ok(Some(pair))
        }
        (None, None) => Ok(None),
        (Some(_), None) | (None, Some(_)) => {
            Err("printed a client certificate without its key, or the key alone".to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::Pid;

    use super::*;
    use crate::config::exec_plugin::ExecVersion;
    use crate::testing::plugin;
    use posse_testing::{Authority, Folder, Wait};

    const V1: &str = "client.authentication.k8s.io/v1";
    const V1BETA1: &str = "client.authentication.k8s.io/v1beta1";

    fn credential(version: &str, status: &str) -> String {
        format!(
            "cat <<'END'\n{{\"apiVersion\":\"{version}\",\"kind\":\"ExecCredential\",\
             \"status\":{status}}}\nEND"
        )
    }

    #[test]
    fn both_versions_return_a_token() {
        let folder = Folder::new();
        for (version, text) in [(ExecVersion::V1, V1), (ExecVersion::V1beta1, V1BETA1)] {
            let status = r#"{"token":"t","expirationTimestamp":"2100-01-02T03:04:05Z"}"#;
            let plugin = ExecPlugin { version, ..plugin(&folder, &credential(text, status)) };
            let issued = run(&plugin).unwrap();
            assert_eq!(issued.token, Some(Secret::new("t")));
            assert_eq!(issued.client_cert, None);
            let expires = issued.expires.unwrap().duration_since(SystemTime::UNIX_EPOCH).unwrap();
            assert_eq!(expires.as_secs(), 4_102_542_245);
        }
    }

    /// As client-go reads it. Two documents, or a line before the first one, are none of it.
    #[test]
    fn credentials_may_be_yaml() {
        let plugin = plugin(&Folder::new(), "");
        let json =
            format!(r#"{{"apiVersion":"{V1}","kind":"ExecCredential","status":{{"token":"t"}}}}"#);
        let yaml = format!("apiVersion: {V1}\nkind: ExecCredential\nstatus:\n  token: t\n");
        let token = |output: &str| Some(plugin.read(output).ok()?.token?.reveal().to_owned());
        for output in [
            json.clone(),
            format!("\n{json}\n"),
            format!("\u{feff}{json}"),
            json.replace(r#""token""#, r#""token":"s","token""#),
            yaml.clone(),
            format!("---\n{yaml}"),
        ] {
            assert_eq!(token(&output).as_deref(), Some("t"), "{output}");
        }
        for output in [
            format!("{json} x"),
            format!("{json}{json}"),
            format!("{json}\n---\n{json}"),
            format!("log in\n{json}"),
            format!("log in\n{yaml}"),
            json.replace("\"t\"", "\"a\nb\""),
            yaml.replace("token: t", "token: 7"),
            yaml.replace("token: t", "token: [t]"),
        ] {
            assert_eq!(token(&output), None, "{output}");
        }
    }

    #[test]
    fn a_certificate_without_a_token_is_accepted() {
        let folder = Folder::new();
        let (chain, key) = Authority::new().issue(&["me"]);
        let status = serde_json::json!({"clientCertificateData": chain, "clientKeyData": key});
        let issued = run(&plugin(&folder, &credential(V1, &status.to_string()))).unwrap();
        assert_eq!(issued.token, None);
        assert_eq!(issued.client_cert.unwrap().key, key.as_bytes());
    }

    #[test]
    fn a_plugin_gets_arguments_environment_and_cluster_info() {
        let folder = Folder::new();
        let seen = folder.path().join("seen");
        let script = format!(
            "printf '%s\\n' \"$1\" \"$REGION\" \"$KUBERNETES_EXEC_INFO\" >{}; {}",
            seen.display(),
            credential(V1, r#"{"token":"t"}"#)
        );
        let mut plugin = plugin(&folder, &script);
        plugin.args.push("a b; $(false)".to_owned());
        plugin.env.push(("REGION".to_owned(), "eu west".into()));
        plugin.cluster = Some(serde_json::json!({"server": "https://a"}));
        assert_eq!(run(&plugin).unwrap().expires, None);
        assert_eq!(
            std::fs::read_to_string(seen).unwrap(),
            format!(
                "a b; $(false)\neu west\n{{\"apiVersion\":\"{V1}\",\"kind\":\
                 \"ExecCredential\",\"spec\":{{\"cluster\":{{\"server\":\"https://a\"}},\
                 \"interactive\":false}}}}\n"
            )
        );
    }

    #[track_caller]
    fn check(script: &str, want: &str) {
        let folder = Folder::new();
        let plugin = ExecPlugin {
            install_hint: Some("get it from s://hop\n".to_owned()),
            ..plugin(&folder, script)
        };
        let error = run(&plugin).expect_err("an error");
        let prefix = format!("credential plugin {}: ", plugin.command.display());
        assert_eq!(error, format!("{prefix}{want}; get it from s://hop"));
        assert!(!error.contains("s3cr3t"), "{error}");
    }

    #[test]
    fn every_error_is_reported_without_secrets() {
        check("exit 3", "ended with exit code 3");
        check(
            "echo s3cr3t; echo log in first >&2; printf 'at \\033[1mx' >&2; exit 1",
            "ended with exit code 1: log in first at \\u{1b}[1mx",
        );
        check("kill -9 $$", "was ended by a signal (signal: 9 (SIGKILL))");
        check("echo s3cr3t", "printed no ExecCredential (line 1, column 1)");
        check("true", "printed no ExecCredential (line 1, column 0)");
        check(
            &credential(V1, r#"{"token":7,"x":"s3cr3t"}"#),
            "printed no ExecCredential (line 1, column 91)",
        );
        check("echo '{\"kind\":\"s3cr3t\"}'", "printed something whose kind is not ExecCredential");
        check(
            &credential(V1BETA1, r#"{"token":"s3cr3t"}"#),
            "printed another apiVersion than the client.authentication.k8s.io/v1 of the kubeconfig",
        );
        check(&credential(V1, "null"), "printed no status");
        let nothing = "printed neither status.token nor status.clientCertificateData";
        check(&credential(V1, "{}"), nothing);
        check(&credential(V1, r#"{"token":""}"#), nothing);
        check(
            &credential(V1, r#"{"token":"s3cr3t\n"}"#),
            "status.token contains a character that is not allowed in an HTTP header",
        );
        check(
            &credential(V1, r#"{"token":"s3cr3t","expirationTimestamp":"soon"}"#),
            "status.expirationTimestamp is not an RFC 3339 time",
        );
        let half = "printed a client certificate without its key, or the key alone";
        check(&credential(V1, r#"{"clientKeyData":"s3cr3t"}"#), half);
        check(&credential(V1, r#"{"clientCertificateData":"s3cr3t"}"#), half);
        check(
            &credential(V1, r#"{"clientCertificateData":"s3cr3t","clientKeyData":"s3cr3t"}"#),
            "status.clientCertificateData: no PEM certificate in it",
        );
        check("head -c 1048577 /dev/zero", "printed more than 1048576 bytes");
    }

    #[test]
    fn a_plugin_is_looked_for_in_our_path() {
        let folder = Folder::new();
        let script = credential(V1, r#"{"token":"t"}"#).replacen("cat", "/bin/cat", 1);
        let mut plugin = ExecPlugin { command: PathBuf::from("sh"), ..plugin(&folder, &script) };
        plugin.env.push(("PATH".to_owned(), folder.path().into()));
        assert_eq!(run(&plugin).unwrap().token, Some(Secret::new("t")));
    }

    #[test]
    fn a_plugin_that_does_not_exist_is_reported() {
        let folder = Folder::new();
        let command = PathBuf::from("posse-no-such-plugin");
        let missing = ExecPlugin { command, ..plugin(&folder, "") };
        assert_eq!(
            run(&missing).expect_err("no such program"),
            "credential plugin posse-no-such-plugin: cannot be run: \
             No such file or directory (os error 2)"
        );
    }

    /// Also if it has closed its output, and if a child of it keeps the pipe open.
    #[test]
    fn a_plugin_that_hangs_is_killed_with_its_children() {
        for script in ["sleep 600", "exec >&- 2>&-; sleep 600", "sleep 600 & sleep 600"] {
            let folder = Folder::new();
            let pid_file = folder.path().join("pid");
            let script = format!("echo $$ >{}; {script}", pid_file.display());
            // Longer than a busy machine takes until the script has written its number.
            let plugin = ExecPlugin { timeout: Duration::from_secs(3), ..plugin(&folder, &script) };
            let error = run(&plugin).expect_err("it hangs");
            assert!(error.ends_with("did not end within 3 s"), "{error}");
            // Its process group is empty.
            let pid: i32 = std::fs::read_to_string(pid_file).unwrap().trim().parse().unwrap();
            let mut wait = Wait::new("the plugin's children to end", Duration::from_secs(120));
            let group = Pid::from_raw(pid).unwrap();
            while rustix::process::test_kill_process_group(group).is_ok() {
                assert!(wait.goes_on(), "{script:?} left a process behind");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}
