//! What names mean on one host: `ip netns exec` puts files in place of `/etc`'s (ip-netns(8)).
#![allow(dead_code, missing_docs, clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

use testbed::net::Host;

const FOLDER: &str = "/etc/netns";

/// `/etc/hosts` and `/etc/resolv.conf` of a host; they go with the handle.
pub struct Names(PathBuf);

impl Names {
    pub fn of(host: &Host, hosts: &str, resolv_conf: &str) -> Names {
        let folder = Path::new(FOLDER).join(host.name());
        // The last of other tests may be taking away what is above it.
        while fs::create_dir_all(&folder).is_err() {
            assert!(!Path::new(FOLDER).is_file());
        }
        fs::write(folder.join("hosts"), hosts).unwrap();
        fs::write(folder.join("resolv.conf"), resolv_conf).unwrap();
        Names(folder)
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
        let _ = fs::remove_dir(FOLDER);
    }
}
