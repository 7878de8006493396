//! The way from a transport into a ring: claims, the places of their leaves, commits, and waiting for room without holding any.
//!
//! A [`SampleIngress`] is one producer of the ring, shared by everything that a transport serves. A [`Run`] is a claim with a
//! guard: dropped, it is given back. The TCP server uses nothing else of the ring, and another transport (RDMA, a message
//! queue) needs no more.
//!
//! **No deadlock.** N1: a connection that waits holds no slot. A run of rows that finds only a part of its slots commits that
//! part at once, and keeps the rest in a *spill* buffer; there are as many buffers as the [`RoomWaiter`] gives turns. A
//! connection with a turn can use any single slot that becomes free, so batches become complete, and the learner goes on. If a
//! run kept its slots and waited for more, the learner could wait for the very batch that these slots belong to. If it gave
//! them back and waited for all at once, the last slots of a batch would stay empty while no other batch is free.
//!
//! **Fair.** Turns, and with them spill buffers and the right to wait for room, are given in the order of the requests. No
//! connection claims past those that wait.

use super::feed::{Feed, FeedFacts};
use super::room_waiter::{RoomSource, RoomWaiter};
use crate::error::Result;
use crate::net::wire::frame::Content;
use crate::net::wire::limits::{MAX_FRAME_BYTES, MAX_FRAME_ROWS};
use crate::ring::producer::Origin;
use crate::ring::protocol::Claim;
use crate::ring::{Deadline, OnFull, Producer};
use crate::segment::Seat;
use crate::segment::sessions::{HeldSession, SessionStore};
use crate::sys::sync::Ordering;
use std::sync::Arc;

/// The way into a ring. Clones share it.
#[derive(Debug, Clone)]
pub struct SampleIngress {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    producer: Arc<Producer>,
    sample_bytes: usize,
    facts: FeedFacts,
}

impl RoomSource for Producer {
    fn wait_room(&self, _: usize, deadline: Deadline) -> Result<bool> {
        self.wait_writable(deadline)
    }
}

impl SampleIngress {
    /// Takes over a producer of the ring.
    pub fn new(producer: Producer) -> Result<SampleIngress> {
        let (schema, geometry) = (producer.ring().segment().schema(), producer.ring().geometry());
        let (leaf_bytes, batch_size) = (geometry.leaf_bytes.clone(), geometry.batch_size);
        let sample_bytes = leaf_bytes.iter().sum();
        // About 1 MiB of rows, and not more than a batch.
        let max_rows =
            (MAX_FRAME_BYTES / usize::max(sample_bytes, 1)).clamp(1, MAX_FRAME_ROWS).min(batch_size);
        let producer = Arc::new(producer);
        let facts = FeedFacts {
            content: Content::Samples,
            schema,
            leaf_bytes,
            max_rows,
            largest: max_rows * sample_bytes,
            room_waiter: RoomWaiter::new(producer.clone())?,
        };
        Ok(SampleIngress { shared: Arc::new(Shared { producer, sample_bytes, facts }) })
    }

    /// Counts a worker that has to wait for room, as one on this machine counts itself.
    pub fn note_blocked(&self) {
        let counters = &self.shared.producer.ring().protocol().control.counters;
        counters.blocked.fetch_add(1, Ordering::Relaxed);
    }

    pub fn sample_bytes(&self) -> usize {
        self.shared.sample_bytes
    }

    pub fn on_full(&self) -> OnFull {
        self.producer().on_full()
    }

    /// Its producer in the ring.
    pub fn producer(&self) -> &Arc<Producer> {
        &self.shared.producer
    }

    /// Claims up to `want` slots, now. `None`: the policy drops the samples, and counts them. [`Full`](crate::Error::Full): the
    /// policy is to wait, or to tell the client.
    pub fn claim(&self, want: usize) -> Result<Option<Run>> {
        let claim = self.producer().claim(want, Deadline::Now)?;
        Ok(claim.map(|claim| Run { ingress: self.clone(), len: claim.len(), claim: Some(claim) }))
    }

    /// Notes how long copying a sample into its slot took, for the ring's histogram.
    pub fn record_copy(&self, ns: u64) {
        self.producer().ring().protocol().control.memcpy.record(ns);
    }

    /// Blocks until there is room. False when the time was over first.
    pub fn wait_room(&self, deadline: Deadline) -> Result<bool> {
        self.producer().wait_writable(deadline)
    }
}

impl Feed for SampleIngress {
    fn facts(&self) -> &FeedFacts {
        &self.shared.facts
    }

    fn is_closed(&self) -> bool {
        self.producer().ring().is_closed()
    }

    fn next_producer_id(&self) -> u32 {
        self.producer().next_producer_id()
    }

    fn session_store(&self) -> Arc<dyn SessionStore> {
        self.producer().clone()
    }

    fn seat(&self) -> &Seat {
        self.producer().seat()
    }

    fn close(&self) {
        self.room_waiter().stop();
        self.producer().vacate();
    }
}

/// A claimed run of slots, ours to write until it is committed. Dropping it gives it back.
#[derive(Debug)]
pub struct Run {
    ingress: SampleIngress,
    claim: Option<Claim>,
    len: usize,
}

impl Run {
    #[allow(clippy::len_without_is_empty)] // A run has at least one slot.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Where the rows of a leaf lie, one after the other.
    pub fn leaf(&self, leaf: usize) -> *mut u8 {
        let claim = self.claim.as_ref().expect("a run has its claim until it is committed or dropped");
        self.ingress.producer().leaf(claim, leaf)
    }

    /// Publishes it. Every byte of every leaf is written.
    pub fn commit(self, origin: Origin) {
        self.commit_each((0..).map(|row| Origin { sequence: origin.sequence + row, ..origin }), None);
    }

    /// Publishes it, as the next samples of a session if that is in the segment. Every byte of every leaf is written; each row has
    /// an origin of its own.
    pub fn commit_each(mut self, origins: impl Iterator<Item = Origin>, session: Option<&HeldSession>) {
        let Some(claim) = self.claim.take() else { return };
        match session {
            Some(session) => self.ingress.producer().commit_each_logged(session, claim, origins),
            None => self.ingress.producer().commit_each(claim, origins),
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if let Some(claim) = self.claim.take()
            && self.ingress.producer().owns(&claim)
        {
            self.ingress.producer().abort(claim);
        }
    }
}
