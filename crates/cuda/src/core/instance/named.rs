//! An instance at the node, and whether it is there: what the node says of commands that are on their way is heard later.

/// Rounds that are remembered.
const ROUNDS_MAX: usize = 8;

/// An instance of a part, as the node knows it.
#[derive(Debug)]
pub(super) struct Named {
    /// What the node calls it.
    pub exec: u32,
    /// What it was told, the last of them last; never none.
    rounds: Vec<Round>,
}

/// What makes an instance, or has it take a list, and what changes commands of it from there on.
#[derive(Clone, Copy, Debug)]
struct Round {
    /// The command that does the former, by its count.
    listed: u64,
    is_new: bool,
    /// The last one of all.
    last: u64,
}

impl Named {
    /// One that a command makes.
    pub fn new(exec: u32, made: u64) -> Self {
        Self { exec, rounds: vec![Round { listed: made, is_new: true, last: made }] }
    }

    /// It takes a list by a command. `is_known` says that the node has refused the last command before, and with it has answered all of them, and that it is there.
    pub fn updated(&mut self, command: u64, is_known: bool) {
        if is_known {
            self.rounds.clear();
        } else if self.rounds.len() == ROUNDS_MAX {
            self.rounds.remove(0);
        }
        self.rounds.push(Round { listed: command, is_new: false, last: command });
    }

    /// A command of it is changed.
    pub fn changed(&mut self, command: u64) {
        self.rounds.iter_mut().last().into_iter().for_each(|round| round.last = command);
    }

    /// The last command that says what it does: if one was refused, so is this.
    pub fn last(&self) -> u64 {
        self.rounds.last().map_or(0, |round| round.last)
    }

    /// Whether the node has it: one that it refused to make, or to change a command of, is none. One whose update it refused is launched no more, and what
    /// comes behind that is refused and ends nothing; it can be updated again.
    pub fn is_there(&self, is_refused: impl Fn(u64) -> bool) -> bool {
        let mut are_all_refused = true;
        for round in &self.rounds {
            let is_behind = is_refused(round.listed);
            let is_gone = if is_behind { round.is_new } else { is_refused(round.last) };
            if is_gone {
                return false;
            }
            are_all_refused &= is_behind;
        }
        // It may have ended in a round that is forgotten. If it has not, the node has one more than is used.
        !(are_all_refused && self.rounds.len() == ROUNDS_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the node does with what it is told of an instance.
    #[derive(Default)]
    struct Node {
        told: u64,
        refused: Vec<u64>,
        is_there: bool,
        is_behind: bool,
    }

    impl Node {
        /// The next command, which is bad or not.
        fn take(&mut self, is_update: bool, is_bad: bool) -> u64 {
            self.told += 1;
            let is_refused = is_bad || !self.is_there || !is_update && self.is_behind;
            if is_update {
                self.is_behind = is_refused;
            } else if is_refused && !self.is_behind {
                self.is_there = false;
            }
            self.refused.extend(is_refused.then_some(self.told));
            self.told
        }
    }

    #[test]
    fn whether_an_instance_is_there_is_known_once_all_of_it_was_answered() {
        const COMMANDS: u32 = 6;
        for number in 0..2 * 4_u32.pow(COMMANDS) {
            let mut node = Node { told: 1, ..Node::default() };
            // It was made, or not.
            node.is_there = number % 2 == 0;
            node.refused.extend((!node.is_there).then_some(1));
            let mut named = Named::new(7, 1);
            let mut rest = number / 2;
            for _ in 0..COMMANDS {
                let (is_update, is_bad) = (rest % 2 == 0, rest / 2 % 2 == 0);
                rest /= 4;
                let command = node.take(is_update, is_bad);
                if is_update { named.updated(command, false) } else { named.changed(command) }
            }
            assert_eq!(named.is_there(|command| node.refused.contains(&command)), node.is_there, "{number}");
        }
    }

    #[test]
    fn an_instance_that_is_updated_for_ever_is_remembered_in_short_and_made_anew_at_the_end() {
        let mut named = Named::new(7, 1);
        (2..100).for_each(|command| named.updated(command, false));
        assert!(named.is_there(|_| false) && named.is_there(|command| command > 97));
        assert!(!named.is_there(|command| command > 50), "it may be gone for long");
        // What is known to be there stays, however often an update is refused.
        for command in 100..200 {
            named.updated(command, true);
            assert!(named.is_there(|refused| refused >= 98));
        }
    }
}
