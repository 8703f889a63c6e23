//! A remote shell without a remote: takes the arguments of ssh, runs here.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use clap::Args;

/// Options of ssh that take a value in the next argument.
const WITH_VALUE: &[u8] = b"BbcDEeFIiJLlmOopQRSWw";

/// Stands in for ssh.
#[derive(Debug, Args)]
pub struct LocalShell {
    /// Run the command in this network namespace, for example NAME-b.
    #[arg(long, value_name = "NAME")]
    netns: Option<String>,
    /// Print this line first, as a talkative login does.
    #[arg(long, value_name = "TEXT")]
    noise: Option<String>,
    /// ssh's options (ignored), the host (ignored) and the command.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    arguments: Vec<OsString>,
}

impl LocalShell {
    /// Becomes the command; returns only the reason why it could not.
    pub fn exec(self) -> Box<dyn std::error::Error> {
        let Some(words) = after_host(&self.arguments) else {
            return "no command after the host".into();
        };
        if let Some(noise) = &self.noise {
            println!("{noise}");
        }
        let mut command = match &self.netns {
            Some(name) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", name, "sh"]);
                command
            }
            None => Command::new("sh"),
        };
        // As sshd does: the words joined by spaces, for the shell to take apart.
        command.arg("-c").arg(words.join(OsStr::new(" "))).exec().into()
    }
}

/// The words of the command: what follows the options and the host.
fn after_host(arguments: &[OsString]) -> Option<&[OsString]> {
    let mut rest = arguments;
    let mut options_end = false;
    loop {
        let (first, others) = rest.split_first()?;
        rest = others;
        match first.as_bytes() {
            b"--" if !options_end => options_end = true,
            // `-p 22` takes the next argument, `-p22` and `-T` do not.
            [b'-', letter] if !options_end => {
                if WITH_VALUE.contains(letter) {
                    rest = rest.split_first()?.1;
                }
            }
            [b'-', _, ..] if !options_end => {}
            _ => break,
        }
    }
    // ssh takes a `--` between the host and the command as well.
    if let Some((first, others)) = rest.split_first()
        && first == "--"
        && !options_end
    {
        rest = others;
    }
    (!rest.is_empty()).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_and_host_are_skipped() {
        for (line, expected) in [
            ("host cmd -x", Some("cmd -x")),
            ("-T -o BatchMode=yes -p 22 host cmd", Some("cmd")),
            ("-oBatchMode=yes -- host cmd --flag", Some("cmd --flag")),
            ("host -- cmd", Some("cmd")),
            ("host", None),
            ("-p", None),
        ] {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let found = after_host(&words).map(|rest| rest.join(OsStr::new(" ")));
            assert_eq!(found, expected.map(OsString::from), "{line}");
        }
    }
}
