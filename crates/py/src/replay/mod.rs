//! The handle of the replay table.

pub mod table;
