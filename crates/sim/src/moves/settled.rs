//! What must hold when all faults are over and everything had time to settle.

use super::node::Word;
use super::world::{NODES, PAGES, WORDS, World};
use hinterland_directory::{Command, Reply};
use hinterland_types::NodeId;
use hinterland_types::limits::PAGE_BYTES;

impl World {
    pub(super) fn settled(&mut self) -> Result<(), String> {
        for (register, book) in self.books.iter().enumerate() {
            let (page, word) = (register / WORDS, register % WORDS);
            book.check().map_err(|reason| format!("word {word} of page {page}: {reason}"))?;
        }
        self.directory.check()?;
        for (index, locked_ms) in self.last_locked.iter().enumerate() {
            if *locked_ms < self.times.calm_ms {
                let programs = &self.nodes[index].programs;
                return Err(format!("node {} got no lock after all was calm: {programs:?}", index + 1));
            }
        }
        for node in &self.nodes {
            for program in &node.programs {
                if let Some((page, word)) = program.last_reads.last() {
                    return Err(format!(
                        "node {} never read word {word} of page {page} when all was calm: {:?} of {:?}, {program:?}",
                        node.id.0,
                        node.word(*page),
                        self.home_of(*page)
                    ));
                }
            }
        }
        for page in 0..PAGES {
            self.one_home(page)?;
        }
        self.room_is_right()
    }

    /// One node serves the page and has its memory, and the directory names that one.
    fn one_home(&self, page: usize) -> Result<(), String> {
        let home = self.home_of(page).flatten().ok_or_else(|| format!("page {page} is lost"))?;
        for node in &self.nodes {
            let is_home = node.id == home;
            let is_here = matches!(node.word(page), Word::Here(_));
            if is_here != is_home || node.memory.contains_key(&page) != is_home {
                let text = format!(
                    "page {page} lies on node {}, but node {} says {:?} of it and has memory of {:?}",
                    home.0,
                    node.id.0,
                    node.word(page),
                    node.memory.keys()
                );
                return Err(text);
            }
            let table = node.running.as_ref().and_then(|running| running.table.as_ref());
            if let Some(going) = table.and_then(|table| table.moves.get(&page)) {
                return Err(format!("page {page} is on the move for ever at node {}: {going:?}", node.id.0));
            }
        }
        Ok(())
    }

    /// No intent is left behind: each node is charged for the pages that it has.
    fn room_is_right(&self) -> Result<(), String> {
        let Some(Reply::Members(members)) = self.directory.ask(self.directory_clock(), &Command::Members)
        else {
            return Err("the directory does not answer".to_owned());
        };
        for node in (1..=NODES).map(NodeId) {
            let pages = (0..PAGES).filter(|page| self.home_of(*page) == Some(Some(node))).count() as u64;
            let charged =
                members.iter().find(|member| member.node == node).map(|member| member.reserved_bytes);
            if charged != Some(pages * PAGE_BYTES) {
                let text = format!("node {} has {pages} pages and is charged for {charged:?} bytes", node.0);
                return Err(text);
            }
        }
        Ok(())
    }
}
