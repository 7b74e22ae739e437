//! Commands about keys: whether they are there, when they end, which there are.

use super::{Call, Outcome, Refusal};
use crate::keyspace::{KeyError, Keyspace};
use hinterland_pool::{Pool, kv_namespace};
use hinterland_resp::command::{Command, Spec};
use hinterland_resp::options::{ExpireOptions, Unit};
use hinterland_resp::{glob, number};
use std::collections::HashSet;

/// Keys of one answer of the node when all are asked for.
const PAGE: u32 = 4096;
/// Bytes that stand around a string among the replies, of the length that keys have.
const STRING_BYTES: usize = 10;
/// Bytes of an integer beyond which Redis keeps a value as a string in one piece.
const EMBEDDED_BYTES_MAX: usize = 44;
/// Bytes of the books for each block: a header and its share of a bucket.
const BOOK_BYTES: u64 = 128 + 16;

impl Call<'_> {
    pub(super) fn delete(&mut self) -> Outcome {
        let (keys, now_ms): (Vec<&[u8]>, u64) = (self.words.from(1).collect(), self.now_ms());
        let count = self.keyspace()?.remove(&keys, now_ms)?;
        self.count(count)
    }

    pub(super) fn exists(&mut self) -> Outcome {
        let now_ms = self.now_ms();
        let mut count = 0;
        for key in self.words.from(1) {
            count += u64::from(self.keyspace()?.entry_of(key, now_ms)?.is_some());
        }
        self.count(count)
    }

    pub(super) fn kind(&mut self) -> Outcome {
        let (key, now_ms) = (self.words.get(1), self.now_ms());
        let is_there = self.keyspace()?.entry_of(key, now_ms)?.is_some();
        self.replies.simple(if is_there { "string" } else { "none" });
        Ok(())
    }

    pub(super) fn ttl(&mut self, command: Command) -> Outcome {
        let (key, now_ms) = (self.words.get(1), self.now_ms());
        let time = match self.keyspace()?.entry_of(key, now_ms)?.map(|entry| entry.head.ends_ms) {
            None => -2,
            Some(None) => -1,
            Some(Some(end)) => {
                let left = end.saturating_sub(now_ms);
                let time = match command {
                    Command::Ttl => left.saturating_add(500) / 1000,
                    Command::PTtl => left,
                    Command::ExpireTime => end.saturating_add(500) / 1000,
                    _ => end,
                };
                i64::try_from(time).unwrap_or(i64::MAX)
            }
        };
        self.replies.integer(time);
        Ok(())
    }

    pub(super) fn expire(&mut self, spec: &Spec) -> Outcome {
        let unit = match spec.command {
            Command::Expire => Unit::Seconds,
            Command::PExpire => Unit::Milliseconds,
            Command::ExpireAt => Unit::AtSeconds,
            _ => Unit::AtMilliseconds,
        };
        let now_ms = self.now_ms();
        let options = ExpireOptions::parse(self.words.from(3))?;
        let end = unit.expire(spec.name, self.words.get(2), now_ms)?;
        let key = self.words.get(1);
        // An end in the past is one; 0 would be none.
        let new = u64::try_from(end).unwrap_or(0).max(1);
        let keyspace = self.keyspace()?;
        let changed = keyspace.change_end(key, now_ms, |old| options.allow(old, end).then_some(Some(new)))?;
        if changed == Some(true) && new <= now_ms {
            // It has ended: looking at it removes it.
            keyspace.entry_of(key, now_ms)?;
        }
        self.count(u64::from(changed == Some(true)))
    }

    pub(super) fn persist(&mut self) -> Outcome {
        let (key, now_ms) = (self.words.get(1), self.now_ms());
        let changed = self.keyspace()?.change_end(key, now_ms, |old| old.is_some().then_some(None))?;
        self.count(u64::from(changed == Some(true)))
    }

    pub(super) fn scan(&mut self) -> Outcome {
        let cursor = std::str::from_utf8(self.words.get(1)).ok().and_then(|word| word.parse::<u64>().ok());
        let cursor = cursor.ok_or_else(|| Refusal::text("ERR invalid cursor"))?;
        let (mut limit, mut pattern, mut is_string) = (10_u32, None, true);
        let mut words = self.words.from(2);
        while let Some(word) = words.next() {
            let value = words.next().ok_or_else(Refusal::syntax)?;
            match word.to_ascii_uppercase().as_slice() {
                b"COUNT" => {
                    let count = number::parse(value).ok_or_else(Refusal::integer)?;
                    if count < 1 {
                        return Err(Refusal::syntax());
                    }
                    limit = u32::try_from(count).unwrap_or(u32::MAX);
                }
                b"MATCH" => pattern = Some(value),
                b"TYPE" => is_string = value.eq_ignore_ascii_case(b"string"),
                _ => return Err(Refusal::syntax()),
            }
        }
        let now_ms = self.now_ms();
        let (mut keys, next) = self.keyspace()?.list(cursor, limit, now_ms)?;
        keys.retain(|key| is_string && pattern.is_none_or(|pattern| glob::fits(pattern, key)));
        self.take_room(keys.iter().map(|key| key.len() + STRING_BYTES).sum())?;
        self.replies.array(2);
        self.replies.bulk(next.unwrap_or(0).to_string().as_bytes());
        self.replies.array(keys.len());
        for key in keys {
            self.replies.bulk(&key);
        }
        Ok(())
    }

    pub(super) fn keys(&mut self) -> Outcome {
        let (pattern, now_ms) = (self.words.get(1), self.now_ms());
        let (mut found, mut bytes, mut cursor) = (Vec::new(), 0, Some(0));
        while let Some(from) = cursor {
            let (keys, next) = self.keyspace()?.list(from, PAGE, now_ms)?;
            for key in keys.into_iter().filter(|key| glob::fits(pattern, key)) {
                bytes += key.len() + STRING_BYTES;
                found.push(key);
            }
            self.room().take(bytes)?;
            cursor = next;
        }
        self.take_room(bytes)?;
        self.replies.array(found.len());
        for key in found {
            self.replies.bulk(&key);
        }
        Ok(())
    }

    pub(super) fn random_key(&mut self) -> Outcome {
        let now_ms = self.now_ms();
        match self.keyspace()?.any_key(now_ms)? {
            Some(key) => self.replies.bulk(&key),
            None => self.replies.nil(),
        }
        Ok(())
    }

    pub(super) fn db_size(&mut self) -> Outcome {
        let count = self.keyspace()?.store().count().map_err(KeyError::from)?;
        self.count(count)
    }

    pub(super) fn flush(&mut self, all: bool) -> Outcome {
        let is_known =
            |word: &[u8]| [&b"ASYNC"[..], b"SYNC"].iter().any(|known| word.eq_ignore_ascii_case(known));
        if self.words.len() > 2 || self.words.from(1).any(|word| !is_known(word)) {
            return Err(Refusal::syntax());
        }
        if !all {
            self.keyspace()?.clear()?;
            return self.ok();
        }
        for database in self.databases_in_use()? {
            self.of_database(database, |keyspace| keyspace.clear())?;
        }
        self.ok()
    }

    /// Databases that somebody has opened, if not this user: the others are empty.
    pub(super) fn databases_in_use(&mut self) -> Result<Vec<usize>, Refusal> {
        let options = &self.context.shared.options;
        let pool = Pool::connect(Some(&options.socket)).map_err(KeyError::from)?;
        let stores = pool.kv_status().map_err(KeyError::from)?;
        // Not by their labels, which may be cut.
        let known: HashSet<u64> =
            stores.iter().flat_map(|store| &store.namespaces).map(|space| space.namespace).collect();
        let is_known = |database: &usize| {
            known.contains(&kv_namespace(&Keyspace::fingerprint(&options.namespace, *database)))
        };
        Ok((0..options.databases).filter(is_known).collect())
    }

    /// Does something with a database that need not be the caller's.
    pub(super) fn of_database<T>(
        &mut self,
        database: usize,
        act: impl FnOnce(&mut Keyspace) -> Result<T, KeyError>,
    ) -> Result<T, Refusal> {
        let done = self.context.keyspace(database).and_then(act);
        // It may be another session than the caller's that is of no use any more.
        Ok(done.inspect_err(|error| self.context.fail(database, error))?)
    }

    pub(super) fn object(&mut self) -> Outcome {
        let subcommand = self.subcommand();
        if subcommand == b"HELP" {
            return self.help(&["OBJECT <subcommand> KEY.", "ENCODING, FREQ, IDLETIME, REFCOUNT"]);
        }
        let (key, now_ms) = (self.words.get(2), self.now_ms());
        let Some(entry) = self.keyspace()?.entry_of(key, now_ms)? else {
            self.replies.nil();
            return Ok(());
        };
        match &subcommand[..] {
            b"ENCODING" => {
                let mut encoding = "raw";
                if entry.head.value_bytes <= EMBEDDED_BYTES_MAX {
                    let value =
                        self.keyspace()?.value(key, now_ms)?.map(|(_, value)| value).unwrap_or_default();
                    encoding = if number::parse(&value).is_some() { "int" } else { "embstr" };
                }
                self.replies.bulk(encoding.as_bytes());
            }
            b"FREQ" => {
                return Err(Refusal::text(
                    "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that when switching between policies at runtime LRU and LFU data will take some time to adjust.",
                ));
            }
            b"IDLETIME" => self.replies.integer(0),
            _ => self.replies.integer(1),
        }
        Ok(())
    }

    pub(super) fn memory(&mut self) -> Outcome {
        if self.subcommand() == b"HELP" {
            return self.help(&["MEMORY USAGE <key>", "    Bytes that a key takes in the node's memory."]);
        }
        // A value is counted whole, so how many samples are wanted changes nothing.
        let mut options = self.words.from(3);
        while let Some(word) = options.next() {
            let samples = options.next().filter(|_| word.eq_ignore_ascii_case(b"SAMPLES"));
            if number::parse(samples.ok_or_else(Refusal::syntax)?).ok_or_else(Refusal::integer)? < 0 {
                return Err(Refusal::syntax());
            }
        }
        let (key, now_ms) = (self.words.get(2), self.now_ms());
        match self.keyspace()?.entry_of(key, now_ms)? {
            None => self.replies.nil(),
            Some(entry) => {
                let parts = entry.head.parts().map(|(_, bytes)| slot_bytes(bytes as u64));
                let bytes: u64 = slot_bytes(u64::from(entry.found.bytes())) + parts.sum::<u64>();
                self.replies.integer(i64::try_from(bytes).unwrap_or(i64::MAX));
            }
        }
        Ok(())
    }

    pub(super) fn help(&mut self, lines: &[&str]) -> Outcome {
        self.replies.array(lines.len());
        lines.iter().for_each(|line| self.replies.simple(line));
        Ok(())
    }

    fn count(&mut self, count: u64) -> Outcome {
        self.replies.integer(i64::try_from(count).unwrap_or(i64::MAX));
        Ok(())
    }
}

/// Memory that a block takes.
fn slot_bytes(bytes: u64) -> u64 {
    hinterland_pool::slot_bytes(bytes) + BOOK_BYTES
}
