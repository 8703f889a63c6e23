//! What systemd does for a service, done by hand: sockets that are handed over, and a socket that
//! hears how it goes.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::Duration;

use crate::ferry::vmferry;
use crate::house::{House, MIB, Service};

/// Binds descriptor 3, then becomes the service (sd_listen_fds(3)).
const SYSTEMD: &str = r#"
import os, socket, sys
sock = socket.create_server(("127.0.0.1", 0))
if sock.fileno() != 3:
    os.dup2(sock.fileno(), 3)
os.set_inheritable(3, True)
os.environ["LISTEN_FDS"], os.environ["LISTEN_PID"] = "1", str(os.getpid())
print('{"event": "bound", "port": %d}' % sock.getsockname()[1], flush=True)
os.execv(sys.argv[1], sys.argv[1:])
"#;

/// The fields of the next message.
#[track_caller]
fn heard(socket: &UnixDatagram) -> Vec<String> {
    let mut bytes = [0; 4096];
    let len = socket.recv(&mut bytes).expect("a message to NOTIFY_SOCKET");
    String::from_utf8_lossy(&bytes[..len]).lines().map(str::to_owned).collect()
}

#[test]
fn sockets_and_states() {
    let house = House::with(&["a"]);
    // The name of a socket has 107 bytes at most (unix(7)).
    let short = tempfile::tempdir().unwrap();
    let path = short.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut command = Command::new("python3");
    command.args(["-c", SYSTEMD]).arg(vmferry()).env("NOTIFY_SOCKET", &path);
    command.args(["receive", "--json", "--into"]).arg(&house.into).arg("--config").arg(house.path("service"));
    let mut service = Service::run(command, [127, 0, 0, 1].into());
    assert_eq!(service.said("bound")[0]["port"], service.port, "the very socket");
    assert_eq!(heard(&socket), ["READY=1"]);
    house.image("disk.img", MIB);
    house.sent(&service, "a", &["disk.img"], "").done();

    let reloaded = || {
        service.reload();
        let began = heard(&socket);
        assert_eq!(began[0], "RELOADING=1");
        // Without it systemd takes Type=notify-reload for failed.
        let since = began.iter().find_map(|f| f.strip_prefix("MONOTONIC_USEC=")).unwrap();
        assert!(since.parse::<u64>().unwrap() > 0);
        assert_eq!(heard(&socket), ["READY=1"]);
    };
    reloaded();
    service.until("reloaded", |_| true);
    fs::write(house.path("service/allow"), "nonsense\n").unwrap();
    reloaded();
    service.until_reason("not_reloaded", &["line 1"]);
    assert_eq!(service.end(), 0);
    assert_eq!(heard(&socket), ["STOPPING=1"]);
}
