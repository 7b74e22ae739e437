//! Memory that is shared by page faults, of the kernel's own making: both programs are threads here.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use hinterland_os::Userfault;
use hinterland_table::{FaultedMemory, Memory, Table};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Two programs' ends of one memory; nothing where the kernel gives no faults away.
fn pair(bytes: u64, cached_bytes: u64) -> Option<[FaultedMemory; 2]> {
    if let Err(error) = Userfault::available() {
        eprintln!("skipped: {error}");
        return None;
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (other, _) = listener.accept().unwrap();
    let share = |peer, part| FaultedMemory::share(peer, part, bytes, cached_bytes).unwrap();
    Some([share(one, 0), share(other, 1)])
}

#[test]
fn words_that_both_add_to_have_all_that_was_added() {
    const WORDS: [u64; 4] = [0, 8, 4096, 2 << 20];
    let Some(both) = pair(4 << 20, 4 << 20) else { return };
    std::thread::scope(|scope| {
        for memory in both.iter().cycle().take(4) {
            scope.spawn(move || {
                for number in 0..2000_usize {
                    memory.add(WORDS[number % WORDS.len()], 1).unwrap();
                }
            });
        }
    });
    for word in WORDS {
        for memory in &both {
            assert_eq!(memory.add(word, 0).unwrap(), 4 * 2000 / WORDS.len() as u64, "{word}");
        }
    }
    assert!(both.iter().all(|memory| memory.faults().fetched > 0));
}

#[test]
fn pages_that_go_for_want_of_room_come_back_with_what_was_written() {
    const PAGES: u64 = 2048;
    let Some(both) = pair(PAGES * 4096, 64 << 10) else { return };
    for round in 0..3 {
        for (part, memory) in both.iter().enumerate() {
            for page in 0..PAGES {
                let at = page * 4096 + 8 * part as u64;
                assert_eq!(memory.add(at, page + 1).unwrap(), round * (page + 1));
            }
        }
    }
    // Half of the pages are at the other program, and 16 of them fit.
    assert!(both.iter().all(|memory| memory.faults().fetched >= 3 * (PAGES / 2 - 16)));
}

#[test]
fn nobody_reads_from_a_table_what_was_replaced_before_they_asked() {
    const KEYS: usize = 8;
    let Some(both) = pair(2 << 20, 2 << 20) else { return };
    let tables =
        [Table::create(both[0].clone(), 2 << 20).unwrap(), Table::open(both[1].clone(), true).unwrap()];
    let written: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
    let stop = AtomicBool::new(false);
    for key in 0..KEYS {
        tables[key % 2].set(&[key as u8], &0_u64.to_le_bytes().repeat(40)).unwrap();
    }
    std::thread::scope(|scope| {
        for (part, table) in tables.iter().enumerate() {
            let (written, stop) = (&written, &stop);
            scope.spawn(move || {
                for number in 1..500_u64 {
                    for key in (part..KEYS).step_by(2) {
                        table.set(&[key as u8], &number.to_le_bytes().repeat(40)).unwrap();
                        written[key].store(number, Ordering::SeqCst);
                    }
                }
                stop.store(true, Ordering::SeqCst);
            });
            scope.spawn(move || {
                let mut seen = [0; KEYS];
                let mut value = Vec::new();
                while !stop.load(Ordering::SeqCst) {
                    for key in 0..KEYS {
                        let least = written[key].load(Ordering::SeqCst).max(seen[key]);
                        value.clear();
                        assert!(table.get(&[key as u8], &mut value).unwrap());
                        let found = u64::from_le_bytes(*value.first_chunk().unwrap());
                        assert!(value == found.to_le_bytes().repeat(40), "a torn value");
                        assert!(found >= least, "{found} after {least}");
                        seen[key] = found;
                    }
                }
            });
        }
    });
}
