//! `RecordTable`: many records, to be copied into one array each leaf: padded or packed, straight from shared memory to
//! where the trainer wants them.

use crate::convert::numbers;
use crate::convert::record_plan::RecordPlan;
use crate::errors::{named, to_py};
use crate::records::record::Record;
use numpy::npyffi;
use pyo3::exceptions::PyIndexError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyList;
use rollway_core::records::assemble::{self, Part, Side};
use rollway_core::sys::prefetch::prefetch_all;

/// Records lie here and there: so many before one is needed, it is fetched.
const AHEAD: usize = 8;

/// The records of a batch: of one schema, and not released while it is made.
#[pyclass(frozen, module = "rollway._core")]
pub struct RecordTable {
    plan: Py<RecordPlan>,
    records: Vec<Py<Record>>,
    columns: Vec<Column>,
}

/// One leaf of all records.
#[derive(Default)]
struct Column {
    /// By record: how many rows it has, and where they are, as an address and a number of bytes.
    rows: Vec<usize>,
    places: Vec<(usize, usize)>,
}

#[pymethods]
impl RecordTable {
    #[new]
    fn new(py: Python<'_>, records: &Bound<'_, PyList>) -> PyResult<RecordTable> {
        let mut table: Vec<Py<Record>> = Vec::with_capacity(records.len());
        for (index, record) in records.iter().enumerate() {
            if index + AHEAD < records.len() {
                // SAFETY: the GIL is held, and the list has that item; only its address is used.
                let later =
                    unsafe { ffi::PyList_GetItem(records.as_ptr(), (index + AHEAD) as ffi::Py_ssize_t) };
                prefetch_all(later.cast(), size_of::<Record>());
            }
            table.push(record.cast_into::<Record>()?.unbind());
        }
        let Some(first) = table.first() else {
            return Err(named(py, "InvalidArgument", "a batch needs at least one record".to_owned()));
        };
        let plan = first.get().plan_ref().clone_ref(py);
        let same = |other: &Py<RecordPlan>| other.is(&plan) || other.get().text == plan.get().text;
        if !table.iter().all(|record| same(record.get().plan_ref())) {
            let message = "the records of a batch must all have one schema".to_owned();
            return Err(named(py, "SchemaMismatch", message));
        }
        // One walk over the records, which lie here and there; the leaves of a batch are asked for one by one.
        let mut columns = Vec::new();
        columns.resize_with(plan.get().leaves.len(), Column::default);
        for record in &table {
            for (leaf, column) in columns.iter_mut().enumerate() {
                let (data, rows, bytes) = record.get().leaf(leaf);
                column.rows.push(rows);
                column.places.push((data as usize, bytes));
            }
        }
        Ok(RecordTable { plan, records: table, columns })
    }

    /// The compiled schema of all of them.
    #[getter]
    fn plan(&self, py: Python<'_>) -> Py<RecordPlan> {
        self.plan.clone_ref(py)
    }

    /// Writes how many rows a leaf has in each record into `out`, an array of int64.
    fn lengths(&self, leaf: usize, out: &Bound<'_, PyAny>) -> PyResult<()> {
        let rows = &self.column(leaf)?.rows;
        for (place, count) in bytes_of(out)?.chunks_exact_mut(8).zip(rows) {
            place.copy_from_slice(&(*count as i64).to_ne_bytes());
        }
        Ok(())
    }

    /// Writes where each record begins in a packed leaf, and where the last one ends, into `out`, an array of int32.
    fn cu_seqlens(&self, py: Python<'_>, leaf: usize, out: &Bound<'_, PyAny>) -> PyResult<()> {
        let ends = assemble::cu_seqlens(&self.column(leaf)?.rows).map_err(|e| to_py(py, e))?;
        for (place, end) in bytes_of(out)?.chunks_exact_mut(4).zip(&ends) {
            place.copy_from_slice(&end.to_ne_bytes());
        }
        Ok(())
    }

    /// The most rows that a leaf has in any record, and how many it has in all of them.
    fn extent(&self, leaf: usize) -> PyResult<(usize, usize)> {
        let rows = &self.column(leaf)?.rows;
        Ok((rows.iter().copied().max().unwrap_or(0), rows.iter().sum()))
    }

    /// Copies leaves of every record into arrays, with the GIL released: `packed` ones one after the other, `padded` ones
    /// as `[B, T, …]` with an item to fill with where there is nothing. `mask` says of which leaf to mark the data, with
    /// 1 in a `[B, T]` array of bytes.
    fn assemble(
        &self,
        py: Python<'_>,
        packed: Vec<(usize, Bound<'_, PyAny>)>,
        padded: Vec<(usize, Bound<'_, PyAny>, Vec<u8>)>,
        mask: Option<(usize, Bound<'_, PyAny>)>,
        left: bool,
    ) -> PyResult<()> {
        let is_gone = |&index: &usize| {
            let record = self.records[index].get();
            let has_moved = |column: &Column| column.places[index].0 != record.leaf(0).0 as usize;
            record.is_released(py) || self.columns.first().is_some_and(has_moved)
        };
        if let Some(index) = (0..self.records.len()).find(is_gone) {
            let message =
                format!("record {index} of the batch was released or detached before it was copied");
            return Err(named(py, "InvalidArgument", message));
        }
        let side = if left { Side::Left } else { Side::Right };
        let mut parts = Vec::with_capacity(packed.len() + padded.len() + 1);
        for (leaf, array) in &packed {
            parts.push(Part::Packed { to: bytes_of(array)?, rows: self.column(*leaf)?.slices() });
        }
        for (leaf, array, fill) in &padded {
            let (to, rows) = (bytes_of(array)?, self.column(*leaf)?.slices());
            let row_bytes = to.len() / rows.len();
            parts.push(Part::Padded { to, rows, row_bytes, fill, side });
        }
        if let Some((leaf, array)) = &mask {
            let (to, counts) = (bytes_of(array)?, &self.column(*leaf)?.rows);
            let length = to.len() / counts.len();
            parts.push(Part::Mask { to, counts, length, side });
        }
        py.detach(|| assemble::assemble(parts)).map_err(|e| to_py(py, e))
    }
}

impl RecordTable {
    fn column(&self, leaf: usize) -> PyResult<&Column> {
        let leaves = self.columns.len();
        self.columns.get(leaf).ok_or_else(|| PyIndexError::new_err(format!("leaf {leaf} of {leaves}")))
    }
}

impl Column {
    /// The bytes of the leaf, by record. They stay while the table keeps the records, released or not: another thread that
    /// releases one while we copy gets old bytes into its own batch, never unmapped ones.
    fn slices(&self) -> Vec<&[u8]> {
        // SAFETY: the leaf lies in the record, which the table keeps alive, and with it the mapping.
        let slice =
            |&(data, bytes): &(usize, usize)| unsafe { std::slice::from_raw_parts(data as *const u8, bytes) };
        self.places.iter().map(slice).collect()
    }
}

/// The bytes of a numpy array that may be written to and has no gaps.
#[allow(clippy::mut_from_ref)] // Python's arrays know no such difference.
fn bytes_of<'a>(array: &'a Bound<'_, PyAny>) -> PyResult<&'a mut [u8]> {
    let py = array.py();
    // SAFETY: the type is checked before the fields are read. The array is alive while it is borrowed; if another thread
    // writes to it meanwhile, it spoils its own batch, as with any numpy array.
    unsafe {
        if ffi::Py_TYPE(array.as_ptr()) != crate::convert::numpy_types::ndarray_type(py) {
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
        Ok(std::slice::from_raw_parts_mut(data, bytes))
    }
}

/// Splits records of these lengths, in order, into batches that fit a budget of tokens: `(first, behind the last)`.
#[pyfunction]
pub fn plan_budget(
    py: Python<'_>,
    lengths: Vec<usize>,
    #[pyo3(from_py_with = numbers::budget)] budget: usize,
    packed: bool,
) -> PyResult<Vec<(usize, usize)>> {
    let how = if packed { assemble::Cost::Packed } else { assemble::Cost::Padded };
    let batches = assemble::plan_budget(&lengths, budget, how).map_err(|e| to_py(py, e))?;
    Ok(batches.into_iter().map(|batch| (batch.start, batch.end)).collect())
}
