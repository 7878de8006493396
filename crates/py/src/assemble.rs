//! Many records into one array: padded or packed, straight from shared memory to where the trainer wants them.

use crate::errors::{named, to_py};
use crate::record::Record;
use crate::record_plan::RecordPlan;
use numpy::npyffi;
use pyo3::prelude::*;
use rollway_core::records::assemble::{self, Side};

/// The records of a batch, which must not be released while it is made.
fn rows_of<'a>(py: Python<'_>, records: &'a [Bound<'_, Record>], leaf: usize) -> PyResult<Vec<&'a [u8]>> {
    let mut rows = Vec::with_capacity(records.len());
    for (index, record) in records.iter().enumerate() {
        let record = record.get();
        if record.is_released(py) {
            let message = format!("record {index} of the batch was released before it was copied");
            return Err(named(py, "InvalidArgument", message));
        }
        let (data, _, bytes) = record.leaf(leaf);
        // SAFETY: the leaf lies in the record, which the slice of Bounds keeps alive. Another thread that releases it
        // while we copy gets old bytes into its own batch, never unmapped ones.
        rows.push(unsafe { std::slice::from_raw_parts(data, bytes) });
    }
    Ok(rows)
}

/// Gives `fill` the bytes of a numpy array that may be written to and has no gaps, with the GIL released.
fn write_to(
    array: &Bound<'_, PyAny>,
    fill: impl FnOnce(&mut [u8]) -> rollway_core::Result<()> + Send,
) -> PyResult<()> {
    let py = array.py();
    // SAFETY: the type is checked before the fields are read. The array is alive while it is borrowed; if another thread
    // writes to it meanwhile, it spoils its own batch, as with any numpy array.
    let bytes = unsafe {
        if pyo3::ffi::Py_TYPE(array.as_ptr()) != crate::array::ndarray_type(py) {
            return Err(named(py, "InvalidArgument", "out must be a numpy array".to_owned()));
        }
        let fields = &(*array.as_ptr().cast::<npyffi::PyArrayObject>()).fields;
        let wanted = npyffi::NPY_ARRAY_C_CONTIGUOUS | npyffi::NPY_ARRAY_WRITEABLE;
        if fields.flags & wanted != wanted {
            let message = "out must be contiguous, and writable".to_owned();
            return Err(named(py, "InvalidArgument", message));
        }
        let bytes: usize = array.getattr("nbytes")?.extract()?;
        let data = if bytes == 0 { std::ptr::NonNull::dangling().as_ptr() } else { fields.data.cast() };
        std::slice::from_raw_parts_mut(data, bytes)
    };
    py.detach(|| fill(bytes)).map_err(|e| to_py(py, e))
}

fn check_leaf(py: Python<'_>, plan: &RecordPlan, records: &[Bound<'_, Record>], leaf: usize) -> PyResult<()> {
    if leaf >= plan.leaves.len()
        || records.iter().any(|record| record.get().plan_ref().get().text != plan.text)
    {
        let message = "the records of a batch must all have one schema".to_owned();
        return Err(named(py, "SchemaMismatch", message));
    }
    Ok(())
}

/// Copies one leaf of every record into `out`, a `[B, T, …]` array, with `fill` (one item) where there is nothing.
#[pyfunction]
pub fn pad_leaf(
    py: Python<'_>,
    plan: &RecordPlan,
    records: Vec<Bound<'_, Record>>,
    leaf: usize,
    out: &Bound<'_, PyAny>,
    fill: Vec<u8>,
    left: bool,
) -> PyResult<()> {
    check_leaf(py, plan, &records, leaf)?;
    let rows = rows_of(py, &records, leaf)?;
    let side = if left { Side::Left } else { Side::Right };
    write_to(out, |bytes| assemble::pad(bytes, &rows, bytes.len() / rows.len().max(1), &fill, side))
}

/// Copies one leaf of every record into `out`, one after the other.
#[pyfunction]
pub fn pack_leaf(
    py: Python<'_>,
    plan: &RecordPlan,
    records: Vec<Bound<'_, Record>>,
    leaf: usize,
    out: &Bound<'_, PyAny>,
) -> PyResult<()> {
    check_leaf(py, plan, &records, leaf)?;
    let rows = rows_of(py, &records, leaf)?;
    write_to(out, |bytes| assemble::pack(bytes, &rows))
}

/// How many rows a leaf has in each record.
#[pyfunction]
pub fn leaf_lengths(
    py: Python<'_>,
    plan: &RecordPlan,
    records: Vec<Bound<'_, Record>>,
    leaf: usize,
) -> PyResult<Vec<usize>> {
    check_leaf(py, plan, &records, leaf)?;
    Ok(records.iter().map(|record| record.get().leaf(leaf).1).collect())
}

/// Writes 1 where there is data and 0 where there is padding into `out`, a `[B, length]` array of bytes.
#[pyfunction]
pub fn mask_rows(lengths: Vec<usize>, out: &Bound<'_, PyAny>, length: usize, left: bool) -> PyResult<()> {
    let side = if left { Side::Left } else { Side::Right };
    write_to(out, |bytes| assemble::mask(bytes, &lengths, length, side))
}

/// Splits records of these lengths, in order, into batches that fit a budget of tokens: `(first, behind the last)`.
#[pyfunction]
pub fn plan_budget(
    py: Python<'_>,
    lengths: Vec<usize>,
    budget: usize,
    packed: bool,
) -> PyResult<Vec<(usize, usize)>> {
    let how = if packed { assemble::Cost::Packed } else { assemble::Cost::Padded };
    let batches = assemble::plan_budget(&lengths, budget, how).map_err(|e| to_py(py, e))?;
    Ok(batches.into_iter().map(|batch| (batch.start, batch.end)).collect())
}
