//! Stable slots: the ranks of a group over losses and changed targets.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::support::posse::Posse;
use crate::support::scene::{Scene, describe, is_over, is_running, uid_of};
use crate::support::server::{End, Server};
use crate::support::wait::{PATIENCE, wait_value};

/// The slot in the label, which must be the one in the environment.
fn slot_of(pod: &Value) -> u32 {
    let label = &pod["metadata"]["labels"]["posse.dev/slot"];
    let env = pod["spec"]["containers"][0]["env"].as_array().expect("posse's variables");
    let variable = env.iter().find(|one| one["name"] == "POSSE_SLOT").expect("POSSE_SLOT");
    assert_eq!(*label, variable["value"]);
    label.as_str().and_then(|slot| slot.parse().ok()).expect("a slot")
}

/// The executors that have not ended. No two of them may have one slot, and none a slot from 4.
fn live(scene: &Scene<'_>) -> Vec<Value> {
    let mut ours = scene.ours();
    ours.retain(|pod| !is_over(pod));
    let slots: BTreeSet<u32> = ours.iter().map(slot_of).collect();
    assert_eq!(slots.len(), ours.len(), "two have one slot: {}", describe(&ours));
    assert!(slots.iter().all(|slot| *slot < 4), "{slots:?}");
    ours
}

/// Waits until the ranks from 0 to `n` - 1 run and nothing else does; returns them by rank.
fn wait_ranks(scene: &Scene<'_>, n: u32) -> Vec<Value> {
    wait_value(PATIENCE, &format!("the ranks below {n}"), || {
        let mut ours = live(scene);
        ours.sort_by_key(slot_of);
        let slots: Vec<u32> = ours.iter().map(slot_of).collect();
        let is_whole = slots.iter().copied().eq(0..n) && ours.iter().all(is_running);
        if is_whole { Ok(ours) } else { Err(describe(&ours)) }
    })
}

fn wait_rank_1_again(scene: &Scene<'_>, before: &Value) -> Vec<Value> {
    wait_value(PATIENCE, "another rank 1", || {
        let ranks = wait_ranks(scene, 4);
        if uid_of(&ranks[1]) == uid_of(before) { Err("the old one") } else { Ok(ranks) }
    })
}

fn wait_for_slot(posse: &Posse) {
    posse.wait_group("a wait for a slot", |group| group["waiting"] == "slot");
}

/// A loss, a scale-down and a scale-up while the old executors still end: always 0 to n - 1.
pub fn ranks_stay_in_range(server: &dyn Server) {
    let scene = Scene::new(server);
    let group = json!({"group": "default", "count": 4, "slots": "stable", "template": "pod.json"});
    let posse = scene.run().settings(json!({"executors": [group]})).start();
    let first = wait_ranks(&scene, 4);
    // The failed pod is retained, and its successor has its slot.
    scene.end(&first[1], End::Killed);
    let second = wait_rank_1_again(&scene, &first[1]);
    for rank in [0, 2, 3] {
        assert_eq!(uid_of(&first[rank]), uid_of(&second[rank]), "rank {rank} is as before");
    }
    scene.hold_deletes(true);
    scene.delete(&second[1]);
    wait_for_slot(&posse);
    scene.hold_deletes(false);
    let third = wait_rank_1_again(&scene, &second[1]);
    posse.scale("default", 1);
    let left = wait_ranks(&scene, 1);
    // Rank 0 is the oldest one; rank 1 is the youngest one and ends too.
    assert_eq!(uid_of(&left[0]), uid_of(&third[0]));
    scene.hold_deletes(true);
    posse.scale("default", 4);
    wait_ranks(&scene, 4);
    posse.scale("default", 1);
    posse.scale("default", 4);
    wait_for_slot(&posse);
    scene.hold_deletes(false);
    wait_ranks(&scene, 4);
    posse.stop();
    scene.finish();
}

/// The attempt in the labels, which must be the one in the environment, of all executors that have not
/// ended: never of two attempts.
fn attempt(scene: &Scene<'_>) -> u32 {
    let ours = live(scene);
    let attempts = ours.iter().map(|pod| {
        let label = pod["metadata"]["labels"]["posse.dev/attempt"].clone();
        let env = pod["spec"]["containers"][0]["env"].as_array().expect("posse's variables");
        let variable = env.iter().find(|one| one["name"] == "POSSE_ATTEMPT");
        assert_eq!(Some(&label), variable.map(|one| &one["value"]));
        label.as_str().and_then(|attempt| attempt.parse().ok()).expect("an attempt")
    });
    let attempts: BTreeSet<u32> = attempts.collect();
    assert!(attempts.len() < 2, "{attempts:?} live together: {}", describe(&ours));
    attempts.first().copied().unwrap_or(0)
}

fn wait_attempt(scene: &Scene<'_>, n: u32) -> Vec<Value> {
    wait_value(PATIENCE, &format!("attempt {n} of all ranks"), || {
        let found = attempt(scene);
        if found < n {
            return Err(found);
        }
        assert_eq!(found, n, "a loss restarts the group once");
        Ok(())
    });
    wait_ranks(scene, 3)
}

/// `on_loss: group`: one loss restarts all executors once, also if posse is killed half-way.
pub fn a_loss_restarts_its_group(server: &dyn Server) {
    let scene = Scene::new(server);
    let group = json!({"group": "default", "count": 3, "on_loss": "group", "template": "pod.json"});
    let run =
        || scene.run().settings(json!({"executors": [group.clone()]})).instance("gang").start();
    let posse = run();
    let first = wait_attempt(&scene, 1);
    scene.end(&first[1], End::Killed);
    let second = wait_attempt(&scene, 2);
    // The others were ended by posse.
    posse.wait_events("executor_lost", 1);
    let ended = posse.wait_events("executor_deleted", 2);
    assert!(ended.iter().all(|event| event["cause"] == "group_restarted"), "{ended:?}");
    let restarts = posse.wait_events("group_restarted", 1);
    assert_eq!(restarts.iter().map(|event| &event["attempt"]).collect::<Vec<_>>(), [2]);
    assert!(second.iter().all(|pod| first.iter().all(|old| uid_of(old) != uid_of(pod))));
    // posse is killed while the others still end.
    scene.hold_deletes(true);
    scene.end(&second[0], End::Exit(1));
    posse.wait_event("group_restarted", |event| event["attempt"] == 3);
    posse.kill();
    let posse = run();
    posse.wait_ready();
    scene.hold_deletes(false);
    wait_attempt(&scene, 3);
    posse.stop();
    scene.finish();
}
