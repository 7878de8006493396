//! From Python values to bytes and numbers, and back. Knows schemas; knows no handle.
//!
//! | module | what it is |
//! |---|---|
//! | `plan` | the compiled schema of a sample, which `send` walks |
//! | `record_plan` | the same of a record |
//! | `rows` | the arrays of one call |
//! | `columns` | the columns of one `add` to a table |
//! | `leaf` | one array of a schema, as numpy knows it |
//! | `scalar` | kinds of numbers; a Python or numpy number as bytes |
//! | `numbers` | whole numbers, checked |
//! | `numpy_types` | the types and dtypes that numpy itself defines |
//! | `array` | numpy arrays over the memory of a segment |
//! | `value` | one value that a user gives for a leaf, as bytes |
//! | `view` | arrays of numpy, torch and JAX, as memory |
//! | `exact` | looks into Python objects without running Python code |
//! | `json` | plain Python objects as JSON, and back |
//! | `schema` | the parser of schema text |
//! | `arguments` | timeouts and policies, as Python gives them |

pub mod arguments;
pub mod array;
pub mod columns;
pub mod exact;
pub mod json;
pub mod leaf;
pub mod numbers;
pub mod numpy_types;
pub mod plan;
pub mod record_plan;
pub mod rows;
pub mod scalar;
pub mod schema;
pub mod value;
pub mod view;
