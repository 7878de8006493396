//! Records, one call at a time and a few at once: what each of them does, every error, and what other processes leave.
//!
//! What takes another process is one of the ignored tests of this binary, started again. The kill matrix is in
//! `fault/records.rs`.
use crate::fixture::{DEADLINE, Name, Process, alone, briefly, eventually, is_closed, say, soon, stay, told};
use rollway_core::records::layout::{State, Word};
use rollway_core::records::{
    Consumer, Contents, Deadline, IfExists, Label, OnFull, Outgoing, Producer, ProducerSpec, Record, Records,
    RecordsSpec,
};
use rollway_core::segment::{arrival, catalog};
use rollway_core::sys::sync::Ordering;
use rollway_core::{Error, Result};
use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

const SCHEMA: &[u8] = br#"[["number","<u8",[]],["check","<u8",[]],["bytes","|u1",["*"]]]"#;
const ANYONE: ProducerSpec = ProducerSpec { producer_id: None, on_full: None, peer_timeout: None };
const LANE: usize = 64 << 10;

fn spec(name: Option<&str>) -> RecordsSpec<'_> {
    RecordsSpec {
        name,
        auto_named: false,
        schema: SCHEMA,
        lanes: 4,
        lane_bytes: LANE,
        descriptors: 8,
        max_peers: 16,
        on_full: OnFull::Block,
        preallocate: false,
    }
}

fn open(spec: &RecordsSpec<'_>) -> Arc<Consumer> {
    Arc::new(Consumer::open(spec, IfExists::Resume, None).unwrap())
}

fn private() -> Arc<Consumer> {
    open(&spec(None))
}

fn producer(consumer: &Consumer) -> Arc<Producer> {
    Arc::new(Producer::attach_to(consumer.records().clone(), ANYONE).unwrap())
}

fn producer_that(consumer: &Consumer, on_full: OnFull) -> Producer {
    Producer::attach_to(consumer.records().clone(), ProducerSpec { on_full: Some(on_full), ..ANYONE })
        .unwrap()
}

/// `bytes` bytes that follow from `value`.
fn fill(value: u64, room: &mut [u8]) {
    let mut state = value.wrapping_mul(0x9e3779b97f4a7c15) | 1;
    for chunk in room.chunks_mut(8) {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        chunk.copy_from_slice(&state.to_le_bytes()[..chunk.len()]);
    }
}

fn body(value: u64, bytes: usize) -> Vec<u8> {
    let mut room = vec![0; bytes];
    fill(value, &mut room);
    room
}

/// Sends `value` as a record of `bytes`; the value is also its version.
fn try_send(producer: &Producer, value: u64, bytes: usize, deadline: Deadline) -> Result<bool> {
    let Some(mut room) = Producer::reserve(producer, bytes, deadline)? else { return Ok(false) };
    fill(value, room.bytes_mut());
    room.commit(bytes, Label { version: value as u32, ..Label::default() })?;
    Ok(true)
}

fn send(producer: &Producer, value: u64, bytes: usize) {
    assert!(try_send(producer, value, bytes, soon()).unwrap(), "record {value} was dropped");
}

/// A value, and how many bytes it is to have.
#[derive(Debug, Clone, Copy)]
struct Sheet(u64, usize);

impl Outgoing for Sheet {
    fn bytes(&self) -> usize {
        self.1
    }

    fn version(&self) -> u32 {
        self.0 as u32
    }

    fn kind(&self) -> u32 {
        7
    }

    fn write(&self, room: &mut [u8]) {
        assert!(self.0 != POISON, "this one cannot be written");
        fill(self.0, room);
    }
}

const POISON: u64 = 666;

fn sheets(values: std::ops::Range<u64>, bytes: usize) -> Vec<Sheet> {
    values.map(|value| Sheet(value, bytes)).collect()
}

/// The value of a record, which must be whole.
fn value<C: Deref<Target = Consumer>>(record: &Record<C>) -> u64 {
    let value = record.info().stamp.version as u64;
    assert!(record.bytes() == body(value, record.len()), "record {value} is not whole");
    value
}

fn take(consumer: &Arc<Consumer>) -> Record<Arc<Consumer>> {
    Consumer::take(consumer.clone(), soon()).unwrap().expect("a wait that succeeds has a record")
}

fn receive(consumer: &Arc<Consumer>) -> u64 {
    value(&take(consumer))
}

fn drain(consumer: &Arc<Consumer>) -> Vec<u64> {
    let next = || Consumer::take(consumer.clone(), Deadline::Now).ok().flatten();
    std::iter::from_fn(next).map(|record| value(&record)).collect()
}

// ── sending and taking ─────────────────────────────────────────────────────────────────────────────────────────────

#[test]
fn several_records_are_taken_in_order_with_their_stamps() {
    let consumer = open(&RecordsSpec { descriptors: 64, lane_bytes: 2 << 20, ..spec(None) });
    let producer = producer(&consumer);
    send(&producer, 0, 100);
    // More than a run has, and then some that are a run each.
    let mut records = sheets(1..41, 100);
    records.extend(sheets(41..43, 300 << 10));
    assert_eq!(producer.try_send_many(&records), 42);
    assert_eq!((producer.sent(), consumer.records().totals().committed), (43, 43));
    for number in 0..43 {
        let record = take(&consumer);
        let stamp = record.info().stamp;
        assert_eq!(
            (value(&record), stamp.sequence, stamp.producer_id),
            (number, number, producer.producer_id())
        );
        assert_eq!(stamp.kind, if number == 0 { 0 } else { 7 });
    }
    assert!(drain(&consumer).is_empty());
    assert_eq!(producer.try_send_many::<Sheet>(&[]), 0);
}

#[test]
fn as_many_are_sent_as_find_room() {
    let consumer = private();
    let producer = producer(&consumer);
    assert_eq!(producer.try_send_many(&sheets(0..20, 10)), 8, "the table has eight places");
    assert_eq!(producer.try_send_many(&sheets(20..30, 10)), 0);
    assert_eq!(drain(&consumer), (0..8).collect::<Vec<_>>());
    assert_eq!(producer.try_send_many(&sheets(0..3, LANE / 2)), 2, "two of them fill the lane");
    assert_eq!(drain(&consumer), [0, 1]);
    assert_eq!(
        producer.try_send_many(&[Sheet(0, 10), Sheet(1, LANE + 1), Sheet(2, 10)]),
        1,
        "one fits no lane"
    );
    assert_eq!((drain(&consumer), producer.sent()), (vec![0], 11));
}

#[test]
fn several_records_wake_a_consumer_that_sleeps() {
    let consumer = private();
    let producer = producer(&consumer);
    let reader = std::thread::spawn({
        let consumer = consumer.clone();
        move || [(); 3].map(|()| receive(&consumer))
    });
    assert!(eventually(|| consumer.records().protocol().control.readable.has_waiter()));
    assert_eq!(producer.try_send_many(&sheets(0..3, 10)), 3);
    assert_eq!(reader.join().unwrap(), [0, 1, 2]);
}

#[test]
fn several_records_drop_nothing_whatever_the_policy() {
    for policy in [OnFull::DropOldest, OnFull::DropNewest, OnFull::Error] {
        let consumer = private();
        let producer = producer_that(&consumer, policy);
        assert_eq!(producer.try_send_many(&sheets(0..20, 10)), 8);
        let totals = consumer.records().totals();
        assert_eq!((totals.dropped_oldest, totals.dropped_newest), (0, 0));
        assert_eq!(drain(&consumer), (0..8).collect::<Vec<_>>());
    }
}

#[test]
fn nothing_more_is_sent_where_the_records_or_the_producer_are_closed() {
    let consumer = private();
    let (one, other) = (producer(&consumer), producer(&consumer));
    one.close();
    assert_eq!(one.try_send_many(&sheets(0..3, 10)), 0);
    consumer.records().shut_down();
    assert_eq!(other.try_send_many(&sheets(0..3, 10)), 0);
}

#[test]
fn a_record_that_cannot_be_written_gives_back_the_rest_of_its_bundle() {
    let consumer = private();
    let producer = producer(&consumer);
    let records = [Sheet(0, 10), Sheet(1, 10), Sheet(POISON, 10), Sheet(3, 10)];
    let sending = std::panic::AssertUnwindSafe(|| producer.try_send_many(&records));
    assert!(std::panic::catch_unwind(sending).is_err());
    assert_eq!(consumer.records().census().reserved_records, 0);
    assert_eq!(drain(&consumer), [0, 1]);
    assert_eq!(producer.try_send_many(&sheets(4..12, 10)), 8, "all places are free again");
    producer.close();
    assert_eq!(drain(&consumer), (4..12).collect::<Vec<_>>());
}

#[test]
fn what_was_sent_is_taken_in_order_with_its_stamp() {
    let consumer = private();
    let producer = producer(&consumer);
    assert!(Consumer::take(&*consumer, Deadline::Now).unwrap().is_none());
    for count in 0..100u64 {
        let mut room = Producer::reserve(&*producer, 500, soon()).unwrap().unwrap();
        fill(count, &mut room.bytes_mut()[..count as usize]);
        room.commit(count as usize, Label { version: count as u32, kind: 7, origin: None }).unwrap();
        let record = take(&consumer);
        assert_eq!((value(&record), record.len()), (count, count as usize));
        let info = record.info();
        assert_eq!((info.stamp.kind, info.stamp.sequence, info.lane, info.number), (7, count, 0, count));
        assert_eq!(info.stamp.producer_id, producer.producer_id());
        assert!(record.as_ptr().align_offset(64) == 0 && info.committed_ns > 0);
        record.record_dwell(&info);
    }
    assert_eq!((producer.sent(), consumer.records().totals().committed), (100, 100));
    assert_eq!(consumer.records().protocol().control.dwell.snapshot().count, 100);
}

#[test]
fn a_record_may_be_sent_in_anothers_name() {
    let consumer = private();
    let producer = producer(&consumer);
    let other = producer.next_producer_id();
    assert_ne!(other, producer.producer_id());
    let room = Producer::reserve(producer.clone(), 0, soon()).unwrap().unwrap();
    room.commit(0, Label { origin: Some((other, 41)), ..Label::default() }).unwrap();
    let stamp = take(&consumer).info().stamp;
    assert_eq!((stamp.producer_id, stamp.sequence, producer.sent()), (other, 41, 0));
}

#[test]
fn a_sleeping_consumer_is_woken_by_a_record() {
    let consumer = private();
    let producer = producer(&consumer);
    let sleeper = std::thread::spawn({
        let consumer = consumer.clone();
        move || (0..50).map(|_| receive(&consumer)).collect::<Vec<u64>>()
    });
    (0..50).for_each(|value| send(&producer, value, 100));
    assert_eq!(sleeper.join().unwrap(), (0..50).collect::<Vec<u64>>());
}

#[test]
fn lanes_have_their_turns() {
    let consumer = private();
    let producers = [0, 1, 2].map(|_| producer(&consumer));
    for (lane, producer) in (0..).zip(&producers) {
        assert_eq!(producer.lane(), lane);
        (0..4).for_each(|value| send(producer, 10 * lane as u64 + value, 10));
    }
    let singles: Vec<u64> = (0..6).map(|_| receive(&consumer)).collect();
    assert_eq!(singles, [0, 10, 20, 1, 11, 21]);
    let many = Consumer::take_many(consumer.clone(), 5, soon()).unwrap();
    assert_eq!(many.iter().map(value).collect::<Vec<u64>>(), [2, 12, 22, 3, 13]);
    assert_eq!(consumer.records().census().held_records, 5);
    drop(many);
    assert_eq!(Consumer::take_many(&*consumer, 5, soon()).unwrap().len(), 1, "it does not wait for five");
    assert_eq!(Consumer::take_many(&*consumer, 5, Deadline::Now).unwrap().len(), 0);
    assert_eq!(Consumer::take_many(&*consumer, 0, Deadline::Never).unwrap().len(), 0);
}

#[test]
fn what_is_held_for_long_stops_nobody() {
    let consumer = private();
    let producer = producer(&consumer);
    send(&producer, 1000, 20_000);
    let held = take(&consumer);
    let mut more = Vec::new();
    for count in 0..200 {
        send(&producer, count, 3000);
        let record = take(&consumer);
        assert_eq!(value(&record), count);
        if count % 50 == 0 {
            more.push(record); // Now and then one more.
        }
    }
    assert_eq!(value(&held), 1000, "nobody wrote over it");
    assert_eq!(more.iter().map(value).collect::<Vec<u64>>(), [0, 50, 100, 150]);
}

#[test]
fn a_lane_with_every_descriptor_held_is_full_until_one_is_released() {
    let consumer = private();
    let producer = producer(&consumer);
    let mut held: Vec<_> = (0..8)
        .map(|value| {
            send(&producer, value, 1);
            take(&consumer)
        })
        .collect();
    assert!(matches!(try_send(&producer, 8, 1, Deadline::Now), Err(Error::Full)));
    assert!(matches!(try_send(&producer, 8, 1, briefly()), Err(Error::Timeout)));
    assert_eq!(value(&held.remove(3)), 3);
    send(&producer, 8, 1);
    assert!(matches!(try_send(&producer, 9, 1, Deadline::Now), Err(Error::Full)));
    assert_eq!(receive(&consumer), 8);
    assert_eq!(consumer.records().totals().blocked, 1);
}

#[test]
fn reservations_are_committed_in_any_order_and_readers_look_behind_an_open_one() {
    let consumer = private();
    let producer = producer(&consumer);
    let mut rooms: Vec<_> =
        (0..3).map(|_| Some(Producer::reserve(producer.clone(), 100, soon()).unwrap().unwrap())).collect();
    assert_eq!(consumer.records().census().reserved_records, 3);
    for index in [2, 0, 1] {
        let mut room = rooms[index].take().unwrap();
        fill(index as u64, room.bytes_mut());
        room.commit(100, Label { version: index as u32, ..Label::default() }).unwrap();
        let record = take(&consumer);
        assert_eq!(value(&record), index as u64);
        assert_eq!(consumer.records().census().held_records, 1);
    }
    assert_eq!(drain(&consumer), []);
}

#[test]
fn a_dropped_reservation_is_never_shown_and_its_room_is_free_again() {
    let consumer = private();
    let producer = producer(&consumer);
    for _ in 0..50 {
        let mut room = Producer::reserve(&*producer, LANE, soon()).unwrap().unwrap();
        room.bytes_mut().fill(1);
    }
    assert!(Consumer::take(&*consumer, Deadline::Now).unwrap().is_none());
    assert_eq!(consumer.records().totals().aborted, 50);
    send(&producer, 1, LANE);
    assert_eq!(receive(&consumer), 1);
}

#[test]
fn what_is_reserved_and_not_used_goes_back_to_the_lane() {
    let consumer = private();
    let producer = producer(&consumer);
    for value in 0..4 {
        let mut room = Producer::reserve(&*producer, LANE - 3 * 8192, soon()).unwrap().unwrap();
        fill(value, &mut room.bytes_mut()[..8000]);
        room.commit(8000, Label { version: value as u32, ..Label::default() }).unwrap();
    }
    assert_eq!(drain(&consumer), [0, 1, 2, 3]);
}

#[test]
fn more_than_was_reserved_cannot_be_committed() {
    let consumer = private();
    let producer = producer(&consumer);
    let room = Producer::reserve(&*producer, 100, soon()).unwrap().unwrap();
    let error = room.commit(101, Label::default()).unwrap_err();
    assert!(error.to_string().contains("at most the 100 bytes"), "{error}");
    assert_eq!(
        consumer.records().census(),
        Contents { lanes: 1, grown_bytes: 32 << 10, ..Contents::default() }
    );
}

#[test]
fn a_record_may_be_as_large_as_a_lane_and_no_larger() {
    let consumer = private();
    let producer = producer(&consumer);
    for (value, bytes) in [(1, LANE), (2, 0), (3, LANE)] {
        send(&producer, value, bytes);
        assert_eq!(receive(&consumer), value);
    }
    for bytes in [LANE + 1, usize::MAX] {
        let error = Producer::reserve(&*producer, bytes, Deadline::Never).unwrap_err();
        assert!(
            matches!(error, Error::RecordTooLarge { .. }) && error.to_string().contains("lane_bytes"),
            "{error}"
        );
        assert!(producer.wait_room(bytes, Deadline::Never).is_err());
    }
}

#[test]
fn a_record_that_was_given_back_comes_again_before_the_others() {
    let consumer = private();
    let producer = producer(&consumer);
    (0..5).for_each(|value| send(&producer, value, 100));
    let [zero, one, two] = [0, 1, 2].map(|_| take(&consumer));
    two.give_back();
    zero.give_back();
    assert_eq!(drain(&consumer), [0, 2, 3, 4]);
    one.give_back();
    assert!(consumer.wait_readable(Deadline::Now).unwrap());
    assert_eq!(drain(&consumer), [1]);
    assert_eq!(consumer.records().totals().returned, 3);
}

// ── no room ────────────────────────────────────────────────────────────────────────────────────────────────────────

/// Four records fill the lane.
const QUARTER: usize = LANE / 4;

#[test]
fn a_blocked_producer_goes_on_when_there_is_room() {
    let consumer = private();
    let producer = producer(&consumer);
    let sender = std::thread::spawn({
        let producer = producer.clone();
        move || (0..100).for_each(|value| send(&producer, value, QUARTER))
    });
    for count in 0..100 {
        assert_eq!(receive(&consumer), count);
    }
    sender.join().unwrap();
}

#[test]
fn room_can_be_waited_for_without_taking_it() {
    let consumer = private();
    let producer = producer(&consumer);
    assert!(producer.wait_room(LANE, Deadline::Now).unwrap());
    (0..4).for_each(|value| send(&producer, value, QUARTER));
    assert!(!producer.wait_room(1, Deadline::Now).unwrap());
    assert!(!producer.wait_room(1, briefly()).unwrap());
    let waiter = std::thread::spawn({
        let producer = producer.clone();
        move || producer.wait_room(2 * QUARTER, soon()).unwrap()
    });
    assert_eq!([receive(&consumer), receive(&consumer)], [0, 1]);
    assert!(waiter.join().unwrap());
    send(&producer, 4, 2 * QUARTER);
}

#[test]
fn a_policy_of_error_says_so_at_once() {
    let consumer = private();
    let producer = producer_that(&consumer, OnFull::Error);
    (0..4).for_each(|value| send(&producer, value, QUARTER));
    assert!(matches!(try_send(&producer, 4, 1, Deadline::Never), Err(Error::Full)));
    assert_eq!(drain(&consumer), [0, 1, 2, 3]);
}

#[test]
fn a_policy_of_drop_newest_keeps_what_is_there() {
    let consumer = private();
    let producer = producer_that(&consumer, OnFull::DropNewest);
    (0..4).for_each(|value| send(&producer, value, QUARTER));
    assert!(!try_send(&producer, 4, 1, Deadline::Never).unwrap());
    assert_eq!(drain(&consumer), [0, 1, 2, 3]);
    assert_eq!(consumer.records().totals().dropped_newest, 1);
}

#[test]
fn a_policy_of_drop_oldest_keeps_the_newest() {
    let consumer = private();
    let producer = producer_that(&consumer, OnFull::DropOldest);
    (0..50).for_each(|value| send(&producer, value, QUARTER));
    assert_eq!(drain(&consumer), [46, 47, 48, 49]);
    assert_eq!(consumer.records().totals().dropped_oldest, 46);
    // And when the table is what is full.
    (0..50).for_each(|value| send(&producer, value, 1));
    assert_eq!(drain(&consumer), (42..50).collect::<Vec<u64>>());
    // A large one makes room for itself.
    (0..4).for_each(|value| send(&producer, value, QUARTER));
    send(&producer, 4, 3 * QUARTER);
    assert_eq!(drain(&consumer), [3, 4]);
}

#[test]
fn drop_oldest_takes_nothing_from_those_who_read_or_write() {
    let consumer = private();
    let producer = Arc::new(producer_that(&consumer, OnFull::DropOldest));
    (0..3).for_each(|value| send(&producer, value, QUARTER));
    let held = [take(&consumer), take(&consumer), take(&consumer)];
    let room = Producer::reserve(producer.clone(), QUARTER, soon()).unwrap().unwrap();
    assert!(!try_send(&producer, 9, 1, Deadline::Never).unwrap(), "nothing can be dropped: dropped itself");
    assert_eq!(held.each_ref().map(value), [0, 1, 2]);
    drop(held);
    // A reservation is in the way of the table: dropping what is unread would not help, so it is kept.
    (10..17).for_each(|value| send(&producer, value, 1));
    assert!(!try_send(&producer, 17, 1, Deadline::Never).unwrap());
    drop(room);
    send(&producer, 18, 1);
    assert_eq!(drain(&consumer), [10, 11, 12, 13, 14, 15, 16, 18]);
    let totals = consumer.records().totals();
    assert_eq!((totals.dropped_newest, totals.dropped_oldest), (2, 0));
}

#[test]
fn drop_oldest_drops_nothing_where_that_would_make_no_room() {
    let consumer = private();
    let producer = producer_that(&consumer, OnFull::DropOldest);
    (0..6).for_each(|value| send(&producer, value, LANE / 8));
    let held: Vec<_> = (0..4).map(|_| take(&consumer)).collect();
    assert!(!try_send(&producer, 6, LANE / 8 * 5, soon()).unwrap(), "what is held lies in the middle");
    let totals = consumer.records().totals();
    assert_eq!((totals.dropped_oldest, totals.dropped_newest), (0, 1));
    drop(held);
    assert!(try_send(&producer, 7, LANE / 8 * 5, soon()).unwrap());
    assert_eq!(drain(&consumer), [5, 7], "one had to go for it");
}

#[test]
fn memory_is_what_the_data_needs() {
    let consumer = open(&RecordsSpec { lanes: 64, lane_bytes: 32 << 20, descriptors: 16384, ..spec(None) });
    let segment = consumer.records().segment().clone();
    let none = segment.used_bytes();
    assert!(none < 128 << 10, "{none}"); // Half of it for sessions.
    // Whoever looks at lanes that nobody has taken makes nothing of them exist.
    assert!(!consumer.wait_readable(briefly()).unwrap());
    assert_eq!(consumer.records().census(), Contents::default());
    assert_eq!(segment.used_bytes(), none);
    let producer = producer(&consumer);
    let empty = segment.used_bytes();
    assert_eq!(empty - none, 16384 * 64, "the table of one lane");
    for value in 0..2000 {
        send(&producer, value, 50_000);
        assert_eq!(receive(&consumer), value);
    }
    assert_eq!(
        segment.used_bytes() - empty,
        13 * 4096,
        "a stream that is read at once stays in its first pages"
    );
    (0..100).for_each(|value| send(&producer, value, 50_000));
    let (grown, needed) = (segment.used_bytes() - empty, 100 * 50_048);
    assert!((needed..needed + needed / 32 + (32 << 10)).contains(&grown), "{grown} for {needed}");
    assert_eq!(consumer.records().census().grown_bytes as u64, grown);
    assert_eq!(drain(&consumer).len(), 100);
    let whole = open(&RecordsSpec { preallocate: true, ..spec(None) });
    assert!(whole.records().segment().used_bytes() >= 4 * LANE as u64);
}

// ── lanes, and coming and going ────────────────────────────────────────────────────────────────────────────────────

#[test]
fn more_producers_than_lanes_are_refused_until_one_closes() {
    let consumer = private();
    let producers: Vec<_> = (0..4).map(|_| producer(&consumer)).collect();
    let error = Producer::attach_to(consumer.records().clone(), ANYONE).unwrap_err();
    assert!(
        matches!(error, Error::NoLane { lanes: 4, .. }) && error.to_string().contains("close a client"),
        "{error}"
    );
    producers[2].close();
    producers[2].close();
    assert!(is_closed(try_send(&producers[2], 0, 1, soon())));
    assert_eq!(producer(&consumer).lane(), 2);
}

#[test]
fn what_was_committed_outlives_its_producer_and_the_next_one_writes_around_it() {
    let consumer = open(&RecordsSpec { lanes: 1, ..spec(None) });
    let first = producer(&consumer);
    (0..3).for_each(|value| send(&first, value, QUARTER));
    let held = take(&consumer);
    drop(first);
    let second = producer(&consumer);
    assert_eq!(second.lane(), 0);
    send(&second, 3, QUARTER);
    assert!(matches!(try_send(&second, 4, 1, Deadline::Now), Err(Error::Full)));
    assert_eq!(value(&held), 0);
    assert_eq!(drain(&consumer), [1, 2, 3]);
    drop(held);
    send(&second, 4, LANE);
    assert_eq!(drain(&consumer), [4]);
}

#[test]
fn a_lane_with_an_open_reservation_is_given_away_when_that_is_over() {
    let consumer = private();
    let first = producer(&consumer);
    let mut room = Producer::reserve(first.clone(), 100, soon()).unwrap().unwrap();
    first.close();
    assert_eq!(producer(&consumer).lane(), 1);
    fill(7, room.bytes_mut());
    room.commit(100, Label { version: 7, ..Label::default() }).unwrap();
    assert_eq!(drain(&consumer), [7]);
    assert_eq!(producer(&consumer).lane(), 0);
}

#[test]
fn a_newcomer_takes_the_lane_with_the_least_to_be_read() {
    let consumer = private();
    let leavers = [0, 1, 2, 3].map(|_| producer(&consumer));
    for (producer, unread) in leavers.iter().zip([3, 2, 0, 1]) {
        (0..unread).for_each(|value| send(producer, value, 10));
    }
    drop(leavers);
    let newcomers = [0, 1, 2, 3].map(|_| producer(&consumer));
    assert_eq!(newcomers.each_ref().map(|producer| producer.lane()), [2, 3, 1, 0]);
}

#[test]
fn one_who_looks_whether_there_is_a_record_does_not_pass_it() {
    let consumer = private();
    let producer = producer(&consumer);
    send(&producer, 1, 10);
    for _ in 0..3 {
        assert!(consumer.wait_readable(Deadline::Now).unwrap());
    }
    assert_eq!(drain(&consumer), [1]);
    assert!(!consumer.wait_readable(Deadline::Now).unwrap());
}

#[test]
fn the_newest_weights_are_told_to_everybody() {
    let name = Name::unique();
    let consumer = open(&spec(Some(&name)));
    assert_eq!(consumer.records().published(), 0);
    consumer.records().publish(17);
    let producer = Producer::attach(&name, SCHEMA, ANYONE).unwrap();
    assert_eq!(producer.records().published(), 17);
    Records::check(&name, SCHEMA).unwrap();
    assert!(matches!(Records::check(&name, b"else"), Err(Error::Schema { .. })));
    consumer.close().unwrap();
    assert!(matches!(Records::check(&name, SCHEMA), Err(Error::NotFound { .. })));
}

#[test]
fn the_end_comes_after_what_was_committed() {
    let consumer = private();
    let producer = producer(&consumer);
    (0..4).for_each(|value| send(&producer, value, QUARTER));
    let blocked = std::thread::spawn({
        let producer = producer.clone();
        move || try_send(&producer, 4, 1, soon())
    });
    assert!(eventually(|| consumer.records().totals().blocked == 1));
    consumer.close().unwrap();
    consumer.close().unwrap();
    assert!(is_closed(blocked.join().unwrap()));
    assert!(is_closed(try_send(&producer, 5, 1, soon())));
    assert!(
        producer.wait_room(1, Deadline::Never).unwrap() && consumer.wait_readable(Deadline::Never).unwrap()
    );
    assert_eq!(drain(&consumer), [0, 1, 2, 3]);
    assert!(is_closed(Consumer::take(&*consumer, Deadline::Never)));
    assert!(is_closed(Consumer::take(&*consumer, Deadline::Now)));
    assert!(is_closed(Consumer::take_many(&*consumer, 3, Deadline::Now)));
}

#[test]
fn a_sleeping_consumer_hears_of_the_end_or_of_the_time() {
    let consumer = private();
    assert!(matches!(Consumer::take(&*consumer, briefly()), Err(Error::Timeout)));
    assert!(!consumer.wait_readable(briefly()).unwrap());
    let sleeper = std::thread::spawn({
        let consumer = consumer.clone();
        move || is_closed(Consumer::take(&*consumer, soon()))
    });
    consumer.records().shut_down();
    assert!(sleeper.join().unwrap());
}

#[test]
fn threads_share_a_producer_and_a_consumer() {
    let consumer = private();
    let producer = producer(&consumer);
    let senders = [0u64, 1, 2].map(|thread| {
        let producer = producer.clone();
        std::thread::spawn(move || {
            (0..500).for_each(|value| send(&producer, 1000 * thread + value, (value as usize * 37) % 5000));
        })
    });
    let takers = [0, 1].map(|_| {
        let consumer = consumer.clone();
        std::thread::spawn(move || {
            std::iter::from_fn(|| {
                Consumer::take(&*consumer, soon()).ok().flatten().map(|record| value(&record))
            })
            .collect::<Vec<u64>>()
        })
    });
    senders.into_iter().for_each(|sender| sender.join().unwrap());
    consumer.records().shut_down();
    let mut received = takers.map(|taker| taker.join().unwrap()).concat();
    received.sort_unstable();
    let expected: Vec<u64> =
        (0..3).flat_map(|thread| (0..500).map(move |value| 1000 * thread + value)).collect();
    assert_eq!(received, expected);
    assert_eq!(producer.sent(), 1500);
}

// ── names ──────────────────────────────────────────────────────────────────────────────────────────────────────────

#[test]
fn a_name_leads_to_the_records_and_is_gone_with_the_last_consumer() {
    let name = Name::unique();
    let consumer = open(&spec(Some(&name)));
    assert!(!consumer.resumed());
    let producer = Producer::attach(&name, SCHEMA, ANYONE).unwrap();
    send(&producer, 5, 1000);
    let second = Arc::new(Consumer::attach(&name, None, None).unwrap());
    assert!(second.resumed());
    assert_eq!(second.records().segment().schema(), SCHEMA);
    assert_eq!(receive(&second), 5);
    let entry = catalog::list().unwrap().into_iter().find(|entry| entry.name == *name).unwrap();
    assert_eq!((entry.kind, entry.alive), (rollway_core::records::layout::KIND, 3));
    assert!(entry.used_bytes < entry.bytes, "{entry:?}");
    second.close().unwrap();
    assert!(name.path().exists());
    consumer.close().unwrap();
    assert!(!name.path().exists());
    assert!(matches!(Producer::attach(&name, SCHEMA, ANYONE), Err(Error::NotFound { .. })));
    assert!(matches!(Consumer::attach(&name, None, None), Err(Error::NotFound { .. })));
}

#[test]
fn one_who_leaves_keeps_the_name_and_what_is_in_it() {
    let name = Name::unique();
    let consumer = open(&spec(Some(&name)));
    let producer = Producer::attach(&name, SCHEMA, ANYONE).unwrap();
    send(&producer, 1, 1000);
    send(&producer, 2, 1000);
    assert_eq!(receive(&consumer), 1);
    drop(producer);
    consumer.leave();
    drop(consumer);
    let consumer = open(&spec(Some(&name)));
    assert!(consumer.resumed());
    assert_eq!(receive(&consumer), 2);
    consumer.leave();
    drop(consumer);
    assert!(catalog::collect(&name).unwrap());
}

#[test]
fn closing_a_consumer_ends_its_waiting_calls_and_leaves_the_records_to_the_others() {
    let name = Name::unique();
    let (first, second) = (open(&spec(Some(&name))), open(&spec(Some(&name))));
    let (ended, end) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| ended.send(Consumer::take(&*first, Deadline::Never).map(drop)));
        assert!(eventually(|| first.records().protocol().control.readable.has_waiter()));
        first.close().unwrap();
        let ended = end.recv_timeout(DEADLINE).unwrap();
        assert!(matches!(ended, Err(Error::Closed)), "{ended:?}");
    });
    send(&Producer::attach(&name, SCHEMA, ANYONE).unwrap(), 7, 1000);
    assert!(matches!(Consumer::take(&*first, Deadline::Now), Err(Error::Closed)));
    assert_eq!(receive(&second), 7);
    second.close().unwrap();
}

#[test]
fn other_records_than_expected_are_refused_and_said_why() {
    let name = Name::unique();
    let consumer = open(&spec(Some(&name)));
    assert!(matches!(Producer::attach(&name, b"else", ANYONE), Err(Error::Schema { .. })));
    assert!(matches!(Consumer::attach(&name, Some(b"else"), None), Err(Error::Schema { .. })));
    let reopen =
        |spec: RecordsSpec<'_>, if_exists| Consumer::open(&spec, if_exists, None).map(drop).unwrap_err();
    let here = || spec(Some(&name));
    assert!(matches!(
        reopen(RecordsSpec { schema: b"else", ..here() }, IfExists::Resume),
        Error::Schema { .. }
    ));
    for (what, other) in [
        ("lanes", RecordsSpec { lanes: 5, ..here() }),
        ("max_records", RecordsSpec { descriptors: 9, ..here() }),
        ("lane_bytes", RecordsSpec { lane_bytes: 2 * LANE, ..here() }),
    ] {
        let error = reopen(other, IfExists::Resume);
        assert!(matches!(error, Error::Geometry { .. }) && error.to_string().contains(what), "{error}");
    }
    assert!(matches!(reopen(here(), IfExists::Fail), Error::Exists { .. }));
    assert!(matches!(reopen(here(), IfExists::Replace), Error::InUse { .. }));
    assert!(matches!(crate::fixture::attach(&name), Err(Error::Kind { .. })), "it is no ring");
    consumer.close().unwrap();
    let ring = crate::fixture::open(&crate::fixture::spec(Some(&name), 2, 2));
    assert!(matches!(Consumer::attach(&name, None, None), Err(Error::Kind { .. })), "these are no records");
    drop(ring);
}

#[test]
fn sizes_out_of_range_are_refused() {
    for (what, wrong) in [
        ("lanes", RecordsSpec { lanes: 0, ..spec(None) }),
        ("lanes", RecordsSpec { lanes: 1025, ..spec(None) }),
        ("records of a lane", RecordsSpec { descriptors: 1, ..spec(None) }),
        ("records of a lane", RecordsSpec { descriptors: usize::MAX, ..spec(None) }),
        ("lane_bytes", RecordsSpec { lane_bytes: 0, ..spec(None) }),
        ("lane_bytes", RecordsSpec { lane_bytes: usize::MAX, ..spec(None) }),
        ("lane_bytes", RecordsSpec { lane_bytes: isize::MAX as usize / 2, ..spec(None) }),
        ("max_peers", RecordsSpec { max_peers: 0, ..spec(None) }),
    ] {
        let error = Consumer::open(&wrong, IfExists::Resume, None).unwrap_err();
        assert!(matches!(error, Error::OutOfRange { .. }) && error.to_string().contains(what), "{error}");
    }
}

// ── damage ─────────────────────────────────────────────────────────────────────────────────────────────────────────

#[test]
fn numbers_that_make_no_sense_are_damage_and_no_panic() {
    let is_corrupt = |result: Result<()>| assert!(matches!(result, Err(Error::Corrupt { .. })), "{result:?}");
    // What a word is set to, and whether that is too high.
    type Spoil = fn(&rollway_core::records::protocol::LaneWords<'_>);
    let spoilers: [Spoil; 5] = [
        |lane| lane.table[0].start.store(u64::MAX - 10, Ordering::Relaxed),
        |lane| lane.table[0].bytes.store(u64::MAX, Ordering::Relaxed),
        |lane| lane.table[0].start.store(LANE as u64, Ordering::Relaxed),
        |lane| lane.line.write.grown.store(u64::MAX, Ordering::Relaxed),
        |lane| lane.line.read.cursor.store(9, Ordering::Relaxed),
    ];
    for spoil in spoilers {
        let consumer = private();
        let producer = producer(&consumer);
        (0..2).for_each(|value| send(&producer, value, 100));
        spoil(&consumer.records().protocol().lane(0));
        for _ in 0..3 {
            is_corrupt(Consumer::take(&*consumer, Deadline::Now).map(drop));
        }
    }
    // What the next owner of a lane finds there.
    let spoilers: [Spoil; 5] = [
        |lane| lane.table[1].start.store(0, Ordering::Relaxed),
        |lane| lane.table[1].start.store(1, Ordering::Relaxed),
        |lane| lane.table[1].bytes.store(u64::MAX, Ordering::Relaxed),
        |lane| lane.line.write.grown.store(u64::MAX, Ordering::Relaxed),
        |lane| lane.table[1].word.store(Word::ready(2).pack(), Ordering::Relaxed),
    ];
    for spoil in spoilers {
        let consumer = open(&RecordsSpec { lanes: 1, ..spec(None) });
        let first = producer(&consumer);
        (0..2).for_each(|value| send(&first, value, 100));
        drop(first);
        spoil(&consumer.records().protocol().lane(0));
        is_corrupt(Producer::attach_to(consumer.records().clone(), ANYONE).map(drop));
    }
}

#[test]
fn a_head_that_left_its_records_behind_is_damage_for_both_sides_and_no_endless_wait() {
    let consumer = private();
    let producer = producer(&consumer);
    (0..8).for_each(|value| send(&producer, value, 100)); // Every descriptor is used.
    let head = &consumer.records().protocol().lanes[0].write.head;
    head.fetch_add(8 << 20, Ordering::Relaxed);
    let sent = try_send(&producer, 8, 100, soon());
    assert!(matches!(sent, Err(Error::Corrupt { .. })), "{sent:?}");
    let taken = Consumer::take(consumer.clone(), soon());
    assert!(matches!(taken, Err(Error::Corrupt { .. })), "{taken:?}");
    head.fetch_sub(8 << 20, Ordering::Relaxed);
    assert_eq!(receive(&consumer), 0, "nobody has moved the cursor");
}

#[test]
fn a_newcomer_passes_a_damaged_lane() {
    let consumer = open(&RecordsSpec { lanes: 2, ..spec(None) });
    let first = producer(&consumer);
    (0..2).for_each(|value| send(&first, value, 100));
    drop(first);
    drop(drain(&consumer));
    let lane = consumer.records().protocol().lane(0);
    lane.line.write.grown.store(u64::MAX, Ordering::Relaxed);
    let newcomer = producer(&consumer);
    assert_eq!(newcomer.lane(), 1);
    send(&newcomer, 7, 100);
    assert_eq!(drain(&consumer), [7]);
    let refused = Producer::attach_to(consumer.records().clone(), ANYONE).map(drop);
    assert!(matches!(refused, Err(Error::Corrupt { .. })), "no other lane is free: {refused:?}");
    assert_eq!(consumer.records().census().lanes, 1, "the damaged one is nobody's");
}

#[test]
fn a_damaged_lane_is_told_of_and_the_others_are_read() {
    let consumer = private();
    let [spoilt, whole] = [0, 1].map(|_| producer(&consumer));
    (0..3).for_each(|value| send(&spoilt, value, 100));
    (10..13).for_each(|value| send(&whole, value, 100));
    let lane = consumer.records().protocol().lane(0);
    lane.table[1].bytes.store(u64::MAX, Ordering::Relaxed);
    let (mut received, mut told) = (Vec::new(), 0);
    for _ in 0..10 {
        match Consumer::take(&*consumer, Deadline::Now) {
            Ok(record) => received.extend(record.iter().map(value)),
            Err(Error::Corrupt { .. }) => told += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(received, [0, 10, 11, 12]);
    assert_eq!(told, 6);
    send(&whole, 13, 100);
    let many = || Consumer::take_many(&*consumer, 5, Deadline::Now).unwrap_or_default();
    let taken: Vec<u64> = [many(), many()].iter().flatten().map(value).collect();
    assert_eq!(taken, [13]);
}

#[test]
fn any_words_are_an_error_or_a_record_inside_its_lane() {
    let mut state = 1u64;
    let mut random = move || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        state >> 11 ^ state << 40
    };
    for _ in 0..300 {
        let consumer = open(&RecordsSpec { lanes: 1, ..spec(None) });
        let first = producer(&consumer);
        (0..4).for_each(|value| send(&first, value, 100));
        drop(first);
        {
            let lane = consumer.records().protocol().lane(0);
            for descriptor in lane.table {
                let word = if random() % 2 == 0 { random() } else { Word::ready(random() % 20).pack() };
                descriptor.word.store(word, Ordering::Relaxed);
                descriptor.start.store(random() % (2 * LANE as u64), Ordering::Relaxed);
                descriptor.bytes.store(random() % LANE as u64, Ordering::Relaxed);
            }
            lane.line.write.head.store(random() % 30, Ordering::Relaxed);
            lane.line.read.cursor.store(random() % 30, Ordering::Relaxed);
            lane.line.read.returned.store(random() % 3, Ordering::Relaxed);
        }
        for _ in 0..20 {
            if let Ok(Some(record)) = Consumer::take(&*consumer, Deadline::Now) {
                assert_eq!(record.bytes().len(), record.len());
            }
        }
        if let Ok(next) = Producer::attach_to(consumer.records().clone(), ANYONE) {
            let _ = try_send(&next, 1, 100, Deadline::Now);
            let _ = next.wait_room(100, Deadline::Now);
        }
        consumer.records().census();
    }
}

// ── other processes ────────────────────────────────────────────────────────────────────────────────────────────────

#[test]
#[ignore = "a process of other tests: a producer that sends some records, begins another, and stays"]
fn child_producer() {
    let producer = Producer::attach(&told("NAME"), SCHEMA, ANYONE).unwrap();
    (0..3).for_each(|value| send(&producer, value, 1000));
    let _room = Producer::reserve(&producer, 1000, soon()).unwrap().unwrap();
    say(producer.lane());
    stay();
}

#[test]
fn a_dead_producers_records_are_read_and_its_lane_is_taken_by_the_next() {
    let name = Name::unique();
    let consumer = open(&RecordsSpec { lanes: 1, ..spec(Some(&name)) });
    let mut child = Process::start("records::child_producer", &[("NAME", &name)]);
    assert_eq!(child.hear().unwrap(), "0");
    assert!(matches!(Producer::attach(&name, SCHEMA, ANYONE), Err(Error::NoLane { .. })), "it lives");
    child.signal(libc::SIGSTOP);
    assert!(
        matches!(Producer::attach(&name, SCHEMA, ANYONE), Err(Error::NoLane { .. })),
        "stopped is not dead"
    );
    child.kill();
    let producer = Producer::attach(&name, SCHEMA, ANYONE).unwrap();
    send(&producer, 3, 1000);
    assert_eq!(drain(&consumer), [0, 1, 2, 3], "and nothing of what it had only begun");
    assert_eq!(consumer.records().totals().recovered, 1);
}

#[test]
#[ignore = "a process of other tests: a consumer that takes two records, and stays"]
fn child_consumer() {
    let consumer = open(&spec(Some(&told("NAME"))));
    say("ready");
    let _held = [take(&consumer), take(&consumer)];
    say("holds");
    stay();
}

#[test]
fn a_dead_consumers_records_come_again() {
    let name = Name::unique();
    let mut child = Process::start("records::child_consumer", &[("NAME", &name)]);
    assert_eq!(child.hear().unwrap(), "ready");
    let producer = Producer::attach(&name, SCHEMA, ANYONE).unwrap();
    (0..4).for_each(|value| send(&producer, value, 1000));
    assert_eq!(child.hear().unwrap(), "holds");
    let beside = open(&spec(Some(&name)));
    assert_eq!([receive(&beside), receive(&beside)], [2, 3]);
    child.signal(libc::SIGSTOP);
    assert!(matches!(Consumer::take(&*beside, briefly()), Err(Error::Timeout)), "stopped is not dead");
    child.kill();
    // One that waits finds them when it polls for liveness.
    assert_eq!([receive(&beside), receive(&beside)], [0, 1]);
    assert_eq!(beside.records().totals().returned, 2);
}

#[test]
fn a_learner_comes_back_to_what_was_committed() {
    let name = Name::unique();
    let mut child = Process::start("records::child_consumer", &[("NAME", &name)]);
    assert_eq!(child.hear().unwrap(), "ready");
    let producer = Producer::attach(&name, SCHEMA, ANYONE).unwrap();
    (0..4).for_each(|value| send(&producer, value, 1000));
    assert_eq!(child.hear().unwrap(), "holds");
    let hasty = ProducerSpec { peer_timeout: Some(Duration::ZERO), ..ANYONE };
    let hasty = Producer::attach(&name, SCHEMA, hasty).unwrap();
    child.kill();
    let error = (0..9).try_for_each(|value| try_send(&hasty, value, 1000, soon()).map(drop)).unwrap_err();
    assert!(matches!(error, Error::PeersGone(_)) && error.to_string().contains("learner"), "{error}");
    let consumer = open(&spec(Some(&name)));
    assert!(consumer.resumed());
    let mut received = drain(&consumer);
    received.truncate(12);
    received.sort_unstable();
    assert_eq!(received, [0, 0, 1, 1, 2, 2, 3, 3, 4, 5, 6, 7], "those of both producers");
}

#[test]
fn a_consumer_whose_producers_all_died_is_told() {
    let name = Name::unique();
    let consumer =
        Arc::new(Consumer::open(&spec(Some(&name)), IfExists::Fail, Some(Duration::ZERO)).unwrap());
    assert!(matches!(Consumer::take(&*consumer, briefly()), Err(Error::Timeout)), "nobody has come yet");
    let mut child = Process::start("records::child_producer", &[("NAME", &name)]);
    child.hear().unwrap();
    assert_eq!(consumer.producers().alive, 1);
    child.kill();
    assert_eq!([receive(&consumer), receive(&consumer), receive(&consumer)], [0, 1, 2]);
    let error = Consumer::take(&*consumer, soon()).unwrap_err();
    assert!(matches!(error, Error::PeersGone(_)), "{error}");
    assert!(error.to_string().contains(&child.pid().to_string()), "{error}");
}

#[test]
fn a_forked_child_is_a_producer_of_its_own_and_leaves_its_parents_alone() {
    if !alone("records::a_forked_child_is_a_producer_of_its_own_and_leaves_its_parents_alone") {
        return;
    }
    let consumer = private();
    let producer = producer(&consumer);
    send(&producer, 1, 100);
    let held = take(&consumer);
    let mut room = Producer::reserve(producer.clone(), 100, soon()).unwrap().unwrap();
    // SAFETY: this process has one thread that matters; the child only sends, and exits without running destructors.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = matches!(room.commit(100, Label::default()), Err(Error::Forked { .. }));
        send(&producer, 2, 100);
        send(&producer, 3, 100);
        drop(held); // Its parent's.
        producer.close();
        let own = producer.lane() == 1 && producer.sent() == 2;
        // SAFETY: ends the child at once.
        unsafe { libc::_exit((!(refused && own)) as i32) };
    }
    let mut status = 0;
    // SAFETY: waits for our own child.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "the child has a lane of its own, and cannot commit what is its parent's");
    let census = consumer.records().census();
    assert_eq!((census.held_records, census.reserved_records, census.ready_records), (1, 1, 2));
    assert_eq!(drain(&consumer), [2, 3]);
    fill(4, room.bytes_mut());
    room.commit(100, Label { version: 4, ..Label::default() }).unwrap();
    assert_eq!((value(&held), drain(&consumer)), (1, vec![4]));
}

// ── many processes ─────────────────────────────────────────────────────────────────────────────────────────────────

const WORKERS: u64 = 8;

#[test]
#[ignore = "a process of another test: sends records of any length until it is killed, and notes what it sent"]
fn child_worker() {
    let (name, id) = (told("NAME"), told("ID").parse::<u64>().unwrap());
    let spec = ProducerSpec { producer_id: Some(id as u32), ..ANYONE };
    arrival::wait_for(&name, soon()).unwrap();
    let producer = Producer::attach(&name, SCHEMA, spec).unwrap();
    say("ready");
    for count in 0.. {
        let bytes = (count * 7919 + id * 104729) % (64 << 10);
        let value = id << 24 | count;
        match try_send(&producer, value, bytes as usize, soon()) {
            Ok(sent) => assert!(sent),
            Err(Error::Closed) => break,
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn workers_may_be_killed_at_any_moment_and_nothing_is_lost_twice_or_torn() {
    let name = Name::unique();
    let consumer =
        open(&RecordsSpec { lanes: 10, lane_bytes: 256 << 10, descriptors: 16, ..spec(Some(&name)) });
    let start =
        |id: u64| Process::start("records::child_worker", &[("NAME", &name), ("ID", &id.to_string())]);
    let takers = [0, 1].map(|_| {
        let consumer = Arc::new(Consumer::attach(&name, Some(SCHEMA), None).unwrap());
        std::thread::spawn(move || {
            let mut received: BTreeMap<u32, Vec<(u64, u64)>> = BTreeMap::new();
            while let Ok(Some(record)) = Consumer::take(&*consumer, soon()) {
                let info = record.info();
                received
                    .entry(info.stamp.producer_id)
                    .or_default()
                    .push((info.stamp.sequence, value(&record)));
            }
            received
        })
    });
    let mut next_id = 0;
    let mut ids = || {
        next_id += 1;
        next_id - 1
    };
    let mut workers: Vec<Process> = (0..WORKERS).map(|_| start(ids())).collect();
    for round in 0..16usize {
        let taken = consumer.records().totals().taken;
        let victim = (round * 5) % workers.len();
        workers[victim].hear().expect("a worker gets ready");
        assert!(eventually(|| consumer.records().totals().taken > taken + 50));
        workers[victim].kill();
        workers[victim] = start(ids());
    }
    drop(workers);
    assert!(eventually(|| consumer.records().census().ready_records == 0));
    let committed = consumer.records().totals().committed;
    consumer.records().shut_down();
    let mut all: BTreeMap<u32, Vec<(u64, u64)>> = BTreeMap::new();
    for taker in takers {
        for (id, mut records) in taker.join().unwrap() {
            all.entry(id).or_default().append(&mut records);
        }
    }
    for (id, records) in &mut all {
        records.sort_unstable();
        for (index, (sequence, value)) in (0..).zip(records.iter()) {
            assert_eq!(
                (*sequence, *value),
                (index, (*id as u64) << 24 | index),
                "worker {id}: lost, or seen twice"
            );
        }
    }
    let received: u64 = all.values().map(|records| records.len() as u64).sum();
    assert!(
        received.abs_diff(committed) <= 24,
        "{received} of {committed}: a death costs a count of one at most"
    );
    assert!(received > 800, "{received}");
    let census = consumer.records().census();
    assert_eq!((census.ready_records, census.held_records), (0, 0));
}

#[test]
fn a_word_says_what_it_was_made_of() {
    for (number, state) in
        [(0, State::Free), (1, State::Reserved), ((1 << 40) - 1, State::Ready), (12345, State::Taken)]
    {
        let owner = rollway_core::segment::Owner::new(1023, 4095);
        let word = Word::new(number, state, owner);
        assert_eq!(Word::unpack(word.pack()), word);
        assert!(word.is_of(number) && word.is_of(number + (1 << 40)) && !word.is_of(number + 1));
    }
}
