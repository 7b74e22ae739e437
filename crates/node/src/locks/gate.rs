//! This node as a home of pages: an access under a lock passes only under a fence that counts.

use super::{Locks, believed_ms};
use crate::core::Core;
use crate::refused::{Refused, errno};
use hinterland_directory::locks::{Fence, Fences, Gate, LockAnswer, LockAsk, LockRefusal};
use hinterland_types::GlobalAddress;
use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// How often the lock home is asked about one access before it is given up.
const ASKS_MAX: usize = 4;

/// What is known, and the accesses that are going on.
#[derive(Default)]
pub(super) struct Gates {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    fences: Fences,
    /// Accesses that are copying bytes, by lock.
    passing: HashMap<GlobalAddress, u32>,
}

/// An access that may happen, until this is dropped.
pub struct Passing<'a> {
    gates: &'a Gates,
    address: GlobalAddress,
}

impl Gates {
    /// Forgets a lock, and waits for accesses that were let through: they copy a message's worth of bytes.
    pub(super) fn forget(&self, address: GlobalAddress) {
        let mut state = self.lock();
        state.fences.forget(address);
        drop(self.wait_for_none(state, address));
    }

    fn wait_for_none<'a>(
        &'a self,
        state: MutexGuard<'a, State>,
        address: GlobalAddress,
    ) -> MutexGuard<'a, State> {
        self.changed
            .wait_while(state, |state| state.passing.contains_key(&address))
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Passing<'_> {
    fn drop(&mut self) {
        let mut state = self.gates.lock();
        if let Some(count) = state.passing.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                state.passing.remove(&self.address);
                self.gates.changed.notify_all();
            }
        }
    }
}

impl Locks {
    /// Lets an access under a lock through, until what it returns is dropped.
    ///
    /// # Errors
    /// [`Refused`] with `EOWNERDEAD` if the fence counts no more, with `EHOSTUNREACH` if nobody can say or this node is cut off.
    pub fn pass(&self, core: &Core, address: GlobalAddress, fence: u64) -> Result<Passing<'_>, Refused> {
        if !self.holds_lease(core) {
            return Err(LockRefusal::CutOff.into());
        }
        let fence = Fence(fence);
        let place = self.place_of_own(core, address)?;
        self.links.know(place.home, &place.address);
        let mut is_fresh = false;
        for _ in 0..ASKS_MAX {
            let term = self.wants().holder.term(place.home);
            let mut state = self.gates.lock();
            let number = match state.fences.gate(believed_ms(), place.home, address, fence, term) {
                Gate::Open => {
                    if is_fresh {
                        // One that was let through before the lease was over, and slept, must not come after this.
                        state = self.gates.wait_for_none(state, address);
                    }
                    *state.passing.entry(address).or_default() += 1;
                    drop(state);
                    let passing = Passing { gates: &self.gates, address };
                    // A program of this host that had the lock may not know yet that it has not.
                    self.shut_out(core, address, fence.0)?;
                    return Ok(passing);
                }
                Gate::Old => return Err(lost(address)),
                Gate::Ask(number) => number,
            };
            drop(state);
            is_fresh = true;
            let sent_ms = believed_ms();
            let ask = LockAsk::Check { address, fence };
            let asked = self.ask_home(core, place.home, &ask);
            let Ok((life, answer)) = asked else {
                self.gates.lock().fences.gave_up(number, address);
                return Err(asked.err().unwrap_or_else(|| lost(address)));
            };
            let mut wants = self.wants();
            let is_heard = wants.holder.heard(place.home, life, sent_ms, believed_ms());
            let term = wants.holder.term(place.home).map_or(0, |(term, _)| term);
            drop(wants);
            let mut state = self.gates.lock();
            match answer {
                LockAnswer::Current if is_heard => {
                    state.fences.learned(number, place.home, address, fence, term);
                }
                LockAnswer::Refused(LockRefusal::Lost) => {
                    state.fences.gave_up(number, address);
                    return Err(lost(address));
                }
                LockAnswer::Refused(refusal) => {
                    state.fences.gave_up(number, address);
                    return Err(refusal.into());
                }
                _ => state.fences.gave_up(number, address),
            }
        }
        let text = format!("the lock on {address} changes too fast to be checked (hint: try again)");
        Err(Refused::new(errno::EHOSTUNREACH, text))
    }
}

fn lost(address: GlobalAddress) -> Refused {
    let Refused { code, text } = LockRefusal::Lost.into();
    Refused::new(code, format!("the lock on {address}: {text}"))
}
