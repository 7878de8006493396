//! Slots: room that is written in place. How they are left, the same for samples and for records.

/// `slot_methods!(Class, room, commit(…))`: gives the class of a slot `version`, `abort`, `with` blocks and `repr`. `room` is its field
/// that is none once the slot was committed or aborted; `commit`, with these arguments, publishes all of it; its field `version` is what it is
/// stamped with; its method `end` takes the room out. It expands to a block of `#[pymethods]`.
macro_rules! slot_methods {
    ($Class:ident, $room:ident, $commit:ident($($argument:expr)?)) => {
        #[pymethods]
        impl $Class {
            /// The number of the weights that made it.
            #[getter]
            fn version(&self, py: Python<'_>) -> u32 {
                self.version.get(py)
            }

            #[setter]
            fn set_version(
                &self,
                py: Python<'_>,
                #[pyo3(from_py_with = $crate::convert::numbers::version)] version: u32,
            ) {
                self.version.replace(py, version);
            }

            /// Gives the room back; nobody sees what was written.
            fn abort(&self, py: Python<'_>) {
                drop(self.end(py));
            }

            fn __enter__(slf: Py<Self>) -> Py<Self> {
                slf
            }

            #[pyo3(signature = (kind, _value, _traceback))]
            fn __exit__(
                &self,
                py: Python<'_>,
                kind: Option<&Bound<'_, pyo3::types::PyType>>,
                _value: Option<&Bound<'_, PyAny>>,
                _traceback: Option<&Bound<'_, PyAny>>,
            ) -> PyResult<bool> {
                match kind {
                    None if !self.$room.is_none(py) => self.$commit(py $(, $argument)?)?,
                    _ => self.abort(py),
                }
                Ok(false)
            }

            fn __repr__(&self, py: Python<'_>) -> String {
                let state = if self.$room.is_none(py) { "done" } else { "reserved" };
                format!("<rollway.{} {state}>", stringify!($Class))
            }
        }
    };
}
pub(crate) use slot_methods;
