//! Opening, creating, the extent map, identity.
#![allow(clippy::unwrap_used)]

mod common;

use blockio::Image;
use common::{create, folder, noise, put};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{ErrorKind, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;

#[test]
fn only_regular_files() {
    let dir = folder();
    let fifo = dir.path().join("fifo");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let socket = dir.path().join("s");
    // The path of a socket is at most 107 bytes long; where that is too short, `ENXIO` is lost.
    let listener = UnixListener::bind(&socket).ok();
    let cases = [(dir.path(), "a folder"), (&fifo, "a FIFO"), (Path::new("/dev/null"), "a character device")];
    for (path, what) in cases {
        let error = Image::open_source(path, true).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "cannot open {}: it is {what}, and an image must be a regular file or a block device",
                path.display()
            )
        );
    }
    if listener.is_some() {
        let error = Image::open_source(&socket, true).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENXIO));
    }
    let error = Image::open_source(Path::new("/nonexistent/x.img"), true).unwrap_err();
    assert_eq!(error.to_string(), "cannot open /nonexistent/x.img: No such file or directory (os error 2)");
}

#[test]
fn a_source_keeps_its_access_time() {
    let dir = folder();
    let path = dir.path().join("a");
    put(&path, &noise(5000, 1));
    let before = fs::metadata(&path).unwrap();
    let image = Image::open_source(&path, false).unwrap();
    let mut bytes = [0; 100];
    rustix::io::pread(image.file(), &mut bytes, 0).unwrap();
    let after = fs::metadata(&path).unwrap();
    assert_eq!((before.atime(), before.atime_nsec()), (after.atime(), after.atime_nsec()));
    let flags = rustix::fs::fcntl_getfl(image.file()).unwrap();
    assert!(!flags.contains(rustix::fs::OFlags::NONBLOCK), "io_uring would fail with EAGAIN");
}

#[test]
fn created_private_empty_and_never_over_something() {
    let dir = folder();
    let (image, path) = create(&dir, "new", 123_457, true);
    let meta = fs::metadata(&path).unwrap();
    assert_eq!((meta.len(), meta.permissions().mode() & 0o7777), (123_457, 0o600));
    assert_eq!((image.size(), image.path()), (123_457, path.as_path()));
    assert_eq!(image.next_data(0).unwrap(), None);
    assert_eq!(image.allocated().unwrap(), 0);
    assert!(image.align() >= 4096);

    let handle = File::open(dir.path()).unwrap();
    symlink("elsewhere", dir.path().join("link")).unwrap();
    for name in ["new", "link"] {
        let error = Image::create_at(handle.as_fd(), OsStr::new(name), &dir.path().join(name), 1, true);
        assert_eq!(error.unwrap_err().kind(), ErrorKind::AlreadyExists);
    }
    let open = |name| Image::open_at(handle.as_fd(), OsStr::new(name), &dir.path().join(name), true);
    assert_eq!(open("link").unwrap_err().raw_os_error(), Some(libc::ELOOP));
    assert_eq!(open("new").unwrap().size(), 123_457);

    let error = create_too_big(&dir);
    assert!(!dir.path().join("big").exists(), "nothing is left behind: {error}");
}

fn create_too_big(dir: &tempfile::TempDir) -> blockio::Error {
    let handle = File::open(dir.path()).unwrap();
    let shown = dir.path().join("big");
    Image::create_at(handle.as_fd(), OsStr::new("big"), &shown, 1 << 62, true).unwrap_err()
}

#[test]
fn extent_map_of_a_sparse_file() {
    let dir = folder();
    let path = dir.path().join("sparse");
    let mut file = File::create(&path).unwrap();
    let mib = 1 << 20;
    for at in [0, 10 * mib, 11 * mib, 40 * mib] {
        file.seek(SeekFrom::Start(at)).unwrap();
        file.write_all(&noise(1 << 20, at)).unwrap();
    }
    file.set_len(100 * mib + 5).unwrap();
    let image = Image::open_source(&path, true).unwrap();
    image.sync_before_map().unwrap();
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(range) = image.next_data(at).unwrap() {
        at = range.end;
        found.push(range);
    }
    assert_eq!(found, [0..mib, 10 * mib..12 * mib, 40 * mib..41 * mib]);
    assert_eq!(image.next_data(10 * mib + 7).unwrap(), Some(10 * mib + 7..12 * mib));
    assert_eq!(image.next_data(100 * mib + 5).unwrap(), None);
    assert_eq!(image.next_data(u64::MAX).unwrap(), None);
    assert!(image.allocated().unwrap() >= 4 * mib && image.allocated().unwrap() < 5 * mib);
}

/// Data that were just written are data, whatever has reached the disk.
#[test]
fn fresh_data_are_on_the_map() {
    let dir = folder();
    let path = dir.path().join("fresh");
    for round in 0..20 {
        put(&path, &noise(1 << 20, round));
        let image = Image::open_source(&path, true).unwrap();
        image.sync_before_map().unwrap();
        assert_eq!(image.next_data(0).unwrap(), Some(0..1 << 20));
        fs::remove_file(&path).unwrap();
    }
}

#[test]
fn identity_tells_a_change() {
    let dir = folder();
    let path = dir.path().join("a");
    put(&path, &noise(5000, 1));
    let image = Image::open_source(&path, true).unwrap();
    let before = image.identity().unwrap();
    image.guard().unwrap();
    assert_eq!(image.identity().unwrap(), before);
    assert_eq!((before.size, before.mode & libc::S_IFMT), (5000, libc::S_IFREG));
    std::thread::sleep(std::time::Duration::from_millis(20));
    let mut file = File::options().write(true).open(&path).unwrap();
    file.write_all(b"x").unwrap();
    let after = image.identity().unwrap();
    assert_ne!(after, before);
    assert_eq!((after.dev, after.ino, after.size), (before.dev, before.ino, before.size));
    assert!(after.mtime_ns > before.mtime_ns);
}
