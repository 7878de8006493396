//! Handles of records: single records and groups of them, of any length.

pub mod bundle;
pub mod consumer;
pub mod group;
pub mod group_assembler;
pub mod held_record;
pub mod key;
pub mod label;
pub mod producer;
pub mod record;
pub mod room_hint;
pub mod slot;
pub mod table;
