//! The seat of a learner's handle, and how the handle ends. Consumers of a ring and of records use it.

use super::lease::{JoinLock, Role, Seat};
use super::mapping::Segment;
use crate::error::{Error, Result};
use crate::sys::sync::{AtomicBool, Ordering};
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

/// A learner's [`Seat`]. Its handle says how to shut the structure down, and how to wake the calls that wait with the handle.
#[derive(Debug)]
pub struct LearnerSeat {
    seat: Seat,
    resumed: bool,
    /// Whether the handle was closed, or has left. Calls that wait in other threads look at it.
    left: AtomicBool,
}

impl LearnerSeat {
    /// Sits down. `resumed`: the segment was there already; the caller recovers what its last learner held.
    pub fn take(segment: Arc<Segment>, resumed: bool) -> Result<LearnerSeat> {
        let seat = Seat::take_with_join_lock(segment, Role::Consumer)?;
        Ok(LearnerSeat { seat, resumed, left: AtomicBool::new(false) })
    }

    /// That of a forwarder. As [`take`](Self::take), unless another one lives here: then its pid is the error.
    pub fn take_alone(segment: Arc<Segment>, resumed: bool) -> Result<LearnerSeat> {
        let _join_lock = JoinLock::acquire(&segment)?;
        let seat = Seat::take(segment, Role::Forwarder, |_| {})?;
        match seat.another(Role::Consumer) {
            None => Ok(LearnerSeat { seat, resumed, left: AtomicBool::new(false) }),
            Some(other) => {
                seat.leave();
                let pid = seat.segment().seats()[other.seat()].pid.load(Ordering::Relaxed);
                Err(Error::Forwarded { name: seat.segment().name().to_owned(), pid })
            }
        }
    }

    /// Whether the segment was there already.
    pub fn resumed(&self) -> bool {
        self.resumed
    }

    /// How much earlier learners left here, and how old the segment is. `None` if that is nothing, or another learner lives.
    pub fn found(&self, committed: impl FnOnce() -> usize) -> Option<(usize, Duration)> {
        let committed = if self.resumed { committed() } else { 0 };
        (committed > 0 && self.is_only_one()).then(|| (committed, self.segment().age()))
    }

    /// An error when the handle has left a structure that is not shut down: the rest is for the others. After a shutdown it
    /// may be taken.
    #[inline]
    pub fn check_open(&self, is_closed: impl FnOnce() -> bool) -> Result<()> {
        let left = self.left.load(Ordering::Relaxed) && !is_closed();
        if left { Err(Error::Closed) } else { Ok(()) }
    }

    /// Leaves. The last living learner takes the name away and shuts the structure down, which ends all calls.
    pub fn close(&self, shut_down: impl FnOnce(), end_calls: impl FnOnce()) -> Result<()> {
        if !self.start_leaving() {
            return Ok(());
        }
        let last = self.seat.leave_and_unlink(shut_down);
        if !matches!(last, Ok(true)) {
            end_calls();
        }
        last.map(drop)
    }

    /// Leaves without shutting anything down, also as the last.
    pub fn leave(&self, end_calls: impl FnOnce()) {
        if self.start_leaving() {
            self.seat.leave();
            end_calls();
        }
    }

    /// Ends as if this process had been killed. Returns the name of the segment, which the caller collects, unless it holds data,
    /// when the seat is dropped. Without a name that can be found again, this is [`close`](Self::close).
    pub fn abandon(&self, shut_down: impl FnOnce(), end_calls: impl FnOnce()) -> Result<Option<String>> {
        if !self.segment().can_be_resumed() {
            return self.close(shut_down, end_calls).map(|()| None);
        }
        if !self.start_leaving() {
            return Ok(None);
        }
        self.seat.abandon();
        end_calls();
        Ok(Some(self.segment().name().to_owned()))
    }

    /// False when it has left already, or in a forked child: then the segment is its parent's to leave.
    fn start_leaving(&self) -> bool {
        !self.left.swap(true, Ordering::Relaxed) && self.owner().is_some()
    }
}

impl Deref for LearnerSeat {
    type Target = Seat;

    #[inline]
    fn deref(&self) -> &Seat {
        &self.seat
    }
}
