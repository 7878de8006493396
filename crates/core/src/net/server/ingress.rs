//! What a TCP server leads to: a ring, or a lane of records.

use super::record_ingress::RecordIntake;
use super::room_waiter::Doorman;
use super::sample_ingress::Intake;
use crate::net::wire::frame::{Cargo, News};

/// The way in, of either kind.
#[derive(Debug, Clone)]
pub enum Inlet {
    Samples(Intake),
    Records(RecordIntake),
}

impl From<Intake> for Inlet {
    fn from(intake: Intake) -> Inlet {
        Inlet::Samples(intake)
    }
}

impl From<RecordIntake> for Inlet {
    fn from(intake: RecordIntake) -> Inlet {
        Inlet::Records(intake)
    }
}

impl Inlet {
    pub fn cargo(&self) -> Cargo {
        match self {
            Inlet::Samples(_) => Cargo::Samples,
            Inlet::Records(_) => Cargo::Records,
        }
    }

    pub fn schema(&self) -> &[u8] {
        match self {
            Inlet::Samples(intake) => intake.schema(),
            Inlet::Records(intake) => intake.schema(),
        }
    }

    pub fn is_closed(&self) -> bool {
        match self {
            Inlet::Samples(intake) => intake.is_closed(),
            Inlet::Records(intake) => intake.is_closed(),
        }
    }

    pub fn next_producer_id(&self) -> u32 {
        match self {
            Inlet::Samples(intake) => intake.next_producer_id(),
            Inlet::Records(intake) => intake.next_producer_id(),
        }
    }

    /// The version of the newest weights that the learner told of; 0 when there is none.
    pub fn published(&self) -> u32 {
        match self {
            Inlet::Samples(_) => 0,
            Inlet::Records(intake) => intake.published(),
        }
    }

    /// How far the learner is: nothing to tell where it takes samples.
    pub fn news(&self) -> News {
        match self {
            Inlet::Samples(_) => News::default(),
            Inlet::Records(intake) => News { version: intake.published(), waiting: intake.waiting() },
        }
    }

    pub fn doorman(&self) -> &Doorman {
        match self {
            Inlet::Samples(intake) => intake.doorman(),
            Inlet::Records(intake) => intake.doorman(),
        }
    }

    /// Nothing more comes in: ends the doorman, and lets go of the lane. Idempotent.
    pub fn close(&self) {
        match self {
            Inlet::Samples(intake) => intake.doorman().dismiss(),
            Inlet::Records(intake) => intake.close(),
        }
    }

    /// Bytes of the leaves of one row of a landing. Of records each byte is a row.
    pub fn leaf_bytes(&self) -> &[usize] {
        match self {
            Inlet::Samples(intake) => intake.leaf_bytes(),
            Inlet::Records(_) => &[1],
        }
    }

    /// Rows of a frame, at most.
    pub fn max_rows(&self) -> usize {
        match self {
            Inlet::Samples(intake) => intake.max_frame_rows(),
            Inlet::Records(intake) => intake.limits().rows,
        }
    }

    /// Bytes that one frame of samples, or one record, has at most.
    pub fn largest(&self) -> usize {
        match self {
            Inlet::Samples(intake) => intake.max_frame_rows() * intake.sample_bytes(),
            Inlet::Records(intake) => intake.limits().record_bytes,
        }
    }

    /// Bytes of a record, at most; 0 for samples.
    pub fn max_record_bytes(&self) -> usize {
        match self {
            Inlet::Samples(_) => 0,
            Inlet::Records(intake) => intake.limits().record_bytes,
        }
    }
}
