//! What etcd does to watchers: compaction, and a restore from an older backup.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::support::posse::Posse;
use crate::support::proxy::{Proxy, ProxyAction};
use crate::support::scene::{Scene, executor_id, name_of, uid_of};
use crate::support::server::{End, Server, Who};
use crate::support::wait::{PATIENCE, wait_for};

fn ids(pods: &[Value]) -> BTreeSet<u64> {
    pods.iter().map(executor_id).collect()
}

fn wait_known(posse: &Posse, n: usize) {
    posse.wait_events("executor_running", n);
}

/// A watch that was away for longer than the history of the server: a 410 by the server itself.
pub fn compacted_while_away(server: &dyn Server) {
    let own = server.fresh();
    let scene = Scene::new(&*own);
    let proxy = Proxy::start(&own.access(Who::Posse), |_, _| ProxyAction::Pass);
    let posse = scene.run_with(&proxy.access()).executors(2).start();
    let before = scene.wait_running(2);
    wait_known(&posse, 2);
    proxy.down();
    scene.delete(&before[0]);
    wait_for(PATIENCE, "the pod to go unseen", || scene.pod(name_of(&before[0])).is_none());
    own.compact();
    proxy.up();
    let lost = posse.wait_event("executor_lost", |event| event["uid"] == uid_of(&before[0]));
    assert_eq!(
        (&lost["reason"], &lost["budget"]),
        (&json!("deleted"), &json!("cluster")),
        "{lost}"
    );
    assert_eq!(ids(&scene.wait_running(2)), [2, 3].into());
    posse.wait_event("watch_restarted", |event| {
        event["cause"].as_str().is_some_and(|cause| cause.contains("too old resource version"))
    });
    assert_eq!(posse.events_of("executor_lost").len(), 1);
    posse.stop();
    scene.finish();
}

/// etcd is restored from an older backup: newer pods are gone without an event, and deleted ones
/// exist again. posse notices it and uses no id twice.
pub fn restored_from_a_backup(server: &dyn Server) {
    let own = server.fresh();
    let scene = Scene::new(&*own);
    let settings = json!({"allocation": {"poll_interval": "1s"}});
    let posse = scene.run().executors(2).settings(settings).start();
    let old = scene.wait_running(2);
    wait_known(&posse, 2);
    own.back_up();
    posse.scale("default", 4);
    scene.wait_running(4);
    scene.end(&old[0], End::Exit(1));
    posse.wait_event("executor_lost", |event| event["uid"] == uid_of(&old[0]));
    let newer = scene.wait_running(4);
    wait_for(PATIENCE, "the last one to be known", || {
        let running = posse.events_of("executor_running");
        newer.iter().all(|pod| running.iter().any(|event| event["uid"] == uid_of(pod)))
    });
    assert_eq!(ids(&newer), [2, 3, 4, 5].into());
    // More changes than the restored history has.
    let path = format!("/api/v1/namespaces/{}/pods/{}", scene.namespace, name_of(&newer[0]));
    for n in 0..100 {
        let note = json!({"metadata": {"annotations": {"note": n.to_string()}}});
        scene.admin.merge_patch(&path, &note).ok();
    }
    own.restore();
    posse.wait_event("watch_restarted", |event| event["cause"] == "resourceVersion rollback");
    let after = scene.wait_running(4);
    let lost = |pod: &Value| {
        let uid = uid_of(pod);
        posse.events_of("executor_lost").iter().filter(|event| event["uid"] == uid).count()
    };
    for pod in &newer[1..] {
        wait_for(PATIENCE, "what went with the history to be told", || lost(pod) > 0);
        assert_eq!(lost(pod), 1, "{} went with the history", name_of(pod));
    }
    assert!(after.iter().any(|pod| uid_of(pod) == uid_of(&old[1])), "what was there is kept");
    assert_eq!(lost(&old[0]), 1, "a loss is told once, also of one that is there again");
    let made_since = after.iter().filter(|pod| !old.iter().any(|o| uid_of(o) == uid_of(pod)));
    for pod in made_since {
        assert!(executor_id(pod) > 5, "{} has an id that was given before", name_of(pod));
    }
    posse.stop();
    scene.finish();
}
