//! Each integer instruction against plain Rust.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, in its helpers too")]

mod device;

use device::{evaluate, operands};

/// Compares an instruction with what Rust computes of the same operands.
fn check(kind: &str, instruction: &str, expected: impl Fn(u64, u64, u64) -> u64) {
    let inputs = operands(7, 400);
    let mask = match kind {
        "b16" => 0xffff,
        "b32" => 0xffff_ffff,
        _ => u64::MAX,
    };
    let results =
        evaluate(kind, instruction, &inputs).unwrap_or_else(|error| panic!("{instruction}: {error}"));
    for (inputs, result) in inputs.iter().zip(results) {
        let [a, b, c] = inputs.map(|input| input & mask);
        assert_eq!(result, expected(a, b, c) & mask, "{instruction} of {a:#x}, {b:#x}, {c:#x}");
    }
}

#[test]
fn sums_differences_and_products() {
    check("b16", "add.s16 $d, $a, $b;", |a, b, _| a.wrapping_add(b));
    check("b32", "add.u32 $d, $a, $b;", |a, b, _| a.wrapping_add(b));
    check("b64", "add.s64 $d, $a, -5;", |a, _, _| a.wrapping_sub(5));
    check("b32", "add.sat.s32 $d, $a, $b;", |a, b, _| (a as i32).saturating_add(b as i32) as u64);
    check("b32", "sub.sat.s32 $d, $a, $b;", |a, b, _| (a as i32).saturating_sub(b as i32) as u64);
    check("b64", "sub.u64 $d, $a, $b;", |a, b, _| a.wrapping_sub(b));
    check("b32", "mul.lo.s32 $d, $a, $b;", |a, b, _| a.wrapping_mul(b));
    check("b32", "mul.hi.s32 $d, $a, $b;", |a, b, _| ((a as i32 as i64 * b as i32 as i64) >> 32) as u64);
    check("b32", "mul.hi.u32 $d, $a, $b;", |a, b, _| (a * b) >> 32);
    check("b64", "mul.hi.u64 $d, $a, $b;", |a, b, _| ((u128::from(a) * u128::from(b)) >> 64) as u64);
    check("b64", "mul.hi.s64 $d, $a, $b;", |a, b, _| ((a as i64 as i128 * b as i64 as i128) >> 64) as u64);
    check("b16", "mul.hi.u16 $d, $a, $b;", |a, b, _| (a * b) >> 16);
    check("b32", "mad.lo.s32 $d, $a, $b, $c;", |a, b, c| a.wrapping_mul(b).wrapping_add(c));
    check("b64", "mad.hi.u64 $d, $a, $b, $c;", |a, b, c| {
        (((u128::from(a) * u128::from(b)) >> 64) as u64).wrapping_add(c)
    });
    check("b32", "mul24.lo.u32 $d, $a, $b;", |a, b, _| (a & 0xff_ffff) * (b & 0xff_ffff));
    check("b32", "mul24.hi.u32 $d, $a, $b;", |a, b, _| ((a & 0xff_ffff) * (b & 0xff_ffff)) >> 16);
    check("b32", "mad24.lo.s32 $d, $a, $b, $c;", |a, b, c| {
        let low = |value: u64| ((value as u32) << 8) as i32 as i64 >> 8;
        ((low(a) * low(b)) as u64).wrapping_add(c)
    });
    check("b32", "sad.u32 $d, $a, $b, $c;", |a, b, c| a.abs_diff(b).wrapping_add(c));
    check("b32", "sad.s32 $d, $a, $b, $c;", |a, b, c| {
        u64::from((a as i32).abs_diff(b as i32)).wrapping_add(c)
    });
}

#[test]
fn what_is_never_below_zero() {
    check("b32", "min.relu.s32 $d, $a, $b;", |a, b, _| (a as i32).min(b as i32).max(0) as u64);
    check("b32", "max.s32.relu $d, $a, $b;", |a, b, _| (a as i32).max(b as i32).max(0) as u64);
    let halves = |pick: fn(i16, i16) -> i16, a: u64, b: u64| {
        let one =
            |shift: u32| u64::from(pick((a >> shift) as i16, (b >> shift) as i16).max(0) as u16) << shift;
        one(0) | one(16)
    };
    check("b32", "min.s16x2.relu $d, $a, $b;", |a, b, _| halves(i16::min, a, b));
    check("b32", "max.relu.s16x2 $d, $a, $b;", |a, b, _| halves(i16::max, a, b));
    for other in ["max.relu.u32", "max.relu.u16x2", "max.relu.f32", "add.relu.s32"] {
        let error = evaluate("b32", &format!("{other} $d, $a, $b;"), &operands(7, 1)).unwrap_err();
        assert!(error.to_string().contains("not supported"), "{other}: {error}");
    }
}

#[test]
fn wide_products_are_exact() {
    check("b64", "cvt.u32.u64 %r1, $a; cvt.u32.u64 %r2, $b; mul.wide.s32 $d, %r1, %r2;", |a, b, _| {
        (i64::from(a as i32) * i64::from(b as i32)) as u64
    });
    check("b64", "cvt.u32.u64 %r1, $a; mul.wide.u32 $d, %r1, 1431655766;", |a, _, _| {
        (a & 0xffff_ffff) * 1_431_655_766
    });
    check("b64", "cvt.u32.u64 %r1, $a; cvt.u32.u64 %r2, $b; mad.wide.s32 $d, %r1, %r2, $c;", |a, b, c| {
        ((i64::from(a as i32) * i64::from(b as i32)) as u64).wrapping_add(c)
    });
    check("b32", "cvt.u16.u32 %h1, $a; cvt.u16.u32 %h2, $b; mul.wide.u16 $d, %h1, %h2;", |a, b, _| {
        (a & 0xffff) * (b & 0xffff)
    });
}

#[test]
fn quotients_and_remainders_even_by_zero() {
    check("b32", "div.u32 $d, $a, $b;", |a, b, _| a.checked_div(b).unwrap_or(u64::MAX));
    check("b32", "div.s32 $d, $a, $b;", |a, b, _| match b {
        0 => u64::MAX,
        _ => (a as i32).wrapping_div(b as i32) as u64,
    });
    check("b64", "div.s64 $d, $a, $b;", |a, b, _| match b {
        0 => u64::MAX,
        _ => (a as i64).wrapping_div(b as i64) as u64,
    });
    check("b64", "rem.s64 $d, $a, $b;", |a, b, _| match b {
        0 => a,
        _ => (a as i64).wrapping_rem(b as i64) as u64,
    });
    check("b32", "rem.u32 $d, $a, $b;", |a, b, _| a.checked_rem(b).unwrap_or(a));
    check("b16", "div.u16 $d, $a, $b;", |a, b, _| a.checked_div(b).unwrap_or(u64::MAX));
    check("b16", "rem.s16 $d, $a, $b;", |a, b, _| match b {
        0 => a,
        _ => (a as i16).wrapping_rem(b as i16) as u64,
    });
}

#[test]
fn least_greatest_and_signs() {
    check("b32", "min.s32 $d, $a, $b;", |a, b, _| (a as i32).min(b as i32) as u64);
    check("b32", "max.u32 $d, $a, $b;", |a, b, _| a.max(b));
    check("b16", "max.s16 $d, $a, $b;", |a, b, _| (a as i16).max(b as i16) as u64);
    check("b64", "min.u64 $d, $a, $b;", |a, b, _| a.min(b));
    check("b32", "abs.s32 $d, $a;", |a, _, _| (a as i32).wrapping_abs() as u64);
    check("b64", "abs.s64 $d, $a;", |a, _, _| (a as i64).wrapping_abs() as u64);
    check("b32", "neg.s32 $d, $a;", |a, _, _| (a as i32).wrapping_neg() as u64);
    check("b32", "max.s16x2 $d, $a, $b;", |a, b, _| {
        let half = |shift: u32| ((a >> shift) as i16).max((b >> shift) as i16) as u16 as u64;
        half(0) | half(16) << 16
    });
}

#[test]
fn carries_go_from_one_instruction_to_the_next() {
    let halves = "cvt.u32.u64 %r1, $a; shr.u64 %rd10, $a, 32; cvt.u32.u64 %r2, %rd10;
        cvt.u32.u64 %r3, $b; shr.u64 %rd10, $b, 32; cvt.u32.u64 %r4, %rd10;";
    let join = "mov.b64 $d, {%r5, %r6};";
    check("b64", &format!("{halves} add.cc.u32 %r5, %r1, %r3; addc.u32 %r6, %r2, %r4; {join}"), |a, b, _| {
        a.wrapping_add(b)
    });
    check("b64", &format!("{halves} sub.cc.u32 %r5, %r1, %r3; subc.u32 %r6, %r2, %r4; {join}"), |a, b, _| {
        a.wrapping_sub(b)
    });
    let product = "mul.lo.u32 %r5, %r1, %r3; mul.hi.u32 %r6, %r1, %r3; mad.lo.u32 %r6, %r1, %r4, %r6;
        mad.lo.u32 %r6, %r2, %r3, %r6;";
    check("b64", &format!("{halves} {product} {join}"), |a, b, _| a.wrapping_mul(b));
    // The middle of a product of 128 bits.
    let high = "mul.hi.u32 %r7, %r1, %r3; mov.u32 %r8, 0; mad.lo.cc.u32 %r7, %r1, %r4, %r7; madc.hi.u32 %r8, %r1, %r4, 0;
        mad.lo.cc.u32 %r7, %r2, %r3, %r7; madc.hi.cc.u32 %r8, %r2, %r3, %r8; addc.u32 %r10, 0, 0;
        mad.lo.cc.u32 %r5, %r2, %r4, %r8; madc.hi.u32 %r6, %r2, %r4, %r10;";
    check("b64", &format!("{halves} {high} {join}"), |a, b, _| {
        ((u128::from(a) * u128::from(b)) >> 64) as u64
    });
    // Behind a difference the carry says that nothing was borrowed.
    check("b64", "sub.cc.u64 %rd10, $a, $b; addc.u64 $d, 0, 0;", |a, b, _| u64::from(a >= b));
    check("b64", "sub.cc.u64 %rd10, $a, $b; subc.u64 $d, 7, 0;", |a, b, _| 7 - u64::from(a < b));
    check("b64", "add.cc.u64 %rd10, $a, $b; addc.u64 $d, 0, 0;", |a, b, _| {
        u64::from(a.checked_add(b).is_none())
    });
}

#[test]
fn bits_and_fields() {
    check("b32", "lop3.b32 $d, $a, $b, $c, 0xE8;", |a, b, c| (a & b) | (a & c) | (b & c));
    check("b32", "lop3.b32 $d, $a, $b, $c, 0x96;", |a, b, c| a ^ b ^ c);
    check("b32", "not.b32 $d, $a;", |a, _, _| !a);
    check("b16", "xor.b16 $d, $a, $b;", |a, b, _| a ^ b);
    check("b32", "cnot.b32 $d, $a;", |a, _, _| u64::from(a == 0));
    check("b32", "brev.b32 $d, $a;", |a, _, _| u64::from((a as u32).reverse_bits()));
    check("b64", "brev.b64 $d, $a;", |a, _, _| a.reverse_bits());
    check("b32", "clz.b32 $d, $a;", |a, _, _| u64::from((a as u32).leading_zeros()));
    check("b32", "popc.b32 $d, $a;", |a, _, _| u64::from(a.count_ones()));
    check("b64", "popc.b64 %r9, $a; cvt.u64.u32 $d, %r9;", |a, _, _| u64::from(a.count_ones()));
    check("b32", "bfind.u32 $d, $a;", |a, _, _| (a as u32).checked_ilog2().map_or(u64::MAX, u64::from));
    check("b32", "bfind.s32 $d, $a;", |a, _, _| {
        let value = if (a as i32) < 0 { !(a as u32) } else { a as u32 };
        value.checked_ilog2().map_or(u64::MAX, u64::from)
    });
    check("b32", "bfind.shiftamt.u32 $d, $a;", |a, _, _| {
        if a == 0 { u64::MAX } else { u64::from((a as u32).leading_zeros()) }
    });
    check("b32", "bfe.u32 $d, $a, $b, $c;", |a, b, c| {
        let (start, length) = (b & 0xff, c & 0xff);
        (0..length.min(32))
            .filter(|bit| start + bit < 32 && a >> (start + bit) & 1 == 1)
            .map(|bit| 1 << bit)
            .sum()
    });
    check("b32", "bfe.s32 $d, $a, $b, $c;", |a, b, c| {
        let (start, length) = (b & 0xff, c & 0xff);
        let sign = if length == 0 { 0 } else { a >> (start + length - 1).min(31) & 1 };
        let bit = |bit| if bit < length && start + bit < 32 { a >> (start + bit) & 1 } else { sign };
        (0..32).map(|place| bit(place) << place).sum()
    });
    check("b32", "bfi.b32 $d, $a, $b, 8, 13;", |a, b, _| (b & !(0x1fff << 8)) | (a & 0x1fff) << 8);
    check("b32", "bfi.b32 $d, $a, $b, $c, $c;", |a, b, c| {
        let (start, length) = (c & 0xff, c & 0xff);
        let inside = |bit: u64| bit >= start && bit < start + length;
        (0..32).map(|bit| (if inside(bit) { a >> (bit - start) & 1 } else { b >> bit & 1 }) << bit).sum()
    });
    check("b32", "bmsk.clamp.b32 $d, $a, $b;", |a, b, _| {
        (0..32).filter(|&bit| bit >= a && bit - a < b).map(|bit| 1 << bit).sum()
    });
    check("b32", "szext.clamp.s32 $d, $a, $b;", |a, b, _| match b {
        0 => 0,
        1..32 => ((a << (64 - b)) as i64 >> (64 - b)) as u64,
        _ => a,
    });
    check("b32", "fns.b32 $d, $a, 3, 2;", |a, _, _| {
        (3..32).filter(|bit| a >> bit & 1 == 1).nth(1).unwrap_or(u64::MAX)
    });
}

#[test]
fn shifts_beyond_the_width_give_zeros_or_signs() {
    check("b32", "shl.b32 $d, $a, $b;", |a, b, _| if b > 31 { 0 } else { a << b });
    check("b32", "shr.u32 $d, $a, $b;", |a, b, _| if b > 31 { 0 } else { a >> b });
    check("b32", "shr.s32 $d, $a, $b;", |a, b, _| ((a as i32) >> b.min(31)) as u64);
    check("b16", "cvt.u32.u16 %r2, $b; shr.s16 $d, $a, %r2;", |a, b, _| ((a as i16) >> b.min(15)) as u64);
    check("b16", "cvt.u32.u16 %r2, $b; shl.b16 $d, $a, %r2;", |a, b, _| if b > 15 { 0 } else { a << b });
    check("b64", "cvt.u32.u64 %r2, $b; shr.s64 $d, $a, %r2;", |a, b, _| {
        (a as i64 >> (b & 0xffff_ffff).min(63)) as u64
    });
    check("b32", "shf.l.wrap.b32 $d, $a, $b, $c;", |a, b, c| ((b << 32 | a) << (c & 31)) >> 32);
    check(
        "b32",
        "shf.l.clamp.b32 $d, $a, $b, $c;",
        |a, b, c| {
            if c >= 32 { a } else { ((b << 32 | a) << c) >> 32 }
        },
    );
    check("b32", "shf.r.wrap.b32 $d, $a, $b, $c;", |a, b, c| (b << 32 | a) >> (c & 31));
    check("b32", "shf.r.clamp.b32 $d, $a, $b, $c;", |a, b, c| (b << 32 | a) >> c.min(32));
}

#[test]
fn bytes_are_permuted_and_multiplied() {
    let bytes = |a: u64, b: u64| (b << 32 | a).to_le_bytes();
    check("b32", "prmt.b32 $d, $a, $b, $c;", |a, b, c| {
        (0..4)
            .map(|index| {
                let pick = c >> (4 * index);
                let byte = u64::from(bytes(a, b)[(pick & 7) as usize]);
                let byte = if pick & 8 == 0 { byte } else { (byte >> 7) * 0xff };
                byte << (8 * index)
            })
            .sum()
    });
    check("b32", "prmt.b32 $d, $a, $b, 30212;", |a, b, _| {
        let bytes = bytes(a, b);
        u64::from(u32::from_le_bytes([bytes[4], bytes[0], bytes[6], bytes[7]]))
    });
    check("b32", "prmt.b32.b4e $d, $a, $b, 1;", |a, b, _| {
        let bytes = bytes(a, b);
        u64::from(u32::from_le_bytes([bytes[1], bytes[0], bytes[7], bytes[6]]))
    });
    let four = |a: u64| (a as u32).to_le_bytes();
    check("b32", "dp4a.s32.s32 $d, $a, $b, $c;", |a, b, c| {
        let dot: i64 =
            four(a).iter().zip(four(b)).map(|(&a, b)| i64::from(a as i8) * i64::from(b as i8)).sum();
        (dot as u64).wrapping_add(c)
    });
    check("b32", "dp4a.u32.s32 $d, $a, $b, $c;", |a, b, c| {
        let dot: i64 = four(a).iter().zip(four(b)).map(|(&a, b)| i64::from(a) * i64::from(b as i8)).sum();
        (dot as u64).wrapping_add(c)
    });
    check("b32", "dp2a.hi.s32.u32 $d, $a, $b, $c;", |a, b, c| {
        let dot =
            i64::from(a as i16) * i64::from(four(b)[2]) + i64::from((a >> 16) as i16) * i64::from(four(b)[3]);
        (dot as u64).wrapping_add(c)
    });
}

#[test]
fn comparisons_choose_and_join() {
    check("b32", "setp.lt.s32 %p1, $a, $b; selp.b32 $d, $a, $b, %p1;", |a, b, _| {
        if (a as i32) < b as i32 { a } else { b }
    });
    check("b32", "setp.hi.u32 %p1, $a, $b; selp.u32 $d, 1, 0, !%p1;", |a, b, _| u64::from(a <= b));
    check(
        "b32",
        "setp.eq.u32 %p1, $c, 0; setp.lt.and.u32 %p2|%p3, $a, $b, !%p1; selp.b32 %r4, 1, 0, %p2; selp.b32 %r5, 2, 0, %p3; or.b32 $d, %r4, %r5;",
        |a, b, c| u64::from(a < b && c != 0) + 2 * u64::from(a >= b && c != 0),
    );
    check("b32", "set.ge.u32.s32 $d, $a, $b;", |a, b, _| if a as i32 >= b as i32 { u64::MAX } else { 0 });
    check("b32", "set.ge.f32.s32 %f1, $a, $b; mov.b32 $d, %f1;", |a, b, _| {
        if a as i32 >= b as i32 { 0x3f80_0000 } else { 0 }
    });
    check("b32", "slct.u32.s32 $d, $a, $b, $c;", |a, b, c| if c as i32 >= 0 { a } else { b });
    check(
        "b32",
        "setp.gt.u32 %p1, $a, 9; setp.gt.u32 %p2, $b, 9; xor.pred %p3, %p1, %p2; not.pred %p4, %p3; mov.pred %p5, %p4;
         @%p5 mov.u32 $d, 7; @!%p5 mov.u32 $d, 8;",
        |a, b, _| if (a > 9) == (b > 9) { 7 } else { 8 },
    );
}

#[test]
fn integers_of_all_widths_are_converted() {
    check("b64", "cvt.s64.s8 $d, $a;", |a, _, _| a as i8 as u64);
    check("b64", "cvt.u16.u64 %h1, $a; cvt.s64.s16 $d, %h1;", |a, _, _| a as i16 as u64);
    check("b32", "cvt.u32.u8 $d, $a;", |a, _, _| a & 0xff);
    check("b32", "cvt.s8.s32 $d, $a;", |a, _, _| a as i8 as u64);
    check("b32", "cvt.sat.s8.s32 $d, $a;", |a, _, _| (a as i32).clamp(-128, 127) as u64);
    check("b32", "cvt.sat.u8.s32 $d, $a;", |a, _, _| (a as i32).clamp(0, 255) as u64);
    check("b32", "cvt.sat.u16.u32 $d, $a;", |a, _, _| a.min(65535));
    check("b64", "cvt.sat.u32.s64 %r1, $a; cvt.u64.u32 $d, %r1;", |a, _, _| {
        (a as i64).clamp(0, 0xffff_ffff) as u64
    });
    check("b32", "mov.b32 {%h1, %h2}, $a; mov.b32 $d, {%h2, %h1};", |a, _, _| a >> 16 | a << 16);
    check("b64", "mov.b64 {%r1, _}, $a; mov.b64 $d, {%r1, %r1};", |a, _, _| {
        (a & 0xffff_ffff) * 0x1_0000_0001
    });
}
