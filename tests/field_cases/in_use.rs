//! A8: the image of a running VM is not copied as if it stood still.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::scene::{Scene, notices, says};

/// A process that holds the image, once it does. It ends with the handle.
struct Holder(Child);

impl Holder {
    fn start(command: &mut Command) -> Holder {
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.expect("a program is missing: run `make deps`");
        let answer = BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut String::new());
        assert!(answer.unwrap() > 0, "it does not hold the image");
        Holder(child)
    }

    fn qemu_io(image: &Path) -> Holder {
        // `-c length` answers, `-c sleep` keeps it open.
        let commands = ["-f", "raw", "-c", "length", "-c", "sleep 100000"];
        Holder::start(Command::new("stdbuf").args(["-oL", "qemu-io"]).args(commands).arg(image))
    }

    fn shell(image: &Path) -> Holder {
        Holder::start(Command::new("sh").args(["-c", "exec 3>>\"$1\"; echo ready; read x", "sh"]).arg(image))
    }

    /// QEMU's lock for writing, and a file that is open for reading only: what is seen of a
    /// process of another user, or on another host.
    fn lock(image: &Path) -> Holder {
        // struct flock of Linux on 64 bits: type, whence, start, length, process; F_OFD_SETLK is 37.
        let script = "open(F, '<', $ARGV[0]) or die; $| = 1; $lock = pack('ssx4qqix4', 0, 0, 101, 1, 0);
            fcntl(F, 37, $lock) or die $!; print qq(ready\n); <STDIN>;";
        Holder::start(Command::new("perl").args(["-e", script]).arg(image))
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a8_an_image_that_something_writes_is_refused_and_the_holder_named() {
    let scene = Scene::new(1 << 20);
    let mark = scene.here.path().join("asked");
    let refused = || {
        let reason = scene.send(&scene.local().rsh(format!("touch {}", mark.display()))).failed(3);
        says(&reason, &[scene.image.to_str().unwrap(), "is in use", "stop the VM first", "--force"]);
        assert!(!mark.exists(), "no host was asked");
        scene.untouched();
        reason
    };
    let qemu = Holder::qemu_io(&scene.image);
    says(&refused(), &[&format!("qemu-io (pid {})", qemu.0.id())]);
    drop(qemu);
    let shell = Holder::shell(&scene.image);
    says(&refused(), &[&format!("sh (pid {})", shell.0.id())]);
    drop(shell);
    let lock = Holder::lock(&scene.image);
    says(&refused(), &["a QEMU process that is not visible from here", "image lock"]);
    drop(lock);
    scene.send(&scene.local()).done();
    scene.arrived();
}

#[test]
fn a8_force_sends_it_and_warns() {
    let scene = Scene::new(1 << 20);
    let shell = Holder::shell(&scene.image);
    let sent = scene.send(&scene.local().arg("--force"));
    sent.done();
    let warnings: Vec<_> = notices(&sent).into_iter().filter(|n| n.contains("in use")).collect();
    let [warning] = &warnings[..] else { panic!("one warning: {warnings:?}") };
    says(warning, &[scene.image.to_str().unwrap(), &format!("sh (pid {})", shell.0.id()), "torn", "--force"]);
    scene.arrived();
}

/// The other way round: QEMU cannot start to write an image while it is copied.
#[test]
fn a8_a_guest_cannot_start_on_an_image_under_way() {
    let link = crate::scene::slow_link();
    let scene = Scene::new(24 << 20);
    let mut attempt = scene.start(&scene.over(&link).args(["--log-interval", "0.1"]));
    attempt.until_copying();
    let guest = Command::new("qemu-io").args(["-f", "raw", "-c", "write 0 4k"]).arg(&scene.image).output();
    let guest = guest.expect("qemu-io is missing: run `make deps`");
    says(&String::from_utf8_lossy(&guest.stderr), &["lock"]);
    crate::scene::hurry(&link);
    attempt.wait().done();
    scene.arrived();
}
