//! Who a copy is to belong to, as `--chown` has it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Longest name of a user or group, bytes (LOGIN_NAME_MAX of limits.h(0p) on Linux).
const NAME_MAX: usize = 256;

/// `USER`, `USER:GROUP` or `:GROUP`; names, or numbers in decimal. At least one of the two is there.
/// What they stand for is known at the destination only.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Owner {
    /// Its user; `None`: the source's.
    pub user: Option<String>,
    /// Its group; `None`: the source's.
    pub group: Option<String>,
}

impl FromStr for Owner {
    type Err = String;

    fn from_str(text: &str) -> Result<Owner, String> {
        let wrong = || format!("{text:?} is not an owner: write USER, USER:GROUP or :GROUP");
        let name = |name: &str| {
            let plain = (1..=NAME_MAX).contains(&name.len())
                && !name.contains(|c: char| c == ':' || c.is_whitespace() || c.is_control());
            plain.then(|| name.to_owned()).ok_or_else(wrong)
        };
        let (user, group) = match text.split_once(':') {
            Some(("", group)) => (None, Some(name(group)?)),
            Some((user, group)) => (Some(name(user)?), Some(name(group)?)),
            None => (Some(name(text)?), None),
        };
        Ok(Owner { user, group })
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.user.as_deref().unwrap_or_default())?;
        self.group.as_ref().map_or(Ok(()), |group| write!(f, ":{group}"))
    }
}

impl TryFrom<String> for Owner {
    type Error = String;

    fn try_from(text: String) -> Result<Owner, String> {
        text.parse()
    }
}

impl From<Owner> for String {
    fn from(owner: Owner) -> String {
        owner.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_chown_has_it() {
        for text in ["libvirt-qemu", "107", "qemu:kvm", "107:107", ":kvm"] {
            assert_eq!(text.parse::<Owner>().unwrap().to_string(), text);
        }
        let owner: Owner = ":kvm".parse().unwrap();
        assert_eq!((owner.user, owner.group.as_deref()), (None, Some("kvm")));
        let long = "x".repeat(NAME_MAX + 1);
        for bad in ["", ":", "a:", "a:b:c", "::", "a b", "a\n", "a\0", &long] {
            assert!(bad.parse::<Owner>().is_err(), "{bad:?}");
        }
    }
}
