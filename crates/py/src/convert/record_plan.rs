//! A record schema, compiled once: which key, which array, how many rows. `send` walks it without Python code.

use crate::convert::exact;
use crate::convert::leaf::Leaf;
use crate::convert::numbers;
use crate::convert::value::{Dims, Found, Scratch, Wanted};
use numpy::npyffi::npy_intp;
use pyo3::exceptions::{PyMemoryError, PyRuntimeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString};
use rollway_core::records::format::{LeafShape, PerLeaf, Placement, Shape};
use std::ptr::{null, null_mut};

/// The leaves that every record has in front of the user's: its packed key, and its metadata.
pub const KEY: usize = 0;
pub const METADATA: usize = 1;
const HIDDEN: usize = 2;

/// One array of a record.
pub struct RecordLeaf {
    pub name: Py<PyString>,
    /// Of a row, if it is ragged; otherwise of the whole.
    pub array: Leaf,
    pub ragged: bool,
}

/// Name, dtype, shape, bytes of a row, and length.
type LeafRow = (Py<PyString>, Py<PyAny>, Vec<npy_intp>, usize, Option<char>);

/// `RecordPlan(schema, text, leaves, casts)`: built by `rollway.schema.record.RecordSchema`, used by every handle.
///
/// `leaves` is a list of `(name, dtype, shape, row_bytes, length)`; the length is `None` where it is fixed, `"*"`, or the letter
/// of the leaves that are equally long.
#[pyclass(frozen, module = "rollway._core")]
pub struct RecordPlan {
    /// The Python object that converts what is not plain, and words the errors.
    schema: Py<PyAny>,
    pub text: Vec<u8>,
    pub leaves: Vec<RecordLeaf>,
    /// What lies in the bytes of a record: the hidden leaves, then these.
    pub shape: Shape,
}

#[pymethods]
impl RecordPlan {
    #[new]
    #[pyo3(signature = (schema, text, leaves, casts=false))]
    fn new(
        py: Python<'_>,
        schema: Py<PyAny>,
        text: Vec<u8>,
        leaves: Vec<LeafRow>,
        casts: bool,
    ) -> PyResult<Self> {
        let lengths: Vec<Option<char>> = leaves.iter().map(|(.., length)| *length).collect();
        let leaf = |(name, descr, shape, bytes, length): LeafRow| {
            // Interned, as the names in a worker's dict are: then looking it up compares two pointers.
            let name = PyString::intern(py, name.bind(py).to_str()?).unbind();
            let array = Leaf::new(py, descr, shape, bytes)?.casting(casts);
            Ok(RecordLeaf { name, array, ragged: length.is_some() })
        };
        let leaves: Vec<RecordLeaf> = leaves.into_iter().map(leaf).collect::<PyResult<_>>()?;
        crate::convert::schema::check(py, &text, leaves.iter().map(|leaf| leaf.array.bytes))?;
        let bytes = LeafShape { row_bytes: 1, rows: None };
        let user = leaves
            .iter()
            .map(|leaf| LeafShape { row_bytes: leaf.array.bytes, rows: (!leaf.ragged).then_some(1) });
        let letter = |part: usize| lengths[part.checked_sub(HIDDEN)?].filter(|&length| length != '*');
        let shape = Shape::new([bytes; HIDDEN].into_iter().chain(user).collect()).tied(letter);
        Ok(RecordPlan { schema, text, leaves, shape })
    }

    /// The schema that it was compiled from.
    #[getter]
    fn schema(&self, py: Python<'_>) -> Py<PyAny> {
        self.schema.clone_ref(py)
    }
}

impl RecordPlan {
    /// The number of a leaf.
    pub fn index(&self, name: &Bound<'_, PyAny>) -> PyResult<Option<usize>> {
        for (index, leaf) in self.leaves.iter().enumerate() {
            if leaf.name.as_ptr() == name.as_ptr() || leaf.name.bind(name.py()).as_any().eq(name)? {
                return Ok(Some(index));
            }
        }
        Ok(None)
    }

    #[inline]
    fn wanted<'a>(&self, leaf: &'a RecordLeaf) -> Wanted<'a> {
        let dims = if leaf.ragged { Dims::Rows } else { Dims::Fixed };
        Wanted { leaf: &leaf.array, dims, leaves: self.leaves.len() }
    }

    /// Refuses a record of which tied leaves have different lengths.
    #[inline]
    fn check_ties(&self, py: Python<'_>, rows: &[usize]) -> PyResult<()> {
        match self.shape.untied(rows) {
            None => Ok(()),
            Some(untied) => Err(self.untied(py, untied, rows)),
        }
    }

    #[cold]
    fn untied(&self, py: Python<'_>, (one, other): (usize, usize), rows: &[usize]) -> PyErr {
        let name = |part: usize| self.leaves[part - HIDDEN].name.bind(py);
        let message = format!(
            "leaf '{}' has length {} and leaf '{}' has length {}; the schema ties them with the same letter. Give both the same \
             length, or give one of them '*' in the schema of both sides",
            name(one),
            rows[one],
            name(other),
            rows[other],
        );
        crate::errors::named(py, "SchemaMismatch", message)
    }

    /// Which of a record's parts a leaf is.
    pub fn part(leaf: usize) -> usize {
        leaf + HIDDEN
    }
}

/// Everything that goes into one record, checked against the plan.
pub struct Parts {
    /// Where each leaf comes from; null: it is zeroed.
    sources: PerLeaf<*const u8>,
    /// Where each leaf goes, and how many rows it has.
    pub placement: Placement,
    /// The number of the weights that made the record, and what kind of record it is.
    pub version: u32,
    pub kind: u32,
    scratch: Scratch,
    /// The sources point into what the caller's dict holds: [`keep`](Self::keep) has something to do.
    is_borrowed: bool,
}

// SAFETY: the pointers are to bytes of arrays and bytes objects; they are read while those are alive (see `of` and `keep`).
unsafe impl Send for Parts {}
// SAFETY: as above; Parts is never changed after it was made.
unsafe impl Sync for Parts {}

impl Parts {
    /// The arrays of `data`. The pointers are good while `key` and `metadata` are alive and the GIL is held; for longer,
    /// call [`keep`](Self::keep).
    #[inline]
    pub fn of(
        py: Python<'_>,
        plan: &RecordPlan,
        data: &Bound<'_, PyAny>,
        key: &[u8],
        metadata: &[u8],
    ) -> PyResult<Parts> {
        let mut parts = Parts::hidden(key, metadata);
        if !parts.take_plain(py, plan, data) {
            parts.convert(plan, data)?;
        }
        parts.arrange(py, plan)?;
        Ok(parts)
    }

    /// Takes the arrays and numbers of `data` if it is a plain dict of just what the plan says. It runs no Python code: what was
    /// found before is still there.
    #[inline]
    pub fn take_plain(&mut self, py: Python<'_>, plan: &RecordPlan, data: &Bound<'_, PyAny>) -> bool {
        // SAFETY: the GIL is held, `data` is alive, and no Python code runs in between.
        let found = unsafe { self.find(py, plan, data.as_ptr()) };
        self.is_borrowed = found;
        if !found {
            self.truncate();
        }
        found
    }

    /// Holds on to the arrays of `data`. Before the GIL is let go: others may take them out of it then.
    #[cold]
    pub fn keep(&mut self, plan: &RecordPlan, data: &Bound<'_, PyAny>) -> PyResult<()> {
        if !self.is_borrowed {
            return self.own(plan);
        }
        let data = data.cast_exact::<PyDict>()?; // As `find` saw it, with `str` itself for keys: no Python code runs.
        for leaf in &plan.leaves {
            self.scratch.memory().kept.extend(data.get_item(&leaf.name)?.map(Bound::unbind));
        }
        Ok(())
    }

    /// A record with no data: every ragged leaf is empty, every fixed one zero.
    pub fn empty(py: Python<'_>, plan: &RecordPlan, key: &[u8], metadata: &[u8]) -> PyResult<Parts> {
        let rows: Vec<usize> = plan.leaves.iter().map(|leaf| !leaf.ragged as usize).collect();
        Parts::room(py, plan, &rows, key, metadata)
    }

    /// Room for leaves of so many rows, to be written in place.
    pub fn room(
        py: Python<'_>,
        plan: &RecordPlan,
        rows: &[usize],
        key: &[u8],
        metadata: &[u8],
    ) -> PyResult<Parts> {
        let mut parts = Parts::hidden(key, metadata);
        rows.iter().for_each(|&rows| parts.push(Found { data: null(), rows }));
        parts.arrange(py, plan)?;
        Ok(parts)
    }

    /// The key and the metadata alone; the leaves are to be taken, and then arranged.
    #[inline]
    pub fn hidden(key: &[u8], metadata: &[u8]) -> Parts {
        let (sources, placement, scratch) = (PerLeaf::new(), Placement::default(), Scratch::default());
        let mut parts = Parts { sources, placement, version: 0, kind: 0, scratch, is_borrowed: false };
        for bytes in [key, metadata] {
            parts.push(Found { data: bytes.as_ptr(), rows: bytes.len() });
        }
        parts
    }

    #[inline]
    fn push(&mut self, Found { data, rows }: Found) {
        self.sources.push(data);
        self.placement.counts.push(rows);
    }

    /// Forgets all but the hidden parts.
    fn truncate(&mut self) {
        self.sources.truncate(HIDDEN);
        self.placement.counts.truncate(HIDDEN);
    }

    /// Finds a place in the record for all that was taken.
    #[inline]
    pub fn arrange(&mut self, py: Python<'_>, plan: &RecordPlan) -> PyResult<()> {
        plan.check_ties(py, &self.placement.counts)?;
        plan.shape.arrange(&mut self.placement).map_err(|error| crate::errors::to_py(py, error))
    }

    pub fn bytes(&self) -> usize {
        self.placement.bytes
    }

    /// Writes the whole record.
    ///
    /// # Safety
    /// `to` has room for [`bytes`](Self::bytes), which are the caller's alone, and what `of` was given is still alive.
    pub unsafe fn write(&self, plan: &RecordPlan, to: *mut u8) {
        let Placement { offsets, counts, bytes } = &self.placement;
        let places = offsets.iter().zip(counts);
        // SAFETY: as the caller promises; the placement's offsets and lengths lie within its bytes.
        unsafe {
            plan.shape.write_counts(counts, std::slice::from_raw_parts_mut(to, *bytes));
            for ((leaf, &source), (&offset, &rows)) in plan.shape.leaves.iter().zip(&self.sources).zip(places)
            {
                let bytes = leaf.row_bytes * rows;
                if source.is_null() {
                    to.add(offset).write_bytes(0, bytes);
                } else {
                    source.copy_to_nonoverlapping(to.add(offset), bytes);
                }
            }
        }
    }

    /// Finds the arrays and numbers of a plain dict, if they are exact. False when anything is not plain.
    ///
    /// # Safety
    /// The GIL is held and `object` is alive.
    #[inline]
    unsafe fn find(&mut self, py: Python<'_>, plan: &RecordPlan, object: *mut ffi::PyObject) -> bool {
        // SAFETY: as the caller promises; items are alive while their dict is. Look-ups happen only in a dict whose keys are
        // all `str` itself, and run no Python code.
        unsafe {
            if ffi::PyDict_CheckExact(object) == 0 || ffi::PyDict_Size(object) as usize != plan.leaves.len() {
                return false;
            }
            let (mut position, mut in_order) = (0, true);
            plan.leaves.iter().all(|leaf| {
                // Most dicts have the order of the schema: then the next item is the one, and nothing is hashed.
                let (mut name, mut item) = (null_mut(), null_mut());
                let was_in_order = in_order;
                in_order = in_order
                    && ffi::PyDict_Next(object, &mut position, &mut name, &mut item) != 0
                    && name == leaf.name.as_ptr();
                if !in_order {
                    if was_in_order && !exact::has_str_keys(object) {
                        return false;
                    }
                    item = ffi::PyDict_GetItemWithError(object, leaf.name.as_ptr());
                }
                if item.is_null() {
                    ffi::PyErr_Clear();
                    return false;
                }
                let found = self.scratch.read(py, plan.wanted(leaf), item);
                found.is_some_and(|found| {
                    self.push(found);
                    true
                })
            })
        }
    }

    /// The ways that may run Python code, or let other threads run. `data` is what [`take_plain`](Self::take_plain) refused.
    #[cold]
    pub fn convert(&mut self, plan: &RecordPlan, data: &Bound<'_, PyAny>) -> PyResult<()> {
        let scratch = std::mem::take(&mut self.scratch);
        if scratch.wants_kept() && self.read_kept(plan, data)?.is_some() {
            return Ok(());
        }
        self.scratch = Scratch::default();
        self.truncate();
        self.ask_python(plan, data)
    }

    /// Keeps all values, and looks at them then.
    fn read_kept(&mut self, plan: &RecordPlan, data: &Bound<'_, PyAny>) -> PyResult<Option<()>> {
        self.is_borrowed = true;
        self.keep(plan, data)?;
        self.is_borrowed = false;
        if self.scratch.memory().kept.len() != plan.leaves.len() {
            return Ok(None);
        }
        let py = data.py();
        let mut scratch = std::mem::take(&mut self.scratch);
        let kept = std::mem::take(&mut scratch.memory().kept);
        let wanted = |index: usize| plan.wanted(&plan.leaves[index]);
        let read = scratch.read_kept(py, &kept, wanted, |_, found| {
            self.push(found);
            true
        });
        scratch.memory().kept = kept;
        self.scratch = scratch;
        Ok(read)
    }

    /// Copies what other threads may free once the GIL is released.
    pub fn own(&mut self, plan: &RecordPlan) -> PyResult<()> {
        for index in self.scratch.take_unowned() {
            let bytes = self.placement.counts[HIDDEN + index] * plan.leaves[index].array.bytes;
            // SAFETY: they were found there, and nothing ran since then.
            let copy = unsafe { self.scratch.own(self.sources[HIDDEN + index], bytes) };
            self.sources[HIDDEN + index] =
                copy.ok_or_else(|| PyMemoryError::new_err(format!("no memory for {bytes} bytes")))?;
        }
        Ok(())
    }

    /// Asks `RecordSchema.conform` for a list of exact arrays; it raises with the name of the leaf that does not fit.
    fn ask_python(&mut self, plan: &RecordPlan, data: &Bound<'_, PyAny>) -> PyResult<()> {
        let list = plan.schema.bind(data.py()).call_method1("conform", (data,))?.cast_into::<PyList>()?;
        if list.len() != plan.leaves.len() {
            return Err(PyRuntimeError::new_err("conform gave the wrong number of leaves"));
        }
        for (leaf, array) in plan.leaves.iter().zip(list.iter()) {
            let (data, rows) = exact::conformed(&array, leaf.ragged)?;
            self.push(Found { data, rows });
            self.scratch.memory().kept.push(array.unbind());
        }
        Ok(())
    }
}

/// `{"tokens": 4096}` as a number of rows for every leaf; fixed leaves have one.
pub fn rows_of(plan: &RecordPlan, lengths: &Bound<'_, PyDict>) -> PyResult<Vec<usize>> {
    let py = lengths.py();
    let mut rows = Vec::with_capacity(plan.leaves.len());
    let mut named = 0;
    let mut missing = None;
    for leaf in &plan.leaves {
        rows.push(match (leaf.ragged, lengths.get_item(&leaf.name)?) {
            (false, None) => 1,
            (true, Some(length)) => {
                named += 1;
                let what = format_args!("the length of leaf '{}'", leaf.name.bind(py));
                numbers::fitting(&length, what, "0 to 2**64 - 1")?
            }
            (true, None) => {
                missing.get_or_insert(leaf);
                0
            }
            (false, Some(_)) => {
                let message = format!("leaf '{}' has a fixed shape: it takes no length", leaf.name.bind(py));
                return Err(crate::errors::named(py, "SchemaMismatch", message));
            }
        });
    }
    if named != lengths.len() {
        // More than an unknown name is wrong then, if one is missing; but the unknown one is what was mistyped.
        for name in lengths.keys() {
            if plan.index(&name)?.is_none() {
                let known: Vec<String> =
                    plan.leaves.iter().filter(|leaf| leaf.ragged).map(|leaf| leaf.name.to_string()).collect();
                let known = known.join(", ");
                let message = format!(
                    "a length was given for {}, which is no leaf; those with one are {known}",
                    name.repr()?
                );
                return Err(crate::errors::named(py, "SchemaMismatch", message));
            }
        }
    }
    if let Some(leaf) = missing {
        let message = format!("the length of the ragged leaf '{}' is missing", leaf.name.bind(py));
        return Err(crate::errors::named(py, "SchemaMismatch", message));
    }
    let parts: PerLeaf<usize> = [0; HIDDEN].into_iter().chain(rows.iter().copied()).collect();
    plan.check_ties(py, &parts)?;
    Ok(rows)
}
