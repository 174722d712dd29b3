//! `posse events`: prints the events of a run.

use std::io::{self, Write};

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use log::info;
use serde_json::Value;

use crate::args::EventsArgs;
use crate::args::format::Format;
use crate::control_client::{AwaitedRun, find_run, is_away};
use crate::exit::{Code, Failure};
use crate::manifest::document;
use crate::world::World;
use posse_base::text::{one_line, printable, printable_json};
use posse_wire::control::event::ACTED;
use posse_wire::control::event_text::{fact, facts, string};

/// `posse events`.
///
/// # Errors
/// There is no such run, the run refuses, or the connection ends before the run.
pub fn events(args: &EventsArgs, world: &World<'_>, out: &mut dyn Write) -> Result<Code, Failure> {
    let named = args.named.client()?;
    let found = find_run(&named, world)?;
    let mut printer = Printer::new(args.output.format(), Timestamp::now());
    let mut each = |line: &str| {
        if args.acts && !is_act(line) {
            return Ok(());
        }
        let text = printer.text(line, Timestamp::now());
        out.write_all(text.as_bytes()).and_then(|()| out.flush())
    };
    if args.follow && found.namespace.is_some() {
        follow(AwaitedRun::new(found, &named, None, world), args, &mut each)?;
    } else {
        let after = args.after.unwrap_or(0);
        found.client.events(after, args.run.as_deref(), args.follow, &mut each)?;
    }
    Ok(Code::Clean)
}

/// Follows a run in the cluster from pod to pod, until its Job has ended.
fn follow(
    mut run: AwaitedRun<'_>,
    args: &EventsArgs,
    each: &mut dyn FnMut(&str) -> io::Result<()>,
) -> Result<(), Failure> {
    // Its name tells whether a later answer is still that of this process.
    let observed = run.client.observe()?.identity.run;
    let mut process = Some(args.run.clone().unwrap_or(observed));
    let mut after = args.after.unwrap_or(0);
    let (mut is_first, mut has_stopped) = (true, false);
    loop {
        let asked = process.clone();
        let ended = run.client.events(after, asked.as_deref(), true, &mut |line| {
            let event: Value = serde_json::from_str(line).unwrap_or_default();
            after = event["seq"].as_u64().unwrap_or(after);
            process = event["run"].as_str().map(str::to_owned).or_else(|| process.take());
            has_stopped = false;
            each(line)
        });
        let lost = match ended {
            Ok(()) => None,
            // Another process, which knows nothing of the events of the one before.
            Err(error) if error.status() == Some(409) && !is_first => {
                info!("following the next pod of the application, from its first event");
                (after, process) = (0, None);
                continue;
            }
            Err(error) if is_away(&error) => Some(Failure::from(error)),
            Err(error) => return Err(error.into()),
        };
        is_first = false;
        has_stopped |= lost.is_none();
        let why = lost.as_ref().map_or("the run has stopped", |failure| &failure.message);
        if !run.find_again(why) {
            // What comes after the last event is no loss.
            return lost.filter(|_| !has_stopped).map_or(Ok(()), Err);
        }
        if run.client.observe().is_ok() {
            run.note_answer();
        }
    }
}

fn is_act(line: &str) -> bool {
    serde_json::from_str::<Value>(line).is_ok_and(|event| string(&event["event"]) == ACTED)
}

/// Turns events into lines, as they come: the widths of the table's columns are fixed.
struct Printer {
    format: Option<Format>,
    has_head: bool,
    /// The day of the last line.
    day: Date,
}

impl Printer {
    fn new(format: Option<Format>, now: Timestamp) -> Self {
        let has_head = matches!(format, Some(Format::Json | Format::Yaml | Format::Name));
        Self { format, has_head, day: day_of(now) }
    }

    /// The lines for one event, which is one line of JSON.
    fn text(&mut self, line: &str, now: Timestamp) -> String {
        let event = || serde_json::from_str::<Value>(line).unwrap_or_default();
        match self.format {
            Some(Format::Json) => format!("{}\n", printable_json(line)),
            Some(Format::Yaml) => printable_json(&document(&event())).into_owned(),
            Some(Format::Name) => one_line(&fact(&event()["event"])).into_owned() + "\n",
            None | Some(Format::Wide) => {
                let rows = self.rows(&event(), now);
                rows.iter().map(|row| printable(&one_line(row)).into_owned() + "\n").collect()
            }
        }
    }

    fn rows(&mut self, event: &Value, now: Timestamp) -> Vec<String> {
        let is_wide = self.format == Some(Format::Wide);
        let mut rows = Vec::new();
        if !self.has_head {
            self.has_head = true;
            let more = if is_wide { ["POD", "NODE"] } else { [""; 2] };
            rows.push(row(["TIME UTC", "EVENT", "ID", "GROUP"], more, "WHAT"));
        }
        let time: Result<Timestamp, _> = string(&event["time"]).parse();
        if let Some(day) = time.as_ref().ok().map(|time| day_of(*time)).filter(|d| *d != self.day) {
            self.day = day;
            rows.push(format!("-- {day}"));
        }
        let time = time.map_or_else(
            |_| "?".to_owned(),
            |time| format!("{:.0}", time.to_zoned(TimeZone::UTC).time()),
        );
        let id = event["executor"].as_u64().map_or_else(|| "-".to_owned(), |id| id.to_string());
        let or_dash = |name: &str| match string(&event[name]) {
            "" => "-".to_owned(),
            _ => fact(&event[name]),
        };
        let more = [or_dash("pod"), or_dash("node")];
        let more = if is_wide { more.each_ref().map(String::as_str) } else { [""; 2] };
        let (name, group) = (fact(&event["event"]), or_dash("group"));
        rows.push(row([&time, &name, &id, &group], more, &facts(event, now)));
        rows
    }
}

fn row([time, name, id, group]: [&str; 4], [pod, node]: [&str; 2], what: &str) -> String {
    let more = match pod.is_empty() {
        true => String::new(),
        false => format!("{pod:32}  {node:20}  "),
    };
    format!("{time:8}  {name:18}  {id:>6}  {group:16}  {more}{what}").trim_end().to_owned()
}

fn day_of(time: Timestamp) -> Date {
    time.to_zoned(TimeZone::UTC).date()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOST: &str = r#"{"seq":7,"time":"1970-01-01T00:00:05.100Z","event":"executor_lost","group":"default","executor":3,"uid":"u","pod":"w-a-exec-3","node":"n1","reason":"app_error","exit_code":7,"message":"exit code 7","budget":"app"}"#;
    const NEXT_DAY: &str = r#"{"seq":8,"time":"1970-01-02T00:00:00Z","event":"stopping"}"#;

    fn printed(format: Option<Format>) -> String {
        let now = Timestamp::UNIX_EPOCH;
        let mut printer = Printer::new(format, now);
        [LOST, NEXT_DAY].map(|line| printer.text(line, now)).concat()
    }

    #[test]
    fn events_are_a_table_for_people() {
        let want = "\
TIME UTC  EVENT                   ID  GROUP             WHAT
00:00:05  executor_lost            3  default           app_error on n1 (budget app): exit code 7
-- 1970-01-02
00:00:00  stopping                 -  -
";
        assert_eq!(printed(None), want);
        let wide = printed(Some(Format::Wide));
        assert!(wide.contains("  POD   ") && wide.contains("  w-a-exec-3  "), "{wide}");
    }

    #[test]
    fn events_are_data_for_programs() {
        assert_eq!(printed(Some(Format::Json)), format!("{LOST}\n{NEXT_DAY}\n"));
        assert_eq!(printed(Some(Format::Name)), "executor_lost\nstopping\n");
        let yaml = printed(Some(Format::Yaml));
        assert_eq!(yaml.matches("---\n").count(), 2, "{yaml}");
        assert!(yaml.contains("reason: app_error\n"), "{yaml}");
    }
}
