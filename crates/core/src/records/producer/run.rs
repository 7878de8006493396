//! A run: several records of one producer, for which it looks at its ledger and its clock once, and notifies once.
//!
//! Room is reserved for all of them; then each is written and committed, in order; then the consumers are notified. A single
//! record costs several locked instructions, each of which waits for the stores before it: for the ledger, the count of open
//! reservations, the sequence, the statistics and the notification.
//!
//! A consumer that sleeps is notified of the first record when the last is written. So a run is short, and nothing in it
//! waits. A producer that dies in it leaves Ready records and reservations, as [`recovery`](super::super::recovery) says.

use super::{CLOSING, ProcessLane, Producer};
use crate::records::ledger::{Attempt, Room};
use crate::records::protocol::{Entry, Stamp};
use crate::sys::clock::monotonic_ns;
use crate::sys::sync::Ordering;
use smallvec::SmallVec;

/// A record that needs nothing but room.
pub trait Outgoing {
    fn bytes(&self) -> usize;
    /// Of the weights that it was made with.
    fn version(&self) -> u32;
    /// What it is: data, tombstone, …
    fn kind(&self) -> u32;
    /// Writes all its bytes. What is in the room is whatever was there before.
    fn write(&self, room: &mut [u8]);
}

/// A run has so many records at most, and stops behind the one with which it has so many bytes.
const MOST_RECORDS: usize = 16;
const ENOUGH_BYTES: usize = 256 << 10;

/// The first of them that make up a run.
pub(crate) fn first_run<R: Outgoing>(records: &[R]) -> &[R] {
    let mut bytes = 0_usize;
    let before = records.iter().take(MOST_RECORDS).take_while(|record| {
        let goes_on = bytes < ENOUGH_BYTES;
        bytes = bytes.saturating_add(record.bytes());
        goes_on
    });
    &records[..before.count()]
}

impl Producer {
    /// Sends as many records as find room at once, from the first on, and says how many. It drops nothing, and says nothing
    /// of what is the matter where it stops: [`reserve`](Self::reserve) does.
    pub fn try_send_many<R: Outgoing>(&self, records: &[R]) -> usize {
        let mut sent = 0;
        while sent < records.len() {
            let run = first_run(&records[sent..]);
            let now = self.try_send_run(run);
            sent += now;
            if now < run.len() {
                break;
            }
        }
        sent
    }

    fn try_send_run<R: Outgoing>(&self, records: &[R]) -> usize {
        let Ok(process_lane) = self.process_lane() else { return 0 };
        let is_open = process_lane.open.fetch_add(1, Ordering::Relaxed) & CLOSING == 0;
        let mut run = Run { producer: self, process_lane, rooms: Rooms::new().into_iter(), committed: 0 };
        if is_open && !self.records.protocol().control.closed.seems_set() {
            run.rooms = run.reserve(records).into_iter();
            run.commit(records);
        }
        run.committed
    }
}

type Rooms = SmallVec<[Room; MOST_RECORDS]>;

/// Dropping it gives back what was not committed, and tells of what was.
struct Run<'a> {
    producer: &'a Producer,
    process_lane: &'a ProcessLane,
    /// Those that are not committed yet, in order.
    rooms: smallvec::IntoIter<[Room; MOST_RECORDS]>,
    committed: usize,
}

impl Run<'_> {
    /// Room for as many as there is some at once. The ledger is locked meanwhile: nothing is copied, and nothing waits.
    fn reserve<R: Outgoing>(&self, records: &[R]) -> Rooms {
        let mut rooms = Rooms::new();
        let (producer, lane) = (self.producer, self.producer.lane_of(self.process_lane));
        let mut ledger = self.process_lane.ledger();
        for record in records {
            let grow = |from, to| producer.grow(lane.index, from, to);
            let Ok(Attempt::Room(room)) = ledger.try_reserve(&lane, record.bytes(), grow) else { break };
            rooms.push(room);
        }
        rooms
    }

    /// Writes and publishes what there is room for.
    fn commit<R: Outgoing>(&mut self, records: &[R]) {
        let Run { producer, process_lane, rooms, committed } = self;
        let lane = producer.lane_of(process_lane);
        let first = process_lane.sequence.fetch_add(rooms.as_slice().len() as u64, Ordering::Relaxed);
        let committed_ns = monotonic_ns();
        let account = &producer.seat.record().account;
        for (record, sequence) in records.iter().zip(first..) {
            // It leaves the iterator once it is written: a record that panics is given back with the others.
            let Some(&Room { ref claim, start, bytes }) = rooms.as_slice().first() else { break };
            let data = producer.records.data(claim.lane, start, bytes);
            // SAFETY: the room is ours alone until it is committed (I2, I6), and it exists.
            record.write(unsafe { std::slice::from_raw_parts_mut(data, bytes) });
            let (version, kind, producer_id) = (record.version(), record.kind(), process_lane.producer_id);
            let stamp = Stamp { version, kind, producer_id, sequence };
            if let Some(Room { claim, .. }) = rooms.next() {
                lane.publish(claim, &Entry { start: start as u64, bytes: bytes as u64, stamp, committed_ns });
                *committed += 1;
                account.note_commit(1, committed_ns, version);
            }
        }
        account.note_copy(monotonic_ns().saturating_sub(committed_ns), 1, 0);
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        let lane = self.producer.lane_of(self.process_lane);
        if self.committed > 0 {
            lane.tell(self.committed as u64);
        }
        for room in self.rooms.by_ref() {
            self.process_lane.ledger().abort(&lane, room.claim);
        }
        self.producer.done(self.process_lane);
    }
}
