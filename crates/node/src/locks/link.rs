//! The way to another node that keeps locks or pages: a thread while something is wanted of it.

use super::{Locks, believed_ms, now_ms};
use crate::core::Core;
use crate::refused::{Refused, errno};
use hinterland_directory::locks::{LockAnswer, LockAsk, LockRequest};
use hinterland_os::process;
use hinterland_proto::control::{PeerReply, PeerRequest, decode, encode};
use hinterland_types::{GlobalAddress, NodeId};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often a home is asked while somebody waits for a lock that it keeps, in case its news are lost.
const WAITING_PAUSE: Duration = Duration::from_millis(50);
/// The same without news.
const ASKING_PAUSE: Duration = Duration::from_millis(3);
/// A pause after a home that did not answer.
const FAILED_PAUSE: Duration = Duration::from_millis(30);
/// How long a thread that has nothing to do is kept for the next thing.
const LINGER: Duration = Duration::from_secs(1);
/// Messages to one node that wait; more are let go of and come again with the next renewal.
const OUT_MAX: usize = 64 << 10;

/// What is sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Out {
    /// To a lock home, about a wish.
    Ask(LockRequest, LockAsk),
    /// To a page home: forget a lock.
    Tell(GlobalAddress, u64),
    /// To a node whose programs wait: something changed.
    News,
}

#[derive(Default)]
struct Link {
    address: String,
    out: VecDeque<Out>,
    is_running: bool,
    heard_ms: u64,
    /// The home has said that something changed.
    is_urgent: bool,
}

/// All of them.
pub(super) struct Links {
    links: Mutex<HashMap<NodeId, Link>>,
    changed: Condvar,
    /// This node's own wishes at its own home have got further.
    own: Mutex<bool>,
    own_changed: Condvar,
    /// Whether lock homes send word.
    has_news: bool,
}

impl Default for Links {
    fn default() -> Self {
        let has_news = std::env::var_os("HINTERLAND_NO_LOCK_NEWS").is_none_or(|value| value != "1");
        Self {
            links: Mutex::default(),
            changed: Condvar::new(),
            own: Mutex::default(),
            own_changed: Condvar::new(),
            has_news,
        }
    }
}

impl Links {
    /// Where a node is.
    pub fn know(&self, node: NodeId, address: &str) {
        let mut links = self.lock();
        let link = links.entry(node).or_default();
        if link.address != address {
            address.clone_into(&mut link.address);
        }
    }

    /// Sends something, soon.
    pub fn push(&self, core: &Core, node: NodeId, out: Out) {
        if out == Out::News && !self.has_news {
            return;
        }
        {
            let mut links = self.lock();
            let link = links.entry(node).or_default();
            if link.out.len() >= OUT_MAX || (!matches!(out, Out::Ask(..)) && link.out.contains(&out)) {
                return;
            }
            link.out.push_back(out);
        }
        self.changed.notify_all();
        self.run(core, node);
    }

    /// Starts the thread of a link, unless it runs.
    pub fn run(&self, core: &Core, node: NodeId) {
        let Some(core) = core.shared().upgrade() else { return };
        {
            let mut links = self.lock();
            let link = links.entry(node).or_default();
            if std::mem::replace(&mut link.is_running, true) {
                return;
            }
        }
        let spawned = std::thread::Builder::new()
            .name("lock-link".to_owned())
            .stack_size(512 << 10)
            .spawn(move || core.locks.serve_link(&core, node));
        if let Err(error) = spawned {
            tracing::error!(%error, "no thread for locks of another node");
            self.lock().entry(node).or_default().is_running = false;
        }
    }

    /// The home has said that something changed: it is renewed at once.
    pub fn hurry(&self, home: NodeId) {
        self.lock().entry(home).or_default().is_urgent = true;
        self.changed.notify_all();
    }

    /// Whether a node was heard of within the last `within_ms`.
    pub fn is_heard(&self, node: NodeId, within_ms: u64) -> bool {
        self.lock().get(&node).is_some_and(|link| link.heard_ms + within_ms > now_ms())
    }

    pub fn wake_all(&self) {
        self.changed.notify_all();
        self.own_changed();
    }

    pub fn own_changed(&self) {
        *self.own.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.own_changed.notify_all();
    }

    pub fn take_own_changed(&self) -> bool {
        std::mem::take(&mut *self.own.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits for news of this node's own wishes, at most so long.
    pub fn wait_own(&self, pause: Duration) {
        let own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.own_changed.wait_timeout_while(own, pause, |own| !*own));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<NodeId, Link>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Locks {
    /// Asks a lock home and waits for its answer; gives its life.
    pub(super) fn ask_home(
        &self,
        core: &Core,
        home: NodeId,
        ask: &LockAsk,
    ) -> Result<(u64, LockAnswer), Refused> {
        let life = self.kept.life();
        if home == self.own {
            return Ok((life, self.ask_own_home(core, self.own, life, ask)));
        }
        let request = PeerRequest::Locks(encode(&(life, ask))?);
        match self.call(core, home, &request)? {
            PeerReply::Locks(body) => {
                let (life, lease_ms, answer): (u64, u64, LockAnswer) = decode(&body)?;
                self.links.lock().entry(home).or_default().heard_ms = now_ms();
                self.wants().holder.limit_lease(lease_ms);
                Ok((life, answer))
            }
            other => Err(Refused::new(errno::EIO, format!("the lock's node answered {other:?}"))),
        }
    }

    fn call(&self, core: &Core, node: NodeId, request: &PeerRequest) -> Result<PeerReply, Refused> {
        let known = self.links.lock().get(&node).map(|link| link.address.clone()).unwrap_or_default();
        let address = if known.is_empty() { member_address(core, node)? } else { known };
        self.links.know(node, &address);
        // Behind this, the lease is in danger: better to ask again.
        let within = Duration::from_millis((self.lease_ms / 2).max(50));
        core.peers.call_within(&address, request, within).inspect_err(|_| {
            // A node that was started again may listen elsewhere.
            self.links.know(node, "");
        })
    }

    fn serve_link(&self, core: &Arc<Core>, node: NodeId) {
        process::name_thread("lock-link");
        let mut renewed: Option<Instant> = None;
        // A message was lost: until the home has said what it knows, nothing goes there past that one, such as a wish for a lock
        // past the word that the same lock was given back.
        let mut is_behind = false;
        let renewal = Duration::from_millis(self.lease_ms / 4);
        loop {
            let (is_wanted, is_waited_for) = {
                let wants = self.wants();
                (wants.holder.homes().contains(&node), wants.holder.waits_for(node))
            };
            let asking = if self.links.has_news { WAITING_PAUSE } else { ASKING_PAUSE };
            let pause = if is_waited_for { asking.min(renewal) } else { renewal };
            let mut links = self.links.lock();
            let idle = |links: &mut HashMap<NodeId, Link>| {
                links.get(&node).is_some_and(|link| link.out.is_empty() && !(link.is_urgent && is_wanted))
                    && !self.is_stopping.load(std::sync::atomic::Ordering::Acquire)
            };
            let is_due = renewed.is_none_or(|renewed: Instant| renewed.elapsed() >= pause);
            if !is_due || !is_wanted {
                let rest = renewed.map_or(pause, |renewed| pause.saturating_sub(renewed.elapsed()));
                let wait = if is_wanted { rest } else { LINGER };
                links = self
                    .links
                    .changed
                    .wait_timeout_while(links, wait, |links| idle(links))
                    .unwrap_or_else(PoisonError::into_inner)
                    .0;
            }
            let link = links.entry(node).or_default();
            let out = std::mem::take(&mut link.out);
            let is_urgent = std::mem::take(&mut link.is_urgent);
            let is_stopping = self.is_stopping.load(std::sync::atomic::Ordering::Acquire);
            if (out.is_empty() && !is_wanted && !is_urgent) || is_stopping {
                link.is_running = false;
                return;
            }
            drop(links);
            // What is not sent is in the books of the wishes, and the renewal asks for it in order.
            is_behind = is_behind || out.into_iter().any(|out| self.send_out(core, node, out).is_err());
            if !is_wanted && !is_urgent && !is_behind {
                continue;
            }
            if is_behind || is_urgent || renewed.is_none_or(|renewed| renewed.elapsed() >= pause) {
                renewed = Some(Instant::now());
                match self.renew(core, node) {
                    Ok(is_heard) => is_behind = !is_heard,
                    Err(_) => {
                        is_behind = true;
                        std::thread::sleep(FAILED_PAUSE);
                    }
                }
            }
        }
    }

    fn send_out(&self, core: &Core, node: NodeId, out: Out) -> Result<(), Refused> {
        let sent_ms = believed_ms();
        match out {
            Out::Ask(request, ask) => {
                let (life, answer) = self.ask_home(core, node, &ask)?;
                self.wants().holder.answered(request, (node, life), (sent_ms, believed_ms()), &answer);
                self.changed.notify_all();
            }
            // Whoever does not hear it asks by itself.
            Out::News => drop(self.call(core, node, &PeerRequest::LockNews)),
            Out::Tell(address, number) => {
                self.call(core, node, &PeerRequest::LockForget { address })?;
                self.home().told(now_ms(), node, address, number);
                self.act(core);
                self.links.own_changed();
            }
        }
        Ok(())
    }

    /// Says that this node lives, hears what became of its wishes, and asks again what was not heard. False if the answer was too
    /// old to count.
    fn renew(&self, core: &Core, node: NodeId) -> Result<bool, Refused> {
        let number = self.wants().holder.renewal(node);
        let sent_ms = believed_ms();
        let (life, answer) = self.ask_home(core, node, &LockAsk::Renew)?;
        let LockAnswer::Claims(claims) = answer else { return Ok(false) };
        let now = believed_ms();
        let asks = {
            let holder = &mut self.wants().holder;
            if !holder.heard(node, life, sent_ms, now) {
                return Ok(false);
            }
            holder.renewed((node, life), number, (sent_ms, now), &claims)
        };
        self.changed.notify_all();
        for (request, ask) in asks {
            self.send_out(core, node, Out::Ask(request, ask))?;
        }
        Ok(true)
    }
}

/// Where a node is that was not asked before.
fn member_address(core: &Core, node: NodeId) -> Result<String, Refused> {
    let command = hinterland_directory::Command::Members;
    let hinterland_directory::Reply::Members(members) = core.directory.apply(&command)? else {
        return Err(Refused::new(errno::EIO, "the directory did not list its members"));
    };
    let found = members.into_iter().find(|member| member.node == node);
    found
        .map(|member| member.address)
        .ok_or_else(|| Refused::new(errno::EHOSTUNREACH, format!("{node} is no member of the pool any more")))
}
