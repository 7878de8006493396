//! `Table`: one participant's handle on a table. `rollway.ReplayBuffer` owns one.

use crate::convert::arguments::deadline;
use crate::convert::arguments::if_exists;
use crate::convert::columns::Columns;
use crate::convert::leaf::Leaf;
use crate::convert::numbers;
use crate::convert::numpy_types::{is_of_type, ndarray_type};
use crate::errors::{after, blocking, named, to_py};
use crate::gil::GilCell;
use crate::stats::set_fields;
use numpy::npyffi::{self, npy_intp};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};
use rollway_core::Error;
use rollway_core::replay::{Field, Piece, Sampler, Table as Core, TableSpec};
use rollway_core::segment::arrival;
use rollway_core::sys::wait::Deadline;
use std::sync::Arc;

/// Copies larger than this let other threads of the interpreter run meanwhile.
const DETACH_BYTES: usize = 64 * 1024;

/// dtype, shape, bytes, and where it starts in the row.
type Fields = Vec<(Py<PyAny>, Vec<npy_intp>, usize, usize)>;

/// One participant of a table.
#[pyclass(frozen, module = "rollway._core")]
pub struct Table {
    core: GilCell<Option<Arc<Core>>>,
    sampler: GilCell<Arc<Sampler>>,
    leaves: Vec<Leaf>,
    row_bytes: usize,
    name: String,
}

#[pymethods]
impl Table {
    /// A learner's handle: makes the table, or goes on with the one that is there.
    #[new]
    #[pyo3(signature = (name, text, fields, row_bytes, capacity, *, auto_named, if_exists, max_peers, huge_pages, seed))]
    #[allow(clippy::too_many_arguments)] // Python's keyword arguments, one by one.
    fn open(
        py: Python<'_>,
        name: String,
        text: Vec<u8>,
        fields: Fields,
        row_bytes: usize,
        #[pyo3(from_py_with = numbers::capacity)] capacity: usize,
        auto_named: bool,
        if_exists: &str,
        #[pyo3(from_py_with = numbers::max_peers)] max_peers: usize,
        huge_pages: Option<bool>,
        #[pyo3(from_py_with = numbers::seed)] seed: Option<u64>,
    ) -> PyResult<Self> {
        let (leaves, fields) = split(py, fields)?;
        let spec = TableSpec {
            name: Some(&name),
            auto_named,
            schema: &text,
            row_bytes,
            fields: &fields,
            capacity,
            max_peers,
            huge_pages,
        };
        let if_exists = self::if_exists(if_exists)?;
        let core = py.detach(|| Core::open(&spec, if_exists)).map_err(|e| to_py(py, e))?;
        Ok(Table::wrap(core, leaves, seed))
    }

    /// A worker's handle. Waits for the table to appear.
    #[staticmethod]
    fn attach(
        py: Python<'_>,
        name: &str,
        text: Vec<u8>,
        fields: Fields,
        row_bytes: usize,
        #[pyo3(from_py_with = numbers::seed)] seed: Option<u64>,
        connect_timeout_s: f64,
    ) -> PyResult<Self> {
        let (leaves, fields) = split(py, fields)?;
        let deadline = deadline(Some(connect_timeout_s))?;
        let attach = || Core::attach(name, &text, row_bytes, &fields);
        let core = blocking(py, || arrival::attach(name, deadline, attach))?.map_err(|e| to_py(py, e))?;
        Ok(Table::wrap(core, leaves, seed))
    }

    /// The schema of a table. Waits for it to appear.
    #[staticmethod]
    fn schema_of<'py>(py: Python<'py>, name: &str, connect_timeout_s: f64) -> PyResult<Bound<'py, PyBytes>> {
        let deadline = deadline(Some(connect_timeout_s))?;
        let text = blocking(py, || arrival::attach(name, deadline, || Core::schema_of(name)))?;
        Ok(PyBytes::new(py, &text.map_err(|e| to_py(py, e))?))
    }

    /// Copies rows in, one array for each field. Gives how many were committed: fewer than there are only when the time was
    /// over. `None` when a column is not plain: nothing was done.
    fn add(
        &self,
        py: Python<'_>,
        columns: &Bound<'_, PyTuple>,
        mask: Option<&Bound<'_, PyAny>>,
        patches: Option<&Bound<'_, PyTuple>>,
        timeout: Option<f64>,
    ) -> PyResult<Option<usize>> {
        let Some(columns) = Columns::of(&self.leaves, columns, mask, patches)? else { return Ok(None) };
        let core = self.core(py)?;
        let (sources, rows) = (&columns.sources, columns.rows);
        let mut done = 0;
        // SAFETY: there is one source for each field, of `rows` rows each, checked by `Columns::of`; their arrays are alive
        // during the call. A thread that changes one meanwhile spoils its own rows.
        let add = |done: &mut usize, deadline| unsafe { core.add(sources, done, rows, deadline) };
        let small = rows * self.row_bytes <= DETACH_BYTES;
        match if small { add(&mut done, Deadline::Now) } else { Err(Error::Timeout) } {
            Ok(()) => {}
            Err(Error::Timeout) => {
                let deadline = deadline(timeout)?;
                let ended = blocking(py, || add(&mut done, deadline));
                match ended.map_err(|raised| after(py, raised, done))? {
                    Ok(()) | Err(Error::Timeout) => {}
                    Err(error) => return Err(after(py, self.explain(py, error), done)),
                }
            }
            Err(error) => return Err(after(py, self.explain(py, error), done)),
        }
        Ok(Some(done))
    }

    /// Draws `batch` rows and copies them into `block`: bytes, one row after the other.
    fn sample(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = numbers::batch_size)] batch: usize,
        block: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (data, bytes) = bytes_of(block)?;
        if Some(bytes) != batch.checked_mul(self.row_bytes) {
            let message = format!("out has {bytes} bytes, for {batch} rows of {}", self.row_bytes);
            return Err(named(py, "InvalidArgument", message));
        }
        self.gather(py, batch, &[Piece { offset: 0, bytes: self.row_bytes, data, stride: self.row_bytes }])
    }

    /// Draws `batch` rows and copies them into `out`: for each field a contiguous array of `batch` rows.
    fn sample_fields(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = numbers::batch_size)] batch: usize,
        out: &Bound<'_, PyTuple>,
    ) -> PyResult<()> {
        if out.len() != self.leaves.len() {
            let message = format!("out has {} arrays, for {} fields", out.len(), self.leaves.len());
            return Err(named(py, "InvalidArgument", message));
        }
        let core = self.core(py)?;
        let mut pieces = Vec::with_capacity(self.leaves.len());
        for (index, (leaf, field)) in self.leaves.iter().zip(&core.geometry().fields).enumerate() {
            let data = destination(leaf, &*out.get_borrowed_item(index)?, batch, index)?;
            pieces.push(Piece { offset: field.offset, bytes: field.bytes, data, stride: field.bytes });
        }
        self.gather(py, batch, &pieces)
    }

    /// Copies the whole rows from number `first` on into `block`, out of as many as it has room for. Gives how many.
    fn read(&self, py: Python<'_>, first: usize, block: &Bound<'_, PyAny>) -> PyResult<usize> {
        let (data, bytes) = bytes_of(block)?;
        let core = self.core(py)?;
        let capacity = core.geometry().capacity;
        let rows = first.min(capacity)..first.saturating_add(bytes / self.row_bytes).min(capacity);
        let place = data as usize; // A pointer is not `Send`.
        // SAFETY: the block has room for as many rows. A thread that uses it meanwhile spoils its own copy.
        Ok(py.detach(|| unsafe { core.copy_whole(rows, place as *mut u8) }))
    }

    /// Draws from a seed from now on; `None`: one from the operating system.
    fn reseed(&self, py: Python<'_>, #[pyo3(from_py_with = numbers::seed)] seed: Option<u64>) {
        drop(self.sampler.replace(py, Arc::new(Sampler::new(seed))));
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.core(py)?.rows())
    }

    /// Waits until there are so many rows. False when the time is over.
    fn wait_for_rows(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = numbers::rows)] rows: usize,
        timeout: Option<f64>,
    ) -> PyResult<bool> {
        let (core, deadline) = (self.core(py)?, deadline(timeout)?);
        blocking(py, || core.wait_for_rows(rows, deadline))?.map_err(|e| self.explain(py, e))
    }

    /// Positions promised so far.
    #[getter]
    fn head(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.core(py)?.head())
    }

    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    #[getter]
    fn capacity(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.core(py)?.geometry().capacity)
    }

    /// Whether the table was there already.
    #[getter]
    fn resumed(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.core(py)?.resumed())
    }

    /// How many rows earlier learners left, and how many seconds ago the segment was made. `None` if there are none, or another
    /// learner lives.
    fn found(&self, py: Python<'_>) -> PyResult<Option<(usize, f64)>> {
        Ok(self.core(py)?.found().map(|(rows, age)| (rows, age.as_secs_f64())))
    }

    /// Whether this handle was closed.
    #[getter]
    fn closed(&self, py: Python<'_>) -> bool {
        self.core.is_none(py)
    }

    /// Who is writing rows now: pids, and how many.
    fn writers(&self, py: Python<'_>) -> PyResult<Vec<(u32, usize)>> {
        let core = self.core(py)?;
        Ok(py.detach(|| core.writers()))
    }

    /// What is in the table, and what happened so far. Looks at every row.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let core = self.core(py)?;
        let contents = py.detach(|| core.census());
        let (totals, geometry) = (core.totals(), core.geometry());
        let stats = PyDict::new(py);
        set_fields!(stats, geometry, capacity, row_bytes);
        stats.set_item("bytes", core.segment().header().total_bytes)?;
        stats.set_item("rows", contents.ready)?;
        set_fields!(stats, contents, writing);
        set_fields!(stats, totals, added, overwritten, skipped, recovered, sampled, redrawn);
        Ok(stats)
    }

    /// Leaves; the last learner takes the name away. `unlink`: take it away in any case.
    fn close(&self, py: Python<'_>, unlink: bool) -> PyResult<()> {
        let Some(core) = self.core.replace(py, None) else { return Ok(()) };
        let left = py.detach(|| if unlink { core.unlink().and(core.leave()) } else { core.leave() });
        left.map_err(|e| to_py(py, e))
    }

    /// Ends as if this process had been killed: the rows stay for the next learner.
    fn abandon(&self, py: Python<'_>) -> PyResult<()> {
        let Some(core) = self.core.replace(py, None) else { return Ok(()) };
        py.detach(|| Core::abandon(core)).map_err(|e| to_py(py, e))
    }
}

impl Table {
    fn wrap(core: Core, leaves: Vec<Leaf>, seed: Option<u64>) -> Table {
        Table {
            row_bytes: core.geometry().row_bytes,
            name: core.name().to_owned(),
            core: GilCell::new(Some(Arc::new(core))),
            sampler: GilCell::new(Arc::new(Sampler::new(seed))),
            leaves,
        }
    }

    fn core(&self, py: Python<'_>) -> PyResult<Arc<Core>> {
        self.core.share(py).ok_or_else(|| self.is_closed(py))
    }

    fn is_closed(&self, py: Python<'_>) -> PyErr {
        named(py, "ConnectionClosedError", format!("this handle on '{}' is closed", self.name))
    }

    /// Each piece has room for `batch` rows, in an array that the caller keeps alive.
    fn gather(&self, py: Python<'_>, batch: usize, pieces: &[Piece]) -> PyResult<()> {
        let (core, sampler) = (self.core(py)?, self.sampler.share(py));
        // SAFETY: as said above. A thread that uses the arrays meanwhile spoils its own batch.
        py.detach(|| unsafe { sampler.sample(&core, batch, pieces) }).map_err(|e| self.explain(py, e))
    }

    fn explain(&self, py: Python<'_>, error: Error) -> PyErr {
        match error {
            Error::Closed if self.core.is_none(py) => self.is_closed(py),
            Error::Closed => {
                let message = format!("'{}' is closed: its last learner has left", self.name);
                named(py, "ConnectionClosedError", message)
            }
            error => to_py(py, error),
        }
    }
}

fn split(py: Python<'_>, fields: Fields) -> PyResult<(Vec<Leaf>, Vec<Field>)> {
    let split = |(descr, shape, bytes, offset)| {
        PyResult::Ok((Leaf::new(py, descr, shape, bytes)?, Field { offset, bytes }))
    };
    fields.into_iter().map(split).collect()
}

/// The bytes of an array of them that may be written to and has no gaps.
fn bytes_of(object: &Bound<'_, PyAny>) -> PyResult<(*mut u8, usize)> {
    let py = object.py();
    // SAFETY: the type is checked before the fields are read; the GIL is held and the object is alive.
    unsafe {
        if pyo3::ffi::Py_TYPE(object.as_ptr()) == ndarray_type(py) {
            let array = &(*object.as_ptr().cast::<npyffi::PyArrayObject>()).fields;
            let wanted = npyffi::NPY_ARRAY_C_CONTIGUOUS | npyffi::NPY_ARRAY_WRITEABLE;
            let is_bytes = is_of_type(py, array.descr, npyffi::NPY_TYPES::NPY_UBYTE);
            if is_bytes && array.nd == 1 && array.flags & wanted == wanted {
                return Ok((array.data.cast(), *array.dimensions as usize));
            }
        }
    }
    Err(named(py, "InvalidArgument", "out must be a contiguous, writable array of uint8".to_owned()))
}

/// Where a field of a batch goes, if the array is what it must be.
fn destination(field: &Leaf, object: &Bound<'_, PyAny>, batch: usize, index: usize) -> PyResult<*mut u8> {
    let py = object.py();
    // SAFETY: the type is checked before the fields are read; the GIL is held and the object is alive.
    unsafe {
        if pyo3::ffi::Py_TYPE(object.as_ptr()) == ndarray_type(py) {
            let array = &(*object.as_ptr().cast::<npyffi::PyArrayObject>()).fields;
            let wanted = npyffi::NPY_ARRAY_C_CONTIGUOUS | npyffi::NPY_ARRAY_WRITEABLE;
            if array.nd as usize == field.shape.len() + 1
                && array.flags & wanted == wanted
                && array.descr.cast::<pyo3::ffi::PyObject>() == field.descr.as_ptr()
            {
                let dims = std::slice::from_raw_parts(array.dimensions, array.nd as usize);
                if dims[0] == batch as npy_intp && dims[1..] == field.shape {
                    return Ok(array.data.cast());
                }
            }
        }
    }
    let message = format!(
        "the array in out for field {index} must be contiguous, writable, and have the field's dtype and shape behind a \
         first dimension of {batch}"
    );
    Err(named(py, "InvalidArgument", message))
}
