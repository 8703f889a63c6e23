//! What is told to people and to machines. `docs/json.md` describes the objects.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use proto::control::{Failure, Transport};
use proto::digest::{Digests, hex};
use sender::Summary;
use sender::meter::Snapshot;
use serde::Serialize;

use crate::cli::Send;
use crate::progress::Position;
use crate::terminal::{complain, say};

/// Chooses between words and objects.
pub struct Report {
    json: bool,
    quiet: bool,
    host: String,
    pull: bool,
    streams: u32,
    transport: Transport,
    images: usize,
    image_bytes: std::cell::Cell<u64>,
    dry_run: bool,
}

#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Line<'a> {
    Started {
        peer: String,
        lanes: u32,
        notices: &'a [String],
    },
    Progress {
        seconds: f64,
        done_bytes: u64,
        image_bytes: u64,
        wire_bytes: u64,
        read_bps: u64,
        network_bps: u64,
        write_bps: u64,
        bottleneck: Option<&'static str>,
    },
    Stalled {
        notices: &'a [String],
    },
    Committed {
        image: &'a str,
        path: &'a str,
        notices: &'a [String],
    },
    Lost {
        connection: u32,
        reason: &'a str,
    },
    Restored {
        connection: u32,
    },
    Done(Box<Done>),
    Failed {
        exit: u8,
        reason: &'a str,
    },
}

#[derive(Serialize)]
struct Done {
    images: usize,
    image_bytes: u64,
    data_bytes: u64,
    wire_bytes: u64,
    resent_bytes: u64,
    resumed_bytes: u64,
    seconds: f64,
    rate_bps: u64,
    lanes: u32,
    transport: &'static str,
    engine: String,
    bottleneck: Option<&'static str>,
    digests: BTreeMap<String, DigestPair>,
}

/// Both digests of an image, in hex.
#[derive(Serialize)]
pub struct DigestPair {
    tree: String,
    b3: Option<String>,
}

impl DigestPair {
    /// Of these digests.
    pub fn of(digests: &Digests) -> DigestPair {
        DigestPair { tree: hex(&digests.tree), b3: digests.b3.map(|b3| hex(&b3)) }
    }
}

impl Report {
    /// As the command line asks.
    pub fn new(args: &Send) -> Report {
        Report {
            json: args.json,
            quiet: args.quiet,
            host: args.to.host.clone(),
            pull: args.pull,
            streams: args.streams,
            transport: args.transport.into(),
            images: args.images.len(),
            image_bytes: std::cell::Cell::new(0),
            dry_run: args.dry_run,
        }
    }

    /// The size of all images, known once they are open.
    pub fn set_image_bytes(&self, bytes: u64) {
        self.image_bytes.set(bytes);
    }

    fn notices(&self, notices: &[String]) {
        if !self.quiet {
            notices.iter().for_each(|n| complain(&format!("note: {n}")));
        }
    }

    /// The job begins.
    pub fn started(&self, notices: &[String], peer: SocketAddr) {
        if self.json {
            object(&Line::Started { peer: peer.to_string(), lanes: self.streams, notices });
        } else {
            self.notices(notices);
        }
    }

    /// A read does not end.
    pub fn stalled(&self, notices: &[String]) {
        if self.json {
            object(&Line::Stalled { notices });
        } else {
            self.notices(notices);
        }
    }

    /// One image is in place.
    pub fn committed(&self, image: &str, path: &str, notices: &[String]) {
        if self.json {
            object(&Line::Committed { image, path, notices });
        } else {
            self.notices(notices);
            if !self.quiet {
                let (from, to) = if self.pull {
                    (format!("{}:{image}", self.host), path.to_owned())
                } else {
                    (image.to_owned(), format!("{}:{path}", self.host))
                };
                say(&format!("{from} -> {to}"));
            }
        }
    }

    /// A connection broke (0: control) and is being made again.
    pub fn lost(&self, connection: u32, reason: &str) {
        if self.json {
            object(&Line::Lost { connection, reason });
        } else if !self.quiet {
            complain(&format!("{} was lost ({reason}): connecting again", self.called(connection)));
        }
    }

    /// It is there again.
    pub fn restored(&self, connection: u32) {
        if self.json {
            object(&Line::Restored { connection });
        } else if !self.quiet {
            complain(&format!("{} is back", self.called(connection)));
        }
    }

    fn called(&self, connection: u32) -> String {
        match connection {
            0 => format!("the connection to {}", self.host),
            n => format!("data connection {n} to {}", self.host),
        }
    }

    /// One interval has passed; `span` is what happened in it.
    pub fn interval(&self, at: &Position, now: &Snapshot, span: &Snapshot, streams: u32) {
        let seconds = span.elapsed.as_secs_f64();
        let bps = |bytes: u64| if seconds > 0.0 { bytes as f64 * 8.0 / seconds } else { 0.0 };
        let (read, network) = (bps(span.read_bytes), bps(span.receiver.received_bytes));
        let write = bps(span.receiver.written_bytes);
        if self.json {
            object(&Line::Progress {
                seconds: now.elapsed.as_secs_f64(),
                done_bytes: at.done,
                image_bytes: at.total,
                wire_bytes: now.wire_bytes,
                read_bps: read as u64,
                network_bps: network as u64,
                write_bps: write as u64,
                bottleneck: span.bottleneck().map(|b| b.as_str()),
            });
        } else {
            let percent = if at.total == 0 { 100.0 } else { at.done as f64 * 100.0 / at.total as f64 };
            let slowest = span.bottleneck().map_or("nothing yet", |b| b.describe());
            complain(&format!(
                "{:.1} s  {percent:.1} %  {} of {}  read {}  network {} ({streams} connections)  write {}  slowest: {slowest}",
                now.elapsed.as_secs_f64(),
                bytes(at.done),
                bytes(at.total),
                rate(read),
                rate(network),
                rate(write),
            ));
        }
    }

    /// All is in place.
    pub fn done(&self, summary: &Summary) {
        let m = &summary.meter;
        let seconds = m.elapsed.as_secs_f64();
        let bps = if seconds > 0.0 { m.totals.written as f64 * 8.0 / seconds } else { 0.0 };
        let (ours, theirs) = (&summary.engines.0, &summary.engines.1);
        let engine = if ours == theirs { ours.clone() } else { format!("{ours}/{theirs}") };
        if self.json {
            object(&Line::Done(Box::new(Done {
                images: self.images,
                image_bytes: self.image_bytes.get(),
                data_bytes: m.totals.written,
                wire_bytes: m.wire_bytes,
                resent_bytes: m.totals.resent,
                resumed_bytes: m.resumed_bytes,
                seconds,
                rate_bps: bps as u64,
                lanes: self.streams,
                transport: self.transport.as_str(),
                engine,
                bottleneck: summary.bottleneck.map(|b| b.as_str()),
                digests: summary.digests.iter().map(|(n, d)| (n.clone(), DigestPair::of(d))).collect(),
            })));
            return;
        }
        if self.quiet {
            return;
        }
        if self.dry_run {
            say("checked: this job can start; nothing was changed");
            return;
        }
        say(&format!(
            "{} in {seconds:.2} s: {} of data at {} over {} {} connection{}, verified and durable",
            bytes(self.image_bytes.get()),
            bytes(m.totals.written),
            rate(bps),
            self.streams,
            self.transport.as_str().to_uppercase(),
            if self.streams == 1 { "" } else { "s" }
        ));
        if m.resumed_bytes > 0 {
            say(&format!("{} were there since an earlier attempt", bytes(m.resumed_bytes)));
        }
        let slowest = summary.bottleneck.map_or("none (nothing to send)", |b| b.describe());
        say(&format!("slowest stage: {slowest}; engine: {engine}; {} on the wire", bytes(m.wire_bytes)));
        for (name, d) in &summary.digests {
            match d.b3 {
                Some(b3) => say(&format!("{}  {name}", hex(&b3))),
                None => say(&format!("tree:{}  {name}  (b3 of its holes: --digest b3)", hex(&d.tree))),
            }
        }
    }

    /// The job failed.
    pub fn failed(&self, failure: &Failure) {
        if self.json {
            failed_object(failure);
        }
        complain(&format!("vmferry: {}", failure.reason));
    }
}

/// One object a line.
pub fn object(line: &impl Serialize) {
    if let Ok(text) = serde_json::to_string(line) {
        say(&text);
    }
}

/// The last object of what failed, also when there is no job yet.
pub fn failed_object(failure: &Failure) {
    object(&Line::Failed { exit: failure.exit, reason: &failure.reason });
}

/// Bytes for people: `4.0 GiB`.
pub fn bytes(n: u64) -> String {
    let mut value = n as f64;
    for unit in ["B", "KiB", "MiB", "GiB", "TiB"] {
        if value < 1000.0 {
            return if unit == "B" { format!("{n} B") } else { format!("{value:.1} {unit}") };
        }
        value /= 1024.0;
    }
    format!("{value:.1} PiB")
}

/// Bits per second for people: `4.62 Gb/s`.
pub fn rate(bps: f64) -> String {
    match bps {
        b if b >= 1e9 => format!("{:.2} Gb/s", b / 1e9),
        b if b >= 1e6 => format!("{:.0} Mb/s", b / 1e6),
        b => format!("{:.0} kb/s", b / 1e3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_rates() {
        assert_eq!(bytes(999), "999 B");
        assert_eq!(bytes(1 << 20), "1.0 MiB");
        assert_eq!(bytes(4 << 30), "4.0 GiB");
        assert_eq!(bytes(u64::MAX), "16384.0 PiB");
        assert_eq!(rate(4.624e9), "4.62 Gb/s");
        assert_eq!(rate(5e6), "5 Mb/s");
    }
}
