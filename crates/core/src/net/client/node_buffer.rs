//! What a forwarder empties: the ring of a node, or its lanes for records.

use crate::error::Result;
use crate::records::Records;
use crate::ring::layout::BatchNo;
use crate::ring::{self, Ring};
use crate::schema;
use crate::segment::forwarding::Forwarding;
use crate::segment::{LearnerSeat, Segment};
use std::sync::Arc;

/// The ring, or the records, of a node.
#[derive(Debug, Clone)]
pub enum NodeBuffer {
    Ring(Arc<Ring>),
    Records(Arc<Records>),
}

/// How much was committed at a time: the batch that was being filled, or the head of each lane.
#[derive(Debug)]
pub struct Mark(Vec<u64>);

impl NodeBuffer {
    fn open(name: &str) -> Result<NodeBuffer> {
        let segment = Segment::open(name, None)?;
        if segment.header().kind != ring::layout::KIND {
            drop(segment);
            return Records::open(name, None).map(|records| NodeBuffer::Records(Arc::new(records)));
        }
        let leaves = schema::leaves(&segment.schema()).map_err(|invalid| segment.bad_schema(invalid))?;
        let leaf_bytes: Vec<usize> = leaves.iter().map(|leaf| leaf.bytes).collect();
        Ok(NodeBuffer::Ring(Arc::new(Ring::over(segment, &leaf_bytes)?)))
    }

    /// Removes what a forwarder has left behind, with what is in it: workers that are attached get an error. A forwarder that lives
    /// is an error here.
    pub fn discard(name: &str) -> Result<()> {
        let buffer = NodeBuffer::open(name)?;
        LearnerSeat::take_alone(buffer.segment().clone(), true)?.close(|| buffer.shut_down(), || ())
    }

    pub fn segment(&self) -> &Arc<Segment> {
        match self {
            NodeBuffer::Ring(ring) => ring.segment(),
            NodeBuffer::Records(records) => records.segment(),
        }
    }

    /// What is in it, in error texts.
    pub fn content(&self) -> &'static str {
        match self {
            NodeBuffer::Ring(_) => "samples",
            NodeBuffer::Records(_) => "records",
        }
    }

    /// The session of the forwarder.
    pub fn forwarding(&self) -> &Forwarding {
        match self {
            NodeBuffer::Ring(ring) => ring.forwarding(),
            NodeBuffer::Records(records) => records.forwarding(),
        }
    }

    /// Wakes the thread that takes samples or records.
    pub fn wake_taker(&self) {
        match self {
            NodeBuffer::Ring(ring) => ring.wake_consumers(),
            NodeBuffer::Records(records) => records.wake_consumers(),
        }
    }

    /// Samples, or records, that workers have committed and that the learner has not acknowledged.
    pub fn committed(&self) -> usize {
        match self {
            NodeBuffer::Ring(ring) => ring.census().committed(),
            NodeBuffer::Records(records) => records.census().committed(),
        }
    }

    /// What is committed so far. Lets it be taken.
    pub fn mark(&self) -> Result<Mark> {
        match self {
            NodeBuffer::Ring(ring) => {
                let last = ring.newest_batch();
                ring.flush()?;
                Ok(Mark(vec![last.value()]))
            }
            NodeBuffer::Records(records) => Ok(Mark(records.heads())),
        }
    }

    /// Whether everything up to a mark has a number. `writing`: and nothing is being written.
    pub fn is_numbered_until(&self, mark: &Mark, writing: bool) -> bool {
        match self {
            NodeBuffer::Ring(ring) => ring.is_numbered_until(BatchNo::new(mark.0[0]), writing),
            NodeBuffer::Records(records) => records.is_taken_until(&mark.0, writing),
        }
    }

    /// Shuts it down: workers get an error.
    pub fn shut_down(&self) {
        match self {
            NodeBuffer::Ring(ring) => ring.shut_down(),
            NodeBuffer::Records(records) => records.shut_down(),
        }
    }

    /// Undoes [`shut_down`](Self::shut_down).
    pub fn reopen(&self) {
        match self {
            NodeBuffer::Ring(ring) => ring.reopen(),
            NodeBuffer::Records(records) => records.reopen(),
        }
    }
}
