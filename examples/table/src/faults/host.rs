//! Pages as the kernel has them, and the connection to the other program.
//!
//! The memory is a file without a name that is mapped twice: as the program sees it, whose faults come here, and behind that, where
//! the bytes of a page are read. A page disappears by punching a hole into the file.

use super::pages::{Content, Effects, Message, PAGE_BYTES, Pages, Word};
use hinterland_os::poll::{Interest, Poller};
use hinterland_os::process::run_first;
use hinterland_os::userfault::{Event, FaultModes, Features};
use hinterland_os::{Mapping, MemoryFile, OsError, SharedSlice, Userfault};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Bytes of a message without those of a page: number of the page (4), word (1), whether to write (1), whether bytes follow (1), 0.
const HEAD_BYTES: usize = 8;
/// Bytes that are taken from the connection at once.
const READ_BYTES: usize = 64 << 10;
/// How long a page stays that a thread has waited for: so it gets something done before the other program gets the page.
const STAY: Duration = Duration::from_micros(20);

/// Counters.
#[derive(Debug, Default)]
pub struct Counts {
    /// Faults.
    pub taken: AtomicU64,
    /// Pages whose bytes came from the other program.
    pub fetched: AtomicU64,
}

/// The kernel and the other program, as one program uses them.
pub struct Host {
    file: MemoryFile,
    seen: Arc<Mapping>,
    behind: SharedSlice,
    faults: Userfault,
    peer: TcpStream,
    /// The page that came last, and when.
    last: Option<(u32, Instant)>,
    /// The other program has ended.
    is_alone: bool,
    counts: Arc<Counts>,
}

impl Host {
    /// Has the faults of `seen` come here.
    ///
    /// # Errors
    /// [`OsError`] where the kernel does not give faults away.
    pub fn new(
        file: MemoryFile,
        seen: Arc<Mapping>,
        behind: SharedSlice,
        peer: TcpStream,
    ) -> Result<Self, OsError> {
        let features = Features::MISSING_SHMEM.with(Features::WRITE_PROTECT_SHARED);
        let faults = Userfault::open(features)?;
        let modes = FaultModes { missing: true, minor: false, write_protect: true };
        faults.register(seen.address(), seen.len() as u64, modes)?;
        Ok(Self { file, seen, behind, faults, peer, last: None, is_alone: false, counts: Arc::default() })
    }

    /// Its counters.
    pub fn counts(&self) -> Arc<Counts> {
        Arc::clone(&self.counts)
    }

    /// Serves faults, and the other program, until nothing can be had of either. When the other one has ended, faults are served
    /// that need it not. Whoever gets an error ends this process before it lets go of this: what waits for a page would read zeros then.
    ///
    /// # Errors
    /// [`io::Error`] of the kernel or the connection.
    pub fn serve(&mut self, mut pages: Pages) -> io::Result<()> {
        const FAULTS: u64 = 0;
        const PEER: u64 = 1;
        self.peer.set_nodelay(true)?;
        // Who serves a page is not to wait behind programs that compute: with more of these than processors one program would keep
        // all pages for a slice of the scheduler, and the other get nothing done. Without the right to, that is how it is.
        let _ = run_first(true);
        let poller = Poller::new().map_err(io::Error::other)?;
        poller.add(&self.faults, FAULTS, Interest::READ).map_err(io::Error::other)?;
        poller.add(&self.peer, PEER, Interest::READ).map_err(io::Error::other)?;
        let (mut ready, mut events) = (Vec::new(), Vec::new());
        let (mut heard, mut piece) = (Vec::new(), vec![0; READ_BYTES]);
        loop {
            poller.wait(&mut ready, None).map_err(io::Error::other)?;
            if ready.iter().any(|one| one.token == PEER) {
                // One that was killed ends the connection in another way.
                let count = self.peer.read(&mut piece).unwrap_or(0);
                heard.extend_from_slice(&piece[..count]);
                self.hear_all(&mut heard, &mut pages)?;
                if count == 0 {
                    poller.remove(&self.peer).map_err(io::Error::other)?;
                    self.is_alone = true;
                    if pages.is_waiting() {
                        return Err(ended());
                    }
                }
            }
            if ready.iter().any(|one| one.token == FAULTS) {
                self.faults.read_events(&mut events).map_err(io::Error::other)?;
                for event in events.drain(..) {
                    let Event::Fault(fault) = event else { continue };
                    // Relaxed: a counter that nothing is ordered by.
                    self.counts.taken.fetch_add(1, Ordering::Relaxed);
                    let page = (fault.address - self.seen.address()) / PAGE_BYTES as u64;
                    pages.fault(page as u32, fault.write || fault.write_protect, self)?;
                }
            }
        }
    }

    /// Takes in all messages that have arrived whole.
    fn hear_all(&mut self, heard: &mut Vec<u8>, pages: &mut Pages) -> io::Result<()> {
        let mut used = 0;
        while let Some((message, bytes)) = parse(&heard[used..])? {
            if message.content.is_some() {
                // Relaxed: a counter that nothing is ordered by.
                self.counts.fetched.fetch_add(1, Ordering::Relaxed);
            }
            pages.hear(message, self)?;
            used += bytes;
        }
        heard.drain(..used);
        Ok(())
    }

    fn address(&self, page: u32) -> u64 {
        self.seen.address() + u64::from(page) * PAGE_BYTES as u64
    }

    /// Notes that somebody goes on with a page.
    fn came(&mut self, page: u32) {
        self.last = Some((page, Instant::now()));
    }

    /// Lets who has just got a page get something done with it.
    fn rest(&self, page: u32) {
        let since = self.last.filter(|(last, _)| *last == page).map(|(_, since)| since.elapsed());
        if let Some(left) = since.and_then(|since| STAY.checked_sub(since)) {
            std::thread::sleep(left);
        }
    }
}

impl Effects for Host {
    fn fill(&mut self, page: u32, content: Option<&Content>, may_write: bool) -> io::Result<()> {
        const ZEROS: [u8; PAGE_BYTES] = [0; PAGE_BYTES];
        let source = content.map_or(&ZEROS, |content| content);
        let filled =
            self.faults.try_copy(self.address(page), source, !may_write).map_err(io::Error::other)?;
        if filled.mapped_bytes != PAGE_BYTES as u64 {
            return Err(io::Error::other(format!("page {page} could not be filled")));
        }
        self.came(page);
        Ok(())
    }

    fn protect(&mut self, page: u32) -> io::Result<()> {
        self.rest(page);
        self.faults.write_protect(self.address(page), PAGE_BYTES as u64, true).map_err(io::Error::other)
    }

    fn open(&mut self, page: u32) -> io::Result<()> {
        self.faults.write_protect(self.address(page), PAGE_BYTES as u64, false).map_err(io::Error::other)?;
        self.came(page);
        Ok(())
    }

    fn copy(&mut self, page: u32) -> io::Result<Content> {
        let mut content = Box::new([0; PAGE_BYTES]);
        self.behind.read_at(page as usize * PAGE_BYTES, &mut content[..]).map_err(io::Error::other)?;
        Ok(content)
    }

    fn discard(&mut self, page: u32) -> io::Result<()> {
        self.rest(page);
        self.file.punch(u64::from(page) * PAGE_BYTES as u64, PAGE_BYTES as u64).map_err(io::Error::other)
    }

    fn wake(&mut self, page: u32) -> io::Result<()> {
        self.faults.wake(self.address(page), PAGE_BYTES as u64).map_err(io::Error::other)
    }

    fn send(&mut self, message: Message) -> io::Result<()> {
        if self.is_alone {
            return Err(ended());
        }
        let mut bytes = Vec::with_capacity(HEAD_BYTES + PAGE_BYTES);
        bytes.extend_from_slice(&message.page.to_le_bytes());
        bytes.extend([message.word as u8, u8::from(message.write), u8::from(message.content.is_some()), 0]);
        bytes.extend(message.content.iter().flat_map(|content| content.iter()));
        self.peer.write_all(&bytes)
    }
}

fn ended() -> io::Error {
    io::Error::new(
        io::ErrorKind::NotConnected,
        "the other program has ended, and has a page that is wanted here",
    )
}

/// The first message of what was heard, and its bytes; nothing while it is not whole.
fn parse(bytes: &[u8]) -> io::Result<Option<(Message, usize)>> {
    let Some((head, rest)) = bytes.split_at_checked(HEAD_BYTES) else { return Ok(None) };
    let page = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
    let word = [Word::Get, Word::Grant, Word::Recall, Word::Return, Word::Evict]
        .into_iter()
        .find(|word| *word as u8 == head[4])
        .ok_or_else(|| io::Error::other("the other program says what nobody understands"))?;
    let write = head[5] != 0;
    if head[6] == 0 {
        return Ok(Some((Message { page, word, write, content: None }, HEAD_BYTES)));
    }
    let Some(body) = rest.first_chunk::<PAGE_BYTES>() else { return Ok(None) };
    let content = Some(Box::new(*body));
    Ok(Some((Message { page, word, write, content }, HEAD_BYTES + PAGE_BYTES)))
}
