//! A connection that is cut or damaged anywhere ends with an error, and no frame that was not sent is seen.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod ground;
#[path = "../../proto/tests/mutate/mod.rs"]
#[allow(dead_code, reason = "other targets use the rest")]
mod mutate;

use ground::{End, LONG, body, meet, send, tcp_listener};
use hinterland_channel::{Address, ChannelError, ChannelOptions, Listener};
use mutate::{Random, rounds};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::Duration;

/// Bytes that a client says during the handshake: a Hello and a Confirm.
const GREETING_BYTES: usize = 128 + 48;
/// Bytes of a header of a parcel.
const HEADER_BYTES: usize = 32;

/// What happens to the bytes from the client, counted behind the handshake.
#[derive(Clone, Copy, Debug)]
enum Fault {
    None,
    /// A byte is changed.
    Flip {
        at: usize,
        bits: u8,
    },
    /// Nothing behind this is passed on, and the direction ends.
    End {
        at: usize,
    },
    /// Both directions end at once, with a reset where bytes are unread.
    Cut {
        at: usize,
    },
    /// A byte goes missing.
    Drop {
        at: usize,
    },
    /// Everything up to here comes a second time.
    Repeat {
        at: usize,
    },
}

/// Stands between a client and a node, and does its worst to what the client says.
struct Proxy {
    address: Address,
    threads: Vec<JoinHandle<()>>,
}

fn proxy(listener: &Listener, fault: Fault) -> Proxy {
    let Address::Tcp(target) = listener.address() else { panic!("a TCP listener has a TCP address") };
    let front = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("tcp:{}", front.local_addr().unwrap()).parse().unwrap();
    let thread = std::thread::spawn(move || {
        let (client, _) = front.accept().unwrap();
        let node = TcpStream::connect(target).unwrap();
        client.set_nodelay(true).unwrap();
        node.set_nodelay(true).unwrap();
        let (mut back_from, mut back_to) = (node.try_clone().unwrap(), client.try_clone().unwrap());
        let back = std::thread::spawn(move || {
            let _ = std::io::copy(&mut back_from, &mut back_to);
            let _ = back_to.shutdown(Shutdown::Write);
        });
        // An error is one side going away.
        let _ = forward(&client, &node, fault);
        if matches!(fault, Fault::Cut { .. }) {
            let _ = client.shutdown(Shutdown::Both);
            let _ = node.shutdown(Shutdown::Both);
        }
        let _ = node.shutdown(Shutdown::Write);
        back.join().unwrap();
    });
    Proxy { address, threads: vec![thread] }
}

fn forward(mut client: &TcpStream, mut node: &TcpStream, fault: Fault) -> std::io::Result<()> {
    let mut seen = 0;
    let mut kept = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let received = client.read(&mut buffer)?;
        if received == 0 {
            return Ok(());
        }
        let mut piece = buffer[..received].to_vec();
        let start = seen;
        seen += received;
        let place = |at: usize| (at + GREETING_BYTES).checked_sub(start).filter(|&place| place < received);
        match fault {
            Fault::Flip { at, bits } => {
                if let Some(place) = place(at) {
                    piece[place] ^= bits;
                }
            }
            Fault::End { at } | Fault::Cut { at } => {
                if let Some(place) = place(at) {
                    return node.write_all(&piece[..place]);
                }
            }
            Fault::Drop { at } => {
                if let Some(place) = place(at) {
                    piece.remove(place);
                }
            }
            Fault::Repeat { at } => {
                kept.extend_from_slice(&piece);
                if let Some(place) = place(at) {
                    let again = kept[GREETING_BYTES.min(start + place)..start + place].to_vec();
                    piece.splice(place..place, again);
                }
            }
            Fault::None => {}
        }
        node.write_all(&piece)?;
    }
}

/// Sends frames through a fault: how many arrived, and what the receiver said in the end.
fn through(fault: Fault, frames: u32, sizes: impl Fn(u32) -> usize + Sync) -> (u32, ChannelError) {
    let listener = tcp_listener(ChannelOptions::default());
    let mut proxy = proxy(&listener, fault);
    let (ours, theirs) = meet(&listener, &proxy.address, ChannelOptions::default());
    let ((mut sender, hear), (answer, mut receiver)): (End, End) =
        (ours.split().unwrap(), theirs.split().unwrap());
    let outcome = std::thread::scope(|scope| {
        let taken = scope.spawn(|| {
            let mut number = 0;
            loop {
                match receiver.wait(LONG).and_then(|found| {
                    assert!(found, "neither a frame nor an error");
                    let mut frame = receiver.next()?.expect("a frame was there");
                    assert!(frame.word() == number && frame.bytes() == body(number, sizes(number)));
                    Ok(())
                }) {
                    Ok(()) => number += 1,
                    Err(error) => return (number, error),
                }
            }
        });
        for number in 0..frames {
            if send(&mut sender, number, &body(number, sizes(number))).is_err() {
                break;
            }
        }
        let _ = sender.flush();
        drop((sender, hear));
        taken.join().unwrap()
    });
    drop((answer, receiver));
    for thread in proxy.threads.drain(..) {
        thread.join().unwrap();
    }
    outcome
}

#[test]
fn through_a_proxy_without_faults_all_arrives() {
    let (frames, error) = through(Fault::None, 300, |number| number as usize * 10);
    assert_eq!(frames, 300);
    assert!(matches!(error, ChannelError::Closed), "{error}");
}

#[test]
fn every_damaged_byte_ends_the_connection() {
    // One parcel of one frame of 8 bytes, then more of them: every byte of the first.
    for at in 0..HEADER_BYTES + 16 {
        let (frames, error) = through(Fault::Flip { at, bits: 0x10 }, 1, |_| 8);
        assert_eq!(frames, 0, "byte {at} of the parcel was changed");
        assert!(matches!(error, ChannelError::Broken { .. }), "byte {at}: {error}");
    }
}

#[test]
fn fuzz_faults_anywhere_lose_frames_and_forge_none() {
    rounds(|random: &mut Random, _| {
        let at = random.below(40_000);
        let fault = match random.below(5) {
            0 => Fault::Flip { at, bits: 1 << random.below(8) },
            1 => Fault::End { at },
            2 => Fault::Cut { at },
            3 => Fault::Drop { at },
            _ => Fault::Repeat { at: at.max(1) },
        };
        let (frames, error) = through(fault, 100, |number| (number as usize * 37) % 900);
        assert!(frames <= 100 && error.is_over(), "{fault:?}: {frames} frames, {error}");
        if at < 20_000 {
            assert!(frames < 100, "{fault:?} at a byte that was sent went unnoticed");
        }
    });
}

#[test]
fn a_connection_that_ends_within_a_parcel_or_a_frame_is_lost_and_not_closed() {
    for at in [1, HEADER_BYTES, HEADER_BYTES + 5] {
        let (frames, error) = through(Fault::End { at }, 1, |_| 3000);
        assert_eq!(frames, 0);
        assert!(matches!(error, ChannelError::Lost { .. }), "{at}: {error}");
    }
}

#[test]
fn a_reset_is_no_orderly_end() {
    for bytes in [0, 20, HEADER_BYTES - 1] {
        let listener = tcp_listener(ChannelOptions::default());
        let (ours, theirs) = meet(&listener, &listener.address(), ChannelOptions::default());
        let mut theirs = theirs.split().unwrap();
        let (descriptors, _) = ours.into_descriptors().unwrap();
        let mut raw = TcpStream::from(descriptors.into_iter().next().unwrap());
        raw.write_all(&vec![0; bytes]).unwrap();
        let at_once = libc::linger { l_onoff: 1, l_linger: 0 };
        // SAFETY: the value lives through the call and has the length given.
        let result = unsafe {
            libc::setsockopt(
                std::os::fd::AsRawFd::as_raw_fd(&raw),
                libc::SOL_SOCKET,
                libc::SO_LINGER,
                (&raw const at_once).cast(),
                size_of::<libc::linger>() as libc::socklen_t,
            )
        };
        assert_eq!(result, 0);
        drop(raw);
        let error = theirs.1.wait(LONG).unwrap_err();
        assert!(matches!(error, ChannelError::Lost { .. }), "{error}");
        let error = ground::take(&mut theirs.1).unwrap_err();
        assert!(error.is_over(), "{error}");
        assert!(theirs.0.wait_room(8, LONG).unwrap_err().is_over());
    }
}

#[test]
fn a_recording_is_of_no_use_on_another_connection() {
    let listener = tcp_listener(ChannelOptions::default());
    let recorded = {
        let front = TcpListener::bind("127.0.0.1:0").unwrap();
        let Address::Tcp(target) = listener.address() else { panic!("a TCP listener has a TCP address") };
        let address = format!("tcp:{}", front.local_addr().unwrap()).parse().unwrap();
        let recorder = std::thread::spawn(move || {
            let (mut client, _) = front.accept().unwrap();
            let mut node = TcpStream::connect(target).unwrap();
            let (mut from, mut to) = (node.try_clone().unwrap(), client.try_clone().unwrap());
            let back = std::thread::spawn(move || std::io::copy(&mut from, &mut to));
            let (mut all, mut buffer) = (Vec::new(), [0; 4096]);
            while let Ok(received @ 1..) = client.read(&mut buffer) {
                all.extend_from_slice(&buffer[..received]);
                node.write_all(&buffer[..received]).unwrap();
            }
            node.shutdown(Shutdown::Both).unwrap();
            drop(back.join().unwrap());
            all
        });
        let (ours, theirs) = meet(&listener, &address, ChannelOptions::default());
        let ((mut sender, hear), mut theirs) = (ours.split().unwrap(), theirs.split().unwrap());
        send(&mut sender, 1, b"launch").unwrap();
        assert_eq!(ground::take(&mut theirs.1).unwrap().0, 1);
        drop((sender, hear, theirs));
        recorder.join().unwrap()
    };
    // Another client, whose bytes behind the handshake are those of the first one.
    let replay = recorded[GREETING_BYTES..].to_vec();
    let front = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("tcp:{}", front.local_addr().unwrap()).parse().unwrap();
    let Address::Tcp(target) = listener.address() else { panic!("a TCP listener has a TCP address") };
    let replayer = std::thread::spawn(move || {
        let (mut client, _) = front.accept().unwrap();
        let mut node = TcpStream::connect(target).unwrap();
        let (mut from, mut to) = (node.try_clone().unwrap(), client.try_clone().unwrap());
        let back = std::thread::spawn(move || std::io::copy(&mut from, &mut to));
        // The Confirm comes when the node has answered the Hello.
        for bytes in [128, GREETING_BYTES - 128] {
            let mut message = vec![0; bytes];
            client.read_exact(&mut message).unwrap();
            node.write_all(&message).unwrap();
        }
        node.write_all(&replay).unwrap();
        drop(back.join().unwrap());
    });
    let (ours, theirs) = meet(&listener, &address, ChannelOptions::default());
    let mut theirs = theirs.split().unwrap();
    let error = theirs.1.wait(LONG).unwrap_err();
    assert!(matches!(&error, ChannelError::Broken { .. }) && error.to_string().contains("order"), "{error}");
    drop((ours, theirs));
    replayer.join().unwrap();
}

#[test]
fn what_comes_behind_the_handshake_is_checked_whatever_it_is() {
    rounds(|random, _| {
        let listener = tcp_listener(ChannelOptions::default());
        let (ours, theirs) = meet(&listener, &listener.address(), ChannelOptions::default());
        let (descriptors, _) = ours.into_descriptors().unwrap();
        let mut raw = TcpStream::from(descriptors.into_iter().next().unwrap());
        let bytes: Vec<u8> = (0..random.below(3000)).map(|_| random.number() as u8).collect();
        raw.write_all(&bytes).unwrap();
        raw.shutdown(Shutdown::Write).unwrap();
        let mut theirs = theirs.split().unwrap();
        let error = theirs.1.wait(LONG).unwrap_err();
        let whole = bytes.len() >= HEADER_BYTES;
        match error {
            ChannelError::Broken { .. } => assert!(whole),
            ChannelError::Lost { .. } => assert!(!whole && !bytes.is_empty()),
            ChannelError::Closed => assert!(bytes.is_empty()),
            other => panic!("{other}"),
        }
    });
}

/// Sets the loopback interface of this thread's network up or down.
fn set_loopback(up: bool) {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    // SAFETY: an all-zero request is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[0] = b'l' as libc::c_char;
    request.ifr_name[1] = b'o' as libc::c_char;
    request.ifr_ifru.ifru_flags = if up { (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short } else { 0 };
    // SAFETY: the request is live and names an interface.
    let result =
        unsafe { libc::ioctl(std::os::fd::AsRawFd::as_raw_fd(&socket), libc::SIOCSIFFLAGS, &request) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn a_network_that_is_cut_is_noticed_by_who_sends_and_by_who_waits() {
    // SAFETY: plain values. This thread and those that it starts are in a network of their own from here on.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
        eprintln!("skipped: only root may make a network namespace");
        return;
    }
    set_loopback(true);
    let silence_max = Duration::from_secs(2);
    let ((mut sender, hear), (_answer, mut receiver)) =
        ground::network(ChannelOptions { silence_max, ..ChannelOptions::default() });
    send(&mut sender, 1, b"before").unwrap();
    assert_eq!(ground::take(&mut receiver).unwrap().0, 1);
    set_loopback(false);
    let waiting = std::thread::spawn(move || receiver.wait(LONG).map(drop));
    let error = loop {
        if let Err(error) = send(&mut sender, 2, &[0; 1000]) {
            break error;
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    assert!(error.is_over(), "{error}");
    let error = waiting.join().unwrap().expect_err("nothing can come");
    assert!(error.is_over(), "{error}");
    drop(hear);
}
