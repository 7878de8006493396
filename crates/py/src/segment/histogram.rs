//! `HistSnapshot`: a histogram, read.

use pyo3::prelude::*;
use rollway_core::segment::histogram::Snapshot;

/// Durations in nanoseconds: how many, and how long. Quantiles are right to 12%.
#[pyclass(frozen, get_all, module = "rollway")]
pub struct HistSnapshot {
    count: u64,
    min_ns: u64,
    max_ns: u64,
    mean_ns: f64,
    p50_ns: u64,
    p90_ns: u64,
    p99_ns: u64,
}

impl From<Snapshot> for HistSnapshot {
    fn from(s: Snapshot) -> Self {
        let Snapshot { count, min_ns, max_ns, mean_ns, p50_ns, p90_ns, p99_ns } = s;
        HistSnapshot { count, min_ns, max_ns, mean_ns, p50_ns, p90_ns, p99_ns }
    }
}

#[pymethods]
impl HistSnapshot {
    fn __repr__(&self) -> String {
        format!(
            "HistSnapshot(count={}, p50={:.1}us, p90={:.1}us, p99={:.1}us, max={:.1}us)",
            self.count,
            self.p50_ns as f64 / 1e3,
            self.p90_ns as f64 / 1e3,
            self.p99_ns as f64 / 1e3,
            self.max_ns as f64 / 1e3
        )
    }
}
