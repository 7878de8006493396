//! Histograms of durations that live in the segment, so that any process can add to them and any can read them.
//!
//! Buckets grow by an eighth (three bits below the leading one): a quantile is right to 12%, in 4 KB and with one
//! relaxed add per value. `hdrhistogram` was considered: its counts live on one process's heap.

use crate::sys::sync::{AtomicU64, Ordering};

const SUB_BITS: u32 = 3;
const SUB: usize = 1 << SUB_BITS;
/// Values from 0 ns to 2⁴⁰ ns (18 minutes); longer ones count as that.
#[cfg(not(loom))]
const BUCKETS: usize = (40 - SUB_BITS as usize + 1) * SUB;
#[cfg(loom)] // Its models record nothing, and every atomic costs time.
const BUCKETS: usize = 1;

/// Counts of durations in nanoseconds.
#[repr(C)]
#[derive(Debug)]
pub struct Histogram {
    counts: [AtomicU64; BUCKETS],
    sum_ns: AtomicU64,
    max_ns: AtomicU64,
    /// Stored as the complement, so that zeroed memory means "none yet".
    min_complement: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram {
            counts: std::array::from_fn(|_| AtomicU64::new(0)),
            sum_ns: AtomicU64::new(0),
            max_ns: AtomicU64::new(0),
            min_complement: AtomicU64::new(0),
        }
    }
}

/// A histogram, read.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Snapshot {
    pub count: u64,
    pub min_ns: u64,
    pub max_ns: u64,
    pub mean_ns: f64,
    pub p50_ns: u64,
    pub p90_ns: u64,
    pub p99_ns: u64,
}

fn bucket_of(ns: u64) -> usize {
    let ns = ns.min((1 << 40) - 1);
    if ns < SUB as u64 {
        return ns as usize;
    }
    let exponent = 63 - ns.leading_zeros();
    let sub = (ns >> (exponent - SUB_BITS)) as usize & (SUB - 1);
    (exponent - SUB_BITS + 1) as usize * SUB + sub
}

/// The middle of a bucket.
fn value_of(bucket: usize) -> u64 {
    if bucket < SUB {
        return bucket as u64;
    }
    let shift = (bucket / SUB - 1) as u32;
    let low = (SUB as u64 + (bucket % SUB) as u64) << shift;
    low + (1u64 << shift) / 2
}

impl Histogram {
    /// Adds one duration. The fields are independent: a reader may see a count before its sum.
    pub fn record(&self, ns: u64) {
        self.counts[bucket_of(ns)].fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(ns, Ordering::Relaxed);
        self.max_ns.fetch_max(ns, Ordering::Relaxed);
        self.min_complement.fetch_max(!ns, Ordering::Relaxed);
    }

    /// Forgets everything.
    pub fn reset(&self) {
        self.counts.iter().for_each(|c| c.store(0, Ordering::Relaxed));
        self.sum_ns.store(0, Ordering::Relaxed);
        self.max_ns.store(0, Ordering::Relaxed);
        self.min_complement.store(0, Ordering::Relaxed);
    }

    pub fn snapshot(&self) -> Snapshot {
        let counts: Vec<u64> = self.counts.iter().map(|c| c.load(Ordering::Relaxed)).collect();
        let count = counts.iter().copied().fold(0, u64::wrapping_add);
        if count == 0 {
            return Snapshot::default();
        }
        let min_ns = !self.min_complement.load(Ordering::Relaxed);
        let max_ns = self.max_ns.load(Ordering::Relaxed);
        let quantile = |q: f64| {
            let rank = (q * count as f64).ceil().max(1.0) as u64;
            let mut seen = 0;
            let bucket = counts.iter().position(|&c| {
                seen += c;
                seen >= rank
            });
            value_of(bucket.unwrap_or(BUCKETS - 1)).clamp(min_ns.min(max_ns), max_ns)
        };
        Snapshot {
            count,
            min_ns,
            max_ns,
            mean_ns: self.sum_ns.load(Ordering::Relaxed) as f64 / count as f64,
            p50_ns: quantile(0.5),
            p90_ns: quantile(0.9),
            p99_ns: quantile(0.99),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_value_lies_within_an_eighth_of_its_bucket() {
        for ns in
            (0..63).map(|s| 1u64 << s).flat_map(|p| [p, p + p / 3, p + p / 2]).filter(|&ns| ns < 1 << 40)
        {
            let middle = value_of(bucket_of(ns)) as f64;
            assert!((middle - ns as f64).abs() <= ns as f64 / 8.0 + 1.0, "{ns} is shown as {middle}");
        }
    }

    #[test]
    fn quantiles_of_a_known_set_are_right() {
        let histogram = Histogram::default();
        (1..=1000).for_each(|us| histogram.record(us * 1000));
        let snapshot = histogram.snapshot();
        assert_eq!((snapshot.count, snapshot.min_ns, snapshot.max_ns), (1000, 1000, 1_000_000));
        assert!((snapshot.p50_ns as f64 / 500_000.0 - 1.0).abs() < 0.13, "{snapshot:?}");
        assert!((snapshot.p99_ns as f64 / 990_000.0 - 1.0).abs() < 0.13, "{snapshot:?}");
        histogram.reset();
        assert_eq!(histogram.snapshot(), Snapshot::default());
    }
}
