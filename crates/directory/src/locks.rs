//! Locks on addresses of the pool, held across racks: the state machines of the three who take part.
//!
//! - The *lock home* ([`LockHome`]) of an address grants and queues. It never moves with pages.
//! - A *holder's node* ([`LockHolder`]) asks for its programs and knows until when what it holds is believed.
//! - A *page home* ([`Fences`]) lets an access under a lock pass only under a fence that counts.
//!
//! All three are pure: time comes in as milliseconds of the own clock, which need not agree with any other; only the
//! speeds of two clocks must agree to within an eighth. Messages may be lost, late and repeated, and everybody may be
//! stopped or die between any two calls.
//!
//! **Leases.** What a node holds, waits for, or has been told as a page home counts for one lease from the moment at which
//! the lock home last heard of it. The node itself counts from the moment at which it *sent* what was answered, and takes an
//! eighth off. So it stops before the lock home lets others go on, whatever the network and the clocks do.
//!
//! **Fences.** Each write grant has a fence that is higher than any before, also than those of lives before. A page home
//! asks the lock home once about a lock that it does not know, then believes higher fences, and refuses lower ones. When
//! a writer ends without saying that all it wrote has arrived, the lock home makes every page home that has asked forget
//! what it knows, and grants only when each has done so or its lease is over.

mod fences;
mod holder;
mod home;
mod message;

pub use fences::{Fences, Gate};
pub use holder::{ClaimState, LockHolder, LockWish};
pub use home::{HomeAction, LockHome, LockSettings};
pub use message::{
    Fence, LockAnswer, LockAsk, LockClaim, LockMode, LockRefusal, LockRequest, LockRow, LockWaiter,
};
