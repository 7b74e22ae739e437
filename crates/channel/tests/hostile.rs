//! A peer that writes anything anywhere in the shared file at any time: frames or an error, and nothing else.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod ground;
#[path = "../../proto/tests/mutate/mod.rs"]
#[allow(dead_code, reason = "other targets use the rest")]
mod mutate;

use ground::{End, LONG, small};
use hinterland_channel::{Channel, ChannelError, FRAME_HEADER_BYTES, pair};
use hinterland_os::{MapOptions, MemoryFile, PageKind, Seals, SharedSlice};
use mutate::{Random, rounds};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// An honest end, and the file under it with its sockets, to do with as one pleases.
struct Attack {
    end: End,
    file: SharedSlice,
    _sockets: Vec<OwnedFd>,
}

fn attack() -> Attack {
    let (honest, hostile) = pair(small()).unwrap();
    let (mut descriptors, _) = hostile.into_descriptors().unwrap();
    let file = MemoryFile::from_descriptor(descriptors.remove(0)).unwrap();
    let options = MapOptions { write: true, ..MapOptions::default() };
    let file = Arc::new(file.map(0, file.len() as usize, options).unwrap()).slice();
    Attack { end: honest.split().unwrap(), file, _sockets: descriptors }
}

/// Where the words of the two directions and their rings lie.
const LANES: [usize; 2] = [512, 1024];
const PUBLISHED: usize = 0;
const RELEASED: usize = 128;
const RINGS: usize = 4096;

#[test]
fn positions_that_no_honest_peer_has_end_the_channel() {
    let ring = small().ring_bytes as u64;
    for published in [4, ring + 8, u64::MAX, 1 << 63, u64::MAX - 7] {
        let mut attack = attack();
        attack.file.store_u64(LANES[1] + PUBLISHED, published).unwrap();
        let error = attack.end.1.next().unwrap_err();
        assert!(matches!(error, ChannelError::Broken { .. }), "{published:#x}: {error}");
        attack.file.store_u64(LANES[1] + PUBLISHED, 0).unwrap();
        assert!(matches!(attack.end.1.next(), Err(ChannelError::Broken { .. })), "broken for ever");
        assert!(matches!(attack.end.1.wait(LONG), Err(ChannelError::Broken { .. })));
        assert!(matches!(attack.end.0.room(0, 8), Err(ChannelError::Broken { .. })), "for both halves");
    }
    for released in [8, 1, u64::MAX, 1 << 40] {
        let mut attack = attack();
        attack.file.store_u64(LANES[0] + RELEASED, released).unwrap();
        // It is looked at when the ring seems full.
        let error = (0..5).find_map(|_| match attack.end.0.room(0, 30 << 10) {
            Ok(room) => room.and_then(|room| {
                room.commit();
                None
            }),
            Err(error) => Some(error),
        });
        // Of the first frame, 8 bytes may have been released: that is no lie that can be known.
        assert!(
            released == 8 || matches!(error, Some(ChannelError::Broken { .. })),
            "{released:#x}: {error:?}"
        );
    }
}

#[test]
fn nonsense_that_one_half_finds_wakes_the_other() {
    let Attack { end: (mut sender, mut receiver), file, _sockets } = attack();
    let sleeper = std::thread::spawn(move || receiver.wait(None).map(drop));
    std::thread::sleep(Duration::from_millis(20));
    file.store_u64(LANES[0] + RELEASED, u64::MAX).unwrap();
    let error = loop {
        match sender.room(0, 30 << 10) {
            Ok(Some(room)) => room.commit(),
            Ok(None) => panic!("the position was believed"),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, ChannelError::Broken { .. }), "{error}");
    assert!(matches!(sleeper.join().unwrap(), Err(ChannelError::Broken { .. })));

    let Attack { end: (mut sender, mut receiver), file, _sockets } = attack();
    while let Some(room) = sender.room(0, 30 << 10).unwrap() {
        room.commit();
    }
    let sleeper = std::thread::spawn(move || sender.wait_room(30 << 10, None).map(drop));
    std::thread::sleep(Duration::from_millis(20));
    file.store_u64(LANES[1] + PUBLISHED, u64::MAX).unwrap();
    assert!(matches!(receiver.next(), Err(ChannelError::Broken { .. })));
    assert!(matches!(sleeper.join().unwrap(), Err(ChannelError::Broken { .. })));
}

#[test]
fn headers_that_no_honest_peer_writes_end_the_channel() {
    let ring = RINGS + small().ring_bytes;
    for (length, published) in [(u32::MAX, 64), (57, 64), (30 << 10, 64), ((30 << 10) + 1, 40 << 10), (1, 8)]
    {
        let mut attack = attack();
        attack.file.write_at(ring, &length.to_le_bytes()).unwrap();
        attack.file.store_u64(LANES[1] + PUBLISHED, published).unwrap();
        let error = attack.end.1.next().unwrap_err();
        assert!(matches!(error, ChannelError::Broken { .. }), "{length:#x}: {error}");
        attack.file.write_at(ring, &0u32.to_le_bytes()).unwrap();
        assert!(attack.end.1.next().is_err(), "broken for ever");
    }
}

#[test]
fn a_body_that_changes_while_it_is_read_is_seen_once() {
    let mut attack = attack();
    let ring = RINGS + small().ring_bytes;
    let bytes = 5000u32;
    attack.file.write_at(ring, &bytes.to_le_bytes()).unwrap();
    attack.file.fill(ring + FRAME_HEADER_BYTES, bytes as usize, 1).unwrap();
    attack.file.store_u64(LANES[1] + PUBLISHED, u64::from(bytes) + 8).unwrap();
    let frame = attack.end.1.next().unwrap().unwrap();
    attack.file.fill(ring, 5008, 2).unwrap();
    let mut copy = vec![0; 5000];
    frame.read_at(0, &mut copy).unwrap();
    assert!(copy[..4096].iter().all(|&byte| byte == 1) && frame.len() == 5000);
    assert_eq!(frame.head(), &copy[..4096]);
    let mut middle = [0; 20];
    frame.read_at(4086, &mut middle).unwrap();
    assert_eq!(middle, [[1; 10], [2; 10]].concat()[..]);
    drop(frame);
    assert!(attack.end.1.next().unwrap().is_none());
}

/// Overwrites a few places, more often those that matter, with numbers that are near the truth.
fn scribble(random: &mut Random, file: &SharedSlice) {
    for _ in 0..=random.below(3) {
        let place = match random.below(4) {
            0 => LANES[random.below(2)] + 128 * random.below(4) + 4 * random.below(2),
            1 => LANES[random.below(2)] + [PUBLISHED, RELEASED][random.below(2)],
            2 => RINGS + small().ring_bytes * random.below(2) + (random.below(4000) & !7),
            _ => random.below(file.len() - 8) & !3,
        };
        let value = match random.below(4) {
            0 => random.number(),
            1 => random.below(200) as u64 & !7,
            2 => 1 << random.below(64),
            _ => file.load_u64(place & !7).unwrap().wrapping_add(8 * random.below(64) as u64),
        };
        file.write_at(place, &value.to_le_bytes()).unwrap();
    }
}

#[test]
fn fuzz_an_end_survives_a_peer_that_scribbles() {
    let limit = small().body_bytes_max;
    rounds(|random, _| {
        let Attack { end: (mut sender, mut receiver), file, _sockets } = attack();
        let mut frames = 0;
        for _ in 0..300 {
            match random.below(5) {
                0 => scribble(random, &file),
                1 => match sender.room(7, random.below(limit + 2)) {
                    Ok(Some(mut room)) => {
                        let bytes = random.below(room.len() + 1);
                        room.append(&vec![3; bytes]).unwrap();
                        room.commit();
                    }
                    Ok(None) => {}
                    Err(error) => assert!(!error.to_string().is_empty()),
                },
                2 => drop(sender.wait_room(random.below(limit), Some(Duration::ZERO))),
                3 => drop(receiver.wait(Some(Duration::ZERO))),
                _ => {
                    if let Ok(Some(mut frame)) = receiver.next() {
                        assert!(frame.len() <= limit);
                        let length = frame.len();
                        assert_eq!(frame.bytes().len(), length);
                        frames += 1;
                    }
                }
            }
        }
        assert!(frames <= 300);
    });
}

#[test]
fn files_that_are_no_channel_are_refused() {
    let state = "channel-1 shared taker";
    let descriptors = || {
        let (_one, other) = pair(small()).unwrap();
        other.into_descriptors().unwrap().0
    };
    let with = |file: OwnedFd| {
        let mut given = descriptors();
        given[0] = file;
        Channel::from_descriptors(given, state)
    };
    let bytes = (RINGS + 2 * small().ring_bytes) as u64;
    let unsealed = MemoryFile::anonymous("unsealed", bytes, PageKind::Base4K).unwrap();
    assert!(matches!(with(unsealed.duplicate().unwrap()), Err(ChannelError::Broken { .. })));
    unsealed.add_seals(Seals::FIXED_LENGTH).unwrap();
    assert!(matches!(with(unsealed.duplicate().unwrap()), Err(ChannelError::Broken { .. })), "no magic");
    let short = MemoryFile::anonymous("short", 4095, PageKind::Base4K).unwrap();
    short.add_seals(Seals::FIXED_LENGTH).unwrap();
    assert!(matches!(with(short.duplicate().unwrap()), Err(ChannelError::Broken { .. })));
    assert!(with(std::fs::File::open("/dev/null").unwrap().into()).is_err());
    assert!(with(std::fs::File::open("/proc/self/exe").unwrap().into()).is_err());
    rounds(|random, _| {
        let given = descriptors();
        let good = MemoryFile::from_descriptor(given[0].try_clone().unwrap()).unwrap();
        let place = random.below(32);
        good.write_at(place as u64, &[random.number() as u8]).unwrap();
        match Channel::from_descriptors(given, state) {
            Ok(channel) => drop(channel.split().unwrap()),
            Err(error) => assert!(matches!(error, ChannelError::Broken { .. }), "{error}"),
        }
    });
}

#[test]
fn a_state_that_no_channel_has_is_refused() {
    let states = [
        "",
        "channel-1",
        "channel-2 shared maker",
        "channel-1 shared",
        "channel-1 shared both",
        "channel-1 network",
        "channel-1 network 1 2 3 4 5 6",
        "channel-1 network 8388608 1048576 x 4 5 6 7",
        "channel-1 network 5 1048576 3 4 5 6 7",
        "channel-1 network 8388608 1048576 3 4 5 6 7 8",
    ];
    for state in states {
        for count in 0..5 {
            let given = (0..count).map(|_| std::fs::File::open("/dev/null").unwrap().into()).collect();
            assert!(Channel::from_descriptors(given, state).is_err(), "{state:?} with {count}");
        }
    }
    for text in
        ["", "x", "3", "99999 channel-1 shared maker", "0,1,2 channel-1 shared maker", "-1 channel-1 network"]
    {
        assert!(
            matches!(hinterland_channel::inherit(text), Err(ChannelError::NoHandover { .. })),
            "{text:?}"
        );
    }
}
