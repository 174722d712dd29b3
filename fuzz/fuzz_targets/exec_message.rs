//! The target `exec_message` for cargo-fuzz.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| posse_fuzz::exec_message(bytes));
