//! How large a segment will be, before it is made. `rollway.memory_budget` asks.

use crate::errors::to_py;
use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use rollway_core::replay::layout::{Field, Geometry as Table};
use rollway_core::ring::layout::Geometry as Ring;
use rollway_core::segment::header::Extent;
use rollway_core::weights::layout::Geometry as Weights;

/// Bytes of a ring of samples.
#[pyfunction]
pub fn ring_bytes(
    py: Python<'_>,
    leaf_bytes: Vec<usize>,
    batch_size: usize,
    num_buffers: usize,
    schema_bytes: usize,
    max_peers: usize,
) -> PyResult<usize> {
    let geometry = Ring::new(batch_size, num_buffers, &leaf_bytes).map_err(|e| to_py(py, e))?;
    total(max_peers, schema_bytes, geometry.body_bytes)
}

/// Bytes of a table of rows.
#[pyfunction]
pub fn table_bytes(
    py: Python<'_>,
    row_bytes: usize,
    capacity: usize,
    schema_bytes: usize,
    max_peers: usize,
) -> PyResult<usize> {
    let whole = [Field { offset: 0, bytes: row_bytes }];
    let geometry = Table::new(capacity, row_bytes, &whole, max_peers).map_err(|e| to_py(py, e))?;
    total(max_peers, schema_bytes, geometry.body_bytes)
}

/// Bytes of weights, with as many buffers as they may grow to.
#[pyfunction]
pub fn weights_bytes(
    py: Python<'_>,
    leaf_bytes: Vec<usize>,
    max_buffers: usize,
    schema_bytes: usize,
    max_peers: usize,
) -> PyResult<usize> {
    let geometry = Weights::new(max_peers, max_buffers, leaf_bytes).map_err(|e| to_py(py, e))?;
    total(max_peers, schema_bytes, geometry.body_bytes)
}

fn total(max_peers: usize, schema_bytes: usize, body_bytes: usize) -> PyResult<usize> {
    let extent = Extent::of(max_peers, schema_bytes, body_bytes);
    extent.map(|extent| extent.total).ok_or_else(|| PyOverflowError::new_err("larger than an address space"))
}
