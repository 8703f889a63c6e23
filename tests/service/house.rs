//! A service on this machine, and senders with keys.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::Value;
use tempfile::TempDir;
use testbed::images;
use testbed::net::Link;

use crate::ferry::{self, Sent, vmferry};
use crate::scene::{Attempt, signal};
use crate::watch::{eventually, tool};

pub const MIB: u64 = 1 << 20;
/// The port of services in namespaces.
const PORT: u16 = 8637;

/// Folders of keys, of images, and the one that the service gives.
pub struct House {
    pub dir: TempDir,
    pub into: PathBuf,
}

impl House {
    /// With a service's key, and senders' keys that it allows.
    pub fn with(senders: &[&str]) -> House {
        let dir = ferry::folder();
        let into = dir.path().join("into");
        fs::create_dir(&into).unwrap();
        let house = House { dir, into };
        house.key("service");
        senders.iter().for_each(|name| house.allow(name, &[]));
        house
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// What 'vmferry key' prints; it makes the key.
    pub fn key(&self, name: &str) -> String {
        tool(Command::new(vmferry()).args(["key", "--config"]).arg(self.path(name))).trim().into()
    }

    /// Lets a sender in, with these rights.
    pub fn allow(&self, name: &str, words: &[&str]) {
        let key = self.key(name);
        let mut command = Command::new(vmferry());
        command.args(["allow", &key, "--name", name]).args(words);
        tool(command.arg("--config").arg(self.path("service")));
    }

    pub fn forbid(&self, name: &str) {
        let key = self.key(name);
        let mut command = Command::new(vmferry());
        tool(command.args(["allow", "--remove", &key, "--config"]).arg(self.path("service")));
    }

    /// A sender believes the service of this name.
    pub fn trust(&self, name: &str, service: &str) {
        let key = self.key("service");
        let mut command = Command::new(vmferry());
        tool(command.args(["trust", service, &key, "--config"]).arg(self.path(name)));
    }

    /// A dense image.
    pub fn image(&self, name: &str, size: u64) -> PathBuf {
        let path = self.path(name);
        images::random(&path, size, 1).unwrap();
        path
    }

    /// What lies in the service's folder, names alone.
    pub fn listed(&self) -> Vec<String> {
        list(&self.into)
    }

    /// The command of a service that listens at `at`.
    pub fn command(&self, mut program: Command, at: &str, words: &[&str]) -> Command {
        program.args(["receive", "--json", "--listen", at, "--into"]).arg(&self.into);
        program.arg("--config").arg(self.path("service")).args(words);
        program.env("STATE_DIRECTORY", self.path("state"));
        program
    }

    /// A service at a free port of this host.
    pub fn start(&self, words: &[&str]) -> Service {
        self.start_at("0", words)
    }

    /// A service at this port.
    pub fn start_at(&self, port: &str, words: &[&str]) -> Service {
        let program = Command::new(vmferry());
        Service::run(self.command(program, port, words), IpAddr::from([127, 0, 0, 1]))
    }

    /// A service on host b.
    pub fn start_on(&self, link: &Link, words: &[&str]) -> Service {
        let program = link.b().command(vmferry());
        Service::run(self.command(program, &PORT.to_string(), words), link.b().address())
    }

    /// `vmferry send` to the service, with this sender's key, which knows it.
    pub fn send(&self, service: &Service, name: &str, words: &[&str], to: &str) -> Command {
        self.trust(name, &service.name());
        self.send_as(Command::new(vmferry()), name, words, &service.place(to))
    }

    /// The same from host a of a link.
    pub fn send_over(&self, link: &Link, service: &Service, name: &str, words: &[&str]) -> Command {
        self.trust(name, &service.name());
        self.send_as(link.a().command(vmferry()), name, words, &service.place(""))
    }

    /// The same, to any place, whether it is known or not.
    pub fn send_as(&self, mut program: Command, name: &str, words: &[&str], to: &str) -> Command {
        program.args(["send", "--json", "--log-interval", "0.1", "--config"]).arg(self.path(name));
        program.args(words).arg(to).stdin(Stdio::null()).current_dir(self.dir.path());
        program
    }

    /// Runs it to its end.
    pub fn sent(&self, service: &Service, name: &str, words: &[&str], to: &str) -> Sent {
        Attempt::start(self.send(service, name, words, to)).wait()
    }

    /// Starts it and waits until data flow.
    pub fn under_way(&self, service: &Service, name: &str, words: &[&str], to: &str) -> Attempt {
        let mut attempt = Attempt::start(self.send(service, name, words, to));
        attempt.until_copying();
        attempt
    }
}

pub fn list(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

/// The most memory that a process ever had, bytes.
pub fn peak(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// Descriptors that a process has open.
pub fn descriptors(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

/// A service that runs.
pub struct Service {
    child: Child,
    pub host: IpAddr,
    pub port: u16,
    log: Arc<Mutex<Vec<Value>>>,
    stderr: Arc<Mutex<String>>,
}

impl Service {
    /// Until it says that it serves.
    pub fn run(mut command: Command, host: IpAddr) -> Service {
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (out, mut err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let (log, stderr) = (Arc::<Mutex<Vec<Value>>>::default(), Arc::<Mutex<String>>::default());
        let (lines, said) = (log.clone(), stderr.clone());
        thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                lines.lock().unwrap().push(serde_json::from_str(&line).unwrap());
            }
        });
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(len @ 1..) = err.read(&mut bytes) {
                said.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..len]));
            }
        });
        let mut service = Service { child, host, port: 0, log, stderr };
        let address = service.until("serving", |_| true)["address"].as_str().unwrap().to_owned();
        service.port = address.rsplit(':').next().unwrap().parse().unwrap();
        service
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn address(&self) -> SocketAddr {
        (self.host, self.port).into()
    }

    /// As senders call it.
    pub fn name(&self) -> String {
        self.address().to_string()
    }

    /// A path there, as senders write it.
    pub fn place(&self, path: &str) -> String {
        format!("vmferry://{}/{path}", self.name())
    }

    /// All lines of the log about this event.
    pub fn said(&self, event: &str) -> Vec<Value> {
        self.log.lock().unwrap().iter().filter(|e| e["event"] == event).cloned().collect()
    }

    /// The reasons in the lines about this event.
    pub fn reasons(&self, event: &str) -> Vec<String> {
        self.said(event).iter().map(|e| e["reason"].as_str().unwrap().to_owned()).collect()
    }

    /// Waits for a line of the log.
    #[track_caller]
    pub fn until(&self, event: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let what = format!("{event}; it says {}", self.stderr.lock().unwrap());
        eventually(&what, || self.said(event).into_iter().find(|e| wanted(e)))
    }

    /// Waits for a line with all these words in its reason.
    #[track_caller]
    pub fn until_reason(&self, event: &str, words: &[&str]) -> String {
        let line = self.until(event, |e| {
            let reason = e["reason"].as_str().unwrap_or_default();
            words.iter().all(|w| reason.contains(w))
        });
        line["reason"].as_str().unwrap().to_owned()
    }

    /// Reads the allow file again.
    pub fn reload(&self) {
        signal(self.pid(), "HUP");
    }

    /// Ends it, waits; its exit code.
    pub fn end(&mut self) -> i32 {
        signal(self.pid(), "TERM");
        self.ended()
    }

    #[track_caller]
    pub fn ended(&mut self) -> i32 {
        eventually("the service ends", || self.child.try_wait().unwrap()).code().unwrap_or(-1)
    }

    /// The most memory it ever had, bytes.
    pub fn peak(&self) -> u64 {
        peak(self.pid())
    }

    /// Descriptors that it has open.
    pub fn descriptors(&self) -> usize {
        descriptors(self.pid())
    }

    /// Waits until it has let go of everything but `before`.
    #[track_caller]
    pub fn descriptors_back_to(&self, before: usize) {
        eventually("descriptors are given back", || (self.descriptors() <= before).then_some(()));
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            let log = self.log.lock().unwrap();
            let lines: Vec<String> = log.iter().map(Value::to_string).collect();
            let said = self.stderr.lock().unwrap();
            std::io::Write::write_all(
                &mut std::io::stderr(),
                format!("the service said:\n{}\n{said}\n", lines.join("\n")).as_bytes(),
            )
            .unwrap();
        }
    }
}
