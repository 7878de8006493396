//! A schema, compiled once: which key, which array, how many bytes. `send` walks it without Python code.

use crate::convert::exact;
use crate::convert::leaf::Leaf;
use crate::convert::value::{Dims, Scratch, Wanted};
use numpy::npyffi::npy_intp;
use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple, PyType};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The structure around the arrays.
enum Node {
    Leaf(usize),
    Dict(Vec<Entry>),
    /// A tuple, or a named tuple of this very class.
    Tuple(Py<PyType>, Vec<Node>),
    List(Vec<Node>),
    /// A dataclass of this very class.
    Object(Py<PyType>, Vec<Field>),
    /// A class that the user registered: Python flattens it.
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

/// One field of a dataclass.
struct Field {
    name: Py<PyString>,
    /// The descriptor of a slot, if the class has slots; otherwise the field is in the object's `__dict__`.
    slot: Option<Slot>,
    child: Node,
}

/// A slot of a class, and the C function that reads it.
struct Slot {
    descriptor: Py<PyAny>,
    read: ffi::descrgetfunc,
}

/// `Plan(schema, text, leaves, tree, casts)`: built by `rollway.schema.pytree.Schema`, used by every handle.
///
/// `leaves` is a list of `(dtype, shape, bytes)`; `tree` is `int` for a leaf, `("dict", None, [(key, tree), …])`,
/// `("tuple", class, [tree, …])`, `("list", None, [tree, …])`, `("object", class, [(name, slot, tree), …])`, or `None` where
/// Python has to flatten.
#[pyclass(frozen, module = "rollway._core")]
pub struct Plan {
    /// The Python object that flattens and converts what is not plain, and words the errors.
    pub schema: Py<PyAny>,
    pub text: Vec<u8>,
    pub leaves: Vec<Leaf>,
    /// Of all leaves of one sample.
    pub sample_bytes: usize,
    root: Node,
}

#[pymethods]
impl Plan {
    #[new]
    #[pyo3(signature = (schema, text, leaves, tree, casts=false))]
    fn new(
        py: Python<'_>,
        schema: Py<PyAny>,
        text: Vec<u8>,
        leaves: Vec<(Py<PyAny>, Vec<npy_intp>, usize)>,
        tree: Bound<'_, PyAny>,
        casts: bool,
    ) -> PyResult<Self> {
        let leaf = |(descr, shape, bytes)| Ok(Leaf::new(py, descr, shape, bytes)?.casting(casts));
        let leaves: Vec<Leaf> = leaves.into_iter().map(leaf).collect::<PyResult<_>>()?;
        crate::convert::schema::check(py, &text, leaves.iter().map(|leaf| leaf.bytes))?;
        let root = Node::compile(&tree, leaves.len())?;
        let sample_bytes = leaves.iter().map(|leaf| leaf.bytes).sum();
        Ok(Plan { schema, text, leaves, sample_bytes, root })
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
        type Parts<'py> = (String, Option<Bound<'py, PyType>>, Bound<'py, PyList>);
        let (kind, class, children): Parts<'_> = tree.extract()?;
        let nodes = || children.iter().map(|child| Node::compile(&child, leaves)).collect::<PyResult<_>>();
        match (kind.as_str(), class) {
            ("tuple", Some(class)) => Ok(Node::Tuple(class.unbind(), nodes()?)),
            ("list", None) => Ok(Node::List(nodes()?)),
            ("dict", None) => {
                let entry = |(place, pair): (usize, Bound<'_, PyAny>)| {
                    let (key, child): (Bound<'_, PyAny>, Bound<'_, PyAny>) = pair.extract()?;
                    let key = key.cast_into_exact::<PyString>()?.unbind();
                    Ok(Entry { key, child: Node::compile(&child, leaves)?, guess: AtomicUsize::new(place) })
                };
                Ok(Node::Dict(children.iter().enumerate().map(entry).collect::<PyResult<_>>()?))
            }
            ("object", Some(class)) => {
                let field = |field: Bound<'_, PyAny>| Field::compile(&field, leaves);
                Ok(Node::Object(class.unbind(), children.iter().map(field).collect::<PyResult<_>>()?))
            }
            _ => Err(PyValueError::new_err(format!("unknown node '{kind}'"))),
        }
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
            Node::Tuple(class, children) if class.is(py.get_type::<PyTuple>()) => match all(children)? {
                Some(items) => Some(PyTuple::new(py, items)?.into_any()),
                None => None,
            },
            Node::Tuple(..) | Node::Object(..) | Node::Foreign => None,
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

impl Field {
    fn compile(field: &Bound<'_, PyAny>, leaves: usize) -> PyResult<Field> {
        let (name, descriptor, child): (Bound<'_, PyAny>, Option<Py<PyAny>>, Bound<'_, PyAny>) =
            field.extract()?;
        let name = name.cast_into_exact::<PyString>()?.unbind();
        let slot = descriptor.map(|descriptor| Slot::of(field.py(), descriptor)).transpose()?;
        Ok(Field { name, slot, child: Node::compile(&child, leaves)? })
    }
}

impl Slot {
    /// A slot's descriptor, which must be of the interpreter's own type for them: its function runs no Python code.
    fn of(py: Python<'_>, descriptor: Py<PyAny>) -> PyResult<Slot> {
        let class = descriptor.bind(py).get_type();
        if !class.is(py.import("types")?.getattr("MemberDescriptorType")?) {
            return Err(PyValueError::new_err("no slot"));
        }
        // SAFETY: the GIL is held, and it is a type; a descriptor's type has this function, or null.
        let read = unsafe {
            let read = ffi::PyType_GetSlot(class.as_type_ptr(), ffi::Py_tp_descr_get);
            std::mem::transmute::<*mut std::ffi::c_void, Option<ffi::descrgetfunc>>(read)
        };
        let read = read.ok_or_else(|| PyValueError::new_err("a slot that cannot be read"))?;
        Ok(Slot { descriptor, read })
    }
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

    /// Finds the bytes of a sample without running any Python code. Gives the number of rows, or `None` when it is left to
    /// others: see [`Scratch::read`].
    #[inline]
    pub fn find(
        &self,
        data: &Bound<'_, PyAny>,
        dims: Dims,
        found: &mut [*const u8],
        scratch: &mut Scratch,
    ) -> Option<usize> {
        let mut search = Search { py: data.py(), plan: self, dims, rows: None, found, scratch };
        // SAFETY: the GIL is held throughout, `data` is alive, and no Python code runs in between: look-ups happen in dicts
        // whose keys are all `str` itself. So every borrowed pointer stays valid until we return.
        unsafe { self.root.walk(&mut search, data.as_ptr()) }.then(|| search.rows.unwrap_or(1))
    }

    /// The value of each leaf; `None` when the structure is another one. Runs no Python code, as `find`.
    #[cold]
    pub fn values(&self, data: &Bound<'_, PyAny>) -> Option<Vec<Py<PyAny>>> {
        let mut values = Values { py: data.py(), values: Vec::new() };
        values.values.resize_with(self.leaves.len(), || None);
        // SAFETY: as in `find`.
        let all = unsafe { self.root.walk(&mut values, data.as_ptr()) };
        if all { values.values.into_iter().collect() } else { None }
    }
}

/// What is done with each value of a sample.
trait Visit {
    /// False ends the walk.
    ///
    /// # Safety
    /// The GIL is held and `object` is alive.
    unsafe fn leaf(&mut self, index: usize, object: *mut ffi::PyObject) -> bool;
}

/// Finds the bytes of each leaf.
struct Search<'a, 'py> {
    py: Python<'py>,
    plan: &'a Plan,
    dims: Dims,
    /// Stacked samples, once a leaf has said how many.
    rows: Option<usize>,
    /// Where the bytes of each leaf are.
    found: &'a mut [*const u8],
    scratch: &'a mut Scratch,
}

impl Visit for Search<'_, '_> {
    #[inline]
    unsafe fn leaf(&mut self, index: usize, object: *mut ffi::PyObject) -> bool {
        let leaves = &self.plan.leaves;
        let wanted = Wanted { leaf: &leaves[index], dims: self.dims, leaves: leaves.len() };
        // SAFETY: as the caller promises.
        let found = unsafe { self.scratch.read(self.py, wanted, object) };
        found.is_some_and(|found| {
            self.found[index] = found.data;
            self.dims == Dims::Fixed || *self.rows.get_or_insert(found.rows) == found.rows
        })
    }
}

/// Takes a reference to each value.
struct Values<'py> {
    py: Python<'py>,
    values: Vec<Option<Py<PyAny>>>,
}

impl Visit for Values<'_> {
    unsafe fn leaf(&mut self, index: usize, object: *mut ffi::PyObject) -> bool {
        // SAFETY: as the caller promises.
        self.values[index] = Some(unsafe { Bound::from_borrowed_ptr(self.py, object) }.unbind());
        true
    }
}

impl Node {
    /// Visits the values of a sample of this structure, in whatever order. False when it has another, or a visit says so.
    ///
    /// # Safety
    /// The GIL is held and `object` is alive.
    unsafe fn walk(&self, visit: &mut impl Visit, object: *mut ffi::PyObject) -> bool {
        // SAFETY: as the caller promises; items of containers are alive while their container is.
        unsafe {
            match self {
                Node::Leaf(index) => visit.leaf(*index, object),
                Node::Dict(entries) => {
                    if ffi::PyDict_CheckExact(object) == 0
                        || ffi::PyDict_Size(object) as usize != entries.len()
                    {
                        return false;
                    }
                    walk_in_order(entries, visit, object)
                        .unwrap_or_else(|| walk_by_key(entries, visit, object))
                }
                Node::Tuple(class, children) => {
                    ffi::Py_TYPE(object).cast() == class.as_ptr()
                        && ffi::PyTuple_Size(object) as usize == children.len()
                        && children
                            .iter()
                            .enumerate()
                            .all(|(i, child)| child.walk(visit, ffi::PyTuple_GetItem(object, i as _)))
                }
                Node::List(children) => {
                    ffi::PyList_CheckExact(object) != 0
                        && ffi::PyList_Size(object) as usize == children.len()
                        && children
                            .iter()
                            .enumerate()
                            .all(|(i, child)| child.walk(visit, ffi::PyList_GetItem(object, i as _)))
                }
                Node::Object(class, fields) => {
                    ffi::Py_TYPE(object).cast() == class.as_ptr() && walk_fields(fields, visit, object)
                }
                Node::Foreign => false,
            }
        }
    }
}

/// Walks a dict as it comes, with no look-up. `None` when a key is not the very object that the example had; it may be equal
/// all the same.
///
/// # Safety
/// The GIL is held and `dict` is a dict with as many keys as there are entries.
#[inline]
unsafe fn walk_in_order(entries: &[Entry], visit: &mut impl Visit, dict: *mut ffi::PyObject) -> Option<bool> {
    let (mut position, mut key, mut item) = (0, null_mut(), null_mut());
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
        if !unsafe { entry.child.walk(visit, item) } {
            return Some(false);
        }
    }
    Some(true) // As many distinct keys as entries, and each is one: so all are there.
}

/// Walks a dict by looking up each key. False when one of the dict's own keys is of a subclass of `str`: to compare with it may
/// run Python code.
///
/// # Safety
/// As for [`walk_in_order`].
unsafe fn walk_by_key(entries: &[Entry], visit: &mut impl Visit, dict: *mut ffi::PyObject) -> bool {
    // SAFETY: as the caller promises; an item is alive while the dict is.
    unsafe {
        exact::has_str_keys(dict)
            && entries.iter().all(|entry| match item(dict, &entry.key) {
                Some(item) => entry.child.walk(visit, item),
                None => false,
            })
    }
}

/// Walks the fields of a dataclass.
///
/// # Safety
/// The GIL is held and `object` is an instance of the class that has these fields, and alive.
unsafe fn walk_fields(fields: &[Field], visit: &mut impl Visit, object: *mut ffi::PyObject) -> bool {
    // SAFETY: as the caller promises. Slots and the dict hold their values, so these are alive while the object is. Nothing here
    // runs Python code: it does not go through the class.
    unsafe {
        let mut dict = null_mut();
        if fields.iter().any(|field| field.slot.is_none()) {
            dict = ffi::PyObject_GenericGetDict(object, null_mut());
            ffi::Py_XDECREF(dict);
            if dict.is_null() || ffi::PyDict_CheckExact(dict) == 0 || !exact::has_str_keys(dict) {
                ffi::PyErr_Clear();
                return false;
            }
        }
        fields.iter().all(|field| {
            let value = match &field.slot {
                Some(slot) => {
                    let value = (slot.read)(slot.descriptor.as_ptr(), object, ffi::Py_TYPE(object).cast());
                    ffi::Py_XDECREF(value);
                    if value.is_null() {
                        ffi::PyErr_Clear();
                    }
                    (!value.is_null()).then_some(value)
                }
                None => item(dict, &field.name),
            };
            value.is_some_and(|value| field.child.walk(visit, value))
        })
    }
}

/// The item of a key, borrowed from its dict.
///
/// # Safety
/// The GIL is held and `dict` is a dict whose keys are all `str` itself, and alive.
unsafe fn item(dict: *mut ffi::PyObject, key: &Py<PyString>) -> Option<*mut ffi::PyObject> {
    // SAFETY: as the caller promises: no Python code runs.
    unsafe {
        let item = ffi::PyDict_GetItemWithError(dict, key.as_ptr());
        if item.is_null() {
            ffi::PyErr_Clear();
        }
        (!item.is_null()).then_some(item)
    }
}
