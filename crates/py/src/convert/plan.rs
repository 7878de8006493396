//! A schema, compiled once: which key, which array, how many bytes. `send` walks it without Python code.

use crate::convert::array;
use crate::convert::exact;
use crate::convert::leaf::Leaf;
use numpy::npyffi::npy_intp;
use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The structure around the arrays, as far as it is made of plain dicts, tuples and lists.
enum Node {
    Leaf(usize),
    Dict(Vec<Entry>),
    Tuple(Vec<Node>),
    List(Vec<Node>),
    /// A named tuple, a dataclass, a registered class: Python flattens it.
    Foreign,
}

/// One key of a dict.
struct Entry {
    /// A `str` itself, no subclass: to look it up runs no Python code.
    key: Py<PyString>,
    child: Node,
    /// Which entry stood at this place in the last dict: the next one probably has the same order.
    guess: AtomicUsize,
}

/// `Plan(schema, text, leaves, tree)`: built by `rollway.schema.pytree.Schema`, used by every handle.
///
/// `leaves` is a list of `(dtype, shape, bytes)`; `tree` is `int` for a leaf, `("dict", [(key, tree), …])`,
/// `("tuple", [tree, …])`, `("list", [tree, …])`, or `None` where Python has to flatten.
#[pyclass(frozen, module = "rollway._core")]
pub struct Plan {
    /// The Python object that flattens and converts what is not plain, and words the errors.
    pub schema: Py<PyAny>,
    pub text: Vec<u8>,
    pub leaves: Vec<Leaf>,
    /// Of all leaves of one sample.
    pub sample_bytes: usize,
    root: Node,
    ndarray: usize,
}

#[pymethods]
impl Plan {
    #[new]
    fn new(
        py: Python<'_>,
        schema: Py<PyAny>,
        text: Vec<u8>,
        leaves: Vec<(Py<PyAny>, Vec<npy_intp>, usize)>,
        tree: Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        let leaves: Vec<Leaf> =
            leaves.into_iter().map(|(descr, shape, bytes)| Leaf { descr, shape, bytes }).collect();
        crate::convert::schema::check(py, &text, leaves.iter().map(|leaf| leaf.bytes))?;
        let root = Node::compile(&tree, leaves.len())?;
        let sample_bytes = leaves.iter().map(|leaf| leaf.bytes).sum();
        Ok(Plan { schema, text, leaves, sample_bytes, root, ndarray: array::ndarray_type(py) as usize })
    }
}

impl Node {
    fn compile(tree: &Bound<'_, PyAny>, leaves: usize) -> PyResult<Node> {
        if tree.is_none() {
            return Ok(Node::Foreign);
        }
        if let Ok(index) = tree.extract::<usize>() {
            return if index < leaves {
                Ok(Node::Leaf(index))
            } else {
                Err(PyValueError::new_err("no such leaf"))
            };
        }
        let (kind, children): (String, Bound<'_, PyList>) = tree.extract()?;
        let each = |child: Bound<'_, PyAny>| Node::compile(&child, leaves);
        match kind.as_str() {
            "tuple" => Ok(Node::Tuple(children.iter().map(each).collect::<PyResult<_>>()?)),
            "list" => Ok(Node::List(children.iter().map(each).collect::<PyResult<_>>()?)),
            "dict" => {
                let entry = |(place, pair): (usize, Bound<'_, PyAny>)| {
                    let (key, child): (Bound<'_, PyAny>, Bound<'_, PyAny>) = pair.extract()?;
                    let key = key.cast_into_exact::<PyString>()?.unbind();
                    Ok(Entry { key, child: Node::compile(&child, leaves)?, guess: AtomicUsize::new(place) })
                };
                Ok(Node::Dict(children.iter().enumerate().map(entry).collect::<PyResult<_>>()?))
            }
            _ => Err(PyValueError::new_err(format!("unknown node '{kind}'"))),
        }
    }

    fn collect(&self, object: &Bound<'_, PyAny>, arrays: &mut Vec<Py<PyAny>>) -> PyResult<()> {
        match self {
            Node::Leaf(_) => arrays.push(object.clone().unbind()),
            Node::Foreign => {}
            Node::Tuple(children) | Node::List(children) => {
                for (index, child) in children.iter().enumerate() {
                    child.collect(&object.get_item(index)?, arrays)?;
                }
            }
            Node::Dict(entries) => {
                for Entry { key, child, .. } in entries {
                    child.collect(&object.get_item(key)?, arrays)?;
                }
            }
        }
        Ok(())
    }

    /// `None` where Python has to build it.
    fn build<'py>(
        &self,
        py: Python<'py>,
        leaves: &[Bound<'py, PyAny>],
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let all = |children: &[Node]| -> PyResult<Option<Vec<Bound<'py, PyAny>>>> {
            children.iter().map(|child| child.build(py, leaves)).collect()
        };
        Ok(match self {
            Node::Leaf(index) => Some(leaves[*index].clone()),
            Node::Foreign => None,
            Node::Tuple(children) => match all(children)? {
                Some(items) => Some(PyTuple::new(py, items)?.into_any()),
                None => None,
            },
            Node::List(children) => match all(children)? {
                Some(items) => Some(PyList::new(py, items)?.into_any()),
                None => None,
            },
            Node::Dict(entries) => {
                let dict = PyDict::new(py);
                for Entry { key, child, .. } in entries {
                    let Some(item) = child.build(py, leaves)? else { return Ok(None) };
                    dict.set_item(key, item)?;
                }
                Some(dict.into_any())
            }
        })
    }
}

/// What the leaves of a call must look like.
#[derive(Clone, Copy)]
pub enum Expect {
    /// One sample.
    Sample,
    /// Stacked samples: every leaf has one more dimension in front, of the same length.
    Stack,
}

impl Plan {
    /// Bytes of one sample of each leaf.
    pub fn leaf_bytes(&self) -> Vec<usize> {
        self.leaves.iter().map(|leaf| leaf.bytes).collect()
    }

    /// Puts one array per leaf into the structure of the example.
    pub fn build<'py>(&self, py: Python<'py>, leaves: &[Bound<'py, PyAny>]) -> PyResult<Bound<'py, PyAny>> {
        match self.root.build(py, leaves)? {
            Some(tree) => Ok(tree),
            None => self.schema.bind(py).call_method1("unflatten", (PyList::new(py, leaves)?,)),
        }
    }

    /// Finds the arrays of a sample without running any Python code, and notes where their bytes are. Gives the number
    /// of rows, or `None` when anything is not plain: then [`crate::rows`] asks Python, which converts or objects.
    #[inline]
    pub fn find(&self, data: &Bound<'_, PyAny>, expect: Expect, found: &mut [*const u8]) -> Option<usize> {
        let mut search = Search { plan: self, expect, rows: None, found };
        // SAFETY: the GIL is held throughout, `data` is alive, and no Python code runs in between: look-ups happen in dicts
        // whose keys are all `str` itself. So every borrowed pointer stays valid until we return.
        unsafe { search.walk(&self.root, data.as_ptr()) }.then(|| search.rows.unwrap_or(1))
    }

    /// The arrays of `data`, in which `find` has just found them all. Runs no Python code, as `find`.
    #[cold]
    pub fn arrays(&self, data: &Bound<'_, PyAny>) -> PyResult<Vec<Py<PyAny>>> {
        let mut arrays = Vec::with_capacity(self.leaves.len());
        self.root.collect(data, &mut arrays)?;
        Ok(arrays)
    }
}

/// One walk through a sample.
struct Search<'a> {
    plan: &'a Plan,
    expect: Expect,
    /// Stacked samples, once a leaf has said how many.
    rows: Option<usize>,
    /// Where the bytes of each leaf are.
    found: &'a mut [*const u8],
}

impl Search<'_> {
    /// # Safety
    /// The GIL is held and `object` is alive.
    unsafe fn walk(&mut self, node: &Node, object: *mut ffi::PyObject) -> bool {
        // SAFETY: as the caller promises; items of containers are alive while their container is.
        unsafe {
            match node {
                Node::Leaf(index) => match self.leaf_data(*index, object) {
                    Some(data) => {
                        self.found[*index] = data;
                        true
                    }
                    None => false,
                },
                Node::Dict(entries) => {
                    if ffi::PyDict_CheckExact(object) == 0
                        || ffi::PyDict_Size(object) as usize != entries.len()
                    {
                        return false;
                    }
                    self.walk_in_order(entries, object).unwrap_or_else(|| self.walk_by_key(entries, object))
                }
                Node::Tuple(children) => {
                    ffi::PyTuple_CheckExact(object) != 0
                        && ffi::PyTuple_Size(object) as usize == children.len()
                        && children
                            .iter()
                            .enumerate()
                            .all(|(i, child)| self.walk(child, ffi::PyTuple_GetItem(object, i as _)))
                }
                Node::List(children) => {
                    ffi::PyList_CheckExact(object) != 0
                        && ffi::PyList_Size(object) as usize == children.len()
                        && children
                            .iter()
                            .enumerate()
                            .all(|(i, child)| self.walk(child, ffi::PyList_GetItem(object, i as _)))
                }
                Node::Foreign => false,
            }
        }
    }

    /// Walks a dict as it comes, with no look-up. `None` when a key is not the very object that the example had; it may
    /// be equal all the same.
    ///
    /// # Safety
    /// The GIL is held and `dict` is a dict with as many keys as there are entries.
    #[inline]
    unsafe fn walk_in_order(&mut self, entries: &[Entry], dict: *mut ffi::PyObject) -> Option<bool> {
        let (mut position, mut key, mut item) = (0, std::ptr::null_mut(), std::ptr::null_mut());
        for place in entries {
            // SAFETY: as the caller promises; nothing changes the dict meanwhile.
            if unsafe { ffi::PyDict_Next(dict, &mut position, &mut key, &mut item) } == 0 {
                return Some(false);
            }
            let mut entry = &entries[place.guess.load(Ordering::Relaxed)];
            if entry.key.as_ptr() != key {
                let at = entries.iter().position(|entry| entry.key.as_ptr() == key)?;
                place.guess.store(at, Ordering::Relaxed);
                entry = &entries[at];
            }
            // SAFETY: the item is alive while the dict is.
            if !unsafe { self.walk(&entry.child, item) } {
                return Some(false);
            }
        }
        Some(true) // As many distinct keys as entries, and each is one: so all are there.
    }

    /// Walks a dict by looking up each key. False when one of the dict's own keys is of a subclass of `str`: to compare with
    /// it may run Python code.
    ///
    /// # Safety
    /// As for [`walk_in_order`](Self::walk_in_order).
    unsafe fn walk_by_key(&mut self, entries: &[Entry], dict: *mut ffi::PyObject) -> bool {
        // SAFETY: as the caller promises.
        if !unsafe { exact::has_str_keys(dict) } {
            return false;
        }
        entries.iter().all(|entry| {
            // SAFETY: as the caller promises; the item is alive while the dict is. All keys are strings: no Python code runs.
            unsafe {
                let item = ffi::PyDict_GetItemWithError(dict, entry.key.as_ptr());
                if item.is_null() {
                    ffi::PyErr_Clear();
                    return false;
                }
                self.walk(&entry.child, item)
            }
        })
    }

    /// Where the bytes of an array are, if it is exactly what the leaf says: type, dtype, shape, contiguous.
    ///
    /// # Safety
    /// The GIL is held and `object` is alive.
    #[inline]
    unsafe fn leaf_data(&mut self, index: usize, object: *mut ffi::PyObject) -> Option<*const u8> {
        let leaf = &self.plan.leaves[index];
        // SAFETY: as the caller promises; nothing runs in between.
        let (dims, data) = unsafe { exact::array_like(leaf, object, self.plan.ndarray) }?;
        let shape = match self.expect {
            Expect::Sample => dims,
            Expect::Stack => {
                let (&first, rest) = dims.split_first()?;
                if *self.rows.get_or_insert(first as usize) != first as usize {
                    return None;
                }
                rest
            }
        };
        leaf.has_shape(shape).then_some(data)
    }
}
