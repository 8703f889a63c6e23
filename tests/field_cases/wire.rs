//! K5 as far as it concerns TLS with pinned keys: nothing but TLS is ever on the wire, and nothing
//! else is believed. There is no clock to be wrong, no name and no authority: the keys are raw
//! (RFC 7250), made for one job and pinned on both sides. Another key, a missing secret and other
//! services at the port are in `errors`.

use std::fs;

use testbed::net::{Link, LinkConfig};

use crate::scene::tap::Tap;
use crate::scene::{Scene, says};

/// Types of the records of one direction (RFC 8446, section 5.1); whatever is none panics. The
/// last one may be cut off.
fn records(mut bytes: &[u8]) -> Vec<u8> {
    let mut types = Vec::new();
    while let [kind, 3, minor, high, low, rest @ ..] = bytes {
        let len = usize::from(u16::from_be_bytes([*high, *low]));
        assert!(
            (20..=23).contains(kind) && *minor <= 4 && len <= (16 << 10) + 256,
            "no record: {bytes:02x?}"
        );
        types.push(*kind);
        bytes = rest.get(len..).unwrap_or_default();
    }
    assert!(bytes.len() < 5, "no record: {bytes:02x?}");
    types
}

fn contains(bytes: &[u8], piece: &[u8]) -> bool {
    bytes.windows(piece.len()).any(|window| window == piece)
}

#[test]
fn k5_nothing_but_tls_is_on_the_wire() {
    const HANDSHAKE: u8 = 22;
    const DATA: u8 = 23;
    let link = Link::up(LinkConfig::default()).unwrap();
    let tap = Tap::between(&link, 7000, None);
    let scene = Scene::new(4 << 20);
    let via = link.a().address().to_string();
    scene.send(&scene.over(&link).args(["--via", &via, "--port", "7000", "--streams", "3"])).done();
    scene.arrived();
    let carried = tap.carried();
    assert_eq!(carried.len(), 4, "control and data");
    let content = fs::read(&scene.image).unwrap();
    assert!(carried.iter().map(|c| c[0].len()).sum::<usize>() > content.len());
    for connection in &carried {
        for direction in connection {
            let types = records(direction);
            assert_eq!(types[0], HANDSHAKE);
            assert!(types.iter().filter(|t| **t == HANDSHAKE).count() == 1, "the rest of it is encrypted");
            assert!(types.contains(&DATA));
            for secret in [&content[..16], &content[2 << 20..][..16], b"disk.img", b"vmferry\n"] {
                assert!(!contains(direction, secret), "{secret:02x?} is readable");
            }
        }
    }
}

/// Somebody in between who breaks the handshake does not talk the sender into anything less.
#[test]
fn k5_a_broken_handshake_is_no_reason_to_go_on_without() {
    let link = Link::up(LinkConfig::default()).unwrap();
    // Inside the client's random and key share: the handshake is complete, and then does not fit.
    let tap = Tap::between(&link, 7000, Some(20));
    let scene = Scene::new(4 << 20);
    let via = link.a().address().to_string();
    let reason = scene.send(&scene.over(&link).args(["--via", &via, "--port", "7000"])).failed(3);
    says(&reason, &["10.77.0.1:7000"]);
    scene.dismiss();
    scene.untouched();
    for connection in tap.carried() {
        records(&connection[0]);
        assert!(connection[0].len() < 4096, "no data");
    }
}
