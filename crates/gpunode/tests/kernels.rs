//! Kernels of PTX on the device in software, launched by raw commands.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, in its helpers too")]

mod client;

use client::{Client, fat_binary, list};
use hinterland_proto::gpu::answer::{AnswerMessage, Fault};
use hinterland_proto::gpu::command::{self as c, Command};

/// `add(out, value)` adds to each u32 its thread's number and a value; `count(out)` counts threads in one word, atomically;
/// `wrong(out)` writes far away; `turn(out)` never ends but when a word is set; `scaled(out)` multiplies by a variable.
const PTX: &str = "\
.version 8.0
.target sm_90
.address_size 64
.visible .global .align 4 .u32 factor = 3;
.visible .entry add(.param .u64 out, .param .u32 value)
{
    .reg .b32 %r<8>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [out];
    ld.param.u32 %r1, [value];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.s32 %r5, %r2, %r3, %r4;
    mul.wide.s32 %rd2, %r5, 4;
    add.s64 %rd3, %rd1, %rd2;
    ld.global.u32 %r6, [%rd3];
    add.s32 %r7, %r6, %r5;
    add.s32 %r7, %r7, %r1;
    st.global.u32 [%rd3], %r7;
    ret;
}
.visible .entry count(.param .u64 out)
{
    .reg .b32 %r<4>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [out];
    mov.u32 %r1, 1;
    atom.global.add.u32 %r2, [%rd1], %r1;
    ret;
}
.visible .entry wrong(.param .u64 out)
{
    .reg .b32 %r<4>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [out];
    mov.u32 %r1, 1;
    st.global.u32 [%rd1+1099511627776], %r1;
    ret;
}
.visible .entry scaled(.param .u64 out)
{
    .reg .b32 %r<4>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [out];
    ld.global.u32 %r1, [factor];
    ld.global.u32 %r2, [%rd1];
    mul.lo.s32 %r3, %r1, %r2;
    st.global.u32 [%rd1], %r3;
    ret;
}
";

const NAMES: [&str; 4] = ["add", "count", "wrong", "scaled"];

/// A client with the kernels above by the names 1 to 4, and a piece of memory.
fn start(options: &str) -> (Client, u64) {
    let mut client = Client::start(options);
    let address = client.map(0, 1);
    client.module(1, &fat_binary(PTX));
    for (function, name) in (1..).zip(NAMES) {
        client.with_tail(&Command::Function(c::Function { function, module: 1 }), name.as_bytes());
    }
    client.settle();
    (client, address)
}

fn launch(function: u32, stream: u32, grid: u32, block: u32) -> Command {
    Command::Launch(c::Launch {
        function,
        stream,
        grid: [grid, 1, 1],
        block: [block, 1, 1],
        shared: 0,
        flags: 0,
        cluster: [0; 3],
    })
}

fn words_at(client: &mut Client, address: u64, expected: &[u32]) {
    let bytes: Vec<u8> = expected.iter().flat_map(|word| word.to_le_bytes()).collect();
    client.send(&Command::CopyOut(c::CopyOut { stream: 0, transfer: 1, address, bytes: bytes.len() as u64 }));
    client.expect_bytes(1, &bytes);
}

#[test]
fn kernels_of_one_stream_build_on_each_other() {
    let (mut client, address) = start("memory=64M");
    for value in [100_u32, 1000] {
        let parameters = [&address.to_le_bytes()[..], &value.to_le_bytes()].concat();
        client.with_tail(&launch(1, 0, 3, 64), &parameters);
    }
    let expected: Vec<u32> = (0..192).map(|thread| 2 * thread + 1100).collect();
    words_at(&mut client, address, &expected);
    client.settle();
}

#[test]
fn kernels_of_several_streams_count_together() {
    let (mut client, address) = start("memory=64M,threads=4");
    for stream in 20..24 {
        client.send(&Command::StreamCreate(c::StreamCreate { stream, device: 0, flags: 1, priority: 0 }));
        for _ in 0..5 {
            client.with_tail(&launch(2, stream, 4, 128), &address.to_le_bytes());
        }
    }
    client.send(&Command::MarkDevice(c::MarkDevice { mark: 3, device: 0 }));
    client.expect_reached(3, 0);
    words_at(&mut client, address, &[4 * 5 * 4 * 128]);
}

#[test]
fn a_kernel_that_writes_where_nothing_is_breaks_the_device_for_good() {
    let (mut client, address) = start("memory=64M");
    let count = client.with_tail(&launch(3, 0, 1, 1), &address.to_le_bytes());
    let got = client.next();
    let AnswerMessage::Fault(Fault { error: 700, sticky: 1, command, .. }) = got.message else {
        panic!("{got:?}: {}", got.words())
    };
    assert_eq!(command, count);
    assert!(got.words().starts_with("wrong: "), "{}", got.words());
    client.send(&Command::MarkStream(c::MarkStream { mark: 1, stream: 0 }));
    client.expect_reached(1, 700);
}

#[test]
fn variables_of_a_module_start_as_it_says_and_are_copied_to() {
    let (mut client, address) = start("memory=64M");
    client.with_tail(&Command::AskSymbol(c::AskSymbol { question: 1, module: 1 }), b"factor");
    let place = client.expect_answer(1).unwrap();
    let factor = u64::from_le_bytes(place[..8].try_into().unwrap());
    words_at(&mut client, factor, &[3]);
    client.with_tail(&Command::CopyIn(c::CopyIn { stream: 0, flags: 0, address }), &7_u32.to_le_bytes());
    client.with_tail(&launch(4, 0, 1, 1), &address.to_le_bytes());
    client.with_tail(
        &Command::CopyIn(c::CopyIn { stream: 0, flags: 0, address: factor }),
        &10_u32.to_le_bytes(),
    );
    client.with_tail(&launch(4, 0, 1, 1), &address.to_le_bytes());
    words_at(&mut client, address, &[210]);
}

#[test]
fn variables_of_modules_that_are_gone_leave_their_memory_to_others_behind_all_work() {
    let mut client = Client::start("memory=64M,delay-us=100");
    let address = client.map(0, 1);
    let image = fat_binary(PTX);
    client.send(&Command::StreamCreate(c::StreamCreate { stream: 20, device: 0, flags: 1, priority: 0 }));
    let fill = c::Fill { stream: 20, element: 4, address, count: 1, value: 1 };
    // One more than there is room for at once.
    for module in 1..=1025 {
        client.module(module, &image);
        if module % 100 == 0 {
            client.with_tail(&Command::Function(c::Function { function: module, module }), b"scaled");
            client.send(&Command::Fill(fill));
            client.with_tail(&launch(module, 20, 1, 1), &address.to_le_bytes());
        }
        client.send(&Command::ModuleDrop(c::ModuleDrop { module }));
        if module % 100 == 0 {
            client.send(&Command::CopyOut(c::CopyOut { stream: 20, transfer: module, address, bytes: 4 }));
            client.expect_bytes(module, &3_u32.to_le_bytes());
        }
    }
    client.settle();
}

#[test]
fn a_graph_runs_its_kernels_with_the_parameters_that_it_was_given() {
    let (mut client, address) = start("memory=64M");
    client.send(&Command::StreamCreate(c::StreamCreate { stream: 20, device: 0, flags: 0, priority: 0 }));
    let parameters = [&address.to_le_bytes()[..], &5_u32.to_le_bytes()].concat();
    let commands = list(&[(launch(1, 20, 1, 2), &parameters), (launch(1, 20, 1, 2), &parameters)]);
    let bytes = commands.len() as u64;
    client.send(&Command::Graph(c::Graph { graph: 1, base: 0, stream: 20, flags: 0, bytes, sent: bytes }));
    client.with_tail(&Command::GraphPart(c::GraphPart { graph: 1 }), &commands);
    client.send(&Command::GraphInstantiate(c::GraphInstantiate { exec: 1, graph: 1, flags: 0 }));
    for _ in 0..3 {
        client.send(&Command::GraphLaunch(c::GraphLaunch { exec: 1, stream: 20 }));
    }
    words_at(&mut client, address, &[30, 36]);
}

#[test]
fn ptx_that_is_not_understood_is_refused_with_its_line() {
    let mut client = Client::start("memory=64M");
    let count = client.module(1, &fat_binary(".version 8.0\n.target sm_90\n.address_size 64\n.nonsense\n"));
    client.expect_fault(count, 218, "");
    let odd = ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry odd() {\n  frobnicate.u32 1;\n  ret;\n}\n";
    client.module(2, &fat_binary(odd));
    let count = client.with_tail(&Command::Function(c::Function { function: 1, module: 2 }), b"odd");
    client.expect_fault(count, 218, "odd: ");
    client.settle();
}

#[test]
fn products_of_matrices_are_those_of_plain_arithmetic() {
    let (mut client, address) = start("memory=64M");
    client.send(&Command::BlasCreate(c::BlasCreate { handle: 1, device: 0 }));
    let (m, n, k) = (3_usize, 2, 4);
    let a: Vec<f32> = (0..m * k).map(|at| at as f32 - 3.0).collect();
    let b: Vec<f32> = (0..k * n).map(|at| 0.5 * at as f32).collect();
    let old: Vec<f32> = (0..m * n).map(|at| at as f32).collect();
    let bytes = |numbers: &[f32]| numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>();
    for (at, numbers) in [(0, &a), (1000, &b), (2000, &old)] {
        let copy = c::CopyIn { stream: 0, flags: 0, address: address + at };
        client.with_tail(&Command::CopyIn(copy), &bytes(numbers));
    }
    let scalar = |value: f32| {
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&value.to_le_bytes());
        bytes
    };
    let gemm = c::BlasGemm {
        handle: 1,
        // a is stored as its transpose: k rows of m.
        transpose_a: 1,
        transpose_b: 0,
        compute: 68,
        m: m as i64,
        n: n as i64,
        k: k as i64,
        a: address,
        a_type: 0,
        b_type: 0,
        a_lead: k as i64,
        a_stride: 0,
        b: address + 1000,
        b_lead: k as i64,
        b_stride: 0,
        c: address + 2000,
        c_type: 0,
        algorithm: -1,
        c_lead: m as i64,
        c_stride: 0,
        count: 1,
        alpha: scalar(2.0),
        beta: scalar(0.25),
    };
    client.send(&Command::BlasGemm(gemm));
    let mut expected = vec![0.0; m * n];
    for column in 0..n {
        for row in 0..m {
            let sum: f32 = (0..k).map(|inner| a[row * k + inner] * b[column * k + inner]).sum();
            expected[column * m + row] = 2.0 * sum + 0.25 * old[column * m + row];
        }
    }
    client.send(&Command::CopyOut(c::CopyOut { stream: 0, transfer: 1, address: address + 2000, bytes: 24 }));
    client.expect_bytes(1, &bytes(&expected));
    let count = client.send(&Command::BlasGemm(c::BlasGemm { a_lead: 1, ..gemm }));
    client.expect_fault(count, 7, "leading dimension");
    let count = client.send(&Command::BlasGemm(c::BlasGemm { a_type: 3, ..gemm }));
    client.expect_fault(count, 15, "no elements of type 3");
    let count =
        client.send(&Command::BlasGemm(c::BlasGemm { k: 1 << 20, a_lead: 1 << 20, b_lead: 1 << 20, ..gemm }));
    client.expect_fault(count, 1, "not all memory");
    client.settle();
}
