//! The service's log: a line per event, `key=value` for people and journals, or JSON.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use receiver::service::Event;
use serde_json::{Map, Value};

use crate::terminal::say;

/// Lines about strangers in one [`PERIOD`]; a port scan does not fill the journal.
const STRANGERS: u32 = 10;
const PERIOD: Duration = Duration::from_secs(60);

/// How much a line matters, with syslog(3)'s numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Somebody may want to do something.
    Warning = 4,
    /// All is well.
    Info = 6,
}

impl Level {
    fn as_str(self) -> &'static str {
        match self {
            Level::Warning => "warning",
            Level::Info => "info",
        }
    }
}

/// The log.
#[derive(Debug)]
pub struct Log {
    json: bool,
    /// The journal dates lines itself and understands `<6>` in front (sd-daemon(3)).
    journal: bool,
    strangers: Mutex<Strangers>,
}

#[derive(Debug, Default)]
struct Strangers {
    since: Option<Instant>,
    told: u32,
    untold: u32,
}

impl Strangers {
    /// Whether to tell of one more, and of how many nothing was told before.
    fn one_more(&mut self, now: Instant) -> Option<u32> {
        if self.since.is_none_or(|since| now.duration_since(since) >= PERIOD) {
            self.since = Some(now);
            self.told = 0;
        }
        if self.told >= STRANGERS {
            self.untold += 1;
            return None;
        }
        self.told += 1;
        Some(std::mem::take(&mut self.untold))
    }
}

impl Log {
    /// Objects on standard output, or lines on standard error.
    pub fn new(json: bool) -> Log {
        let journal = std::env::var_os("JOURNAL_STREAM").is_some();
        Log { json, journal, strangers: Mutex::default() }
    }

    /// One line.
    pub fn line(&self, level: Level, event: &str, fields: &[(&str, String)]) {
        if self.json {
            return say(&object(level, event, fields));
        }
        let mut line = if self.journal {
            format!("<{}>", level as u8)
        } else {
            format!("time={:.3} level={} ", now(), level.as_str())
        };
        line += &format!("event={event}");
        for (name, value) in fields {
            line += &format!(" {name}={}", quoted(value));
        }
        // Nobody reads it: the service goes on.
        let _ = writeln!(std::io::stderr(), "{line}");
    }

    /// What happened in the service.
    pub fn event(&self, event: &Event) {
        match event {
            Event::Asked { session, peer, from } => self.line(
                Level::Info,
                "asked",
                &[("session", session.to_string()), ("peer", peer.clone()), ("from", shown(from))],
            ),
            Event::Begun { session, images, bytes, path, dry_run } => self.line(
                Level::Info,
                "begun",
                &[
                    ("session", session.to_string()),
                    ("images", images.to_string()),
                    ("bytes", bytes.to_string()),
                    ("path", path.clone()),
                    ("dry_run", dry_run.to_string()),
                ],
            ),
            Event::Committed { session, path } => self.line(
                Level::Info,
                "committed",
                &[("session", session.to_string()), ("path", path.display().to_string())],
            ),
            Event::Ended { session, peer, failure, received_bytes, took } => {
                let mut fields = vec![
                    ("session", session.to_string()),
                    ("peer", peer.clone()),
                    ("received_bytes", received_bytes.to_string()),
                    ("seconds", format!("{:.3}", took.as_secs_f64())),
                ];
                match failure {
                    None => self.line(Level::Info, "done", &fields),
                    Some(failure) => {
                        fields.push(("exit", failure.exit.to_string()));
                        fields.push(("reason", failure.reason.clone()));
                        self.line(Level::Warning, "failed", &fields);
                    }
                }
            }
            Event::Refused { peer, from, failure } => self.line(
                Level::Warning,
                "refused",
                &[("peer", peer.clone()), ("from", shown(from)), ("reason", failure.reason.clone())],
            ),
            Event::TurnedAway { from, reason } => {
                let mut strangers = self.strangers.lock().unwrap_or_else(PoisonError::into_inner);
                let Some(untold) = strangers.one_more(Instant::now()) else { return };
                drop(strangers);
                let mut fields = vec![("from", shown(from)), ("reason", reason.clone())];
                if untold > 0 {
                    fields.push(("others_not_logged", untold.to_string()));
                }
                self.line(Level::Warning, "turned_away", &fields);
            }
        }
    }
}

/// A socket for both families says `::ffff:10.0.0.1` for 10.0.0.1.
fn shown(from: &SocketAddr) -> String {
    SocketAddr::new(from.ip().to_canonical(), from.port()).to_string()
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

fn object(level: Level, event: &str, fields: &[(&str, String)]) -> String {
    let mut map = Map::new();
    map.insert("time".into(), ((now() * 1000.0).round() / 1000.0).into());
    map.insert("level".into(), level.as_str().into());
    map.insert("event".into(), event.into());
    for (name, value) in fields {
        let text = || Value::from(value.as_str());
        let value = match *name {
            "images" | "bytes" | "received_bytes" | "exit" | "allowed" | "others_not_logged" => {
                value.parse::<u64>().map_or_else(|_| text(), Value::from)
            }
            "seconds" => value.parse::<f64>().map_or_else(|_| text(), Value::from),
            "dry_run" => value.parse::<bool>().map_or_else(|_| text(), Value::from),
            _ => text(),
        };
        map.insert((*name).into(), value);
    }
    Value::Object(map).to_string()
}

/// Quoted where a space, a quote or a control character would make the line say something else.
fn quoted(value: &str) -> String {
    let plain = |c: char| !c.is_whitespace() && !c.is_control() && c != '"' && c != '=';
    if !value.is_empty() && value.chars().all(plain) { value.to_owned() } else { format!("{value:?}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_never_looks_like_another_field() {
        assert_eq!(quoted("host1"), "host1");
        assert_eq!(quoted("a b"), r#""a b""#);
        assert_eq!(quoted("x\nevent=done"), r#""x\nevent=done""#);
        assert_eq!(quoted("x\u{1b}[2J"), r#""x\u{1b}[2J""#);
        assert_eq!(quoted(""), r#""""#);
        let line = object(
            Level::Info,
            "asked",
            &[("peer", "7".into()), ("bytes", "7".into()), ("seconds", "0.250".into())],
        );
        assert!(line.contains(r#""seconds":0.25"#), "{line}");
        assert!(line.contains(r#""bytes":7"#) && line.contains(r#""peer":"7""#), "{line}");
    }

    #[test]
    fn strangers_are_counted_when_they_are_not_told_of() {
        let (mut strangers, start) = (Strangers::default(), Instant::now());
        let told = (0..25).filter(|_| strangers.one_more(start).is_some()).count();
        assert_eq!(told as u32, STRANGERS);
        assert_eq!(strangers.one_more(start + PERIOD), Some(25 - STRANGERS));
        assert_eq!(strangers.one_more(start + PERIOD), Some(0));
    }
}
