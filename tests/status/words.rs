//! What people and machines are told.

use std::fs;
use std::path::Path;

use super::{MIB, drop, image, killed_at, number, only, part, run, status};
use crate::ferry;
use crate::scene::{Scene, says};

#[test]
fn nothing_is_an_answer() {
    let folder = ferry::folder();
    fs::write(folder.path().join("disk.img"), "whole").unwrap();
    assert!(status(folder.path()).is_empty());
    let sent = run(["status".as_ref(), folder.path().as_os_str()]);
    assert_eq!((sent.exit, sent.stderr.as_str()), (0, ""));
    says(&sent.stdout, &["no unfinished copies in", folder.path().to_str().unwrap()]);
}

#[test]
fn folders_that_cannot_be_read() {
    let folder = ferry::folder();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    for wrong in [folder.path().join("nowhere"), file] {
        let sent = run(["status".as_ref(), "--json".as_ref(), folder.path().as_os_str(), wrong.as_ref()]);
        says(&sent.failed(3), &["cannot read folder", wrong.to_str().unwrap()]);
        assert_eq!(sent.events().len(), 1, "no half an answer");
    }
    says(&drop(Path::new("/"), &[]).failed(3), &["does not name a file"]);
    says(&drop(&folder.path().join("no/where"), &[]).failed(3), &["cannot read folder"]);
}

/// A table, the same whether the folder is named or the current one.
#[test]
fn people_get_a_table() {
    let scene = Scene::new(64 * MIB);
    killed_at(&scene, 32 * MIB);
    fs::write(scene.there.join("other.vmferry-part"), "precious").unwrap();
    let named = run(["status".as_ref(), scene.there.as_os_str()]);
    let mut here = std::process::Command::new(ferry::vmferry());
    let here = ferry::Sent::of(here.arg("status").current_dir(&scene.there).output().unwrap());
    for sent in [named, here] {
        assert_eq!((sent.exit, sent.stderr.as_str()), (0, ""));
        let lines: Vec<_> = sent.stdout.lines().collect();
        let [head, copy, next, other, left] = lines[..] else { panic!("{}", sent.stdout) };
        says(head, &["COPY OF", "SIZE", "DURABLE", "ON DISK", "BEGUN", "CHANGED", "WHAT", "SOURCE"]);
        says(copy, &[image(&scene).to_str().unwrap(), "64.0 MiB", " % ", "new copy", " s "]);
        says(next, &["vmferry send", &format!("vmferry drop {}", image(&scene).display())]);
        says(other, &["/other ", "not vmferry's"]);
        says(left, &["other.vmferry-part is not an unfinished copy", "left alone"]);
        for column in ["SIZE", "WHAT"] {
            let at = head.find(column).unwrap();
            assert!(
                [copy, other].iter().all(|l| &l[at - 2..at] == "  " && &l[at..=at] != " "),
                "{}",
                sent.stdout
            );
        }
    }
    let sent = run(["drop".as_ref(), part(&scene).as_os_str()]);
    assert_eq!((sent.exit, sent.stderr.as_str()), (0, ""));
    says(&sent.stdout, &["the unfinished copy of", image(&scene).to_str().unwrap(), "MiB freed"]);
    let sent = run(["drop".as_ref(), part(&scene).as_os_str()]);
    assert_eq!((sent.exit, sent.stdout.as_str()), (3, ""));
    assert_eq!(sent.stderr.lines().count(), 1);
}

/// docs/json.md names every field, and no other.
#[test]
fn the_fields_are_those_that_are_documented() {
    let docs = fs::read_to_string("docs/json.md").unwrap();
    let section = |verb: &str| {
        let from = docs.split(&format!("## `{verb}`")).nth(1).unwrap_or_else(|| panic!("{verb}"));
        from.split("\n## ").next().unwrap().to_owned()
    };
    let scene = Scene::new(64 * MIB);
    killed_at(&scene, 32 * MIB);
    let told = |verb: &str, events: &[serde_json::Value]| {
        let section = section(verb);
        for event in events {
            let name = event["event"].as_str().unwrap();
            says(&section, &[&format!("`{name}`")]);
            let keys = event.as_object().unwrap().keys().filter(|key| *key != "event");
            keys.for_each(|key| says(&section, &[format!("`{key}`").as_str()]));
        }
    };
    let copy = only(&scene.there);
    assert!(number(&copy, "durable_bytes") > 0);
    told("status", &run(["status".as_ref(), "--json".as_ref(), scene.there.as_os_str()]).events());
    for kind in ["new", "clone", "in-place", "complete", "orphan", "damaged", "foreign"] {
        says(&section("status"), &[&format!("`{kind}`")]);
    }
    told("drop", &drop(&image(&scene), &[]).events());
    told("drop", &drop(&image(&scene), &[]).events());
}
