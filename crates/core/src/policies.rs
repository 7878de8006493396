//! What a user chooses, the same for a ring and for records: what to do when there is no room, or when the name is taken.

use crate::error::{Error, Result};
use crate::segment::{Segment, catalog};
use std::time::Duration;

/// What a producer does when there is no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum OnFull {
    /// Wait for room.
    Block = 0,
    /// Drop the oldest that no consumer has taken: a batch of a ring, a record of one's own lane. With nothing to drop, drop
    /// the newest.
    DropOldest = 1,
    /// Drop what was to be sent.
    DropNewest = 2,
    /// Say so.
    Error = 3,
}

impl OnFull {
    pub fn from_word(word: u64) -> Option<OnFull> {
        [OnFull::Block, OnFull::DropOldest, OnFull::DropNewest, OnFull::Error]
            .into_iter()
            .find(|p| *p as u64 == word)
    }

    /// As Python spells it.
    pub fn name(self) -> &'static str {
        match self {
            OnFull::Block => "block",
            OnFull::DropOldest => "drop_oldest",
            OnFull::DropNewest => "drop_newest",
            OnFull::Error => "error",
        }
    }
}

/// Options of a producer.
#[derive(Debug, Clone, Copy)]
pub struct ProducerSpec {
    /// The name on what it sends; chosen by the segment when `None`.
    pub producer_id: Option<u32>,
    /// `None`: as the segment was created.
    pub on_full: Option<OnFull>,
    /// How long a blocked call bears that every consumer is dead.
    pub peer_timeout: Option<Duration>,
}

/// What to do when the name is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IfExists {
    /// Go on with what was committed; a stale segment of another shape is replaced.
    Resume,
    /// Replace a stale segment; a live one is an error.
    Replace,
    /// Any segment of that name is an error.
    Fail,
}

impl IfExists {
    /// Opens what is there or makes a new one, as chosen; true when it was there. Without a name, nothing can be.
    pub(crate) fn open_or_create<T>(
        self,
        name: Option<&str>,
        open: impl FnOnce(&str) -> Result<T>,
        create: impl FnOnce() -> Result<T>,
    ) -> Result<(T, bool)> {
        let fresh = |made: T| (made, false);
        let Some(name) = name else { return create().map(fresh) };
        match self {
            IfExists::Replace => create().map(fresh),
            IfExists::Fail => match Segment::open(name, None) {
                Err(Error::NotFound { .. }) => create().map(fresh),
                Err(error) => Err(error),
                Ok(_) => Err(Error::Exists { name: name.to_owned() }),
            },
            IfExists::Resume => match open(name) {
                Ok(found) => Ok((found, true)),
                Err(Error::NotFound { .. }) => create().map(fresh),
                // Another shape: replace it if nobody lives in it, otherwise say what differs.
                Err(error) if error.is_mismatch() => {
                    if catalog::collect(name)? {
                        create().map(fresh)
                    } else {
                        Err(error)
                    }
                }
                Err(error) => Err(error),
            },
        }
    }

    /// Opens until it is settled: between the look at a name and sitting down, somebody may collect the segment, shut it
    /// down, or make it. Then it looks again.
    pub(crate) fn settle<T>(self, mut open_once: impl FnMut() -> Result<T>) -> Result<T> {
        for _ in 0..100 {
            match open_once() {
                Err(Error::NotFound { .. } | Error::InUse { .. }) if self == IfExists::Resume => {
                    std::thread::yield_now();
                }
                done => return done,
            }
        }
        open_once()
    }
}
