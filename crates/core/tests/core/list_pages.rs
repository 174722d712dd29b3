//! A LIST that comes in pages.
#![allow(clippy::unwrap_used)]

use crate::core_run::{Run, policy, spec};
use posse_core::model::ids::Version;
use posse_core::model::input::{Input, List, ListPage, ListSource};
use posse_core::model::pod::Pod;

/// Page `number` of a LIST at `version`.
fn page(run: &Run, number: u32, is_last: bool, pods: Vec<Pod>, version: u64) -> Input {
    let (source, watermark) = (ListSource::Poll, run.core.watermark());
    let page = ListPage { number, is_last };
    Input::List(List { source, page, pods, version: Some(Version(version)), watermark })
}

fn lost(run: &mut Run) -> Vec<u64> {
    run.losses().into_iter().map(|(id, _)| id).collect()
}

#[test]
fn a_pod_in_no_page_is_gone_after_the_last_one() {
    let mut run = Run::with_running(policy(), vec![spec("g", 3)]);
    let (pods, at) = (run.pods.clone(), run.version + 10);
    run.tell(page(&run, 0, false, pods[..1].to_vec(), at));
    assert_eq!(lost(&mut run), [0; 0]);
    run.tell(page(&run, 1, true, pods[2..].to_vec(), at));
    assert_eq!(lost(&mut run), [2]);
    assert_eq!(run.core.snapshot().position(), Some(Version(at)));
}

#[test]
fn a_page_is_applied_before_the_next_one_comes() {
    let mut run = Run::with_running(policy(), vec![spec("g", 2)]);
    let at = run.version + 10;
    let mut pod = run.pods[0].clone();
    (pod.version, pod.deleting) = (Some(Version(at)), true);
    run.tell(page(&run, 0, false, vec![pod], at));
    assert_eq!(lost(&mut run), [1]);
    assert_eq!(run.core.snapshot().len(), 2);
    assert!(run.core.snapshot().position() < Some(Version(at)), "the other pods may be older");
}

#[test]
fn without_one_of_its_pages_a_list_means_nothing() {
    let mut run = Run::with_running(policy(), vec![spec("g", 3)]);
    let (pods, at) = (run.pods.clone(), run.version + 10);
    for (number, is_last) in [(0, false), (2, false), (3, true)] {
        let pods = pods[..1].to_vec();
        run.tell(page(&run, number, is_last, pods, at));
    }
    run.tell(page(&run, 1, true, Vec::new(), at));
    assert_eq!(lost(&mut run), [0; 0]);
    // Nor do pages of two LISTs make one.
    run.tell(page(&run, 0, false, pods[..1].to_vec(), at));
    run.tell(page(&run, 1, true, pods[1..2].to_vec(), at + 1));
    assert_eq!(lost(&mut run), [0; 0]);
    // The next LIST counts.
    run.tell(page(&run, 0, false, pods[..1].to_vec(), at + 2));
    run.tell(page(&run, 1, true, pods[1..2].to_vec(), at + 2));
    assert_eq!(lost(&mut run), [3]);
}

#[test]
fn a_list_of_another_source_comes_between_two_pages() {
    let mut run = Run::with_running(policy(), vec![spec("g", 2)]);
    let (pods, at, watermark) = (run.pods.clone(), run.version + 10, run.core.watermark());
    run.tell(page(&run, 0, false, pods[..1].to_vec(), at));
    let whole = List::whole(ListSource::Watch, pods.clone(), Some(Version(at)), watermark);
    run.tell(Input::List(whole));
    run.tell(page(&run, 1, true, Vec::new(), at));
    assert_eq!(lost(&mut run), [2]);
}

#[test]
fn a_part_of_the_first_list_decides_nothing() {
    let mut run = Run::unlisted(policy(), vec![spec("g", 2)]);
    let at = run.version + 10;
    run.tell(page(&run, 0, false, Vec::new(), at));
    assert!(!run.core.had_first_list());
    assert_eq!(run.creates(), [0; 0]);
    run.tell(page(&run, 1, true, Vec::new(), at));
    assert!(run.core.had_first_list());
    assert_eq!(run.creates(), [1, 2]);
}

#[test]
fn what_was_held_is_applied_when_another_list_comes_first() {
    let mut run = Run::with_running(policy(), vec![spec("g", 2)]);
    run.refused_by_history();
    let (pods, at, watermark) = (run.pods.clone(), run.version + 10, run.core.watermark());
    let mut changed = pods[0].clone();
    (changed.version, changed.deletion_cost) = (Some(Version(at)), 7);
    run.tell(page(&run, 0, false, vec![changed.clone()], at));
    let whole = List::whole(ListSource::Watch, pods.clone(), Some(Version(at - 1)), watermark);
    run.tell(Input::List(whole));
    run.tell(page(&run, 1, true, pods[1..].to_vec(), at));
    assert_eq!(run.core.snapshot().get(&changed.uid), Some(&changed));
}

#[test]
fn a_rollback_ends_the_list_that_is_open() {
    let mut run = Run::with_running(policy(), vec![spec("g", 2)]);
    let (pods, at) = (run.pods.clone(), run.version + 10);
    run.tell(page(&run, 0, false, pods[..1].to_vec(), at));
    run.refused_by_history();
    run.tell(page(&run, 1, true, Vec::new(), at));
    assert!(!run.core.snapshot().is_synced());
    assert_eq!(lost(&mut run), [0; 0]);
}
