//! The check of quotas: whether the executors and what stays of them have room.

use super::Checks;
use super::report::Status;
use posse_core::model::settings::GroupSpec;
use posse_encoding::amounts::Amounts;
use posse_encoding::quantity::Quantity;
use posse_kube::api::orphans::AppExecutors;
use posse_kube::api::preflight;
use posse_wire::config::DriverPod;
use posse_wire::k8s::preflight::{Quota, Shortage, shortages};

impl Checks {
    pub(super) fn quota(&mut self, usage: Option<&RunUsage>) {
        let quotas = match preflight::quotas(&self.connection.http, &self.namespace) {
            Ok(quotas) => quotas,
            Err(refusal) => {
                return self.report.add("quota", Status::Unknown, refusal.to_string());
            }
        };
        for quota in quotas.iter().filter(|quota| quota.has_scopes) {
            let message = format!("{} has scopes and was not checked", quota.name);
            self.report.add("quota", Status::Unknown, message);
        }
        let Some(usage) = usage else { return };
        let problems = usage.problems(&quotas, || self.n_ended());
        let message = room(&quotas).filter(|_| problems.is_empty());
        for (problem, remedy) in problems {
            self.report.advise("quota", Status::Warning, problem, remedy);
        }
        if let Some(message) = message {
            self.report.add("quota", Status::Ok, message);
        }
    }

    /// How many pods of ended executors the namespace has, of all runs. 0 if they may not be listed.
    fn n_ended(&self) -> usize {
        let all = AppExecutors::new(self.connection.http.clone(), &self.namespace, None).list();
        all.unwrap_or_default().iter().filter(|pod| pod.phase.is_final()).count()
    }
}

/// What a run uses of quotas.
#[derive(Default)]
pub(super) struct RunUsage {
    /// Of all executors that run at a time, and of the driver's pods.
    at_a_time: Amounts,
    /// With the pods that stay: the records of those that have completed, `failures.keep_failed`, and failed drivers.
    at_end: Amounts,
}

impl RunUsage {
    /// Adds a group. `each`: what one executor uses while it runs; `pod`: as long as its pod is there; `claims`: those of
    /// its slot.
    pub(super) fn add(
        &mut self,
        group: &GroupSpec,
        each: &Amounts,
        pod: &Amounts,
        claims: &Amounts,
    ) {
        // A group without a target has the executors of its tasks.
        let n_at_a_time = if group.target == 0 { group.max.unwrap_or(0) } else { group.target };
        let n_at_end = group.completions.unwrap_or(0).max(n_at_a_time);
        self.at_a_time.add(&times(each, n_at_a_time));
        for object in [pod, claims] {
            self.at_a_time.add(&times(object, n_at_a_time));
            self.at_end.add(&times(object, n_at_end));
        }
    }

    /// Adds failed pods that stay.
    pub(super) fn keep_failed(&mut self, pod: &Amounts, n_pods: u32) {
        self.at_end.add(&times(pod, n_pods));
    }

    /// Adds the pods of a submitted driver. Those of its failed tries stay as long as the Job.
    pub(super) fn add_driver(&mut self, driver: &DriverPod) {
        let n_pods = driver.standby.saturating_add(1);
        let mut pod = Amounts::default();
        pod.set("count/pods", Quantity::whole(1));
        self.at_end.add(&times(&pod, n_pods.saturating_add(driver.retries)));
        pod.set("pods", Quantity::whole(1));
        self.at_a_time.add(&times(&pod, n_pods));
    }

    /// What quotas have too little of, and what to do about it. `n_ended`: how many executors have ended already.
    fn problems(
        &self,
        quotas: &[Quota],
        n_ended: impl FnOnce() -> usize,
    ) -> Vec<(String, &'static str)> {
        let now = shortages(quotas, &self.at_a_time);
        let mut later = shortages(quotas, &self.at_end);
        later.retain(|one| {
            !now.iter().any(|other| (&other.quota, &other.resource) == (&one.quota, &one.resource))
        });
        let mut said = Vec::new();
        if !now.is_empty() {
            let mut problem = problems(&now, "the run needs");
            // Another run's, which do not give way to this one's.
            let is_held = now.iter().any(|one| one.resource == "count/pods");
            match if is_held { n_ended() } else { 0 } {
                0 => {}
                n => problem.push_str(&format!("; {n} pods are ended executors: `posse cleanup`")),
            }
            said.push((problem, REMEDY));
        }
        if !later.is_empty() {
            let problem = problems(&later, "with the pods that stay as records the run may hold");
            said.push((problem, RECORDS_REMEDY));
        }
        said
    }
}

const REMEDY: &str = "posse creates what the quota allows and continues when there is room; raise the quota, request less, \
                      or lower count";
const RECORDS_REMEDY: &str = "the pods of completed executors and the last failed ones (failures.keep_failed) stay until others \
                              wait for the quota; raise it to keep them; those of failed drivers (driver.retries) do not give way";

fn times(amounts: &Amounts, n: u32) -> Amounts {
    let all = amounts.0.iter().map(|(name, amount)| (name.clone(), amount.times(n)));
    Amounts(all.collect())
}

/// What quotas have too little of. `need`: the words for the amount that they should have.
fn problems(short: &[Shortage], need: &str) -> String {
    let problems = short.iter().map(|Shortage { quota, resource, wanted, left, hard }| {
        let [wanted, left, hard] = [wanted, left, hard].map(|amount| amount.canonical());
        format!("{quota} has {left} of {hard} {resource} left, {need} {wanted}")
    });
    problems.collect::<Vec<_>>().join("; ")
}

/// What to say if no quota is too small; nothing if none of them was checked.
fn room(quotas: &[Quota]) -> Option<String> {
    let n_checked = quotas.iter().filter(|quota| !quota.has_scopes).count();
    match (n_checked, quotas.len()) {
        (0, 0) => Some("the namespace has none".to_owned()),
        (0, _) => None,
        (n, _) => Some(format!("room for all executors in {n}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_shortage_is_told_once_and_ended_executors_with_it() {
        let amounts = |all: &[(&str, i64)]| {
            let mut amounts = Amounts::default();
            all.iter().for_each(|(name, n)| amounts.set(name, Quantity::whole(*n)));
            amounts
        };
        let told = |hard: &[(&str, i64)], n_ended| {
            let at_a_time = amounts(&[("cpu", 2), ("count/pods", 2)]);
            let usage = RunUsage { at_a_time, at_end: amounts(&[("count/pods", 7)]) };
            let (hard, used) = (amounts(hard), Amounts::default());
            let quota = Quota { name: "q".to_owned(), has_scopes: false, hard, used };
            let said = usage.problems(&[quota], || n_ended);
            said.into_iter().map(|(problem, _)| problem).collect::<Vec<_>>()
        };
        let records =
            "q has 5 of 5 count/pods left, with the pods that stay as records the run may hold 7";
        let cpu = "q has 1 of 1 cpu left, the run needs 2";
        let pods = "q has 1 of 1 count/pods left, the run needs 2";
        let held = format!("{pods}; 4 pods are ended executors: `posse cleanup`");
        for (hard, n_ended, want) in [
            (&[("cpu", 9), ("count/pods", 9)][..], 4, &[][..]),
            (&[("cpu", 1), ("count/pods", 5)], 4, &[cpu, records]),
            (&[("count/pods", 1)], 0, &[pods]),
            (&[("count/pods", 1)], 4, &[&held]),
        ] {
            assert_eq!(told(hard, n_ended), want, "{hard:?}");
        }
    }

    /// The Job's next pod has no room if the executors and its failed pods hold all.
    #[test]
    fn the_pods_of_a_submitted_driver_count() {
        let mut usage = RunUsage::default();
        usage.add_driver(&DriverPod { retries: 3, standby: 1, ..DriverPod::default() });
        for (resource, hard, want) in [
            ("pods", 2, None),
            ("pods", 1, Some("the run needs 2")),
            ("count/pods", 5, None),
            ("count/pods", 4, Some("the run may hold 5")),
            ("count/pods", 1, Some("the run needs 2")),
        ] {
            let (mut limit, used) = (Amounts::default(), Amounts::default());
            limit.set(resource, Quantity::whole(hard));
            let quota = Quota { name: "q".to_owned(), has_scopes: false, hard: limit, used };
            let said = usage.problems(&[quota], || 0);
            let said: Vec<&str> = said.iter().map(|(problem, _)| problem.as_str()).collect();
            let fits = match want {
                None => said.is_empty(),
                Some(words) => said.len() == 1 && said[0].ends_with(words),
            };
            assert!(fits, "{resource} {hard}: {said:?}");
        }
    }

    #[test]
    fn the_executors_of_tasks_count() {
        let mut each = Amounts::default();
        each.set("cpu", Quantity::whole(1));
        for (target, max, want) in [(0, Some(3), 3), (0, None, 0), (2, Some(9), 2)] {
            let group = GroupSpec { target, max, ..GroupSpec::bare("g".into()) };
            let mut usage = RunUsage::default();
            usage.add(&group, &each, &Amounts::default(), &Amounts::default());
            let cpu = usage.at_a_time.0.get("cpu").map(|cpu| cpu.canonical());
            assert_eq!(cpu, Some(want.to_string()), "{target} {max:?}");
        }
    }

    #[test]
    fn quotas_with_scopes_are_not_called_roomy() {
        let quota = |has_scopes| Quota {
            name: "q".to_owned(),
            has_scopes,
            hard: Amounts::default(),
            used: Amounts::default(),
        };
        for (scopes, want) in [
            (&[][..], Some("the namespace has none")),
            (&[true], None),
            (&[false], Some("room for all executors in 1")),
            (&[true, false, true], Some("room for all executors in 1")),
        ] {
            let quotas: Vec<Quota> = scopes.iter().map(|has_scopes| quota(*has_scopes)).collect();
            assert_eq!(room(&quotas).as_deref(), want, "{scopes:?}");
        }
    }
}
