//! Warns if the binary will not be static, and makes it reachable as `target/PROFILE/posse`.

use std::path::Path;
use std::{env, fs, io};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let value_of = |name| env::var(name).unwrap_or_default();
    let features = value_of("CARGO_CFG_TARGET_FEATURE");
    let is_for_images = value_of("CARGO_CFG_TARGET_OS") == "linux";
    if is_for_images && !features.split(',').any(|feature| feature == "crt-static") {
        println!(
            "cargo::warning=posse is linked dynamically and does not run in every image: RUSTFLAGS \
             replaces the flags of .cargo/config.toml. Add -Ctarget-feature=+crt-static to it"
        );
    }
    if let Err(error) = link_to_program() {
        println!("cargo::warning=no link target/PROFILE/posse: {error}");
    }
}

/// With a target named in `.cargo/config.toml`, cargo writes `target/TRIPLE/PROFILE/posse`. People
/// and scripts expect the program at `target/PROFILE/posse`, so a symbolic link leads there.
fn link_to_program() -> io::Result<()> {
    let (Ok(out), Ok(triple)) = (env::var("OUT_DIR"), env::var("TARGET")) else { return Ok(()) };
    // OUT_DIR is target/[TRIPLE/]PROFILE/build/posse-HASH/out.
    let Some(profile) = Path::new(&out).ancestors().nth(3) else { return Ok(()) };
    let (Some(name), Some(parent)) = (profile.file_name(), profile.parent()) else { return Ok(()) };
    let is_own_target = env::var("HOST").is_ok_and(|host| host == triple);
    let Some(target) = parent.parent().filter(|_| is_own_target && parent.ends_with(&triple))
    else {
        return Ok(());
    };
    let link = target.join(name).join("posse");
    let program = Path::new("..").join(&triple).join(name).join("posse");
    if fs::read_link(&link).is_ok_and(|leads_to| leads_to == program) {
        return Ok(());
    }
    fs::create_dir_all(target.join(name))?;
    match fs::remove_file(&link) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => std::os::unix::fs::symlink(program, link),
    }
}
