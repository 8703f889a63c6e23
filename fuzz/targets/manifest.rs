//! What a sender wants to be written, and under which names.
#![no_main]

use std::path::{Component, Path};

use libfuzzer_sys::fuzz_target;
use proto::control::{self, ToReceiver};
use proto::manifest;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(name) = std::str::from_utf8(bytes)
        && manifest::check_name(name).is_ok()
    {
        let parts: Vec<Component<'_>> = Path::new(name).components().collect();
        assert!(matches!(parts[..], [Component::Normal(part)] if part == name), "{name:?} leaves its folder");
    }
    if let Ok(ToReceiver::Open(open)) = control::decode::<ToReceiver>(bytes)
        && manifest::check(&open.images).is_ok()
    {
        for image in &open.images {
            assert!(manifest::check_name(&image.name).is_ok());
        }
    }
});
