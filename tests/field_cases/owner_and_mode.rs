//! I1: owner, mode, ACL and attributes arrive, and at no moment more people may read the copy than
//! the source.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use testbed::images;

use crate::ferry::vmferry;
use crate::scene::{AS_NOBODY, Scene, notices, public_folder, public_program, says};

fn tool(words: &[&str], image: &Path) -> String {
    let output = Command::new(words[0]).args(&words[1..]).arg(image).output();
    let output = output.expect("a program is missing: run `make deps`");
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// An image as libvirt leaves it behind, with what an administrator may have added.
fn dressed(image: &Path) {
    images::random(image, 1 << 20, 1).unwrap();
    chown(image, Some(107), Some(107)).unwrap();
    fs::set_permissions(image, fs::Permissions::from_mode(0o660)).unwrap();
    tool(&["setfacl", "-m", "u:108:r,g:109:rw"], image);
    tool(&["setfattr", "-n", "user.backup.id", "-v", "weekly 7"], image);
}

/// All that is kept of a file besides its content.
fn dress(image: &Path) -> (u32, u32, u32, String, String) {
    let found = fs::metadata(image).unwrap();
    let acl = tool(&["getfacl", "--absolute-names", "--numeric", "--omit-header"], image);
    let attributes = tool(&["getfattr", "--absolute-names", "--dump", "--match=user"], image);
    let without_name = attributes.lines().filter(|l| !l.starts_with('#')).collect();
    (found.mode(), found.uid(), found.gid(), acl, without_name)
}

/// The receiver's calls that make files or change who may open them, for a umask.
fn calls(scene: &Scene, umask: &str) -> Vec<String> {
    let trace: PathBuf = scene.here.path().join("trace");
    // -D: the receiver stays the shell's child, and goes on when strace ends.
    let strace = format!(
        "strace -D -f -o {} -e trace=openat,open,creat,fchmod,chmod,fchmodat,fchown",
        trace.display()
    );
    let ferry = scene.local().remote_path(format!("umask {umask}; {strace} {}", scene.peer()));
    let sent = scene.send(&ferry);
    sent.done();
    scene.arrived();
    assert_eq!(notices(&sent), Vec::<String>::new());
    let calls = fs::read_to_string(trace).unwrap();
    calls.lines().map(str::to_owned).collect()
}

#[test]
fn i1_owner_mode_acl_and_attributes_are_kept_whatever_the_umask() {
    for umask in ["000", "022", "077"] {
        let scene = Scene::with(dressed);
        let calls = calls(&scene, umask);
        assert_eq!(dress(&scene.there.join("disk.img")), dress(&scene.image), "umask {umask}");
        let made: Vec<_> = calls.iter().filter(|c| c.contains("O_CREAT")).collect();
        let [made] = &made[..] else { panic!("one file is made: {made:?}") };
        says(made, &["disk.img.vmferry-part", "O_EXCL", "0600)"]);
        let changes: Vec<_> =
            calls.iter().filter(|c| ["chmod", "fchown"].iter().any(|name| c.contains(name))).collect();
        let [owner, mode] = &changes[..] else { panic!("owner, then mode: {changes:?}") };
        // A change of owner must not find a mode that is meant for the new owner's group.
        says(owner, &["fchown(", "107, 107)"]);
        says(mode, &["fchmod(", "0660)"]);
    }
}

#[test]
fn i1_a_private_image_stays_private() {
    let scene = Scene::new(4096);
    fs::set_permissions(&scene.image, fs::Permissions::from_mode(0o400)).unwrap();
    let calls = calls(&scene, "000");
    assert_eq!(fs::metadata(scene.there.join("disk.img")).unwrap().mode() & 0o7777, 0o400);
    let modes: Vec<_> = calls.iter().filter(|c| c.contains("chmod")).collect();
    assert_eq!(modes.len(), 1, "{modes:?}");
}

#[test]
fn i1_an_ordinary_user_is_told_that_the_owner_could_not_be_kept() {
    let public = public_folder();
    let program = public_program(public.path(), Path::new(vmferry()));
    let there = public.path().join("there");
    fs::create_dir(&there).unwrap();
    chown(&there, Some(65534), Some(65534)).unwrap();
    let scene = Scene::with(dressed).to(&there);
    let sent = scene.send(&scene.local().remote_path(format!("{AS_NOBODY} {}", program.display())));
    sent.done();
    scene.arrived();
    let notices = notices(&sent);
    let about_owner: Vec<_> = notices.iter().filter(|n| n.contains("owner")).collect();
    let [notice] = &about_owner[..] else { panic!("one notice: {notices:?}") };
    says(notice, &["there: ", "disk.img", "owner 107:107", "run the receiver as root, or chown it"]);
    let copy = fs::metadata(there.join("disk.img")).unwrap();
    assert_eq!((copy.mode() & 0o7777, copy.uid(), copy.gid()), (0o660, 65534, 65534));
}
