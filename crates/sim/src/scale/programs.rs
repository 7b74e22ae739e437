//! Operations of programs: each finds its page by a word, and pays for a word that is out of date.

use super::cluster::{Cluster, Event, PACE, Purpose};
use super::member::Member;
use super::plan::Workload;
use hinterland_directory::Command;
use hinterland_policy::heat::{Heat, Room};
use std::cmp::Reverse;
use std::time::Duration;

/// Pages that one look at the samples asks for at the most: `ASKED_MAX` of the node.
const ASKED_MAX: usize = 32;
/// Of ten operations, those that are for the own region.
const OWN_OF_TEN: u64 = 9;

impl Cluster<'_> {
    /// What the programs of a node do in a hundredth of a second, and what the node makes of it.
    pub(super) fn round(&mut self, node: usize) {
        if !self.members[node].alive || self.has_ended {
            return;
        }
        match &self.plan.workload {
            Workload::Script(rounds) => {
                let number = (self.now.as_nanos() / PACE.as_nanos()) as usize - 1;
                for access in rounds.get(number).into_iter().flatten().filter(|a| a.node as usize == node) {
                    (0..access.reads).for_each(|_| self.operate(node, access.page, false));
                    (0..access.writes).for_each(|_| self.operate(node, access.page, true));
                }
            }
            _ => {
                let member = &mut self.members[node];
                // Each thread does its part, unless it waits for a page.
                let awake = 1.0 - f64::from(member.blocked) / f64::from(self.plan.threads);
                let operations = f64::from(self.plan.operations_per_s) * PACE.as_secs_f64();
                let wanted = member.left + operations * awake;
                member.left = wanted.fract();
                // Positive, and at most 100,000.
                for _ in 0..wanted as u32 {
                    if self.members[node].blocked == self.plan.threads {
                        break;
                    }
                    let page = self.next_page(node);
                    let is_write = self.figures.operations % 2 == 1;
                    self.operate(node, page, is_write);
                }
            }
        }
        let member = &mut self.members[node];
        if member.pull.is_none() && member.wanted.is_empty() {
            self.sum_up(node);
        } else {
            member.overwrite();
        }
        self.after(PACE, Event::Round(node));
    }

    /// The page of the next operation.
    fn next_page(&mut self, node: usize) -> u32 {
        let random = &mut self.members[node].random;
        let is_own = matches!(self.plan.workload, Workload::Tenants | Workload::Shifting)
            && random.below(10) < OWN_OF_TEN;
        if !is_own {
            return self.order[self.draw_shared.next(random) as usize];
        }
        let rank = self.draw_own.next(random);
        // Nodes fit in 32 bits.
        let owner = (node as u32 + self.shift) % self.plan.nodes;
        let region = &self.regions[1 + owner as usize];
        region.first + (rank + owner) % region.count
    }

    fn operate(&mut self, node: usize, page: u32, is_write: bool) {
        let costs = &self.plan.costs;
        let place = page as usize;
        let home = usize::from(self.page_homes[place]);
        self.figures.operations += 1;
        let opening = self.open(node, page);
        let member = &mut self.members[node];
        let is_here = home == node;
        member.note(page, is_write, is_here);
        let mut cost = opening;
        if is_here {
            self.figures.here += 1;
            cost += if is_write { costs.here_write } else { costs.here_read };
        } else {
            let away = costs.wire * 2 + if is_write { costs.away_write } else { costs.away_read };
            cost += away;
            let (rack, is_stale) = (member.rack, member.known[place] != self.page_moves[place]);
            if !self.members[home].alive {
                self.figures.lost += 1;
                return;
            }
            if self.members[home].rack == rack {
                self.figures.rack += 1;
            } else {
                self.figures.away += 1;
            }
            if is_stale {
                self.figures.stale += 1;
                self.members[node].known[place] = self.page_moves[place];
                cost += away + costs.way() * 2 + costs.volatile;
                let command = Command::LookupHome { page: self.page_numbers[place] };
                self.ask(node, command, Purpose::Nothing);
            }
        }
        if let Some(waiting) = self.frozen[place].as_mut()
            && self.members[node].blocked < self.plan.threads
        {
            // How long it waits is known when the page has moved.
            self.figures.met_frozen += 1;
            self.members[node].blocked += 1;
            waiting.push((node, self.now));
        }
        // Microseconds: far below 2^64 nanoseconds.
        self.operation_ns += cost.as_nanos() as u64;
    }

    /// Asks for all words of a region that the node does not know; what that adds to the operation.
    fn open(&mut self, node: usize, page: u32) -> Duration {
        let is_shared = !self.has_tenants() || page < self.regions[0].count;
        let region =
            if is_shared { 0 } else { 1 + (page - self.regions[0].count) / self.plan.pages_per_node };
        let region = region as usize;
        if self.members[node].opened[region] {
            return Duration::ZERO;
        }
        let (object, first, count) = {
            let region = &self.regions[region];
            (region.object, region.first as usize, region.count as usize)
        };
        let member = &mut self.members[node];
        member.opened[region] = true;
        member.known[first..first + count].copy_from_slice(&self.page_moves[first..first + count]);
        self.ask(node, Command::LookupObject { object }, Purpose::Nothing);
        self.ask(node, Command::PageHomes { object, after: None }, Purpose::Nothing);
        (self.plan.costs.way() * 2 + self.plan.costs.volatile) * 2
    }

    /// Sums up samples, and lines up the pages that are worth asking for.
    fn sum_up(&mut self, node: usize) {
        let now = self.now;
        let member: &mut Member = &mut self.members[node];
        let mut wanted: Vec<(u32, Heat)> = Vec::new();
        for (page, reads, writes) in member.drain() {
            let number = self.page_numbers[page as usize];
            let heat = member.table.record(number, reads, writes, now);
            let is_elsewhere = usize::from(self.page_homes[page as usize]) != node;
            if is_elsewhere && self.rules.decide(heat, Heat::ZERO, Room::Free).is_pull() {
                wanted.push((page, heat));
            }
        }
        wanted.sort_by_key(|(page, heat)| (Reverse(heat.total()), *page));
        wanted.truncate(ASKED_MAX);
        member.wanted = wanted.into();
        self.next_pull(node);
    }
}
