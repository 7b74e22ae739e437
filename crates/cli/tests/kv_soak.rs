//! Half an hour of everything at once: writers that are killed, readers that are stopped in the middle of whatever they do,
//! evictions to a disk, clears, quotas, pins, bits that flip in memory and on the disk, a clock that jumps, and nodes that are killed and take the blocks of those before. No wrong byte,
//! no hang, and at the end every slot is free again.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

#[path = "kv_soak/faults.rs"]
mod faults;

use faults::{Clock, flip};
use hinterland_pool::{KvCache, Pool, PoolError, Stored};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Seconds that the soak takes.
const SECONDS_VARIABLE: &str = "HINTERLAND_SOAK_SECONDS";
const SECONDS: u64 = 1800;
/// What a process of the soak is, the number that it draws from, and the node's socket.
const ROLE_VARIABLE: &str = "HINTERLAND_SOAK_ROLE";
const CAPACITY_BYTES: u64 = 64 << 20;
const NAMESPACES: [&str; 2] = ["soak, 16 bit", "soak, 8 bit"];
const WRITERS: usize = 3;
const READERS: usize = 3;
/// Prefixes that are written and read, and blocks of each.
const PREFIXES: u64 = 160;
const PREFIX_BLOCKS: u64 = 40;
const SIZES: [usize; 6] = [700, 4096, 20_000, 65_536, 100_000, 300_000];
/// How long any process may take to end, and a node to be ready.
const PATIENCE: Duration = Duration::from_secs(60);
/// Exit status of a process that read what nobody wrote.
const WRONG: i32 = 3;

/// Numbers at random (splitmix64).
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed(self.0) % limit
    }

    fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}

const fn mixed(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// A block of a prefix: its number, and what follows from it.
#[derive(Clone, Copy)]
struct Block {
    space: usize,
    prefix: u64,
    at: u64,
}

impl Block {
    fn key(self) -> [u8; 24] {
        let mut key = [7; 24];
        key[..8].copy_from_slice(&self.prefix.to_le_bytes());
        key[8..16].copy_from_slice(&self.at.to_le_bytes());
        key
    }

    /// Equal keys have other bytes in the other namespace, and other lengths.
    fn bytes(self) -> Vec<u8> {
        let size = SIZES[(self.prefix as usize + self.space) % SIZES.len()];
        let first = mixed((self.space as u64) << 40 | self.prefix << 20 | self.at);
        let words = (0..).map(|index: u64| first.wrapping_add(index.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        let mut bytes: Vec<u8> = words.take(size.div_ceil(8)).flat_map(u64::to_le_bytes).collect();
        bytes.truncate(size);
        bytes
    }
}

// --- processes of the soak ---------------------------------------------------------------------------------

/// What a process does until its standard input ends.
struct Player {
    stores: [KvCache; 2],
    chance: Chance,
    into: Vec<u8>,
}

impl Player {
    fn open(socket: &Path, seed: u64) -> Result<Self, PoolError> {
        let pool = Pool::connect(Some(socket))?;
        let stores = [pool.kv(NAMESPACES[0])?, pool.kv(NAMESPACES[1])?];
        Ok(Self { stores, chance: Chance(seed), into: vec![0; 1 << 20] })
    }

    fn some_prefix(&mut self) -> (usize, u64, u64) {
        let space = self.chance.below(2) as usize;
        // Some are wanted far more often.
        let prefix = self.chance.below(PREFIXES).min(self.chance.below(PREFIXES));
        (space, prefix, 1 + self.chance.below(PREFIX_BLOCKS))
    }

    fn write(&mut self) -> Result<(), PoolError> {
        let (space, prefix, count) = self.some_prefix();
        let store = &self.stores[space];
        let blocks: Vec<Block> = (0..count).map(|at| Block { space, prefix, at }).collect();
        let keys: Vec<[u8; 24]> = blocks.iter().map(|block| block.key()).collect();
        let names: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
        match self.chance.below(400) {
            0 => drop(store.clear()?),
            1..=20 => drop(store.remove(&names[..1 + names.len() / 8])?),
            21..=40 => drop(store.pin(&names[..1 + names.len() / 4])?),
            41..=60 => drop(store.unpin(&names)?),
            61..=64 => {
                let quota = Some(self.chance.below(CAPACITY_BYTES)).filter(|quota| quota % 2 == 0);
                store.limit(quota, 99 + self.chance.below(3) as u8)?;
            }
            _ => {
                let found = store.match_prefix(&names)?;
                let bytes: Vec<Vec<u8>> = blocks[found..].iter().map(|block| block.bytes()).collect();
                let pieces: Vec<Vec<&[u8]>> =
                    bytes.iter().map(|bytes| bytes.chunks(bytes.len() / 3 + 1).collect()).collect();
                let gathered: Vec<(&[u8], &[&[u8]])> =
                    names[found..].iter().zip(&pieces).map(|(name, pieces)| (*name, &pieces[..])).collect();
                let after = found.checked_sub(1).map(|last| names[last]);
                store.put_prefix(&gathered, after)?;
            }
        }
        Ok(())
    }

    fn read(&mut self) -> Result<u64, PoolError> {
        let (space, prefix, count) = self.some_prefix();
        let store = &self.stores[space];
        if self.chance.one_in(64) {
            // Reads ask nobody: who reads only would never notice that the node is another one.
            store.unpin(&[b"nothing"])?;
        }
        if self.chance.one_in(4) {
            // What has left the memory comes back from the disk.
            let keys: Vec<[u8; 24]> = (0..count).map(|at| Block { space, prefix, at }.key()).collect();
            store.fetch(&keys.iter().map(|key| &key[..]).collect::<Vec<_>>())?;
        }
        let mut hits = 0;
        for at in 0..count {
            let block = Block { space, prefix, at };
            let Some(bytes) = store.get(&block.key(), &mut [&mut self.into])? else { continue };
            hits += 1;
            let expected = block.bytes();
            if self.into.get(..bytes as usize) != Some(&expected[..]) {
                eprintln!("namespace {space}, prefix {prefix}, block {at}: {bytes} bytes that nobody wrote");
                std::process::exit(WRONG);
            }
        }
        Ok(hits)
    }
}

#[test]
#[ignore = "the processes that the soak starts"]
fn role_of_a_process() {
    let Ok(role) = std::env::var(ROLE_VARIABLE) else { return };
    let words: Vec<&str> = role.splitn(3, ' ').collect();
    let (is_writer, seed, socket) = (words[0] == "writer", words[1].parse::<u64>().unwrap(), words[2]);
    let ended = Arc::new(AtomicBool::new(false));
    let watched = Arc::clone(&ended);
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        watched.store(true, Ordering::SeqCst);
    });
    let (mut hits, mut sessions) = (0, 0);
    while !ended.load(Ordering::SeqCst) {
        let Ok(mut player) = Player::open(Path::new(socket), seed + sessions) else {
            std::thread::sleep(Duration::from_millis(20));
            continue;
        };
        sessions += 1;
        while !ended.load(Ordering::SeqCst) {
            let done = if is_writer { player.write().map(|()| 0) } else { player.read() };
            match done {
                Ok(count) => hits += count,
                Err(PoolError::Refused { code, text }) => panic!("refused with {code}: {text}"),
                // The node was killed: there will be another one.
                Err(_) => break,
            }
        }
    }
    println!("\ntally {hits} {sessions}");
}

// --- the soak ----------------------------------------------------------------------------------------------

struct Process {
    child: Child,
    /// Until when it is stopped.
    stopped: Option<Instant>,
}

impl Process {
    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    fn assert_alive(&mut self) {
        if let Some(status) = self.child.try_wait().unwrap() {
            panic!("a process ended by itself: {status}; see its words above");
        }
    }

    /// Lets it end by itself; what it has counted.
    fn finish(mut self) -> Vec<u64> {
        drop(self.child.stdin.take());
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < deadline, "a process hangs");
            std::thread::sleep(Duration::from_millis(20));
        };
        assert!(status.success(), "{status}; see its words above");
        let mut text = String::new();
        self.child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("tally ")).unwrap();
        line.split(' ').map(|word| word.parse().unwrap()).collect()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Those that have ended are as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Soak {
    folder: PathBuf,
    node: Process,
    writers: Vec<Process>,
    readers: Vec<Process>,
    chance: Chance,
    seeds: u64,
    clock: Clock,
    /// Nodes that there have been before this one.
    life: u64,
    /// Blocks that were found damaged, and bits that were flipped in memory and on the disk.
    damaged: u64,
    flips: [u64; 2],
}

/// Three nodes in a row check every read, then three do not.
const fn verifies(life: u64) -> bool {
    (life / 3).is_multiple_of(2)
}

impl Soak {
    fn new() -> Self {
        let folder = std::env::temp_dir().join(format!("hl-soak-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let clock = Clock::new(&folder);
        let node = start_node(&folder, "lru", verifies(0), &clock);
        let (writers, readers, chance) = (Vec::new(), Vec::new(), Chance(1));
        let mut soak = Self {
            folder,
            node,
            writers,
            readers,
            chance,
            seeds: 0,
            clock,
            life: 0,
            damaged: 0,
            flips: [0; 2],
        };
        soak.writers = (0..WRITERS).map(|_| soak.start("writer")).collect();
        soak.readers = (0..READERS).map(|_| soak.start("reader")).collect();
        soak
    }

    fn start(&mut self, role: &str) -> Process {
        self.seeds += 1_000_000;
        let role = format!("{role} {} {}", self.seeds, self.folder.join("s").display());
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--ignored", "--exact", "role_of_a_process", "--nocapture"]).env(ROLE_VARIABLE, role);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        Process { child, stopped: None }
    }

    /// Another node on the same socket; the one before is killed, or asked to end.
    fn restart(&mut self) {
        let signal = if self.chance.one_in(2) { Signal::SIGKILL } else { Signal::SIGTERM };
        self.damaged += self.damaged_now();
        self.node.signal(signal);
        self.node.child.wait().unwrap();
        for _ in 0..self.chance.below(20) {
            self.flip_a_bit();
        }
        let orders = ["lru", "clock", "s3fifo", "fifo"];
        self.life += 1;
        let order = orders[self.chance.below(4) as usize];
        self.node = start_node(&self.folder, order, verifies(self.life), &self.clock);
    }

    /// Blocks that this node has found damaged.
    fn damaged_now(&self) -> u64 {
        let pool = Pool::connect(Some(&self.folder.join("s"))).unwrap();
        pool.kv_status().unwrap().first().map_or(0, |store| store.kept.damaged_blocks)
    }

    /// Flips a bit in the file of the disk, or in that of the blocks. The latter only if all who may read it check what they read: a
    /// reader that was stopped for long may be of the node before this one.
    fn flip_a_bit(&mut self) {
        let (number, one_in) = (self.chance.below(u64::MAX), self.chance.below(4));
        let all_check = verifies(self.life) && (self.life == 0 || verifies(self.life - 1));
        let which = usize::from(one_in == 0 || !all_check);
        let folder = if which == 0 { self.memory() } else { self.folder.join("disk") };
        self.flips[which] += u64::from(flip(&folder, number));
    }

    /// The folder of the blocks, which outlive their node.
    fn memory(&self) -> PathBuf {
        let number = std::fs::read_to_string(self.folder.join("state/node.id")).unwrap_or_default();
        PathBuf::from(format!("/dev/shm/hinterland-{}", number.trim()))
    }

    fn kill_a_writer(&mut self) {
        let which = self.chance.below(WRITERS as u64) as usize;
        self.writers[which].assert_alive();
        self.writers[which].signal(Signal::SIGKILL);
        self.writers[which] = self.start("writer");
    }

    /// Stops a reader in the middle of whatever it does, mostly for a moment, at times for seconds.
    fn stop_a_reader(&mut self) -> bool {
        let which = self.chance.below(READERS as u64) as usize;
        let longest = if self.chance.one_in(20) { 8000 } else { 300 };
        let until = Instant::now() + Duration::from_millis(self.chance.below(longest));
        let reader = &mut self.readers[which];
        if reader.stopped.is_some() {
            return false;
        }
        reader.signal(Signal::SIGSTOP);
        reader.stopped = Some(until);
        true
    }

    fn wake_readers(&mut self, all: bool) {
        for reader in &mut self.readers {
            if reader.stopped.is_some_and(|until| all || Instant::now() >= until) {
                reader.signal(Signal::SIGCONT);
                reader.stopped = None;
            }
        }
    }

    /// What is left when everybody has gone: nothing, and room for as many blocks as at the start.
    fn account(&self) {
        let pool = Pool::connect(Some(&self.folder.join("s"))).unwrap();
        let status = || pool.kv_status().unwrap().remove(0);
        let deadline = Instant::now() + PATIENCE;
        while status().reserved + status().pinned_bytes > 0 {
            assert!(Instant::now() < deadline, "slots are reserved or pinned by nobody: {:?}", status());
            std::thread::sleep(Duration::from_millis(50));
        }
        for name in NAMESPACES {
            let store = pool.kv(name).unwrap();
            store.limit(None, 100).unwrap();
            store.clear().unwrap();
        }
        let empty = status();
        assert_eq!((empty.blocks, empty.bytes), (0, 0), "{empty:?}");
        assert!(empty.namespaces.iter().all(|space| space.blocks + space.slot_bytes == 0), "{empty:?}");
        let store = pool.kv(NAMESPACES[0]).unwrap();
        let block = vec![1; 65_536];
        let mut put = |number: u64| {
            let written = store.put(&[(&number.to_le_bytes(), &[&block])]).unwrap();
            assert_eq!(written, [Stored::Written], "block {number}");
        };
        let slots = empty.capacity_bytes / 65_536;
        (0..slots).for_each(&mut put);
        assert_eq!((status().blocks, status().evictions), (slots, empty.evictions), "a slot is lost");
        put(slots);
        assert_eq!((status().blocks, status().evictions), (slots, empty.evictions + 1));
    }
}

impl Drop for Soak {
    fn drop(&mut self) {
        self.wake_readers(true);
        self.writers.clear();
        self.readers.clear();
        self.node.signal(Signal::SIGTERM);
        let _ = self.node.child.wait();
        // What outlives the node ends here.
        let _ = std::fs::remove_dir_all(self.memory());
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A node that ends with this process.
fn start_node(folder: &Path, order: &str, verifies: bool, clock: &Clock) -> Process {
    let program = env!("CARGO_BIN_EXE_hinterland");
    let mut command = Command::new(program);
    command.args(["become", "--parent", &std::process::id().to_string(), "--", program, "--json", "--quiet"]);
    command.arg("--socket").arg(folder.join("s")).args(["node", "--name", "a", "--capacity", "32M"]);
    command.args([
        "--kv-capacity",
        &CAPACITY_BYTES.to_string(),
        "--cache-budget",
        "32M",
        "--eviction",
        order,
    ]);
    // Room is counted to the block at the end, so none is made ahead.
    command
        .args(["--kv-disk-capacity", "256M", "--kv-watermarks", "off", "--kv-disk"])
        .arg(folder.join("disk"));
    command.args(["--kv-verify", if verifies { "always" } else { "arrived" }]);
    clock.command(&mut command);
    command.arg("--state").arg(folder.join("state")).arg("--backing").arg(folder.join("memory"));
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("\"ready\":true"), "{line:?}");
    Process { child, stopped: None }
}

#[test]
#[ignore = "half an hour; ./check --full runs it"]
fn soak_of_kv_blocks_ends_with_every_slot_free() {
    let seconds = std::env::var(SECONDS_VARIABLE).ok().and_then(|text| text.parse().ok()).unwrap_or(SECONDS);
    let (begin, whole) = (Instant::now(), Duration::from_secs(seconds));
    let mut soak = Soak::new();
    let (mut kills, mut stops, mut jumps, mut restarts) = (0, 0, 0, 0);
    // The last part is long enough for blocks to be evicted by a node that nobody kills.
    let restart_every = (whole / 8).min(Duration::from_secs(20));
    while begin.elapsed() < whole {
        std::thread::sleep(Duration::from_millis(soak.chance.below(150)));
        soak.wake_readers(false);
        for reader in &mut soak.readers {
            reader.assert_alive();
        }
        soak.node.assert_alive();
        if soak.chance.one_in(2) {
            soak.kill_a_writer();
            kills += 1;
        }
        stops += u32::from(soak.stop_a_reader());
        soak.flip_a_bit();
        if soak.chance.one_in(8) {
            jumps += u32::from(soak.clock.jump(soak.chance.below(u64::MAX)));
        }
        if begin.elapsed() > restart_every * (restarts + 1) && begin.elapsed() < whole - restart_every {
            soak.restart();
            restarts += 1;
        }
    }
    soak.wake_readers(true);
    let hits: u64 = std::mem::take(&mut soak.readers).into_iter().map(|reader| reader.finish()[0]).sum();
    std::mem::take(&mut soak.writers).into_iter().for_each(|writer| drop(writer.finish()));
    let pool = Pool::connect(Some(&soak.folder.join("s"))).unwrap();
    let status = pool.kv_status().unwrap().remove(0);
    let evictions = status.evictions;
    let (damaged, [in_memory, on_disk]) = (soak.damaged + status.kept.damaged_blocks, soak.flips);
    eprintln!("{:?}", status.kept);
    assert!(damaged <= in_memory, "{damaged} blocks were damaged by {in_memory} flipped bits");
    assert!(
        in_memory > 0 && on_disk > 0 && (damaged > 0 || in_memory < 100),
        "{in_memory} bits were flipped and nobody has noticed"
    );
    eprintln!(
        "{seconds} s: {hits} blocks read and right, {kills} writers killed, {stops} pauses of readers, \
         {restarts} restarts, {evictions} evictions since the last one, {in_memory} bits flipped in memory ({damaged} \
         blocks dropped) and {on_disk} on the disk, {jumps} jumps of the clock"
    );
    assert!(hits > 0 && evictions > 0 && kills > 0 && stops > 0);
    soak.account();
}
