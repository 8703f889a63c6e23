//! Comes by the other end: starts it through a remote shell, or asks a receiver service.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use lanes::dial::Dialer;
use lanes::identity::{Fingerprint, Identity, random};
use lanes::{tls, tune};
use proto::control::{Bootstrap, BootstrapReply, Failure, Message, SessionId};
use proto::errand::Family;
use proto::join::Secret;

mod service;

use crate::bootstrap::{self, BootstrapError};
use crate::cli::Send;
use crate::exit;
use crate::place::Place;
use crate::terminal::complain;

/// From the start of the remote shell to the first answer. Somebody may be typing a password.
const SHELL: Duration = Duration::from_secs(50);
/// For the resolver, after the remote shell has ended.
const LOOK_UP: Duration = Duration::from_secs(2);
/// For one address to accept a connection.
pub const CONNECT: Duration = Duration::from_secs(10);

/// A receiver that listens.
#[derive(Debug)]
pub struct Receiver {
    /// Joins its session.
    pub dialer: Dialer,
    /// Where control may be reached, best first.
    pub addresses: Vec<SocketAddr>,
    /// Where data lanes go, the addresses of each way; empty: where control went.
    pub via: Vec<Vec<SocketAddr>>,
}

/// Finds or starts it and exchanges keys.
///
/// # Errors
/// One sentence, exit code 3 (or what the other side says).
pub fn start(args: &Send) -> Result<Receiver, Failure> {
    // Before anything is started over there.
    let via = via(&args.via, args.family())?;
    match args.to.service {
        Some(port) => service::ask(args, port, via),
        None => through_shell(args, via),
    }
}

fn through_shell(args: &Send, mut via: Vec<Vec<SocketAddr>>) -> Result<Receiver, Failure> {
    let named = look_up(args.to.machine());
    let identity = Identity::one_time().map_err(crypto)?;
    let request = request(args, &identity)?;
    let (reply, shell) = ask(&args.call(), "receive", &request)?;
    shell.end(Duration::from_secs(5), args.verbose);
    let (fingerprint, session, port, announced) = match reply {
        BootstrapReply::Ready { fingerprint, session, port, addresses } => {
            (fingerprint, session, port, addresses)
        }
        BootstrapReply::Fail(failure) => return Err(failure),
    };
    via.iter_mut().flatten().for_each(|a| a.set_port(port));
    let mut addresses = if via.is_empty() { candidates(&named, &announced, port) } else { via.concat() };
    addresses.retain(|a| args.family().has(a));
    if addresses.is_empty() {
        return Err(no_address(args.to.machine(), none_of(args.family())));
    }
    let config = tls::client(&identity, tls::pin(Fingerprint(fingerprint))).map_err(crypto)?;
    Ok(Receiver { dialer: dialer(args, config, request.secret, session)?, addresses, via })
}

fn crypto(e: lanes::Error) -> Failure {
    Failure::new(exit::FAILED, e.to_string())
}

/// What a receiver is asked for.
fn request(args: &Send, identity: &Identity) -> Result<Bootstrap, Failure> {
    Ok(Bootstrap {
        fingerprint: identity.fingerprint().0,
        secret: Secret(random().map_err(crypto)?),
        transport: args.transport.into(),
        ports: args.port,
        engine: args.engine.to_string(),
        direct: !args.no_direct,
        memory: args.memory.unwrap_or(0),
        dead_after_ms: args.peer_timeout * 1000,
        nice: args.nice,
        patience_ms: args.patience * 1000,
    })
}

fn dialer(
    args: &Send,
    config: Arc<lanes::tls::ClientConfig>,
    secret: Secret,
    session: SessionId,
) -> Result<Dialer, Failure> {
    Ok(Dialer {
        config,
        transport: args.transport.into(),
        secret,
        session,
        epoch: 1,
        ports: tune::SourcePorts::starting_at(u16::from_le_bytes(random().map_err(crypto)?)),
        tuning: tune::Tuning {
            unsent: args.chunk.bytes(),
            dead_after: Duration::from_secs(u64::from(args.peer_timeout)),
        },
        patience: CONNECT,
    })
}

/// Where `--via` leads; the port is not known yet.
///
/// # Errors
/// One sentence, exit code 3: a name without an address.
pub fn via(names: &[String], family: Family) -> Result<Vec<Vec<SocketAddr>>, Failure> {
    let mut found = Vec::new();
    for name in names {
        let mut way: Vec<SocketAddr> = Vec::new();
        let addresses = resolve(name, 0).map_err(|e| no_address(name, &e))?;
        for address in addresses.filter(|a| family.has(a)) {
            if !way.contains(&address) {
                way.push(address);
            }
        }
        if way.is_empty() {
            return Err(no_address(name, none_of(family)));
        }
        found.push(way);
    }
    Ok(found)
}

/// What a name, or an address with or without a scope (`fe80::1%eth0`), stands for.
///
/// # Errors
/// What the resolver says.
pub fn resolve(name: &str, port: u16) -> io::Result<impl Iterator<Item = SocketAddr>> {
    let bare = name.strip_prefix('[').and_then(|n| n.strip_suffix(']')).unwrap_or(name);
    (bare, port).to_socket_addrs()
}

/// Begins to find out what a name means here: a resolver that gets no answer takes longer than a
/// receiver waits (resolv.conf(5): 5 s, twice, for each server).
fn look_up(machine: &str) -> mpsc::Receiver<Vec<SocketAddr>> {
    let (found, answer) = mpsc::channel();
    let machine = machine.to_owned();
    thread::spawn(move || {
        let _ = found.send(resolve(&machine, 0).into_iter().flatten().collect());
    });
    answer
}

/// Why a family leaves no address.
pub fn none_of(family: Family) -> &'static str {
    match family {
        Family::V4 => "none of its addresses is IPv4 (-4)",
        Family::V6 => "none of its addresses is IPv6 (-6)",
        Family::Any => "it has no address",
    }
}

/// There is no way to a host.
pub fn no_address(name: &str, why: &(impl std::fmt::Display + ?Sized)) -> Failure {
    Failure::new(exit::REFUSED, format!("cannot connect to '{name}': {why}; name another one with --via"))
}

/// The address of the ssh connection first, then what the host's name means here (if that is found
/// out soon), then the receiver's other addresses. The pinned key refuses every wrong one.
fn candidates(named: &mpsc::Receiver<Vec<SocketAddr>>, announced: &[String], port: u16) -> Vec<SocketAddr> {
    let announced = announced.iter().filter_map(|a| a.parse().ok()).map(|a: IpAddr| SocketAddr::new(a, port));
    let mut named = named.recv_timeout(LOOK_UP).unwrap_or_default();
    named.iter_mut().for_each(|a| a.set_port(port));
    let mut all: Vec<SocketAddr> = Vec::new();
    let (remote, local): (Vec<SocketAddr>, Vec<SocketAddr>) = announced.partition(|a| !a.ip().is_loopback());
    for address in remote.iter().take(1).copied().chain(named).chain(remote.clone()).chain(local) {
        if !all.contains(&address) {
            all.push(address);
        }
    }
    all
}

/// How vmferry is called on another host.
#[derive(Clone, Debug)]
pub struct Call {
    /// Where; the path is not looked at.
    pub to: Place,
    /// The remote shell; `None`: ssh.
    pub rsh: Option<String>,
    /// Its words there; `None`: vmferry.
    pub remote_path: Option<String>,
    /// The shell's words are passed on.
    pub verbose: bool,
}

/// A remote shell in which vmferry runs.
pub struct Shell {
    child: Child,
    to: Option<ChildStdin>,
    /// What vmferry says after its first answer.
    pub from: Option<ChildStdout>,
    complaints: Option<Complaints>,
}

/// Starts `vmferry VERB --once --stdio` on the other host, and waits for its first answer.
///
/// # Errors
/// One sentence, exit code 3, or 2 when there is no such command line.
pub fn ask<Q: Message, A: Message + std::marker::Send + 'static>(
    call: &Call,
    verb: &str,
    request: &Q,
) -> Result<(A, Shell), Failure> {
    let words = |text: &str, option: &str| {
        shlex::split(text).filter(|w| !w.is_empty()).ok_or_else(|| {
            Failure::new(exit::USAGE, format!("{option} '{text}' is not a command line: check its quotes"))
        })
    };
    let rsh = words(call.rsh.as_deref().unwrap_or("ssh"), "--rsh")?;
    let vmferry = words(call.remote_path.as_deref().unwrap_or("vmferry"), "--remote-path")?;
    let mut opening = Vec::new();
    let spoken = bootstrap::open(&mut opening).and_then(|()| bootstrap::send(&mut opening, request));
    spoken.map_err(|e| Failure::new(exit::USAGE, format!("that is too much for one job: {e}")))?;
    let mut child = Command::new(&rsh[0])
        .args(&rsh[1..])
        .arg(call.to.shell_host())
        .args(&vmferry)
        .args([verb, "--once", "--stdio"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| Failure::new(exit::REFUSED, format!("cannot run '{}': {e} (see --rsh)", rsh[0])))?;
    let complaints = child.stderr.take().map(Complaints::hear);
    let (to, from) = (child.stdin.take(), child.stdout.take());
    let mut shell = Shell { child, to, from, complaints };
    match shell.exchange(opening) {
        Ok(answer) => Ok((answer, shell)),
        Err(silence) => {
            let patience = if matches!(silence, Silence::Timeout) { 0 } else { 2 };
            let (status, said) = shell.leave(Duration::from_secs(patience), true, call.verbose);
            Err(explain(call, &rsh[0], &vmferry, silence, status, &said))
        }
    }
}

impl Shell {
    /// Speaks, then waits for one answer. What follows it is still to be read.
    fn exchange<A: Message + std::marker::Send + 'static>(&mut self, opening: Vec<u8>) -> Result<A, Silence> {
        let (Some(mut to), Some(mut from)) = (self.to.take(), self.from.take()) else {
            return Err(Silence::Error(BootstrapError::Malformed));
        };
        let (answer, answers) = mpsc::channel();
        thread::spawn(move || {
            // A remote side that is not vmferry may close its end at once; its words tell more.
            let _ = to.write_all(&opening).and_then(|()| to.flush());
            let accepted = bootstrap::accept(&mut from).and_then(|()| bootstrap::receive(&mut from));
            let _ = answer.send((accepted, to, from));
        });
        match answers.recv_timeout(SHELL) {
            Ok((Ok(reply), to, from)) => {
                (self.to, self.from) = (Some(to), Some(from));
                Ok(reply)
            }
            Ok((Err(e), ..)) => Err(Silence::Error(e)),
            Err(_) => Err(Silence::Timeout),
        }
    }

    /// Says one thing more.
    ///
    /// # Errors
    /// The shell takes nothing any more.
    pub fn tell<M: Message>(&mut self, message: &M) -> io::Result<()> {
        self.to
            .as_mut()
            .map_or_else(|| Err(io::ErrorKind::BrokenPipe.into()), |to| bootstrap::send(to, message))
    }

    /// Hangs up; a shell that does not end by itself in time is ended.
    pub fn end(self, patience: Duration, verbose: bool) {
        self.leave(patience, verbose, verbose);
    }

    /// The same for a shell that is ending anyway: how it ended, and its last words.
    pub fn fate(self, verbose: bool) -> (String, String) {
        let (status, said) = self.leave(Duration::from_secs(2), true, verbose);
        (how(status.and_then(|s| s.code())), bootstrap::last_words(&said))
    }

    fn leave(mut self, patience: Duration, heard: bool, verbose: bool) -> (Option<ExitStatus>, Vec<u8>) {
        drop((self.to.take(), self.from.take()));
        let status = end(&mut self.child, patience);
        let said = self.complaints.filter(|_| heard).map(Complaints::so_far).unwrap_or_default();
        if verbose && !said.trim_ascii().is_empty() {
            complain(String::from_utf8_lossy(&said).trim_end());
        }
        (status, said)
    }
}

/// How a process ended.
fn how(code: Option<i32>) -> String {
    code.map_or_else(|| "was killed".into(), |c| format!("ended with {c}"))
}

/// What the remote shell says on stderr.
struct Complaints {
    said: Arc<Mutex<Vec<u8>>>,
    over: mpsc::Receiver<()>,
}

impl Complaints {
    /// Bytes that are kept: the last words matter.
    const KEPT: usize = 64 << 10;

    fn hear(mut stderr: ChildStderr) -> Complaints {
        let said = Arc::new(Mutex::new(Vec::new()));
        let (ends, over) = mpsc::channel();
        let to = said.clone();
        thread::spawn(move || {
            let _ends: mpsc::Sender<()> = ends;
            let mut piece = [0; 4096];
            while let Ok(len @ 1..) = stderr.read(&mut piece) {
                let mut said = to.lock().unwrap_or_else(PoisonError::into_inner);
                said.extend_from_slice(&piece[..len]);
                let surplus = said.len().saturating_sub(Complaints::KEPT);
                said.drain(..surplus);
            }
        });
        Complaints { said, over }
    }

    /// The shell has ended; but a child of it (ssh's ControlPersist) may keep its stderr for hours.
    fn so_far(self) -> Vec<u8> {
        let _ = self.over.recv_timeout(Duration::from_millis(200));
        std::mem::take(&mut self.said.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// No reply, and why.
enum Silence {
    Timeout,
    Error(BootstrapError),
}

/// Waits for the shell to end by itself, then ends it.
fn end(child: &mut Child, patience: Duration) -> Option<ExitStatus> {
    let started = Instant::now();
    while started.elapsed() < patience {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status);
        }
        thread::sleep(Duration::from_millis(5));
    }
    let _ = child.kill();
    child.wait().ok()
}

fn explain(
    call: &Call,
    rsh: &str,
    vmferry: &[String],
    silence: Silence,
    status: Option<ExitStatus>,
    said: &[u8],
) -> Failure {
    let host = &call.to.host;
    let words = bootstrap::last_words(said);
    let quoted = if words.is_empty() { String::new() } else { format!(": {words}") };
    let reason = match (silence, status.and_then(|s| s.code())) {
        (Silence::Timeout, _) => {
            format!("no answer from {host} through '{rsh}' within {} s{quoted}", SHELL.as_secs())
        }
        (Silence::Error(BootstrapError::Hello(e)), _) => format!("{host}: {e}"),
        (Silence::Error(BootstrapError::Malformed), _) => format!("{host}: the answer cannot be read"),
        // 127 and 126: the shell's words for "not found" and "not executable" (POSIX, 2.8.2).
        (Silence::Error(BootstrapError::NoPeer(_)), Some(126 | 127)) => {
            let program = vmferry.last().map_or("vmferry", String::as_str);
            let source =
                std::env::current_exe().map_or_else(|_| "vmferry".into(), |p| p.display().to_string());
            format!(
                "{host} has no '{program}': install it there (scp {source} {host}:/usr/local/bin/vmferry) or name it with --remote-path{quoted}"
            )
        }
        (Silence::Error(BootstrapError::NoPeer(heard)), code) => {
            let heard = if quoted.is_empty() && !heard.is_empty() { format!(": {heard}") } else { quoted };
            format!("could not start vmferry on {host}: '{rsh}' {}{heard}", how(code))
        }
    };
    Failure::new(exit::REFUSED, reason)
}
