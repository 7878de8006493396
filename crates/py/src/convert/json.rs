//! Plain Python objects as JSON and back, natively: exact dicts with text for keys, lists, tuples, texts, numbers (also
//! numpy's), booleans, None. Anything else is left to Python's own encoder and decoder, which convert or object.

use crate::convert::scalar::Scalar;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde::ser::{Error, Serialize, SerializeMap, SerializeSeq, Serializer};
use std::fmt;

/// What contains itself must end somewhere; Python says so in its own words.
const DEEPEST: usize = 64;

/// The JSON of an object; `None` when it is not plain.
pub fn encode(object: &Bound<'_, PyAny>) -> Option<Vec<u8>> {
    serde_json::to_vec(&Plain { object, depth: 0 }).ok()
}

struct Plain<'a, 'py> {
    object: &'a Bound<'py, PyAny>,
    depth: usize,
}

fn odd<E: Error>() -> E {
    E::custom("not plain")
}

impl Serialize for Plain<'_, '_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let Plain { object, depth } = *self;
        let depth = depth + 1;
        if depth > DEEPEST {
            return Err(odd());
        }
        if let Ok(text) = object.cast_exact::<PyString>() {
            return to.serialize_str(text.to_str().map_err(|_| odd())?);
        }
        if let Ok(number) = object.cast_exact::<PyFloat>() {
            let number = number.extract::<f64>().map_err(|_| odd())?;
            // JSON has no words for these; Python has some of its own.
            return if number.is_finite() { to.serialize_f64(number) } else { Err(odd()) };
        }
        if let Ok(number) = object.cast_exact::<PyInt>() {
            return to.serialize_i64(number.extract().map_err(|_| odd())?);
        }
        if let Ok(dict) = object.cast_exact::<PyDict>() {
            let mut map = to.serialize_map(Some(dict.len()))?;
            for (key, value) in dict {
                let key = key.cast_exact::<PyString>().map_err(|_| odd())?;
                map.serialize_entry(key.to_str().map_err(|_| odd())?, &Plain { object: &value, depth })?;
            }
            return map.end();
        }
        if let Ok(list) = object.cast_exact::<PyList>() {
            let mut sequence = to.serialize_seq(Some(list.len()))?;
            for item in list {
                sequence.serialize_element(&Plain { object: &item, depth })?;
            }
            return sequence.end();
        }
        if let Ok(tuple) = object.cast_exact::<PyTuple>() {
            let mut sequence = to.serialize_seq(Some(tuple.len()))?;
            for item in tuple {
                sequence.serialize_element(&Plain { object: &item, depth })?;
            }
            return sequence.end();
        }
        if let Ok(truth) = object.cast_exact::<PyBool>() {
            return to.serialize_bool(truth.is_true());
        }
        if object.is_none() {
            return to.serialize_unit();
        }
        // SAFETY: the GIL is held, and the object is alive.
        match unsafe { Scalar::of(object.py(), object.as_ptr()) } {
            Some(Scalar::Bool(truth)) => to.serialize_bool(truth),
            Some(Scalar::Integer(number)) => to.serialize_i64(number),
            Some(Scalar::Large(number)) => to.serialize_u64(number),
            Some(Scalar::Float(number)) if number.is_finite() => to.serialize_f64(number),
            _ => Err(odd()),
        }
    }
}

/// The object that these bytes say; `None` when Python has to read them.
pub fn decode<'py>(py: Python<'py>, bytes: &[u8]) -> Option<Bound<'py, PyAny>> {
    let mut from = serde_json::Deserializer::from_slice(bytes);
    let object = Builder(py).deserialize(&mut from).ok()?;
    from.end().ok()?;
    Some(object)
}

/// Makes the object as it reads.
#[derive(Clone, Copy)]
struct Builder<'py>(Python<'py>);

impl<'de, 'py> DeserializeSeed<'de> for Builder<'py> {
    type Value = Bound<'py, PyAny>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de, 'py> Visitor<'de> for Builder<'py> {
    type Value = Bound<'py, PyAny>;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(self.0.None().into_bound(self.0))
    }

    fn visit_bool<E>(self, truth: bool) -> Result<Self::Value, E> {
        Ok(PyBool::new(self.0, truth).to_owned().into_any())
    }

    fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<Self::Value, E> {
        Ok(PyInt::new(self.0, number).into_any())
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<Self::Value, E> {
        Ok(PyInt::new(self.0, number).into_any())
    }

    fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<Self::Value, E> {
        // It may have been a whole number that is too large for us, and not for Python.
        if number.abs() >= i64::MAX as f64 {
            Err(E::custom("large"))
        } else {
            Ok(PyFloat::new(self.0, number).into_any())
        }
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(PyString::new(self.0, text).into_any())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Self::Value, A::Error> {
        let list = PyList::empty(self.0);
        while let Some(item) = from.next_element_seed(self)? {
            list.append(item).map_err(A::Error::custom)?;
        }
        Ok(list.into_any())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Self::Value, A::Error> {
        let dict = PyDict::new(self.0);
        while let Some(key) = from.next_key_seed(self)? {
            dict.set_item(key, from.next_value_seed(self)?).map_err(A::Error::custom)?;
        }
        Ok(dict.into_any())
    }
}
