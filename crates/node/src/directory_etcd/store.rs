//! The directory's records in etcd: the election, transactions that only the leader of this moment can make, and loading.
//!
//! | key below the prefix | value |
//! | --- | --- |
//! | `pool` | the pool's number, 32 hexadecimal digits; written once |
//! | `leader` | who leads, as JSON; tied to a lease. Its creation revision is the reign |
//! | `reigns` | written at each election: its version counts them |
//! | `seq` | the mark of the last transaction |
//! | `t/TABLE/KEY` | a record; key and value as in the embedded store |
//! | `redo` | how many pieces of a large change are to be applied |
//! | `redo/NUMBER` | a piece |

use hinterland_directory::{Directory, Mutation, Record, Table};
use hinterland_etcd::{Client, Comparison, EtcdError, Lease, Operation, Transaction};
use hinterland_os::{clock, fault_point};
use hinterland_proto::PoolId;
use hinterland_proto::control::{decode, encode};
use hinterland_types::NodeId;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// Operations of one transaction: etcd takes 128, and two are ours.
const OPERATIONS_MAX: usize = 100;
/// Bytes of keys and values of one transaction: etcd takes 1.5 MiB with all that is around them.
const TRANSACTION_BYTES_MAX: usize = 512 << 10;
/// Pause before a transaction is sent again whose fate is not known.
const AGAIN: Duration = Duration::from_millis(10);

/// Who leads the directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Leader {
    /// The node.
    pub node: NodeId,
    /// Its name.
    pub name: String,
    /// `HOST:PORT` of its fabric.
    pub address: String,
    /// Since when, in milliseconds since 1970 by its clock.
    pub since_ms: u64,
    /// How many have led before it, and itself.
    pub term: u64,
    /// The revision that tells this reign from all others.
    pub reign: i64,
}

/// Why changes did not become durable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CommitError {
    /// For sure nothing was written.
    NotWritten(String),
    /// This host does not lead any more, or nobody knows what was written.
    Over(String),
}

/// The keys of one pool in etcd.
pub struct Store {
    client: Arc<Client>,
    prefix: String,
}

impl Store {
    /// Names the keys below the client's prefix.
    pub fn new(client: Arc<Client>) -> Self {
        let prefix = client.target().prefix.clone();
        Self { client, prefix }
    }

    /// The client.
    pub fn client(&self) -> &Client {
        &self.client
    }

    fn key(&self, name: &str) -> Vec<u8> {
        format!("{}/{name}", self.prefix).into_bytes()
    }

    /// The number of the pool; the given one if there is none yet, or none.
    ///
    /// # Errors
    /// [`EtcdError`].
    pub fn pool(&self, fresh: Option<PoolId>) -> Result<Option<PoolId>, EtcdError> {
        let key = self.key("pool");
        let Some(fresh) = fresh else {
            return self.client.get(&key)?.0.map(|found| self.read_pool(&found.value)).transpose();
        };
        let value = format!("{:032x}", fresh.0).into_bytes();
        let transaction = Transaction {
            compare: vec![Comparison::CreatedAt(key.clone(), 0)],
            success: vec![Operation::Put { key: key.clone(), value, lease: 0 }],
            failure: vec![Operation::Get(key)],
        };
        let answer = self.client.transact(&transaction)?;
        if answer.succeeded {
            return Ok(Some(fresh));
        }
        let found = answer.found.into_iter().flatten().next().map(|found| found.value).unwrap_or_default();
        self.read_pool(&found).map(Some)
    }

    fn read_pool(&self, value: &[u8]) -> Result<PoolId, EtcdError> {
        let number = std::str::from_utf8(value).ok().and_then(|text| u128::from_str_radix(text, 16).ok());
        number.map(PoolId).ok_or_else(|| self.foreign("pool"))
    }

    /// Who leads, and the revision at which that was so.
    ///
    /// # Errors
    /// [`EtcdError`].
    pub fn leader(&self) -> Result<(Option<Leader>, i64), EtcdError> {
        let success = vec![Operation::Get(self.key("leader")), Operation::Get(self.key("reigns"))];
        let answer = self.client.transact(&Transaction { success, ..Transaction::default() })?;
        let mut found = answer.found.into_iter();
        let (leader, reigns) = (found.next().flatten(), found.next().flatten());
        let Some(leader) = leader else { return Ok((None, answer.revision)) };
        let read = read_leader(&leader.value).ok_or_else(|| self.foreign("leader"))?;
        // Versions are positive: the cast loses nothing.
        let term = reigns.map_or(0, |reigns| reigns.version as u64);
        Ok((Some(Leader { term, reign: leader.create_revision, ..read }), answer.revision))
    }

    /// Waits until another leads than at this revision, or nobody does.
    ///
    /// # Errors
    /// [`EtcdError`].
    pub fn watch_leader(&self, revision: i64, within: Duration) -> Result<bool, EtcdError> {
        self.client.watch(&self.key("leader"), revision, within)
    }

    /// Stands for election. `None` if somebody leads.
    ///
    /// # Errors
    /// [`EtcdError`]; in doubt, ending the lease ends the reign that may have begun.
    pub fn stand(
        self: &Arc<Self>,
        node: NodeId,
        name: &str,
        address: &str,
        lease: Lease,
    ) -> Result<Option<(Fence, Leader)>, EtcdError> {
        let key = self.key("leader");
        let since_ms = clock::wall_ms();
        let words =
            json!({"node": node.0.to_string(), "name": name, "address": address, "since_ms": since_ms});
        let mark = format!("{:x}-0", lease.id).into_bytes();
        let put = |key, value, lease| Operation::Put { key, value, lease };
        let transaction = Transaction {
            compare: vec![Comparison::CreatedAt(key.clone(), 0)],
            success: vec![
                put(key.clone(), words.to_string().into_bytes(), lease.id),
                put(self.key("reigns"), node.0.to_string().into_bytes(), 0),
                put(self.key("seq"), mark.clone(), 0),
                Operation::Get(key),
                Operation::Get(self.key("reigns")),
            ],
            failure: vec![],
        };
        let answer = self.client.transact(&transaction)?;
        if !answer.succeeded {
            return Ok(None);
        }
        let mut found = answer.found.into_iter();
        let reign = found.next().flatten().map_or(0, |leader| leader.create_revision);
        // Versions are positive: the cast loses nothing.
        let term = found.next().flatten().map_or(0, |reigns| reigns.version as u64);
        let fence = Fence { store: Arc::clone(self), lease: lease.id, reign, mark, count: 0 };
        let leader =
            Leader { node, name: name.to_owned(), address: address.to_owned(), since_ms, term, reign };
        Ok(Some((fence, leader)))
    }

    /// The record that says the format of all others; none before the first change.
    ///
    /// # Errors
    /// [`EtcdError`].
    pub fn format(&self) -> Result<Option<Record>, EtcdError> {
        let (table, key) = Directory::format_key();
        let path = [&self.key(&format!("t/{}/", table.name()))[..], key].concat();
        let (found, _) = self.client.get(&path)?;
        Ok(found.map(|found| Record { table, key: key.to_vec(), value: found.value }))
    }

    /// All records of the tables that this release knows, as they were at one moment, and what there is to say of the first key beside them.
    ///
    /// # Errors
    /// [`EtcdError`].
    pub fn load(&self) -> Result<(Vec<Record>, Option<EtcdError>), EtcdError> {
        let start = self.key("t/");
        let read = |key: &[u8]| {
            let rest = &key[start.len()..];
            let end = rest.iter().position(|byte| *byte == b'/')?;
            let table = Table::ALL.into_iter().find(|table| table.name().as_bytes() == &rest[..end])?;
            Some((table, rest[end + 1..].to_vec()))
        };
        let (mut records, mut foreign) = (Vec::new(), None);
        for found in self.client.range(&start)? {
            match read(&found.key) {
                Some((table, key)) => records.push(Record { table, key, value: found.value }),
                None => foreign = foreign.or_else(|| Some(self.foreign("t/"))),
            }
        }
        Ok((records, foreign))
    }

    fn operation(&self, mutation: Mutation) -> Operation {
        let mut key = self.key(&format!("t/{}/", mutation.table.name()));
        key.extend_from_slice(&mutation.key);
        match mutation.value {
            Some(value) => Operation::Put { key, value, lease: 0 },
            None => Operation::Delete(key),
        }
    }

    /// The error about a key that something else has written.
    fn foreign(&self, name: &str) -> EtcdError {
        EtcdError::NotEtcd {
            address: self.client.target().to_string(),
            what: format!(
                "its key {}/{name} was not written by this program, or by a later one; another prefix behind the addresses keeps two users of one etcd apart",
                self.prefix
            ),
        }
    }
}

fn read_leader(value: &[u8]) -> Option<Leader> {
    let words: Value = serde_json::from_slice(value).ok()?;
    Some(Leader {
        node: NodeId(words["node"].as_str()?.parse().ok()?),
        name: words["name"].as_str()?.to_owned(),
        address: words["address"].as_str()?.to_owned(),
        since_ms: words["since_ms"].as_u64()?,
        term: 0,
        reign: 0,
    })
}

/// The right to change the records for as long as a reign lasts; whoever has another one changes nothing.
pub struct Fence {
    store: Arc<Store>,
    /// The lease that the reign is tied to.
    pub lease: i64,
    reign: i64,
    /// What `seq` holds, if nobody else has written.
    mark: Vec<u8>,
    count: u64,
}

impl Fence {
    /// Makes changes durable, all or none, and tries as long as `may` says so.
    ///
    /// # Errors
    /// [`CommitError`].
    pub fn write(&mut self, mutations: Vec<Mutation>, may: &dyn Fn() -> bool) -> Result<(), CommitError> {
        let pieces = pieces(mutations);
        if let [_] = &pieces[..] {
            let piece = pieces.into_iter().flatten();
            let operations = piece.map(|mutation| self.store.operation(mutation)).collect();
            return self.commit(operations, may);
        }
        let count = pieces.len();
        for (number, piece) in pieces.iter().enumerate() {
            let piece: Vec<_> = piece.iter().map(|m| (m.table, &m.key, &m.value)).collect();
            let value = encode(&piece).map_err(|error| CommitError::NotWritten(error.to_string()))?;
            let key = self.store.key(&format!("redo/{number:08}"));
            self.commit(vec![Operation::Put { key, value, lease: 0 }], may)?;
            fault_point::reach("directory-piece");
        }
        let head =
            Operation::Put { key: self.store.key("redo"), value: count.to_string().into_bytes(), lease: 0 };
        self.commit(vec![head], may)?;
        fault_point::reach("directory-pieces-whole");
        // From here on it is durable: whatever fails now, the next leader finishes it.
        self.apply(pieces, may).map_err(|error| match error {
            CommitError::NotWritten(why) | CommitError::Over(why) => CommitError::Over(why),
        })
    }

    /// Finishes, or drops, a large change that the leader before has begun.
    ///
    /// # Errors
    /// [`CommitError`].
    pub fn finish(&mut self, may: &dyn Fn() -> bool) -> Result<(), CommitError> {
        let failed = |error: EtcdError| CommitError::Over(error.to_string());
        let (head, _) = self.store.client.get(&self.store.key("redo")).map_err(failed)?;
        let found = self.store.client.range(&self.store.key("redo/")).map_err(failed)?;
        let Some(head) = head else {
            if found.is_empty() {
                return Ok(());
            }
            return self.commit(vec![Operation::DeletePrefix(self.store.key("redo/"))], may);
        };
        let count: Option<usize> = std::str::from_utf8(&head.value).ok().and_then(|text| text.parse().ok());
        let read = |value: &[u8]| {
            let piece: Vec<(Table, Vec<u8>, Option<Vec<u8>>)> = decode(value).ok()?;
            Some(piece.into_iter().map(|(table, key, value)| Mutation { table, key, value }).collect())
        };
        let pieces: Option<Vec<Vec<Mutation>>> = found.iter().map(|found| read(&found.value)).collect();
        match pieces.filter(|pieces| Some(pieces.len()) == count) {
            Some(pieces) => self.apply(pieces, may),
            None => Err(CommitError::Over(self.store.foreign("redo").to_string())),
        }
    }

    fn apply(&mut self, pieces: Vec<Vec<Mutation>>, may: &dyn Fn() -> bool) -> Result<(), CommitError> {
        for piece in pieces {
            let operations = piece.into_iter().map(|mutation| self.store.operation(mutation)).collect();
            self.commit(operations, may)?;
            fault_point::reach("directory-piece-applied");
        }
        let done =
            vec![Operation::Delete(self.store.key("redo")), Operation::DeletePrefix(self.store.key("redo/"))];
        self.commit(done, may)
    }

    /// One transaction, under the reign and behind the one before it.
    fn commit(&mut self, mut success: Vec<Operation>, may: &dyn Fn() -> bool) -> Result<(), CommitError> {
        let (leader, seq) = (self.store.key("leader"), self.store.key("seq"));
        let mark = format!("{:x}-{}", self.lease, self.count + 1).into_bytes();
        success.push(Operation::Put { key: seq.clone(), value: mark.clone(), lease: 0 });
        let transaction = Transaction {
            compare: vec![
                Comparison::CreatedAt(leader.clone(), self.reign),
                Comparison::Value(seq.clone(), self.mark.clone()),
            ],
            success,
            failure: vec![Operation::Get(leader), Operation::Get(seq)],
        };
        let mut is_in_doubt = false;
        loop {
            match self.store.client.transact(&transaction) {
                Ok(answer) => {
                    let is_done = |found: &hinterland_etcd::KeyValue| found.value == mark;
                    // Sent before, and the answer was lost.
                    let was_done = answer.found.get(1).and_then(Option::as_ref).is_some_and(is_done);
                    if answer.succeeded || was_done {
                        self.mark = mark;
                        self.count += 1;
                        return Ok(());
                    }
                    let leads = |found: &hinterland_etcd::KeyValue| found.create_revision == self.reign;
                    let is_ours = answer.found.first().and_then(Option::as_ref).is_some_and(leads);
                    return Err(CommitError::Over(if is_ours {
                        format!("somebody else writes below {} in etcd", self.store.prefix)
                    } else {
                        "this host does not lead any more: its lease in etcd ran out".to_owned()
                    }));
                }
                Err(error) if error.is_in_doubt() => {
                    is_in_doubt = true;
                    if !may() {
                        return Err(CommitError::Over(error.to_string()));
                    }
                    std::thread::sleep(AGAIN);
                }
                Err(error) if is_in_doubt => return Err(CommitError::Over(error.to_string())),
                Err(error) => return Err(CommitError::NotWritten(error.to_string())),
            }
        }
    }
}

/// Cuts changes into transactions, in their order; at least one.
fn pieces(mutations: Vec<Mutation>) -> Vec<Vec<Mutation>> {
    let mut pieces = vec![Vec::new()];
    let mut bytes = 0;
    for mutation in mutations {
        let size = mutation.key.len() + mutation.value.as_ref().map_or(0, Vec::len);
        let full = pieces.last().is_some_and(|piece: &Vec<_>| {
            !piece.is_empty() && (piece.len() == OPERATIONS_MAX || bytes + size > TRANSACTION_BYTES_MAX)
        });
        if full {
            pieces.push(Vec::new());
            bytes = 0;
        }
        bytes += size;
        if let Some(piece) = pieces.last_mut() {
            piece.push(mutation);
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mutation(number: u32, bytes: usize) -> Mutation {
        Mutation { table: Table::Names, key: number.to_be_bytes().to_vec(), value: Some(vec![7; bytes]) }
    }

    #[test]
    fn what_is_too_large_for_one_transaction_is_cut_in_its_order() {
        assert_eq!(pieces(Vec::new()), [[]]);
        let many: Vec<_> = (0..250).map(|number| mutation(number, 10)).collect();
        let cut = pieces(many.clone());
        assert_eq!(cut.iter().map(Vec::len).collect::<Vec<_>>(), [100, 100, 50]);
        assert_eq!(cut.concat(), many);
        let large: Vec<_> = (0..5).map(|number| mutation(number, 200 << 10)).collect();
        let cut = pieces(large.clone());
        assert_eq!(cut.iter().map(Vec::len).collect::<Vec<_>>(), [2, 2, 1]);
        assert_eq!(cut.concat(), large);
    }

    #[test]
    fn a_leader_is_read_back_and_anything_else_is_none() {
        let words = br#"{"node":"7","name":"a","address":"h:1","since_ms":5}"#;
        assert_eq!(read_leader(words).unwrap().node, NodeId(7));
        for place in 0..words.len() {
            let mut wrong = words.to_vec();
            wrong[place] ^= 0x11;
            let _ = read_leader(&wrong);
            let _ = read_leader(&words[..place]);
        }
        assert_eq!(read_leader(b"root@host"), None);
    }
}
