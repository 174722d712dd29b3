//! Readiness of executors: their probes, the event, the status and `posse wait --ready`.

use serde_json::json;

use crate::support::posse::said;
use crate::support::scene::Scene;
use crate::support::server::Server;
use crate::support::wait::{PATIENCE, wait_for};

/// Executors run long before their readiness probes succeed.
pub fn ready_after_the_probe(server: &dyn Server) {
    let scene = Scene::new(server);
    let loaded = scene.file("loaded");
    scene.write_template("pod.json", |pod| {
        pod["spec"]["containers"][0]["readinessProbe"] = json!({
            "periodSeconds": 1, "exec": {"command": ["test", "-e", loaded.display().to_string()]},
        });
    });
    let posse = scene.run().executors(2).start();
    scene.wait_running(2);
    let wait = |what, n| posse.ask(&["wait", what, n, "--timeout", "60s"]);
    assert!(wait("--running", "2").status.success());
    let too_early = posse.ask(&["wait", "--ready", "1", "--timeout", "100ms"]);
    assert_eq!(too_early.status.code(), Some(1));
    let text = said(&too_early);
    assert!(text.contains("0 of 1 are ready after") && text.contains("0 of them ready"), "{text}");
    assert_eq!(posse.events_of("executor_ready").len(), 0);
    std::fs::write(&loaded, "").expect("the folder can be written");
    assert!(wait("--ready", "2").status.success());
    wait_for(PATIENCE, "the events", || posse.events_of("executor_ready").len() == 2);
    let status = posse.status();
    assert_eq!(
        (&status["groups"][0]["ready"], &status["executors"][0]["ready"]),
        (&json!(2), &json!(true))
    );
    posse.stop();
    scene.finish();
}
