//! Kernels of `tests/kernels`, compiled by the real nvcc where it is installed (`tests/cuda-toolchain FOLDER` does that
//! without a GPU), against plain Rust.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, in its helpers too")]

mod device;

use device::{Device, Parameters, Random};
use hinterland_ptx::{LaunchError, LaunchGeometry};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock};

/// Texts by source and options: each is compiled once.
static TEXTS: Mutex<BTreeMap<String, Arc<OnceLock<String>>>> = Mutex::new(BTreeMap::new());

/// A device with one of the sources, compiled with more options; nothing without the compiler.
fn compiled(source: &str, options: &[&str]) -> Option<Device> {
    let tree = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let Ok(compiler) = std::fs::read_to_string(tree.join(".cache/cuda/nvcc")) else {
        eprintln!("skipped: nvcc is not installed (hint: tests/cuda-toolchain .cache/cuda)");
        return None;
    };
    let name = format!("{source}{}", options.concat());
    let text = TEXTS.lock().unwrap().entry(name.clone()).or_default().clone();
    let text = text.get_or_init(|| {
        let to = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.{}.ptx", std::process::id()));
        let output = Command::new(compiler.trim())
            .args(["-ptx", "-arch=sm_90"])
            .args(options)
            .arg("-o")
            .arg(&to)
            .arg(tree.join(format!("tests/kernels/{source}.cu")))
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = std::fs::read_to_string(&to).unwrap();
        std::fs::remove_file(&to).unwrap();
        text
    });
    Some(Device::new(text))
}

/// The same with and without the compiler's optimisation: code of both kinds looks quite different.
fn both(source: &str) -> Vec<Device> {
    [&[][..], &["-G"]].into_iter().filter_map(|options| compiled(source, options)).collect()
}

fn near(found: f64, expected: f64, tolerance: f64) {
    let allowed = tolerance * expected.abs().max(1.0);
    assert!((found - expected).abs() <= allowed, "{found:e}, not {expected:e}");
}

#[test]
fn threads_that_compute_alone() {
    let Some(mut device) = compiled("arithmetic", &[]) else { return };
    let mut random = Random(1);
    let count = 1000;
    let (x, y) = (random.numbers(count), random.numbers(count));
    let (at_x, at_y) = (device.put(&x), device.put(&y));
    device.launch(
        "saxpy",
        (8, 128, 0),
        &Parameters::default().with(2.5f32).with(at_x).with(at_y).with(count as i32).0,
    );
    for (index, result) in device.get::<f32>(at_y, count).into_iter().enumerate() {
        assert_eq!(result.to_bits(), 2.5f32.mul_add(x[index], y[index]).to_bits());
    }
    let start: Vec<u32> = (1..=count as u32).collect();
    let (at, out) = (device.put(&start), device.room(count as u64 * 4));
    device.launch("collatz", (4, 256, 0), &Parameters::default().with(at).with(out).with(count as i32).0);
    for (start, steps) in start.into_iter().zip(device.get::<u32>(out, count)) {
        let (mut value, mut expected) = (start, 0);
        while value != 1 && expected <= 300 {
            value = if value % 2 == 1 { 3 * value + 1 } else { value / 2 };
            expected += 1;
        }
        assert_eq!(steps, expected, "from {start}");
    }
    let kinds: Vec<i32> = (0..count).map(|_| random.below(12) as i32).collect();
    let (at, out) = (device.put(&kinds), device.room(count as u64 * 8));
    device.launch("cases", (4, 256, 0), &Parameters::default().with(at).with(out).with(count as i32).0);
    for (index, result) in device.get::<i64>(out, count).into_iter().enumerate() {
        let i = index as i64;
        let expected = match kinds[index] {
            0 => i + 11,
            1 => i * 3,
            2 => -i,
            3 => i << 40,
            4 => i ^ 0x0123_4567_89ab_cdef,
            5 => i64::from((i as u32 + 1).leading_zeros()),
            6 => i64::from((i as u32).reverse_bits()),
            7 => i - 1_000_000_007 * i,
            8 => i64::from((i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).count_ones()),
            9 => {
                if i == 0 {
                    0
                } else {
                    i64::from(i.trailing_zeros()) + 1
                }
            }
            other => i64::from(other),
        };
        assert_eq!(result, expected, "case {} of {i}", kinds[index]);
    }
}

#[test]
fn divisions_of_64_and_128_bits() {
    let Some(mut device) = compiled("arithmetic", &[]) else { return };
    let mut random = Random(2);
    let mut numbers = || -> Vec<i64> { (0..500).map(|_| random.next() as i64 >> random.below(63)).collect() };
    let (a, b) = (numbers(), numbers().into_iter().map(|b| if b == 0 { 7 } else { b }).collect::<Vec<_>>());
    let (at_a, at_b) = (device.put(&a), device.put(&b));
    let [quotient, remainder, high, wide] = [0; 4].map(|_| device.room(500 * 24));
    let parameters =
        Parameters::default().with(at_a).with(at_b).with(quotient).with(remainder).with(high).with(500);
    device.launch("divide", (2, 256, 0), &parameters.0);
    device.launch("wide", (2, 256, 0), &Parameters::default().with(at_a).with(at_b).with(wide).with(500).0);
    let (quotients, remainders) = (device.get::<i64>(quotient, 500), device.get::<u64>(remainder, 500));
    let (highs, wides) = (device.get::<u64>(high, 500), device.get::<u64>(wide, 1500));
    for index in 0..500 {
        let (x, y) = (a[index] as u64, b[index] as u64);
        assert_eq!(quotients[index], a[index].wrapping_div(b[index]));
        assert_eq!(remainders[index], x % y);
        let product = u128::from(x) * u128::from(y);
        assert_eq!(highs[index], (product >> 64) as u64);
        let sum = product + u128::from(x);
        assert_eq!(u128::from(wides[3 * index]) | u128::from(wides[3 * index + 1]) << 64, sum);
        assert_eq!(wides[3 * index + 2], (sum / u128::from(y | 1)) as u64);
    }
}

#[test]
fn functions_of_the_library() {
    let Some(mut device) = compiled("arithmetic", &[]) else { return };
    let x = Random(3).numbers(300);
    let (at, out) = (device.put(&x), device.room(300 * 32));
    device.launch("library", (3, 100, 0), &Parameters::default().with(at).with(out).with(300).0);
    let results = device.get::<f32>(out, 2400);
    for (index, value) in x.iter().map(|&x| f64::from(x)).enumerate() {
        let scaled = f64::from(x[index] * 1000.0);
        let size = f64::from(x[index].abs());
        let expected = [
            scaled.sin(),
            value.exp(),
            f64::from(x[index].abs() + 0.5).ln(),
            size.powf(f64::from(1.7f32)),
            value.tanh(),
            1.0 / f64::from(x[index].abs() + 1.0).sqrt(),
            f64::from((x[index] * 10.0).round()),
        ];
        for (found, expected) in results[8 * index..].iter().zip(expected) {
            // The library promises four units in the last place, and less for most.
            near(f64::from(*found), expected, 5e-7);
        }
    }
    let x: Vec<f64> = x.into_iter().map(f64::from).collect();
    let (at, out) = (device.put(&x), device.room(300 * 48));
    device.launch("doubles", (3, 100, 0), &Parameters::default().with(at).with(out).with(300).0);
    let results = device.get::<f64>(out, 1800);
    for (index, value) in x.into_iter().enumerate() {
        let found = &results[6 * index..];
        assert_eq!(found[0], value / 3.0 + value.abs().sqrt());
        near(found[1], (value * 100.0).sin(), 4e-16);
        near(found[2], value.exp(), 4e-16);
        assert_eq!(found[3], if value == 0.0 { 1e-20 } else { value.next_up() });
        assert_eq!(found[4], (value * 7.5).floor());
        assert_eq!(found[5], (value * 1e9).trunc());
    }
}

/// A number of IEEE's 16 bits, by its definition.
fn half(bits: u16) -> f64 {
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f64::from(bits & 0x3ff));
    let size = if exponent == 0 {
        fraction * 2f64.powi(-24)
    } else {
        (1024.0 + fraction) * 2f64.powi(exponent - 25)
    };
    if bits & 0x8000 != 0 { -size } else { size }
}

#[test]
fn pairs_of_halves() {
    let Some(mut device) = compiled("arithmetic", &[]) else { return };
    let mut random = Random(4);
    // Numbers from 1/4 to 4, of both signs.
    let mut numbers = |low: u16, mask: u16| -> Vec<u16> {
        (0..512).map(|_| (low + (random.next() as u16 & mask)) | (random.next() as u16 & 0x8000)).collect()
    };
    let (a, b, c) = (numbers(0x3400, 0xfff), numbers(0x3400, 0xfff), numbers(0x3e80, 0x1ff));
    let (at_a, at_b, at_c) = (device.put(&a), device.put(&b), device.put(&c));
    let [out, brains, singles] = [0; 3].map(|_| device.room(512 * 6));
    let parameters =
        Parameters::default().with(at_a).with(at_b).with(out).with(at_c).with(brains).with(singles).with(256);
    device.launch("halves", (2, 128, 0), &parameters.0);
    let results = device.get::<u16>(out, 1536);
    for index in 0..512 {
        let found = |which: usize| half(results[index / 2 * 6 + which * 2 + index % 2]);
        let (x, y) = (half(a[index]), half(b[index]));
        // The nearest of 11 bits: no further than half a unit in the last place, here at most 2^-9 of 16.
        let unit = |value: f64| 2f64.powi((value.abs().max(2f64.powi(-14))).log2().floor() as i32 - 11);
        let (sum, fused) = (found(0), found(1));
        assert!((sum - (x + y)).abs() <= unit(x + y), "{x} + {y} = {sum}");
        assert!((fused - (x * y + sum)).abs() <= unit(x * y + sum), "{x} * {y} + {sum} = {fused}");
        let product = sum * fused;
        let most = found(2);
        assert!(most >= -x && (most == -x || (most - product).abs() <= unit(product)), "{product}, {most}");
    }
    for (index, found) in device.get::<u16>(brains, 512).into_iter().enumerate() {
        let number = |bits: u16| f32::from_bits(u32::from(bits) << 16);
        let rounded =
            |value: f32| number(((value.to_bits() + 0x7fff + (value.to_bits() >> 16 & 1)) >> 16) as u16);
        let value = number(c[index]);
        assert_eq!(number(found), rounded(rounded(value * value) + value), "{value}");
    }
}

#[test]
fn blocks_that_add_up() {
    for mut device in both("blocks") {
        let mut random = Random(5);
        let x = random.numbers(10_000);
        let (at, out) = (device.put(&x), device.room(16));
        device.launch("reduce", (4, 192, 0), &Parameters::default().with(at).with(out).with(10_000).0);
        let sum: f64 = device.get::<f32>(out, 4).into_iter().map(f64::from).sum();
        near(sum, x.iter().map(|&x| f64::from(x)).sum(), 1e-4);
        let data: Vec<u8> = (0..20_000).map(|_| (random.below(16) * random.below(17)) as u8).collect();
        let (at, counts) = (device.put(&data), device.room(1024));
        device.launch("histogram", (3, 96, 0), &Parameters::default().with(at).with(counts).with(20_000).0);
        let counts = device.get::<u32>(counts, 256);
        for (value, count) in counts.into_iter().enumerate() {
            assert_eq!(count as usize, data.iter().filter(|&&byte| usize::from(byte) == value).count());
        }
    }
}

#[test]
fn rows_are_normalised() {
    for mut device in both("blocks") {
        let mut random = Random(6);
        let (rows, columns) = (5, 300);
        let (x, weight) = (random.numbers(rows * columns), random.numbers(columns));
        let (at, at_weight) = (device.put(&x), device.put(&weight));
        let out = device.room((rows * columns * 4) as u64);
        let parameters = Parameters::default().with(at).with(out).with(columns as i32);
        device.launch("softmax", (rows as u32, 128, 512), &parameters.0);
        let found = device.get::<f32>(out, rows * columns);
        for (row, found) in x.chunks(columns).zip(found.chunks(columns)) {
            let sum: f64 = row.iter().map(|&x| f64::from(x).exp()).sum();
            row.iter()
                .zip(found)
                .for_each(|(&x, &found)| near(f64::from(found), f64::from(x).exp() / sum, 1e-6));
        }
        let parameters =
            Parameters::default().with(at).with(at_weight).with(out).with(columns as i32).with(1e-5f32);
        device.launch("rmsnorm", (rows as u32, 64, 0), &parameters.0);
        let found = device.get::<f32>(out, rows * columns);
        for (row, found) in x.chunks(columns).zip(found.chunks(columns)) {
            let mean = row.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>() / columns as f64;
            for ((&x, &weight), &found) in row.iter().zip(&weight).zip(found) {
                near(f64::from(found), f64::from(x) / (mean + 1e-5).sqrt() * f64::from(weight), 1e-6);
            }
        }
    }
}

#[test]
fn matrices_are_multiplied_in_tiles() {
    for mut device in both("blocks") {
        let mut random = Random(7);
        let (m, n, k) = (37, 50, 41);
        let (a, b) = (random.numbers(m * k), random.numbers(k * n));
        let (at_a, at_b, out) = (device.put(&a), device.put(&b), device.room((m * n * 4) as u64));
        let geometry = LaunchGeometry { grid: [4, 3, 1], block: [16, 16, 1], dynamic_shared: 0 };
        let sizes = [m, n, k].map(|size| size as i32);
        let parameters = Parameters::default()
            .with(at_a)
            .with(at_b)
            .with(out)
            .with(sizes[0])
            .with(sizes[1])
            .with(sizes[2]);
        device.launch_in_space("matmul", geometry, &parameters.0).unwrap();
        for (index, found) in device.get::<f32>(out, m * n).into_iter().enumerate() {
            let (row, column) = (index / n, index % n);
            let expected = (0..k).fold(0f32, |sum, i| a[row * k + i].mul_add(b[i * n + column], sum));
            assert_eq!(found.to_bits(), expected.to_bits(), "{row}, {column}");
        }
    }
}

#[test]
fn warps_compact_and_reduce() {
    for mut device in both("blocks") {
        let mut random = Random(8);
        let x: Vec<i32> = (0..256).map(|_| random.below(200) as i32 - 100).collect();
        let (at, out, total, six) =
            (device.put(&x), device.room(1024), device.room(8), device.room(256 * 24));
        device.launch(
            "compact",
            (2, 128, 0),
            &Parameters::default().with(at).with(out).with(total).with(250).0,
        );
        let (found, totals) = (device.get::<i32>(out, 256), device.get::<i32>(total, 2));
        for block in 0..2 {
            let kept: Vec<_> =
                x[..250].chunks(128).nth(block).unwrap().iter().filter(|&&x| x % 2 == 0).copied().collect();
            assert_eq!(totals[block] as usize, kept.len());
            assert_eq!(found[128 * block..][..kept.len()], kept);
        }
        device.launch("reductions", (2, 128, 0), &Parameters::default().with(at).with(six).0);
        let found = device.get::<i32>(six, 256 * 6);
        for (index, found) in found.chunks(6).enumerate() {
            let block = &x[index / 128 * 128..][..128];
            let warp = &x[index / 32 * 32..][..32];
            let same = warp.iter().enumerate().filter(|(_, other)| *other & 3 == x[index] & 3);
            let lane = index % 32;
            let expected = [
                block.iter().filter(|&&x| x > 0).count() as i32,
                2 + i32::from(block.contains(&77)),
                same.fold(0, |mask, (lane, _)| mask | 1 << lane),
                warp.iter().sum(),
                *warp.iter().min().unwrap(),
                warp[if lane % 8 < 5 { lane + 3 } else { lane }],
            ];
            assert_eq!(found, expected);
        }
    }
}

#[test]
fn threads_lock_each_other_out() {
    for mut device in both("blocks") {
        let (lock, counter) = (device.room(4), device.room(4));
        device.launch("locked", (2, 48, 0), &Parameters::default().with(lock).with(counter).0);
        assert_eq!(device.get::<u32>(counter, 1), [96]);
        let (sum, wide, most) = (device.room(4), device.room(8), device.room(4));
        device.launch("floats", (1, 100, 0), &Parameters::default().with(sum).with(wide).with(most).0);
        assert_eq!(device.get::<f32>(sum, 1), [5050.0]);
        assert_eq!(device.get::<f64>(wide, 1), [2475.0]);
        assert_eq!(device.get::<f32>(most, 1), [100.0]);
    }
}

#[test]
fn functions_with_structures_and_tables() {
    for mut device in both("functions") {
        let mut random = Random(9);
        let count = 100;
        let mut bytes = Vec::new();
        let mut expected = Vec::new();
        for index in 0..count {
            let numbers = random.numbers(6);
            let (mut low, mut high): (Vec<_>, Vec<_>) = (numbers[..3].to_vec(), numbers[3..].to_vec());
            low.iter().chain(&high).for_each(|number| bytes.extend(number.to_le_bytes()));
            bytes.extend((index as i32).to_le_bytes());
            for _ in 0..index % 4 {
                low.iter_mut().for_each(|low| *low -= 0.25);
                high.iter_mut().zip(1..).for_each(|(high, weight)| *high += 0.25 * weight as f32);
            }
            let volume: f32 = low.iter().zip(&high).map(|(low, high)| high - low).product();
            expected.push(volume + (index + index % 4) as f32);
        }
        let (at, out) = (device.put(&bytes), device.room(400));
        device.launch("boxes", (1, 128, 0), &Parameters::default().with(at).with(out).with(count as i32).0);
        for (found, expected) in device.get::<f32>(out, count).into_iter().zip(expected) {
            near(f64::from(found), f64::from(expected), 1e-6);
        }
        let order: Vec<i32> = (0..count).map(|_| random.below(3) as i32).collect();
        let (at, out) = (device.put(&order), device.room(400));
        device.launch("table", (1, 128, 0), &Parameters::default().with(at).with(out).with(count as i32).0);
        for (index, found) in device.get::<i32>(out, count).into_iter().enumerate() {
            let step = |value: i32, which: i32| match which % 3 {
                0 => value + 3,
                1 => value * 2,
                _ => {
                    if value % 5 == 0 {
                        -value
                    } else {
                        value
                    }
                }
            };
            assert_eq!(found, (0..3).fold(index as i32, |value, turn| step(value, order[index] + turn)));
        }
    }
}

#[test]
fn variables_memory_of_threads_and_structures() {
    for mut device in both("functions") {
        let (order, letters) = (device.room(400), device.room(100));
        device.launch("visitors", (1, 100, 0), &Parameters::default().with(order).with(letters).with(100).0);
        let mut found = device.get::<i32>(order, 100);
        found.sort_unstable();
        assert_eq!(found, (5..105).collect::<Vec<_>>());
        let found = device.get::<u8>(letters, 100);
        assert!(
            found
                .iter()
                .enumerate()
                .all(|(index, &letter)| letter == [b"zero", b"one\0"][index % 2][index % 3])
        );
        let mut random = Random(10);
        let x: Vec<i32> = (0..576).map(|_| random.below(1000) as i32).collect();
        let (at, out) = (device.put(&x), device.room(64 * 40));
        device.launch("sorted", (1, 64, 0), &Parameters::default().with(at).with(out).0);
        for (own, found) in x.chunks(9).zip(device.get::<i32>(out, 640).chunks(10)) {
            let mut own = own.to_vec();
            own.sort_unstable();
            own.push(own[(own[0] & 7) as usize]);
            assert_eq!(found, own);
        }
        let values: Vec<i32> = (0..40).map(|index| index * index).collect();
        let parameters =
            values.iter().fold(Parameters::default(), |all, &value| all.with(value)).with(35).with(out);
        device.launch("structures", (1, 32, 0), &parameters.0);
        let found = device.get::<i32>(out, 32);
        assert!(found.iter().enumerate().all(|(index, &found)| found == values[(35 + index) % 40]));
        device.launch("recursive", (1, 64, 0), &Parameters::default().with(out).0);
        let found = device.get::<i32>(out, 64);
        assert!(
            found
                .iter()
                .enumerate()
                .all(|(index, &found)| found == (32 - (index as u32).leading_zeros()) as i32)
        );
    }
}

#[test]
fn quantised_products_positions_and_rows() {
    for mut device in both("inference") {
        let mut random = Random(11);
        let (rows, blocks) = (6, 70);
        // Scales are powers of two: 0x2c00 is 1/16.
        let weights: Vec<u8> = (0..rows * blocks)
            .flat_map(|_| {
                let mut block = vec![0x00, 0x2c];
                block.extend((0..16).map(|_| random.next() as u8));
                block
            })
            .collect();
        let activations: Vec<u8> = (0..blocks)
            .flat_map(|_| {
                let mut block = vec![0x00, 0x30];
                block.extend((0..32).map(|_| random.next() as u8));
                block
            })
            .collect();
        let (at_w, at_x, out) = (device.put(&weights), device.put(&activations), device.room(24));
        let parameters = Parameters::default().with(at_w).with(at_x).with(out).with(blocks as i32);
        device.launch("quantised", (rows as u32, 32, 0), &parameters.0);
        for (row, found) in weights.chunks(18 * blocks).zip(device.get::<f32>(out, rows)) {
            let exact: i32 = row
                .chunks(18)
                .zip(activations.chunks(34))
                .map(|(w, x)| {
                    let product = |i: usize| {
                        let (nibbles, low, high) =
                            (i32::from(w[2 + i]), i32::from(x[2 + i] as i8), i32::from(x[18 + i] as i8));
                        ((nibbles & 15) - 8) * low + ((nibbles >> 4) - 8) * high
                    };
                    (0..16).map(product).sum::<i32>()
                })
                .sum();
            // All sums are exact in 24 bits, whatever their order.
            assert_eq!(found, exact as f32 / 128.0);
        }
        let (positions, width) = ([0, 3, 17, 250], 64);
        let x = random.numbers(positions.len() * width);
        let (at, at_positions) = (device.put(&x), device.put(&positions));
        let parameters = Parameters::default().with(at).with(at_positions).with(width as i32).with(10_000f32);
        device.launch("rope", (positions.len() as u32, 32, 0), &parameters.0);
        for (index, found) in device.get::<f32>(at, x.len()).chunks(2).enumerate() {
            let (row, pair) = (index / (width / 2), index % (width / 2));
            let angle = f64::from(positions[row]) * 10_000f64.powf(-2.0 * pair as f64 / width as f64);
            let (a, b) = (f64::from(x[2 * index]), f64::from(x[2 * index + 1]));
            near(f64::from(found[0]), a * angle.cos() - b * angle.sin(), 5e-5);
            near(f64::from(found[1]), a * angle.sin() + b * angle.cos(), 5e-5);
        }
        let table: Vec<u16> = (0..800).map(|_| 0x3000 + (random.next() as u16 & 0x8fff)).collect();
        let numbers = [7i64, 0, 3, 3, 7];
        let (at, at_numbers, out) = (device.put(&table), device.put(&numbers), device.room(2000));
        let parameters = Parameters::default().with(at).with(at_numbers).with(out).with(100);
        device.launch("rows", (5, 64, 0), &parameters.0);
        for (index, found) in device.get::<f32>(out, 500).into_iter().enumerate() {
            assert_eq!(f64::from(found), half(table[numbers[index / 100] as usize * 100 + index % 100]));
        }
        let number = |bits: u16| f64::from(f32::from_bits(u32::from(bits) << 16));
        let values: Vec<u16> = (0..200).map(|_| 0x3e00 + (random.next() as u16 & 0x81ff)).collect();
        let (gate, up, out) = (device.put(&values[..100]), device.put(&values[100..]), device.room(200));
        device.launch("silu", (1, 128, 0), &Parameters::default().with(gate).with(up).with(out).with(100).0);
        for (index, found) in device.get::<u16>(out, 100).into_iter().enumerate() {
            let (gate, up) = (number(values[index]), number(values[100 + index]));
            near(number(found), gate / (1.0 + (-gate).exp()) * up, 1.0 / 250.0);
        }
    }
}

#[test]
fn matrices_of_tensor_cores() {
    let Some(mut device) = compiled("matrices", &[]) else { return };
    let mut random = Random(12);
    // Whole numbers from -15 to 15, in 16 bits: all sums are exact.
    let mut numbers =
        |count: usize| -> Vec<i32> { (0..count).map(|_| random.below(31) as i32 - 15).collect() };
    let small = |value: i32| -> u16 {
        let exponent = value.unsigned_abs().checked_ilog2();
        let bits = exponent.map_or(0, |e| (e + 15) << 10 | (value.unsigned_abs() << (10 - e)) & 0x3ff);
        bits as u16 | if value < 0 { 0x8000 } else { 0 }
    };
    let (a, b) = (numbers(256), numbers(128));
    let (at_a, at_b) = (
        device.put(&a.iter().map(|&x| small(x)).collect::<Vec<_>>()),
        device.put(&b.iter().map(|&x| small(x)).collect::<Vec<_>>()),
    );
    let (c, d) = (device.room(512), device.room(256));
    device.launch("halves", (1, 32, 0), &Parameters::default().with(at_a).with(at_b).with(c).with(d).0);
    let (found, found_small) = (device.get::<f32>(c, 128), device.get::<u16>(d, 128));
    for index in 0..128 {
        let exact: i32 = (0..16).map(|k| a[index / 8 * 16 + k] * b[k * 8 + index % 8]).sum();
        assert_eq!(found[index], exact as f32);
        // Beyond 2048, numbers of 16 bits are even or coarser.
        near(half(found_small[index]), f64::from(exact + 1), 1.0 / 2048.0);
    }
    let (a, b) = (numbers(512), numbers(256));
    let narrow = |values: &[i32]| values.iter().map(|&x| (x * 8) as i8).collect::<Vec<_>>();
    let (at_a, at_b) = (device.put(&narrow(&a)), device.put(&narrow(&b)));
    device.launch("bytes", (1, 32, 0), &Parameters::default().with(at_a).with(at_b).with(c).0);
    for (index, found) in device.get::<i32>(c, 128).into_iter().enumerate() {
        let exact: i32 = (0..32).map(|k| a[index / 8 * 32 + k] * b[index % 8 * 32 + k] * 64).sum();
        assert_eq!(found, exact + 100);
    }
    let (a, b, p, q) = (numbers(128), numbers(64), numbers(256), numbers(128));
    let singles = |values: &[i32]| values.iter().map(|&x| x as f32).collect::<Vec<_>>();
    let brains =
        |values: &[i32]| values.iter().map(|&x| ((x as f32).to_bits() >> 16) as u16).collect::<Vec<_>>();
    let parameters = Parameters::default()
        .with(device.put(&singles(&a)))
        .with(device.put(&singles(&b)))
        .with(device.put(&brains(&p)))
        .with(device.put(&brains(&q)))
        .with(c);
    device.launch("others", (1, 32, 0), &parameters.0);
    for (index, found) in device.get::<f32>(c, 128).into_iter().enumerate() {
        let (row, column) = (index / 8, index % 8);
        let first: i32 = (0..8).map(|k| a[row * 8 + k] * b[k * 8 + column]).sum();
        let second: i32 = (0..16).map(|k| p[row * 16 + k] * q[column * 16 + k]).sum();
        assert_eq!(found, (first + second) as f32);
    }
    let x: Vec<u16> = (0..64).map(|index| index * 1000).collect();
    let (at, out, stored) = (device.put(&x), device.room(128), device.room(128));
    device.launch("turned", (1, 32, 0), &Parameters::default().with(at).with(out).with(stored).0);
    let turned: Vec<u16> = (0..64).map(|index| x[index % 8 * 8 + index / 8]).collect();
    assert_eq!(device.get::<u16>(out, 64), turned);
    assert_eq!(device.get::<u16>(stored, 64), turned);
}

#[test]
fn kernels_print_and_assert() {
    for mut device in both("functions") {
        let at = device.put(&[1.5f32, -2.25, 0.0, 9.0]);
        device.launch("talking", (1, 4, 0), &Parameters::default().with(at).0);
        assert_eq!(
            String::from_utf8_lossy(&device.memory.printed),
            "0 of 4:  1.50|zero    |0001.500|ff -5000000000 a 1.5e+10%\n\
             -1 of 4: -2.25|one     |-002.250|100 -5000000000 b -2.25e+10%\n\
             -2 of 4:  0.00|zero    |0000.000|101 -5000000000 c 0%\n\
             nothing else 0x1234 1.234568e+04\n"
        );
        let at = device.put(&[1i32, 2, 7, 9]);
        let error = device.try_launch("asserting", (1, 4, 0), &Parameters::default().with(at).0).unwrap_err();
        assert!(error.cuda_code() == 710 && error.to_string().contains("x[threadIdx.x] < 5"), "{error}");
        assert!(matches!(error, LaunchError::Fault { thread: [2, 0, 0], .. }), "{error}");
    }
}

#[test]
fn blocks_that_wait_for_each_other_run_by_turns() {
    for mut device in both("blocks") {
        let (partial, out) = (device.room(80), device.room(10 * 48 * 4));
        device.launch("together", (10, 48, 0), &Parameters::default().with(partial).with(out).0);
        assert!(device.get::<i32>(out, 480).iter().all(|&sum| sum == 3 * 55));
    }
}

#[test]
fn fragments_of_the_library() {
    let Some(mut device) = compiled("matrices", &[]) else { return };
    let mut random = Random(13);
    let mut numbers = || -> Vec<i32> { (0..256).map(|_| random.below(7) as i32 - 3).collect() };
    // Halves from -3 to 3.
    let halves = |values: &[i32]| {
        values
            .iter()
            .map(|&x| [0xc200u16, 0xc000, 0xbc00, 0, 0x3c00, 0x4000, 0x4200][(x + 3) as usize])
            .collect::<Vec<_>>()
    };
    let (a, b) = (numbers(), numbers());
    let (at_a, at_b) = (device.put(&halves(&a)), device.put(&halves(&b)));
    let (c, d) = (device.room(1024), device.room(512));
    device.launch("fragments", (1, 32, 0), &Parameters::default().with(at_a).with(at_b).with(c).with(d).0);
    for (index, found) in device.get::<f32>(c, 256).into_iter().enumerate() {
        let exact: i32 = (0..16).map(|k| a[index / 16 * 16 + k] * b[index % 16 * 16 + k]).sum();
        assert_eq!(found, (2 * (exact + 1)) as f32);
    }
    // All rows of the second matrix are the same one: their distance is 0.
    for (index, found) in device.get::<u16>(d, 256).into_iter().enumerate() {
        let exact: i32 = (0..16).map(|k| a[index % 8 * 16 + k] * b[index / 8]).sum();
        assert_eq!(half(found), f64::from(exact));
    }
}
