//! Fragments of `wmma`: matrices across the lanes of a warp, in an order that only `wmma` itself looks at.

use super::flow::{Runner, first};
use super::matrix::{element, finished};
use super::warp::Group;
use super::{LANES, Lanes, Stop};
use crate::code::{Address, Fragment, Fragments, Source, Target};
use crate::types::Type;

impl Fragment {
    /// The lane, register and place in it of an element. Elements go row by row, one to each lane in turn.
    fn place(&self, row: usize, column: usize) -> (usize, usize, usize) {
        let index = row * self.columns + column;
        let (lane, slot) = (index % LANES, index / LANES);
        let per_register = self.per_register();
        (lane, slot / per_register, slot % per_register)
    }

    /// Elements in a register.
    pub fn per_register(&self) -> usize {
        (4 / self.kind.bytes() as usize).max(1)
    }

    /// The offset in memory of an element, in bytes.
    fn offset(&self, row: usize, column: usize, stride: u64) -> u64 {
        let (row, column) = (row as u64, column as u64);
        let elements = if self.is_by_columns { column * stride + row } else { row * stride + column };
        elements * u64::from(self.kind.bytes())
    }

    /// Elements from one row or column to the next, if nothing else is said.
    fn stride(&self) -> u64 {
        if self.is_by_columns { self.rows as u64 } else { self.columns as u64 }
    }
}

impl Runner<'_, '_> {
    /// The address and the stride that the first lane names, as all do.
    fn origin(
        &self,
        group: &Group,
        address: &Address,
        stride: Option<Source>,
        fragment: &Fragment,
    ) -> (u64, u64) {
        let lane = first(group.lanes);
        let at = self.fetch(group, address.base)[lane];
        (at, stride.map_or(fragment.stride(), |stride| self.fetch(group, stride)[lane] & 0xffff_ffff))
    }

    pub fn load_fragment(
        &mut self,
        group: &Group,
        fragment: &Fragment,
        address: &Address,
        stride: Option<Source>,
        targets: &[Target],
    ) -> Result<(), Stop> {
        let (at, stride) = self.origin(group, address, stride, fragment);
        let size = fragment.kind.bytes() as usize;
        let mut values = vec![[0u64; LANES]; targets.len()];
        for row in 0..fragment.rows {
            for column in 0..fragment.columns {
                let mut bytes = [0; 8];
                let from = at.wrapping_add(fragment.offset(row, column, stride));
                self.read_at(first(group.lanes), address, &[from; LANES], &mut bytes[..size])?;
                let (lane, register, part) = fragment.place(row, column);
                values[register][lane] |= u64::from_le_bytes(bytes) << (8 * size * part);
            }
        }
        for (target, values) in targets.iter().zip(&values) {
            self.write(group, *target, group.lanes, values);
        }
        Ok(())
    }

    pub fn store_fragment(
        &mut self,
        group: &Group,
        fragment: &Fragment,
        address: &Address,
        stride: Option<Source>,
        sources: &[Source],
    ) -> Result<(), Stop> {
        let (at, stride) = self.origin(group, address, stride, fragment);
        let size = fragment.kind.bytes() as usize;
        let values: Vec<Lanes> = sources.iter().map(|source| self.fetch(group, *source)).collect();
        for row in 0..fragment.rows {
            for column in 0..fragment.columns {
                let (lane, register, part) = fragment.place(row, column);
                let bytes = (values[register][lane] >> (8 * size * part)).to_le_bytes();
                let to = at.wrapping_add(fragment.offset(row, column, stride));
                self.write_at(first(group.lanes), address, &[to; LANES], &bytes[..size])?;
            }
        }
        Ok(())
    }

    /// `d = a * b + c`, rounded as that of other matrices is.
    pub fn multiply_fragments(&mut self, group: &Group, fragments: &Fragments) {
        let [a, b, c, d] = &fragments.shapes;
        let values: [Vec<Lanes>; 3] = std::array::from_fn(|which| {
            fragments.sources[which].iter().map(|source| self.fetch(group, *source)).collect()
        });
        let read = |which: usize, fragment: &Fragment, row: usize, column: usize| {
            let (lane, register, part) = fragment.place(row, column);
            element(values[which][register][lane], part, fragment.kind)
        };
        let mut results = vec![[0u64; LANES]; fragments.targets.len()];
        for row in 0..d.rows {
            for column in 0..d.columns {
                let start = read(2, c, row, column);
                let mut pairs = (0..a.columns).map(|k| (read(0, a, row, k), read(1, b, k, column)));
                let sum = match d.kind {
                    Type::F64 => pairs.fold(start, |sum, (a, b)| a.mul_add(b, sum)),
                    _ => pairs.by_ref().map(|(a, b)| a * b).sum::<f64>() + start,
                };
                let (lane, register, part) = d.place(row, column);
                results[register][lane] |= finished(d.kind, fragments.saturates, sum) << (16 * part);
            }
        }
        for (target, values) in fragments.targets.iter().zip(&results) {
            self.write(group, *target, group.lanes, values);
        }
    }
}
