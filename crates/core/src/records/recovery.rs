//! What a dead process can leave in the records, and how it is put right.
//!
//! | died after ([`Point`](crate::sys::sync::Point)) | state left | who notices | repaired to |
//! |---|---|---|---|
//! | `LaneTaken` | a lane owned by the dead, its last owner's reservations in it, or no table yet | the next producer that comes; a liveness poll | owned by that one, reservations Free |
//! | `LaneGrown` | pages that exist beyond `grown`, or a table that is not `tabled` | nobody needs to | reserved again, by whoever needs them |
//! | `RecordReserved` | the descriptor at `head` Reserved by the dead | the next owner of the lane; a liveness poll | Free; `head` offers the number again |
//! | `RecordNumbered`, `RecordHalfWritten`, `RecordWritten` | a descriptor Reserved by the dead; readers look behind it, the cursor waits | the next owner; a liveness poll | Free |
//! | `RecordReady` | a record to be read, or some of a run and the rest of it Reserved by the dead, and consumers asleep | the consumers' liveness poll | taken; the rest Free |
//! | `RecordDropped` | one drop not counted | nobody needs to | – |
//! | `RecordTaken` | a record Taken by the dead, the cursor perhaps before it | a liveness poll; the next consumer | Ready again, counted in `returned`; the cursor helped forward by any look |
//! | `RecordFreed` | room that nobody was told of, and the producer asleep | the producer's liveness poll, its sweep | reclaimed |
//! | `RecordReturned` | a record Ready again, perhaps below the cursor, and not counted | whoever recovers after or beside the dead | counted |
//! | `SeatLeaving`, `NameRemoved` | records that are not shut down, with or without their name | the producers' liveness poll; whoever comes to the name | told of the death, at once where the name is gone; gone on with |
//! | `NotifyCleared`, `NotifyMoved` | sleepers with no one to wake them | their liveness poll | awake |
//!
//! Nothing here waits for a timer to decide that somebody is dead: the kernel says so ([`crate::segment::lease`]). The
//! liveness poll only decides *when to ask*. A recoverer may itself be stopped or killed at any point: every repair is one CAS
//! from a word that names the dead owner, so it can be done twice, or by two at once, and only one succeeds.
//!
//! Tables are long, and a liveness poll comes round often: [`RecoveredSeats`] remembers for whom the tables were looked through already. The
//! dead claim nothing any more, so once is enough.

use super::layout::{LaneOwner, State, Word};
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

/// Takes back everything that belongs to owners of whom `is_dead` says so.
pub fn recover(records: &Protocol<'_>, is_dead: impl Fn(Owner) -> bool) -> Repairs {
    let mut memo = LivenessMemo::of(is_dead);
    let (mut repairs, mut has_returned) = (Repairs::default(), false);
    for lane in records.existing_lanes() {
        let (mut freed, mut given_back) = (0, false);
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
                    let free = Word::free(was.number).pack();
                    // SYNC records.free: Release here, Acquire in `next_number` and `Ledger::sweep`.
                    let freeing =
                        descriptor.word.compare_exchange(word, free, Ordering::AcqRel, Ordering::Relaxed);
                    freed += freeing.is_ok() as usize;
                }
                _ => given_back |= was.was_given_back(),
            }
        }
        if given_back {
            lane.count_returned(); // Whoever gave it back may not have come to it. One too many costs a look (I7).
            has_returned = true;
        }
        repairs.reservations += freed;
    }
    // After the reservations: the next owner may come at once. All lanes, also those that nobody has opened yet: the name of
    // the dead must not stay until a seat has had so many holders that it means somebody else.
    for lane in records.lanes {
        let owner = &lane.write.owner;
        let word = owner.load(Ordering::Relaxed);
        let LaneOwner { epoch, owner: holder } = LaneOwner::unpack(word);
        if holder.is_some_and(|holder| memo.is_dead(holder)) {
            let nobody = LaneOwner { epoch, owner: None }.pack();
            // SYNC records.lane: Release here, Acquire in `take_lane`. The reservations of the dead are Free before that.
            let _ = owner.compare_exchange(word, nobody, Ordering::AcqRel, Ordering::Relaxed);
        }
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

/// For whom the tables were looked through already: by seat, how many of its holders.
#[derive(Debug, Default)]
pub struct RecoveredSeats(Vec<u64>);

impl RecoveredSeats {
    /// Recovers if somebody is gone of whom that was not known: dead, or left while it held something.
    pub fn poll_liveness(&mut self, records: &Protocol<'_>, seat: &Seat) -> Repairs {
        let seats = seat.segment().seats();
        self.0.resize(seats.len(), 0);
        let mut news = false;
        for (index, (record, known)) in seats.iter().zip(&mut self.0).enumerate() {
            // Holders are counted from one. All before the last are gone, whatever the last one is doing: it sweeps what the
            // one before it left, but it may have been stopped before it could.
            // SYNC seat.life: Acquire here, AcqRel in `Seat::lock_seat`. Who is counted here has the lock that we ask about.
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
