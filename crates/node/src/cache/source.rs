//! Where the bytes of a cached object come from: its homes, tried in order, every block checked.

use crate::directory_link::{DirectoryLink, describe};
use crate::peers::Peers;
use crate::refused::{Refused, errno};
use hinterland_fabric::Endpoint;
use hinterland_proto::checksum::{block_count, crc32c, digest};
use hinterland_proto::control::{Home, ObjectInfo, PeerReply, PeerRequest, decode, encode};
use hinterland_types::limits::CHECKSUM_BLOCK_BYTES;
use hinterland_types::{ByteRange, Handle, NodeId};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A sealed object that other nodes hold.
pub struct Source {
    info: Mutex<ObjectInfo>,
    blocks: Vec<u32>,
    peers: Arc<Peers>,
    directory: Arc<DirectoryLink>,
    attached: Mutex<HashMap<NodeId, Attached>>,
    own: NodeId,
    /// Reads that went to another home after a failure.
    pub failovers: AtomicU64,
    /// Blocks whose checksum was wrong.
    pub checksum_failures: AtomicU64,
    /// Bytes received.
    pub received_bytes: AtomicU64,
}

#[derive(Clone)]
struct Attached {
    endpoint: Arc<dyn Endpoint>,
    handle: Handle,
}

impl Source {
    /// Finds a home and learns the checksums, which must agree with the directory's digest.
    ///
    /// # Errors
    /// [`Refused`] if no home answers or all answer with wrong checksums.
    pub fn open(
        info: ObjectInfo,
        peers: Arc<Peers>,
        directory: Arc<DirectoryLink>,
        own: NodeId,
    ) -> Result<Self, Refused> {
        let mut source = Self {
            info: Mutex::new(info),
            blocks: Vec::new(),
            peers,
            directory,
            attached: Mutex::default(),
            own,
            failovers: AtomicU64::new(0),
            checksum_failures: AtomicU64::new(0),
            received_bytes: AtomicU64::new(0),
        };
        source.blocks = source.try_homes("checksums", |source, home| source.fetch_blocks(home))?;
        Ok(source)
    }

    /// What is known of the object.
    pub fn info(&self) -> ObjectInfo {
        self.info.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Fills `into` with a range that starts at a multiple of 64 KiB and ends at one or at the end of the object;
    /// every block is checked.
    ///
    /// # Errors
    /// [`Refused`] lists what every home said.
    pub fn fetch(&self, range: ByteRange, into: &mut [u8]) -> Result<(), Refused> {
        self.try_homes("bytes", |source, home| {
            let attached = source.attach(home)?;
            attached.endpoint.read(attached.handle, &[range], into)?;
            source.received_bytes.fetch_add(range.bytes(), Ordering::Relaxed);
            source.check(range, home, into)
        })
    }

    /// Runs `operation` against each home until one succeeds; asks the directory once for newer homes.
    fn try_homes<T>(
        &self,
        what: &str,
        mut operation: impl FnMut(&Self, &Home) -> Result<T, Refused>,
    ) -> Result<T, Refused> {
        let mut reasons = Vec::new();
        for round in 0..2 {
            if round == 1 && !self.refresh() {
                break;
            }
            let info = self.info();
            for home in info.homes.iter().filter(|home| home.node != self.own) {
                match operation(self, home) {
                    Ok(value) => return Ok(value),
                    Err(refused) => {
                        self.detach(home);
                        // Relaxed: a counter that nothing is ordered by.
                        self.failovers.fetch_add(1, Ordering::Relaxed);
                        reasons.push(format!("{} in rack {}: {refused}", home.node, home.rack));
                    }
                }
            }
        }
        let info = self.info();
        let reasons =
            if reasons.is_empty() { "it has no home that is up".to_owned() } else { reasons.join("; ") };
        Err(Refused::new(
            errno::EIO,
            format!(
                "{what} of {} cannot be fetched: {reasons} (hint: bring a home back, or put objects with --copies 2)",
                info.name
            ),
        ))
    }

    /// Asks the directory where the object is now; whether that may help.
    fn refresh(&self) -> bool {
        let mut info = self.info.lock().unwrap_or_else(PoisonError::into_inner);
        match self.directory.lookup_object(info.object) {
            Ok(found) => {
                let found = describe(&found, self.own);
                let same_content = found.digest == info.digest;
                let differs = found.homes != info.homes;
                if same_content && differs {
                    info.homes = found.homes;
                }
                same_content && differs
            }
            Err(_) => false,
        }
    }

    fn attach(&self, home: &Home) -> Result<Attached, Refused> {
        let known = self.attached.lock().unwrap_or_else(PoisonError::into_inner).get(&home.node).cloned();
        if let Some(attached) = known {
            return Ok(attached);
        }
        let object = self.info().object;
        let endpoint = self.peers.endpoint(&home.address)?;
        // Asked on this very connection: a handle means nothing in another session.
        let body = encode(&PeerRequest::Attach { object })?;
        let handle = match decode(&endpoint.call(&body)?)? {
            PeerReply::Granted { handle } => handle,
            other => return Err(unexpected(&other)),
        };
        let attached = Attached { endpoint, handle };
        let mut all = self.attached.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(home.node, attached.clone());
        Ok(attached)
    }

    fn detach(&self, home: &Home) {
        self.attached.lock().unwrap_or_else(PoisonError::into_inner).remove(&home.node);
        self.peers.forget(&home.address);
    }

    fn fetch_blocks(&self, home: &Home) -> Result<Vec<u32>, Refused> {
        let info = self.info();
        let expected = block_count(info.bytes);
        let mut blocks: Vec<u32> = Vec::new();
        while (blocks.len() as u64) < expected {
            let first = blocks.len() as u64;
            match self.peers.call(&home.address, &PeerRequest::Checksums { object: info.object, first })? {
                PeerReply::Checksums { blocks: more } if !more.is_empty() => blocks.extend(more),
                other => return Err(unexpected(&other)),
            }
        }
        if blocks.len() as u64 != expected || digest(info.bytes, &blocks) != info.digest {
            return Err(Refused::new(errno::EIO, "its checksums are not those that the directory knows"));
        }
        Ok(blocks)
    }

    fn check(&self, range: ByteRange, home: &Home, bytes: &[u8]) -> Result<(), Refused> {
        let first = (range.offset() / CHECKSUM_BLOCK_BYTES) as usize;
        for (index, block) in bytes.chunks(CHECKSUM_BLOCK_BYTES as usize).enumerate() {
            if self.blocks.get(first + index) != Some(&crc32c(block)) {
                // Relaxed: a counter that nothing is ordered by.
                self.checksum_failures.fetch_add(1, Ordering::Relaxed);
                let text = format!("block {} from {} has a wrong checksum", first + index, home.node);
                return Err(Refused::new(errno::EIO, text));
            }
        }
        Ok(())
    }
}

fn unexpected(reply: &PeerReply) -> Refused {
    let text = match reply {
        PeerReply::Error { text, .. } => text.clone(),
        _ => "a peer gave an answer that does not belong to the question".to_owned(),
    };
    Refused::new(errno::EIO, text)
}
