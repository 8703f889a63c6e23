//! Images that cannot be looked at: exit code 3.

use std::fs::{self, File};
use std::process::{Child, Command, Stdio};

use testbed::faults::{DirectIo, Faults};

use crate::ferry::vmferry;
use crate::scene::{Attempt, fault_fs, notices, says};
use crate::{MIB, Pair, compared, there};

/// Has a file open for writing.
struct Writer(Child);

impl Writer {
    fn of(path: &std::path::Path) -> Writer {
        let file = File::options().append(true).open(path).unwrap();
        Writer(Command::new("sleep").arg("600").stdout(Stdio::from(file)).spawn().unwrap())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn a_missing_image_is_named_with_its_host() {
    let pair = Pair::equal(MIB);
    let missing = pair.folder.path().join("no-such.img");
    let (here, elsewhere) = (missing.clone().into_os_string(), there(&missing));
    let reason = pair.start(&[], &[pair.a.clone().into(), elsewhere]).wait().failed(3);
    says(&reason, &["there: ", "no-such.img", "No such file"]);
    let mark = pair.folder.path().join("asked");
    let mut command = Command::new(vmferry());
    command.args(["verify", "--json", "-e", &format!("touch {}", mark.display())]);
    says(
        &Attempt::start({
            command.args([there(&pair.b), here]).stdin(Stdio::null());
            command
        })
        .wait()
        .failed(3),
        &["no-such.img"],
    );
    assert!(!mark.exists(), "no host was asked");
    pair.nobody_is_left();
}

#[test]
fn what_is_no_image_is_called_what_it_is() {
    let pair = Pair::equal(MIB);
    let folder = pair.folder.path().as_os_str().to_owned();
    says(&pair.start(&[], &[folder, there(&pair.b)]).wait().failed(3), &["a folder"]);
    let null = pair.start(&[], &["/dev/null".into()]).wait().failed(3);
    says(&null, &["/dev/null", "a character device"]);
}

#[test]
fn an_image_in_use_is_refused_unless_it_is_insisted_on() {
    let pair = Pair::equal(MIB);
    let writer = Writer::of(&pair.b);
    let who = format!("sleep (pid {})", writer.0.id());
    says(&pair.verify(&[]).failed(3), &["there: ", "b.img", &who, "may be writing it", "--force"]);
    says(&pair.start(&[], &pair.here()).wait().failed(3), &["b.img", &who]);
    let sent = pair.verify(&["--force"]);
    sent.done();
    assert!(notices(&sent).iter().any(|n| n.starts_with("there: ") && n.contains(&who)), "{}", sent.stdout);
    assert_eq!(compared(&sent)["equal"], true);
}

#[test]
fn a_host_without_vmferry() {
    let pair = Pair::equal(MIB);
    fs::remove_file(pair.folder.path().join("vmferry")).unwrap();
    says(&pair.verify(&[]).failed(3), &["there has no", "install it there", "--remote-path"]);
}

#[test]
fn a_disk_that_is_read_through_the_page_cache_is_named() {
    let (pair, place) = (Pair::equal(MIB), crate::ferry::folder());
    let faults = Faults { direct: DirectIo::RefusedAtRead, ..Faults::default() };
    let fs = fault_fs(place.path(), faults);
    fs::copy(&pair.a, place.path().join("backing/c.img")).unwrap();
    let image = fs.path().join("c.img");
    for images in [vec![pair.a.clone().into(), there(&image)], vec![there(&image)]] {
        let sent = pair.start(&[], &images).wait();
        sent.done();
        let said = notices(&sent);
        assert_eq!(said.len(), 1, "{said:?}");
        says(&said[0], &["there: ", "c.img does not support direct I/O"]);
    }
}

#[test]
fn by_hand_the_other_end_says_how_it_is_started() {
    let said =
        Command::new(vmferry()).args(["verify", "--once", "--stdio"]).stdin(Stdio::null()).output().unwrap();
    assert_eq!(said.status.code(), Some(2));
    says(
        &String::from_utf8_lossy(&said.stderr),
        &["the other end of a verification", "vmferry verify IMAGE"],
    );
}
