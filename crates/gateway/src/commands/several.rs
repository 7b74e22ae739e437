//! Commands that change one key after a look at another.

use super::{Call, Outcome, Refusal};
use crate::keyspace::{KeyError, Moved, Transfer};
use hinterland_resp::options::CopyOptions;

/// How often a copy to another database is tried again that another client came before.
const TRIES_MAX: usize = 1000;

impl Call<'_> {
    pub(super) fn mset_nx(&mut self) -> Outcome {
        if self.words.len().is_multiple_of(2) {
            return Err(Refusal::arity("msetnx"));
        }
        let pairs: Vec<(&[u8], &[u8])> = (1..self.words.len())
            .step_by(2)
            .map(|index| (self.words.get(index), self.words.get(index + 1)))
            .collect();
        let now_ms = self.now_ms();
        let is_set = self.keyspace()?.set_absent(&pairs, now_ms)?;
        self.replies.integer(i64::from(is_set));
        Ok(())
    }

    /// `RENAME`, or without `replaces` `RENAMENX`.
    pub(super) fn rename(&mut self, replaces: bool) -> Outcome {
        let (from, to, now_ms) = (self.words.get(1), self.words.get(2), self.now_ms());
        let keyspace = self.keyspace()?;
        let moved = if from == to {
            // Nothing is to be done, and only for a key that is there.
            match keyspace.entry_of(from, now_ms)? {
                None => Moved::Missing,
                Some(_) if replaces => Moved::Done,
                Some(_) => Moved::Taken,
            }
        } else {
            keyspace.transfer(from, to, now_ms, Transfer { is_move: true, replaces })?
        };
        match moved {
            Moved::Missing => return Err(Refusal::text("ERR no such key")),
            Moved::Done if replaces => return self.ok(),
            Moved::Done => self.replies.integer(1),
            Moved::Taken => self.replies.integer(0),
        }
        Ok(())
    }

    pub(super) fn copy(&mut self) -> Outcome {
        let (from, to, now_ms) = (self.words.get(1), self.words.get(2), self.now_ms());
        let own = self.caller.database;
        let options = CopyOptions::parse(self.words.from(3), self.context.shared.options.databases)?;
        let database = options.database.unwrap_or(own);
        let transfer = Transfer { is_move: false, replaces: options.replaces };
        let moved = if database != own {
            // It may be the other session that is of no use any more.
            self.copy_to(database, transfer).inspect_err(|error| self.context.fail(database, error))?
        } else if from == to {
            return Err(Refusal::text("ERR source and destination objects are the same"));
        } else {
            self.keyspace()?.transfer(from, to, now_ms, transfer)?
        };
        self.replies.integer(i64::from(moved == Moved::Done));
        Ok(())
    }

    /// Copies to another database. Nobody holds keys of two databases at once, so it is the value of a moment before that is set.
    fn copy_to(&mut self, database: usize, transfer: Transfer) -> Result<Moved, KeyError> {
        let (from, to, now_ms) = (self.words.get(1), self.words.get(2), self.now_ms());
        for _ in 0..TRIES_MAX {
            if self.context.keyspace(self.caller.database)?.entry_of(from, now_ms)?.is_none() {
                return Ok(Moved::Missing);
            }
            let Some(expects) = self.context.keyspace(database)?.target(to, now_ms, transfer)? else {
                return Ok(Moved::Taken);
            };
            let read = self.context.keyspace(self.caller.database)?.value(from, now_ms)?;
            let Some((entry, value)) = read else { continue };
            if self.context.keyspace(database)?.set_if(to, &value, entry.head.ends_ms, expects)? {
                return Ok(Moved::Done);
            }
        }
        Err(KeyError::Contended)
    }
}
