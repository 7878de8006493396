//! What a server needs to know of a ring or a lane that it feeds.

use super::room_waiter::RoomWaiter;
use crate::net::wire::frame::{Content, LearnerStatus};
use crate::segment::Seat;
use crate::segment::sessions::SessionStore;
use std::fmt::Debug;
use std::sync::Arc;

/// What does not change about a ring or a lane.
#[derive(Debug)]
pub struct FeedFacts {
    pub content: Content,
    /// The text that clients must bring, byte for byte.
    pub schema: Vec<u8>,
    /// Bytes of the leaves of one row of a scatter. In a frame of records each byte is a row.
    pub leaf_bytes: Vec<usize>,
    /// Rows of a frame, at most.
    pub max_rows: usize,
    /// Bytes that one frame of samples, or one record, has at most.
    pub largest: usize,
    /// The thread that waits for room, and the queue of connections that need some.
    pub room_waiter: RoomWaiter,
}

/// What a server needs to know of a ring or a lane.
pub trait Feed: Debug + Send + Sync {
    fn facts(&self) -> &FeedFacts;

    fn is_closed(&self) -> bool;

    /// A number for a client that brought none.
    fn next_producer_id(&self) -> u32;

    fn room_waiter(&self) -> &RoomWaiter {
        &self.facts().room_waiter
    }

    /// The version of the newest weights that the learner announced; 0 when there is none.
    fn published(&self) -> u32 {
        0
    }

    /// How far the learner is; known for records only.
    fn status(&self) -> LearnerStatus {
        LearnerStatus::default()
    }

    /// Its producer, in whose segment the sessions of clients are.
    fn session_store(&self) -> Arc<dyn SessionStore>;

    /// Its seat in the segment.
    fn seat(&self) -> &Seat;

    /// Ends the room waiter, and gives back the seat and the lane. Idempotent.
    fn close(&self);
}
