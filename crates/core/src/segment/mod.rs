//! A segment: one named file of shared memory, mapped, with a header in front and leases beside it.
//!
//! ```text
//! create ──▶ nameless file ── reserve pages, map, write header, sit down ── publish ──▶ named, live
//! live ── last participant leaves or dies ──▶ stale ── attach again ──▶ live
//!                                              └── create with the same name, or gc ──▶ gone
//! ```
//!
//! S1  A name never leads to a half-made segment: the file gets its name after its header is whole and its creator
//!     has a lease. A creator that dies before that leaves nothing behind.
//! S2  Every page exists before the first touch, or creation fails: no SIGBUS later. A body may be sparse: what is not
//!     reserved at creation is reserved by [`Segment::grow`] before the first touch.
//! S3  A name is removed only by a process that lives in the segment, or that holds every lease of it.
//! S4  The mapping lives as long as any handle or view of it; unlinking takes away the name only.
//! S5  Header and schema are read once, when the segment is opened, and checked. Later changes to them are never looked at.
//!
//! Not done here: what the body means. Python's resource tracker has no part in any of this.
//!
//! | module | what it is |
//! |---|---|
//! | [`header`] | the first bytes of every segment |
//! | `mapping` | [`Segment`]: made, opened and checked, mapped |
//! | [`lease`] | proof of life, kept by the kernel: seats |
//! | `learner` | [`LearnerSeat`]: the seat of a learner, and how it ends |
//! | [`account`] | where the time of each participant goes |
//! | `peers` | [`PeerWatch`]: notices that every peer is dead |
//! | [`catalog`] | the segments of this user: listed, and collected when they are stale |
//! | [`forwarding`] | the session of a forwarder that empties the segment |
//! | [`sessions`] | what each remote client of a segment has delivered |
//! | `owned` | [`Owned`]: what one participant owns until it gives it up |
//! | `serial` | [`Serial`]: numbers that grow for ever |
//! | `body` | what the structures in bodies need of their segment |
//! | `naming`, `if_exists` | giving a segment its name; opening or making one |
//! | [`arrival`] | waiting for a segment to appear |
//! | [`memory`] | how much memory there is |
//! | [`histogram`], [`block`] | histograms in a segment; named bytes with no protocol |

pub mod account;
pub mod arrival;
pub mod block;
mod body;
pub mod catalog;
pub mod forwarding;
pub mod header;
pub mod histogram;
mod if_exists;
mod learner;
pub mod lease;
mod mapping;
pub mod memory;
mod naming;
mod owned;
mod peers;
mod serial;
pub mod sessions;

pub use account::{Activity, RemoteCounts, Times, Waits};
pub use learner::LearnerSeat;
pub use lease::{Census, DelegatedLease, Owner, Role, Seat};
pub use mapping::{PREFIX, Segment, Spec, directory};
pub use owned::Owned;
pub use peers::PeerWatch;
pub use serial::{SERIAL_BITS, Serial};
