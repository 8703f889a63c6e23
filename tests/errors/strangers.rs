//! Whoever else connects to the receiver's port does not disturb the job.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::scene::{Scene, hurry, slow_link};

#[test]
fn garbage_and_silent_connections_do_not_disturb_a_job() {
    let link = slow_link();
    let scene = Scene::new(24 << 20);
    let port = 7000;
    let over = AtomicBool::new(false);
    let (silent, noisy) = (AtomicU32::new(0), AtomicU32::new(0));
    let at = (link.b().address(), port);
    std::thread::scope(|scope| {
        let stranger = scope.spawn(|| {
            link.a()
                .inside(|| {
                    let mut held = Vec::new();
                    while !over.load(Ordering::Relaxed) {
                        // Nobody listens before the job, or after it.
                        let Ok(mut socket) = TcpStream::connect(at) else { continue };
                        let number = noisy.fetch_add(1, Ordering::Relaxed);
                        match number % 4 {
                            0 if held.len() < 32 => {
                                held.push(socket);
                                silent.fetch_add(1, Ordering::Relaxed);
                                continue;
                            }
                            1 => socket.write_all(&[0xff; 4096]).unwrap_or(()),
                            // The head of a client hello, and nothing behind it.
                            2 => socket.write_all(&[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3]).unwrap_or(()),
                            _ => socket.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap_or(()),
                        }
                        let _ = socket.shutdown(std::net::Shutdown::Write);
                        let _ = socket.read_to_end(&mut Vec::new());
                    }
                })
                .unwrap();
        });
        let ferry = scene.over(&link).args(["--port", "7000", "--log-interval", "0.1"]);
        let mut attempt = scene.start(&ferry);
        attempt.until_copying();
        hurry(&link);
        let sent = attempt.wait();
        over.store(true, Ordering::Relaxed);
        stranger.join().unwrap();
        sent.done();
    });
    scene.arrived();
    let (silent, all) = (silent.into_inner(), noisy.into_inner());
    assert!(silent > 4 && all > 16, "they were there: {silent} silent of {all}");
}
