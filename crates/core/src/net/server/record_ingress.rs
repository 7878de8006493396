//! What a transport needs to put records into a lane, and nothing else: room for one, commits in somebody's name, and
//! waiting for room without holding any.
//!
//! A [`RecordIngress`] is one lane, shared by everything that a transport serves. A [`Room`] is a reservation with a
//! guard: dropped, it is given back. Several are open at once, and are committed in any order.
//!
//! **No deadlock.** N1 as in [`super::sample_ingress`]: nobody who waits holds room. Here this is enough, without spill buffers: a
//! consumer takes single records, so each record that is committed is of use at once, whatever becomes of the others of
//! its frame. A frame that finds room for a part of its records commits this part, and leaves the rest in the socket. Room
//! is held by records that arrive, for a moment (C4 of `connection`), and by the learner. A record waits
//! for no more than the lane has: larger ones are not taken by the client in the first place.
//!
//! **Fair.** Those who wait do so in order, and nobody reserves past them, with one exception: who has waited for a while
//! takes room that there is. Otherwise a large record at the head of the queue could keep out the small one that the
//! learner needs to complete a group, and so to give back what the large one waits for.

use super::room_waiter::{RoomSource, RoomWaiter};
use crate::error::{Damage, Result};
use crate::net::wire::frame::RecordLimits;
use crate::net::wire::limits::{MAX_FRAME_BYTES, MAX_FRAME_RECORDS, MAX_SAMPLE_BYTES};
use crate::records::Producer;
use crate::records::format::Shape;
use crate::records::producer::{Label, Reservation};
use crate::ring::{Deadline, OnFull};
use std::sync::Arc;

/// The way into a lane. Clones share it.
#[derive(Debug, Clone)]
pub struct RecordIngress {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    producer: Arc<Producer>,
    room_waiter: RoomWaiter,
    schema: Vec<u8>,
    limits: RecordLimits,
    part_bytes: usize,
    /// What lies in the bytes of a record. `None`: anything.
    shape: Option<Shape>,
}

impl RoomSource for Producer {
    fn wait_room(&self, want: usize, deadline: Deadline) -> Result<bool> {
        Producer::wait_room(self, want, deadline)
    }
}

impl RecordIngress {
    /// Takes over a lane, for records of any bytes.
    pub fn new(producer: Producer) -> Result<RecordIngress> {
        RecordIngress::open(producer, None)
    }

    /// Takes over a lane, for records that have this shape: others are refused.
    pub fn checked(producer: Producer, shape: Shape) -> Result<RecordIngress> {
        RecordIngress::open(producer, Some(shape))
    }

    fn open(producer: Producer, shape: Option<Shape>) -> Result<RecordIngress> {
        let schema = producer.records().segment().schema();
        let lane_bytes = producer.records().geometry().lane_bytes;
        let limits = RecordLimits {
            rows: MAX_FRAME_RECORDS,
            frame_bytes: MAX_FRAME_BYTES,
            record_bytes: lane_bytes.min(MAX_SAMPLE_BYTES),
        };
        let producer = Arc::new(producer);
        let room_waiter = RoomWaiter::new(producer.clone())?;
        let shared = Shared { producer, room_waiter, schema, limits, part_bytes: lane_bytes / 4, shape };
        Ok(RecordIngress { shared: Arc::new(shared) })
    }

    /// The text that clients must bring, byte for byte.
    pub fn schema(&self) -> &[u8] {
        &self.shared.schema
    }

    pub fn limits(&self) -> RecordLimits {
        self.shared.limits
    }

    /// Bytes that one connection should have reserved at a time, if they are several records: a part of the lane, so that
    /// one slow frame leaves room for others, and records that the policy may drop.
    pub fn part_bytes(&self) -> usize {
        self.shared.part_bytes
    }

    pub fn on_full(&self) -> OnFull {
        self.shared.producer.on_full()
    }

    pub fn is_closed(&self) -> bool {
        self.shared.producer.records().is_closed()
    }

    /// A number for somebody who brought none.
    pub fn next_producer_id(&self) -> u32 {
        self.shared.producer.next_producer_id()
    }

    /// The version of the newest weights that the learner told of; 0 until it did.
    pub fn published(&self) -> u32 {
        self.shared.producer.records().published().min(u32::MAX as u64) as u32
    }

    /// Records of all lanes that wait to be taken. Looks at every descriptor.
    pub fn waiting(&self) -> u32 {
        self.shared.producer.records().census().ready_records.min(u32::MAX as usize) as u32
    }

    /// Room for a record of so many bytes, now. `None`: it is to be dropped, as the policy says, and counted when that is
    /// settled; [`Full`](crate::Error::Full): wait, or say so, as the policy is.
    pub fn reserve(&self, bytes: usize) -> Result<Option<Room>> {
        let reserved = Producer::reserve_uncounted(self.shared.producer.clone(), bytes)?;
        Ok(reserved.map(|reservation| Room { reservation }))
    }

    /// Free room for a record of so many bytes, now; otherwise [`Full`](crate::Error::Full), and nothing is dropped for it.
    pub fn reserve_free(&self, bytes: usize) -> Result<Room> {
        let reservation = Producer::reserve_free(self.shared.producer.clone(), bytes)?;
        Ok(Room { reservation })
    }

    /// Counts records that were dropped because there was no room for them.
    pub fn count_dropped(&self, records: u64) {
        let _ = self.shared.producer.count_dropped(records); // Fails only where there is no lane any more.
    }

    /// Whether a reader can take these bytes for a record. Looks at its counts and its length only.
    #[inline]
    pub fn check(&self, bytes: &[u8]) -> Result<(), Damage> {
        match &self.shared.shape {
            Some(shape) => shape.check(bytes),
            None => Ok(()),
        }
    }

    /// Gives the lane to whoever comes next. What was committed stays to be read. Idempotent.
    pub fn close(&self) {
        self.shared.room_waiter.stop();
        self.shared.producer.close();
    }

    /// The thread that waits for room, and the queue of connections that need some.
    pub fn room_waiter(&self) -> &RoomWaiter {
        &self.shared.room_waiter
    }
}

/// Room for one record, ours to write until it is committed. Dropping it gives it back.
#[derive(Debug)]
pub struct Room {
    reservation: Reservation<Arc<Producer>>,
}

impl Room {
    #[allow(clippy::len_without_is_empty)] // A record may have no bytes, and is one all the same.
    pub fn len(&self) -> usize {
        self.reservation.len()
    }

    pub fn start(&self) -> *mut u8 {
        self.reservation.as_mut_ptr()
    }

    /// What lies in it. Every byte is written.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the room is ours alone until it is committed (I2, I6), it exists, and we do not write while this is borrowed.
        unsafe { std::slice::from_raw_parts(self.start(), self.len()) }
    }

    /// Publishes it. Every byte is written.
    pub fn commit(self, label: Label) {
        let bytes = self.reservation.len();
        // Fails only in a forked child, which has none of these.
        let _ = self.reservation.commit(bytes, label);
    }
}
