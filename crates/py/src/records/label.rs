//! What a record carries besides its arrays: whose it is, free metadata, and the weights that made it.

use crate::convert::json;
use crate::records::key as record_key;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyBytes;

/// Bits of a record's kind: it holds no data, and its key will never come; its metadata is JSON.
pub const TOMBSTONE: u32 = 1;
pub const JSON: u32 = 2;

static ENCODE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// The label of a record that is about to be sent.
pub struct Label<'py> {
    key: Vec<u8>,
    metadata: Metadata<'py>,
    pub kind: u32,
    pub version: u32,
}

enum Metadata<'py> {
    None,
    Given(Bound<'py, PyBytes>),
    Encoded(Vec<u8>),
}

impl<'py> Label<'py> {
    /// Packs the key; writes metadata as JSON unless it is bytes already.
    pub fn of(
        py: Python<'py>,
        key: Option<&Bound<'py, PyAny>>,
        metadata: Option<&Bound<'py, PyAny>>,
        version: u32,
    ) -> PyResult<Label<'py>> {
        let key = key.map_or(Ok(Vec::new()), record_key::pack)?;
        let (metadata, kind) = match metadata {
            None => (Metadata::None, 0),
            Some(metadata) => match metadata.cast::<PyBytes>() {
                Ok(bytes) => (Metadata::Given(bytes.clone()), 0),
                Err(_) => (Self::encode(py, metadata)?, JSON),
            },
        };
        Ok(Label { key, metadata, kind, version })
    }

    fn encode(py: Python<'py>, metadata: &Bound<'py, PyAny>) -> PyResult<Metadata<'py>> {
        if let Some(encoded) = json::encode(metadata) {
            return Ok(Metadata::Encoded(encoded));
        }
        let encode = ENCODE.import(py, "rollway.records.metadata", "encode")?;
        Ok(Metadata::Given(encode.call1((metadata,))?.cast_into::<PyBytes>()?))
    }

    pub fn key(&self) -> &[u8] {
        &self.key
    }

    pub fn metadata(&self) -> &[u8] {
        match &self.metadata {
            Metadata::None => &[],
            Metadata::Given(bytes) => bytes.as_bytes(),
            Metadata::Encoded(bytes) => bytes,
        }
    }
}
