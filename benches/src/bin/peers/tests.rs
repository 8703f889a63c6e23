//! Medians, tables and promises, on results that were made up.

use crate::machine::Machine;
use crate::promises::judge;
use crate::report;
use crate::results::{Content, Figures, Kind, Outcome, Results, Run, Scene, Store, Wire, median};

const BARE: Scene = Scene { link: Wire::Bare, store: Store::Disk, image: Content::Dense };
const CABLE: Scene = Scene { link: Wire::Cable, store: Store::Disk, image: Content::Dense };

fn done(wall: f64, own: Option<f64>, cpu: f64) -> Outcome {
    Outcome::Done(Figures {
        wall_seconds: wall,
        own_seconds: own,
        cpu_seconds: cpu,
        source_memory: 10 << 20,
        destination_memory: 20 << 20,
        connections: 5,
        holes_kept: None,
    })
}

fn run(scene: Scene, contender: &str, kind: Kind, outcome: Outcome) -> Run {
    Run {
        scene,
        image_bytes: 1_000_000_000,
        data_bytes: 1_000_000_000,
        contender: contender.to_owned(),
        kind,
        checked: "no".to_owned(),
        round: 0,
        outcome,
    }
}

fn results(runs: Vec<Run>) -> Results {
    let machine = Machine {
        cpu: "a processor".to_owned(),
        cores: 2,
        kernel: "6".to_owned(),
        memory: 8 << 30,
        disk: "a disk, ext4".to_owned(),
    };
    Results { date: "2026-01-02".to_owned(), machine, tools: Vec::new(), runs }
}

/// Everything that the first scene's promises look at.
fn bare() -> Vec<Run> {
    vec![
        run(BARE, "raw loop 4", Kind::Raw, done(1.1, Some(1.0), 0.25)),
        run(BARE, "vmferry tcp 2", Kind::Vmferry, done(1.3, Some(1.25), 0.6)),
        run(BARE, "vmferry tcp 4", Kind::Vmferry, done(1.1, Some(1.0), 0.5)),
        run(BARE, "nbdcopy 4 → nbdkit", Kind::Peer, done(1.5, None, 1.0)),
        run(BARE, "mbuffer", Kind::Peer, done(1.4, None, 0.4)),
        run(BARE, "iperf3 4", Kind::Information, done(0.1, None, 0.1)),
    ]
}

fn said(runs: Vec<Run>) -> Vec<String> {
    judge(&results(runs).scenes()).iter().map(ToString::to_string).collect()
}

#[test]
fn the_median_is_the_middle() {
    assert_eq!(median([].into_iter()), None);
    assert_eq!(median([3.0].into_iter()), Some(3.0));
    assert_eq!(median([3.0, 1.0].into_iter()), Some(2.0));
    assert_eq!(median([3.0, 1.0, 10.0].into_iter()), Some(3.0));
}

#[test]
fn promises_are_judged_by_the_right_clock_and_the_best_row() {
    let said = said(bare());
    assert_eq!(said.len(), 4, "{said:?}");
    let expected = [
        "raw loop 4 ≥ 0.95: 1.000, **holds** (vmferry tcp 4, raw loop 4)",
        // By the wall; iperf3 is no peer.
        "fastest peer ≥ 1.2: 1.273, **holds** (vmferry tcp 4, mbuffer)",
        "raw loop 4 ≤ 2.5: 2.000, **holds** (vmferry tcp 4, raw loop 4)",
        "least ≤ 0.55: 0.500, **holds** (vmferry tcp 4, nbdcopy 4 → nbdkit)",
    ];
    for (said, expected) in said.iter().zip(expected) {
        assert!(said.ends_with(expected), "{said}");
    }
}

#[test]
fn a_broken_promise_says_so() {
    let mut runs = bare();
    runs.push(run(BARE, "wdt 4", Kind::Peer, done(1.0, None, 0.4)));
    assert!(said(runs)[1].ends_with("0.909, **does not hold** (vmferry tcp 4, wdt 4)"));
}

#[test]
fn scenes_that_were_not_run_are_not_judged() {
    assert!(said(Vec::new()).is_empty());
    assert_eq!(said(vec![run(CABLE, "raw loop 4", Kind::Raw, done(1.0, Some(1.0), 0.2))]).len(), 2);
}

#[test]
fn what_failed_or_lacks_holds_no_promise() {
    let raw = run(CABLE, "raw loop 4", Kind::Raw, done(1.0, Some(1.0), 0.2));
    let good = run(CABLE, "vmferry tcp 4", Kind::Vmferry, done(1.0, Some(1.0), 0.2));
    let bad = run(CABLE, "vmferry tcp 4", Kind::Vmferry, Outcome::Failed("it differs".into()));
    let said = said(vec![raw, good, bad]);
    assert!(said[0].ends_with("**not known**: vmferry tcp 4 failed"), "{}", said[0]);
    assert!(said[1].ends_with("**not known**: vmferry tls 4 was not run"), "{}", said[1]);
}

#[test]
fn one_failed_peer_leaves_the_others_to_compare_with() {
    let mut runs = bare();
    runs.push(run(BARE, "scp", Kind::Peer, Outcome::Failed("no route".into())));
    assert!(said(runs)[1].contains("1.273"));
}

#[test]
fn the_table_has_medians_ratios_and_failures() {
    let mut runs = bare();
    runs.push(run(BARE, "mbuffer", Kind::Peer, done(1.6, None, 0.4)));
    runs.push(run(BARE, "scp", Kind::Peer, Outcome::Failed("no route".into())));
    let text = report::summary(&results(runs));
    let row = |name: &str| {
        let found = text.lines().find(|line| line.starts_with(&format!("| {name}")));
        found.unwrap_or_else(|| panic!("{name} is not in\n{text}")).to_owned()
    };
    assert_eq!(
        row("vmferry tcp 2"),
        "| vmferry tcp 2 | 1.30 | 769 (769-769) | 800 | 0.60 | 10/20 | 5 | no | - | 0.80 |"
    );
    assert_eq!(row("mbuffer"), "| mbuffer | 1.50 | 670 (625-714) | - | 0.40 | 10/20 | 5 | no | - | 0.73 |");
    assert!(row("scp **failed**").starts_with("| scp **failed** | - | - | - | - | - | - | no | - |"));
    assert!(text.contains("**scp** failed in 1 of 1: no route"), "{text}");
}

#[test]
fn results_survive_the_file_and_are_put_together() {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let file = folder.path().join("results.json");
    let mut first = results(bare());
    first.write(&file).expect("a new file");
    let second = Results::read(&file).expect("it was just written");
    first.add(second.clone()).expect("the same machine");
    let scenes = first.scenes();
    assert_eq!(scenes.len(), 1);
    assert!(scenes[0].1.iter().all(|row| row.runs.len() == 2));

    let mut other = second.clone();
    other.runs[0].image_bytes /= 2;
    assert!(first.clone().add(other).is_err());

    let mut other = second;
    other.machine.cpu = "another processor".to_owned();
    assert!(first.clone().add(other).is_err());
}

#[test]
fn the_document_names_the_machine_and_the_promises() {
    let text = report::document(&results(bare()));
    for part in ["a processor", "2026-01-02", "## bare/disk/dense", "## What vmferry promises"] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
}
