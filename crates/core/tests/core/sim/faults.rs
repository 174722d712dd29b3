//! The faults of a seed: their kinds and frequencies, and the size of the run.

use posse_base::rng::Rng;
use posse_core::model::ids::GroupName;
use posse_core::model::settings::{BadNodes, Limit, Policy};

/// Chances in percent, and times in milliseconds.
#[derive(Clone, Debug)]
pub struct Profile {
    pub lose_before: u64,
    pub lose_after: u64,
    pub late_commit: u64,
    pub throttle: u64,
    pub unavailable: u64,
    pub unauthorized: u64,
    pub strip: u64,
    pub refuse_template: u64,
    pub foreign: u64,
    pub answer_ms: u64,
    pub list_late: u64,
    pub list_expired: u64,
    /// How many pods a page of a LIST has; 0: all.
    pub page_pods: usize,
    pub page_lost: u64,
    pub watch_gap_ms: u64,
    pub watch_cut: u64,
    /// A balancer cuts each watch after this time, for ever; 0: none does.
    pub cut_each_ms: u64,
    /// Executors end as soon as they run: with 0, or evicted.
    pub ends_at_once: u64,
    pub watch_again: u64,
    pub coalesce: u64,
    pub die: u64,
    pub die_ms: u64,
    /// Executors reach their `max_age`.
    pub max_age: u64,
    /// Pods of others with our labels.
    pub impostors: u64,
    /// A node is lost with all its pods.
    pub node_losses: u64,
    /// Executors die by the application's doing alone.
    pub only_crashes: bool,
    /// The process ends between its events and its requests.
    pub crashes: u64,
    pub delete_by_others: u64,
    pub unschedulable: u64,
    pub node_faults: NodeFaults,
    pub server_faults: ServerFaults,
    pub stuck: u64,
    pub noise: u64,
    pub kills: u64,
    pub restores: u64,
    pub lease_losses: u64,
    pub retargets: u64,
    /// Groups are put and deleted by calls.
    pub group_calls: u64,
    pub early_stop: bool,
    pub keep: bool,
    pub is_high_water_kept: bool,
    pub quota: Option<usize>,
    pub n_groups: u64,
    pub faulty_ms: u64,
    pub poll_ms: u64,
    pub batch_ms: u64,
    /// Executors that nothing else ends do their work and end with 0.
    pub has_work: bool,
}

/// What prevents starts, and what nodes do to running pods. Chances in percent.
#[derive(Clone, Debug, Default)]
pub struct NodeFaults {
    pub gated: u64,
    pub image_error: u64,
    pub config_error: u64,
    /// A start that hangs without a message.
    pub stuck_start: u64,
    pub node_loss: u64,
    /// Pods that use their whole grace period.
    pub long_grace: u64,
    pub n_nodes: u64,
    /// A node on which nothing starts and running pods are lost.
    pub bad_node: Option<u64>,
}

impl NodeFaults {
    /// Drawn from a separate generator, so that older seeds keep their meaning.
    pub fn draw(rng: &mut Rng, policy: &mut Policy) -> Self {
        let some = |rng: &mut Rng, percent: u64, most: u64| {
            if rng.chance(percent) { 1 + rng.below(most) } else { 0 }
        };
        let n_nodes = 1 + rng.below(6);
        policy.start_timeout_ms = [0, 10_000, 60_000, 600_000][at(rng, 4)];
        // So that older seeds keep their meaning.
        rng.below(3);
        rng.below(3);
        policy.bad_nodes = BadNodes {
            losses: [0, 1, 3][at(rng, 3)],
            window_ms: 60_000,
            avoid_for_ms: [5_000, 60_000][at(rng, 2)],
            share_permille: [250, 500, 1_000][at(rng, 3)],
        };
        Self {
            gated: some(rng, 30, 50),
            image_error: some(rng, 40, 100),
            config_error: some(rng, 40, 60),
            stuck_start: some(rng, 40, 60),
            node_loss: some(rng, 40, 60),
            n_nodes,
            bad_node: rng.chance(40).then(|| rng.below(n_nodes)),
            // Last, so that older seeds keep their meaning.
            long_grace: some(rng, 40, 40),
        }
    }
}

/// How the creates of a group fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateFailure {
    /// 500, as if a webhook were broken.
    Internal,
    /// A 403 that may end by itself: the service account is missing.
    NotYet,
    TimeOut,
    /// An admission webhook denies them for now, with its own code: 429 or 503.
    WebhookBusy(u16),
    /// They succeed, but the scheduler never finds a node.
    Unplaced,
}

/// What the server does to one group, or to all requests for a time.
#[derive(Clone, Debug, Default)]
pub struct ServerFaults {
    /// The executors of this group never start. The other groups must reach their targets.
    pub bad_group: Option<(GroupName, CreateFailure)>,
    /// How often the server is silent for up to two minutes.
    pub silences: u64,
    /// The percentage of reservations of ids that are dropped.
    pub dropped_reservations: u64,
}

impl ServerFaults {
    /// Drawn from a separate generator, so that older seeds keep their meaning.
    pub fn draw(rng: &mut Rng) -> Self {
        use CreateFailure::{Internal, NotYet, TimeOut, Unplaced, WebhookBusy};
        let how = [Internal, NotYet, TimeOut, Unplaced][at(rng, 4)];
        let mut bad_group = rng.chance(80).then_some((GroupName::from("g0"), how));
        let silences = if rng.chance(50) { 1 + rng.below(3) } else { 0 };
        let dropped_reservations = [0, 50, 90][at(rng, 3)];
        // Last, so that older seeds keep their meaning.
        if rng.chance(25) {
            let code = [429, 503][at(rng, 2)];
            bad_group = Some((GroupName::from("g0"), WebhookBusy(code)));
        }
        Self { bad_group, silences, dropped_reservations }
    }

    fn calm(&self) -> Self {
        Self { bad_group: self.bad_group.clone(), ..Self::default() }
    }
}

impl Profile {
    pub fn draw(rng: &mut Rng) -> Self {
        let some = |rng: &mut Rng, percent: u64, most: u64| {
            if rng.chance(percent) { 1 + rng.below(most) } else { 0 }
        };
        Self {
            lose_before: some(rng, 40, 15),
            lose_after: some(rng, 50, 20),
            late_commit: some(rng, 30, 10),
            throttle: some(rng, 30, 20),
            unavailable: some(rng, 20, 10),
            unauthorized: some(rng, 10, 5),
            strip: some(rng, 8, 20),
            refuse_template: some(rng, 8, 20),
            foreign: some(rng, 20, 10),
            answer_ms: [5, 50, 500, 4_000][at(rng, 4)],
            list_late: some(rng, 50, 60),
            list_expired: some(rng, 20, 30),
            page_pods: [0, 1, 2, 5][at(rng, 4)],
            page_lost: some(rng, 50, 20),
            watch_gap_ms: [2, 20, 300, 3_000][at(rng, 4)],
            watch_cut: some(rng, 40, 10),
            cut_each_ms: 0,
            ends_at_once: 0,
            watch_again: some(rng, 30, 20),
            coalesce: [0, 50, 100][at(rng, 3)],
            die: some(rng, 60, 60),
            die_ms: [2_000, 30_000, 90_000][at(rng, 3)],
            max_age: 0,
            impostors: 0,
            node_losses: some(rng, 30, 3),
            only_crashes: false,
            crashes: some(rng, 25, 3),
            delete_by_others: some(rng, 40, 30),
            unschedulable: some(rng, 30, 30),
            node_faults: NodeFaults::default(),
            server_faults: ServerFaults::default(),
            stuck: some(rng, 40, 60),
            noise: some(rng, 70, 60),
            kills: some(rng, 40, 3),
            restores: some(rng, 25, 2),
            lease_losses: some(rng, 25, 2),
            retargets: some(rng, 80, 8),
            group_calls: 0,
            early_stop: rng.chance(25),
            keep: rng.chance(5),
            is_high_water_kept: rng.chance(70),
            quota: rng.chance(20).then(|| 1 + at(rng, 8)),
            n_groups: 1 + rng.below(3),
            faulty_ms: 20_000 + rng.below(180_000),
            poll_ms: [5_000, 30_000, 60_000][at(rng, 3)],
            batch_ms: [0, 1, 10][at(rng, 3)],
            has_work: false,
        }
    }

    /// All faults but a stop, more kills, and executors that end soon.
    pub fn draw_with_work(rng: &mut Rng) -> Self {
        let mut profile = Self::draw(rng);
        (profile.stuck, profile.early_stop, profile.keep) = (0, false, false);
        (profile.die_ms, profile.has_work) = ([1_000, 10_000, 30_000][at(rng, 3)], true);
        profile.kills += rng.below(4);
        profile.crashes += rng.below(4);
        profile
    }

    /// No more faults, except those that last for ever.
    pub fn calm(&self) -> Self {
        Self {
            lose_before: 0,
            lose_after: 0,
            late_commit: 0,
            throttle: 0,
            unavailable: 0,
            unauthorized: 0,
            strip: 0,
            refuse_template: 0,
            foreign: 0,
            answer_ms: 20,
            list_late: 0,
            list_expired: 0,
            page_lost: 0,
            watch_gap_ms: 20,
            watch_cut: 0,
            watch_again: 0,
            die: 0,
            ends_at_once: 0,
            max_age: 0,
            impostors: 0,
            only_crashes: false,
            crashes: 0,
            delete_by_others: 0,
            unschedulable: 0,
            node_faults: NodeFaults { n_nodes: self.node_faults.n_nodes, ..NodeFaults::default() },
            server_faults: self.server_faults.calm(),
            noise: 0,
            quota: None,
            ..self.clone()
        }
    }
}

pub fn policy(rng: &mut Rng) -> Policy {
    let (in_flight_max, pending_max) = ([1, 4, 32][at(rng, 3)], [0, 0, 2, 5][at(rng, 4)]);
    // So that older seeds keep their meaning.
    rng.below(3);
    Policy {
        in_flight_max,
        pending_max,
        adopt_hold_ms: [0, 5_000, 60_000][at(rng, 3)],
        failures_app: [Limit::Off, Limit::Max(2), Limit::Auto][at(rng, 3)],
        failures_start: Limit::Off,
        keep_failed: [0, 2, 5][at(rng, 3)],
        log_lines: [0, 0, 3][at(rng, 3)],
        keeps_task_output: true,
        failures_window_ms: [5_000, 60_000][at(rng, 2)],
        ..Policy::default()
    }
}

pub fn at(rng: &mut Rng, n: u64) -> usize {
    usize::try_from(rng.below(n)).unwrap()
}
