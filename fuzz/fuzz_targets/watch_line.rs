//! The target `watch_line` for cargo-fuzz.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| posse_fuzz::watch_line(bytes));
