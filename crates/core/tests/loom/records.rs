//! Every interleaving of two or three threads over the shipped protocol of records, up to a number of preemptions.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p rollway-core --profile loom --test loom records::`
//!
//! The words lie on loom's heap, the data in loom's cells: a read that does not happen after its write, or a write under a
//! reader, is an error; a wake-up that is lost is a deadlock, and loom reports both. The producers keep the shipped
//! [`Ledger`], so what is allocated twice shows as two writers of one cell. Who survives a death acts beside it, and looks once more
//! when it is over, for loom has no clock for a liveness poll.

use crate::mortal::{
    Mortal, NEXT_SERVER, SESSION, Testament, VICTIM, explore, kill_everywhere, owner, sorted, spawn,
    wait_until,
};
use loom::cell::UnsafeCell;
use rollway_core::records::layout::{Control, Descriptor, Lane};
use rollway_core::records::ledger::{Ledger, Room};
use rollway_core::records::protocol::{Entry, LaneWords, Protocol, Stamp, Taken};
use rollway_core::records::recovery::recover;
use rollway_core::records::sessions::Run;
use rollway_core::segment::Owner;
use rollway_core::segment::sessions::{SessionEntry, SessionTable};
use rollway_core::sys::sync::{Point, crash_point};
use std::sync::Arc;

/// The data of one record in two halves, so that a half-written one can be told from a whole one.
struct Cell([UnsafeCell<u64>; 2]);

/// Every record here has the length of one cell.
const CELL: usize = 64;

/// Records on loom's heap.
struct Heap {
    control: Box<Control>,
    lanes: Vec<Lane>,
    session: [SessionEntry; 1],
    descriptors: Vec<Descriptor>,
    cells: Vec<Cell>,
    cells_of_lane: usize,
}

// SAFETY: whether the cells are shared properly is what loom checks.
unsafe impl Sync for Heap {}
// SAFETY: as above.
unsafe impl Send for Heap {}

impl Heap {
    /// `lanes` lanes of `depth` descriptors and `cells` cells each.
    fn new(lanes: usize, depth: usize, cells: usize) -> Arc<Heap> {
        Arc::new(Heap {
            control: Box::default(),
            lanes: (0..lanes).map(|_| Lane::default()).collect(),
            session: Default::default(),
            descriptors: (0..lanes * depth).map(|_| Descriptor::default()).collect(),
            cells: (0..lanes * cells).map(|_| Cell([UnsafeCell::new(0), UnsafeCell::new(0)])).collect(),
            cells_of_lane: cells,
        })
    }

    fn records(&self) -> Protocol<'_> {
        let Heap { control, lanes, session, descriptors, cells_of_lane, .. } = self;
        Protocol { control, lanes, sessions: session, descriptors, lane_bytes: cells_of_lane * CELL }
    }

    fn lane(&self, index: usize) -> LaneWords<'_> {
        self.records().lane(index)
    }

    fn cell(&self, lane: usize, start: usize) -> &Cell {
        &self.cells[lane * self.cells_of_lane + start / CELL]
    }

    /// Takes a lane, if one is to be had.
    fn join(&self, me: Owner, is_dead: impl Fn(Owner) -> bool) -> Option<Ledger> {
        let lane = self.records().take_lane(me, is_dead)?;
        self.records().open_lane(lane);
        Some(Ledger::rebuild(&self.lane(lane), me).unwrap())
    }

    fn producer(&self, seat: usize) -> Ledger {
        self.join(owner(seat), |_| false).expect("there is a lane")
    }

    fn try_reserve(&self, ledger: &mut Ledger) -> Option<Room> {
        let lane = self.lane(ledger.lane());
        ledger.try_reserve(&lane, CELL, |_, to| Ok(to)).unwrap().room()
    }

    /// As a blocked producer does it, without its liveness poll.
    fn reserve(&self, ledger: &mut Ledger) -> Room {
        let lane = self.lane(ledger.lane());
        wait_until(&lane.line.room, || lane.announce_sleep(), || self.try_reserve(ledger))
    }

    fn write(&self, room: &Room, value: u64) {
        let cell = self.cell(room.claim.lane, room.start);
        // SAFETY: the room is ours; loom checks.
        cell.0[0].with_mut(|half| unsafe { *half = value });
        crash_point(Point::RecordHalfWritten);
        // SAFETY: as above.
        cell.0[1].with_mut(|half| unsafe { *half = value });
    }

    fn entry(room: &Room, value: u64) -> Entry {
        let stamp = Stamp { sequence: value, ..Stamp::default() };
        Entry { start: room.start as u64, bytes: CELL as u64, stamp, committed_ns: 0 }
    }

    fn commit(&self, room: Room, value: u64) {
        let entry = Heap::entry(&room, value);
        self.lane(room.claim.lane).commit(room.claim, &entry);
    }

    /// As a run does it: room for all, then each is written and published, then one event.
    fn send_run<const N: usize>(&self, ledger: &mut Ledger, values: [u64; N], before: impl Fn(u64)) {
        let lane = self.lane(ledger.lane());
        let rooms = values.map(|_| self.try_reserve(ledger).expect("there is room for all"));
        for (room, value) in rooms.into_iter().zip(values) {
            before(value);
            self.write(&room, value);
            let entry = Heap::entry(&room, value);
            lane.publish(room.claim, &entry);
        }
        lane.tell(N as u64);
    }

    fn send(&self, ledger: &mut Ledger, value: u64) {
        let room = self.reserve(ledger);
        self.write(&room, value);
        self.commit(room, value);
    }

    fn try_take(&self, who: Owner) -> Option<Taken> {
        self.records().try_take(who, 0).unwrap()
    }

    /// As a waiting consumer does it, without its liveness poll.
    fn take(&self, who: Owner) -> Taken {
        let readable = &self.control.readable;
        wait_until(readable, || readable.announce(), || self.try_take(who))
    }

    fn read(&self, taken: &Taken) -> u64 {
        assert_eq!(taken.bytes, CELL);
        let cell = self.cell(taken.lane, taken.start);
        // SAFETY: the record is ours; loom checks.
        let [one, two] = [0, 1].map(|half| cell.0[half].with(|half| unsafe { *half }));
        assert_eq!(one, two, "a half-written record was shown");
        assert_eq!(
            one,
            self.lane(taken.lane).entry(taken.number).stamp.sequence,
            "the stamp of another record"
        );
        one
    }

    fn release(&self, taken: Taken) {
        self.lane(taken.lane).release(taken);
    }

    fn receive(&self, who: Owner) -> u64 {
        let taken = self.take(who);
        let value = self.read(&taken);
        self.release(taken);
        value
    }

    /// Takes, reads and releases whatever is there.
    fn drain(&self, who: Owner, into: &mut Vec<u64>) {
        while let Some(taken) = self.try_take(who) {
            into.push(self.read(&taken));
            self.release(taken);
        }
    }
}

const CONSUMER: usize = 9;
const OTHER: usize = 8;

// ── everybody lives ────────────────────────────────────────────────────────────────────────────────────────────────

/// A consumer waits for 1 and 2, which `send` sends.
fn wait_for_two(send: fn(&Heap, &mut Ledger)) {
    explore(2, move || {
        let heap = Heap::new(1, 2, 2);
        let mut ledger = heap.producer(1);
        let producer = spawn(&heap, move |heap| send(heap, &mut ledger));
        assert_eq!([heap.receive(owner(CONSUMER)), heap.receive(owner(CONSUMER))], [1, 2]);
        producer.join().unwrap();
        assert_eq!(heap.try_take(owner(CONSUMER)), None);
    });
}

#[test]
fn a_waiting_consumer_gets_every_record_once_and_in_order() {
    wait_for_two(|heap, ledger| (1..=2).for_each(|value| heap.send(ledger, value)));
}

#[test]
fn a_waiting_consumer_gets_every_record_of_a_run_once_and_in_order() {
    wait_for_two(|heap, ledger| heap.send_run(ledger, [1, 2], |_| {}));
}

#[test]
fn a_run_wakes_two_consumers() {
    explore(1, || {
        let heap = Heap::new(1, 2, 2);
        let mut ledger = heap.producer(1);
        let others = [CONSUMER, OTHER].map(|seat| spawn(&heap, move |heap| heap.receive(owner(seat))));
        heap.send_run(&mut ledger, [1, 2], |_| {});
        assert_eq!(sorted(others.into_iter().map(|other| other.join().unwrap()).collect()), [1, 2]);
    });
}

#[test]
fn a_producer_that_comes_while_the_consumer_sleeps_is_heard() {
    explore(1, || {
        let heap = Heap::new(2, 2, 1);
        let producers = [1, 2].map(|seat| {
            spawn(&heap, move |heap| {
                let mut ledger = heap.producer(seat);
                heap.send(&mut ledger, seat as u64);
            })
        });
        let received = vec![heap.receive(owner(CONSUMER)), heap.receive(owner(CONSUMER))];
        assert_eq!(sorted(received), [1, 2]);
        producers.into_iter().for_each(|producer| producer.join().unwrap());
    });
}

#[test]
fn two_consumers_that_race_for_one_record_do_not_both_get_it() {
    explore(2, || {
        let heap = Heap::new(1, 2, 2);
        let mut ledger = heap.producer(1);
        heap.send(&mut ledger, 1);
        let other = spawn(&heap, |heap| heap.try_take(owner(OTHER)).map(|taken| heap.read(&taken)));
        let mine = heap.try_take(owner(CONSUMER)).map(|taken| heap.read(&taken));
        let theirs = other.join().unwrap();
        assert_eq!(mine.into_iter().chain(theirs).collect::<Vec<_>>(), [1]);
    });
}

#[test]
fn two_sleeping_consumers_are_both_served() {
    explore(1, || {
        let heap = Heap::new(1, 2, 2);
        let mut ledger = heap.producer(1);
        let others = [CONSUMER, OTHER].map(|seat| spawn(&heap, move |heap| heap.receive(owner(seat))));
        heap.send(&mut ledger, 1);
        heap.send(&mut ledger, 2);
        assert_eq!(sorted(others.into_iter().map(|other| other.join().unwrap()).collect()), [1, 2]);
    });
}

#[test]
fn room_is_used_again_only_after_its_reader_is_done() {
    explore(1, || {
        let heap = Heap::new(1, 2, 1); // One cell: every record lies where the one before it lay.
        let mut ledger = heap.producer(1);
        let producer = spawn(&heap, move |heap| (1..=3).for_each(|value| heap.send(&mut ledger, value)));
        let received: Vec<u64> = (0..3).map(|_| heap.receive(owner(CONSUMER))).collect();
        assert_eq!(received, [1, 2, 3]);
        producer.join().unwrap();
    });
}

#[test]
fn a_producer_that_sleeps_for_several_releases_is_woken_by_an_idle_consumer() {
    explore(1, || {
        let heap = Heap::new(1, 4, 4);
        let mut ledger = heap.producer(1);
        (1..=4).for_each(|value| heap.send(&mut ledger, value));
        let producer = spawn(&heap, move |heap| heap.send(&mut ledger, 5));
        let mut held: Vec<Taken> = (0..4).filter_map(|_| heap.try_take(owner(CONSUMER))).collect();
        assert_eq!(heap.read(&held[0]), 1);
        heap.release(held.remove(0)); // One; a producer that saw four to be read wants two.
        assert_eq!(heap.receive(owner(CONSUMER)), 5);
        producer.join().unwrap();
    });
}

#[test]
fn a_descriptor_that_is_held_is_skipped() {
    explore(1, || {
        let heap = Heap::new(1, 2, 3);
        let mut ledger = heap.producer(1);
        heap.send(&mut ledger, 1);
        let producer = spawn(&heap, move |heap| (2..=4).for_each(|value| heap.send(&mut ledger, value)));
        let held = heap.take(owner(CONSUMER));
        let received: Vec<u64> = (0..3).map(|_| heap.receive(owner(CONSUMER))).collect();
        assert_eq!((heap.read(&held), received), (1, vec![2, 3, 4]));
        heap.release(held);
        producer.join().unwrap();
        assert_eq!(heap.try_take(owner(CONSUMER)), None);
    });
}

#[test]
fn a_record_is_dropped_or_taken_and_never_both() {
    explore(2, || {
        let heap = Heap::new(1, 2, 2);
        let mut ledger = heap.producer(1);
        heap.send(&mut ledger, 1);
        heap.send(&mut ledger, 2);
        let consumer = spawn(&heap, |heap| {
            let taken = heap.try_take(owner(CONSUMER));
            taken.map(|taken| {
                let value = heap.read(&taken);
                heap.release(taken);
                value
            })
        });
        // As a producer does it whose policy is to drop the oldest.
        let lane = heap.lane(0);
        let (mut dropped, mut room) = (0, heap.try_reserve(&mut ledger));
        while room.is_none() && ledger.drop_oldest(&lane).unwrap() {
            dropped += 1;
            room = heap.try_reserve(&mut ledger);
        }
        let sent = room.map(|room| {
            heap.write(&room, 3);
            heap.commit(room, 3);
        });
        let mut received: Vec<u64> = consumer.join().unwrap().into_iter().collect();
        heap.drain(owner(OTHER), &mut received);
        assert!(sent.is_some(), "a reader holds one of two at most");
        assert!(received.contains(&3) && received.len() + dropped == 3, "{received:?}, {dropped} dropped");
        let all = received.len();
        received.sort_unstable();
        received.dedup();
        assert_eq!(received.len(), all, "{received:?}");
    });
}

#[test]
fn records_are_committed_in_any_order() {
    explore(2, || {
        let heap = Heap::new(1, 2, 2);
        let mut ledger = heap.producer(1);
        let rooms = [1, 2].map(|_| heap.reserve(&mut ledger));
        let producer = spawn(&heap, move |heap| {
            for (room, value) in rooms.into_iter().zip([1, 2]).rev() {
                heap.write(&room, value);
                heap.commit(room, value);
            }
        });
        let received = vec![heap.receive(owner(CONSUMER)), heap.receive(owner(CONSUMER))];
        assert_eq!(sorted(received), [1, 2]);
        producer.join().unwrap();
    });
}

#[test]
fn what_lies_behind_a_reservation_is_found_by_all_while_one_passes_it() {
    explore(1, || {
        let heap = Heap::new(1, 4, 4);
        let mut ledger = heap.producer(1);
        let [front, behind @ ..] = [1, 2, 3].map(|_| heap.reserve(&mut ledger));
        let producer = spawn(&heap, move |heap| {
            for (room, value) in behind.into_iter().zip([2, 3]).chain([(front, 1)]) {
                heap.write(&room, value);
                heap.commit(room, value);
            }
        });
        let fickle = spawn(&heap, |heap| {
            if let Some(taken) = heap.try_take(owner(OTHER)) {
                heap.lane(0).give_back(taken);
            }
        });
        let received = (0..3).map(|_| heap.receive(owner(CONSUMER))).collect();
        assert_eq!(sorted(received), [1, 2, 3]);
        producer.join().unwrap();
        fickle.join().unwrap();
    });
}

#[test]
fn of_two_reservations_the_one_that_was_committed_first_comes_first() {
    explore(2, || {
        let heap = Heap::new(1, 2, 2);
        let mut ledger = heap.producer(1);
        let rooms = [1, 2].map(|_| heap.reserve(&mut ledger));
        let producer = spawn(&heap, move |heap| {
            for (room, value) in rooms.into_iter().zip([1, 2]) {
                heap.write(&room, value);
                heap.commit(room, value);
            }
        });
        assert_eq!([heap.receive(owner(CONSUMER)), heap.receive(owner(CONSUMER))], [1, 2]);
        producer.join().unwrap();
    });
}

#[test]
fn one_who_only_looks_hides_nothing() {
    explore(2, || {
        let heap = Heap::new(1, 2, 2);
        let mut ledger = heap.producer(1);
        heap.send(&mut ledger, 1);
        let looker = spawn(&heap, |heap| heap.records().has_ready().unwrap());
        heap.send(&mut ledger, 2);
        assert!(looker.join().unwrap());
        let mut received = Vec::new();
        heap.drain(owner(CONSUMER), &mut received);
        assert_eq!(received, [1, 2]);
    });
}

#[test]
fn what_is_given_back_is_taken_by_whoever_comes_next_wherever_the_cursor_is() {
    explore(2, || {
        let heap = Heap::new(1, 2, 2);
        let mut ledger = heap.producer(1);
        heap.send(&mut ledger, 1);
        heap.send(&mut ledger, 2);
        let fickle = spawn(&heap, |heap| {
            if let Some(taken) = heap.try_take(owner(OTHER)) {
                heap.lane(0).give_back(taken);
            }
        });
        let mut received = Vec::new();
        heap.drain(owner(CONSUMER), &mut received);
        fickle.join().unwrap();
        heap.drain(owner(CONSUMER), &mut received);
        assert_eq!(sorted(received), [1, 2]);
    });
}

#[test]
fn a_sleeping_consumer_hears_of_what_is_given_back() {
    explore(2, || {
        let heap = Heap::new(1, 2, 2);
        let mut ledger = heap.producer(1);
        heap.send(&mut ledger, 1);
        let taken = heap.try_take(owner(OTHER)).unwrap();
        let fickle = spawn(&heap, move |heap| heap.lane(0).give_back(taken));
        assert_eq!(heap.receive(owner(CONSUMER)), 1);
        fickle.join().unwrap();
    });
}

#[test]
fn one_lane_goes_to_one_newcomer() {
    explore(2, || {
        let heap = Heap::new(1, 2, 1);
        let other = spawn(&heap, |heap| heap.join(owner(1), |_| false).is_some());
        let mine = heap.join(owner(2), |_| false).is_some();
        assert!(mine != other.join().unwrap());
    });
}

#[test]
fn a_lane_that_was_left_is_taken_over_whole() {
    explore(2, || {
        let heap = Heap::new(1, 2, 2);
        let leaver = spawn(&heap, |heap| {
            let mut ledger = heap.producer(1);
            heap.send(&mut ledger, 1);
            heap.lane(0).leave_lane(owner(1));
        });
        let early = heap.try_take(owner(CONSUMER));
        leaver.join().unwrap();
        let mut ledger = heap.producer(2);
        heap.send(&mut ledger, 2);
        let mut received: Vec<u64> = early.iter().map(|taken| heap.read(taken)).collect();
        heap.drain(owner(CONSUMER), &mut received);
        assert_eq!(received, [1, 2]);
    });
}

#[test]
fn a_sleeping_consumer_hears_of_the_shutdown() {
    explore(2, || {
        let heap = Heap::new(1, 2, 1);
        let consumer = spawn(&heap, |heap| {
            let readable = &heap.control.readable;
            let look = || {
                assert!(!heap.records().has_ready().unwrap(), "nothing was sent");
                heap.control.closed.is_set().then_some(())
            };
            wait_until(readable, || readable.announce(), look);
        });
        // As `Records::shut_down` does it.
        heap.control.closed.set();
        heap.control.readable.notify();
        consumer.join().unwrap();
    });
}

// ── somebody dies ──────────────────────────────────────────────────────────────────────────────────────────────────

/// What a dying thread leaves for the judge.
#[derive(Default)]
struct Deeds {
    /// Records that the dead had committed: they must arrive.
    committed: Vec<u64>,
    /// What it is about to commit.
    writing: u64,
    /// Records that the dead had taken and released.
    consumed: Vec<u64>,
    in_hand: Option<u64>,
}

impl Testament for Deeds {
    fn pass(&mut self, at: Point) {
        match at {
            Point::RecordReady => self.committed.push(self.writing),
            Point::RecordFreed => self.consumed.extend(self.in_hand.take()),
            _ => {}
        }
    }
}

type Victim = Mortal<Deeds>;

/// As a survivor's liveness poll does it.
fn recover_from(victim: &Victim, heap: &Heap) {
    recover(&heap.records(), |who| victim.is_dead(who));
}

#[test]
fn a_killed_producer_leaves_what_it_had_committed_and_its_lane_to_the_next() {
    const POINTS: &[Point] = &[
        Point::LaneTaken,
        Point::LaneGrown,
        Point::RecordReserved,
        Point::RecordNumbered,
        Point::RecordHalfWritten,
        Point::RecordWritten,
        Point::RecordReady,
        Point::NotifyCleared,
        Point::NotifyMoved,
    ];
    kill_everywhere(2, POINTS, |fate| {
        let heap = Heap::new(1, 2, 2);
        let victim = Victim::new();
        let dying = victim.live(&heap, fate, |heap, victim| {
            let mut ledger = heap.producer(VICTIM);
            victim.testament().writing = 1;
            heap.send(&mut ledger, 1);
        });
        let mut received = Vec::new();
        heap.control.readable.announce();
        heap.drain(owner(CONSUMER), &mut received);
        recover_from(&victim, &heap);
        dying.join().unwrap();
        if victim.died() {
            let mut next = heap.join(owner(2), |who| victim.is_dead(who)).expect("the lane of the dead");
            heap.send(&mut next, 2);
        }
        heap.drain(owner(CONSUMER), &mut received);
        let testament = victim.testament();
        let mut expected = testament.committed.clone();
        expected.extend(victim.died().then_some(2));
        assert_eq!(received, expected);
        drop(testament);
        victim
    });
}

#[test]
fn a_producer_that_is_killed_in_a_run_leaves_what_it_had_committed() {
    const POINTS: &[Point] = &[
        Point::RecordReserved,
        Point::RecordNumbered,
        Point::RecordHalfWritten,
        Point::RecordWritten,
        Point::RecordReady,
        Point::NotifyCleared,
        Point::NotifyMoved,
    ];
    kill_everywhere(1, POINTS, |fate| {
        let heap = Heap::new(1, 2, 2);
        let mut ledger = heap.producer(VICTIM);
        let victim = Victim::new();
        let dying = victim.live(&heap, fate, move |heap, victim| {
            heap.send_run(&mut ledger, [1, 2], |value| victim.testament().writing = value);
        });
        let mut received = Vec::new();
        heap.control.readable.announce();
        heap.drain(owner(CONSUMER), &mut received);
        recover_from(&victim, &heap);
        dying.join().unwrap();
        heap.drain(owner(CONSUMER), &mut received);
        let committed = victim.testament().committed.clone();
        assert_eq!(received, committed);
        if victim.died() {
            let mut next = heap.join(owner(2), |who| victim.is_dead(who)).expect("the lane of the dead");
            heap.send_run(&mut next, [3, 4], |_| {});
            heap.drain(owner(CONSUMER), &mut received);
            assert_eq!(received[committed.len()..], [3, 4]);
        }
        victim
    });
}

#[test]
fn a_dead_lane_is_taken_while_a_consumer_reads_in_it() {
    explore(1, || {
        let heap = Heap::new(1, 2, 2);
        let mut dead = heap.producer(VICTIM);
        heap.send(&mut dead, 1);
        let begun = heap.reserve(&mut dead);
        heap.write(&begun, 99); // Never committed.
        let newcomer = spawn(&heap, |heap| {
            let mut next = heap.join(owner(2), |who| who == owner(VICTIM)).expect("the lane of the dead");
            heap.send(&mut next, 2);
        });
        assert_eq!([heap.receive(owner(CONSUMER)), heap.receive(owner(CONSUMER))], [1, 2]);
        newcomer.join().unwrap();
        assert_eq!(heap.try_take(owner(CONSUMER)), None);
    });
}

#[test]
fn a_dead_lane_is_taken_while_somebody_recovers_it() {
    explore(2, || {
        let heap = Heap::new(1, 4, 2);
        let mut dead = heap.producer(VICTIM);
        heap.send(&mut dead, 1);
        let _ = heap.reserve(&mut dead);
        let recoverer = spawn(&heap, |heap| {
            recover(&heap.records(), |who| who == owner(VICTIM));
        });
        let mut next = heap.join(owner(2), |who| who == owner(VICTIM)).expect("the lane of the dead");
        heap.send(&mut next, 2);
        recoverer.join().unwrap();
        assert!(heap.join(owner(3), |_| false).is_none(), "the recoverer has freed the lane of the living");
        let mut received = Vec::new();
        heap.drain(owner(CONSUMER), &mut received);
        assert_eq!(received, [1, 2]);
    });
}

#[test]
fn a_killed_consumer_has_taken_nothing_that_it_had_not_released() {
    const POINTS: &[Point] = &[Point::RecordTaken, Point::RecordFreed];
    kill_everywhere(1, POINTS, |fate| {
        let heap = Heap::new(1, 2, 2);
        let mut ledger = heap.producer(1);
        heap.send(&mut ledger, 1);
        heap.send(&mut ledger, 2);
        let victim = Victim::new();
        let dying = victim.live(&heap, fate, |heap, victim| {
            while let Some(taken) = heap.try_take(owner(VICTIM)) {
                victim.testament().in_hand = Some(heap.read(&taken));
                heap.release(taken);
            }
        });
        let mut received = Vec::new();
        heap.drain(owner(CONSUMER), &mut received);
        recover_from(&victim, &heap);
        dying.join().unwrap();
        recover_from(&victim, &heap);
        heap.drain(owner(CONSUMER), &mut received);
        received.extend(&victim.testament().consumed);
        assert_eq!(sorted(received), [1, 2]);
        victim
    });
}

#[test]
fn two_who_recover_one_dead_consumer_return_its_record_once() {
    explore(1, || {
        let heap = Heap::new(1, 2, 2);
        let mut ledger = heap.producer(1);
        heap.send(&mut ledger, 1);
        heap.send(&mut ledger, 2);
        let _ = heap.try_take(owner(VICTIM)).unwrap();
        let is_dead = |who| who == owner(VICTIM);
        let other = spawn(&heap, move |heap| {
            recover(&heap.records(), is_dead);
            let mut received = Vec::new();
            heap.drain(owner(OTHER), &mut received);
            received
        });
        recover(&heap.records(), is_dead);
        let mut received = Vec::new();
        heap.drain(owner(CONSUMER), &mut received);
        received.extend(other.join().unwrap());
        assert_eq!(sorted(received), [1, 2]);
    });
}

#[test]
fn one_who_recovers_may_die_himself() {
    kill_everywhere(2, &[Point::RecordReturned], |fate| {
        let heap = Heap::new(1, 2, 2);
        let mut ledger = heap.producer(1);
        heap.send(&mut ledger, 1);
        heap.send(&mut ledger, 2);
        let _ = heap.try_take(owner(6)).unwrap();
        let is_dead = |who| who == owner(6);
        let victim = Victim::new();
        let dying = victim.live(&heap, fate, move |heap, _| {
            recover(&heap.records(), is_dead);
        });
        // One look beside him is enough: who loses a race against him does not rely on him.
        let mut received = Vec::new();
        recover(&heap.records(), is_dead);
        heap.drain(owner(CONSUMER), &mut received);
        dying.join().unwrap();
        heap.drain(owner(CONSUMER), &mut received);
        assert_eq!(sorted(received), [1, 2]);
        victim
    });
}

#[test]
fn a_producer_killed_while_it_drops_has_dropped_what_it_freed() {
    kill_everywhere(2, &[Point::RecordDropped], |fate| {
        let heap = Heap::new(1, 2, 2);
        let mut ledger = heap.producer(VICTIM);
        heap.send(&mut ledger, 1);
        heap.send(&mut ledger, 2);
        let victim = Victim::new();
        let dying = victim.live(&heap, fate, move |heap, _| {
            ledger.drop_oldest(&heap.lane(0)).unwrap();
        });
        let mut received = Vec::new();
        heap.drain(owner(CONSUMER), &mut received);
        dying.join().unwrap();
        heap.drain(owner(CONSUMER), &mut received);
        assert!(received == [1, 2] || received == [1] || received == [2], "{received:?}");
        let reached = victim.reached(Point::RecordDropped);
        assert_eq!(received.len(), 2 - reached);
        victim
    });
}

// ── sessions ───────────────────────────────────────────────────────────────────────────────────────────────────────

impl Heap {
    /// A server with a lane and a session.
    fn server(&self, seat: usize) -> Ledger {
        assert_eq!(self.records().add_session(SESSION, 0, owner(seat)), Some(0));
        self.producer(seat)
    }

    /// Commits the next records of the session: their values are their numbers.
    fn deliver<const N: usize>(&self, rooms: [Room; N]) {
        let [entry] = &self.session;
        let (first, mut run, mut lane) = (entry.next(), Run::default(), 0);
        for (room, value) in rooms.into_iter().zip(first..) {
            lane = room.claim.lane;
            self.write(&room, value);
            self.lane(lane).describe(&room.claim, &Heap::entry(&room, value));
            run.push(room.claim);
        }
        self.lane(lane).commit_logged(entry, first + N as u64, run);
    }

    /// Delivers two records, while one of another client is on its way between them.
    fn serve(&self, ledger: &mut Ledger) {
        let [first, on_its_way, second] = [0; 3].map(|_| self.try_reserve(ledger).expect("there is room"));
        self.deliver([first, second]);
        ledger.abort(&self.lane(ledger.lane()), on_its_way.claim);
    }

    /// Every number that the session counts has arrived once, and no other.
    fn assert_session_is_right(&self) {
        let mut received = Vec::new();
        self.drain(owner(CONSUMER), &mut received);
        assert_eq!(sorted(received), (0..self.session[0].next()).collect::<Vec<_>>());
    }
}

#[test]
fn what_a_killed_server_had_logged_is_committed_and_counted_and_nothing_else() {
    const POINTS: &[Point] = &[
        Point::RecordWritten,
        Point::RunPlaced,
        Point::RunLogged,
        Point::RecordReady,
        Point::RunCommitted,
        Point::SessionMoved,
    ];
    kill_everywhere(2, POINTS, |fate| {
        let heap = Heap::new(1, 4, 3);
        let mut ledger = heap.server(VICTIM);
        let victim = Victim::new();
        let dying = victim.live(&heap, fate, move |heap, _| heap.serve(&mut ledger));
        recover_from(&victim, &heap);
        let taken = victim.give_session(&heap.records());
        dying.join().unwrap();
        let lives = taken.or_else(|| victim.give_session(&heap.records())).is_none();
        assert_eq!(lives, !victim.died());
        recover_from(&victim, &heap);
        heap.assert_session_is_right();
        victim
    });
}

#[test]
fn a_session_and_a_lane_that_change_hands_while_others_recover_lose_no_logged_record() {
    const POINTS: &[Point] = &[Point::RunPlaced, Point::RunLogged, Point::RecordReady];
    kill_everywhere(1, POINTS, |fate| {
        let heap = Heap::new(1, 4, 4);
        let mut ledger = heap.server(VICTIM);
        let victim = Victim::new();
        victim.live(&heap, fate, move |heap, _| heap.serve(&mut ledger)).join().unwrap();
        let (witness, dead) = (victim.clone(), victim.clone());
        let other = spawn(&heap, move |heap| recover_from(&witness, heap));
        let next = spawn(&heap, move |heap| {
            if let Some(mut ledger) = heap.join(owner(NEXT_SERVER), |who| dead.is_dead(who)) {
                dead.give_session(&heap.records()).expect("the session of the dead");
                heap.deliver([heap.try_reserve(&mut ledger).expect("there is room")]);
            }
        });
        other.join().unwrap();
        next.join().unwrap();
        recover_from(&victim, &heap);
        heap.assert_session_is_right();
        victim
    });
}

#[test]
fn a_session_goes_to_a_server_and_the_lane_to_another_producer() {
    kill_everywhere(2, &[Point::RunLogged, Point::RunCommitted], |fate| {
        let heap = Heap::new(1, 4, 3);
        let mut ledger = heap.server(VICTIM);
        let victim = Victim::new();
        victim.live(&heap, fate, move |heap, _| heap.serve(&mut ledger)).join().unwrap();
        let witness = victim.clone();
        let other = spawn(&heap, move |heap| {
            heap.join(owner(1), |who| witness.is_dead(who)).map(|ledger| ledger.lane())
        });
        assert_eq!(victim.give_session(&heap.records()).is_some(), victim.died());
        assert_eq!(other.join().unwrap().is_some(), victim.died());
        heap.assert_session_is_right();
        victim
    });
}
