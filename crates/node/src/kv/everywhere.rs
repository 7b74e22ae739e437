//! A namespace that is cleared at all nodes of the pool, as when an engine changes the weights under its blocks.
//!
//! A node that was cleared fetches nothing of the namespace from others for a while, and what is on its way does not count: else it could
//! get blocks from one that is cleared a moment later. The node that asks makes sure that all were cleared within that while.

use super::{KvStores, State, UserStore, racks};
use crate::core::Core;
use crate::refused::{Refused, errno};
use hinterland_directory::{Command, MemberInfo, MemberState, Reply};
use hinterland_kv::Namespace;
use hinterland_proto::control::{PeerReply, PeerRequest};
use hinterland_types::NodeId;
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

/// How long a node that was cleared fetches nothing from others.
const CLOSED: Duration = Duration::from_secs(10);
/// How long the nodes may take together: less than that, as clocks differ.
const WITHIN: Duration = Duration::from_secs(8);
/// How long one node may take.
const NODE_WITHIN: Duration = Duration::from_secs(3);

/// Blocks that were removed from the memory of a node and those that are pinned and stay, or why nothing is known of it.
type Answer = Result<(u64, u64), String>;

impl Core {
    /// Removes the blocks of a namespace at every member of the pool; returns how many there were in memory.
    ///
    /// # Errors
    /// [`Refused`] with the members at which blocks may be left; those of the others are removed.
    pub fn clear_kv_everywhere(&self, store: &UserStore, namespace: Namespace) -> Result<u64, Refused> {
        let fingerprint = store.fingerprint(namespace).unwrap_or_default();
        let begun = Instant::now();
        let (mut removed, pinned) = store.clear_for_all(&fingerprint)?;
        let mut left = Vec::new();
        told(&mut left, self.own, Ok((removed, pinned)));
        let Reply::Members(members) = self.directory.apply(&Command::Members)? else {
            return Err(Refused::new(errno::EIO, "the directory did not list its members"));
        };
        let others: Vec<_> = members.iter().filter(|member| member.node != self.own).collect();
        let request = PeerRequest::KvClear { user: store.user, fingerprint };
        // All at once: one that is silent must not use up the time of the others.
        let answers: Vec<Answer> = std::thread::scope(|scope| {
            let ask = |member| {
                let request = &request;
                std::thread::Builder::new().spawn_scoped(scope, move || self.ask_to_clear(member, request))
            };
            let asked: Vec<_> = others.iter().map(|member| ask(*member)).collect();
            let answer = |asked: std::io::Result<ScopedJoinHandle<'_, Answer>>| {
                let answer = asked.map_err(|error| error.to_string())?;
                answer.join().unwrap_or_else(|_| Err("asking it failed".to_owned()))
            };
            asked.into_iter().map(answer).collect()
        });
        for (member, answer) in others.iter().zip(answers) {
            removed += told(&mut left, member.node, answer);
        }
        if begun.elapsed() > WITHIN {
            left.push("all took too long together".to_owned());
        }
        if left.is_empty() {
            return Ok(removed);
        }
        let text = format!(
            "{removed} blocks were removed, but some may be left: {} (hint: clear again when all members are up, or give engines another fingerprint)",
            left.join("; ")
        );
        Err(Refused::new(errno::EHOSTUNREACH, text))
    }

    fn ask_to_clear(&self, member: &MemberInfo, request: &PeerRequest) -> Answer {
        if !matches!(member.state, MemberState::Up) {
            return Err("it is not up".to_owned());
        }
        match self.peers.call_within(&member.address, request, NODE_WITHIN) {
            Ok(PeerReply::KvCleared { removed, pinned }) => Ok((removed, pinned)),
            Ok(other) => Err(format!("it answered {other:?}")),
            Err(refused) => Err(refused.text),
        }
    }
}

/// Notes why blocks may be left at a node; returns how many were removed there.
fn told(left: &mut Vec<String>, node: NodeId, answer: Answer) -> u64 {
    let (removed, why) = match answer {
        Ok((removed, 0)) => return removed,
        Ok((removed, pinned)) => (removed, format!("{pinned} are pinned")),
        Err(why) => (0, why),
    };
    left.push(format!("{node}: {why}"));
    removed
}

impl KvStores {
    /// Removes the blocks of a namespace of a user, also those that are on the disk of a user that has no store yet; how many there were in
    /// memory, and how many are pinned and stay.
    ///
    /// # Errors
    /// [`Refused`] if the disk cannot be told.
    pub fn clear_for_all(&self, user: u32, fingerprint: &[u8; 32]) -> Result<(u64, u64), Refused> {
        let has_file = || self.plan.disk.as_ref().is_some_and(|disk| disk.file(user).exists());
        match self.existing(user) {
            Some(store) => store.clear_for_all(fingerprint),
            None if has_file() => self.of_user(user)?.clear_for_all(fingerprint),
            None => Ok((0, 0)),
        }
    }
}

impl UserStore {
    /// See [`KvStores::clear_for_all`].
    fn clear_for_all(&self, fingerprint: &[u8; 32]) -> Result<(u64, u64), Refused> {
        let namespace = Namespace(racks::number_of(fingerprint));
        let mut state = self.lock();
        if let Some(disk) = &self.disk {
            disk.cleared_all_of(*fingerprint);
        }
        state.clears += 1;
        state.closed.retain(|_, until| Instant::now() < *until);
        state.closed.insert(namespace, Instant::now() + CLOSED);
        let is_it = state.namespaces.get(&namespace.0).is_some_and(|known| known.fingerprint == *fingerprint);
        let counts = if is_it {
            let removed = state.store.clear(namespace);
            (removed, state.store.space(namespace).blocks)
        } else {
            (0, 0)
        };
        drop(state);
        match &self.disk_refusal {
            Some(reason) => Err(Refused::new(
                errno::EIO,
                format!("its disk cannot be told that blocks are removed: {reason}"),
            )),
            None => Ok(counts),
        }
    }

    /// Whether nothing of a namespace is fetched from other nodes now.
    pub(super) fn is_closed(&self, namespace: Namespace) -> bool {
        self.lock().is_closed(namespace)
    }
}

impl State {
    /// See [`UserStore::is_closed`].
    pub(super) fn is_closed(&self, namespace: Namespace) -> bool {
        self.closed.get(&namespace).is_some_and(|until| Instant::now() < *until)
    }
}
