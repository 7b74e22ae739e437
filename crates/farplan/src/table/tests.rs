//! The table against a plain model of the kernel and of a program: no page ever holds what the program did not write.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::rc::Rc;

type Pages = BTreeMap<u64, u64>;
/// Content of a unit's pages, in order.
type Content = Rc<Vec<u64>>;

const AREA_PAGES: u64 = 48;

/// A program as the kernel has it: which pages are present with what, and what the program would read in plain memory.
#[derive(Clone)]
struct Program {
    /// What units that are alike leave and come back in, together.
    block_bytes: u64,
    table: Table<Content>,
    present: Pages,
    truth: Pages,
}

/// An order on its way: made under an epoch that a change of the layout ends.
struct Order {
    /// First and last address, ticket, whether the unit had a clean copy.
    units: Vec<(u64, u64, u64, bool)>,
    is_valid: bool,
    /// Pages that were moved out, and where each unit's moved part ends.
    staged: Option<(Pages, BTreeMap<u64, u64>)>,
}

#[derive(Default)]
struct World {
    programs: Vec<Program>,
    order: Option<Order>,
    ticket: u64,
    stamp: u64,
    value: u64,
}

#[derive(Clone, Debug)]
enum Step {
    Map(u64, u64),
    Unmap(u64, u64),
    Remove(u64, u64),
    Remap(u64, u64, u64),
    Write(usize, u64),
    Read(usize, u64),
    Leave(u64),
    Move(u64),
    Finish,
    Fork,
}

fn step() -> impl Strategy<Value = Step> {
    let page = 0..AREA_PAGES;
    let length = 1..12u64;
    prop_oneof![
        2 => (page.clone(), length.clone()).prop_map(|(at, count)| Step::Map(at, count)),
        1 => (page.clone(), length.clone()).prop_map(|(at, count)| Step::Unmap(at, count)),
        1 => (page.clone(), length.clone()).prop_map(|(at, count)| Step::Remove(at, count)),
        1 => (page.clone(), page.clone(), length).prop_map(|(from, to, count)| Step::Remap(from, to, count)),
        8 => (0..3usize, page.clone()).prop_map(|(who, at)| Step::Write(who, at)),
        8 => (0..3usize, page).prop_map(|(who, at)| Step::Read(who, at)),
        4 => (0..20u64).prop_map(Step::Leave),
        4 => (0..20u64).prop_map(Step::Move),
        4 => Just(Step::Finish),
        1 => Just(Step::Fork),
    ]
}

impl Program {
    /// What the supervisor does with a fault; `false` if it has to wait.
    fn fault(&mut self, address: u64, writes: bool, stamp: u64) -> bool {
        let Some((start, end)) = self.table.alike(address, self.block_bytes) else { return true };
        let is_missing = !self.present.contains_key(&address);
        match self.table.state(address).cloned().unwrap() {
            State::Leaving { .. } => return !is_missing && !writes,
            State::Resident { clean, stamp } => {
                if is_missing {
                    let (start, end) = self.table.unit(address).unwrap();
                    self.fill(start, end, None);
                    self.table.set(address, State::Resident { clean: None, stamp });
                } else if writes && clean.is_some() {
                    self.land(start, end, None, stamp);
                }
            }
            State::Untouched => {
                self.fill(start, end, None);
                self.land(start, end, None, stamp);
            }
            State::Far(piece) => {
                let found = self.fill(start, end, Some(&piece));
                self.land(start, end, (!writes && !found).then_some(piece), stamp);
            }
        }
        true
    }

    fn land(&mut self, start: u64, end: u64, clean: Option<Piece<Content>>, stamp: u64) {
        self.table.update(start..end, |unit| *unit = State::Resident { clean: clean.clone(), stamp });
    }

    /// Adds missing pages; whether some were there.
    fn fill(&mut self, start: u64, end: u64, piece: Option<&Piece<Content>>) -> bool {
        let mut found = false;
        for address in (start..end).step_by(PAGE as usize) {
            let value = piece.map_or(0, |piece| {
                let index = usize::try_from((address as i64 - piece.base) / PAGE as i64);
                index.ok().and_then(|index| piece.copy.get(index)).copied().unwrap_or(0)
            });
            found |= self.present.contains_key(&address);
            self.present.entry(address).or_insert(value);
        }
        found
    }

    fn drop_pages(&mut self, start: u64, end: u64) {
        self.present.retain(|at, _| !(start..end).contains(at));
    }

    fn check_counts(&self) {
        let (mut resident, mut refused, mut far, mut at) = (0, 0, 0, 0);
        while at < (AREA_PAGES + 20) * PAGE {
            match self.table.state(at) {
                Some(State::Far(_)) => far += PAGE,
                Some(State::Resident { stamp: REFUSED, .. }) => refused += PAGE,
                Some(State::Resident { .. } | State::Leaving { .. }) => resident += PAGE,
                _ => {}
            }
            at += PAGE;
        }
        let counted = (self.table.resident_bytes(), self.table.refused_bytes(), self.table.far_bytes());
        assert_eq!(counted, (resident, refused, far));
    }
}

impl World {
    fn run(&mut self, step: &Step) {
        self.stamp += 1;
        let stamp = self.stamp;
        let range = |at: u64, count: u64| (at * PAGE, (at + count) * PAGE);
        match *step {
            Step::Map(at, count) => {
                let (start, end) = range(at, count);
                let program = &mut self.programs[0];
                if program.truth.range(start..end).next().is_none() {
                    program.table.add(start, end);
                    program.truth.extend((start..end).step_by(PAGE as usize).map(|page| (page, 0)));
                }
            }
            Step::Unmap(at, count) => {
                let (start, end) = range(at, count);
                self.change();
                let program = &mut self.programs[0];
                program.truth.retain(|page, _| !(start..end).contains(page));
                program.drop_pages(start, end);
                program.table.unmap(start, end);
            }
            Step::Remove(at, count) => {
                let (start, end) = range(at, count);
                let program = &mut self.programs[0];
                program.table.remove(start, end);
                program.drop_pages(start, end);
                program.truth.range_mut(start..end).for_each(|(_, value)| *value = 0);
            }
            Step::Remap(from, to, count) => self.remap(range(from, count), range(to, count)),
            Step::Write(who, at) => {
                let value = self.value + 1;
                let count = self.programs.len();
                let program = &mut self.programs[who % count];
                let address = at * PAGE;
                if program.truth.contains_key(&address) && program.fault(address, true, stamp) {
                    program.present.insert(address, value);
                    program.truth.insert(address, value);
                    self.value = value;
                }
            }
            Step::Read(who, at) => {
                let count = self.programs.len();
                self.read(who % count, at * PAGE);
            }
            Step::Leave(hand) => self.leave(hand * PAGE),
            Step::Move(limit) => self.take(limit),
            Step::Finish => self.finish(),
            Step::Fork => {
                if self.programs.len() < 3 {
                    let child = self.programs[0].clone();
                    self.programs.push(child);
                }
            }
        }
    }

    fn read(&mut self, who: usize, address: u64) {
        let stamp = self.stamp;
        let program = &mut self.programs[who];
        if let Some(truth) = program.truth.get(&address).copied()
            && program.fault(address, false, stamp)
        {
            assert_eq!(
                program.present.get(&address),
                Some(&truth),
                "page {} of program {who}",
                address / PAGE
            );
        }
    }

    fn change(&mut self) {
        if let Some(order) = &mut self.order {
            order.is_valid = false;
        }
    }

    fn remap(&mut self, from: (u64, u64), to: (u64, u64)) {
        let program = &mut self.programs[0];
        let is_whole = (from.0..from.1).step_by(PAGE as usize).all(|page| program.truth.contains_key(&page));
        let overlaps = from.0 < to.1 && to.0 < from.1;
        if !is_whole || overlaps {
            return;
        }
        self.change();
        let program = &mut self.programs[0];
        for pages in [&mut program.truth, &mut program.present] {
            pages.retain(|page, _| !(to.0..to.1).contains(page));
            let moved: Pages =
                pages.range(from.0..from.1).map(|(page, value)| (page - from.0 + to.0, *value)).collect();
            pages.retain(|page, _| !(from.0..from.1).contains(page));
            pages.extend(moved);
        }
        program.table.remap(from.0, to.0, from.1 - from.0);
    }

    fn leave(&mut self, hand: u64) {
        if self.order.is_some() {
            return;
        }
        let program = &mut self.programs[0];
        let block = program.block_bytes;
        let (mut victims, _) = program.table.refused(hand, 3 * 4 * PAGE, block);
        if victims.is_empty() {
            (victims, _) = program.table.victims(hand, 3 * 4 * PAGE, block, u64::MAX);
        }
        let mut units = Vec::new();
        let mut at = 0;
        for (start, end) in victims {
            if start < at {
                continue;
            }
            // Several units as one where they are alike, now and then whether they are or not.
            let (_, alike) = program.table.alike(start, block).unwrap();
            let whole = (start & !(block - 1)) + block;
            let is_whole = self.ticket.is_multiple_of(3) && program.table.resident_end(start, block) >= whole;
            at = if is_whole { whole.max(end) } else { alike.max(end) };
            self.ticket += 1;
            let is_clean = match program.table.state(start) {
                Some(State::Resident { clean, .. }) => {
                    clean.is_some() && !is_whole && self.ticket.is_multiple_of(2)
                }
                _ => panic!("not resident"),
            };
            program.table.leave(start..at, self.ticket, is_clean);
            units.push((start, at, self.ticket, is_clean));
        }
        self.order = Some(Order { units, is_valid: true, staged: None });
    }

    /// Moves pages out, at most `limit` of them: a page may be pinned.
    fn take(&mut self, limit: u64) {
        let Some(order) = &mut self.order else { return };
        if !order.is_valid || order.staged.is_some() {
            return;
        }
        let program = &mut self.programs[0];
        let (mut staged, mut ends, mut left) = (Pages::new(), BTreeMap::new(), limit);
        for (start, end, ticket, _) in &order.units {
            let mut at = *start;
            while at < *end && left > 0 {
                if let Some(value) = program.present.remove(&at) {
                    staged.insert(at, value);
                }
                at += PAGE;
                left -= 1;
            }
            ends.insert(*ticket, at);
        }
        order.staged = Some((staged, ends));
    }

    fn finish(&mut self) {
        let Some(order) = self.order.take() else { return };
        let (staged, ends) = order.staged.unwrap_or_default();
        for (start, end, ticket, is_clean) in order.units {
            let gone = ends.get(&ticket).copied().unwrap_or(start);
            let content: Vec<u64> = (start..gone)
                .step_by(PAGE as usize)
                .map(|at| staged.get(&at).copied().unwrap_or(0))
                .collect();
            let is_kept = content.is_empty();
            let outcome = if is_kept {
                Outcome::Kept
            } else if is_clean {
                Outcome::Clean
            } else if content.iter().all(|value| *value == 0) {
                Outcome::Zero
            } else {
                Outcome::Stored(Rc::new(content))
            };
            for program in &mut self.programs {
                // Now and then it stays because the kernel has refused to move it.
                let is_refused = is_kept && ticket.is_multiple_of(2);
                let stamp = if is_refused { REFUSED } else { self.stamp };
                program.table.finish(ticket, (start, end), &outcome, stamp);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn a_random_program_reads_what_it_wrote_whatever_leaves_meanwhile(
        steps in prop::collection::vec(step(), 1..160),
        (unit, block_bytes) in prop_oneof![Just((4 * PAGE, PAGE)), Just((PAGE, 4 * PAGE))],
    ) {
        let mut world = World::default();
        world.programs.push(Program { block_bytes, table: Table::new(unit), present: Pages::new(), truth: Pages::new() });
        for step in &steps {
            world.run(step);
            world.programs.iter().for_each(Program::check_counts);
        }
        world.finish();
        for who in 0..world.programs.len() {
            for page in 0..AREA_PAGES + 12 {
                world.read(who, page * PAGE);
            }
            let leaving = world.programs[who].table.leaving_any();
            prop_assert!(!leaving, "a unit of program {} waits for ever", who);
        }
    }
}

impl Table<Content> {
    fn leaving_any(&self) -> bool {
        let is_leaving = |unit: &State<Content>| matches!(unit, State::Leaving { .. });
        self.regions.values().flat_map(|region| region.units.touched(0)).any(|(_, unit)| is_leaving(unit))
    }
}

#[test]
fn what_is_there_already_is_not_added_again() {
    let mut table: Table<Content> = Table::new(4 * PAGE);
    assert_eq!(table.add(2 * PAGE, 6 * PAGE), [(2 * PAGE, 6 * PAGE)]);
    assert_eq!(table.add(0, 8 * PAGE), [(0, 2 * PAGE), (6 * PAGE, 8 * PAGE)]);
    assert_eq!(table.add(0, 8 * PAGE), []);
    assert_eq!((table.bytes(), table.unit(3 * PAGE)), (8 * PAGE, Some((2 * PAGE, 4 * PAGE))));
}

#[test]
fn what_is_in_the_table_without_a_gap_begins_behind_the_last_gap() {
    let mut table = Table::<Content>::new(PAGE);
    for (from, to) in [(10, 20), (30, 40), (40, 50)] {
        table.add(from * PAGE, to * PAGE);
    }
    let start = |table: &Table<Content>, page: u64| table.start(page * PAGE).map(|start| start / PAGE);
    assert_eq!(
        [5, 10, 19, 20, 30, 45].map(|page| start(&table, page)),
        [None, Some(10), Some(10), None, Some(30), Some(30)]
    );
    table.unmap(35 * PAGE, 36 * PAGE);
    assert_eq!([34, 35, 36, 49].map(|page| start(&table, page)), [Some(30), None, Some(36), Some(36)]);
}

#[test]
fn what_the_kernel_refuses_to_move_is_no_victim_until_it_is_asked_for_again() {
    let mut table: Table<()> = Table::new(PAGE);
    table.add(0, 4 * PAGE);
    table.update(0..4 * PAGE, |unit| *unit = State::Resident { clean: None, stamp: 3 });
    table.leave(PAGE..3 * PAGE, 1, false);
    assert!(table.finish(1, (PAGE, 3 * PAGE), &Outcome::Kept, REFUSED));
    assert_eq!((table.resident_bytes(), table.refused_bytes()), (2 * PAGE, 2 * PAGE));
    let (victims, _) = table.victims(0, 9 * PAGE, PAGE, u64::MAX);
    assert_eq!(victims, [(0, PAGE), (3 * PAGE, 4 * PAGE)]);
    // In its turn, again and again.
    let mut hand = crate::hand::Hand::default();
    let mut next = || hand.refused(&table, PAGE, PAGE);
    assert_eq!(next(), [(PAGE, 2 * PAGE)]);
    assert_eq!(next(), [(2 * PAGE, 3 * PAGE)]);
    assert_eq!(next(), [(PAGE, 2 * PAGE)]);
    // In a child of `fork` nothing is locked.
    let mut child = table.clone();
    child.accept_refused(0);
    assert_eq!((child.resident_bytes(), child.refused_bytes()), (4 * PAGE, 0));
    assert_eq!(child.victims(0, 9 * PAGE, PAGE, 0).0, [(PAGE, 2 * PAGE), (2 * PAGE, 3 * PAGE)]);
    table.leave(PAGE..3 * PAGE, 2, false);
    table.finish(2, (PAGE, 3 * PAGE), &Outcome::Zero, 9);
    assert_eq!((table.resident_bytes(), table.refused_bytes()), (2 * PAGE, 0));
    assert!(table.refused(0, PAGE, PAGE).0.is_empty());
}
