//! From Python values to bytes and numbers, and back. Knows schemas; knows no handle.
//!
//! | module | what it is |
//! |---|---|
//! | `plan` | the compiled schema of a sample, which `send` walks |
//! | `record_plan` | the same of a record |
//! | `rows` | the arrays of one call |
//! | `columns` | the columns of one `add` to a table |
//! | `leaf` | one array of a schema, as numpy knows it |
//! | `scalar` | a Python number as the bytes of a leaf without dimensions |
//! | `numbers` | whole numbers, checked |
//! | `array` | numpy arrays over the memory of a segment |
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
pub mod plan;
pub mod record_plan;
pub mod rows;
pub mod scalar;
pub mod schema;
