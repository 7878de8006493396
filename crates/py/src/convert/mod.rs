//! From Python values to bytes and numbers, and back. Knows schemas; knows no handle.

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
