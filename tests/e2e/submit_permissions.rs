//! `posse submit` with the permissions that it makes, and without those that it needs.

use serde_json::{Value, json};

use super::submit::{
    ask, expect, made, path, pods_of, run, run_with, stop_and_finish, wait_driver, wait_executors,
};
use crate::support::embedded::Embedded;
use crate::support::posse::said;
use crate::support::scene::{Scene, describe, is_running, uid_of};
use crate::support::server::{End, Server, Who};
use crate::support::wait::{PATIENCE, wait_for, wait_value};

/// The permissions of `--create-rbac` are enough for a whole run.
pub fn submit_with_own_permissions() {
    let own = Embedded::start_with(&["--rbac"]);
    for driver in [json!({}), json!({"kind": "pod", "retries": 0})] {
        submit_of_a_kind_with_own_permissions(&own, driver);
    }
}

fn submit_of_a_kind_with_own_permissions(server: &dyn Server, mut driver: Value) {
    let scene = Scene::new(server);
    driver["pod"] = Value::Null;
    let submit = run(&scene)
        .executors(2)
        .settings(json!({ "driver": driver, "metrics": "off" }))
        .begin(&["submit", "--create-rbac", "--logs"]);
    let driver = wait_driver(&scene, "");
    wait_executors(&scene, &driver, 2);
    scene.end(&driver, End::Exit(0));
    // A stop that could not list its executors would exit with 12.
    submit.expect_exit(0);
    assert_eq!(describe(&pods_of(&scene, "executor")), "0 pods: ");
    for word in [" WARN ", " ERROR "] {
        assert!(!submit.stdout().contains(word), "{}", submit.stdout());
    }
    stop_and_finish(scene);
}

/// A Role that is away while the driver's pod changes costs no retry, and does not make the next pod another instance.
pub fn leases_that_are_withdrawn_for_a_while() {
    let own = Embedded::start_with(&["--rbac"]);
    let scene = Scene::new(&own);
    let driver = json!({"pod": null, "keep_executors": true});
    let settings = json!({ "driver": driver, "metrics": "off", "exclusive": false });
    let submit = run(&scene).executors(1).settings(settings);
    expect(&submit.once(&["submit", "--create-rbac", "--no-wait"]), 0, &["submitted"]);
    let first = wait_driver(&scene, "");
    let up = || {
        let mut pods = pods_of(&scene, "executor");
        pods.retain(is_running);
        pods.iter().map(|pod| uid_of(pod).to_owned()).collect::<Vec<_>>()
    };
    wait_for(PATIENCE, "an executor", || up().len() == 1);
    let executors = up();
    let role = path(&scene, "/apis/rbac.authorization.k8s.io/v1", "roles/shop-driver");
    let rules = scene.admin.get(&role).ok()["rules"].clone();
    let less = rules.as_array().unwrap().iter();
    let less: Vec<_> = less.filter(|rule| rule["resources"] != json!(["leases"])).collect();
    assert_ne!(json!(less), rules);
    scene.admin.merge_patch(&role, &json!({ "rules": less })).ok();
    scene.delete(&first);
    wait_value(PATIENCE, "the next pod to wait", || {
        let log = said(&ask(&scene, &["logs", "shop"]));
        let told = "leases are not permitted, and posse tries it again";
        if log.contains(told) { Ok(()) } else { Err(log) }
    });
    scene.admin.merge_patch(&role, &json!({ "rules": rules })).ok();
    wait_driver(&scene, uid_of(&first));
    assert_eq!(up(), executors);
    stop_and_finish(scene);
}

/// A request without permission is refused with the server's message and leaves nothing; an object
/// is named only if the user may not delete it again.
pub fn submit_without_permissions(server: &dyn Server) {
    let scene = Scene::new(server);
    let rights = [
        ("", "configmaps", "get create patch delete"),
        ("", "services", "get create patch delete"),
        ("batch", "jobs", "get create delete"),
    ];
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let role = |without: (&str, &str)| {
        let rules: Vec<Value> = rights
            .iter()
            .map(|(group, resource, verbs)| {
                let verbs = verbs.split(' ').filter(|verb| (*resource, *verb) != without);
                json!({"apiGroups": [group], "resources": [resource],
                    "verbs": verbs.collect::<Vec<_>>()})
            })
            .collect();
        json!({"metadata": {"name": "submitter"}, "rules": rules})
    };
    scene.admin.post(&path(&scene, rbac, "roles"), &role(("", ""))).ok();
    let role_path = format!("{}/submitter", path(&scene, rbac, "roles"));
    let binding = json!({"metadata": {"name": "submitter"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "stranger"}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "submitter"}});
    scene.admin.post(&path(&scene, rbac, "rolebindings"), &binding).ok();
    let submit = || run_with(&scene, &server.access(Who::Stranger)).once(&["submit", "--no-wait"]);
    let mut n = 0;
    for (group, resource, verbs) in rights {
        for verb in verbs.split(' ').filter(|verb| *verb != "delete") {
            scene.admin.merge_patch(&role_path, &role((resource, verb))).ok();
            wait_allowed(&scene, group, resource, verb, false);
            expect(&submit(), 3, &["cannot", verb, resource]);
            assert_eq!(made(&scene), [""; 0], "without {verb} {resource}");
            n += 1;
        }
    }
    assert_eq!(n, 8);
    scene.admin.merge_patch(&role_path, &role(("", ""))).ok();
    wait_allowed(&scene, "batch", "jobs", "get", true);
    expect(&submit(), 0, &["application shop submitted"]);
    stop_and_finish(scene);
}

fn wait_allowed(scene: &Scene<'_>, group: &str, resource: &str, verb: &str, want: bool) {
    let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
        "spec": {"user": "stranger", "resourceAttributes": {"namespace": scene.namespace,
            "group": group, "verb": verb, "resource": resource}}});
    wait_for(PATIENCE, "the rights to be in force", || {
        let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
        scene.admin.post(path, &review).ok()["status"]["allowed"] == want
    });
}
