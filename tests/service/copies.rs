//! What senders bring to a service arrives as it does without one.

use std::fs;
use std::process::Command;

use testbed::images;

use crate::ferry::vmferry;
use crate::house::{House, MIB};
use crate::scene::{Attempt, notices, says};
use crate::watch::tool;

#[test]
fn images_of_every_kind_in_every_way() {
    let house = House::with(&["a"]);
    let service = house.start(&[]);
    house.image("dense.img", 9 * MIB + 513);
    house.image("byte.img", 1);
    fs::write(house.path("empty.img"), b"").unwrap();
    images::sparse(&house.path("sparse.img"), 128 * MIB, 8 * MIB, 3).unwrap();
    let names = ["dense.img", "byte.img", "empty.img", "sparse.img"];
    let b3s = names.map(|name| images::b3(&house.path(name)).unwrap());
    let ways: [&[&str]; 5] = [
        &["--transport", "tcp"],
        &["--verify", "readback"],
        &["--streams", "1", "--engine", "sync"],
        &["--transport", "tcp", "--verify", "readback", "--streams", "7", "--chunk", "256K"],
        &["--no-direct", "--limit", "400Mb/s"],
    ];
    for (number, way) in ways.into_iter().enumerate() {
        let folder = house.into.join(number.to_string());
        fs::create_dir(&folder).unwrap();
        let sent = house.sent(&service, "a", &[way, &names].concat(), &format!("{number}/"));
        let done = sent.done();
        assert_eq!(done["transport"], if way.contains(&"tcp") { "tcp" } else { "tls" });
        for (name, b3) in names.into_iter().zip(&b3s) {
            images::equal(&house.path(name), &folder.join(name)).unwrap();
            assert_eq!(done["digests"][name]["b3"], **b3, "{name}");
            let path = folder.join(name).canonicalize().unwrap();
            service.until("committed", |e| e["path"] == path.to_str().unwrap());
        }
        assert!(images::allocated(&folder.join("sparse.img")).unwrap() < 16 * MIB);
        assert_eq!(crate::house::list(&folder).len(), names.len());
    }
    let done = || service.said("done").len();
    crate::watch::eventually("all are done", || (done() == ways.len()).then_some(()));
}

/// Its jobs share one process, so none lowers it, and the sender is told.
#[test]
fn nice_is_for_the_sender_alone() {
    let house = House::with(&["a"]);
    let service = house.start(&[]);
    house.image("disk.img", MIB);
    let sent = house.sent(&service, "a", &["--nice", "disk.img"], "");
    sent.done();
    let told = notices(&sent);
    assert!(told.iter().any(|notice| notice.contains("the service keeps its own priority")), "{told:?}");
    let niceness = |pid: u32| tool(Command::new("ps").args(["-Lo", "ni=", "-p", &pid.to_string()]));
    let ours = niceness(std::process::id());
    let usual = ours.lines().next().unwrap();
    assert!(niceness(service.pid()).lines().all(|nice| nice == usual));
}

/// The same machine by each of its addresses.
#[test]
fn both_families() {
    let house = House::with(&["a"]);
    let service = house.start(&[]);
    let port = service.port;
    let image = house.image("disk.img", MIB);
    let send = |words: &[&str], host: &str, path: &str| {
        house.trust("a", &format!("{host}:{port}"));
        let words = [words, &["disk.img"]].concat();
        let place = format!("vmferry://{host}:{port}/{path}");
        Attempt::start(house.send_as(Command::new(vmferry()), "a", &words, &place)).wait()
    };
    for (number, (words, host, peer)) in [
        (&[][..], "[::1]", "[::1]:"),
        (&["-6"], "[::1]", "[::1]:"),
        (&[], "127.0.0.1", "127.0.0.1:"),
        (&["-4"], "localhost", "127.0.0.1:"),
        (&["-4", "--transport", "tcp"], "localhost", "127.0.0.1:"),
        (&["--via", "127.0.0.1"], "[::1]", "127.0.0.1:"),
        (&["--via", "::1"], "name.invalid", "[::1]:"),
    ]
    .into_iter()
    .enumerate()
    {
        let path = format!("{number}.img");
        let sent = send(words, host, &path);
        sent.done();
        let started = sent.events().into_iter().find(|e| e["event"] == "started").unwrap();
        assert!(started["peer"].as_str().unwrap().starts_with(peer), "{words:?} {host}: {started}");
        images::equal(&image, &house.into.join(&path)).unwrap();
    }
    says(&send(&["-4"], "[::1]", "x").failed(3), &["none of its addresses is IPv4 (-4)"]);
    says(&send(&["-6"], "127.0.0.1", "x").failed(3), &["none of its addresses is IPv6 (-6)"]);
}

#[test]
fn a_dry_run_changes_nothing() {
    let house = House::with(&["a"]);
    let service = house.start(&[]);
    house.image("disk.img", MIB);
    let sent = house.sent(&service, "a", &["--dry-run", "disk.img"], "");
    sent.done();
    service.until("begun", |e| e["dry_run"] == true);
    service.until("done", |_| true);
    assert!(house.listed().is_empty() && service.said("committed").is_empty());
    // It finds out what the real one would.
    says(&house.sent(&service, "a", &["--dry-run", "disk.img"], "../x").failed(3), &["leads out"]);
    house.sent(&service, "a", &["disk.img"], "").done();
    says(&house.sent(&service, "a", &["--dry-run", "disk.img"], "").failed(3), &["may not replace files"]);
}
