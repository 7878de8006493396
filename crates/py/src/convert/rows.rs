//! The arrays of one call: found natively when they are plain, converted by Python when they are not.

use crate::convert::exact;
use crate::convert::plan::{Expect, Plan};
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
    /// What Python converted for us, or what [`keep`](Self::keep) holds on to.
    kept: Vec<Py<PyAny>>,
}

// SAFETY: the pointers are to bytes of arrays; they are read while their arrays are alive (see `of` and `keep`).
unsafe impl Send for Rows {}
// SAFETY: as above; Rows is never changed after it was made.
unsafe impl Sync for Rows {}

impl Rows {
    /// The arrays of `data`, checked against the plan. The pointers are good while the GIL is held; for longer, call
    /// [`keep`](Self::keep). Always inlined: moving it out of here would be a tenth of a small send.
    #[inline(always)]
    pub fn of(plan: &Plan, data: &Bound<'_, PyAny>, expect: Expect, version: u32) -> PyResult<Rows> {
        let leaves = plan.leaves.len();
        let spilled = if leaves > INLINE { vec![null(); leaves] } else { Vec::new() };
        let mut rows = Rows { inline: [null(); INLINE], spilled, count: 0, version, kept: Vec::new() };
        let found = if leaves > INLINE { &mut rows.spilled[..] } else { &mut rows.inline[..leaves] };
        match plan.find(data, expect, found) {
            Some(count) => rows.count = count,
            None => rows.convert(plan, data, expect)?,
        }
        Ok(rows)
    }

    /// Holds on to the arrays. Before the GIL is let go: others may take them out of `data` then.
    #[inline]
    pub fn keep(&mut self, plan: &Plan, data: &Bound<'_, PyAny>) -> PyResult<()> {
        if self.kept.is_empty() {
            self.kept = plan.arrays(data)?;
        }
        Ok(())
    }

    /// Asks `Schema.conform` for a list of exact arrays; it raises with the name of the leaf that does not fit.
    #[cold]
    fn convert(&mut self, plan: &Plan, data: &Bound<'_, PyAny>, expect: Expect) -> PyResult<()> {
        let py = data.py();
        let stacked = matches!(expect, Expect::Stack);
        let list = plan.schema.bind(py).call_method1("conform", (data, stacked))?.cast_into::<PyList>()?;
        let arrays: Vec<(*const u8, usize)> =
            list.iter().map(|array| exact::conformed(&array, stacked)).collect::<PyResult<_>>()?;
        if arrays.len() != plan.leaves.len() {
            return Err(pyo3::exceptions::PyRuntimeError::new_err("conform gave the wrong number of leaves"));
        }
        let found =
            if self.spilled.is_empty() { &mut self.inline[..arrays.len()] } else { &mut self.spilled[..] };
        for (place, &(address, _)) in found.iter_mut().zip(&arrays) {
            *place = address;
        }
        self.count = arrays.first().map_or(0, |&(_, rows)| rows);
        self.kept.push(list.into_any().unbind());
        Ok(())
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
