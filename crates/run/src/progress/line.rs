//! The words on the progress line, and what is left out on a narrow terminal.

use std::collections::BTreeMap;

use posse_core::model::status::GroupStatus;

/// The values on the progress line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    pub running: u32,
    pub target: u32,
    /// Requested or pending.
    pub pending: u32,
    /// Since the start.
    pub lost: u64,
    /// The executors whose work is done.
    pub completed: u32,
    /// How many are to end so, of the groups that have such a number.
    pub completions: u32,
    /// What groups wait for.
    pub waiting: Option<GroupWaits>,
    /// For how many seconds the API server has not answered, if it does not.
    pub outage_s: Option<u64>,
    /// What a stop waits for.
    pub stopping: Option<Stopping>,
}

/// What groups wait for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupWaits {
    /// The reasons: `quota`, with the group's name or the number of groups if there are several.
    pub reasons: String,
    /// How many groups wait.
    pub groups: usize,
}

/// What a stop waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopping {
    /// The driver, before it is killed.
    Driver,
    /// The executors.
    Executors { remaining: u32 },
}

impl Facts {
    /// The sums over all groups.
    pub fn new(groups: &[GroupStatus], lost: u64, outage_s: Option<u64>) -> Self {
        let sum = |count: fn(&GroupStatus) -> u32| {
            groups.iter().fold(0_u32, |sum, group| sum.saturating_add(count(group)))
        };
        Self {
            running: sum(|group| group.running),
            target: sum(|group| group.target),
            pending: sum(|group| group.requested.saturating_add(group.pending)),
            lost,
            completed: sum(|group| group.completed),
            completions: sum(|group| group.completions.unwrap_or(0)),
            waiting: waiting(groups),
            outage_s,
            stopping: None,
        }
    }
}

/// `quota`, `quota (big)`, `backoff (2 groups), quota (3 groups)`.
fn waiting(groups: &[GroupStatus]) -> Option<GroupWaits> {
    let mut by_reason: BTreeMap<&str, Vec<&GroupStatus>> = BTreeMap::new();
    for group in groups {
        if let Some(waiting) = group.waiting {
            by_reason.entry(waiting.describe().0).or_default().push(group);
        }
    }
    let n_waiting = by_reason.values().map(Vec::len).sum();
    let text = |(what, waiting): (&str, Vec<&GroupStatus>)| match waiting.as_slice() {
        [_] if groups.len() == 1 => what.to_owned(),
        [one] => format!("{what} ({})", one.group),
        several => format!("{what} ({} groups)", several.len()),
    };
    let reasons: Vec<String> = by_reason.into_iter().map(text).collect();
    let reasons = reasons.join(", ");
    (n_waiting > 0).then_some(GroupWaits { reasons, groups: n_waiting })
}

/// How urgent a field is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Urgency {
    Normal,
    Warning,
    Problem,
}

/// A field, in one or more forms, each with its rank: the form of the lowest rank on the line is the
/// first to be left out or to be replaced by its next form.
struct Field {
    forms: Vec<(u8, String)>,
    urgency: Urgency,
}

impl Field {
    fn new(rank: u8, text: String) -> Self {
        Self { forms: vec![(rank, text)], urgency: Urgency::Normal }
    }

    fn or(mut self, rank: u8, shorter: String) -> Self {
        self.forms.push((rank, shorter));
        self
    }

    fn urgent(self, urgency: Urgency) -> Self {
        Self { urgency, ..self }
    }
}

/// The line. If the terminal is too narrow, whole fields are left out, the least important first: a cut
/// number would be a wrong one. `elapsed_ms`: since the start of the run, if that is shown.
pub(super) fn format_line(
    app: &str,
    facts: &Facts,
    elapsed_ms: Option<u64>,
    width: usize,
    has_colors: bool,
) -> String {
    let mut fields = fields(app, facts, elapsed_ms);
    loop {
        let texts = fields.iter().filter_map(|field| field.forms.first());
        let length = texts.map(|(_, text)| text.chars().count() + GAP.len()).sum::<usize>();
        let rank = |i: &usize| fields[*i].forms.first().map_or(0, |(rank, _)| *rank);
        match (0..fields.len()).min_by_key(rank) {
            Some(least) if length > width + GAP.len() => {
                fields[least].forms.remove(0);
                fields.retain(|field| !field.forms.is_empty());
            }
            Some(_) | None => return join(&fields, has_colors),
        }
    }
}

/// The fields in the order on the line.
fn fields(app: &str, facts: &Facts, elapsed_ms: Option<u64>) -> Vec<Field> {
    let mut fields = vec![Field::new(4, app.to_owned())];
    let plural = |n: u32| if n == 1 { "" } else { "s" };
    match facts.stopping {
        None if facts.running > facts.target => {
            let state = format!("running {}, target {}", facts.running, facts.target);
            fields.push(Field::new(10, state));
        }
        None => {
            fields.push(Field::new(10, format!("running {}/{}", facts.running, facts.target)));
        }
        Some(stopping) => {
            let field = match stopping {
                Stopping::Driver => Field::new(6, "stopping: waits for the driver".to_owned())
                    .or(10, "stopping: driver".to_owned()),
                Stopping::Executors { remaining: n } => {
                    let what = format!("{n} executor{}", plural(n));
                    Field::new(6, format!("stopping: waits for {what}"))
                        .or(7, format!("stopping: {what}"))
                        .or(10, format!("stopping: {n} left"))
                }
            };
            fields.push(field.urgent(Urgency::Warning));
        }
    }
    match (facts.completed, facts.completions) {
        (0, 0) => {}
        (n, 0) => fields.push(Field::new(5, format!("completed {n}"))),
        (n, all) => fields.push(Field::new(5, format!("completed {n}/{all}"))),
    }
    if facts.pending > 0 {
        fields.push(Field::new(2, format!("pending {}", facts.pending)));
    }
    if facts.lost > 0 {
        fields.push(Field::new(3, format!("lost {}", facts.lost)).urgent(Urgency::Warning));
    }
    if let Some(seconds) = facts.outage_s {
        let text = format!("server unreachable {seconds}s");
        fields.push(Field::new(9, text).urgent(Urgency::Problem));
    } else if let (None, Some(GroupWaits { reasons, groups })) = (facts.stopping, &facts.waiting) {
        let field = Field::new(6, format!("waiting: {reasons}"));
        let n = u32::try_from(*groups).unwrap_or(u32::MAX);
        let shorter = format!("{n} group{} waiting", plural(n));
        fields.push(field.or(7, shorter).urgent(Urgency::Warning));
    }
    if facts.stopping.is_some() {
        fields.push(Field::new(5, format!("Ctrl-C {FORCE_HINT}")).or(8, FORCE_HINT.to_owned()));
    }
    if let Some(elapsed_ms) = elapsed_ms {
        fields.push(Field::new(1, format_elapsed(elapsed_ms / 1000)));
    }
    fields
}

fn join(fields: &[Field], has_colors: bool) -> String {
    let text = |field: &Field| {
        let text = field.forms.first().map_or("", |(_, text)| text);
        match field.urgency {
            Urgency::Warning if has_colors => format!("\x1b[33m{text}\x1b[0m"),
            Urgency::Problem if has_colors => format!("\x1b[31m{text}\x1b[0m"),
            Urgency::Normal | Urgency::Warning | Urgency::Problem => text.to_owned(),
        }
    };
    fields.iter().map(text).collect::<Vec<_>>().join(GAP)
}

/// `00:12`, `1:02:03`.
fn format_elapsed(seconds: u64) -> String {
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match hours {
        0 => format!("{minutes:02}:{seconds:02}"),
        _ => format!("{hours}:{minutes:02}:{seconds:02}"),
    }
}

/// Between two fields.
const GAP: &str = "  ";

/// What a second signal does during a stop.
const FORCE_HINT: &str = "again to force";

#[cfg(test)]
mod tests {
    use super::*;
    use posse_core::model::waiting::{RunWait, ServerWait, Waiting};
    use posse_testing::sample_status;

    #[test]
    fn groups_are_summed_up() {
        let status = sample_status();
        let both = Facts::new(&status.groups, 4, None);
        let waits = |reasons: &str, groups| GroupWaits { reasons: reasons.to_owned(), groups };
        let want = Facts {
            running: 14,
            target: 20,
            pending: 6,
            lost: 4,
            completed: 57,
            completions: 100,
            waiting: Some(waits("quota (default)", 1)),
            outage_s: None,
            stopping: None,
        };
        assert_eq!(both, want);
        let one = Facts::new(&status.groups[..1], 0, None);
        assert_eq!(one.waiting, Some(waits("quota", 1)));
        assert_eq!(Facts::new(&status.groups[1..], 0, None).waiting, None);
    }

    #[test]
    fn groups_that_wait_are_counted() {
        let status = sample_status();
        let wait = |waiting| GroupStatus { waiting, ..status.groups[0].clone() };
        let (quota, first) = (
            wait(Some(Waiting::Server(ServerWait::Quota))),
            wait(Some(Waiting::Run(RunWait::FirstList))),
        );
        let several = [quota.clone(), first, quota, wait(None)];
        let reasons = "quota (2 groups), the first list (default)".to_owned();
        assert_eq!(waiting(&several), Some(GroupWaits { reasons, groups: 3 }));
    }

    #[test]
    fn a_narrow_terminal_leaves_out_whole_fields() {
        let idle = Facts { running: 10, target: 10, ..Facts::default() };
        let waits = GroupWaits { reasons: "backoff (2 groups), quota (big)".to_owned(), groups: 3 };
        let busy = Facts { running: 8, pending: 2, lost: 13, waiting: Some(waits), ..idle.clone() };
        let silent = Facts { outage_s: Some(42), ..busy.clone() };
        let stop = |stopping| Facts { stopping: Some(stopping), ..busy.clone() };
        let stopping = stop(Stopping::Executors { remaining: 12 });
        let ending = stop(Stopping::Driver);
        let silent_stop = Facts { outage_s: Some(7), ..stopping.clone() };
        let work = Facts { completed: 57, completions: 100, ..idle.clone() };
        let surplus = Facts { running: 6, target: 1, ..idle.clone() };
        for (facts, width, want) in [
            (&idle, 80, "words  running 10/10  00:12"),
            (&work, 80, "words  running 10/10  completed 57/100  00:12"),
            (&surplus, 80, "words  running 6, target 1  00:12"),
            (
                &busy,
                300,
                "words  running 8/10  pending 2  lost 13  \
                 waiting: backoff (2 groups), quota (big)  00:12",
            ),
            (
                &busy,
                82,
                "words  running 8/10  pending 2  lost 13  waiting: backoff (2 groups), quota (big)",
            ),
            (&busy, 72, "words  running 8/10  lost 13  waiting: backoff (2 groups), quota (big)"),
            (&busy, 55, "running 8/10  waiting: backoff (2 groups), quota (big)"),
            (&busy, 35, "running 8/10  3 groups waiting"),
            (&busy, 12, "running 8/10"),
            (&busy, 11, ""),
            (&silent, 75, "words  running 8/10  pending 2  lost 13  server unreachable 42s  00:12"),
            (&silent, 37, "running 8/10  server unreachable 42s"),
            (
                &stopping,
                95,
                "words  stopping: waits for 12 executors  pending 2  lost 13  \
                 Ctrl-C again to force  00:12",
            ),
            (&stopping, 54, "stopping: waits for 12 executors  again to force"),
            (&stopping, 38, "stopping: 12 executors  again to force"),
            (&stopping, 35, "stopping: 12 left  again to force"),
            (&ending, 75, "words  stopping: waits for the driver  lost 13  Ctrl-C again to force"),
            (&ending, 35, "stopping: driver  again to force"),
            (&ending, 31, "stopping: driver"),
            (&silent_stop, 50, "stopping: 12 left  server unreachable 7s"),
        ] {
            assert_eq!(format_line("words", facts, Some(12_999), width, false), want, "{width}");
        }
    }

    #[test]
    fn the_elapsed_time_has_hours_if_needed() {
        for (seconds, want) in
            [(0, "00:00"), (3_599, "59:59"), (3_723, "1:02:03"), (360_000, "100:00:00")]
        {
            assert_eq!(format_elapsed(seconds), want);
        }
    }

    #[test]
    fn colours_take_no_room() {
        let facts = Facts { lost: 13, outage_s: Some(2), ..Facts::default() };
        let plain = format_line("w", &facts, None, 300, false);
        let colored = format_line("w", &facts, None, plain.len(), true);
        let want = "w  running 0/0  \x1b[33mlost 13\x1b[0m  \x1b[31mserver unreachable 2s\x1b[0m";
        assert_eq!(colored, want);
    }
}
