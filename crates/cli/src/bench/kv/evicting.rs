//! Reads while another process puts new blocks all the time, so that the node evicts beside them.

use super::{BATCH, OTHERS, Scene, put};
use crate::bench::case::Case;
use crate::bench::report::{Better, Row};
use crate::failure::Failure;
use hinterland_pool::KvCache;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};

/// A row of single reads by the reader's process while this one puts; the set lies in a store that is full.
pub fn row(scene: &Scene, name: String, bytes: usize, count: usize, rounds: usize) -> Row {
    let absent = |failure: &Failure| {
        Row::absent(name.clone(), "us", Better::Lower, format!("{} (hint: {})", failure.text, failure.hint))
    };
    measure(scene, &name, bytes, count, rounds).unwrap_or_else(|failure| absent(&failure))
}

fn measure(scene: &Scene, name: &str, bytes: usize, count: usize, rounds: usize) -> Result<Row, Failure> {
    let store = Churn { writer: &scene.writer, block: vec![3; bytes], next: Cell::new(OTHERS) };
    let blocks = scene.fill(bytes)?;
    let evictions = || -> Result<u64, Failure> {
        Ok(scene.node.pool()?.kv_status()?.iter().map(|status| status.evictions).sum())
    };
    // Everything that is not in the set, twice over: what leaves from here on makes room for others.
    let capacity = scene.node.pool()?.kv_status()?.iter().map(|status| status.capacity_bytes).sum::<u64>();
    store.put(2 * capacity as usize / bytes)?;
    let before = evictions()?;
    let (missed, read) = (Cell::new(0.0), Cell::new(0.0));
    let ask = || -> Result<f64, Failure> {
        let answer = scene.process.borrow_mut().ask(&format!("get {bytes} {count} {blocks}"))?;
        let &[microseconds, misses] = answer.as_slice() else {
            return Err(Failure::new(format!("the reader answered {answer:?}"), "report this"));
        };
        missed.set(missed.get() + misses);
        read.set(read.get() + count as f64);
        Ok(microseconds)
    };
    let mut row = Case::new(name, "us", Better::Lower, || {
        store.restore(blocks)?;
        store.beside(ask)
    })
    .limit("the same reader while nothing leaves", || {
        store.restore(blocks)?;
        ask()
    })
    .measure(rounds);
    let evicted = evictions()? - before;
    if evicted == 0 {
        return Err(Failure::new("nothing was evicted", "report this"));
    }
    let share = 100.0 * missed.get() / read.get().max(1.0);
    let words = format!("{evicted} blocks left; {share:.2} % of all reads came too late and missed");
    row.why = Some(row.why.take().map_or(words.clone(), |why| format!("{why}; {words}")));
    Ok(row)
}

/// Who puts new blocks.
struct Churn<'bench> {
    writer: &'bench KvCache,
    block: Vec<u8>,
    next: Cell<usize>,
}

impl Churn<'_> {
    /// Puts `count` blocks that nobody reads.
    fn put(&self, count: usize) -> Result<(), Failure> {
        let first = self.next.replace(self.next.get() + count);
        put(self.writer, first..first + count, &self.block).map(drop)
    }

    /// Puts those of the set that have left.
    fn restore(&self, blocks: usize) -> Result<(), Failure> {
        put(self.writer, 0..blocks, &self.block).map(drop)
    }

    /// The figure of `ask`, while blocks are put all the time.
    fn beside(&self, ask: impl FnOnce() -> Result<f64, Failure>) -> Result<f64, Failure> {
        let (writer, block, first) = (self.writer, &self.block, self.next.get());
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let churning = scope.spawn(|| -> Result<usize, Failure> {
                let mut next = first;
                // Relaxed: only a wish to end.
                while !stop.load(Ordering::Relaxed) {
                    put(writer, next..next + BATCH, block)?;
                    next += BATCH;
                }
                Ok(next)
            });
            let figure = ask();
            // Relaxed: as above.
            stop.store(true, Ordering::Relaxed);
            let next = churning.join().map_err(|_| Failure::new("a writer ended", "report this"))??;
            self.next.set(next);
            figure
        })
    }
}
