//! Who may send to a service: the allow file.
//!
//! One line per key, in words as a shell has them; `#` begins a comment:
//! ```text
//! SHA256:5d0e…  name=host1 into=nightly max-bytes=2T overwrite device=/dev/vg/spare keep-owner
//! ```

use std::collections::HashMap;
use std::fmt;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use lanes::identity::Fingerprint;
use proto::geometry::parse_size;

/// What the holder of one key may do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rule {
    /// Whose.
    pub key: Fingerprint,
    /// For logs; without one, the beginning of the key.
    pub name: Option<String>,
    /// The folder that its images stay below, relative to the service's; empty: that one itself.
    pub into: PathBuf,
    /// Bytes that the images of one job may have together.
    pub max_bytes: Option<u64>,
    /// May replace files.
    pub overwrite: bool,
    /// Block devices that it may overwrite, as it has to name them.
    pub devices: Vec<PathBuf>,
    /// Images keep the owner that they have at the source; else they belong to the service's user.
    pub keep_owner: bool,
}

impl Rule {
    /// New files below the service's folder, and nothing else.
    pub fn new(key: Fingerprint) -> Rule {
        Rule {
            key,
            name: None,
            into: PathBuf::new(),
            max_bytes: None,
            overwrite: false,
            devices: vec![],
            keep_owner: false,
        }
    }

    /// What logs call the holder.
    pub fn holder(&self) -> String {
        let key = || self.key.to_string().chars().take(15).collect();
        self.name.clone().unwrap_or_else(key)
    }

    /// A line of the allow file; `None` for one without a rule.
    ///
    /// # Errors
    /// A sentence.
    pub fn parse(line: &str) -> Result<Option<Rule>, String> {
        let words = shlex::split(line).ok_or("a quote is not closed")?;
        let Some((key, words)) = words.split_first() else { return Ok(None) };
        let mut rule = Rule::new(key.parse()?);
        for word in words {
            if word.contains(char::is_control) {
                return Err(format!("{word:?} has a control character"));
            }
            let (what, value) = word.split_once('=').map_or((word.as_str(), None), |(w, v)| (w, Some(v)));
            match (what, value) {
                ("name", Some(name)) if !name.is_empty() => rule.name = Some(name.to_owned()),
                ("into", Some(folder)) => rule.into = below(Path::new(folder))?,
                ("max-bytes", Some(size)) => rule.max_bytes = Some(parse_size(size)?),
                ("overwrite", None) => rule.overwrite = true,
                ("keep-owner", None) => rule.keep_owner = true,
                ("device", Some(path)) if path.starts_with('/') => rule.devices.push(path.into()),
                _ => {
                    return Err(format!(
                        "'{word}' is not known here: name=NAME, into=FOLDER, max-bytes=SIZE, overwrite, device=/PATH, keep-owner"
                    ));
                }
            }
        }
        Ok(Some(rule))
    }
}

/// A folder as it is named relative to the service's own: it never leads out of it.
///
/// # Errors
/// A sentence.
pub fn below(folder: &Path) -> Result<PathBuf, String> {
    let mut out = PathBuf::new();
    for part in folder.components() {
        match part {
            Component::Normal(name) => out.push(name),
            Component::CurDir => {}
            _ => {
                return Err(format!(
                    "'{}' is not a folder below that of the service: name it relative to --into",
                    folder.display()
                ));
            }
        }
    }
    Ok(out)
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Only a NUL cannot be quoted, and no argument or file name has one.
        let quoted = |text: &str| shlex::try_quote(text).map(|q| q.into_owned()).unwrap_or_default();
        write!(f, "{}", self.key)?;
        if let Some(name) = &self.name {
            write!(f, " name={}", quoted(name))?;
        }
        if !self.into.as_os_str().is_empty() {
            write!(f, " into={}", quoted(&self.into.to_string_lossy()))?;
        }
        if let Some(bytes) = self.max_bytes {
            write!(f, " max-bytes={bytes}")?;
        }
        if self.overwrite {
            write!(f, " overwrite")?;
        }
        for device in &self.devices {
            write!(f, " device={}", quoted(&device.to_string_lossy()))?;
        }
        if self.keep_owner {
            write!(f, " keep-owner")?;
        }
        Ok(())
    }
}

/// A whole allow file.
#[derive(Clone, Debug, Default)]
pub struct Rules(HashMap<Fingerprint, Arc<Rule>>);

impl Rules {
    /// Takes an allow file apart. One faulty line spoils all of it: half a list of rights is none.
    ///
    /// # Errors
    /// A sentence that names the line.
    pub fn parse(text: &str) -> Result<Rules, String> {
        let mut rules = HashMap::new();
        for (number, line) in (1..).zip(text.lines()) {
            let rule = Rule::parse(line).map_err(|why| format!("line {number}: {why}"))?;
            let Some(rule) = rule else { continue };
            if rules.insert(rule.key, Arc::new(rule)).is_some() {
                return Err(format!("line {number}: this key has a line already"));
            }
        }
        Ok(Rules(rules))
    }

    /// What the holder of a key may do.
    pub fn of(&self, key: &Fingerprint) -> Option<Arc<Rule>> {
        self.0.get(key).cloned()
    }

    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Nobody is let in.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The rules in force. Jobs that run keep those that they began with.
#[derive(Debug, Default)]
pub struct Book(RwLock<Arc<Rules>>);

impl Book {
    /// A book of these.
    pub fn new(rules: Rules) -> Book {
        Book(RwLock::new(Arc::new(rules)))
    }

    /// From now on, these.
    pub fn replace(&self, rules: Rules) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(rules);
    }

    pub(crate) fn of(&self, key: &Fingerprint) -> Option<Arc<Rule>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).of(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "SHA256:00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

    #[test]
    fn a_line_says_everything_and_reads_back() {
        let line = format!(
            "{KEY} name='host one' into=a/b max-bytes=2G overwrite device=/dev/vg/x keep-owner # him"
        );
        let rule = Rule::parse(&line).unwrap().unwrap();
        assert_eq!(rule.holder(), "host one");
        assert_eq!((rule.max_bytes, rule.into.to_str()), (Some(2 << 30), Some("a/b")));
        assert!(rule.overwrite && rule.keep_owner && rule.devices == [PathBuf::from("/dev/vg/x")]);
        assert_eq!(Rule::parse(&rule.to_string()).unwrap(), Some(rule));
        let least = Rule::parse(KEY).unwrap().unwrap();
        assert!(!least.overwrite && least.devices.is_empty() && !least.keep_owner);
        assert_eq!(least.to_string(), KEY);
        assert_eq!(least.holder(), "SHA256:00112233");
    }

    #[test]
    fn a_faulty_line_is_named_and_spoils_the_file() {
        let rules = Rules::parse(&format!("# who\n\n{KEY}\n")).unwrap();
        assert_eq!(rules.len(), 1);
        for (bad, why) in [
            (format!("{KEY} overwrit"), "line 1: 'overwrit' is not known"),
            (format!("{KEY} into=/etc"), "line 1: '/etc' is not a folder below"),
            (format!("{KEY} into=a/../../b"), "is not a folder below"),
            (format!("{KEY} max-bytes=lots"), "is not a size"),
            (format!("{KEY} device=sdb"), "is not known"),
            (format!("{KEY} name='x"), "quote"),
            (format!("{KEY} name='x\ty'"), "control character"),
            ("\nSHA256:12".into(), "line 2: 'SHA256:12' is not a key"),
            (format!("{KEY}\n{KEY}"), "line 2: this key has a line already"),
        ] {
            let got = Rules::parse(&bad).unwrap_err();
            assert!(got.contains(why), "{bad}: {got}");
        }
    }
}
