//! Forwarders: a node's ring, emptied over one connection into a learner's ring; deaths, cuts and restarts on the way.

use crate::fixture::*;
use crate::harness::*;
use rollway_core::Error;
use rollway_core::net::wire::frame::{Content, Header, Kind, OriginRun};
use rollway_core::net::{Forwarder, TcpClientSpec, TcpServerSpec};
use rollway_core::policies::OnRestart;
use rollway_core::ring::layout::Stamp;
use rollway_core::ring::producer::ProducerSpec;
use rollway_core::ring::{Consumer, Deadline, OnFull, Producer, RingSpec};
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A forwarder of a ring with batches of eight.
fn forward(name: &Name, spec: TcpClientSpec) -> Forwarder {
    let forwarder = Forwarder::start(spec, &crate::fixture::spec(Some(name), 8, 4)).unwrap();
    forwarder.ready(soon()).unwrap();
    forwarder
}

fn worker(name: &Name, id: u32) -> Producer {
    let spec = ProducerSpec { producer_id: Some(id), ..ANYONE };
    Producer::attach(name, SCHEMA, LEAVES, spec).unwrap()
}

/// The next batch of the learner, also an unfinished one.
fn take(learner: &Learner) -> Vec<(Stamp, u64)> {
    let deadline = Deadline::after(Some(Duration::from_millis(1)));
    loop {
        match Consumer::take(&*learner.consumer, deadline, Some(1)) {
            Ok(Some(batch)) => {
                let runs = batch.runs();
                return batch.stamps(&runs).into_iter().zip(values(&batch)).collect();
            }
            Ok(None) | Err(Error::Timeout) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// So many samples; fails when there are more of them, or others.
fn take_all(learner: &Learner, count: usize) -> Vec<(Stamp, u64)> {
    let mut all = Vec::new();
    while all.len() < count {
        all.extend(take(learner));
    }
    assert_eq!(all.len(), count);
    all
}

/// As [`assert_exact`], in whatever order: slots that a cut connection gave back are filled later, and may be overtaken.
fn assert_each_once(mut samples: Vec<(Stamp, u64)>, workers: u32, count: u64) {
    samples.sort_by_key(|(stamp, _)| stamp.sequence);
    assert_exact(&samples, workers, count);
}

/// Each worker's samples are there once and in order, and carry their value as their sequence.
fn assert_exact(samples: &[(Stamp, u64)], workers: u32, count: u64) {
    let mut next = HashMap::new();
    for (stamp, value) in samples {
        assert_eq!(stamp.sequence, *value);
        let expected = next.entry(stamp.producer_id).or_insert(0);
        assert_eq!(*value, *expected, "of worker {}", stamp.producer_id);
        *expected += 1;
    }
    assert_eq!(next, (0..workers).map(|worker| (worker, count)).collect());
}

#[test]
fn samples_of_many_workers_arrive_with_their_stamps() {
    let (name, learner) = (Name::unique(), Learner::new(16, 4));
    let forwarder = forward(&name, learner.spec());
    std::thread::scope(|scope| {
        for id in 0..3 {
            let worker = worker(&name, id);
            scope.spawn(move || (0..500).for_each(|value| send(&worker, value)));
        }
        assert_each_once(take_all(&learner, 1500), 3, 500);
    });
    forwarder.wait(soon()).unwrap();
    assert_eq!((forwarder.sent(), forwarder.acknowledged()), (1500, 1500));
    forwarder.close(soon()).unwrap();
    assert!(!name.path().exists());
}

#[test]
fn a_single_sample_leaves_at_once() {
    let (name, learner) = (Name::unique(), Learner::new(1, 4));
    let forwarder = forward(&name, learner.spec());
    let worker = worker(&name, 7);
    for value in 0..20 {
        send(&worker, value);
        let [(stamp, got)] = take(&learner)[..] else { panic!("one") };
        assert_eq!((stamp.producer_id, stamp.sequence, got), (7, value, value));
    }
    forwarder.close(soon()).unwrap();
}

#[test]
fn a_second_forwarder_of_a_ring_is_refused() {
    let (name, learner) = (Name::unique(), Learner::new(1, 4));
    let forwarder = forward(&name, learner.spec());
    let second = Forwarder::start(learner.spec(), &crate::fixture::spec(Some(&name), 8, 4));
    assert!(matches!(second, Err(Error::Forwarded { pid, .. }) if pid == std::process::id()), "{second:?}");
    let worker = worker(&name, 0);
    send(&worker, 0);
    assert_eq!(take(&learner).len(), 1);
    forwarder.close(soon()).unwrap();
}

#[test]
fn a_forwarder_that_was_dropped_leaves_the_ring_to_the_next() {
    let (name, learner) = (Name::unique(), Learner::new(1, 2));
    let worker = {
        let forwarder = forward(&name, learner.spec());
        let worker = worker(&name, 0);
        (0..20).for_each(|value| send(&worker, value)); // The learner has room for two of them.
        assert!(eventually(|| learner.server.stats().waited > 0));
        assert!(forwarder.unacknowledged() > 0);
        worker
    };
    let forwarder = forward(&name, learner.spec());
    (20..30).for_each(|value| send(&worker, value));
    assert_exact(&take_all(&learner, 30), 1, 30);
    forwarder.close(soon()).unwrap();
    assert_eq!(learner.server.stats().resumed, 1);
    assert!(is_closed(try_send(&worker, 30, soon())));
}

#[test]
fn close_that_finds_no_room_says_how_much_stays() {
    let (name, learner) = (Name::unique(), Learner::new(1, 2));
    let forwarder = forward(&name, learner.spec());
    let worker = worker(&name, 0);
    (0..20).for_each(|value| send(&worker, value));
    assert!(eventually(|| learner.server.stats().waited > 0));
    match forwarder.close(briefly()) {
        Err(Error::NotForwarded { count, name: segment, .. }) => {
            assert!((17..=20).contains(&count), "{count}");
            assert_eq!(segment, *name);
        }
        other => panic!("{other:?}"),
    }
    forwarder.close(briefly()).unwrap();
    send(&worker, 20); // The ring is open.
    let forwarder = forward(&name, learner.spec());
    assert_exact(&take_all(&learner, 21), 1, 21);
    forwarder.close(soon()).unwrap();
}

#[test]
fn a_learner_that_is_away_for_too_long_ends_the_forwarder_and_not_the_ring() {
    let (name, learner) = (Name::unique(), Learner::new(1, 2));
    let spec = TcpClientSpec { reconnect_timeout: Duration::from_millis(50), ..learner.spec() };
    let forwarder = forward(&name, spec);
    let worker = worker(&name, 0);
    drop(learner);
    assert!(eventually(|| forwarder.is_over()));
    send(&worker, 0);
    assert!(matches!(forwarder.error(), Some(Error::NotForwarded { .. })), "{:?}", forwarder.error());
    assert!(matches!(forwarder.wait(soon()), Err(Error::NotForwarded { count: 1, .. })));
    let learner = Learner::new(1, 2);
    let next = forward(&name, learner.spec());
    assert_eq!(take(&learner)[0].1, 0);
    next.close(soon()).unwrap();
}

#[test]
fn rows_that_a_learner_takes_in_small_frames_arrive_whole() {
    let (name, learner) = (Name::unique(), Learner::new(3, 3));
    let forwarder = forward(&name, learner.spec());
    let worker = worker(&name, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| (0..600).for_each(|value| send(&worker, value)));
        assert_exact(&take_all(&learner, 600), 1, 600);
    });
    forwarder.close(soon()).unwrap();
}

fn node(name: &Name, on_full: OnFull) -> RingSpec<'_> {
    RingSpec { on_full, ..crate::fixture::spec(Some(name), 8, 4) }
}

#[test]
fn a_full_ring_drops_nothing_that_may_have_been_sent() {
    let (name, learner) = (Name::unique(), Learner::new(1, 2));
    let ring = node(&name, OnFull::DropOldest);
    let forwarder = Forwarder::start(learner.spec(), &ring).unwrap();
    forwarder.ready(soon()).unwrap();
    let worker = worker(&name, 0);
    (0..8).for_each(|value| send(&worker, value));
    assert!(eventually(|| learner.server.stats().waited > 0));
    drop(forwarder);
    for value in 8..500 {
        let _ = try_send(&worker, value, soon()).unwrap();
    }
    let forwarder = Forwarder::start(learner.spec(), &ring).unwrap();
    let mut seen = Vec::new();
    while seen.len() < 8 {
        seen.extend(take(&learner).into_iter().map(|(_, value)| value));
    }
    assert_eq!(seen[..8], (0..8).collect::<Vec<_>>());
    drop(forwarder);
    drop(worker);
    let _ = std::fs::remove_file(name.path());
}

#[test]
fn a_connection_that_is_cut_at_any_byte_costs_nothing() {
    cut_everywhere(|cut| {
        let (name, learner) = (Name::unique(), Learner::new(4, 3));
        let proxy = Proxy::new(learner.server.port(), cut, 64 * 1024);
        let forwarder = forward(&name, TcpClientSpec { port: proxy.port, ..learner.spec() });
        let worker = worker(&name, 0);
        (0..6).for_each(|value| send(&worker, value));
        assert_each_once(take_all(&learner, 6), 1, 6);
        forwarder.close(soon()).unwrap();
        [0, 1].map(|way| proxy.carried[way].load(Ordering::Relaxed))
    });
}

#[test]
fn cuts_under_load_cost_nothing() {
    const COUNT: u64 = 4000;
    let (name, learner) = (Name::unique(), Learner::new(16, 3));
    let proxy = Proxy::new(learner.server.port(), None, 1024);
    let forwarder = forward(&name, TcpClientSpec { port: proxy.port, ..learner.spec() });
    std::thread::scope(|scope| {
        for id in 0..2 {
            let worker = worker(&name, id);
            scope.spawn(move || (0..COUNT).for_each(|value| send(&worker, value)));
        }
        let mut all = Vec::new();
        while all.len() < 2 * COUNT as usize {
            let before = all.len();
            all.extend(take(&learner));
            if before / 500 < all.len() / 500 {
                proxy.cut();
            }
        }
        assert_each_once(all, 2, COUNT);
    });
    assert!(forwarder.stats().resumed > 0);
    forwarder.close(soon()).unwrap();
}

/// A learner that has some samples of a forwarder, and holds up others, and a second one.
fn restarted(on_restart: OnRestart) -> (Vec<u64>, u64, u64) {
    let (name, first, second) = (Name::unique(), Learner::new(1, 2), Learner::new(1, 2));
    let proxy = Proxy::new(first.server.port(), None, 64 * 1024);
    let forwarder = forward(&name, TcpClientSpec { port: proxy.port, on_restart, ..first.spec() });
    let worker = worker(&name, 0);
    (0..8).for_each(|value| send(&worker, value));
    assert!(eventually(|| first.server.stats().waited > 0 && first.server.stats().samples == 2));
    proxy.redirect(second.server.port());
    proxy.cut();
    assert!(eventually(|| forwarder.stats().connects == 2));
    (8..12).for_each(|value| send(&worker, value));
    let mut values = Vec::new();
    while values.last() != Some(&11) {
        values.extend(take(&second).into_iter().map(|(_, value)| value));
    }
    let stats = forwarder.stats();
    forwarder.close(soon()).unwrap();
    (values, stats.dropped, stats.resent)
}

#[test]
fn what_a_dead_learner_did_not_acknowledge_is_dropped_or_sent_again() {
    let (values, dropped, resent) = restarted(OnRestart::Drop);
    assert_eq!(values[values.len() - 4..], [8, 9, 10, 11]);
    assert!(dropped > 0 && resent == 0);
    let (values, dropped, resent) = restarted(OnRestart::Resend);
    assert!(values.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{values:?}");
    assert!(values[0] <= 2 && dropped == 0 && resent > 0);
}

#[test]
fn a_server_with_timeouts_sees_no_difference() {
    let server = TcpServerSpec { max_inflight_frames: 1, ..TcpServerSpec::default() };
    let (name, learner) = (Name::unique(), Learner::with(&crate::fixture::spec(None, 64, 2), server));
    let forwarder = forward(&name, learner.spec());
    let worker = worker(&name, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| (0..1000).for_each(|value| send(&worker, value)));
        assert_exact(&take_all(&learner, 1000), 1, 1000);
    });
    forwarder.close(soon()).unwrap();
}

/// Two samples, with this index.
fn stamped(origins: &[OriginRun], rows: u32) -> Vec<u8> {
    let index: Vec<u8> = origins.iter().flat_map(OriginRun::encoded).collect();
    let header = Header { rows, ..Header::new(Kind::Stamped) };
    header.with(&[index, vec![0; rows as usize * 48]].concat())
}

#[test]
fn origins_that_make_no_sense_end_the_connection_and_nothing_else() {
    let learner = Learner::new(2, 3);
    let run = |rows| OriginRun { rows, producer_id: 1, version: 2, sequence: 3 };
    let cases = [
        stamped(&[], 2),
        stamped(&[run(1)], 2),
        stamped(&[run(3)], 2),
        stamped(&[run(u32::MAX), run(3)], 2),
        stamped(&[run(0), run(2)], 2),
        stamped(&[run(1), run(1), run(1)], 2),
        stamped(&[OriginRun { sequence: u64::MAX, ..run(2) }], 2),
        stamped(&[run(3)], 3), // More rows than a batch has.
        Header { rows: 2, length: u64::MAX, ..Header::new(Kind::Stamped) }.bytes().to_vec(),
        Header { rows: 2, ..Header::new(Kind::Data) }.with(&[0; 96]),
    ];
    for (number, bytes) in cases.iter().enumerate() {
        let (mut raw, _) = Raw::enter_with(learner.server.port(), Content::Forwarded, number as u8, 0, 0);
        raw.write(bytes);
        let (header, text) = raw.frame();
        assert_eq!(header.kind, Kind::Goodbye, "case {number}: {}", String::from_utf8_lossy(&text));
    }
    assert!(eventually(|| learner.server.stats().cut_damaged == cases.len() as u64));
    assert_eq!((learner.claimed(), learner.server.stats().samples), (0, 0));
    let (mut raw, _) = Raw::enter_with(learner.server.port(), Content::Forwarded, 99, 0, 0);
    raw.write(&stamped(&[run(1), OriginRun { producer_id: 4, ..run(1) }], 2));
    let batch = Consumer::take(&*learner.consumer, soon(), None).unwrap().unwrap();
    let stamps = batch.stamps(&batch.runs());
    let origins: Vec<_> =
        stamps.iter().map(|stamp| (stamp.producer_id, stamp.version, stamp.sequence)).collect();
    assert_eq!(origins, [(1, 2, 3), (4, 2, 3)]);
}

#[test]
fn a_client_of_samples_may_not_send_for_others() {
    let learner = Learner::new(2, 3);
    let (mut raw, _) = Raw::enter(learner.server.port(), 1, 0, 0);
    raw.write(&stamped(&[OriginRun { rows: 2, producer_id: 1, version: 0, sequence: 0 }], 2));
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
        Point::BatchSealed,
        Point::BatchTaken,
        Point::FirstNumbered,
        Point::BatchNumbered,
        Point::NumbersMoved,
        Point::BatchFreed,
        Point::NotifyCleared,
        Point::NotifyMoved,
    ];
    const VISITS: &[usize] = &[1, 2, 7];

    /// A forwarder in a process of its own, which dies on the way.
    #[test]
    #[ignore]
    fn victim() {
        die_as_told();
        let (segment, port) = (told("SEGMENT"), told("PORT").parse().unwrap());
        let ring = crate::fixture::spec(Some(&segment), 8, 4);
        let forwarder = Forwarder::start(TcpClientSpec { port, ..TcpClientSpec::default() }, &ring).unwrap();
        forwarder.ready(soon()).unwrap();
        say("ready");
        stay();
    }

    #[test]
    fn killed_forwarders_lose_nothing_and_send_nothing_twice() {
        assert!(Point::FORWARDING.iter().all(|point| POINTS.contains(point)));
        let (name, learner) = (Name::unique(), Learner::new(4, 3));
        drop(forward(&name, learner.spec())); // Goes with its ring: no worker is there.
        let port = learner.server.port().to_string();
        let mut stays =
            Some(Forwarder::start(learner.spec(), &crate::fixture::spec(Some(&name), 8, 4)).unwrap());
        let workers = [worker(&name, 0), worker(&name, 1)];
        drop(stays.take());
        let done = AtomicBool::new(false);
        let (sent, seen) = std::thread::scope(|scope| {
            let sends = workers.each_ref().map(|worker| {
                let done = &done;
                scope.spawn(move || {
                    let mut value = 0;
                    while !done.load(Ordering::Relaxed) {
                        send(worker, value);
                        value += 1;
                    }
                    value
                })
            });
            let reader = scope.spawn(|| {
                let mut all = Vec::new();
                while let Ok(batch) = Consumer::take(&*learner.consumer, soon(), None) {
                    let batch = batch.unwrap();
                    all.extend(batch.stamps(&batch.runs()).into_iter().zip(values(&batch)));
                }
                all
            });
            let variables = [("SEGMENT", &*name), ("PORT", &port)];
            kill_at_each("forwarder::kills::victim", &variables, POINTS, |_| VISITS);
            let last = forward(&name, learner.spec());
            done.store(true, Ordering::Relaxed);
            let sent = sends.map(|sender| sender.join().unwrap());
            last.close(soon()).unwrap();
            learner.consumer.flush().unwrap();
            assert!(eventually(|| learner.consumer.ring().census().committed() == 0));
            learner.consumer.ring().shut_down();
            (sent, reader.join().unwrap())
        });
        for (id, count) in sent.into_iter().enumerate() {
            let of_worker = seen.iter().filter(|(stamp, _)| stamp.producer_id == id as u32);
            let mut numbers: Vec<_> = of_worker.map(|(stamp, value)| (stamp.sequence, *value)).collect();
            numbers.sort_unstable();
            assert_eq!(numbers, (0..count).map(|value| (value, value)).collect::<Vec<_>>());
        }
    }
}
