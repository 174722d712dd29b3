//! The state of drivers from Jobs and pods as servers return them.

use serde_json::{Value, json};

use super::*;

pub(crate) fn read(pod: &Value) -> PodDetails {
    PodDetails::parse(pod.to_string().as_bytes()).unwrap()
}

fn pod(name: &str, made: &str, status: Value) -> PodDetails {
    read(&raw_pod(name, made, status))
}

fn raw_pod(name: &str, made: &str, status: Value) -> Value {
    json!({"kind": "Pod", "metadata": {"name": name, "uid": name, "creationTimestamp": made},
        "spec": {"nodeName": "n1", "containers": [
            {"name": "proxy"}, {"name": "driver", "volumeMounts": [{"mountPath": "/etc/posse"}]}]},
        "status": status})
}

fn ended(phase: &str, code: i64, reason: &str) -> Value {
    json!({"phase": phase, "containerStatuses": [
        {"name": "proxy", "state": {"terminated": {"exitCode": 0}}},
        {"name": "driver", "state": {"terminated": {"exitCode": code, "reason": reason}}}]})
}

/// The driver has ended, and another container runs on or has failed.
fn behind(phase: &str, code: i64) -> Value {
    let mut status = ended(phase, code, if code == 0 { "Completed" } else { "Error" });
    status["containerStatuses"][0]["state"] = match phase {
        "Running" => json!({"running": {}}),
        _ => json!({"terminated": {"exitCode": 137, "reason": "Error"}}),
    };
    // It has failed, so it does not run on.
    let failed = json!({"name": "shipper", "state": {"terminated": {"exitCode": 1}}});
    status["containerStatuses"].as_array_mut().unwrap().push(failed);
    status
}

#[test]
fn a_pod_is_described_in_one_line() {
    let waiting = |list: &str, reason: &str| {
        json!({"phase": "Pending", list: [{"name": "driver",
            "state": {"waiting": {"reason": reason, "message": "the words"}}}]})
    };
    let both = json!({"phase": "Pending",
        "containerStatuses": [{"state": {"waiting": {"reason": "PodInitializing"}}}],
        "initContainerStatuses": [{"state": {"waiting": {"reason": "ErrImagePull"}}}]});
    let unscheduled = json!({"phase": "Pending", "conditions": [{"type": "PodScheduled",
        "status": "False", "reason": "Unschedulable", "message": "0/1 nodes are available"}]});
    let restarted = json!({"phase": "Running",
        "containerStatuses": [{"name": "driver", "restartCount": 2}]});
    let crashing = json!({"phase": "Running", "containerStatuses": [
        {"name": "driver", "restartCount": 3, "state": {"waiting": {"reason": "CrashLoopBackOff"}}},
        {"name": "proxy", "state": {"running": {}}}]});
    let failed_init = json!({"phase": "Failed", "initContainerStatuses": [
        {"name": "posse", "state": {"terminated": {"exitCode": 3}}}]});
    let evicted =
        json!({"phase": "Failed", "reason": "Evicted", "message": "The node was low on memory."});
    for (status, want) in [
        (json!({"phase": "Pending"}), "is pending"),
        (
            waiting("containerStatuses", "ErrImagePull"),
            "is waiting: ErrImagePull: the words; correct the image's name, or let the node pull it",
        ),
        (
            waiting("initContainerStatuses", "CreateContainerError"),
            "is waiting: CreateContainerError: the words",
        ),
        (both, "is waiting: ErrImagePull; correct the image's name, or let the node pull it"),
        (unscheduled, "is waiting: Unschedulable: 0/1 nodes are available"),
        (json!({"phase": "Running"}), "runs on n1"),
        (restarted, "runs on n1, restarted 2 times"),
        (crashing, "is waiting: CrashLoopBackOff, restarted 3 times"),
        (ended("Succeeded", 0, "Completed"), "has succeeded"),
        (ended("Failed", 3, "Error"), "has failed: exit code 3"),
        (ended("Failed", 137, "OOMKilled"), "has failed: exit code 137 (OOMKilled)"),
        (failed_init, "has failed: init container posse ended with exit code 3"),
        (evicted, "has failed: Evicted: The node was low on memory."),
        (json!({"phase": "Failed"}), "has failed: no reason given"),
        (behind("Running", 0), "has succeeded; proxy runs on in it"),
        (behind("Running", 3), "has failed: exit code 3; proxy runs on in it"),
        (behind("Failed", 0), "has succeeded"),
    ] {
        assert_eq!(pod_line(&pod("p", "t", status.clone())), format!("pod p {want}"), "{status}");
    }
    let mut terminating = raw_pod("p", "t", json!({"phase": "Running"}));
    terminating["metadata"]["deletionTimestamp"] = json!("t");
    assert_eq!(pod_line(&read(&terminating)), "pod p is terminating");
}

#[test]
fn every_reason_of_a_missing_image_is_known() {
    for reason in [
        "ErrImageNeverPull",
        "ErrImagePull",
        "ImageInspectError",
        "ImagePullBackOff",
        "InvalidImageName",
        "RegistryUnavailable",
        "SignatureValidationFailed",
    ] {
        let waiting = json!([{"name": "driver", "state": {"waiting": {"reason": reason}}}]);
        let one = pod("p", "t", json!({"phase": "Pending", "containerStatuses": waiting}));
        assert_eq!(image_problem(&one), Some(reason));
    }
}

#[test]
fn the_last_lines_of_a_failed_driver_are_shown() {
    let said = |phase: &str, reason: &str, message: &str| {
        let mut status = ended(phase, if phase == "Failed" { 3 } else { 0 }, reason);
        status["containerStatuses"][1]["state"]["terminated"]["message"] = json!(message);
        last_lines(&pod("p", "t", status))
    };
    let lines: Vec<String> = (0..12).map(|n| n.to_string()).collect();
    assert_eq!(said("Failed", "Error", &lines.join("\n\n")), lines[2..]);
    assert_eq!(said("Failed", "Error", &"x".repeat(500)), ["x".repeat(300)]);
    assert_eq!(said("Failed", "Error", ""), [""; 0]);
    assert_eq!(said("Succeeded", "Completed", "done"), [""; 0]);
    // The line about the pod has this message already.
    assert_eq!(said("Failed", "StartError", "no such file"), [""; 0]);
}

#[test]
fn the_state_is_derived_from_job_and_pods() {
    let job = |status: Value| json!({"kind": "Job", "metadata": {"uid": "j"}, "spec": {}, "status": status});
    let over = |kind: &str, reason: &str| {
        job(json!({"conditions": [{"type": kind, "status": "True", "reason": reason}]}))
    };
    let told = |code: &str, mut job: Value| {
        job["metadata"]["annotations"] = json!({"posse.dev/exit-code": code});
        job
    };
    let beside = |code| pod("b", "2", behind("Running", code));
    let running = || pod("b", "2", json!({"phase": "Running"}));
    let failed = || pod("a", "1", ended("Failed", 3, "Error"));
    let mut suspended = job(json!({}));
    suspended["spec"]["suspend"] = json!(true);
    let mut stopping = job(json!({}));
    stopping["metadata"]["deletionTimestamp"] = json!("t");
    let mut emptied = job(json!({}));
    emptied["spec"]["parallelism"] = json!(0);
    for (job, pods, want) in [
        (Some(emptied), vec![], DriverState::Stopping),
        (Some(job(json!({}))), vec![], DriverState::Pending),
        (Some(job(json!({}))), vec![running()], DriverState::Running),
        (Some(job(json!({}))), vec![failed()], DriverState::Retrying),
        (Some(job(json!({}))), vec![running(), failed()], DriverState::Running),
        (Some(job(json!({"failed": 1}))), vec![], DriverState::Retrying),
        (Some(over("Complete", "")), vec![running()], DriverState::Succeeded),
        (Some(over("Failed", "BackoffLimitExceeded")), vec![failed()], DriverState::Failed),
        // The driver has ended, and another container runs on.
        (Some(job(json!({}))), vec![beside(3), failed()], DriverState::Retrying),
        (Some(told("3", job(json!({})))), vec![beside(3)], DriverState::Failed),
        (Some(told("0", job(json!({})))), vec![beside(0)], DriverState::Succeeded),
        (Some(told("3", job(json!({})))), vec![running()], DriverState::Running),
        // It did not end by itself.
        (Some(told("0", over("Failed", "BackoffLimitExceeded"))), vec![], DriverState::Succeeded),
        (None, vec![beside(3)], DriverState::Failed),
        (None, vec![beside(0)], DriverState::Succeeded),
        (Some(suspended), vec![], DriverState::Suspended),
        (Some(stopping), vec![running()], DriverState::Stopping),
        (None, vec![running()], DriverState::Running),
        (None, vec![failed()], DriverState::Failed),
        (None, vec![], DriverState::Pending),
    ] {
        let job = job.map(|job| Job::parse(job.to_string().as_bytes()).unwrap());
        assert_eq!(state(job.as_ref(), &pods), want, "{job:?} {pods:?}");
    }
    let ended = over("Failed", "DeadlineExceeded");
    let ended = Job::parse(ended.to_string().as_bytes()).unwrap();
    assert_eq!(job_end(&ended, &[]), Some((false, "DeadlineExceeded".to_owned())));
}

#[test]
fn an_image_without_posse_is_told_with_the_remedy() {
    let message = "failed to create containerd task: exec: \"posse\": executable file not found";
    let mut one = raw_pod("p", "t", ended("Failed", 128, "StartError"));
    one["status"]["containerStatuses"][1]["state"]["terminated"]["message"] = json!(message);
    let told = format!("pod p has failed: exit code 128 (StartError: {message})");
    assert_eq!(pod_line(&read(&one)), told);
    one["spec"]["containers"][1]["command"] = json!(["posse"]);
    let remedy = "put posse on the PATH of the image, or set driver.posse_image, which copies it";
    assert_eq!(pod_line(&read(&one)), format!("{told}; {remedy}"));
    // Mounted by a runtime that executes nothing there.
    one["spec"]["containers"][1]["command"] = json!(["/opt/posse/posse"]);
    assert_eq!(pod_line(&read(&one)), told);
    one["spec"]["volumes"] = json!([{"name": "posse-bin", "image": {"reference": "p"}}]);
    assert_eq!(pod_line(&read(&one)), format!("{told}{OLD_RUNTIME}"));
}

const OLD_RUNTIME: &str = "; if the node has no image volumes, leave out `volume:` in \
    driver.posse_image: an init container then copies posse";

#[test]
fn a_runtime_without_image_volumes_is_told_with_the_remedy() {
    let waits = |reason: &str, message: &str| {
        json!({"phase": "Pending", "startTime": "t", "containerStatuses": [
        {"name": "driver", "state": {"waiting": {"reason": reason, "message": message}}}]})
    };
    let mounted = json!([{"name": "posse-bin", "image": {"reference": "p"}}]);
    let copied = json!([{"name": "posse-bin", "emptyDir": {}}]);
    let image = "; correct the image's name, or let the node pull it";
    for (reason, message, volumes, remedy, is_starting) in [
        ("CreateContainerError", ": mkdir : no such file", &mounted, OLD_RUNTIME, false),
        ("ImageVolumeMountFailed", ": no such mount", &mounted, OLD_RUNTIME, false),
        ("CreateContainerError", ": mkdir : no such file", &copied, "", false),
        ("ErrImagePull", ": not found", &mounted, image, false),
        ("ContainerCreating", "", &mounted, "", true),
    ] {
        let mut one = raw_pod("p", "t", waits(reason, message.trim_start_matches(": ")));
        one["spec"]["volumes"] = volumes.clone();
        let one = read(&one);
        assert_eq!(pod_line(&one), format!("pod p is waiting: {reason}{message}{remedy}"));
        assert_eq!(starts_since(&one), is_starting.then_some("t"), "{reason}");
    }
    // Before a node has it, and when it runs, nothing is missing.
    for status in [json!({"phase": "Pending"}), json!({"phase": "Running", "startTime": "t"})] {
        assert_eq!(starts_since(&pod("p", "t", status)), None);
    }
}

#[test]
fn the_exit_code_is_read_from_the_main_container() {
    let one = pod("p", "t", ended("Failed", 3, "Error"));
    assert_eq!((one.main.as_str(), exit_code(&one)), ("driver", Some(3)));
    assert!(has_begun(&one));
    let young = pod("p", "t", json!({"phase": "Pending"}));
    assert_eq!((exit_code(&young), has_begun(&young)), (None, false));
    let two = [pod("a", "2", json!({})), pod("b", "1", json!({}))];
    assert_eq!(newest(&two).map(PodDetails::name), Some("a"));
}
