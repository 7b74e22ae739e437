//! Ten thousand clients that come and go leave nothing behind: no descriptor, no thread, no mapping.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod ground;

use ground::{Folder, LONG, client, node, send, take};
use hinterland_channel::{Address, ChannelError, ChannelOptions, Listener, Rings, connect};

/// Descriptors, threads and mappings of this process.
fn holdings() -> [usize; 3] {
    let count = |folder: &str| std::fs::read_dir(folder).unwrap().count();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    [
        count("/proc/self/fd"),
        count("/proc/self/task"),
        maps.lines().filter(|line| line.contains("memfd")).count(),
    ]
}

/// Resident memory in KiB.
fn resident_kib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn ten_thousand_clients_leave_nothing_behind() {
    let folder = Folder::new("many");
    let rings = Rings { ring_bytes: 64 << 10, body_bytes_max: 1000 };
    let options = ChannelOptions { rings, ..ChannelOptions::default() };
    let tcp: Address = "tcp:127.0.0.1:0".parse().unwrap();
    for (address, clients) in [(folder.address(), 7500), (tcp, 2500)] {
        let listener = Listener::bind(&address, node(None), options).unwrap();
        let address = listener.address();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..clients {
                    let channel = listener.accept(LONG).unwrap().unwrap().admit().unwrap().0;
                    let (mut sender, mut receiver) = channel.split().unwrap();
                    let (word, bytes) = take(&mut receiver).unwrap();
                    // Some clients do not stay for the answer.
                    let _ = send(&mut sender, word, &bytes);
                    let _ = sender.flush();
                }
            });
            let mut before = None;
            for number in 0..clients {
                let (mut sender, mut receiver) =
                    connect(&address, &client(None), options).unwrap().split().unwrap();
                send(&mut sender, number, b"hello").unwrap();
                // Often the frame has left already, and who took it may have answered and gone.
                let flushed = sender.flush();
                assert!(matches!(flushed, Ok(()) | Err(ChannelError::Closed)), "{flushed:?}");
                if number % 3 > 0 {
                    assert_eq!(take(&mut receiver).unwrap(), (number, b"hello".to_vec()));
                }
                if number == 100 {
                    before = Some((holdings(), resident_kib()));
                }
            }
            let (before, resident) = before.unwrap();
            // What the last client of the other side holds may not be gone yet.
            for (now, before) in holdings().into_iter().zip(before) {
                assert!(now <= before + 12, "{now} in place of {before}");
            }
            assert!(resident_kib() < resident + 4096, "{} KiB in place of {resident}", resident_kib());
        });
    }
}
