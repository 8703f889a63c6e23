//! Asks a receiver service for a session.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use lanes::identity::Fingerprint;
use lanes::tls;
use proto::control::{BootstrapReply, Failure, SessionId};

use super::{Receiver, crypto, dialer, no_address, none_of, request, resolve};
use crate::cli::Send;
use crate::exit;
use crate::keys::{Keys, host_name};

/// The session of a dialer that has none yet.
const NONE: SessionId = SessionId([0; 16]);

/// Gets a session from the service that the destination names. `via`: addresses to use instead of
/// those of the host's name.
///
/// # Errors
/// One sentence, exit code 3 (or what the service says).
pub fn ask(args: &Send, port: u16, mut via: Vec<Vec<SocketAddr>>) -> Result<Receiver, Failure> {
    let keys = Keys::at(args.config.as_deref())?;
    let identity = keys.own()?;
    let machine = args.to.machine();
    let known = keys.of_host(machine, port)?;
    via.iter_mut().flatten().for_each(|a| a.set_port(port));
    let mut addresses: Vec<SocketAddr> = via.concat();
    if addresses.is_empty() {
        addresses.extend(resolve(machine, port).map_err(|e| no_address(machine, &e))?);
        addresses.retain(|a| args.family().has(a));
    }
    if addresses.is_empty() {
        return Err(no_address(machine, none_of(args.family())));
    }
    let shown: Arc<Mutex<Option<Fingerprint>>> = Arc::default();
    let seen = shown.clone();
    let trust: tls::Trust = Arc::new(move |key| {
        *seen.lock().unwrap_or_else(PoisonError::into_inner) = Some(*key);
        known == Some(*key)
    });
    let config = tls::client(&identity, trust).map_err(crypto)?;
    let request = request(args, &identity)?;
    let mut dialer = dialer(args, config, request.secret.clone(), NONE)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|e| Failure::new(exit::FAILED, format!("cannot start: {e}")))?;
    let reply = runtime.block_on(dialer.call(&addresses, &request));
    let name = host_name(machine, port);
    match reply {
        Ok((peer, BootstrapReply::Ready { session, .. })) => {
            dialer.session = session;
            // The one that answered is the one that has the session.
            Ok(Receiver { dialer, addresses: vec![peer], via })
        }
        Ok((_, BootstrapReply::Fail(failure))) => {
            Err(Failure { reason: format!("{}: {}", args.to.host, failure.reason), ..failure })
        }
        Err(lanes::Error::WrongKey { .. }) => {
            let shown = *shown.lock().unwrap_or_else(PoisonError::into_inner);
            Err(not_trusted(&name, known, shown))
        }
        Err(lanes::Error::NotAdmitted { .. }) => {
            let ours = identity.fingerprint();
            let reason =
                format!("{name} does not know this key: have it let in there with 'vmferry allow {ours}'");
            Err(Failure::new(exit::REFUSED, reason))
        }
        Err(e) => Err(Failure::new(exit::REFUSED, unreachable(&e, port))),
    }
}

fn not_trusted(name: &str, known: Option<Fingerprint>, shown: Option<Fingerprint>) -> Failure {
    let shown = shown.map_or_else(|| "another key".into(), |key| key.to_string());
    let reason = match known {
        None => format!(
            "the key of {name} is not known here: it shows {shown}; if 'vmferry key' prints the same there, run 'vmferry trust {name} {shown}'"
        ),
        Some(known) => format!(
            "{name} shows {shown} instead of the key it is known by, {known}: it is another machine, or somebody is in between; nothing was sent (if its key was really changed: 'vmferry trust {name} {shown}')"
        ),
    };
    Failure::new(exit::REFUSED, reason)
}

fn unreachable(e: &lanes::Error, port: u16) -> String {
    let hint = match e {
        lanes::Error::Refused { .. } => {
            ": is the service running there? (systemctl status vmferry, or vmferry receive --into DIR)".into()
        }
        lanes::Error::NoAnswer { .. } | lanes::Error::Connect { .. } => {
            format!(": a firewall may block TCP {port} there")
        }
        _ => String::new(),
    };
    format!("{e}{hint}")
}
