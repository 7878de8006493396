//! Rows of a node's ring on their way to the learner: they are sent from where they lie. No queue and no socket.

use crate::net::wire::frame::OriginRun;
use crate::ring::{Batch, Consumer};
use std::sync::Arc;

/// Some rows of a batch, for one frame. The batch is released when the last frame of it is dropped, or given back if its consumer
/// was abandoned.
#[derive(Debug, Clone)]
pub struct BatchRows {
    batch: Arc<Batch<Arc<Consumer>>>,
    /// `(first, length)`.
    runs: Vec<(usize, usize)>,
}

impl BatchRows {
    /// All rows of a batch.
    pub fn all(batch: Batch<Arc<Consumer>>) -> BatchRows {
        BatchRows { runs: batch.runs(), batch: Arc::new(batch) }
    }

    pub fn rows(&self) -> usize {
        self.runs.iter().map(|(_, length)| length).sum()
    }

    /// `most` rows at most, without the first `skip`.
    pub fn part(&self, mut skip: usize, mut most: usize) -> BatchRows {
        let mut runs = Vec::new();
        for &(first, length) in &self.runs {
            let passed = skip.min(length);
            let kept = most.min(length - passed);
            if kept > 0 {
                runs.push((first + passed, kept));
            }
            (skip, most) = (skip - passed, most - kept);
        }
        BatchRows { batch: self.batch.clone(), runs }
    }

    /// The encoded origins of the rows.
    pub fn index(&self) -> Vec<u8> {
        let (mut index, mut run) = (Vec::new(), None::<OriginRun>);
        for stamp in self.batch.stamps(&self.runs) {
            match &mut run {
                Some(run)
                    if (run.producer_id, run.version) == (stamp.producer_id, stamp.version)
                        && run.sequence.wrapping_add(u64::from(run.rows)) == stamp.sequence =>
                {
                    run.rows += 1;
                }
                _ => {
                    let next = OriginRun {
                        rows: 1,
                        producer_id: stamp.producer_id,
                        version: stamp.version,
                        sequence: stamp.sequence,
                    };
                    index.extend(run.replace(next).iter().flat_map(OriginRun::encoded));
                }
            }
        }
        index.extend(run.iter().flat_map(OriginRun::encoded));
        index
    }

    /// The bytes of the rows, leaf by leaf.
    pub fn parts<'a>(&'a self, leaf_bytes: &'a [usize]) -> impl Iterator<Item = &'a [u8]> {
        leaf_bytes.iter().enumerate().flat_map(move |(leaf, &bytes)| {
            self.runs.iter().map(move |&(first, length)| {
                // SAFETY: the batch is taken, so no process writes to it (I6), and it is mapped as long as `self`. The rows of a
                // leaf lie side by side, and the ring has leaves of these sizes.
                unsafe { std::slice::from_raw_parts(self.batch.leaf(leaf, first), length * bytes) }
            })
        })
    }
}
