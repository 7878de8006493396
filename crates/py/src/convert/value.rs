//! One value that a user gives for a leaf, as bytes: in place where they are exact, converted where they are not.
//!
//! | value | what becomes of it |
//! |---|---|
//! | a contiguous array of the leaf's dtype and shape, of numpy, torch or JAX | its own memory |
//! | the same with gaps or in another order | copied into order |
//! | the same with another dtype of the same kind, if the client casts | converted number by number |
//! | a Python or numpy number, or an array without dimensions | converted (see [`scalar`](crate::convert::scalar)) |
//! | lists and tuples of numbers, nested as the leaf has dimensions | converted number by number |
//!
//! Everything else is left to Python, which converts it or says what is wrong.

use crate::convert::array::equal_dtypes;
use crate::convert::exact;
use crate::convert::leaf::Leaf;
use crate::convert::scalar::{Number, Scalar};
use crate::convert::view::{Buffer, Library, Torch, View};
use numpy::npyffi::npy_intp;
use pyo3::ffi;
use pyo3::prelude::*;
use smallvec::SmallVec;

/// Where the bytes of a value are, and how many rows they are; 1 for a leaf of one fixed shape.
pub struct Found {
    pub data: *const u8,
    pub rows: usize,
}

/// The memory of values that had to be converted, and what keeps others in place. A sample of exact arrays has none of it.
#[derive(Default)]
pub struct Scratch {
    memory: Option<Box<Memory>>,
    /// A value was met that can be looked at only while it is kept: Python code may run, or the GIL be released.
    wants_kept: bool,
}

#[derive(Default)]
pub struct Memory {
    /// Single numbers. It never grows beyond its first capacity, so that they stay where they are.
    numbers: SmallVec<[[u8; 8]; 16]>,
    copies: Vec<Vec<u8>>,
    buffers: Vec<Buffer>,
    pub kept: Vec<Py<PyAny>>,
    /// The leaves whose bytes other threads may free once the GIL is released, although the value is kept: torch lets a program
    /// take the memory of a tensor away.
    unowned: Unowned,
}

/// Numbers of leaves.
pub type Unowned = SmallVec<[usize; 16]>;

/// How a leaf is given.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Dims {
    /// With the dimensions of the schema.
    Fixed,
    /// With one more in front, of any length.
    Rows,
}

/// What a value is wanted for.
#[derive(Clone, Copy)]
pub struct Wanted<'a> {
    pub leaf: &'a Leaf,
    pub dims: Dims,
    /// How many leaves the sample or record has.
    pub leaves: usize,
}

impl Wanted<'_> {
    /// How many rows of the leaf these dimensions are; `None` when they do not fit.
    #[inline]
    fn rows(self, given: &[npy_intp]) -> Option<usize> {
        match self.dims {
            Dims::Fixed => self.leaf.has_shape(given).then_some(1),
            Dims::Rows => {
                let (&rows, rest) = given.split_first()?;
                self.leaf.has_shape(rest).then_some(rows as usize)
            }
        }
    }
}

impl Scratch {
    pub fn memory(&mut self) -> &mut Memory {
        self.memory.get_or_insert_default()
    }

    /// Whether [`read`](Self::read) met a value that can be looked at only while it is kept.
    pub fn wants_kept(&self) -> bool {
        self.wants_kept
    }

    /// Finds the bytes of a value, without running any Python code. `None`: Python has to look at it; or
    /// [`read_kept`](Self::read_kept), if it [`wants_kept`](Self::wants_kept) now.
    ///
    /// # Safety
    /// The GIL is held and `object` is alive. `leaves` is the same in all calls.
    #[inline]
    pub unsafe fn read(
        &mut self,
        py: Python<'_>,
        wanted: Wanted<'_>,
        object: *mut ffi::PyObject,
    ) -> Option<Found> {
        // SAFETY: as the caller promises; nothing runs in between.
        unsafe { exact_array(wanted, object).or_else(|| self.read_other(py, wanted, object)) }
    }

    /// # Safety
    /// As for [`read`](Self::read).
    #[inline(never)]
    unsafe fn read_other(
        &mut self,
        py: Python<'_>,
        wanted: Wanted<'_>,
        object: *mut ffi::PyObject,
    ) -> Option<Found> {
        // SAFETY: as the caller promises; types are checked before they are read.
        unsafe {
            if let Some(value) = Scalar::of(py, object) {
                return self.number(wanted, value);
            }
            if is_sequence(object) {
                return self.sequence(py, wanted, object);
            }
            match Library::of(py, object) {
                Some(Library::Numpy) => self.view(py, wanted, View::of_numpy(py, object)),
                Some(Library::Other) => None,
                Some(Library::Torch(_) | Library::Jax) | None => {
                    self.wants_kept = true;
                    None
                }
            }
        }
    }

    /// The same for all values of a sample or record, which the caller keeps, where [`read`](Self::read) wanted that. Calls
    /// `found` for each in order; false ends it. Other threads may run at first, but not any more once `found` was called.
    /// `None` when Python has to look.
    pub fn read_kept<'py>(
        &mut self,
        py: Python<'py>,
        values: &[Py<PyAny>],
        wanted: impl Fn(usize) -> Wanted<'py>,
        mut found: impl FnMut(usize, Found) -> bool,
    ) -> Option<()> {
        let mut prepared: SmallVec<[Prepared; 16]> = SmallVec::new();
        for (index, value) in values.iter().enumerate() {
            prepared.push(self.prepare(value.bind(py), wanted(index).leaf)?);
        }
        for (index, value) in values.iter().enumerate() {
            // SAFETY: the GIL is held, the values are kept and buffers are held. Nothing runs from here on.
            let bytes = unsafe {
                match prepared[index] {
                    Prepared::Other => self.read(py, wanted(index), value.as_ptr()),
                    Prepared::Torch(torch) => {
                        self.memory().unowned.push(index);
                        self.view(py, wanted(index), View::of_torch(torch, value.as_ptr())?)
                    }
                    Prepared::Buffer(at) => {
                        let buffers = std::mem::take(&mut self.memory().buffers);
                        let found = self.view(py, wanted(index), View::of_buffer(&buffers[at]));
                        self.memory().buffers = buffers;
                        found
                    }
                }
            };
            if !found(index, bytes?) {
                return None;
            }
        }
        Some(())
    }

    /// Does for a value what may run Python code, or release the GIL.
    fn prepare(&mut self, value: &Bound<'_, PyAny>, leaf: &Leaf) -> Option<Prepared> {
        // Torch negates views of complex numbers, which are floats. Those do not fit a leaf of integers or bools.
        let may_be_negated = !leaf.number.is_some_and(Number::is_whole);
        Some(match Library::of_owned(value) {
            Library::Numpy | Library::Other => Prepared::Other,
            Library::Torch(torch) if may_be_negated && torch.is_negated(value) => return None,
            Library::Torch(torch) => Prepared::Torch(torch),
            Library::Jax => {
                let buffers = &mut self.memory().buffers;
                buffers.push(Buffer::of(value)?);
                Prepared::Buffer(buffers.len() - 1)
            }
        })
    }

    /// The leaves whose bytes are not ours, and not safe without the GIL.
    pub fn take_unowned(&mut self) -> Unowned {
        self.memory.as_mut().map_or_else(Unowned::new, |memory| std::mem::take(&mut memory.unowned))
    }

    /// Copies so many bytes, and gives the copy's address. `None` when there is no memory for it.
    ///
    /// # Safety
    /// They can be read there.
    pub unsafe fn own(&mut self, from: *const u8, bytes: usize) -> Option<*const u8> {
        let mut copy = room_for(Some(bytes))?;
        // SAFETY: as the caller promises.
        copy.extend_from_slice(unsafe { std::slice::from_raw_parts(from, bytes) });
        Some(self.copied(copy, 1).data)
    }

    /// Single numbers are stored one by one.
    fn number(&mut self, wanted: Wanted<'_>, value: Scalar) -> Option<Found> {
        let Wanted { leaf, dims, leaves } = wanted;
        if dims == Dims::Rows || !leaf.shape.is_empty() {
            return None;
        }
        let bytes = leaf.number?.bytes(value)?;
        let numbers = &mut self.memory().numbers;
        if numbers.is_empty() {
            numbers.reserve_exact(leaves);
        }
        if numbers.len() == numbers.capacity() {
            return None; // A leaf was read twice: nothing must move.
        }
        numbers.push(bytes);
        Some(Found { data: numbers.last()?.as_ptr(), rows: 1 })
    }

    /// An array of another library, or one that is not exact.
    ///
    /// # Safety
    /// The GIL is held, and the memory is alive.
    unsafe fn view(&mut self, py: Python<'_>, wanted: Wanted<'_>, view: View<'_>) -> Option<Found> {
        let leaf = wanted.leaf;
        let same = match (view.number, leaf.number) {
            (Some(given), Some(wanted)) => given == wanted,
            _ => !view.descr.is_null() && equal_dtypes(py, view.descr, leaf),
        };
        if !same {
            let given = view.number?;
            if view.dims.is_empty() && leaf.shape.is_empty() {
                // SAFETY: the memory holds one number of that kind.
                let value = unsafe { given.read(view.data) }?;
                return self.number(wanted, value);
            }
            let number = leaf.number.filter(|_| leaf.casts)?;
            let rows = wanted.rows(view.dims)?;
            let mut copy = room_for(rows.checked_mul(leaf.bytes))?;
            // SAFETY: the dimensions, strides and kind of number are those of the memory.
            return unsafe { append_cast(&mut copy, &view, given, number) }.then(|| self.copied(copy, rows));
        }
        let rows = wanted.rows(view.dims)?;
        if leaf.bytes == 0 {
            return None;
        }
        let item = leaf.number.map_or_else(|| leaf.bytes / elements(&leaf.shape), Number::size);
        if view.is_contiguous(item) {
            return Some(Found { data: view.data, rows });
        }
        let mut copy = room_for(rows.checked_mul(leaf.bytes))?;
        // SAFETY: the dimensions and strides are those of the memory.
        unsafe { append(&mut copy, view.data, view.dims, &view.strides(item), item) };
        Some(self.copied(copy, rows))
    }

    /// Lists and tuples of numbers.
    ///
    /// # Safety
    /// The GIL is held and `object` is a list or tuple, and alive.
    unsafe fn sequence(
        &mut self,
        py: Python<'_>,
        wanted: Wanted<'_>,
        object: *mut ffi::PyObject,
    ) -> Option<Found> {
        let Wanted { leaf, dims, .. } = wanted;
        let number = leaf.number?;
        // SAFETY: as the caller promises.
        let length = unsafe { ffi::PyObject_Size(object) } as usize;
        let (rows, shape) = match dims {
            Dims::Fixed => (1, &leaf.shape[..]),
            Dims::Rows => (length, &leaf.shape[..]),
        };
        let mut copy = room_for(rows.checked_mul(leaf.bytes))?;
        let mut numbers = Numbers { py, number, bytes: &mut copy };
        // SAFETY: as the caller promises. No Python code runs, so all items stay.
        let fits = unsafe {
            match dims {
                Dims::Fixed => numbers.append(object, shape),
                Dims::Rows => numbers.append_items(object, length, shape),
            }
        };
        fits.then(|| self.copied(copy, rows))
    }

    fn copied(&mut self, copy: Vec<u8>, rows: usize) -> Found {
        let data = copy.as_ptr(); // The bytes stay where they are when the vector moves.
        self.memory().copies.push(copy);
        Found { data, rows }
    }
}

/// A value of which only the bytes have to be found.
enum Prepared {
    Torch(&'static Torch),
    /// One of the buffers.
    Buffer(usize),
    Other,
}

/// Memory for so many bytes; `None` when there is not as much. Python finds the words then.
fn room_for(bytes: Option<usize>) -> Option<Vec<u8>> {
    let mut room = Vec::new();
    room.try_reserve_exact(bytes?).ok()?;
    Some(room)
}

/// Where the bytes of an array are, if it is exactly what the leaf says: numpy's own, dtype, shape, contiguous.
///
/// # Safety
/// The GIL is held and `object` is alive.
#[inline]
unsafe fn exact_array(wanted: Wanted<'_>, object: *mut ffi::PyObject) -> Option<Found> {
    // SAFETY: as the caller promises; nothing runs in between.
    let (given, data) = unsafe { exact::array_like(wanted.leaf, object) }?;
    Some(Found { data, rows: wanted.rows(given)? })
}

/// # Safety
/// The GIL is held and `object` is alive.
unsafe fn is_sequence(object: *mut ffi::PyObject) -> bool {
    // SAFETY: as the caller promises.
    unsafe { ffi::PyList_CheckExact(object) != 0 || ffi::PyTuple_CheckExact(object) != 0 }
}

fn elements(shape: &[npy_intp]) -> usize {
    shape.iter().product::<npy_intp>() as usize
}

/// Appends the items of strided memory in their order.
///
/// # Safety
/// All items of these dimensions and strides can be read, `item` bytes each.
unsafe fn append(to: &mut Vec<u8>, from: *const u8, dims: &[npy_intp], strides: &[npy_intp], item: usize) {
    // SAFETY: as the caller promises.
    unsafe {
        match (dims, strides) {
            ([], _) => to.extend_from_slice(std::slice::from_raw_parts(from, item)),
            ([dim], [stride]) if *stride == item as npy_intp => {
                to.extend_from_slice(std::slice::from_raw_parts(from, *dim as usize * item));
            }
            ([dim], [stride]) => match item {
                1 => append_items::<1>(to, from, *dim, *stride),
                2 => append_items::<2>(to, from, *dim, *stride),
                4 => append_items::<4>(to, from, *dim, *stride),
                8 => append_items::<8>(to, from, *dim, *stride),
                _ => (0..*dim).for_each(|index| append(to, from.offset(index * stride), &[], &[], item)),
            },
            ([dim, dims @ ..], [stride, strides @ ..]) => {
                (0..*dim).for_each(|index| append(to, from.offset(index * stride), dims, strides, item));
            }
            _ => {}
        }
    }
}

/// # Safety
/// As for [`append`], with items of so many bytes.
unsafe fn append_items<const BYTES: usize>(
    to: &mut Vec<u8>,
    from: *const u8,
    dim: npy_intp,
    stride: npy_intp,
) {
    // SAFETY: as the caller promises.
    let item = |index| unsafe { from.offset(index * stride).cast::<[u8; BYTES]>().read_unaligned() };
    to.extend((0..dim).flat_map(item));
}

/// Appends the numbers of strided memory as another kind. False when one of them does not fit.
///
/// # Safety
/// The memory holds numbers of that kind.
unsafe fn append_cast(to: &mut Vec<u8>, view: &View<'_>, given: Number, wanted: Number) -> bool {
    use Number::{Bool, Float, Signed, Unsigned};
    let (from, dims, strides) = (view.data, view.dims, &view.strides(given.size())[..]);
    // The kinds that are met most are told apart once, and not for each number.
    // SAFETY: as the caller promises.
    unsafe {
        match (given, wanted) {
            (Float(8), Float(4)) => cast::<4>(to, from, dims, strides, Float(8), Float(4)),
            (Float(4), Float(8)) => cast::<8>(to, from, dims, strides, Float(4), Float(8)),
            (Signed(8), Float(4)) => cast::<4>(to, from, dims, strides, Signed(8), Float(4)),
            (Unsigned(1), Float(4)) => cast::<4>(to, from, dims, strides, Unsigned(1), Float(4)),
            (Bool, Float(4)) => cast::<4>(to, from, dims, strides, Bool, Float(4)),
            (Signed(8), Signed(4)) => cast::<4>(to, from, dims, strides, Signed(8), Signed(4)),
            (Signed(4), Signed(8)) => cast::<8>(to, from, dims, strides, Signed(4), Signed(8)),
            _ => match wanted.size() {
                1 => cast::<1>(to, from, dims, strides, given, wanted),
                2 => cast::<2>(to, from, dims, strides, given, wanted),
                4 => cast::<4>(to, from, dims, strides, given, wanted),
                _ => cast::<8>(to, from, dims, strides, given, wanted),
            },
        }
    }
}

/// # Safety
/// As for [`append_cast`]; the number that is wanted has so many bytes.
#[inline(always)]
unsafe fn cast<const BYTES: usize>(
    to: &mut Vec<u8>,
    from: *const u8,
    dims: &[npy_intp],
    strides: &[npy_intp],
    given: Number,
    wanted: Number,
) -> bool {
    let mut one = |at: *const u8| {
        // SAFETY: as the caller promises.
        let bytes = unsafe { given.read(at) }.and_then(|value| wanted.bytes(value));
        bytes.is_some_and(|bytes| {
            to.extend_from_slice(bytes.first_chunk::<BYTES>().expect("at most eight"));
            true
        })
    };
    // SAFETY: as the caller promises.
    unsafe { each(from, dims, strides, &mut one) }
}

/// Calls a function with the address of each item, in order, until it gives false.
///
/// # Safety
/// All items of these dimensions and strides are memory of one object.
unsafe fn each(
    from: *const u8,
    dims: &[npy_intp],
    strides: &[npy_intp],
    one: &mut impl FnMut(*const u8) -> bool,
) -> bool {
    // SAFETY: as the caller promises.
    unsafe {
        match (dims, strides) {
            ([dim], [stride]) => (0..*dim).all(|index| one(from.offset(index * stride))),
            ([dim, dims @ ..], [stride, strides @ ..]) => {
                (0..*dim).all(|index| each(from.offset(index * stride), dims, strides, one))
            }
            _ => one(from),
        }
    }
}

/// The numbers of a list, as bytes.
struct Numbers<'a, 'py> {
    py: Python<'py>,
    number: Number,
    bytes: &'a mut Vec<u8>,
}

impl Numbers<'_, '_> {
    /// Appends a list of this shape. False when anything does not fit.
    ///
    /// # Safety
    /// The GIL is held and `object` is alive.
    unsafe fn append(&mut self, object: *mut ffi::PyObject, shape: &[npy_intp]) -> bool {
        // SAFETY: as the caller promises; the type is checked first.
        unsafe {
            match shape {
                [] => false,
                [dim, rest @ ..] => {
                    is_sequence(object)
                        && ffi::PyObject_Size(object) == *dim
                        && self.append_items(object, *dim as usize, rest)
                }
            }
        }
    }

    /// # Safety
    /// The GIL is held and `object` is a list or tuple of that length, and alive.
    unsafe fn append_items(&mut self, object: *mut ffi::PyObject, length: usize, shape: &[npy_intp]) -> bool {
        // SAFETY: as the caller promises.
        let is_list = unsafe { ffi::PyList_CheckExact(object) } != 0;
        let get = if is_list { ffi::PyList_GetItem } else { ffi::PyTuple_GetItem };
        // SAFETY: as the caller promises. No Python code runs, so all items stay.
        let item = |index: usize| unsafe { get(object, index as ffi::Py_ssize_t) };
        // SAFETY: as the caller promises.
        unsafe {
            // The kinds are told apart once, and not for each number.
            match (shape, self.number) {
                ([], Number::Float(4)) => self.append_numbers::<4>(length, item, Number::Float(4)),
                ([], Number::Float(8)) => self.append_numbers::<8>(length, item, Number::Float(8)),
                ([], Number::Signed(4)) => self.append_numbers::<4>(length, item, Number::Signed(4)),
                ([], Number::Signed(8)) => self.append_numbers::<8>(length, item, Number::Signed(8)),
                ([], number) => match number.size() {
                    1 => self.append_numbers::<1>(length, item, number),
                    2 => self.append_numbers::<2>(length, item, number),
                    4 => self.append_numbers::<4>(length, item, number),
                    _ => self.append_numbers::<8>(length, item, number),
                },
                _ => (0..length).all(|index| self.append(item(index), shape)),
            }
        }
    }

    /// # Safety
    /// The GIL is held, and so many items are alive. The number has so many bytes.
    #[inline(always)]
    unsafe fn append_numbers<const BYTES: usize>(
        &mut self,
        length: usize,
        item: impl Fn(usize) -> *mut ffi::PyObject,
        number: Number,
    ) -> bool {
        let (start, py) = (self.bytes.len(), self.py);
        self.bytes.resize(start + length * BYTES, 0);
        let (places, _) = self.bytes[start..].as_chunks_mut::<BYTES>();
        places.iter_mut().enumerate().all(|(index, place)| {
            // SAFETY: as the caller promises.
            let value = unsafe { Scalar::of(py, item(index)) };
            value.and_then(|value| number.bytes(value)).is_some_and(|bytes| {
                *place = *bytes.first_chunk().expect("at most eight");
                true
            })
        })
    }
}
