//! Who is who: what both ends say when a key is not what it should be.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::ferry::{Sent, vmferry};
use crate::house::{House, MIB};
use crate::scene::{Attempt, says};

fn send(house: &House, to: &str) -> Sent {
    Attempt::start(house.send_as(Command::new(vmferry()), "a", &["disk.img"], to)).wait()
}

#[test]
fn a_service_with_another_key() {
    let house = House::with(&["a"]);
    house.image("disk.img", MIB);
    let mut service = house.start(&[]);
    let (port, place) = (service.port.to_string(), service.place(""));
    house.trust("a", &service.name());
    let old = house.key("service");
    assert_eq!(service.end(), 0);
    fs::remove_file(house.path("service/key")).unwrap();
    let new = house.key("service");
    assert_ne!(old, new);
    let service = house.start_at(&port, &[]);
    let told = send(&house, &place).failed(3);
    says(&told, &[&new, &old, "instead of the key it is known by", "nothing was sent"]);
    assert!(service.said("asked").is_empty() && house.listed().is_empty());
    // Mended as it says.
    house.trust("a", &service.name());
    send(&house, &place).done();
}

#[test]
fn a_host_that_is_not_known() {
    let house = House::with(&["a"]);
    house.image("disk.img", MIB);
    let service = house.start(&[]);
    let (name, key) = (service.name(), house.key("service"));
    let told = send(&house, &service.place("")).failed(3);
    says(&told, &["is not known here", &key]);
    assert!(house.listed().is_empty());
    // What it says to run is what is to be run.
    let words = told.split("run 'vmferry ").nth(1).unwrap().split('\'').next().unwrap();
    assert_eq!(words, format!("trust {name} {key}"));
    let mut trust = Command::new(vmferry());
    crate::watch::tool(trust.args(words.split(' ')).arg("--config").arg(house.path("a")));
    send(&house, &service.place("")).done();
    // The same machine by another name is another host.
    says(&send(&house, &format!("vmferry://localhost:{}/", service.port)).failed(3), &["is not known here"]);
}

/// What a service that cannot begin says; it ends with 3.
fn refused(house: &House) -> String {
    let said = house.command(Command::new(vmferry()), "0", &[]).output().unwrap();
    assert_eq!(said.status.code(), Some(3));
    String::from_utf8(said.stderr).unwrap()
}

#[test]
fn keys_that_are_missing_or_open_to_others() {
    let house = House::with(&["a"]);
    house.image("disk.img", MIB);
    let service = house.start(&[]);
    house.trust("a", &service.name());
    let place = service.place("");
    let spoil = |change: &dyn Fn(&Path)| {
        ["a", "service"].iter().for_each(|name| change(&house.path(name).join("key")));
        [send(&house, &place).failed(3), refused(&house)]
    };
    for told in spoil(&|key| fs::set_permissions(key, PermissionsExt::from_mode(0o644)).unwrap()) {
        says(&told, &["can be read by others", "chmod 600"]);
    }
    for told in spoil(&|key| fs::write(key, "no key").unwrap()) {
        says(&told, &["can be read by others"]);
    }
    let private = |key: &Path| fs::set_permissions(key, PermissionsExt::from_mode(0o600)).unwrap();
    for told in spoil(&private) {
        says(&told, &["/key: ", "not a private key"]);
    }
    for told in spoil(&|key| fs::remove_file(key).unwrap()) {
        says(&told, &["there is no key in", "vmferry key"]);
    }
}

#[test]
fn a_port_that_nobody_listens_at() {
    let house = House::with(&["a"]);
    house.image("disk.img", MIB);
    let mut service = house.start(&[]);
    house.trust("a", &service.name());
    let place = service.place("");
    assert_eq!(service.end(), 0);
    says(
        &send(&house, &place).failed(3),
        &["connection refused by 127.0.0.1", "is the service running there?"],
    );
    says(&send(&house, "vmferry://host.invalid/").failed(3), &["cannot connect to 'host.invalid'"]);
    // Something else is there.
    let (port, _heard) = crate::scene::fake::talker(b"SSH-2.0-OpenSSH_9.2\r\n");
    says(&send(&house, &format!("vmferry://127.0.0.1:{port}/")).failed(3), &["does not speak TLS 1.3"]);
}
