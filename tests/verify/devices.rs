//! Block devices: of other sizes, with sectors in which an image ends.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use testbed::disk::{Fs, LoopDisk};
use testbed::images;

use crate::ferry::Ferry;
use crate::scene::{Attempt, says};
use crate::{MIB, Pair, compared, ranges, there};

fn write(device: &Path, bytes: &[u8], at: u64) {
    let file = File::options().write(true).open(device).unwrap();
    file.write_all_at(bytes, at).unwrap();
    file.sync_all().unwrap();
}

#[test]
fn an_image_on_a_larger_device() {
    for sector in [512, 4096] {
        let size = 7 * MIB + 513;
        let pair = Pair::with(|path| images::random(path, size, 9).unwrap());
        let disk = LoopDisk::new(pair.folder.path(), 16 * MIB, Fs::None, sector).unwrap();
        images::dirty(disk.device(), 16 * MIB, 0xaa).unwrap();
        Attempt::start(Ferry::local().args(["--force"]).arg(&pair.a).command(disk.device())).wait().done();
        for device in [disk.device().as_os_str().to_owned(), there(disk.device())] {
            let images = [pair.a.clone().into(), device];
            let sent = pair.start(&[], &images).wait();
            let hint = format!("--size {size}");
            says(&sent.failed(4), &[&format!("they have {size} and {} bytes", 16 * MIB), "are equal", &hint]);
            assert_eq!(ranges(&sent), []);
            let sent = pair.start(&["--size", &size.to_string()], &images).wait();
            sent.done();
            assert_eq!(
                (&compared(&sent)["equal"], &compared(&sent)["image_bytes"]),
                (&true.into(), &size.into())
            );
        }
        // What lies past the image in its last sector does not count, what lies before does.
        let images = [pair.a.clone().into(), there(disk.device())];
        write(disk.device(), b"x", size);
        pair.start(&["--size", &size.to_string()], &images).wait().done();
        write(disk.device(), b"\x00\x01", size - 2);
        let sent = pair.start(&["--size", &size.to_string()], &images).wait();
        assert_eq!((sent.exit, ranges(&sent)), (4, vec![(7 * MIB, size)]), "{}", sent.stderr);
    }
}

#[test]
fn two_devices_of_one_size() {
    let pair = Pair::equal(MIB);
    let disks =
        [512, 4096].map(|sector| LoopDisk::new(pair.folder.path(), 16 * MIB, Fs::None, sector).unwrap());
    disks.iter().for_each(|disk| images::dirty(disk.device(), 16 * MIB, 0x55).unwrap());
    let images = [disks[0].device().as_os_str().to_owned(), there(disks[1].device())];
    let done = pair.start(&[], &images).wait();
    assert_eq!(done.done()["image_bytes"], 16 * MIB);
    assert_eq!(done.events()[0]["images"][1]["device"], true);
    images::dirty(disks[1].device(), 4096, 0).unwrap();
    let sent = pair.start(&[], &images).wait();
    sent.failed(4);
    assert_eq!(ranges(&sent), [(0, MIB)]);
}
