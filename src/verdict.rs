//! What a verification tells, to people and to machines (`docs/json.md`).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use proto::control::Failure;
use proto::digest::{Digests, hex};
use serde::Serialize;

use crate::cli::Verification;
use crate::ends::End;
use crate::exit;
use crate::progress::{REDRAW, bar, clock, per_second};
use crate::report::{DigestPair, bytes, failed_object, rate};
use crate::terminal::{complain, say};

/// Ranges that people are told of one by one.
const SHOWN: u64 = 20;

/// What was found.
#[derive(Debug)]
pub struct Compared {
    /// Bytes of both that were compared.
    size: u64,
    /// The images have as many bytes each, as far as they were to be compared.
    same_size: bool,
    /// Maximal ranges that differ, and how many bytes they have.
    ranges: u64,
    differing: u64,
    /// How long it took.
    pub took: Duration,
}

impl Compared {
    /// Nothing is known to differ yet.
    pub fn new(size: u64, same_size: bool) -> Compared {
        Compared { size, same_size, ranges: 0, differing: 0, took: Duration::ZERO }
    }

    /// A range differs.
    pub fn add(&mut self, range: Range<u64>) {
        self.ranges += 1;
        self.differing += range.end - range.start;
    }
}

#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Line<'a> {
    Started {
        images: Vec<Looked<'a>>,
        notices: Vec<String>,
    },
    Progress {
        seconds: f64,
        done_bytes: u64,
        image_bytes: u64,
        read_bps: Vec<u64>,
    },
    Difference {
        start: u64,
        end: u64,
    },
    Compared {
        equal: bool,
        image_bytes: u64,
        differing_bytes: u64,
        differing_ranges: u64,
        seconds: f64,
        notices: Vec<String>,
    },
    Done {
        images: usize,
        image_bytes: u64,
        digests: BTreeMap<&'a str, DigestPair>,
        notices: Vec<String>,
    },
}

#[derive(Serialize)]
struct Looked<'a> {
    image: &'a str,
    size: u64,
    device: bool,
    engine: &'a str,
}

/// Chooses between words and objects.
pub struct Verdict {
    json: bool,
    quiet: bool,
    interval: Option<Duration>,
    names: RefCell<Vec<String>>,
    bar: RefCell<Option<ProgressBar>>,
    told: std::cell::Cell<u64>,
}

fn object(line: &Line<'_>) {
    if let Ok(text) = serde_json::to_string(line) {
        say(&text);
    }
}

impl Verdict {
    /// As the command line asks.
    pub fn new(args: &Verification) -> Verdict {
        Verdict {
            json: args.json,
            quiet: args.quiet,
            interval: args.log_interval,
            names: RefCell::default(),
            bar: RefCell::default(),
            told: std::cell::Cell::new(0),
        }
    }

    /// All images are open.
    pub fn started(&self, ends: &[End]) {
        *self.names.borrow_mut() = ends.iter().map(|end| end.name.clone()).collect();
        let notices = self.notices(ends);
        if self.json {
            let images = ends.iter().map(|end| Looked {
                image: &end.name,
                size: end.size,
                device: end.device,
                engine: &end.engine,
            });
            object(&Line::Started { images: images.collect(), notices });
        }
    }

    /// What the user should know by now and was not told yet; people are told here.
    fn notices(&self, ends: &[End]) -> Vec<String> {
        let notices: Vec<String> = ends.iter().flat_map(End::take_notices).collect();
        if !self.json && !self.quiet {
            notices.iter().for_each(|notice| complain(&format!("note: {notice}")));
        }
        notices
    }

    /// A range of bytes differs.
    pub fn difference(&self, range: &Range<u64>) {
        if self.json {
            return object(&Line::Difference { start: range.start, end: range.end });
        }
        self.told.set(self.told.get() + 1);
        if self.quiet || self.told.get() > SHOWN {
            return;
        }
        let length = bytes(range.end - range.start);
        let line = format!("bytes {} to {} differ ({length})", range.start, range.end);
        match &*self.bar.borrow() {
            Some(bar) => bar.suspend(|| say(&line)),
            None => say(&line),
        }
    }

    /// Both were read to the end.
    ///
    /// # Errors
    /// They are not equal: exit code 4, and a sentence.
    pub fn compared(&self, ends: &[End], found: &Compared) -> Result<(), Failure> {
        let [a, b] = ends else { return Ok(()) };
        let equal = found.same_size && found.ranges == 0;
        let seconds = found.took.as_secs_f64();
        let notices = self.notices(ends);
        if self.json {
            object(&Line::Compared {
                equal,
                image_bytes: found.size,
                differing_bytes: found.differing,
                differing_ranges: found.ranges,
                seconds,
                notices,
            });
        } else if !self.quiet && found.ranges > SHOWN {
            say(&format!("and {} more ranges", found.ranges - SHOWN));
        }
        if equal {
            if self.json {
                object(&Line::Done {
                    images: 2,
                    image_bytes: found.size,
                    digests: BTreeMap::new(),
                    notices: vec![],
                });
            } else if !self.quiet {
                say(&format!("{} and {} are equal", a.name, b.name));
                let speed = rate(per_second(found.size, found.took) * 8.0);
                let engine = if a.engine == b.engine {
                    a.engine.clone()
                } else {
                    format!("{}/{}", a.engine, b.engine)
                };
                say(&format!("{} each in {seconds:.2} s, {speed}; engine: {engine}", bytes(found.size)));
            }
            return Ok(());
        }
        Err(Failure::new(exit::DIFFERS, differ(a, b, found)))
    }

    /// The digests of a single image, of which `size` bytes were looked at.
    pub fn digests(&self, end: &End, size: u64, digests: &Digests) {
        let name = end.name.as_str();
        let notices = self.notices(std::slice::from_ref(end));
        if self.json {
            let pair = DigestPair::of(digests);
            return object(&Line::Done {
                images: 1,
                image_bytes: size,
                digests: [(name, pair)].into(),
                notices,
            });
        }
        if self.quiet {
            return;
        }
        if let Some(b3) = digests.b3 {
            say(&format!("{}  {name}", hex(&b3)));
        }
        let hint = if digests.b3.is_none() { "  (b3 of its zeros: --digest b3)" } else { "" };
        say(&format!("tree:{}  {name}{hint}", hex(&digests.tree)));
    }

    /// It failed, or they differ.
    pub fn failed(&self, failure: &Failure) {
        if self.json {
            failed_object(failure);
        }
        complain(&format!("vmferry: {}", failure.reason));
    }

    /// Takes the bar away.
    pub fn clear(&self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }

    /// Runs `work` while showing how far the ends are; `done` counts the bytes of each, `size` in all.
    pub async fn beside<T>(&self, size: u64, done: &[Arc<AtomicU64>], work: impl Future<Output = T>) -> T {
        let wanted = !self.quiet && !self.json && self.interval.is_none();
        let interval = self.interval.filter(|_| !self.quiet || self.json);
        *self.bar.borrow_mut() = wanted.then(|| bar(size)).flatten();
        let every = match (interval, &*self.bar.borrow()) {
            (Some(every), _) => Some(every),
            (None, bar) => bar.is_some().then_some(REDRAW),
        };
        let Some(every) = every else { return work.await };
        let now = || done.iter().map(|bytes| bytes.load(Ordering::Relaxed).min(size)).collect::<Vec<_>>();
        let (mut work, started) = (std::pin::pin!(work), Instant::now());
        let (mut last, mut before) = (started, now());
        loop {
            tokio::select! {
                result = &mut work => {
                    self.clear();
                    return result;
                }
                () = tokio::time::sleep(every) => {}
            }
            let (far, span) = (now(), last.elapsed());
            let rates = far
                .iter()
                .zip(&before)
                .map(|(far, before)| per_second(far.saturating_sub(*before), span) * 8.0);
            self.show(size, &far, &rates.collect::<Vec<_>>(), started.elapsed());
            (last, before) = (Instant::now(), far);
        }
    }

    fn show(&self, size: u64, far: &[u64], rates: &[f64], elapsed: Duration) {
        let done = far.iter().copied().min().unwrap_or(0);
        let names = self.names.borrow();
        let speeds: Vec<_> =
            names.iter().zip(rates).map(|(name, bps)| format!("{name} {}", rate(*bps))).collect();
        let speeds = speeds.join(", ");
        if self.json {
            return object(&Line::Progress {
                seconds: elapsed.as_secs_f64(),
                done_bytes: done,
                image_bytes: size,
                read_bps: rates.iter().map(|bps| *bps as u64).collect(),
            });
        }
        let pace = per_second(done, elapsed);
        let left = if pace > 0.0 && done < size {
            format!("{} left  ", clock(Duration::from_secs_f64(((size - done) as f64 / pace).min(1e7))))
        } else {
            String::new()
        };
        match &*self.bar.borrow() {
            Some(bar) => {
                bar.set_position(done);
                bar.set_message(format!("{left}{speeds}"));
            }
            None => complain(&format!(
                "{:.1} s  {} of {}  {left}{speeds}",
                elapsed.as_secs_f64(),
                bytes(done),
                bytes(size)
            )),
        }
    }
}

/// What is different, as a sentence.
fn differ(a: &End, b: &End, found: &Compared) -> String {
    let Compared { size, differing, ranges, .. } = found;
    let content = match ranges {
        0 => format!("the first {size} bytes are equal"),
        1 => format!("1 range of {differing} bytes, out of {size}, differs"),
        _ => format!("{ranges} ranges, together {differing} of {size} bytes, differ"),
    };
    if found.same_size {
        return format!("{} and {} are not equal: {content} (found to the MiB)", a.name, b.name);
    }
    let hint = if a.device || b.device {
        format!("; a device may be larger than the image on it: --size {size} compares only so much")
    } else {
        String::new()
    };
    format!(
        "{} and {} are not equal: they have {} and {} bytes; {content}{hint}",
        a.name, b.name, a.size, b.size
    )
}
