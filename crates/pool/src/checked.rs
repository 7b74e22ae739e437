//! Reads of a sealed object of which every block is compared with the checksum that it was sealed with.

use crate::remote::{Attached, call};
use crate::session::unexpected;
use crate::{Object, PoolError};
use hinterland_fabric::Endpoint;
use hinterland_proto::checksum::{block_count, crc32c, digest};
use hinterland_proto::control::{Home, ObjectState, Reply, Request};
use hinterland_types::ByteRange;
use hinterland_types::limits::CHECKSUM_BLOCK_BYTES;
use std::collections::HashMap;

const EINVAL: i32 = 22;

/// Reads whole blocks of an object. What a home has wrong is taken from another one.
pub struct CheckedReader<'a> {
    object: &'a Object,
    /// crc32c of each block, as soon as they are needed. They agree with the digest that the directory knows.
    sums: Option<Vec<u32>>,
    /// The homes, the one first that had right what another one had wrong.
    homes: Vec<Home>,
    /// Ways to homes in other racks by address, and why there is none.
    ways: HashMap<String, Result<Attached, String>>,
    replaced_blocks: u64,
}

impl Object {
    /// A reader that compares every block with its checksum, which [`read_at`](Self::read_at) and mapped memory do not.
    ///
    /// ```no_run
    /// # use hinterland_pool::{Pool, PutOptions};
    /// # use hinterland_types::ObjectName;
    /// # let pool = Pool::connect(None)?;
    /// # let name = ObjectName::parse("models/checked")?;
    /// # pool.put(&mut &[1; 100_000][..], &name, &PutOptions::default(), &mut |_| {})?;
    /// let object = pool.open_object(&name)?;
    /// let mut bytes = vec![0; object.info().bytes as usize];
    /// // Right to the last bit, or an error.
    /// object.checked().read_at(0, &mut bytes)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn checked(&self) -> CheckedReader<'_> {
        let homes = self.info().homes.clone();
        CheckedReader { object: self, sums: None, homes, ways: HashMap::new(), replaced_blocks: 0 }
    }
}

impl CheckedReader<'_> {
    /// Reads `into.len()` bytes at `offset`, a multiple of 64 KiB, up to another one or to the end of the object. Of a region, whose
    /// bytes have no checksums, it is a plain read.
    ///
    /// # Errors
    /// [`PoolError::Wrong`] if no home has a block as it was sealed; else as [`Object::read_at`].
    pub fn read_at(&mut self, offset: u64, into: &mut [u8]) -> Result<(), PoolError> {
        let info = self.object.info();
        if info.state != ObjectState::Sealed || into.is_empty() {
            return self.object.read_at(offset, into);
        }
        let end = offset.saturating_add(into.len() as u64);
        if !offset.is_multiple_of(CHECKSUM_BLOCK_BYTES)
            || !(end == info.bytes || end < info.bytes && end.is_multiple_of(CHECKSUM_BLOCK_BYTES))
        {
            let text = format!(
                "bytes {offset} to {end} are no whole blocks of 64 KiB of {} (hint: read them with read_at, unchecked)",
                info.name
            );
            return Err(PoolError::Refused { code: EINVAL, text });
        }
        self.object.read_at(offset, into)?;
        let found: Vec<u32> = into.chunks(CHECKSUM_BLOCK_BYTES as usize).map(crc32c).collect();
        // All of the object: nobody needs to be asked which block is wrong, if none is.
        if into.len() as u64 == info.bytes && digest(info.bytes, &found) == info.digest {
            return Ok(());
        }
        let first = offset / CHECKSUM_BLOCK_BYTES;
        for ((block, found), number) in into.chunks_mut(CHECKSUM_BLOCK_BYTES as usize).zip(found).zip(first..)
        {
            let sum = self.sum(number)?;
            if found != sum {
                self.replace(number, sum, block)?;
            }
        }
        Ok(())
    }

    /// Blocks that came wrong from one home and were taken from another.
    pub const fn replaced_blocks(&self) -> u64 {
        self.replaced_blocks
    }

    /// The checksum of a block below the end; the first call asks for all of them.
    fn sum(&mut self, number: u64) -> Result<u32, PoolError> {
        let sums = match self.sums.take() {
            Some(sums) => sums,
            None => self.find_sums()?,
        };
        // As many as the object has blocks: `sums_of` counts them.
        let sum = sums[number as usize];
        self.sums = Some(sums);
        Ok(sum)
    }

    /// The checksums from the first home that has those that the directory knows.
    fn find_sums(&mut self) -> Result<Vec<u32>, PoolError> {
        let mut reasons = Vec::new();
        for home in self.homes.clone() {
            match self.sums_of(&home) {
                Ok(sums) => return Ok(sums),
                Err(reason) => reasons.push(format!("{}: {reason}", home.node)),
            }
        }
        Err(self.wrong("it cannot be compared with its checksums".to_owned(), &reasons))
    }

    /// The checksums that a home keeps, or why they cannot be had.
    fn sums_of(&mut self, home: &Home) -> Result<Vec<u32>, String> {
        let (bytes, right) = (self.object.info().bytes, self.object.info().digest);
        let expected = block_count(bytes);
        let mut sums: Vec<u32> = Vec::new();
        while (sums.len() as u64) < expected {
            let first = sums.len() as u64;
            let answer = if self.is_own(home) {
                self.object.session().call(&Request::Checksums { handle: self.object.opened().handle, first })
            } else {
                let way = self.way(home)?;
                call(&way.endpoint, &Request::Checksums { handle: way.handle, first })
            };
            match answer.map_err(|error| error.to_string())? {
                Reply::Checksums { blocks } if !blocks.is_empty() => sums.extend(blocks),
                other => return Err(unexpected("Checksums", &other).to_string()),
            }
        }
        if sums.len() as u64 != expected || digest(bytes, &sums) != right {
            return Err("its checksums are not those that the directory knows".to_owned());
        }
        Ok(sums)
    }

    /// Reads a block from the first home that has it right.
    fn replace(&mut self, number: u64, sum: u32, block: &mut [u8]) -> Result<(), PoolError> {
        let mut reasons = Vec::new();
        for (place, home) in self.homes.clone().iter().enumerate() {
            match self.read_from(home, number * CHECKSUM_BLOCK_BYTES, block) {
                Ok(()) if crc32c(block) == sum => {
                    // It is asked first for the next one: the home that was wrong may be so in many.
                    self.homes.swap(0, place);
                    self.replaced_blocks += 1;
                    return Ok(());
                }
                Ok(()) => reasons.push(format!("{} has other bytes than were put", home.node)),
                Err(reason) => reasons.push(format!("{}: {reason}", home.node)),
            }
        }
        Err(self.wrong(format!("no home has block {number} of 64 KiB as it was put"), &reasons))
    }

    fn read_from(&mut self, home: &Home, offset: u64, into: &mut [u8]) -> Result<(), String> {
        if self.is_own(home) {
            return self.object.read_at(offset, into).map_err(|error| error.to_string());
        }
        let run = ByteRange::new(offset, into.len() as u64).map_err(|error| error.to_string())?;
        let way = self.way(home)?;
        way.endpoint.read(way.handle, &[run], into).map_err(|error| error.to_string())
    }

    /// The way to a home in another rack. One to which there was none is not looked for again: that may take seconds.
    fn way(&mut self, home: &Home) -> Result<Attached, String> {
        if let Some(known) = self.ways.get(&home.address) {
            return known.clone();
        }
        let way = self.object.attach(&home.address).map_err(|error| error.to_string());
        self.ways.insert(home.address.clone(), way.clone());
        way
    }

    /// Whether a home is the node of this program, and has the bytes in memory.
    fn is_own(&self, home: &Home) -> bool {
        self.object.is_local() && home.node == self.object.session().node()
    }

    fn wrong(&self, what: String, reasons: &[String]) -> PoolError {
        PoolError::Wrong { name: self.object.info().name.to_string(), what, reasons: reasons.join("; ") }
    }
}
