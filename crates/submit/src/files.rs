//! The paths of posse.yaml and of its templates in the driver's pod. Relative paths in posse.yaml must
//! still be right there.

use std::fmt;

use serde_json::{Map, Value, json};

/// The mount path of the ConfigMap.
pub use posse_wire::k8s::labels::DRIVER_DIR as CONFIG_DIR;
/// The name of the folders above posse.yaml, if it names templates with `..`.
const ABOVE: &str = "above";
/// The key of the configuration in the ConfigMap and its file name in the pod.
const CONFIG: &str = "posse.yaml";

/// The files of a submission. Each has its own key in the ConfigMap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Files {
    files: Vec<File>,
    /// The number of folders between `CONFIG_DIR` and posse.yaml.
    depth: usize,
}

#[derive(Clone, PartialEq, Eq)]
struct File {
    key: String,
    /// Relative to `CONFIG_DIR`, or absolute.
    path: String,
    text: String,
}

impl fmt::Debug for File {
    /// Without the text, which may contain secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Files {
    /// The configuration and its templates. Each template comes with the path by which the
    /// configuration names it.
    pub fn new(config: String, templates: Vec<(String, String)>) -> Self {
        let depth = templates.iter().map(|(path, _)| parts(path).0).max().unwrap_or(0);
        let mut files = Self { files: Vec::new(), depth };
        let path = files.below(0, &[CONFIG]);
        files.push(CONFIG, path, config);
        for (path, text) in templates {
            let (n_up, names) = parts(&path);
            let target = match path.starts_with('/') {
                true => format!("/{}", names.join("/")),
                false => files.below(n_up, &names),
            };
            files.push(&names.join("-"), target, text);
        }
        files
    }

    /// Adds a file that a flag names. Returns its path in the pod.
    pub fn add_flag(&mut self, flag: &str, text: String) -> String {
        let path = format!("flags/{flag}.yaml");
        self.push(&format!("{flag}.yaml"), path.clone(), text);
        format!("{CONFIG_DIR}/{path}")
    }

    /// The configuration's path in the pod.
    pub fn config_path(&self) -> String {
        format!("{CONFIG_DIR}/{}", self.below(0, &[CONFIG]))
    }

    /// The `data` of the ConfigMap.
    pub fn data(&self) -> Map<String, Value> {
        self.files.iter().map(|file| (file.key.clone(), json!(file.text))).collect()
    }

    /// The `items` of the ConfigMap's volume.
    pub fn items(&self) -> Vec<Value> {
        let below = self.files.iter().filter(|file| !file.path.starts_with('/'));
        below.map(|file| json!({ "key": file.key, "path": file.path })).collect()
    }

    /// Key and path of each file that the configuration names by an absolute path.
    pub fn absolute(&self) -> impl Iterator<Item = (&str, &str)> {
        let absolute = self.files.iter().filter(|file| file.path.starts_with('/'));
        absolute.map(|file| (file.key.as_str(), file.path.as_str()))
    }

    fn push(&mut self, name: &str, path: String, text: String) {
        if self.files.iter().any(|file| file.path == path) {
            return;
        }
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        let mut key: String = name.chars().map(|c| if is_allowed(c) { c } else { '-' }).collect();
        while self.files.iter().any(|file| file.key == key) {
            key.insert(0, '-');
        }
        self.files.push(File { key, path, text });
    }

    /// A path that starts `n_up` folders above the configuration.
    fn below(&self, n_up: usize, names: &[&str]) -> String {
        let above = std::iter::repeat_n(ABOVE, self.depth - n_up);
        above.chain(names.iter().copied()).collect::<Vec<_>>().join("/")
    }
}

/// Normalizes a path: the number of leading `..`, and the names after them.
fn parts(path: &str) -> (usize, Vec<&str>) {
    let (mut n_up, mut names) = (0, Vec::new());
    let is_absolute = path.starts_with('/');
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." if names.pop().is_some() || is_absolute => {}
            ".." => n_up += 1,
            name => names.push(name),
        }
    }
    (n_up, names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_paths_are_valid_in_the_pod() {
        for (templates, config, paths) in [
            (&[][..], "posse.yaml", &[][..]),
            (&["a.yaml", "./sub/dir/x.yaml"], "posse.yaml", &["a.yaml", "sub/dir/x.yaml"]),
            (
                &["../common/p.yaml", "../../q.yaml", "r.yaml", "a/../s.yaml"],
                "above/above/posse.yaml",
                &["above/common/p.yaml", "q.yaml", "above/above/r.yaml", "above/above/s.yaml"],
            ),
            // A file that is named twice is stored once.
            (&["a.yaml", "b/../a.yaml"], "posse.yaml", &["a.yaml"]),
        ] {
            let list = templates.iter().map(|path| ((*path).to_owned(), "text".to_owned()));
            let files = Files::new("config".to_owned(), list.collect());
            assert_eq!(files.config_path(), format!("/etc/posse/{config}"), "{templates:?}");
            let items = files.items();
            let mut got: Vec<&str> =
                items.iter().map(|item| item["path"].as_str().unwrap()).collect();
            assert_eq!(got.remove(0), config, "{templates:?}");
            assert_eq!(got, paths, "{templates:?}");
            // `posse run` in the pod resolves paths like this.
            let dir = config.strip_suffix("posse.yaml").unwrap();
            for template in templates {
                let joined = format!("{dir}{template}");
                let (n_up, names) = parts(&joined);
                assert_eq!(n_up, 0, "{template} leads out of the volume");
                assert!(paths.contains(&names.join("/").as_str()), "{template}");
            }
        }
    }

    #[test]
    fn keys_are_valid_and_unique() {
        let templates = ["a/b.yaml", "a-b.yaml", "ä.yaml", "/abs/pod.yaml"];
        let list = templates.iter().map(|path| ((*path).to_owned(), (*path).to_owned()));
        let mut files = Files::new("config".to_owned(), list.collect());
        assert_eq!(files.add_flag("template", "flag".to_owned()), "/etc/posse/flags/template.yaml");
        let data = files.data();
        assert_eq!(data.len(), 6);
        assert!(
            data.keys().all(|key| {
                key.bytes().all(|c| c.is_ascii_alphanumeric() || b"-_.".contains(&c))
            })
        );
        assert_eq!(data["posse.yaml"], "config");
        let absolute: Vec<_> = files.absolute().collect();
        assert_eq!(absolute, [("abs-pod.yaml", "/abs/pod.yaml")]);
        assert_eq!(files.items().len(), 5);
    }
}
