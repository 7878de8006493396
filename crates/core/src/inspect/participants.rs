//! Who takes part in a segment: alive or dead, what each of them holds and writes, and where their time goes.

use super::numbers::recent_rows;
use super::{Inspection, Structure};
use crate::error::Result;
use crate::records::layout::{LaneOwner, State as RecordState, Word};
use crate::replay::layout::{RowKind, RowWord};
use crate::ring::layout::{BufferKind, BufferWord, SlotKind, SlotWord};
use crate::segment::header::{SeatRecord, seat_state};
use crate::segment::{Owner, RemoteCounts, Times, lease};
use crate::sys::sync::{AtomicU64, Ordering};
use crate::vector_env::layout::{Answer, Request, env_range};
use crate::weights::layout::Holder;

/// Whether a participant takes part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// The kernel holds its lock.
    Alive,
    /// It lives, and is about to leave.
    Leaving,
    /// It died without leaving, and no process has taken its seat since.
    Dead,
}

impl State {
    pub fn name(self) -> &'static str {
        match self {
            State::Alive => "alive",
            State::Leaving => "leaving",
            State::Dead => "dead",
        }
    }
}

/// One participant.
#[derive(Debug, Clone)]
pub struct Participant {
    pub seat: usize,
    pub pid: u32,
    /// What it does: `producer`, `learner`, `own producer`, `network` (the producer for remote workers), or in place of a learner `forwarder`; of weights `reader` or
    /// `writer`; of a vector environment `caller` or `worker`.
    pub role: &'static str,
    pub state: State,
    pub joined_unix_ns: u64,
    pub times: Times,
    /// Slots, records or rows that it is writing; requests to a worker that it has not answered.
    pub writing: usize,
    /// Batches or records that it has taken; buffers of weights that it reads.
    pub holding: usize,
    /// For how long it has held the oldest of its batches.
    pub oldest_held_ns: Option<u64>,
    /// Of a producer: what it committed, and no learner has taken. Records only: the samples of a ring are mixed.
    pub unread: usize,
    /// The remote workers that send through it.
    pub remotes: RemoteCounts,
}

impl Inspection {
    pub(super) fn participants(&self, now_ns: u64) -> Result<Vec<Participant>> {
        let mut found = Vec::new();
        for (seat, record) in self.segment().seats().iter().enumerate() {
            found.extend(self.participant(seat, record, now_ns)?);
        }
        self.count_claims(&mut found, now_ns);
        Ok(found)
    }

    /// `None` for a seat that has no holder, or that its last holder has left.
    fn participant(&self, seat: usize, record: &SeatRecord, now_ns: u64) -> Result<Option<Participant>> {
        // SYNC seat.state: Acquire here, Release in `lock_seat`, `leave`, `leave_and_unlink` and `abandon`.
        let state = match record.state.load(Ordering::Acquire) {
            seat_state::NEVER | seat_state::LEFT => return Ok(None),
            seat_state::ABANDONED => State::Dead,
            // It may have left in between: it says so before it unlocks.
            _ if !lease::is_seated(self.segment(), seat)? => match record.state.load(Ordering::Acquire) {
                seat_state::LEFT => return Ok(None),
                _ => State::Dead,
            },
            seat_state::LEAVING => State::Leaving,
            _ => State::Alive,
        };
        Ok(Some(Participant {
            seat,
            pid: record.pid.load(Ordering::Relaxed),
            role: self.role(record.role.load(Ordering::Relaxed)),
            state,
            joined_unix_ns: record.joined_unix_ns.load(Ordering::Relaxed),
            times: record.times(now_ns),
            writing: 0,
            holding: 0,
            oldest_held_ns: None,
            unread: 0,
            remotes: record.remotes.counts(now_ns),
        }))
    }

    fn role(&self, word: u32) -> &'static str {
        match (&self.structure, word) {
            (Structure::Weights(_), 1 | 5) => "writer",
            (Structure::Weights(_), 2) => "reader",
            (Structure::VectorEnv(_), 1) => "worker",
            (Structure::VectorEnv(_), 2) => "caller",
            (Structure::Other(_), _) => "user",
            (_, 1) => "producer",
            (_, 2) => "learner",
            (_, 5) => "own producer",
            (_, 9 | 10) => "network",
            (_, 18) => "forwarder",
            _ => "unknown",
        }
    }

    /// Counts what each of them writes and holds, by the words that name it.
    fn count_claims(&self, found: &mut [Participant], now_ns: u64) {
        let segment = self.segment();
        let mut note = |owner: Owner, note: &mut dyn FnMut(&mut Participant)| {
            let is_latest =
                segment.seats().get(owner.seat()).is_some_and(|record| owner.is_latest_of(record));
            if is_latest && let Some(participant) = found.iter_mut().find(|one| one.seat == owner.seat()) {
                note(participant);
            }
        };
        let read = |word: &AtomicU64| word.load(Ordering::Relaxed);
        match &self.structure {
            Structure::Ring(ring) => {
                let protocol = ring.protocol();
                for slot in protocol.slots {
                    let word = SlotWord::unpack(read(&slot.word));
                    if word.kind == SlotKind::Claimed {
                        note(word.owner, &mut |one| one.writing += 1);
                    }
                }
                for line in protocol.buffers {
                    let word = BufferWord::unpack(read(&line.word));
                    let held_ns = now_ns.saturating_sub(read(&line.taken_ns));
                    if word.kind == BufferKind::Taken {
                        note(word.owner, &mut |one| {
                            one.holding += 1;
                            one.oldest_held_ns = one.oldest_held_ns.max(Some(held_ns));
                        });
                    }
                }
            }
            Structure::Records(records) => {
                for lane in records.protocol().existing_lanes() {
                    let owner = LaneOwner::unpack(read(&lane.line.write.owner)).owner;
                    for descriptor in lane.table {
                        let word = Word::unpack(read(&descriptor.word));
                        match word.state {
                            RecordState::Free => {}
                            RecordState::Reserved => note(word.owner, &mut |one| one.writing += 1),
                            RecordState::Taken => note(word.owner, &mut |one| one.holding += 1),
                            RecordState::Ready => {
                                if let Some(owner) = owner {
                                    note(owner, &mut |one| one.unread += 1);
                                }
                            }
                        }
                    }
                }
            }
            Structure::Weights(weights) => {
                let protocol = weights.protocol();
                for pin in protocol.pins.iter().flat_map(|line| &line.pins) {
                    if let Some(holder) = Holder::unpack(read(pin)) {
                        note(holder.owner, &mut |one| one.holding += 1);
                    }
                }
                if let Some(last) = protocol.last_writer().filter(|last| last.is_writing) {
                    note(last.owner, &mut |one| one.writing += 1);
                }
            }
            Structure::Replay(table) => {
                let protocol = table.protocol();
                for row in recent_rows(table) {
                    let word = RowWord::unpack(read(&protocol.words[row]));
                    if word.kind == RowKind::Writing {
                        note(word.owner, &mut |one| one.writing += 1);
                    }
                }
            }
            Structure::VectorEnv(vector_env) => {
                let protocol = vector_env.protocol();
                let is_missing = |env: &usize| {
                    Request::unpack(read(&protocol.asked[*env])).number
                        != Answer::unpack(read(&protocol.answered[*env])).number
                };
                for (worker, line) in protocol.lines.iter().enumerate() {
                    let envs = env_range(worker, protocol.lines.len(), protocol.asked.len());
                    let missing = envs.filter(is_missing).count();
                    if let Some(owner) = Owner::unpack_maybe(read(&line.owner)) {
                        note(owner, &mut |one| one.writing += missing);
                    }
                }
            }
            Structure::Other(_) => {}
        }
    }
}
