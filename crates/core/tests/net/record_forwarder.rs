//! Forwarders of records: a node's lanes, emptied over one connection into a learner's lane; deaths, cuts and restarts on the way.

use crate::fixture::*;
use crate::harness::{Proxy, Raw, cut_everywhere};
use crate::records::{KIB, Learner, record_of, size_of};
use rollway_core::net::wire::frame::{Content, Entry, Header, Kind, RecordOrigin};
use rollway_core::net::{Forwarder, NodeBuffer, TcpClientSpec, TcpServerSpec};
use rollway_core::policies::OnRestart;
use rollway_core::records::producer::Label;
use rollway_core::records::{Consumer, Producer, ProducerSpec, Records, RecordsSpec};
use rollway_core::ring::{Deadline, OnFull};
use rollway_core::{Error, Result};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

const LANE: usize = 1024 * KIB;

pub fn node(name: &str) -> RecordsSpec<'_> {
    RecordsSpec {
        name: Some(name),
        auto_named: false,
        schema: SCHEMA,
        lanes: 4,
        lane_bytes: LANE,
        descriptors: 64,
        max_peers: 16,
        on_full: OnFull::Block,
        preallocate: false,
    }
}

fn forward(name: &Name, spec: TcpClientSpec) -> Forwarder {
    let forwarder = Forwarder::start_records(spec, &node(name)).unwrap();
    forwarder.ready(soon()).unwrap();
    forwarder
}

fn records(forwarder: &Forwarder) -> &Arc<Records> {
    let NodeBuffer::Records(records) = forwarder.buffer() else { panic!("it is of records") };
    records
}

pub fn worker(name: &Name, id: u32) -> Producer {
    Producer::attach(name, SCHEMA, ProducerSpec { producer_id: Some(id), ..ANYONE }).unwrap()
}

/// A record whose version is its length and whose kind is its value.
pub fn offer(worker: &Producer, value: u32, bytes: usize, deadline: Deadline) -> Result<bool> {
    let Some(mut room) = Producer::reserve(worker, bytes, deadline)? else { return Ok(false) };
    room.bytes_mut().copy_from_slice(&record_of(value, bytes));
    room.commit(bytes, Label { version: bytes as u32, kind: value, origin: None })?;
    Ok(true)
}

fn put(worker: &Producer, value: u32, bytes: usize) {
    assert!(offer(worker, value, bytes, soon()).unwrap());
}

/// So many records of the learner: of which worker, and their values. Fails when one is not whole, or its number is not its value.
fn take(learner: &Learner, count: usize) -> Vec<(u32, u32)> {
    let take = || {
        let (producer, sequence, value, _) = learner.take();
        assert_eq!(sequence, u64::from(value));
        (producer, value)
    };
    (0..count).map(|_| take()).collect()
}

/// Each worker's records are there once and in order.
fn assert_exact(records: &[(u32, u32)], workers: u32, count: u32) {
    let mut next = HashMap::new();
    for (worker, value) in records {
        let expected = next.entry(*worker).or_insert(0);
        assert_eq!(value, expected, "of worker {worker}");
        *expected += 1;
    }
    assert_eq!(next, (0..workers).map(|worker| (worker, count)).collect());
}

#[test]
fn a_single_record_arrives_as_if_its_worker_were_the_learners_own() {
    let (name, learner) = (Name::unique(), Learner::new(LANE));
    let forwarder = forward(&name, learner.spec());
    let worker = worker(&name, 7);
    for value in 0..20 {
        put(&worker, value, 100);
        let record = Consumer::take(learner.consumer.clone(), soon()).unwrap().unwrap();
        let stamp = record.info().stamp;
        assert_eq!((stamp.producer_id, stamp.sequence), (7, u64::from(value)));
        assert_eq!((stamp.version, stamp.kind), (100, value));
        assert_eq!(record.bytes(), record_of(value, 100));
    }
    forwarder.close(soon()).unwrap();
    assert!(!name.path().exists());
    assert!(is_closed(offer(&worker, 20, 1, soon())));
}

#[test]
fn records_of_any_size_and_of_many_workers_arrive_in_order() {
    const COUNT: u32 = 300;
    let (name, learner) = (Name::unique(), Learner::new(LANE));
    let forwarder = forward(&name, learner.spec());
    std::thread::scope(|scope| {
        for id in 0..3 {
            let worker = worker(&name, id);
            scope.spawn(move || (0..COUNT).for_each(|value| put(&worker, value, size_of(value))));
        }
        assert_exact(&take(&learner, 3 * COUNT as usize), 3, COUNT);
    });
    forwarder.wait(soon()).unwrap();
    assert_eq!((forwarder.sent(), forwarder.acknowledged()), (900, 900));
    assert_eq!(records(&forwarder).census().committed(), 0);
    forwarder.close(soon()).unwrap();
}

#[test]
fn a_worker_without_a_number_gets_one_that_no_worker_of_the_learner_has() {
    let (name, learner) = (Name::unique(), Learner::new(LANE));
    let forwarder = forward(&name, learner.spec());
    let worker = Producer::attach(&name, SCHEMA, ANYONE).unwrap();
    put(&worker, 0, 8);
    let [(producer_id, 0)] = take(&learner, 1)[..] else { panic!("one") };
    assert!(producer_id >= 1 << 31 && producer_id == worker.producer_id());
    forwarder.close(soon()).unwrap();
}

#[test]
fn workers_learn_which_weights_are_the_newest() {
    let (name, learner) = (Name::unique(), Learner::new(LANE));
    learner.consumer.records().publish(5);
    let forwarder = forward(&name, learner.spec());
    assert!(eventually(|| records(&forwarder).published() == 5));
    learner.consumer.records().publish(6);
    let worker = worker(&name, 0);
    put(&worker, 0, 8);
    assert!(eventually(|| records(&forwarder).published() == 6));
    forwarder.close(soon()).unwrap();
}

#[test]
fn a_second_forwarder_of_the_records_is_refused() {
    let (name, learner) = (Name::unique(), Learner::new(LANE));
    let forwarder = forward(&name, learner.spec());
    let second = Forwarder::start_records(learner.spec(), &node(&name));
    assert!(matches!(second, Err(Error::Forwarded { pid, .. }) if pid == std::process::id()), "{second:?}");
    put(&worker(&name, 0), 0, 8);
    take(&learner, 1);
    forwarder.close(soon()).unwrap();
}

#[test]
fn a_learner_of_samples_refuses_a_forwarder_of_records_and_the_other_way_round() {
    let (name, ring) = (Name::unique(), crate::harness::Learner::new(4, 2));
    let forwarder = Forwarder::start_records(ring.spec(), &node(&name)).unwrap();
    let refused = forwarder.ready(soon());
    assert!(refused.is_err(), "{refused:?}");
    drop(forwarder);
    let (name, learner) = (Name::unique(), Learner::new(LANE));
    let forwarder = Forwarder::start(learner.spec(), &crate::fixture::spec(Some(&name), 8, 4)).unwrap();
    assert!(forwarder.ready(soon()).is_err());
}

/// A learner with room for three records of 16 KiB, and a worker that has sent twenty, some of which are under way.
fn held_up(name: &Name, spec: impl Fn(&Learner) -> TcpClientSpec) -> (Learner, Forwarder, Producer) {
    let learner = Learner::new(48 * KIB);
    let forwarder = forward(name, spec(&learner));
    let worker = worker(name, 0);
    (0..20).for_each(|value| put(&worker, value, 16 * KIB));
    assert!(eventually(|| learner.server.stats().waited > 0));
    assert!(forwarder.unacknowledged() > 0);
    (learner, forwarder, worker)
}

#[test]
fn a_forwarder_that_was_dropped_leaves_the_records_to_the_next() {
    let name = Name::unique();
    let (learner, forwarder, worker) = held_up(&name, Learner::spec);
    drop(forwarder);
    let forwarder = forward(&name, learner.spec());
    (20..30).for_each(|value| put(&worker, value, 100));
    assert_exact(&take(&learner, 30), 1, 30);
    forwarder.close(soon()).unwrap();
    assert_eq!((learner.server.stats().resumed, learner.ready()), (1, 0));
}

#[test]
fn close_that_finds_no_room_says_how_many_records_stay() {
    let name = Name::unique();
    let (learner, forwarder, worker) = held_up(&name, Learner::spec);
    match forwarder.close(briefly()) {
        Err(Error::NotForwarded { count, content, name: segment, .. }) => {
            assert!((15..=20).contains(&count), "{count}");
            assert_eq!((segment, content), ((*name).to_owned(), "records"));
        }
        other => panic!("{other:?}"),
    }
    put(&worker, 20, 8); // They are open.
    let forwarder = forward(&name, learner.spec());
    assert_exact(&take(&learner, 21), 1, 21);
    forwarder.close(soon()).unwrap();
}

#[test]
fn discarded_records_go_and_workers_get_an_error() {
    let name = Name::unique();
    let (_learner, forwarder, worker) = held_up(&name, Learner::spec);
    forwarder.discard();
    assert!(is_closed(offer(&worker, 20, 8, soon())));
    assert!(!name.path().exists());
}

#[test]
fn a_learner_that_is_away_for_too_long_ends_the_forwarder_and_not_the_records() {
    let (name, learner) = (Name::unique(), Learner::new(LANE));
    let spec = TcpClientSpec { reconnect_timeout: Duration::from_millis(50), ..learner.spec() };
    let forwarder = forward(&name, spec);
    let worker = worker(&name, 0);
    drop(learner);
    assert!(eventually(|| forwarder.is_over()));
    put(&worker, 0, 8);
    assert!(matches!(forwarder.wait(soon()), Err(Error::NotForwarded { count: 1, .. })));
    let learner = Learner::new(LANE);
    let next = forward(&name, learner.spec());
    assert_eq!(take(&learner, 1), [(0, 0)]);
    next.close(soon()).unwrap();
}

#[test]
fn a_record_that_no_lane_of_the_learner_has_room_for_ends_the_forwarder_and_stays() {
    let (name, learner) = (Name::unique(), Learner::new(48 * KIB));
    let forwarder = forward(&name, learner.spec());
    let worker = worker(&name, 0);
    put(&worker, 0, 100 * KIB);
    assert!(eventually(|| forwarder.is_over()));
    let error = forwarder.error().unwrap().to_string();
    assert!(error.contains("lane_bytes") && error.contains("1 records stay"), "{error}");
    drop(learner);
    let learner = Learner::new(LANE);
    let next = forward(&name, learner.spec());
    assert_exact(&take(&learner, 1), 1, 1);
    next.close(soon()).unwrap();
}

#[test]
fn a_full_lane_drops_nothing_that_may_have_been_sent() {
    let (name, learner) = (Name::unique(), Learner::new(48 * KIB));
    let spec = RecordsSpec { on_full: OnFull::DropOldest, lane_bytes: 256 * KIB, ..node(&name) };
    let forwarder = Forwarder::start_records(learner.spec(), &spec).unwrap();
    forwarder.ready(soon()).unwrap();
    let worker = worker(&name, 0);
    (0..8).for_each(|value| put(&worker, value, 16 * KIB));
    assert!(eventually(|| learner.server.stats().waited > 0 && forwarder.sent() == 8));
    drop(forwarder);
    for value in 8..500 {
        let _ = offer(&worker, value, 16 * KIB, soon()).unwrap();
    }
    let dropped = worker.records().totals().dropped_oldest;
    assert!(dropped > 400, "{dropped}");
    let forwarder = Forwarder::start_records(learner.spec(), &spec).unwrap();
    let seen: Vec<u32> = take(&learner, 500 - dropped as usize).into_iter().map(|(_, value)| value).collect();
    assert_eq!(seen[..8], (0..8).collect::<Vec<_>>());
    assert!(seen.is_sorted() && seen.last() == Some(&499));
    forwarder.close(soon()).unwrap();
}

#[test]
fn records_that_are_held_by_the_learner_stop_no_worker() {
    let (name, learner) = (Name::unique(), Learner::new(LANE));
    let forwarder = forward(&name, learner.spec());
    let worker = worker(&name, 0);
    let mut held = Vec::new();
    for value in 0..50 {
        put(&worker, value, 1000);
        held.push(Consumer::take(learner.consumer.clone(), soon()).unwrap().unwrap());
    }
    forwarder.wait(soon()).unwrap();
    forwarder.close(soon()).unwrap();
}

#[test]
fn a_connection_that_is_cut_at_any_byte_costs_no_record() {
    cut_everywhere(|cut| {
        let (name, learner) = (Name::unique(), Learner::new(LANE));
        let proxy = Proxy::new(learner.server.port(), cut, 64 * 1024);
        let forwarder = forward(&name, TcpClientSpec { port: proxy.port, ..learner.spec() });
        let worker = worker(&name, 0);
        (0..6).for_each(|value| put(&worker, value, 10 * value as usize));
        assert_exact(&take(&learner, 6), 1, 6);
        forwarder.close(soon()).unwrap();
        [0, 1].map(|way| proxy.carried[way].load(Ordering::Relaxed))
    });
}

#[test]
fn cuts_under_load_cost_no_record() {
    const COUNT: u32 = 1500;
    let (name, learner) = (Name::unique(), Learner::new(LANE));
    let proxy = Proxy::new(learner.server.port(), None, 1024);
    let forwarder = forward(&name, TcpClientSpec { port: proxy.port, ..learner.spec() });
    std::thread::scope(|scope| {
        for id in 0..2 {
            let worker = worker(&name, id);
            scope.spawn(move || (0..COUNT).for_each(|value| put(&worker, value, value as usize % 700)));
        }
        let mut all = Vec::new();
        while all.len() < 2 * COUNT as usize {
            all.extend(take(&learner, 1));
            if all.len() % 300 == 0 {
                proxy.cut();
            }
        }
        assert_exact(&all, 2, COUNT);
    });
    assert!(forwarder.stats().resumed > 0);
    forwarder.close(soon()).unwrap();
}

#[test]
fn a_server_with_one_frame_at_a_time_sees_no_difference() {
    let server = TcpServerSpec { max_inflight_frames: 1, ..TcpServerSpec::default() };
    let (name, learner) = (Name::unique(), Learner::with(LANE, OnFull::Block, server));
    let forwarder = forward(&name, learner.spec());
    let worker = worker(&name, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| (0..1000).for_each(|value| put(&worker, value, 50)));
        assert_exact(&take(&learner, 1000), 1, 1000);
    });
    forwarder.close(soon()).unwrap();
}

/// A learner that has some records of a forwarder, and holds up others, and a second one.
fn restarted(on_restart: OnRestart) -> (Vec<u32>, u64, u64) {
    let (name, second) = (Name::unique(), Learner::new(LANE));
    let proxy = std::cell::OnceCell::new();
    let (_first, forwarder, worker) = held_up(&name, |first| {
        let proxy = proxy.get_or_init(|| Proxy::new(first.server.port(), None, 64 * 1024));
        TcpClientSpec { port: proxy.port, on_restart, ..first.spec() }
    });
    let proxy = proxy.get().unwrap();
    proxy.redirect(second.server.port());
    proxy.cut();
    assert!(eventually(|| forwarder.stats().connects == 2));
    (20..24).for_each(|value| put(&worker, value, 8));
    let mut values = Vec::new();
    while values.last() != Some(&23) {
        values.extend(take(&second, 1).into_iter().map(|(_, value)| value));
    }
    let stats = forwarder.stats();
    forwarder.close(soon()).unwrap();
    (values, stats.dropped, stats.resent)
}

#[test]
fn records_that_a_dead_learner_did_not_acknowledge_are_dropped_or_sent_again() {
    let (values, dropped, resent) = restarted(OnRestart::Drop);
    assert!(values.ends_with(&[20, 21, 22, 23]) && values.is_sorted(), "{values:?}");
    assert!(dropped > 0 && resent == 0);
    let (values, dropped, resent) = restarted(OnRestart::Resend);
    assert!(values.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{values:?}");
    assert!(values[0] <= 3 && dropped == 0 && resent > 0);
}

/// Two records of three bytes, with these origins.
fn stamped(origins: &[RecordOrigin], rows: u32) -> Vec<u8> {
    let entries = (0..rows).flat_map(|kind| Entry { bytes: 3, version: 1, kind }.encoded());
    let origins = origins.iter().flat_map(RecordOrigin::encoded);
    let payload: Vec<u8> = entries.chain(origins).chain(vec![9; rows as usize * 3]).collect();
    Header { rows, ..Header::new(Kind::StampedRecords) }.with(&payload)
}

#[test]
fn origins_of_records_that_make_no_sense_end_the_connection_and_nothing_else() {
    let learner = Learner::new(64 * KIB);
    let origin = RecordOrigin { producer_id: 1, sequence: 3 };
    let mut nonzero = stamped(&[origin, origin], 2);
    nonzero[32 + 32 + 4] = 1;
    let cases = [
        stamped(&[], 2),
        stamped(&[origin], 2),
        stamped(&[origin, origin, origin], 2),
        stamped(&[origin, RecordOrigin { sequence: u64::MAX, ..origin }], 2),
        nonzero,
        Header { rows: 2, length: u64::MAX, ..Header::new(Kind::StampedRecords) }.bytes().to_vec(),
        Header { rows: 1, ..Header::new(Kind::Records) }
            .with(&Entry { bytes: 0, version: 0, kind: 0 }.encoded()),
    ];
    for (number, bytes) in cases.iter().enumerate() {
        let (mut raw, _) =
            Raw::enter_with(learner.server.port(), Content::ForwardedRecords, number as u8, 0, 0);
        raw.write(bytes);
        let (header, text) = raw.frame();
        assert_eq!(header.kind, Kind::Goodbye, "case {number}: {}", String::from_utf8_lossy(&text));
    }
    assert!(eventually(|| learner.server.stats().cut_damaged == cases.len() as u64));
    let (mut raw, _) = Raw::enter_with(learner.server.port(), Content::ForwardedRecords, 99, 0, 0);
    raw.write(&stamped(&[origin, RecordOrigin { producer_id: 4, sequence: 0 }], 2));
    let taken = [0, 1].map(|_| Consumer::take(learner.consumer.clone(), soon()).unwrap().unwrap());
    let stamps = taken.map(|record| record.info().stamp);
    assert_eq!(stamps.map(|stamp| (stamp.producer_id, stamp.sequence, stamp.kind)), [(1, 3, 0), (4, 0, 1)]);
    assert_eq!(learner.ready(), 0);
}

#[test]
fn a_client_of_records_may_not_send_for_others() {
    let learner = Learner::new(64 * KIB);
    let (mut raw, _) = Raw::enter_with(learner.server.port(), Content::Records, 1, 0, 0);
    raw.write(&stamped(&[RecordOrigin { producer_id: 1, sequence: 0 }; 2], 2));
    assert_eq!(raw.frame().0.kind, Kind::Goodbye);
}

/// Forwarders that are killed, one after the other, at each point and at several visits of it.
#[cfg(feature = "fault")]
mod kills {
    use super::*;
    use crate::kills::{die_as_told, kill_at_each};
    use rollway_core::sys::sync::Point;
    use std::sync::atomic::AtomicBool;

    const POINTS: &[Point] = &[
        Point::RecordTaken,
        Point::RecordSentNumbered,
        Point::NumbersMoved,
        Point::RecordFreed,
        Point::NotifyCleared,
        Point::NotifyMoved,
    ];
    const VISITS: &[usize] = &[1, 2, 7, 40];

    /// A forwarder in a process of its own, which dies on the way.
    #[test]
    #[ignore]
    fn victim() {
        die_as_told();
        let (segment, port) = (told("SEGMENT"), told("PORT").parse().unwrap());
        let spec = TcpClientSpec { port, ..TcpClientSpec::default() };
        let forwarder = Forwarder::start_records(spec, &node(&segment)).unwrap();
        forwarder.ready(soon()).unwrap();
        say("ready");
        stay();
    }

    #[test]
    fn killed_forwarders_lose_no_record_and_send_none_twice_and_keep_the_order() {
        assert!(Point::RECORD_FORWARDING.iter().all(|point| POINTS.contains(point)));
        let (name, learner) = (Name::unique(), Learner::new(64 * KIB));
        let port = learner.server.port().to_string();
        let first = forward(&name, learner.spec());
        let workers = [worker(&name, 0), worker(&name, 1)];
        drop(first);
        let done = AtomicBool::new(false);
        let (sent, seen) = std::thread::scope(|scope| {
            let sends = workers.each_ref().map(|worker| {
                let done = &done;
                scope.spawn(move || {
                    let mut value = 0;
                    while !done.load(Ordering::Relaxed) {
                        put(worker, value, value as usize % 900);
                        value += 1;
                    }
                    value
                })
            });
            let reader = scope.spawn(|| {
                let mut all = Vec::new();
                while let Ok(record) = Consumer::take(learner.consumer.clone(), soon()) {
                    let record = record.unwrap();
                    let stamp = record.info().stamp;
                    assert_eq!(record.bytes(), record_of(stamp.kind, stamp.version as usize));
                    assert_eq!(stamp.sequence, u64::from(stamp.kind));
                    all.push((stamp.producer_id, stamp.kind));
                }
                all
            });
            let variables = [("SEGMENT", &*name), ("PORT", &port)];
            kill_at_each("record_forwarder::kills::victim", &variables, POINTS, |_| VISITS);
            let last = forward(&name, learner.spec());
            done.store(true, Ordering::Relaxed);
            let sent = sends.map(|sender| sender.join().unwrap());
            last.close(soon()).unwrap();
            assert!(eventually(|| learner.consumer.records().census().committed() == 0));
            learner.consumer.records().shut_down();
            (sent, reader.join().unwrap())
        });
        for (id, count) in sent.into_iter().enumerate() {
            let of_worker = seen.iter().filter(|(worker, _)| *worker == id as u32);
            assert_eq!(
                of_worker.map(|(_, value)| *value).collect::<Vec<_>>(),
                (0..count).collect::<Vec<_>>()
            );
        }
    }
}
