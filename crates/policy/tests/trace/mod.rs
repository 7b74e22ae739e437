//! Generated traces of a mixture-of-experts model of 16 layers with 64 experts each, of which 8 are chosen.

/// One thing that a token touches, whole and from its start.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Touch {
    /// The parts of a layer that every token uses; the layer behind the last is the output matrix.
    Dense(u32),
    /// One expert of one layer.
    Expert(u32, u32),
}

pub const LAYERS: u32 = 16;
pub const EXPERTS: u32 = 64;
pub const CHOSEN: usize = 8;
/// One of the three matrices of an expert: 18 blocks of 64 KiB.
pub const MATRIX_BYTES: u64 = 18 << 16;

/// How experts are chosen.
#[derive(Clone, Copy)]
pub struct Shape {
    /// Exponent of the Zipf distribution of experts; 0 is uniform.
    pub skew: f64,
    /// Share of experts that a token takes over from the one before.
    pub overlap: f64,
    /// Tokens after which other experts are the popular ones; 0 is never.
    pub topic_tokens: usize,
}

/// Close to the trace of a real prompt, in which the hottest 8, 16 and 32 of 64 experts take 47, 69 and 88 % of
/// the touches and tokens overlap by 37 %; here it is 50, 67 and 84 %, and 35 %.
pub const AS_MEASURED: Shape = Shape { skew: 1.1, overlap: 0.0, topic_tokens: 0 };
/// The popular experts change every 60 tokens.
pub const TOPICS: Shape = Shape { skew: 1.0, overlap: 0.2, topic_tokens: 60 };

/// What each token touches, in order; the same for the same arguments.
pub fn trace(shape: Shape, tokens: usize) -> Vec<Vec<Touch>> {
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    let weights: Vec<f64> = (1..=EXPERTS).map(|rank| f64::from(rank).powf(-shape.skew)).collect();
    let mut layers: Vec<Layer> = (0..LAYERS).map(|_| Layer::default()).collect();
    let mut out = Vec::new();
    for token in 0..tokens {
        let changes_topic = token == 0 || (shape.topic_tokens > 0 && token % shape.topic_tokens == 0);
        let mut touched = Vec::new();
        for (number, layer) in (0..LAYERS).zip(&mut layers) {
            if changes_topic {
                layer.shuffle(&mut numbers);
            }
            layer.choose(&weights, shape.overlap, &mut numbers);
            touched.push(Touch::Dense(number));
            touched.extend(layer.chosen.iter().map(|&expert| Touch::Expert(number, expert)));
        }
        touched.push(Touch::Dense(LAYERS));
        out.push(touched);
    }
    out
}

#[derive(Default)]
struct Layer {
    /// Experts, the most popular first.
    ranks: Vec<u32>,
    chosen: Vec<u32>,
}

impl Layer {
    fn shuffle(&mut self, numbers: &mut Numbers) {
        self.ranks = (0..EXPERTS).collect();
        for index in (1..self.ranks.len()).rev() {
            self.ranks.swap(index, (numbers.next() % (index as u64 + 1)) as usize);
        }
    }

    fn choose(&mut self, weights: &[f64], overlap: f64, numbers: &mut Numbers) {
        let total: f64 = weights.iter().sum();
        self.chosen.retain(|_| numbers.fraction() < overlap);
        while self.chosen.len() < CHOSEN {
            let mut point = numbers.fraction() * total;
            let rank = weights.iter().position(|weight| {
                point -= weight;
                point < 0.0
            });
            let expert = self.ranks[rank.unwrap_or(0)];
            if !self.chosen.contains(&expert) {
                self.chosen.push(expert);
            }
        }
        self.chosen.sort_unstable();
    }
}

/// A reproducible stream of numbers (xorshift).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}
