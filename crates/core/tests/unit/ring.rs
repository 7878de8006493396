//! The handles of a ring: what one call does, and what the caller is told when it cannot.

use crate::fixture::*;
use rollway_core::Error;
use rollway_core::ring::producer::ProducerSpec;
use rollway_core::ring::{Consumer, Deadline, IfExists, OnFull, Producer, RingSpec, Slot};
use rollway_core::segment::header::seat_state;
use rollway_core::sys::sync::Ordering;
use std::sync::mpsc;
use std::time::{Duration, Instant};

// ── send and receive ───────────────────────────────────────────────────────────────────────────────────────────────

#[test]
fn a_batch_holds_the_samples_in_the_order_they_were_sent() {
    let consumer = private(3, 2);
    let producer = producer(&consumer);
    (0..6).for_each(|value| send(&producer, value));
    assert_eq!((receive(&consumer), receive(&consumer)), (vec![0, 1, 2], vec![3, 4, 5]));
    assert_eq!(producer.sent(), 6);
}

#[test]
fn a_producer_finds_the_ring_by_its_name() {
    let name = Name::unique();
    let consumer = open(&spec(Some(&name), 1, 2));
    assert!(!consumer.resumed());
    send(&attach(&name).unwrap(), 7);
    assert_eq!(receive(&consumer), [7]);
    consumer.close().unwrap();
}

#[test]
fn many_batches_go_round_a_small_ring() {
    let consumer = private(2, 2);
    let producer = producer(&consumer);
    for round in 0..1000 {
        send(&producer, 2 * round);
        send(&producer, 2 * round + 1);
        assert_eq!(receive(&consumer), [2 * round, 2 * round + 1]);
    }
}

#[test]
fn a_slot_dropped_without_commit_is_offered_to_the_next() {
    let consumer = private(2, 2);
    let producer = producer(&consumer);
    let slot = Producer::reserve(&producer, 1, soon()).unwrap().unwrap();
    write_sample([slot.leaf(0), slot.leaf(1)], 666, || {});
    drop(slot);
    send(&producer, 1);
    send(&producer, 2);
    assert_eq!(receive(&consumer), [1, 2]);
    assert_eq!(consumer.ring().protocol().control.counters.aborted.load(Ordering::Relaxed), 1);
}

#[test]
fn a_slot_given_back_in_an_older_batch_completes_it() {
    let consumer = private(2, 3);
    let producer = producer(&consumer);
    let slot = Producer::reserve(&producer, 1, soon()).unwrap().unwrap();
    (1..4).for_each(|value| send(&producer, value)); // The rest of the first batch, and the second.
    assert_eq!(receive(&consumer), [2, 3], "an unfinished batch is overtaken");
    drop(slot);
    send(&producer, 4);
    assert_eq!(receive(&consumer), [4, 1]);
}

#[test]
fn a_run_of_slots_ends_with_its_batch() {
    let consumer = private(4, 2);
    let producer = producer(&consumer);
    send(&producer, 0);
    let run = Producer::reserve(&producer, 100, soon()).unwrap().unwrap();
    assert_eq!(run.len(), 3);
    for row in 0..3 {
        // The rows of a leaf lie side by side.
        let leaves = [run.leaf(0).wrapping_add(8 * row), run.leaf(1).wrapping_add(40 * row)];
        write_sample(leaves, 1 + row as u64, || {});
    }
    run.commit(0);
    assert_eq!(receive(&consumer), [0, 1, 2, 3]);
}

#[test]
fn a_run_dropped_without_commit_is_offered_slot_by_slot() {
    let consumer = private(3, 2);
    let producer = producer(&consumer);
    drop(Producer::reserve(&producer, 3, soon()).unwrap());
    (1..4).for_each(|value| send(&producer, value));
    assert_eq!(receive(&consumer), [1, 2, 3]);
}

#[test]
fn stamps_say_who_sent_what_when_and_with_which_version() {
    let consumer = private(3, 2);
    let producer =
        Producer::attach_to(consumer.ring().clone(), ProducerSpec { producer_id: Some(42), ..ANYONE })
            .unwrap();
    let before = rollway_core::sys::clock::monotonic_ns();
    for version in 5..8 {
        let slot = Producer::reserve(&producer, 1, soon()).unwrap().unwrap();
        slot.commit(version);
    }
    let batch = Consumer::take(&consumer, soon(), None).unwrap().unwrap();
    let stamps: Vec<_> = (0..3).map(|row| batch.stamp(row)).collect();
    assert_eq!(
        stamps.iter().map(|s| (s.producer_id, s.sequence, s.version)).collect::<Vec<_>>(),
        [(42, 0, 5), (42, 1, 6), (42, 2, 7)]
    );
    let times: Vec<u64> = stamps.iter().map(|s| s.committed_ns).collect();
    assert!(times.is_sorted() && times[0] >= before && times[2] <= rollway_core::sys::clock::monotonic_ns());
}

#[test]
fn every_producer_without_an_id_gets_its_own() {
    let consumer = private(1, 2);
    let producers = [(); 3].map(|()| producer(&consumer));
    assert_eq!(producers.map(|p| p.producer_id()), [0, 1, 2]);
}

// ── waiting, and not waiting ───────────────────────────────────────────────────────────────────────────────────────

#[test]
fn an_empty_ring_gives_nothing_to_one_who_does_not_wait() {
    let consumer = private(2, 2);
    send(&producer(&consumer), 1);
    assert!(Consumer::take(&consumer, Deadline::Now, None).unwrap().is_none());
}

#[test]
fn a_wait_for_a_batch_ends_at_its_time() {
    let consumer = private(2, 2);
    let started = Instant::now();
    let ended = Consumer::take(&consumer, briefly(), None);
    assert!(matches!(ended, Err(Error::Timeout)), "{ended:?}");
    assert!(started.elapsed() >= Duration::from_millis(30));
}

#[test]
fn a_waiting_consumer_is_woken_by_the_last_sample_of_a_batch() {
    let consumer = private(2, 2);
    let producer = producer(&consumer);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| receive(&consumer));
        send(&producer, 1);
        send(&producer, 2);
        assert_eq!(waiting.join().unwrap(), [1, 2]);
    });
}

#[test]
fn a_blocked_producer_is_woken_by_a_release() {
    let consumer = private(1, 2);
    let producer = producer(&consumer);
    (0..2).for_each(|value| send(&producer, value));
    let blocked = &consumer.ring().protocol().control.counters.blocked;
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| send(&producer, 2));
        assert!(eventually(|| blocked.load(Ordering::Relaxed) == 1));
        assert_eq!(receive(&consumer), [0]);
        sending.join().unwrap();
    });
    assert_eq!(drain(&consumer), [1, 2]);
}

#[test]
fn an_event_loop_waits_without_taking_or_claiming() {
    let consumer = private(1, 2);
    let producer = producer(&consumer);
    assert!(!consumer.wait_readable(briefly()).unwrap());
    assert!(producer.wait_writable(soon()).unwrap());
    (0..2).for_each(|value| send(&producer, value));
    assert!(consumer.wait_readable(soon()).unwrap());
    assert!(!producer.wait_writable(briefly()).unwrap());
    assert_eq!(receive(&consumer), [0]);
    assert!(producer.wait_writable(soon()).unwrap());
}

// ── batches that are closed early ──────────────────────────────────────────────────────────────────────────────────

#[test]
fn a_flushed_batch_is_handed_over_as_it_is() {
    let consumer = private(4, 2);
    let producer = producer(&consumer);
    (0..3).for_each(|value| send(&producer, value));
    producer.flush().unwrap();
    assert_eq!(receive(&consumer), [0, 1, 2]);
    (3..7).for_each(|value| send(&producer, value));
    assert_eq!(receive(&consumer), [3, 4, 5, 6], "the next batch is a whole one");
}

#[test]
fn a_flush_of_nothing_hands_over_nothing() {
    let consumer = private(2, 2);
    let producer = producer(&consumer);
    producer.flush().unwrap();
    consumer.flush().unwrap();
    assert_eq!(drain(&consumer), []);
    (0..2).for_each(|value| send(&producer, value));
    assert_eq!(receive(&consumer), [0, 1]);
}

#[test]
fn a_flushed_batch_waits_for_those_who_still_write() {
    let consumer = private(4, 2);
    let producer = producer(&consumer);
    send(&producer, 0);
    let slot = Producer::reserve(&producer, 1, soon()).unwrap().unwrap();
    send(&producer, 2);
    consumer.flush().unwrap();
    assert_eq!(drain(&consumer), []);
    write_sample([slot.leaf(0), slot.leaf(1)], 1, || {});
    slot.commit(0);
    assert_eq!(receive(&consumer), [0, 1, 2]);
}

#[test]
fn a_batch_closed_early_shows_the_gaps_that_were_given_back() {
    let consumer = private(4, 2);
    let producer = producer(&consumer);
    send(&producer, 0);
    let gap = Producer::reserve(&producer, 1, soon()).unwrap().unwrap();
    send(&producer, 2);
    drop(gap);
    consumer.flush().unwrap();
    let batch = Consumer::take(&consumer, soon(), None).unwrap().unwrap();
    assert_eq!((batch.runs(), values(&batch)), (vec![(0, 1), (2, 1)], vec![0, 2]));
}

#[test]
fn a_flushed_batch_whose_every_slot_is_given_back_is_nothing() {
    let consumer = private(2, 2);
    let producer = producer(&consumer);
    let slot = Producer::reserve(&producer, 2, soon()).unwrap().unwrap();
    consumer.flush().unwrap();
    drop(slot);
    assert_eq!(drain(&consumer), []);
    (0..4).for_each(|value| send(&producer, value)); // Both buffers are free.
    assert_eq!(drain(&consumer), [0, 1, 2, 3]);
}

#[test]
fn at_the_deadline_at_least_so_many_samples_are_enough() {
    let consumer = private(4, 2);
    let producer = producer(&consumer);
    (0..2).for_each(|value| send(&producer, value));
    let ended = Consumer::take(&consumer, briefly(), Some(3));
    assert!(matches!(ended, Err(Error::Timeout)), "{ended:?}");
    let batch = Consumer::take(&consumer, briefly(), Some(2)).unwrap().unwrap();
    assert_eq!(values(&batch), [0, 1]);
}

#[test]
fn one_who_does_not_wait_can_ask_for_at_least_one_sample() {
    let consumer = private(4, 2);
    let producer = producer(&consumer);
    assert!(Consumer::take(&consumer, Deadline::Now, Some(1)).unwrap().is_none());
    send(&producer, 0);
    let batch = Consumer::take(&consumer, Deadline::Now, Some(1)).unwrap().unwrap();
    assert_eq!(values(&batch), [0]);
}

// ── a full ring ────────────────────────────────────────────────────────────────────────────────────────────────────

fn full_ring(on_full: OnFull) -> (Consumer, Producer) {
    let consumer = open(&RingSpec { on_full, ..spec(None, 2, 2) });
    let producer = producer(&consumer);
    (0..4).for_each(|value| send(&producer, value));
    (consumer, producer)
}

#[test]
fn a_producer_that_blocks_waits_as_long_as_it_was_told() {
    let (consumer, producer) = full_ring(OnFull::Block);
    assert!(matches!(try_send(&producer, 4, Deadline::Now), Err(Error::Full)));
    assert!(matches!(try_send(&producer, 4, briefly()), Err(Error::Timeout)));
    assert_eq!(drain(&consumer), [0, 1, 2, 3]);
}

#[test]
fn a_producer_may_be_told_that_the_ring_is_full() {
    let (consumer, producer) = full_ring(OnFull::Error);
    assert!(matches!(try_send(&producer, 4, soon()), Err(Error::Full)));
    assert_eq!(receive(&consumer), [0, 1]);
    send(&producer, 4);
}

#[test]
fn dropping_the_newest_keeps_what_is_there_and_counts() {
    let (consumer, producer) = full_ring(OnFull::DropNewest);
    assert!(!try_send(&producer, 4, soon()).unwrap());
    assert!(!try_send(&producer, 5, soon()).unwrap());
    let counters = &consumer.ring().protocol().control.counters;
    assert_eq!(counters.dropped_newest.load(Ordering::Relaxed), 2);
    assert_eq!(drain(&consumer), [0, 1, 2, 3]);
}

#[test]
fn dropping_the_oldest_makes_room_by_whole_batches_and_counts() {
    let (consumer, producer) = full_ring(OnFull::DropOldest);
    (4..7).for_each(|value| send(&producer, value));
    let counters = &consumer.ring().protocol().control.counters;
    assert_eq!(counters.dropped_oldest.load(Ordering::Relaxed), 4);
    assert_eq!(counters.dropped_newest.load(Ordering::Relaxed), 0);
    send(&producer, 7);
    assert_eq!(drain(&consumer), [4, 5, 6, 7]);
}

#[test]
fn dropping_the_oldest_does_not_touch_a_batch_that_is_being_read() {
    let (consumer, producer) = full_ring(OnFull::DropOldest);
    let held = Consumer::take(&consumer, soon(), None).unwrap().unwrap();
    (4..100).for_each(|value| send(&producer, value));
    assert_eq!(values(&held), [0, 1]);
    assert_eq!(drain(&consumer), [98, 99]);
    let counters = &consumer.ring().protocol().control.counters;
    assert_eq!(counters.dropped_oldest.load(Ordering::Relaxed), 96);
}

#[test]
fn with_every_batch_in_somebody_s_hands_even_drop_oldest_drops_the_newest() {
    let (consumer, producer) = full_ring(OnFull::DropOldest);
    let held = [(); 2].map(|()| Consumer::take(&consumer, soon(), None).unwrap().unwrap());
    assert!(!try_send(&producer, 4, soon()).unwrap());
    let counters = &consumer.ring().protocol().control.counters;
    assert_eq!(counters.dropped_newest.load(Ordering::Relaxed), 1);
    assert_eq!(held.each_ref().map(values), [[0, 1], [2, 3]]);
}

#[test]
fn a_producer_may_have_a_policy_of_its_own() {
    let (consumer, _blocking) = full_ring(OnFull::Block);
    let own = ProducerSpec { on_full: Some(OnFull::DropNewest), ..ANYONE };
    let producer = Producer::attach_to(consumer.ring().clone(), own).unwrap();
    assert!(!try_send(&producer, 9, soon()).unwrap());
}

#[test]
fn closing_a_producer_ends_its_waiting_calls_and_nobody_elses() {
    let (consumer, producer) = full_ring(OnFull::Block);
    let other = self::producer(&consumer);
    let [ended, waited, others] = [&producer, &producer, &other].map(|_| mpsc::channel());
    std::thread::scope(|scope| {
        scope.spawn(|| ended.0.send(try_send(&producer, 8, Deadline::Never)));
        scope.spawn(|| waited.0.send(producer.wait_writable(Deadline::Never)));
        scope.spawn(|| others.0.send(try_send(&other, 9, soon())));
        let counters = &consumer.ring().protocol().control.counters;
        assert!(eventually(|| counters.blocked.load(Ordering::Relaxed) == 2));
        producer.close();
        let ended = ended.1.recv_timeout(DEADLINE).unwrap();
        assert!(matches!(ended, Err(Error::Closed)), "{ended:?}");
        assert!(waited.1.recv_timeout(DEADLINE).unwrap().unwrap());
        receive(&consumer); // There is room: for the other one.
        assert!(others.1.recv_timeout(DEADLINE).unwrap().unwrap());
    });
    let later = try_send(&producer, 10, Deadline::Now);
    assert!(matches!(later, Err(Error::Closed)), "{later:?}");
    assert!(!consumer.ring().is_closed());
}

#[test]
fn closing_a_consumer_ends_its_waiting_calls_and_leaves_the_batches_to_the_others() {
    let name = Name::unique();
    let first = open(&spec(Some(&name), 1, 2));
    let second = open(&spec(Some(&name), 1, 2));
    let (ended, waited) = (mpsc::channel(), mpsc::channel());
    std::thread::scope(|scope| {
        scope.spawn(|| ended.0.send(Consumer::take(&first, Deadline::Never, None).map(drop)));
        scope.spawn(|| waited.0.send(first.wait_readable(Deadline::Never)));
        assert!(eventually(|| first.ring().protocol().control.readable.has_waiter()));
        first.close().unwrap();
        let ended = ended.1.recv_timeout(DEADLINE).unwrap();
        assert!(matches!(ended, Err(Error::Closed)), "{ended:?}");
        assert!(waited.1.recv_timeout(DEADLINE).unwrap().unwrap());
    });
    send(&attach(&name).unwrap(), 7);
    let later = Consumer::take(&first, Deadline::Now, None).map(drop);
    assert!(matches!(later, Err(Error::Closed)), "{later:?}");
    assert_eq!(receive(&second), [7]);
    second.close().unwrap();
}

// ── several batches, several consumers ─────────────────────────────────────────────────────────────────────────────

#[test]
fn a_learner_may_hold_several_batches_at_once() {
    let consumer = private(1, 3);
    let producer = producer(&consumer);
    (0..3).for_each(|value| send(&producer, value));
    let held: Vec<_> = (0..3).map(|_| Consumer::take(&consumer, soon(), None).unwrap().unwrap()).collect();
    assert_eq!(held.iter().flat_map(values).collect::<Vec<_>>(), [0, 1, 2]);
}

#[test]
fn one_who_holds_every_batch_is_told_so_and_does_not_wait_for_ever() {
    let (consumer, _producer) = full_ring(OnFull::Block);
    let held = [(); 2].map(|()| Consumer::take(&consumer, soon(), None).unwrap().unwrap());
    let ended = Consumer::take(&consumer, Deadline::Never, None);
    assert!(matches!(ended, Err(Error::AllHeld(2))), "{ended:?}");
    drop(held);
}

#[test]
fn one_who_waits_while_another_thread_holds_every_batch_gets_the_next() {
    let (consumer, producer) = full_ring(OnFull::Block);
    let held = [(); 2].map(|()| Consumer::take(&consumer, soon(), None).unwrap().unwrap());
    let waits = || consumer.ring().protocol().control.readable.has_waiter();
    std::thread::scope(|scope| {
        let next = scope.spawn(|| receive(&consumer).len());
        assert!(eventually(waits));
        drop(held);
        (0..2).for_each(|value| send(&producer, value));
        assert_eq!(next.join().unwrap(), 2);
    });
}

#[test]
fn a_batch_held_for_ever_does_not_stop_the_rest() {
    for num_buffers in 2..5 {
        let consumer = private(2, num_buffers);
        let producer = producer(&consumer);
        // All but one are held.
        let mut held = Vec::new();
        for number in 0..num_buffers as u64 - 1 {
            (0..2).for_each(|row| send(&producer, 2 * number + row));
            held.push(Consumer::take(&consumer, soon(), None).unwrap().unwrap());
        }
        for value in (100..120).step_by(2) {
            send(&producer, value);
            send(&producer, value + 1);
            assert_eq!(receive(&consumer), [value, value + 1], "with {num_buffers} buffers");
        }
        let kept: Vec<u64> = held.iter().flat_map(values).collect();
        assert_eq!(kept, (0..2 * held.len() as u64).collect::<Vec<_>>());
    }
}

#[test]
fn a_batch_given_back_is_offered_again_whole() {
    let consumer = private(2, 2);
    let producer = producer(&consumer);
    (0..4).for_each(|value| send(&producer, value));
    Consumer::take(&consumer, soon(), None).unwrap().unwrap().give_back();
    assert_eq!(drain(&consumer), [0, 1, 2, 3]);
}

#[test]
fn a_batch_given_back_wakes_another_consumer() {
    let name = Name::unique();
    let one = open(&spec(Some(&name), 1, 2));
    let two = open(&spec(Some(&name), 1, 2));
    assert!(two.resumed());
    send(&attach(&name).unwrap(), 7);
    let batch = Consumer::take(&one, soon(), None).unwrap().unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| receive(&two));
        batch.give_back();
        assert_eq!(waiting.join().unwrap(), [7]);
    });
    one.close().unwrap();
    two.close().unwrap();
}

#[test]
fn several_consumers_share_the_batches_and_see_none_twice() {
    const SAMPLES: u64 = 3_000;
    let name = Name::unique();
    let spec = spec(Some(&name), 3, 4);
    let consumers = [(); 3].map(|()| open(&spec));
    let mut received = std::thread::scope(|scope| {
        for start in 0..3 {
            let producer = attach(&name).unwrap();
            scope.spawn(move || (start..SAMPLES).step_by(3).for_each(|value| send(&producer, value)));
        }
        let (sender, everything) = mpsc::channel();
        for consumer in &consumers {
            let sender = sender.clone();
            scope.spawn(move || {
                while let Ok(batch) = Consumer::take(consumer, soon(), None) {
                    values(&batch.unwrap()).into_iter().for_each(|value| sender.send(value).unwrap());
                }
            });
        }
        let received: Vec<u64> = everything.iter().take(SAMPLES as usize).collect();
        consumers.iter().for_each(|consumer| consumer.close().unwrap());
        received
    });
    received.sort_unstable();
    assert_eq!(received, (0..SAMPLES).collect::<Vec<_>>());
}

#[test]
fn threads_may_share_one_producer_and_one_consumer() {
    const EACH: u64 = 1_000;
    let consumer = private(4, 3);
    let producer = producer(&consumer);
    let received = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let producer = &producer;
            scope.spawn(move || (0..EACH).for_each(|n| send(producer, thread * EACH + n)));
        }
        for _ in 0..2 {
            scope.spawn(|| {
                while let Ok(Some(batch)) = Consumer::take(&consumer, soon(), None) {
                    let mut received = received.lock().unwrap();
                    received.extend(values(&batch));
                    if received.len() as u64 == 4 * EACH {
                        consumer.ring().shut_down();
                    }
                }
            });
        }
    });
    assert_eq!(sorted(received.into_inner().unwrap()), (0..4 * EACH).collect::<Vec<_>>());
    assert_eq!(producer.sent(), 4 * EACH);
}

// ── the end ────────────────────────────────────────────────────────────────────────────────────────────────────────

#[test]
fn after_the_close_producers_are_told_and_the_rest_can_be_taken() {
    let consumer = private(2, 2);
    let producer = producer(&consumer);
    (0..3).for_each(|value| send(&producer, value));
    consumer.close().unwrap();
    assert!(is_closed(try_send(&producer, 3, soon())));
    assert_eq!(receive(&consumer), [0, 1]);
    assert!(is_closed(Consumer::take(&consumer, soon(), None)));
    assert!(is_closed(Consumer::take(&consumer, Deadline::Now, None)));
}

// ── waiting awake ──────────────────────────────────────────────────────────────────────────────────────────────────

/// Sends when there is room, which it waits for as Python's `send` does. Whether it was awake all the while.
fn send_waking(producer: &Producer, value: u64) -> bool {
    let at_once = producer.claim(1, Deadline::Now);
    let awake = match at_once {
        Err(Error::Full) => producer.claim_spinning(1).unwrap(),
        _ => None,
    };
    let was_awake = awake.is_some();
    let claim = awake.unwrap_or_else(|| match at_once {
        Ok(Some(claim)) => claim,
        _ => producer.claim(1, soon()).unwrap().unwrap(),
    });
    let slot = Slot::of(producer, claim);
    write_sample([slot.leaf(0), slot.leaf(1)], value, || {});
    slot.commit(0);
    was_awake
}

#[test]
fn a_stream_that_is_held_up_for_moments_only_is_sent_awake_and_arrives_in_order() {
    let consumer = private(1, 2);
    let producer = producer(&consumer);
    let (mut sent, mut awake) = (0, false);
    std::thread::scope(|scope| {
        let received = scope.spawn(|| {
            let mut all = Vec::new();
            while let Ok(Some(batch)) = Consumer::take(&consumer, soon(), None) {
                all.extend(values(&batch));
            }
            all
        });
        // Short waits are rare on a busy machine.
        let deadline = Instant::now() + 3 * DEADLINE;
        while !awake || sent < 1000 {
            assert!(Instant::now() < deadline, "{sent} sent, none of them awake: {}", !awake);
            awake |= send_waking(&producer, sent);
            sent += 1;
        }
        consumer.ring().shut_down();
        assert!(received.join().unwrap().into_iter().eq(0..sent));
    });
}

#[test]
fn nobody_waits_awake_for_one_that_takes_its_time() {
    let consumer = private(1, 2);
    let producer = producer(&consumer);
    (0..2).for_each(|value| send(&producer, value));
    assert!(producer.claim_spinning(1).unwrap().is_none(), "no wait has been short yet");
    assert!(matches!(producer.claim(1, briefly()), Err(Error::Timeout)));
    assert!(producer.claim_spinning(1).unwrap().is_none(), "the last one was long");
}

#[test]
fn nobody_waits_awake_where_the_policy_is_not_to_wait() {
    let consumer = private(1, 2);
    for policy in [OnFull::Error, OnFull::DropNewest, OnFull::DropOldest] {
        let spec = ProducerSpec { on_full: Some(policy), ..ANYONE };
        let producer = Producer::attach_to(consumer.ring().clone(), spec).unwrap();
        assert!(producer.claim_spinning(1).unwrap().is_none(), "{policy:?}");
    }
}

#[test]
fn the_close_wakes_a_blocked_producer_and_a_waiting_consumer() {
    let name = Name::unique();
    let consumer = open(&spec(Some(&name), 1, 2));
    let other = open(&spec(Some(&name), 1, 2));
    let producer = attach(&name).unwrap();
    (0..2).for_each(|value| send(&producer, value));
    let held = [(); 2].map(|()| Consumer::take(&consumer, soon(), None).unwrap().unwrap());
    std::thread::scope(|scope| {
        let blocked = scope.spawn(|| try_send(&producer, 2, Deadline::Never));
        let waiting = scope.spawn(|| Consumer::take(&other, Deadline::Never, None).map(|_| ()));
        let control = consumer.ring().protocol().control;
        assert!(eventually(|| control.counters.blocked.load(Ordering::Relaxed) == 1));
        assert!(eventually(|| control.readable.has_waiter()));
        consumer.ring().shut_down();
        assert!(is_closed(blocked.join().unwrap()));
        assert!(is_closed(waiting.join().unwrap()));
    });
    drop(held);
    consumer.close().unwrap();
    other.close().unwrap();
}

#[test]
fn the_last_of_several_consumers_to_close_shuts_the_ring_down() {
    let name = Name::unique();
    let consumers = [(); 2].map(|()| open(&spec(Some(&name), 1, 2)));
    let producer = attach(&name).unwrap();
    let [one, two] = consumers;
    one.close().unwrap();
    send(&producer, 1);
    assert!(name.path().exists());
    two.close().unwrap();
    assert!(!name.path().exists());
    assert!(is_closed(try_send(&producer, 2, soon())));
}

#[test]
fn of_two_consumers_that_close_at_once_one_shuts_the_ring_down() {
    for _ in 0..50 {
        let name = Name::unique();
        let consumers = [(); 2].map(|()| open(&spec(Some(&name), 1, 2)));
        let producer = attach(&name).unwrap();
        std::thread::scope(|scope| {
            for consumer in &consumers {
                scope.spawn(|| consumer.close().unwrap());
            }
        });
        assert!(is_closed(try_send(&producer, 1, soon())));
    }
}

#[test]
fn a_consumer_that_is_dropped_has_left_as_if_it_had_closed() {
    let name = Name::unique();
    let consumer = open(&spec(Some(&name), 1, 2));
    let producer = attach(&name).unwrap();
    drop(consumer);
    assert!(!name.path().exists());
    assert!(is_closed(try_send(&producer, 1, soon())));
}

#[test]
fn closing_twice_is_closing_once() {
    let name = Name::unique();
    let consumer = open(&spec(Some(&name), 1, 2));
    consumer.close().unwrap();
    let successor = open(&spec(Some(&name), 1, 2));
    consumer.close().unwrap();
    assert!(name.path().exists(), "the name belongs to another ring now");
    send(&attach(&name).unwrap(), 1);
    assert_eq!(receive(&successor), [1]);
    successor.close().unwrap();
}

#[test]
fn a_producer_comes_too_late_to_a_closed_ring() {
    let name = Name::unique();
    let consumer = open(&spec(Some(&name), 1, 2));
    consumer.ring().shut_down();
    assert!(is_closed(attach(&name)));
    consumer.close().unwrap();
    assert!(matches!(attach(&name), Err(Error::NotFound { .. })));
}

// ── coming back ────────────────────────────────────────────────────────────────────────────────────────────────────

#[test]
#[ignore = "a child process of others"]
fn child_learner() {
    let consumer = open(&spec(Some(&told("RING")), 2, 2));
    say("open");
    if told("HOLDS") == "a batch" {
        let batch = Consumer::take(&consumer, soon(), None).unwrap().unwrap();
        say(format!("{:?}", values(&batch)));
        stay();
    }
    stay();
}

/// A learner in a process of its own, that has opened the ring.
fn learner(name: &str, holds: &str) -> Process {
    let mut learner = Process::start("ring::child_learner", &[("RING", name), ("HOLDS", holds)]);
    assert_eq!(learner.hear().as_deref(), Some("open"));
    learner
}

/// Leaves a ring in which nobody lives.
fn leave_stale(name: &str) {
    learner(name, "nothing").kill();
}

#[test]
fn a_learner_that_was_killed_comes_back_to_what_was_committed() {
    let name = Name::unique();
    let mut first = learner(&name, "nothing");
    let producer = attach(&name).unwrap();
    (0..3).for_each(|value| send(&producer, value));
    first.kill();
    send(&producer, 3);
    let second = open(&spec(Some(&name), 2, 2));
    assert!(second.resumed());
    assert_eq!(drain(&second), [0, 1, 2, 3]);
    (4..6).for_each(|value| send(&producer, value));
    assert_eq!(receive(&second), [4, 5]);
}

#[test]
fn a_ring_in_which_nobody_lives_is_still_there_for_who_comes_back() {
    let name = Name::unique();
    leave_stale(&name);
    let producer = attach(&name).unwrap();
    (0..2).for_each(|value| send(&producer, value));
    drop(producer);
    let consumer = open(&spec(Some(&name), 2, 2));
    assert_eq!(receive(&consumer), [0, 1]);
}

#[test]
fn a_batch_in_the_hands_of_a_killed_learner_is_offered_again() {
    let name = Name::unique();
    let mut learner = learner(&name, "a batch");
    let producer = attach(&name).unwrap();
    (0..4).for_each(|value| send(&producer, value));
    assert_eq!(learner.hear().as_deref(), Some("[0, 1]"));
    let beside = open(&spec(Some(&name), 2, 2));
    assert_eq!(receive(&beside), [2, 3]);
    assert_eq!(drain(&beside), [], "a learner that lives keeps its batch");
    learner.kill();
    assert_eq!(receive(&beside), [0, 1]);
    let counters = &beside.ring().protocol().control.counters;
    assert_eq!(counters.reoffered_batches.load(Ordering::Relaxed), 1);
}

#[test]
fn a_blocked_producer_learns_that_the_learner_died() {
    let name = Name::unique();
    let mut learner = learner(&name, "a batch");
    let hurried = ProducerSpec { peer_timeout: Some(Duration::from_millis(50)), ..ANYONE };
    let producer = Producer::attach(&name, SCHEMA, LEAVES, hurried).unwrap();
    (0..4).for_each(|value| send(&producer, value));
    learner.hear().unwrap();
    learner.kill();
    let ended = try_send(&producer, 4, soon());
    let Err(Error::PeersGone(message)) = ended else { panic!("{ended:?}") };
    assert!(message.contains(&learner.pid().to_string()), "{message}");
    // And goes on when another takes its place.
    let second = open(&spec(Some(&name), 2, 2));
    assert_eq!(receive(&second), [0, 1]);
    send(&producer, 4);
}

#[test]
fn a_learner_that_lives_is_not_taken_for_dead_because_somebody_noted_so() {
    let name = Name::unique();
    let consumer = open(&spec(Some(&name), 2, 2));
    let hurried = ProducerSpec { peer_timeout: Some(Duration::ZERO), ..ANYONE };
    let producer = Producer::attach(&name, SCHEMA, LEAVES, hurried).unwrap();
    (0..4).for_each(|value| send(&producer, value));
    // As one may who asked about its seat's last holder, and was slow.
    consumer.ring().segment().seats()[0].state.store(seat_state::DIED, Ordering::Relaxed);
    assert!(matches!(try_send(&producer, 4, briefly()), Err(Error::Timeout)));
    consumer.close().unwrap();
}

#[test]
#[ignore = "a child process of others"]
fn child_worker_that_holds_a_slot() {
    let producer = attach(&told("RING")).unwrap();
    send(&producer, 1);
    let slot = Producer::reserve(&producer, 1, soon()).unwrap().unwrap();
    write_sample([slot.leaf(0), slot.leaf(1)], 666, || {});
    say("claimed");
    stay();
}

#[test]
fn a_waiting_learner_learns_that_every_worker_died() {
    let name = Name::unique();
    let limit = Some(Duration::from_millis(50));
    let consumer = Consumer::open(&spec(Some(&name), 4, 2), IfExists::Resume, limit).unwrap();
    let mut worker = Process::start("ring::child_worker_that_holds_a_slot", &[("RING", &name)]);
    worker.hear().unwrap();
    assert_eq!((consumer.producers().alive, consumer.producers().died.len()), (1, 0));
    let ended = Consumer::take(&consumer, briefly(), None);
    assert!(matches!(ended, Err(Error::Timeout)), "a worker that lives is waited for: {ended:?}");
    worker.kill();
    let ended = Consumer::take(&consumer, soon(), None);
    let Err(Error::PeersGone(message)) = ended else { panic!("{ended:?}") };
    assert!(message.contains(&worker.pid().to_string()), "{message}");
    assert_eq!(consumer.producers().died, [worker.pid() as u32]);
    consumer.flush().unwrap();
    assert_eq!(receive(&consumer), [1], "what it had committed, and nothing else");
    consumer.close().unwrap();
}

#[test]
fn the_slot_of_a_killed_worker_is_filled_by_another() {
    let name = Name::unique();
    let consumer = open(&spec(Some(&name), 3, 2));
    let mut worker = Process::start("ring::child_worker_that_holds_a_slot", &[("RING", &name)]);
    worker.hear().unwrap();
    let producer = attach(&name).unwrap();
    send(&producer, 10);
    worker.kill();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| receive(&consumer));
        let counters = &consumer.ring().protocol().control.counters;
        assert!(eventually(|| counters.recovered_slots.load(Ordering::Relaxed) == 1));
        send(&producer, 11);
        assert_eq!(waiting.join().unwrap(), [1, 11, 10]);
    });
    consumer.close().unwrap();
}

#[test]
fn a_worker_that_sits_down_where_another_was_killed_inherits_nothing() {
    let name = Name::unique();
    let consumer = open(&RingSpec { max_peers: 2, ..spec(Some(&name), 2, 2) });
    let mut worker = Process::start("ring::child_worker_that_holds_a_slot", &[("RING", &name)]);
    worker.hear().unwrap();
    assert!(matches!(attach(&name), Err(Error::NoSeat { seats: 2, .. })));
    worker.kill();
    let successor = attach(&name).unwrap();
    assert_eq!(consumer.ring().census().claimed_slots, 0);
    send(&successor, 2);
    assert_eq!(receive(&consumer), [1, 2]);
    consumer.close().unwrap();
}

// ── who may open what ──────────────────────────────────────────────────────────────────────────────────────────────

#[test]
fn fail_refuses_any_ring_of_that_name() {
    let name = Name::unique();
    let spec = spec(Some(&name), 2, 2);
    let refused = |what: &str| {
        let refused = Consumer::open(&spec, IfExists::Fail, None);
        assert!(matches!(refused, Err(Error::Exists { .. })), "{what}: {refused:?}");
    };
    let live = Consumer::open(&spec, IfExists::Fail, None).unwrap();
    refused("a live one");
    drop(live);
    leave_stale(&name);
    refused("a stale one");
    drop(open(&spec));
}

#[test]
fn replace_takes_the_place_of_a_stale_ring_and_not_of_a_live_one() {
    let name = Name::unique();
    let spec = spec(Some(&name), 2, 2);
    let mut first = learner(&name, "nothing");
    let producer = attach(&name).unwrap();
    (0..2).for_each(|value| send(&producer, value));
    let refused = Consumer::open(&spec, IfExists::Replace, None);
    assert!(matches!(refused, Err(Error::InUse { alive: 2, .. })), "{refused:?}");
    first.kill();
    let refused = Consumer::open(&spec, IfExists::Replace, None);
    assert!(matches!(refused, Err(Error::InUse { alive: 1, .. })), "a producer lives in it: {refused:?}");
    drop(producer);
    let second = Consumer::open(&spec, IfExists::Replace, None).unwrap();
    assert!(!second.resumed());
    assert_eq!(drain(&second), []);
}

#[test]
fn resume_replaces_a_stale_ring_of_another_shape_and_not_a_live_one() {
    let name = Name::unique();
    let mut first = learner(&name, "nothing");
    let wide = spec(Some(&name), 3, 2);
    let refused = Consumer::open(&wide, IfExists::Resume, None);
    assert!(
        matches!(refused, Err(Error::Geometry { what: "batch_size", theirs: 2, ours: 3, .. })),
        "{refused:?}"
    );
    let long = spec(Some(&name), 2, 3);
    let refused = Consumer::open(&long, IfExists::Resume, None);
    assert!(
        matches!(refused, Err(Error::Geometry { what: "num_buffers", theirs: 2, ours: 3, .. })),
        "{refused:?}"
    );
    first.kill();
    let consumer = open(&wide);
    assert!(!consumer.resumed());
}

#[test]
fn a_producer_of_another_schema_is_refused_and_shown_the_right_one() {
    let name = Name::unique();
    let consumer = open(&spec(Some(&name), 1, 2));
    let refused = Producer::attach(&name, b"something else", LEAVES, ANYONE);
    let Err(Error::Schema { theirs, creator, .. }) = refused else { panic!("{refused:?}") };
    assert_eq!((theirs.as_slice(), creator), (SCHEMA, std::process::id()));
    let refused = Producer::attach(&name, SCHEMA, &[8], ANYONE);
    assert!(matches!(refused, Err(Error::Corrupt { .. })), "{refused:?}");
    consumer.close().unwrap();
}

#[test]
fn a_seat_is_free_again_when_its_holder_has_left() {
    let consumer = open(&RingSpec { max_peers: 2, ..spec(None, 1, 2) });
    for value in 0..5_000 {
        let producer = producer(&consumer);
        send(&producer, value);
        assert_eq!(receive(&consumer), [value]);
    }
    let _one = producer(&consumer);
    let refused = Producer::attach_to(consumer.ring().clone(), ANYONE);
    assert!(matches!(refused, Err(Error::NoSeat { seats: 2, .. })));
}

#[test]
fn sizes_that_make_no_ring_are_refused() {
    let good = spec(None, 1, 2);
    let bad = [
        RingSpec { batch_size: 0, ..good.clone() },
        RingSpec { batch_size: 1 << 24, ..good.clone() },
        RingSpec { num_buffers: 1, ..good.clone() },
        RingSpec { num_buffers: 1 << 16, ..good.clone() },
        RingSpec { leaf_bytes: &[], ..good.clone() },
        RingSpec { leaf_bytes: &[usize::MAX / 2, 8], ..good.clone() },
        RingSpec { leaf_bytes: &[1 << 62], batch_size: 3, ..good.clone() },
        RingSpec { max_peers: 0, ..good.clone() },
        RingSpec { max_peers: 1025, ..good },
    ];
    for spec in bad {
        let refused = Consumer::open(&spec, IfExists::Resume, None);
        assert!(matches!(refused, Err(Error::OutOfRange { .. })), "{spec:?}: {refused:?}");
    }
}

#[test]
fn a_leaf_without_bytes_is_allowed() {
    let consumer = open(&RingSpec { leaf_bytes: &[0, 3], ..spec(None, 2, 2) });
    let producer = producer(&consumer);
    let slot = Producer::reserve(&producer, 2, soon()).unwrap().unwrap();
    slot.commit(0);
    assert_eq!(Consumer::take(&consumer, soon(), None).unwrap().unwrap().len(), 2);
}

#[test]
fn the_census_counts_what_is_where() {
    let consumer = private(2, 3);
    let producer = producer(&consumer);
    (0..5).for_each(|value| send(&producer, value));
    let held = Consumer::take(&consumer, soon(), None).unwrap().unwrap();
    let slot = Producer::reserve(&producer, 1, soon()).unwrap().unwrap();
    let census = consumer.ring().census();
    assert_eq!((census.ready_samples, census.claimed_slots), (3, 1));
    assert_eq!((census.ready_batches, census.held_batches, census.free_buffers), (1, 1, 0));
    assert_eq!(consumer.ring().writers(), [(std::process::id(), 1)]);
    drop((held, slot));
    let census = consumer.ring().census();
    assert_eq!((census.claimed_slots, census.held_batches, census.free_buffers), (0, 0, 1));
}

// ── words that no honest participant can have written ──────────────────────────────────────────────────────────────

/// Uses every call on a ring with a damaged word, on a thread that may get stuck.
fn survives(what: &str, damage: impl FnOnce(&Consumer) + Send + 'static) {
    let (sender, done) = mpsc::channel();
    let user = std::thread::spawn(move || {
        let consumer = private(2, 3);
        let producer = producer(&consumer);
        (0..5).for_each(|value| send(&producer, value));
        damage(&consumer);
        for value in 5..10 {
            let _ = try_send(&producer, value, Deadline::Now);
            let _ = Producer::reserve(&producer, 3, Deadline::Now);
            let _ = producer.flush();
            let _ = Consumer::take(&consumer, Deadline::Now, Some(1));
            let _ = Consumer::take(&consumer, Deadline::after(Some(Duration::from_millis(5))), None);
            let _ = consumer.ring().census();
            let _ = consumer.ring().writers();
        }
        drop(consumer.close());
        sender.send(()).unwrap();
    });
    match done.recv_timeout(DEADLINE) {
        Ok(()) => user.join().unwrap(),
        Err(mpsc::RecvTimeoutError::Disconnected) => panic!("{what}: {:?}", user.join()),
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("{what}: a call does not come back"),
    }
}

#[test]
fn damage_to_any_one_word_is_an_error_or_a_wrong_answer_but_no_panic() {
    for garbage in [0, 1, u64::MAX, 1 << 24, 1 << 63, 0x5555_5555_5555_5555, 0xaaaa_aaaa_aaaa_aaaa] {
        survives("open", move |c| c.ring().protocol().control.write.open.store(garbage, Ordering::SeqCst));
        survives("cursor", move |c| {
            c.ring().protocol().control.write.cursor.store(garbage, Ordering::SeqCst)
        });
        survives("holes", move |c| c.ring().protocol().control.write.holes.store(garbage, Ordering::SeqCst));
        for index in 0..3 {
            let buffers = move |c: &Consumer, word: fn(&rollway_core::ring::layout::Buffer, u64)| {
                word(&c.ring().protocol().buffers[index], garbage);
            };
            survives("a buffer word", move |c| buffers(c, |b, g| b.word.store(g, Ordering::SeqCst)));
            survives("a target", move |c| buffers(c, |b, g| b.target.store(g, Ordering::SeqCst)));
            survives("a seal", move |c| buffers(c, |b, g| b.sealed.store(g, Ordering::SeqCst)));
        }
        for slot in 0..6 {
            survives("a slot word", move |c| {
                c.ring().protocol().slots[slot].word.store(garbage, Ordering::SeqCst)
            });
        }
    }
}

#[test]
fn an_open_word_that_names_no_buffer_is_reported_as_damage() {
    let consumer = private(1, 2);
    let producer = producer(&consumer);
    consumer.ring().protocol().control.write.open.store(u64::MAX, Ordering::SeqCst);
    let ended = try_send(&producer, 1, soon());
    assert!(matches!(ended, Err(Error::Corrupt { .. })), "{ended:?}");
    let ended = Consumer::take(&consumer, soon(), None);
    assert!(matches!(ended, Err(Error::Corrupt { .. })), "{ended:?}");
}

#[test]
fn batch_numbers_that_run_in_a_circle_do_not_lead_a_consumer_round() {
    survives("numbers in a circle", |consumer| {
        // Compared modulo 2⁴⁰, each comes before the next, and the last before the first. None is complete.
        for (index, buffer) in consumer.ring().protocol().buffers.iter().enumerate() {
            let batch = (index as u64 + 1) * ((1 << 40) / 3);
            buffer.word.store(batch << 24 | 1 << 22, Ordering::SeqCst);
        }
    });
}
