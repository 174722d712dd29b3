//! `posse man`: writes a manual page for each command, from the same definitions as `--help`.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use clap::CommandFactory as _;
use clap_mangen::Man;

use crate::args::CommandLine;
use crate::args::tools::ManArgs;
use crate::exit::{Code, Failure};
use crate::terminal::print;
use crate::world::World;

/// What the foot of each page says.
const SOURCE: &str = concat!("posse ", env!("CARGO_PKG_VERSION"));

/// `posse man`.
///
/// # Errors
/// The folder or a page cannot be written.
pub fn man(args: &ManArgs, world: &World<'_>, out: &mut dyn Write) -> Result<Code, Failure> {
    let folder = world.dir.join(&args.folder);
    let failed = |error: io::Error| {
        Failure::usage(format!("{}: cannot be written: {error}", args.folder.display()))
    };
    fs::create_dir_all(&folder).map_err(failed)?;
    let mut root = CommandLine::command().disable_help_subcommand(true);
    root.build();
    let n_pages = write_pages(root, &folder).map_err(failed)?;
    let text = format!("{n_pages} pages are in {}\n", args.folder.display());
    print(out, &text).map(|()| Code::Clean)
}

/// Writes the pages of a command and of those below it: `posse.1`, `posse-run.1`, `posse-stage-put.1`. Returns
/// their number.
fn write_pages(command: clap::Command, folder: &Path) -> io::Result<usize> {
    let mut n_pages = 1;
    for inner in command.get_subcommands().filter(|one| !one.is_hide_set()) {
        n_pages += write_pages(inner.clone(), folder)?;
    }
    Man::new(command).source(SOURCE).manual("posse").generate_to(folder)?;
    Ok(n_pages)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use crate::testing::Folder;

    #[test]
    fn every_visible_command_has_a_page() {
        let folder = Folder::new(&[]);
        let (code, out, err) = folder.posse("man share/man1");
        assert_eq!((code, err.as_str()), (0, ""));
        let pages = folder.path().join("share/man1");
        let n_pages = fs::read_dir(&pages).unwrap().count();
        assert_eq!(out, format!("{n_pages} pages are in share/man1\n"));
        for (name, is_there) in [
            ("posse", true),
            ("posse-run", true),
            ("posse-status", true),
            ("posse-stage-put", true),
            ("posse-man", true),
            ("posse-bridge", false),
            ("posse-help", false),
        ] {
            assert_eq!(pages.join(format!("{name}.1")).exists(), is_there, "{name}");
        }
        let status = fs::read_to_string(pages.join("posse-status.1")).unwrap();
        for part in [
            ".TH posse-status 1  \"posse ",
            "posse\\-status \\- Show the groups",
            "\\fB\\-h\\fR, \\fB\\-\\-help\\fR\n",
            "\nExamples:\n",
            "\\fB\\-o\\fR, \\fB\\-\\-output\\fR \\fI<FORMAT>\\fR",
        ] {
            assert!(status.contains(part), "{part:?} is not in\n{status}");
        }
    }
}
