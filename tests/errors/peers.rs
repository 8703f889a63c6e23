//! Somebody else answers where the receiver should be. The sender believes only the key that came
//! over the remote shell, and says nothing to anybody else.

use crate::scene::fake::{Stolen, announcing, closer, impostor, talker};
use crate::scene::{Scene, says};

#[test]
fn another_key_is_refused_before_anything_is_sent() {
    let scene = Scene::new(1 << 20);
    let rsh = impostor(&scene, Stolen::Nothing);
    let reason = scene.send(&scene.local().rsh(rsh)).failed(3);
    says(&reason, &["127.0.0.1:", "another key than the one announced", "nothing was sent"]);
    scene.untouched();
}

#[test]
fn the_right_key_without_the_secret_is_refused() {
    let scene = Scene::new(1 << 20);
    let rsh = impostor(&scene, Stolen::Key);
    let reason = scene.send(&scene.local().rsh(rsh)).failed(3);
    says(&reason, &["127.0.0.1:", "another machine or somebody is in between", "nothing was sent"]);
    scene.untouched();
}

#[test]
fn a_receiver_that_waits_for_another_sender_is_told_apart() {
    let scene = Scene::new(1 << 20);
    let rsh = impostor(&scene, Stolen::KeyAndSecret);
    let reason = scene.send(&scene.local().rsh(rsh)).failed(3);
    says(&reason, &["127.0.0.1:", "does not accept this side's key", "another job"]);
    scene.untouched();
}

#[test]
fn a_service_that_is_not_ours_is_told_apart_and_hears_only_a_client_hello() {
    for words in
        ["SSH-2.0-OpenSSH_9.2\r\n", "HTTP/1.1 400 Bad Request\r\n\r\n", "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"]
    {
        let scene = Scene::new(1 << 20);
        let (port, heard) = talker(words.as_bytes());
        let reason = scene.send(&scene.local().rsh(announcing(&scene, [9; 32], port))).failed(3);
        says(&reason, &[&format!("127.0.0.1:{port}"), "does not speak TLS 1.3", "--port"]);
        scene.untouched();
        let heard = heard.lock().unwrap();
        assert!(!heard.is_empty());
        for bytes in heard.iter() {
            // A handshake record of TLS (RFC 8446, section 5.1), then at most an alert.
            assert_eq!(bytes[..2], [0x16, 0x03], "{bytes:02x?}");
        }
    }
}

#[test]
fn a_port_that_closes_at_once_is_no_receiver() {
    let scene = Scene::new(1 << 20);
    let rsh = announcing(&scene, [9; 32], closer());
    let reason = scene.send(&scene.local().rsh(rsh)).failed(3);
    says(&reason, &["127.0.0.1:"]);
    scene.untouched();
}
