//! One test per defect that was found and fixed.
#![allow(missing_docs, clippy::unwrap_used)]

mod ferry;
mod scene;

use std::fs;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::time::Duration;

use ferry::Ferry;
use scene::fake::shell;
use scene::{Scene, fault_fs, hurry, notices, says, slow_link};
use serde_json::Value;
use testbed::disk::{Fs, LoopDisk};
use testbed::faults::{DirectIo, Faults};
use testbed::images;
use testbed::net::{Link, LinkConfig};

/// An option between the images and the destination made the last image the destination.
#[test]
fn an_option_may_stand_before_the_destination() {
    let scene = Scene::new(1 << 20);
    scene.send(&scene.local().args(["--streams", "2"])).done();
    scene.arrived();
}

/// The receiver was started first, and then waited for a sender that had given up.
#[test]
fn too_little_memory_for_the_streams_is_found_before_the_remote_shell_runs() {
    let scene = Scene::new(4096);
    let mark = scene.here.path().join("asked");
    let ferry = scene.local().rsh(format!("touch {}", mark.display()));
    let reason = scene.send(&ferry.args(["--streams", "64", "--memory", "8M"])).failed(2);
    says(&reason, &["64 streams", "--memory gives 8388608", "fewer --streams or a smaller --chunk"]);
    assert!(!mark.exists(), "no host was asked");
    scene.untouched();
}

/// The sender waited until nobody had the shell's stderr open; ssh with ControlPersist leaves a child
/// that has it open for hours.
#[test]
fn a_shell_that_leaves_a_child_with_its_stderr_is_not_waited_for() {
    let scene = Scene::new(4096);
    let persist = "echo 'no route to there' >&2; sleep 70 >/dev/null & exit 255";
    let reason = scene.send(&scene.local().rsh(shell(&scene, persist))).failed(3);
    says(&reason, &["'sh' ended with 255", "no route to there"]);
    scene.untouched();
}

/// It said that the destination was as before.
#[test]
fn interrupted_between_two_images_it_says_which_one_is_in_place() {
    let (link, scene) = (slow_link(), Scene::new(48 << 20));
    let first = scene.here.path().join("a-small.img");
    fs::write(&first, [7; 4096]).unwrap();
    let ferry = Ferry::over(&link).remote_path(scene.peer()).arg(&first).arg(&scene.image);
    let mut attempt = scene.start(&ferry);
    attempt.until(|e| e["event"] == "committed");
    attempt.signal("INT");
    let reason = attempt.wait().failed(6);
    says(&reason, &["interrupted", "a-small.img"]);
    assert!(!reason.contains("the destination is as it was"), "{reason}");
    // The same command finds it there, and sends the rest.
    hurry(&link);
    scene.send(&ferry).done();
    assert_eq!(fs::read(scene.there.join("a-small.img")).unwrap(), [7; 4096]);
    fs::remove_file(scene.there.join("a-small.img")).unwrap();
    scene.arrived();
}

/// The sender closed the connections that it had, the receiver complained about that, and the
/// complaint was shown in place of the cause.
#[test]
fn a_data_connection_that_cannot_be_made_is_the_reason_shown() {
    let link = Link::up(LinkConfig::default()).unwrap();
    let [there, here] = [link.b(), link.a()].map(|host| host.address().to_string());
    let scene = Scene::new(1 << 20);
    // Control finds its way by the first address, half of the data connections try the other.
    let both = scene.over(&link).args(["--via", &there, "--via", &here, "--port", "7001"]);
    let reason = scene.send(&both).failed(3);
    says(&reason, &["connection refused by 10.77.0.1:7001", "--via"]);
    scene.untouched();
}

/// The system's reason was left out.
#[test]
fn an_unreachable_address_comes_with_its_cause() {
    let source = std::io::Error::from_raw_os_error(113);
    let error = lanes::Error::Connect { peer: ([10, 77, 0, 2], 7000).into(), source };
    says(&error.to_string(), &["10.77.0.2:7000", "No route to host"]);
}

/// The first 64 GiB of an image's zeros were hashed for a digest that was then given up. The bound is
/// on the time of the cores: hashing half a TiB takes minutes of it, not hashing it under one second.
#[test]
fn zeros_are_not_hashed_for_a_digest_that_is_given_up() {
    let (from, to) = (ferry::folder(), ferry::folder());
    let images = (0..8).map(|i| from.path().join(format!("{i}.img")));
    let images: Vec<_> = images
        .inspect(|path| {
            let image = fs::File::create(path).unwrap();
            image.set_len(1 << 40).unwrap();
            // No hole is above the limit by itself.
            (0..32).for_each(|i| image.write_all_at(&[1], i << 35).unwrap());
        })
        .collect();
    let done = Ferry::local().wrap(["prlimit", "--cpu=20"]).args(&images).send(to.path()).done();
    let digests = done["digests"].as_object().unwrap();
    assert!(digests.len() == 8 && digests.values().all(|d| d["b3"].is_null() && d["tree"].is_string()));
}

/// Lines about progress came while the destination was still being asked.
#[test]
fn there_is_no_progress_before_the_job_is_accepted() {
    // The handshake needs several of these, and is longer than the interval.
    let delay = Some(Duration::from_millis(60));
    let link = Link::up(LinkConfig { delay, ..LinkConfig::default() }).unwrap();
    let scene = Scene::new(1 << 20);
    let sent = scene.send(&scene.over(&link).args(["--log-interval", "0.1"]));
    sent.done();
    assert_eq!(sent.events()[0]["event"], "started", "{}", sent.stdout);
    scene.arrived();
}

/// A hole was said to be limited by the destination's disk.
#[test]
fn nothing_limits_what_sends_nothing() {
    let scene = Scene::with(|path| fs::File::create(path).unwrap().set_len(50 << 20).unwrap());
    let done = scene.send(&scene.local()).done();
    assert_eq!((&done["data_bytes"], &done["bottleneck"]), (&0.into(), &Value::Null));
    scene.arrived();
}

/// io_uring went on after a short direct transfer by itself, and on FUSE it did so from the same
/// offset again: the copy was wrong, and called verified.
#[test]
fn short_transfers_on_fuse_lose_nothing() {
    const SIZE: u64 = (5 << 20) + 1;
    // Whole blocks, and pieces after which nothing is aligned any more.
    for piece in [4096, 64 << 10, 50_001] {
        let [from, to] = [ferry::folder(), ferry::folder()];
        let source = fault_fs(from.path(), Faults::default());
        let target = fault_fs(to.path(), Faults { short_writes: Some(piece), ..Faults::default() });
        let image = source.path().join("disk.img");
        let scene = Scene::new(SIZE).to(target.path());
        fs::copy(&scene.image, &image).unwrap();
        source.set(Faults { short_reads: Some(piece), ..Faults::default() });
        source.reset_counts();
        scene.send(&scene.local_as(&image)).done();
        scene.arrived();
        let (reads, writes) = (source.counts(), target.counts());
        assert!(reads.reads > SIZE / u64::from(piece) && writes.writes > SIZE / u64::from(piece));
        assert!(reads.direct_opens > 0 && writes.direct_writes > 0, "it is about direct calls");
    }
}

/// The destination's were told twice, the source's late ones never, and nobody knew whose they were.
#[test]
fn each_notice_comes_once_and_the_receivers_bear_its_host() {
    let [from, to] = [ferry::folder(), ferry::folder()];
    let lacking = |direct| Faults { direct, ..Faults::default() };
    let source = fault_fs(from.path(), lacking(DirectIo::RefusedAtRead));
    let target = fault_fs(to.path(), lacking(DirectIo::RefusedAtOpen));
    let image = source.path().join("disk.img");
    let scene = Scene::new(1 << 20).to(target.path());
    fs::copy(&scene.image, &image).unwrap();
    let sent = scene.send(&scene.local_as(&image));
    sent.done();
    let [there, here] = &notices(&sent)[..] else { panic!("one each: {}", sent.stdout) };
    says(there, &["there: ", "disk.img.vmferry-part does not support direct I/O"]);
    says(here, &[image.to_str().unwrap(), "does not support direct I/O"]);
    assert!(!here.contains("there: "), "{here}");
}

/// Zeros overtook the data before them, and space was then reserved over their place.
#[test]
fn written_zeros_take_no_space() {
    // One MiB of data, seven of zeros, and so on, all of it allocated at the source.
    let scene = Scene::with(|path| {
        images::dirty(path, 128 << 20, 0).unwrap();
        let image = fs::OpenOptions::new().write(true).open(path).unwrap();
        (0..16).for_each(|i| image.write_all_at(&vec![7; 1 << 20], i << 23).unwrap());
    });
    for streams in ["1", "4", "16"] {
        let done = scene.send(&scene.local().args(["--force", "--streams", streams])).done();
        scene.arrived();
        assert_eq!(done["data_bytes"], 16 << 20);
        let takes = images::allocated(&scene.there.join("disk.img")).unwrap();
        assert!(takes <= (16 << 20) + (64 << 10), "{streams} streams: it takes {takes} bytes");
    }
}

/// A message that could not be written ended the command by a panic, exit code 101.
#[test]
fn a_full_standard_error_changes_nothing() {
    let scene = Scene::new(1 << 20);
    let full = || fs::File::options().write(true).open("/dev/full").unwrap();
    let mut refused = scene.local().arg("/nonexistent").command(&scene.there);
    assert_eq!(refused.stderr(full()).stdout(full()).status().unwrap().code(), Some(3));
    let mut sent = scene.local().args(["--log-interval", "0.1"]).command(&scene.there);
    assert_eq!(sent.stderr(full()).stdout(full()).status().unwrap().code(), Some(0));
    scene.arrived();
}

/// The job was called done when the last commit was heard of, not when it was told.
#[test]
fn every_image_is_told_of() {
    let (from, to) = (ferry::folder(), ferry::folder());
    let images: Vec<_> = (0..6).map(|i| from.path().join(format!("{i}.img"))).collect();
    images.iter().for_each(|path| fs::write(path, "x").unwrap());
    for _ in 0..15 {
        let sent = Ferry::local().args(["--force"]).args(&images).send(to.path());
        sent.done();
        assert_eq!(sent.events().iter().filter(|e| e["event"] == "committed").count(), 6, "{}", sent.stdout);
    }
}

/// Nothing had been changed, but the exit code said that something might.
#[test]
fn an_engine_that_is_not_there_is_refused_before_anything_changes() {
    let scene = Scene::new(4096);
    let testbed = ferry::testbed().into_os_string();
    let denied = [testbed, "deny-io-uring".into(), "EPERM".into(), "--".into()];
    scene.send(&scene.local().args(["--engine", "uring"]).wrap(denied)).failed(3);
    scene.untouched();
}

/// The job was called done, and the name belonged to another file.
#[test]
fn a_part_file_that_somebody_replaced_is_not_given_the_name() {
    for replaced in [true, false] {
        let link = slow_link();
        let scene = Scene::new(8 << 20).expecting_what_is_there();
        let ferry = scene.over(&link).args(["--log-interval", "0.1"]);
        let mut attempt = scene.start(&ferry);
        attempt.until_copying();
        let part = scene.there.join("disk.img.vmferry-part");
        fs::rename(&part, scene.there.join("elsewhere")).unwrap();
        if replaced {
            fs::write(&part, "foreign").unwrap();
        }
        hurry(&link);
        let reason = attempt.wait().failed(1);
        says(&reason, &["there: ", "disk.img.vmferry-part is no longer the copy"]);
        assert!(!scene.there.join("disk.img").exists());
        assert_eq!(part.exists(), replaced, "what is not ours stays");
    }
}

/// A copy started with nohup(1) ended when its terminal went away.
#[test]
fn nohup_is_respected() {
    let link = slow_link();
    let scene = Scene::new(8 << 20);
    let ignoring = ["sh", "-c", "trap '' HUP; exec \"$@\"", "sh"];
    let mut attempt = scene.start(&scene.over(&link).args(["--log-interval", "0.1"]).wrap(ignoring));
    attempt.until_copying();
    attempt.signal("HUP");
    hurry(&link);
    attempt.wait().done();
    scene.arrived();
}

/// The second leaf of a chunk ended the command by a panic.
#[test]
fn chunks_of_several_leaves_arrive() {
    let scene = Scene::new((9 << 20) + 513);
    for chunk in ["2M", "4M"] {
        scene.send(&scene.local().args(["--force", "--chunk", chunk])).done();
        scene.arrived();
    }
}

/// A dry run said that the job could start, and the job itself was refused.
#[test]
fn a_dry_run_finds_out_that_nothing_can_be_written() {
    let place = ferry::folder();
    let disk = LoopDisk::new(place.path(), 64 << 20, Fs::Ext4, 512).unwrap();
    let folder = disk.folder().unwrap();
    let remount = Command::new("mount").args(["-o", "remount,ro"]).arg(folder).status();
    assert!(remount.unwrap().success());
    let scene = Scene::new(1 << 20).to(folder).expecting_what_is_there();
    for words in [&["--dry-run"][..], &[]] {
        let reason = scene.send(&scene.local().args(words.iter().copied())).failed(3);
        says(&reason, &["there: cannot write into folder", "Read-only file system"]);
    }
}

/// A limit on file sizes killed the receiver, which left its part file and told no reason.
#[test]
fn a_limit_on_file_sizes_is_an_error_like_others() {
    let scene = Scene::new(4 << 20);
    let peer = format!("prlimit --fsize=1000000 {}", scene.peer());
    let reason = scene.send(&scene.local().remote_path(peer)).failed(3);
    says(&reason, &["File too large"]);
    scene.untouched();
}

/// `vmferry allow` alone shows the file, as its help says.
#[test]
fn allow_alone_shows_who_may_send() {
    let config = ferry::folder();
    let key = format!("SHA256:{}", "5d".repeat(32));
    let allow = |words: &[&str]| {
        let mut command = Command::new(ferry::vmferry());
        command.arg("allow").args(words).arg("--config").arg(config.path());
        ferry::Sent::of(command.output().unwrap())
    };
    assert_eq!(allow(&[&key, "--name", "host1", "--overwrite"]).exit, 0);
    let shown = allow(&[]);
    assert_eq!((shown.exit, shown.stdout), (0, format!("{key} name=host1 overwrite\n")));
    // What could not be read back locked everybody out at the next start.
    let refused = allow(&[&key, "--name", "a\nb"]);
    assert_eq!(refused.exit, 2);
    says(&refused.stderr, &["cannot be a line of"]);
    assert_eq!(allow(&["--list"]).stdout, format!("{key} name=host1 overwrite\n"));
    assert_eq!(allow(&[&key, "--remove"]).exit, 0);
    assert_eq!(allow(&[]).stdout, "");
}
