//! `vmferry receive --into DIR`: the service.

use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use lanes::tune;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use proto::control::Failure;
use receiver::Limits;
use receiver::rules::{Book, Rules};
use receiver::service::{self, Event, Service, Totals};
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::Receive;
use crate::keys::Keys;
use crate::log::{Level, Log};
use crate::place::host_and_port;
use crate::terminal::complain;
use crate::{exit, metrics, stop};

const STOPPED: &str = "the service was told to end: run the same command again when it is back";
/// Between two writes of the figures for a monitor, which scrapes every 15 s and more.
const METRICS: Duration = Duration::from_secs(10);

/// Runs the verb.
pub fn run(args: &Receive, into: &Path) -> ExitCode {
    match serve(args, into) {
        Ok(()) => ExitCode::from(exit::DONE),
        Err(failure) => {
            complain(&format!("vmferry: {}", failure.reason));
            ExitCode::from(failure.exit)
        }
    }
}

fn serve(args: &Receive, into: &Path) -> Result<(), Failure> {
    let refused = |reason: String| Failure::new(exit::REFUSED, reason);
    let root = folder(into)?;
    let keys = Keys::at(args.config.as_deref())?;
    let identity = keys.own()?;
    let rules = keys.rules()?;
    let listeners = listeners(&args.listen)?;
    // One descriptor per connection and image: the usual soft limit of 1024 is for select(2).
    if let Ok((_, most)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, most, most);
    }
    let log = Arc::new(Log::new(args.json));
    let addresses: Vec<String> =
        listeners.iter().filter_map(|l| l.local_addr().ok()).map(|a| a.to_string()).collect();
    log.line(
        Level::Info,
        "serving",
        &[
            ("address", addresses.join(",")),
            ("into", root.display().to_string()),
            ("key", identity.fingerprint().to_string()),
            ("allowed", rules.len().to_string()),
        ],
    );
    warn_of_nobody(&rules, &keys, &log);
    let book = Arc::new(Book::new(rules));
    let totals = Arc::new(Totals::default());
    let service = Service {
        listeners,
        identity,
        root,
        book: book.clone(),
        limits: Limits {
            jobs: args.jobs,
            jobs_per_peer: args.jobs_per_key,
            lanes_per_peer: args.lanes_per_key,
            memory: args.memory,
            memory_per_peer: args.memory_per_key.min(args.memory),
        },
        dead_after: Duration::from_secs(u64::from(args.peer_timeout)),
        log: {
            let log = log.clone();
            Arc::new(move |event: &Event| log.event(event))
        },
        totals: totals.clone(),
    };
    let broke = |e: std::io::Error| Failure::new(exit::FAILED, format!("cannot start: {e}"));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(broke)?;
    let result = runtime.block_on(async {
        stop::not_at_file_limit();
        if let Some(file) = args.metrics.clone() {
            // Found out now, not when a monitor misses it.
            metrics::write(&file, &totals)
                .map_err(|e| refused(format!("cannot write figures to {}: {e}", file.display())))?;
            tokio::spawn(keep_figures(file, totals.clone()));
        }
        let reload = signal(SignalKind::hangup()).map_err(broke)?;
        tokio::spawn(reload_on(reload, keys, book, log.clone()));
        notify(&[sd_notify::NotifyState::Ready]);
        let stopping = async {
            let failure = stop::requested(STOPPED, false).await;
            notify(&[sd_notify::NotifyState::Stopping]);
            failure
        };
        service::serve(service, stopping).await
    });
    // A write that hangs in a dying file system must not keep the service from ending.
    runtime.shutdown_timeout(Duration::from_secs(2));
    if let Some(file) = &args.metrics {
        let _ = metrics::write(file, &totals);
    }
    log.line(Level::Info, "stopped", &[]);
    result
}

fn warn_of_nobody(rules: &Rules, keys: &Keys, log: &Log) {
    if rules.is_empty() {
        let reason =
            format!("nobody may send: {} has no key; see 'vmferry allow'", keys.allow_file().display());
        log.line(Level::Warning, "nobody", &[("reason", reason)]);
    }
}

fn folder(into: &Path) -> Result<PathBuf, Failure> {
    let cannot = |why: &dyn std::fmt::Display| {
        Failure::new(exit::REFUSED, format!("cannot write below {}: {why}", into.display()))
    };
    let root = into.canonicalize().map_err(|e| cannot(&e))?;
    if root.is_dir() { Ok(root) } else { Err(cannot(&"it is not a folder")) }
}

/// The sockets that were asked for, or those that systemd hands over (sd_listen_fds(3)), or the
/// usual one.
fn listeners(asked: &[String]) -> Result<Vec<TcpListener>, Failure> {
    let cannot = |what: &str, e: &dyn std::fmt::Display| {
        Failure::new(exit::REFUSED, format!("cannot listen on {what}: {e}"))
    };
    let mut found = Vec::new();
    for text in asked {
        for address in resolve(text).map_err(|e| cannot(text, &e))? {
            found.push(tune::listen_at(address).map_err(|e| cannot(text, &e))?);
        }
    }
    if !asked.is_empty() {
        return Ok(found);
    }
    let mut handed = listenfd::ListenFd::from_env();
    for index in 0..handed.len() {
        let socket = handed.take_tcp_listener(index).map_err(|e| cannot("the socket from systemd", &e))?;
        if let Some(socket) = socket {
            socket.set_nonblocking(true).map_err(|e| cannot("the socket from systemd", &e))?;
            found.push(socket);
        }
    }
    if found.is_empty() {
        let port = crate::place::SERVICE_PORT;
        found.push(tune::listen(port).map_err(|e| cannot(&format!("port {port}"), &e))?);
    }
    Ok(found)
}

/// `ADDR`, `ADDR:PORT`, `:PORT` or `PORT`.
fn resolve(text: &str) -> Result<Vec<SocketAddr>, String> {
    let (host, port) = match text.parse::<u16>() {
        Ok(port) => ("", port),
        Err(_) => host_and_port(text)?,
    };
    let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
    let bare = if bare.is_empty() { "::" } else { bare };
    (bare, port).to_socket_addrs().map(Iterator::collect).map_err(|e| e.to_string())
}

fn notify(states: &[sd_notify::NotifyState<'_>]) {
    // Nobody to tell is no failure.
    let _ = sd_notify::notify(states);
}

/// Reads the allow file again at every SIGHUP. A faulty one changes nothing.
async fn reload_on(mut hang_up: tokio::signal::unix::Signal, keys: Keys, book: Arc<Book>, log: Arc<Log>) {
    while hang_up.recv().await.is_some() {
        let mut states = vec![sd_notify::NotifyState::Reloading];
        states.extend(sd_notify::NotifyState::monotonic_usec_now().ok());
        notify(&states);
        match keys.rules() {
            Ok(rules) => {
                log.line(Level::Info, "reloaded", &[("allowed", rules.len().to_string())]);
                warn_of_nobody(&rules, &keys, &log);
                book.replace(rules);
            }
            Err(failure) => {
                let reason = format!("{}; what was allowed before stays in force", failure.reason);
                log.line(Level::Warning, "not_reloaded", &[("reason", reason)]);
            }
        }
        notify(&[sd_notify::NotifyState::Ready]);
    }
}

async fn keep_figures(file: PathBuf, totals: Arc<Totals>) {
    let mut tick = tokio::time::interval(METRICS);
    loop {
        tick.tick().await;
        let (file, totals) = (file.clone(), totals.clone());
        // A monitor that misses a write sees the last one.
        let _ = tokio::task::spawn_blocking(move || metrics::write(&file, &totals)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_to_listen_on() {
        for (text, want) in [
            ("7000", "[::]:7000"),
            (":7000", "[::]:7000"),
            ("127.0.0.1", "127.0.0.1:8637"),
            ("127.0.0.1:1", "127.0.0.1:1"),
            ("[::1]:2", "[::1]:2"),
            ("::1", "[::1]:8637"),
        ] {
            assert_eq!(resolve(text).unwrap(), [want.parse().unwrap()], "{text}");
        }
        assert!(resolve("127.0.0.1:x").is_err());
    }
}
