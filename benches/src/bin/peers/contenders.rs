//! The tools: what each one is, and how both of its ends are started. To add one, add it here.
//!
//! Every line goes through `sh` on its host, in the folder of the [`Bed`], with the binaries of
//! this build on the path. The servers are ready before the clock starts.

use crate::bed::Bed;
use crate::results::Kind;

/// A tool with its options.
pub struct Contender {
    /// Name of its row.
    pub name: String,
    /// What it is to the comparison.
    pub kind: Kind,
    /// Programs that it calls, as [`PROGRAMS`](crate::machine::PROGRAMS) has them.
    pub programs: &'static [&'static str],
    /// Whether it checks what arrived, and how.
    pub checked: &'static str,
    plan: Planner,
}

/// What is run for a bed and a port.
type Planner = Box<dyn Fn(&Bed, u16) -> Plan>;

/// How both ends are started for one run.
#[derive(Default)]
pub struct Plan {
    /// The end that listens.
    pub server: Option<String>,
    /// The end that connects; the clock starts with it.
    pub client: String,
    /// The server is the source, the client the destination; otherwise the other way round.
    pub pull: bool,
    /// The server ends by itself when all is written.
    pub server_ends: bool,
    /// The tool does not flush the file: `sync FILE` is part of its time.
    pub flush: bool,
    /// The target has to be there, in its full size, as one hole.
    pub sized: bool,
    /// Nothing arrives: there is no copy to compare.
    pub no_copy: bool,
}

impl Contender {
    fn new(
        name: impl Into<String>,
        programs: &'static [&'static str],
        checked: &'static str,
        plan: impl Fn(&Bed, u16) -> Plan + 'static,
    ) -> Self {
        Self { name: name.into(), kind: Kind::Peer, programs, checked, plan: Box::new(plan) }
    }

    fn kind(self, kind: Kind) -> Self {
        Self { kind, ..self }
    }

    /// How it is run, with a port that nothing else has used.
    pub fn plan(&self, bed: &Bed, port: u16) -> Plan {
        (self.plan)(bed, port)
    }
}

/// Every contender, in the order of a round.
pub fn all() -> Vec<Contender> {
    let mut all = Vec::new();
    all.extend([1, 4].map(|streams| raw_loop(streams, false)));
    all.extend([1, 2, 4].map(|streams| raw_loop(streams, true)));
    for transport in ["tcp", "tls"] {
        all.extend([1, 2, 4, 8].map(|streams| vmferry(transport, streams)));
    }
    all.extend([1, 4, 8].map(nbdcopy));
    all.extend([nbdcopy_to_qemu(), qemu_img()]);
    all.extend([rsync("-S --inplace"), rsync("--whole-file")]);
    all.extend([mbuffer(), socat(), ssh(), scp(), rclone(), wdt(), mscp()]);
    all.extend([1, 4].map(iperf));
    all
}

/// `hashed`: the bound of any mover that checks each block.
fn raw_loop(streams: u32, hashed: bool) -> Contender {
    let (name, hash, checked) = if hashed {
        (format!("hashed raw loop {streams}"), "--hash", "every block, BLAKE3")
    } else {
        (format!("raw loop {streams}"), "", "no")
    };
    Contender::new(name, &["rawloop"], checked, move |bed, port| {
        let Bed { b, image, target, size, .. } = bed;
        let sparse = if bed.is_sparse { "--sparse" } else { "" };
        // In memory it would be most of the work, done before the clock starts.
        let allocate = if bed.is_disk && !bed.is_sparse { "--allocate" } else { "" };
        Plan {
            server: Some(format!("rawloop recv {port} {target} {streams} --size {size} {allocate} {hash}")),
            client: format!("rawloop send {b} {port} {image} {streams} {sparse} {hash}"),
            server_ends: true,
            ..Plan::default()
        }
    })
    .kind(Kind::Raw)
}

fn vmferry(transport: &'static str, streams: u32) -> Contender {
    let name = format!("vmferry {transport} {streams}");
    Contender::new(name, &["vmferry", "testbed"], "every block, BLAKE3", move |bed, _| {
        let Bed { image, target, shell, vmferry, .. } = bed;
        Plan {
            client: format!(
                "vmferry send --json --transport {transport} --streams {streams} --rsh 'sh {shell}' \
                 --remote-path {vmferry} {image} there:{target}"
            ),
            ..Plan::default()
        }
    })
    .kind(Kind::Vmferry)
}

/// nbdcopy opens no more connections than it has threads. The target is new: zeros need no writing.
fn nbdcopy(connections: u32) -> Contender {
    let name = format!("nbdcopy {connections} → nbdkit");
    Contender::new(name, &["nbdcopy", "nbdkit"], "no", move |bed, port| {
        let Bed { b, image, target, .. } = bed;
        Plan {
            server: Some(format!("nbdkit -f -i {b} -p {port} file {target}")),
            client: format!(
                "nbdcopy --flush --destination-is-zero --connections={connections} \
                 --threads={connections} {image} nbd://{b}:{port}/"
            ),
            sized: true,
            ..Plan::default()
        }
    })
}

fn nbdcopy_to_qemu() -> Contender {
    Contender::new("nbdcopy 4 → qemu-nbd", &["nbdcopy", "qemu-nbd"], "no", |bed, port| {
        let Bed { b, image, .. } = bed;
        Plan {
            server: Some(qemu_nbd(bed, port)),
            client: format!(
                "nbdcopy --flush --destination-is-zero --connections=4 --threads=4 \
                 --request-size=1048576 {image} nbd://{b}:{port}/"
            ),
            sized: true,
            ..Plan::default()
        }
    })
}

fn qemu_img() -> Contender {
    Contender::new("qemu-img convert → qemu-nbd", &["qemu-img", "qemu-nbd"], "no", |bed, port| {
        let Bed { b, image, .. } = bed;
        Plan {
            server: Some(qemu_nbd(bed, port)),
            client: format!(
                "qemu-img convert -n --target-is-zero -m 8 -W -t none -T none -f raw -O raw \
                 {image} nbd://{b}:{port}/"
            ),
            flush: true,
            sized: true,
            ..Plan::default()
        }
    })
}

fn qemu_nbd(bed: &Bed, port: u16) -> String {
    let Bed { b, target, aio, .. } = bed;
    format!(
        "qemu-nbd -f raw -t -e 8 -b {b} -p {port} --cache=none --aio={aio} --discard=unmap \
         --detect-zeroes=off {target}"
    )
}

/// To a daemon, so without ssh.
fn rsync(options: &'static str) -> Contender {
    Contender::new(format!("rsync {options}"), &["rsync"], "whole file, after it", move |bed, port| {
        let Bed { b, image, rsync_config, rsync_flush, .. } = bed;
        Plan {
            server: Some(format!(
                "rsync --daemon --no-detach --config={rsync_config} --address={b} --port={port}"
            )),
            client: format!("rsync {rsync_flush} {options} {image} rsync://{b}:{port}/arrived/"),
            flush: rsync_flush.is_empty(),
            ..Plan::default()
        }
    })
}

fn mbuffer() -> Contender {
    Contender::new("mbuffer", &["mbuffer"], "no", |bed, port| {
        let Bed { b, image, target, .. } = bed;
        Plan {
            server: Some(format!("mbuffer -q -s 1M -m 256M -I {port} -o {target}")),
            client: format!("mbuffer -q -s 1M -m 256M -i {image} -O {b}:{port}"),
            server_ends: true,
            flush: true,
            ..Plan::default()
        }
    })
}

fn socat() -> Contender {
    Contender::new("dd, socat", &["dd", "socat"], "no", |bed, port| {
        let Bed { b, .. } = bed;
        Plan {
            server: Some(format!(
                "socat -u -b 1048576 TCP-LISTEN:{port},bind={b},reuseaddr STDOUT | {}",
                dd_write(bed)
            )),
            client: format!("{} | socat -u -b 1048576 STDIN TCP:{b}:{port}", dd_read(bed)),
            server_ends: true,
            ..Plan::default()
        }
    })
}

/// Direct on a disk; file systems in memory need not have that.
fn dd_read(bed: &Bed) -> String {
    let direct = if bed.is_disk { "iflag=direct" } else { "" };
    format!("dd if={} bs=1M {direct} status=none", bed.image)
}

fn dd_write(bed: &Bed) -> String {
    let direct = if bed.is_disk { "oflag=direct" } else { "" };
    format!("dd of={} bs=1M iflag=fullblock {direct} conv=fsync status=none", bed.target)
}

const ENCRYPTED: &str = "on the way (AES-GCM)";

fn sshd(bed: &Bed, port: u16) -> String {
    let Bed { b, sshd_config, .. } = bed;
    format!("/usr/sbin/sshd -D -e -f {sshd_config} -p {port} -o ListenAddress={b}")
}

fn ssh() -> Contender {
    Contender::new("dd, ssh", &["dd", "ssh", "sshd"], ENCRYPTED, |bed, port| {
        let Bed { b, ssh_options, .. } = bed;
        let (read, write) = (dd_read(bed), dd_write(bed));
        Plan {
            server: Some(sshd(bed, port)),
            client: format!("{read} | ssh {ssh_options} -p {port} root@{b} {write}"),
            ..Plan::default()
        }
    })
}

fn scp() -> Contender {
    Contender::new("scp", &["scp", "sshd"], ENCRYPTED, |bed, port| {
        let Bed { b, image, target, ssh_options, .. } = bed;
        Plan {
            server: Some(sshd(bed, port)),
            client: format!("scp -q {ssh_options} -P {port} {image} root@{b}:{target}"),
            flush: true,
            ..Plan::default()
        }
    })
}

/// Several connections for one file work only towards a local file: it fetches.
fn rclone() -> Contender {
    Contender::new("rclone 4 (http)", &["rclone"], "no", |bed, port| {
        let Bed { a, name, target, source, .. } = bed;
        Plan {
            server: Some(format!("rclone serve http --read-only --addr {a}:{port} {source}")),
            client: format!(
                "rclone copyto --multi-thread-streams 4 --multi-thread-cutoff 1M \
                 --http-url http://{a}:{port} :http:{name} {target}"
            ),
            pull: true,
            flush: true,
            ..Plan::default()
        }
    })
}

/// Without its encryption, with its checksums (the default).
fn wdt() -> Contender {
    Contender::new("wdt 4", &["wdt"], "pieces, CRC", |bed, port| {
        let Bed { b, name, source, arrived, folder, .. } = bed;
        let same = format!("-start_port {port} -num_ports 4 -transfer_id peers -encryption_type none");
        Plan {
            server: Some(format!("wdt {same} -directory {arrived}")),
            client: format!(
                "echo {name} > {folder}/manifest && \
                 wdt {same} -directory {source} -manifest {folder}/manifest -destination {b}"
            ),
            server_ends: true,
            flush: true,
            ..Plan::default()
        }
    })
}

fn mscp() -> Contender {
    Contender::new("mscp 4", &["mscp", "sshd"], ENCRYPTED, |bed, port| {
        let Bed { b, image, target, key, .. } = bed;
        Plan {
            server: Some(sshd(bed, port)),
            client: format!(
                "mscp -q -H -n 4 -c aes128-gcm@openssh.com -i {key} -l root -P {port} {image} {b}:{target}"
            ),
            flush: true,
            ..Plan::default()
        }
    })
}

/// As many bytes as the image has, from memory to nowhere.
fn iperf(streams: u32) -> Contender {
    let name = format!("iperf3 {streams} (memory to memory)");
    Contender::new(name, &["iperf3"], "no", move |bed, port| {
        let Bed { b, data, .. } = bed;
        Plan {
            server: Some(format!("iperf3 -s -1 -B {b} -p {port}")),
            client: format!("iperf3 -c {b} -p {port} -P {streams} -n {data}"),
            no_copy: true,
            ..Plan::default()
        }
    })
    .kind(Kind::Information)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::PROGRAMS;

    #[test]
    fn names_differ_and_every_program_is_known() {
        let mut all = all();
        assert!(
            all.iter().flat_map(|c| c.programs).all(|name| PROGRAMS.iter().any(|p| p.name == *name)),
            "machine::PROGRAMS has them all"
        );
        let count = all.len();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all.dedup_by(|a, b| a.name == b.name);
        assert_eq!(all.len(), count);
    }
}
