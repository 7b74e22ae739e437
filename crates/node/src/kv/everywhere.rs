//! What is removed at all nodes of the pool: a namespace, as when an engine changes the weights under its blocks, or some blocks.
//!
//! A node that was cleared fetches nothing of the namespace from others for a while, and what is on its way does not count: else it could
//! get blocks from one that is cleared a moment later. The node that asks makes sure that all were cleared within that while. Of single
//! blocks the same is true until the node that asks says that all have removed them.

use super::removals::OnTheirWay;
use super::{KvStores, State, UserStore, key, racks};
use crate::core::Core;
use crate::refused::{Refused, errno};
use hinterland_directory::{Command, MemberInfo, MemberState, Reply};
use hinterland_kv::{BlockKey, Namespace};
use hinterland_proto::control::{KvKey, PeerReply, PeerRequest};
use hinterland_types::NodeId;
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

/// How long a node that was cleared fetches nothing from others, and one that is not told of the end no block that is removed.
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
        let request = PeerRequest::KvClear { user: store.user, fingerprint };
        for (node, answer) in self.ask_others(&self.others()?, &request) {
            removed += told(&mut left, node, answer);
        }
        self.removed_everywhere(removed, left, begun)
    }

    /// Removes blocks at every member of the pool, or at every other one; returns how many there were in memory or on the disk of this node,
    /// and in the memory of others.
    ///
    /// # Errors
    /// As [`clear_kv_everywhere`](Self::clear_kv_everywhere), or for a key that no block can have.
    pub fn remove_kv_everywhere(
        &self,
        store: &UserStore,
        namespace: Namespace,
        keys: Vec<KvKey>,
        is_here_too: bool,
    ) -> Result<u64, Refused> {
        racks::check_count(keys.len())?;
        let blocks = keys.iter().map(|bytes| key(bytes)).collect::<Result<Vec<_>, _>>()?;
        if !self.kv_racks.is_on() {
            // It gives nothing to others and has nothing of theirs.
            return if is_here_too { store.remove(namespace, &keys) } else { Ok(0) };
        }
        let fingerprint = store.fingerprint(namespace).unwrap_or_default();
        let begun = Instant::now();
        store.begin_removal(namespace, &blocks)?;
        let mut left = Vec::new();
        let counts = if is_here_too {
            store.remove_all_of(&fingerprint, &blocks)
        } else {
            store.remove_fetched(namespace, &fingerprint, &blocks)
        };
        let mut removed = told(&mut left, self.own, Ok(counts));
        let request =
            |is_end| PeerRequest::KvRemove { user: store.user, fingerprint, keys: keys.clone(), is_end };
        let outcome = self.others().and_then(|others| {
            for (node, answer) in self.ask_others(&others, &request(false)) {
                removed += told(&mut left, node, answer);
            }
            self.removed_everywhere(removed, left, begun).map(|removed| (removed, others))
        });
        store.end_removal(namespace, &blocks);
        let (removed, others) = outcome?;
        // Who does not hear of it fetches these blocks a while later.
        self.ask_others(&others, &request(true));
        Ok(removed)
    }

    /// What a removal came to.
    fn removed_everywhere(
        &self,
        removed: u64,
        mut left: Vec<String>,
        begun: Instant,
    ) -> Result<u64, Refused> {
        if begun.elapsed() > WITHIN {
            left.push("all took too long together".to_owned());
        }
        if left.is_empty() {
            return Ok(removed);
        }
        let text = format!(
            "{removed} blocks were removed, but some may be left: {} (hint: do it again when all members are up, or give engines another fingerprint)",
            left.join("; ")
        );
        Err(Refused::new(errno::EHOSTUNREACH, text))
    }

    /// All other members of the pool.
    fn others(&self) -> Result<Vec<MemberInfo>, Refused> {
        match self.directory.apply(&Command::Members)? {
            Reply::Members(members) => {
                Ok(members.into_iter().filter(|member| member.node != self.own).collect())
            }
            _ => Err(Refused::new(errno::EIO, "the directory did not list its members")),
        }
    }

    /// Asks others, all at once: one that is silent must not use up the time of the others.
    fn ask_others(&self, others: &[MemberInfo], request: &PeerRequest) -> Vec<(NodeId, Answer)> {
        let answers: Vec<Answer> = std::thread::scope(|scope| {
            let ask = |member| {
                std::thread::Builder::new().spawn_scoped(scope, move || self.ask_to_remove(member, request))
            };
            let asked: Vec<_> = others.iter().map(ask).collect();
            let answer = |asked: std::io::Result<ScopedJoinHandle<'_, Answer>>| {
                let answer = asked.map_err(|error| error.to_string())?;
                answer.join().unwrap_or_else(|_| Err("asking it failed".to_owned()))
            };
            asked.into_iter().map(answer).collect()
        });
        others.iter().map(|member| member.node).zip(answers).collect()
    }

    fn ask_to_remove(&self, member: &MemberInfo, request: &PeerRequest) -> Answer {
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
        match self.users.find_settled(user) {
            Some(store) => store.clear_for_all(fingerprint),
            None if has_file() => self.of_user(user)?.clear_for_all(fingerprint),
            None => Ok((0, 0)),
        }
    }

    /// Removes blocks of a user that are being removed at all nodes, or takes note that they were; counts as above.
    ///
    /// # Errors
    /// As [`clear_for_all`](Self::clear_for_all), for a key that no block can have, and while too many are being removed.
    pub fn remove_for_all(
        &self,
        user: u32,
        fingerprint: &[u8; 32],
        keys: &[KvKey],
        is_end: bool,
    ) -> Result<(u64, u64), Refused> {
        racks::check_count(keys.len())?;
        let keys = keys.iter().map(|bytes| key(bytes)).collect::<Result<Vec<_>, _>>()?;
        let namespace = Namespace::of(fingerprint);
        let has_file = || self.plan.disk.as_ref().is_some_and(|disk| disk.file(user).exists());
        let store = match self.users.find_settled(user) {
            Some(store) => store,
            None if has_file() => self.of_user(user)?,
            None => return Ok((0, 0)),
        };
        if is_end {
            store.end_removal(namespace, &keys);
            return Ok((0, 0));
        }
        store.begin_removal(namespace, &keys)?;
        let counts = store.remove_all_of(fingerprint, &keys);
        store.disk_was_told(counts)
    }
}

impl UserStore {
    /// See [`KvStores::clear_for_all`].
    fn clear_for_all(&self, fingerprint: &[u8; 32]) -> Result<(u64, u64), Refused> {
        let namespace = Namespace::of(fingerprint);
        let mut state = self.lock();
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
        // Behind it: what is copied for the disk just now is seen to be gone by who copies it, or is dropped here.
        if let Some(disk) = &self.disk {
            disk.cleared_all_of(*fingerprint);
        }
        drop(state);
        self.disk_was_told(counts)
    }

    /// The counts of a removal, if its disk is one that knows of it.
    fn disk_was_told(&self, counts: (u64, u64)) -> Result<(u64, u64), Refused> {
        match &self.disk_refusal {
            Some(reason) => Err(Refused::new(
                errno::EIO,
                format!("its disk cannot be told that blocks are removed: {reason}"),
            )),
            None => Ok(counts),
        }
    }

    /// Blocks are fetched from no other node until [`end_removal`](Self::end_removal), for a while at most, and those that are on their way do
    /// not count.
    fn begin_removal(&self, namespace: Namespace, keys: &[BlockKey]) -> Result<(), Refused> {
        let mut state = self.lock();
        match state.removals.begin(namespace, keys, Instant::now(), CLOSED) {
            Some(OnTheirWay::Named) => {}
            Some(OnTheirWay::None) => state.clears += 1,
            None => {
                let text = "too many blocks are being removed at all nodes (hint: fewer at once)";
                return Err(Refused::new(errno::EAGAIN, text));
            }
        }
        Ok(())
    }

    fn end_removal(&self, namespace: Namespace, keys: &[BlockKey]) {
        self.lock().removals.end(namespace, keys);
    }

    /// Removes blocks from memory and disk, also of a namespace that nobody has opened since the node started; how many there were, and
    /// how many are pinned and stay.
    fn remove_all_of(&self, fingerprint: &[u8; 32], keys: &[BlockKey]) -> (u64, u64) {
        let namespace = Namespace::of(fingerprint);
        let mut state = self.lock();
        let is_it = state.namespaces.get(&namespace.0).is_some_and(|known| known.fingerprint == *fingerprint);
        let (mut removed, mut pinned) = (0, 0);
        for key in keys {
            let was_here = is_it && state.store.remove(namespace, key);
            let was_there = self.disk.as_ref().is_some_and(|disk| disk.removed_of(*fingerprint, key));
            let stays = is_it && !was_here && self.view.find(namespace, key).is_some();
            removed += u64::from(was_here || was_there && !stays);
            pinned += u64::from(stays);
        }
        (removed, pinned)
    }

    /// The same of blocks that came from other nodes alone. What was put in place of them here may have left already, and an old one may have been
    /// fetched since: after its removal from the others it would be the only one.
    fn remove_fetched(&self, namespace: Namespace, fingerprint: &[u8; 32], keys: &[BlockKey]) -> (u64, u64) {
        let mut state = self.lock();
        let (mut removed, mut pinned) = (0, 0);
        for key in keys {
            let is_fetched = state.store.is_fetched(namespace, key);
            let was_here = is_fetched && state.store.remove(namespace, key);
            let was_there = self.disk.as_ref().is_some_and(|disk| disk.removed_if_fetched(*fingerprint, key));
            let stays = is_fetched && !was_here;
            removed += u64::from(was_here || was_there && !stays);
            pinned += u64::from(stays);
        }
        (removed, pinned)
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
