//! What a server says about a group of APIs.

use serde_json::Value;

use crate::error::WireError;

/// Reads the versions of a group, the preferred one first, from its answer to GET /apis/GROUP.
///
/// # Errors
/// The bytes are no JSON.
pub fn versions(bytes: &[u8]) -> Result<Vec<String>, WireError> {
    let group: Value = serde_json::from_slice(bytes)?;
    let listed = group["versions"].as_array().into_iter().flatten();
    let listed = listed.filter_map(|version| version["version"].as_str());
    let preferred = group.pointer("/preferredVersion/version").and_then(Value::as_str);
    let mut versions: Vec<String> = preferred.map(str::to_owned).into_iter().collect();
    versions.extend(listed.filter(|version| Some(*version) != preferred).map(str::to_owned));
    Ok(versions)
}

/// Reads whether a version has a resource, from its answer to GET /apis/GROUP/VERSION.
///
/// # Errors
/// The bytes are no JSON.
pub fn has(bytes: &[u8], resource: &str) -> Result<bool, WireError> {
    let list: Value = serde_json::from_slice(bytes)?;
    Ok(list["resources"].as_array().into_iter().flatten().any(|one| one["name"] == resource))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resource_is_found_in_the_version_that_has_it() {
        let group = br#"{"kind":"APIGroup","versions":[{"version":"v1"},{"version":"v1alpha2"}],
            "preferredVersion":{"version":"v1alpha2"}}"#;
        assert_eq!(versions(group).unwrap(), ["v1alpha2", "v1"]);
        assert_eq!(versions(b"{}").unwrap(), [""; 0]);
        let list = br#"{"resources":[{"name":"podgroups/status"},{"name":"podgroups"}]}"#;
        for (bytes, resource, want) in [
            (&list[..], "podgroups", true),
            (list, "workloads", false),
            (b"{}", "podgroups", false),
        ] {
            assert_eq!(has(bytes, resource).unwrap(), want);
        }
        assert!(versions(b"{").is_err() && has(b"", "x").is_err());
    }
}
