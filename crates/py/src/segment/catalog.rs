//! Functions over all segments of this user: what is there, and removing what nobody lives in.

use crate::errors::to_py;
use crate::segment::contents::contents;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rollway_core::net::client::NodeBuffer;
use rollway_core::net::wire::token_file;
use rollway_core::segment::catalog::{self, Entry};
use rollway_core::segment::memory;
use std::path::PathBuf;

fn describe<'py>(py: Python<'py>, entry: &Entry) -> PyResult<Bound<'py, PyDict>> {
    let row = PyDict::new(py);
    row.set_item("name", &entry.name)?;
    row.set_item("bytes", entry.bytes)?;
    row.set_item("used_bytes", entry.used_bytes)?;
    row.set_item("kind", contents(entry.kind).0)?;
    row.set_item("alive", entry.alive)?;
    row.set_item("creator_pid", entry.creator_pid)?;
    row.set_item("created_unix_ns", entry.created_unix_ns)?;
    row.set_item("pids", &entry.pids)?;
    row.set_item("problem", &entry.problem)?;
    Ok(row)
}

/// Every segment with our prefix.
#[pyfunction]
pub fn list_segments(py: Python<'_>) -> PyResult<Vec<Bound<'_, PyDict>>> {
    let entries = py.detach(catalog::list).map_err(|e| to_py(py, e))?;
    entries.iter().map(|entry| describe(py, entry)).collect()
}

/// Removes every stale segment, and the token files of dead servers; gives back the segments that were removed.
#[pyfunction]
pub fn collect_all(py: Python<'_>) -> PyResult<Vec<Bound<'_, PyDict>>> {
    let collect = || token_file::collect().and_then(|_| catalog::collect_all());
    let removed = py.detach(collect).map_err(|e| to_py(py, e))?;
    removed.iter().map(|entry| describe(py, entry)).collect()
}

/// Removes one segment if nobody lives in it.
#[pyfunction]
pub fn collect(py: Python<'_>, name: &str) -> PyResult<bool> {
    py.detach(|| catalog::collect(name)).map_err(|e| to_py(py, e))
}

/// Removes what forwarders have left behind, with what is in it. Workers that are attached get an error.
#[pyfunction]
pub fn discard_forwarded(py: Python<'_>, name: &str) -> PyResult<()> {
    py.detach(|| NodeBuffer::discard(name)).map_err(|e| to_py(py, e))
}

/// Where segments live.
#[pyfunction]
pub fn shm_directory() -> String {
    rollway_core::segment::directory().display().to_string()
}

/// The memory limits of the control groups of this process: `(file, bytes, used)`, the one that leaves the least first.
#[pyfunction]
pub fn memory_limits(root: PathBuf) -> Vec<(PathBuf, u64, u64)> {
    let limits = memory::limits(&root).into_iter();
    limits.map(|limit| (limit.file, limit.bytes, limit.used)).collect()
}
