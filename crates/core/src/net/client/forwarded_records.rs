//! Records of a node on their way to the learner: they are sent from where they lie. No queue and no socket.

use crate::net::wire::frame::{Entry, RecordOrigin};
use crate::net::wire::limits::FRAME_BYTES;
use crate::records::forwarding::Held;
use std::sync::Arc;

/// Some records, for one frame. They are released when the last frame of them is dropped, or given back if their consumer was
/// abandoned.
#[derive(Debug, Clone)]
pub struct RecordRun {
    records: Arc<[Held]>,
    first: usize,
    count: usize,
}

impl RecordRun {
    /// Divides records into runs of about the size of a frame, in their order.
    pub fn divide(records: Vec<Held>) -> impl Iterator<Item = RecordRun> {
        let mut records = records.into_iter().peekable();
        std::iter::from_fn(move || {
            let mut run = vec![records.next()?];
            let mut bytes = run[0].len();
            while let Some(record) = records.next_if(|record| bytes + record.len() <= FRAME_BYTES) {
                bytes += record.len();
                run.push(record);
            }
            Some(RecordRun { first: 0, count: run.len(), records: run.into() })
        })
    }

    fn records(&self) -> &[Held] {
        &self.records[self.first..self.first + self.count]
    }

    pub fn rows(&self) -> usize {
        self.count
    }

    pub fn bytes(&self) -> usize {
        self.records().iter().map(Held::len).sum()
    }

    /// `most` records at most, without the first `skip`.
    pub fn part(&self, skip: usize, most: usize) -> RecordRun {
        let skip = skip.min(self.count);
        RecordRun {
            records: self.records.clone(),
            first: self.first + skip,
            count: (self.count - skip).min(most),
        }
    }

    /// The encoded entries of the records, and behind them their origins.
    pub fn index(&self) -> Vec<u8> {
        let stamps = self.records().iter().map(|record| (record.len() as u64, record.info().stamp));
        let (entries, origins): (Vec<_>, Vec<_>) = stamps
            .map(|(bytes, stamp)| {
                let entry = Entry { bytes, version: stamp.version, kind: stamp.kind };
                let origin = RecordOrigin { producer_id: stamp.producer_id, sequence: stamp.sequence };
                (entry.encoded(), origin.encoded())
            })
            .unzip();
        [entries.as_flattened(), origins.as_flattened()].concat()
    }

    /// The bytes of each record.
    pub fn parts(&self) -> impl Iterator<Item = &[u8]> {
        self.records().iter().map(Held::bytes)
    }
}
