//! Each instruction on numbers with a binary point against plain Rust, bit by bit where IEEE 754 says what comes out.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, in its helpers too")]

mod device;

use device::{Random, evaluate};

/// Numbers of 32 bits: special, small, near each other, any.
fn singles(count: usize) -> Vec<[u64; 3]> {
    let mut random = Random(11);
    let edges = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        1.5,
        2.5,
        f32::MAX,
        f32::MIN_POSITIVE,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
    ];
    let mut one = || match random.below(5) {
        0 => u64::from(edges[random.below(edges.len())].to_bits()),
        1 => u64::from(random.next() as u32 & 0x80ff_ffff),
        2 => u64::from((random.next() as u32 & 0x81ff_ffff) | 0x3e00_0000),
        3 => u64::from((random.number() * 100.0).to_bits()),
        _ => u64::from(random.next() as u32),
    };
    (0..count).map(|_| [one(), one(), one()]).collect()
}

fn doubles(count: usize) -> Vec<[u64; 3]> {
    let mut random = Random(12);
    let mut one = || match random.below(3) {
        0 => f64::from(f32::from_bits(random.next() as u32)).to_bits(),
        1 => (random.next() & 0x801f_ffff_ffff_ffff) | 0x3fe0_0000_0000_0000,
        _ => random.next(),
    };
    (0..count).map(|_| [one(), one(), one()]).collect()
}

fn flushed(value: f32) -> f32 {
    if value.is_subnormal() { 0f32.copysign(value) } else { value }
}

fn check32(instruction: &str, expected: impl Fn(f32, f32, f32) -> f32) {
    let inputs = singles(600);
    let results =
        evaluate("f32", instruction, &inputs).unwrap_or_else(|error| panic!("{instruction}: {error}"));
    for (inputs, result) in inputs.iter().zip(results) {
        let [a, b, c] = inputs.map(|input| f32::from_bits(input as u32));
        let (result, expected) = (f32::from_bits(result as u32), expected(a, b, c));
        let is_same = result.to_bits() == expected.to_bits() || (result.is_nan() && expected.is_nan());
        assert!(is_same, "{instruction} of {a:e}, {b:e}, {c:e}: {result:e}, not {expected:e}");
        assert!(
            !result.is_nan() || result.to_bits() == 0x7fff_ffff,
            "{instruction}: {:#x}",
            result.to_bits()
        );
    }
}

fn check64(instruction: &str, expected: impl Fn(f64, f64, f64) -> f64) {
    let inputs = doubles(600);
    let results =
        evaluate("f64", instruction, &inputs).unwrap_or_else(|error| panic!("{instruction}: {error}"));
    for (inputs, result) in inputs.iter().zip(results) {
        let [a, b, c] = inputs.map(f64::from_bits);
        let (result, expected) = (f64::from_bits(result), expected(a, b, c));
        let is_same = result.to_bits() == expected.to_bits() || (result.is_nan() && expected.is_nan());
        assert!(is_same, "{instruction} of {a:e}, {b:e}, {c:e}: {result:e}, not {expected:e}");
    }
}

/// Compares bits with bits, for operands of 32 bits.
fn check_bits(instruction: &str, inputs: &[[u64; 3]], expected: impl Fn(u64, u64, u64) -> u64) {
    let results =
        evaluate("b32", instruction, inputs).unwrap_or_else(|error| panic!("{instruction}: {error}"));
    for (inputs, result) in inputs.iter().zip(results) {
        let [a, b, c] = inputs.map(|input| input & 0xffff_ffff);
        assert_eq!(result, expected(a, b, c) & 0xffff_ffff, "{instruction} of {a:#x}, {b:#x}, {c:#x}");
    }
}

#[test]
fn arithmetic_of_32_bits_is_correctly_rounded() {
    check32("add.f32 $d, $a, $b;", |a, b, _| a + b);
    check32("sub.rn.f32 $d, $a, $b;", |a, b, _| a - b);
    check32("mul.f32 $d, $a, $b;", |a, b, _| a * b);
    check32("fma.rn.f32 $d, $a, $b, $c;", |a, b, c| a.mul_add(b, c));
    check32("div.rn.f32 $d, $a, $b;", |a, b, _| a / b);
    check32("rcp.rn.f32 $d, $a;", |a, _, _| 1.0 / a);
    check32("sqrt.rn.f32 $d, $a;", |a, _, _| a.sqrt());
    check32("add.f32 $d, $a, 0f3F800000;", |a, _, _| a + 1.0);
}

#[test]
fn small_numbers_are_flushed_and_large_ones_cut_if_asked() {
    check32("add.ftz.f32 $d, $a, $b;", |a, b, _| flushed(flushed(a) + flushed(b)));
    check32("fma.rn.ftz.f32 $d, $a, $b, $c;", |a, b, c| flushed(flushed(a).mul_add(flushed(b), flushed(c))));
    check32("mul.sat.f32 $d, $a, $b;", |a, b, _| {
        let product = a * b;
        // 0 is +0, also for what is no number.
        if product > 0.0 { product.min(1.0) } else { 0.0 }
    });
    check32("abs.ftz.f32 $d, $a;", |a, _, _| flushed(a).abs());
    check32("neg.f32 $d, $a;", |a, _, _| -a);
}

#[test]
fn the_lesser_and_the_greater_know_signs_of_zero_and_nan() {
    check32("min.f32 $d, $a, $b;", |a, b, _| {
        if a == 0.0 && b == 0.0 { f32::from_bits(a.to_bits() | b.to_bits()) } else { a.min(b) }
    });
    check32("max.f32 $d, $a, $b;", |a, b, _| {
        if a == 0.0 && b == 0.0 { f32::from_bits(a.to_bits() & b.to_bits()) } else { a.max(b) }
    });
    check32("max.NaN.f32 $d, $a, $b;", |a, b, _| {
        if a.is_nan() || b.is_nan() {
            f32::NAN
        } else if a == 0.0 && b == 0.0 {
            f32::from_bits(a.to_bits() & b.to_bits())
        } else {
            a.max(b)
        }
    });
    check32("setp.ltu.f32 %p1, $a, $b; selp.f32 $d, 0f3F800000, 0f00000000, %p1;", |a, b, _| {
        if a < b || a.is_nan() || b.is_nan() { 1.0 } else { 0.0 }
    });
    check32("setp.ne.ftz.f32 %p1, $a, $b; selp.f32 $d, 0f3F800000, 0f00000000, %p1;", |a, b, _| {
        // In PTX, `ne` is false for what is no number.
        let (a, b) = (flushed(a), flushed(b));
        if a != b && !a.is_nan() && !b.is_nan() { 1.0 } else { 0.0 }
    });
    check32("testp.subnormal.f32 %p1, $a; selp.f32 $d, 0f3F800000, 0f00000000, %p1;", |a, _, _| {
        if a.is_subnormal() { 1.0 } else { 0.0 }
    });
    // Zeros count as normal.
    check32("testp.normal.f32 %p1, $a; selp.f32 $d, 0f3F800000, 0f00000000, %p1;", |a, _, _| {
        if a.is_normal() || a == 0.0 { 1.0 } else { 0.0 }
    });
}

#[test]
fn directed_roundings_are_next_to_the_exact_value() {
    let exact_down = |value: f64| {
        let near = value as f32;
        if f64::from(near) > value { near.next_down() } else { near }
    };
    let up = |value: f64| -exact_down(-value);
    check32("mul.rm.f32 $d, $a, $b;", |a, b, _| exact_down(f64::from(a) * f64::from(b)));
    check32("mul.rp.f32 $d, $a, $b;", |a, b, _| up(f64::from(a) * f64::from(b)));
    check32("mul.rz.f32 $d, $a, $b;", |a, b, _| {
        let product = f64::from(a) * f64::from(b);
        if product > 0.0 { exact_down(product) } else { up(product) }
    });
    check64("add.rp.f64 $d, $a, $b;", |a, b, _| {
        let sum = a + b;
        let part = sum - a;
        let rest = (a - (sum - part)) + (b - part);
        if sum.is_finite() && rest > 0.0 {
            sum.next_up()
        } else if sum == f64::NEG_INFINITY && a.is_finite() && b.is_finite() {
            f64::MIN
        } else {
            sum
        }
    });
    // A quotient that is rounded down, times the divisor, is not more than the dividend.
    let inputs = doubles(300);
    let down = evaluate("f64", "div.rm.f64 $d, $a, $b;", &inputs).unwrap();
    let near = evaluate("f64", "div.rn.f64 $d, $a, $b;", &inputs).unwrap();
    for ((inputs, down), near) in inputs.iter().zip(down).zip(near) {
        let [down, near] = [down, near].map(f64::from_bits);
        let [a, b, _] = inputs.map(f64::from_bits);
        assert!(
            near.is_nan() || down == near || down == near.next_down(),
            "{a:e} / {b:e}: {down:e}, {near:e}"
        );
    }
}

#[test]
fn arithmetic_of_64_bits_is_correctly_rounded() {
    check64("add.f64 $d, $a, $b;", |a, b, _| a + b);
    check64("sub.f64 $d, $a, $b;", |a, b, _| a - b);
    check64("mul.rn.f64 $d, $a, $b;", |a, b, _| a * b);
    check64("fma.rn.f64 $d, $a, $b, $c;", |a, b, c| a.mul_add(b, c));
    check64("div.rn.f64 $d, $a, $b;", |a, b, _| a / b);
    check64("sqrt.rn.f64 $d, $a;", |a, _, _| a.sqrt());
    check64("max.f64 $d, $a, $b;", |a, b, _| a.max(b));
    check64("abs.f64 $d, $a;", |a, _, _| a.abs());
    check64("copysign.f64 $d, $a, $b;", |a, b, _| b.copysign(a));
    check64("rcp.approx.ftz.f64 $d, $a;", |a, _, _| 1.0 / f64::from_bits(a.to_bits() >> 32 << 32));
}

#[test]
fn approximate_functions_are_the_nearest_numbers() {
    check32("ex2.approx.ftz.f32 $d, $a;", |a, _, _| flushed(f64::from(flushed(a)).exp2() as f32));
    check32("lg2.approx.f32 $d, $a;", |a, _, _| f64::from(a).log2() as f32);
    check32("sin.approx.f32 $d, $a;", |a, _, _| f64::from(a).sin() as f32);
    check32("cos.approx.ftz.f32 $d, $a;", |a, _, _| f64::from(flushed(a)).cos() as f32);
    check32("tanh.approx.f32 $d, $a;", |a, _, _| f64::from(a).tanh() as f32);
    check32("rsqrt.approx.f32 $d, $a;", |a, _, _| (1.0 / f64::from(a).sqrt()) as f32);
    check32("sqrt.approx.f32 $d, $a;", |a, _, _| a.sqrt());
    check32("div.full.f32 $d, $a, $b;", |a, b, _| a / b);
    check32("div.approx.ftz.f32 $d, $a, $b;", |a, b, _| flushed(flushed(a) / flushed(b)));
}

#[test]
fn numbers_become_integers_with_limits() {
    let clamped = |value: f64| value.clamp(-2_147_483_648.0, 2_147_483_647.0) as i32 as u64;
    let number = |bits: u64| f64::from(f32::from_bits(bits as u32));
    let inputs = singles(600);
    check_bits("mov.b32 %f1, $a; cvt.rzi.s32.f32 $d, %f1;", &inputs, |a, _, _| clamped(number(a)));
    check_bits("mov.b32 %f1, $a; cvt.rni.s32.f32 $d, %f1;", &inputs, |a, _, _| {
        clamped(number(a).round_ties_even())
    });
    check_bits("mov.b32 %f1, $a; cvt.rmi.s32.f32 $d, %f1;", &inputs, |a, _, _| clamped(number(a).floor()));
    check_bits("mov.b32 %f1, $a; cvt.rpi.u32.f32 $d, %f1;", &inputs, |a, _, _| {
        number(a).ceil() as u32 as u64
    });
    check_bits("mov.b32 %f1, $a; cvt.rzi.u8.f32 $d, %f1;", &inputs, |a, _, _| number(a) as u8 as u64);
    check32("cvt.rni.f32.f32 $d, $a;", |a, _, _| a.round_ties_even());
    check32("cvt.rmi.ftz.f32.f32 $d, $a;", |a, _, _| flushed(a).floor());
    check32("cvt.rpi.f32.f32 $d, $a;", |a, _, _| a.ceil());
    check32("cvt.sat.f32.f32 $d, $a;", |a, _, _| if a > 0.0 { a.min(1.0) } else { 0.0 });
    let wide = evaluate("f64", "cvt.rzi.s64.f64 %rd5, $a; mov.b64 $d, %rd5;", &doubles(300)).unwrap();
    for (inputs, result) in doubles(300).iter().zip(wide) {
        let value = f64::from_bits(inputs[0]);
        let expected = if value.is_nan() { i64::MIN } else { value as i64 };
        assert_eq!(result as i64, expected, "{value:e}");
    }
}

#[test]
fn integers_and_other_widths_become_numbers() {
    let inputs = device::operands(3, 600);
    check_bits("cvt.rn.f32.s32 %f1, $a; mov.b32 $d, %f1;", &inputs, |a, _, _| {
        (a as i32 as f32).to_bits().into()
    });
    check_bits("cvt.rn.f32.u32 %f1, $a; mov.b32 $d, %f1;", &inputs, |a, _, _| {
        (a as u32 as f32).to_bits().into()
    });
    check_bits("cvt.rz.f32.u32 %f1, $a; mov.b32 $d, %f1;", &inputs, |a, _, _| {
        let near = a as f32;
        u64::from((if f64::from(near) > a as f64 { near.next_down() } else { near }).to_bits())
    });
    let results = evaluate("b64", "cvt.rn.f64.s64 %d1, $a; mov.b64 $d, %d1;", &inputs).unwrap();
    for (inputs, result) in inputs.iter().zip(results) {
        assert_eq!(result, (inputs[0] as i64 as f64).to_bits());
    }
    check64("cvt.rn.f32.f64 %f1, $a; cvt.f64.f32 $d, %f1;", |a, _, _| f64::from(a as f32));
    check_bits(
        "mov.b32 %f1, $a; cvt.rna.tf32.f32 $d, %f1;",
        &[[0x3f80_1000, 0, 0], [0x3f80_0fff, 0, 0], [0xff80_0000, 0, 0]],
        |a, _, _| {
            [0x3f80_2000, 0x3f80_0000, 0xff80_0000]
                [[0x3f80_1000, 0x3f80_0fff, 0xff80_0000].iter().position(|&x| x == a).unwrap()]
        },
    );
}

/// A number of 16 bits, read from its definition.
fn f16(bits: u64) -> f64 {
    let (exponent, fraction) = (bits >> 10 & 31, (bits & 0x3ff) as f64);
    let size = match exponent {
        0 => fraction * 2f64.powi(-24),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (1024.0 + fraction) * 2f64.powi(exponent as i32 - 25),
    };
    if bits & 0x8000 != 0 { -size } else { size }
}

/// The nearest number of 16 bits, searched for among all.
fn nearest16(value: f64) -> u64 {
    if value.is_nan() {
        return 0x7fff;
    }
    let sign = if value.is_sign_negative() { 0x8000 } else { 0 };
    let size = value.abs();
    // Beyond 65504 the step would go on: 65520 is the middle to what would come.
    if size >= 65520.0 {
        return sign | 0x7c00;
    }
    let below = (0..0x7c00u64).rev().find(|&bits| f16(bits) <= size).unwrap();
    let above = if below == 0x7bff { 65536.0 } else { f16(below + 1) };
    let (down, up) = (size - f16(below), above - size);
    sign | if down < up || (down == up && below & 1 == 0) { below } else { below + 1 }
}

#[test]
fn numbers_of_16_bits_are_rounded_once() {
    let mut random = Random(5);
    let inputs: Vec<_> = (0..250).map(|_| [random.next(), random.next(), random.next()]).collect();
    let halves = "cvt.u16.u32 %h1, $a; cvt.u16.u32 %h2, $b; cvt.u16.u32 %h3, $c;";
    let join = "cvt.u32.u16 $d, %h9;";
    let low = |bits: u64| f16(bits & 0xffff);
    check_bits(&format!("{halves} add.f16 %h9, %h1, %h2; {join}"), &inputs, |a, b, _| {
        nearest16(low(a) + low(b))
    });
    check_bits(&format!("{halves} mul.rn.f16 %h9, %h1, %h2; {join}"), &inputs, |a, b, _| {
        nearest16(low(a) * low(b))
    });
    check_bits("fma.rn.f16x2 $d, $a, $b, $c;", &inputs, |a, b, c| {
        let one = |shift: u32| {
            let [a, b, c] = [a, b, c].map(|bits| f16(bits >> shift & 0xffff));
            // A product has 22 bits and the sum at most 42 more than a double if it matters: add what was lost.
            let (product, sum) = (a * b, a * b + c);
            let part = sum - product;
            let lost = (product - (sum - part)) + (c - part);
            let is_middle = f16(nearest16(sum.next_up())) != f16(nearest16(sum.next_down()));
            nearest16(if lost != 0.0 && is_middle {
                if lost > 0.0 { sum.next_up() } else { sum.next_down() }
            } else {
                sum
            })
        };
        one(0) | one(16) << 16
    });
    check_bits("mov.b32 %f1, $a; cvt.rn.f16.f32 %h9, %f1; cvt.u32.u16 $d, %h9;", &singles(300), |a, _, _| {
        nearest16(f64::from(f32::from_bits(a as u32)))
    });
    check_bits("cvt.u16.u32 %h1, $a; cvt.f32.f16 %f1, %h1; mov.b32 $d, %f1;", &inputs, |a, _, _| {
        let value = low(a) as f32;
        if value.is_nan() { 0x7fff_ffff } else { value.to_bits().into() }
    });
    check_bits(
        "max.f16x2 $d, $a, $b;",
        &[[0x3c00_c000, 0x4000_bc00, 0], [0x7e00_8000, 0x3c00_0000, 0]],
        |a, _, _| {
            if a == 0x3c00_c000 { 0x4000_bc00 } else { 0x3c00_0000 }
        },
    );
    check_bits("set.gt.f16x2.f16x2 $d, $a, $b;", &[[0x3c00_c000, 0x3800_bc00, 0]], |_, _, _| 0x3c00_0000);
    check_bits(
        "setp.gt.f16x2 %p1|%p2, $a, $b; selp.b32 $d, 1, 0, %p1; @%p2 add.u32 $d, $d, 2;",
        &[[0x3c00_c000, 0x3800_bc00, 0]],
        |_, _, _| 2,
    );
}

#[test]
fn comparisons_of_16_bits_take_small_numbers_for_zeros_if_asked() {
    // The greatest and the least number that is not normal, the least one that is, and a zero.
    let pairs = [[0x03ff_0400, 0x8001_03ff, 0], [0x8001_0001, 0x0000_0400, 0], [0x0400_03ff, 0x0400_8001, 0]];
    let zero = |half: u64| if half & 0x7c00 == 0 { 0 } else { half };
    let are_equal = |a: u64, b: u64| zero(a & 0xffff) == zero(b & 0xffff);
    check_bits("set.eq.ftz.f16x2.f16x2 $d, $a, $b;", &pairs, |a, b, _| {
        let one = |shift: u64| if are_equal(a >> shift, b >> shift) { 0x3c00 } else { 0 };
        one(0) | one(16) << 16
    });
    check_bits(
        "cvt.u16.u32 %h1, $a; cvt.u16.u32 %h2, $b; setp.ne.ftz.f16 %p1, %h1, %h2; selp.b32 $d, 1, 0, %p1;",
        &pairs,
        |a, b, _| u64::from(!are_equal(a, b)),
    );
    check_bits("set.eq.f16x2.f16x2 $d, $a, $b;", &pairs[..2], |_, _, _| 0);
}

#[test]
fn brain_numbers_are_the_upper_half_of_singles() {
    let nearest = |value: f32| {
        let bits = value.to_bits();
        if value.is_nan() { 0x7fff } else { u64::from((bits + 0x7fff + (bits >> 16 & 1)) >> 16) }
    };
    let number = |bits: u64| f32::from_bits((bits as u32) << 16);
    check_bits(
        "mov.b32 %f1, $a; cvt.rn.bf16.f32 %h9, %f1; cvt.u32.u16 $d, %h9;",
        &singles(400),
        |a, _, _| nearest(f32::from_bits(a as u32)),
    );
    check_bits(
        "mov.b32 %f1, $a; mov.b32 %f2, $b; cvt.rn.bf16x2.f32 $d, %f1, %f2;",
        &singles(400),
        |a, b, _| nearest(f32::from_bits(a as u32)) << 16 | nearest(f32::from_bits(b as u32)),
    );
    let mut random = Random(6);
    let near_one: Vec<_> = (0..300).map(|_| [0, 1, 2].map(|_| 0x3f00 | (random.next() & 0x80ff))).collect();
    check_bits(
        "cvt.u16.u32 %h1, $a; cvt.u16.u32 %h2, $b; cvt.u16.u32 %h3, $c; fma.rn.bf16 %h9, %h1, %h2, %h3; cvt.u32.u16 $d, %h9;",
        &near_one,
        |a, b, c| {
            // Of numbers between a half and two, all is exact in 64 bits but the last rounding.
            let exact = f64::from(number(a)) * f64::from(number(b)) + f64::from(number(c));
            let (down, up) = (exact as f32, exact as f32);
            assert_eq!(f64::from(down), exact, "exact in 32 bits, too");
            nearest(up)
        },
    );
    check_bits("add.rn.bf16x2 $d, $a, $b;", &[[0x3f80_4000, 0x3f80_bf80, 0]], |_, _, _| 0x4000_3f80);
}

#[test]
fn numbers_of_8_bits_are_the_nearest_and_end_at_the_largest() {
    // By definition: four bits of exponent and three of fraction, or five and two.
    let number = |bits: u64, fraction: i32, bias: i32| {
        let (exponent, rest) =
            ((bits & 0x7f) as i32 >> fraction, (bits & 0x7f) as i32 & ((1 << fraction) - 1));
        let mantissa = if exponent == 0 { rest } else { rest + (1 << fraction) };
        f64::from(mantissa)
            * 2f64.powi(exponent.max(1) - bias - fraction)
            * if bits & 0x80 != 0 { -1.0 } else { 1.0 }
    };
    for (name, fraction, bias, largest) in [("e4m3x2", 3, 7, 0x7eu64), ("e5m2x2", 2, 15, 0x7b)] {
        let all: Vec<[u64; 3]> =
            (0..=largest).map(|bits| [bits | (largest - bits) << 8 | 0x8000, 0, 0]).collect();
        check_bits(&format!("cvt.u16.u32 %h1, $a; cvt.rn.f16x2.{name} $d, %h1;"), &all, |a, _, _| {
            nearest16(number(a & 0xff, fraction, bias)) | nearest16(number(a >> 8, fraction, bias)) << 16
        });
        let back = format!(
            "cvt.u16.u32 %h1, $a; cvt.rn.f16x2.{name} %r4, %h1; cvt.rn.satfinite.{name}.f16x2 %h2, %r4; cvt.u32.u16 $d, %h2;"
        );
        check_bits(&back, &all, |a, _, _| a);
        let singles: Vec<_> =
            singles(400).into_iter().map(|[a, b, c]| [(a & 0x80ff_ffff) | 0x3f00_0000, b, c]).collect();
        let narrow = format!(
            "mov.b32 %f1, $a; mov.b32 %f2, $b; cvt.rn.satfinite.{name}.f32 %h1, %f1, %f2; cvt.u32.u16 $d, %h1;"
        );
        let nearest = |bits: u64| {
            let value = f64::from(f32::from_bits(bits as u32));
            if value.is_nan() {
                return 0x7f;
            }
            let size = value.abs().min(number(largest, fraction, bias));
            let best = (0..=largest).min_by(|&a, &b| {
                let far = |bits| (number(bits, fraction, bias) - size).abs();
                far(a).total_cmp(&far(b)).then((a & 1).cmp(&(b & 1)))
            });
            best.unwrap() | if value.is_sign_negative() { 0x80 } else { 0 }
        };
        check_bits(&narrow, &singles, |a, b, _| nearest(a) << 8 | nearest(b));
        let cut = narrow.replace("satfinite", "satfinite.relu");
        let edges = [[0x8000_0000, 0, 0], [0, 0x8000_0000, 0], [0x8000_0001, 0xbf80_0000, 0]];
        check_bits(&cut, &edges, |_, _, _| 0);
        let wide = format!("cvt.u16.u32 %h1, $a; cvt.rn.relu.f16x2.{name} $d, %h1;");
        check_bits(&wide, &[[0x8080, 0, 0], [0x8001, 0, 0]], |a, _, _| {
            nearest16(number(a & 0x7f, fraction, bias))
        });
    }
}
