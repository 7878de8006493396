//! `Bundle`: the records of one `send_many`. All are looked at before the first is sent, and an error names the one.
//!
//! First the keys and metadata of all of them, then their arrays, and nothing else in between: the objects of a worker that
//! does much else are in no near cache, and the core fetches many of them at once as long as nothing makes it wait.

use crate::convert::numbers;
use crate::convert::record_plan::{Parts, RecordPlan};
use crate::errors::{named, to_py};
use crate::records::label::Label;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use rollway_core::records::Outgoing;

/// What `send_many` was given.
pub struct Bundle<'a, 'py> {
    plan: &'a RecordPlan,
    data: Bound<'py, PyTuple>,
    /// Where the keys and metadata are.
    labels: Vec<Label<'py>>,
    records: Vec<BundledRecord<'a>>,
    /// The arrays are held on to: Python code may run.
    are_kept: bool,
}

/// One of its records.
pub struct BundledRecord<'a> {
    plan: &'a RecordPlan,
    parts: Parts,
}

impl Outgoing for BundledRecord<'_> {
    fn bytes(&self) -> usize {
        self.parts.bytes()
    }

    fn version(&self) -> u32 {
        self.parts.version
    }

    fn kind(&self) -> u32 {
        self.parts.kind
    }

    fn write(&self, room: &mut [u8]) {
        assert_eq!(room.len(), self.bytes());
        // SAFETY: the room is as large, and the caller's. The sources are alive: they are kept, or the GIL is held and no
        // Python code has run since they were found.
        unsafe { self.parts.write(self.plan, room.as_mut_ptr()) };
    }
}

impl<'a, 'py> Bundle<'a, 'py> {
    /// Looks at everything. `check` says whether a record may have so many bytes.
    pub fn of(
        plan: &'a RecordPlan,
        data: &Bound<'py, PyAny>,
        keys: Option<&Bound<'py, PyAny>>,
        metadata: Option<&Bound<'py, PyAny>>,
        versions: &Versions<'py>,
        check: impl Fn(usize) -> rollway_core::Result<()>,
    ) -> PyResult<Bundle<'a, 'py>> {
        let py = data.py();
        let data = several("data", data)?;
        let count = data.len();
        let keys = keys.map(|keys| as_many("keys", keys, count)).transpose()?;
        let metadata = metadata.map(|metadata| as_many("metadata", metadata, count)).transpose()?;
        versions.check(count)?;
        let label = |index| {
            let (key, metadata) = (item(keys.as_ref(), index)?, item(metadata.as_ref(), index)?);
            Label::of(py, key.as_ref(), metadata.as_ref(), versions.at(index)?)
        };
        let labels = (0..count).map(|index| label(index).map_err(|error| about(py, index, error)));
        let labels = labels.collect::<PyResult<Vec<_>>>()?;
        let records = Vec::with_capacity(count);
        let mut bundle = Bundle { plan, data, labels, records, are_kept: false };
        for index in 0..count {
            bundle.look(py, index, &check).map_err(|error| about(py, index, error))?;
        }
        Ok(bundle)
    }

    /// Finds the arrays of one more record. Those of the others stay, also where Python has to convert something.
    #[inline]
    fn look(
        &mut self,
        py: Python<'py>,
        index: usize,
        check: impl Fn(usize) -> rollway_core::Result<()>,
    ) -> PyResult<()> {
        let (plan, data) = (self.plan, self.data.get_item(index)?);
        let label = &self.labels[index];
        let mut parts = Parts::hidden(label.key(), label.metadata());
        (parts.version, parts.kind) = (label.version, label.kind);
        self.records.push(BundledRecord { plan, parts }); // Filled where it is: it is large.
        if !self.records[index].parts.take_plain(py, plan, &data) {
            self.keep()?;
            self.records[index].parts.convert(plan, &data)?;
            self.records[index].parts.own(plan)?; // Others may be converted after it.
        } else if self.are_kept {
            self.records[index].parts.keep(plan, &data)?;
        }
        let parts = &mut self.records[index].parts;
        parts.arrange(py, plan)?;
        check(parts.bytes()).map_err(|error| to_py(py, error))
    }

    /// Holds on to all arrays. Before the GIL is let go, or Python code runs, which may take them out of their dicts.
    #[cold]
    pub fn keep(&mut self) -> PyResult<()> {
        if !std::mem::replace(&mut self.are_kept, true) {
            for (record, data) in self.records.iter_mut().zip(self.data.iter()) {
                record.parts.keep(self.plan, &data)?;
            }
        }
        Ok(())
    }

    /// The records from `first` on.
    pub fn from(&self, first: usize) -> &[BundledRecord<'a>] {
        &self.records[first..]
    }

    /// Whether those from `first` on have so many bytes together.
    pub fn has_from(&self, first: usize, bytes: usize) -> bool {
        let mut found = 0_usize;
        self.from(first).iter().any(|record| {
            found = found.saturating_add(record.bytes());
            found >= bytes
        })
    }
}

/// The weights of `send_many`'s records: the same for all, or one for each.
pub enum Versions<'py> {
    All(u32),
    Each(Bound<'py, PyTuple>),
}

impl<'py> Versions<'py> {
    /// As an argument.
    pub fn of(given: &Bound<'py, PyAny>) -> PyResult<Versions<'py>> {
        match tuple(given) {
            Some(each) => Ok(Versions::Each(each)),
            None => numbers::version(given).map(Versions::All),
        }
    }

    fn check(&self, count: usize) -> PyResult<()> {
        match self {
            Versions::Each(each) => as_many("version", each.as_any(), count).map(drop),
            Versions::All(_) => Ok(()),
        }
    }

    fn at(&self, index: usize) -> PyResult<u32> {
        match self {
            Versions::All(version) => Ok(*version),
            Versions::Each(each) => numbers::version(&each.get_item(index)?),
        }
    }
}

/// The items of a list or tuple, as they are now.
fn tuple<'py>(given: &Bound<'py, PyAny>) -> Option<Bound<'py, PyTuple>> {
    match given.cast::<PyList>() {
        Ok(list) => Some(list.to_tuple()),
        Err(_) => given.cast::<PyTuple>().ok().cloned(),
    }
}

fn several<'py>(what: &str, given: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyTuple>> {
    // Nothing else: of a dict or a text the parts would be sent, one by one.
    tuple(given).ok_or_else(|| {
        let kind = given.get_type().name().map_or_else(|_| "?".to_owned(), |name| name.to_string());
        named(given.py(), "InvalidArgument", format!("{what} is a {kind}; send_many takes a list or tuple"))
    })
}

fn as_many<'py>(what: &str, given: &Bound<'py, PyAny>, count: usize) -> PyResult<Bound<'py, PyTuple>> {
    let items = several(what, given)?;
    if items.len() != count {
        let message = format!("{what} has {} items for {count} records; give one for each", items.len());
        return Err(named(given.py(), "InvalidArgument", message));
    }
    Ok(items)
}

/// An item that need not be given.
fn item<'py>(items: Option<&Bound<'py, PyTuple>>, index: usize) -> PyResult<Option<Bound<'py, PyAny>>> {
    let item = items.map(|items| items.get_item(index)).transpose()?;
    Ok(item.filter(|item| !item.is_none()))
}

/// An error of one record, with its index.
#[cold]
fn about(py: Python<'_>, index: usize, error: PyErr) -> PyErr {
    let raised = error.value(py);
    let words = raised.getattr("args").and_then(|args| args.extract::<(String,)>());
    let told = match words {
        Ok((words,)) => raised.setattr("args", (format!("record {index}: {words}"),)),
        Err(_) => raised.call_method1("add_note", (format!("in record {index} of send_many"),)).map(drop),
    };
    drop(told); // An exception of another class may take neither; it is raised all the same.
    error
}
