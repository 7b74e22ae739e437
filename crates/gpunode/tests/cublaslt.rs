//! Products of cuBLASLt on the device in software: results with a bias and a function, and what is refused.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod client;

use client::Client;
use hinterland_proto::gpu::command::{self as c, Command};
use hinterland_proto::gpu::{LtMatrix, LtProduct};

const M: u64 = 2;
const N: u64 = 3;
const K: u64 = 4;

fn bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

fn matrix(address: u64, rows: u64, columns: u64) -> LtMatrix {
    let attributes = vec![
        (0, 0_u32.to_le_bytes().to_vec()),
        (2, rows.to_le_bytes().to_vec()),
        (3, columns.to_le_bytes().to_vec()),
        (4, rows.to_le_bytes().to_vec()),
    ];
    LtMatrix { address, attributes }
}

fn factor(number: f32) -> [u8; 16] {
    let mut all = [0; 16];
    all[..4].copy_from_slice(&number.to_le_bytes());
    all
}

/// Matrices a, b, c, a bias, and where d goes, in one piece of memory.
struct Ground {
    client: Client,
    start: u64,
}

impl Ground {
    fn new() -> Self {
        let mut client = Client::start("memory=64M");
        let start = client.map(0, 1);
        let mut ground = Self { client, start };
        ground.put(0, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
        ground.put(256, &[1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, -1.0, -1.0, -1.0, -1.0]);
        ground.put(512, &[10.0, 20.0, 30.0, 40.0, 50.0, 60.0]);
        ground.put(768, &[0.5, -0.5]);
        ground
    }

    fn put(&mut self, offset: u64, numbers: &[f32]) {
        let copy = c::CopyIn { stream: 0, flags: 0, address: self.start + offset };
        self.client.with_tail(&Command::CopyIn(copy), &bytes(numbers));
    }

    fn product(&self) -> LtProduct {
        LtProduct {
            attributes: vec![(0, 68_u32.to_le_bytes().to_vec()), (1, 0_u32.to_le_bytes().to_vec())],
            matrices: [
                matrix(self.start, M, K),
                matrix(self.start + 256, K, N),
                matrix(self.start + 512, M, N),
                matrix(self.start + 1024, M, N),
            ],
            alpha: factor(1.0),
            beta: factor(0.0),
            workspace: 0,
            workspace_bytes: 0,
        }
    }

    fn send(&mut self, product: &LtProduct) -> u64 {
        let text = postcard::to_stdvec(product).unwrap();
        self.client.with_tail(&Command::LtMatmul(c::LtMatmul { stream: 0, flags: 0 }), &text)
    }

    fn expect(&mut self, product: &LtProduct, result: [f32; 6]) {
        self.send(product);
        let out = c::CopyOut { stream: 0, transfer: 5, address: self.start + 1024, bytes: 24 };
        self.client.send(&Command::CopyOut(out));
        self.client.expect_bytes(5, &bytes(&result));
    }
}

#[test]
fn a_product_goes_where_it_should_and_adds_another_matrix() {
    let mut ground = Ground::new();
    let plain = ground.product();
    ground.expect(&plain, [1.0, 2.0, 3.0, 4.0, -16.0, -20.0]);
    let added = LtProduct { alpha: factor(2.0), beta: factor(0.5), ..plain };
    ground.expect(&added, [7.0, 14.0, 21.0, 28.0, -7.0, -10.0]);
}

#[test]
fn a_bias_is_added_to_each_column_before_the_function() {
    let mut ground = Ground::new();
    let mut product = ground.product();
    product.attributes.push((7, 6_u32.to_le_bytes().to_vec()));
    product.attributes.push((8, (ground.start + 768).to_le_bytes().to_vec()));
    ground.expect(&product, [1.5, 1.5, 3.5, 3.5, 0.0, 0.0]);
}

#[test]
fn a_result_of_half_precision_is_rounded_once_behind_the_bias_and_the_function() {
    let mut ground = Ground::new();
    // 2049 lies in the middle between two halves, and 2050 is one.
    ground.put(0, &[2049.0]);
    ground.put(256, &[1.0]);
    ground.put(768, &[1.0]);
    let start = ground.start;
    let mut half = matrix(start + 1024, 1, 1);
    half.attributes[0].1 = 2_u32.to_le_bytes().to_vec();
    let before = LtMatrix { address: start + 1024, ..half.clone() };
    let mut product = ground.product();
    product.matrices = [matrix(start, 1, 1), matrix(start + 256, 1, 1), before, half];
    product.attributes.push((7, 6_u32.to_le_bytes().to_vec()));
    product.attributes.push((8, (start + 768).to_le_bytes().to_vec()));
    product.attributes.push((26, 0_u32.to_le_bytes().to_vec()));
    ground.send(&product);
    let out = c::CopyOut { stream: 0, transfer: 6, address: start + 1024, bytes: 2 };
    ground.client.send(&Command::CopyOut(out));
    ground.client.expect_bytes(6, &0x6801_u16.to_le_bytes());
}

#[test]
fn a_transposed_matrix_is_turned() {
    let mut ground = Ground::new();
    let mut product = ground.product();
    product.attributes.push((3, 1_u32.to_le_bytes().to_vec()));
    product.matrices[0] = matrix(ground.start, K, M);
    ground.expect(&product, [1.0, 5.0, 2.0, 6.0, -10.0, -26.0]);
}

#[test]
fn what_is_not_there_is_refused_in_words() {
    for (attribute, words) in [((7, 128_u32), "epilogue 128"), ((17, 0), "attribute 17"), ((2, 2), "factor")]
    {
        let mut ground = Ground::new();
        let mut product = ground.product();
        product.attributes.push((attribute.0, attribute.1.to_le_bytes().to_vec()));
        let count = ground.send(&product);
        let got = ground.client.next();
        assert!(got.words().contains(words), "{count}: {}", got.words());
    }
    let mut ground = Ground::new();
    let message = Command::LtMatmul(c::LtMatmul { stream: 0, flags: 0 });
    ground.client.with_tail(&message, &[0xff; 40]);
    assert!(ground.client.next().words().contains("makes no sense"));
}

#[test]
fn a_matrix_beyond_memory_is_refused() {
    let mut ground = Ground::new();
    let mut product = ground.product();
    product.matrices[1].address = ground.start + (2 << 20) - 8;
    ground.send(&product);
    let words = ground.client.next().words();
    assert!(words.contains("memory") || words.contains("address"), "{words}");
}
