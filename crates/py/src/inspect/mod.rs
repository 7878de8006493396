//! A look at a segment from outside. `rollway.inspect` asks.
//!
//! | module | what it is |
//! |---|---|
//! | `inspection` | `Inspection`: a segment, mapped read-only |

pub mod inspection;
