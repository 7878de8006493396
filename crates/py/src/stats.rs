//! Plain numbers for Python: `stats()` of the handles.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use rollway_core::segment::{Role, Segment};

/// `set_fields!(dict, totals, added, sampled)`: puts fields of a value into a dict, each under its own name. It expands to one
/// `dict.set_item("added", totals.added)?` for each field.
macro_rules! set_fields {
    ($dict:ident, $from:expr, $($field:ident),+ $(,)?) => {
        $($dict.set_item(stringify!($field), $from.$field)?;)+
    };
}
pub(crate) use set_fields;

/// Puts what both sides of a segment wait for into a dict.
pub fn set_waits(stats: &Bound<'_, PyDict>, segment: &Segment) -> PyResult<()> {
    let (producers, learners) = (segment.waits(Role::Producer), segment.waits(Role::Consumer));
    stats.set_item("producers_waiting", producers.waiting)?;
    stats.set_item("producers_wait_ns", producers.wait_ns)?;
    stats.set_item("producers_copy_ns", producers.copy_ns)?;
    stats.set_item("learners_waiting", learners.waiting)?;
    stats.set_item("learners_wait_ns", learners.wait_ns)?;
    stats.set_item("learners_hold_ns", learners.hold_ns)
}
