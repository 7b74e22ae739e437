//! Loads, stores, atomics and copies, in all spaces.

use super::flow::Runner;
use super::warp::Group;
use super::{GRID_WINDOW, LOCAL_WINDOW, Lanes, PARAMETER_WINDOW, SHARED_WINDOW, Stop, lanes};
use crate::code::{Access, Address, Atomic, Op, SHARED_STATIC, Space, Target, Transfer};
use crate::error::FaultKind;

/// The most that one access moves: eight numbers of 8 bytes.
const ACCESS_BYTES_MAX: usize = 64;

/// A place in one of the spaces that is not generic.
#[derive(Clone, Copy)]
struct Place {
    space: Space,
    at: u64,
    /// The address as the kernel sees it.
    address: u64,
}

impl Runner<'_, '_> {
    pub fn access(&mut self, group: &Group, op: &Op, active: u32) -> Result<(), Stop> {
        match op {
            Op::Load(access) => self.load(group, access, active),
            Op::Store(access) => self.store(group, access, active),
            Op::Atomic(atomic) => self.atomic(group, atomic, active),
            Op::Transfer(transfer) => self.transfer(group, transfer, active),
            _ => Ok(()),
        }
    }

    fn load(&mut self, group: &Group, access: &Access, active: u32) -> Result<(), Stop> {
        let addresses = self.fetch(group, access.address.base);
        let (bytes, parts) = (access.bytes as usize, access.targets.len());
        let mut buffer = [0; ACCESS_BYTES_MAX];
        for lane in lanes(active) {
            let place = place(&access.address, addresses[lane], bytes * parts, lane)?;
            self.read(lane, place, &mut buffer[..bytes * parts])?;
            for (index, target) in access.targets.iter().enumerate() {
                let Some(Target { register, mask }) = *target else { continue };
                let value = number(&buffer[index * bytes..][..bytes]);
                let value = if access.is_signed { extended(value, access.bytes) } else { value };
                self.warp.registers[group.registers + register as usize][lane] = value & mask;
            }
        }
        Ok(())
    }

    fn store(&mut self, group: &Group, access: &Access, active: u32) -> Result<(), Stop> {
        let addresses = self.fetch(group, access.address.base);
        let (bytes, parts) = (access.bytes as usize, access.sources.len());
        let mut values: [Lanes; 8] = [[0; 32]; 8];
        for (values, source) in values.iter_mut().zip(&access.sources) {
            *values = self.fetch(group, *source);
        }
        let mut buffer = [0; ACCESS_BYTES_MAX];
        for lane in lanes(active) {
            for (index, values) in values.iter().take(parts).enumerate() {
                buffer[index * bytes..][..bytes].copy_from_slice(&values[lane].to_le_bytes()[..bytes]);
            }
            let place = place(&access.address, addresses[lane], bytes * parts, lane)?;
            self.write_bytes(lane, place, &buffer[..bytes * parts])?;
        }
        Ok(())
    }

    fn atomic(&mut self, group: &Group, atomic: &Atomic, active: u32) -> Result<(), Stop> {
        let addresses = self.fetch(group, atomic.address.base);
        let [first, second] = atomic.sources.map(|source| self.fetch(group, source));
        let bytes = atomic.bytes as usize;
        for lane in lanes(active) {
            let place = place(&atomic.address, addresses[lane], bytes, lane)?;
            let (b, c) = (first[lane], second[lane]);
            let old = if place.space == Space::Global {
                self.machine
                    .memory
                    .update(place.at, atomic.bytes, &mut |old| (atomic.compute_in_global)(old, b, c, 0))
                    .map_err(|_| illegal(place.address, lane))?
            } else {
                let mut buffer = [0; 8];
                self.read(lane, place, &mut buffer[..bytes])?;
                let old = u64::from_le_bytes(buffer);
                self.write_bytes(lane, place, &(atomic.compute)(old, b, c, 0).to_le_bytes()[..bytes])?;
                old
            };
            if let Some(Target { register, mask }) = atomic.target {
                self.warp.registers[group.registers + register as usize][lane] = old & mask;
            }
        }
        Ok(())
    }

    fn transfer(&mut self, group: &Group, copy: &Transfer, active: u32) -> Result<(), Stop> {
        let (to, from) = (self.fetch(group, copy.to.base), self.fetch(group, copy.from.base));
        let counts = self.fetch(group, copy.read);
        let ignored = copy.ignored.map_or(0, |guard| self.guard(group, guard));
        let bytes = copy.bytes as usize;
        for lane in lanes(active) {
            let (source, target) =
                (place(&copy.from, from[lane], bytes, lane)?, place(&copy.to, to[lane], bytes, lane)?);
            let count = if ignored >> lane & 1 == 1 { 0 } else { (counts[lane] as u32 as usize).min(bytes) };
            let mut buffer = [0; 16];
            if count > 0 {
                self.read(lane, source, &mut buffer[..count])?;
            }
            self.write_bytes(lane, target, &buffer[..bytes])?;
        }
        Ok(())
    }

    /// Reads what a lane's address leads to.
    pub fn read_at(
        &mut self,
        lane: usize,
        address: &Address,
        bases: &Lanes,
        bytes: &mut [u8],
    ) -> Result<(), Stop> {
        let place = place(address, bases[lane], bytes.len(), lane)?;
        self.read(lane, place, bytes)
    }

    /// Writes to where a lane's address leads.
    pub fn write_at(
        &mut self,
        lane: usize,
        address: &Address,
        bases: &Lanes,
        bytes: &[u8],
    ) -> Result<(), Stop> {
        let place = place(address, bases[lane], bytes.len(), lane)?;
        self.write_bytes(lane, place, bytes)
    }

    fn read(&mut self, lane: usize, place: Place, bytes: &mut [u8]) -> Result<(), Stop> {
        let wrong = illegal(place.address, lane);
        match place.space {
            Space::Global | Space::Generic => {
                self.machine.memory.read(place.at, bytes).map_err(|_| wrong)?;
            }
            Space::Parameter => {
                let start = usize::try_from(place.at).unwrap_or(usize::MAX);
                let end = start.saturating_add(bytes.len());
                bytes.copy_from_slice(self.machine.parameters.get(start..end).ok_or(wrong)?);
            }
            _ => copy(bytes, self.own(lane, place, bytes.len()).ok_or(wrong)?),
        }
        Ok(())
    }

    fn write_bytes(&mut self, lane: usize, place: Place, bytes: &[u8]) -> Result<(), Stop> {
        let wrong = illegal(place.address, lane);
        match place.space {
            Space::Global | Space::Generic => self.machine.memory.write(place.at, bytes).map_err(|_| wrong),
            Space::Parameter => Err(wrong),
            _ => {
                copy(self.own(lane, place, bytes.len()).ok_or(wrong)?, bytes);
                Ok(())
            }
        }
    }

    /// Bytes of shared memory or of a lane's own.
    fn own(&mut self, lane: usize, place: Place, length: usize) -> Option<&mut [u8]> {
        let (memory, at) = match place.space {
            Space::Local => (&mut self.warp.frames[lane], place.at),
            Space::Grid => (&mut self.machine.grid, place.at),
            _ if place.at >= SHARED_STATIC => (&mut self.block.fixed, place.at - SHARED_STATIC),
            _ => (&mut self.block.dynamic, place.at),
        };
        let start = usize::try_from(at).ok()?;
        memory.get_mut(start..start.checked_add(length)?)
    }

    /// Bytes in a lane's frame.
    pub fn frame_bytes(&mut self, lane: usize, at: u64, length: u64) -> Result<&mut [u8], Stop> {
        let place = Place { space: Space::Local, at, address: at };
        self.own(lane, place, length as usize).ok_or_else(|| illegal(at, lane))
    }
}

fn illegal(address: u64, lane: usize) -> Stop {
    Stop { kind: FaultKind::IllegalAddress(address), lane }
}

/// Where an address leads to.
fn place(address: &Address, base: u64, bytes: usize, lane: usize) -> Result<Place, Stop> {
    let full = base.wrapping_add_signed(address.offset);
    // Vectors of three do not exist: the bytes of an access are a power of two.
    if full & (bytes as u64 - 1) != 0 {
        return Err(Stop { kind: FaultKind::MisalignedAddress(full), lane });
    }
    let low = full & 0xffff_ffff;
    let (space, at) = match address.space {
        Space::Generic => match full & !0xffff_ffff {
            SHARED_WINDOW => (Space::Shared, low),
            LOCAL_WINDOW => (Space::Local, low),
            PARAMETER_WINDOW => (Space::Parameter, low),
            GRID_WINDOW => (Space::Grid, low),
            _ => (Space::Global, full),
        },
        Space::Global if full & !0xffff_ffff == GRID_WINDOW => (Space::Grid, low),
        Space::Global => (Space::Global, full),
        other => (other, low),
    };
    Ok(Place { space, at, address: full })
}

/// Copies between pieces of one length, most of which have a few bytes.
fn copy(to: &mut [u8], from: &[u8]) {
    match (&mut *to, from) {
        ([a, b, c, d], [e, f, g, h]) => (*a, *b, *c, *d) = (*e, *f, *g, *h),
        _ => to.copy_from_slice(from),
    }
}

fn number(bytes: &[u8]) -> u64 {
    match *bytes {
        [a] => u64::from(a),
        [a, b] => u64::from(u16::from_le_bytes([a, b])),
        [a, b, c, d] => u64::from(u32::from_le_bytes([a, b, c, d])),
        [a, b, c, d, e, f, g, h] => u64::from_le_bytes([a, b, c, d, e, f, g, h]),
        _ => 0,
    }
}

fn extended(value: u64, bytes: u32) -> u64 {
    let unused = 64 - bytes * 8;
    ((value << unused) as i64 >> unused) as u64
}
