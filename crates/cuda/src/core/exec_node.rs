//! Nodes of instances: given other commands, and switched off and on. The graph stays as it is.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use hinterland_proto::gpu::command::BlasSet;

use super::graph::{places_in, stream_in};
use super::instance::{Does, Source};
use super::list::List;
use super::node::{Content, Node, NodeKind, Piece};
use super::session::Session;
use crate::code::{Code, INVALID_VALUE};

impl Source {
    /// Where the nodes are in the list, in their order there: of one as it was captured, the command alone of each, which stands behind the settings that it takes
    /// with it.
    fn all_pieces(&self) -> Vec<Piece> {
        let of_list = || {
            let is_command = |entry: &&usize| self.list.frame(**entry).0 != BlasSet::WORD;
            let piece = |(node, entries): (usize, Vec<usize>)| {
                entries.iter().find(is_command).map(|first| Piece { node, first: *first, count: 1 })
            };
            places_in(&self.list, None).into_iter().filter_map(piece).collect()
        };
        self.pieces.clone().unwrap_or_else(of_list)
    }

    /// The same with other commands for a node, without what a handle was set to for those that it had; streams of the list wait for each other by the event.
    ///
    /// # Errors
    /// There is no such node, or the list would be longer than a graph may be.
    fn with_commands(&self, node: usize, list: &List, event: u32) -> Result<Self, Code> {
        let pieces = self.all_pieces();
        let place = pieces.iter().position(|piece| piece.node == node).ok_or(INVALID_VALUE)?;
        let Piece { first, count, .. } = pieces[place];
        let mut gone: BTreeSet<usize> = (first..first + count).collect();
        self.list.take_settings(&mut gone);
        let mut new = List::default();
        let keep = |new: &mut List, entries: Range<usize>| {
            entries.filter(|entry| !gone.contains(entry)).for_each(|entry| new.push_frame(&self.list, entry));
        };
        keep(&mut new, 0..first);
        let (own_first, lane) = (new.entries.len(), self.list.entries.get(first));
        let lane = lane.map_or(self.place.origin, |entry| entry.stream);
        for entry in 0..list.entries.len() {
            let stream = stream_in(lane, list, entry);
            if list.is_apart(entry) {
                // As what it takes the place of, for the node to change that alone.
                new.push_apart(list, entry, lane);
                continue;
            }
            if stream != lane {
                new.switch(event, lane, stream)?;
            }
            new.push_frame_in(list, entry, stream);
            if stream != lane {
                new.switch(event, stream, lane)?;
            }
        }
        // What is behind it in the stream that it ended in waits for it there.
        let end = if count == 0 { lane } else { self.list.entries[first + count - 1].stream };
        if end != lane {
            new.switch(event, lane, end)?;
        }
        let own_count = new.entries.len() - own_first;
        keep(&mut new, first..self.list.entries.len());
        // Those behind it, also where it was empty and one begins at the same entry.
        let left = |entry: usize| entry - gone.range(..entry).count();
        let moved = pieces.iter().enumerate().map(|(at, one)| {
            let (first, end) = (left(one.first), left(one.first + one.count));
            match at.cmp(&place) {
                Ordering::Less => Piece { first, count: end - first, ..*one },
                Ordering::Equal => Piece { first: own_first, count: own_count, ..*one },
                Ordering::Greater => Piece { first: first + own_count, count: end - first, ..*one },
            }
        });
        let pieces = Some(moved.collect());
        Ok(Self { list: Arc::new(new), pieces, ..self.clone() })
    }
}

impl Session {
    /// Calls `work` with what an instance does and how many of its nodes are in front of one.
    fn with_exec_node<T>(
        &self,
        exec: u32,
        node: u32,
        work: impl FnOnce(&mut Does, usize) -> Result<T, Code>,
    ) -> Result<T, Code> {
        let place = *self.captures.nodes.get(node)?;
        self.with_instance(exec, |does| {
            let rank = does.rank(place.graph, place.index)?;
            work(does, rank)
        })
    }

    fn check_can_be_off(&self, node: u32) -> Result<(), Code> {
        match self.with_node(node, |_, state, index| Ok(state.kind(index)))? {
            NodeKind::Kernel | NodeKind::Copy | NodeKind::Fill => Ok(()),
            _ => Err(INVALID_VALUE),
        }
    }

    /// Whether launches of an instance do what a node says.
    ///
    /// # Errors
    /// There is no such node in the instance, or it is no kernel, copy or fill.
    pub fn is_exec_node_on(&self, exec: u32, node: u32) -> Result<bool, Code> {
        self.check_can_be_off(node)?;
        self.with_exec_node(exec, node, |does, rank| Ok(!does.definition().source.off.contains(&rank)))
    }

    /// Switches a node of an instance off, such that others wait for nothing but what it waits for, or on again.
    ///
    /// # Errors
    /// As [`is_exec_node_on`](Self::is_exec_node_on), something that the instance names has gone, or the GPU node is gone.
    pub fn switch_exec_node(&self, exec: u32, node: u32, is_on: bool) -> Result<(), Code> {
        self.check_can_be_off(node)?;
        self.with_exec_node(exec, node, |does, rank| {
            let mut to = does.definition().source.clone();
            let is_other = if is_on { to.off.remove(&rank) } else { to.off.insert(rank) };
            if is_other { self.change_instance(does, to) } else { Ok(()) }
        })
    }

    /// Gives a node of an instance other commands; the graph stays as it is.
    ///
    /// # Errors
    /// There is no such node in the instance, it is of another kind, or something that the instance names has gone.
    pub fn change_exec_node(&self, exec: u32, node: u32, with: &Node) -> Result<(), Code> {
        let (kind, attributes) =
            self.with_node(node, |_, state, index| Ok((state.kind(index), state.launch_attributes(index))))?;
        if kind != with.kind {
            return Err(INVALID_VALUE);
        }
        let mut with = with.clone();
        if let Some(attributes) = attributes {
            with.keep_attributes(attributes)?;
        }
        let Content::Own(list) = &with.content else { return Err(INVALID_VALUE) };
        let event = self.edge_event()?;
        self.with_exec_node(exec, node, |does, rank| {
            let source = &does.definition().source;
            let mut to = source.with_commands(source.nodes.at(rank).ok_or(INVALID_VALUE)?, list, event)?;
            // What the node had before is kept, as another node may have it, too.
            to.memory.extend(&with.memory);
            for object in &with.objects {
                if !to.objects.iter().any(|kept| Arc::ptr_eq(kept, object)) {
                    to.objects.push(object.clone());
                }
            }
            self.change_instance(does, to)
        })
    }
}

#[cfg(test)]
mod tests;
