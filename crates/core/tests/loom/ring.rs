//! Every interleaving of two or three threads over the shipped protocol, up to a number of preemptions.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p rollway-core --profile loom --test loom ring::`
//!
//! The words lie on loom's heap, the payload in loom's cells: a read that does not happen after its write is an error,
//! a wake-up that is lost is a deadlock, and loom reports both. The dead wake nobody, and loom has no clock for a liveness poll:
//! where somebody dies (or gives a slot back, which is only a hint to the others), the survivors look again and again
//! instead of sleeping.

use crate::mortal::{
    Mortal, NEXT_SERVER, SESSION, Testament, VICTIM, explore, kill_everywhere, owner, sorted, spawn,
    wait_until,
};
use loom::cell::UnsafeCell;
use loom::thread;
use rollway_core::ring::layout::{Buffer, Control, Slot, SlotWord};
use rollway_core::ring::protocol::{Claim, Claimant, Protocol, Taken};
use rollway_core::ring::recovery::recover;
use rollway_core::segment::Owner;
use rollway_core::segment::sessions::{SessionEntry, SessionTable};
use rollway_core::sys::sync::{AtomicU32, AtomicU64, EventCount, Ordering, Point, crash_point};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A payload in two halves, so that a half-written one can be told from a whole one.
struct Row([UnsafeCell<u64>; 2]);

/// One ring on loom's heap.
struct Heap {
    control: Box<Control>,
    buffers: Vec<Buffer>,
    sessions: Vec<SessionEntry>,
    slots: Vec<Slot>,
    rows: Vec<Row>,
    /// One per seat.
    lanes: Vec<AtomicU64>,
    retries: AtomicU64,
    batch_size: usize,
    block: usize,
}

// SAFETY: whether the cells are shared properly is what loom checks.
unsafe impl Sync for Heap {}
// SAFETY: as above.
unsafe impl Send for Heap {}

impl Heap {
    fn new(batch_size: usize, num_buffers: usize) -> Arc<Heap> {
        Heap::in_blocks(batch_size, num_buffers, 1)
    }

    fn in_blocks(batch_size: usize, num_buffers: usize, block: usize) -> Arc<Heap> {
        Heap::make(batch_size, num_buffers, block, 0)
    }

    /// With room for a session. Elsewhere it would only make more interleavings of recovery.
    fn with_session(batch_size: usize, num_buffers: usize) -> Arc<Heap> {
        Heap::make(batch_size, num_buffers, 1, 1)
    }

    fn make(batch_size: usize, num_buffers: usize, block: usize, sessions: usize) -> Arc<Heap> {
        let count = batch_size * num_buffers;
        let heap = Heap {
            control: Box::default(),
            buffers: (0..num_buffers).map(|_| Buffer::default()).collect(),
            sessions: (0..sessions).map(|_| SessionEntry::default()).collect(),
            slots: (0..count).map(|_| Slot::default()).collect(),
            rows: (0..count).map(|_| Row([UnsafeCell::new(0), UnsafeCell::new(0)])).collect(),
            lanes: (0..=CONSUMER).map(|_| AtomicU64::new(0)).collect(),
            retries: AtomicU64::new(0),
            batch_size,
            block,
        };
        heap.ring().initialise();
        Arc::new(heap)
    }

    fn ring(&self) -> Protocol<'_> {
        let Heap { control, buffers, sessions, slots, batch_size, block, .. } = self;
        Protocol { control, buffers, sessions, slots, batch_size: *batch_size, block: *block }
    }

    fn try_claim(&self, owner: Owner, want: usize) -> Option<Claim> {
        let who = Claimant { owner, lane: &self.lanes[owner.seat()], retries: &self.retries };
        self.ring().try_claim(who, want).unwrap()
    }

    /// As a blocked producer does it, without its liveness poll.
    fn claim(&self, owner: Owner, want: usize) -> Claim {
        if let Some(claim) = self.try_claim(owner, want) {
            return claim;
        }
        let writable = &self.control.writable;
        wait_until(writable, || writable.announce(), || self.try_claim(owner, want))
    }

    /// Writes `first`, `first + 1`, … into the rows of a claim, each in two halves.
    fn write(&self, claim: &Claim, first: u64) {
        let start = claim.buffer * self.batch_size + claim.slot;
        for (value, row) in (first..).zip(&self.rows[start..start + claim.len()]) {
            // SAFETY: the row is claimed by us; loom checks.
            row.0[0].with_mut(|half| unsafe { *half = value });
            crash_point(Point::SlotHalfWritten);
            // SAFETY: as above.
            row.0[1].with_mut(|half| unsafe { *half = value });
        }
        crash_point(Point::SlotWritten);
    }

    /// A claim that lacks nothing but its commit.
    fn written(&self, seat: usize, value: u64) -> Claim {
        let claim = self.claim(owner(seat), 1);
        self.write(&claim, value);
        claim
    }

    fn send(&self, owner: Owner, value: u64) {
        let claim = self.claim(owner, 1);
        self.write(&claim, value);
        self.ring().commit(claim);
    }

    fn try_take(&self, owner: Owner) -> Option<Taken> {
        self.ring().try_take(owner).unwrap()
    }

    /// As a waiting consumer does it, without its liveness poll.
    fn take(&self, owner: Owner) -> Taken {
        if let Some(taken) = self.try_take(owner) {
            return taken;
        }
        loop {
            let ticket = self.control.readable.announce();
            if self.ring().aim(|_| false).unwrap() {
                self.control.readable.wait(ticket, Duration::ZERO);
            } else if let Some(taken) = self.try_take(owner) {
                return taken;
            }
        }
    }

    /// As the forwarder's thread waits, without its liveness poll.
    fn wait_for_any(&self) {
        let readable = &self.control.readable;
        let look = || (!self.ring().aim_any().unwrap()).then_some(());
        wait_until(readable, || readable.announce(), look);
    }

    /// The samples of a taken batch, in the order of their rows.
    fn read(&self, taken: &Taken) -> Vec<u64> {
        let first = taken.buffer * self.batch_size;
        let rows = self.slots[first..first + self.batch_size].iter().zip(&self.rows[first..]);
        let ready = rows.filter(|(slot, _)| {
            SlotWord::unpack(slot.word.load(Ordering::Relaxed)).is_ready_for(taken.batch)
        });
        let values: Vec<u64> = ready
            .map(|(_, row)| {
                // SAFETY: the batch is ours; loom checks.
                let [one, two] = [0, 1].map(|half| row.0[half].with(|half| unsafe { *half }));
                assert_eq!(one, two, "a half-written row was shown");
                one
            })
            .collect();
        assert_eq!(values.len(), taken.ready, "the batch holds as many samples as it says");
        values
    }

    /// Takes, reads and releases one batch, waiting for it.
    fn receive(&self, owner: Owner) -> Vec<u64> {
        let taken = self.take(owner);
        let values = self.read(&taken);
        self.ring().release(taken);
        values
    }

    /// Takes, reads and releases whatever is complete.
    fn drain(&self, owner: Owner, into: &mut Vec<u64>) {
        while let Some(taken) = self.try_take(owner) {
            into.extend(self.read(&taken));
            self.ring().release(taken);
        }
    }

    /// A liveness poll on which nobody turns out to be dead.
    fn poll_liveness(&self) {
        recover(&self.ring(), |_| false).unwrap();
    }
}

const CONSUMER: usize = 9;

// ── the event ───────────────────────────────────────────────────────────────────────────────────────────────────────

#[test]
fn an_event_wakes_whoever_announced_itself_before_the_change() {
    explore(2, || {
        let shared = Arc::new((EventCount::default(), AtomicU32::new(0)));
        let notifiers: Vec<_> = (0..2)
            .map(|_| {
                let shared = shared.clone();
                thread::spawn(move || {
                    shared.1.fetch_add(1, Ordering::Relaxed);
                    shared.0.notify_if_waiting();
                })
            })
            .collect();
        loop {
            let ticket = shared.0.announce();
            if shared.1.load(Ordering::Relaxed) == 2 {
                break;
            }
            shared.0.wait(ticket, Duration::ZERO);
        }
        notifiers.into_iter().for_each(|notifier| notifier.join().unwrap());
    });
}

#[test]
fn two_sleepers_on_one_event_both_wake() {
    explore(2, || {
        let shared = Arc::new((EventCount::default(), AtomicU32::new(0)));
        let sleep = |shared: &(EventCount, AtomicU32)| loop {
            let ticket = shared.0.announce();
            if shared.1.load(Ordering::Relaxed) == 1 {
                break;
            }
            shared.0.wait(ticket, Duration::ZERO);
        };
        let sleepers: Vec<_> = (0..2)
            .map(|_| {
                let shared = shared.clone();
                thread::spawn(move || sleep(&shared))
            })
            .collect();
        shared.1.store(1, Ordering::Relaxed);
        shared.0.notify_if_waiting();
        sleepers.into_iter().for_each(|sleeper| sleeper.join().unwrap());
    });
}

#[test]
fn a_sleeping_consumer_hears_of_the_shutdown() {
    explore(2, || {
        let heap = Heap::new(1, 2);
        let consumer = spawn(&heap, |heap| {
            let readable = &heap.control.readable;
            let look = || {
                assert!(heap.ring().aim(|_| false).unwrap(), "nothing was sent");
                heap.control.closed.is_set().then_some(())
            };
            wait_until(readable, || readable.announce(), look);
        });
        // As `Ring::shut_down` does it.
        heap.control.closed.set();
        heap.control.readable.notify();
        consumer.join().unwrap();
    });
}

#[test]
fn a_consumer_that_takes_unfinished_batches_wakes_at_any_commit() {
    explore(2, || {
        let heap = Heap::new(3, 2);
        let one = spawn(&heap, |heap| heap.send(owner(1), 10));
        let two = spawn(&heap, |heap| heap.send(owner(2), 20));
        heap.wait_for_any();
        one.join().unwrap();
        two.join().unwrap();
    });
}

/// The producer of the last slot names the slot that the batch waits for, while the consumer comes to take any.
#[test]
fn a_consumer_that_no_longer_waits_for_a_whole_batch_wakes_at_any_commit() {
    explore(2, || {
        let heap = Heap::new(3, 2);
        let claims = [heap.written(1, 10), heap.written(2, 20), heap.written(3, 30)];
        let [first, _kept, last] = claims;
        let one = spawn(&heap, move |heap| heap.ring().commit(first));
        heap.control.readable.announce();
        assert!(heap.ring().aim(|_| false).unwrap());
        let two = spawn(&heap, move |heap| heap.ring().commit(last));
        heap.wait_for_any();
        one.join().unwrap();
        two.join().unwrap();
    });
}

#[test]
fn a_batch_that_is_closed_at_its_first_sample_has_all_that_were_committed() {
    explore(2, || {
        let heap = Heap::new(2, 2);
        let producer = spawn(&heap, |heap| {
            heap.send(owner(1), 10);
            heap.send(owner(1), 20);
        });
        let mut seen = Vec::new();
        while seen.len() < 2 {
            heap.wait_for_any();
            heap.ring().seal_oldest(|_| false).unwrap();
            seen.extend(heap.receive(owner(CONSUMER)));
        }
        producer.join().unwrap();
        assert_eq!(seen, [10, 20]);
    });
}

// ── everybody lives ────────────────────────────────────────────────────────────────────────────────────────────────

#[test]
fn a_waiting_consumer_gets_the_samples_of_two_producers_exactly_once() {
    explore(2, || {
        let heap = Heap::new(2, 2);
        let one = spawn(&heap, |heap| heap.send(owner(1), 10));
        let two = spawn(&heap, |heap| heap.send(owner(2), 20));
        assert_eq!(sorted(heap.receive(owner(CONSUMER))), [10, 20]);
        one.join().unwrap();
        two.join().unwrap();
        assert_eq!(heap.try_take(owner(CONSUMER)), None);
    });
}

#[test]
fn a_block_that_its_producer_leaves_half_empty_is_filled_by_another() {
    explore(2, || {
        let heap = Heap::in_blocks(2, 2, 2);
        let one = spawn(&heap, |heap| heap.send(owner(1), 10));
        let two = spawn(&heap, |heap| heap.send(owner(2), 20));
        assert_eq!(sorted(heap.receive(owner(CONSUMER))), [10, 20]);
        one.join().unwrap();
        two.join().unwrap();
        assert_eq!(heap.try_take(owner(CONSUMER)), None);
    });
}

#[test]
fn a_consumer_is_woken_by_the_last_of_those_who_fill_blocks_side_by_side() {
    explore(1, || {
        let heap = Heap::in_blocks(4, 2, 2);
        let one = spawn(&heap, |heap| (10..12).for_each(|value| heap.send(owner(1), value)));
        let two = spawn(&heap, |heap| (20..22).for_each(|value| heap.send(owner(2), value)));
        assert_eq!(sorted(heap.receive(owner(CONSUMER))), [10, 11, 20, 21]);
        one.join().unwrap();
        two.join().unwrap();
    });
}

#[test]
fn two_producers_that_go_on_to_the_next_batch_lose_nothing() {
    explore(2, || {
        let heap = Heap::new(1, 2);
        let one = spawn(&heap, |heap| heap.send(owner(1), 10));
        let two = spawn(&heap, |heap| heap.send(owner(2), 20));
        one.join().unwrap();
        two.join().unwrap();
        let mut received = Vec::new();
        heap.drain(owner(CONSUMER), &mut received);
        assert_eq!(sorted(received), [10, 20]);
    });
}

#[test]
fn one_who_waits_for_order_gets_the_batches_in_order() {
    explore(2, || {
        let heap = Heap::new(1, 2);
        for value in 1..3 {
            heap.send(owner(1), value);
            assert_eq!(heap.receive(owner(CONSUMER)), [value]);
        }
        // The next two go into the buffers in the order in which a consumer looks at them.
        let producer = spawn(&heap, |heap| (3..5).for_each(|value| heap.send(owner(1), value)));
        let mut received = Vec::new();
        let mut take_in_order = || {
            while let Some(taken) = heap.ring().try_take_unless(owner(CONSUMER), |_| true).unwrap() {
                received.extend(heap.read(&taken));
                heap.ring().release(taken);
            }
        };
        take_in_order();
        producer.join().unwrap();
        take_in_order();
        assert_eq!(received, [3, 4]);
    });
}

#[test]
fn runs_that_meet_in_one_batch_share_its_slots() {
    explore(2, || {
        let heap = Heap::new(3, 2);
        let send_run = |heap: &Heap, seat: usize, first: u64| {
            let claim = heap.try_claim(owner(seat), 2).expect("there is room for both");
            heap.write(&claim, first);
            let sent = claim.len() as u64;
            heap.ring().commit(claim);
            sent
        };
        let sent = Arc::new(Mutex::new(0));
        let count = sent.clone();
        let other = spawn(&heap, move |heap| *count.lock().unwrap() = send_run(heap, 1, 10));
        let mine = send_run(&heap, 2, 20);
        other.join().unwrap();
        let mut expected: Vec<u64> = (10..10 + *sent.lock().unwrap()).chain(20..20 + mine).collect();
        // What one was promised and the other took, or neither took, is a hole; a liveness poll finds it.
        heap.poll_liveness();
        for value in 30.. {
            let mut received = Vec::new();
            heap.drain(owner(CONSUMER), &mut received);
            if !received.is_empty() {
                heap.ring().flush().unwrap();
                heap.drain(owner(CONSUMER), &mut received);
                assert_eq!(sorted(received), sorted(expected));
                break;
            }
            assert!(value < 33, "the first batch has a slot that nobody is offered");
            heap.send(owner(3), value);
            expected.push(value);
        }
    });
}

#[test]
fn two_consumers_share_the_batches_and_see_none_twice() {
    explore(2, || {
        let heap = Heap::new(1, 2);
        (10..12).for_each(|value| heap.send(owner(1), value));
        let received = Arc::new(Mutex::new(Vec::new()));
        let mine = received.clone();
        let other = spawn(&heap, move |heap| {
            let values = heap.receive(owner(CONSUMER));
            mine.lock().unwrap().extend(values);
        });
        let values = heap.receive(owner(CONSUMER + 1));
        received.lock().unwrap().extend(values);
        other.join().unwrap();
        assert_eq!(sorted(received.lock().unwrap().clone()), [10, 11]);
    });
}

#[test]
fn two_consumers_that_wait_are_both_woken() {
    explore(1, || {
        let heap = Heap::new(1, 2);
        let claims = [heap.written(1, 10), heap.written(2, 20)];
        let consumers = [0, 1].map(|n| {
            spawn(&heap, move |heap| {
                let _ = heap.take(owner(CONSUMER + n));
            })
        });
        claims.into_iter().for_each(|claim| heap.ring().commit(claim));
        for consumer in consumers {
            consumer.join().unwrap();
        }
    });
}

#[test]
fn a_producer_blocked_on_a_full_ring_is_woken_by_a_release() {
    explore(2, || {
        let heap = Heap::new(1, 2);
        (1..3).for_each(|value| heap.send(owner(1), value)); // Full.
        let producer = spawn(&heap, |heap| heap.send(owner(1), 3));
        let received: Vec<u64> = (0..3).flat_map(|_| heap.receive(owner(CONSUMER))).collect();
        assert_eq!(received, [1, 2, 3]);
        producer.join().unwrap();
    });
}

#[test]
fn two_blocked_producers_are_both_woken() {
    // One preemption: two take minutes with three threads. There are models with two of each half: two who sleep on one event,
    // and one producer that is blocked. `make soak` does the whole.
    explore(1, || {
        let heap = Heap::new(2, 1);
        (1..3).for_each(|value| heap.send(owner(1), value)); // Full.
        let taken = heap.take(owner(CONSUMER));
        let blocked = [1, 2].map(|seat| {
            spawn(&heap, move |heap| {
                let _ = heap.claim(owner(seat), 1);
            })
        });
        heap.ring().release(taken);
        for producer in blocked {
            producer.join().unwrap();
        }
    });
}

#[test]
fn a_batch_held_for_ever_leaves_the_other_buffer_to_the_rest() {
    explore(2, || {
        let heap = Heap::new(1, 2);
        heap.send(owner(1), 1);
        let held = heap.take(owner(CONSUMER));
        let producer = spawn(&heap, |heap| (10..12).for_each(|value| heap.send(owner(1), value)));
        let received: Vec<u64> = (0..2).flat_map(|_| heap.receive(owner(CONSUMER))).collect();
        assert_eq!(received, [10, 11]);
        producer.join().unwrap();
        assert_eq!(heap.read(&held), [1]);
    });
}

#[test]
fn a_batch_given_back_reaches_a_consumer_that_sleeps() {
    explore(2, || {
        let heap = Heap::new(1, 2);
        heap.send(owner(1), 1);
        let fickle = spawn(&heap, |heap| {
            if let Some(taken) = heap.try_take(owner(CONSUMER)) {
                heap.ring().give_back(taken);
            }
        });
        assert_eq!(heap.receive(owner(CONSUMER + 1)), [1]);
        fickle.join().unwrap();
    });
}

#[test]
fn a_slot_that_is_given_back_is_filled_by_the_next_producer() {
    explore(2, || {
        let heap = Heap::new(2, 2);
        let one = spawn(&heap, |heap| {
            let claim = heap.claim(owner(1), 1);
            heap.write(&claim, 666);
            heap.ring().abort(claim);
            heap.send(owner(1), 10);
        });
        let two = spawn(&heap, |heap| heap.send(owner(2), 20));
        one.join().unwrap();
        two.join().unwrap();
        heap.poll_liveness(); // The hint may be lost; a liveness poll finds the hole.
        let mut received = Vec::new();
        heap.drain(owner(CONSUMER), &mut received);
        // Either both went into the first batch, or one of them went on to the second, and the next fills the hole.
        if received.is_empty() {
            heap.send(owner(3), 30);
            heap.drain(owner(CONSUMER), &mut received);
            assert_eq!(received.len(), 2, "the hole was not offered to the next producer");
            heap.ring().flush().unwrap();
            heap.drain(owner(CONSUMER), &mut received);
            received.retain(|&value| value != 30);
        }
        assert_eq!(sorted(received), [10, 20]);
        assert_eq!(heap.control.counters.aborted.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn a_batch_is_either_dropped_or_taken() {
    explore(2, || {
        let heap = Heap::new(1, 2);
        (1..3).for_each(|value| heap.send(owner(1), value)); // Full.
        let dropped = Arc::new(Mutex::new(0));
        let counter = dropped.clone();
        let producer = spawn(&heap, move |heap| {
            // As a producer that drops the oldest does it.
            loop {
                let count = heap.ring().drop_oldest().unwrap();
                *counter.lock().unwrap() += count.unwrap_or(0);
                if let Some(claim) = heap.try_claim(owner(1), 1) {
                    heap.write(&claim, 3);
                    return heap.ring().commit(claim);
                }
                assert!(count.is_some(), "one consumer cannot hold both batches");
            }
        });
        let mut received = Vec::new();
        if let Some(taken) = heap.try_take(owner(CONSUMER)) {
            received.extend(heap.read(&taken));
            heap.ring().release(taken);
        }
        producer.join().unwrap();
        heap.drain(owner(CONSUMER), &mut received);
        assert_eq!(received.len() + *dropped.lock().unwrap(), 3, "{received:?}");
        assert_eq!(received.last(), Some(&3));
        assert!(received.is_sorted());
    });
}

#[test]
fn closing_early_against_a_claim_loses_nothing() {
    explore(2, || {
        let heap = Heap::new(2, 2);
        let producer = spawn(&heap, |heap| (10..12).for_each(|value| heap.send(owner(1), value)));
        let mut received = Vec::new();
        heap.ring().seal_at_least(1).unwrap();
        heap.drain(owner(CONSUMER), &mut received);
        producer.join().unwrap();
        heap.ring().seal_at_least(1).unwrap();
        heap.drain(owner(CONSUMER), &mut received);
        assert_eq!(received, [10, 11]);
    });
}

#[test]
fn a_flush_wakes_the_consumer_for_what_was_sent_before() {
    explore(2, || {
        let heap = Heap::new(2, 2);
        let producer = spawn(&heap, |heap| {
            heap.send(owner(1), 10);
            heap.ring().flush().unwrap();
        });
        assert_eq!(heap.receive(owner(CONSUMER)), [10]);
        producer.join().unwrap();
    });
}

#[test]
fn a_flush_against_a_commit_by_another_loses_no_wake_up() {
    explore(2, || {
        let heap = Heap::new(2, 2);
        let claim = heap.written(1, 10);
        let producer = spawn(&heap, move |heap| heap.ring().commit(claim));
        let flusher = spawn(&heap, |heap| heap.ring().flush().unwrap());
        assert_eq!(heap.receive(owner(CONSUMER)), [10]);
        producer.join().unwrap();
        flusher.join().unwrap();
    });
}

#[test]
fn a_slot_given_back_in_a_flushed_batch_does_not_keep_the_consumer_asleep() {
    explore(2, || {
        let heap = Heap::new(2, 2);
        heap.send(owner(1), 10);
        let claim = heap.claim(owner(2), 1);
        let producer = spawn(&heap, move |heap| heap.ring().abort(claim));
        heap.ring().flush().unwrap();
        assert_eq!(heap.receive(owner(CONSUMER)), [10]);
        producer.join().unwrap();
    });
}

// Three threads with a loop each: two preemptions of the whole take minutes. So they are explored with two where the third
// one does the least that the others may notice, and with one where it does all. `make soak` does the whole with two.

#[test]
fn a_batch_closed_early_by_one_consumer_wakes_the_other() {
    close_early_beside_a_sleeper(2, |_| {});
}

#[test]
fn a_batch_closed_early_and_given_back_by_one_consumer_wakes_the_other() {
    close_early_beside_a_sleeper(1, take_and_give_back);
}

fn close_early_beside_a_sleeper(preemptions: usize, then: fn(&Heap)) {
    explore(preemptions, move || {
        let heap = Heap::new(3, 2);
        heap.send(owner(1), 10);
        let claim = heap.written(1, 11);
        // Wants one sample now, finds a writer in the batch, and does not stay.
        let hasty = spawn(&heap, move |heap| {
            assert!(heap.ring().seal_at_least(1).unwrap());
            then(heap);
        });
        let producer = spawn(&heap, move |heap| heap.ring().commit(claim));
        assert_eq!(heap.receive(owner(CONSUMER + 1)), [10, 11]);
        producer.join().unwrap();
        hasty.join().unwrap();
    });
}

#[test]
fn a_consumer_that_aims_and_leaves_does_not_keep_the_other_asleep() {
    // Who finds the batch complete takes it. That he gives it back is a ring.
    aim_beside_a_sleeper(1, |heap| heap.control.readable.notify_if_waiting());
}

#[test]
fn a_consumer_that_aims_and_gives_back_does_not_keep_the_other_asleep() {
    aim_beside_a_sleeper(1, take_and_give_back);
}

fn aim_beside_a_sleeper(preemptions: usize, then: fn(&Heap)) {
    explore(preemptions, move || {
        let heap = Heap::new(2, 2);
        let claims = [heap.written(1, 10), heap.written(2, 20)];
        // The last slot first: then the other is the one to be woken for.
        let producer =
            spawn(&heap, move |heap| claims.into_iter().rev().for_each(|claim| heap.ring().commit(claim)));
        let sleeper = spawn(&heap, |heap| {
            let _ = heap.take(owner(CONSUMER));
        });
        heap.control.readable.announce();
        if !heap.ring().aim(|_| false).unwrap() {
            then(&heap);
        }
        producer.join().unwrap();
        sleeper.join().unwrap();
    });
}

fn take_and_give_back(heap: &Heap) {
    if let Some(taken) = heap.try_take(owner(CONSUMER + 2)) {
        heap.ring().give_back(taken);
    }
}

#[test]
fn a_patrol_takes_nothing_from_the_living() {
    explore(2, || {
        let heap = Heap::new(2, 2);
        let producer = spawn(&heap, |heap| {
            let claim = heap.claim(owner(1), 2);
            heap.write(&claim, 10);
            heap.ring().commit(claim);
        });
        heap.poll_liveness();
        let mut received = Vec::new();
        heap.drain(owner(CONSUMER), &mut received);
        heap.poll_liveness();
        producer.join().unwrap();
        heap.drain(owner(CONSUMER), &mut received);
        assert_eq!(received, [10, 11]);
    });
}

// ── somebody dies ──────────────────────────────────────────────────────────────────────────────────────────────────

/// What a dying thread leaves for the judge.
#[derive(Default)]
struct Deeds {
    /// Samples that the dead had committed: they must arrive.
    committed: usize,
    /// Samples that the dead had read in a batch that it still held: they are offered again.
    in_hand: Vec<u64>,
    /// Samples that the dead had read and released.
    consumed: Vec<u64>,
}

impl Testament for Deeds {
    fn pass(&mut self, at: Point) {
        match at {
            Point::SlotReady => self.committed += 1,
            Point::BatchFreed => self.consumed.append(&mut self.in_hand),
            _ => {}
        }
    }
}

type Victim = Mortal<Deeds>;

/// As a survivor's liveness poll does it.
fn recover_from(victim: &Victim, heap: &Heap) {
    recover(&heap.ring(), |who| victim.is_dead(who)).unwrap();
}

#[test]
fn a_killed_producer_leaves_of_its_run_what_it_had_committed() {
    const POINTS: &[Point] = &[
        Point::RunPromised,
        Point::SlotClaimed,
        Point::RunPartlyClaimed,
        Point::SlotHalfWritten,
        Point::SlotWritten,
        Point::SlotReady,
        Point::NotifyCleared,
        Point::NotifyMoved,
    ];
    kill_everywhere(2, POINTS, |fate| {
        let heap = Heap::new(2, 2);
        let victim = Victim::new();
        let dying = victim.live(&heap, fate, |heap, _| {
            let claim = heap.claim(owner(VICTIM), 2);
            heap.write(&claim, 1);
            heap.ring().commit(claim);
        });
        let mut received = Vec::new();
        heap.control.readable.announce();
        if !heap.ring().aim(|_| false).unwrap() {
            heap.drain(owner(CONSUMER), &mut received);
        }
        recover_from(&victim, &heap);
        dying.join().unwrap();
        recover_from(&victim, &heap);
        heap.ring().flush().unwrap();
        heap.drain(owner(CONSUMER), &mut received);
        let committed = victim.testament().committed as u64;
        assert_eq!(received, (1..=committed).collect::<Vec<_>>());
        victim
    });
}

#[test]
fn the_slots_that_a_killed_producer_was_promised_are_filled_by_others() {
    const POINTS: &[Point] = &[Point::RunPromised, Point::SlotClaimed, Point::RunPartlyClaimed];
    fill_what_was_promised_to_the_dead(POINTS, 1, 2);
}

#[test]
fn the_block_that_a_killed_producer_was_filling_is_filled_by_others() {
    fill_what_was_promised_to_the_dead(&[Point::RunPromised, Point::SlotClaimed], 2, 1);
}

fn fill_what_was_promised_to_the_dead(points: &'static [Point], block: usize, want: usize) {
    kill_everywhere(2, points, move |fate| {
        let heap = Heap::in_blocks(2, 2, block);
        let victim = Victim::new();
        let dying = victim.live(&heap, fate, move |heap, _| {
            if let Some(claim) = heap.try_claim(owner(VICTIM), want) {
                heap.write(&claim, 1);
                heap.ring().commit(claim);
            }
        });
        heap.send(owner(1), 10); // Into the same batch, or past it into the next.
        dying.join().unwrap();
        recover_from(&victim, &heap);
        let committed = victim.testament().committed as u64;
        let room = 4 - 1 - committed;
        (11..11 + room).for_each(|value| {
            let claim = heap.try_claim(owner(1), 1).expect("no slot is lost");
            heap.write(&claim, value);
            heap.ring().commit(claim);
        });
        assert_eq!(heap.try_claim(owner(1), 1), None, "no slot is there twice");
        let mut received = Vec::new();
        heap.drain(owner(CONSUMER), &mut received);
        let expected: Vec<u64> = (1..=committed).chain(10..11 + room).collect();
        assert_eq!(sorted(received), expected);
        victim
    });
}

#[test]
fn a_slot_that_a_killed_producer_was_giving_back_is_offered_again() {
    kill_everywhere(
        2,
        &[Point::SlotClaimed, Point::HoleCounted, Point::NotifyCleared, Point::NotifyMoved],
        |fate| {
            let heap = Heap::new(1, 2);
            heap.send(owner(1), 1);
            heap.control.readable.announce();
            heap.control.writable.announce();
            let victim = Victim::new();
            let dying = victim.live(&heap, fate, |heap, _| {
                if let Some(claim) = heap.try_claim(owner(VICTIM), 1) {
                    heap.ring().abort(claim);
                }
            });
            recover_from(&victim, &heap);
            dying.join().unwrap();
            recover_from(&victim, &heap);
            heap.send(owner(1), 2);
            assert_eq!(heap.try_claim(owner(1), 1), None, "the slot was offered twice");
            let mut received = Vec::new();
            heap.drain(owner(CONSUMER), &mut received);
            assert_eq!(received, [1, 2]);
            victim
        },
    );
}

// In two halves: there are as many cores, and it is the longest.

#[test]
fn the_death_of_one_producer_before_its_sample_is_written_stops_no_other() {
    die_beside_a_producer(&[
        Point::RingOpened,
        Point::SlotClaimed,
        Point::SlotHalfWritten,
        Point::SlotWritten,
    ]);
}

#[test]
fn the_death_of_one_producer_after_its_sample_is_written_stops_no_other() {
    die_beside_a_producer(&[Point::SlotReady, Point::NotifyCleared, Point::NotifyMoved]);
}

fn die_beside_a_producer(points: &'static [Point]) {
    // One preemption: two take minutes. `make soak` does that.
    kill_everywhere(1, points, |fate| {
        let heap = Heap::new(1, 2);
        heap.send(owner(1), 1);
        heap.control.readable.announce();
        let victim = Victim::new();
        let dying = victim.live(&heap, fate, |heap, _| {
            if let Some(claim) = heap.try_claim(owner(VICTIM), 1) {
                heap.write(&claim, 2);
                heap.ring().commit(claim);
            }
        });
        // The ring is full now, or will be; but there is one who takes a batch, and looks around when he is stuck.
        let mut received = Vec::new();
        let claim = loop {
            if let Some(claim) = heap.try_claim(owner(1), 1) {
                break claim;
            }
            recover_from(&victim, &heap);
            heap.drain(owner(CONSUMER), &mut received);
            thread::yield_now();
        };
        heap.write(&claim, 3);
        heap.ring().commit(claim);
        dying.join().unwrap();
        recover_from(&victim, &heap);
        heap.drain(owner(CONSUMER), &mut received);
        let committed = victim.testament().committed;
        let expected: &[u64] = if committed == 1 { &[1, 2, 3] } else { &[1, 3] };
        assert_eq!(sorted(received), expected);
        victim
    });
}

#[test]
fn a_batch_in_the_hands_of_a_killed_consumer_is_offered_again() {
    const POINTS: &[Point] =
        &[Point::BatchTaken, Point::BatchFreed, Point::NotifyCleared, Point::NotifyMoved];
    kill_everywhere(2, POINTS, |fate| {
        let heap = Heap::new(1, 2);
        heap.send(owner(1), 1);
        heap.control.writable.announce();
        let victim = Victim::new();
        let dying = victim.live(&heap, fate, |heap, mortal| {
            if let Some(taken) = heap.try_take(owner(VICTIM)) {
                mortal.testament().in_hand = heap.read(&taken);
                heap.ring().release(taken);
            }
        });
        let mut received = Vec::new();
        recover_from(&victim, &heap);
        heap.drain(owner(CONSUMER), &mut received);
        dying.join().unwrap();
        recover_from(&victim, &heap);
        heap.drain(owner(CONSUMER), &mut received);
        received.extend(&victim.testament().consumed);
        assert_eq!(received, [1]);
        victim
    });
}

#[test]
fn a_batch_that_a_killed_consumer_was_closing_is_closed_by_the_next() {
    const POINTS: &[Point] = &[Point::BatchSealed, Point::BatchTaken, Point::BatchFreed];
    kill_everywhere(2, POINTS, |fate| {
        let heap = Heap::new(3, 2);
        heap.send(owner(1), 1);
        let victim = Victim::new();
        let dying = victim.live(&heap, fate, |heap, mortal| {
            heap.ring().seal_at_least(1).unwrap();
            if let Some(taken) = heap.try_take(owner(VICTIM)) {
                mortal.testament().in_hand = heap.read(&taken);
                heap.ring().release(taken);
            }
        });
        heap.send(owner(1), 2); // Into this batch, or into the next.
        dying.join().unwrap();
        recover_from(&victim, &heap);
        heap.ring().flush().unwrap();
        let mut received = Vec::new();
        heap.drain(owner(CONSUMER), &mut received);
        received.extend(&victim.testament().consumed);
        assert_eq!(sorted(received), [1, 2]);
        victim
    });
}

/// Commits the next samples of a session: their values are their numbers.
fn deliver(heap: &Heap, seat: usize, entry: usize, count: usize) {
    let claim = heap.claim(owner(seat), count);
    heap.write(&claim, heap.sessions[entry].next.load(Ordering::Relaxed));
    heap.ring().commit_logged(&heap.sessions[entry], claim);
}

/// A server that delivers two samples of a session, while one of another client is on its way.
fn serve(heap: &Heap, entry: usize) {
    let on_its_way = heap.claim(owner(VICTIM), 1);
    deliver(heap, VICTIM, entry, 2);
    heap.ring().abort(on_its_way);
}

/// Every number that the session counts has arrived once, and no other.
fn assert_session_is_right(heap: &Heap, mut received: Vec<u64>) {
    heap.ring().flush().unwrap();
    heap.drain(owner(CONSUMER), &mut received);
    let next = heap.sessions[0].next.load(Ordering::Relaxed);
    assert_eq!(sorted(received), (0..next).collect::<Vec<_>>());
}

#[test]
fn what_a_killed_server_had_logged_is_committed_and_counted_and_nothing_else() {
    const POINTS: &[Point] = &[
        Point::SlotWritten,
        Point::RunPlaced,
        Point::RunLogged,
        Point::SlotReady,
        Point::RunCommitted,
        Point::SessionMoved,
    ];
    kill_everywhere(2, POINTS, |fate| {
        let heap = Heap::with_session(3, 2);
        let entry = heap.ring().add_session(SESSION, 0, owner(VICTIM)).unwrap();
        let victim = Victim::new();
        let dying = victim.live(&heap, fate, move |heap, _| serve(heap, entry));
        recover_from(&victim, &heap);
        let taken = victim.give_session(&heap.ring());
        dying.join().unwrap();
        let lives = taken.or_else(|| victim.give_session(&heap.ring())).is_none();
        assert_eq!(lives, !victim.died());
        recover_from(&victim, &heap);
        assert_session_is_right(&heap, Vec::new());
        victim
    });
}

#[test]
fn a_session_that_changes_hands_while_others_recover_shows_no_unfinished_sample() {
    // One preemption: two take a minute with three threads.
    kill_everywhere(1, &[Point::RunPlaced, Point::RunLogged, Point::SlotReady], |fate| {
        let heap = Heap::with_session(3, 2);
        let entry = heap.ring().add_session(SESSION, 0, owner(VICTIM)).unwrap();
        let victim = Victim::new();
        victim.live(&heap, fate, move |heap, _| serve(heap, entry)).join().unwrap();
        let (witness, dead) = (victim.clone(), victim.clone());
        let other = spawn(&heap, move |heap| recover_from(&witness, heap));
        let next = spawn(&heap, move |heap| {
            if let Some(entry) = dead.give_session(&heap.ring()) {
                deliver(heap, NEXT_SERVER, entry, 1);
            }
        });
        other.join().unwrap();
        next.join().unwrap();
        recover_from(&victim, &heap);
        assert_session_is_right(&heap, Vec::new());
        victim
    });
}

#[test]
fn two_servers_that_find_the_session_of_a_dead_one_do_not_both_get_it() {
    kill_everywhere(2, &[Point::RunLogged, Point::RunCommitted], |fate| {
        let heap = Heap::with_session(3, 2);
        let entry = heap.ring().add_session(SESSION, 0, owner(VICTIM)).unwrap();
        let victim = Victim::new();
        victim.live(&heap, fate, move |heap, _| serve(heap, entry)).join().unwrap();
        let witness = victim.clone();
        let other = spawn(&heap, move |heap| {
            let is_dead = |who| witness.is_dead(who);
            heap.ring().release_dead_sessions(owner(1), 7, &is_dead).unwrap();
        });
        if let Some(entry) = victim.give_session(&heap.ring()) {
            deliver(&heap, NEXT_SERVER, entry, 1);
        }
        other.join().unwrap();
        recover_from(&victim, &heap);
        assert_session_is_right(&heap, Vec::new());
        victim
    });
}

#[test]
fn a_recoverer_that_is_killed_is_itself_recovered_from() {
    kill_everywhere(2, &[Point::HoleCounted, Point::NotifyCleared, Point::NotifyMoved], |fate| {
        let heap = Heap::new(1, 2);
        // Somebody died long ago, with a slot and a batch in his hands.
        let ghost = owner(3);
        heap.send(owner(1), 1);
        assert!(heap.try_take(ghost).is_some());
        let _ = heap.claim(ghost, 1);
        heap.control.readable.announce();
        heap.control.writable.announce();
        let victim = Victim::new();
        let dying = victim.live(&heap, fate, move |heap, _| {
            recover(&heap.ring(), |who| who == ghost).unwrap();
        });
        recover(&heap.ring(), |who| who == ghost).unwrap();
        let mut received = Vec::new();
        heap.drain(owner(CONSUMER), &mut received);
        dying.join().unwrap();
        recover(&heap.ring(), |who| who == ghost).unwrap();
        heap.send(owner(1), 2);
        heap.drain(owner(CONSUMER), &mut received);
        assert_eq!(received, [1, 2]);
        let counters = &heap.control.counters;
        let slots = counters.recovered_slots.load(Ordering::Relaxed);
        let batches = counters.reoffered_batches.load(Ordering::Relaxed);
        let died = victim.died();
        assert!(died || (slots, batches) == (1, 1), "each repair is counted once: {slots}, {batches}");
        victim
    });
}
