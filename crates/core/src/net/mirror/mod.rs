//! A worker's copy of a learner's weights on another host, kept up to date by a thread of its own.
//!
//! ```text
//! socket ── vectored reads ──▶ the next buffer of a local segment ── complete ──▶ published, under the learner's number
//!                                                                 └─ overwritten, or cut ──▶ thrown away
//! ```
//!
//! Other processes attach to the local segment by its name, and read the same copy. While there is no connection, readers keep
//! the last whole version.
//!
//! M1  A local segment holds versions of one *lineage*: the history in which a number means the same bytes. When a learner
//!     comes back with another one (it was restarted, and its numbers begin anew), a second segment receives its first version
//!     and then takes the place of the first.
//! M2  A version number that a caller got before that may name another version now. So `since` counts only if it is above every
//!     number of earlier lineages, and a wait for a number of an earlier lineage ends with the first version of the new one.
//! M3  The inventory is checked before memory is reserved or a name given: the schema parses, the sizes are those of the
//!     schema, the leaves are those that the callers have room for, and they fit into `max_bytes`.
//! M4  A server of the copy ([`WeightMirror::outlet`]) gives out what the callers see. When another lineage takes the place of
//!     the copy, the server ends its connections, and its clients find the new one when they connect again. When the learner
//!     shuts its weights down, so does the server. When the mirror ends for another reason, its clients are told that they
//!     may look for another server.
//! M5  A mirror does not go back: it refuses the lineage of an earlier learner from another mirror, which lags behind.
//!
//! | module | what it is |
//! |---|---|
//! | `handle` | [`WeightMirror`]: what callers hold |
//! | `shared` | what the thread and the callers share |
//! | `mirror_thread` | connects, checks what the learner offers (M3), fetches, and reconnects |
//! | `connection` | one connection: versions from the socket into the local segment |

mod connection;
mod handle;
mod mirror_thread;
mod shared;

pub use handle::WeightMirror;
