//! The allow file, read again while the service runs.

use std::fs;

use proto::control::{ToSender, Transport};
use proto::join::Secret;
use testbed::images;

use crate::attack::{self, hear, identity, join, say, secure};
use crate::callers::job;
use crate::house::{House, MIB};
use crate::scene::{Attempt, hurry, says, slow_link};

/// Its job was begun with rights: it ends well. The next has none.
#[test]
fn a_key_that_is_struck_off_finishes_its_job() {
    let link = slow_link();
    let house = House::with(&["a", "b"]);
    let service = house.start_on(&link, &[]);
    let image = house.image("disk.img", 24 * MIB);
    let mut attempt = Attempt::start(house.send_over(&link, &service, "a", &["disk.img"]));
    attempt.until_copying();
    house.forbid("a");
    service.reload();
    service.until("reloaded", |e| e["allowed"] == 1);
    house.image("next.img", MIB);
    let next = || Attempt::start(house.send_over(&link, &service, "a", &["next.img"])).wait();
    says(&next().failed(3), &["does not know this key", "vmferry allow", &house.key("a")]);
    hurry(&link);
    attempt.wait().done();
    images::equal(&image, &house.into.join("disk.img")).unwrap();
    service.until("done", |_| true);
    says(&next().failed(3), &["does not know this key"]);
    service.until_reason("turned_away", &["not in the allow file"]);
    assert_eq!(house.listed(), ["disk.img"]);
    Attempt::start(house.send_over(&link, &service, "b", &["next.img"])).wait().done();
}

/// Lanes that come later belong to the job as well.
#[test]
fn a_key_that_is_struck_off_brings_its_other_lanes() {
    let house = House::with(&["a"]);
    let service = house.start(&[]);
    let (at, key, secret) = (service.address(), identity(&house.path("a")), Secret([1; 32]));
    let session = attack::session(at, &key, &secret, Transport::Tls);
    let mut control = join(secure(at, &key), session, 0, &secret).unwrap();
    say(&mut control, &job(2));
    assert!(matches!(hear(&mut control), ToSender::Accept(_)));
    let first = join(secure(at, &key), session, 1, &secret).unwrap();
    house.forbid("a");
    service.reload();
    service.until("reloaded", |e| e["allowed"] == 0);
    let second = join(secure(at, &key), session, 2, &secret).unwrap();
    // Control too, when it breaks.
    drop(control);
    let control = join(secure(at, &key), session, 0, &secret).unwrap();
    drop((control, first, second));
    service.until("failed", |_| true);
    assert!(join(secure(at, &key), session, 2, &secret).is_none(), "the job is over");
}

#[test]
fn a_faulty_file_changes_nothing() {
    let house = House::with(&["a"]);
    let service = house.start(&[]);
    let file = house.path("service").join("allow");
    let good = fs::read_to_string(&file).unwrap();
    fs::write(&file, format!("# comment\n{good}{} overwrit\n", house.key("b"))).unwrap();
    service.reload();
    let told = service.until_reason("not_reloaded", &["line 3", "'overwrit'", "stays in force"]);
    assert!(told.contains(file.to_str().unwrap()), "{told}");
    house.image("disk.img", MIB);
    house.sent(&service, "a", &["disk.img"], "").done();
    house.sent(&service, "b", &["disk.img"], "b.img").failed(3);
    // A service that begins with it does not begin.
    let mut second = house.command(std::process::Command::new(crate::ferry::vmferry()), "0", &[]);
    let said = second.output().unwrap();
    assert_eq!(said.status.code(), Some(3));
    says(&String::from_utf8_lossy(&said.stderr), &["line 3", "'overwrit'"]);
    // Mended, it counts.
    fs::write(&file, format!("{good}{}\n", house.key("b"))).unwrap();
    service.reload();
    service.until("reloaded", |e| e["allowed"] == 2);
    house.sent(&service, "b", &["disk.img"], "b.img").done();
    // Gone: nobody is let in.
    fs::remove_file(&file).unwrap();
    service.reload();
    service.until("reloaded", |e| e["allowed"] == 0);
    house.sent(&service, "b", &["disk.img"], "c.img").failed(3);
}

/// Rights that change count for the next job, not for the one that runs.
#[test]
fn rights_change_with_the_next_job() {
    let house = House::with(&["a"]);
    let service = house.start(&[]);
    house.image("disk.img", MIB);
    house.sent(&service, "a", &["disk.img"], "").done();
    let again = || house.sent(&service, "a", &["--force", "disk.img"], "");
    says(&again().failed(3), &["may not replace files"]);
    house.allow("a", &["--overwrite"]);
    says(&again().failed(3), &["may not replace files"]);
    service.reload();
    service.until("reloaded", |_| true);
    again().done();
}
