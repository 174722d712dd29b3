//! The environment of the embedded cluster's containers: volumes, variables, tokens. Each test runs
//! as this user and, if this user is root, also as an unprivileged one.

use std::path::Path;

use crate::support::access::Access;
use crate::support::embedded::Embedded;
use crate::support::http::Client;
use crate::support::server::{Server, Who};
use crate::support::wait::{PATIENCE, wait_for, wait_value};
use serde_json::{Value, json};

const NAMESPACE: &str = "/api/v1/namespaces/default";
const NOBODY: u32 = 65_534;

struct Cluster {
    client: Client,
    access: Access,
    _server: Embedded,
}

impl Cluster {
    fn of(server: Embedded) -> Self {
        let access = server.access(Who::Admin);
        let client = Client::new(&access, "volumes");
        Self { client, access, _server: server }
    }

    fn start() -> Self {
        Self::of(Embedded::start())
    }

    fn create(&self, plural: &str, object: &Value) -> Value {
        let answer = self.client.post(&format!("{NAMESPACE}/{plural}"), object);
        assert_eq!(answer.code, 201, "{}", answer.body);
        answer.body
    }

    /// Creates a pod of one container, which runs `script`.
    fn run(&self, name: &str, script: &str, container: &Value, spec: &Value) {
        let mut container = container.clone();
        let words = json!({"name": "c", "image": "none", "command": ["sh", "-c", script]});
        container.as_object_mut().unwrap().extend(words.as_object().unwrap().clone());
        let mut spec = spec.clone();
        let rest = json!({"restartPolicy": "Never", "containers": [container]});
        spec.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        let labels = json!({"name": name, "labels": {"color": "red"}});
        self.create("pods", &json!({"metadata": labels, "spec": spec}));
    }

    fn pod(&self, name: &str) -> Value {
        self.client.get(&format!("{NAMESPACE}/pods/{name}")).body
    }

    fn log(&self, name: &str) -> String {
        let path = format!("{NAMESPACE}/pods/{name}/log");
        let mut answer = self.client.raw("GET", &path, &[], b"", None).unwrap();
        answer.body_mut().read_to_string().unwrap()
    }

    /// The log of a pod after its end; the pod must have succeeded.
    #[track_caller]
    fn said(&self, name: &str) -> String {
        wait_value(PATIENCE, &format!("pod {name} to end"), || {
            let pod = self.pod(name);
            match pod["status"]["phase"].as_str() {
                Some("Succeeded") => Ok(()),
                Some("Failed") => panic!("{name}: {}\n{}", pod["status"], self.log(name)),
                _ => Err(pod["status"].to_string()),
            }
        });
        self.log(name)
    }

    /// The message of a waiting container, once it waits for this reason.
    fn waits(&self, name: &str, reason: &str) -> String {
        wait_value(PATIENCE, &format!("pod {name} to wait: {reason}"), || {
            let pod = self.pod(name);
            let waiting = &pod["status"]["containerStatuses"][0]["state"]["waiting"];
            match waiting["reason"] == reason {
                true => Ok(waiting["message"].as_str().unwrap_or_default().to_owned()),
                false => Err(pod["status"].to_string()),
            }
        })
    }

    fn wait_event(&self, reason: &str, message: &str) {
        wait_value(PATIENCE, &format!("the event {message}"), || {
            let events = self.client.get(&format!("{NAMESPACE}/events")).body;
            let found = events["items"].as_array().unwrap().iter().any(|event| {
                event["reason"] == reason
                    && event["message"] == message
                    && event["type"] == "Warning"
            });
            if found { Ok(()) } else { Err(events.to_string()) }
        });
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The clusters of a scenario: one of this user, and one of an unprivileged user.
fn clusters() -> Vec<Cluster> {
    let mut clusters = vec![Cluster::start()];
    if is_root() {
        clusters.push(Cluster::of(Embedded::start_as(NOBODY, &[])));
    }
    clusters.retain(can_mount);
    clusters
}

/// Without user namespaces the node must report that, and the rest cannot be tested.
fn can_mount(cluster: &Cluster) -> bool {
    let mounts = json!({"volumeMounts": [{"name": "v", "mountPath": "/mnt"}]});
    cluster.run("probe", "true", &mounts, &json!({"volumes": [{"name": "v", "emptyDir": {}}]}));
    let able = wait_value(PATIENCE, "the first pod with a volume", || {
        let pod = cluster.pod("probe");
        let waiting = &pod["status"]["containerStatuses"][0]["state"]["waiting"];
        match (pod["status"]["phase"].as_str(), waiting["reason"].as_str()) {
            (Some("Succeeded"), _) => Ok(true),
            (_, Some("CreateContainerError")) => Ok(false),
            _ => Err(pod["status"].to_string()),
        }
    });
    if !able {
        let why = cluster.waits("probe", "CreateContainerError");
        assert!(why.contains("run posse as root, or allow user namespaces"), "{why}");
        eprintln!("skipped, this machine cannot mount: {why}");
    }
    able
}

fn all_kinds_of_volumes() -> Value {
    json!({"volumes": [
        {"name": "scratch", "emptyDir": {"medium": "Memory"}},
        {"name": "all", "configMap": {"name": "m"}},
        {"name": "some", "configMap": {"name": "m", "defaultMode": 0o400, "items":
            [{"key": "a.conf", "path": "deep/er.conf"}, {"key": "b", "path": "b", "mode": 0o644}]}},
        {"name": "none", "configMap": {"name": "absent", "optional": true}},
        {"name": "secret", "secret": {"secretName": "s", "defaultMode": 0o440}},
        {"name": "self", "downwardAPI": {"items":
            [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
        {"name": "both", "projected": {"sources": [
            {"secret": {"name": "s"}},
            {"downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
            {"serviceAccountToken": {"path": "token", "audience": "somebody"}},
        ]}},
        {"name": "host", "hostPath": {"path": "/usr/bin", "type": "Directory"}},
    ]})
}

pub fn volumes_are_mounted_at_their_paths() {
    // Paths that exist on no machine.
    let place = format!("/posse-test-{}", std::process::id());
    for cluster in clusters() {
        cluster.create(
            "configmaps",
            &json!({
                "metadata": {"name": "m"}, "data": {"a.conf": "one", "b": "two"},
                "binaryData": {"raw": "AQI="},
            }),
        );
        cluster
            .create("secrets", &json!({"metadata": {"name": "s"}, "data": {"pass": "aHVudGVy"}}));
        let volumes = all_kinds_of_volumes();
        let mount =
            |name: &str, path: &str| json!({"name": name, "mountPath": format!("{place}/{path}")});
        let with = |mut mount: Value, field: &str, value: Value| {
            mount[field] = value;
            mount
        };
        let container = json!({
            "workingDir": format!("{place}/scratch"),
            "env": [{"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
            "terminationMessagePath": "/dev/termination-log",
            "volumeMounts": [
                mount("scratch", "scratch"), mount("all", "all"), mount("some", "some"),
                mount("none", "none"), mount("secret", "secret"), mount("self", "self"),
                mount("both", "both"), with(mount("host", "host"), "readOnly", true.into()),
                with(mount("scratch", "scratch/in/side"), "subPathExpr", "of-$(POD)".into()),
                with(mount("all", "file"), "subPath", "b".into()),
                // Over an existing file, through a link, and over the folder that contains all of
                // it.
                json!({"name": "all", "mountPath": "/etc/posse-test/conf"}),
                json!({"name": "secret", "mountPath": "/var/run/secrets/posse-test"}),
                json!({"name": "scratch", "mountPath": "/tmp", "subPath": "tmp"}),
            ],
        });
        let script = format!(
            "set -e; pwd; cd {place}; ls; cat all/a.conf all/b some/deep/er.conf some/b file; \
             echo; wc -c < all/raw; ls none | wc -l; cat secret/pass self/labels both/pass both/name; \
             echo; cut -d. -f2 both/token | wc -l; test -x host/sh; \
             stat -L -c %a some/deep/er.conf some/b secret/pass; \
             echo 1 > scratch/x; echo 2 > scratch/in/side/y; cat scratch/of-$POD/y; \
             touch host/x 2> /dev/null || echo no; touch all/x 2> /dev/null || echo no; \
             cat /etc/posse-test/conf/b /var/run/secrets/posse-test/pass; echo; \
             test -e /etc/passwd; ls /tmp | wc -l; echo 3 > /tmp/z; cat scratch/tmp/z; \
             test -s $KUBECONFIG; id -u; echo farewell > /dev/termination-log"
        );
        cluster.run("p", &script, &container, &volumes);
        let said = cluster.said("p");
        let user = said.lines().last().unwrap().to_owned();
        let want = format!(
            "{place}/scratch\nall\nboth\nfile\nhost\nnone\nscratch\nsecret\nself\nsome\n\
             onetwoonetwotwo\n2\n0\nhuntercolor=\"red\"hunterp\n1\n400\n644\n440\n2\nno\nno\n\
             twohunter\n0\n3\n{user}\n"
        );
        assert_eq!(said, want);
        for path in [&place, "/etc/posse-test", "/var/run/secrets/posse-test", "/tmp/z"] {
            assert!(!Path::new(path).exists(), "{path} is the container's alone");
        }
    }
}

pub fn files_follow_their_objects_while_a_container_runs() {
    for cluster in clusters() {
        cluster.create(
            "configmaps",
            &json!({"metadata": {"name": "m"}, "data": {"k": "old", "gone": ""}}),
        );
        cluster.create("secrets", &json!({"metadata": {"name": "s"}, "data": {"k": "b2xk"}}));
        let volumes = json!({"volumes": [
            {"name": "m", "configMap": {"name": "m"}},
            {"name": "all", "projected": {"sources": [
                {"secret": {"name": "s"}},
                {"downwardAPI": {"items": [{"path": "color", "fieldRef":
                    {"fieldPath": "metadata.labels['color']"}}]}},
            ]}},
        ]});
        let mounts = json!({"volumeMounts": [
            {"name": "m", "mountPath": "/posse-m"}, {"name": "all", "mountPath": "/posse-all"},
            {"name": "m", "mountPath": "/posse-k", "subPath": "k"},
        ]});
        let script = "cat /posse-m/k /posse-all/k /posse-all/color; echo; echo ready; \
                      until grep -q new /posse-m/k; do sleep 0.02; done; \
                      until grep -q new /posse-all/k; do sleep 0.02; done; \
                      until grep -q blue /posse-all/color; do sleep 0.02; done; \
                      ls /posse-m; cat /posse-k";
        cluster.run("p", script, &mounts, &volumes);
        wait_for(PATIENCE, "the pod to look", || cluster.log("p").contains("ready"));
        let patch = |path: &str, body: Value| {
            let answer = cluster.client.merge_patch(&format!("{NAMESPACE}/{path}"), &body);
            assert_eq!(answer.code, 200, "{}", answer.body);
        };
        patch("configmaps/m", json!({"data": {"k": "new", "gone": null}}));
        patch("secrets/s", json!({"data": {"k": "bmV3"}}));
        patch("pods/p", json!({"metadata": {"labels": {"color": "blue"}}}));
        assert_eq!(cluster.said("p"), "oldoldred\nready\nk\nold", "a subPath is not followed");
    }
}

pub fn a_token_is_mounted_if_a_pod_requests_it() {
    let Some(cluster) = clusters().pop() else { return };
    let script = "cd /var/run/secrets/kubernetes.io/serviceaccount; cat namespace; echo; cat token";
    cluster.run("p", script, &json!({}), &json!({"automountServiceAccountToken": true}));
    let said = cluster.said("p");
    let (namespace, token) = said.split_once('\n').unwrap();
    assert_eq!(namespace, "default");
    let review = |token: &str| {
        let path = "/apis/authentication.k8s.io/v1/tokenreviews";
        cluster.client.post(path, &json!({"spec": {"token": token}})).body["status"].clone()
    };
    let status = review(token);
    assert_eq!(status["user"]["username"], "system:serviceaccount:default:default", "{status}");
    let pod = &status["user"]["extra"]["authentication.kubernetes.io/pod-name"];
    assert_eq!(*pod, json!(["p"]));
    assert_eq!(review("made-up"), json!({"user": {}, "error": "invalid bearer token"}));
    cluster.client.delete(&format!("{NAMESPACE}/pods/p"), &json!({"gracePeriodSeconds": 0}));
    wait_for(PATIENCE, "the token to end", || review(token)["authenticated"] != true);
    cluster.run(
        "without",
        "ls /var/run/secrets/kubernetes.io || echo none",
        &json!({}),
        &json!({}),
    );
    assert!(cluster.said("without").contains("none"));
}

pub fn pods_share_a_claim() {
    let Some(cluster) = clusters().pop() else { return };
    let claim = json!({
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
    });
    let named = json!({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]});
    let mounts = json!({"volumeMounts": [{"name": "v", "mountPath": "/posse-data"}]});
    cluster.run("first", "echo kept > /posse-data/x", &mounts, &named);
    cluster.create("persistentvolumeclaims", &json!({"metadata": {"name": "data"}, "spec": claim}));
    cluster.said("first");
    let mut again = named.clone();
    again["volumes"][0]["persistentVolumeClaim"]["readOnly"] = true.into();
    cluster.run(
        "second",
        "cat /posse-data/x; touch /posse-data/y 2> /dev/null || echo no",
        &mounts,
        &again,
    );
    assert_eq!(cluster.said("second"), "kept\nno\n");
}

pub fn missing_objects_are_waited_for_and_named() {
    let Some(cluster) = clusters().pop() else { return };
    let mounts = json!({"volumeMounts": [{"name": "v", "mountPath": "/posse-v"}]});
    cluster.run(
        "mount",
        "cat /posse-v/k",
        &mounts,
        &json!({"volumes": [{"name": "v", "configMap": {"name": "late"}}]}),
    );
    cluster.wait_event(
        "FailedMount",
        "MountVolume.SetUp failed for volume \"v\" : configmap \"late\" not found",
    );
    assert_eq!(cluster.waits("mount", "ContainerCreating"), "");
    let from = json!({"env": [{"name": "K", "valueFrom": {"configMapKeyRef": {"name": "late", "key": "k"}}}]});
    cluster.run("env", "echo $K", &from, &json!({}));
    assert_eq!(cluster.waits("env", "CreateContainerConfigError"), "configmap \"late\" not found");
    cluster.run("host", "true", &mounts,
        &json!({"volumes": [{"name": "v", "hostPath": {"path": "/etc/passwd", "type": "Directory"}}]}));
    cluster.wait_event(
        "FailedMount",
        "MountVolume.SetUp failed for volume \"v\" : hostPath type check failed: /etc/passwd is not a \
         directory",
    );
    cluster.create("configmaps", &json!({"metadata": {"name": "late"}, "data": {"k": "here"}}));
    assert_eq!(cluster.said("mount"), "here");
    assert_eq!(cluster.said("env"), "here\n");
}

pub fn an_impossible_mount_is_a_failed_start() {
    let Some(cluster) = clusters().pop() else { return };
    let volumes = json!({"volumes": [{"name": "v", "emptyDir": {}}]});
    for (name, container, words) in [
        (
            "over-file",
            json!({"volumeMounts": [{"name": "v", "mountPath": "/etc/passwd"}]}),
            "Are you trying to mount a directory onto a file (or vice-versa)?",
        ),
        (
            "no-folder",
            json!({"workingDir": "/posse-none", "volumeMounts": [{"name": "v", "mountPath": "/mnt"}]}),
            "chdir to cwd (\"/posse-none\") set in config.json failed: no such file or directory",
        ),
    ] {
        cluster.run(name, "true", &container, &volumes);
        let ended = wait_value(PATIENCE, "the pod to fail", || {
            let pod = cluster.pod(name);
            let ended = &pod["status"]["containerStatuses"][0]["state"]["terminated"];
            if ended.is_object() { Ok(ended.clone()) } else { Err(pod["status"].to_string()) }
        });
        assert_eq!((&ended["exitCode"], &ended["reason"]), (&json!(128), &json!("StartError")));
        assert!(ended["message"].as_str().unwrap().contains(words), "{ended}");
    }
}

pub fn with_rbac_a_pod_has_its_service_accounts_permissions() {
    let cluster = Cluster::of(Embedded::start_with(&["--rbac"]));
    let binary = env!("CARGO_BIN_EXE_posse");
    let script = format!(
        "cat $KUBECONFIG; unset KUBECONFIG; echo IN-CLUSTER; echo 'app: a\nexecutors: [{{image: i}}]' \
         > $TMPDIR/posse.yaml; {binary} check -f $TMPDIR/posse.yaml 2>&1; echo END; \
         while :; do sleep 1; done"
    );
    let folder = json!({"env": [{"name": "TMPDIR", "value": "/scratch"}],
        "volumeMounts": [{"name": "v", "mountPath": "/scratch"}]});
    cluster.run("p", &script, &folder, &json!({"volumes": [{"name": "v", "emptyDir": {}}]}));
    let (log, token) = wait_value(PATIENCE, "the pod to know its token", || {
        let log = cluster.log("p");
        if !log.ends_with("END\n") {
            return Err(log);
        }
        let token = log.split_once("token: \"").and_then(|(_, rest)| rest.split_once('"'));
        let token = token.map(|(token, _)| token.to_owned());
        token.map(|token| (log.clone(), token)).ok_or(log)
    });
    assert!(log.contains(&cluster.access.url), "{log}");
    // With its own token, the certificate in its volume and the address in its variables the real
    // client can connect: it may not create pods.
    let (_, said) = log.split_once("IN-CLUSTER\n").unwrap();
    let words = "User \"system:serviceaccount:default:default\" cannot create resource \"pods\"";
    assert!(said.contains(words), "{said}");
    let as_pod = |token: &str| {
        let access = Access { token: Some(token.to_owned()), ..cluster.access.clone() };
        Client::new(&access, "pod")
    };
    let pods = format!("{NAMESPACE}/pods");
    let refused = as_pod(&token).get(&pods);
    let words = "pods is forbidden: User \"system:serviceaccount:default:default\" cannot list \
                 resource \"pods\" in API group \"\" in the namespace \"default\"";
    assert_eq!((refused.code, refused.body["message"].as_str()), (403, Some(words)));
    let binding = json!({
        "metadata": {"name": "b"},
        "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": "default"}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
    });
    let rolebindings = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings";
    assert_eq!(cluster.client.post(rolebindings, &binding).code, 201);
    assert_eq!(as_pod(&token).get(&pods).code, 200);
    assert_eq!(as_pod(&token).get(&format!("{NAMESPACE}/secrets")).code, 403);
    assert_eq!(as_pod("made-up").get(&pods).code, 401);
    let nobody = Client::new(&Access { token: None, ..cluster.access.clone() }, "nobody");
    assert_eq!(nobody.get(&pods).code, 403);
    assert_eq!(nobody.get("/version").code, 200);
    // The server accepts both.
    let plain =
        Access { url: cluster.access.url.replace("https:", "http:"), ..cluster.access.clone() };
    assert_eq!(Client::new(&plain, "plain").get(&pods).code, 200);
    // A token is invalid once its pod is deleted.
    cluster.client.delete(&format!("{pods}/p"), &json!({"gracePeriodSeconds": 0}));
    wait_for(PATIENCE, "the token to end", || as_pod(&token).get(&pods).code == 401);
}
