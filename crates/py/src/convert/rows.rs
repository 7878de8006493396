//! The arrays of one call: found natively, or converted by Python where they have to be.

use crate::convert::exact;
use crate::convert::plan::Plan;
use crate::convert::value::{Dims, Scratch, Wanted};
use pyo3::exceptions::{PyMemoryError, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::types::PyList;
use std::ptr::null;

/// Leaves that fit without an allocation.
const INLINE: usize = 16;

/// Where the bytes of each leaf are, and what keeps them alive.
pub struct Rows {
    inline: [*const u8; INLINE],
    spilled: Vec<*const u8>,
    /// Stacked samples in each array.
    pub count: usize,
    /// The number of the weights that made them.
    pub version: u32,
    scratch: Scratch,
    /// Some of the bytes belong to what the caller's data holds: [`keep`](Self::keep) has something to do.
    is_borrowed: bool,
}

// SAFETY: the pointers are to bytes of arrays; they are read while their arrays are alive (see `of` and `keep`).
unsafe impl Send for Rows {}
// SAFETY: as above; Rows is never changed after it was made.
unsafe impl Sync for Rows {}

impl Rows {
    /// The arrays of `data`, checked against the plan. The pointers are good while the GIL is held; for longer, call
    /// [`keep`](Self::keep). Always inlined: moving it out of here would be a tenth of a small send.
    #[inline(always)]
    pub fn of(plan: &Plan, data: &Bound<'_, PyAny>, dims: Dims, version: u32) -> PyResult<Rows> {
        let mut rows = Rows::empty(plan, version);
        if !rows.find(plan, data, dims) {
            rows.convert(plan, data, dims)?;
        }
        Ok(rows)
    }

    /// The same without asking Python. `None` when it would have to be asked.
    pub fn found(plan: &Plan, data: &Bound<'_, PyAny>, dims: Dims) -> Option<Rows> {
        let mut rows = Rows::empty(plan, 0);
        let is_found = rows.find(plan, data, dims) || rows.find_kept(plan, data, dims);
        is_found.then_some(rows)
    }

    #[inline(always)]
    fn empty(plan: &Plan, version: u32) -> Rows {
        let leaves = plan.leaves.len();
        let spilled = if leaves > INLINE { vec![null(); leaves] } else { Vec::new() };
        let (inline, scratch) = ([null(); INLINE], Scratch::default());
        Rows { inline, spilled, count: 0, version, scratch, is_borrowed: true }
    }

    #[inline(always)]
    fn find(&mut self, plan: &Plan, data: &Bound<'_, PyAny>, dims: Dims) -> bool {
        let leaves = plan.leaves.len();
        let found = if leaves > INLINE { &mut self.spilled[..] } else { &mut self.inline[..leaves] };
        let count = plan.find(data, dims, found, &mut self.scratch);
        self.count = count.unwrap_or(0);
        count.is_some()
    }

    /// Holds on to the arrays. Before the GIL is let go: others may take them out of `data` then.
    #[inline]
    pub fn keep(&mut self, plan: &Plan, data: &Bound<'_, PyAny>) -> PyResult<()> {
        if self.is_borrowed {
            let values = plan.values(data).ok_or_else(|| PyRuntimeError::new_err("the sample changed"))?;
            self.scratch.memory().kept.extend(values);
            self.is_borrowed = false;
        }
        for index in self.scratch.take_unowned() {
            let bytes = self.count * plan.leaves[index].bytes;
            // SAFETY: they were found there, and nothing ran since then.
            let copy = unsafe { self.scratch.own(self.leaf(index), bytes) };
            self.places(plan)[index] =
                copy.ok_or_else(|| PyMemoryError::new_err(format!("no memory for {bytes} bytes")))?;
        }
        Ok(())
    }

    /// The ways that may run Python code, or let other threads run.
    #[cold]
    fn convert(&mut self, plan: &Plan, data: &Bound<'_, PyAny>, dims: Dims) -> PyResult<()> {
        if self.find_kept(plan, data, dims) {
            return Ok(());
        }
        self.scratch = Scratch::default();
        self.ask_python(plan, data, dims)
    }

    /// Keeps all values and looks at them then, if that is what [`find`](Self::find) wanted.
    fn find_kept(&mut self, plan: &Plan, data: &Bound<'_, PyAny>, dims: Dims) -> bool {
        self.is_borrowed = false;
        let scratch = std::mem::take(&mut self.scratch);
        scratch.wants_kept() && self.read_kept(plan, data, dims).is_some()
    }

    fn read_kept(&mut self, plan: &Plan, data: &Bound<'_, PyAny>, dims: Dims) -> Option<()> {
        let py = data.py();
        let kept = plan.values(data)?;
        let (mut count, mut scratch) = (None, std::mem::take(&mut self.scratch));
        let wanted = |index: usize| Wanted { leaf: &plan.leaves[index], dims, leaves: plan.leaves.len() };
        let read = scratch.read_kept(py, &kept, wanted, |index, found| {
            self.places(plan)[index] = found.data;
            *count.get_or_insert(found.rows) == found.rows
        });
        scratch.memory().kept = kept;
        self.scratch = scratch;
        self.count = count.unwrap_or(0);
        read
    }

    /// Asks `Schema.conform` for a list of exact arrays; it raises with the name of the leaf that does not fit.
    fn ask_python(&mut self, plan: &Plan, data: &Bound<'_, PyAny>, dims: Dims) -> PyResult<()> {
        let stacked = dims == Dims::Rows;
        let list =
            plan.schema.bind(data.py()).call_method1("conform", (data, stacked))?.cast_into::<PyList>()?;
        let arrays: Vec<(*const u8, usize)> =
            list.iter().map(|array| exact::conformed(&array, stacked)).collect::<PyResult<_>>()?;
        if arrays.len() != plan.leaves.len() {
            return Err(PyRuntimeError::new_err("conform gave the wrong number of leaves"));
        }
        for (place, &(address, _)) in self.places(plan).iter_mut().zip(&arrays) {
            *place = address;
        }
        self.count = arrays.first().map_or(0, |&(_, rows)| rows);
        self.scratch.memory().kept.push(list.into_any().unbind());
        Ok(())
    }

    fn places(&mut self, plan: &Plan) -> &mut [*const u8] {
        let leaves = plan.leaves.len();
        if leaves > INLINE { &mut self.spilled[..] } else { &mut self.inline[..leaves] }
    }

    /// Where each leaf starts, from the row `first` on.
    #[inline]
    pub fn leaves_from(&self, plan: &Plan, first: usize) -> Leaves {
        let count = plan.leaves.len();
        let mut leaves = Leaves { inline: self.inline, spilled: self.spilled.clone(), count };
        let places = if count > INLINE { &mut leaves.spilled[..] } else { &mut leaves.inline[..count] };
        for (place, leaf) in places.iter_mut().zip(&plan.leaves) {
            *place = place.wrapping_add(first * leaf.bytes);
        }
        leaves
    }

    #[inline]
    pub fn leaf(&self, index: usize) -> *const u8 {
        if self.spilled.is_empty() { self.inline[index] } else { self.spilled[index] }
    }
}

/// One address per leaf.
pub struct Leaves {
    inline: [*const u8; INLINE],
    spilled: Vec<*const u8>,
    count: usize,
}

// SAFETY: as for `Rows`, from which they come.
unsafe impl Send for Leaves {}
// SAFETY: as for `Rows`.
unsafe impl Sync for Leaves {}

impl Leaves {
    #[inline]
    pub fn get(&self) -> &[*const u8] {
        if self.count > INLINE { &self.spilled } else { &self.inline[..self.count] }
    }
}
