//! Handles of records: single records and groups of them, of any length.
//!
//! | module | what it is |
//! |---|---|
//! | `producer` | `RecordProducer`: the handle of a worker on its lane |
//! | `consumer` | `RecordConsumer`: the handle of a learner |
//! | `slot` | `RecordSlot`: room for one record, to be written in place |
//! | `record` | `Record`: one trajectory, read where it lies |
//! | `label` | what a record carries besides its arrays |
//! | `key` | a `RecordKey` as bytes, and back |
//! | `bundle` | `Bundle`: the records of one `send_many` |
//! | `table` | `RecordTable`: many records as one padded or packed batch |
//! | `group_assembler` | `Assembler`: puts the records of a group together |
//! | `held_record` | a record that an assembler keeps until its group is whole |
//! | `group` | `Group`: the records of one group |
//! | `room_hint` | `RoomHint`: how much room the coroutines of a worker wait for |

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
