//! A record that an assembler keeps until its group is whole.

use crate::records::record::Record;
use pyo3::prelude::*;
use rollway_core::records::groups::Member;

/// A record in the hands of an assembler.
pub struct HeldRecord(Py<Record>);

impl HeldRecord {
    pub fn new(record: &Bound<'_, Record>) -> HeldRecord {
        HeldRecord(record.clone().unbind())
    }

    pub fn record(&self) -> &Record {
        self.0.get()
    }

    pub fn into_record(self) -> Py<Record> {
        self.0
    }
}

impl Member for HeldRecord {
    fn version(&self) -> u32 {
        self.0.get().version()
    }

    fn release(&self) {
        Python::attach(|py| self.0.get().release(py));
    }

    fn is_same(&self, other: &Self) -> bool {
        self.0.is(&other.0)
    }
}
