//! `posse init --for`: writes a small project that runs.

use std::fs;
use std::io::Write;
use std::path::Path;

use crate::args::tools::ProjectKind;
use crate::exit::{Code, Failure};
use crate::terminal::print;
use crate::world::World;

/// A file's name and content.
type ProjectFile = (&'static str, &'static str);

/// The files of a folder of `examples/projects`, and those that projects share.
macro_rules! project {
    ($folder:literal: $($name:literal),+ $(; $($shared:literal),+)?) => {
        &[$(($name, include_str!(concat!("../../../examples/projects/", $folder, "/", $name)))),+
          $($(, ($shared, include_str!(concat!("../../../examples/projects/", $shared))))+)?]
    };
}

/// The files of a project.
fn project(kind: ProjectKind) -> &'static [ProjectFile] {
    match kind {
        ProjectKind::Python => {
            project!("python": "posse.yaml", "driver.py", "worker.py", "README.md"; "losses.py", "signed.py")
        }
        ProjectKind::Shell => {
            project!("shell": "posse.yaml", "driver.sh", "worker.sh", "README.md")
        }
        ProjectKind::Dask => project!("dask": "posse.yaml", "driver.py", "README.md"),
        ProjectKind::Spark => project!("spark": "posse.yaml", "driver.sh", "app.py", "README.md"),
        ProjectKind::Job => {
            project!("job": "posse.yaml", "driver.py", "worker.py", "tasks.txt", "README.md"; "losses.py", "signed.py")
        }
    }
}

/// What the machine must have for `posse run --dev`, beside Python and sh.
fn needs(kind: ProjectKind) -> Option<&'static str> {
    match kind {
        ProjectKind::Spark => Some("Java 17 and `pip install pyspark`"),
        ProjectKind::Dask => Some("openssl and `pip install dask distributed`"),
        ProjectKind::Python | ProjectKind::Shell | ProjectKind::Job => None,
    }
}

/// Writes a project into a folder.
///
/// # Errors
/// One of the files exists already, or cannot be written.
pub(super) fn init(
    kind: ProjectKind,
    folder: &Path,
    world: &World<'_>,
    out: &mut dyn Write,
) -> Result<Code, Failure> {
    let project = project(kind);
    let cannot = |path: &Path, error: std::io::Error| {
        Failure::usage(format!("{}: cannot be written: {error}", path.display()))
    };
    // Nothing is written if one of the names is taken.
    if let Some((name, _)) = project
        .iter()
        .find(|(name, _)| world.dir.join(folder).join(name).symlink_metadata().is_ok())
    {
        let taken = folder.join(name);
        return Err(Failure::usage(format!(
            "{} exists already; name another folder for the project",
            taken.display()
        )));
    }
    fs::create_dir_all(world.dir.join(folder)).map_err(|error| cannot(folder, error))?;
    for (n, (name, text)) in project.iter().enumerate() {
        let path = folder.join(name);
        if let Err(error) = super::write_new(&world.dir.join(&path), text) {
            // Half a project would keep the next one away.
            for (name, _) in &project[..n] {
                drop(fs::remove_file(world.dir.join(folder).join(name)));
            }
            return Err(cannot(&path, error));
        }
    }
    let names: Vec<&str> = project.iter().map(|(name, _)| *name).collect();
    let cd = match folder == Path::new(".") {
        true => String::new(),
        false => format!("cd {} && ", folder.display()),
    };
    let needs = needs(kind).map_or_else(String::new, |what| format!("; it needs {what}"));
    let line = format!("created {}{needs}; next: {cd}posse run --dev\n", names.join(", "));
    print(out, &line).map(|()| Code::Clean)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use clap::ValueEnum as _;

    use super::*;
    use crate::testing::Folder;
    use posse_wire::config::Config;

    #[test]
    fn each_project_is_complete_and_nothing_is_overwritten() {
        for kind in ProjectKind::value_variants() {
            let folder = Folder::new(&[]);
            let name = kind.to_possible_value().unwrap().get_name().to_owned();
            let (code, out, err) = folder.posse(&format!("init --for {name} a/b"));
            assert_eq!((code, err.as_str()), (0, ""), "{name}");
            assert!(out.ends_with("; next: cd a/b && posse run --dev\n"), "{out}");
            for (file, text) in project(*kind) {
                let path = folder.path().join("a/b").join(file);
                assert_eq!(fs::read_to_string(&path).unwrap(), *text);
                assert!(out.contains(file), "{out}");
                // An image's user has to read a copy.
                let plain = folder.path().join("plain");
                fs::write(&plain, "").unwrap();
                let mode = |path| fs::metadata(path).unwrap().permissions().mode();
                assert_eq!(mode(&path), mode(&plain));
                // Each file is in the way of another project.
                let other = folder.path().join("c").join(file);
                fs::create_dir_all(other.parent().unwrap()).unwrap();
                fs::write(&other, "mine").unwrap();
                let (code, _, err) = folder.posse(&format!("init --for {name} c"));
                assert_eq!(code, 2, "{name}");
                assert!(err.contains(&format!("c/{file} exists already")), "{err}");
                assert_eq!(fs::read_dir(folder.path().join("c")).unwrap().count(), 1);
                fs::remove_file(other).unwrap();
            }
            let (_, yaml) = project(*kind)[0];
            let config = Config::parse("posse.yaml", yaml).unwrap();
            assert_eq!(config.app, Some(format!("my-{name}")));
            let (code, out, err) = folder.posse("render -f a/b/posse.yaml");
            assert_eq!((code, err.as_str()), (0, ""), "{out}");
            let files = folder.path().join("a/b");
            let readme = fs::read_to_string(files.join("README.md")).unwrap();
            let needed = needs(*kind).unwrap_or_default();
            assert!(readme.contains(needed.rsplit_once("and ").map_or(needed, |(_, last)| last)));
            assert!(readme.lines().count() <= 7 && readme.contains("posse run --dev"), "{readme}");
        }
        let (_, out, _) = Folder::new(&[]).posse("init --for spark");
        assert!(out.contains("; it needs Java 17 and `pip install pyspark`; next: "), "{out}");
        // The current folder is the default.
        let folder = Folder::new(&[]);
        let (code, out, _) = folder.posse("init --for shell");
        assert_eq!(code, 0);
        assert!(out.ends_with("; next: posse run --dev\n"), "{out}");
        let (code, _, err) = folder.posse("init --for shell");
        assert_eq!(code, 2);
        assert!(err.contains("posse.yaml exists already"), "{err}");
        let (code, _, err) = folder.posse("init --for shell driver.sh");
        assert_eq!(code, 2);
        assert!(err.contains("driver.sh: cannot be written"), "{err}");
    }
}
