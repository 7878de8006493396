//! A consumer that sends its records on: a *forwarder*. What it needs to know after its death lies in the segment.
//!
//! A forwarder gives every record that it takes a number, and the receiver counts these numbers: one that comes twice is dropped.
//! So a forwarder that dies must leave behind which records have numbers, and which ones.
//!
//! ```text
//! record     taken ──▶ sent ──▶ next moves ──▶ its bytes leave ──▶ acknowledged ──▶ released
//! died here     given   └─ given back, with its number: the next forwarder sends it first
//!               back, without a number
//! ```
//!
//! F1  One forwarder at a time: a second one finds the seat of the first, and is refused. So one thread writes these words.
//! F2  `sent` of a descriptor is 0 when its record is committed, and is the number of the record and one from the store that
//!     numbers it on: one word, so a record has its number or has none.
//! F3  `next` moves after `sent` of all records that were taken together, and no byte of them leaves before that. After a death,
//!     `next` is the larger one of the word and the end of the last record that has a number.
//! F4  A record is released when it is acknowledged, and records are acknowledged in the order of the numbers. So those that are
//!     not acknowledged are a run of numbers without gaps that ends at `next`; what lies before a gap is acknowledged, and was
//!     not released in time. A full lane drops no record that has a number.
//! F5  The session is drawn before the first attempt to connect, and each attempt is counted before it is made: the receiver
//!     takes the attempt with the highest number for the latest.
//! F6  Records of a lane are taken in its order, and get numbers in the order in which they are taken. What was given back comes
//!     before what was never taken. So a worker's records keep their order, also behind a forwarder that died.

use super::consumer::{Consumer, Record};
use super::{IfExists, Records, RecordsSpec};
use crate::error::Result;
use crate::segment::forwarding::Forwarding;
use crate::segment::{Activity, LearnerSeat};
use crate::sys::sync::{Ordering, Point, Woken, crash_point};
use crate::sys::wait::LivenessPoll;
use std::sync::Arc;

/// A record that a forwarder has taken.
pub type Held = Record<Arc<Consumer>>;

impl Consumer {
    /// Makes records, or goes on with those that are there, as their only consumer (F1). `first_id`: for the producers of new
    /// records that bring no number.
    pub fn open_alone(spec: &RecordsSpec<'_>, first_id: u32) -> Result<Consumer> {
        let open = |name: &str| Records::open(name, Some(spec.schema)).and_then(|records| records.fits(spec));
        let create = || {
            let records = Records::create(spec)?;
            records.protocol().control.next_producer_id.store(first_id, Ordering::Relaxed);
            Ok(records)
        };
        let sit_down = |records: Records, resumed| {
            let seat = LearnerSeat::take_alone(records.segment().clone(), resumed)?;
            Ok(Consumer::sit_on(records, seat, None))
        };
        IfExists::Resume.open(spec.name, open, create, Records::segment, sit_down, Records::holds_data)
    }

    /// Gives records numbers, from `first` on (F2, F3).
    pub fn number(&self, records: &[Held], first: u64) {
        for (record, number) in records.iter().zip(first..) {
            record.note_sent(number);
            crash_point(Point::RecordSentNumbered);
        }
        self.records().forwarding().next.store(first + records.len() as u64, Ordering::Relaxed);
        crash_point(Point::NumbersMoved);
    }

    /// Takes the records to which an earlier forwarder gave numbers and that may not be acknowledged, in the order of the numbers;
    /// and gives the next number (F3, F4).
    pub fn take_numbered(this: &Arc<Consumer>) -> Result<(Vec<Held>, u64)> {
        let (mut numbered, owner) = (Vec::new(), this.owner()?);
        for lane in this.records().protocol().existing_lanes() {
            let taken = lane.take_sent(owner, |number, taken| numbered.push((number, this.hold(taken))));
            if let Err(damage) = taken {
                numbered.into_iter().for_each(|(_, record)| record.give_back());
                return Err(this.records().damaged(damage));
            }
        }
        let (numbered, next) = this.records().forwarding().unsettled(numbered, |_| 1);
        Ok((numbered.into_iter().map(|(_, record)| record).collect(), next))
    }

    /// Takes up to `most` records that are there, one of each lane in turn.
    pub fn take_ready(this: &Arc<Consumer>, most: usize) -> Result<Vec<Held>> {
        let taken = this.try_take_many(this.owner()?, most)?;
        Ok(taken.into_iter().map(|taken| this.hold(taken)).collect())
    }

    /// Says that this thread is about to sleep. Check what it waits for after this; then [`sleep`](Self::sleep).
    pub fn announce(&self) -> u32 {
        self.records().protocol().control.readable.announce()
    }

    /// Sleeps until there is a record, or another thread calls [`wake_consumers`](Records::wake_consumers); takes back what the dead
    /// hold, now and then.
    pub fn sleep(&self, ticket: u32, poll: &mut LivenessPoll) {
        let _waiting = self.seat().waits(Activity::WaitData);
        let woken = self.records().protocol().control.readable.wait(ticket, poll.pause());
        if woken == Woken::Timeout {
            self.poll_liveness();
        }
    }
}

impl Records {
    /// The session of their forwarder.
    pub fn forwarding(&self) -> &Forwarding {
        &self.protocol().control.forwarding
    }

    /// Ends the [`sleep`](Consumer::sleep) of consumers.
    pub fn wake_consumers(&self) {
        self.protocol().control.readable.notify_if_waiting();
    }

    /// For each lane, the end of what was reserved so far.
    pub fn heads(&self) -> Vec<u64> {
        // SYNC records.head: Acquire here, Release in `reserve`.
        self.protocol().lanes.iter().map(|lane| lane.write.head.load(Ordering::Acquire)).collect()
    }

    /// Whether every record that was committed below these [`heads`](Self::heads) is taken. `writing`: and none is being written.
    pub fn is_taken_until(&self, heads: &[u64], writing: bool) -> bool {
        let mut lanes = self.protocol().existing_lanes();
        // A damaged lane is for the consumer to report.
        lanes.all(|lane| lane.is_taken_until(heads[lane.index], writing).unwrap_or(true))
    }
}
