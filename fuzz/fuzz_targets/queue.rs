#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| waterline_queue::fuzzing::queue(bytes));
