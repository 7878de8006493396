//! The way from a transport into a lane of records: room for a record, commits, and waiting for room without holding any.
//!
//! A [`RecordIngress`] is one lane, shared by everything that a transport serves. Several reservations are open at once, and are
//! committed in any order; one that is dropped is given back.
//!
//! **No deadlock.** N1 as in [`super::sample_ingress`]: a connection that waits holds no room. This is enough without spill
//! buffers, because a consumer takes single records: each committed record is of use at once. A frame that finds room for a
//! part of its records commits this part, and leaves the rest in the socket. Room is held by records that arrive, for a short
//! time (C4 of `connection`), and by the learner. A client does not send records that are larger than the lane.
//!
//! **Fair.** Connections wait in order, and none reserves past those that wait, with one exception: a connection that has waited
//! for a while takes room that there is. Otherwise a large record at the head of the queue could keep out the small one that
//! the learner needs to complete a group, and so to give back the room that the large one waits for.

use super::feed::{Feed, FeedFacts};
use super::room_waiter::{RoomSource, RoomWaiter};
use crate::error::{Damage, Result};
use crate::net::wire::frame::{Content, LearnerStatus, RecordLimits};
use crate::net::wire::limits::{MAX_FRAME_BYTES, MAX_FRAME_RECORDS, MAX_SAMPLE_BYTES};
use crate::records::Producer;
use crate::records::format::Shape;
use crate::records::producer::Reservation;
use crate::records::producer::delivery::Written;
use crate::ring::{Deadline, OnFull};
use crate::segment::Seat;
use crate::segment::sessions::{HeldSession, SessionStore};
use std::sync::Arc;

/// Room for one record, ours to write until it is committed. Dropping it gives it back.
pub type Room = Reservation<Arc<Producer>>;

/// A record that is written, and not committed.
pub type Delivered = Written<Arc<Producer>>;

/// The way into a lane. Clones share it.
#[derive(Debug, Clone)]
pub struct RecordIngress {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    producer: Arc<Producer>,
    limits: RecordLimits,
    part_bytes: usize,
    shape: Option<Shape>,
    facts: FeedFacts,
}

impl RoomSource for Producer {
    fn wait_room(&self, want: usize, deadline: Deadline) -> Result<bool> {
        Producer::wait_room(self, want, deadline)
    }
}

impl RecordIngress {
    /// Takes over a lane. Records that do not have this shape are refused; `None`: any bytes are a record.
    pub fn new(producer: Producer, shape: Option<Shape>) -> Result<RecordIngress> {
        let schema = producer.records().segment().schema();
        let lane_bytes = producer.records().geometry().lane_bytes;
        let limits = RecordLimits {
            rows: MAX_FRAME_RECORDS,
            frame_bytes: MAX_FRAME_BYTES,
            record_bytes: lane_bytes.min(MAX_SAMPLE_BYTES),
        };
        let producer = Arc::new(producer);
        let facts = FeedFacts {
            content: Content::Records,
            schema,
            leaf_bytes: vec![1],
            max_rows: limits.rows,
            largest: limits.record_bytes,
            room_waiter: RoomWaiter::new(producer.clone())?,
        };
        let shared = Shared { producer, limits, part_bytes: lane_bytes / 4, shape, facts };
        Ok(RecordIngress { shared: Arc::new(shared) })
    }

    pub fn limits(&self) -> RecordLimits {
        self.shared.limits
    }

    /// Bytes that one connection should reserve at a time, if they are several records: a part of the lane, so that a slow frame
    /// leaves room for others, and records that the policy may drop.
    pub fn part_bytes(&self) -> usize {
        self.shared.part_bytes
    }

    pub fn on_full(&self) -> OnFull {
        self.shared.producer.on_full()
    }

    /// Room for a record of so many bytes, now. `None`: the policy drops the record; the caller counts it when that is settled.
    /// [`Full`](crate::Error::Full): the policy is to wait, or to tell the client.
    pub fn reserve(&self, bytes: usize) -> Result<Option<Room>> {
        Producer::reserve_uncounted(self.shared.producer.clone(), bytes)
    }

    /// Free room for a record of so many bytes, now; otherwise [`Full`](crate::Error::Full), and nothing is dropped for it.
    pub fn reserve_free(&self, bytes: usize) -> Result<Room> {
        Producer::reserve_free(self.shared.producer.clone(), bytes)
    }

    /// Publishes records, as the next ones of a session if that is in the segment.
    pub fn commit_each(&self, records: Vec<Delivered>, session: Option<&HeldSession>) {
        match session {
            Some(session) => self.shared.producer.deliver(session, records),
            None => records.into_iter().for_each(|Written { room, label, .. }| {
                let bytes = room.len();
                let _ = room.commit(bytes, label); // Fails only in a forked child.
            }),
        }
    }

    /// Counts records that were dropped because there was no room for them.
    pub fn count_dropped(&self, records: u64) {
        let _ = self.shared.producer.count_dropped(records); // Fails only when the lane is gone.
    }

    /// Whether a reader can take what was written into a room for a record. Looks at its counts and its length only.
    #[inline]
    pub fn check(&self, room: &mut Room) -> Result<(), Damage> {
        self.shared.shape.as_ref().map_or(Ok(()), |shape| shape.check(room.bytes_mut()))
    }
}

impl Feed for RecordIngress {
    fn facts(&self) -> &FeedFacts {
        &self.shared.facts
    }

    fn is_closed(&self) -> bool {
        self.shared.producer.records().is_closed()
    }

    fn next_producer_id(&self) -> u32 {
        self.shared.producer.next_producer_id()
    }

    fn published(&self) -> u32 {
        self.shared.producer.records().published().min(u32::MAX as u64) as u32
    }

    /// Looks at every descriptor of all lanes.
    fn status(&self) -> LearnerStatus {
        let version = self.published(); // Read before the records are counted.
        let waiting = self.shared.producer.records().census().ready_records.min(u32::MAX as usize) as u32;
        LearnerStatus { version, waiting }
    }

    fn session_store(&self) -> Arc<dyn SessionStore> {
        self.shared.producer.clone()
    }

    fn seat(&self) -> &Seat {
        self.shared.producer.seat()
    }

    /// What was committed stays to be read.
    fn close(&self) {
        self.room_waiter().stop();
        self.shared.producer.close();
        self.shared.producer.vacate();
    }
}
