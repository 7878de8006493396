//! A consumer that sends its batches on: a *forwarder*. What it needs to know after its death lies in the segment.
//!
//! A forwarder gives every sample that it takes a number, and the receiver counts these numbers: one that comes twice is dropped.
//! So a forwarder that dies must leave behind which batches have numbers, and which ones.
//!
//! ```text
//! batch      taken ──▶ sent_first ──▶ sent_batch ──▶ next moves ──▶ sent ──▶ acknowledged ──▶ released
//! died here     offered again, ┘          └─ offered again, with its numbers: the next forwarder sends it first
//!               without numbers
//! ```
//!
//! F1  One forwarder at a time: a second one finds the seat of the first, and is refused. So one thread writes these words.
//! F2  `sent_first` is stored before `sent_batch` (release). A batch has numbers if `sent_batch` names it, and then `sent_first` is
//!     theirs.
//! F3  `next` moves after `sent_batch`, and no byte is sent before that. After a death, `next` is the larger one of the word and
//!     the end of the last batch that has numbers.
//! F4  A batch is released when all of its samples are acknowledged, and they are acknowledged in the order of the numbers. So the
//!     batches that are not acknowledged are a run of numbers without gaps that ends at `next`; what lies before a gap is
//!     acknowledged, and was not released in time. A full ring drops no batch that has numbers.
//! F5  The session is drawn before the first attempt to connect, and each attempt is counted before it is made: the receiver
//!     takes the attempt with the highest number for the latest.

use super::consumer::{Batch, Consumer};
use super::layout::{BatchNo, BufferKind, BufferWord, NUMBERED};
use super::{IfExists, Ring, RingSpec};
use crate::error::Result;
use crate::segment::forwarding::Forwarding;
use crate::segment::{Activity, LearnerSeat};
use crate::sys::sync::{Ordering, Point, Woken, crash_point};
use crate::sys::wait::LivenessPoll;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

/// A batch that has numbers, and the first of them.
pub type Numbered = (u64, Batch<Arc<Consumer>>);

impl Consumer {
    /// Makes a ring, or goes on with the one that is there, as its only consumer (F1). `first_id`: for the producers of a new
    /// ring that bring no number.
    pub fn open_alone(spec: &RingSpec<'_>, first_id: u32) -> Result<Consumer> {
        let open =
            |name: &str| Ring::open(name, spec.schema, spec.leaf_bytes).and_then(|ring| ring.fits(spec));
        let create = || {
            let ring = Ring::create(spec)?;
            ring.protocol().control.next_producer_id.store(first_id, Ordering::Relaxed);
            Ok(ring)
        };
        let sit_down = |ring: Ring, resumed| {
            let seat = LearnerSeat::take_alone(ring.segment().clone(), resumed)?;
            Consumer::sit_on(ring, seat, None)
        };
        IfExists::Resume.open(spec.name, open, create, Ring::segment, sit_down, Ring::holds_data)
    }

    fn forwarding(&self) -> &Forwarding {
        self.ring().forwarding()
    }

    /// Gives the samples of a batch their numbers (F2, F3).
    pub fn number<C: Deref<Target = Consumer>>(&self, batch: &Batch<C>, first: u64) {
        let (number, buffer) = batch.number();
        let line = &self.ring().protocol().buffers[buffer];
        line.sent_first.store(first, Ordering::Relaxed);
        crash_point(Point::FirstNumbered);
        // SYNC ring.numbered: Release here, Acquire in `is_numbered`. Publishes `sent_first` (F2).
        line.sent_batch.store(NUMBERED | number, Ordering::Release);
        crash_point(Point::BatchNumbered);
        self.forwarding().next.store(first + batch.len() as u64, Ordering::Relaxed);
        crash_point(Point::NumbersMoved);
    }

    /// Takes the batches to which an earlier forwarder gave numbers and that may not be acknowledged, in the order of the numbers;
    /// and gives the next number (F3, F4).
    pub fn take_numbered(this: &Arc<Consumer>) -> Result<(Vec<Numbered>, u64)> {
        let protocol = this.ring().protocol();
        let mut all = Vec::new();
        let taken_all = loop {
            match this.take_in_any_order() {
                Ok(Some(taken)) => all.push(Batch::of(this.clone(), taken)),
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        let mut numbered = Vec::new();
        for batch in all {
            let (number, buffer) = batch.number();
            let line = &protocol.buffers[buffer];
            match taken_all.is_ok() && protocol.is_numbered(line, BatchNo::new(number)) {
                true => numbered.push((line.sent_first.load(Ordering::Relaxed), batch)),
                false => batch.give_back(),
            }
        }
        taken_all?;
        Ok(this.forwarding().unsettled(numbered, Batch::len))
    }

    /// Takes the oldest complete batch, if it is its turn. `early`: closes an unfinished one that has a sample, if there is none.
    pub fn take_early(this: &Arc<Consumer>, early: bool) -> Result<Option<Batch<Arc<Consumer>>>> {
        let taken = Consumer::try_take_in_order(this.clone())?;
        if taken.is_some() || !early || !this.seal_oldest()? {
            return Ok(taken);
        }
        Consumer::try_take_in_order(this.clone())
    }

    fn seal_oldest(&self) -> Result<bool> {
        let protocol = self.ring().protocol();
        protocol.seal_oldest(|batch| self.waits_for_order(batch)).map_err(|d| self.ring().damaged(d))
    }

    /// Says that this thread is about to sleep. Check what else it waits for after this; then [`sleep`](Self::sleep).
    pub fn announce(&self) -> u32 {
        self.ring().protocol().control.readable.announce()
    }

    /// Whether there is nothing to take: no complete batch, or with `early` no committed sample. Then [`sleep`](Self::sleep) ends when
    /// there is.
    pub fn is_idle(&self, early: bool) -> Result<bool> {
        let protocol = self.ring().protocol();
        let idle = match early {
            true => protocol.aim_any(),
            false => protocol.aim(|batch| self.waits_for_order(batch)),
        };
        idle.map_err(|d| self.ring().damaged(d))
    }

    /// Sleeps until something can be taken, another thread calls [`wake_consumers`](Ring::wake_consumers), or `limit` is over; takes back what the dead
    /// hold, now and then.
    pub fn sleep(&self, ticket: u32, limit: Option<Duration>, poll: &mut LivenessPoll) -> Result<()> {
        // While it holds batches, it waits for the receiver.
        let _waiting = (self.held() == 0).then(|| self.seat.waits(Activity::WaitData));
        let pause = self.sleep_time(poll);
        let woken = self
            .ring()
            .protocol()
            .control
            .readable
            .wait(ticket, limit.map_or(pause, |limit| limit.min(pause)));
        if woken == Woken::Timeout && self.ticker.is_due() {
            self.ring().recover(&self.seat)?;
        }
        Ok(())
    }

    /// How many batches this consumer has taken and not released.
    pub fn held(&self) -> usize {
        self.seat.owner().map_or(0, |owner| self.ring().protocol().held_by(owner))
    }
}

impl Ring {
    /// The session of its forwarder.
    pub fn forwarding(&self) -> &Forwarding {
        &self.protocol().control.forwarding
    }

    /// Ends the [`sleep`](Consumer::sleep) of consumers.
    pub fn wake_consumers(&self) {
        self.protocol().control.readable.notify_if_waiting();
    }

    /// The number of the batch that is being filled.
    pub fn newest_batch(&self) -> BatchNo {
        self.protocol().open().batch
    }

    /// Whether every sample that was committed to a batch up to `last` has a number. `claims`: and none is being written.
    pub fn is_numbered_until(&self, last: BatchNo, claims: bool) -> bool {
        let protocol = self.protocol();
        let mut lines = protocol.buffers.iter().enumerate();
        lines.all(|(index, line)| {
            // SYNC ring.filling: Acquire here, AcqRel in `assist`, `give_back` and `try_take_unless`.
            let word = BufferWord::unpack(line.word.load(Ordering::Acquire));
            match word.kind {
                _ if last.is_before(word.batch) => true,
                BufferKind::Free => true,
                BufferKind::Taken => protocol.is_numbered(line, word.batch),
                BufferKind::Filling => {
                    let (committed, claimed) = protocol.count(index, word.batch).unwrap_or((0, 0));
                    committed == 0 && !(claims && claimed > 0)
                }
            }
        })
    }

    /// Closes early what is unfinished, so that it can be taken.
    pub fn flush(&self) -> Result<()> {
        self.protocol().flush().map_err(|damage| self.damaged(damage))
    }
}
