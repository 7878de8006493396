//! What a TCP server leads to: a ring, or a lane of records.

use super::record_ingress::RecordIngress;
use super::room_waiter::RoomWaiter;
use super::sample_ingress::SampleIngress;
use crate::net::wire::frame::{Content, LearnerStatus};

/// The way in, of either kind.
#[derive(Debug, Clone)]
pub enum Ingress {
    Samples(SampleIngress),
    Records(RecordIngress),
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

impl Ingress {
    pub fn content(&self) -> Content {
        match self {
            Ingress::Samples(_) => Content::Samples,
            Ingress::Records(_) => Content::Records,
        }
    }

    pub fn schema(&self) -> &[u8] {
        match self {
            Ingress::Samples(ingress) => ingress.schema(),
            Ingress::Records(ingress) => ingress.schema(),
        }
    }

    pub fn is_closed(&self) -> bool {
        match self {
            Ingress::Samples(ingress) => ingress.is_closed(),
            Ingress::Records(ingress) => ingress.is_closed(),
        }
    }

    pub fn next_producer_id(&self) -> u32 {
        match self {
            Ingress::Samples(ingress) => ingress.next_producer_id(),
            Ingress::Records(ingress) => ingress.next_producer_id(),
        }
    }

    /// The version of the newest weights that the learner told of; 0 when there is none.
    pub fn published(&self) -> u32 {
        match self {
            Ingress::Samples(_) => 0,
            Ingress::Records(ingress) => ingress.published(),
        }
    }

    /// How far the learner is: nothing to tell where it takes samples.
    pub fn status(&self) -> LearnerStatus {
        match self {
            Ingress::Samples(_) => LearnerStatus::default(),
            Ingress::Records(ingress) => {
                LearnerStatus { version: ingress.published(), waiting: ingress.waiting() }
            }
        }
    }

    pub fn room_waiter(&self) -> &RoomWaiter {
        match self {
            Ingress::Samples(ingress) => ingress.room_waiter(),
            Ingress::Records(ingress) => ingress.room_waiter(),
        }
    }

    /// Nothing more comes in: ends the room waiter, and lets go of the lane. Idempotent.
    pub fn close(&self) {
        match self {
            Ingress::Samples(ingress) => ingress.room_waiter().stop(),
            Ingress::Records(ingress) => ingress.close(),
        }
    }

    /// Bytes of the leaves of one row of a scatter. Of records each byte is a row.
    pub fn leaf_bytes(&self) -> &[usize] {
        match self {
            Ingress::Samples(ingress) => ingress.leaf_bytes(),
            Ingress::Records(_) => &[1],
        }
    }

    /// Rows of a frame, at most.
    pub fn max_rows(&self) -> usize {
        match self {
            Ingress::Samples(ingress) => ingress.max_frame_rows(),
            Ingress::Records(ingress) => ingress.limits().rows,
        }
    }

    /// Bytes that one frame of samples, or one record, has at most.
    pub fn largest(&self) -> usize {
        match self {
            Ingress::Samples(ingress) => ingress.max_frame_rows() * ingress.sample_bytes(),
            Ingress::Records(ingress) => ingress.limits().record_bytes,
        }
    }

    /// Bytes of a record, at most; 0 for samples.
    pub fn max_record_bytes(&self) -> usize {
        match self {
            Ingress::Samples(_) => 0,
            Ingress::Records(ingress) => ingress.limits().record_bytes,
        }
    }
}
