//! Real sockets: what arrives, what is acknowledged, what is refused, and what a cut, a slow or a hostile peer changes.

use crate::fixture::*;
use crate::harness::*;
use rollway_core::Error;
use rollway_core::net::{Feed, TcpClientSpec, TcpServer, TcpServerSpec};
use rollway_core::ring::producer::Origin;
use rollway_core::ring::{Consumer, Deadline, RingSpec};
use std::sync::atomic::Ordering;
use std::time::Duration;

// ── delivery ───────────────────────────────────────────────────────────────────────────────────────────────────────

#[test]
fn samples_arrive_in_order_and_are_acknowledged() {
    let learner = Learner::new(4, 3);
    let client = learner.client();
    (0..8).for_each(|value| put(&client, value));
    client.wait(soon()).unwrap();
    assert_eq!((client.sent(), client.acknowledged(), client.unacknowledged()), (8, 8, 0));
    assert_eq!(learner.receive(8), (0..8).collect::<Vec<_>>());
    client.close(soon()).unwrap();
    assert!(is_closed(offer(&client, 9, soon())));
}

#[test]
fn stamps_say_who_sent_what_with_which_version() {
    let learner = Learner::new(3, 3);
    let client = learner.client();
    (5..8).for_each(|value| put(&client, value));
    let batch = Consumer::take(&*learner.consumer, soon(), None).unwrap().unwrap();
    let stamps: Vec<_> = (0..3).map(|row| batch.stamp(row)).collect();
    let producer = client.producer_id().unwrap();
    assert_eq!(
        stamps.iter().map(|s| (s.producer_id, s.sequence, s.version)).collect::<Vec<_>>(),
        [(producer, 0, 5), (producer, 1, 6), (producer, 2, 7)]
    );
}

#[test]
fn four_clients_send_at_once_and_nothing_is_lost_or_doubled() {
    const COUNT: u64 = 5000;
    let learner = Learner::new(32, 3);
    std::thread::scope(|scope| {
        for worker in 0..4 {
            let client = learner.client();
            scope.spawn(move || {
                if worker % 2 == 0 {
                    (0..COUNT).for_each(|value| put(&client, value));
                } else {
                    put_many(&client, 0..COUNT);
                }
                client.close(soon()).unwrap();
            });
        }
        assert_each_once(&learner.receive_stamped(4 * COUNT as usize), 4, COUNT);
    });
    assert!(eventually(|| learner.server.stats().connections == 0));
    assert_eq!(
        learner.server.sessions(),
        4,
        "who has said goodbye is remembered for a while, should his bytes come again"
    );
    assert_eq!(learner.server.stats().samples, 4 * COUNT);
}

#[test]
fn any_timeout_may_be_endless() {
    let (host, ever) = (TcpServerSpec::default().host, Duration::MAX);
    let server = TcpServerSpec {
        handshake_timeout: ever,
        frame_timeout: ever,
        keepalive: ever,
        session_ttl: ever,
        ..TcpServerSpec::default()
    };
    let learner = Learner::with(&crate::fixture::spec(None, 2, 2), server);
    let client = connect(TcpClientSpec {
        host,
        connect_timeout: ever,
        reconnect_timeout: ever,
        keepalive: ever,
        ..learner.spec()
    })
    .unwrap();
    put_many(&client, 0..2);
    client.close(Deadline::after(Some(ever))).unwrap();
    assert_eq!(learner.receive(2), [0, 1]);
}

#[test]
fn samples_may_have_many_leaves_and_empty_ones() {
    const LEAVES: [usize; 80] = {
        let mut bytes = [3; 80];
        (bytes[0], bytes[40], bytes[79]) = (0, 0, 0);
        bytes
    };
    let ring = RingSpec { leaf_bytes: &LEAVES, ..crate::fixture::spec(None, 4, 2) };
    let learner = Learner::with(&ring, TcpServerSpec::default());
    let client = connect_as(learner.spec(), SCHEMA, &LEAVES).unwrap();
    let stack: Vec<u8> = (0..=255).collect();
    let leaves: Vec<*const u8> = (0..80).map(|leaf| stack[leaf..].as_ptr()).collect();
    // SAFETY: each leaf has four rows of at most three bytes behind it.
    assert_eq!(unsafe { client.send(&leaves, 4, 0, soon()) }.unwrap(), 4);
    let batch = Consumer::take(&*learner.consumer, soon(), None).unwrap().unwrap();
    for (leaf, bytes) in LEAVES.iter().enumerate() {
        for row in 0..4 {
            // SAFETY: the batch is ours, and the leaf has that many bytes.
            let read = unsafe { std::slice::from_raw_parts(batch.leaf(leaf, row), *bytes) };
            assert_eq!(read, &stack[leaf + row * bytes..][..*bytes]);
        }
    }
}

#[test]
fn samples_may_be_empty_or_larger_than_a_frame() {
    for bytes in [0, 3 << 20] {
        let ring = RingSpec { leaf_bytes: &[bytes], ..crate::fixture::spec(None, 2, 2) };
        let learner = Learner::with(&ring, TcpServerSpec::default());
        let client = connect_as(learner.spec(), SCHEMA, &[bytes]).unwrap();
        let sample = vec![7; bytes];
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..6 {
                    // SAFETY: the one leaf has that many bytes.
                    let sent = unsafe { client.send(&[sample.as_ptr()], 1, 0, soon()) };
                    assert_eq!(sent.unwrap(), 1);
                }
                client.close(soon()).unwrap();
            });
            for _ in 0..3 {
                let batch = Consumer::take(&*learner.consumer, soon(), None).unwrap().unwrap();
                // SAFETY: the batch is ours, and the leaf has that many bytes.
                let read = unsafe { std::slice::from_raw_parts(batch.leaf(0, 1), bytes) };
                assert!(read == sample);
            }
        });
    }
}

#[test]
fn several_event_loops_serve_several_clients() {
    let spec = TcpServerSpec { threads: Some(3), ..TcpServerSpec::default() };
    let learner = Learner::with(&crate::fixture::spec(None, 8, 3), spec);
    std::thread::scope(|scope| {
        for client in [(); 6].map(|()| learner.client()) {
            scope.spawn(move || {
                (0..200).for_each(|value| put(&client, value));
                client.wait(soon()).unwrap();
            });
        }
        assert_each_once(&learner.receive_stamped(1200), 6, 200);
    });
}

#[test]
fn a_conversation_that_comes_byte_by_byte_is_understood() {
    let learner = Learner::new(4, 3);
    let proxy = Proxy::new(learner.server.port(), None, 1);
    let client = connect(TcpClientSpec { port: proxy.port, ..learner.spec() }).unwrap();
    put_many(&client, 0..8);
    client.close(soon()).unwrap();
    assert_eq!(learner.receive(8), (0..8).collect::<Vec<_>>());
}

#[test]
fn another_transport_needs_nothing_but_the_ingress() {
    let consumer = shared(private(2, 2));
    let server = TcpServer::start(ingress(&consumer), TcpServerSpec::default()).unwrap();
    let client = connect(TcpClientSpec { port: server.port(), ..TcpClientSpec::default() }).unwrap();
    let other = ingress(&consumer);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let producer_id = other.next_producer_id();
            for value in 0..20 {
                let run = loop {
                    match other.claim(1) {
                        Err(Error::Full) => assert!(other.wait_room(soon()).unwrap()),
                        claimed => break claimed.unwrap().unwrap(),
                    }
                };
                write_sample([run.leaf(0), run.leaf(1)], value, || {});
                run.commit(Origin { producer_id, sequence: value, version: 0 });
            }
        });
        scope.spawn(|| put_many(&client, 20..40));
        let all: Vec<u64> = (0..20).flat_map(|_| receive(&consumer)).collect();
        assert_eq!(sorted(all), (0..40).collect::<Vec<_>>());
    });
}

// ── cuts ───────────────────────────────────────────────────────────────────────────────────────────────────────────

/// Sends six samples through a proxy that cuts, and checks that each arrives once. Gives the bytes carried each way.
fn six_samples_through(cut: Option<(Way, usize)>) -> [usize; 2] {
    let learner = Learner::new(2, 5);
    let proxy = Proxy::new(learner.server.port(), cut, 64 * 1024);
    let client = connect(TcpClientSpec { port: proxy.port, ..learner.spec() }).unwrap();
    put(&client, 0);
    client.wait(soon()).unwrap();
    put_many(&client, 1..4);
    client.wait(soon()).unwrap();
    put_many(&client, 4..6);
    client.close(soon()).unwrap();
    assert_eq!(learner.receive(6), (0..6).collect::<Vec<_>>(), "cut at {cut:?}");
    assert_eq!(learner.claimed(), 0);
    assert_eq!(learner.consumer.ring().census().ready_samples, 0, "nothing came twice, cut at {cut:?}");
    [0, 1].map(|way| proxy.carried[way].load(Ordering::Relaxed))
}

#[test]
fn a_conversation_cut_at_any_byte_loses_and_doubles_nothing() {
    cut_everywhere(six_samples_through);
}

#[test]
fn a_client_that_is_cut_again_and_again_under_load_delivers_each_sample_once() {
    const COUNT: u64 = 20_000;
    let learner = Learner::new(16, 4);
    let proxy = Proxy::new(learner.server.port(), None, 64 * 1024);
    let spec = TcpClientSpec { port: proxy.port, max_inflight_msgs: 4, ..learner.spec() };
    let client = connect(spec).unwrap();
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            (0..COUNT).for_each(|value| put(&client, value));
            client.wait(soon()).unwrap();
        });
        let taker = scope.spawn(|| learner.receive_stamped(COUNT as usize));
        for round in 1..=20 {
            let reached = || client.acknowledged() >= round * COUNT / 25 || sender.is_finished();
            assert!(eventually(reached));
            proxy.cut();
        }
        assert_each_once(&taker.join().unwrap(), 1, COUNT);
    });
    assert!(client.stats().resumed > 0 && learner.server.stats().resumed > 0);
}

#[test]
fn clients_that_are_cut_while_the_ring_is_full_deliver_each_sample_once() {
    const COUNT: u64 = 3000;
    let spec = TcpServerSpec { threads: Some(2), ..TcpServerSpec::default() };
    let learner = Learner::with(&crate::fixture::spec(None, 8, 2), spec);
    std::thread::scope(|scope| {
        for worker in 1..=4 {
            let learner = &learner;
            scope.spawn(move || {
                let proxy = Proxy::new(learner.server.port(), None, 700 * worker);
                let spec = TcpClientSpec { port: proxy.port, max_inflight_msgs: 3, ..learner.spec() };
                let client = connect(spec).unwrap();
                for first in (0..COUNT).step_by(2 * worker + 1) {
                    put_many(&client, first..(first + 2 * worker as u64 + 1).min(COUNT));
                    if first % 97 < worker as u64 {
                        proxy.cut();
                    }
                }
                client.close(soon()).unwrap();
            });
        }
        assert_each_once(&learner.receive_stamped(4 * COUNT as usize), 4, COUNT);
    });
    assert_eq!(learner.claimed(), 0);
    assert!(learner.server.stats().resumed > 0);
}
