//! `RecordSlot`: room for one record, to be written in place: in the lane, or before it is sent.

use crate::convert::array;
use crate::convert::record_plan::{Parts, RecordPlan, rows_of};
use crate::errors::{named, to_py};
use crate::gil::GilCell;
use crate::records::label::Label as RecordLabel;
use crate::sends::slot::slot_methods;
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rollway_core::Error;
use rollway_core::records::{Label, Producer as Core, Reservation};
use std::ptr::NonNull;
use std::sync::Arc;

/// Room for a record: `with client.reserve({"tokens": 4096}) as slot: slot["tokens"][:] = …`. Leaving the block commits;
/// an exception in it gives the room back; so does dropping the slot.
#[pyclass(frozen, module = "rollway.records")]
pub struct RecordSlot {
    room: GilCell<Option<Room>>,
    plan: Py<RecordPlan>,
    views: Vec<Py<PyAny>>,
    kind: u32,
    version: GilCell<u32>,
}

struct Room {
    place: Place,
    rows: Vec<usize>,
    key: Vec<u8>,
    metadata: Vec<u8>,
}

/// Where the record is written.
pub enum Place {
    /// Where it will be read.
    Lane(Reservation<Arc<Core>>),
    /// In memory of this process; it is sent when it is committed.
    Draft(Py<RecordDraft>, Box<dyn DraftSender>),
}

/// Sends a record that was written in memory of this process.
pub trait DraftSender: Send + Sync {
    fn send_bytes(&self, py: Python<'_>, bytes: &[u8], version: u32, kind: u32) -> PyResult<()>;
}

impl Place {
    fn start(&self) -> *mut u8 {
        match self {
            Place::Lane(reservation) => reservation.as_mut_ptr(),
            Place::Draft(draft, _) => draft.get().start(),
        }
    }
}

/// What the arrays of a slot hold on to that is not in a lane: its memory.
#[pyclass(frozen, module = "rollway._core")]
pub struct RecordDraft(NonNull<[u64]>);

// SAFETY: it is memory that only the arrays over it write, under the GIL.
unsafe impl Send for RecordDraft {}
// SAFETY: as above.
unsafe impl Sync for RecordDraft {}

impl RecordDraft {
    pub fn new(bytes: usize) -> RecordDraft {
        RecordDraft(NonNull::from(Box::leak(vec![0; bytes.div_ceil(8)].into_boxed_slice())))
    }

    fn start(&self) -> *mut u8 {
        self.0.cast().as_ptr()
    }
}

impl Drop for RecordDraft {
    fn drop(&mut self) {
        // SAFETY: it was a box, and no array holds on to it any more.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

impl RecordSlot {
    /// `owner`: what keeps the place mapped, or the memory.
    pub fn new(
        owner: &Bound<'_, PyAny>,
        plan: &Py<RecordPlan>,
        parts: &Parts,
        place: Place,
        rows: Vec<usize>,
        label: &RecordLabel<'_>,
    ) -> PyResult<RecordSlot> {
        let py = owner.py();
        let base = place.start();
        // SAFETY: the place has room for all parts, and is ours until it is committed or aborted.
        unsafe { parts.write(plan.get(), base) };
        let views = plan.get().leaves.iter().enumerate().map(|(index, leaf)| {
            let data = base.wrapping_add(parts.placement.offsets[RecordPlan::part(index)]);
            let rows = leaf.ragged.then_some(rows[index]);
            // SAFETY: the leaf lies within the place, and the owner lives as long as the array.
            unsafe { array::over(py, &leaf.array, rows, data, owner, true).map(Bound::unbind) }
        });
        let views = views.collect::<PyResult<Vec<_>>>()?;
        let room = Room { place, rows, key: label.key().to_vec(), metadata: label.metadata().to_vec() };
        let (room, version) = (GilCell::new(Some(room)), GilCell::new(label.version));
        Ok(RecordSlot { room, plan: plan.clone_ref(py), views, kind: label.kind, version })
    }

    fn end(&self, py: Python<'_>) -> Option<Room> {
        let room = self.room.replace(py, None);
        if room.is_some() {
            self.views.iter().for_each(|view| array::make_read_only(view.bind(py)));
        }
        room
    }

    fn open(&self, py: Python<'_>) -> PyResult<Room> {
        self.end(py).ok_or_else(|| Self::over(py))
    }

    fn over(py: Python<'_>) -> PyErr {
        named(py, "InvalidArgument", "this slot was committed or aborted already".to_owned())
    }
}

#[pymethods]
impl RecordSlot {
    fn __getitem__(&self, name: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        match self.plan.get().index(name)? {
            Some(leaf) => Ok(self.views[leaf].clone_ref(name.py())),
            None => Err(PyKeyError::new_err(name.clone().unbind())),
        }
    }

    /// Publishes the record. `lengths` says how many rows of a ragged leaf are used, where that is fewer than reserved:
    /// the rest of the room goes back.
    #[pyo3(signature = (lengths=None))]
    fn commit(&self, py: Python<'_>, lengths: Option<&Bound<'_, PyDict>>) -> PyResult<()> {
        let plan = self.plan.get();
        let used = match lengths {
            None => None,
            Some(lengths) => Some(rows_of(plan, lengths)?),
        };
        // SAFETY: this copies numbers.
        let reserved = unsafe { self.room.with(py, |room| room.as_ref().map(|room| room.rows.clone())) };
        let reserved = reserved.ok_or_else(|| Self::over(py))?;
        let used = used.unwrap_or_else(|| reserved.clone());
        if let Some(leaf) = (0..used.len()).find(|&leaf| used[leaf] > reserved[leaf]) {
            let (name, room, used) = (plan.leaves[leaf].name.bind(py), reserved[leaf], used[leaf]);
            let message = format!("leaf '{name}' has room for {room} rows, not for {used}");
            return Err(named(py, "InvalidArgument", message));
        }
        let room = self.open(py)?;
        if let Place::Lane(reservation) = &room.place
            && reservation.producer().records().is_closed()
        {
            return Err(to_py(py, Error::Closed));
        }
        let from = Parts::room(py, plan, &reserved, &room.key, &room.metadata)?;
        let to = Parts::room(py, plan, &used, &room.key, &room.metadata)?;
        let base = room.place.start();
        if used != reserved {
            for (part, leaf) in plan.shape.leaves.iter().enumerate() {
                let bytes = leaf.row_bytes * to.placement.counts[part];
                // SAFETY: both places lie within the room. Each leaf moves towards the front, in order, so none
                // is overwritten before it was moved.
                unsafe {
                    let source = base.add(from.placement.offsets[part]);
                    source.copy_to(base.add(to.placement.offsets[part]), bytes);
                }
            }
            // SAFETY: the room is larger than what is left of it, and ours.
            let bytes = unsafe { std::slice::from_raw_parts_mut(base, to.bytes()) };
            plan.shape.write_counts(&to.placement.counts, bytes);
        }
        let (version, kind) = (self.version.get(py), self.kind);
        match room.place {
            Place::Lane(reservation) => {
                let label = Label { version, kind, origin: None };
                reservation.commit(to.bytes(), label).map_err(|e| to_py(py, e))
            }
            Place::Draft(draft, sender) => {
                // SAFETY: the draft has at least these bytes, and its arrays are read-only by now.
                let bytes = unsafe { std::slice::from_raw_parts(draft.get().start(), to.bytes()) };
                sender.send_bytes(py, bytes, version, kind)
            }
        }
    }
}

slot_methods!(RecordSlot, room, commit(None));
