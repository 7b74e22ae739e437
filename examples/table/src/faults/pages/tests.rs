//! Two programs whose messages arrive late, under random touches: nobody ever reads what is not the latest.

use super::*;
use proptest::prelude::*;

/// Pages on either side of a border between homes, and one of a third stretch.
const PAGES: [u32; 4] = [0, 1, HOME_PAGES, HOME_PAGES + 1];
const COUNT: usize = 2 * HOME_PAGES as usize;

/// One program's pages as its kernel would have them.
#[derive(Default)]
struct Kernel {
    pages: HashMap<u32, (Content, bool)>,
    sent: Vec<Message>,
}

impl Effects for Kernel {
    fn fill(&mut self, page: u32, content: Option<&Content>, may_write: bool) -> io::Result<()> {
        let content = content.cloned().unwrap_or_else(|| Box::new([0; PAGE_BYTES]));
        assert!(self.pages.insert(page, (content, may_write)).is_none(), "page {page} was there");
        Ok(())
    }
    fn protect(&mut self, page: u32) -> io::Result<()> {
        self.pages.get_mut(&page).expect("it is here").1 = false;
        Ok(())
    }
    fn open(&mut self, page: u32) -> io::Result<()> {
        self.pages.get_mut(&page).expect("it is here").1 = true;
        Ok(())
    }
    fn copy(&mut self, page: u32) -> io::Result<Content> {
        let (content, may_write) = &self.pages[&page];
        assert!(!may_write, "page {page} may change while it is read");
        Ok(content.clone())
    }
    fn discard(&mut self, page: u32) -> io::Result<()> {
        self.pages.remove(&page).expect("it is here");
        Ok(())
    }
    fn wake(&mut self, _: u32) -> io::Result<()> {
        Ok(())
    }
    fn send(&mut self, message: Message) -> io::Result<()> {
        self.sent.push(message);
        Ok(())
    }
}

struct Pair {
    pages: [Pages; 2],
    kernels: [Kernel; 2],
    /// What each wants to touch and waits for.
    wanted: [Option<(u32, bool)>; 2],
    latest: HashMap<u32, u8>,
    touches: usize,
}

impl Pair {
    fn new(cached_max: usize) -> Self {
        Self {
            pages: [0, 1].map(|part| Pages::new(part, COUNT, cached_max)),
            kernels: Default::default(),
            wanted: [None; 2],
            latest: HashMap::new(),
            touches: 0,
        }
    }

    /// A program that waits for nothing touches a page; one that waits tries again.
    fn touch(&mut self, program: usize, page: u32, write: bool) {
        let (page, write) = *self.wanted[program].get_or_insert((page, write));
        let latest = self.latest.entry(page).or_default();
        match self.kernels[program].pages.get_mut(&page) {
            Some((content, may_write)) if *may_write || !write => {
                assert_eq!(content[0], *latest, "program {program} reads page {page}");
                if write {
                    *latest = latest.wrapping_add(1);
                    content[0] = *latest;
                }
                self.wanted[program] = None;
                self.touches += 1;
            }
            _ => self.pages[program].fault(page, write, &mut self.kernels[program]).unwrap(),
        }
    }

    /// The oldest message to a program arrives; whether there was one.
    fn deliver(&mut self, program: usize) -> bool {
        if self.kernels[1 - program].sent.is_empty() {
            return false;
        }
        let message = self.kernels[1 - program].sent.remove(0);
        self.pages[program].hear(message, &mut self.kernels[program]).unwrap();
        true
    }

    fn check(&self) {
        for page in PAGES {
            let may = |program: usize| self.kernels[program].pages.get(&page).map(|(_, may)| *may);
            assert!(
                may(0) != Some(true) || may(1).is_none(),
                "both have page {page}, and the first may write it"
            );
            assert!(
                may(1) != Some(true) || may(0).is_none(),
                "both have page {page}, and the second may write it"
            );
        }
    }
}

proptest! {
    #[test]
    fn nobody_reads_what_is_not_the_latest_and_nobody_waits_for_ever(
        cached_max in 1_usize..4,
        steps in prop::collection::vec((0_usize..2, 0_usize..5, 0_usize..PAGES.len(), any::<bool>()), 1..400),
    ) {
        let mut pair = Pair::new(cached_max);
        for (program, kind, page, write) in steps {
            if kind < 3 {
                pair.deliver(program);
            } else {
                pair.touch(program, PAGES[page], write);
            }
            pair.check();
            for (part, pages) in pair.pages.iter().enumerate() {
                let foreign = PAGES.iter().filter(|&&page| !pages.is_home(page));
                let here = foreign.filter(|page| pair.kernels[part].pages.contains_key(page)).count();
                prop_assert!(here <= cached_max + 1, "{here} pages of the other program");
            }
        }
        // What was asked for arrives, and who waits goes on.
        for _ in 0..4 {
            while pair.deliver(0) || pair.deliver(1) {}
            for program in 0..2 {
                if let Some((page, write)) = pair.wanted[program] {
                    pair.touch(program, page, write);
                }
            }
        }
        prop_assert!(pair.wanted == [None; 2], "{:?} waits", pair.wanted);
    }
}

#[test]
fn what_cannot_be_said_of_a_page_is_refused() {
    let mut pair = Pair::new(4);
    for (page, word) in [(0, Word::Grant), (HOME_PAGES, Word::Get), (COUNT as u32, Word::Get)] {
        let message = Message { page, word, write: true, content: None };
        assert!(pair.pages[0].hear(message, &mut pair.kernels[0]).is_err());
    }
}
