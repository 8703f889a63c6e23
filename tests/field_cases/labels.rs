//! I2: the copy gets the label that its folder gives, and none from the source. There is no SELinux
//! here: what it goes by is where a file is made, and who sets `security.*`.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::scene::Scene;
use crate::watch::tool;

/// Names of all attributes of a file; as root those of `security.` and `trusted.`, too.
fn attributes(path: &Path) -> Vec<String> {
    let shown = tool(Command::new("getfattr").args(["--absolute-names", "--match=-"]).arg(path));
    shown.lines().filter(|l| !l.is_empty() && !l.starts_with('#')).map(str::to_owned).collect()
}

#[test]
fn i2_the_copy_is_made_in_its_own_folder_and_only_ever_renamed_there() {
    for words in [&[][..], &["--force"]] {
        let scene = Scene::new(1 << 20);
        if words == ["--force"] {
            fs::write(scene.there.join("disk.img"), "old").unwrap();
        }
        let trace = scene.here.path().join("trace");
        // -y shows where a descriptor leads; -D: the receiver stays the shell's child.
        let strace = format!("strace -D -f -y -o {} -e trace=%file,fsetxattr", trace.display());
        let ferry = scene.local().args(words.iter().copied());
        scene.send(&ferry.remote_path(format!("{strace} {}", scene.peer()))).done();
        scene.arrived();
        let calls = fs::read_to_string(trace).unwrap();
        let having = |what: &[&str]| -> Vec<&str> {
            calls.lines().filter(|line| what.iter().any(|word| line.contains(word))).collect()
        };
        let folder = format!("<{}>", scene.there.display());
        let made = having(&["O_CREAT", "O_TMPFILE", " creat(", "mknod"]);
        let [made] = &made[..] else { panic!("one file is made: {made:#?}") };
        assert!(made.contains(&folder) && made.contains("\"disk.img.vmferry-part\""), "{made}");
        let named = having(&[" rename(", "renameat(", "renameat2(", " link(", "linkat(", "symlink("]);
        let named: Vec<_> = named.into_iter().filter(|line| !line.contains("unlinkat(")).collect();
        let [named] = &named[..] else { panic!("it is named once: {named:#?}") };
        assert_eq!(named.matches(&folder).count(), 2, "from the folder to the folder: {named}");
        for attribute in having(&["setxattr("]) {
            assert!(attribute.contains("\"user.vmferry.part\""), "{attribute}");
        }
    }
}

#[test]
fn i2_labels_of_the_source_stay_behind() {
    let scene = Scene::new(1 << 20);
    let label = "system_u:object_r:svirt_image_t:s0:c7,c8";
    let set = [("security.selinux", label), ("trusted.overlay.origin", "x"), ("user.backup.id", "7")];
    for (name, value) in set {
        tool(Command::new("setfattr").args(["-n", name, "-v", value]).arg(&scene.image));
    }
    assert_eq!(attributes(&scene.image).len(), 3, "the test needs a file system with attributes");
    scene.send(&scene.local()).done();
    scene.arrived();
    assert_eq!(attributes(&scene.there.join("disk.img")), ["user.backup.id"]);
}

#[test]
fn i2_the_manual_names_what_an_administrator_has_to_do() {
    let manual = include_str!("../../README.md");
    for word in ["restorecon", "virt_use_nfs"] {
        assert!(manual.contains(word), "{word}");
    }
}
