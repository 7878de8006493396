//! The core's parser of schema text, for Python: what another process or host wrote comes out as checked, plain values.

use crate::errors::named;
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use rollway_core::schema::{self, Dtype, Field, Invalid, Key, Leaf, Node};
use std::fmt::Display;

/// The leaves of samples or records: `(path, dtype, dims)`. A dtype is text, or a list of fields `(name, dtype, dims)`, in
/// which a name may be `(title, name)`. A first dimension of `"*"` or a letter is ragged. `SchemaMismatch` for what is no schema.
#[pyfunction]
pub fn read_schema<'py>(py: Python<'py>, text: &[u8]) -> PyResult<Bound<'py, PyList>> {
    leaves(py, &schema::leaves(text).map_err(|invalid| refuse(py, invalid))?)
}

/// The leaves of weights, as above, and the structure around them, as `WeightTree` writes it.
#[pyfunction]
pub fn read_weight_schema<'py>(
    py: Python<'py>,
    text: &[u8],
) -> PyResult<(Bound<'py, PyList>, Bound<'py, PyAny>)> {
    let schema = schema::weights(text).map_err(|invalid| refuse(py, invalid))?;
    Ok((leaves(py, &schema.leaves)?, node(py, &schema.tree)?))
}

/// Refuses a schema of our own that others could not read, or that says other sizes than these.
pub fn check(py: Python<'_>, text: &[u8], leaf_bytes: impl Iterator<Item = usize>) -> PyResult<()> {
    let refused =
        |what: &dyn Display| named(py, "SchemaMismatch", format!("this schema cannot be shared: {what}"));
    let leaves = schema::leaves(text).map_err(|invalid| refused(&invalid))?;
    if leaves.iter().map(|leaf| leaf.bytes).eq(leaf_bytes) {
        return Ok(());
    }
    Err(refused(&"its text says other sizes than its leaves have"))
}

fn refuse(py: Python<'_>, invalid: Invalid) -> PyErr {
    named(py, "SchemaMismatch", invalid.to_string())
}

fn leaves<'py>(py: Python<'py>, leaves: &[Leaf]) -> PyResult<Bound<'py, PyList>> {
    let list = PyList::empty(py);
    for leaf in leaves {
        list.append((&leaf.path, dtype(py, &leaf.dtype)?, dims(py, first_dim(leaf), &leaf.dims)?))?;
    }
    Ok(list)
}

/// The first dimension of a ragged leaf.
fn first_dim(leaf: &Leaf) -> Option<char> {
    leaf.ragged.then(|| leaf.tie.unwrap_or('*'))
}

fn dims<'py>(py: Python<'py>, first: Option<char>, dims: &[usize]) -> PyResult<Bound<'py, PyTuple>> {
    let mut all = Vec::with_capacity(dims.len() + 1);
    if let Some(first) = first {
        all.push(first.into_bound_py_any(py)?);
    }
    for dim in dims {
        all.push(dim.into_bound_py_any(py)?);
    }
    PyTuple::new(py, all)
}

fn dtype<'py>(py: Python<'py>, dtype: &Dtype) -> PyResult<Bound<'py, PyAny>> {
    match dtype {
        Dtype::Plain(text) => text.into_bound_py_any(py),
        Dtype::Fields(fields) => {
            let list = PyList::empty(py);
            for each in fields {
                list.append(field(py, each)?)?;
            }
            Ok(list.into_any())
        }
    }
}

fn field<'py>(py: Python<'py>, field: &Field) -> PyResult<Bound<'py, PyTuple>> {
    let name = match &field.title {
        Some(title) => (title, &field.name).into_bound_py_any(py)?,
        None => (&field.name).into_bound_py_any(py)?,
    };
    (name, dtype(py, &field.dtype)?, dims(py, None, &field.dims)?).into_pyobject(py)
}

fn node<'py>(py: Python<'py>, of: &Node) -> PyResult<Bound<'py, PyAny>> {
    let (kind, children) = match of {
        Node::Leaf(number) => return number.into_bound_py_any(py),
        Node::Nothing => return Ok(py.None().into_bound(py)),
        Node::List(children) => ("list", nodes(py, children)?),
        Node::Tuple(children) => ("tuple", nodes(py, children)?),
        Node::Dict(entries) => {
            let list = PyList::empty(py);
            for (key, child) in entries {
                let key = match key {
                    Key::Text(text) => text.into_bound_py_any(py)?,
                    Key::Number(number) => number.into_bound_py_any(py)?,
                    Key::Flag(flag) => flag.into_bound_py_any(py)?,
                };
                list.append(PyList::new(py, [key, node(py, child)?])?)?;
            }
            ("dict", list)
        }
    };
    let dict = PyDict::new(py);
    dict.set_item(kind, children)?;
    Ok(dict.into_any())
}

fn nodes<'py>(py: Python<'py>, children: &[Node]) -> PyResult<Bound<'py, PyList>> {
    let list = PyList::empty(py);
    for child in children {
        list.append(node(py, child)?)?;
    }
    Ok(list)
}
