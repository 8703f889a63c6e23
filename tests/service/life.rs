//! How jobs and the service end, and what is left then.

use std::fs;
use std::path::Path;
use std::process::Command;

use proto::control::{Bootstrap, BootstrapReply, CONTROL, Transport};
use proto::join::Secret;
use testbed::images;

use crate::attack::{self, caller, hear, identity, join, say, secure};
use crate::ferry::vmferry;
use crate::house::{House, MIB};
use crate::scene::says;
use crate::watch::eventually;

/// What a job leaves that the same command goes on with.
const KEPT: [&str; 2] = ["disk.img.vmferry-ledger", "disk.img.vmferry-part"];
const SLOW: [&str; 3] = ["--limit", "4Mb/s", "disk.img"];

#[test]
fn the_service_ends_and_comes_back() {
    let house = House::with(&["a"]);
    let image = house.image("disk.img", 24 * MIB);
    let mut service = house.start(&[]);
    let port = service.port.to_string();
    let job = house.under_way(&service, "a", &SLOW, "");
    assert_eq!(house.listed(), ["disk.img.vmferry-part"]);
    assert_eq!(service.end(), 0);
    let told = job.wait().failed(6);
    says(&told, &["the service was told to end", "run the same command again"]);
    assert_eq!(house.listed(), KEPT);
    service.until_reason("failed", &["was told to end"]);
    assert_eq!(service.said("stopped").len(), 1);
    let service = house.start_at(&port, &[]);
    let done = house.sent(&service, "a", &["disk.img"], "").done();
    assert!(done["resumed_bytes"].as_u64() > Some(0), "{done}");
    assert_eq!(house.listed(), ["disk.img"]);
    images::equal(&image, &house.into.join("disk.img")).unwrap();
}

/// Neither one that has not said what it wants nor one that has not opened its job, whose silence
/// may last an hour, keeps it.
#[test]
fn the_service_ends_whoever_is_connected() {
    let house = House::with(&["a"]);
    let mut service = house.start(&[]);
    let (at, key, secret) = (service.address(), identity(&house.path("a")), Secret([1; 32]));
    let _silent = caller(at, &key);
    let mut asking = caller(at, &key);
    let patient = Bootstrap { dead_after_ms: 3_600_000, ..attack::request(&key, &secret, Transport::Tls) };
    say(&mut asking, &patient);
    let BootstrapReply::Ready { session, .. } = hear(&mut asking) else { panic!("refused") };
    let _control = join(secure(at, &key), session, CONTROL.0, &secret).unwrap();
    assert_eq!(service.end(), 0);
    service.until_reason("failed", &["was told to end"]);
}

#[test]
fn a_sender_that_is_killed() {
    let house = House::with(&["a"]);
    house.image("disk.img", 24 * MIB);
    let service = house.start(&[]);
    let job = house.under_way(&service, "a", &SLOW, "");
    assert_eq!(house.listed(), ["disk.img.vmferry-part"]);
    job.signal("KILL");
    let line = service.until("failed", |_| true);
    says(line["reason"].as_str().unwrap(), &["the sender went away without a reason"]);
    assert_eq!((&line["peer"], &line["exit"]), (&"a".into(), &1.into()));
    assert_eq!(house.listed(), KEPT);
    // One that is asked to end says so itself.
    let job = house.under_way(&service, "a", &SLOW, "");
    job.signal("TERM");
    job.wait().failed(6);
    let line = service.until("failed", |e| e["exit"] == 6);
    says(line["reason"].as_str().unwrap(), &["interrupted"]);
    assert_eq!(house.listed(), KEPT);
}

fn figure(file: &Path, name: &str) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix(&format!("vmferry_{name} ")))?;
    Some(line.parse().unwrap())
}

#[test]
fn figures_for_a_monitor() {
    let house = House::with(&["a"]);
    ["1.img", "2.img"].iter().for_each(|name| drop(house.image(name, MIB)));
    house.image("disk.img", 24 * MIB);
    let file = house.path("vmferry.prom");
    let mut service = house.start(&["--jobs-per-key", "1", "--metrics", file.to_str().unwrap()]);
    // It is there from the beginning.
    eventually("figures", || figure(&file, "jobs_running").filter(|n| *n == 0));
    house.sent(&service, "a", &["1.img", "2.img"], "").done();
    let job = house.under_way(&service, "a", &SLOW, "");
    house.sent(&service, "a", &["--force", "1.img"], "").failed(3);
    house.key("stranger");
    house.sent(&service, "stranger", &["1.img"], "").failed(3);
    // While it runs, the file is written every 10 s.
    eventually("a job that runs", || figure(&file, "jobs_running").filter(|n| *n == 1));
    let so_far = figure(&file, "received_bytes_total").unwrap();
    assert!((2 * MIB + 1..26 * MIB).contains(&so_far), "{so_far}");
    job.signal("KILL");
    service.until("failed", |_| true);
    assert_eq!(service.end(), 0);
    let figure = |name| figure(&file, name).unwrap();
    assert_eq!((figure("jobs_running"), figure("images_total")), (0, 2));
    assert_eq!((figure("jobs_done_total"), figure("jobs_failed_total")), (1, 1));
    assert_eq!((figure("requests_refused_total"), figure("turned_away_total")), (1, 1));
    let sums: u64 =
        ["done", "failed"].iter().map(|e| service.said(e)[0]["received_bytes"].as_u64().unwrap()).sum();
    assert_eq!(figure("received_bytes_total"), sums);
    // Where it cannot be, the service does not begin.
    let mut command = Command::new(vmferry());
    command = house.command(command, "0", &["--metrics", "/proc/vmferry.prom"]);
    let said = command.output().unwrap();
    assert_eq!(said.status.code(), Some(3));
    says(&String::from_utf8_lossy(&said.stderr), &["cannot write figures to /proc/vmferry.prom"]);
}
