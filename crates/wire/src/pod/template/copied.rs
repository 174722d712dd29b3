//! What belongs to one live pod, and comes along if a template is copied from it (`kubectl get pod -o yaml`). A pod with it
//! would be held by a finalizer that nobody removes, taken by a controller whose selector it matches, or refused.

use serde_json::{Map, Value};

use crate::k8s::{kueue, labels};
use crate::names::OWN_VARIABLES;
use crate::pod::build::gang;
use crate::pod::node_affinity::REQUIRED;
use crate::pod::staged::FILES_VOLUME;
use crate::pod::template::containers_mut;
use crate::pod::tolerations::NODE_TAINTS;

/// Fields of `metadata` that only a server sets. It ignores them, or sets them anew.
const SERVER_FIELDS: [&str; 8] = [
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "generation",
    "managedFields",
    "resourceVersion",
    "selfLink",
    "uid",
];
/// Labels and annotations that controllers and kubelets give to their pods. Selectors have most of them.
const OF_CONTROLLERS: [&str; 14] = [
    "apps.kubernetes.io/pod-index",
    "controller-revision-hash",
    "controller-uid",
    "deploymentconfig",
    "job-name",
    "kubernetes.io/config.hash",
    "kubernetes.io/config.mirror",
    "kubernetes.io/config.seen",
    "kubernetes.io/config.source",
    "pod-template-generation",
    "pod-template-hash",
    "rollouts-pod-template-hash",
    "statefulset.kubernetes.io/pod-name",
    "statefulset.kubernetes.io/pod-index",
];
/// The same, of Jobs.
const OF_JOBS: &str = "batch.kubernetes.io/";
/// How labels and annotations begin by which frameworks find their pods, and delete what is too many, whoever owns it. A
/// template may have them on purpose: Spark's have.
const OF_FRAMEWORKS: [&str; 11] = [
    "dask.org/",
    "jobset.sigs.k8s.io/",
    "leaderworkerset.sigs.k8s.io/",
    "ray.io/",
    "spark-app-selector",
    "spark-exec-",
    "spark-role",
    "sparkoperator.k8s.io/",
    "training.kubeflow.org/",
    "volcano.sh/job-",
    "workflows.argoproj.io/",
];
/// Annotations by which a network has given the pod its address. Some networks take them for a request.
const OF_NETWORKS: [&str; 11] = [
    "cni.projectcalico.org/containerID",
    "cni.projectcalico.org/podIP",
    "cni.projectcalico.org/podIPs",
    "k8s.ovn.org/pod-networks",
    "k8s.v1.cni.cncf.io/network-status",
    "k8s.v1.cni.cncf.io/networks-status",
    "ovn.kubernetes.io/allocated",
    "ovn.kubernetes.io/ip_address",
    "ovn.kubernetes.io/mac_address",
    "ovn.kubernetes.io/routed",
    "vpc.amazonaws.com/pod-eni",
];
/// What Kueue and YuniKorn write beside posse's own keys of queues and gangs: the pod would be one more of another group.
const OF_GROUPS: [&str; 3] = ["applicationId", "kueue.x-k8s.io/podset", "kueue.x-k8s.io/workload"];
/// Of volumes that posse adds.
const OWN_VOLUMES: &str = "posse-";
/// What a server tolerates for each pod that says nothing (`DefaultTolerationSeconds`), in seconds.
const DEFAULT_TOLERATION_S: u64 = 300;
/// What the DaemonSet controller tolerates for each pod (`AddOrUpdateDaemonPodTolerations`): its pods stay for ever, and on
/// cordoned nodes.
const OF_DAEMON_SETS: [&str; 7] = [
    NODE_TAINTS[0],
    NODE_TAINTS[1],
    "node.kubernetes.io/disk-pressure",
    "node.kubernetes.io/memory-pressure",
    "node.kubernetes.io/network-unavailable",
    "node.kubernetes.io/pid-pressure",
    "node.kubernetes.io/unschedulable",
];
/// The field of a node by which a DaemonSet binds each of its pods.
const NODE_NAME: &str = "metadata.name";
/// The volume of the token that the server adds; before 1.22 this stands behind the account in its name. Five
/// characters end both.
const TOKEN_VOLUME: &str = "kube-api-access-";
const TOKEN_SECRET: &str = "-token-";
/// Where it mounts it.
const TOKEN_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const SUFFIX_BYTES: usize = 5;

/// Removes all of it, and gives the fields that a person may have meant. The server computes `priority` from
/// `priorityClassName`.
pub(super) fn remove(
    metadata: &mut Map<String, Value>,
    spec: &mut Map<String, Value>,
) -> Vec<String> {
    let theirs =
        SERVER_FIELDS.map(|field| metadata.remove(field).is_some_and(|value| !value.is_null()));
    let mut dropped = Vec::new();
    remove_of_run(metadata, spec, &mut dropped);
    dropped.extend(taken(metadata, "finalizers", "metadata"));
    remove_keys(metadata, &mut dropped, |key| {
        let prefixes = [OF_JOBS, labels::PREFIX];
        OF_CONTROLLERS.contains(&key) || prefixes.iter().any(|prefix| key.starts_with(prefix))
    });
    dropped.extend(taken(spec, "priority", "spec"));
    dropped.extend(taken(spec, "ephemeralContainers", "spec"));
    // Alone they may be meant.
    let is_copy = theirs.contains(&true) || !dropped.is_empty();
    if is_copy {
        remove_of_copy(metadata, spec, &mut dropped);
    }
    remove_token(spec, &mut dropped);
    dropped
}

/// The field that was there and is not any more.
fn taken(map: &mut Map<String, Value>, key: &str, of: &str) -> Option<String> {
    map.remove(key).filter(|value| !value.is_null()).map(|_| format!("{of}.{key}"))
}

/// Removes such labels and annotations.
fn remove_keys(
    metadata: &mut Map<String, Value>,
    dropped: &mut Vec<String>,
    is_theirs: impl Fn(&str) -> bool,
) {
    for list in ["labels", "annotations"] {
        let Some(map) = metadata.get_mut(list).and_then(Value::as_object_mut) else { continue };
        let keys: Vec<String> = map.keys().filter(|key| is_theirs(key)).cloned().collect();
        dropped.extend(keys.iter().filter_map(|key| taken(map, key, &format!("metadata.{list}"))));
    }
}

/// What only a pod that came from a server has for itself.
fn remove_of_copy(
    metadata: &mut Map<String, Value>,
    spec: &mut Map<String, Value>,
    dropped: &mut Vec<String>,
) {
    remove_keys(metadata, dropped, |key| {
        let of_groups = gang::OWN_KEYS.iter().chain(&kueue::OWN_KEYS).chain(&OF_GROUPS);
        let mut theirs = of_groups.chain(&OF_NETWORKS);
        // Which queue may be meant.
        key != kueue::QUEUE
            && (theirs.any(|one| *one == key)
                || OF_FRAMEWORKS.iter().any(|prefix| key.starts_with(prefix)))
    });
    let mut drop = |map: &mut Map<String, Value>, key: &str, of: &str| {
        dropped.extend(taken(map, key, of));
    };
    // Load balancers add readiness gates to the pods of their services, and open no others.
    for field in ["nodeName", "readinessGates", "schedulingGroup"] {
        drop(spec, field, "spec");
    }
    // Of a StatefulSet or an indexed Job. With a placeholder it is meant: each executor has another one.
    let host = spec.get("hostname").and_then(Value::as_str);
    if host.is_some_and(|host| !host.contains("{{")) {
        drop(spec, "hostname", "spec");
        drop(spec, "subdomain", "spec");
    }
    let is_of_daemon_set = unbind(spec);
    if is_of_daemon_set {
        dropped.push(format!("spec.affinity.nodeAffinity.{REQUIRED}.matchFields"));
    }
    // posse gives up a lost node sooner.
    if let Some(tolerations) = spec.get_mut("tolerations").and_then(Value::as_array_mut) {
        tolerations.retain(|one| {
            let key = one["key"].as_str().unwrap_or_default();
            match one["tolerationSeconds"].as_u64() {
                None => !(is_of_daemon_set && OF_DAEMON_SETS.contains(&key)),
                Some(DEFAULT_TOLERATION_S) => !NODE_TAINTS.contains(&key),
                Some(_) => true,
            }
        });
    }
}

/// Removes the terms by which a DaemonSet binds a pod to its node. True if there were some.
fn unbind(spec: &mut Map<String, Value>) -> bool {
    let affinity = spec.get_mut("affinity").and_then(|affinity| affinity.get_mut("nodeAffinity"));
    let Some(node) = affinity.and_then(Value::as_object_mut) else { return false };
    let terms = node.get_mut(REQUIRED).and_then(|required| required.get_mut("nodeSelectorTerms"));
    let Some(terms) = terms.and_then(Value::as_array_mut) else { return false };
    let mut is_bound = false;
    for term in terms.iter_mut().filter_map(Value::as_object_mut) {
        let Some(fields) = term.get_mut("matchFields").and_then(Value::as_array_mut) else {
            continue;
        };
        let n_fields = fields.len();
        fields.retain(|field| field["key"] != NODE_NAME);
        is_bound |= fields.len() < n_fields;
        if fields.is_empty() {
            term.remove("matchFields");
        }
    }
    terms.retain(|term| term.as_object().is_none_or(|term| !term.is_empty()));
    // An affinity without a term fits no node.
    if terms.is_empty() {
        node.remove(REQUIRED);
    }
    is_bound
}

/// What another run has added to one of its executors: Secrets and claims that end with it, and its deadline.
fn remove_of_run(
    metadata: &Map<String, Value>,
    spec: &mut Map<String, Value>,
    dropped: &mut Vec<String>,
) {
    let text = |list: &str, key: &str| metadata.get(list)?.get(key)?.as_str();
    if text("labels", labels::EXECUTOR_ID).is_none() {
        return;
    }
    let [app, instance] =
        [labels::APP, labels::INSTANCE].map(|key| text("labels", key).unwrap_or_default());
    let claims = format!("{app}-{instance}-");
    let volumes = remove_volumes(spec, |volume| {
        let claim = volume["persistentVolumeClaim"]["claimName"].as_str().unwrap_or_default();
        volume["name"].as_str().is_some_and(|name| name.starts_with(OWN_VOLUMES))
            || claim.starts_with(&claims)
    });
    dropped.extend(volumes.iter().map(|name| format!("spec.volumes.{name}")));
    if let Some(list) = spec.get_mut("initContainers").and_then(Value::as_array_mut) {
        list.retain(|one| one["name"] != FILES_VOLUME);
    }
    for (_, container) in containers_mut(spec) {
        if let Some(env) = container.get_mut("env").and_then(Value::as_array_mut) {
            let ours = |one: &Value| one["name"].as_str()?.strip_prefix(OWN_VARIABLES).map(|_| ());
            env.retain(|one| ours(one).is_none());
        }
    }
    if text("annotations", labels::MAX_AGE).is_some() {
        dropped.extend(taken(spec, "activeDeadlineSeconds", "spec"));
    }
}

/// The server adds the volume and its mounts to each pod of an account with a token (`ServiceAccount` admission), unless
/// the pod says no.
fn remove_token(spec: &mut Map<String, Value>, dropped: &mut Vec<String>) {
    if spec.get("automountServiceAccountToken") == Some(&Value::Bool(false)) {
        return;
    }
    let account = ["serviceAccountName", "serviceAccount"].iter().find_map(|key| {
        spec.get(*key).and_then(Value::as_str).filter(|account| !account.is_empty())
    });
    let of_account = format!("{}{TOKEN_SECRET}", account.unwrap_or("default"));
    let mounts = containers_mut(spec).filter_map(|(_, one)| one.get("volumeMounts")?.as_array());
    let meant = mounts.flatten().filter(|mount| mount["mountPath"] != TOKEN_PATH);
    let meant: Vec<Value> = meant.map(|mount| mount["name"].clone()).collect();
    let volumes = remove_volumes(spec, |volume| {
        let name = volume["name"].as_str().unwrap_or_default();
        let is_token = |source: &Value| source["serviceAccountToken"].is_object();
        let suffix = match volume["projected"]["sources"].as_array() {
            Some(sources) if sources.iter().any(is_token) => name.strip_prefix(TOKEN_VOLUME),
            None if volume["secret"]["secretName"] == name => name.strip_prefix(&of_account),
            Some(_) | None => None,
        };
        suffix.is_some_and(|suffix| suffix.len() == SUFFIX_BYTES)
            && !meant.iter().any(|meant| meant == name)
    });
    dropped.extend(volumes.iter().map(|name| format!("spec.volumes.{name}")));
}

/// Removes these volumes and their mounts, and gives their names.
fn remove_volumes(
    spec: &mut Map<String, Value>,
    is_theirs: impl Fn(&Value) -> bool,
) -> Vec<String> {
    let Some(volumes) = spec.get_mut("volumes").and_then(Value::as_array_mut) else {
        return Vec::new();
    };
    let removed = volumes.extract_if(.., |volume| is_theirs(volume));
    let removed: Vec<String> =
        removed.filter_map(|volume| Some(volume["name"].as_str()?.to_owned())).collect();
    for (_, container) in containers_mut(spec) {
        if let Some(mounts) = container.get_mut("volumeMounts").and_then(Value::as_array_mut) {
            mounts.retain(|mount| !removed.iter().any(|name| mount["name"] == **name));
        }
    }
    removed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::build::gang::{GangKind, PodGang};
    use crate::pod::build::tests::{context, rendered};
    use crate::pod::build::{PodContext, PodSettings};
    use crate::pod::credential_mounts::Credentials;
    use crate::pod::staged::Staged;
    use crate::pod::template::Template;
    use serde_json::json;

    #[test]
    fn what_belongs_to_a_live_pod_is_dropped_with_one_warning() {
        let mount = |name: &str| json!({"name": name, "mountPath": format!("/{name}")});
        let tolerates = |state: &str, seconds: u64| {
            json!({"key": format!("node.kubernetes.io/{state}"), "operator": "Exists", "effect": "NoExecute",
                "tolerationSeconds": seconds})
        };
        let live = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": "s-0", "uid": "u", "resourceVersion": "7", "deletionTimestamp": "2026-01-01T00:00:00Z",
                "finalizers": ["batch.kubernetes.io/job-tracking"],
                "labels": {"app": "web", "job-name": "j", "controller-uid": "c", "pod-template-hash": "h",
                    "batch.kubernetes.io/job-name": "j", "statefulset.kubernetes.io/pod-name": "s-0"},
                "annotations": {"batch.kubernetes.io/job-completion-index": "0", "mine": "1",
                    "ovn.kubernetes.io/ip_address": "10.16.0.7"},
            },
            "spec": {"nodeName": "node-7", "priority": 0, "priorityClassName": "low", "hostname": "s-0",
                "subdomain": "s", "ephemeralContainers": [{"name": "debugger"}],
                "tolerations": [tolerates("not-ready", 300), tolerates("unreachable", 300), tolerates("unreachable", 7)],
                "volumes": [{"name": "kube-api-access-x2x4q", "projected": {"sources": [{"serviceAccountToken": {}}]}},
                    {"name": "data", "emptyDir": {}},
                    {"name": "default-token-7xk2p", "secret": {"secretName": "default-token-7xk2p"}},
                    {"name": "kube-api-access-mine", "emptyDir": {}}],
                "containers": [{"name": "c", "image": "i", "volumeMounts":
                    [mount("data"), {"name": "kube-api-access-x2x4q", "mountPath": TOKEN_PATH},
                        {"name": "default-token-7xk2p", "mountPath": TOKEN_PATH},
                        mount("kube-api-access-mine")]}]},
            "status": {"phase": "Running"},
        });
        let compiled = Template::from_json("t.yaml", live).unwrap().compile(&context()).unwrap();
        let words = "t.yaml: metadata.finalizers, metadata.labels.batch.kubernetes.io/job-name, \
            metadata.labels.controller-uid, metadata.labels.job-name, metadata.labels.pod-template-hash, \
            metadata.labels.statefulset.kubernetes.io/pod-name, \
            metadata.annotations.batch.kubernetes.io/job-completion-index, spec.priority, \
            spec.ephemeralContainers, metadata.annotations.ovn.kubernetes.io/ip_address, spec.nodeName, \
            spec.hostname, spec.subdomain, spec.volumes.kube-api-access-x2x4q, spec.volumes.default-token-7xk2p: \
            dropped, because they belong to one live pod";
        let named = "t.yaml: metadata.name: `s-0` is replaced: executors are named wordcount-k3f9x-exec-1 and so on";
        assert_eq!(compiled.warnings(), [words, named]);
        let pod = rendered(&compiled);
        assert_eq!(pod["metadata"]["labels"]["app"], "web");
        assert_eq!(pod["metadata"]["annotations"]["mine"], "1");
        for gone in [
            "x2x4q",
            "7xk2p",
            "s-0",
            "debugger",
            "10.16.0.7",
            "300",
            "node-7",
            "job",
            "finalizers",
            "\"h\"",
            "deletionTimestamp",
            "\"priority\"",
            "Running",
        ] {
            assert!(!pod.to_string().contains(gone), "{gone}: {pod}");
        }
        assert_eq!(pod["spec"]["priorityClassName"], "low");
        let lost = pod["spec"]["tolerations"].as_array().unwrap().iter();
        let lost: Vec<&Value> = lost.map(|one| &one["tolerationSeconds"]).collect();
        assert_eq!(lost, [7, 60], "the one that somebody meant, and posse's");
        let mounts = pod["spec"]["containers"][0]["volumeMounts"].as_array().unwrap();
        let names: Vec<&Value> = mounts.iter().map(|mount| &mount["name"]).collect();
        assert_eq!(names, ["data", "kube-api-access-mine"]);
    }

    #[test]
    fn an_executor_of_another_run_leaves_nothing_of_that_run() {
        use posse_core::model::settings::OnLoss;
        let kinds =
            [GangKind::Native, GangKind::Volcano, GangKind::Coscheduling, GangKind::Yunikorn];
        for kind in kinds.map(Some).into_iter().chain([None]) {
            let gang = kind.map(|kind| PodGang {
                kind,
                min: 3,
                timeout_s: 9,
                queue: None,
                as_created: None,
            });
            let settings = PodSettings {
                max_age_s: Some(4_711),
                queue: Some("team-a".to_owned()),
                queue_group: kind.is_none().then_some(4_711),
                gang,
                ..PodSettings::default()
            };
            let credentials = Credentials {
                name: "hdfs".to_owned(),
                command: Vec::new(),
                expires: Vec::new(),
                every_ms: None,
                timeout_ms: 1,
                secret: "shop-one-hdfs".to_owned(),
                mount: "/shop-one".to_owned(),
                env: Vec::new(),
            };
            let first = PodContext {
                app: "shop".to_owned(),
                instance: "one".to_owned(),
                group: "w".to_owned(),
                driver_port: Some(4_711),
                on_loss: OnLoss::Group,
                staged: Some(Staged {
                    secret: "shop-one-driver".to_owned(),
                    image: Some("shop-one".to_owned()),
                }),
                credentials: [credentials].into(),
                settings,
                ..context()
            };
            let own = json!({"spec": {"initContainers": [{"name": "i"}], "containers": [{"name": "c",
                "env": [{"name": "A", "value": "1"}], "volumeMounts": [{"name": "d", "mountPath": "/d"}]}],
                "volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "shop-one-w-0-d"}}]}});
            let made = |template: Value, context: &PodContext| {
                let compiled =
                    Template::from_json("t.yaml", template).unwrap().compile(context).unwrap();
                let pod = rendered(&compiled);
                (pod, compiled.warnings().len())
            };
            let (copy, _) = made(own, &first);
            let (pod, n_warnings) = made(copy, &context());
            for gone in ["shop", "4711", "kueue.x-k8s.io/pod", "role", "executors"] {
                assert!(!pod.to_string().contains(gone), "{kind:?}: {gone}: {pod}");
            }
            assert_eq!(n_warnings, 2, "one for all, one for the name");
            assert_eq!(pod["metadata"]["labels"]["kueue.x-k8s.io/queue-name"], "team-a");
            assert_eq!(pod["spec"]["containers"][0]["volumeMounts"], json!([]));
            assert!(pod["spec"]["containers"][0]["env"].to_string().contains("\"A\""));
        }
    }

    #[test]
    fn what_binds_a_pod_of_a_daemon_set_is_dropped() {
        let by_name = json!({"key": "metadata.name", "operator": "In", "values": ["node-7"]});
        let zone = json!([{"key": "zone", "operator": "In", "values": ["a"]}]);
        // All that the controller adds, and what somebody meant.
        let tolerated = |key: &str| json!({"key": key, "operator": "Exists"});
        let mut tolerations: Vec<Value> = OF_DAEMON_SETS.map(tolerated).into();
        tolerations
            .push(json!({"key": OF_DAEMON_SETS[2], "operator": "Exists", "tolerationSeconds": 7}));
        tolerations.push(tolerated("gpu"));
        for (terms, want) in [
            (json!([{"matchFields": [by_name]}]), Value::Null),
            (
                json!([{"matchExpressions": zone, "matchFields": [by_name]}]),
                json!([{"matchExpressions": zone}]),
            ),
        ] {
            let live = json!({
                "metadata": {"uid": "u", "labels": {"rollouts-pod-template-hash": "x"},
                    "annotations": {"kubernetes.io/config.mirror": "m",
                        "vpc.amazonaws.com/pod-eni": "lost", "k8s.v1.cni.cncf.io/networks-status": "lost",
                        "ovn.kubernetes.io/routed": "lost"}},
                "spec": {"hostname": "lost-0", "subdomain": "lost",
                    "readinessGates": [{"conditionType": "lost"}],
                    "containers": [{"name": "c", "image": "i"}], "tolerations": tolerations,
                    "affinity": {"nodeAffinity":
                        {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}},
            });
            let compiled =
                Template::from_json("t.yaml", live).unwrap().compile(&context()).unwrap();
            let warning = &compiled.warnings()[0];
            let words = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.matchFields: dropped";
            assert!(warning.contains(words), "{warning}");
            let pod = rendered(&compiled);
            let required = &pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
            assert_eq!(required["nodeSelectorTerms"], want);
            let left = pod["spec"]["tolerations"].as_array().unwrap().iter();
            let left: Vec<_> =
                left.map(|one| json!([one["key"], one["tolerationSeconds"]])).collect();
            let [not_ready, unreachable] = NODE_TAINTS;
            let want =
                json!([[OF_DAEMON_SETS[2], 7], ["gpu", null], [not_ready, 60], [unreachable, 60]]);
            assert_eq!(json!(left), want);
            assert!(!pod.to_string().contains("lost"), "whatever the pod's name is: {pod}");
            assert!(!pod.to_string().contains("mirror") && !pod.to_string().contains("rollouts"));
        }
    }

    /// Spark and KubeRay delete pods by their labels, whoever owns them. Spark gives them to templates, too.
    #[test]
    fn by_what_frameworks_find_their_pods_is_dropped_from_a_copy_alone() {
        let keys = [
            "dask.org/workergroup-name",
            "jobset.sigs.k8s.io/jobset-name",
            "leaderworkerset.sigs.k8s.io/name",
            "ray.io/cluster",
            "spark-app-selector",
            "spark-exec-id",
            "spark-role",
            "sparkoperator.k8s.io/app-name",
            "training.kubeflow.org/job-name",
            "volcano.sh/job-name",
            "workflows.argoproj.io/workflow",
        ];
        for list in ["labels", "annotations"] {
            let mut theirs: Map<String, Value> =
                keys.iter().map(|key| ((*key).to_owned(), json!("x"))).collect();
            theirs.insert("spark-app-name".to_owned(), json!("x"));
            let own = Map::from_iter([(list.to_owned(), json!(theirs))]);
            let mut copy = own.clone();
            copy.insert("uid".to_owned(), json!("u"));
            let dropped = remove(&mut copy, &mut Map::new());
            assert_eq!(dropped, keys.map(|key| format!("metadata.{list}.{key}")));
            assert_eq!(copy[list], json!({"spark-app-name": "x"}));
            let mut same = own.clone();
            assert_eq!(remove(&mut same, &mut Map::new()), [""; 0]);
            assert_eq!(same, own);
        }
    }

    #[test]
    fn an_affinity_that_is_none_stays_as_it_is() {
        for required in
            [json!([{"weight": 1}]), json!([{}]), json!("x"), json!(true), json!(null), json!({})]
        {
            let node = json!({"requiredDuringSchedulingIgnoredDuringExecution": required});
            let mut spec = json!({"affinity": {"nodeAffinity": node}, "nodeName": "n"});
            let spec = spec.as_object_mut().unwrap();
            let mut metadata = Map::from_iter([("uid".to_owned(), json!("u"))]);
            assert_eq!(remove(&mut metadata, spec), ["spec.nodeName"]);
            assert_eq!(spec["affinity"]["nodeAffinity"], node);
        }
        for affinity in
            [json!([1]), json!("x"), json!({"nodeAffinity": [1]}), json!({"nodeAffinity": null})]
        {
            let mut spec = Map::from_iter([("affinity".to_owned(), affinity.clone())]);
            assert!(!unbind(&mut spec));
            assert_eq!(spec["affinity"], affinity);
        }
    }

    /// Whatever else a pod mounts is somebody's own, and its program needs it.
    #[test]
    fn only_the_token_that_a_server_adds_is_dropped() {
        let access = |name: &str, source: &str| json!({"name": name, "projected": {"sources": [{source: {}}]}});
        let token = |name: &str| access(name, "serviceAccountToken");
        let secret = |name: &str| json!({"name": name, "secret": {"secretName": name}});
        let (none, hf) = (json!({}), json!({"serviceAccountName": "hf"}));
        let of_old_field = json!({"serviceAccount": "hf"});
        let without = json!({"automountServiceAccountToken": false});
        let another = json!({"name": "default-token-7xk2p", "secret": {"secretName": "mine"}});
        for (spec, volume, path, is_dropped) in [
            (&none, token("kube-api-access-x2x4q"), TOKEN_PATH, true),
            (&none, secret("default-token-7xk2p"), TOKEN_PATH, true),
            (&hf, secret("hf-token-7xk2p"), TOKEN_PATH, true),
            (&of_old_field, secret("hf-token-7xk2p"), TOKEN_PATH, true),
            // Of another account.
            (&none, secret("hf-token-7xk2p"), TOKEN_PATH, false),
            (&hf, secret("default-token-7xk2p"), TOKEN_PATH, false),
            // No server gives such a name.
            (&none, token("kube-api-access-x2x4qq"), TOKEN_PATH, false),
            (&none, another, TOKEN_PATH, false),
            // It adds nothing else, nowhere else, and only where it may.
            (&none, access("kube-api-access-x2x4q", "secret"), TOKEN_PATH, false),
            (&hf, secret("hf-token-write"), "/token", false),
            (&none, token("kube-api-access-x2x4q"), "/token", false),
            (&without, token("kube-api-access-x2x4q"), TOKEN_PATH, false),
        ] {
            let mut spec = spec.clone();
            let mounts = json!([{"name": volume["name"], "mountPath": path}]);
            spec["containers"] = json!([{"name": "c", "volumeMounts": mounts}]);
            spec["volumes"] = json!([volume]);
            let (before, mut want) = (spec.clone(), Vec::new());
            let dropped = remove(&mut Map::new(), spec.as_object_mut().unwrap());
            if is_dropped {
                want.push(format!("spec.volumes.{}", volume["name"].as_str().unwrap()));
            }
            let n_left = usize::from(!is_dropped);
            assert_eq!(dropped, want, "{before}");
            assert_eq!(spec["volumes"].as_array().unwrap().len(), n_left, "{before}");
            let mounts = spec["containers"][0]["volumeMounts"].as_array().unwrap();
            assert_eq!(mounts.len(), n_left, "{before}");
        }
    }

    #[test]
    fn a_template_of_somebodys_own_keeps_what_is_meant() {
        let warnings = |metadata: Value, node: Value| {
            let own = json!({"metadata": metadata, "spec": {"containers": [{"name": "c"}], "nodeName": node}});
            let compiled = Template::from_json("t.yaml", own).unwrap().compile(&context()).unwrap();
            compiled.warnings().to_vec()
        };
        assert_eq!(warnings(json!({"labels": {"app": "a"}}), json!(null)), [""; 0]);
        let alone = "t.yaml: spec.nodeName: puts all executors on this node, past the scheduler: a nodeSelector lets it \
            look for room";
        assert_eq!(warnings(json!({}), json!("n")), [alone]);
        let copy = "t.yaml: spec.nodeName: dropped, because they belong to one live pod";
        assert_eq!(warnings(json!({"uid": "u"}), json!("n")), [copy]);
    }
}
