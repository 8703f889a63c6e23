//! All attempts of one job, and what must hold after each.

use testbed::images::content::Numbers;
use testbed::net::{Link, LinkConfig, Rate, Shape};

use super::Bench;
use super::attempt::{self, Ended};
use super::place::{Place, said};
use super::plan::Plan;
use super::report::Wrong;
use crate::cli::Failure;

/// A job that is not done by then never is.
const ATTEMPTS: u64 = 16;
/// What must never be said: a record of what is not there.
const FALSE_RECORD: &str = "does not hold what its ledger says";

/// What may be said only of a ledger that was damaged on purpose: neither a crash nor a power cut does.
const DAMAGED: &str = "its ledger is damaged";
const LEDGER_DAMAGED: &str = "ledger damaged";

/// Runs the job of `seed`. Its story, a line for each attempt.
pub fn run(bench: &Bench, seed: u64) -> Vec<String> {
    let mut story = Vec::new();
    match attempts(bench, seed, &mut story) {
        Ok(Ok(())) => {}
        Ok(Err((kind, what))) => bench.report.wrong(kind, seed, &what, &story),
        Err(error) => bench.report.wrong(Wrong::Bed, seed, &said(&*error), &story),
    }
    story
}

/// What does not hold.
type Held = Result<(), (Wrong, String)>;

/// Leaves the function with what does not hold.
macro_rules! hold {
    ($held:expr) => {
        if let Err(wrong) = $held {
            return Ok(Err(wrong));
        }
    };
}

fn attempts(bench: &Bench, seed: u64, story: &mut Vec<String>) -> Result<Held, Failure> {
    let mut dice = Numbers::new(seed);
    let plan = Plan::new(&mut dice);
    story.push(format!(
        "{:?}, {:?}, {} Mbit/s, {}",
        plan.disk,
        plan.images,
        plan.rate,
        plan.options.join(" ")
    ));
    let shape = Shape { total: Some(Rate::mbit(plan.rate)), flow: None };
    let link = Link::up(LinkConfig { shape, ..LinkConfig::default() })?;
    let mut place = Place::new(bench, &plan, &mut dice)?;
    let mut more: Vec<&str> = Vec::new();
    let mut refused = 0;
    for number in 0..ATTEMPTS {
        let count = if number < plan.disturbed { 1 + dice.below(2) } else { 0 };
        let ended = attempt::run(bench, &plan, &mut place, &link, count, &more, &mut dice)?;
        let resumed = ended.said.contains("durable since an earlier attempt");
        bench.report.attempt(ended.exit, resumed);
        let shown = ended.said.trim().lines().collect::<Vec<_>>().join(" | ");
        story.push(format!("{:?} {more:?} -> {}: {shown}", ended.faults, ended.exit));
        more.clear();
        let lost_power = ended.faults.contains(&"power loss");
        hold!(orderly(&ended));
        if ended.said.contains(DAMAGED) && !story.iter().any(|line| line == LEDGER_DAMAGED) {
            return Ok(Err((Wrong::Mismatch, "a ledger is damaged, and nobody did that".into())));
        }
        hold!(equal(&place, ended.exit == 0)?);
        match ended.exit {
            0 => {
                if ended.faults.is_empty() {
                    hold!(nothing_left(&place)?);
                }
                if !lost_power && dice.below(2) == 0 && place.disk.power_loss(dice.any())? {
                    bench.report.fault("power loss when done");
                    story.push("power loss when done".into());
                    hold!(equal(&place, true)?);
                }
                bench.report.done(plan.bytes());
                return Ok(Ok(()));
            }
            3 => {
                refused += 1;
                match next(&ended.said) {
                    Next::Force => more.push("--force"),
                    Next::Clear => place.clear()?,
                    Next::Again if count > 0 || refused < 3 => {}
                    Next::Again => return Ok(Err((Wrong::Stuck, "it is refused again and again".into()))),
                }
            }
            _ if ended.faults.is_empty() => {
                return Ok(Err((Wrong::Stuck, "it failed, and nobody disturbed it".into())));
            }
            _ => {}
        }
        if number < plan.disturbed {
            between(bench, &mut place, &mut dice, story)?;
        }
    }
    Ok(Err((Wrong::Stuck, format!("not done after {ATTEMPTS} attempts"))))
}

/// What may happen while nobody runs.
fn between(
    bench: &Bench,
    place: &mut Place,
    dice: &mut Numbers,
    story: &mut Vec<String>,
) -> Result<(), Failure> {
    let (name, done) = match dice.below(8) {
        0 => ("power loss between", place.disk.power_loss(dice.any())?),
        1 => (LEDGER_DAMAGED, place.damage_ledger(dice)?),
        2 => ("source touched", place.touch(dice)?),
        _ => return Ok(()),
    };
    if done {
        bench.report.fault(name);
        story.push(name.into());
    }
    Ok(())
}

/// It ended, and left no process.
fn orderly(ended: &Ended) -> Held {
    if ended.hung {
        return Err((Wrong::Hang, "it did not end".into()));
    }
    if !ended.strays.is_empty() {
        return Err((Wrong::Leak, format!("processes were left: {:?}", ended.strays)));
    }
    if ended.exit == 4 || ended.said.contains(FALSE_RECORD) {
        return Err((Wrong::Mismatch, "what is there is not what was noted or sent".into()));
    }
    if !matches!(ended.exit, 0 | 1 | 3 | 6 | -1) || ended.said.contains("panicked") {
        return Err((Wrong::Stuck, format!("exit code {}", ended.exit)));
    }
    Ok(())
}

/// The sources are what they were, and the copies that are there, or `all`, what the sources are.
fn equal(place: &Place, all: bool) -> Result<Held, Failure> {
    Ok(match place.differs(all)? {
        None => Ok(()),
        Some(what) => Err((Wrong::Mismatch, what)),
    })
}

fn nothing_left(place: &Place) -> Result<Held, Failure> {
    let left = place.strange_files()?;
    Ok(if left.is_empty() { Ok(()) } else { Err((Wrong::Leak, format!("files were left: {left:?}"))) })
}

/// What a person does who is refused.
enum Next {
    Again,
    Force,
    Clear,
}

fn next(said: &str) -> Next {
    if said.contains("--force") {
        return Next::Force;
    }
    // On a file system without attributes only a ledger tells whose a part file is.
    if said.contains("is not an unfinished copy of this user's") { Next::Clear } else { Next::Again }
}
