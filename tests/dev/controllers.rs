//! Tests of the controllers and of admission through the sockets of whole clusters.

use serde_json::{Value, json};

use crate::dev::http::{Fixture, condition, container, eventually, start};

const CORE: &str = "/api/v1/namespaces/default";
const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";

impl Fixture {
    /// The reasons of all Events about an object.
    fn reasons(&self, name: &str) -> Vec<String> {
        let events = self.items(&format!("{CORE}/events"));
        let about = events.iter().filter(|event| event["involvedObject"]["name"] == name);
        about.filter_map(|event| event["reason"].as_str().map(str::to_owned)).collect()
    }
}

fn has(object: &Value, name: &str) -> bool {
    condition(object, name)["status"] == "True"
}

fn job(name: &str, script: &str, spec: &Value) -> Value {
    let mut job = json!({
        "metadata": { "name": name },
        "spec": { "template": { "spec": {
            "restartPolicy": "Never",
            "containers": [container("c", script)],
        }}},
    });
    for (field, value) in spec.as_object().expect("fields") {
        job["spec"][field] = value.clone();
    }
    job
}

fn pod(name: &str, spec: &Value) -> Value {
    let mut pod = json!({
        "metadata": { "name": name, "labels": { "app": "a" } },
        "spec": { "containers": [
            { "name": "c", "image": "none", "command": ["sleep", "100"] },
        ]},
    });
    for (field, value) in spec.as_object().expect("fields") {
        pod["spec"][field] = value.clone();
    }
    pod
}

#[test]
fn a_job_completes_when_enough_pods_have_succeeded() {
    let fixture = start(|_| {});
    let spec = json!({ "completions": 3, "parallelism": 2, "ttlSecondsAfterFinished": 100 });
    fixture.created(JOBS, &job("j", "true", &spec));
    let path = format!("{JOBS}/j");
    let done = fixture.until(&path, "complete", |job| has(job, "Complete"));
    let status = &done["status"];
    assert_eq!((&status["succeeded"], &status["active"]), (&json!(3), &Value::Null), "{status}");
    assert!(status["completionTime"].is_string() && status["startTime"].is_string());
    let pods = fixture.items(&format!("{CORE}/pods"));
    assert_eq!(pods.len(), 3);
    let labels = &pods[0]["metadata"]["labels"];
    assert_eq!(
        (&labels["job-name"], &labels["controller-uid"]),
        (&json!("j"), &done["metadata"]["uid"])
    );
    let reasons = fixture.reasons("j");
    assert_eq!(reasons.iter().filter(|reason| *reason == "SuccessfulCreate").count(), 3);
    assert!(reasons.contains(&"Completed".to_owned()), "{reasons:?}");
    // kubectl deletes jobs with background propagation, which also deletes the pods.
    assert_eq!(fixture.delete(&format!("{path}?propagationPolicy=Background")).status, 200);
    fixture.until(&format!("{CORE}/pods"), "empty", |pods| pods["items"] == json!([]));
}

/// As the executors of a run that outlive the driver's pod.
#[test]
fn a_pod_that_a_job_owns_without_control_does_not_count() {
    let fixture = start(|_| {});
    let job_uid =
        fixture.created(JOBS, &job("j", "sleep 100", &json!({})))["metadata"]["uid"].clone();
    let mut owned = pod("owned", &json!({ "restartPolicy": "Never" }));
    owned["metadata"]["ownerReferences"] =
        json!([{ "apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": job_uid }]);
    owned["spec"]["containers"][0]["command"] = json!(["true"]);
    let path = format!("{CORE}/pods/owned");
    fixture.created(&format!("{CORE}/pods"), &owned);
    fixture.until(&path, "succeeded", |pod| pod["status"]["phase"] == "Succeeded");
    assert_eq!(fixture.delete(&path).status, 200);
    // The controller sees the delete before this Job's end.
    fixture.created(JOBS, &job("other", "true", &json!({})));
    let other = format!("{JOBS}/other");
    fixture.until(&other, "complete", |job| has(job, "Complete"));
    let status = fixture.get(&format!("{JOBS}/j")).json()["status"].clone();
    assert_eq!((&status["succeeded"], &status["active"]), (&Value::Null, &json!(1)), "{status}");
}

#[test]
fn a_job_fails_after_its_backoff_limit() {
    let fixture = start(|_| {});
    fixture.created(JOBS, &job("j", "exit 3", &json!({ "backoffLimit": 1 })));
    let path = format!("{JOBS}/j");
    let failed = fixture.until(&path, "failed", |job| has(job, "Failed"));
    let over = condition(&failed, "Failed");
    assert_eq!(over["reason"], "BackoffLimitExceeded");
    assert_eq!(over["message"], "Job has reached the specified backoff limit");
    assert_eq!(failed["status"]["failed"], 2);
    assert!(fixture.reasons("j").contains(&"BackoffLimitExceeded".to_owned()));
}

#[test]
fn a_pod_failure_policy_fails_a_job_for_an_exit_code() {
    let fixture = start(|_| {});
    let policy = json!({ "podFailurePolicy": { "rules": [
        { "action": "FailJob", "onExitCodes": { "operator": "In", "values": [42] } },
    ]}});
    fixture.created(JOBS, &job("j", "exit 42", &policy));
    let path = format!("{JOBS}/j");
    let failed = fixture.until(&path, "failed", |job| has(job, "Failed"));
    let over = condition(&failed, "Failed");
    assert_eq!(over["reason"], "PodFailurePolicy");
    assert!(has(&failed, "FailureTarget"));
    assert_eq!(failed["status"]["failed"], 1);
}

#[test]
fn a_job_is_suspended_resumed_and_ends_by_its_deadline() {
    let fixture = start(|options| options.simulate = true);
    fixture.created(JOBS, &job("j", "sleep 100", &json!({ "suspend": true, "parallelism": 2 })));
    let path = format!("{JOBS}/j");
    let held = fixture.until(&path, "suspended", |job| has(job, "Suspended"));
    assert!(held["status"]["startTime"].is_null());
    fixture.patch(&path, &json!({ "spec": { "suspend": false } }));
    fixture.until(&path, "ready", |job| job["status"]["ready"] == 2);
    fixture.patch(&path, &json!({ "spec": { "suspend": true } }));
    fixture.until(&format!("{CORE}/pods"), "empty", |pods| pods["items"] == json!([]));
    let held = fixture.until(&path, "suspended", |job| has(job, "Suspended"));
    assert!(held["status"]["failed"].is_null(), "{held}");
    let deadline = json!({ "spec": { "suspend": false, "activeDeadlineSeconds": 1 } });
    fixture.patch(&path, &deadline);
    let failed = fixture.until(&path, "failed", |job| has(job, "Failed"));
    assert_eq!(condition(&failed, "Failed")["reason"], "DeadlineExceeded");
}

#[test]
fn a_finished_job_is_deleted_after_its_ttl() {
    let fixture = start(|_| {});
    fixture.created(JOBS, &job("j", "true", &json!({ "ttlSecondsAfterFinished": 0 })));
    fixture.until(&format!("{JOBS}/j"), "gone", |job| job["code"] == 404);
    fixture.until(&format!("{CORE}/pods"), "empty", |pods| pods["items"] == json!([]));
}

#[test]
fn a_quota_is_never_exceeded_and_delays_a_job() {
    const QUOTA: &str = "/api/v1/namespaces/default/resourcequotas/q";
    let fixture = start(|options| options.simulate = true);
    let quota = json!({ "metadata": { "name": "q" }, "spec": { "hard": { "pods": "5" } } });
    fixture.created(&format!("{CORE}/resourcequotas"), &quota);
    fixture.until(QUOTA, "counted", |quota| quota["status"]["used"]["pods"] == "0");
    let pods = format!("{CORE}/pods");
    let create = |n: u32| fixture.post(&pods, &pod(&format!("p{n}"), &json!({}))).status;
    let create = &create;
    let admitted = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..32).map(|n| scope.spawn(move || create(n))).collect();
        threads.into_iter().map(|thread| thread.join().expect("an answer")).collect::<Vec<_>>()
    });
    assert_eq!(admitted.iter().filter(|status| **status == 201).count(), 5, "{admitted:?}");
    assert_eq!(admitted.iter().filter(|status| **status == 403).count(), 27, "{admitted:?}");
    fixture.created(JOBS, &job("j", "true", &json!({})));
    eventually("the job to be refused", || {
        fixture.reasons("j").contains(&"FailedCreate".to_owned()).then_some(())
    });
    // Without the job, which takes what becomes free.
    assert_eq!(fixture.delete(&format!("{JOBS}/j?propagationPolicy=Background")).status, 200);
    fixture.until(&format!("{JOBS}/j"), "gone", |job| job["code"] == 404);
    let name = fixture.items(&pods)[0]["metadata"]["name"].clone();
    let path = format!("{pods}/{}?gracePeriodSeconds=0", name.as_str().expect("a name"));
    assert_eq!(fixture.delete(&path).status, 200);
    fixture.until(QUOTA, "freed", |quota| quota["status"]["used"]["pods"] == "4");
    assert_eq!(fixture.post(&pods, &pod("late", &json!({}))).status, 201);
}

#[test]
fn pods_have_a_service_account_that_exists() {
    let fixture = start(|options| options.simulate = true);
    let pods = format!("{CORE}/pods");
    let plain = fixture.created(&pods, &pod("a", &json!({})));
    let account = |pod: &Value| pod["spec"]["serviceAccountName"].clone();
    assert_eq!(
        (account(&plain), &plain["spec"]["serviceAccount"]),
        (json!("default"), &json!("default"))
    );
    let refused = fixture.post(&pods, &pod("b", &json!({ "serviceAccountName": "x" })));
    assert_eq!(refused.status, 403);
    let message = "pods \"b\" is forbidden: error looking up service account default/x: \
                   serviceaccount \"x\" not found";
    assert_eq!(refused.json()["message"], message);
    let account = json!({ "metadata": { "name": "x" } });
    fixture.created(&format!("{CORE}/serviceaccounts"), &account);
    fixture.created(&pods, &pod("b", &json!({ "serviceAccountName": "x" })));
    // A deleted `default` service account is created again.
    let path = format!("{CORE}/serviceaccounts/default");
    let uid = fixture.get(&path).json()["metadata"]["uid"].clone();
    fixture.delete(&path);
    fixture.until(&path, "another one", |account| {
        let new = &account["metadata"]["uid"];
        new.is_string() && *new != uid
    });
}

#[test]
fn disabled_admission_plugins_do_nothing() {
    let fixture = start(|options| {
        options.simulate = true;
        options.disabled_admission = vec!["ServiceAccount".to_owned(), "LimitRanger".to_owned()];
    });
    let range = json!({ "metadata": { "name": "r" }, "spec": { "limits": [
        { "type": "Container", "max": { "cpu": "1" } },
    ]}});
    fixture.created(&format!("{CORE}/limitranges"), &range);
    let pod = fixture.created(&format!("{CORE}/pods"), &pod("a", &json!({})));
    assert!(pod["spec"]["serviceAccountName"].is_null());
}

#[test]
fn a_claim_gets_a_directory_that_is_removed_with_the_claim() {
    const VOLUMES: &str = "/api/v1/persistentvolumes";
    let fixture = start(|options| options.simulate = true);
    let claims = format!("{CORE}/persistentvolumeclaims");
    let claim = |name: &str| {
        json!({
            "metadata": { "name": name },
            "spec": {
                "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } },
            },
        })
    };
    fixture.created(&claims, &claim("c"));
    let path = format!("{claims}/c");
    let bound = fixture.until(&path, "bound", |claim| claim["status"]["phase"] == "Bound");
    assert_eq!(bound["status"]["capacity"]["storage"], "1Gi");
    let name = bound["spec"]["volumeName"].as_str().expect("a volume").to_owned();
    let volume = fixture.get(&format!("{VOLUMES}/{name}")).json();
    assert_eq!(volume["status"]["phase"], "Bound");
    assert_eq!(volume["spec"]["claimRef"]["name"], "c");
    let folder = volume["spec"]["hostPath"]["path"].as_str().expect("a path").to_owned();
    assert!(std::path::Path::new(&folder).is_dir());
    let volumes = json!([{ "name": "v", "persistentVolumeClaim": { "claimName": "c" } }]);
    fixture.created(&format!("{CORE}/pods"), &pod("user", &json!({ "volumes": volumes })));
    fixture.until(&format!("{CORE}/pods/user"), "bound", |pod| pod["spec"]["nodeName"].is_string());
    assert_eq!(fixture.delete(&path).status, 200);
    let held = fixture.get(&path).json();
    assert!(held["metadata"]["deletionTimestamp"].is_string(), "in use: {held}");
    fixture.delete(&format!("{CORE}/pods/user?gracePeriodSeconds=0"));
    fixture.until(&path, "gone", |claim| claim["code"] == 404);
    fixture.until(&format!("{VOLUMES}/{name}"), "gone", |volume| volume["code"] == 404);
    eventually("the folder to go", || (!std::path::Path::new(&folder).exists()).then_some(()));
}

#[test]
fn a_claim_gets_a_fitting_volume() {
    const VOLUMES: &str = "/api/v1/persistentvolumes";
    let fixture = start(|options| options.simulate = true);
    let claims = format!("{CORE}/persistentvolumeclaims");
    for (name, size) in [("small", "1Gi"), ("fits", "3Gi"), ("large", "9Gi")] {
        fixture.created(
            VOLUMES,
            &json!({
                "metadata": { "name": name },
                "spec": {
                    "accessModes": ["ReadWriteOnce"], "capacity": { "storage": size },
                    "hostPath": { "path": "/tmp" }, "storageClassName": "",
                },
            }),
        );
    }
    fixture.until(&format!("{VOLUMES}/large"), "free", |v| v["status"]["phase"] == "Available");
    let spec = json!({
        "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "2Gi" } },
        "storageClassName": "",
    });
    fixture.created(&claims, &json!({ "metadata": { "name": "c" }, "spec": spec }));
    let bound = fixture.until(&format!("{claims}/c"), "bound", |c| c["status"]["phase"] == "Bound");
    assert_eq!(bound["spec"]["volumeName"], "fits");
    // A volume that was not provisioned by the cluster stays.
    fixture.delete(&format!("{claims}/c"));
    fixture.until(&format!("{VOLUMES}/fits"), "left", |v| v["status"]["phase"] == "Released");
}

#[test]
fn a_namespace_is_deleted_with_its_claims_and_jobs() {
    let fixture = start(|options| options.simulate = true);
    fixture.created("/api/v1/namespaces", &json!({ "metadata": { "name": "n" } }));
    let claim = json!({ "metadata": { "name": "c" }, "spec": {
        "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } },
    }});
    let claims = "/api/v1/namespaces/n/persistentvolumeclaims";
    fixture.created(claims, &claim);
    fixture.until(&format!("{claims}/c"), "bound", |claim| claim["status"]["phase"] == "Bound");
    fixture.created("/apis/batch/v1/namespaces/n/jobs", &job("j", "sleep 9", &json!({})));
    let pods = "/api/v1/namespaces/n/pods";
    fixture.until(pods, "begun", |pods| !pods["items"][0]["spec"]["nodeName"].is_null());
    fixture.delete("/api/v1/namespaces/n");
    fixture.until("/api/v1/namespaces/n", "gone", |namespace| namespace["code"] == 404);
    fixture.until("/api/v1/persistentvolumes", "none", |volumes| volumes["items"] == json!([]));
}

#[test]
fn an_evicted_pod_is_marked_and_a_job_can_ignore_its_failure() {
    let fixture = start(|options| options.simulate = true);
    let policy = json!({ "backoffLimit": 0, "podFailurePolicy": { "rules": [
        { "action": "Ignore", "onPodConditions": [{ "type": "DisruptionTarget" }] },
    ]}});
    fixture.created(JOBS, &job("j", "sleep 100", &policy));
    let pods = format!("{CORE}/pods");
    let running =
        fixture.until(&pods, "running", |pods| pods["items"][0]["status"]["phase"] == "Running");
    let name = running["items"][0]["metadata"]["name"].as_str().expect("a name").to_owned();
    let body = json!({ "metadata": { "name": name } });
    assert_eq!(fixture.post(&format!("{pods}/{name}/eviction"), &body).status, 201);
    let next = fixture.until(&pods, "replaced", |pods| {
        pods["items"]
            .as_array()
            .is_some_and(|pods| pods.len() == 1 && pods[0]["metadata"]["name"] != name.as_str())
    });
    assert_eq!(next["items"][0]["metadata"]["labels"]["job-name"], "j");
    let job = fixture.get(&format!("{JOBS}/j")).json();
    assert!(job["status"]["failed"].is_null() && !has(&job, "Failed"), "{job}");
}
