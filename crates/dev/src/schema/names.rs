//! The rules for names, labels and keys. Each rule returns the server's messages about a text, or
//! nothing if the text is valid.

const LABEL_1123: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric \
    characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or \
    '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const SUBDOMAIN_1123: &str = "a lowercase RFC 1123 subdomain must consist of lower case \
    alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character \
    (e.g. 'example.com', regex used for validation is \
    '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const CONFIG_KEY: &str = "a valid config key must consist of alphanumeric characters, '-', '_' or \
    '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is \
    '[-._a-zA-Z0-9]+')";
const NAME_PART: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start \
    and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex \
    used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const LABEL_VALUE: &str = "a valid label must be an empty string or consist of alphanumeric \
    characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. \
    'MyValue',  or 'my_value',  or '12345', regex used for validation is \
    '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
const ENV_NAME: &str = "a valid environment variable name must consist only of printable ASCII \
    characters other than '='";

const LABEL_CHARS_MAX: usize = 63;
const SUBDOMAIN_CHARS_MAX: usize = 253;
const PORT_NAME_CHARS_MAX: usize = 15;

fn too_long(max: usize) -> String {
    format!("must be no more than {max} characters")
}

/// What is wrong with a text of at most `max` characters that has to follow a rule.
fn checked(text: &str, max: usize, follows: bool, rule: &str) -> Vec<String> {
    let long = (text.len() > max).then(|| too_long(max));
    long.into_iter().chain((!follows).then(|| rule.to_owned())).collect()
}

fn is_label(text: &str) -> bool {
    let inner = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
    !text.is_empty() && text.bytes().all(inner) && !text.starts_with('-') && !text.ends_with('-')
}

fn is_name_part(text: &str) -> bool {
    let edge = |c: Option<u8>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    text.bytes().all(|c| c.is_ascii_alphanumeric() || b"-_.".contains(&c))
        && edge(text.bytes().next())
        && edge(text.bytes().last())
}

/// A name that is one segment of a path: roles, bindings, and kinds without another rule.
pub(crate) fn path_segment(text: &str) -> Vec<String> {
    if matches!(text, "." | "..") {
        return vec![format!("may not be '{text}'")];
    }
    let inside = ["/", "%"].into_iter().filter(|part| text.contains(part));
    inside.map(|part| format!("may not contain '{part}'")).collect()
}

/// A DNS label (RFC 1123): names of containers and namespaces, host names.
pub(crate) fn dns_label(text: &str) -> Vec<String> {
    checked(text, LABEL_CHARS_MAX, is_label(text), LABEL_1123)
}

/// A DNS subdomain (RFC 1123): names of pods, nodes, leases.
pub(crate) fn dns_subdomain(text: &str) -> Vec<String> {
    checked(text, SUBDOMAIN_CHARS_MAX, text.split('.').all(is_label), SUBDOMAIN_1123)
}

/// The key of a label, annotation or selector: `name` or `prefix/name`.
pub(crate) fn qualified_name(text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let name = match text.split_once('/') {
        None => text,
        Some((_, name)) if name.contains('/') => {
            return vec![format!(
                "a valid label key {NAME_PART} with an optional DNS subdomain prefix and '/' \
                 (e.g. 'example.com/MyName')"
            )];
        }
        Some(("", name)) => {
            wrong.push("prefix part must be non-empty".to_owned());
            name
        }
        Some((prefix, name)) => {
            wrong.extend(dns_subdomain(prefix).into_iter().map(|w| format!("prefix part {w}")));
            name
        }
    };
    if name.is_empty() {
        wrong.push("name part must be non-empty".to_owned());
    } else if name.len() > LABEL_CHARS_MAX {
        wrong.push(format!("name part {}", too_long(LABEL_CHARS_MAX)));
    }
    if !is_name_part(name) {
        wrong.push(format!("name part {NAME_PART}"));
    }
    wrong
}

pub(crate) fn label_value(text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if text.len() > LABEL_CHARS_MAX {
        wrong.push(format!("must be no more than {LABEL_CHARS_MAX} bytes"));
    }
    if !text.is_empty() && !is_name_part(text) {
        wrong.push(LABEL_VALUE.to_owned());
    }
    wrong
}

/// The name of an environment variable: anything that is printable (KEP-4369).
pub(crate) fn env_name(text: &str) -> Vec<String> {
    let inner = |c: u8| (b' '..=b'~').contains(&c) && c != b'=';
    match !text.is_empty() && text.bytes().all(inner) {
        true => Vec::new(),
        false => vec![ENV_NAME.to_owned()],
    }
}

/// A key in the data of a ConfigMap or Secret.
pub(crate) fn config_key(text: &str) -> Vec<String> {
    let inner = |c: u8| c.is_ascii_alphanumeric() || b"-._".contains(&c);
    let follows = !text.is_empty() && text.bytes().all(inner);
    checked(text, SUBDOMAIN_CHARS_MAX, follows, CONFIG_KEY)
}

/// The name of a container's port.
pub(crate) fn port_name(text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if text.len() > PORT_NAME_CHARS_MAX {
        wrong.push(too_long(PORT_NAME_CHARS_MAX));
    }
    let inner = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
    if text.is_empty() || !text.bytes().all(inner) {
        let rule = "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)";
        wrong.push(rule.to_owned());
    }
    if !text.bytes().any(|c| c.is_ascii_lowercase()) {
        wrong.push("must contain at least one letter (a-z)".to_owned());
    }
    if text.contains("--") {
        wrong.push("must not contain consecutive hyphens".to_owned());
    }
    if text.starts_with('-') || text.ends_with('-') {
        wrong.push("must not begin or end with a hyphen".to_owned());
    }
    wrong
}
