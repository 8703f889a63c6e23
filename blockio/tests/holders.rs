//! Who writes an image, and keeping others from starting to: against QEMU's own tools where they
//! are installed, and against plain processes.
#![allow(clippy::unwrap_used)]

mod common;

use blockio::Image;
use common::{folder, put};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

fn image(dir: &tempfile::TempDir) -> (Image, std::path::PathBuf) {
    let path = dir.path().join("disk.img");
    put(&path, &vec![0; 1 << 20]);
    (Image::open_source(&path, true).unwrap(), path)
}

fn end(mut child: Child) {
    drop(child.stdin.take());
    let _ = child.kill();
    let _ = child.wait();
}

#[test]
fn a_process_with_the_file_open_for_writing() {
    let dir = folder();
    let (image, path) = image(&dir);
    assert_eq!(image.users().unwrap(), Vec::<String>::new());
    // Our own handles do not count, and neither do readers.
    let _own = std::fs::File::options().write(true).open(&path).unwrap();
    let start = |redirect: &str| {
        let mut shell = Command::new("sh")
            .args(["-c", &format!("exec {redirect} \"$1\"; echo ready; read x"), "sh"])
            .arg(&path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(shell.stdout.take().unwrap()).read_line(&mut line).unwrap();
        shell
    };
    let reader = start("3<");
    assert_eq!(image.users().unwrap(), Vec::<String>::new());
    let writer = start("3>>");
    assert_eq!(image.users().unwrap(), [format!("sh (pid {})", writer.id())]);
    end(writer);
    end(reader);
    assert_eq!(image.users().unwrap(), Vec::<String>::new());
}

/// `qemu-io` with the image open, once it answers; `None` where it is not installed.
fn qemu_io(path: &Path, options: &[&str]) -> Option<Child> {
    let mut child = Command::new("qemu-io")
        .args(options)
        .args(["-f", "raw"])
        .arg(path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    child.stdin.as_mut().unwrap().write_all(b"length\n").unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    Some(child)
}

#[test]
fn qemu_is_seen_and_kept_out() {
    let dir = folder();
    let (image, path) = image(&dir);
    let Some(writer) = qemu_io(&path, &[]) else {
        return;
    };
    assert_eq!(image.users().unwrap(), [format!("qemu-io (pid {})", writer.id())]);
    end(writer);
    assert_eq!(image.users().unwrap(), Vec::<String>::new());

    let write = || {
        let tool = Command::new("qemu-io").args(["-f", "raw", "-c", "write 0 4k"]).arg(&path).output();
        let output = tool.unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    image.guard().unwrap();
    image.guard().unwrap();
    let (done, message) = write();
    assert!(!done && message.contains("lock"), "{message}");
    // Readers are welcome.
    let info = Command::new("qemu-img").args(["info", "-f", "raw"]).arg(&path).output().unwrap();
    assert!(info.status.success());
    drop(image);
    assert!(write().0, "the guard ends with the image");
}

/// A process that takes an OFD lock on one byte through a handle of its own.
fn locker(path: &Path, byte: u32, exclusive: bool) -> Option<Child> {
    let script = "
import fcntl, os, struct, sys
fd = os.open(sys.argv[1], os.O_RDWR if sys.argv[3] == 'w' else os.O_RDONLY)
kind = fcntl.F_WRLCK if sys.argv[3] == 'w' else fcntl.F_RDLCK
fcntl.fcntl(fd, 37, struct.pack('hhqqi4x', kind, 0, int(sys.argv[2]), 1, 0))
print('ready', flush=True)
sys.stdin.read()
";
    let mut child = Command::new("python3")
        .args(["-c", script])
        .arg(path)
        .args([&*byte.to_string(), if exclusive { "w" } else { "r" }])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .ok()?;
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    (line == "ready\n").then_some(child)
}

#[test]
fn a_lock_without_a_writer_to_be_seen() {
    let dir = folder();
    let (image, path) = image(&dir);
    // A reader that holds byte 101: as when the QEMU is in another container.
    let Some(child) = locker(&path, 101, false) else {
        return;
    };
    assert_eq!(
        image.users().unwrap(),
        ["a QEMU process that is not visible from here (it holds the image lock)"]
    );
    end(child);
    assert_eq!(image.users().unwrap(), Vec::<String>::new());
    // Shared use and an exclusive lock of our bytes.
    let child = locker(&path, 100, false).unwrap();
    image.guard().unwrap();
    end(child);
}

#[test]
fn an_exclusive_lock_is_an_error() {
    let dir = folder();
    let (image, path) = image(&dir);
    let Some(child) = locker(&path, 201, true) else {
        return;
    };
    let error = image.guard().unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("cannot lock {}: another program has it locked for itself", path.display())
    );
    end(child);
}
