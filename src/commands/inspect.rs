//! `vmferry verify --once --stdio`: looks at an image of this host for whoever compares it.

use std::io::{self, Read};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use proto::control::Failure;
use proto::verify::{Go, Inquiry, Told};
use tokio::runtime::{Handle, Runtime};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::{errand, receive};
use crate::inspect::Inspection;
use crate::{bootstrap, exit, stop};

const BY_HAND: &str =
    "this is the other end of a verification: 'vmferry verify IMAGE HOST:IMAGE' on another host starts it";
const INTERRUPTED: &str = "vmferry was told to end there: run the same command again";
/// How often something is said, a sign of life at least.
const BEAT: Duration = Duration::from_millis(100);
/// Steps that may wait for the shell to take them.
const QUEUE: usize = 64;

/// Runs the verb.
pub fn run() -> ExitCode {
    let inquiry: Inquiry = match receive::request(BY_HAND) {
        Ok(inquiry) => inquiry,
        Err(code) => return code,
    };
    let Ok(runtime) = Runtime::new() else { return ExitCode::from(exit::FAILED) };
    let done = Arc::new(AtomicU64::new(0));
    let (tell, queue) = mpsc::channel(QUEUE);
    let teller = speak(runtime.handle().clone(), queue, done.clone());
    let going = listen();
    let result = runtime.block_on(async {
        tokio::select! {
            result = look(inquiry, going, done, tell.clone()) => result,
            // A shell that hangs up closes standard input.
            failure = stop::requested(INTERRUPTED, false) => Err(failure),
        }
    });
    let code = result.as_ref().err().map_or(exit::DONE, |failure| failure.exit);
    if let Err(failure) = result {
        let _ = tell.blocking_send(Told::Failed(failure));
    }
    drop(tell);
    let _ = teller.join();
    runtime.shutdown_timeout(Duration::ZERO);
    ExitCode::from(code)
}

async fn look(
    inquiry: Inquiry,
    going: oneshot::Receiver<Go>,
    done: Arc<AtomicU64>,
    tell: mpsc::Sender<Told>,
) -> Result<(), Failure> {
    let path = errand::at_home(&inquiry.image)?;
    let opened = tokio::task::spawn_blocking(move || Inspection::open(&path, &inquiry.manner)).await;
    let inspection = opened.map_err(|e| Failure::new(exit::FAILED, format!("opening broke down: {e}")))??;
    let _ = tell.send(inspection.opened()).await;
    // Without a word more the process ends with the shell.
    let Ok(go) = going.await else { return std::future::pending().await };
    inspection.run(go.size, done, tell).await;
    Ok(())
}

/// Waits for the start, then for the end of the shell, and ends with it: nobody else would hear, and
/// nothing is left behind, since images are only read.
fn listen() -> oneshot::Receiver<Go> {
    let (go, going) = oneshot::channel();
    thread::spawn(move || {
        let mut from = io::stdin().lock();
        if let Ok(word) = bootstrap::receive(&mut from) {
            let _ = go.send(word);
            let _ = from.read(&mut [0]);
        }
        std::process::exit(exit::FAILED.into());
    });
    going
}

/// Passes on what is told, on a thread: a shell that takes nothing holds up no disk.
fn speak(runtime: Handle, mut queue: mpsc::Receiver<Told>, done: Arc<AtomicU64>) -> JoinHandle<()> {
    thread::spawn(move || {
        loop {
            let told = match runtime.block_on(async { timeout(BEAT, queue.recv()).await }) {
                Ok(Some(told)) => told,
                Ok(None) => return,
                Err(_) => Told::Alive { done: done.load(Ordering::Relaxed) },
            };
            if bootstrap::send(&mut io::stdout(), &told).is_err() {
                std::process::exit(exit::FAILED.into());
            }
        }
    })
}
