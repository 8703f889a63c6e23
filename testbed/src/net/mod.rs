//! Two hosts and the links between them.
//!
//! A [`Link`] is a pair of network namespaces with unique names, joined by one
//! or more *paths*. A path is a veth pair, or, when it shall have a delay, two
//! TUN devices joined by a relay that holds every packet (this kernel family
//! often comes without `netem`). Paths are numbered from 0; path N has the
//! addresses 10.77.N.1 and .2, fd77:0:0:N::1 and ::2. Namespaces are isolated,
//! so every link uses the same addresses.
//!
//! Both directions of a path are shaped alike. A rate per flow holds for each
//! TCP connection and each UDP socket pair: flows are hashed by their ports
//! into 256 classes, so that two flows share a class, and thus one rate, now
//! and then (two of four flows in about 2 % of the cases).
//!
//! Non-goals: loss, reordering and jitter; more than two hosts.

mod firewall;
mod host;
mod relay;
mod shape;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

pub use host::Host;
pub use shape::{Rate, Shape};

use crate::error::{Doing, Error, Result};
use crate::run::{need_root, run, words};
use firewall::Drop as Rule;
use relay::Relay;

/// One of the two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The host at 10.77.0.1.
    A,
    /// The host at 10.77.0.2.
    B,
}

impl Side {
    fn letter(self) -> char {
        match self {
            Self::A => 'a',
            Self::B => 'b',
        }
    }

    fn number(self) -> u8 {
        match self {
            Self::A => 1,
            Self::B => 2,
        }
    }
}

/// How a path shall be. The default: a veth pair as fast as the machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct LinkConfig {
    /// Rates of each direction.
    pub shape: Shape,
    /// Delay of each direction; the round trip takes twice as long.
    pub delay: Option<Duration>,
    /// Largest IP packet in bytes; 1500 when not given.
    pub mtu: Option<u32>,
}

/// Two hosts and their paths; dropping it removes them.
#[derive(Debug)]
pub struct Link {
    name: String,
    a: Host,
    b: Host,
    paths: u8,
    relays: Vec<Relay>,
    keep: bool,
}

impl Link {
    /// Makes two hosts with names of their own and one path between them.
    ///
    /// # Errors
    /// When this process is not root, a tool is missing or the kernel refuses.
    pub fn up(config: LinkConfig) -> Result<Self> {
        Self::up_named(&crate::unique_name(), config)
    }

    /// Like [`Link::up`], with the hosts called NAME-a and NAME-b.
    ///
    /// # Errors
    /// As [`Link::up`], and when the hosts exist already.
    pub fn up_named(name: &str, config: LinkConfig) -> Result<Self> {
        need_root()?;
        let mut link = Self::handle(name);
        if link.a.exists() || link.b.exists() {
            link.keep = true;
            return Err(Error::Invalid(format!("the link {name} is up already")));
        }
        link.a.create()?;
        link.b.create()?;
        link.add_link(config)?;
        Ok(link)
    }

    /// Takes hold of a link that another process left up; dropping the handle
    /// leaves it up.
    ///
    /// # Errors
    /// When there is no such link.
    pub fn attach(name: &str) -> Result<Self> {
        let mut link = Self::handle(name);
        link.keep = true;
        if !link.a.exists() || !link.b.exists() {
            return Err(Error::Invalid(format!("there is no link {name}: run `testbed up`")));
        }
        let devices = words(&format!("ip -n {} -o link show", link.a.name()))?;
        while devices.contains(&format!(": {}", device(link.paths))) {
            link.paths += 1;
        }
        Ok(link)
    }

    fn handle(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            a: Host::new(name, Side::A),
            b: Host::new(name, Side::B),
            paths: 0,
            relays: Vec::new(),
            keep: false,
        }
    }

    /// The host at 10.77.0.1.
    pub fn a(&self) -> &Host {
        &self.a
    }

    /// The host at 10.77.0.2.
    pub fn b(&self) -> &Host {
        &self.b
    }

    /// Name of the link; the hosts are NAME-a and NAME-b.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Number of paths between the two hosts.
    pub fn paths(&self) -> u8 {
        self.paths
    }

    /// Name of the network device of a path, the same on both hosts.
    pub fn device(&self, path: u8) -> String {
        device(path)
    }

    /// Leaves the hosts up when this handle goes. A path with a delay carries
    /// packets only as long as its handle lives.
    pub fn keep(&mut self) {
        self.keep = true;
    }

    /// Adds one more path between the same two hosts, returns its number.
    ///
    /// # Errors
    /// When a tool is missing or the kernel refuses.
    pub fn add_link(&mut self, config: LinkConfig) -> Result<u8> {
        let path = self.paths;
        let device = device(path);
        let (a, b) = (self.a.name(), self.b.name());
        match config.delay {
            Some(delay) => self.relays.push(Relay::start(&self.a, &self.b, &device, delay)?),
            None => {
                words(&format!("ip link add {device} netns {a} type veth peer name {device} netns {b}"))?;
            }
        }
        if let Some(mtu) = config.mtu {
            self.set_mtu(path, mtu)?;
        }
        for host in self.hosts() {
            let name = host.name();
            let (four, six) = (host.address_on(path), host.address6_on(path));
            words(&format!("ip -n {name} addr add {four}/24 dev {device}"))?;
            words(&format!("ip -n {name} addr add {six}/64 dev {device} nodad"))?;
            words(&format!("ip -n {name} link set {device} txqueuelen 2000 up"))?;
        }
        self.wait_for_carrier(&device)?;
        self.paths += 1;
        self.shape(path, config.shape)?;
        Ok(path)
    }

    fn wait_for_carrier(&self, device: &str) -> Result<()> {
        let end = Instant::now() + Duration::from_secs(5);
        while Instant::now() < end {
            let shown = words(&format!("ip -n {} -br link show {device}", self.a.name()))?;
            if shown.contains("LOWER_UP") {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Err(Error::Invalid(format!("{device} of link {} does not come up", self.name)))
    }

    /// Sets the rates of a path, while traffic may be running; packets that
    /// wait in the old queue are lost.
    ///
    /// # Errors
    /// When `tc` is missing or the kernel lacks HTB or the classifier.
    pub fn shape(&self, path: u8, shape: Shape) -> Result<()> {
        self.check(path)?;
        self.hosts().iter().try_for_each(|host| shape::apply(host, &device(path), shape))
    }

    /// Bytes that each class of a shaped path has sent from `side`, by class
    /// number; classes that sent nothing are left out.
    ///
    /// # Errors
    /// When `tc` fails.
    pub fn class_bytes(&self, path: u8, side: Side) -> Result<BTreeMap<u32, u64>> {
        self.check(path)?;
        shape::class_bytes(self.host(side), &device(path))
    }

    /// Bytes that `side` has sent on a path since it is up, headers included.
    ///
    /// # Errors
    /// When the kernel does not say.
    pub fn sent_bytes(&self, path: u8, side: Side) -> Result<u64> {
        self.check(path)?;
        let counter = format!("/sys/class/net/{}/statistics/tx_bytes", device(path));
        let said = run(self.host(side).command("cat").arg(&counter))?;
        said.trim().parse().map_err(|_| Error::Invalid(format!("{counter} says {said:?}")))
    }

    /// Sets the largest IP packet of a path in bytes, on both hosts.
    ///
    /// # Errors
    /// When the device refuses that size.
    pub fn set_mtu(&self, path: u8, mtu: u32) -> Result<()> {
        for host in self.hosts() {
            words(&format!("ip -n {} link set {} mtu {mtu}", host.name(), device(path)))?;
        }
        Ok(())
    }

    /// Both hosts silently lose everything that arrives on any path: no reset,
    /// no error.
    ///
    /// # Errors
    /// When neither nft nor iptables is there, or the kernel refuses.
    pub fn cut(&self) -> Result<()> {
        (0..self.paths).try_for_each(|path| self.cut_path(path))
    }

    /// Like [`Link::cut`], for one path only.
    ///
    /// # Errors
    /// As [`Link::cut`].
    pub fn cut_path(&self, path: u8) -> Result<()> {
        self.check(path)?;
        let device = device(path);
        self.hosts().iter().try_for_each(|host| firewall::add(host, &Rule::All { device: &device }))
    }

    /// Silently loses the packets of one TCP connection or UDP socket pair,
    /// named by its port on each host.
    ///
    /// # Errors
    /// As [`Link::cut`].
    pub fn cut_flow(&self, port_a: u16, port_b: u16) -> Result<()> {
        firewall::add(&self.a, &Rule::Flow { from: port_b, to: port_a })?;
        firewall::add(&self.b, &Rule::Flow { from: port_a, to: port_b })
    }

    /// Ends one TCP connection as a firewall or a broken middlebox does: host a's socket fails, host b
    /// gets a reset.
    ///
    /// # Errors
    /// When `ss` is missing, the kernel cannot do it (CONFIG_INET_DIAG_DESTROY) or there is no such
    /// connection.
    pub fn reset_flow(&self, port_a: u16, port_b: u16) -> Result<()> {
        let (from, to) = (format!(":{port_a}"), format!(":{port_b}"));
        let words = ["-K", "-Htn", "state", "established", "sport", "=", &from, "dport", "=", &to];
        if run(self.a.command("ss").args(words))?.trim().is_empty() {
            return Err(Error::Invalid(format!(
                "no connection from port {port_a} to port {port_b} to reset"
            )));
        }
        Ok(())
    }

    /// Both hosts answer every TCP packet with a reset, as a firewall does that
    /// rejects; [`Link::mend`] ends it.
    ///
    /// # Errors
    /// When nft is not there, or the kernel refuses.
    pub fn reset(&self) -> Result<()> {
        for path in 0..self.paths {
            self.hosts().iter().try_for_each(|host| firewall::reset(host, &device(path)))?;
        }
        Ok(())
    }

    /// TCP connections of host a: its port and that on host b.
    ///
    /// # Errors
    /// When `ss` fails.
    pub fn flows(&self) -> Result<Vec<(u16, u16)>> {
        let shown = run(self.a.command("ss").args(["-Htn", "state", "established"]))?;
        let port = |word: &str| word.rsplit(':').next()?.parse().ok();
        let flow = |line: &str| {
            let mut words = line.split_whitespace().skip(2);
            Some((port(words.next()?)?, port(words.next()?)?))
        };
        Ok(shown.lines().filter_map(flow).collect())
    }

    /// Silently loses packets of more than `bytes` bytes, IP header included:
    /// an MTU black hole. Segmentation offload is switched off, so that bulk
    /// data goes in packets of the MTU.
    ///
    /// # Errors
    /// As [`Link::cut`].
    pub fn lose_larger(&self, bytes: u16) -> Result<()> {
        self.set_offload(false)?;
        self.hosts().iter().try_for_each(|host| firewall::add(host, &Rule::Larger { than: bytes }))
    }

    /// Undoes every cut and black hole.
    ///
    /// # Errors
    /// As [`Link::cut`].
    pub fn mend(&self) -> Result<()> {
        self.hosts().iter().try_for_each(|host| firewall::clear(host))?;
        self.set_offload(true)
    }

    fn set_offload(&self, on: bool) -> Result<()> {
        let segments = if on { 65535 } else { 1 };
        for path in 0..self.paths {
            for host in self.hosts() {
                let (name, device) = (host.name(), device(path));
                words(&format!("ip -n {name} link set {device} gso_max_segs {segments}"))?;
            }
        }
        Ok(())
    }

    fn hosts(&self) -> [&Host; 2] {
        [&self.a, &self.b]
    }

    fn host(&self, side: Side) -> &Host {
        match side {
            Side::A => &self.a,
            Side::B => &self.b,
        }
    }

    fn check(&self, path: u8) -> Result<()> {
        if path < self.paths {
            return Ok(());
        }
        Err(Error::Invalid(format!("link {} has no path {path}", self.name)))
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // The relays hold the namespaces: they go first.
        self.relays.clear();
        if !self.keep {
            // Nothing is left to do about a namespace that does not go.
            let _ = self.a.remove();
            let _ = self.b.remove();
        }
    }
}

fn device(path: u8) -> String {
    format!("path{path}")
}

/// Removes the hosts of a link that was kept; no error when they are gone.
///
/// # Errors
/// When the kernel refuses.
pub fn remove(name: &str) -> Result<()> {
    Host::new(name, Side::A).remove()?;
    Host::new(name, Side::B).remove()
}

/// Removes the hosts that processes which were killed left behind, returns
/// their names.
///
/// # Errors
/// When the kernel refuses.
pub fn sweep() -> Result<Vec<String>> {
    let stale = host::stale();
    for name in &stale {
        words(&format!("ip netns del {name}"))?;
    }
    Ok(stale)
}

/// Waits until the link `name` is removed.
///
/// # Errors
/// When its host cannot be looked at.
pub fn wait_removed(name: &str) -> Result<()> {
    let host = Host::new(name, Side::A);
    while std::fs::exists(host.path()).doing(|| format!("looking for link {name}"))? {
        std::thread::sleep(Duration::from_millis(200));
    }
    Ok(())
}
