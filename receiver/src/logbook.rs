//! Keeps the ledger of one copy: makes it when there is first something to note that nobody is about
//! to make needless, so that small copies have none.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use blockio::Image;
use proto::control::Failure;
use proto::granules::Run;

use crate::ledger::{Head, Ledger, LedgerError, Seal, Shelf};

/// The ledger of one copy, made or not.
#[derive(Debug)]
pub(crate) struct Logbook {
    folder: Arc<OwnedFd>,
    shown: PathBuf,
    name: std::ffi::OsString,
    state: Mutex<State>,
}

#[derive(Debug)]
enum State {
    /// Not made: what it will say, and what is durable.
    Draft(Box<Head>, Vec<Run>),
    Open(Arc<Ledger>),
    Removed,
}

impl Logbook {
    /// For a copy that begins.
    pub(crate) fn draft(folder: Arc<OwnedFd>, shelf: &Shelf<'_>, head: Head) -> Logbook {
        Logbook {
            folder,
            shown: shelf.shown.to_owned(),
            name: shelf.name.clone(),
            state: Mutex::new(State::Draft(Box::new(head), Vec::new())),
        }
    }

    /// For a copy that is gone on with.
    pub(crate) fn open(folder: Arc<OwnedFd>, shelf: &Shelf<'_>, ledger: Ledger) -> Logbook {
        Logbook {
            folder,
            shown: shelf.shown.to_owned(),
            name: shelf.name.clone(),
            state: Mutex::new(State::Open(Arc::new(ledger))),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shelf(&self) -> Shelf<'_> {
        Shelf { folder: self.folder.as_fd(), shown: &self.shown, name: self.name.clone() }
    }

    fn failed(&self, e: &LedgerError) -> Failure {
        let path = self.shown.join(&self.name);
        Failure::new(1, format!("cannot note in {} what is durable: {e}", path.display()))
    }

    /// Notes granules that are on the disk. Unless `make`, a ledger that does not exist yet is not
    /// made, and what it would say is remembered. Waits for the disk.
    ///
    /// # Errors
    /// A sentence, exit code 1; the job is over then.
    pub(crate) fn note(&self, runs: Vec<Run>, make: bool) -> Result<(), Failure> {
        let mut state = self.state();
        match &mut *state {
            State::Removed => Ok(()),
            State::Open(ledger) => ledger.note(&runs).map_err(|e| self.failed(&e.into())),
            State::Draft(head, noted) => {
                noted.extend(runs);
                if !make || noted.is_empty() {
                    return Ok(());
                }
                let made = Ledger::create(&self.shelf(), (**head).clone())
                    .and_then(|ledger| Ok(ledger.note(noted).map(|()| ledger)?));
                *state = State::Open(Arc::new(made.map_err(|e| self.failed(&e))?));
                Ok(())
            }
        }
    }

    /// The ledger, if it was made.
    pub(crate) fn ledger(&self) -> Option<Arc<Ledger>> {
        match &*self.state() {
            State::Open(ledger) => Some(ledger.clone()),
            State::Draft(..) | State::Removed => None,
        }
    }

    /// Notes that the copy is complete; with `make` also where there is no ledger yet. Waits for the
    /// disk.
    ///
    /// # Errors
    /// A sentence, exit code 1.
    pub(crate) fn seal(&self, image: &Image, tree: [u8; 32], make: bool) -> Result<(), Failure> {
        let mut state = self.state();
        if let State::Draft(head, _) = &*state
            && make
        {
            let made = Ledger::create(&self.shelf(), (**head).clone()).map_err(|e| self.failed(&e))?;
            *state = State::Open(Arc::new(made));
        }
        let State::Open(ledger) = &*state else { return Ok(()) };
        let identity = image.identity().map_err(|e| Failure::new(1, e.to_string()))?;
        ledger.seal(&Seal { tree, mtime_ns: identity.mtime_ns }).map_err(|e| self.failed(&e))
    }

    /// It is not needed any more.
    pub(crate) fn remove(&self) {
        let mut state = self.state();
        if let State::Open(_) = &*state {
            self.shelf().clear();
        }
        *state = State::Removed;
    }
}
