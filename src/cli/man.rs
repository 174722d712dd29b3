//! `posse man`: writes a manual page for each command, from the same definitions as `--help`.

use std::fs;
use std::io::Write;

use clap::{Arg, CommandFactory as _};

use crate::cli::args::{CommandLine, ManArgs};
use crate::cli::exit::{Code, Failure};
use crate::cli::terminal::print;
use crate::cli::world::World;

/// `posse man`.
///
/// # Errors
/// The folder or a page cannot be written.
pub fn man(args: &ManArgs, world: &World<'_>, out: &mut dyn Write) -> Result<Code, Failure> {
    let folder = world.dir.join(&args.folder);
    let failed = |error: std::io::Error| {
        Failure::usage(format!("{}: cannot be written: {error}", args.folder.display()))
    };
    fs::create_dir_all(&folder).map_err(failed)?;
    let pages = pages();
    for (name, text) in &pages {
        fs::write(folder.join(format!("{name}.1")), text).map_err(failed)?;
    }
    let text = format!("{} pages are in {}\n", pages.len(), args.folder.display());
    print(out, &text).map(|()| Code::Clean)
}

/// The pages by their names: `posse`, `posse-run`, `posse-stage-put`.
fn pages() -> Vec<(String, String)> {
    let mut root = CommandLine::command();
    root.build();
    let mut pages = Vec::new();
    let mut waiting = vec![("posse".to_owned(), root)];
    while let Some((name, command)) = waiting.pop() {
        let visible = command.get_subcommands().filter(|one| !one.is_hide_set());
        let visible = visible.filter(|one| one.get_name() != "help");
        waiting.extend(visible.map(|one| (format!("{name}-{}", one.get_name()), one.clone())));
        pages.push((name.clone(), page(&name, command)));
    }
    pages.sort();
    pages
}

fn page(name: &str, mut command: clap::Command) -> String {
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let usage = command.render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ");
    let upper = name.to_uppercase();
    let mut text = format!(
        ".TH {upper} 1 \"\" \"posse {}\" \"posse\"\n.SH NAME\n{} \\- {}\n.SH SYNOPSIS\n{}\n",
        env!("CARGO_PKG_VERSION"),
        roff(name),
        roff(&about),
        roff(usage),
    );
    let commands: Vec<String> = command
        .get_subcommands()
        .filter(|one| !one.is_hide_set())
        .map(|one| {
            let about = one.get_about().map(ToString::to_string).unwrap_or_default();
            format!(".TP\n\\fB{}\\fR\n{}\n", roff(one.get_name()), roff(&about))
        })
        .collect();
    if !commands.is_empty() {
        text.push_str(&format!(".SH COMMANDS\n{}", commands.concat()));
    }
    let mut headings: Vec<&str> = Vec::new();
    let visible = || command.get_arguments().filter(|arg| !arg.is_hide_set());
    for arg in visible() {
        if !headings.contains(&heading(arg)) {
            headings.push(heading(arg));
        }
    }
    for title in headings {
        text.push_str(&format!(".SH {}\n", title.to_uppercase()));
        text.extend(visible().filter(|arg| heading(arg) == title).map(argument));
    }
    if let Some(more) = command.get_after_help() {
        text.push_str(&sections(&more.to_string()));
    }
    text.push_str(".SH SEE ALSO\nposse(1), kubectl(1)\n");
    text
}

fn heading(arg: &Arg) -> &str {
    match arg.get_help_heading() {
        Some(heading) => heading,
        None if arg.is_positional() => "Arguments",
        None => "Options",
    }
}

fn argument(arg: &Arg) -> String {
    let mut names: Vec<String> = Vec::new();
    names.extend(arg.get_short().map(|short| format!("\\fB\\-{short}\\fR")));
    names.extend(arg.get_long().map(|long| format!("\\fB{}\\fR", roff(&format!("--{long}")))));
    let values = arg.get_value_names().unwrap_or_default();
    let value = match arg.get_action().takes_values() {
        true => values.iter().map(|value| format!(" \\fI{}\\fR", roff(value))).collect(),
        false => String::new(),
    };
    let mut help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let defaults: Vec<_> =
        arg.get_default_values().iter().map(|one| one.to_string_lossy()).collect();
    if !defaults.is_empty() && arg.get_action().takes_values() {
        help.push_str(&format!(" [default: {}]", defaults.join(" ")));
    }
    let name = names.join(", ") + &value;
    format!(".TP\n{}\n{}\n", name.trim_start(), roff(&help))
}

/// The text after the flags: each paragraph that begins with a title becomes a section.
fn sections(text: &str) -> String {
    let mut page = String::new();
    for paragraph in text.split("\n\n") {
        let (title, rest) = paragraph.split_once('\n').unwrap_or((paragraph, ""));
        match title.strip_suffix(':') {
            Some(title) => page.push_str(&format!(".SH {}\n", title.to_uppercase())),
            None => page.push_str(&format!(".PP\n{}\n", roff(title))),
        }
        if !rest.is_empty() {
            page.push_str(&format!(".nf\n{}\n.fi\n", roff(rest)));
        }
    }
    page
}

/// The text with the characters escaped that roff obeys.
fn roff(text: &str) -> String {
    let escaped = text.replace('\\', "\\e").replace('-', "\\-");
    let line = |line: &str| match line.starts_with(['.', '\'']) {
        true => format!("\\&{line}"),
        false => line.to_owned(),
    };
    escaped.lines().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_visible_command_has_a_page() {
        let pages = pages();
        let names: Vec<&str> = pages.iter().map(|(name, _)| name.as_str()).collect();
        for name in ["posse", "posse-run", "posse-status", "posse-stage-put", "posse-man"] {
            assert!(names.contains(&name), "{names:?}");
        }
        assert!(!names.contains(&"posse-complete") && !names.contains(&"posse-help"), "{names:?}");
        let (_, status) = pages.iter().find(|(name, _)| name == "posse-status").unwrap();
        for part in [
            ".TH POSSE-STATUS 1 ",
            "posse\\-status \\- Show the groups",
            "\\fB\\-w\\fR, \\fB\\-\\-watch\\fR\n",
            ".SH EXAMPLES\n.nf\n",
            "\\fB\\-o\\fR, \\fB\\-\\-output\\fR \\fIFORMAT\\fR\n",
        ] {
            assert!(status.contains(part), "{part:?} is not in\n{status}");
        }
        assert!(!status.contains("observe"));
    }

    #[test]
    fn text_cannot_become_a_request_of_roff() {
        assert_eq!(roff(".so x\n'a\\b-c"), "\\&.so x\n\\&'a\\eb\\-c");
    }
}
