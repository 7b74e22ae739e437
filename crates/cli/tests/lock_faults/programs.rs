//! Programs that hold guards, each a process of this test, and what they say of it.

use hinterland_os::clock::monotonic_ns;
use hinterland_pool::{GuardOptions, Pool, PoolError, WriteGuard};
use hinterland_sim::history::{Act, Operation, linearizable};
use hinterland_types::GlobalAddress;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Words of 8 bytes that the roles write.
pub const WORDS: usize = 700;
const ROLE_VARIABLE: &str = "HINTERLAND_LOCK_ROLE";

/// A process that plays a role.
pub struct Program {
    child: RefCell<Child>,
    lines: Receiver<String>,
    steps: Arc<Mutex<BTreeMap<String, u64>>>,
    before: RefCell<Vec<String>>,
}

/// Sends a signal to a process.
pub fn signal(process: u32, signal: &str) {
    let sent = Command::new("kill").args([&format!("-{signal}"), &process.to_string()]).status().unwrap();
    assert!(sent.success(), "kill -{signal} {process}");
}

impl Program {
    /// Starts a role at an address.
    pub fn start(role: &str, socket: &Path, address: GlobalAddress, fault: Option<&str>) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "role_of_a_process", "--nocapture"]);
        command.env(ROLE_VARIABLE, format!("{} {} {role}", socket.display(), address.raw()));
        if let Some(fault) = fault {
            command.env("HINTERLAND_FAULT_POINT", fault);
        }
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (output, errors) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                // The first line of the role follows words of the test runner.
                let line = line.rsplit_once("... ").map_or(line.clone(), |(_, said)| said.to_owned());
                let _ = sender.send(line);
            }
        });
        let steps: Arc<Mutex<BTreeMap<String, u64>>> = Arc::default();
        let counted = Arc::clone(&steps);
        std::thread::spawn(move || {
            for line in BufReader::new(errors).lines().map_while(Result::ok) {
                let step = line.strip_prefix("fault-point ").and_then(|step| step.rsplit_once(':'));
                match step {
                    Some((name, time)) => {
                        counted.lock().unwrap().insert(name.to_owned(), time.parse().unwrap());
                    }
                    None => eprintln!("program: {line}"),
                }
            }
        });
        Self { child: RefCell::new(child), lines, steps, before: RefCell::default() }
    }

    /// Waits until it says a line that begins so.
    pub fn wait_for(&self, begin: &str) -> String {
        loop {
            let line = self.lines.recv_timeout(super::LONG);
            let line = line.unwrap_or_else(|_| panic!("no line {begin:?} behind {:?}", self.before.borrow()));
            self.before.borrow_mut().push(line.clone());
            if line.starts_with(begin) {
                return line;
            }
        }
    }

    /// How many reads it has said so far.
    pub fn reads(&self) -> usize {
        let mut before = self.before.borrow_mut();
        before.extend(self.lines.try_iter());
        before.iter().filter(|line| line.starts_with("read ")).count()
    }

    /// SIGSTOP.
    pub fn stop(&self) {
        signal(self.child.borrow().id(), "STOP");
    }

    /// SIGCONT.
    pub fn go_on(&self) {
        signal(self.child.borrow().id(), "CONT");
    }

    /// SIGKILL.
    pub fn kill(&self) {
        self.child.borrow_mut().kill().unwrap();
    }

    /// Closes its input, waits for its end; gives all lines and how often each step was reached.
    pub fn end(self) -> (Vec<String>, BTreeMap<String, u64>) {
        let mut child = self.child.borrow_mut();
        drop(child.stdin.take());
        child.wait().unwrap();
        drop(child);
        let mut lines = self.before.borrow().clone();
        while let Ok(line) = self.lines.recv_timeout(Duration::from_secs(5)) {
            lines.push(line);
        }
        // What it said last on standard error is on its way.
        std::thread::sleep(Duration::from_millis(50));
        let steps = self.steps.lock().unwrap().clone();
        (lines, steps)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // A stopped process does not end by itself.
        let mut child = self.child.borrow_mut();
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// In a process of [`Program::start`]: plays the role.
pub fn play() {
    let Ok(words) = std::env::var(ROLE_VARIABLE) else { return };
    let words: Vec<&str> = words.split(' ').collect();
    let address = GlobalAddress::new(words[1].parse().unwrap()).unwrap();
    match words[2] {
        "write" => write(&Pool::connect(Some(Path::new(words[0]))).unwrap(), address),
        "spin" | "hold" => {
            hold(&Pool::connect(Some(Path::new(words[0]))).unwrap(), address, words[2] == "spin")
        }
        _ => history(Path::new(words[0]), &words[3..]),
    }
}

fn options() -> GuardOptions {
    GuardOptions { wait: super::LONG, ..GuardOptions::default() }
}

/// Writes all words, most of them flushed on the way.
fn write(pool: &Pool, address: GlobalAddress) {
    let guard = pool.wlock(address, WORDS as u64 * 8, &options()).unwrap();
    for word in 0..WORDS {
        // Every second one first, so that they are ranges of their own.
        let at = if word < WORDS / 2 { word * 2 } else { (word - WORDS / 2) * 2 + 1 };
        guard.write(at as u64 * 8, &(at as u64 + 1).to_le_bytes()).unwrap();
    }
    guard.flush().unwrap();
    println!("flushed {WORDS}");
    guard.write(0, &1u64.to_le_bytes()).unwrap();
    guard.unlock().unwrap();
    println!("done");
}

/// Holds the lock; writes all the time, or when it is told to go on. Says what the first error was, and what unlocking said.
fn hold(pool: &Pool, address: GlobalAddress, spins: bool) {
    let guard = pool.wlock(address, WORDS as u64 * 8, &options()).unwrap();
    let put = |guard: &WriteGuard| -> Result<(), PoolError> {
        for word in 0..WORDS as u64 {
            guard.write(word * 8, &(word + 1).to_le_bytes())?;
        }
        Ok(())
    };
    // What is written here may be pending when the process is stopped.
    put(&guard).unwrap();
    println!("held");
    let error = loop {
        if spins {
            if let Err(error) = put(&guard) {
                break error;
            }
        } else {
            std::thread::sleep(Duration::from_millis(1500));
            if let Err(error) = put(&guard).and_then(|()| guard.flush()) {
                break error;
            }
        }
    };
    println!("refused {} {error}", error.code());
    let unlocked = guard.unlock();
    println!("unlocked {}", unlocked.err().map_or(0, |error| error.code()));
}

/// Reads and writes words under their locks until its input ends, and says each access in time.
fn history(socket: &Path, words: &[&str]) {
    let registers = [words[0], words[1]].map(|text| GlobalAddress::new(text.parse().unwrap()).unwrap());
    let number: u64 = words[2].parse().unwrap();
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    let mut value = number << 32;
    loop {
        let Ok(pool) = Pool::connect(Some(socket)) else {
            std::thread::sleep(Duration::from_millis(20));
            continue;
        };
        let _ = access_all(&pool, registers, &mut value);
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Until something fails; then a new connection is better.
fn access_all(pool: &Pool, registers: [GlobalAddress; 2], value: &mut u64) -> Result<(), PoolError> {
    let options = GuardOptions { wait: Duration::from_secs(2), ..GuardOptions::default() };
    loop {
        *value += 1;
        let register = (*value % 2) as usize;
        let address = registers[register];
        if *value % 5 < 2 {
            let guard = pool.rlock(address, 8, &options)?;
            read(register, guard.fence(), |word| guard.read(0, word))?;
            guard.unlock()?;
        } else {
            let guard = pool.wlock(address, 8, &options)?;
            read(register, guard.fence(), |word| guard.read(0, word))?;
            println!("begin {register} {} {} {value}", guard.fence(), monotonic_ns());
            guard.write(0, &value.to_le_bytes())?;
            if value.is_multiple_of(3) {
                // Long enough for a stop to hit it here.
                std::thread::sleep(Duration::from_millis(3));
            }
            guard.flush()?;
            println!("end {value} {}", monotonic_ns());
            read(register, guard.fence(), |word| guard.read(0, word))?;
            guard.unlock()?;
        }
    }
}

fn read(
    register: usize,
    fence: u64,
    read: impl FnOnce(&mut [u8]) -> Result<(), PoolError>,
) -> Result<(), PoolError> {
    let (begin, mut word) = (monotonic_ns(), [0; 8]);
    read(&mut word)?;
    println!("read {register} {fence} {begin} {} {}", monotonic_ns(), u64::from_le_bytes(word));
    Ok(())
}

/// What all programs of a run saw.
#[derive(Default)]
pub struct Seen {
    /// Register, fence and operation.
    all: Vec<(usize, u64, Operation)>,
}

impl Seen {
    /// Takes what a program has said.
    pub fn add(&mut self, lines: &[String]) {
        let mut open: BTreeMap<u64, (usize, u64, u64)> = BTreeMap::new();
        for line in lines {
            let words: Vec<&str> = line.split(' ').collect();
            let Ok(numbers) = words[1..].iter().map(|word| word.parse()).collect::<Result<Vec<u64>, _>>()
            else {
                continue;
            };
            match (words[0], &numbers[..]) {
                ("read", &[register, fence, begin, end, value]) => {
                    let operation = Operation { begin, end, act: Act::Read(value), may_be_lost: false };
                    self.all.push((register as usize, fence, operation));
                }
                ("begin", &[register, fence, begin, value]) => {
                    open.insert(value, (register as usize, fence, begin));
                }
                ("end", &[value, end]) => {
                    let (register, fence, begin) = open.remove(&value).unwrap();
                    let operation = Operation { begin, end, act: Act::Write(value), may_be_lost: false };
                    self.all.push((register, fence, operation));
                }
                _ => {}
            }
        }
        for (value, (register, fence, begin)) in open {
            let act = Act::Write(value);
            self.all.push((register, fence, Operation { begin, end: u64::MAX, act, may_be_lost: true }));
        }
    }

    /// A write of unknown fate has its effect before the first access under a later fence, or never. Gives how many there were.
    pub fn check(&self, words: &str) -> usize {
        for register in 0..2 {
            let own: Vec<_> = self.all.iter().filter(|(other, ..)| *other == register).collect();
            let later = |fence: u64| {
                let after = own.iter().filter(move |(_, other, _)| *other > fence);
                after.map(|(_, _, operation)| operation.begin).min().unwrap_or(u64::MAX)
            };
            let settled = own.iter().map(|(_, fence, operation)| match operation.may_be_lost {
                true => Operation { end: later(*fence), ..*operation },
                false => *operation,
            });
            let history: Vec<Operation> = settled.collect();
            linearizable(&history).unwrap_or_else(|why| panic!("{words}, word {register}: {why}"));
        }
        self.all.len()
    }
}
