//! The target `http_request` for cargo-fuzz.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| posse_fuzz::http_request(bytes));
