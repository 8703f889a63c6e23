//! The first bytes of a connection: hello, then the request of a join.
#![no_main]

use libfuzzer_sys::fuzz_target;
use proto::join::{REQUEST_LEN, Request};
use proto::version::{HELLO_LEN, Hello, Role};

fuzz_target!(|bytes: &[u8]| {
    if let Some((hello, rest)) = bytes.split_first_chunk::<HELLO_LEN>() {
        let asked = Hello::accept(hello, Role::Lane);
        assert!(asked.is_err() || Hello::accept(hello, Role::Bootstrap).is_err(), "two roles at once");
        if let Some((request, _)) = rest.split_first_chunk::<REQUEST_LEN>() {
            assert_eq!(Request::decode(request).encode(), *request, "nothing is lost");
        }
    }
});
