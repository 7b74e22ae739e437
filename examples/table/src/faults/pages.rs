//! Who has which page: one that writes, or any number that read.
//!
//! A page's home decides who has it, one change after the other; what the other asks for meanwhile waits. Each message arrives
//! once and in the order in which it was sent. The home of a page never lets go of its bytes but to the one that writes.
//!
//! | message | from | means |
//! | --- | --- | --- |
//! | `Get` | not the home | I want to read it, or write it |
//! | `Grant` | the home | you may; with its bytes, unless you have them |
//! | `Recall` | the home | I want to read it, or write it: let go of it so far |
//! | `Return` | not the home | I have; with its bytes if I could write it |
//! | `Evict` | not the home | I have no more room for it; with its bytes if I could write it |

use std::collections::{HashMap, VecDeque};
use std::io;

/// Bytes of a page: what the processor maps, as the kernel's swap has it.
pub const PAGE_BYTES: usize = 4096;
/// Pages next to each other with one home: 2 MiB, as regions are spread.
const HOME_PAGES: u32 = 512;

/// The bytes of a page.
pub type Content = Box<[u8; PAGE_BYTES]>;

/// What a program may do to a page.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Access {
    /// Nothing: it is not here.
    Nothing,
    /// Read it.
    Read,
    /// Read and write it: nobody else has it.
    Write,
}

/// What is said about a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Word {
    /// Asks for it.
    Get,
    /// Gives it.
    Grant,
    /// Wants it back.
    Recall,
    /// Gives it back because it was wanted.
    Return,
    /// Gives it back because there is no room.
    Evict,
}

/// What one program says to the other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Message {
    /// Number of the page.
    pub page: u32,
    /// What it is.
    pub word: Word,
    /// To write, not only to read.
    pub write: bool,
    /// The bytes.
    pub content: Option<Content>,
}

/// What is done to pages here, and the way to the other program.
pub trait Effects {
    /// Makes a page appear with these bytes, or zeros, and wakes who waits for it.
    ///
    /// # Errors
    /// [`io::Error`], as the others, after which nothing is served any more.
    fn fill(&mut self, page: u32, content: Option<&Content>, may_write: bool) -> io::Result<()>;
    /// Lets nobody write a page that is here.
    ///
    /// # Errors
    /// As [`fill`](Self::fill).
    fn protect(&mut self, page: u32) -> io::Result<()>;
    /// Lets a page that is here be written, and wakes who waits for that.
    ///
    /// # Errors
    /// As [`fill`](Self::fill).
    fn open(&mut self, page: u32) -> io::Result<()>;
    /// The bytes of a page that is here and that nobody writes.
    ///
    /// # Errors
    /// As [`fill`](Self::fill).
    fn copy(&mut self, page: u32) -> io::Result<Content>;
    /// Makes a page disappear.
    ///
    /// # Errors
    /// As [`fill`](Self::fill).
    fn discard(&mut self, page: u32) -> io::Result<()>;
    /// Has who waits for a page try again.
    ///
    /// # Errors
    /// As [`fill`](Self::fill).
    fn wake(&mut self, page: u32) -> io::Result<()>;
    /// Says something to the other program.
    ///
    /// # Errors
    /// As [`fill`](Self::fill).
    fn send(&mut self, message: Message) -> io::Result<()>;
}

/// What a program knows of all pages.
#[derive(Debug)]
pub struct Pages {
    part: u8,
    here: Vec<Access>,
    /// What the other program may do to pages whose home is here.
    there: Vec<Access>,
    /// Pages that were asked for, and what the other one asks of them meanwhile: whether it is to write.
    pending: HashMap<u32, Option<bool>>,
    /// Pages of the other program that came here, the first first, each with the number of its coming.
    arrived: VecDeque<(u32, u32)>,
    arrivals: Vec<u32>,
    cached: usize,
    cached_max: usize,
}

impl Pages {
    /// No page is anywhere yet: all are zeros. At most `cached_max` of the other program's pages are kept here.
    pub fn new(part: u8, count: usize, cached_max: usize) -> Self {
        Self {
            part,
            here: vec![Access::Nothing; count],
            there: vec![Access::Nothing; count],
            pending: HashMap::new(),
            arrived: VecDeque::new(),
            arrivals: vec![0; count],
            cached: 0,
            cached_max: cached_max.max(1),
        }
    }

    /// What this program may do to a page.
    pub fn access(&self, page: u32) -> Access {
        self.here[page as usize]
    }

    /// Whether a thread of this program waits for a page.
    pub fn is_waiting(&self) -> bool {
        !self.pending.is_empty()
    }

    fn is_home(&self, page: u32) -> bool {
        page / HOME_PAGES % 2 == u32::from(self.part)
    }

    /// A thread of this program waits for a page.
    ///
    /// # Errors
    /// [`io::Error`] of `effects`.
    pub fn fault(&mut self, page: u32, write: bool, effects: &mut impl Effects) -> io::Result<()> {
        let wanted = if write { Access::Write } else { Access::Read };
        if self.access(page) >= wanted {
            return effects.wake(page);
        }
        if self.pending.contains_key(&page) {
            return Ok(());
        }
        let word = if self.is_home(page) { Word::Recall } else { Word::Get };
        if word == Word::Recall && self.there[page as usize] == Access::Nothing {
            let had = std::mem::replace(&mut self.here[page as usize], Access::Write);
            return if had == Access::Read { effects.open(page) } else { effects.fill(page, None, true) };
        }
        self.pending.insert(page, None);
        effects.send(Message { page, word, write, content: None })
    }

    /// The other program says something.
    ///
    /// # Errors
    /// [`io::Error`] of `effects`, and for what cannot be.
    pub fn hear(&mut self, message: Message, effects: &mut impl Effects) -> io::Result<()> {
        let Message { page, word, write, content } = message;
        let is_for_home = matches!(word, Word::Get | Word::Return | Word::Evict);
        if page as usize >= self.here.len() || self.is_home(page) != is_for_home {
            return Err(io::Error::other(format!("{word:?} of page {page} cannot be")));
        }
        match word {
            Word::Get => match self.pending.get_mut(&page) {
                Some(asked) => *asked = Some(write),
                None => self.grant(page, write, effects)?,
            },
            Word::Grant => self.granted(page, write, content.as_ref(), effects)?,
            Word::Recall => {
                let content = self.let_go(page, write, effects)?;
                effects.send(Message { page, word: Word::Return, write, content })?;
            }
            Word::Return => self.returned(page, write, content.as_ref(), effects)?,
            Word::Evict => {
                if let Some(content) = &content {
                    effects.fill(page, Some(content), true)?;
                    self.here[page as usize] = Access::Write;
                }
                self.there[page as usize] = Access::Nothing;
            }
        }
        Ok(())
    }

    /// Gives a page of ours to the other program.
    fn grant(&mut self, page: u32, write: bool, effects: &mut impl Effects) -> io::Result<()> {
        let at = page as usize;
        match self.here[at] {
            Access::Nothing => effects.fill(page, None, false)?,
            Access::Read => {}
            Access::Write => effects.protect(page)?,
        }
        self.here[at] = Access::Read;
        let has_it = self.there[at] == Access::Read;
        let content = if has_it { None } else { Some(effects.copy(page)?) };
        self.there[at] = if write { Access::Write } else { Access::Read };
        if write {
            effects.discard(page)?;
            self.here[at] = Access::Nothing;
        }
        effects.send(Message { page, word: Word::Grant, write, content })
    }

    /// Takes a page of the other program.
    fn granted(
        &mut self,
        page: u32,
        write: bool,
        content: Option<&Content>,
        effects: &mut impl Effects,
    ) -> io::Result<()> {
        let at = page as usize;
        self.pending.remove(&page);
        if let Some(content) = content {
            self.make_room(effects)?;
            effects.fill(page, Some(content), write)?;
            self.here[at] = Access::Read;
            self.cached += 1;
            self.arrivals[at] = self.arrivals[at].wrapping_add(1);
            self.arrived.push_back((page, self.arrivals[at]));
            self.forget_gone();
        } else {
            effects.open(page)?;
        }
        self.here[at] = if write { Access::Write } else { Access::Read };
        Ok(())
    }

    /// Lets go of a page of the other program as far as it wants; the bytes, if they may have changed here.
    fn let_go(&mut self, page: u32, write: bool, effects: &mut impl Effects) -> io::Result<Option<Content>> {
        let at = page as usize;
        let content = if self.here[at] == Access::Write {
            effects.protect(page)?;
            self.here[at] = Access::Read;
            Some(effects.copy(page)?)
        } else {
            None
        };
        if write && self.here[at] == Access::Read {
            effects.discard(page)?;
            self.here[at] = Access::Nothing;
            self.cached -= 1;
        }
        Ok(content)
    }

    /// Takes back a page of ours, and gives it away again if that was asked for meanwhile.
    fn returned(
        &mut self,
        page: u32,
        write: bool,
        content: Option<&Content>,
        effects: &mut impl Effects,
    ) -> io::Result<()> {
        let at = page as usize;
        let asked = self.pending.remove(&page).flatten();
        match (content, self.here[at]) {
            (Some(content), _) => {
                effects.fill(page, Some(content), write)?;
                self.here[at] = if write { Access::Write } else { Access::Read };
                self.there[at] = if write { Access::Nothing } else { Access::Read };
            }
            (None, Access::Read) if write => {
                effects.open(page)?;
                (self.here[at], self.there[at]) = (Access::Write, Access::Nothing);
            }
            // It had come back before, for want of room.
            (None, _) => effects.wake(page)?,
        }
        asked.map_or(Ok(()), |write| self.grant(page, write, effects))
    }

    /// Keeps what is said of pages that have gone since from growing without end.
    fn forget_gone(&mut self) {
        if self.arrived.len() > 2 * self.here.len() {
            let (here, arrivals) = (&self.here, &self.arrivals);
            self.arrived.retain(|&(page, arrival)| {
                here[page as usize] != Access::Nothing && arrivals[page as usize] == arrival
            });
        }
    }

    /// Sends pages of the other program back until another one fits: those that are here for longest.
    fn make_room(&mut self, effects: &mut impl Effects) -> io::Result<()> {
        while self.cached >= self.cached_max {
            let Some((page, arrival)) = self.arrived.pop_front() else { break };
            let is_here = self.access(page) != Access::Nothing && self.arrivals[page as usize] == arrival;
            if !is_here {
                continue;
            }
            if self.pending.contains_key(&page) {
                // A thread waits to write it, so it is in use.
                self.arrived.push_back((page, arrival));
                if self.pending.len() >= self.cached {
                    break;
                }
                continue;
            }
            let content = self.let_go(page, true, effects)?;
            effects.send(Message { page, word: Word::Evict, write: true, content })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
