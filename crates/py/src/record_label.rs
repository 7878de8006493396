//! What a record carries besides its arrays: whose it is, free metadata, and the weights that made it.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyBytes;

/// Bits of a record's kind: it holds no data, and its key will never come; its metadata is JSON.
pub const TOMBSTONE: u32 = 1;
pub const JSON: u32 = 2;

static ENCODE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// The label of a record that is about to be sent.
pub struct Label<'py> {
    key: Option<Bound<'py, PyBytes>>,
    metadata: Option<Bound<'py, PyBytes>>,
    pub kind: u32,
    pub version: u32,
}

impl<'py> Label<'py> {
    /// Packs the key; writes metadata as JSON unless it is bytes already.
    pub fn of(
        py: Python<'py>,
        key: Option<&Bound<'py, PyAny>>,
        metadata: Option<&Bound<'py, PyAny>>,
        version: u32,
    ) -> PyResult<Label<'py>> {
        let key = match key {
            None => None,
            Some(key) => Some(key.call_method0("pack")?.cast_into::<PyBytes>()?),
        };
        let (metadata, kind) = match metadata {
            None => (None, 0),
            Some(metadata) => match metadata.cast::<PyBytes>() {
                Ok(bytes) => (Some(bytes.clone()), 0),
                Err(_) => {
                    let encode = ENCODE.import(py, "rollway.record_metadata", "encode")?;
                    (Some(encode.call1((metadata,))?.cast_into::<PyBytes>()?), JSON)
                }
            },
        };
        Ok(Label { key, metadata, kind, version })
    }

    pub fn key(&self) -> &[u8] {
        self.key.as_ref().map_or(&[], |key| key.as_bytes())
    }

    pub fn metadata(&self) -> &[u8] {
        self.metadata.as_ref().map_or(&[], |metadata| metadata.as_bytes())
    }
}
