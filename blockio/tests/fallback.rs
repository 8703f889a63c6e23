//! Machines that forbid io_uring, or locked memory: the same result and one sentence that says
//! why. Each case runs [`child`] in a process of its own, behind a seccomp filter or a limit that
//! `python3` sets.
#![allow(clippy::unwrap_used)]

mod common;

use blockio::{Engine, EngineChoice, Pool, SyncKind};
use common::{block_on, create, folder, noise, one};
use std::fs;
use std::process::Command;

/// Limits this process, then becomes the command.
const WRAPPER: &str = "
import ctypes, os, resource, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
kind, number = sys.argv[1], int(sys.argv[2])
if kind == 'memlock':
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (number, number))
    if os.getuid() == 0:
        libc.prctl(24, 14, 0, 0, 0)  # CAP_IPC_LOCK out of the bounding set: gone after exec
else:
    call = {'setup': 425, 'register': 427}[kind]
    code = [(0x20, 0, 0, 0), (0x15, 0, 1, call), (6, 0, 0, 0x50000 | number), (6, 0, 0, 0x7fff0000)]
    code = ctypes.create_string_buffer(b''.join(struct.pack('HBBI', *line) for line in code))
    program = struct.pack('HxxxxxxQ', 4, ctypes.addressof(code))
    program = ctypes.create_string_buffer(program)
    assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program, 0, 0) == 0
os.execv(sys.argv[3], sys.argv[3:])
";

/// What the child said: the engine's kind, then its notices; and the error of `uring`.
fn run(kind: &str, number: i32) -> Vec<String> {
    let me = std::env::current_exe().unwrap();
    let output = Command::new("python3")
        .args(["-c", WRAPPER, kind, &*number.to_string()])
        .arg(me)
        .args(["--exact", "child", "--nocapture"])
        .output()
        .expect("python3 is missing: apt-get install python3");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text.lines().filter_map(|l| l.split_once("SAID ")).map(|(_, l)| l.to_owned()).collect()
}

/// By itself: without any limit. The other tests run it below theirs.
#[test]
#[allow(clippy::print_stdout)]
fn child() {
    let pool = Pool::new(4, 1 << 20).unwrap();
    let engine = Engine::start(EngineChoice::Auto, 4, &pool).unwrap();
    println!("\nSAID {}", engine.kind());
    for notice in engine.notices() {
        println!("SAID {notice}");
    }
    if let Err(error) = Engine::start(EngineChoice::Uring, 4, &pool) {
        println!("SAID {error}");
    }
    let dir = folder();
    let (image, path) = create(&dir, "a", 3 << 20, true);
    let bytes = noise(3 << 20, 1);
    block_on(async {
        for (i, part) in bytes.chunks(1 << 20).enumerate() {
            let mut buffer = pool.take().await;
            buffer.copy_from_slice(part);
            engine.write(&image, buffer, (i << 20) as u64, one(0..1 << 20)).await.1.unwrap();
        }
        engine.sync(&image, SyncKind::Data).await.unwrap();
    });
    assert!(fs::read(path).unwrap() == bytes);
}

#[test]
#[cfg(target_arch = "x86_64")]
fn io_uring_forbidden() {
    for (call, errno, text) in [
        ("setup", libc::EPERM, "Operation not permitted"),
        ("setup", libc::ENOSYS, "Function not implemented"),
        ("register", libc::EPERM, "Operation not permitted"),
    ] {
        let said = run(call, errno);
        let [kind, notice, error] = said.as_slice() else { panic!("{said:?}") };
        assert_eq!(kind, "sync");
        for sentence in [notice, error] {
            assert!(sentence.contains(text) && sentence.contains("io_uring"), "{sentence}");
        }
        assert!(notice.starts_with("io_uring is not available (") && notice.contains("using plain"));
        assert!(error.starts_with("cannot start io_uring: "));
    }
}

#[test]
fn little_locked_memory() {
    if common::uring(&Pool::new(1, 4096).unwrap()).is_none() {
        return;
    }
    let said = run("memlock", 65536);
    let [kind, rest @ ..] = said.as_slice() else { panic!("{said:?}") };
    // Kernels before 5.12 count the ring itself, too.
    assert!(kind == "uring" || kind == "sync");
    if kind == "uring" && !rest.is_empty() {
        assert_eq!(rest.len(), 1, "one notice: {rest:?}");
        assert!(rest[0].contains("takes 4194304 bytes") && rest[0].contains("RLIMIT_MEMLOCK is 65536 bytes"));
    }
}
