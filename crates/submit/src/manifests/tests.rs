//! The objects of a driver, field by field.

use std::sync::Arc;

use super::*;
use crate::files::Files;
use crate::plan::ScrapePort;
use crate::pod_files::PodFiles;
use posse_wire::bundle::Ticket;
use posse_wire::config::{Config, Metrics, PodSource};
use posse_wire::k8s::common_metadata::CommonMetadata;
use posse_wire::k8s::permissions::RECORD;
use posse_wire::names;
use posse_wire::pod::template::Template;

/// The plan for this `driver:` section.
fn plan(driver: &str, shape: impl FnOnce(&mut Plan)) -> Plan {
    let config = Config::parse("posse.yaml", &format!("driver: {driver}")).unwrap();
    let mut pod = config.driver.pod;
    let template = match std::mem::replace(&mut pod.source, PodSource::Shorthands) {
        PodSource::Inline(value) => value,
        PodSource::File(_) | PodSource::Shorthands => {
            json!({"spec": {"containers": [{"name": "driver", "image": "i"}]}})
        }
    };
    let mut plan = Plan {
        app: "wc".to_owned(),
        namespace: "n".to_owned(),
        submission: "k3f9x".to_owned(),
        pod,
        template: Template::from_json("driver.yaml", template).unwrap(),
        files: Files::new("app: wc".to_owned(), vec![("a/e.yaml".to_owned(), "pod".to_owned())]),
        args: vec!["--".to_owned(), "run".to_owned()],
        common: Arc::default(),
        queue: None,
        has_driver_command: true,
        executors: Vec::new(),
        n_executors: 4,
        grace_ms: 15_000,
        stop_timeout_ms: 10_000,
        image_timeout_ms: 300_000,
        exclusive: false,
        scrape: None,
        create_rbac: false,
        credential_secrets: Vec::new(),
        task_secrets: false,
        rules: Vec::new(),
        pod_files: PodFiles::None,
    };
    shape(&mut plan);
    plan
}

fn built(driver: &str) -> Manifests {
    manifests(&plan(driver, |_| {})).unwrap()
}

#[test]
fn parts_come_before_the_job_and_all_is_labelled() {
    let made = manifests(&plan("{image: i}", |plan| plan.create_rbac = true)).unwrap();
    let kinds: Vec<&str> = made.all().map(|object| object["kind"].as_str().unwrap()).collect();
    let rbac = ["ServiceAccount", "Role", "RoleBinding"];
    assert_eq!(kinds[..3], rbac);
    assert_eq!(kinds[3..], ["ConfigMap", "Service", "Job"]);
    for object in made.all() {
        let meta = &object["metadata"];
        assert_eq!((&meta["name"], &meta["namespace"]), (&json!("wc-driver"), &json!("n")));
        let labels = json!({"posse.dev/app": "wc", "app.kubernetes.io/managed-by": "posse",
            "app.kubernetes.io/component": "driver"});
        assert_eq!(meta["labels"], labels, "{object}");
        assert_eq!(meta["annotations"]["posse.dev/submission"], "k3f9x");
        assert_ne!(object["apiVersion"], Value::Null);
    }
    assert_eq!(made.parts[2]["roleRef"]["name"], "wc-driver");
    assert_eq!(made.parts[2]["subjects"], json!([{"kind": "ServiceAccount", "name": "wc-driver"}]));
    // The rights are those of the file, whatever they are, for the Job of this application.
    let mut written = Node::read(RBAC.split("\n---\n").nth(1).unwrap()).unwrap().to_json();
    let rules = written["rules"].as_array_mut().unwrap();
    let names = rules.iter_mut().find_map(|rule| rule.get_mut("resourceNames")).unwrap();
    *names = json!(["wc-driver"]);
    assert_eq!(made.parts[1]["rules"], written["rules"]);
    assert!(written["rules"].as_array().unwrap().len() > 1);
    let with_secrets = |plan: &mut Plan| {
        plan.create_rbac = true;
        plan.credential_secrets = vec!["wc-hdfs".to_owned()];
    };
    let rules = manifests(&plan("{image: i}", with_secrets)).unwrap().parts[1]["rules"].clone();
    let [.., create, change] = rules.as_array().unwrap().as_slice() else { panic!("{rules}") };
    assert_eq!(*create, json!({"apiGroups": [""], "resources": ["secrets"], "verbs": ["create"]}));
    assert_eq!(change["resourceNames"], json!(["wc-hdfs"]));
    assert_eq!(change["verbs"], json!(["delete", "get", "update"]));
    let with_tasks = |plan: &mut Plan| (plan.create_rbac, plan.task_secrets) = (true, true);
    let rules = manifests(&plan("{image: i}", with_tasks)).unwrap().parts[1]["rules"].clone();
    let [.., create, change] = rules.as_array().unwrap().as_slice() else { panic!("{rules}") };
    assert_eq!(*create, json!({"apiGroups": [""], "resources": ["secrets"], "verbs": ["create"]}));
    assert_eq!(change["resourceNames"], json!(["wc-tasks"]));
    assert_eq!(change["verbs"], json!(["delete", "get", "patch"]));
    let with_more = |plan: &mut Plan| (plan.create_rbac, plan.rules) = (true, vec![RECORD]);
    let rules = manifests(&plan("{image: i}", with_more)).unwrap().parts[1]["rules"].clone();
    assert_eq!(rules.as_array().unwrap().last(), Some(&RECORD.to_json()), "{rules}");
    assert_eq!(made.pod["spec"]["serviceAccountName"], "wc-driver");
    assert_eq!(made.parts[3]["data"], json!({"posse.yaml": "app: wc", "a-e.yaml": "pod"}));
    let selector = json!({
        "posse.dev/app": "wc", "app.kubernetes.io/component": "driver", "posse.dev/leader": "true",
    });
    assert_eq!(made.parts[4]["spec"]["selector"], selector);
    assert_eq!(made.pod["metadata"]["labels"]["posse.dev/leader"], "true");
    // The longest name there may be leaves room for what a Job adds.
    let longest = "a".repeat(names::APP_LEN_MAX);
    let made = manifests(&plan("{image: i}", |plan| plan.app = longest)).unwrap();
    let name = made.workload["metadata"]["name"].as_str().unwrap();
    assert!(name.len() + "-xxxxx".len() <= names::POD_NAME_LEN_MAX, "{name}");
}

#[test]
fn files_come_with_a_secret_and_an_image_that_has_posse() {
    let ticket =
        Ticket { url: "https://stage".to_owned(), ca: None, insecure: false, bundles: Vec::new() };
    for (driver, image) in [
        ("{image: i}", "i"),
        ("{posse_image: p, image: i}", "p"),
        ("{posse_image: 'volume:p', image: i}", "p"),
        ("{posse_image: p}", "p"),
        ("{pod: {spec: {containers: [{name: a, image: t}, {name: b, image: u}]}}}", "t"),
        (
            "{container: b, pod: {spec: {containers: [{name: a, image: t}, {name: b, image: u}]}}}",
            "u",
        ),
    ] {
        let made =
            manifests(&plan(driver, |plan| plan.pod_files = PodFiles::Staged(ticket.clone())))
                .unwrap();
        let kinds: Vec<&str> = made.all().map(|object| object["kind"].as_str().unwrap()).collect();
        assert_eq!(kinds, ["ConfigMap", "Secret", "Service", "Job"], "{driver}");
        let spec = &made.pod["spec"];
        let fetchers = spec["initContainers"].as_array().unwrap();
        let fetcher = fetchers.iter().find(|one| one["name"] == "posse-files").unwrap();
        assert_eq!(fetcher["image"], image, "{driver}");
        let secret = json!({"name": "posse-ticket", "secret": {"secretName": "wc-driver"}});
        assert!(spec["volumes"].as_array().unwrap().contains(&secret), "{driver}");
        let mut containers = spec["containers"].as_array().unwrap().iter();
        let args = containers.find_map(|one| one["args"].as_array()).unwrap();
        let at = args.iter().position(|arg| arg == "--files-secret").unwrap();
        let want = ["--files-secret", "wc-driver", "--files-image", image].map(|word| json!(word));
        assert_eq!(args[at..at + 4], want, "{driver}");
        assert!(args.iter().position(|arg| arg == "--").is_none_or(|dashes| at < dashes));
    }
    let made = built("{image: i}");
    assert!(made.all().all(|object| object["kind"] != "Secret"));
}

#[test]
fn small_files_are_in_the_secret_itself() {
    let files = [("a.py", b"print(1)".to_vec()), ("data.bin", vec![0, 255])];
    let files = files.map(|(name, content)| (name.to_owned(), content)).into();
    let inline = PodFiles::Inline(files);
    assert_eq!(format!("{inline:?}"), r#"{"a.py", "data.bin"}"#, "without the contents");
    let made = manifests(&plan("{image: i}", |plan| plan.pod_files = inline)).unwrap();
    let secret = made.parts.iter().find(|one| one["kind"] == "Secret").unwrap();
    assert_eq!(secret["metadata"]["name"], "wc-driver");
    assert_eq!(secret["data"], json!({"a.py": "cHJpbnQoMSk=", "data.bin": "AP8="}));
    let spec = &made.pod["spec"];
    let volume = json!({"name": "posse-files",
                        "secret": {"secretName": "wc-driver", "defaultMode": 0o555}});
    assert!(spec["volumes"].as_array().unwrap().contains(&volume), "{spec}");
    let container = &spec["containers"][0];
    let args = container["args"].as_array().unwrap();
    let at = args.iter().position(|arg| arg == "--files-secret").unwrap();
    assert_eq!(args[at + 1], "wc-driver");
    assert!(!args.contains(&json!("--files-image")));
    let mount = json!({"name": "posse-files", "mountPath": "/var/posse/files", "readOnly": true});
    assert!(container["volumeMounts"].as_array().unwrap().contains(&mount), "{container}");
    let variable = json!({"name": "POSSE_FILES_DIR", "value": "/var/posse/files"});
    assert!(container["env"].as_array().unwrap().contains(&variable), "{container}");
    assert_eq!(spec["initContainers"], Value::Null);
}

#[test]
fn the_job_replaces_a_terminating_pod() {
    let job = built("{image: i, retries: 7, deadline: 1500ms}").workload;
    assert_eq!(job["metadata"]["annotations"]["posse.dev/executors"], "4");
    let spec = &job["spec"];
    let shown =
        [&spec["backoffLimit"], &spec["activeDeadlineSeconds"], &spec["ttlSecondsAfterFinished"]];
    assert_eq!(shown, [&json!(7), &json!(2), &json!(600)]);
    assert_eq!(spec["podReplacementPolicy"], "TerminatingOrFailed");
    assert!(spec["podFailurePolicy"].is_null(), "it would require podReplacementPolicy: Failed");
    let pod = &spec["template"]["spec"];
    // 15 s, 10 s and the reserve.
    assert_eq!(
        (&pod["restartPolicy"], &pod["terminationGracePeriodSeconds"]),
        (&json!("Never"), &json!(30))
    );
    assert_eq!(pod["activeDeadlineSeconds"], Value::Null);
    assert_eq!(pod["containers"][0]["terminationMessagePolicy"], "FallbackToLogsOnError");
    for (driver, limit) in [
        ("{image: i}", 3),
        ("{image: i, retries: 2147483647}", i32::MAX),
        ("{image: i, retries: 4294967295}", i32::MAX),
    ] {
        assert_eq!(built(driver).workload["spec"]["backoffLimit"], limit, "{driver}");
    }
}

/// Pods stand by elsewhere, and the Service leads to none before it acts.
#[test]
fn standbys_are_pods_of_the_same_job() {
    let alone = built("{image: i}").workload["spec"].clone();
    assert_eq!((&alone["parallelism"], &alone["completions"]), (&Value::Null, &Value::Null));
    assert!(alone["template"]["spec"]["affinity"].is_null());
    for (driver, parallelism, n_before) in [
        ("{image: i, standby: 1}", 2, 0),
        (
            "{standby: 2, pod: {spec: {affinity: {podAntiAffinity: \
             {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, podAffinityTerm: {topologyKey: rack}}]}}, \
             topologySpreadConstraints: [{topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule}], \
             containers: [{name: c}]}}}",
            3,
            1,
        ),
    ] {
        let made = built(driver);
        let spec = &made.workload["spec"];
        assert_eq!(spec["parallelism"], parallelism);
        assert!(spec["completions"].is_null(), "the first that ends with 0 is the end of all");
        let pod = &spec["template"];
        assert_eq!(pod["metadata"]["labels"]["posse.dev/leader"], Value::Null);
        let anti = &pod["spec"]["affinity"]["podAntiAffinity"];
        let terms = anti["preferredDuringSchedulingIgnoredDuringExecution"].as_array().unwrap();
        let keys: Vec<&Value> =
            terms[n_before..].iter().map(|term| &term["podAffinityTerm"]["topologyKey"]).collect();
        assert_eq!(keys, ["topology.kubernetes.io/zone"]);
        let spread = pod["spec"]["topologySpreadConstraints"].as_array().unwrap();
        let [.., last] = &spread[..] else { panic!("{spread:?}") };
        assert_eq!(
            (spread.len(), &last["topologyKey"]),
            (1 + n_before, &json!("kubernetes.io/hostname"))
        );
        for selector in
            [&terms[n_before]["podAffinityTerm"]["labelSelector"], &last["labelSelector"]]
        {
            assert_eq!(selector["matchLabels"]["posse.dev/app"], "wc");
        }
    }
}

#[test]
fn the_pod_leaves_a_lost_node_after_a_minute_or_when_its_template_says() {
    let tolerations = |driver: &str| -> Vec<(String, i64)> {
        let job = built(driver).workload;
        let list = job["spec"]["template"]["spec"]["tolerations"].as_array().cloned();
        let all = list.unwrap_or_default();
        let text = |one: &Value| one["key"].as_str().unwrap_or_default().to_owned();
        all.iter().map(|one| (text(one), one["tolerationSeconds"].as_i64().unwrap())).collect()
    };
    let both = |s| {
        vec![
            ("node.kubernetes.io/not-ready".to_owned(), s),
            ("node.kubernetes.io/unreachable".to_owned(), s),
        ]
    };
    assert_eq!(tolerations("{image: i}"), both(60));
    let own = "{key: node.kubernetes.io/not-ready, operator: Exists, tolerationSeconds: 7}";
    let driver = format!("{{pod: {{spec: {{tolerations: [{own}], containers: [{{name: c}}]}}}}}}");
    let mut want = both(60);
    want[0].1 = 7;
    assert_eq!(tolerations(&driver), want);
}

#[test]
fn a_bare_pod_equals_the_pod_of_a_job() {
    let made = built(
        "{image: i, kind: pod, deadline: 1m, pod: {metadata: {annotations: {a/b: c}}, \
         spec: {containers: [{name: driver}]}}}",
    );
    let pod = &made.workload;
    assert_eq!((&pod["kind"], &pod["metadata"]["name"]), (&json!("Pod"), &json!("wc-driver")));
    let annotations = json!({"a/b": "c", "posse.dev/container": "driver",
        "posse.dev/executors": "4", "posse.dev/submission": "k3f9x"});
    assert_eq!(pod["metadata"]["annotations"], annotations);
    assert_eq!(pod["spec"]["activeDeadlineSeconds"], 60);
    let args = json!(["run", "-f", "/etc/posse/posse.yaml", "--namespace", "n", "--", "run"]);
    assert_eq!(pod["spec"]["containers"][0]["args"], args);
    let kept =
        built("{kind: pod, pod: {spec: {restartPolicy: OnFailure, containers: [{name: c}]}}}");
    assert_eq!(kept.workload["spec"]["restartPolicy"], "OnFailure");
    assert_eq!(kept.warnings, [""; 0]);
}

#[test]
fn an_attempt_is_judged_by_the_drivers_container() {
    let pod = |driver: &str| built(driver).workload["spec"]["template"].clone();
    let ended = |name: &str, code: i32| json!({ "name": name, "state": { "terminated": { "exitCode": code, "reason": "Error" } } });
    for (driver, main) in [
        ("{container: main, pod: {spec: {containers: [{name: proxy}, {name: main}]}}}", "main"),
        ("{pod: {spec: {containers: [{name: first}, {name: proxy}]}}}", "first"),
        (
            "{pod: {metadata: {annotations: {kubectl.kubernetes.io/default-container: main}}, \
             spec: {containers: [{name: proxy}, {name: main}]}}}",
            "main",
        ),
        ("{image: i}", "driver"),
    ] {
        let mut attempt = pod(driver);
        assert_eq!(attempt["metadata"]["annotations"]["posse.dev/container"], main);
        attempt["metadata"]["name"] = json!("wc-driver-1");
        attempt["metadata"]["uid"] = json!("3f25");
        // A webhook has put it before all others.
        let containers = attempt["spec"]["containers"].as_array_mut().unwrap();
        containers.insert(0, json!({ "name": "injected" }));
        attempt["status"] = json!({ "phase": "Failed",
            "containerStatuses": [ended("injected", 0), ended(main, 7)] });
        let attempt =
            posse_wire::pod::details::PodDetails::parse(attempt.to_string().as_bytes()).unwrap();
        assert_eq!(attempt.facts.end.unwrap().exit_code, Some(7), "{main}");
    }
}

#[test]
fn posse_is_the_parent_process_of_the_driver() {
    let found = built("{image: i}").pod["spec"].clone();
    let container = &found["containers"][0];
    assert_eq!((&container["image"], &container["command"]), (&json!("i"), &json!(["posse"])));
    let args =
        json!(["run", "-f", "/etc/posse/posse.yaml", "--namespace", "n", "--as-job", "--", "run"]);
    assert_eq!(container["args"], args);
    assert_eq!(found["initContainers"], Value::Null);
    let names: Vec<&str> = container["env"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["POD_NAME", "POD_UID", "POD_IP"]);
    assert_eq!(container["securityContext"]["readOnlyRootFilesystem"], Value::Null);
    assert_eq!(container["resources"], Value::Null);
    let items = &found["volumes"][0]["configMap"]["items"];
    assert_eq!(items[1], json!({"key": "a-e.yaml", "path": "a/e.yaml"}));

    let brought = built("{image: i, posse_image: p}").pod["spec"].clone();
    let init = &brought["initContainers"][0];
    assert_eq!(
        (&init["image"], &init["command"]),
        (&json!("p"), &json!(["posse", "copy", "/opt/posse"]))
    );
    assert_eq!(init["securityContext"]["readOnlyRootFilesystem"], true);
    assert_eq!(brought["containers"][0]["command"], json!(["/opt/posse/posse"]));
    let volumes = brought["volumes"].as_array().unwrap();
    for mount in brought["containers"][0]["volumeMounts"].as_array().unwrap() {
        assert!(volumes.iter().any(|volume| volume["name"] == mount["name"]), "{mount}");
    }

    // Mounted, it is at the same place, and there is no init container.
    let mounted = built("{image: i, posse_image: 'volume:p'}").pod["spec"].clone();
    assert_eq!(mounted["initContainers"], Value::Null);
    assert_eq!(mounted["containers"], brought["containers"]);
    let kind = json!({"name": "posse-bin", "image": {"reference": "p"}});
    let replaced = |volume: &Value| match volume["name"] == "posse-bin" {
        true => kind.clone(),
        false => volume.clone(),
    };
    let want: Vec<Value> = volumes.iter().map(replaced).collect();
    assert_eq!(mounted["volumes"], json!(want));

    for own in ["{image: p, posse_image: 'volume:p'}", "{image: p, posse_image: p}"] {
        let own = built(own).pod["spec"].clone();
        assert_eq!(own["initContainers"], Value::Null);
        assert!(own["volumes"].as_array().unwrap().iter().all(|one| one["name"] != "posse-bin"));
    }
    let own = built("{image: p, posse_image: p}").pod["spec"].clone();
    assert_eq!(own["initContainers"], Value::Null);
    assert_eq!(own["containers"][0]["securityContext"]["readOnlyRootFilesystem"], true);
    assert_eq!(own["containers"][0]["resources"]["limits"], json!({"memory": "384Mi"}));
}

#[test]
fn the_queue_admits_what_submit_creates() {
    for (driver, kind) in [("{}", "Job"), ("{kind: pod}", "Pod")] {
        let made = manifests(&plan(driver, |plan| plan.queue = Some("team-a".to_owned()))).unwrap();
        assert_eq!(made.workload["kind"], kind);
        assert_eq!(made.workload["metadata"]["labels"]["kueue.x-k8s.io/queue-name"], "team-a");
        // The Job is admitted, and its pod with it.
        let template = &made.workload["spec"]["template"]["metadata"]["labels"];
        assert_eq!(template["kueue.x-k8s.io/queue-name"], Value::Null);
        assert!(made.parts.iter().all(|part| !part.to_string().contains("kueue")));
    }
}

#[test]
fn the_configuration_overrides_the_template() {
    let template = "{metadata: {name: x, labels: {own: mine}, annotations: {k: v}},
        spec: {serviceAccountName: theirs, nodeSelector: {zone: a}, terminationGracePeriodSeconds: 90,
          imagePullSecrets: [{name: pull}], securityContext: {runAsUser: 7},
          volumes: [{name: data, emptyDir: {}}],
          initContainers: [{name: first, image: f}],
          containers: [{name: proxy, image: q},
            {name: main, image: m, command: [python], args: [a.py], securityContext: {privileged: true},
             env: [{name: POD_IP, value: x}, {name: A, value: old}],
             resources: {limits: {cpu: 4}}, volumeMounts: [{name: data, mountPath: /run/posse}]}]}}";
    let driver = format!(
        "{{pod: {template}, container: main, posse_image: p, env: {{A: new}}, memory: 2Gi}}"
    );
    let made = manifests(&plan(&driver, |plan| {
        plan.args.clear();
        plan.has_driver_command = false;
    }))
    .unwrap();
    let (meta, spec) = (&made.pod["metadata"], &made.pod["spec"]);
    assert_eq!(meta["labels"]["own"], "mine");
    let annotations = json!({"k": "v", "posse.dev/container": "main"});
    assert_eq!((&meta["name"], &meta["annotations"]), (&json!("wc-driver"), &annotations));
    assert_eq!(spec["serviceAccountName"], "theirs");
    assert_eq!(spec["nodeSelector"], json!({"zone": "a"}));
    assert_eq!(spec["terminationGracePeriodSeconds"], 90);
    assert_eq!(spec["securityContext"], json!({"runAsUser": 7}));
    assert_eq!(spec["imagePullSecrets"], json!([{"name": "pull"}]));
    let init: Vec<&Value> =
        spec["initContainers"].as_array().unwrap().iter().map(|one| &one["name"]).collect();
    assert_eq!(init, ["posse", "first"]);
    assert_eq!(spec["containers"][0], json!({"name": "proxy", "image": "q"}));
    let main = &spec["containers"][1];
    // The template's command is the driver, because no other is given.
    let args = main["args"].as_array().unwrap();
    assert_eq!(args[args.len() - 3..], ["--", "python", "a.py"]);
    assert_eq!(main["securityContext"], json!({"privileged": true}));
    let resources = json!({"limits": {"cpu": 4, "memory": "2Gi"},
        "requests": {"memory": "2Gi"}});
    assert_eq!(main["resources"], resources);
    let env = main["env"].as_array().unwrap();
    assert_eq!(env.len(), 4, "{env:?}");
    assert_eq!(env[3], json!({"name": "A", "value": "new"}));
    let at = |path: &str| {
        let mounts = main["volumeMounts"].as_array().unwrap();
        let found: Vec<&Value> = mounts.iter().filter(|one| one["mountPath"] == path).collect();
        assert_eq!(found.len(), 1, "{path}: {mounts:?}");
        let volumes = spec["volumes"].as_array().unwrap();
        volumes.iter().find(|volume| volume["name"] == found[0]["name"]).unwrap().clone()
    };
    assert_eq!(at("/run/posse")["name"], "data");
    assert_eq!(at("/etc/posse")["configMap"]["name"], "wc-driver");
}

#[test]
fn replaced_fields_give_warnings() {
    let made = built(
        "{pod: {spec: {restartPolicy: Always, terminationGracePeriodSeconds: 3, \
         containers: [{name: c}]}}}",
    );
    let [first, second] = made.warnings.as_slice() else { panic!("{:?}", made.warnings) };
    assert!(first.contains("driver.yaml: spec.restartPolicy: `Always` is replaced"), "{first}");
    assert!(
        second.contains("`3` is replaced: shutdown.grace and shutdown.timeout need 30"),
        "{second}"
    );
    let unknown = plan("{container: x, image: i}", |_| {});
    let error = manifests(&unknown).unwrap_err().to_string();
    assert!(error.contains("none is named `x`; the containers are: driver"), "{error}");
    for wrong in ["volumes: 1", "tolerations: {}"] {
        let driver = format!("{{pod: {{spec: {{containers: [{{name: c}}], {wrong}}}}}}}");
        assert!(manifests(&plan(&driver, |_| {})).is_err(), "{wrong}");
    }
}

#[test]
fn the_pod_says_where_prometheus_finds_its_metrics() {
    let pod =
        |driver: &str, scrape| manifests(&plan(driver, |plan| plan.scrape = scrape)).unwrap().pod;
    let annotations = |pod: &Value| pod["metadata"]["annotations"].clone();
    let has_flag = |pod: &Value| {
        let args = pod["spec"]["containers"][0]["args"].as_array().unwrap().clone();
        let at = args.iter().position(|word| word == "--metrics");
        at.map(|at| args[at + 1].as_str().unwrap().to_owned())
    };
    let found = |port: &str| {
        json!({"posse.dev/container": "driver", "prometheus.io/scrape": "true",
            "prometheus.io/port": port, "prometheus.io/path": "/metrics"})
    };
    let by_default = Some(ScrapePort { port: 9760, is_default: true });
    let ours = pod("{image: i}", by_default);
    assert_eq!((annotations(&ours), has_flag(&ours)), (found("9760"), Some(":9760".to_owned())));
    // Some find only ports that a container declares.
    let ports = |pod: &Value| pod["spec"]["containers"][0]["ports"].clone();
    assert_eq!(ports(&ours), json!([{"containerPort": 9760}]));
    let declared = "{pod: {spec: {containers: [{name: driver, image: i, ports: [{name: m, containerPort: 9760}]}]}}}";
    let declared = pod(declared, by_default);
    assert_eq!(ports(&declared), json!([{"name": "m", "containerPort": 9760}]));
    let configured = pod("{image: i}", Some(ScrapePort { port: 80, is_default: false }));
    assert_eq!((annotations(&configured), has_flag(&configured)), (found("80"), None));
    let off = pod("{image: i}", None);
    let named = json!({"posse.dev/container": "driver"});
    assert_eq!((annotations(&off), has_flag(&off), ports(&off)), (named, None, Value::Null));
    // The annotations of the driver's own metrics stay.
    let theirs = r#"{pod: {metadata: {annotations: {prometheus.io/port: "4040"}},
        spec: {containers: [{name: driver, image: i}]}}}"#;
    let theirs = pod(theirs, by_default);
    let theirs_alone = json!({"posse.dev/container": "driver", "prometheus.io/port": "4040"});
    assert_eq!(annotations(&theirs), theirs_alone);
    assert_eq!(has_flag(&theirs), Some(":9760".to_owned()));
}

#[test]
fn metrics_that_nobody_could_reach_have_no_port() {
    let plain =
        Template::from_json("t", json!({"spec": {"containers": [{"name": "c", "image": "i"}]}}))
            .unwrap();
    let host = Template::from_json(
        "t",
        json!({"spec": {"hostNetwork": true, "containers": [{"name": "c", "image": "i"}]}}),
    )
    .unwrap();
    let at = |text| Metrics::parse(text).unwrap();
    let port = |port, is_default| Some(ScrapePort { port, is_default });
    for (metrics, template, want) in [
        (Metrics::Default, &plain, port(9760, true)),
        (Metrics::Default, &host, None),
        (at("off"), &plain, None),
        (at(":80"), &plain, port(80, false)),
        (at("0.0.0.0:80"), &host, port(80, false)),
        (at("127.0.0.1:80"), &plain, None),
    ] {
        assert_eq!(ScrapePort::of(metrics, template), want, "{metrics:?}");
    }
}

/// What the template, the file's `driver` and posse itself have to say wins over what all objects have.
#[test]
fn every_object_has_the_common_labels_and_annotations() {
    let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let common = CommonMetadata {
        labels: vec![pair("team", "common"), pair("tier", "batch")],
        annotations: vec![pair("owner", "common"), pair("prometheus.io/port", "1")],
    };
    let template = "pod: {metadata: {labels: {team: template}, annotations: {owner: template}}, \
                    spec: {containers: [{name: a, image: i}]}}";
    for (driver, team, owner) in [
        ("{image: i}".to_owned(), "common", "common"),
        (format!("{{{template}}}"), "template", "template"),
        (format!("{{kind: pod, {template}}}"), "template", "template"),
    ] {
        let is_pod = driver.starts_with("{kind: pod");
        let made = manifests(&plan(&driver, |plan| {
            plan.common = common.clone().into();
            plan.create_rbac = true;
            plan.queue = Some("q".to_owned());
            plan.scrape = Some(ScrapePort { port: 9760, is_default: true });
            plan.pod_files = PodFiles::Inline([("a.py".to_owned(), Vec::new())].into());
        }))
        .unwrap();
        let found = |metadata: &Value| {
            let (labels, annotations) = (&metadata["labels"], &metadata["annotations"]);
            assert_eq!(labels["posse.dev/app"], "wc", "{driver}");
            assert_eq!(labels["tier"], "batch", "{driver}");
            let of = |value: &Value| value.as_str().unwrap_or("none").to_owned();
            [of(&labels["team"]), of(&annotations["owner"]), of(&annotations["prometheus.io/port"])]
        };
        let n_parts = made.parts.len();
        assert_eq!(n_parts, 6, "ServiceAccount, Role, RoleBinding, ConfigMap, Secret, Service");
        for part in &made.parts {
            assert_eq!(found(&part["metadata"]), ["common", "common", "1"], "{driver}: {part}");
        }
        assert_eq!(found(&made.pod["metadata"]), [team, owner, "9760"], "{driver}");
        let workload = &made.workload;
        assert_eq!(workload["metadata"]["labels"]["kueue.x-k8s.io/queue-name"], "q");
        if is_pod {
            assert_eq!(found(&workload["metadata"]), [team, owner, "9760"], "{driver}");
        } else {
            assert_eq!(found(&workload["metadata"]), ["common", "common", "1"], "{driver}");
            let template = &workload["spec"]["template"]["metadata"];
            assert_eq!(found(template), [team, owner, "9760"], "{driver}");
        }
    }
}
