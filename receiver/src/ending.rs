//! What stays of a job: of one that is done nothing but the images, of another one what the same
//! command can go on with.

use std::sync::Arc;
use std::time::Duration;

use proto::control::{Failure, ToSender};
use tokio::time::timeout;

use crate::flush;
use crate::job::Receiving;
use crate::part::{Part, blocking};

/// The last flush may take so long: whoever ended the job waits for it.
const LAST_FLUSH: Duration = Duration::from_secs(20);
/// Exit code of a copy that is wrong: nobody knows what else of it is.
const WRONG: u8 = 4;

/// Whether the sender knows that everything is in place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Goodbye {
    /// It said so.
    Said,
    /// It went away before: it may come again.
    Missing,
}

/// The images that are in place.
#[derive(Debug)]
pub(crate) struct Placed {
    /// Per image, the tree digest of one that is.
    trees: Vec<Option<[u8; 32]>>,
    /// What was said of them.
    pub(crate) words: Vec<ToSender>,
}

impl Placed {
    /// Of so many images none.
    pub(crate) fn none(images: usize) -> Placed {
        Placed { trees: vec![None; images], words: Vec::new() }
    }

    pub(crate) fn add(&mut self, image: u32, tree: [u8; 32], word: ToSender) {
        self.trees[image as usize] = Some(tree);
        self.words.push(word);
    }

    pub(crate) fn all(&self) -> bool {
        self.trees.iter().all(Option::is_some)
    }
}

/// Every image is in place.
pub(crate) async fn done(job: &Arc<Receiving>, placed: &Placed, goodbye: Goodbye) {
    match goodbye {
        Goodbye::Said => {
            let parts = job.parts.clone();
            let clear = move || {
                parts.iter().for_each(|part| part.logbook.iter().for_each(|l| l.remove()));
                Ok(())
            };
            let _ = blocking(clear).await;
        }
        Goodbye::Missing => seal(job, placed).await,
    }
}

/// The job failed: keeps what is durable, and says so.
pub(crate) async fn unfinished(job: &Arc<Receiving>, placed: &Placed, mut failure: Failure) -> Failure {
    seal(job, placed).await;
    if failure.exit != WRONG {
        // Without it there is still what the flushes before made durable.
        let _ = timeout(LAST_FLUSH, flush::flush(job, None)).await;
    }
    let open = job.parts.iter().zip(&placed.trees).filter(|(_, tree)| tree.is_none());
    let (mut kept, mut in_place) = (Vec::new(), Vec::new());
    for (part, _) in open {
        if part.is_changed_in_place() {
            in_place.push(part.entry.name.as_str());
        } else if failure.exit != WRONG
            && !part.is_still_the_older_copy()
            && part.logbook.as_ref().is_some_and(|l| l.ledger().is_some())
        {
            kept.push(part.entry.name.as_str());
        } else {
            part.remove();
        }
    }
    if !kept.is_empty() {
        failure.reason += &format!(
            " (what is durable of {} is kept and not sent again; 'vmferry drop' on the destination removes it)",
            kept.join(", ")
        );
    }
    if !in_place.is_empty() {
        let names = in_place.join(", ");
        failure.reason += &format!(
            " ({names} is changed in part, and called .vmferry-part until the same command has finished it)"
        );
    }
    failure
}

/// Notes of the images that are in place that they are: the same command shall not find them in its
/// way. As far as possible; they are in place in any case.
pub(crate) async fn seal(job: &Arc<Receiving>, placed: &Placed) {
    let placed: Vec<(Arc<Part>, [u8; 32])> =
        job.parts.iter().zip(&placed.trees).filter_map(|(p, tree)| Some((p.clone(), (*tree)?))).collect();
    let work = move || {
        for (part, tree) in placed {
            if let Some(logbook) = &part.logbook {
                let _ = logbook.seal(&part.image, tree, true);
            }
        }
        Ok(())
    };
    let _ = blocking(work).await;
}
