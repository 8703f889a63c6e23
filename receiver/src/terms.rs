//! What a job must be when it is this side that asked for it: whoever answers does not get to choose
//! where on this host it writes, or what.

use proto::control::{Delta, Failure, Open};
use proto::owner::Owner;

/// A job that this side asked for, and whose messages are for its own user.
#[derive(Debug)]
pub struct Asked {
    /// How the sender's host is called in messages: two hosts have the same paths.
    pub of: String,
    /// What the job must be.
    pub terms: Terms,
}

/// All of a job that the user of this side decided.
#[derive(Clone, Debug)]
pub struct Terms {
    /// Names of the images, in order.
    pub names: Vec<String>,
    /// Destination as typed.
    pub path: String,
    /// Data lanes.
    pub lanes: u32,
    /// Chunk size, bytes.
    pub chunk: u32,
    /// Replace existing destinations.
    pub force: bool,
    /// Change nothing.
    pub dry_run: bool,
    /// As in [`Open`].
    pub sync_window: Option<u64>,
    /// As in [`Open`].
    pub readback: bool,
    /// As in [`Open`].
    pub delta: Delta,
    /// As in [`Open`].
    pub chown: Option<Owner>,
}

impl Terms {
    /// Holds a job to them.
    ///
    /// # Errors
    /// A sentence, exit code 3.
    pub(crate) fn hold(&self, open: &Open) -> Result<(), Failure> {
        let names = || open.images.iter().map(|image| image.name.as_str());
        let offered = if !names().eq(self.names.iter().map(String::as_str)) {
            "other images"
        } else if open.path != self.path {
            "another destination"
        } else if (open.force, open.dry_run, open.readback) != (self.force, self.dry_run, self.readback)
            || (open.lanes, open.chunk, open.sync_window) != (self.lanes, self.chunk, self.sync_window)
            || (&open.chown, open.delta) != (&self.chown, self.delta)
        {
            "other options"
        } else {
            return Ok(());
        };
        let reason = format!(
            "the sender came with {offered} than it was asked for: do not trust that host before you know why; nothing was changed"
        );
        Err(Failure::new(3, reason))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_what_was_asked_for_or_none() {
        let asked = crate::target::tests::open("/images/".as_ref(), &["a"], false);
        let terms = Terms {
            names: vec!["a".into()],
            path: "/images/".into(),
            lanes: 1,
            chunk: 1 << 20,
            force: false,
            dry_run: false,
            sync_window: None,
            readback: false,
            delta: Delta::No,
            chown: None,
        };
        assert!(terms.hold(&asked).is_ok());
        let other = |change: &dyn Fn(&mut Open)| {
            let mut open = asked.clone();
            change(&mut open);
            terms.hold(&open).unwrap_err().reason
        };
        assert!(other(&|o| o.images[0].name = "authorized_keys".into()).contains("other images"));
        assert!(other(&|o| o.images.push(o.images[0].clone())).contains("other images"));
        assert!(other(&|o| o.path = "/etc/".into()).contains("another destination"));
        assert!(other(&|o| o.force = true).contains("other options"));
        assert!(other(&|o| o.delta = Delta::InPlace).contains("other options"));
        assert!(other(&|o| o.chown = Some("root".parse().unwrap())).contains("other options"));
    }
}
