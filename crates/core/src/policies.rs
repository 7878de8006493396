//! What a user chooses, the same for a ring and for records: what to do when there is no room, when the name is taken, or when a
//! learner was restarted.

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
    /// How long a blocked call waits while every consumer is dead.
    pub peer_timeout: Option<Duration>,
}

/// What a remote client does with samples that it sent to a learner which was restarted before it acknowledged them: they may have
/// arrived or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnRestart {
    /// Ends, and says how much that is.
    Raise,
    /// Counts it as dropped, and goes on with the new learner: at most once.
    Drop,
    /// Sends it to the new learner: at least once.
    Resend,
}

/// What to do when the name is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IfExists {
    /// Go on with what was committed. A stale segment of another shape is replaced if it is empty, otherwise it is an error.
    Resume,
    /// Replace a stale segment; a live one is an error.
    Replace,
    /// Any segment of that name is an error.
    Fail,
}
