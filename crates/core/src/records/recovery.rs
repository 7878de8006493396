//! What a dead process can leave in the records, and how it is put right.
//!
//! | died after ([`Point`](crate::sys::sync::Point)) | state left | noticed by | repaired to |
//! |---|---|---|---|
//! | `LaneTaken` | a lane owned by the dead, its last owner's reservations in it, or no table yet | the next producer that comes; a liveness poll | owned by that one, reservations Free |
//! | `LaneGrown` | pages that exist beyond `grown`, or a table that is not `tabled` | – | reserved again, when they are needed |
//! | `RecordReserved` | the descriptor at `head` Reserved by the dead | the next owner of the lane; a liveness poll | Free; `head` offers the number again |
//! | `RecordNumbered`, `RecordHalfWritten`, `RecordWritten` | a descriptor Reserved by the dead; readers look behind it, the cursor waits | the next owner; a liveness poll | Free |
//! | `RecordReady` | a record to be read, or some of a run and the rest of it Reserved by the dead, and consumers asleep | the consumers' liveness poll | taken; the rest Free |
//! | `RunPlaced` | records of a remote client, Reserved by a dead server | the next owner; a liveness poll | Free: the client sends them again |
//! | `RunLogged`, `RecordReady`, `RunCommitted` | a logged run, some of its records Reserved | the same; the next server | Ready; the next server moves the session's `next` ([`sessions`](super::sessions)) |
//! | `SessionMoved` | a client that does not know that its records are committed | the next server | told in the Welcome |
//! | `SessionEmptied`, `RunFinished`, `SessionInherited` | an entry of a dead server: for no session, or with a `next` that was not moved | the next server | free; moved |
//! | `RecordDropped` | one drop not counted | – | – |
//! | `RecordTaken` | a record Taken by the dead, the cursor perhaps before it | a liveness poll; the next consumer | Ready again, counted in `returned`; the cursor helped forward by any look |
//! | `RecordSentNumbered`, `NumbersMoved` | records Taken by a dead forwarder, some or all of them with numbers ([`forwarding`](super::forwarding)) | a liveness poll; the next forwarder | Ready again; those with numbers are taken and sent first |
//! | `RecordFreed` | room, and the producer asleep | the producer's liveness poll, its sweep | reclaimed |
//! | `RecordReturned` | a record Ready again, perhaps below the cursor, and not counted | the next recovery | counted |
//! | `SeatLeaving`, `NameRemoved` | records that are not shut down, with or without their name | the producers' liveness poll; the next learner | told of the death, at once where the name is gone; resumed |
//! | `NotifyCleared`, `NotifyMoved` | sleepers with no one to wake them | their liveness poll | awake |
//!
//! The kernel says whether a process is dead ([`crate::segment::lease`]); the liveness poll only decides *when to ask*. A
//! recoverer may itself be stopped or killed at any point: every repair is one CAS from a word that names the dead owner, so
//! it can be done twice, or by two at once, and only one succeeds.
//!
//! Tables are long, and liveness polls are frequent: [`RecoveredSeats`] remembers for which holders the tables were looked
//! through. The dead claim nothing more, so once is enough.

use super::layout::{State, Word};
use super::protocol::Protocol;
use crate::segment::lease::LivenessMemo;
use crate::segment::{Owner, Seat};
use crate::sys::sync::Ordering;

/// What a recovery put right.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Repairs {
    /// Reservations of dead producers, freed.
    pub reservations: usize,
    /// Records of dead consumers, Ready again.
    pub records: usize,
}

/// Takes back everything of the owners that `is_dead` names.
pub fn recover(records: &Protocol<'_>, is_dead: impl Fn(Owner) -> bool) -> Repairs {
    let mut memo = LivenessMemo::of(is_dead);
    let (mut repairs, mut has_returned) = (Repairs::default(), false);
    for lane in records.existing_lanes() {
        let (mut given_back, mut finished) = (false, None);
        for descriptor in lane.table {
            // Decides nothing alone: every repair below is a CAS from this word.
            let word = descriptor.word.load(Ordering::Relaxed);
            let was = Word::unpack(word);
            match was.state {
                State::Taken if memo.is_dead(was.owner) => {
                    let won = lane.make_ready_again(descriptor, word);
                    repairs.records += won as usize;
                    given_back |= !won; // The faster thread may have stopped before it counted it.
                }
                State::Reserved if memo.is_dead(was.owner) => {
                    if finished.replace(was.owner) != Some(was.owner) {
                        lane.finish_logs_of(was.owner);
                    }
                    repairs.reservations += descriptor.free_reserved(word) as usize;
                }
                _ => given_back |= was.was_given_back(),
            }
        }
        if given_back {
            lane.count_returned(); // It may not have been counted. One too many costs a look (I7).
            has_returned = true;
        }
    }
    // After the reservations: the next owner may come at once. All lanes, also those that were never opened: the name of the
    // dead must not stay until its seat has had so many holders that it means another process.
    for lane in records.lanes {
        lane.vacate(|holder| memo.is_dead(holder));
    }
    let counters = &records.control.counters;
    if repairs.reservations > 0 {
        counters.recovered.fetch_add(repairs.reservations as u64, Ordering::Relaxed);
    }
    if repairs.records > 0 || has_returned {
        records.control.readable.notify_if_waiting();
    }
    repairs
}

/// For which holders the tables were looked through: by seat, how many.
#[derive(Debug, Default)]
pub struct RecoveredSeats(Vec<u64>);

impl RecoveredSeats {
    /// Recovers if a holder is gone for which that was not done: dead, or left while it held something.
    pub fn poll_liveness(&mut self, records: &Protocol<'_>, seat: &Seat) -> Repairs {
        let seats = seat.segment().seats();
        self.0.resize(seats.len(), 0);
        let mut news = false;
        for (index, (record, known)) in seats.iter().zip(&mut self.0).enumerate() {
            // Holders are counted from one. All before the last are gone, whatever the last one is doing: it sweeps what the
            // one before it left, but it may have been stopped before it could.
            // SYNC seat.life: Acquire here, AcqRel in `Seat::lock_seat`. The holder has the lock that we ask about.
            let life = record.life.load(Ordering::Acquire);
            let gone = if life == 0 || life as u64 == *known || !seat.is_alive(Owner::new(index, life)) {
                life as u64
            } else {
                life as u64 - 1
            };
            news |= gone > *known;
            *known = gone;
        }
        if news { recover(records, |owner| !seat.is_alive(owner)) } else { Repairs::default() }
    }
}
