//! One database: values of Redis clients in the blocks of a namespace.
//!
//! A key of up to 64 bytes is the block's key; another one is hashed, and stands whole in the block. A value of more than a
//! block lies in parts, under keys that no other value ever has, so that values are never mixed. Readers ask nobody.

mod part;
mod parts;
mod place;
mod together;

use crate::head::{BLOCK_BYTES_MAX, Form, HEAD_BYTES, Head, KEY_BYTES_MAX, VALUE_BYTES_MAX};
use hinterland_pool::local::random;
use hinterland_pool::{
    Expects, Found, KvValues, Pool, PoolError, Replaced, Replacement, TOGETHER_BYTES_MAX, TOGETHER_MAX,
};
use hinterland_proto::control::KvKey;
use hinterland_resp::Replies;
use parts::Parts;
use place::Place;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

pub use together::{Moved, Transfer};

/// How long the node may take for an answer: as long as one of another rack. Clients are told then, and hang no longer.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// How often a value is read again that was replaced while it was copied.
const READS_MAX: usize = 64;
/// How often a change is tried again that another client came before.
const CHANGES_MAX: usize = 1000;
/// Keys of which one is chosen when any key is asked for: with fewer, those behind a gap would come up too often.
const SAMPLE_MAX: usize = 64;

/// Why a command on a key failed: the text of its reply.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The node failed; the connection to it may be of no use any more.
    #[error("ERR {0}")]
    Pool(#[from] PoolError),
    /// Everything is being written, or the value is larger than the memory for all.
    #[error(
        "OOM no room for the value (hint: raise --kv-capacity of the node, or the quota of the namespace if it has one)"
    )]
    NoRoom,
    /// Other clients write the key all the time.
    #[error("TRYAGAIN the key is being written all the time (hint: try again)")]
    Contended,
    /// A key that is too long.
    #[error("ERR a key has at most {KEY_BYTES_MAX} bytes, not {0} (hint: hash it)")]
    Key(usize),
    /// A value that is too long.
    #[error("ERR string exceeds maximum allowed size (proto-max-bulk-len)")]
    Value,
    /// More keys than can be set all or none.
    #[error(
        "ERR MSETNX sets at most {TOGETHER_MAX} keys with {} MiB, as far as those of up to 4 MiB count (hint: use MSET, or SET with NX)",
        TOGETHER_BYTES_MAX >> 20
    )]
    Together,
    /// The reply is larger than the buffers may be.
    #[error(
        "OOM the reply has {0} bytes, more than the buffers have left (hint: read fewer values at once, or raise --buffers)"
    )]
    Buffers(usize),
}

/// A value to set.
#[derive(Clone, Copy, Debug)]
pub struct Item<'bytes> {
    /// Its key.
    pub key: &'bytes [u8],
    /// The value.
    pub value: &'bytes [u8],
    /// When the key ends.
    pub ends_ms: Option<u64>,
    /// When it is to be set.
    pub expects: Expects,
}

/// A key that is there.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Its block.
    pub found: Found,
    /// Its head.
    pub head: Head,
}

/// What a key has.
#[derive(Clone, Copy, Debug)]
pub enum State {
    /// A value.
    There(Entry),
    /// A value whose time is over.
    Ended(Entry),
    /// Nothing.
    Absent,
}

impl State {
    /// What a change must expect so that nobody comes in between.
    pub const fn expected(&self) -> Expects {
        match self {
            Self::There(entry) | Self::Ended(entry) => Expects::Block(entry.found),
            Self::Absent => Expects::Nothing,
        }
    }
}

/// What becomes of a value.
#[derive(Debug)]
pub enum Change<T> {
    /// It becomes this one.
    Set(Vec<u8>, Option<u64>, T),
    /// It is removed.
    Remove(T),
    /// It stays.
    Leave(T),
}

/// A value that is about to be written: where, and what stands in front of it.
struct Draft<'item> {
    item: Item<'item>,
    place: Place<'item>,
    head: Head,
}

/// What a key has that is about to be written.
#[derive(Clone, Copy)]
struct Look {
    /// What it must still have, so that nothing is replaced whose parts nobody would remove.
    expects: Expects,
    /// The head of a value in parts.
    parts: Option<Head>,
}

/// A database.
pub struct Keyspace {
    values: KvValues,
    parts: Parts,
}

impl Keyspace {
    /// What programs that share a database agree on.
    pub fn fingerprint(name: &str, database: usize) -> String {
        format!("values of Redis clients, form 1, namespace {name}, database {database}")
    }

    /// Opens a database.
    ///
    /// # Errors
    /// [`KeyError::Pool`].
    pub fn open(pool: &Pool, name: &str, database: usize) -> Result<Self, KeyError> {
        let fingerprint = Self::fingerprint(name, database);
        let values = pool.kv_values_within(&fingerprint, SILENCE_MAX)?;
        let parts = Parts::new(pool.kv_values_within(&format!("{fingerprint}, parts"), SILENCE_MAX)?)?;
        Ok(Self { values, parts })
    }

    /// The store.
    pub const fn store(&self) -> &KvValues {
        &self.values
    }

    /// What a key has.
    ///
    /// # Errors
    /// [`KeyError`].
    pub fn state(&self, key: &[u8], now_ms: u64) -> Result<State, KeyError> {
        let place = Place::of(key)?;
        let Some(entry) = self.entry(place.block_key(), |name| place.is(name, key))? else {
            return Ok(State::Absent);
        };
        Ok(if entry.head.has_ended(now_ms) { State::Ended(entry) } else { State::There(entry) })
    }

    /// The entry of a key, if its time is not over.
    ///
    /// # Errors
    /// [`KeyError`].
    pub fn entry_of(&self, key: &[u8], now_ms: u64) -> Result<Option<Entry>, KeyError> {
        match self.state(key, now_ms)? {
            State::There(entry) => Ok(Some(entry)),
            State::Ended(entry) => {
                self.forget(key, &entry)?;
                Ok(None)
            }
            State::Absent => Ok(None),
        }
    }

    /// Appends the value of a key to the replies, if there is one; at most `room` bytes. Whether there is.
    ///
    /// # Errors
    /// [`KeyError`]; nothing is appended then.
    pub fn reply(
        &mut self,
        key: &[u8],
        now_ms: u64,
        room: usize,
        replies: &mut Replies,
    ) -> Result<bool, KeyError> {
        let bytes = self.append(key, now_ms, room, replies)?;
        self.values.count_get(bytes);
        Ok(bytes.is_some())
    }

    /// As [`reply`](Self::reply); the length of the value.
    #[inline]
    fn append(
        &mut self,
        key: &[u8],
        now_ms: u64,
        room: usize,
        replies: &mut Replies,
    ) -> Result<Option<usize>, KeyError> {
        let place = Place::of(key)?;
        let mark = replies.mark();
        for _ in 0..READS_MAX {
            let Some(found) = self.values.find(place.block_key())? else { return Ok(None) };
            let block_bytes = found.bytes() as usize;
            let Some(value_bytes) = block_bytes.checked_sub(HEAD_BYTES + place.kept()) else {
                return Ok(None);
            };
            if value_bytes > room {
                return Err(KeyError::Buffers(value_bytes));
            }
            let (mut head, mut name) = ([0; HEAD_BYTES], vec![0; place.kept()]);
            let value = replies.bulk_space(value_bytes);
            if !self.values.read(&found, &mut [&mut head, &mut name, value]) {
                replies.back_to(mark);
                continue;
            }
            let head = Head::parse(&head, block_bytes).filter(|_| place.is(&name, key));
            let entry = head.map(|head| Entry { found, head });
            match entry {
                Some(entry) if entry.head.has_ended(now_ms) => {
                    replies.back_to(mark);
                    self.forget(key, &entry)?;
                    return Ok(None);
                }
                Some(Entry { head: Head { form: Form::Follows, .. }, .. }) => return Ok(Some(value_bytes)),
                Some(entry) => {
                    replies.back_to(mark);
                    if entry.head.value_bytes > room {
                        return Err(KeyError::Buffers(entry.head.value_bytes));
                    }
                    if self.parts.read(&entry.head, replies.bulk_space(entry.head.value_bytes))? {
                        return Ok(Some(entry.head.value_bytes));
                    }
                    replies.back_to(mark);
                    // A lost part is a miss, unless the value was replaced: then there is another one.
                    if self.forget(key, &entry)? {
                        return Ok(None);
                    }
                }
                None => {
                    replies.back_to(mark);
                    return Ok(None);
                }
            }
        }
        Err(KeyError::Contended)
    }

    /// The value of a key and its entry.
    ///
    /// # Errors
    /// [`KeyError`].
    pub fn value(&mut self, key: &[u8], now_ms: u64) -> Result<Option<(Entry, Vec<u8>)>, KeyError> {
        for _ in 0..READS_MAX {
            let Some(entry) = self.entry_of(key, now_ms)? else { return Ok(None) };
            let mut value = vec![0; entry.head.value_bytes];
            if entry.head.form != Form::Follows {
                if self.parts.read(&entry.head, &mut value)? {
                    return Ok(Some((entry, value)));
                }
                if self.forget(key, &entry)? {
                    return Ok(None);
                }
                continue;
            }
            let mut front = vec![0; HEAD_BYTES + entry.head.key_bytes];
            if self.values.read(&entry.found, &mut [&mut front, &mut value]) {
                return Ok(Some((entry, value)));
            }
        }
        Err(KeyError::Contended)
    }

    /// Sets values; one answer each, in their order if they have one key. Those that follow their head appear with no other write in between,
    /// but where a value that lies in parts is set or replaced.
    ///
    /// # Errors
    /// [`KeyError`]; some of the values may be set then.
    pub fn set(&mut self, items: &[Item<'_>]) -> Result<Vec<Replaced>, KeyError> {
        self.write(items, |values, blocks| values.replace(blocks))
    }

    /// Writes the blocks of values, in the way that the caller says, and removes the parts that nobody needs then. One that expects nothing
    /// is written again where another client came before: the parts of whose value would be nobody's.
    fn write(
        &mut self,
        items: &[Item<'_>],
        mut replace: impl FnMut(&mut KvValues, &[Replacement<'_>]) -> Result<Vec<Replaced>, PoolError>,
    ) -> Result<Vec<Replaced>, KeyError> {
        let Some(drafts) = self.drafts(items)? else { return Ok(vec![Replaced::NoRoom; items.len()]) };
        let mut outcomes = vec![Replaced::Changed; items.len()];
        let mut left: Vec<usize> = (0..items.len()).collect();
        for _ in 0..CHANGES_MAX {
            let some: Vec<&Draft<'_>> = left.iter().map(|&index| &drafts[index]).collect();
            for (&index, outcome) in left.iter().zip(self.write_once(&some, &mut replace)?) {
                outcomes[index] = outcome;
            }
            left.retain(|&index| {
                outcomes[index] == Replaced::Changed && drafts[index].item.expects == Expects::Anything
            });
            if left.is_empty() {
                break;
            }
        }
        let is_lost = |outcome: &Replaced| *outcome != Replaced::Done;
        let lost = drafts.iter().zip(&outcomes).filter(|(_, outcome)| is_lost(outcome));
        self.remove_parts(lost.map(|(draft, _)| &draft.head))?;
        if left.is_empty() { Ok(outcomes) } else { Err(KeyError::Contended) }
    }

    fn write_once(
        &mut self,
        drafts: &[&Draft<'_>],
        replace: &mut impl FnMut(&mut KvValues, &[Replacement<'_>]) -> Result<Vec<Replaced>, PoolError>,
    ) -> Result<Vec<Replaced>, KeyError> {
        let looks = self.looks(drafts)?;
        let bytes: Vec<[u8; HEAD_BYTES]> = drafts.iter().map(|draft| draft.head.to_bytes()).collect();
        let pieces: Vec<[&[u8]; 3]> = drafts
            .iter()
            .zip(&bytes)
            .map(|(Draft { item, head, .. }, bytes)| {
                let value = if head.form == Form::Follows { item.value } else { &[] };
                [&bytes[..], &item.key[..head.key_bytes], value]
            })
            .collect();
        let blocks: Vec<Replacement<'_>> = drafts
            .iter()
            .zip(&pieces)
            .zip(&looks)
            .map(|((Draft { item, place, .. }, pieces), look)| Replacement {
                key: place.block_key(),
                pieces,
                expects: if item.expects == Expects::Anything { look.expects } else { item.expects },
            })
            .collect();
        let outcomes = replace(&mut self.values, &blocks)?;
        let replaced = looks.iter().zip(&outcomes).filter(|(_, outcome)| **outcome == Replaced::Done);
        self.remove_parts(replaced.filter_map(|(look, _)| look.parts.as_ref()))?;
        Ok(outcomes)
    }

    /// Places and heads of values, those in parts with their parts written; `None` if these have no room.
    fn drafts<'item>(&mut self, items: &[Item<'item>]) -> Result<Option<Vec<Draft<'item>>>, KeyError> {
        // What is refused is refused before the first part is written: nobody would remove it.
        let places = items.iter().map(|item| Place::of(item.key)).collect::<Result<Vec<_>, _>>()?;
        if items.iter().any(|item| item.value.len() > VALUE_BYTES_MAX) {
            return Err(KeyError::Value);
        }
        let mut drafts: Vec<Draft<'item>> = Vec::with_capacity(items.len());
        for (&item, place) in items.iter().zip(places) {
            let mut head = Head {
                ends_ms: item.ends_ms,
                value_bytes: item.value.len(),
                key_bytes: place.kept(),
                form: Form::Follows,
            };
            if HEAD_BYTES + head.key_bytes + head.value_bytes > BLOCK_BYTES_MAX {
                match self.parts.write(item.value)? {
                    Some(generation) => head.form = Form::InParts(generation),
                    None => {
                        self.remove_parts(drafts.iter().map(|draft| &draft.head))?;
                        return Ok(None);
                    }
                }
            }
            drafts.push(Draft { item, place, head });
        }
        Ok(Some(drafts))
    }

    /// Removes keys; returns how many were there.
    ///
    /// # Errors
    /// [`KeyError`].
    pub fn remove(&mut self, keys: &[&[u8]], now_ms: u64) -> Result<u64, KeyError> {
        let mut left: BTreeSet<&[u8]> = keys.iter().copied().collect();
        let mut count = 0;
        for _ in 0..CHANGES_MAX {
            let mut there = Vec::new();
            for key in left {
                match self.state(key, now_ms)? {
                    State::There(entry) => there.push((key, entry)),
                    State::Ended(entry) => _ = self.forget(key, &entry)?,
                    State::Absent => {}
                }
            }
            let removed = self.remove_entries(&there)?;
            count += removed;
            if removed == there.len() as u64 {
                self.remove_parts(there.iter().map(|(_, entry)| &entry.head))?;
                return Ok(count);
            }
            left = self.replaced_of(&there, now_ms)?;
        }
        Err(KeyError::Contended)
    }

    /// Removes the blocks of keys that still have them; how many that were.
    fn remove_entries(&self, entries: &[(&[u8], Entry)]) -> Result<u64, KeyError> {
        let places = entries.iter().map(|(key, _)| Place::of(key)).collect::<Result<Vec<_>, _>>()?;
        let blocks: Vec<(&[u8], Found)> =
            places.iter().zip(entries).map(|(place, (_, entry))| (place.block_key(), entry.found)).collect();
        let mut count = 0;
        for some in blocks.chunks(4096) {
            count += self.values.remove_found(some)?;
        }
        Ok(count)
    }

    /// Those of the keys that have another block by now. The parts of blocks that are gone are removed, whoever it was that removed the block.
    fn replaced_of<'key>(
        &self,
        entries: &[(&'key [u8], Entry)],
        now_ms: u64,
    ) -> Result<BTreeSet<&'key [u8]>, KeyError> {
        let mut replaced = BTreeSet::new();
        for (key, old) in entries {
            let new = match self.state(key, now_ms)? {
                State::There(entry) | State::Ended(entry) => Some(entry),
                State::Absent => None,
            };
            // Who changes when a key ends leaves its parts where they are.
            if new.is_none_or(|new| new.head.form != old.head.form) {
                self.remove_parts([&old.head])?;
            }
            if new.is_some_and(|new| new.found != old.found) {
                replaced.insert(*key);
            }
        }
        Ok(replaced)
    }

    /// Changes the value of a key; nobody changes it between the look at the old one and the new one.
    ///
    /// # Errors
    /// [`KeyError`], and what `decide` says.
    pub fn change<T, E: From<KeyError>>(
        &mut self,
        key: &[u8],
        now_ms: u64,
        mut decide: impl FnMut(Option<(&Head, Vec<u8>)>) -> Result<Change<T>, E>,
    ) -> Result<T, E> {
        for _ in 0..CHANGES_MAX {
            let state = self.state(key, now_ms)?;
            let old = match &state {
                State::There(entry) => match self.value(key, now_ms)? {
                    // Read again meanwhile: it must be the same block.
                    Some((read, value)) if read.found == entry.found => Some((entry, value)),
                    _ => continue,
                },
                State::Ended(_) | State::Absent => None,
            };
            let change = decide(old.map(|(entry, value)| (&entry.head, value)))?;
            match (change, &state) {
                (Change::Leave(answer), _) => return Ok(answer),
                (Change::Remove(answer), State::There(entry)) => {
                    if self.forget(key, entry)? {
                        return Ok(answer);
                    }
                }
                (Change::Remove(answer), _) => return Ok(answer),
                (Change::Set(value, ends_ms, answer), state) => {
                    if self.set_if(key, &value, ends_ms, state.expected())? {
                        return Ok(answer);
                    }
                }
            }
        }
        Err(KeyError::Contended.into())
    }

    /// Sets one value if the key is as expected; whether it was.
    ///
    /// # Errors
    /// [`KeyError`].
    pub fn set_if(
        &mut self,
        key: &[u8],
        value: &[u8],
        ends_ms: Option<u64>,
        expects: Expects,
    ) -> Result<bool, KeyError> {
        match self.set(&[Item { key, value, ends_ms, expects }])?.first() {
            Some(Replaced::Done) => Ok(true),
            Some(Replaced::Changed) => Ok(false),
            Some(Replaced::NoRoom) | None => Err(KeyError::NoRoom),
        }
    }

    /// Changes when a key ends: `decide` gets when it does, and says when it shall, if it is to change. What it answered
    /// last, or `None` for a key that is not there.
    ///
    /// # Errors
    /// [`KeyError`].
    pub fn change_end(
        &mut self,
        key: &[u8],
        now_ms: u64,
        mut decide: impl FnMut(Option<u64>) -> Option<Option<u64>>,
    ) -> Result<Option<bool>, KeyError> {
        let place = Place::of(key)?;
        for _ in 0..CHANGES_MAX {
            let Some(entry) = self.entry_of(key, now_ms)? else { return Ok(None) };
            let Some(ends_ms) = decide(entry.head.ends_ms) else { return Ok(Some(false)) };
            let mut block = vec![0; entry.found.bytes() as usize];
            if !self.values.read(&entry.found, &mut [&mut block]) {
                continue;
            }
            // Parts stay where they are: only the head is written anew.
            let head = Head { ends_ms, ..entry.head }.to_bytes();
            let pieces = [&head[..], &block[HEAD_BYTES..]];
            let expects = Expects::Block(entry.found);
            let outcome =
                self.values.replace(&[Replacement { key: place.block_key(), pieces: &pieces, expects }])?;
            match outcome.first() {
                Some(Replaced::Done) => return Ok(Some(true)),
                Some(Replaced::Changed) => {}
                Some(Replaced::NoRoom) | None => return Err(KeyError::NoRoom),
            }
        }
        Err(KeyError::Contended)
    }

    /// About `limit` keys, and where to go on; `None` at the end.
    ///
    /// # Errors
    /// [`KeyError`].
    pub fn list(&self, cursor: u64, limit: u32, now_ms: u64) -> Result<(Vec<KvKey>, Option<u64>), KeyError> {
        let (keys, next) = self.values.list(cursor, limit)?;
        let mut names = Vec::with_capacity(keys.len());
        for block_key in keys {
            let mut kept = Vec::new();
            let entry = self.entry(&block_key, |name| {
                kept = name.to_vec();
                true
            })?;
            if entry.is_some_and(|entry| !entry.head.has_ended(now_ms)) {
                names.push(if kept.is_empty() && !Place::is_hash(&block_key) { block_key } else { kept });
            }
        }
        Ok((names, next))
    }

    /// A key, any of them about as likely as the others; `None` if there is none.
    ///
    /// # Errors
    /// [`KeyError`].
    pub fn any_key(&self, now_ms: u64) -> Result<Option<KvKey>, KeyError> {
        let number = || Ok::<_, KeyError>(u64::from_le_bytes(random()?));
        let end = self.values.list_end();
        let start = number()? % end.max(1);
        let mut keys = Vec::new();
        for (from, stop) in [(start, end), (0, start)] {
            let mut cursor = Some(from).filter(|from| *from < stop);
            while let Some(from) = cursor.filter(|_| keys.len() < SAMPLE_MAX) {
                let (some, next) = self.list(from, SAMPLE_MAX as u32, now_ms)?;
                keys.extend(some);
                cursor = next.filter(|next| *next < stop);
            }
        }
        // The last page goes on behind the start: what was there already counts once.
        keys.sort_unstable();
        keys.dedup();
        let at = number()? % (keys.len() as u64).max(1);
        // Less than the number of keys: the cast loses nothing.
        Ok(keys.into_iter().nth(at as usize))
    }

    /// Removes all.
    ///
    /// # Errors
    /// [`KeyError`].
    pub fn clear(&mut self) -> Result<(), KeyError> {
        self.values.clear()?;
        self.parts.clear()
    }

    /// Gives back what is kept for the next writes.
    ///
    /// # Errors
    /// [`KeyError`].
    pub fn rest(&mut self) -> Result<(), KeyError> {
        self.values.rest()?;
        self.parts.rest()
    }

    /// Removes the value of a key if it is still this one; whether it was.
    ///
    /// # Errors
    /// [`KeyError`].
    pub fn forget(&self, key: &[u8], entry: &Entry) -> Result<bool, KeyError> {
        let place = Place::of(key)?;
        let count = self.values.remove_found(&[(place.block_key(), entry.found)])?;
        if count > 0 {
            self.remove_parts([&entry.head])?;
        }
        Ok(count > 0)
    }

    /// The block of a block's key, if `is_it` the key that stands in it.
    fn entry(
        &self,
        block_key: &[u8],
        mut is_it: impl FnMut(&[u8]) -> bool,
    ) -> Result<Option<Entry>, KeyError> {
        for _ in 0..READS_MAX {
            let Some(found) = self.values.find(block_key)? else { return Ok(None) };
            let mut head = [0; HEAD_BYTES];
            if !self.values.read(&found, &mut [&mut head]) {
                continue;
            }
            let Some(parsed) = Head::parse(&head, found.bytes() as usize) else { return Ok(None) };
            let mut name = vec![0; parsed.key_bytes];
            if !name.is_empty() && !self.values.read(&found, &mut [&mut head, &mut name]) {
                continue;
            }
            return Ok(is_it(&name).then_some(Entry { found, head: parsed }));
        }
        Err(KeyError::Contended)
    }

    /// For each value, what its key has: where it lies in parts, or those of the value that it replaces are to be removed, it must be known
    /// which value that is; else it is enough that it is none in parts. Of one key there is one answer, so that writes of it stay in their
    /// order.
    fn looks(&self, drafts: &[&Draft<'_>]) -> Result<Vec<Look>, KeyError> {
        let keys: Vec<&[u8]> = drafts.iter().map(|draft| draft.place.block_key()).collect();
        let found = self.values.find_many(&keys)?;
        let mut looks: BTreeMap<&[u8], Look> = BTreeMap::new();
        for (draft, found) in drafts.iter().zip(found) {
            let is_in_parts = draft.head.form != Form::Follows;
            let may_have_parts = found.is_some_and(|found| found.bytes() == draft.place.parted_bytes());
            let key = draft.place.block_key();
            if !(is_in_parts || may_have_parts) || looks.contains_key(key) {
                continue;
            }
            let (expects, head) = match self.state(draft.item.key, 0)? {
                State::There(entry) | State::Ended(entry) => (Expects::Block(entry.found), Some(entry.head)),
                // What is no value is replaced like one.
                State::Absent => (found.map_or(Expects::Nothing, Expects::Block), None),
            };
            let parts = head.filter(|head| head.form != Form::Follows);
            looks.insert(key, Look { expects, parts });
        }
        let of = |draft: &&Draft<'_>| {
            let expects = Expects::NoneOf(draft.place.parted_bytes());
            looks.get(draft.place.block_key()).copied().unwrap_or(Look { expects, parts: None })
        };
        Ok(drafts.iter().map(of).collect())
    }

    fn remove_parts<'head>(&self, heads: impl IntoIterator<Item = &'head Head>) -> Result<(), KeyError> {
        for head in heads {
            self.parts.remove(head)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
