//! The files of tasks: which paths they may have, and how a pod gets them from the Secret that has their contents.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Value, json};

/// The most files of a task. Each is a mount of its container.
pub(super) const FILES_MAX: usize = 64;
/// The most bytes that all files of a task may have. The Secret has room for those of several tasks, and a call for one
/// task, however JSON writes its bytes.
pub(super) const FILES_BYTES_MAX: usize = 256 << 10;
/// The longest path of Linux, in bytes.
const PATH_BYTES_MAX: usize = 4_095;
/// The longest name of a file or folder, in bytes.
const NAME_BYTES_MAX: usize = 255;
/// Any user of the container can read the files and run the scripts among them, as with staged files.
const FILE_MODE: u32 = 0o555;
const VOLUME: &str = "posse-task-files";

/// What is wrong with the path of a file.
pub(super) fn path_error(path: &str) -> Option<String> {
    let Some(names) = path.strip_prefix('/') else {
        return Some("must be an absolute path in the container, such as /etc/app.conf".to_owned());
    };
    let is_name =
        |name: &str| (1..=NAME_BYTES_MAX).contains(&name.len()) && name != "." && name != "..";
    if path.len() > PATH_BYTES_MAX || !names.split('/').all(is_name) {
        return Some(format!(
            "must be the path of a file: at most {PATH_BYTES_MAX} bytes, of names with at most {NAME_BYTES_MAX}, without \
             `.`, `..`, `//` and a slash at the end"
        ));
    }
    let is_bad = |c: char| c == ':' || c.is_control();
    path.contains(is_bad).then(|| "must have no `:` and no control characters".to_owned())
}

/// Mounts each file at its path.
pub(crate) fn mount(container: &mut Value, files: &BTreeMap<String, Arc<str>>) {
    for (path, key) in files {
        let mount = json!({
            "name": VOLUME, "mountPath": path, "subPath": &**key, "readOnly": true,
        });
        push(&mut container["volumeMounts"], mount);
    }
}

/// Adds the volume to the spec of a pod. It has what the task needs, and nothing of other tasks.
pub(crate) fn add_volume(spec: &mut Value, files: &BTreeMap<String, Arc<str>>, secret: &str) {
    // Two files of the same content have one key.
    let keys: BTreeSet<&str> = files.values().map(|key| &**key).collect();
    if keys.is_empty() {
        return;
    }
    let items: Vec<Value> = keys.iter().map(|key| json!({ "key": key, "path": key })).collect();
    let source = json!({ "secretName": secret, "items": items, "defaultMode": FILE_MODE });
    push(&mut spec["volumes"], json!({ "name": VOLUME, "secret": source }));
}

fn push(list: &mut Value, entry: Value) {
    match list.as_array_mut() {
        Some(entries) => entries.push(entry),
        None => *list = json!([entry]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_those_of_files_in_a_container() {
        let name = "n".repeat(NAME_BYTES_MAX);
        let longest = format!("{}/dd", "/d".repeat(PATH_BYTES_MAX / 2 - 1));
        assert_eq!(longest.len(), PATH_BYTES_MAX);
        let long_name = format!("/{name}");
        for good in ["/a", "/etc/app.conf", "/a b/\u{e4}", "/..a/.b", &long_name, &longest] {
            assert_eq!(path_error(good), None, "{good}");
        }
        for (bad, want) in [
            ("", "absolute"),
            ("a/b", "absolute"),
            ("/", "path of a file"),
            ("/a/", "path of a file"),
            ("//a", "path of a file"),
            ("/a/../b", "path of a file"),
            ("/a/./b", "path of a file"),
            (&format!("{long_name}n"), "at most 255"),
            (&format!("{longest}d"), "at most 4095"),
            ("/a:b", "no `:`"),
            ("/a\nb", "control"),
            ("/a\0", "control"),
        ] {
            assert!(path_error(bad).is_some_and(|what| what.contains(want)), "{bad}");
        }
    }

    #[test]
    fn files_of_one_content_have_one_item_and_stand_beside_what_is_there() {
        let file = |path: &str, key: &str| (path.to_owned(), Arc::from(key));
        let files = [file("/a", "k1"), file("/b", "k2"), file("/c", "k1")].into();
        let mut container = json!({"volumeMounts": [{"name": "own"}]});
        mount(&mut container, &files);
        let mounts = container["volumeMounts"].as_array().unwrap().iter();
        let sub_paths: Vec<&Value> = mounts.map(|mount| &mount["subPath"]).collect();
        assert_eq!(sub_paths, [&Value::Null, &json!("k1"), &json!("k2"), &json!("k1")]);
        let mut spec = json!({"volumes": [{"name": "own"}]});
        add_volume(&mut spec, &files, "q-tasks");
        assert_eq!(spec["volumes"][0], json!({"name": "own"}));
        assert_eq!(spec["volumes"][1]["secret"]["items"].as_array().unwrap().len(), 2);
        let mut without = json!({});
        add_volume(&mut without, &BTreeMap::new(), "q-tasks");
        assert_eq!(without, json!({}));
    }
}
