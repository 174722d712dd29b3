//! Rules for the names of applications, instances, groups, namespaces, labels and files, and how an
//! instance's name is derived from a uid.

use std::net::Ipv6Addr;

use crate::k8s::labels;

pub const APP_LEN_MAX: usize = 40;
pub const GROUP_LEN_MAX: usize = 40;
pub const INSTANCE_LEN_MAX: usize = 20;
/// File systems allow 255 bytes; posse needs some for the suffix of its temporary files.
pub const FILE_NAME_BYTES_MAX: usize = 200;
/// Kubernetes' limit for names of Secrets and most other objects.
const OBJECT_NAME_LEN_MAX: usize = 253;
/// A pod's name becomes its host name, which has at most 63 characters.
pub const POD_NAME_LEN_MAX: usize = 63;
/// The longest extension by which a file is recognised, such as `.scala` or `.ipynb`.
const EXTENSION_LEN_MAX: usize = 5;
/// Space reserved for an id in a pod's name.
const ID_DIGITS_MAX: usize = 10;
/// Length of a generated instance name.
const INSTANCE_LEN: usize = 5;

/// Variables that posse sets for drivers and executors begin with this.
pub(crate) const OWN_VARIABLES: &str = "POSSE_";

/// What is wrong with an application's name.
pub fn app_name_error(name: &str) -> Option<String> {
    let sound = is_label(name) && name.starts_with(|c: char| c.is_ascii_lowercase());
    (!sound || name.len() > APP_LEN_MAX).then(|| {
        format!(
            "`{name}` is not a name for an application: it has at most {APP_LEN_MAX} of [a-z0-9-], \
             starts with a letter and does not end with `-`"
        )
    })
}

/// A name for the application that runs this command: from the first word that looks like a file
/// with an extension (`driver` from `python3 src/driver.py`), else from the program. `None` if that
/// has no letter or digit.
pub fn app_name_of_command(command: &[String]) -> Option<String> {
    // Also within the command of a shell: `sh -c 'exec python3 driver.py'`.
    let is_gap = |c: char| c.is_whitespace() || "'\";".contains(c);
    let file = command.iter().flat_map(|word| word.split(is_gap)).find_map(script_stem);
    app_name_from(file.or_else(|| command.first().map(|program| base_name(program)))?)
}

/// A name for the application that runs this image: `my-worker` from `example.com/my-worker:1.2`.
pub fn app_name_of_image(image: &str) -> Option<String> {
    app_name_from(base_name(image).split([':', '@']).next()?)
}

/// The name of a file without its extension, if the word looks like a file with an extension.
fn script_stem(word: &str) -> Option<&str> {
    if word.starts_with('-') || word.contains('=') || word.contains("://") {
        return None;
    }
    let (stem, extension) = base_name(word).rsplit_once('.')?;
    // `python3.12` is a program, `10.0.0.1` an address.
    let is_extension = extension.starts_with(|c: char| c.is_ascii_alphabetic())
        && extension.len() <= EXTENSION_LEN_MAX
        && extension.bytes().all(|c| c.is_ascii_alphanumeric());
    (is_extension && !stem.is_empty()).then_some(stem)
}

fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Makes a valid name for an application of any text.
fn app_name_from(text: &str) -> Option<String> {
    let mut name = String::new();
    for c in text.chars().map(|c| c.to_ascii_lowercase()) {
        match c {
            'a'..='z' => name.push(c),
            '0'..='9' if name.is_empty() => name.extend(['x', c]),
            '0'..='9' => name.push(c),
            // One `-` for any number of other characters.
            _ if name.is_empty() || name.ends_with('-') => {}
            _ => name.push('-'),
        }
    }
    name.truncate(APP_LEN_MAX);
    let name = name.trim_end_matches('-');
    (!name.is_empty()).then(|| name.to_owned())
}

/// What is wrong with a group's name.
pub fn group_name_error(name: &str) -> Option<String> {
    // It becomes a label value, which has to start and end with a letter or digit.
    label_error_of(name, "a group", GROUP_LEN_MAX)
}

/// What is wrong with the name of an entry of `credentials`: the name of a volume ends with it.
pub fn credentials_name_error(name: &str) -> Option<String> {
    label_error_of(name, "credentials", GROUP_LEN_MAX)
}

/// What is wrong with the name of an object in Kubernetes.
pub fn object_name_error(name: &str) -> Option<String> {
    let sound = name.len() <= OBJECT_NAME_LEN_MAX && name.split('.').all(is_label);
    (!sound).then(|| {
        format!(
            "`{name}` is not a name for an object: it has at most {OBJECT_NAME_LEN_MAX} of \
             [a-z0-9.-] and begins and ends with a letter or digit"
        )
    })
}

/// What is wrong with the name of an environment variable.
pub fn variable_error(name: &str) -> Option<String> {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    let sound = name.chars().all(is_allowed) && !name.starts_with(|c: char| c.is_ascii_digit());
    (!sound || name.is_empty()).then(|| format!("`{name}` is not the name of a variable"))
}

/// What is wrong with an instance's name.
pub fn instance_name_error(name: &str) -> Option<String> {
    label_error_of(name, "an instance", INSTANCE_LEN_MAX)
}

fn label_error_of(name: &str, what: &str, len_max: usize) -> Option<String> {
    (!is_label(name) || name.len() > len_max).then(|| {
        format!(
            "`{name}` is not a name for {what}: it has at most {len_max} of [a-z0-9-] and neither \
             begins nor ends with `-`"
        )
    })
}

/// What is wrong with a namespace's name.
pub fn namespace_error(name: &str) -> Option<String> {
    (!is_label(name)).then(|| {
        format!(
            "`{name}` is not a namespace: it has at most 63 of [a-z0-9-] and no `-` at its ends"
        )
    })
}

/// What is wrong with the name of a queue, which becomes a label's value. YuniKorn's have dots.
pub fn queue_error(name: &str) -> Option<String> {
    let sound = name.len() <= POD_NAME_LEN_MAX && name.split('.').all(is_label);
    (!sound).then(|| {
        format!("`{name}` is not a queue: it has at most 63 of [a-z0-9.-] and no `-` at its ends")
    })
}

/// What is wrong with the name of a staged file: it must stay inside its directory.
pub fn file_name_error(name: &str) -> Option<String> {
    let sound = !matches!(name, "" | "." | "..")
        && name.len() <= FILE_NAME_BYTES_MAX
        && !name.chars().any(|c| c == '/' || c.is_control() || is_invisible_control(c));
    (!sound).then(|| {
        format!(
            "{name:?} is not a file's name: it has at most {FILE_NAME_BYTES_MAX} bytes, no `/` and \
             no control characters"
        )
    })
}

/// Characters that change how the text around them is shown: the bidirectional controls, with which
/// `exe.jar` can look like `raj.exe` (Unicode Technical Report 36, 2.10), and line separators.
fn is_invisible_control(c: char) -> bool {
    matches!(c, '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// What is wrong with a label, written `key=value`, that pods get in addition to posse's own.
pub fn label_error(text: &str) -> Option<String> {
    let (key, value) = text.split_once('=').unwrap_or((text, "="));
    if !is_label_pair(key, value) {
        return Some(format!("`{text}` is not a label: expected a Kubernetes label, key=value"));
    }
    is_posse_key(key).then(|| format!("`{key}` is one of posse's own labels"))
}

/// True for the labels and annotations by which posse knows its objects.
pub fn is_posse_key(key: &str) -> bool {
    key.starts_with(labels::PREFIX) || [labels::MANAGED_BY.0, labels::COMPONENT.0].contains(&key)
}

/// True if Kubernetes accepts a label with this key and this value.
pub fn is_label_pair(key: &str, value: &str) -> bool {
    let is_inner = |c: u8| c.is_ascii_alphanumeric() || b"-_.".contains(&c);
    let is_end = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    let is_name = |name: &str| {
        let (first, last) = (name.chars().next(), name.chars().next_back());
        name.len() <= 63 && name.bytes().all(is_inner) && is_end(first) && is_end(last)
    };
    let (prefix, name) = key.split_once('/').map_or((None, key), |(p, name)| (Some(p), name));
    is_name(name)
        && prefix.is_none_or(|prefix| prefix.len() <= 253 && prefix.split('.').all(is_label))
        && (value.is_empty() || is_name(value))
}

/// What is wrong with the pod names of an application and instance.
pub fn pod_name_error(app: &str, instance: &str) -> Option<String> {
    let n_chars = app.len() + "-".len() + instance.len() + "-exec-".len() + ID_DIGITS_MAX;
    (n_chars > POD_NAME_LEN_MAX).then(|| {
        format!(
            "pods would be named `{app}-{instance}-exec-N`, up to {n_chars} characters with a \
             ten-digit id, but Kubernetes allows {POD_NAME_LEN_MAX}: shorten the application's name \
             or --instance by {}",
            n_chars - POD_NAME_LEN_MAX
        )
    })
}

/// Instance of a driver pod: five characters of [a-z0-9] derived from its uid, so that a restarted
/// container finds its executors and a new driver pod gets new names.
pub fn instance_from_uid(uid: &str) -> String {
    // FNV-1a: the same on every machine and in every version.
    let hash = uid.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    instance_from_bits(hash)
}

/// Instance for 64 (random) bits.
pub fn instance_from_bits(bits: u64) -> String {
    const DIGITS: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
    // FNV-1a mixes the high bits best.
    let mut rest = bits ^ bits >> 32;
    (0..INSTANCE_LEN)
        .map(|_| {
            let digit = usize::try_from(rest % 36).expect("a number below 36 fits");
            rest /= 36;
            char::from(DIGITS[digit])
        })
        .collect()
}

/// A host in a URL: an IPv6 address gets brackets.
pub fn host_in_url(host: &str) -> String {
    match host.parse::<Ipv6Addr>() {
        Ok(_) => format!("[{host}]"),
        Err(_) => host.to_owned(),
    }
}

/// True for an RFC 1123 label.
fn is_label(name: &str) -> bool {
    let is_inner = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
    (1..=63).contains(&name.len())
        && name.bytes().all(is_inner)
        && !name.starts_with('-')
        && !name.ends_with('-')
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_labels_of_limited_length() {
        let forty = "a".repeat(40);
        let forty_one = "a".repeat(41);
        for (name, app, group, instance) in [
            ("wordcount", true, true, true),
            ("a", true, true, true),
            ("9a", false, true, true),
            ("a-b", true, true, true),
            ("a-", false, false, false),
            ("-a", false, false, false),
            ("A", false, false, false),
            ("a_b", false, false, false),
            ("a.b", false, false, false),
            ("", false, false, false),
            ("é", false, false, false),
            (&forty, true, true, false),
            (&forty_one, false, false, false),
        ] {
            assert_eq!(app_name_error(name).is_none(), app, "app {name:?}");
            assert_eq!(group_name_error(name).is_none(), group, "group {name:?}");
            assert_eq!(instance_name_error(name).is_none(), instance, "instance {name:?}");
        }
    }

    #[test]
    fn an_application_is_named_after_its_file_or_program() {
        for (command, want) in [
            ("python3 driver.py", Some("driver")),
            ("python3 -u src/My_Driver.v2.py --x=a.b", Some("my-driver-v2")),
            ("./run.sh", Some("run")),
            ("spark-submit --conf a.b=c --class x app.jar", Some("app")),
            ("sh -c exec\u{a0}python3\u{a0}\"$POSSE_FILES_DIR/x.py\";exit", Some("x")),
            ("sh -c echo\u{a0}a;sleep", Some("sh")),
            ("/usr/bin/python3.12 -i", Some("python3-12")),
            ("worker tcp://a.example:1 10.0.0.1", Some("worker")),
            ("./2nd.py", Some("x2nd")),
            ("/opt/-_-", None),
            ("数据", None),
            ("", None),
        ] {
            let words: Vec<String> = command.split(' ').map(str::to_owned).collect();
            let name = app_name_of_command(&words);
            assert_eq!(name.as_deref(), want, "{command}");
            assert!(name.is_none_or(|name| app_name_error(&name).is_none()), "{command}");
        }
        assert_eq!(app_name_of_command(&[]), None);
        let long = app_name_of_command(&[format!("{}--b.sh", "a".repeat(39))]).unwrap();
        assert_eq!(long, "a".repeat(39));
        for (image, want) in [
            ("busybox", Some("busybox")),
            ("registry.example.com:5000/team/My.Worker:1.2", Some("my-worker")),
            ("a/b@sha256:00ff", Some("b")),
            ("", None),
        ] {
            assert_eq!(app_name_of_image(image).as_deref(), want, "{image}");
        }
    }

    #[test]
    fn a_staged_file_looks_like_its_name() {
        for good in ["a", "a.jar", "Ünï çode.py", "数据.csv", "עברית.txt", "..."] {
            assert_eq!(file_name_error(good), None, "{good:?}");
        }
        let bidirectional = "\u{61c}\u{200e}\u{200f}\u{202a}\u{202b}\u{202c}\u{202d}\u{202e}\u{2066}\u{2067}\
                             \u{2068}\u{2069}";
        let others = "/\0\n\u{1b}\u{7f}\u{85}\u{9b}\u{2028}\u{2029}";
        for c in bidirectional.chars().chain(others.chars()) {
            let error = file_name_error(&format!("exe.{c}jar"));
            assert!(error.is_some_and(|error| !error.contains(c) || c == '/'), "{c:?}");
        }
    }

    #[test]
    fn a_pod_name_has_room_for_a_ten_digit_id() {
        assert_eq!(pod_name_error(&"a".repeat(40), "abcde"), None);
        assert_eq!(pod_name_error(&"a".repeat(26), &"b".repeat(20)), None);
        let error = pod_name_error(&"a".repeat(30), &"b".repeat(20)).unwrap();
        assert!(error.contains("up to 67 characters"), "{error}");
        assert!(error.ends_with("by 4"), "{error}");
    }

    #[test]
    fn instances_depend_on_the_uid_alone() {
        let uid = "3f2504e0-4f89-41d3-9a0c-0305e82c3301";
        assert_eq!(instance_from_uid(uid), instance_from_uid(uid));
        let made: BTreeSet<String> =
            (0..1_000).map(|n| instance_from_uid(&format!("{uid}{n}"))).collect();
        assert!(made.len() > 990, "{} of 1000 differ", made.len());
        for name in &made {
            assert_eq!((name.len(), instance_name_error(name)), (5, None), "{name}");
        }
    }
}
