//! The keys `labels` and `annotations` at the top: what every object of posse has.

use crate::config::key::Type::Pairs;
use crate::config::key::{Key, key, none};
use crate::config::pairs::{labels_but, pairs_but};
use crate::config::section::{ConfigError, Section};
use crate::k8s::common_metadata::CommonMetadata;
use crate::k8s::{kueue, labels};
use crate::names;
use crate::pod::build::gang;
use crate::pod::placeholders::{self, Piece};

/// The most bytes that the names and values of an object's annotations may have together: Kubernetes' own limit.
const ANNOTATION_BYTES_MAX: usize = 256 << 10;

pub(super) const LABELS: Key = key(
    "labels",
    Pairs,
    none("{team: analytics, app.kubernetes.io/part-of: shop}"),
    "Labels of every object that posse makes. See [labels and annotations](#labels-and-annotations).",
)
.beta();
pub(super) const ANNOTATIONS: Key = key(
    "annotations",
    Pairs,
    none("{example.com/cost-center: '4711'}"),
    "Annotations of every object that posse makes. See [labels and annotations](#labels-and-annotations).",
)
.beta();

pub(super) fn common_metadata(top: &Section<'_>) -> Result<CommonMetadata, ConfigError> {
    let labels = labels_but(top, |key, _| own_error(key))?;
    let annotations = pairs_but(top, "annotations", annotation_error)?;
    let n_bytes: usize = annotations.iter().map(|(key, value)| key.len() + value.len()).sum();
    if n_bytes > ANNOTATION_BYTES_MAX {
        let message = format!(
            "have {n_bytes} bytes together, and an object takes {ANNOTATION_BYTES_MAX}: shorten them"
        );
        return Err(top.error("annotations", message));
    }
    Ok(CommonMetadata { labels, annotations })
}

fn annotation_error(key: &str, value: &str) -> Option<String> {
    // Unlike those of labels, their prefixes may have capitals.
    if !names::is_label_pair(&key.to_ascii_lowercase(), "") {
        return Some(format!(
            "`{key}` is not the name of an annotation: expected NAME or PREFIX/NAME, as Kubernetes has them"
        ));
    }
    if names::is_posse_key(key) {
        return Some(format!("`{key}` is one of posse's own annotations"));
    }
    // Only the pods of a template have placeholders, and the value is to be the same everywhere.
    let pieces = placeholders::split(value);
    let is_plain =
        pieces.is_ok_and(|pieces| pieces.iter().all(|piece| *piece == Piece::Text(value)));
    if !is_plain {
        return Some(format!(
            "`{key}` has a placeholder, which only the executors' pods know: write it into their template"
        ));
    }
    own_error(key)
}

/// Why a name of somebody else's is nevertheless posse's to write.
fn own_error(key: &str) -> Option<String> {
    let protects = [labels::DO_NOT_DISRUPT.0, labels::SAFE_TO_EVICT.0];
    let writers: [(&str, &[&str]); 3] =
        [("queue", &kueue::OWN_KEYS), ("gang", &gang::OWN_KEYS), ("protect", &protects)];
    let (writer, _) = writers.into_iter().find(|(_, keys)| keys.contains(&key))?;
    Some(format!("posse itself writes `{key}`, where it is needed: see the key `{writer}`"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn read(text: &str) -> Result<CommonMetadata, String> {
        Config::parse("p.yaml", text).map(|config| config.common).map_err(|e| e.to_string())
    }

    #[test]
    fn ordinary_names_are_taken_as_they_are() {
        let got = read(
            "labels: {team: a, cost-center: 4711, app.kubernetes.io/part-of: shop, is-batch: true, x: ''}\n\
             annotations: {example.com/Owner: 'me, myself {{.x}}', Example.com/a: ''}",
        )
        .unwrap();
        let shown = |pairs: &[(String, String)]| {
            pairs.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>()
        };
        assert_eq!(
            shown(&got.labels),
            ["team=a", "cost-center=4711", "app.kubernetes.io/part-of=shop", "is-batch=true", "x="]
        );
        let want = ["example.com/Owner=me, myself {{.x}}", "Example.com/a="];
        assert_eq!(shown(&got.annotations), want);
        assert_eq!(read("app: a"), Ok(CommonMetadata::default()));
    }

    #[test]
    fn wrong_names_are_told_with_their_place() {
        for (text, want) in [
            ("labels: [a]", "1:9: labels: expected a map of NAME: text"),
            ("annotations: x", "1:14: annotations: expected a map of NAME: text"),
            ("labels: {a: b, c d: e}", "1:16: labels: `c d=e` is not a label: expected"),
            ("labels:\n  a: b\n  c: d e", "3:3: labels: `c=d e` is not a label: expected"),
            ("labels: {a: [b]}", "labels: expected a map of NAME: text"),
            (
                "labels: {posse.dev/app: b}",
                "1:10: labels: `posse.dev/app` is one of posse's own labels",
            ),
            ("labels: {app.kubernetes.io/managed-by: b}", "is one of posse's own labels"),
            ("labels: {app.kubernetes.io/component: b}", "is one of posse's own labels"),
            (
                "labels: {kueue.x-k8s.io/queue-name: b}",
                "posse itself writes `kueue.x-k8s.io/queue-name`, where it is needed: see the key `queue`",
            ),
            ("labels: {scheduling.x-k8s.io/pod-group: b}", "see the key `gang`"),
            ("annotations: {a b: c}", "1:15: annotations: `a b` is not the name of an annotation"),
            ("annotations: {-/a: c}", "annotations: `-/a` is not the name of an annotation"),
            (
                "annotations: {posse.dev/x: c}",
                "1:15: annotations: `posse.dev/x` is one of posse's own annotations",
            ),
            ("annotations: {kueue.x-k8s.io/role-hash: c}", "see the key `queue`"),
            ("annotations: {yunikorn.apache.org/task-groups: c}", "see the key `gang`"),
            ("annotations: {scheduling.k8s.io/group-name: c}", "see the key `gang`"),
            ("annotations: {karpenter.sh/do-not-disrupt: c}", "see the key `protect`"),
            (
                "annotations: {cluster-autoscaler.kubernetes.io/safe-to-evict: c}",
                "see the key `protect`",
            ),
            ("annotations: {a: 'x {{SLOT}}'}", "`a` has a placeholder"),
            ("annotations: {a: '{{ slot }}'}", "`a` has a placeholder"),
            ("annotations: {a: '{{{{SLOT}}}}'}", "`a` has a placeholder"),
        ] {
            let got = read(text).unwrap_err();
            assert!(got.starts_with("p.yaml:") && got.contains(want), "{text}: {got}");
        }
        let with =
            |n_bytes: usize| read(&format!("annotations: {{a: {}}}", "x".repeat(n_bytes - 1)));
        assert!(with(ANNOTATION_BYTES_MAX).is_ok());
        let got = with(ANNOTATION_BYTES_MAX + 1).unwrap_err();
        assert!(
            got.contains("annotations: have 262145 bytes together, and an object takes 262144"),
            "{got}"
        );
    }
}
