//! Sessions of remote clients in records ([`crate::segment::sessions`]): a run is records of one lane whose numbers lie close
//! together. Other connections of the server reserve in the same lane, so the log says which of 64 numbers are the run's.
//!
//! A log names the lane and the numbers of its records (S4). A descriptor that is Reserved under one of these numbers by the holder of
//! the entry belongs to the log: its owner reserved it before it logged it, and a number that was committed is not reserved again.
//!
//! The next owner of the lane, too, frees what a dead one had reserved: after it has finished the logs of that one (S5).

use super::layout::{NUMBER_BITS, NUMBER_MASK, State, Word};
use super::producer::Producer;
use super::protocol::{Claim, LaneWords, Protocol};
use crate::error::{Damage, Result};
use crate::segment::sessions::{Log, SessionEntry, SessionStore, SessionTable, logs_of};
use crate::segment::{Owner, Seat};
use crate::sys::sync::Ordering;
use smallvec::SmallVec;

/// A run has records of so many adjacent numbers at most.
const SPAN: u64 = u64::BITS as u64;

/// Records of one lane that are described, and become Ready together.
#[derive(Debug, Default)]
pub struct Run {
    claims: SmallVec<[Claim; 16]>,
    /// Which of the numbers from the first claim's on.
    members: u64,
}

impl Run {
    pub fn is_empty(&self) -> bool {
        self.claims.is_empty()
    }

    /// Whether a log has a word for a record of this number, beside those that are here.
    pub fn takes(&self, number: u64) -> bool {
        self.claims.first().is_none_or(|first| number.wrapping_sub(first.number) < SPAN)
    }

    /// Adds a record that the run [`takes`](Self::takes). It is [described](LaneWords::describe).
    pub fn push(&mut self, claim: Claim) {
        debug_assert!(self.takes(claim.number));
        let first = self.claims.first().map_or(claim.number, |first| first.number);
        self.members |= 1 << claim.number.wrapping_sub(first);
        self.claims.push(claim);
    }
}

impl LaneWords<'_> {
    /// Publishes a run as the next records of a session, and wakes consumers. The session is at `target` then; the entry is ours.
    pub fn commit_logged(&self, entry: &SessionEntry, target: u64, run: Run) {
        let Run { claims, members } = run;
        let Some(first) = claims.first() else { return };
        let place = (self.index as u64) << NUMBER_BITS | first.number & NUMBER_MASK;
        entry.commit_logged(place, members, target, || {
            let published = claims.len() as u64;
            claims.into_iter().for_each(|claim| self.make_ready(claim));
            self.tell(published);
        });
    }

    /// Makes what is not committed of a log of this lane Ready, and says how many records that were.
    fn finish(&self, log: Log, holder: Owner) -> u64 {
        let numbers = (0..SPAN).filter(|offset| log.run >> offset & 1 != 0).map(|offset| log.place + offset);
        let won = numbers.filter(|&number| {
            let reserved = Word::new(number, State::Reserved, holder).pack();
            let ready = Word::ready(number).pack();
            let word = &self.table[self.index_of(number)].word;
            // SYNC records.ready: Release here, as in `make_ready`. The log published the bytes, the place and the stamp (S2). It
            // fails when the dead holder or another process was faster.
            word.compare_exchange(reserved, ready, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        });
        let won = won.count() as u64;
        self.tell(won);
        won
    }

    /// Commits what `owner`, which is dead, had logged in this lane, and says how many records that were. Then what it has Reserved
    /// was not logged (S5).
    pub(super) fn finish_logs_of(&self, owner: Owner) -> u64 {
        let logs = logs_of(self.sessions, owner).filter(|log| lane_of(log) == self.index);
        logs.map(|log| self.finish(log, owner)).sum()
    }
}

/// Which lane a log names.
fn lane_of(log: &Log) -> usize {
    (log.place >> NUMBER_BITS) as usize
}

impl SessionTable for Protocol<'_> {
    fn entries(&self) -> &[SessionEntry] {
        self.sessions
    }

    fn finish(&self, log: Log, holder: Owner) -> Result<(), Damage> {
        let lane = lane_of(&log);
        let lane = (lane < self.lanes.len()).then(|| self.existing_lane(lane)).flatten();
        let lane = lane.ok_or(Damage("a session has logged records of a lane that does not exist"))?;
        if u64::from(log.run.count_ones()) > log.count {
            return Err(Damage("a session has logged more records than it counts"));
        }
        lane.finish(log, holder);
        Ok(())
    }
}

impl SessionTable for Producer {
    fn entries(&self) -> &[SessionEntry] {
        self.records().protocol().sessions
    }

    fn finish(&self, log: Log, holder: Owner) -> Result<(), Damage> {
        self.records().protocol().finish(log, holder)
    }
}

impl SessionStore for Producer {
    fn owner(&self) -> Result<Owner> {
        Producer::owner(self)
    }

    fn seat(&self) -> &Seat {
        Producer::seat(self)
    }
}
