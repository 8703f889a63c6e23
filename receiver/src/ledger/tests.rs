use super::*;
use proptest::prelude::*;
use std::os::unix::fs::PermissionsExt;

fn head(size: u64) -> Head {
    Head {
        key: [7; 32],
        name: "disk.img".into(),
        size,
        device: false,
        source: SourceIdentity { dev: 1, ino: 2, mtime_ns: 3, ctime_ns: 4 },
        copy: Copy::File { ino: 5, born_ns: Some(6), mark: Some([8; 16]) },
        origin: Origin::Nothing,
        begun: 9,
    }
}

fn with<T>(work: impl FnOnce(&Shelf<'_>, &Path) -> T) -> T {
    let dir = tempfile::tempdir().unwrap();
    let folder = File::open(dir.path()).unwrap();
    let shelf = Shelf { folder: folder.as_fd(), shown: dir.path(), name: name_of("disk.img".as_ref()) };
    work(&shelf, &dir.path().join("disk.img.vmferry-ledger"))
}

fn data(start: u64) -> Run {
    Run { start, content: Content::Data([start as u8 + 1; 32]) }
}

fn zero(start: u64, count: u64) -> Run {
    Run { start, content: Content::Zero(count) }
}

fn all(ledger: &Ledger) -> Vec<Run> {
    let (mut found, mut at) = (Vec::new(), 0);
    while let Some((runs, next)) = ledger.runs(at).unwrap() {
        found.extend(runs);
        at = next;
    }
    found
}

#[test]
fn what_is_noted_is_found_in_order() {
    with(|shelf, _| {
        assert!(Ledger::open(shelf).unwrap().is_none());
        let ledger = Ledger::create(shelf, head(1 << 40)).unwrap();
        ledger.note(&[data(9), zero(5000, 900_000), data(8)]).unwrap();
        ledger.note(&[data(3)]).unwrap();
        let again = Ledger::open(shelf).unwrap().unwrap();
        assert_eq!(again.head(), ledger.head());
        assert_eq!(all(&again), [data(3), data(8), data(9), zero(5000, 900_000)]);
        let durable: Vec<_> = again.durable().unwrap().iter().collect();
        assert_eq!(durable, [3..4, 8..10, 5000..905_000]);
        assert_eq!(again.sealed().unwrap(), None);
        let seal = Seal { tree: [1; 32], mtime_ns: 2 };
        ledger.seal(&seal).unwrap();
        assert_eq!(again.sealed().unwrap(), Some(seal));
    });
}

#[test]
fn a_new_one_replaces_the_old_one_and_what_a_killed_attempt_left() {
    with(|shelf, path| {
        let old = Ledger::create(shelf, head(1 << 30)).unwrap();
        old.note(&[data(0)]).unwrap();
        std::fs::write(path.with_file_name("disk.img.vmferry-ledge~"), "x").unwrap();
        let new = Ledger::create(shelf, head(1 << 30)).unwrap();
        assert_eq!(all(&new), []);
        assert_eq!(all(&Ledger::open(shelf).unwrap().unwrap()), []);
    });
}

#[test]
fn records_of_another_ledger_or_place_are_damage() {
    with(|shelf, path| {
        let ledger = Ledger::create(shelf, head(1 << 30)).unwrap();
        let mut other = ledger.record(&data(4));
        ledger.file.write_all_at(&other, place(5)).unwrap();
        assert!(matches!(ledger.durable(), Err(LedgerError::Damaged)), "another place");
        ledger.file.write_all_at(&[0; RECORD], place(5)).unwrap();
        ledger.durable().unwrap();
        let stranger = Ledger {
            head: Head { key: [6; 32], ..head(1 << 30) },
            file: File::open(path).unwrap(),
            path: path.into(),
        };
        other = stranger.record(&data(4));
        ledger.file.write_all_at(&other, place(4)).unwrap();
        assert!(matches!(ledger.durable(), Err(LedgerError::Damaged)), "another ledger");
    });
}

#[test]
fn runs_that_overlap_or_leave_the_image_are_damage() {
    with(|shelf, _| {
        let ledger = Ledger::create(shelf, head(10 << 20)).unwrap();
        ledger.note(&[zero(2, 5), data(4)]).unwrap();
        assert!(matches!(ledger.durable(), Err(LedgerError::Damaged)));
    });
    with(|shelf, _| {
        let ledger = Ledger::create(shelf, head(10 << 20)).unwrap();
        ledger.note(&[zero(8, 3)]).unwrap();
        assert!(matches!(ledger.durable(), Err(LedgerError::Damaged)));
    });
}

#[test]
fn what_others_may_have_written_is_not_believed() {
    with(|shelf, path| {
        Ledger::create(shelf, head(1 << 20)).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o620)).unwrap();
        assert!(matches!(Ledger::open(shelf), Err(LedgerError::Damaged)));
    });
    with(|shelf, path| {
        Ledger::create(shelf, head(1 << 20)).unwrap();
        std::fs::rename(path, path.with_extension("away")).unwrap();
        std::os::unix::fs::symlink(path.with_extension("away"), path).unwrap();
        assert!(matches!(Ledger::open(shelf), Err(LedgerError::Damaged)));
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    /// Cut anywhere, or any bit turned over: never a granule that was not noted with this hash.
    #[test]
    fn damage_never_makes_a_granule_up(
        cut in any::<bool>(), at in 0usize..(8192 + 64 * 64), bit in 0u8..8,
    ) {
        with(|shelf, path| {
            let noted: Vec<Run> = (0..40).map(data).chain([zero(50, 14)]).collect();
            Ledger::create(shelf, head(64 << 20)).unwrap().note(&noted).unwrap();
            let mut bytes = std::fs::read(path).unwrap();
            let at = at.min(bytes.len() - 1);
            if cut { bytes.truncate(at) } else { bytes[at] ^= 1 << bit }
            std::fs::write(path, bytes).unwrap();
            let Ok(Some(ledger)) = Ledger::open(shelf) else { return };
            assert_eq!(ledger.head(), &head(64 << 20));
            assert_eq!(ledger.sealed().unwrap(), None);
            if ledger.durable().is_ok() {
                assert!(all(&ledger).iter().all(|run| noted.contains(run)));
            }
        });
    }
}
