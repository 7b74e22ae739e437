//! Whatever text comes, parsing and running it ends in success or an error: never a panic, never without end.
//!
//! `HINTERLAND_FUZZ_SECONDS=60 cargo test --release -p hinterland-ptx --test fuzz` runs each target for a minute.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

#[path = "../../proto/tests/mutate/mod.rs"]
mod mutate;

use hinterland_ptx::{FlatMemory, Launch, LaunchGeometry, Limits, Memory, Module};
use mutate::{Random, fuzz, rounds};

const SEED: &str = include_str!("seeds/all.ptx");
const MEMORY: u64 = 0x7000_0000;

/// Parses a text and runs all its kernels for a while.
fn run_all(random: &mut Random, text: &str) {
    let Ok(module) = Module::parse(text) else { return };
    if module.data_bytes() > 1 << 20 {
        return;
    }
    let mut memory = FlatMemory::new(MEMORY, 1 << 21);
    for (offset, bytes) in module.data_image(MEMORY) {
        memory.write(MEMORY + offset, &bytes).unwrap();
    }
    let out = MEMORY + (1 << 20);
    let parameters: Vec<u8> = std::iter::repeat_n(out.to_le_bytes(), 8).flatten().collect();
    for entry in module.entries() {
        let geometry = LaunchGeometry {
            grid: [1 + random.below(2) as u32, 1, 1],
            block: [1 + random.below(80) as u32, 1, 1],
            dynamic_shared: 4096,
        };
        let limits = Limits { instructions: 20_000 };
        let launch = Launch { entry: &entry.name, geometry, parameters: &parameters, data: MEMORY, limits };
        if let Err(error) = module.launch(&launch, &mut memory) {
            assert!(error.to_string().contains("hint:"), "{error}");
        }
        memory.printed.clear();
    }
}

#[test]
fn fuzz_changed_bytes_are_a_module_or_an_error() {
    fuzz(&[SEED.as_bytes().to_vec()], |random, bytes| run_all(random, &String::from_utf8_lossy(&bytes)));
}

/// Words are replaced by other words of the seed, so that more of what comes out is still PTX.
#[test]
fn fuzz_exchanged_words_are_a_kernel_or_an_error() {
    let mut pieces = Vec::new();
    let mut rest = SEED;
    while let Some(first) = rest.chars().next() {
        let is_word = |letter: char| letter.is_ascii_alphanumeric() || "_$%".contains(letter);
        let end = if is_word(first) { rest.find(|letter| !is_word(letter)).unwrap_or(rest.len()) } else { 1 };
        let (piece, after) = rest.split_at(end);
        pieces.push(piece);
        rest = after;
    }
    let words: Vec<&str> = pieces.iter().copied().filter(|piece| piece.len() > 1).collect();
    let edges = [
        "0",
        "-1",
        "4294967295",
        "0x8000000000000000",
        "31",
        "32",
        "64",
        "255",
        "_",
        "0f7F800000",
        "0f7FC00000",
    ];
    rounds(|random, _| {
        let mut changed = pieces.clone();
        for _ in 0..=random.below(3) {
            let place = random.below(changed.len());
            match random.below(6) {
                0 => {
                    changed.remove(place);
                }
                1 => changed[place] = edges[random.below(edges.len())],
                2 => {
                    let end = (place + random.below(40)).min(changed.len());
                    let piece = changed[place..end].to_vec();
                    let at = random.below(changed.len());
                    changed.splice(at..at, piece);
                }
                _ => {
                    let near = (place..changed.len()).find(|&index| changed[index].len() > 1);
                    changed[near.unwrap_or(place)] = words[random.below(words.len())];
                }
            }
        }
        run_all(random, &changed.concat());
    });
}

#[test]
fn the_seed_itself_is_a_module() {
    let module = Module::parse(SEED).unwrap();
    assert_eq!(module.check("run"), Ok(()));
    // It comes to its end, so that mutations can go wrong anywhere.
    let mut memory = FlatMemory::new(MEMORY, 1 << 21);
    for (offset, bytes) in module.data_image(MEMORY) {
        memory.write(MEMORY + offset, &bytes).unwrap();
    }
    let parameters: Vec<u8> = std::iter::repeat_n((MEMORY + (1 << 20)).to_le_bytes(), 8).flatten().collect();
    let geometry = LaunchGeometry { grid: [2, 1, 1], block: [64, 1, 1], dynamic_shared: 4096 };
    let limits = Limits::default();
    let launch = Launch { entry: "run", geometry, parameters: &parameters, data: MEMORY, limits };
    assert!(module.launch(&launch, &mut memory).unwrap().instructions > 500);
    assert!(!memory.printed.is_empty());
}

#[test]
fn deep_and_long_texts_end() {
    let head = ".version 9.0\n.target sm_90\n.address_size 64\n";
    let many = 200_000;
    let texts = [
        format!("{head}.entry run() {{ {} ret; {} }}", "{".repeat(many), "}".repeat(many)),
        format!("{head}.global .b8 a[2] = {}1{};", "{".repeat(many), "}".repeat(many)),
        format!("{head}.global .b8 a{};", "[2]".repeat(many)),
        format!("{head}.global .b8 a[1073741824]; .global .b8 b[1073741824];"),
        format!("{head}.entry run() {{ .reg .b32 %r<4294967295>; mov.u32 %r4000000000, 1; ret; }}"),
        format!("{head}.entry run() {{ .local .b8 a[1000000000]; ret; }}"),
        format!("{head}.entry run() {{ .shared .b8 a[1000000000]; ret; }}"),
        format!(
            "{head}.entry run() {{ .reg .b32 %r<2000000>; {} ret; }}",
            (0..many).map(|n| format!("mov.u32 %r{n}, 1;")).collect::<String>()
        ),
        format!("{head}.entry run() {{ LOOP: {} bra LOOP; }}", "bar.sync 0;".repeat(10)),
        format!("{head}.entry run() {{ mov.u32 {} }}", "%".repeat(many)),
        format!("{head}/*{}", "*".repeat(many)),
    ];
    for text in texts {
        run_all(&mut Random::new(1), &text);
    }
}
