//! The keys of `credentials`: commands that fetch credentials, and where their files go.

use std::collections::BTreeSet;

use crate::config::key::Preset::Is;
use crate::config::key::Type::{Duration, List, Name, Pairs, Text};
use crate::config::key::{Key, key, none, preset_ms, told};
use crate::config::pairs::pairs;
use crate::config::section::{ConfigError, Section};
use crate::config::{checked, only};
use crate::names;
use crate::pod::arguments::variable_too_long;
use crate::pod::credential_mounts::{Credentials, DIR, MOUNT, unknown_placeholder};

/// The shortest `every` and `timeout`, in milliseconds.
const MS_MIN: u64 = 1_000;
/// The most entries: each takes a thread and a volume.
const ENTRIES_MAX: usize = 16;

/// The keys of an entry.
#[rustfmt::skip]
pub(super) const KEYS: &[Key] = &[
    key("name", Name, told("required", ""), "The name in events and metrics."),
    key("command", List, told("required", ""),
        "Writes the files into the folder `{{DIR}}`. `{{MOUNT}}` is the folder with the files of the last \
         renewal."),
    key("every", Duration, told("required without `expires`", ""),
        "The time from one renewal to the next, at least `1s`."),
    key("expires", List, none(""),
        "A command that prints when the files in `{{DIR}}` expire: seconds since 1970 or RFC 3339. posse renews \
         them when 80 % of their lifetime is over."),
    key("timeout", Duration, Is("60s"), "The time that each of the two commands may take, at least `1s`."),
    key("secret", Text, told("required", ""), "The name of the Secret with the files."),
    key("mount", Text, told("required", ""), "The folder in the executors: an absolute path."),
    key("env", Pairs, none(""),
        "Variables of the driver and of all containers of the executors. `{{MOUNT}}` is the folder with the \
         files."),
];

/// Reads all entries.
pub(super) fn credentials(top: &Section<'_>) -> Result<Vec<Credentials>, ConfigError> {
    let sections = top.sections("credentials")?;
    if sections.len() > ENTRIES_MAX {
        let n = sections.len();
        let message = format!("{n} entries are above {ENTRIES_MAX}, the most that are supported");
        return Err(top.error("credentials", message));
    }
    let mut seen = BTreeSet::new();
    let mut entries = Vec::new();
    for section in &sections {
        let entry = credential(section)?;
        for (key, value) in
            [("name", &entry.name), ("secret", &entry.secret), ("mount", &entry.mount)]
        {
            if !seen.insert((key, value.clone())) {
                return Err(section.error(key, format!("another entry has `{value}` already")));
            }
        }
        for (name, _) in &entry.env {
            if !seen.insert(("env", name.clone())) {
                return Err(section.error("env", format!("another entry sets {name} already")));
            }
        }
        entries.push(entry);
    }
    Ok(entries)
}

fn credential(section: &Section<'_>) -> Result<Credentials, ConfigError> {
    only(section, KEYS)?;
    let required = |key: &str, value: Option<String>| {
        value.ok_or_else(|| section.error(key, "is missing; every entry needs it"))
    };
    let name = required("name", checked(section, "name", names::credentials_name_error)?)?;
    let secret = required("secret", checked(section, "secret", names::object_name_error)?)?;
    let mount = required("mount", checked(section, "mount", mount_error)?)?;
    let words = command(section, "command")?;
    if words.is_empty() {
        return Err(section.error("command", "is missing; every entry needs it"));
    }
    let expires = command(section, "expires")?;
    let every_ms = match section.get("every") {
        Some(_) => Some(at_least_one_second(section, "every", 0)?),
        None if expires.is_empty() => {
            let message = "give every, expires or both: posse does not know when to renew them";
            return Err(section.error("every", message));
        }
        None => None,
    };
    let timeout_ms = at_least_one_second(section, "timeout", preset_ms(KEYS, "timeout"))?;
    let env = pairs(section, "env")?;
    for (name, value) in &env {
        if let Some(why) = names::variable_error(name) {
            return Err(section.error("env", why));
        }
        if let Some(why) = variable_too_long(name, value) {
            return Err(section.error("env", format_args!("{name}: {why}")));
        }
        if name.starts_with(names::OWN_VARIABLES) {
            return Err(section.error("env", format!("{name} is one of posse's own variables")));
        }
        if let Some(word) = unknown_placeholder(value, &[MOUNT]) {
            let message = format!("unknown placeholder {word} in {name}; known: {MOUNT}");
            return Err(section.error("env", message));
        }
    }
    Ok(Credentials { name, command: words, expires, every_ms, timeout_ms, secret, mount, env })
}

/// A command: a list of words, of which the first is not empty.
fn command(section: &Section<'_>, key: &str) -> Result<Vec<String>, ConfigError> {
    let words = section.words(key)?.unwrap_or_default();
    if words.first().is_some_and(String::is_empty) {
        return Err(section.error(key, "the first word is empty"));
    }
    match words.iter().find_map(|word| unknown_placeholder(word, &[DIR, MOUNT])) {
        Some(word) => {
            let message = format!("unknown placeholder {word}; known: {DIR}, {MOUNT}");
            Err(section.error(key, message))
        }
        None => Ok(words),
    }
}

fn at_least_one_second(
    section: &Section<'_>,
    key: &str,
    default_ms: u64,
) -> Result<u64, ConfigError> {
    match section.duration_ms(key, default_ms)? {
        ms if ms < MS_MIN => Err(section.error(key, "must be at least 1s")),
        ms => Ok(ms),
    }
}

/// What is wrong with the folder in the executors.
fn mount_error(path: &str) -> Option<String> {
    let is_plain = path.bytes().all(|c| c.is_ascii_graphic() && !b":{}$".contains(&c));
    let parts = || path.trim_start_matches('/').split('/');
    let is_clean = parts().all(|part| !matches!(part, "" | "." | ".."));
    (!path.starts_with('/') || !is_plain || !is_clean).then(|| {
        format!(
            "`{path}` is not the absolute path of a folder, such as /var/posse/credentials/hdfs"
        )
    })
}

#[cfg(test)]
mod tests {
    use crate::config::Config;

    const ENTRY: &str =
        "name: a, command: [get, '{{DIR}}/token'], every: 8h, secret: wc-a, mount: /a";

    fn parse(entries: &[String]) -> Result<Config, String> {
        let entries: String = entries.iter().map(|entry| format!("  - {{{entry}}}\n")).collect();
        let text = format!("app: wc\ncredentials:\n{entries}");
        Config::parse("posse.yaml", &text).map_err(|error| error.to_string())
    }

    #[test]
    fn an_entry_has_defaults() {
        let config = parse(&[ENTRY.to_owned()]).unwrap();
        let [entry] = config.credentials.as_slice() else { panic!("{:?}", config.credentials) };
        assert_eq!((entry.every_ms, entry.timeout_ms), (Some(8 * 3_600_000), 60_000));
        assert_eq!(entry.command, ["get", "{{DIR}}/token"]);
        assert!(entry.expires.is_empty() && entry.env.is_empty());
        let other = "name: b, command: [g], expires: [cat, x], secret: b, mount: /b, \
                     env: {T: '{{MOUNT}}/t {{.x}}'}";
        let config = parse(&[ENTRY.to_owned(), other.to_owned()]).unwrap();
        assert_eq!(config.credentials[1].every_ms, None);
        let env = config.credentials[1].env_with("/here");
        assert_eq!(env, [("T".to_owned(), "/here/t {{.x}}".to_owned())]);
    }

    #[test]
    fn a_group_names_its_credentials() {
        let with = |credentials: &str| {
            let group = format!("executors: [{{image: x{credentials}}}]");
            let text = format!("app: wc\ncredentials:\n  - {{{ENTRY}}}\n{group}\n");
            let config = Config::parse("p.yaml", &text).map_err(|error| error.to_string())?;
            Ok::<_, String>(config.executors[0].spec.credentials.clone())
        };
        assert_eq!(with(""), Ok(None));
        assert_eq!(with(", credentials: []"), Ok(Some(Vec::new())));
        assert_eq!(with(", credentials: [a]"), Ok(Some(vec!["a".to_owned()])));
        let said = with(", credentials: [a, hdfs]").unwrap_err();
        assert!(said.starts_with("p.yaml:4:"), "{said}");
        assert!(said.ends_with("`hdfs` is not an entry of `credentials`; there are: a"), "{said}");
        let said = with(", credentials: a").unwrap_err();
        assert!(said.contains("executors[0].credentials: expected a list"), "{said}");
    }

    #[track_caller]
    fn check(old: &str, new: &str, want: &str) {
        assert!(ENTRY.contains(old), "{old}");
        let error = parse(&[ENTRY.replace(old, new)]).unwrap_err();
        assert!(error.contains(want), "{error:?} does not say {want:?}");
        assert!(error.starts_with("posse.yaml:3:"), "{error}");
    }

    #[test]
    fn every_error_names_its_key() {
        check("name: a, ", "", "credentials[0].name: is missing");
        check("name: a", "name: A", "credentials[0].name: `A` is not a name");
        check("secret: wc-a, ", "", "credentials[0].secret: is missing");
        check("secret: wc-a", "secret: Wc", "credentials[0].secret: `Wc` is not a name");
        check(", mount: /a", "", "credentials[0].mount: is missing");
        for mount in ["a", "/", "/a/../b", "/a:b", "'/{{MOUNT}}'"] {
            check("mount: /a", &format!("mount: {mount}"), "is not the absolute path of a folder");
        }
        check("command: [get, '{{DIR}}/token'], ", "", "credentials[0].command: is missing");
        check("[get, '{{DIR}}/token']", "[]", "credentials[0].command: is missing");
        check("[get, ", "['', ", "credentials[0].command: the first word is empty");
        check("{{DIR}}", "{{DIRECTORY}}", "unknown placeholder {{DIRECTORY}}; known: {{DIR}}");
        check("every: 8h, ", "", "credentials[0].every: give every, expires or both");
        check("every: 8h", "every: 0s", "credentials[0].every: must be at least 1s");
        check("every: 8h", "every: 8h, timeout: 1ms", "timeout: must be at least 1s");
        check("every: 8h", "every: 8h, env: {A: '{{DIR}}'}", "unknown placeholder {{DIR}} in A");
        check("every: 8h", "every: 8h, env: {A=B: c}", "`A=B` is not the name of a variable");
        check("every: 8h", "every: 8h, env: {POSSE_APP: x}", "POSSE_APP is one of posse's own");
        check("every: 8h", "every: 8h, comand: x", "did you mean `command`?");
    }

    #[test]
    fn two_entries_share_nothing() {
        let other = |old: &str, new: &str| {
            let entry = "name: b, command: [g], every: 1h, secret: b, mount: /b, env: {B: x}";
            let first = format!("{ENTRY}, env: {{A: x}}");
            parse(&[first, entry.replace(old, new)]).unwrap_err()
        };
        let said = other("name: b", "name: a");
        assert!(said.contains("credentials[1].name: another entry has `a` already"), "{said}");
        let said = other("secret: b", "secret: wc-a");
        assert!(said.contains("credentials[1].secret: another entry has `wc-a`"), "{said}");
        let said = other("mount: /b", "mount: /a");
        assert!(said.contains("credentials[1].mount: another entry has `/a`"), "{said}");
        let said = other("{B: x}", "{A: x}");
        assert!(said.contains("credentials[1].env: another entry sets A already"), "{said}");
        let many: Vec<String> = (0..17).map(|_| ENTRY.to_owned()).collect();
        assert!(parse(&many).unwrap_err().contains("17 entries are above 16"));
    }
}
