//! A verification: two ends look at an image each, whoever asked compares what they tell.
//!
//! ```text
//! who asks                                    the end that the remote shell started
//!   (remote shell's stdin)                      (its stdout)
//!   noise-skipping magic, Hello, Inquiry    →
//!                                           ←  magic, Hello, Told::Alive … (all the time)
//!                                           ←  Told::Open{size}     (or Failed: cannot be looked at)
//!   Go{size}                                →
//!                                           ←  Told::Data, Zero …   (in the order of the image)
//!                                           ←  Told::Unchanged      (or Failed)
//! ```
//! `size` is what both images have: an image that is longer is told as if it ended there, since the
//! hash of the last granule depends on where it ends. Whoever finds the shell closed ends.
//!
//! What is told are granules, so differences are known to the granule: 34 bytes travel for each.

use std::collections::VecDeque;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::control::{Failure, MANIFEST, Message, SMALL};
use crate::digest::Cv;
use crate::geometry::{ChunkSize, GRANULE};
use crate::granules::Content;

/// What an end is asked to look at.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Inquiry {
    /// Path of the image, as typed.
    pub image: String,
    /// How.
    pub manner: Manner,
}

/// How an image is looked at.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Manner {
    /// I/O engine: "auto", "uring", "sync".
    pub engine: String,
    /// `false`: never open with O_DIRECT.
    pub direct: bool,
    /// Look at an image that something may be writing, too.
    pub force: bool,
    /// Read no holes: the file system knows where they are.
    pub trust_holes: bool,
}

/// Starts the reading.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Go {
    /// Bytes to look at, from the start: at most what the image has.
    pub size: u64,
}

/// What an end tells.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Told {
    /// Still here. Comes several times a second.
    Alive {
        /// Bytes looked at.
        done: u64,
    },
    /// The image can be looked at.
    Open {
        /// Its size, bytes.
        size: u64,
        /// It is a block device.
        device: bool,
        /// Engine in use: "uring" or "sync".
        engine: String,
        /// What the user should know, a sentence each.
        notices: Vec<String>,
    },
    /// The next granule holds data; its hash.
    Data(Cv),
    /// So many granules read as zero.
    Zero(u64),
    /// All was told, and the image is still what it was when it was opened.
    Unchanged {
        /// What turned out on the way, a sentence each.
        notices: Vec<String>,
    },
    /// The end gives up.
    Failed(Failure),
}

impl Message for Inquiry {
    fn limit(_: u8) -> u32 {
        SMALL
    }
}

impl Message for Go {
    fn limit(_: u8) -> u32 {
        16
    }
}

impl Message for Told {
    fn limit(kind: u8) -> u32 {
        match kind {
            // Sentences.
            1 | 4 => MANIFEST,
            5 => SMALL,
            _ => 64,
        }
    }
}

/// An end's account does not fit its image.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("what is told of the image is longer or shorter than the image")]
pub struct Misfit;

/// How far an end's account has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Account {
    told: u64,
    total: u64,
}

impl Account {
    /// Of an image of `size` bytes.
    pub fn new(size: u64) -> Account {
        Account { told: 0, total: ChunkSize::DEFAULT.count(size) }
    }

    /// Takes in one step; the number of its first granule.
    ///
    /// # Errors
    /// It reaches past the end of the image, or is empty.
    pub fn add(&mut self, run: &Content) -> Result<u64, Misfit> {
        let count = match run {
            Content::Data(_) => 1,
            Content::Zero(count) => *count,
        };
        if count == 0 || count > self.total - self.told {
            return Err(Misfit);
        }
        self.told += count;
        Ok(self.told - count)
    }

    /// The end has told all it has.
    ///
    /// # Errors
    /// That is not all of the image.
    pub fn close(&self) -> Result<(), Misfit> {
        if self.told == self.total { Ok(()) } else { Err(Misfit) }
    }
}

/// Steps of one end that are kept until the other has come as far.
const AHEAD: usize = 4096;

/// Compares two accounts while they come in. Memory: 4096 steps of the end that is ahead.
#[derive(Debug)]
pub struct Comparison {
    size: u64,
    ends: [End; 2],
    /// The first granule that was not compared.
    at: u64,
    /// Granules that differ, up to `at`; more may follow.
    open: Option<Range<u64>>,
}

#[derive(Debug)]
struct End {
    account: Account,
    waiting: VecDeque<Content>,
}

impl Comparison {
    /// Of two images, or parts of them, of `size` bytes.
    pub fn new(size: u64) -> Comparison {
        let end = || End { account: Account::new(size), waiting: VecDeque::new() };
        Comparison { size, ends: [end(), end()], at: 0, open: None }
    }

    /// Whether this end (0 or 1) is to be listened to: it is not too far ahead of the other.
    pub fn wants(&self, end: usize) -> bool {
        self.ends[end].waiting.len() < AHEAD
    }

    /// Takes in what end 0 or 1 tells next; `differs` hears of maximal ranges of bytes that differ, in
    /// order.
    ///
    /// # Errors
    /// It does not fit the image.
    pub fn add(
        &mut self,
        end: usize,
        run: Content,
        mut differs: impl FnMut(Range<u64>),
    ) -> Result<(), Misfit> {
        self.ends[end].account.add(&run)?;
        self.ends[end].waiting.push_back(run);
        let [a, b] = &mut self.ends;
        while let (Some(left), Some(right)) = (a.waiting.front().copied(), b.waiting.front().copied()) {
            let (equal, count) = match (left, right) {
                (Content::Data(left), Content::Data(right)) => (left == right, 1),
                (Content::Zero(left), Content::Zero(right)) => (true, left.min(right)),
                _ => (false, 1),
            };
            for end in [&mut *a, &mut *b] {
                match end.waiting.front_mut() {
                    Some(Content::Zero(left)) if *left > count => *left -= count,
                    _ => drop(end.waiting.pop_front()),
                }
            }
            let here = self.at..self.at + count;
            self.at = here.end;
            self.open = match (self.open.take(), equal) {
                (Some(range), true) => {
                    differs(bytes(&range, self.size));
                    None
                }
                (None, true) => None,
                (range, false) => Some(range.map_or(here.start, |range| range.start)..here.end),
            };
        }
        Ok(())
    }

    /// End 0 or 1 says that it has told all.
    ///
    /// # Errors
    /// It has not.
    pub fn end(&self, end: usize) -> Result<(), Misfit> {
        self.ends[end].account.close()
    }

    /// Both ends have told all: the last range, when it reaches to the end.
    pub fn close(self, mut differs: impl FnMut(Range<u64>)) {
        if let Some(range) = self.open {
            differs(bytes(&range, self.size));
        }
    }
}

/// Granules to bytes of an image of `size` bytes.
fn bytes(granules: &Range<u64>, size: u64) -> Range<u64> {
    let at = |granule: u64| granule.saturating_mul(u64::from(GRANULE)).min(size);
    at(granules.start)..at(granules.end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{HEAD_LEN, decode, encode, payload_len};
    use crate::digest::hex;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    fn round_trip<M: Message + PartialEq + std::fmt::Debug>(m: M) -> Vec<u8> {
        let bytes = encode(&m).expect("fits");
        let head: [u8; HEAD_LEN] = bytes[..HEAD_LEN].try_into().expect("at least one byte");
        assert_eq!(payload_len::<M>(&head).expect("fits"), bytes.len() - 4);
        assert_eq!(decode::<M>(&bytes[4..]).expect("reads"), m);
        bytes
    }

    /// Golden: the wire form of version 1, so that a reordered enum is noticed.
    #[test]
    fn golden_messages() {
        let manner = Manner { engine: "auto".into(), direct: true, force: false, trust_holes: true };
        let inquiry = Inquiry { image: "~/a.img".into(), manner };
        let notices = vec!["n".to_owned()];
        let open = Told::Open { size: 300, device: true, engine: "sync".into(), notices: notices.clone() };
        let got = [
            hex(&round_trip(inquiry)),
            hex(&round_trip(Go { size: u64::MAX })),
            hex(&round_trip(Told::Alive { done: u64::MAX })),
            hex(&round_trip(open)),
            hex(&round_trip(Told::Data([7; 32]))),
            hex(&round_trip(Told::Zero(u64::MAX))),
            hex(&round_trip(Told::Unchanged { notices })),
            hex(&round_trip(Told::Failed(Failure::new(3, "no")))),
        ];
        assert_eq!(got.join("\n"), include_str!("../tests/golden/verify.hex").trim());
    }

    #[test]
    fn lengths_are_bounded_before_allocation() {
        for kind in 0..=255 {
            assert!(payload_len::<Told>(&[1, 0, 0x40, 0, kind]).is_err());
            assert!(payload_len::<Inquiry>(&[1, 0x40, 0, 0, kind]).is_err());
            assert!(payload_len::<Go>(&[17, 0, 0, 0, kind]).is_err());
        }
        assert!(payload_len::<Told>(&[65, 0, 0, 0, 2]).is_err());
    }

    /// Tells both accounts, `burst` steps of each in turn.
    fn compare(size: u64, accounts: [&[Content]; 2], burst: usize) -> Result<Vec<Range<u64>>, Misfit> {
        let (mut comparison, mut found) = (Comparison::new(size), Vec::new());
        let mut left = accounts.map(<[Content]>::to_vec).map(VecDeque::from);
        while left.iter().any(|runs| !runs.is_empty()) {
            for (end, runs) in left.iter_mut().enumerate() {
                for _ in 0..burst.min(runs.len()) {
                    let run = runs.pop_front().expect("counted");
                    comparison.add(end, run, |range| found.push(range))?;
                }
            }
        }
        comparison.end(0)?;
        comparison.end(1)?;
        comparison.close(|range| found.push(range));
        Ok(found)
    }

    const fn data(n: u8) -> Content {
        Content::Data([n; 32])
    }

    #[test]
    fn ranges_are_merged_and_cut_at_the_end() {
        let size = 9 * MIB + 5;
        let a = [data(1), Content::Zero(4), data(2), data(3), Content::Zero(2), data(4)];
        let b = [
            data(1),
            Content::Zero(2),
            data(9),
            data(9),
            data(2),
            data(9),
            Content::Zero(1),
            data(9),
            data(9),
        ];
        for burst in [1, 2, 99] {
            let found = compare(size, [&a, &b], burst).expect("fits");
            assert_eq!(found, [3 * MIB..5 * MIB, 6 * MIB..7 * MIB, 8 * MIB..size]);
            assert_eq!(compare(size, [&a, &a], burst), Ok(vec![]));
        }
        assert_eq!(compare(0, [&[], &[]], 1), Ok(vec![]));
        assert_eq!(
            compare(3 * MIB, [&[Content::Zero(3)], &[Content::Zero(1), Content::Zero(2)]], 1),
            Ok(vec![])
        );
    }

    #[test]
    fn accounts_that_do_not_fit_are_refused() {
        let whole = &[Content::Zero(2)][..];
        for bad in [
            &[Content::Zero(3)][..],
            &[Content::Zero(u64::MAX)],
            &[Content::Zero(2), data(1)],
            &[Content::Zero(0)],
            &[Content::Zero(1)],
            &[],
        ] {
            assert_eq!(compare(2 * MIB, [bad, whole], 1), Err(Misfit), "{bad:?}");
            assert_eq!(compare(2 * MIB, [whole, bad], 1), Err(Misfit), "{bad:?}");
        }
    }

    #[test]
    fn an_end_that_is_ahead_is_not_listened_to() {
        let mut comparison = Comparison::new(u64::MAX);
        while comparison.wants(1) {
            comparison.add(1, data(1), drop).expect("fits");
        }
        assert!(comparison.wants(0));
        comparison.add(0, data(1), drop).expect("fits");
        assert!(comparison.wants(1));
    }

    fn runs() -> impl Strategy<Value = Vec<Content>> {
        let run = prop_oneof![(1u8..4).prop_map(data), (1u64..5).prop_map(Content::Zero)];
        proptest::collection::vec(run, 0..40)
    }

    /// One entry per granule, `None` for zeros.
    fn spelled_out(runs: &[Content], total: usize) -> Vec<Option<Cv>> {
        let mut all = Vec::new();
        for run in runs {
            match run {
                Content::Data(cv) => all.push(Some(*cv)),
                Content::Zero(count) => all.extend((0..*count).map(|_| None)),
            }
        }
        all.resize(total, None);
        all
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_fail(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode::<Inquiry>(&bytes);
            let _ = decode::<Go>(&bytes);
            let _ = decode::<Told>(&bytes);
        }

        /// Against a comparison granule by granule.
        #[test]
        fn what_differs_is_found(mut a in runs(), mut b in runs(), burst in 1usize..9, tail in 1..=MIB) {
            let count = |runs: &[Content]| runs.iter().map(|r| if let Content::Zero(n) = r { *n } else { 1 }).sum::<u64>();
            let total = count(&a).max(count(&b)).max(1);
            for runs in [&mut a, &mut b] {
                let missing = total - count(runs);
                runs.extend((missing > 0).then_some(Content::Zero(missing)));
            }
            let size = (total - 1) * MIB + tail;
            let found = compare(size, [&a, &b], burst).expect("fits");
            let (a, b) = (spelled_out(&a, total as usize), spelled_out(&b, total as usize));
            for (i, (a, b)) in (0u64..).zip(a.iter().zip(&b)) {
                prop_assert_eq!(found.iter().any(|range| range.contains(&(i * MIB))), a != b);
            }
            prop_assert!(found.windows(2).all(|pair| pair[0].end < pair[1].start), "merged: {:?}", found);
            prop_assert!(found.iter().all(|range| range.end <= size && !range.is_empty()));
        }
    }
}
