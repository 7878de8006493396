//! `Record`: one trajectory, read where it lies.

use crate::convert::array;
use crate::convert::json;
use crate::convert::record_plan::{KEY, METADATA, RecordPlan};
use crate::errors::{named, to_py};
use crate::gil::GilCell;
use crate::records::key as record_key;
use crate::records::label::{JSON, TOMBSTONE};
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyString, PyTuple};
use rollway_core::Error;
use rollway_core::records::format::{PerLeaf, Placement};
use rollway_core::records::{Consumer as Core, Record as CoreRecord, Records, Stamp};
use rollway_core::sys::prefetch::prefetch;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

static DECODE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// One record in so many is timed for the `queue_dwell` histogram.
const TIMED: u64 = 16;

/// One record: `record["tokens"]` is a view into shared memory, read-only and without a copy.
///
/// Its room goes back to the worker when you call `release`, or when the record and every view of it are garbage,
/// whichever comes first; until then no producer writes to it. After `release` a view that you kept stays readable, but its
/// contents will change. `detach` gives the room back and keeps the record: a copy in memory of this process.
#[pyclass(frozen, mapping, module = "rollway.records")]
pub struct Record {
    record: GilCell<Option<CoreRecord<Arc<Core>>>>,
    /// Keeps the mapping after release: a view may be old then, but never dangles.
    _records: Arc<Records>,
    plan: Py<RecordPlan>,
    placement: Placement,
    /// Where it lies: in its lane, or at home.
    base: AtomicUsize,
    home: OnceLock<Box<[Line]>>,
    /// It was detached, and not released since.
    is_home: GilCell<bool>,
    stamp: Stamp,
    committed_ns: u64,
    key: GilCell<Option<Py<PyAny>>>,
    metadata: GilCell<Option<Py<PyAny>>>,
}

/// A record is aligned at home as it is in its lane.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

impl Record {
    /// Wraps a record that was taken. What does not parse was not written by us: that is damage, and the room is given
    /// back.
    pub fn of(py: Python<'_>, plan: &Py<RecordPlan>, record: CoreRecord<Arc<Core>>) -> PyResult<Record> {
        let (info, bytes) = (record.info(), record.bytes());
        if info.number.is_multiple_of(TIMED) {
            record.record_dwell(&info);
        }
        let records = record.consumer().records().clone();
        let placement = plan.get().shape.parse(bytes).map_err(|damage| {
            let name = records.segment().name().to_owned();
            to_py(py, Error::Corrupt { name, what: damage.0 })
        })?;
        let base = AtomicUsize::new(bytes.as_ptr() as usize);
        for &offset in &placement.offsets[RecordPlan::part(0)..] {
            prefetch(bytes.as_ptr().wrapping_add(offset)); // Another core wrote it; the caller is about to look.
        }
        let record = GilCell::new(Some(record));
        Ok(Record {
            record,
            _records: records,
            plan: plan.clone_ref(py),
            placement,
            base,
            home: OnceLock::new(),
            is_home: GilCell::new(false),
            stamp: info.stamp,
            committed_ns: info.committed_ns,
            key: GilCell::new(None),
            metadata: GilCell::new(None),
        })
    }

    pub fn plan_ref(&self) -> &Py<RecordPlan> {
        &self.plan
    }

    /// Puts it back unread, for the next call.
    pub fn give_back(&self, py: Python<'_>) {
        if let Some(record) = self.record.replace(py, None) {
            record.give_back();
        }
    }

    pub fn is_released(&self, py: Python<'_>) -> bool {
        self.record.is_none(py) && !self.is_home.get(py)
    }

    /// Where a leaf lies, how many rows it has, and how many bytes that is.
    pub fn leaf(&self, leaf: usize) -> (*const u8, usize, usize) {
        let part = RecordPlan::part(leaf);
        self.part(part)
    }

    fn part(&self, part: usize) -> (*const u8, usize, usize) {
        let rows = self.placement.counts[part];
        let bytes = rows * self.plan.get().shape.leaves[part].row_bytes;
        let base = self.base.load(Ordering::Relaxed); // `detach` changes it under the GIL, which callers hold.
        ((base + self.placement.offsets[part]) as *const u8, rows, bytes)
    }

    /// The bytes of a part. `'_`: they stay until the record is released, which takes the GIL.
    fn part_bytes(&self, py: Python<'_>, part: usize) -> PyResult<&[u8]> {
        if self.is_released(py) {
            let message = "this record was released: read its key and metadata before that".to_owned();
            return Err(named(py, "InvalidArgument", message));
        }
        let (data, _, bytes) = self.part(part);
        // SAFETY: `parse` checked that the part lies within the record, which is ours until it is released.
        Ok(unsafe { std::slice::from_raw_parts(data, bytes) })
    }

    /// The name of its group, and its repetition; `None` when it has no key.
    pub fn group_name(&self, py: Python<'_>) -> PyResult<Option<(Vec<u8>, i64)>> {
        match self.part_bytes(py, KEY)? {
            [] => Ok(None),
            packed => record_key::group_name(py, packed).map(Some),
        }
    }

    /// Whether there is nothing but this item in a leaf.
    pub fn is_filled_with(&self, leaf: &Bound<'_, PyString>, item: &[u8]) -> PyResult<bool> {
        let py = leaf.py();
        let Some(index) = self.plan.get().index(leaf.as_any())? else {
            return Err(PyKeyError::new_err(leaf.clone().unbind()));
        };
        let bytes = self.part_bytes(py, RecordPlan::part(index))?;
        if item.is_empty() || !bytes.len().is_multiple_of(item.len()) {
            let message = format!("an item of '{leaf}' has not {} bytes", item.len());
            return Err(named(py, "InvalidArgument", message));
        }
        let all = || bytes.chunks_exact(item.len()).all(|there| there == item);
        Ok(bytes.is_empty() || bytes.ends_with(item) && all()) // The end differs more often than the rest.
    }

    /// All leaves, unless a worker may be writing to them already.
    fn held_fields<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyDict>> {
        if slf.get().is_released(slf.py()) {
            let message = "the record was released, and its room may be in use again: ask for tensors before";
            return Err(named(slf.py(), "InvalidArgument", message.to_owned()));
        }
        Self::fields(slf)
    }

    fn view<'py>(slf: &Bound<'py, Self>, leaf: usize) -> PyResult<Bound<'py, PyAny>> {
        let this = slf.get();
        let (data, rows, _) = this.leaf(leaf);
        let leaf = &this.plan.get().leaves[leaf];
        let rows = leaf.ragged.then_some(rows);
        // SAFETY: the rows lie in the mapping, or at home; this record (the array's base) keeps both alive.
        unsafe { array::over(slf.py(), &leaf.array, rows, data.cast_mut(), slf.as_any(), false) }
    }
}

#[pymethods]
impl Record {
    fn __getitem__<'py>(slf: &Bound<'py, Self>, name: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let plan = slf.get().plan.get();
        match plan.index(name)? {
            Some(leaf) => Self::view(slf, leaf),
            None => Err(PyKeyError::new_err(name.clone().unbind())),
        }
    }

    /// The compiled schema. Not for users.
    #[getter]
    fn plan(&self, py: Python<'_>) -> Py<RecordPlan> {
        self.plan.clone_ref(py)
    }

    fn __len__(&self) -> usize {
        self.plan.get().leaves.len()
    }

    /// All leaves: views, by name.
    #[getter]
    fn fields<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyDict>> {
        let fields = PyDict::new(slf.py());
        for (index, leaf) in slf.get().plan.get().leaves.iter().enumerate() {
            fields.set_item(&leaf.name, Self::view(slf, index)?)?;
        }
        Ok(fields)
    }

    /// All leaves: views, in the order of the schema.
    fn values<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyTuple>> {
        let views = (0..slf.get().plan.get().leaves.len()).map(|leaf| Self::view(slf, leaf));
        PyTuple::new(slf.py(), views.collect::<PyResult<PerLeaf<_>>>()?)
    }

    /// All leaves: arrays of your own, by name. The record may be released then.
    fn copy<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyDict>> {
        let copies = PyDict::new(slf.py());
        for (name, view) in Self::fields(slf)? {
            copies.set_item(name, view.call_method0("copy")?)?;
        }
        Ok(copies)
    }

    /// All leaves as torch tensors, by name, in the memory where they lie: no copy. They keep the room as the views do.
    fn torch<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let fields = Self::held_fields(slf)?;
        slf.py().import("rollway.torch")?.call_method1("as_tensors", (fields,))
    }

    /// All leaves as a `TensorDict` without a batch dimension, in the memory where they lie. Needs the package tensordict.
    fn tensordict<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let fields = Self::held_fields(slf)?;
        slf.py().import("rollway.torch")?.call_method1("as_tensordict", (fields,))
    }

    /// All leaves as arrays of JAX on a device, which are copies: they never change, also not after `release`.
    #[pyo3(signature = (device=None))]
    fn jax<'py>(slf: &Bound<'py, Self>, device: Option<Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyAny>> {
        let fields = Self::held_fields(slf)?;
        slf.py().import("rollway.jax")?.call_method1("as_arrays", (fields, device))
    }

    /// Which trajectory of which group it is; `None` when the worker gave no key. Decoded once.
    #[getter]
    fn key<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        if self.placement.counts[KEY] == 0 {
            return Ok(None);
        }
        let bytes = self.part_bytes(py, KEY)?;
        if let Some(known) = self.key.share(py) {
            return Ok(Some(known.into_bound(py)));
        }
        let key = record_key::unpack(py, bytes)?;
        drop(self.key.replace(py, Some(key.clone().unbind())));
        Ok(Some(key))
    }

    /// What the worker said besides: the object that it gave, bytes if it gave bytes, `None` if nothing. Decoded once.
    #[getter]
    fn metadata(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let known = self.metadata.share(py);
        let bytes = self.part_bytes(py, METADATA)?;
        if let Some(known) = known {
            return Ok(known);
        }
        let decoded = if self.stamp.kind & JSON != 0 {
            match json::decode(py, bytes) {
                Some(object) => object.unbind(),
                None => {
                    let decode = DECODE.import(py, "rollway.records.metadata", "decode")?;
                    decode.call1((PyBytes::new(py, bytes),))?.unbind()
                }
            }
        } else if bytes.is_empty() {
            py.None()
        } else {
            PyBytes::new(py, bytes).into_any().unbind()
        };
        drop(self.metadata.replace(py, Some(decoded.clone_ref(py))));
        Ok(decoded)
    }

    /// The metadata as it was sent: JSON, or the bytes that the worker gave.
    #[getter]
    fn metadata_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, self.part_bytes(py, METADATA)?))
    }

    /// Whether the metadata, as it was sent, begins with these bytes. Nothing is copied or decoded.
    fn metadata_starts(&self, py: Python<'_>, prefix: &[u8]) -> PyResult<bool> {
        Ok(self.part_bytes(py, METADATA)?.starts_with(prefix))
    }

    /// The phase of its key, without making the rest of it; `None` when it has no key.
    #[getter]
    fn phase<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyString>>> {
        match self.part_bytes(py, KEY)? {
            [] => Ok(None),
            packed => record_key::phase(py, packed).map(Some),
        }
    }

    /// Whether it only says that its key will never come.
    #[getter]
    pub fn is_tombstone(&self) -> bool {
        self.stamp.kind & TOMBSTONE != 0
    }

    /// The number of the weights that made it.
    #[getter]
    pub fn version(&self) -> u32 {
        self.stamp.version
    }

    #[getter]
    fn producer_id(&self) -> u32 {
        self.stamp.producer_id
    }

    /// Counts the records of its worker, from 0.
    #[getter]
    fn sequence(&self) -> u64 {
        self.stamp.sequence
    }

    /// When it was committed, on the clock of `time.monotonic_ns`.
    #[getter]
    fn committed_ns(&self) -> u64 {
        self.committed_ns
    }

    /// Bytes in shared memory.
    #[getter]
    fn nbytes(&self) -> usize {
        self.placement.bytes
    }

    /// Gives the room back now. Does nothing the second time.
    pub fn release(&self, py: Python<'_>) {
        self.is_home.replace(py, false);
        drop(self.record.replace(py, None));
    }

    /// Copies it into memory of this process, and gives the room back now: it costs its worker nothing any more, and reads
    /// as before. Views that you have are of the room, not of the copy. Should this process die, it does not go back to be
    /// read again. Does nothing the second time.
    pub fn detach(&self, py: Python<'_>) {
        let Some(record) = self.record.replace(py, None) else { return };
        let bytes = record.bytes();
        let mut home = vec![Line([0; 64]); bytes.len().div_ceil(size_of::<Line>())].into_boxed_slice();
        // SAFETY: there are at least as many bytes at home, and no other code knows them yet.
        unsafe { home.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        let home = self.home.get_or_init(|| home);
        self.base.store(home.as_ptr() as usize, Ordering::Relaxed);
        self.is_home.replace(py, true);
    }

    /// Whether the room was given back.
    #[getter]
    fn released(&self, py: Python<'_>) -> bool {
        self.is_released(py)
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) {
        self.release(py);
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let what = if self.is_tombstone() { " tombstone" } else { "" };
        if self.is_released(py) {
            return Ok(format!("<rollway.records.Record{what} released>"));
        }
        let key = match self.key(py)? {
            Some(key) => format!(" {}", key.repr()?),
            None => String::new(),
        };
        Ok(format!("<rollway.records.Record{what}{key} of {} bytes>", self.placement.bytes))
    }
}
