//! Warns if the binary will not be static.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let features = std::env::var("CARGO_CFG_TARGET_FEATURE").unwrap_or_default();
    if !features.split(',').any(|feature| feature == "crt-static") {
        println!(
            "cargo::warning=posse is linked dynamically and does not run in every image: RUSTFLAGS \
             replaces the flags of .cargo/config.toml. Add -Ctarget-feature=+crt-static to it"
        );
    }
}
