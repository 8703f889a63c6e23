//! `vmferry key`, `allow`, `trust`: who is who.

use std::process::ExitCode;

use proto::control::Failure;
use receiver::rules::Rule;

use crate::cli::{Allow, Key, Trust};
use crate::exit;
use crate::keys::{Keys, host_name};
use crate::place::host_and_port;
use crate::terminal::{complain, say};

fn end(result: Result<(), Failure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::from(exit::DONE),
        Err(failure) => {
            complain(&format!("vmferry: {}", failure.reason));
            ExitCode::from(failure.exit)
        }
    }
}

/// `key`: the public key alone on standard output, for scripts to take.
pub fn show(args: &Key) -> ExitCode {
    end(Keys::at(args.config.as_deref()).and_then(|keys| keys.make()).map(|(identity, new)| {
        if new {
            complain("a new key was made");
        }
        say(&identity.fingerprint().to_string());
    }))
}

/// `allow`: changes or shows the allow file.
pub fn allow(args: &Allow) -> ExitCode {
    end(Keys::at(args.config.as_deref()).and_then(|keys| change(&keys, args)))
}

fn change(keys: &Keys, args: &Allow) -> Result<(), Failure> {
    let Some(key) = args.key else {
        keys.rules()?;
        keys.lines("allow")?.lines().for_each(say);
        return Ok(());
    };
    if args.remove {
        if !keys.forbid(&key)? {
            let file = keys.allow_file();
            return Err(Failure::new(exit::REFUSED, format!("{key} is not in {}", file.display())));
        }
    } else {
        keys.allow(&Rule {
            key,
            name: args.name.clone(),
            into: args.into.clone().unwrap_or_default(),
            max_bytes: args.max_bytes,
            overwrite: args.overwrite,
            devices: args.device.clone(),
            keep_owner: args.keep_owner,
        })?;
    }
    complain(&format!(
        "{} is changed; a running service reads it again with 'systemctl reload vmferry' or SIGHUP",
        keys.allow_file().display()
    ));
    Ok(())
}

/// `trust`: changes the hosts file.
pub fn trust(args: &Trust) -> ExitCode {
    let work = || {
        let (host, port) = host_and_port(&args.host).map_err(|why| Failure::new(exit::USAGE, why))?;
        let host = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
        if host.is_empty() || host.contains(|c: char| c.is_whitespace() || c == '#' || c == '/') {
            return Err(Failure::new(exit::USAGE, format!("'{}' is not HOST or HOST:PORT", args.host)));
        }
        Keys::at(args.config.as_deref())?.trust(host, port, &args.key)?;
        complain(&format!("{} is known by this key from now on", host_name(host, port)));
        Ok(())
    };
    end(work())
}
