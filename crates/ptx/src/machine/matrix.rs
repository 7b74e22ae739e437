//! Matrices that lie across the lanes of a warp: moving them, turning them, multiplying them.

use super::flow::{Next, Runner, stop};
use super::warp::{Group, State};
use super::{LANES, Lanes, Stop};
use crate::code::{Address, Matrix, Multiply, Source, Target};
use crate::scalar::half::{bf16, f16, rounded};
use crate::scalar::soft;
use crate::types::Type;

/// Keys of these begin here; those of other things that lanes do together are lower, or addresses.
const KEY: u64 = 1 << 63;
/// Rows and columns of the small matrices that are moved.
const SIDE: usize = 8;

/// Where an element lies: its lane, its register, and its place in it.
struct Place {
    lane: usize,
    register: usize,
    part: usize,
}

impl Multiply {
    /// The place of an element of `a`.
    fn left(&self, row: usize, column: usize) -> Place {
        let span = 4 * self.per_register;
        let halves = self.rows / SIDE;
        Place {
            lane: row % SIDE * 4 + column % span / self.per_register,
            register: column / span * halves + row / SIDE,
            part: column % self.per_register,
        }
    }

    /// The place of an element of `b`.
    fn right(&self, row: usize, column: usize) -> Place {
        let span = 4 * self.per_register;
        Place {
            lane: column * 4 + row % span / self.per_register,
            register: row / span,
            part: row % self.per_register,
        }
    }
}

/// The place of an element of `c` and `d`.
fn result(row: usize, column: usize, kind: Type) -> Place {
    let index = row / SIDE * 2 + column % 2;
    let (register, part) = if kind == Type::F16 { (index / 2, index % 2) } else { (index, 0) };
    Place { lane: row % SIDE * 4 + column / 2, register, part }
}

/// An element of a type in a register.
pub(super) fn element(register: u64, part: usize, kind: Type) -> f64 {
    match kind {
        Type::F16 => f16(register >> (16 * part) & 0xffff),
        Type::Bf16 => bf16(register >> (16 * part) & 0xffff),
        // The lower 13 bits are not looked at.
        Type::Tf32 => f64::from(f32::from_bits(register as u32 & !0x1fff)),
        Type::F32 => f64::from(f32::from_bits(register as u32)),
        Type::F64 => f64::from_bits(register),
        Type::S8 => f64::from((register >> (8 * part)) as i8),
        Type::U8 => f64::from((register >> (8 * part)) as u8),
        _ => f64::from(register as i32),
    }
}

impl Runner<'_, '_> {
    /// Does it if all lanes of the warp are there; else the group waits for the others.
    pub fn matrix(&mut self, group: &mut Group, matrix: &Matrix) -> Result<Next, Stop> {
        if group.lanes == self.warp.alive {
            self.do_matrix(group, matrix)?;
            group.at += 1;
            return Ok(Next::On);
        }
        let state = State::Together { key: KEY | group.at as u64, members: u32::MAX };
        group.state = state;
        let waiting = self.warp.groups.iter().filter(|other| other.state == state);
        let here = waiting.clone().fold(group.lanes, |mask, other| mask | other.lanes);
        if here == self.warp.alive {
            if !waiting.clone().all(|other| other.is_with(group)) {
                return Err(stop(
                    group,
                    "lanes that were called from different places meet at an instruction on matrices",
                ));
            }
            let others = self.warp.groups.iter_mut().filter(|other| other.state == state);
            others.for_each(|other| other.state = State::Ready);
            group.state = State::Ready;
            return Ok(Next::Choose);
        }
        self.warp.groups.push(group.clone());
        Ok(Next::Gone)
    }

    fn do_matrix(&mut self, group: &Group, matrix: &Matrix) -> Result<(), Stop> {
        match matrix {
            Matrix::Load { address, is_turned, targets } => {
                self.load_matrices(group, address, *is_turned, targets)
            }
            Matrix::Store { address, is_turned, sources } => {
                self.store_matrices(group, address, *is_turned, sources)
            }
            Matrix::Turn { target, source } => {
                let from = self.fetch(group, *source);
                let half =
                    |row: usize, column: usize| from[row * 4 + column / 2] >> (16 * (column % 2)) & 0xffff;
                let turned = std::array::from_fn(|lane| {
                    let (row, column) = (lane / 4, lane % 4 * 2);
                    half(column, row) | half(column + 1, row) << 16
                });
                self.write(group, *target, group.lanes, &turned);
                Ok(())
            }
            Matrix::Multiply(multiply) => {
                self.multiply(group, multiply);
                Ok(())
            }
            Matrix::LoadFragment { fragment, address, stride, targets } => {
                self.load_fragment(group, fragment, address, *stride, targets)
            }
            Matrix::StoreFragment { fragment, address, stride, sources } => {
                self.store_fragment(group, fragment, address, *stride, sources)
            }
            Matrix::MultiplyFragments(fragments) => {
                self.multiply_fragments(group, fragments);
                Ok(())
            }
        }
    }

    /// Eight lanes say where the rows of each matrix lie. Each row has 16 bytes.
    fn load_matrices(
        &mut self,
        group: &Group,
        address: &Address,
        is_turned: bool,
        targets: &[Target],
    ) -> Result<(), Stop> {
        let bases = self.fetch(group, address.base);
        for (index, target) in targets.iter().enumerate() {
            let mut matrix = [[0u64; SIDE]; SIDE];
            for (row, numbers) in matrix.iter_mut().enumerate() {
                let mut bytes = [0; 16];
                self.read_at(index * SIDE + row, address, &bases, &mut bytes)?;
                for (number, pair) in numbers.iter_mut().zip(bytes.chunks(2)) {
                    *number = u64::from(pair[0]) | u64::from(pair[1]) << 8;
                }
            }
            let values: Lanes = std::array::from_fn(|lane| {
                let (row, column) = (lane / 4, lane % 4 * 2);
                let number =
                    |column: usize| if is_turned { matrix[column][row] } else { matrix[row][column] };
                number(column) | number(column + 1) << 16
            });
            self.write(group, *target, group.lanes, &values);
        }
        Ok(())
    }

    fn store_matrices(
        &mut self,
        group: &Group,
        address: &Address,
        is_turned: bool,
        sources: &[Source],
    ) -> Result<(), Stop> {
        let bases = self.fetch(group, address.base);
        for (index, source) in sources.iter().enumerate() {
            let from = self.fetch(group, *source);
            for row in 0..SIDE {
                let mut bytes = [0; 16];
                for (column, pair) in bytes.chunks_mut(2).enumerate() {
                    let (row, column) = if is_turned { (column, row) } else { (row, column) };
                    let number = from[row * 4 + column / 2] >> (16 * (column % 2));
                    pair.copy_from_slice(&number.to_le_bytes()[..2]);
                }
                self.write_at(index * SIDE + row, address, &bases, &bytes)?;
            }
        }
        Ok(())
    }

    /// Sums have 53 bits and are rounded once: those of a GPU may differ in their last places.
    fn multiply(&mut self, group: &Group, multiply: &Multiply) {
        let fetched = |sources: &[Source]| -> Vec<Lanes> {
            sources.iter().map(|source| self.fetch(group, *source)).collect()
        };
        let (a, b, c) = (fetched(&multiply.a), fetched(&multiply.b), fetched(&multiply.c));
        let depth = multiply.depth;
        let [left, right] = multiply.kinds;
        let mut rows = [[0f64; 32]; 16];
        let mut columns = [[0f64; 32]; SIDE];
        for at in 0..depth {
            for (row, numbers) in rows.iter_mut().enumerate().take(multiply.rows) {
                let place = multiply.left(row, at);
                numbers[at] = element(a[place.register][place.lane], place.part, left);
            }
            for (column, numbers) in columns.iter_mut().enumerate() {
                let place = multiply.right(at, column);
                numbers[at] = element(b[place.register][place.lane], place.part, right);
            }
        }
        let mut d = vec![[0u64; LANES]; multiply.d.len()];
        for (row, left) in rows.iter().enumerate().take(multiply.rows) {
            for (column, right) in columns.iter().enumerate() {
                let place = result(row, column, multiply.with);
                let start = element(c[place.register][place.lane], place.part, multiply.with);
                let pairs = left.iter().zip(right).take(depth);
                let sum = match multiply.to {
                    Type::F64 => pairs.fold(start, |sum, (a, b)| a.mul_add(*b, sum)),
                    _ => pairs.map(|(a, b)| a * b).sum::<f64>() + start,
                };
                let place = result(row, column, multiply.to);
                let bits = finished(multiply.to, multiply.saturates, sum);
                d[place.register][place.lane] |= bits << (16 * place.part);
            }
        }
        for (target, values) in multiply.d.iter().zip(&d) {
            self.write(group, *target, group.lanes, values);
        }
    }
}

/// A sum in the type of the result.
pub(super) fn finished(to: Type, saturates: bool, sum: f64) -> u64 {
    match to {
        Type::S32 => {
            // Products of bytes and what is added have less than 53 bits: exact.
            let sum = sum as i64;
            let kept = if saturates { sum.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) } else { sum };
            u64::from(kept as u32)
        }
        Type::F16 => rounded(soft::F16, sum),
        Type::F64 => sum.to_bits(),
        _ => {
            let sum = sum as f32;
            u64::from(if sum.is_nan() { crate::scalar::float::NAN32 } else { sum.to_bits() })
        }
    }
}
