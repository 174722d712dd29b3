//! Rendered pods compared with golden files, and the errors for invalid templates.
//! `UPDATE_GOLDEN=1` rewrites the golden files.

use std::path::PathBuf;
use std::sync::Arc;

use super::*;
use crate::config::tests::mangled;
use crate::pod::template::Shorthands;
use posse_core::model::pod_text::PreferredNode;

const EVERYTHING: &str = include_str!("../../../../../fixtures/template/everything.yaml");

fn main(container: &str) -> PodSettings {
    PodSettings { container: Some(container.to_owned()), ..PodSettings::default() }
}

pub(crate) fn context() -> PodContext {
    PodContext {
        app: "wordcount".to_owned(),
        instance: "k3f9x".to_owned(),
        namespace: "analytics".to_owned(),
        group: "default".to_owned(),
        driver_host: "10.1.2.3".to_owned(),
        ..PodContext::default()
    }
}

/// The pod of executor 1 in slot 0.
pub(crate) fn rendered(compiled: &Compiled) -> Value {
    serde_json::from_slice(&compiled.render(1, 0, &PodOverrides::default())).unwrap()
}

pub(super) fn driver_pod() -> OwnerRef {
    OwnerRef::pod("driver", "3f2504e0-4f89-41d3-9a0c-0305e82c3301")
}

/// Compares the pod of `fixtures/template/{name}.yaml` with `{golden}.json`.
#[track_caller]
fn check(name: &str, golden: &str, shorthands: Shorthands, context: &PodContext) {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/template");
    let text = std::fs::read_to_string(folder.join(format!("{name}.yaml"))).unwrap();
    let template = Template::parse(&format!("{name}.yaml"), &text).unwrap();
    let template = template.with_shorthands(shorthands);
    template.check(&context.settings, true).unwrap();
    let compiled = template.compile(context).unwrap();
    let pod: Value =
        serde_json::from_slice(&compiled.render(37, 4, &PodOverrides::default())).unwrap();
    let got = format!("{:#}\n", json!({ "pod": pod, "warnings": compiled.warnings() }));
    let path = folder.join(format!("{golden}.json"));
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &got).unwrap();
    }
    let want = std::fs::read_to_string(&path).unwrap();
    assert_eq!(got, want, "{}: UPDATE_GOLDEN=1 rewrites it", path.display());
}

fn all_shorthands() -> Shorthands {
    let words = |words: &[&str]| Some(words.iter().map(|word| (*word).to_owned()).collect());
    Shorthands {
        image: Some("worker:{{GROUP}}".to_owned()),
        command: words(&["run"]),
        args: words(&["--driver={{DRIVER_HOST}}:7077", "--id=$(POSSE_EXECUTOR_ID)"]),
        env: vec![
            json!({ "name": "LOG_LEVEL", "value": "info" }),
            json!({ "name": "RANK", "value": "{{SLOT}}" }),
        ],
        cpu: Some("500m".to_owned()),
        memory: Some("256Mi".to_owned()),
        resources: None,
    }
}

#[test]
fn pods_match_the_golden_files() {
    check("image", "image", Shorthands::default(), &context());
    let owned = PodContext { owner: Some(driver_pod()), ..context() };
    check("image", "image-owned", all_shorthands(), &owned);
    let second_container = PodContext {
        settings: main("worker"),
        driver_host: "fd00::1".to_owned(),
        driver_port: Some(7077),
        ..context()
    };
    check("everything", "everything", all_shorthands(), &second_container);
    let owned = PodContext { owner: Some(driver_pod()), ..context() };
    check("pod-template", "pod-template", Shorthands::default(), &owned);
}

/// A slow version of `render`: fills in every text of the tree, then writes the tree.
fn fill_in(value: &Value, context: &PodContext, id: u64, slot: u32) -> Value {
    let text = |text: &str| -> String {
        let pieces = placeholders::split(text).unwrap();
        let fill = |piece: &Piece<'_>| match piece {
            Piece::Text(text) => (*text).to_owned(),
            Piece::Word(word) => match context.word(*word).unwrap() {
                Part::ExecutorId => id.to_string(),
                Part::PodName => format!("{}-{}-exec-{id}", context.app, context.instance),
                Part::Slot => slot.to_string(),
                Part::Attempt => "1".to_owned(),
                Part::Text(text) => text,
                Part::AvoidedNodes
                | Part::MemoryLimit
                | Part::MemoryRequest
                | Part::PreferredNodes => panic!("no word"),
            },
        };
        pieces.iter().map(fill).collect()
    };
    match value {
        Value::String(value) => Value::String(text(value)),
        Value::Array(items) => items.iter().map(|item| fill_in(item, context, id, slot)).collect(),
        Value::Object(map) => Value::Object(
            map.iter().map(|(key, item)| (text(key), fill_in(item, context, id, slot))).collect(),
        ),
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    }
}

#[test]
fn render_equals_a_slow_version() {
    let context = PodContext { settings: main("worker"), owner: Some(driver_pod()), ..context() };
    let template = Template::parse("t.yaml", EVERYTHING).unwrap().with_shorthands(all_shorthands());
    let compiled = template.compile(&context).unwrap();
    let mut build = Build {
        template: &template,
        context: &context,
        memory: MemoryGrowth::default(),
        memory_field: String::new(),
        warnings: Vec::new(),
    };
    let pod = build.pod().unwrap();
    for (id, slot) in [(1, 0), (2, 1), (1_234_567_890, 99), (u64::MAX, u32::MAX)] {
        let fast: Value =
            serde_json::from_slice(&compiled.render(id, slot, &PodOverrides::default())).unwrap();
        assert_eq!(fast, fill_in(&pod, &context, id, slot), "id {id}, slot {slot}");
    }
}

/// One error: a template, and the message about it.
#[track_caller]
fn fails(text: &str, want: &str) {
    let got =
        Template::parse("t.yaml", text).and_then(|template| template.check(&main("b"), false));
    let got = got.expect_err(text).to_string();
    assert!(got.starts_with(want), "{text:?}\n got: {got}\nwant: {want}");
}

#[test]
fn errors_name_file_and_field() {
    fails("", "t.yaml: a v1 Pod is expected, found nothing");
    fails("[]", "t.yaml: a v1 Pod is expected, found a list");
    fails("a: [", "t.yaml:1:4: unclosed bracket");
    fails(
        "kind: Pod\n---\nkind: Pod",
        "t.yaml:2:1: contains several documents; exactly one is expected",
    );
    fails(
        "{apiVersion: apps/v1, kind: Scale}",
        "t.yaml: apiVersion: expected v1, found \"apps/v1\"",
    );
    fails(
        "{apiVersion: apps/v1, kind: Deployment}",
        "t.yaml: kind: expected Pod or PodTemplate, found Deployment: use its spec.template",
    );
    fails(
        "{apiVersion: v1, kind: Job}",
        "t.yaml: kind: expected Pod or PodTemplate, found Job: use its spec.template",
    );
    fails("{kind: Pod}", "t.yaml: spec: is missing; expected a map");
    fails("{kind: Pod, spec: []}", "t.yaml: spec: expected a map, found a list");
    fails("{kind: Pod, metadata: x, spec: {}}", "t.yaml: metadata: expected a map, found `x`");
    fails("{kind: PodTemplate}", "t.yaml: template: is missing; expected a map");
    fails("{kind: PodTemplate, template: {}}", "t.yaml: template.spec: is missing");
    fails("spec: {}", "t.yaml: spec.containers: is missing; a pod needs at least one container");
    fails("spec: {containers: []}", "t.yaml: spec.containers: is empty; a pod needs");
    fails("spec: {containers: {}}", "t.yaml: spec.containers: expected a list, found a map");
    fails("spec: {containers: [x]}", "t.yaml: spec.containers[0]: expected a map, found `x`");
    fails("spec: {containers: [{image: x}]}", "t.yaml: spec.containers[0].name: is missing");
    fails(
        "spec: {containers: [{name: b}], initContainers: {}}",
        "t.yaml: spec.initContainers: expected a list, found a map",
    );
    fails(
        "spec: {containers: [{name: b}], initContainers: [{}]}",
        "t.yaml: spec.initContainers[0].name: is missing; every container needs a name",
    );
    fails(
        "spec: {containers: [{name: a}, {name: c}]}",
        "t.yaml: spec.containers: none is named `b`; the containers are: a, c",
    );
    fails(
        "spec: {containers: [{name: b, env: {A: 1}}]}",
        "t.yaml: spec.containers[0].env: expected a list, found a map",
    );
}

#[test]
fn memory_grows_within_what_the_whole_pod_may_have() {
    // With a second container they take 2112Mi, also where the server gives the pod its request.
    for (of_pod, beside, want) in [
        ("", "", None),
        ("limits: {cpu: 2}", "", None),
        ("limits: {memory: 2Gi}", "", None),
        ("limits: {memory: 1Gi}", "", Some("limits.memory: is below the 2Gi")),
        ("limits: {memory: 2Gi}", "64Mi", Some("limits.memory: is below the 2112Mi")),
        ("limits: {memory: 2112Mi}", "64Mi", None),
        ("requests: {memory: 1Gi}", "", Some("requests.memory: is below the 2Gi")),
        ("requests: {memory: 2Gi}", "", None),
        ("requests: {memory: 2Gi}", "64Mi", Some("requests.memory: is below the 2112Mi")),
        ("requests: {memory: all}", "", None),
    ] {
        let other = format!("{{name: z, resources: {{requests: {{memory: {beside}}}}}}}");
        let worker = "{name: a, image: b, resources: {limits: {memory: 512Mi}}}";
        let pod = format!("spec: {{resources: {{{of_pod}}}, containers: [{worker}, {other}]}}");
        let memory_scaling =
            Some(MemoryScaling { permille: 1_500, max: "2Gi".to_owned(), grow_at_permille: None });
        let settings = PodSettings { memory_scaling, ..PodSettings::default() };
        let template = Template::parse("t.yaml", &pod).unwrap();
        let got = template.compile(&PodContext { settings, ..context() });
        let got = got.err().map(|error| error.to_string());
        let way_out = "that its containers take at memory_max: raise it, or lower memory_max";
        let want = want.map(|want| format!("t.yaml: spec.resources.{want} {way_out}"));
        assert_eq!(got, want, "{of_pod}");
    }
}

#[test]
fn containers_that_the_kubelet_would_restart_are_refused() {
    let words = "makes the kubelet restart containers in place, and a new pod would run beside them: \
                 remove it, because posse replaces what ends by a new pod";
    for (list, fields, refused) in [
        ("containers", "restartPolicy: Always", Some("restartPolicy: `Always`")),
        ("containers", "restartPolicy: OnFailure", Some("restartPolicy: `OnFailure`")),
        ("containers", "restartPolicy: Sometimes", Some("restartPolicy: `Sometimes`")),
        ("containers", "restartPolicy: Never", None),
        ("containers", "restartPolicy: null", None),
        (
            "containers",
            "restartPolicy: Never, restartPolicyRules: [{action: Restart}]",
            Some("restartPolicyRules: a rule"),
        ),
        (
            "initContainers",
            "restartPolicy: Always, restartPolicyRules: [{action: RestartAllContainers}]",
            Some("restartPolicyRules: a rule"),
        ),
        ("initContainers", "restartPolicyRules: 7", Some("restartPolicyRules: a rule")),
        // A native side-car.
        ("initContainers", "restartPolicy: Always, restartPolicyRules: []", None),
        ("initContainers", "restartPolicy: OnFailure, restartPolicyRules: null", None),
    ] {
        let mut pod = "spec: {containers: [{name: a}, {name: b}], initContainers: []}".to_owned();
        let more = format!("{list}: [{{name: one}}, {{name: two, {fields}}}");
        pod = match list {
            "containers" => pod.replace("containers: [{name: a}", &format!("{more}, {{name: a}}")),
            _ => pod.replace("initContainers: [", &more),
        };
        let got = Template::parse("t.yaml", &pod).map(|_| ()).map_err(|error| error.to_string());
        let want = refused.map(|what| format!("t.yaml: spec.{list}[1].{what} {words}"));
        assert_eq!(got.err(), want, "{pod}");
    }
}

#[test]
fn errors_about_placeholders_and_metadata_name_the_field() {
    fails(
        "spec: {containers: [{name: a}, {name: b, args: [x, '{{FOO}}']}]}",
        "t.yaml: spec.containers[1].args[1]: unknown placeholder {{FOO}}; known: {{APP}}, ",
    );
    fails(
        "{metadata: {labels: {'{{X}}': a}}, spec: {containers: [{name: b}]}}",
        "t.yaml: metadata.labels.{{X}}: unknown placeholder {{X}}",
    );
    fails(
        "{kind: PodTemplate, template: {spec: {containers: [{name: b}], hostname: '{{X}}'}}}",
        "t.yaml: template.spec.hostname: unknown placeholder {{X}}",
    );
    for (field, value) in [
        ("metadata.labels", "{metadata: {labels: []}, "),
        ("metadata.annotations", "{metadata: {annotations: x}, "),
    ] {
        let text = format!("{value}spec: {{containers: [{{name: b}}]}}}}");
        fails(&text, &format!("t.yaml: {field}: expected a map, found"));
    }
    fails(
        "{metadata: {ownerReferences: {}}, spec: {containers: [{name: b}]}}",
        "t.yaml: metadata.ownerReferences: expected a list, found a map",
    );
    fails(
        "spec: {containers: [{name: b}], tolerations: x}",
        "t.yaml: spec.tolerations: expected a list, found `x`",
    );
    fails(
        "{metadata: {ownerReferences: [{uid: a}, {uid: b}]}, spec: {containers: [{name: b}]}}",
        "t.yaml: metadata.ownerReferences: names another owner than the driver",
    );
}

#[test]
fn the_drivers_port_needs_a_setting() {
    let text = "spec: {containers: [{name: b, args: ['{{DRIVER_HOST}}:{{DRIVER_PORT}}']}]}";
    fails(text, "t.yaml: spec.containers[0].args[0]: {{DRIVER_PORT}} needs `driver.port: auto`");
    let template = Template::parse("t.yaml", text).unwrap();
    let args_and_env = |driver_port| {
        let compiled = template.compile(&PodContext { driver_port, ..context() }).unwrap();
        let pod = rendered(&compiled);
        let container = &pod["spec"]["containers"][0];
        let env = container["env"].as_array().unwrap().iter();
        let port = env.clone().find(|one| one["name"] == "POSSE_DRIVER_PORT").cloned();
        (container["args"].clone(), port.map(|one| one["value"].clone()))
    };
    assert_eq!(args_and_env(Some(7_077)), (json!(["10.1.2.3:7077"]), Some(json!("7077"))));
    let error = template.compile(&context()).unwrap_err().to_string();
    assert!(error.contains("driver.port: NUMBER"), "{error}");
}

#[test]
fn another_owner_than_the_driver_pod_is_an_error() {
    let text = "{metadata: {ownerReferences: [{uid: a}]}, spec: {containers: [{name: b}]}}";
    let template = Template::parse("t.yaml", text).unwrap();
    template.check(&PodSettings::default(), false).unwrap();
    let error = template.compile(&context()).unwrap_err().to_string();
    assert!(error.starts_with("t.yaml: metadata.ownerReferences: names an owner"), "{error}");
    let owned = PodContext { owner: Some(driver_pod()), ..context() };
    let error = template.compile(&owned).unwrap_err().to_string();
    assert!(error.contains("names another owner than the driver, driver;"), "{error}");
    let owned =
        PodContext { owner: Some(OwnerRef { uid: "a".to_owned(), ..driver_pod() }), ..context() };
    template.compile(&owned).unwrap();
}

#[test]
fn resources_that_are_not_maps_are_errors() {
    let text = "spec: {containers: [{name: b, resources: {limits: 5}}]}";
    let shorthands = Shorthands { cpu: Some("1".to_owned()), ..Shorthands::default() };
    let template = Template::parse("t.yaml", text).unwrap().with_shorthands(shorthands);
    let error = template.compile(&context()).unwrap_err().to_string();
    assert_eq!(error, "t.yaml: spec.containers[0].resources.limits: expected a map, found `5`");
}

#[test]
fn a_pod_from_an_image_has_one_container() {
    let template = Template::from_image("posse.yaml: executors[0]", Some("x:1")).unwrap();
    let pod = rendered(&template.compile(&context()).unwrap());
    assert_eq!(pod["spec"]["containers"][0]["name"], "executor");
    assert_eq!(pod["spec"]["containers"][0]["image"], "x:1");
    let error = Template::from_image("posse.yaml: executors[0]", None).unwrap_err();
    assert_eq!(
        error.to_string(),
        "posse.yaml: executors[0]: no pod is given: set template, pod or image"
    );
}

#[test]
fn a_template_may_be_json() {
    let yaml = Template::parse("t", EVERYTHING).unwrap();
    let node = posse_encoding::yaml::Node::read(EVERYTHING).unwrap();
    assert_eq!(Template::parse("t", &format!("{:#}", node.to_json())).unwrap(), yaml);
    assert_eq!(Template::from_json("t", node.to_json()).unwrap(), yaml);
}

#[test]
fn no_template_causes_a_panic() {
    const ROUNDS: u64 = 4_000;
    let mut taken = 0;
    for seed in 0..ROUNDS {
        let Ok(template) = Template::parse("t.yaml", &mangled(EVERYTHING, seed)) else { continue };
        let template = template.with_shorthands(all_shorthands());
        let Ok(compiled) = template.compile(&context()) else { continue };
        taken += 1;
        let pod: Result<Value, _> =
            serde_json::from_slice(&compiled.render(seed, 1, &PodOverrides::default()));
        assert!(pod.is_ok(), "seed {seed} renders no JSON");
        let shape = PodOverrides {
            avoid: Arc::new(vec!["n1".to_owned()]),
            prefer: Arc::default(),
            memory_step: 1,
            attempt: 1,
            task: None,
        };
        let pod: Result<Value, _> = serde_json::from_slice(&compiled.render(seed, 1, &shape));
        assert!(pod.is_ok(), "seed {seed} renders no JSON of a pod that avoids nodes");
    }
    assert!((1..ROUNDS).contains(&taken), "{taken} of {ROUNDS} were taken: it mangles nothing");
}

/// `resources` wins over the shorthands for the resources that it names.
#[test]
fn resources_replace_single_amounts() {
    let shorthands = Shorthands {
        memory: Some("2Gi".to_owned()),
        resources: Some(json!({
            "limits": { "nvidia.com/gpu": 2, "memory": "1Gi" },
            "requests": { "cpu": "100m" },
        })),
        ..Shorthands::default()
    };
    let text = "spec: {containers: [{name: c, resources: {limits: {cpu: 4, a.b/c: 1}}}]}";
    let template = Template::parse("t.yaml", text).unwrap().with_shorthands(shorthands);
    let pod = rendered(&template.compile(&context()).unwrap());
    let want = json!({
        "limits": { "cpu": 4, "a.b/c": 1, "nvidia.com/gpu": 2, "memory": "2Gi" },
        "requests": { "cpu": "100m", "memory": "2Gi" },
    });
    assert_eq!(pod["spec"]["containers"][0]["resources"], want);
}

#[test]
fn debug_prints_no_environment() {
    let shorthands = Shorthands {
        env: vec![json!({ "name": "TOKEN", "value": "hunter2" })],
        ..Shorthands::default()
    };
    let text = "spec: {containers: [{name: b, env: [{name: OTHER, value: hunter2}]}]}";
    let template = Template::parse("t.yaml", text).unwrap().with_shorthands(shorthands.clone());
    let compiled = template.compile(&context()).unwrap();
    assert_eq!(rendered(&compiled).to_string().matches("hunter2").count(), 2);
    let shown = format!("{template:?}{compiled:?}{shorthands:?}");
    assert!(!shown.contains("hunter2"), "{shown}");
}

/// The node affinity of a pod of this template that avoids two nodes.
#[track_caller]
fn affinity(spec: &str, want: &Value) {
    let text = format!("spec: {{containers: [{{name: b}}], {spec}}}");
    let compiled = Template::parse("t.yaml", &text).unwrap().compile(&context()).unwrap();
    let avoid = Arc::new(vec!["n1".to_owned(), "n-2.x".to_owned()]);
    let shape = PodOverrides { avoid, ..PodOverrides::default() };
    let pod = |shape: &PodOverrides| -> Value {
        serde_json::from_slice(&compiled.render(1, 0, shape)).expect("a pod is JSON")
    };
    let [mut plain, mut avoiding] = [pod(&PodOverrides::default()), pod(&shape)];
    let got = avoiding["spec"]["affinity"].take();
    assert_eq!(&got, want, "{spec}");
    plain["spec"]["affinity"].take();
    assert_eq!(avoiding, plain, "nothing else changes");
}

#[test]
fn avoided_nodes_are_in_every_affinity_term() {
    let away = |node: &str| json!({"key": "metadata.name", "operator": "NotIn", "values": [node]});
    let away = [away("n1"), away("n-2.x")];
    let required = |terms: Value| json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}});
    let one = required(json!([{ "matchFields": away }]));
    affinity("hostname: h", &json!({ "nodeAffinity": one }));
    affinity("affinity: ", &json!({ "nodeAffinity": one }));
    affinity("affinity: {podAffinity: {}}", &json!({ "podAffinity": {}, "nodeAffinity": one }));
    let zone = json!({"key": "zone", "operator": "In", "values": ["a"]});
    let field = json!({"key": "metadata.name", "operator": "In", "values": ["n3"]});
    affinity(
        "affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {
            nodeSelectorTerms: [
                {matchExpressions: [{key: zone, operator: In, values: [a]}]}, {},
                {matchFields: [{key: metadata.name, operator: In, values: [n3]}]}]}}}",
        &json!({ "nodeAffinity": required(json!([
            {"matchExpressions": [zone], "matchFields": away}, {},
            {"matchFields": [field, away[0], away[1]]},
        ])) }),
    );
    // A pod with a node name skips the scheduler.
    affinity("nodeName: n1", &Value::Null);
}

#[test]
fn preferred_nodes_are_behind_the_templates_own() {
    let render = |spec: &str, avoid: &[&str], prefer: &[(&str, u8)]| -> Value {
        let text = format!("spec: {{containers: [{{name: b}}], {spec}}}");
        let compiled = Template::parse("t.yaml", &text).unwrap().compile(&context()).unwrap();
        let node = |&(name, weight): &(&str, u8)| PreferredNode { name: name.to_owned(), weight };
        let shape = PodOverrides {
            avoid: Arc::new(avoid.iter().map(|&name| name.to_owned()).collect()),
            prefer: Arc::new(prefer.iter().map(node).collect()),
            ..PodOverrides::default()
        };
        let pod: Value = serde_json::from_slice(&compiled.render(1, 0, &shape)).expect("JSON");
        pod["spec"]["affinity"].clone()
    };
    let field = |operator: &str, node: &str| json!({"key": "metadata.name", "operator": operator, "values": [node]});
    let term = |weight: u8, node: &str| json!({"weight": weight, "preference": {"matchFields": [field("In", node)]}});
    let (preferred, required) = (
        "preferredDuringSchedulingIgnoredDuringExecution",
        "requiredDuringSchedulingIgnoredDuringExecution",
    );
    let two = [("n1", 100), ("n-2.x", 1)];
    let terms = json!([term(100, "n1"), term(1, "n-2.x")]);
    assert_eq!(render("hostname: h", &[], &two), json!({"nodeAffinity": {preferred: terms}}));
    assert_eq!(
        render("affinity: ", &["n3"], &two),
        json!({"nodeAffinity": {preferred: terms,
            required: {"nodeSelectorTerms": [{"matchFields": [field("NotIn", "n3")]}]}}})
    );
    let own = json!({"weight": 7, "preference": {"matchFields": [field("In", "n9")]}});
    let template =
        format!("affinity: {{nodeAffinity: {{{preferred}: [{own}]}}, podAffinity: {{}}}}");
    let want = json!({"podAffinity": {}, "nodeAffinity": {preferred: [own, term(100, "n1")]}});
    assert_eq!(render(&template, &[], &two[..1]), want);
    let want = json!({"podAffinity": {}, "nodeAffinity": {preferred: [own]}});
    assert_eq!(render(&template, &[], &[]), want);
    assert_eq!(render("nodeName: n1", &[], &two), Value::Null);
}

#[test]
fn max_age_becomes_the_pods_deadline() {
    let context = PodContext {
        settings: PodSettings { max_age_s: Some(90), ..PodSettings::default() },
        ..context()
    };
    for (theirs, n_warnings) in
        [("", 0), ("activeDeadlineSeconds: 90, ", 0), ("activeDeadlineSeconds: 7, ", 1)]
    {
        let text = format!("spec: {{{theirs}containers: [{{name: a, image: x}}]}}");
        let compiled = Template::parse("t.yaml", &text).unwrap().compile(&context).unwrap();
        assert_eq!(compiled.warnings().len(), n_warnings, "{:?}", compiled.warnings());
        let pod = rendered(&compiled);
        assert_eq!(pod["spec"]["activeDeadlineSeconds"], 90);
        assert_eq!(pod["metadata"]["annotations"]["posse.dev/max-age"], "90s");
    }
}

#[test]
fn only_the_main_containers_memory_scales() {
    let text = "spec: {containers: [
        {name: a, resources: {limits: {memory: 1Gi}}},
        {name: b, resources: {limits: {memory: 1Gi, cpu: 1}, requests: {memory: 512Mi}}}]}";
    let context = PodContext {
        settings: PodSettings {
            memory_scaling: Some(MemoryScaling {
                permille: 1_500,
                max: "2Gi".to_owned(),
                grow_at_permille: None,
            }),
            ..main("b")
        },
        ..context()
    };
    let compiled = Template::parse("t.yaml", text).unwrap().compile(&context).unwrap();
    assert!(compiled.pod.memory_steps().eq(["1536Mi", "2Gi"]));
    for (memory_step, limit, request) in
        [(0, "1Gi", "512Mi"), (1, "1536Mi", "768Mi"), (2, "2Gi", "1024Mi"), (9, "2Gi", "1024Mi")]
    {
        let shape = PodOverrides { memory_step, ..PodOverrides::default() };
        let pod: Value = serde_json::from_slice(&compiled.render(1, 0, &shape)).unwrap();
        let containers = &pod["spec"]["containers"];
        assert_eq!(containers[0]["resources"], json!({"limits": {"memory": "1Gi"}}));
        let want = json!({"limits": {"memory": limit, "cpu": 1}, "requests": {"memory": request}});
        assert_eq!(containers[1]["resources"], want);
    }
    let text = "spec: {containers: [{name: b}]}";
    let error = Template::parse("t.yaml", text).unwrap().compile(&context).unwrap_err();
    assert_eq!(
        error.to_string(),
        "t.yaml: spec.containers[0].resources.limits.memory: is missing; oom_growth needs a limit to start from"
    );
}

/// A group's template arrives by the control API, on a thread with a stack of 256 KiB.
#[test]
fn the_deepest_template_fits_into_a_small_stack() {
    let compiled = || {
        let deep = format!("{}1{}", "{\"a\":".repeat(54), "}".repeat(54));
        let body = format!(
            r#"{{"template":{{"spec":{{"containers":[{{"name":"c","image":"i","x":{deep}}}]}}}}}}"#
        );
        let put = crate::control::parse_put_group(body.as_bytes()).unwrap();
        let crate::control::PutGroup::Whole(group) = put else { panic!("a whole group") };
        let template = Template::from_json("group", group.template).unwrap();
        template.check(&PodSettings::default(), false).unwrap();
        let compiled = template.compile(&context()).unwrap();
        assert!(compiled.render(1, 0, &PodOverrides::default()).len() > deep.len());
    };
    std::thread::Builder::new().stack_size(256 << 10).spawn(compiled).unwrap().join().unwrap();
}

/// The kubelet fills in `$(NAME)`, and only in these fields.
#[test]
fn placeholders_about_the_node_are_left_to_the_kubelet() {
    let container = |field: &str| format!("spec: {{containers: [{{name: b, {field}}}]}}");
    let place = "/spec/containers/0";
    for (field, at, want) in [
        ("command: [a, '{{NODE_NAME}}:7337']", "/command/1", "$(POSSE_NODE_NAME):7337"),
        ("args: ['{{HOST_IP}}']", "/args/0", "$(POSSE_HOST_IP)"),
        ("args: ['{{SLOT}}@{{NODE_NAME}}']", "/args/0", "0@$(POSSE_NODE_NAME)"),
        // Kubernetes reads `$$` as one `$`.
        ("args: ['a${{NODE_NAME}}']", "/args/0", "a$$$(POSSE_NODE_NAME)"),
        ("args: ['$${{NODE_NAME}}']", "/args/0", "$$$(POSSE_NODE_NAME)"),
        ("args: ['{{{{NODE_NAME}}}}']", "/args/0", "{{NODE_NAME}}"),
        ("env: [{name: A, value: '{{HOST_IP}}'}]", "/env/10/value", "$(POSSE_HOST_IP)"),
        (
            "volumeMounts: [{name: v, mountPath: /v, subPathExpr: '{{NODE_NAME}}'}]",
            "/volumeMounts/0/subPathExpr",
            "$(POSSE_NODE_NAME)",
        ),
    ] {
        let template = Template::parse("t.yaml", &container(field)).unwrap();
        let compiled = template.compile(&context()).unwrap();
        let pod = rendered(&compiled);
        assert_eq!(pod.pointer(&format!("{place}{at}")), Some(&json!(want)), "{field}");
    }
    for (text, at) in [
        (container("image: 'x:{{NODE_NAME}}'"), "spec.containers[0].image"),
        (container("workingDir: '/{{HOST_IP}}'"), "spec.containers[0].workingDir"),
        (container("env: [{name: '{{HOST_IP}}'}]"), "spec.containers[0].env[0].name"),
        (
            container("livenessProbe: {exec: {command: ['{{HOST_IP}}']}}"),
            "spec.containers[0].livenessProbe.exec.command[0]",
        ),
        (
            "{metadata: {labels: {node: '{{NODE_NAME}}'}}, spec: {containers: [{name: b}]}}".into(),
            "metadata.labels.node",
        ),
        ("spec: {nodeName: '{{NODE_NAME}}', containers: [{name: b}]}".to_owned(), "spec.nodeName"),
    ] {
        let at = at.replace("env[0]", "env[10]");
        fails(
            &text,
            &format!("t.yaml: {at}: {{{{NODE_NAME}}}} and {{{{HOST_IP}}}} are known only"),
        );
    }
}
