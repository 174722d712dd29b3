//! What `posse status --watch` shows: the last status, the last losses, and how many executors started
//! and were lost in the last minute. Turns it into the lines of a screen.

use std::collections::VecDeque;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::Value;

use crate::status::{age_of, groups_table, head, outage};
use crate::table::table;
use posse_base::text::{one_line, sanitize};
use posse_core::policy::loss::MESSAGE_BYTES_MAX;
use posse_wire::control::event_text::{facts, string};
use posse_wire::control::status_json::StatusJson;

/// The losses that are kept for the screen.
const LOSSES_MAX: usize = 100;

/// The time over which starts and losses are counted, in seconds.
const WINDOW_S: i64 = 60;

/// What the screen shows.
#[derive(Default)]
pub(super) struct View {
    pub status: Option<Box<StatusJson>>,
    /// Why there is no new status.
    pub error: Option<String>,
    /// The run that the events are of.
    run: String,
    /// The events of the last losses, the newest first.
    losses: VecDeque<Value>,
    /// Executors that started and were lost in each second of the last minute, the newest second last.
    seconds: VecDeque<(i64, [u32; 2])>,
}

impl View {
    /// Takes one event of the run.
    pub(super) fn on_event(&mut self, event: Value, now: Timestamp) {
        if string(&event["run"]) != self.run {
            *self = Self { status: self.status.take(), ..Self::default() };
            self.run = string(&event["run"]).to_owned();
        }
        let kind = match string(&event["event"]) {
            "executor_running" => 0,
            "executor_lost" => 1,
            _ => return,
        };
        if let Ok(time) = string(&event["time"]).parse::<Timestamp>() {
            self.count(kind, time.as_second(), now.as_second());
        }
        if kind == 1 {
            self.losses.push_front(event);
            self.losses.truncate(LOSSES_MAX);
        }
    }

    fn count(&mut self, kind: usize, second: i64, now_s: i64) {
        while self.seconds.front().is_some_and(|(old, _)| *old <= now_s - WINDOW_S) {
            self.seconds.pop_front();
        }
        if second <= now_s - WINDOW_S {
            return;
        }
        match self.seconds.back_mut() {
            // Events arrive in order; a clock that was set back stays in the newest second.
            Some((newest, counts)) if *newest >= second => counts[kind] += 1,
            Some(_) | None => {
                let mut counts = [0; 2];
                counts[kind] = 1;
                self.seconds.push_back((second, counts));
            }
        }
    }

    /// How many executors started and were lost in the last minute.
    fn last_minute(&self, now: Timestamp) -> [u32; 2] {
        let since = now.as_second() - WINDOW_S;
        let recent = self.seconds.iter().filter(|(second, _)| *second > since);
        recent.fold([0; 2], |[a, b], (_, [started, lost])| [a + started, b + lost])
    }

    /// The lines of a screen of this size.
    pub(super) fn lines(&self, now: Timestamp, (width, height): (usize, usize)) -> Vec<String> {
        let time = now.to_zoned(TimeZone::UTC).time();
        let hint = format!("{time:.0} UTC  q or Ctrl-C leaves");
        let room = height.saturating_sub(1);
        let mut lines = match &self.status {
            None => vec![self.error.clone().unwrap_or_else(|| "asking the run ...".to_owned())],
            Some(status) => self.body(status, now, room),
        };
        lines.truncate(room);
        lines.resize(room, String::new());
        lines.push(hint);
        lines.iter().map(|line| fit(line, width)).collect()
    }

    fn body(&self, status: &StatusJson, now: Timestamp, room: usize) -> Vec<String> {
        let mut lines: Vec<String> = head(status, now).lines().map(str::to_owned).collect();
        let [started, lost] = self.last_minute(now);
        lines.push(format!("last minute: {started} started, {lost} lost"));
        let problems = self.error.iter().map(|why| format!("not up to date: {why}"));
        lines.extend(problems.chain(outage(status, now)));
        lines.push(String::new());
        // Half of the rest for the groups, if there are losses to show.
        let free = room.saturating_sub(lines.len());
        let share = if self.losses.is_empty() { free } else { free.div_ceil(2) };
        lines.extend(groups(status, now, share));
        let free = room.saturating_sub(lines.len() + 2);
        if !self.losses.is_empty() && free > 0 {
            lines.push(String::new());
            lines.extend(self.losses(now, free));
        }
        lines
    }

    /// The last losses as a table of at most `n_max` rows and its heads.
    fn losses(&self, now: Timestamp, n_max: usize) -> Vec<String> {
        let rows = self.losses.iter().take(n_max).map(|event| {
            let id = event["executor"].as_u64().map_or_else(|| "-".to_owned(), |id| id.to_string());
            let (time, group) = (string(&event["time"]), string(&event["group"]));
            [age_of(time, now), id, group.to_owned(), facts(event, now)]
        });
        let heads = ["LOST", "ID", "GROUP", "WHY"].map(str::to_owned);
        table(&heads, rows.collect()).lines().map(str::to_owned).collect()
    }
}

/// The groups, and the server's words about those that wait, in at most `n_max` lines.
fn groups(status: &StatusJson, now: Timestamp, n_max: usize) -> Vec<String> {
    let all = groups_table(&status.groups, now, false);
    let mut lines: Vec<String> = all.lines().map(str::to_owned).collect();
    if lines.len() > n_max {
        // The heads are no group.
        let n_shown = n_max.saturating_sub(1).max(1);
        let n_hidden = lines.len() - n_shown;
        let groups = if n_hidden == 1 { "group" } else { "groups" };
        lines.truncate(n_shown);
        lines.push(format!("... and {n_hidden} more {groups}"));
        lines.truncate(n_max);
        return lines;
    }
    let says = status.groups.iter().filter_map(|group| {
        let message = sanitize(group.message.as_ref()?, MESSAGE_BYTES_MAX);
        Some(one_line(&format!("{}: {message}", group.group)).into_owned())
    });
    lines.extend(says.take(n_max - lines.len()));
    lines
}

/// The line, safe to show and cut at this width.
fn fit(line: &str, width: usize) -> String {
    let line = one_line(line);
    match line.chars().count() > width {
        true => line.chars().take(width.saturating_sub(1)).chain(['…']).collect(),
        false => line.into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use posse_testing::sample_status_json;
    use posse_wire::control::status_json::RunNames;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn event(second: i64, name: &str) -> Value {
        json!({"run": "r", "time": at(second).to_string(), "event": name, "executor": 3,
            "group": "default", "reason": "app_error", "message": "exit code 7", "budget": null})
    }

    fn view() -> View {
        let identity = RunNames { app: "w".into(), ..RunNames::default() };
        let mut view =
            View { status: Some(Box::new(sample_status_json(&identity))), ..View::default() };
        for (second, name) in
            [(1, "executor_running"), (30, "executor_running"), (40, "executor_lost")]
        {
            view.on_event(event(second, name), at(45));
        }
        view
    }

    #[test]
    fn starts_and_losses_of_the_last_minute_are_counted() {
        let mut view = view();
        assert_eq!(view.last_minute(at(45)), [2, 1]);
        assert_eq!(view.last_minute(at(61)), [1, 1]);
        assert_eq!(view.last_minute(at(100)), [0, 0]);
        view.on_event(event(20, "executor_running"), at(100));
        assert_eq!(view.last_minute(at(100)), [0, 0], "too old");
        for second in 100..300 {
            view.on_event(event(second, "executor_running"), at(second));
        }
        assert!(view.seconds.len() <= 60);
        assert_eq!(view.last_minute(at(299)), [60, 0]);
        let other = json!({"run": "other", "event": "started"});
        view.on_event(other, at(300));
        assert_eq!(view.last_minute(at(300)), [0, 0], "another run");
        assert!(view.losses.is_empty());
    }

    #[test]
    fn the_screen_shows_groups_reasons_losses_and_throughput() {
        let lines = view().lines(at(45), (100, 24));
        assert_eq!(lines.len(), 24);
        let text = lines.join("\n");
        for part in [
            "driver running for 44s, pid 42\n",
            "last minute: 2 started, 1 lost\n",
            "requests to the API server have failed for 41s: connection refused\n",
            "default  10      7        3         1       5     57/100  quota, 44s so far\n",
            "\ndefault: exceeded quota\n",
            "\nLOST  ID  GROUP    WHY\n5s    3   default  app_error: exit code 7\n",
        ] {
            assert!(text.contains(part), "{part:?} is not in\n{text}");
        }
        assert!(text.ends_with("00:00:45 UTC  q or Ctrl-C leaves"), "{text}");
    }

    #[test]
    fn an_error_is_one_line_that_a_terminal_does_not_obey() {
        let error = Some("gave \x1b]0;title\x07\x1b[31mred\nline".to_owned());
        for mut view in [view(), View::default()] {
            view.error.clone_from(&error);
            let lines = view.lines(at(45), (80, 24));
            let line = lines.iter().find(|line| line.contains("title")).unwrap();
            assert!(line.ends_with("gave \\u{1b}]0;title\\u{7}\\u{1b}[31mred line"), "{line}");
        }
    }

    #[test]
    fn groups_that_do_not_fit_are_counted() {
        let status = view().status.unwrap();
        for (n_max, want) in [(1, None), (2, Some("... and 2 more groups")), (3, None)] {
            let lines = groups(&status, at(45), n_max);
            let last = lines.last().filter(|line| line.starts_with("...")).map(String::as_str);
            assert_eq!((lines.len(), last), (n_max, want), "{lines:?}");
        }
    }

    #[test]
    fn every_size_is_filled_and_never_exceeded() {
        let mut view = view();
        view.error = Some("it does not answer".to_owned());
        for n in 0..150 {
            view.on_event(event(40 + n % 3, "executor_lost"), at(45));
        }
        let empty = View::default();
        for view in [&view, &empty] {
            for (width, height) in [(1, 1), (10, 2), (20, 5), (40, 10), (80, 24), (300, 100)] {
                let lines = view.lines(at(45), (width, height));
                assert_eq!(lines.len(), height);
                assert!(lines.iter().all(|line| line.chars().count() <= width), "{lines:?}");
            }
        }
    }
}
