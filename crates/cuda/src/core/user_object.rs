//! Objects of the program that graphs keep, and the functions by which they end: when neither the program, nor a graph, nor an instance of one has them any more, and
//! all work is done that was sent before.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use hinterland_proto::gpu::command::MarkDevice;

use super::graph::Graph;
use super::list::HostCall;
use super::session::Session;
use super::stream::State;
use crate::code::{Code, INVALID_VALUE};

/// Most references that are taken or given by one call, which is CUDA's limit.
const COUNT_MAX: u32 = i32::MAX.unsigned_abs();

/// An object that somebody has.
pub struct UserObject {
    session: &'static Session,
    number: u32,
    destroy: HostCall,
}

impl fmt::Debug for UserObject {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_struct("UserObject").field("number", &self.number).finish_non_exhaustive()
    }
}

impl Drop for UserObject {
    fn drop(&mut self) {
        // It is there: it goes here alone.
        let _ = self.session.user_objects.remove(self.number);
        let destroy = self.destroy;
        // Not by this thread, which may hold what the function wants. Where the node is gone nothing uses the object any more.
        self.session.call_behind_all(Box::new(move |_| destroy.call()(0)));
    }
}

/// An object as the program names it.
#[derive(Debug)]
pub struct Named {
    object: Weak<UserObject>,
    own: Mutex<Own>,
}

/// The references that the program has itself; the object is here as long as there are any.
#[derive(Debug)]
struct Own {
    count: u32,
    object: Option<Arc<UserObject>>,
}

impl Named {
    fn own(&self) -> MutexGuard<'_, Own> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn release(&self, count: u32) -> Result<(), Code> {
        let mut own = self.own();
        own.count = own.count.checked_sub(count).ok_or(INVALID_VALUE)?;
        let gone = if own.count == 0 { own.object.take() } else { None };
        drop(own);
        drop(gone);
        Ok(())
    }
}

/// The objects that a graph has by itself, and how often.
#[derive(Debug, Default, Clone)]
pub struct Kept(BTreeMap<u32, (u32, Arc<UserObject>)>);

impl Kept {
    /// Each of them once.
    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<UserObject>> {
        self.0.values().map(|(_, object)| object)
    }
}

fn checked(count: u32) -> Result<u32, Code> {
    if (1..=COUNT_MAX).contains(&count) { Ok(count) } else { Err(INVALID_VALUE) }
}

impl Session {
    /// Makes an object of which the program has `count` references.
    ///
    /// # Errors
    /// There are none, or more than can be; all names were given.
    pub fn create_user_object(&'static self, destroy: HostCall, count: u32) -> Result<u32, Code> {
        let count = checked(count)?;
        let mut name = 0;
        self.user_objects.add(|number| {
            name = number;
            let object = Arc::new(UserObject { session: self, number, destroy });
            let own = Mutex::new(Own { count, object: Some(object.clone()) });
            Ok(Named { object: Arc::downgrade(&object), own })
        })?;
        Ok(name)
    }

    fn named(&self, object: u32) -> Result<(Arc<Named>, Arc<UserObject>), Code> {
        let named = self.user_objects.get(object).map_err(|_| INVALID_VALUE)?;
        let object = named.object.upgrade().ok_or(INVALID_VALUE)?;
        Ok((named, object))
    }

    /// Gives the program more references.
    ///
    /// # Errors
    /// There is no such object (any more), or there would be too many.
    pub fn retain_user_object(&self, object: u32, count: u32) -> Result<(), Code> {
        let (named, object) = self.named(object)?;
        let mut own = named.own();
        own.count = own.count.checked_add(checked(count)?).ok_or(INVALID_VALUE)?;
        own.object = Some(object);
        Ok(())
    }

    /// Takes references from the program.
    ///
    /// # Errors
    /// There is no such object (any more), or the program has fewer.
    pub fn release_user_object(&self, object: u32, count: u32) -> Result<(), Code> {
        let (named, _object) = self.named(object)?;
        named.release(checked(count)?)
    }

    /// Gives a graph references, new ones or those of the program (`is_moved`). Instances that are made of it from now on have the object as well.
    ///
    /// # Errors
    /// There is no such object (any more), there would be too many, the program has fewer, or the node is gone.
    pub fn keep_user_object(
        &self,
        graph: &Graph,
        object: u32,
        count: u32,
        is_moved: bool,
    ) -> Result<(), Code> {
        let (named, kept) = self.named(object)?;
        let count = checked(count)?;
        let mut state = graph.state();
        self.forget_definition(&mut state)?;
        let had = state.objects.0.get(&object).map_or(0, |(had, _)| *had);
        let sum = had.checked_add(count).ok_or(INVALID_VALUE)?;
        if is_moved {
            named.release(count)?;
        }
        state.objects.0.insert(object, (sum, kept));
        Ok(())
    }

    /// Takes references from a graph.
    ///
    /// # Errors
    /// There is no such object (any more), the graph has fewer, or the node is gone.
    pub fn let_user_object_go(&self, graph: &Graph, object: u32, count: u32) -> Result<(), Code> {
        let count = checked(count)?;
        let mut state = graph.state();
        let had = state.objects.0.get(&object).map_or(0, |(had, _)| *had);
        let left = had.checked_sub(count).ok_or(INVALID_VALUE)?;
        self.forget_definition(&mut state)?;
        let gone = match state.objects.0.get_mut(&object) {
            Some((had, _)) if left > 0 => {
                *had = left;
                None
            }
            _ => state.objects.0.remove(&object),
        };
        drop(state);
        drop(gone);
        Ok(())
    }

    /// Marks behind all work that a program can see the end of, one for each device that has any.
    pub(super) fn end_of_all_work(&self) -> Result<Vec<Arc<super::inbox::Pending>>, Code> {
        let mut open: Vec<u32> = Vec::new();
        let defaults = self.all_contexts().into_iter().map(|context| context.default_stream.clone());
        for stream in defaults.chain(self.all_streams()) {
            if stream.state() == State::Open && !open.contains(&stream.owner.device) {
                open.push(stream.owner.device);
            }
        }
        open.into_iter().map(|device| self.mark(&[], |mark| MarkDevice { mark, device })).collect()
    }
}
