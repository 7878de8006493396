//! A `RecordKey` as bytes and back, natively. `rollway.records.key` defines the format, and words the errors.

use crate::errors::named;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyInt, PyString, PyTuple, PyType};

/// Step, repetition, bytes of the run, bytes of the phase; then the three texts.
const HEAD_BYTES: usize = 8 + 8 + 2 + 2;
const REPETITION: std::ops::Range<usize> = 8..16;

static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
static NEW_TUPLE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

fn class(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    CLASS.import(py, "rollway.records.key", "RecordKey")
}

/// The bytes of a key.
pub fn pack(key: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    match pack_exact(key)? {
        Some(packed) => Ok(packed),
        None if key.is_instance(class(key.py())?)? => {
            Ok(key.call_method0("pack")?.cast_into::<PyBytes>()?.as_bytes().to_vec())
        }
        None => {
            let message =
                format!("key is {}; it must be a rollway.RecordKey(run, phase, step, …)", key.repr()?);
            Err(named(key.py(), "InvalidArgument", message))
        }
    }
}

/// `None` for what is not plain: Python packs it, or says what is wrong.
fn pack_exact(key: &Bound<'_, PyAny>) -> PyResult<Option<Vec<u8>>> {
    if !key.is_exact_instance(class(key.py())?) {
        return Ok(None);
    }
    let Ok(fields) = key.cast::<PyTuple>() else { return Ok(None) };
    let field = |index| fields.get_borrowed_item(index);
    let (run, phase, step, instance, repetition) = (field(0)?, field(1)?, field(2)?, field(3)?, field(4)?);
    let texts = (text(&run), text(&phase), text(&instance));
    let numbers = (whole(&step), whole(&repetition));
    let ((Some(run), Some(phase), Some(instance)), (Some(step), Some(repetition))) = (texts, numbers) else {
        return Ok(None);
    };
    let (Ok(run_bytes), Ok(phase_bytes)) = (u16::try_from(run.len()), u16::try_from(phase.len())) else {
        return Ok(None);
    };
    let mut packed = Vec::with_capacity(HEAD_BYTES + run.len() + phase.len() + instance.len());
    packed.extend_from_slice(&step.to_le_bytes());
    packed.extend_from_slice(&repetition.to_le_bytes());
    packed.extend_from_slice(&run_bytes.to_le_bytes());
    packed.extend_from_slice(&phase_bytes.to_le_bytes());
    for text in [run, phase, instance] {
        packed.extend_from_slice(text.as_bytes());
    }
    Ok(Some(packed))
}

fn text<'a>(object: &'a Bound<'_, PyAny>) -> Option<&'a str> {
    object.cast::<PyString>().ok()?.to_str().ok()
}

fn whole(object: &Bound<'_, PyAny>) -> Option<i64> {
    object.cast_exact::<PyInt>().ok()?.extract().ok()
}

/// The key that these bytes were made of.
pub fn unpack<'py>(py: Python<'py>, packed: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    let class = class(py)?;
    let Some((step, repetition, run, phase, instance)) = parts(packed) else { return Err(wrong(py, packed)) };
    let new = NEW_TUPLE.get_or_try_init(py, || {
        // SAFETY: the tuple type is alive as long as the interpreter.
        let tuple = unsafe { Bound::from_borrowed_ptr(py, (&raw mut ffi::PyTuple_Type).cast()) };
        tuple.getattr("__new__").map(Bound::unbind)
    })?;
    new.bind(py).call1((class, (run, phase, step, instance, repetition)))
}

/// The phase of a key.
pub fn phase<'py>(py: Python<'py>, packed: &[u8]) -> PyResult<Bound<'py, PyString>> {
    match parts(packed) {
        Some((.., phase, _)) => Ok(PyString::new(py, phase)),
        None => Err(wrong(py, packed)),
    }
}

/// The key of a group whose name [`group_name`] gave.
pub fn unpack_group<'py>(py: Python<'py>, name: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    unpack(py, name)?.getattr("group")
}

/// What the keys of a group have in common, as bytes: its key, with 0 for the repetition; and the repetition.
pub fn group_name(py: Python<'_>, packed: &[u8]) -> PyResult<(Vec<u8>, i64)> {
    let Some((_, repetition, ..)) = parts(packed) else { return Err(wrong(py, packed)) };
    let mut name = packed.to_vec();
    name[REPETITION].fill(0);
    Ok((name, repetition))
}

/// What is wrong with bytes that are no key, in Python's words.
#[cold]
fn wrong(py: Python<'_>, packed: &[u8]) -> PyErr {
    let unpacked = class(py).and_then(|class| class.call_method1("unpack", (PyBytes::new(py, packed),)));
    match unpacked {
        Err(error) => error,
        Ok(_) => named(py, "InvalidArgument", "these bytes are no key".to_owned()),
    }
}

fn parts(packed: &[u8]) -> Option<(i64, i64, &str, &str, &str)> {
    let head = packed.get(..HEAD_BYTES)?;
    let number = |at: usize| head[at..at + 8].try_into().ok().map(i64::from_le_bytes);
    let length = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]) as usize;
    let (run, rest) = packed[HEAD_BYTES..].split_at_checked(length(16))?;
    let (phase, instance) = rest.split_at_checked(length(18))?;
    let text = |bytes| std::str::from_utf8(bytes).ok();
    Some((number(0)?, number(8)?, text(run)?, text(phase)?, text(instance)?))
}
