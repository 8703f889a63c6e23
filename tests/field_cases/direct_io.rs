//! C1: file systems without O_DIRECT, which some say at open and some only at the first call.

use testbed::faults::{Counts, DirectIo, Faults};

use crate::ferry::{Sent, folder};
use crate::scene::{Scene, fault_fs, notices, says};

const SIZE: u64 = (9 << 20) + 777;

/// The one notice about direct I/O.
#[track_caller]
fn told_once(sent: &Sent) -> String {
    let told: Vec<_> = notices(sent).into_iter().filter(|n| n.contains("O_DIRECT")).collect();
    let [notice] = &told[..] else { panic!("one notice: {told:?}") };
    notice.clone()
}

fn to(direct: DirectIo) -> Counts {
    let place = folder();
    let target = fault_fs(place.path(), Faults { direct, ..Faults::default() });
    let scene = Scene::new(SIZE).to(target.path());
    let sent = scene.send(&scene.local());
    sent.done();
    scene.arrived();
    says(&told_once(&sent), &["there: ", "disk.img.vmferry-part", "using the page cache"]);
    target.counts()
}

fn from(direct: DirectIo) -> Counts {
    let place = folder();
    let source = fault_fs(place.path(), Faults { direct, ..Faults::default() });
    let image = source.path().join("disk.img");
    let scene = Scene::new(SIZE);
    std::fs::copy(&scene.image, &image).unwrap();
    source.reset_counts();
    let sent = scene.send(&scene.local_as(&image));
    sent.done();
    scene.arrived();
    says(&told_once(&sent), &[image.to_str().unwrap(), "using the page cache"]);
    source.counts()
}

#[test]
fn c1_a_destination_that_refuses_at_open() {
    assert_eq!(to(DirectIo::RefusedAtOpen).direct_writes, 0);
}

#[test]
fn c1_a_destination_that_refuses_the_first_write() {
    assert!(to(DirectIo::RefusedAtWrite).direct_writes > 0, "it was tried");
}

#[test]
fn c1_a_source_that_refuses_at_open() {
    assert!(from(DirectIo::RefusedAtOpen).direct_opens > 0, "it was tried");
}

#[test]
fn c1_a_source_that_refuses_the_first_read() {
    assert!(from(DirectIo::RefusedAtRead).direct_opens > 0, "it was tried");
}

#[test]
fn c1_no_direct_asks_for_none_and_says_nothing() {
    let place = folder();
    let target = fault_fs(place.path(), Faults { direct: DirectIo::RefusedAtOpen, ..Faults::default() });
    let scene = Scene::new(SIZE).to(target.path());
    let sent = scene.send(&scene.local().arg("--no-direct"));
    sent.done();
    scene.arrived();
    assert_eq!(notices(&sent), Vec::<String>::new());
    assert_eq!(target.counts().direct_opens, 0);
}
