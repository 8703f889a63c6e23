//! `--transport tcp`: readable on the way, but nobody can change anything; and never by accident.
#![allow(missing_docs, clippy::unwrap_used)]

mod ferry;
mod scene;
mod watch;

use std::fs;

use ferry::Ferry;
use proto::frame::header_len;
use proto::geometry::ChunkSize;
use proto::join::{REQUEST_LEN, SECRET_LEN};
use proto::seal::TAG_LEN;
use proto::version::HELLO_LEN;
use scene::tap::Tap;
use scene::{Scene, notices, says};
use testbed::images;
use testbed::net::{Link, LinkConfig};

const MIB: u64 = 1 << 20;

#[test]
fn images_of_every_kind_arrive_equal() {
    for streams in ["1", "4"] {
        let (from, to) = (ferry::folder(), ferry::folder());
        let file = |name: &str| from.path().join(name);
        images::random(&file("dense.img"), 9 * MIB + 513, 1).unwrap();
        images::random(&file("one-byte.img"), 1, 2).unwrap();
        images::sparse(&file("sparse.img"), 256 * MIB, 16 * MIB, 3).unwrap();
        fs::write(file("empty.img"), b"").unwrap();
        let names = ["dense.img", "one-byte.img", "sparse.img", "empty.img"];
        let ferry = Ferry::local().args(["--transport", "tcp", "--streams", streams]);
        let sent = ferry.args(names.map(file)).send(to.path());
        assert_eq!(sent.done()["transport"], "tcp");
        for name in names {
            images::equal(&file(name), &to.path().join(name)).unwrap();
            let b3 = images::b3(&file(name)).unwrap();
            assert_eq!(sent.done()["digests"][name]["b3"], b3, "{name}");
        }
        let told = notices(&sent).join("\n");
        says(&told, &["unencrypted", "--transport tcp"]);
    }
}

fn contains(bytes: &[u8], piece: &[u8]) -> bool {
    bytes.windows(piece.len()).any(|window| window == piece)
}

/// Over a relay that hears everything.
fn tapped(scene: &Scene, link: &Link, words: &[&str]) -> Ferry {
    let via = link.a().address().to_string();
    scene.over(link).args(["--via", &via, "--port", "7000"]).args(words.iter().copied())
}

#[test]
fn only_data_is_readable() {
    let link = Link::up(LinkConfig::default()).unwrap();
    let tap = Tap::between(&link, 7000, None);
    let scene = Scene::new(4 * MIB);
    scene.send(&tapped(&scene, &link, &["--transport", "tcp", "--streams", "2"])).done();
    scene.arrived();
    let content = fs::read(&scene.image).unwrap();
    let carried = tap.carried();
    let (lanes, control): (Vec<_>, Vec<_>) = carried.iter().partition(|[to, _]| to.starts_with(b"vmferry\n"));
    assert_eq!((lanes.len(), control.len()), (2, 1));
    // The first 64 KiB are in one of them, as they are in the image.
    assert!(lanes.iter().any(|[to, _]| contains(to, &content[..64 << 10])));
    for direction in control[0] {
        assert_eq!(direction[..2], [22, 3], "a TLS handshake");
        assert!(!contains(direction, b"disk.img") && !contains(direction, &content[..16]));
    }
}

/// A bit that turns over in the payload, in a header, in a tag: nothing of that frame is written.
#[test]
fn what_is_changed_on_the_way_is_refused() {
    let chunk: ChunkSize = "64K".parse().unwrap();
    let join = HELLO_LEN + REQUEST_LEN + SECRET_LEN;
    let head = header_len(chunk);
    // Far behind all that the control connection ever carries.
    let frame = (join + 40 * (head + TAG_LEN + chunk.bytes() as usize)) as u64;
    let cases = [
        ("header", frame + 20, "changed, repeated or made up"),
        ("hash", frame + head as u64 - 1, "changed, repeated or made up"),
        ("tag", frame + head as u64, "changed, repeated or made up"),
        ("payload", frame + (head + TAG_LEN) as u64 + 9, "arrived damaged"),
    ];
    for (what, at, reason) in cases {
        let link = Link::up(LinkConfig::default()).unwrap();
        let _tap = Tap::between(&link, 7000, Some(at));
        let scene = Scene::new(24 * MIB);
        let ferry = tapped(&scene, &link, &["--transport", "tcp", "--streams", "1", "--chunk", "64K"]);
        let told = scene.send(&ferry).failed(4);
        says(&told, &["there: ", reason]);
        assert!(told.contains(reason), "{what}: {told}");
        scene.untouched();
    }
}

/// Whoever does not ask for it does not get it: the default is TLS, whatever the way does.
#[test]
fn it_is_never_chosen_by_itself() {
    let scene = Scene::new(MIB);
    assert_eq!(scene.send(&scene.local()).done()["transport"], "tls");
    let help = watch::tool(std::process::Command::new(ferry::vmferry()).args(["send", "--help"]));
    let transport = help.split("--transport").nth(1).unwrap();
    assert!(transport.split("--").next().unwrap().contains("[default: tls]"), "{transport}");
}
