//! Programs that write to a region all the time, connect again when they must, and know what was acknowledged.

use hinterland_pool::Pool;
use hinterland_types::GlobalAddress;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Writers at each node.
const WRITERS: usize = 2;
/// Where the words of the writers stand; a sum of all stands at the start of the page.
const WORDS_AT: u64 = 4096;

/// What one writer did.
#[derive(Default)]
struct Tally {
    /// The last number of which the write was acknowledged.
    acknowledged: AtomicU64,
    /// The last number that it tried to write.
    tried: AtomicU64,
    /// Additions to the sum that were acknowledged, and those of which nobody knows.
    added: AtomicU64,
    doubtful: AtomicU64,
}

/// Programs that run.
pub struct Programs {
    stop: Arc<AtomicBool>,
    tallies: Vec<Arc<Tally>>,
    threads: Vec<JoinHandle<()>>,
}

/// What programs did.
pub struct Done(Vec<Arc<Tally>>);

impl Done {
    /// Writes that were acknowledged.
    pub fn written(&self) -> u64 {
        self.0.iter().map(|tally| tally.acknowledged.load(Ordering::Relaxed)).sum()
    }
}

impl Programs {
    /// Starts writers at every node.
    pub fn start(sockets: &[PathBuf], first: GlobalAddress) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let mut programs = Self { stop: Arc::clone(&stop), tallies: Vec::new(), threads: Vec::new() };
        for number in 0..sockets.len() * WRITERS {
            let (socket, tally) = (sockets[number % sockets.len()].clone(), Arc::new(Tally::default()));
            programs.tallies.push(Arc::clone(&tally));
            let (stop, place) = (Arc::clone(&stop), place(first, number));
            programs.threads.push(std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    if let Ok(pool) = Pool::connect(Some(&socket)) {
                        write(&pool, first, place, &tally, &stop);
                    }
                    std::thread::sleep(Duration::from_millis(5));
                }
            }));
        }
        programs
    }

    /// Ends them.
    pub fn stop(self) -> Done {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
        Done(self.tallies)
    }
}

/// Writes until something fails.
fn write(pool: &Pool, first: GlobalAddress, place: GlobalAddress, tally: &Tally, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let number = tally.tried.load(Ordering::Relaxed) + 1;
        tally.tried.store(number, Ordering::Relaxed);
        if pool.write(place, &word(number)).is_err() {
            return;
        }
        tally.acknowledged.store(number, Ordering::Relaxed);
        let mut found = [0; 8];
        if pool.read(place, &mut found).is_err() {
            return;
        }
        assert_eq!(found, word(number), "what was acknowledged is not there");
        if number.is_multiple_of(16) {
            match pool.fetch_and_add(first, 1) {
                Ok(_) => tally.added.fetch_add(1, Ordering::Relaxed),
                Err(_) => {
                    tally.doubtful.fetch_add(1, Ordering::Relaxed);
                    return;
                }
            };
            // The nodes need the processors, too.
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

/// Compares what is there with what was acknowledged, from every node.
pub fn check(sockets: &[PathBuf], first: GlobalAddress, done: &Done) {
    for socket in sockets {
        let pool = Pool::connect(Some(socket)).unwrap();
        let read = |place| {
            let mut found = [0; 8];
            pool.read(place, &mut found).unwrap();
            u64::from_le_bytes(found)
        };
        for (number, tally) in done.0.iter().enumerate() {
            let found = read(place(first, number));
            assert_eq!(found >> 32, found & 0xffff_ffff, "a torn word");
            let (acknowledged, tried) =
                (tally.acknowledged.load(Ordering::Relaxed), tally.tried.load(Ordering::Relaxed));
            let found = found & 0xffff_ffff;
            assert!((acknowledged..=tried).contains(&found), "{found} of {acknowledged} to {tried}");
        }
        let added: u64 = done.0.iter().map(|tally| tally.added.load(Ordering::Relaxed)).sum();
        let doubtful: u64 = done.0.iter().map(|tally| tally.doubtful.load(Ordering::Relaxed)).sum();
        let found = read(first);
        assert!((added..=added + doubtful).contains(&found), "{found} of {added} and {doubtful} in doubt");
    }
}

fn place(first: GlobalAddress, number: usize) -> GlobalAddress {
    first.checked_add(WORDS_AT + number as u64 * 8).unwrap()
}

/// Both halves of the word are the number, so that a torn word shows.
fn word(number: u64) -> [u8; 8] {
    (number << 32 | number).to_le_bytes()
}
