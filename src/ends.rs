//! The ends of a verification as who compares them sees them: one on this host and one behind a
//! remote shell tell the same.

use std::cell::RefCell;
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use proto::control::Failure;
use proto::geometry::{GRANULE, IMAGE_MAX};
use proto::granules::Content;
use proto::verify::{Go, Inquiry, Manner, Told};
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::bootstrap::{self, BootstrapError};
use crate::cli::Image;
use crate::exit;
use crate::inspect::Inspection;
use crate::remote::{self, Call, Shell};

/// Steps that may wait until they are compared.
const QUEUE: usize = 64;
/// A Ctrl-C ends the shell as well, and is the better reason: it is waited for so long.
const GRACE: Duration = Duration::from_millis(500);
/// The shell has so long to end when all is told.
const HANG_UP: Duration = Duration::from_secs(5);

/// One end, its image being open.
pub struct End {
    /// As the user called the image.
    pub name: String,
    /// Size of the image, bytes.
    pub size: u64,
    /// It is a block device.
    pub device: bool,
    /// `uring` or `sync`.
    pub engine: String,
    notices: RefCell<Vec<String>>,
    /// Bytes looked at.
    pub done: Arc<AtomicU64>,
    /// All was told, and the image did not change.
    pub finished: bool,
    side: Side,
    told: mpsc::Receiver<Told>,
    heard: Instant,
    dead_after: Duration,
}

enum Side {
    Here(Option<Inspection>),
    There { call: Box<Call>, shell: Option<Shell>, listener: Option<JoinHandle<BootstrapError>> },
}

/// Who fails or is interrupted does not wait for the other host: what runs there ends with its shell.
impl Drop for Side {
    fn drop(&mut self) {
        if let Side::There { call, shell, .. } = self
            && let Some(shell) = shell.take()
        {
            shell.end(Duration::ZERO, call.verbose);
        }
    }
}

/// What comes from an end.
pub enum Heard {
    /// The next step.
    Run(Content),
    /// A sign of life.
    Alive,
    /// All was told, and the image did not change.
    End,
}

/// Why nothing more comes from an end.
pub enum Loss {
    /// It said so.
    Failed(Failure),
    /// It was silent for too long.
    Silent,
    /// What it says does not fit.
    Nonsense,
    /// It ended, or makes no sense.
    Gone,
}

impl End {
    /// Opens the image, on whichever host it is.
    ///
    /// # Errors
    /// A sentence; exit code 3 when it cannot be looked at.
    pub async fn open(image: &Image, manner: &Manner, dead_after: Duration) -> Result<End, Failure> {
        let broke =
            |e: tokio::task::JoinError| Failure::new(exit::FAILED, format!("opening broke down: {e}"));
        let manner = manner.clone();
        match image {
            Image::Here(path) => {
                let (name, path) = (path.display().to_string(), path.clone());
                let opened =
                    spawn_blocking(move || Inspection::open(&path, &manner)).await.map_err(broke)??;
                let told = opened.opened();
                let (_, nothing) = mpsc::channel(1);
                Ok(End::new(name, Side::Here(Some(opened)), nothing, dead_after).opened(told))
            }
            Image::There(call) => {
                let (name, call) = (format!("{}:{}", call.to.host, call.to.path), call.clone());
                let inquiry = Inquiry { image: call.to.path.clone(), manner };
                let asked = call.clone();
                let asking = spawn_blocking(move || remote::ask::<_, Told>(&asked, "verify", &inquiry));
                let (first, mut shell) = asking.await.map_err(broke)??;
                let done = Arc::new(AtomicU64::new(0));
                let (hear, told) = mpsc::channel(QUEUE);
                let (from, bytes) = (shell.from.take(), done.clone());
                let listener = from.map(|from| thread::spawn(move || listen(from, first, &bytes, &hear)));
                let side = Side::There { call, shell: Some(shell), listener };
                End { done, ..End::new(name, side, told, dead_after) }.ready().await
            }
        }
    }

    fn new(name: String, side: Side, told: mpsc::Receiver<Told>, dead_after: Duration) -> End {
        let (done, heard) = (Arc::default(), Instant::now());
        let (size, device, engine, notices, finished) = (0, false, String::new(), RefCell::default(), false);
        End { name, size, device, engine, notices, done, finished, side, told, heard, dead_after }
    }

    fn opened(mut self, told: Told) -> End {
        if let Told::Open { size, device, engine, notices } = told {
            (self.size, self.device, self.engine) = (size, device, engine);
            self.hear(notices);
        }
        self
    }

    fn hear(&mut self, notices: Vec<String>) {
        let notices = notices.into_iter().map(|notice| match &self.side {
            Side::Here(_) => notice,
            Side::There { call, .. } => format!("{}: {notice}", call.to.host),
        });
        self.notices.get_mut().extend(notices);
    }

    /// What the user should know and was not told yet, a sentence each; the host's name is in front.
    pub fn take_notices(&self) -> Vec<String> {
        self.notices.take()
    }

    /// Waits until the other host has the image open.
    async fn ready(mut self) -> Result<End, Failure> {
        loop {
            let loss = match timeout(self.dead_after, self.told.recv()).await {
                Ok(Some(Told::Alive { .. })) => continue,
                Ok(Some(told @ Told::Open { size: 0..=IMAGE_MAX, .. })) => return Ok(self.opened(told)),
                Ok(Some(Told::Failed(failure))) => Loss::Failed(failure),
                Ok(None) => Loss::Gone,
                Ok(Some(_)) => Loss::Nonsense,
                Err(_) => Loss::Silent,
            };
            let said = matches!(loss, Loss::Failed(_));
            let failure = self.explain(loss).await;
            return Err(if said { failure } else { Failure { exit: exit::REFUSED, ..failure } });
        }
    }

    /// Starts the reading of the first `size` bytes.
    pub fn go(&mut self, size: u64) {
        self.heard = Instant::now();
        match &mut self.side {
            Side::Here(inspection) => {
                let (tell, told) = mpsc::channel(QUEUE);
                if let Some(inspection) = inspection.take() {
                    tokio::spawn(inspection.run(size, self.done.clone(), tell));
                }
                self.told = told;
            }
            Side::There { shell, .. } => {
                // A shell that takes nothing has ended, which its other end tells.
                let _ = shell.as_mut().map(|shell| shell.tell(&Go { size }));
            }
        }
    }

    /// What it tells next. May be dropped and called again.
    ///
    /// # Errors
    /// Nothing more comes.
    pub async fn next(&mut self) -> Result<Heard, Loss> {
        let silence = async {
            match self.side {
                // A disk may take its time; only a host may be gone.
                Side::Here(_) => std::future::pending().await,
                Side::There { .. } => sleep_until(self.heard + self.dead_after).await,
            }
        };
        let told = tokio::select! {
            biased;
            told = self.told.recv() => told,
            () = silence => return Err(Loss::Silent),
        };
        self.heard = Instant::now();
        match told {
            Some(Told::Data(cv)) => Ok(Heard::Run(Content::Data(cv))),
            Some(Told::Zero(count)) => Ok(Heard::Run(Content::Zero(count))),
            Some(Told::Alive { .. }) => Ok(Heard::Alive),
            Some(Told::Unchanged { notices }) => {
                self.hear(notices);
                self.finished = true;
                Ok(Heard::End)
            }
            Some(Told::Failed(failure)) => Err(Loss::Failed(failure)),
            Some(Told::Open { .. }) => Err(Loss::Nonsense),
            None => Err(Loss::Gone),
        }
    }

    /// The sentence for a loss; what another host says has its name in front.
    pub async fn explain(&mut self, loss: Loss) -> Failure {
        let Side::There { call, shell, listener } = &mut self.side else {
            return match loss {
                Loss::Failed(failure) => failure,
                _ => Failure::new(exit::FAILED, format!("reading {} broke down", self.name)),
            };
        };
        let (host, verbose) = (&call.to.host, call.verbose);
        let nonsense = || Failure::new(exit::FAILED, format!("{host}: what it says cannot be read"));
        match loss {
            Loss::Nonsense => nonsense(),
            // No host talks this side into calling a failure a success, or a difference.
            Loss::Failed(Failure { exit, reason }) => {
                let exit =
                    if matches!(exit, exit::REFUSED | exit::INTERRUPTED) { exit } else { exit::FAILED };
                Failure::new(exit, format!("{host}: {reason}"))
            }
            Loss::Silent => {
                let seconds = self.dead_after.as_secs();
                Failure::new(exit::FAILED, format!("{host}: nothing heard for {seconds} s: check that host"))
            }
            Loss::Gone => {
                // It has ended, which is why nothing comes.
                let why = listener.take().and_then(|listener| listener.join().ok());
                if !matches!(why, None | Some(BootstrapError::NoPeer(_))) {
                    return nonsense();
                }
                sleep(GRACE).await;
                let fate = shell.take().map(|shell| spawn_blocking(move || shell.fate(verbose)));
                let (how, words) = match fate {
                    Some(fate) => fate.await.unwrap_or_default(),
                    None => ("ended".into(), String::new()),
                };
                let words = if words.is_empty() { words } else { format!(" ({words})") };
                let reason = format!(
                    "the remote shell to {host} {how} in the middle of it{words}: check {host} and the way to it, then run the same command again"
                );
                Failure::new(exit::FAILED, reason)
            }
        }
    }

    /// Hangs up.
    pub async fn close(&mut self) {
        if let Side::There { call, shell, .. } = &mut self.side
            && let Some(shell) = shell.take()
        {
            let verbose = call.verbose;
            let _ = spawn_blocking(move || shell.end(HANG_UP, verbose)).await;
        }
    }
}

/// Hears what the other host says, until it ends or makes no sense: why.
fn listen(mut from: impl Read, first: Told, done: &AtomicU64, hear: &mpsc::Sender<Told>) -> BootstrapError {
    let (mut told, mut granules) = (first, 0u64);
    loop {
        granules = granules.saturating_add(match told {
            Told::Data(_) => 1,
            Told::Zero(count) => count,
            _ => 0,
        });
        let ahead = if let Told::Alive { done } = told { done } else { 0 };
        done.fetch_max(ahead.max(granules.saturating_mul(GRANULE.into())), Ordering::Relaxed);
        if hear.blocking_send(told).is_err() {
            return BootstrapError::Malformed;
        }
        told = match bootstrap::receive(&mut from) {
            Ok(told) => told,
            Err(e) => return e,
        };
    }
}
