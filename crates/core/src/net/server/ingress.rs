//! What a TCP server feeds: a ring, or a lane of records.

use super::record_ingress::RecordIngress;
use super::room_waiter::RoomWaiter;
use super::sample_ingress::SampleIngress;
use crate::net::wire::frame::{Content, LearnerStatus};
use std::fmt::Debug;
use std::ops::Deref;

/// What a server needs to know of either kind.
pub trait Feed: Debug + Send + Sync {
    fn content(&self) -> Content;

    /// The text that clients must bring, byte for byte.
    fn schema(&self) -> &[u8];

    fn is_closed(&self) -> bool;

    /// A number for a client that brought none.
    fn next_producer_id(&self) -> u32;

    /// The thread that waits for room, and the queue of connections that need some.
    fn room_waiter(&self) -> &RoomWaiter;

    /// Bytes of the leaves of one row of a scatter. In a frame of records each byte is a row.
    fn leaf_bytes(&self) -> &[usize];

    /// Rows of a frame, at most.
    fn max_rows(&self) -> usize;

    /// Bytes that one frame of samples, or one record, has at most.
    fn largest(&self) -> usize;

    /// Bytes of a record, at most; 0 for samples.
    fn max_record_bytes(&self) -> usize {
        0
    }

    /// The version of the newest weights that the learner announced; 0 when there is none.
    fn published(&self) -> u32 {
        0
    }

    /// How far the learner is; known for records only.
    fn status(&self) -> LearnerStatus {
        LearnerStatus::default()
    }

    /// Ends the room waiter, and lets go of the lane. Idempotent.
    fn close(&self) {
        self.room_waiter().stop();
    }
}

/// The way into a ring or a lane.
#[derive(Debug, Clone)]
pub enum Ingress {
    Samples(SampleIngress),
    Records(RecordIngress),
}

impl Deref for Ingress {
    type Target = dyn Feed;

    fn deref(&self) -> &(dyn Feed + 'static) {
        match self {
            Ingress::Samples(ingress) => ingress,
            Ingress::Records(ingress) => ingress,
        }
    }
}

impl From<SampleIngress> for Ingress {
    fn from(ingress: SampleIngress) -> Ingress {
        Ingress::Samples(ingress)
    }
}

impl From<RecordIngress> for Ingress {
    fn from(ingress: RecordIngress) -> Ingress {
        Ingress::Records(ingress)
    }
}
