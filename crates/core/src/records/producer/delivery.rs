//! A delivery: records of a remote client that are written, and are published as the next ones of its session.
//!
//! The server looks at its clock once for all of them, and logs them as few runs: most often one.

use super::{Label, Producer, Reservation};
use crate::records::ledger::Room;
use crate::records::protocol::Entry;
use crate::records::sessions::Run;
use crate::segment::sessions::HeldSession;
use crate::sys::clock::monotonic_ns;
use std::ops::Deref;

/// A record that is written whole.
#[derive(Debug)]
pub struct Written<P: Deref<Target = Producer>> {
    pub room: Reservation<P>,
    pub label: Label,
    /// Where the session stands behind it: what was dropped before it is counted, too.
    pub end: u64,
}

impl Producer {
    /// Publishes records of this producer, in their order, as the next ones of a session of its segment.
    pub fn deliver<P: Deref<Target = Producer>>(&self, session: &HeldSession, records: Vec<Written<P>>) {
        let Some(process_lane) = self.here() else { return }; // A forked child: they are its parent's.
        let (lane, entry) = (self.lane_of(process_lane), session.entry());
        let (count, committed_ns) = (records.len(), monotonic_ns());
        let (mut run, mut target) = (Run::default(), 0);
        for Written { mut room, label, end } in records {
            let Some(Room { claim, start, bytes }) = room.room.take() else { continue };
            if !run.takes(claim.number) {
                lane.commit_logged(entry, target, std::mem::take(&mut run));
            }
            let (start, bytes, stamp) = (start as u64, bytes as u64, process_lane.stamp(label));
            lane.describe(&claim, &Entry { start, bytes, stamp, committed_ns });
            self.seat.note_commit(1, committed_ns, label.version);
            run.push(claim);
            target = end;
        }
        lane.commit_logged(entry, target, run);
        (0..count).for_each(|_| self.done(process_lane));
    }
}
