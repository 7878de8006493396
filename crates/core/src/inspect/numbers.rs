//! The contents and counters of each kind of segment, under the names that `stats()` has for them.

use super::{Inspection, Structure};
use crate::error::Result;
use crate::replay::MappedTable;
use crate::replay::layout::{RowKind, RowWord};
use crate::ring::Ring;
use crate::segment::histogram::Snapshot;
use crate::sys::sync::Ordering;
use crate::vector_env::VectorEnv;
use crate::weights::Weights;

type Numbers = Vec<(&'static str, u64)>;
type Histograms = Vec<(&'static str, Snapshot)>;

/// `numbers![from => a, b;]`: fields of values, each under its own name.
macro_rules! numbers {
    ($($from:expr => $($field:ident),+;)+) => {
        vec![$($((stringify!($field), $from.$field as u64)),+),+]
    };
}

/// Of a larger table only the rows that were promised last are looked at.
const MOST_ROWS: u64 = 1 << 24;

impl Inspection {
    pub(super) fn numbers(&self, now_ns: u64) -> Result<(Numbers, Histograms)> {
        match &self.structure {
            Structure::Ring(ring) => Ok(of_ring(ring)),
            Structure::Records(records) => {
                let (geometry, contents, totals) = (records.geometry(), records.census(), records.totals());
                let mut numbers = numbers![
                    geometry => lanes, lane_bytes;
                    contents => grown_bytes, ready_records, ready_bytes, reserved_records;
                    totals => blocked, dropped_oldest, dropped_newest, aborted;
                ];
                numbers.extend([
                    ("lanes_taken", contents.lanes as u64),
                    ("taken_records", contents.held_records as u64),
                    ("taken_bytes", contents.held_bytes as u64),
                    ("records_committed", totals.committed),
                    ("records_taken", totals.taken),
                    ("records_released", totals.released),
                    ("recovered_reservations", totals.recovered),
                    ("returned_records", totals.returned),
                    ("published_version", records.published()),
                ]);
                let control = records.protocol().control;
                let histograms =
                    vec![("queue_dwell", control.dwell.snapshot()), ("wait", control.wait.snapshot())];
                Ok((numbers, histograms))
            }
            Structure::Weights(weights) => of_weights(weights, now_ns),
            Structure::Replay(table) => Ok((of_table(table), Vec::new())),
            Structure::VectorEnv(vector_env) => Ok((of_vector_env(vector_env), Vec::new())),
            Structure::Other(_) => Ok(Default::default()),
        }
    }
}

fn of_ring(ring: &Ring) -> (Numbers, Histograms) {
    let (geometry, contents, totals) = (ring.geometry(), ring.census(), ring.totals());
    let mut numbers = numbers![
        geometry => batch_size, num_buffers;
        contents => ready_samples, ready_batches, held_batches, held_samples, claimed_slots, free_buffers;
        totals => samples_released, batches_released, claim_retries, blocked;
        totals => dropped_oldest, dropped_newest, recovered_slots, reoffered_batches, aborted;
    ];
    let committed =
        totals.samples_released.wrapping_add(totals.dropped_oldest).wrapping_add(contents.committed() as u64);
    numbers.push(("samples_committed", committed));
    let control = ring.protocol().control;
    let histograms = vec![
        ("memcpy", control.memcpy.snapshot()),
        ("queue_dwell", control.dwell.snapshot()),
        ("wait", control.wait.snapshot()),
    ];
    (numbers, histograms)
}

fn of_weights(weights: &Weights, now_ns: u64) -> Result<(Numbers, Histograms)> {
    let totals = weights.totals();
    let mut numbers = numbers![totals => buffers, retries, overtaken, recovered;];
    let published_ns = weights.protocol().control.publish.published_ns.load(Ordering::Relaxed);
    numbers.extend([
        ("version", weights.version()?),
        ("max_buffers", weights.geometry().max_buffers as u64),
        ("weight_bytes", weights.geometry().leaf_bytes.iter().fold(0, |sum, &bytes| sum + bytes as u64)),
    ]);
    if published_ns != 0 {
        numbers.push(("published_ago_ns", now_ns.saturating_sub(published_ns)));
    }
    Ok((numbers, Vec::new()))
}

fn of_table(table: &MappedTable) -> Numbers {
    let (geometry, totals, protocol) = (&table.geometry, table.totals(), table.protocol());
    let mut numbers = numbers![
        geometry => capacity, row_bytes;
        totals => added, overwritten, skipped, recovered, sampled, redrawn;
    ];
    let (mut ready, mut writing) = (0, 0);
    for row in recent_rows(table) {
        match RowWord::unpack(protocol.words[row].load(Ordering::Relaxed)).kind {
            RowKind::Empty => {}
            RowKind::Writing => writing += 1,
            RowKind::Ready => ready += 1,
        }
    }
    numbers.extend([("rows", ready), ("writing", writing)]);
    numbers
}

/// The rows that were promised last, the newest first.
pub(super) fn recent_rows(table: &MappedTable) -> impl Iterator<Item = usize> {
    let capacity = table.geometry.capacity as u64;
    let head = table.protocol().control.write.head.load(Ordering::Relaxed);
    let rows = head.min(capacity).min(MOST_ROWS);
    (1..=rows).map(move |back| ((head - back) % capacity) as usize)
}

fn of_vector_env(vector_env: &VectorEnv) -> Numbers {
    let geometry = vector_env.geometry();
    let mut numbers = numbers![geometry => workers, envs, data_bytes;];
    numbers.push(("unanswered", vector_env.protocol().missing() as u64));
    numbers
}
