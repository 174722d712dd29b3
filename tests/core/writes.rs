//! The write requests for the end of an executor.
#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm)]

use crate::core_run::{Run, policy, spec};
use posse::core::model::action::Action;
use posse::core::model::ids::Version;
use posse::core::model::input::Input;

/// etcd was restored to an older state, and its versions passed their former value before a LIST
/// could show that.
#[test]
fn a_delete_that_was_undone_is_sent_again() {
    for waits in [1, 60_000, 600_000] {
        let mut run = Run::with_running(policy(), vec![spec("g", 1)]);
        run.target("g", 0);
        assert_eq!(run.ends(), ["u1"]);
        let mut pod = run.pods[0].clone();
        (pod.deleting, pod.version) = (true, Some(Version(run.version + 1)));
        run.version += 1;
        run.tell(Input::Deleted { uid: pod.uid.clone(), answer: Ok(Some(pod)) });
        run.wait(waits);
        run.watch(&[1], |pod| pod.deletion_cost = 1);
        run.wait(60_000);
        let is_delete = |action: &&Action| matches!(action, Action::Delete { .. });
        assert_eq!(run.take().iter().filter(is_delete).count(), 1, "after {waits} ms");
    }
}
