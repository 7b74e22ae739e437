//! Functions of cuBLAS beside products of matrices, in plain loops. All numbers are complex here, of double precision, and are rounded when they are written.

use super::blas::Element;
use super::space::View;
use crate::failure::Failure;
use hinterland_proto::gpu::command::{BlasCall, blas_functions as function};
use std::ops::{Add, Mul, Sub};

/// Most elements of a matrix: what a device holds.
const ELEMENTS_MAX: u64 = 1 << 32;

/// A number.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Number {
    re: f64,
    im: f64,
}

impl Number {
    const ONE: Self = Self { re: 1.0, im: 0.0 };

    fn conjugate(self) -> Self {
        Self { im: -self.im, ..self }
    }

    fn magnitude(self) -> f64 {
        self.re.hypot(self.im)
    }

    /// What cuBLAS compares: the sum of the magnitudes of both parts.
    fn size(self) -> f64 {
        self.re.abs() + self.im.abs()
    }

    fn over(self, by: Self) -> Self {
        if by.im == 0.0 {
            return Self { re: self.re / by.re, im: self.im / by.re };
        }
        let all = by.re * by.re + by.im * by.im;
        let product = self * by.conjugate();
        Self { re: product.re / all, im: product.im / all }
    }

    fn is_zero(self) -> bool {
        self.re == 0.0 && self.im == 0.0
    }
}

impl Add for Number {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self { re: self.re + other.re, im: self.im + other.im }
    }
}

impl Sub for Number {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self { re: self.re - other.re, im: self.im - other.im }
    }
}

impl Mul for Number {
    type Output = Self;
    fn mul(self, other: Self) -> Self {
        // The product of real numbers stays one, also where it is infinite.
        if self.im == 0.0 && other.im == 0.0 {
            return Self { re: self.re * other.re, im: 0.0 };
        }
        Self { re: self.re * other.re - self.im * other.im, im: self.re * other.im + self.im * other.re }
    }
}

/// How numbers lie in memory: a part, or two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Kind {
    element: Element,
    is_complex: bool,
}

impl Kind {
    fn of(kind: u32) -> Result<Self, Failure> {
        match kind {
            4 => Ok(Self { element: Element::F32, is_complex: true }),
            5 => Ok(Self { element: Element::F64, is_complex: true }),
            other => Ok(Self { element: Element::of(other)?, is_complex: false }),
        }
    }

    const fn part_bytes(self) -> usize {
        self.element.bytes() as usize
    }

    const fn bytes(self) -> usize {
        self.part_bytes() * if self.is_complex { 2 } else { 1 }
    }

    const fn real(self) -> Self {
        Self { is_complex: false, ..self }
    }

    fn read(self, bytes: &[u8]) -> Number {
        let part = |at: usize| {
            bytes.get(at..at + self.part_bytes()).map_or(f64::NAN, |part| self.element.read(part))
        };
        Number { re: part(0), im: if self.is_complex { part(self.part_bytes()) } else { 0.0 } }
    }

    fn write(self, number: Number, bytes: &mut [u8]) {
        let parts = if self.is_complex { 2 } else { 1 };
        let values = [number.re, number.im].into_iter().take(parts);
        for (value, place) in values.zip(bytes.chunks_exact_mut(self.part_bytes())) {
            self.element.write(value, place);
        }
    }
}

/// A product of complex matrices.
pub(super) struct Product {
    pub(super) transposes: [u32; 2],
    pub(super) sizes: [i64; 3],
    pub(super) kinds: [u32; 3],
    pub(super) leads: [i64; 3],
    pub(super) factors: [[u8; 16]; 2],
    pub(super) in_memory: bool,
}

/// Multiplies complex matrices.
pub(super) fn multiply(view: &View, p: &Product, [a, b, c]: [u64; 3]) -> Result<(), Failure> {
    let [kind, ..] = p.kinds;
    if p.kinds.iter().any(|other| *other != kind) || p.transposes.iter().any(|turn| *turn > 2) {
        return Err(Failure::blas_unsupported("complex matrices of a product are of one type"));
    }
    let memory = Memory { view, kind: Kind::of(kind)? };
    let [m, n, k] = p.sizes;
    if m == 0 || n == 0 {
        return Ok(());
    }
    let shape =
        |turn: u32, rows: i64, columns: i64| if turn == 0 { (rows, columns) } else { (columns, rows) };
    let (alpha, beta) = (
        memory.factor(memory.kind, p.factors[0], p.in_memory)?,
        memory.factor(memory.kind, p.factors[1], p.in_memory)?,
    );
    let mut product = if alpha.is_zero() || k == 0 {
        Matrix::zeros(size(m)?, size(n)?)
    } else {
        let (rows, columns) = shape(p.transposes[0], m, k);
        let left = memory.matrix((a, p.leads[0]), rows, columns)?.turned(p.transposes[0]);
        let (rows, columns) = shape(p.transposes[1], k, n);
        left.times(&memory.matrix((b, p.leads[1]), rows, columns)?.turned(p.transposes[1]))
    };
    blend(&memory, (c, p.leads[2]), &mut product, (alpha, beta), false)?;
    memory.write((c, p.leads[2]), &product, None)
}

/// A matrix by columns, or a vector as one column.
#[derive(Debug, Clone)]
struct Matrix {
    rows: usize,
    columns: usize,
    numbers: Vec<Number>,
}

impl Matrix {
    fn zeros(rows: usize, columns: usize) -> Self {
        Self { rows, columns, numbers: vec![Number::default(); rows * columns] }
    }

    fn at(&self, row: usize, column: usize) -> Number {
        self.numbers[column * self.rows + row]
    }

    fn set(&mut self, row: usize, column: usize, number: Number) {
        self.numbers[column * self.rows + row] = number;
    }

    /// The matrix as it is, transposed (1), or transposed and conjugated (2).
    fn turned(self, transpose: u32) -> Self {
        if transpose == 0 {
            return self;
        }
        let mut turned = Self::zeros(self.columns, self.rows);
        for row in 0..self.rows {
            for column in 0..self.columns {
                let number = self.at(row, column);
                turned.set(column, row, if transpose == 2 { number.conjugate() } else { number });
            }
        }
        turned
    }

    fn times(&self, other: &Self) -> Self {
        let mut product = Self::zeros(self.rows, other.columns);
        for column in 0..other.columns {
            for inner in 0..self.columns {
                let factor = other.at(inner, column);
                for row in 0..self.rows {
                    let sum = product.at(row, column) + self.at(row, inner) * factor;
                    product.set(row, column, sum);
                }
            }
        }
        product
    }

    /// What one half (0 lower, 1 upper) says of the whole: the other half is zero, or with ones on the diagonal.
    fn triangle(mut self, fill: u32, diagonal: u32) -> Self {
        for column in 0..self.columns {
            for row in 0..self.rows {
                if row == column {
                    if diagonal == 1 {
                        self.set(row, column, Number::ONE);
                    }
                } else if (row < column) != (fill == 1) {
                    self.set(row, column, Number::default());
                }
            }
        }
        self
    }

    /// What one half says of the whole: the other half is its transpose, or that conjugated.
    fn symmetric(mut self, fill: u32, is_hermitian: bool) -> Self {
        for column in 0..self.columns {
            for row in 0..self.rows {
                let is_given = row == column || (row < column) == (fill == 1);
                let mirrored = if is_given { self.at(row, column) } else { self.at(column, row) };
                let number = match (is_hermitian, is_given) {
                    (true, false) => mirrored.conjugate(),
                    (true, true) if row == column => Number { im: 0.0, ..mirrored },
                    _ => mirrored,
                };
                self.set(row, column, number);
            }
        }
        self
    }

    /// Solves a triangular system from the left, in place. `is_upper` says which half the triangle is.
    fn solve(&self, sides: &mut Self, is_upper: bool) {
        let n = self.rows;
        for side in 0..sides.columns {
            for step in 0..n {
                let row = if is_upper { n - 1 - step } else { step };
                let known = if is_upper { row + 1..n } else { 0..row };
                let mut sum = sides.at(row, side);
                for other in known {
                    sum = sum - self.at(row, other) * sides.at(other, side);
                }
                sides.set(row, side, sum.over(self.at(row, row)));
            }
        }
    }
}

/// Memory of the device, for one command.
struct Memory<'view> {
    view: &'view View,
    kind: Kind,
}

fn size(number: i64) -> Result<usize, Failure> {
    usize::try_from(number).map_err(|_| Failure::blas_value("a size is negative"))
}

fn too_large() -> Failure {
    Failure::blas_value("a matrix ends beyond all addresses")
}

impl Memory<'_> {
    /// Where a column of a matrix is, after a look at all of the matrix.
    fn check(&self, (address, lead): (u64, i64), rows: usize, columns: usize) -> Result<u64, Failure> {
        let lead = u64::try_from(lead).map_err(|_| too_large())?;
        if lead < rows as u64 || lead == 0 {
            let words = format!("a matrix of {rows} rows has a leading dimension of {lead}");
            return Err(Failure::blas_value(words));
        }
        let elements = (columns as u64).saturating_sub(1).checked_mul(lead);
        let elements =
            elements.and_then(|all| all.checked_add(rows as u64)).filter(|all| *all <= ELEMENTS_MAX);
        let bytes = elements.ok_or_else(too_large)? * self.kind.bytes() as u64;
        if rows > 0 && columns > 0 {
            self.view.check(address, bytes)?;
        }
        Ok(lead * self.kind.bytes() as u64)
    }

    fn matrix(&self, place: (u64, i64), rows: i64, columns: i64) -> Result<Matrix, Failure> {
        let (rows, columns) = (size(rows)?, size(columns)?);
        let pitch = self.check(place, rows, columns)?;
        let mut matrix = Matrix::zeros(rows, columns);
        let mut bytes = vec![0; rows * self.kind.bytes()];
        for column in 0..columns {
            self.view.read(place.0 + column as u64 * pitch, &mut bytes)?;
            for (row, part) in bytes.chunks_exact(self.kind.bytes()).enumerate() {
                matrix.set(row, column, self.kind.read(part));
            }
        }
        Ok(matrix)
    }

    /// Writes a matrix, or of a square one only a half.
    fn write(&self, place: (u64, i64), matrix: &Matrix, half: Option<u32>) -> Result<(), Failure> {
        let pitch = self.check(place, matrix.rows, matrix.columns)?;
        let bytes_of = self.kind.bytes();
        for column in 0..matrix.columns {
            let rows = match half {
                Some(0) => column..matrix.rows,
                Some(_) => 0..(column + 1).min(matrix.rows),
                None => 0..matrix.rows,
            };
            let mut bytes = vec![0; rows.len() * bytes_of];
            for (row, part) in rows.clone().zip(bytes.chunks_exact_mut(bytes_of)) {
                self.kind.write(matrix.at(row, column), part);
            }
            self.view.write(place.0 + column as u64 * pitch + (rows.start * bytes_of) as u64, &bytes)?;
        }
        Ok(())
    }

    /// Where an element of a vector is: with a negative step the first one is the last in memory.
    fn element(&self, (address, step): (u64, i64), length: usize, index: usize) -> Result<u64, Failure> {
        let from = if step < 0 { length - 1 - index } else { index } as u64;
        let offset =
            from.checked_mul(step.unsigned_abs()).and_then(|at| at.checked_mul(self.kind.bytes() as u64));
        offset.and_then(|offset| address.checked_add(offset)).ok_or_else(too_large)
    }

    fn vector(&self, place: (u64, i64), length: i64) -> Result<Matrix, Failure> {
        let length = size(length)?;
        if length > 0 {
            // The one that lies last is there, so all are if the memory is one; each is looked at when it is read.
            let last = self.element((place.0, place.1.abs()), length, length - 1)?;
            self.view.check(last, self.kind.bytes() as u64)?;
        }
        let mut numbers = Vec::new();
        let mut bytes = vec![0; self.kind.bytes()];
        for index in 0..length {
            self.view.read(self.element(place, length, index)?, &mut bytes)?;
            numbers.push(self.kind.read(&bytes));
        }
        Ok(Matrix { rows: length, columns: 1, numbers })
    }

    fn write_vector(&self, place: (u64, i64), vector: &Matrix) -> Result<(), Failure> {
        let mut bytes = vec![0; self.kind.bytes()];
        for (index, number) in vector.numbers.iter().enumerate() {
            self.kind.write(*number, &mut bytes);
            self.view.write(self.element(place, vector.rows, index)?, &bytes)?;
        }
        Ok(())
    }

    /// A factor by value, or out of memory.
    fn factor(&self, kind: Kind, given: [u8; 16], in_memory: bool) -> Result<Number, Failure> {
        if !in_memory {
            return Ok(kind.read(&given));
        }
        let mut bytes = vec![0; kind.bytes()];
        self.view.read(long(&given), &mut bytes)?;
        Ok(kind.read(&bytes))
    }

    fn pointer(&self, array: u64, index: i64) -> Result<u64, Failure> {
        let mut bytes = [0; 8];
        // Counts are below 2 to the power of 31.
        let place = array.checked_add(index as u64 * 8).ok_or_else(too_large)?;
        self.view.read(place, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn write_int(&self, array: u64, index: usize, number: i32) -> Result<(), Failure> {
        if array == 0 {
            return Ok(());
        }
        let place = array.checked_add(index as u64 * 4).ok_or_else(too_large)?;
        self.view.write(place, &number.to_le_bytes())
    }

    fn read_pivots(&self, array: u64, index: usize, n: usize) -> Result<Vec<usize>, Failure> {
        if array == 0 {
            return Ok((0..n).collect());
        }
        let mut pivots = Vec::with_capacity(n);
        for row in 0..n {
            let mut bytes = [0; 4];
            let place = array.checked_add(((index * n + row) * 4) as u64).ok_or_else(too_large)?;
            self.view.read(place, &mut bytes)?;
            let pivot = usize::try_from(i32::from_le_bytes(bytes)).unwrap_or(0);
            if pivot == 0 || pivot > n {
                return Err(Failure::blas_value(format!("{pivot} is no row of {n}")));
            }
            pivots.push(pivot - 1);
        }
        Ok(pivots)
    }
}

/// The first eight bytes of a factor: an address.
fn long(bytes: &[u8; 16]) -> u64 {
    bytes[..8].iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

/// Does a function of cuBLAS.
pub(super) fn call(view: &View, c: &BlasCall) -> Result<(), Failure> {
    let memory = Memory { view, kind: Kind::of(c.kind)? };
    if c.options.iter().any(|option| *option > 2) || c.more > 2 {
        return Err(Failure::blas_value("an option is none of cuBLAS's"));
    }
    match c.function {
        function::DOT..=function::IAMIN => vectors(&memory, c),
        function::GEMV..=function::GERC => products(&memory, c),
        function::TRSM..=function::TRMV => triangles(&memory, c),
        function::SYRK..=function::HEMM => symmetric(&memory, c),
        function::GETRF..=function::GELS => (0..c.count).try_for_each(|index| decompose(&memory, c, index)),
        other => {
            Err(Failure::blas_unsupported(format!("the software device has no function {other} of cuBLAS")))
        }
    }
}

fn factors(memory: &Memory<'_>, c: &BlasCall, is_real: bool) -> Result<(Number, Number), Failure> {
    let kind = if is_real { memory.kind.real() } else { memory.kind };
    let in_memory = c.in_memory != 0;
    let alpha = memory.factor(kind, c.alpha, in_memory)?;
    let is_given = c.beta != [0; 16];
    Ok((alpha, if is_given { memory.factor(kind, c.beta, in_memory)? } else { Number::default() }))
}

/// `alpha * product + beta * before`, where nothing is read that is multiplied by zero.
fn blend(
    memory: &Memory<'_>,
    place: (u64, i64),
    product: &mut Matrix,
    (alpha, beta): (Number, Number),
    is_vector: bool,
) -> Result<(), Failure> {
    product.numbers.iter_mut().for_each(|number| *number = *number * alpha);
    if beta.is_zero() {
        return Ok(());
    }
    // Sizes came as such numbers.
    let (rows, columns) = (product.rows as i64, product.columns as i64);
    let before = if is_vector { memory.vector(place, rows)? } else { memory.matrix(place, rows, columns)? };
    for (number, old) in product.numbers.iter_mut().zip(before.numbers) {
        *number = *number + beta * old;
    }
    Ok(())
}

fn products(memory: &Memory<'_>, c: &BlasCall) -> Result<(), Failure> {
    let (alpha, beta) = factors(memory, c, false)?;
    if c.function == function::GEMV {
        let (given, taken) = if c.options[0] == 0 { (c.m, c.n) } else { (c.n, c.m) };
        let a = memory.matrix((c.a, c.a_step), c.m, c.n)?.turned(c.options[0]);
        let mut product = a.times(&memory.vector((c.b, c.b_step), taken)?);
        debug_assert_eq!(product.rows as i64, given);
        blend(memory, (c.c, c.c_step), &mut product, (alpha, beta), true)?;
        return memory.write_vector((c.c, c.c_step), &product);
    }
    let turn = if c.function == function::GERC { 2 } else { 1 };
    let x = memory.vector((c.a, c.a_step), c.m)?;
    let mut product = x.times(&memory.vector((c.b, c.b_step), c.n)?.turned(turn));
    blend(memory, (c.c, c.c_step), &mut product, (alpha, Number::ONE), false)?;
    memory.write((c.c, c.c_step), &product, None)
}

fn vectors(memory: &Memory<'_>, c: &BlasCall) -> Result<(), Failure> {
    let (from, to) = ((c.a, c.a_step), (c.c, c.c_step));
    let one = |kind: Kind, number: Number| {
        let mut bytes = vec![0; kind.bytes()];
        kind.write(number, &mut bytes);
        memory.view.write(c.c, &bytes)
    };
    match c.function {
        function::DOT | function::DOTC => {
            let (x, y) = (memory.vector(from, c.m)?, memory.vector((c.b, c.b_step), c.m)?);
            let sum = x.numbers.iter().zip(&y.numbers).fold(Number::default(), |sum, (x, y)| {
                sum + if c.function == function::DOTC { x.conjugate() } else { *x } * *y
            });
            one(memory.kind, sum)
        }
        function::AXPY => {
            let (alpha, _) = factors(memory, c, false)?;
            let (x, mut y) = (memory.vector(from, c.m)?, memory.vector(to, c.m)?);
            y.numbers.iter_mut().zip(x.numbers).for_each(|(y, x)| *y = *y + alpha * x);
            memory.write_vector(to, &y)
        }
        function::SCAL | function::SCAL_REAL => {
            let (alpha, _) = factors(memory, c, c.function == function::SCAL_REAL)?;
            let mut x = memory.vector(to, c.m)?;
            x.numbers.iter_mut().for_each(|number| *number = *number * alpha);
            memory.write_vector(to, &x)
        }
        function::COPY => memory.write_vector(to, &memory.vector(from, c.m)?),
        function::SWAP => {
            let (x, y) = (memory.vector(from, c.m)?, memory.vector(to, c.m)?);
            memory.write_vector(to, &x)?;
            memory.write_vector(from, &y)
        }
        function::NRM2 => {
            let x = memory.vector(from, c.m)?;
            let most = x.numbers.iter().map(|number| number.magnitude()).fold(0.0, f64::max);
            let sum: f64 = if most == 0.0 {
                0.0
            } else {
                x.numbers.iter().map(|one| (one.magnitude() / most).powi(2)).sum()
            };
            one(memory.kind.real(), Number { re: most * sum.sqrt(), im: 0.0 })
        }
        function::ASUM => {
            let sum = memory.vector(from, c.m)?.numbers.iter().map(|number| number.size()).sum();
            one(memory.kind.real(), Number { re: sum, im: 0.0 })
        }
        _ => {
            let is_max = c.function == function::IAMAX;
            let x = memory.vector(from, c.m)?;
            let mut best = 0;
            for (index, number) in x.numbers.iter().enumerate() {
                let (size, than) = (number.size(), x.numbers[best].size());
                if if is_max { size > than } else { size < than } {
                    best = index;
                }
            }
            memory.write_int(c.c, 0, i32::try_from(best + 1).unwrap_or(i32::MAX))
        }
    }
}

/// A triangle as it is used, and whether it is then an upper one.
fn triangle(
    memory: &Memory<'_>,
    place: (u64, i64),
    n: i64,
    [fill, transpose, diagonal]: [u32; 3],
) -> Result<(Matrix, bool), Failure> {
    let whole = memory.matrix(place, n, n)?.triangle(fill, diagonal).turned(transpose);
    Ok((whole, (fill == 1) == (transpose == 0)))
}

fn triangles(memory: &Memory<'_>, c: &BlasCall) -> Result<(), Failure> {
    match c.function {
        function::TRSV | function::TRMV => {
            let (a, is_upper) = triangle(memory, (c.a, c.a_step), c.m, c.options)?;
            let mut x = memory.vector((c.c, c.c_step), c.m)?;
            if c.function == function::TRSV {
                a.solve(&mut x, is_upper);
            } else {
                x = a.times(&x);
            }
            memory.write_vector((c.c, c.c_step), &x)
        }
        function::TRMM => {
            let (alpha, _) = factors(memory, c, false)?;
            let [side, fill, transpose] = c.options;
            let order = if side == 0 { c.m } else { c.n };
            let (a, _) = triangle(memory, (c.a, c.a_step), order, [fill, transpose, c.more])?;
            let b = memory.matrix((c.b, c.b_step), c.m, c.n)?;
            let mut product = if side == 0 { a.times(&b) } else { b.times(&a) };
            product.numbers.iter_mut().for_each(|number| *number = *number * alpha);
            memory.write((c.c, c.c_step), &product, None)
        }
        function::TRSM => solve_triangle(memory, c, c.a, c.c),
        _ => (0..c.count).try_for_each(|index| {
            solve_triangle(memory, c, memory.pointer(c.a, index)?, memory.pointer(c.c, index)?)
        }),
    }
}

fn solve_triangle(memory: &Memory<'_>, c: &BlasCall, a: u64, b: u64) -> Result<(), Failure> {
    let (alpha, _) = factors(memory, c, false)?;
    let [side, fill, transpose] = c.options;
    let place = (b, c.c_step);
    let order = if side == 0 { c.m } else { c.n };
    let mut sides = memory.matrix(place, c.m, c.n)?;
    if alpha.is_zero() {
        sides.numbers.fill(Number::default());
        return memory.write(place, &sides, None);
    }
    sides.numbers.iter_mut().for_each(|number| *number = *number * alpha);
    let (triangle, is_upper) = triangle(memory, (a, c.a_step), order, [fill, transpose, c.more])?;
    if side == 0 {
        triangle.solve(&mut sides, is_upper);
        return memory.write(place, &sides, None);
    }
    // From the right: the same with everything transposed.
    let mut turned = sides.turned(1);
    triangle.turned(1).solve(&mut turned, !is_upper);
    memory.write(place, &turned.turned(1), None)
}

fn symmetric(memory: &Memory<'_>, c: &BlasCall) -> Result<(), Failure> {
    let is_hermitian = matches!(c.function, function::HERK | function::HEMM);
    let place = (c.c, c.c_step);
    if matches!(c.function, function::SYRK | function::HERK) {
        let (alpha, beta) = factors(memory, c, is_hermitian)?;
        let [fill, transpose, _] = c.options;
        let (rows, columns) = if transpose == 0 { (c.m, c.k) } else { (c.k, c.m) };
        let a = memory.matrix((c.a, c.a_step), rows, columns)?;
        let left = a.turned(transpose);
        let mut product = left.times(&left.clone().turned(if is_hermitian { 2 } else { 1 }));
        blend(memory, place, &mut product, (alpha, beta), false)?;
        if is_hermitian {
            let n = product.rows;
            (0..n).for_each(|at| product.set(at, at, Number { im: 0.0, ..product.at(at, at) }));
        }
        return memory.write(place, &product, Some(fill));
    }
    let (alpha, beta) = factors(memory, c, false)?;
    let [side, fill, _] = c.options;
    let order = if side == 0 { c.m } else { c.n };
    let a = memory.matrix((c.a, c.a_step), order, order)?.symmetric(fill, is_hermitian);
    let b = memory.matrix((c.b, c.b_step), c.m, c.n)?;
    let mut product = if side == 0 { a.times(&b) } else { b.times(&a) };
    blend(memory, place, &mut product, (alpha, beta), false)?;
    memory.write(place, &product, None)
}

/// One matrix of a function that takes arrays of addresses.
fn decompose(memory: &Memory<'_>, c: &BlasCall, index: i64) -> Result<(), Failure> {
    let at = size(index)?;
    let place = (memory.pointer(c.a, index)?, c.a_step);
    match c.function {
        function::GETRF => {
            let mut a = memory.matrix(place, c.m, c.m)?;
            let (pivots, info) = factorise(&mut a, c.b != 0);
            for (row, pivot) in pivots.iter().enumerate() {
                memory.write_int(c.b, at * a.rows + row, i32::try_from(pivot + 1).unwrap_or(i32::MAX))?;
            }
            memory.write(place, &a, None)?;
            memory.write_int(c.c, at, info)
        }
        function::GETRS => {
            let a = memory.matrix(place, c.m, c.m)?;
            let pivots = memory.read_pivots(c.b, at, a.rows)?;
            let to = (memory.pointer(c.c, index)?, c.c_step);
            let mut sides = memory.matrix(to, c.m, c.n)?;
            solve_factorised(&a, &pivots, c.options[0], &mut sides);
            memory.write(to, &sides, None)
        }
        function::GETRI => {
            let a = memory.matrix(place, c.m, c.m)?;
            let pivots = memory.read_pivots(c.b, at, a.rows)?;
            let singular = (0..a.rows).find(|row| a.at(*row, *row).is_zero());
            let info = singular.map_or(0, |row| i32::try_from(row + 1).unwrap_or(i32::MAX));
            if info == 0 {
                let mut inverse = Matrix::zeros(a.rows, a.rows);
                (0..a.rows).for_each(|row| inverse.set(row, row, Number::ONE));
                solve_factorised(&a, &pivots, 0, &mut inverse);
                memory.write((memory.pointer(c.c, index)?, c.c_step), &inverse, None)?;
            }
            memory.write_int(long(&c.alpha), at, info)
        }
        function::GEQRF => {
            let mut a = memory.matrix(place, c.m, c.n)?;
            let factors = reflect(&mut a);
            memory.write(place, &a, None)?;
            memory.write_vector((memory.pointer(c.b, index)?, 1), &factors)
        }
        _ => least_squares(memory, c, index, place),
    }
}

/// Decomposes a square matrix into triangles in place; the row that each row was exchanged with, and the first zero on the diagonal, from 1.
fn factorise(a: &mut Matrix, may_exchange: bool) -> (Vec<usize>, i32) {
    let n = a.rows;
    let (mut pivots, mut info) = (Vec::with_capacity(n), 0);
    for step in 0..n {
        let mut pivot = step;
        if may_exchange {
            for row in step + 1..n {
                if a.at(row, step).size() > a.at(pivot, step).size() {
                    pivot = row;
                }
            }
        }
        pivots.push(pivot);
        if a.at(pivot, step).is_zero() {
            if info == 0 {
                info = i32::try_from(step + 1).unwrap_or(i32::MAX);
            }
            continue;
        }
        for column in 0..n {
            let (one, other) = (a.at(step, column), a.at(pivot, column));
            a.set(step, column, other);
            a.set(pivot, column, one);
        }
        for row in step + 1..n {
            let factor = a.at(row, step).over(a.at(step, step));
            a.set(row, step, factor);
            for column in step + 1..n {
                a.set(row, column, a.at(row, column) - factor * a.at(step, column));
            }
        }
    }
    (pivots, info)
}

/// Solves a system whose matrix was decomposed.
fn solve_factorised(a: &Matrix, pivots: &[usize], transpose: u32, sides: &mut Matrix) {
    let exchange = |sides: &mut Matrix, row: usize, pivot: usize| {
        for side in 0..sides.columns {
            let (one, other) = (sides.at(row, side), sides.at(pivot, side));
            sides.set(row, side, other);
            sides.set(pivot, side, one);
        }
    };
    let (lower, upper) = (a.clone().triangle(0, 1), a.clone().triangle(1, 0));
    if transpose == 0 {
        pivots.iter().enumerate().for_each(|(row, pivot)| exchange(sides, row, *pivot));
        lower.solve(sides, false);
        upper.solve(sides, true);
    } else {
        upper.turned(transpose).solve(sides, false);
        lower.turned(transpose).solve(sides, true);
        pivots.iter().enumerate().rev().for_each(|(row, pivot)| exchange(sides, row, *pivot));
    }
}

/// Decomposes a matrix into reflections, which stay below its diagonal, and a triangle; the factors of the reflections.
fn reflect(a: &mut Matrix) -> Matrix {
    let steps = a.rows.min(a.columns);
    let mut factors = Matrix::zeros(steps, 1);
    for step in 0..steps {
        let below: f64 = (step + 1..a.rows).map(|row| a.at(row, step).magnitude().powi(2)).sum();
        let first = a.at(step, step);
        if below == 0.0 && first.im == 0.0 {
            continue;
        }
        let norm = (first.magnitude().powi(2) + below).sqrt();
        let beta = if first.re >= 0.0 { -norm } else { norm };
        let factor = Number { re: (beta - first.re) / beta, im: -first.im / beta };
        let scale = first - Number { re: beta, im: 0.0 };
        for row in step + 1..a.rows {
            a.set(row, step, a.at(row, step).over(scale));
        }
        a.set(step, step, Number { re: beta, im: 0.0 });
        factors.set(step, 0, factor);
        // The rest of the matrix is multiplied by the reflection's conjugate, as in the documentation of LAPACK.
        for column in step + 1..a.columns {
            apply(a, step, factor.conjugate(), column);
        }
    }
    factors
}

/// Applies a reflection to a column of the matrix that it lies in.
fn apply(a: &mut Matrix, step: usize, factor: Number, column: usize) {
    let mut sum = a.at(step, column);
    for row in step + 1..a.rows {
        sum = sum + a.at(row, step).conjugate() * a.at(row, column);
    }
    let sum = sum * factor;
    a.set(step, column, a.at(step, column) - sum);
    for row in step + 1..a.rows {
        a.set(row, column, a.at(row, column) - a.at(row, step) * sum);
    }
}

/// The right sides for which a matrix with at least as many rows as columns comes nearest.
fn least_squares(memory: &Memory<'_>, c: &BlasCall, index: i64, place: (u64, i64)) -> Result<(), Failure> {
    if c.options[0] != 0 || c.m < c.n {
        return Err(Failure::blas_unsupported(
            "least squares are of a plain matrix that is not wider than high",
        ));
    }
    let (to, n) = ((memory.pointer(c.c, index)?, c.c_step), size(c.n)?);
    let mut a = memory.matrix(place, c.m, c.n)?;
    let sides = memory.matrix(to, c.m, c.k)?;
    // The right sides are reflected as further columns.
    let columns = a.columns;
    a.numbers.extend(sides.numbers);
    a.columns += sides.columns;
    let mut all = a.clone();
    let mut part = Matrix { columns, numbers: a.numbers[..columns * a.rows].to_vec(), rows: a.rows };
    let factors = reflect(&mut part);
    all.numbers[..columns * all.rows].copy_from_slice(&part.numbers);
    for step in 0..n {
        for column in columns..all.columns {
            apply(&mut all, step, factors.at(step, 0).conjugate(), column);
        }
    }
    let singular = (0..n).any(|row| all.at(row, row).is_zero());
    memory.write_int(c.b, size(index)?, i32::from(singular))?;
    memory.write(place, &part, None)?;
    let mut upper = Matrix::zeros(n, n);
    let mut found = Matrix::zeros(n, all.columns - columns);
    for row in 0..n {
        (row..n).for_each(|column| upper.set(row, column, all.at(row, column)));
        (0..found.columns).for_each(|side| found.set(row, side, all.at(row, columns + side)));
    }
    if !singular {
        upper.solve(&mut found, true);
        memory.write(to, &found, None)?;
    }
    Ok(())
}
