//! The first bytes of every segment: its creator, its contents, and where the rest lies.
//!
//! ```text
//! 0        ┌──────────────────────────────┐
//!          │ Header (one page)            │  written before the name exists; after that only the policy may change
//! 4096     ├──────────────────────────────┤
//!          │ SeatRecord × seats (128 B)   │  the participants; their proof of life is a kernel lock
//!          ├──────────────────────────────┤
//!          │ schema text (schema_bytes)   │  see `schema`
//! body     ├──────────────────────────────┤  page-aligned
//!          │ body (body_bytes)            │  laid out by the structure named in `kind`
//! total    └──────────────────────────────┘
//! ```
//!
//! Everything in it was written by another process, so [`Header::check`] trusts nothing: every offset is derived
//! again from the counts and compared with the size that the kernel reports.

use super::account::{Account, Remotes, Times};
use crate::error::{Error, Result};
use crate::schema::MAX_TEXT_BYTES;
use crate::sys::sync::{AtomicU32, AtomicU64, Ordering};
use std::path::Path;

/// The first eight bytes of a segment.
pub const MAGIC: u64 = u64::from_le_bytes(*b"ROLLWAY\x01");
/// Changes whenever a byte of any layout moves, or means something else.
pub const LAYOUT_VERSION: u32 = 8;
/// Everything that starts on a page starts on one of this size.
pub const PAGE: usize = 4096;
/// Numbers for the structure in the body to describe itself with.
pub const GEOMETRY_WORDS: usize = 16;
/// The numbers for a header: these, and zeros.
pub fn geometry_words<const N: usize>(first: [usize; N]) -> [u64; GEOMETRY_WORDS] {
    let mut words = [0; GEOMETRY_WORDS];
    words.iter_mut().zip(first).for_each(|(word, number)| *word = number as u64);
    words
}

/// The widest owner index that fits into a slot word.
pub const MAX_SEATS: usize = 1024;

/// See the picture above.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Header {
    pub magic: u64,
    pub layout_version: u32,
    pub kind: u32,
    pub total_bytes: u64,
    pub creator_pid: u32,
    pub seats: u32,
    pub created_unix_ns: u64,
    pub schema_bytes: u64,
    pub body_bytes: u64,
    /// 1 for an automatic name: no process comes back for it.
    pub auto_named: u64,
    pub geometry: [u64; GEOMETRY_WORDS],
}
const _: () = assert!(size_of::<Header>() <= PAGE);

/// One seat: a process's (or handle's) place in the segment.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct SeatRecord {
    /// Counts the holders of this seat; 12 bits of it are in every claim they make.
    pub life: AtomicU32,
    /// One of [`seat_state`].
    pub state: AtomicU32,
    /// A [`Role`](super::Role).
    pub role: AtomicU32,
    pub pid: AtomicU32,
    pub joined_unix_ns: AtomicU64,
    /// As `joined_unix_ns`, by CLOCK_MONOTONIC.
    pub joined_ns: AtomicU64,
    /// Claims that another producer won first.
    pub retries: AtomicU64,
    /// The remote workers for which it sits here.
    pub remotes: Remotes,
    /// Where its time goes.
    pub account: Account,
}
#[cfg(not(loom))]
const _: () = assert!(size_of::<SeatRecord>() == 128); // by its alignment

impl SeatRecord {
    /// Where the time of its holder went.
    pub fn times(&self, now_ns: u64) -> Times {
        self.account.times(self.joined_ns.load(Ordering::Relaxed), now_ns)
    }
}

/// What a seat record says about its last holder.
pub mod seat_state {
    pub const NEVER: u32 = 0;
    /// Attached; alive if and only if the kernel holds its lock.
    pub const JOINED: u32 = 1;
    /// Closed properly.
    pub const LEFT: u32 = 2;
    /// Seen dead, once. Only the kernel's lock says whether it is.
    pub const DIED: u32 = 3;
    /// About to close properly. One that dies in this state has died.
    pub const LEAVING: u32 = 4;
    /// Counts as dead from now on, also while its lock is held because what it took is still in use.
    pub const ABANDONED: u32 = 5;
}

/// Where the parts of a segment lie, derived from the three counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    pub schema: usize,
    pub body: usize,
    pub total: usize,
}

impl Extent {
    /// `None` when the sizes do not fit into the address space.
    pub fn of(seats: usize, schema_bytes: usize, body_bytes: usize) -> Option<Extent> {
        let schema = PAGE.checked_add(seats.checked_mul(size_of::<SeatRecord>())?)?;
        let body = schema.checked_add(schema_bytes)?.checked_next_multiple_of(PAGE)?;
        let total = body.checked_add(body_bytes)?.checked_next_multiple_of(PAGE)?;
        (total <= isize::MAX as usize).then_some(Extent { schema, body, total })
    }
}

impl Header {
    /// Checks a header that another process wrote against the size of its file.
    pub fn check(&self, name: &str, path: &Path, file_bytes: u64) -> Result<Extent> {
        let not = |what: &str| Error::NotASegment { path: path.to_owned(), what: what.to_owned() };
        if self.magic != MAGIC {
            return Err(not("it does not start with the magic number"));
        }
        if self.layout_version != LAYOUT_VERSION {
            return Err(Error::LayoutVersion {
                name: name.to_owned(),
                theirs: self.layout_version,
                ours: LAYOUT_VERSION,
            });
        }
        if self.seats == 0 || self.seats as usize > MAX_SEATS {
            return Err(not("its number of seats is out of range"));
        }
        if self.schema_bytes > MAX_TEXT_BYTES as u64 {
            return Err(not("its schema is too long"));
        }
        let extent = Extent::of(self.seats as usize, self.schema_bytes as usize, self.body_bytes as usize)
            .ok_or_else(|| not("its sizes overflow"))?;
        if extent.total as u64 != self.total_bytes || self.total_bytes != file_bytes {
            return Err(not("its size is not the one in its header"));
        }
        Ok(extent)
    }
}
