//! The threads of the model that read back ends and write to them, and what they share: processors, and what a device gives.

use super::Speed;
use crate::table::Shared;
use crate::width::{READ_BYTES_MAX, UNWRITTEN_BYTES_MAX, WRITE_BYTES_MAX, WRITE_SHARE};
use std::collections::{HashMap, VecDeque};

/// After so long, nobody comes any more for what was read ahead.
const AGE_NS: f64 = 100e6;

/// Content that back ends have, or are about to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Content {
    /// Which one; a later one has a larger number.
    pub(super) number: u64,
    /// Its length.
    pub(super) bytes: u64,
}

impl Shared for Content {
    fn is_same(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

/// What it takes to read or to write content, over back ends that share it by their speed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Pace {
    once_ns: f64,
    kib_ns: f64,
    /// How many times as much as one thread all threads together get.
    together: f64,
    /// Whether it takes time of a device, and none of a processor.
    pub(super) sleeps: bool,
}

impl Pace {
    /// Of `members`, for contents of so many KiB; `of` gives what is paid once and for each KiB, and how many times as much several threads get.
    pub(super) fn of(
        members: &[&Speed],
        unit_kib: f64,
        processors: f64,
        of: impl Fn(&Speed) -> (f64, f64, f64),
    ) -> Self {
        // Each takes content in proportion to its speed, which is what puts of a unit take.
        let weight = |speed: &Speed| 1.0 / (speed.put_ns + speed.put_kib_ns * unit_kib).max(1.0);
        let sum: f64 = members.iter().map(|speed| weight(speed)).sum();
        let (mut once_ns, mut kib_ns) = (0.0, 0.0);
        // The time of a content with threads without number: the processors have all of their work, a device only its own.
        let (mut computing, mut sleeping) = (0.0, 0.0f64);
        for speed in members {
            let share = weight(speed) / sum;
            let (its_once, its_kib, together) = of(speed);
            once_ns += share * its_once;
            kib_ns += share * its_kib;
            let ns = share * (its_once + its_kib * unit_kib);
            if speed.sleeps {
                sleeping = sleeping.max(ns / together.max(1.0));
            } else {
                computing += ns / together.min(processors).max(1.0);
            }
        }
        let least = computing.max(sleeping);
        let whole = once_ns + kib_ns * unit_kib;
        let together = if least > 0.0 { (whole / least).max(1.0) } else { 1.0 };
        Self { once_ns, kib_ns, together, sleeps: members.iter().any(|speed| speed.sleeps) }
    }

    /// Nanoseconds of one thread for `count` contents of all together so many bytes, asked for at once.
    pub(super) fn ns(self, count: usize, bytes: u64) -> f64 {
        // A device takes several in the time of one; who computes does one after the other.
        let times = if self.sleeps { 1.0 } else { count as f64 };
        times * self.once_ns + self.kib_ns * bytes as f64 / 1024.0
    }
}

/// When the device, and the processors that the program leaves, are done with what they were asked for, at the most that they give.
#[derive(Clone, Debug)]
pub(super) struct Limits {
    device_ns: f64,
    processors_ns: f64,
    processors: f64,
}

impl Limits {
    /// On a host with so many processors.
    pub(super) const fn new(processors: f64) -> Self {
        Self { device_ns: 0.0, processors_ns: 0.0, processors }
    }

    /// When a thread is done that begins to read or to write, which takes it so long if nobody is in its way.
    fn moved(&mut self, start_ns: f64, ns: f64, pace: Pace) -> f64 {
        let clock = if pace.sleeps { &mut self.device_ns } else { &mut self.processors_ns };
        *clock = clock.max(start_ns) + ns / pace.together;
        (start_ns + ns).max(*clock)
    }

    /// The same for work that takes a processor.
    pub(super) fn worked(&mut self, start_ns: f64, ns: f64) -> f64 {
        self.processors_ns = self.processors_ns.max(start_ns) + ns / self.processors;
        (start_ns + ns).max(self.processors_ns)
    }

    /// The same for a read by the thread that serves faults, whose processor is the one of the program that waits.
    pub(super) fn read_here(&mut self, start_ns: f64, bytes: u64, pace: Pace) -> f64 {
        let ns = pace.ns(1, bytes);
        if pace.sleeps { self.moved(start_ns, ns, pace) } else { start_ns + ns }
    }
}

/// The thread that is free first.
fn first_free(free_ns: &mut [f64]) -> Option<&mut f64> {
    free_ns.iter_mut().min_by(|one, other| one.total_cmp(other))
}

/// Threads that read ahead, and for faults that wait.
pub(super) struct Readers {
    pace: Pace,
    /// By thread: when it is free.
    free_ns: Vec<f64>,
    /// What nobody reads yet, and since when it waits.
    queue: VecDeque<(Content, f64)>,
    /// When what is being read, or has been, is at hand; and its length.
    done: HashMap<u64, (f64, u64)>,
    bytes: u64,
}

impl Readers {
    pub(super) fn new(width: usize, pace: Pace) -> Self {
        Self { pace, free_ns: vec![0.0; width], queue: VecDeque::new(), done: HashMap::new(), bytes: 0 }
    }

    /// Lets the threads take what they begin until a moment.
    fn advance(&mut self, until_ns: f64, limits: &mut Limits) {
        while let Some(&(content, since)) = self.queue.front()
            && let Some(free) = first_free(&mut self.free_ns)
            && free.max(since) <= until_ns
        {
            let start = free.max(since);
            *free = limits.moved(start, self.pace.ns(1, content.bytes), self.pace);
            self.done.insert(content.number, (*free, content.bytes));
            self.queue.pop_front();
        }
    }

    /// Whether content has been read at a moment.
    pub(super) fn is_done(&mut self, content: Content, at_ns: f64, limits: &mut Limits) -> bool {
        self.advance(at_ns, limits);
        self.done.get(&content.number).is_some_and(|(done, _)| *done <= at_ns)
    }

    /// Whether content is asked for.
    pub(super) fn has(&self, content: Content) -> bool {
        self.done.contains_key(&content.number)
            || self.queue.iter().any(|(other, _)| other.number == content.number)
    }

    /// Has content read ahead. `false`: there is no room for more.
    pub(super) fn want(&mut self, content: Content, at_ns: f64, limits: &mut Limits) -> bool {
        if self.has(content) {
            return true;
        }
        self.advance(at_ns, limits);
        if self.bytes + content.bytes > READ_BYTES_MAX {
            let bytes = &mut self.bytes;
            self.done.retain(|_, (done, its_bytes)| {
                let stays = *done + AGE_NS > at_ns;
                *bytes -= if stays { 0 } else { *its_bytes };
                stays
            });
        }
        if self.bytes + content.bytes > READ_BYTES_MAX {
            return false;
        }
        self.bytes += content.bytes;
        self.queue.push_back((content, at_ns));
        true
    }

    /// When content is at hand that a fault waits for from a moment on, before all that is only read ahead; it is used then.
    pub(super) fn read(&mut self, content: Content, at_ns: f64, limits: &mut Limits) -> f64 {
        self.advance(at_ns, limits);
        if let Some((done, bytes)) = self.done.remove(&content.number) {
            self.bytes -= bytes;
            return done.max(at_ns);
        }
        if let Some(place) = self.queue.iter().position(|(other, _)| other.number == content.number) {
            self.queue.remove(place);
            self.bytes -= content.bytes;
        }
        let ns = self.pace.ns(1, content.bytes);
        match first_free(&mut self.free_ns) {
            Some(free) => {
                *free = limits.moved(free.max(at_ns), ns, self.pace);
                *free
            }
            None => limits.read_here(at_ns, content.bytes, self.pace),
        }
    }
}

/// Threads that write what has left into back ends.
pub(super) struct Writers {
    pace: Pace,
    /// By thread: when it is free.
    free_ns: Vec<f64>,
    /// What nobody writes yet, and since when it waits.
    queue: VecDeque<(Content, f64)>,
    bytes: u64,
}

impl Writers {
    pub(super) const fn new(free_ns: Vec<f64>, pace: Pace) -> Self {
        Self { pace, free_ns, queue: VecDeque::new(), bytes: 0 }
    }

    /// Brings contents at a moment; gives when whoever brings them is free again, who helps with what is too much to wait.
    pub(super) fn add(&mut self, contents: &[Content], at_ns: f64, limits: &mut Limits) -> f64 {
        self.queue.extend(contents.iter().map(|content| (*content, at_ns)));
        self.bytes += contents.iter().map(|content| content.bytes).sum::<u64>();
        let most = if self.free_ns.is_empty() { 0 } else { UNWRITTEN_BYTES_MAX };
        let mut now_ns = at_ns;
        self.advance(now_ns, limits);
        while self.bytes > most {
            let (count, bytes) = self.take();
            now_ns = limits.moved(now_ns, self.pace.ns(count, bytes), self.pace);
            self.advance(now_ns, limits);
        }
        now_ns
    }

    /// Whether nobody has begun to write content, so that it is still here.
    pub(super) fn has(&mut self, content: Content, at_ns: f64, limits: &mut Limits) -> bool {
        self.advance(at_ns, limits);
        self.queue.front().is_some_and(|(first, _)| content.number >= first.number)
    }

    fn advance(&mut self, until_ns: f64, limits: &mut Limits) {
        while let Some(&(_, since)) = self.queue.front()
            && let Some(start) = first_free(&mut self.free_ns).map(|free| free.max(since))
            && start <= until_ns
        {
            let (count, bytes) = self.take();
            let done = limits.moved(start, self.pace.ns(count, bytes), self.pace);
            if let Some(free) = first_free(&mut self.free_ns) {
                *free = done;
            }
        }
    }

    /// What one thread takes at once: how many, and their bytes.
    fn take(&mut self) -> (usize, u64) {
        let most = (self.bytes / WRITE_SHARE).min(WRITE_BYTES_MAX);
        let (mut count, mut bytes) = (0, 0);
        while let Some((content, _)) = self.queue.front()
            && (count == 0 || bytes + content.bytes <= most)
        {
            bytes += content.bytes;
            count += 1;
            self.queue.pop_front();
        }
        self.bytes -= bytes;
        (count, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A device of 100 us a read, whatever its length, of which it does so many at once.
    fn device(together: f64) -> Pace {
        Pace { once_ns: 100_000.0, kib_ns: 0.0, together, sleeps: true }
    }

    fn contents(count: u64, bytes: u64) -> Vec<Content> {
        (0..count).map(|number| Content { number, bytes }).collect()
    }

    /// When the last of 64 contents has been read that are asked for at once.
    fn read_all(width: usize, pace: Pace) -> f64 {
        let mut limits = Limits::new(1.0);
        let mut readers = Readers::new(width, pace);
        for content in contents(64, 64 << 10) {
            assert!(readers.want(content, 0.0, &mut limits));
        }
        let mut last = 0.0f64;
        readers.advance(1e12, &mut limits);
        for content in contents(64, 64 << 10) {
            last = last.max(readers.read(content, 0.0, &mut limits));
        }
        last / 1e3
    }

    #[test]
    fn a_device_gives_more_to_more_threads_up_to_what_it_has() {
        let [one, two, four, eight] = [1, 2, 4, 8].map(|width| read_all(width, device(4.0)));
        assert_eq!((one, two, four), (6400.0, 3200.0, 1600.0));
        assert!((1600.0..=1700.0).contains(&eight), "{eight}");
        assert_eq!(read_all(16, device(16.0)), 400.0);
    }

    #[test]
    fn what_computes_gets_no_more_than_the_processors_that_are_left() {
        let speed = Speed { sleeps: false, get_ns: 100_000.0, get_together: 8.0, ..Speed::default() };
        let pace = |processors| {
            Pace::of(&[&speed], 64.0, processors, |speed| {
                (speed.get_ns, speed.get_kib_ns, speed.get_together)
            })
        };
        assert_eq!((pace(1.0).together, pace(4.0).together), (1.0, 4.0));
        let one = read_all(1, pace(1.0));
        assert!(read_all(8, pace(1.0)) >= one, "{one}");
        // The evicting thread is in the way, too.
        let mut limits = Limits::new(1.0);
        assert_eq!(limits.worked(0.0, 5_000.0), 5_000.0);
        let mut readers = Readers::new(8, pace(1.0));
        assert_eq!(readers.read(contents(1, 4096)[0], 0.0, &mut limits), 105_000.0);
    }

    #[test]
    fn two_devices_are_quicker_together_than_each_and_the_slowest_limits() {
        let speed = |put_ns, get_together| Speed {
            sleeps: true,
            get_ns: put_ns,
            put_ns,
            get_together,
            ..Speed::default()
        };
        let of = |speeds: &[&Speed]| {
            Pace::of(speeds, 0.0, 1.0, |speed| (speed.get_ns, speed.get_kib_ns, speed.get_together))
        };
        let (one, other) = (speed(1000.0, 2.0), speed(1000.0, 2.0));
        assert_eq!(of(&[&one]).together, 2.0);
        assert_eq!(of(&[&one, &other]).together, 4.0);
        assert_eq!(of(&[&one, &speed(1000.0, 1.0)]).together, 2.0);
    }

    #[test]
    fn a_fault_goes_before_what_is_read_ahead() {
        let mut limits = Limits::new(1.0);
        let mut readers = Readers::new(1, device(1.0));
        for content in contents(10, 128 << 10) {
            readers.want(content, 0.0, &mut limits);
        }
        // The first is under way, the last comes next.
        assert_eq!(readers.read(contents(10, 128 << 10)[9], 50_000.0, &mut limits), 200_000.0);
        assert!(!readers.is_done(contents(10, 128 << 10)[1], 250_000.0, &mut limits));
        assert!(readers.is_done(contents(10, 128 << 10)[1], 300_000.0, &mut limits));
    }

    #[test]
    fn what_is_read_ahead_has_a_limit_until_nobody_comes_for_it() {
        let mut limits = Limits::new(1.0);
        let mut readers = Readers::new(4, device(4.0));
        let all = contents(17, MIB);
        assert!(all[..16].iter().all(|content| readers.want(*content, 0.0, &mut limits)));
        assert!(!readers.want(all[16], 0.0, &mut limits));
        assert!(readers.want(all[16], 1e9, &mut limits));
        assert!(!readers.has(all[0]));
    }

    #[test]
    fn who_brings_more_than_may_wait_helps_and_less_with_more_threads() {
        let free = |width: usize| {
            let mut limits = Limits::new(1.0);
            let mut writers = Writers::new(vec![0.0; width], device(8.0));
            writers.add(&contents(32, MIB), 0.0, &mut limits)
        };
        // Without threads all of it, 1 MiB each time: content is never divided.
        assert_eq!(free(0), 32.0 * 100_000.0);
        assert!(free(1) < free(0) && free(4) < free(1), "{} {} {}", free(0), free(1), free(4));
        let mut limits = Limits::new(1.0);
        let mut writers = Writers::new(vec![0.0; 1], device(1.0));
        assert_eq!(writers.add(&contents(4, MIB), 0.0, &mut limits), 0.0);
        assert!(writers.has(contents(4, MIB)[3], 0.0, &mut limits), "it can be copied from here");
        assert!(!writers.has(contents(4, MIB)[0], 0.0, &mut limits));
        assert!(!writers.has(contents(4, MIB)[3], 1e9, &mut limits));
    }
}
