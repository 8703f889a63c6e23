//! `vmferry receive --once --stdio`: one job, for the sender that started us.

use std::io::{self, Write};
use std::net::IpAddr;
use std::process::ExitCode;
use std::time::Duration;

use blockio::EngineChoice;
use lanes::identity::{Fingerprint, Identity, random};
use lanes::listen::{self, Doorkeeper, Pass};
use lanes::{tls, tune::Tuning};
use proto::control::{Bootstrap, BootstrapReply, Failure, Message, SessionId};
use receiver::Config;

use super::send::make_way;
use crate::bootstrap::{self, BootstrapError};
use crate::terminal::complain as tell;
use crate::{exit, stop};

const INTERRUPTED: &str = "the receiver was told to end: run the same command again";

const BY_HAND: &str = "this is the receiving end: 'vmferry send IMAGE HOST:PATH' on the other host starts it";

/// Runs the verb.
pub fn run() -> ExitCode {
    let config = match greet() {
        Ok(config) => config,
        Err(code) => return code,
    };
    // From here on the job belongs to the session, not to the shell: it survives a hang-up, and
    // whatever goes wrong is told over the control connection. Relative paths stay what they were.
    if let Err(e) = nix::unistd::daemon(true, false) {
        tell(&format!("vmferry: cannot detach from the remote shell: {e}"));
        return ExitCode::from(exit::FAILED);
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(_) => return ExitCode::from(exit::FAILED),
    };
    let job = async {
        stop::not_at_file_limit();
        receiver::run(config, stop::requested(INTERRUPTED, false)).await
    };
    match runtime.block_on(job) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => ExitCode::from(failure.exit),
    }
}

/// The exchange with the sender; on failure the exit code, the reason being told already.
fn greet() -> Result<Config, ExitCode> {
    let request = request(BY_HAND)?;
    let (reply, config) = match prepare(&request) {
        Ok((reply, config)) => (reply, Ok(config)),
        Err(failure) => (BootstrapReply::Fail(failure.clone()), Err(ExitCode::from(failure.exit))),
    };
    let mut to = io::stdout().lock();
    match bootstrap::send(&mut to, &reply).and_then(|()| to.flush()) {
        Ok(()) => config,
        Err(e) => Err(complain(&format!("cannot answer the sender: {e}"), exit::FAILED)),
    }
}

fn complain(reason: &str, code: u8) -> ExitCode {
    tell(&format!("vmferry: {reason}"));
    ExitCode::from(code)
}

/// Opens the exchange with whoever started us, and takes in what is asked; `by_hand`: what to say to
/// a person who did. On failure the exit code, the reason being told already.
pub fn request<M: Message>(by_hand: &str) -> Result<M, ExitCode> {
    if let Err(e) = bootstrap::open(&mut io::stdout()) {
        return Err(complain(&format!("cannot answer the other end: {e}"), exit::FAILED));
    }
    let mut from = io::stdin().lock();
    match bootstrap::accept(&mut from).and_then(|()| bootstrap::receive(&mut from)) {
        Ok(request) => Ok(request),
        // The other end reads our hello and says it better.
        Err(BootstrapError::Hello(e)) => Err(complain(&e.to_string(), exit::REFUSED)),
        Err(BootstrapError::NoPeer(_)) => Err(complain(by_hand, exit::USAGE)),
        Err(BootstrapError::Malformed) => {
            Err(complain("the other end's request cannot be read", exit::REFUSED))
        }
    }
}

fn prepare(request: &Bootstrap) -> Result<(BootstrapReply, Config), Failure> {
    make_way(request.nice)?;
    let refused = |e: lanes::Error| Failure::new(exit::REFUSED, format!("on the destination: {e}"));
    let engine: EngineChoice =
        request.engine.parse().map_err(|e| Failure::new(exit::REFUSED, format!("{e}")))?;
    let identity = Identity::one_time().map_err(refused)?;
    let session = SessionId(random().map_err(refused)?);
    let (listener, port) = listen::bind(request.ports).map_err(refused)?;
    let dead_after = Duration::from_millis(u64::from(request.dead_after_ms));
    let peer = Fingerprint(request.fingerprint);
    let config = Config {
        listener,
        keeper: Doorkeeper {
            config: tls::server(&identity, tls::pin(peer)).map_err(refused)?,
            tuning: Tuning { unsent: 0, dead_after },
        },
        session,
        pass: Pass { transport: request.transport, secret: request.secret.clone(), peer },
        engine,
        direct: request.direct,
        memory: (request.memory > 0).then_some(request.memory),
        dead_after,
        patience: Duration::from_millis(u64::from(request.patience_ms)),
        asked: None,
    };
    let fingerprint = identity.fingerprint().0;
    Ok((BootstrapReply::Ready { fingerprint, session, port, addresses: addresses() }, config))
}

/// Under which addresses the other end may reach us, best first: the one that its ssh connection came
/// in on, then those of the interfaces, loopback last.
pub fn addresses() -> Vec<String> {
    let mut found: Vec<IpAddr> = Vec::new();
    // "client-address client-port server-address server-port", ssh(1).
    if let Ok(ssh) = std::env::var("SSH_CONNECTION")
        && let Some(address) = ssh.split_whitespace().nth(2).and_then(|a| a.parse().ok())
    {
        found.push(address);
    }
    let mut interfaces: Vec<IpAddr> = Vec::new();
    for interface in nix::ifaddrs::getifaddrs().into_iter().flatten() {
        let Some(storage) = interface.address else { continue };
        if let Some(v4) = storage.as_sockaddr_in() {
            interfaces.push(v4.ip().into());
        } else if let Some(v6) = storage.as_sockaddr_in6() {
            // Link-local addresses mean nothing without the peer's own scope.
            if !v6.ip().is_unicast_link_local() {
                interfaces.push(v6.ip().into());
            }
        }
    }
    interfaces.sort_by_key(|a| (a.is_loopback(), a.is_ipv6()));
    found.extend(interfaces);
    found.dedup();
    found.iter().take(32).map(ToString::to_string).collect()
}
