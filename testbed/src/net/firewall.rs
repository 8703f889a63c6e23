//! Rules that lose packets without a word, by nft or, without it, iptables.
//!
//! Packets are dropped where they arrive. A rule on the sending side would
//! hand an error to the application's `send`, which no cut cable does.

use super::Host;
use crate::error::Result;
use crate::run::{installed, missing_tool, run, run_with_input};

/// Name of our nft table.
const TABLE: &str = "inet vmferry_testbed";

/// What a host shall lose.
pub(super) enum Drop<'a> {
    /// Everything that arrives on a device.
    All { device: &'a str },
    /// One TCP connection or UDP socket pair.
    Flow { from: u16, to: u16 },
    /// Packets of more bytes than this.
    Larger { than: u16 },
}

/// Answers every TCP packet that arrives on `device` with a reset.
pub(super) fn reset(host: &Host, device: &str) -> Result<()> {
    if !installed("nft") {
        return Err(missing_tool("nft"));
    }
    let script = format!(
        "add table {TABLE}\n\
         add chain {TABLE} refusing {{ type filter hook input priority 0; }}\n\
         add rule {TABLE} refusing iifname \"{device}\" meta l4proto tcp reject with tcp reset\n"
    );
    run_with_input(host.command("nft").args(["-f", "-"]), &script).map(drop)
}

/// Adds one rule.
pub(super) fn add(host: &Host, rule: &Drop<'_>) -> Result<()> {
    if installed("nft") {
        let rule = match rule {
            Drop::All { device } => format!("iifname \"{device}\""),
            Drop::Flow { from, to } => {
                format!("meta l4proto {{ tcp, udp }} th sport {from} th dport {to}")
            }
            Drop::Larger { than } => format!("meta length > {than}"),
        };
        let script = format!(
            "add table {TABLE}\n\
             add chain {TABLE} arriving {{ type filter hook prerouting priority -300; }}\n\
             add rule {TABLE} arriving {rule} drop\n"
        );
        return run_with_input(host.command("nft").args(["-f", "-"]), &script).map(drop);
    }
    if !installed("iptables") {
        return Err(missing_tool("nft"));
    }
    let matches: Vec<String> = match rule {
        Drop::All { device } => vec![format!("-i {device}")],
        Drop::Flow { from, to } => {
            ["tcp", "udp"].map(|protocol| format!("-p {protocol} --sport {from} --dport {to}")).into()
        }
        Drop::Larger { than } => {
            vec![format!("-m length --length {}:65535", u32::from(*than) + 1)]
        }
    };
    for tables in ["iptables", "ip6tables"] {
        for rule in &matches {
            let words = format!("-w -A INPUT {rule} -j DROP");
            run(host.command(tables).args(words.split_whitespace()))?;
        }
    }
    Ok(())
}

/// Removes every rule that [`add`] made.
pub(super) fn clear(host: &Host) -> Result<()> {
    if installed("nft") {
        // Deleting a table that is not there is an error: make sure that it is.
        let script = format!("add table {TABLE}\ndelete table {TABLE}\n");
        return run_with_input(host.command("nft").args(["-f", "-"]), &script).map(drop);
    }
    if !installed("iptables") {
        return Err(missing_tool("nft"));
    }
    for tables in ["iptables", "ip6tables"] {
        run(host.command(tables).args(["-w", "-F", "INPUT"]))?;
    }
    Ok(())
}
