//! Records over real sockets: sizes, order, cuts, full lanes, policies, wrong servers and hostile bytes.

use crate::fixture::*;
use crate::harness::{
    Certificate, Proxy, Raw, Way, connect_as, connect_records, cut_everywhere, data, resident, unacknowledged,
};
use proptest::prelude::*;
use rollway_core::net::wire::frame::{
    Content, Entry, GoodbyeReason, Header, Hello, Kind, LearnerStatus, Refusal, Welcome,
};
use rollway_core::net::{RecordIngress, TcpClientSpec, TcpRecordClient, TcpServer, TcpServerSpec};
use rollway_core::records::format::{LeafShape, Shape};
use rollway_core::records::producer::Label;
use rollway_core::records::{Consumer, Producer, Record, RecordsSpec};
use rollway_core::ring::{Deadline, IfExists, OnFull};
use rollway_core::{Error, Result};
use std::collections::HashMap;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

pub const KIB: usize = 1024;

/// A segment of records with a server in front of it.
pub struct Learner {
    pub server: TcpServer,
    pub consumer: Arc<Consumer>,
}

/// One that was received: who sent it, its number, its value, and how long it is.
pub type Received = (u32, u64, u32, usize);

impl Learner {
    pub fn new(lane_bytes: usize) -> Learner {
        Learner::with(lane_bytes, OnFull::Block, TcpServerSpec::default())
    }

    pub fn policy(lane_bytes: usize, on_full: OnFull) -> Learner {
        Learner::with(lane_bytes, on_full, TcpServerSpec::default())
    }

    pub fn with(lane_bytes: usize, on_full: OnFull, spec: TcpServerSpec) -> Learner {
        Learner::open(lane_bytes, on_full, spec, None)
    }

    /// One that takes only records of [`shape`].
    fn checked(spec: TcpServerSpec) -> Learner {
        Learner::open(64 * KIB, OnFull::Block, spec, Some(shape()))
    }

    fn open(lane_bytes: usize, on_full: OnFull, spec: TcpServerSpec, shape: Option<Shape>) -> Learner {
        let records = RecordsSpec {
            name: None,
            auto_named: false,
            schema: SCHEMA,
            lanes: 3,
            lane_bytes,
            descriptors: 64,
            max_peers: 16,
            on_full,
            preallocate: false,
        };
        let consumer = Arc::new(Consumer::open(&records, IfExists::Resume, None).unwrap());
        let ingress = RecordIngress::new(producer(&consumer), shape).unwrap();
        let server = TcpServer::start(ingress, spec).unwrap();
        Learner { server, consumer }
    }

    pub fn spec(&self) -> TcpClientSpec {
        TcpClientSpec { port: self.server.port(), ..TcpClientSpec::default() }
    }

    fn client(&self) -> TcpRecordClient {
        connect(self.spec()).unwrap()
    }

    fn enter(&self, session: u8, oldest: u64, next: u64) -> (Raw, Welcome) {
        Raw::enter_with(self.server.port(), Content::Records, session, oldest, next)
    }

    /// Takes the next record, and checks that it is whole.
    pub fn take(&self) -> Received {
        checked(&Consumer::take(self.consumer.clone(), soon()).unwrap().unwrap())
    }

    /// The values of the next ones.
    pub fn values(&self, count: usize) -> Vec<u32> {
        (0..count).map(|_| self.take().2).collect()
    }

    /// Asserts that each of `clients` has sent `count` records, and that each came once and in order.
    pub fn receive_each_once(&self, clients: usize, count: u64) {
        let mut next: HashMap<u32, u64> = HashMap::new();
        for _ in 0..clients as u64 * count {
            let (producer, sequence, value, _) = self.take();
            let next = next.entry(producer).or_default();
            assert_eq!((sequence, value as u64), (*next, *next), "of producer {producer}");
            *next += 1;
        }
        assert_eq!((next.len(), self.ready()), (clients, 0));
    }

    fn reserved(&self) -> usize {
        self.consumer.records().census().reserved_records
    }

    pub fn ready(&self) -> usize {
        self.consumer.records().census().ready_records
    }
}

/// What a record says of itself. Fails when it is not whole.
pub fn checked(record: &Record<Arc<Consumer>>) -> Received {
    let (info, bytes) = (record.info(), record.bytes());
    assert_eq!(info.stamp.version as usize, bytes.len());
    assert!(bytes == record_of(info.stamp.kind, bytes.len()), "record {} is not whole", info.stamp.kind);
    (info.stamp.producer_id, info.stamp.sequence, info.stamp.kind, bytes.len())
}

pub fn producer(consumer: &Consumer) -> Producer {
    Producer::attach_to(consumer.records().clone(), ANYONE).unwrap()
}

/// The bytes of a record.
pub fn record_of(value: u32, bytes: usize) -> Vec<u8> {
    let mut state = value as u64;
    let mut word = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        state.to_le_bytes()
    };
    (0..bytes.div_ceil(8)).flat_map(|_| word()).take(bytes).collect()
}

pub fn connect(spec: TcpClientSpec) -> Result<TcpRecordClient> {
    connect_records(spec, SCHEMA)
}

/// Sends one record.
fn offer(client: &TcpRecordClient, value: u32, bytes: usize, deadline: Deadline) -> Result<()> {
    client.send(bytes, bytes as u32, value, deadline, |room| room.copy_from_slice(&record_of(value, bytes)))
}

pub fn put(client: &TcpRecordClient, value: u32, bytes: usize) {
    offer(client, value, bytes, soon()).unwrap();
}

/// A size that follows from the value: mostly small, sometimes more than a frame.
pub fn size_of(value: u32) -> usize {
    match value % 50 {
        0 => 0,
        49 => 300 * KIB + value as usize,
        other => (other * other * 7) as usize,
    }
}

/// The bytes of a frame of records: values from `first` on, of those sizes.
fn frame(first: u64, sizes: &[usize]) -> Vec<u8> {
    let values = (first as u32..).zip(sizes);
    let entry = |(kind, &bytes)| Entry { bytes: bytes as u64, version: bytes as u32, kind }.encoded();
    let index = values.clone().flat_map(entry);
    let records = values.flat_map(|(value, &bytes)| record_of(value, bytes));
    let payload: Vec<u8> = index.chain(records).collect();
    Header { rows: sizes.len() as u32, sequence: first, ..Header::new(Kind::Records) }.with(&payload)
}

// ── delivery ───────────────────────────────────────────────────────────────────────────────────────────────────────

#[test]
fn records_of_any_size_arrive_whole_and_in_order() {
    let sizes =
        [0, 1, 3, 8, 13, 4095, 4096, 4097, 100_001, 256 * KIB, 256 * KIB + 1, 1024 * KIB + 7, 3 << 20, 0, 5];
    let learner = Learner::new(8 << 20);
    let client = learner.client();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for (value, bytes) in sizes.iter().chain(&sizes).enumerate() {
                put(&client, value as u32, *bytes);
            }
            client.close(soon()).unwrap();
        });
        for (value, bytes) in sizes.iter().chain(&sizes).enumerate() {
            let (_, sequence, kind, len) = learner.take();
            assert_eq!((sequence, kind as usize, len), (value as u64, value, *bytes));
        }
    });
    assert_eq!((client.sent(), client.acknowledged()), (30, 30));
    assert_eq!((learner.reserved(), learner.ready()), (0, 0));
}

#[test]
fn records_that_are_all_empty_arrive() {
    let learner = Learner::new(64 * KIB);
    let client = learner.client();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            (0..2000).for_each(|value| put(&client, value, 0));
            client.close(soon()).unwrap();
        });
        learner.receive_each_once(1, 2000);
    });
}

#[test]
fn a_record_as_large_as_the_lane_arrives() {
    let learner = Learner::new(1 << 20);
    let client = learner.client();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for value in 0..3 {
                put(&client, value, 1 << 20);
            }
            client.close(soon()).unwrap();
        });
        learner.receive_each_once(1, 3);
    });
}

#[test]
fn stamps_say_who_sent_what() {
    let learner = Learner::new(64 * KIB);
    let client = connect(TcpClientSpec { producer_id: Some(77), ..learner.spec() }).unwrap();
    put(&client, 5, 10);
    put(&client, 6, 20);
    assert_eq!([learner.take(), learner.take()], [(77, 0, 5, 10), (77, 1, 6, 20)]);
    assert_eq!(client.producer_id(), Some(77));
}

#[test]
fn clients_hear_of_new_weights_at_once_with_acknowledgements_and_with_pings() {
    let keepalive = Duration::from_millis(50);
    let spec = TcpServerSpec { keepalive, ..TcpServerSpec::default() };
    let learner = Learner::with(64 * KIB, OnFull::Block, spec);
    learner.consumer.records().publish(3);
    // This one breaks no silence, so the learner does.
    let client = connect(TcpClientSpec { keepalive: Duration::from_secs(60), ..learner.spec() }).unwrap();
    assert_eq!(client.published(), 3);
    learner.consumer.records().publish(4);
    assert!(eventually(|| client.published() == 4));
    learner.consumer.records().publish(5);
    put(&client, 0, 10);
    client.wait(soon()).unwrap();
    assert_eq!(client.published(), 5);
}

#[test]
fn clients_that_ask_are_told_how_many_records_wait_whoever_sent_them() {
    let learner = Learner::new(64 * KIB);
    let before = learner.client();
    for value in 0..5 {
        put(&before, value, 10);
    }
    before.wait(soon()).unwrap();
    let client = learner.client();
    assert_eq!(client.learner_status(), LearnerStatus { version: 0, waiting: 5 }, "told with the welcome");
    put(&client, 5, 10);
    assert_eq!(client.learner_status().waiting, 6, "what is on its way waits as well");
    for _ in 0..4 {
        learner.take();
    }
    learner.consumer.records().publish(3);
    assert!(eventually(|| client.learner_status() == LearnerStatus { version: 3, waiting: 2 }));
    assert!(eventually(|| before.learner_status() == LearnerStatus { version: 3, waiting: 2 }));
}

#[test]
fn a_record_that_is_in_the_learners_hands_does_not_wait_and_one_given_back_does() {
    let learner = Learner::new(64 * KIB);
    let client = learner.client();
    put(&client, 7, 10);
    client.wait(soon()).unwrap();
    let held = Consumer::take(learner.consumer.clone(), soon()).unwrap().unwrap();
    assert!(eventually(|| client.learner_status().waiting == 0));
    held.give_back();
    assert!(eventually(|| client.learner_status().waiting == 1));
}

#[test]
fn the_count_of_what_waits_outlives_a_lost_connection() {
    let learner = Learner::new(64 * KIB);
    let proxy = Proxy::new(learner.server.port(), None, 64 * KIB);
    let client = connect(TcpClientSpec { port: proxy.port, ..learner.spec() }).unwrap();
    put(&client, 0, 10);
    client.wait(soon()).unwrap();
    for _ in 0..20 {
        client.learner_status();
        proxy.cut();
    }
    put(&client, 1, 10);
    client.wait(soon()).unwrap();
    assert!(eventually(|| client.learner_status().waiting == 2));
    learner.take();
    assert!(eventually(|| client.learner_status().waiting == 1), "asks again after a question that was lost");
}

#[test]
fn clients_and_a_local_producer_send_at_once_and_nothing_is_lost_or_doubled() {
    const COUNT: u32 = 1500;
    let learner =
        Learner::with(1 << 20, OnFull::Block, TcpServerSpec { threads: Some(2), ..TcpServerSpec::default() });
    std::thread::scope(|scope| {
        for client in [(); 2].map(|()| learner.client()) {
            scope.spawn(move || {
                (0..COUNT).for_each(|value| put(&client, value, size_of(value)));
                client.close(soon()).unwrap();
            });
        }
        let local = Box::new(producer(&learner.consumer));
        scope.spawn(move || {
            for value in 0..COUNT {
                let bytes = size_of(value);
                let mut room = Producer::reserve(&*local, bytes, soon()).unwrap().unwrap();
                room.bytes_mut().copy_from_slice(&record_of(value, bytes));
                let label = Label { version: bytes as u32, kind: value, origin: None };
                room.commit(bytes, label).unwrap();
            }
        });
        learner.receive_each_once(3, COUNT as u64);
    });
    assert_eq!(learner.server.stats().samples, 2 * COUNT as u64);
    assert_eq!(learner.reserved(), 0);
}

#[test]
fn a_conversation_that_comes_byte_by_byte_is_understood() {
    let learner = Learner::new(64 * KIB);
    let proxy = Proxy::new(learner.server.port(), None, 1);
    let client = connect(TcpClientSpec { port: proxy.port, ..learner.spec() }).unwrap();
    (0..8).for_each(|value| put(&client, value, 50 * value as usize));
    client.close(soon()).unwrap();
    learner.receive_each_once(1, 8);
}

#[test]
fn records_go_over_tls_with_a_token_and_resume_after_a_cut() {
    const COUNT: u32 = 300;
    let (certificate, token) = (Certificate::new("records"), Some(b"open sesame".to_vec()));
    let spec = TcpServerSpec { tls: certificate.server(), token: token.clone(), ..TcpServerSpec::default() };
    let learner = Learner::with(1 << 20, OnFull::Block, spec);
    let proxy = Proxy::new(learner.server.port(), None, 64 * KIB);
    let tls = certificate.client("learner.test");
    let client = connect(TcpClientSpec { port: proxy.port, token, tls, ..TcpClientSpec::default() }).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            (0..COUNT / 2).for_each(|value| put(&client, value, size_of(value)));
            proxy.cut();
            (COUNT / 2..COUNT).for_each(|value| put(&client, value, size_of(value)));
            client.close(soon()).unwrap();
        });
        learner.receive_each_once(1, COUNT as u64);
    });
}

#[test]
fn two_servers_feed_one_set_of_records() {
    let learner = Learner::new(64 * KIB);
    let ingress = RecordIngress::new(producer(&learner.consumer), None).unwrap();
    let another = TcpServer::start(ingress, TcpServerSpec::default()).unwrap();
    let client = connect(TcpClientSpec { port: another.port(), ..learner.spec() }).unwrap();
    put(&client, 7, 100);
    client.wait(soon()).unwrap();
    assert_eq!(learner.values(1), [7]);
    another.stop();
}

// ── cuts ───────────────────────────────────────────────────────────────────────────────────────────────────────────

/// Sends six records through a proxy that cuts, and checks that each arrives once. Gives the bytes carried each way.
fn six_records_through(cut: Option<(Way, usize)>) -> [usize; 2] {
    let learner = Learner::new(64 * KIB);
    let proxy = Proxy::new(learner.server.port(), cut, 64 * KIB);
    let client = connect(TcpClientSpec { port: proxy.port, ..learner.spec() }).unwrap();
    put(&client, 0, 20);
    client.wait(soon()).unwrap();
    put(&client, 1, 0);
    put(&client, 2, 31);
    put(&client, 3, 8);
    client.wait(soon()).unwrap();
    put(&client, 4, 1);
    put(&client, 5, 17);
    client.close(soon()).unwrap();
    let all: Vec<_> =
        (0..6).map(|_| learner.take()).map(|(_, sequence, value, bytes)| (sequence, value, bytes)).collect();
    assert_eq!(all, [(0, 0, 20), (1, 1, 0), (2, 2, 31), (3, 3, 8), (4, 4, 1), (5, 5, 17)], "cut at {cut:?}");
    assert_eq!((learner.reserved(), learner.ready()), (0, 0), "nothing came twice, cut at {cut:?}");
    [0, 1].map(|way| proxy.carried[way].load(Ordering::Relaxed))
}

#[test]
fn a_conversation_cut_at_any_byte_loses_and_doubles_nothing() {
    cut_everywhere(six_records_through);
}

#[test]
fn clients_that_are_cut_while_the_lane_is_full_deliver_each_record_once() {
    const COUNT: u32 = 400;
    let spec = TcpServerSpec { threads: Some(2), ..TcpServerSpec::default() };
    let learner = Learner::with(512 * KIB, OnFull::Block, spec);
    std::thread::scope(|scope| {
        for worker in 1..=3 {
            let learner = &learner;
            scope.spawn(move || {
                let proxy = Proxy::new(learner.server.port(), None, 5000 * worker);
                let spec = TcpClientSpec { port: proxy.port, max_inflight_msgs: 3, ..learner.spec() };
                let client = connect(spec).unwrap();
                for value in 0..COUNT {
                    put(&client, value, size_of(value));
                    if value % 37 < worker as u32 {
                        proxy.cut();
                    }
                }
                client.close(soon()).unwrap();
            });
        }
        learner.receive_each_once(3, COUNT as u64);
    });
    assert_eq!(learner.reserved(), 0);
    assert!(learner.server.stats().resumed > 0);
}

#[test]
fn a_second_connection_takes_over_from_one_that_is_stuck_in_a_record() {
    let learner = Learner::new(64 * KIB);
    let (mut first, _) = learner.enter(1, 0, 0);
    first.write(&frame(0, &[10]));
    assert_eq!(first.expect(Kind::Ack).0.sequence, 1);
    let half = frame(1, &[100, 100]);
    first.write(&half[..half.len() - 30]); // One is whole, but not its frame.
    assert!(eventually(|| learner.reserved() == 2));
    let (mut second, welcome) = learner.enter(1, 1, 3);
    assert_eq!((welcome.next, learner.reserved()), (1, 0), "told only when the first is out");
    assert_eq!(first.expect(Kind::Goodbye).0.code, GoodbyeReason::TakenOver as u16);
    second.write(&half);
    assert_eq!(second.expect(Kind::Ack).0.sequence, 3);
    learner.receive_each_once(1, 3);
}

#[test]
fn records_that_come_again_are_skipped() {
    let learner = Learner::new(64 * KIB);
    let (mut raw, _) = learner.enter(1, 0, 0);
    raw.write(&frame(0, &[5, 0]));
    raw.write(&frame(0, &[5, 0]));
    raw.write(&frame(1, &[0, 40 * KIB])); // Skips the first.
    raw.write(&frame(2, &[40 * KIB, 1])); // More than the buffer through which it is skipped.
    while raw.expect(Kind::Ack).0.sequence < 4 {}
    learner.receive_each_once(1, 4);
    assert_eq!(learner.server.stats().duplicates, 4);
}

// ── a full lane ────────────────────────────────────────────────────────────────────────────────────────────────────

#[test]
fn a_full_lane_slows_its_clients_and_everything_arrives_when_it_is_drained() {
    let learner = Learner::new(64 * KIB);
    let client = connect(TcpClientSpec { max_inflight_msgs: 2, ..learner.spec() }).unwrap();
    let mut sent = 0;
    while offer(&client, sent, 10_000, briefly()).is_ok() {
        sent += 1;
    }
    assert!(matches!(offer(&client, sent, 10_000, Deadline::Now), Err(Error::Full)));
    assert!(!client.wait_writable(10_000, briefly()).unwrap());
    assert!(matches!(client.wait(briefly()), Err(Error::Timeout)));
    assert!(eventually(|| client.acknowledged() == 6), "what is in the lane is acknowledged");
    assert_eq!(learner.reserved(), 0, "nobody who waits holds room");
    assert_eq!(learner.values(sent as usize), (0..sent).collect::<Vec<_>>());
    assert!(client.wait_writable(10_000, soon()).unwrap());
    client.close(soon()).unwrap();
}

#[test]
fn a_frame_that_finds_room_for_a_part_commits_it_and_is_resumed_in_its_middle() {
    let learner = Learner::new(64 * KIB);
    let (mut raw, _) = learner.enter(1, 0, 0);
    let all = frame(0, &[10 * KIB; 10]);
    raw.write(&all);
    while raw.expect(Kind::Ack).0.sequence < 6 {}
    assert_eq!((learner.reserved(), learner.ready()), (0, 6));
    // It is gone, and comes again with all of it: the server knows where it was.
    drop(raw);
    let (mut raw, welcome) = learner.enter(1, 6, 10);
    assert_eq!(welcome.next, 6);
    raw.write(&frame(6, &[10 * KIB; 4]));
    learner.receive_each_once(1, 10);
    while raw.expect(Kind::Ack).0.sequence < 10 {}
}

#[test]
fn a_client_whose_frame_is_acknowledged_in_its_middle_goes_on_there_after_a_cut() {
    let learner = Learner::new(64 * KIB);
    let proxy = Proxy::new(learner.server.port(), None, 64 * KIB);
    let client = connect(TcpClientSpec { port: proxy.port, ..learner.spec() }).unwrap();
    for value in 0..12 {
        put(&client, value, 10 * KIB);
    }
    assert!(eventually(|| client.acknowledged() == 6));
    proxy.cut();
    assert!(eventually(|| client.stats().resumed == 1));
    learner.receive_each_once(1, 12);
    client.close(soon()).unwrap();
}

#[test]
fn many_clients_share_a_lane_that_is_always_full() {
    const COUNT: u32 = 120;
    let learner = Learner::new(400 * KIB);
    std::thread::scope(|scope| {
        for _ in 0..10 {
            let spec = TcpClientSpec { max_inflight_msgs: 2, ..learner.spec() };
            let client = connect(spec).unwrap();
            scope.spawn(move || {
                (0..COUNT).for_each(|value| put(&client, value, size_of(value)));
                client.close(soon()).unwrap();
            });
        }
        learner.receive_each_once(10, COUNT as u64);
    });
    assert!(learner.server.stats().waited > 0);
    assert_eq!(learner.reserved(), 0);
}

#[test]
fn a_small_record_passes_large_ones_that_wait() {
    let learner = Learner::new(64 * KIB);
    let first = learner.client();
    put(&first, 0, 40 * KIB);
    first.wait(soon()).unwrap();
    let held = Consumer::take(learner.consumer.clone(), soon()).unwrap().unwrap();
    // More of them than may wait at the lane at once, each for more than there is.
    let large = [(); 12].map(|()| learner.client());
    large.iter().for_each(|client| put(client, 0, 50 * KIB));
    assert!(eventually(|| learner.server.stats().waited == 12));
    let small = learner.client();
    put(&small, 9, 100);
    small.wait(soon()).unwrap();
    assert_eq!(learner.values(1), [9], "the learner may need it before it lets go of what it holds");
    drop(held);
    assert_eq!(learner.values(12), [0; 12]);
}

#[test]
fn a_hundred_clients_of_a_learner_that_stands_still_cost_little() {
    const CLIENTS: usize = 100;
    if !alone("records::a_hundred_clients_of_a_learner_that_stands_still_cost_little") {
        return;
    }
    let learner = Learner::new(64 * KIB);
    let (mut filler, _) = learner.enter(1, 0, 0);
    filler.write(&frame(0, &[64 * KIB]));
    assert_eq!(filler.expect(Kind::Ack).0.sequence, 1);
    let mut raws: Vec<Raw> = Vec::new();
    let before = resident();
    for number in 0..CLIENTS {
        let mut raw = Raw::open(learner.server.port());
        raw.prove(None);
        let mut session = [0; 16];
        session[..8].copy_from_slice(&(number as u64).to_le_bytes());
        let (content, schema) = (Content::Records, SCHEMA.to_vec());
        raw.write(
            &Hello { content, session, producer_id: None, attempt: 1, next: 0, oldest: 0, schema }.frame(),
        );
        assert_eq!(raw.frame().0.kind, Kind::Welcome);
        raws.push(raw);
    }
    // Each sends as much as the kernel takes, whatever its credit: frames of as many records as there may be.
    let bytes = frame(0, &[2000; 512]);
    for raw in &mut raws {
        raw.0.set_nonblocking(true).unwrap();
        while raw.0.write(&bytes).is_ok() {}
    }
    assert!(eventually(|| learner.server.stats().waited >= CLIENTS as u64));
    let _another = learner.client(); // It still answers.
    let grown = resident().saturating_sub(before);
    assert!(grown < CLIENTS * 48 * KIB, "{grown} bytes for {CLIENTS} clients");
    assert_eq!(learner.reserved(), 0);
}

#[test]
fn a_slow_client_is_cut_and_holds_nothing_afterwards() {
    let limit = Duration::from_millis(400);
    let spec = TcpServerSpec { frame_timeout: limit, claim_timeout: limit, ..TcpServerSpec::default() };
    let learner = Learner::with(64 * KIB, OnFull::Block, spec);
    let (mut raw, _) = learner.enter(1, 0, 0);
    let bytes = frame(0, &[100, 60 * KIB]);
    raw.write(&bytes[..64]);
    let other = learner.client();
    put(&other, 0, 50);
    other.wait(soon()).unwrap(); // The loop has been round, and saw the index.
    assert_eq!(learner.reserved(), 0, "nothing is held before the first record comes");
    raw.write(&bytes[64..90]);
    assert!(eventually(|| learner.reserved() > 0));
    assert_eq!(raw.expect(Kind::Goodbye).0.code, GoodbyeReason::TooSlow as u16);
    assert_eq!((learner.reserved(), learner.server.stats().cut_slow), (0, 1));
    let (mut raw, welcome) = learner.enter(1, 0, 2);
    assert_eq!(welcome.next, 0);
    raw.write(&bytes);
    while raw.expect(Kind::Ack).0.sequence < 2 {}
    assert_eq!(learner.values(3).len(), 3);
}

// ── policies ───────────────────────────────────────────────────────────────────────────────────────────────────────

#[test]
fn drop_newest_drops_and_counts() {
    let learner = Learner::policy(64 * KIB, OnFull::DropNewest);
    let client = learner.client();
    (0..9).for_each(|value| put(&client, value, 10 * KIB));
    client.wait(soon()).unwrap();
    assert_eq!((client.acknowledged(), learner.server.stats().dropped), (9, 3));
    assert_eq!(learner.values(6), [0, 1, 2, 3, 4, 5]);
    assert_eq!(learner.consumer.records().totals().dropped_newest, 3);
}

#[test]
fn drop_oldest_keeps_the_newest() {
    let learner = Learner::policy(64 * KIB, OnFull::DropOldest);
    let client = learner.client();
    (0..9).for_each(|value| put(&client, value, 10 * KIB));
    client.wait(soon()).unwrap();
    assert_eq!(learner.values(6), [3, 4, 5, 6, 7, 8]);
    assert_eq!(learner.consumer.records().totals().dropped_oldest, 3);
}

#[test]
fn drop_oldest_keeps_the_newest_of_a_frame_that_is_larger_than_the_lane() {
    let learner = Learner::policy(16 * KIB, OnFull::DropOldest);
    let (mut raw, _) = learner.enter(1, 0, 0);
    raw.write(&frame(0, &[2 * KIB; 30]));
    while raw.expect(Kind::Ack).0.sequence < 30 {}
    assert_eq!(learner.values(8), (22..30).collect::<Vec<_>>());
}

#[test]
fn the_policy_error_names_what_was_refused() {
    let learner = Learner::policy(64 * KIB, OnFull::Error);
    let client = learner.client();
    (0..6).for_each(|value| put(&client, value, 10 * KIB));
    client.wait(soon()).unwrap();
    put(&client, 6, 10 * KIB);
    let refused = client.wait(soon()).unwrap_err();
    assert!(matches!(refused, Error::Refused { content: "records", first: 6, count: 1 }), "{refused}");
    client.wait(soon()).unwrap();
    put(&client, 7, 3 * KIB); // A smaller one finds room.
    client.wait(soon()).unwrap();
    assert_eq!(client.acknowledged(), 8);
    assert_eq!(learner.values(7), [0, 1, 2, 3, 4, 5, 7]);
    put(&client, 8, 10 * KIB); // It goes on.
    assert_eq!(learner.values(1), [8]);
}

#[test]
fn a_refusal_that_was_lost_with_its_connection_is_told_again() {
    let learner = Learner::policy(16 * KIB, OnFull::Error);
    let (mut raw, _) = learner.enter(1, 0, 0);
    raw.write(&frame(0, &[10 * KIB, 10 * KIB, 1]));
    assert!(eventually(|| learner.server.stats().refused_full == 2));
    drop(raw);
    let (mut raw, welcome) = learner.enter(1, 0, 3);
    assert_eq!(welcome.next, 3);
    let (full, _) = raw.expect(Kind::Full);
    assert_eq!((full.sequence, full.rows), (1, 2));
}

#[test]
fn a_record_larger_than_the_lane_is_refused_when_it_is_sent_and_the_client_goes_on() {
    for on_full in [OnFull::Block, OnFull::DropOldest, OnFull::DropNewest, OnFull::Error] {
        let learner = Learner::policy(64 * KIB, on_full);
        let client = learner.client();
        let error = offer(&client, 0, 64 * KIB + 1, soon()).unwrap_err();
        assert!(matches!(error, Error::RecordTooLarge { .. }), "{error}");
        assert!(error.to_string().contains("65537") && error.to_string().contains("lane_bytes"), "{error}");
        let waited = client.wait_writable(64 * KIB + 1, soon());
        assert!(matches!(waited, Err(Error::RecordTooLarge { .. })), "{waited:?}");
        put(&client, 0, 100);
        client.close(soon()).unwrap();
        learner.receive_each_once(1, 1);
        assert_eq!(client.stats().connects, 1);
    }
}

#[test]
fn a_learner_that_comes_back_with_smaller_lanes_ends_a_client_with_a_larger_record() {
    let learner = Learner::new(64 * KIB);
    let proxy = Proxy::new(learner.server.port(), None, 64 * KIB);
    let spec = TcpClientSpec { port: proxy.port, max_inflight_msgs: 1, ..learner.spec() };
    let client = connect(spec).unwrap();
    // While nobody is there, a record is packed that fits the lanes as they were.
    proxy.redirect(0);
    proxy.cut();
    assert!(eventually(|| client.stats().failed_connects > 0));
    put(&client, 0, 40 * KIB);
    let again = Learner::new(16 * KIB);
    proxy.redirect(again.server.port());
    let text = client.wait(soon()).unwrap_err().to_string();
    assert!(text.contains("at most 16384 bytes") && text.contains("lane_bytes"), "{text}");
    assert_eq!(again.server.stats().accepted, 1, "it does not come again and again");
}

// ── wrong servers, hostile bytes ───────────────────────────────────────────────────────────────────────────────────

#[test]
fn a_client_of_samples_is_told_that_the_server_takes_records() {
    let learner = Learner::new(64 * KIB);
    let error = connect_as(learner.spec(), SCHEMA, LEAVES).unwrap_err();
    assert!(matches!(&error, Error::WrongContent { .. }), "{error}");
    assert!(error.to_string().contains("takes records"), "{error}");
    assert_eq!(learner.server.last_refusal().unwrap().code, Refusal::Content);
}

#[test]
fn a_client_of_records_is_told_that_the_server_takes_samples() {
    let ring = crate::harness::Learner::new(2, 3);
    let error = connect(ring.spec()).unwrap_err();
    assert!(matches!(&error, Error::WrongContent { .. }), "{error}");
    assert!(error.to_string().contains("takes samples"), "{error}");
    assert_eq!(ring.server.last_refusal().unwrap().code, Refusal::Content);
}

#[test]
fn another_schema_is_refused_with_both_texts() {
    let learner = Learner::new(64 * KIB);
    let error = connect_records(learner.spec(), b"something else").unwrap_err();
    assert!(matches!(&error, Error::ForeignSchema { theirs, .. } if theirs == SCHEMA), "{error}");
}

#[test]
fn frames_that_make_no_sense_end_the_connection_and_nothing_else() {
    let learner = Learner::new(64 * KIB);
    let header = Header { rows: 1, ..Header::new(Kind::Records) };
    let index = |sizes: &[u64]| -> Vec<u8> {
        sizes.iter().flat_map(|&bytes| Entry { bytes, version: 0, kind: 0 }.encoded()).collect()
    };
    let with = |header: Header, length: u64, index: Vec<u8>| {
        [&Header { length, ..header }.bytes()[..], &index].concat()
    };
    let two = Header { rows: 2, ..header };
    let bad: Vec<Vec<u8>> = vec![
        with(header, u64::MAX, vec![]),
        with(header, 15, vec![]),                      // Less than its index.
        with(Header { rows: 0, ..header }, 0, vec![]), // Nothing.
        with(Header { rows: u32::MAX, ..header }, u64::MAX, vec![]),
        with(Header { rows: 513, ..header }, 513 * 16, vec![]), // Too many.
        with(header, 16 + 64 * 1024 + 1, vec![]),               // Larger than the lane.
        with(two, 32 + (1 << 20) + 1, vec![]),                  // Too long for several.
        with(header, 16 + 10, index(&[11])),
        with(header, 16 + 10, index(&[9])),
        with(two, 32 + 10, index(&[u64::MAX, 11])), // The sum wraps around.
        with(two, 32 + (128 << 10), index(&[0, 128 << 10])), // One of them is larger than the lane.
        with(Header { sequence: 5, ..header }, 16, index(&[0])), // A gap.
        data(0..1),                                 // Samples.
    ];
    for (number, bytes) in bad.iter().enumerate() {
        let (mut raw, _) = learner.enter(number as u8, 0, 0);
        raw.write(bytes);
        let (goodbye, text) = raw.expect(Kind::Goodbye);
        assert_eq!(goodbye.code, GoodbyeReason::Protocol as u16, "{number}");
        assert!(!text.is_empty());
    }
    assert_eq!((learner.reserved(), learner.server.stats().cut_damaged), (0, bad.len() as u64));
    let client = learner.client();
    put(&client, 0, 10);
    client.close(soon()).unwrap();
    learner.receive_each_once(1, 1);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn a_frame_with_any_damage_leaves_nothing_reserved_and_the_server_serves(
        sizes in proptest::collection::vec(0usize..3000, 1..12),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let learner = Learner::new(64 * KIB);
        let (mut raw, _) = learner.enter(1, 0, 0);
        let whole = frame(0, &sizes);
        let mut bytes = whole.clone();
        // In the header or the index: what lies behind them is anybody's.
        let front = 32 + 16 * sizes.len();
        for (at, value) in damage {
            bytes[at.index(front)] = value;
        }
        let _ = raw.0.write_all(&bytes);
        let _ = raw.0.shutdown(std::net::Shutdown::Write);
        raw.rest();
        prop_assert!(eventually(|| learner.server.stats().connections == 0));
        prop_assert_eq!(learner.reserved(), 0);
        prop_assert!(learner.ready() <= sizes.len());
        let client = learner.client(); // It still serves.
        put(&client, 1, 10);
        client.close(soon()).unwrap();
    }
}

// ── records that do not fit the schema ─────────────────────────────────────────────────────────────────────────────

/// Two ragged leaves, and one of 3 rows: the counts of the ragged ones are the first 8 bytes of a record.
fn shape() -> Shape {
    let leaf = |row_bytes, rows| LeafShape { row_bytes, rows };
    Shape::new(vec![leaf(1, None), leaf(4, Some(3)), leaf(2, None)])
}

/// A record of this shape.
fn fitting(counts: [usize; 2]) -> Vec<u8> {
    let placement = shape().place(&counts).unwrap();
    let mut bytes = vec![7; placement.bytes];
    shape().write_counts(&placement.counts, &mut bytes);
    bytes
}

/// The bytes of a frame of these records, numbered from `first` on.
fn frame_of(first: u64, records: &[Vec<u8>]) -> Vec<u8> {
    let entry = |record: &Vec<u8>| Entry { bytes: record.len() as u64, version: 0, kind: 0 }.encoded();
    let payload: Vec<u8> = records.iter().flat_map(entry).chain(records.concat()).collect();
    Header { rows: records.len() as u32, sequence: first, ..Header::new(Kind::Records) }.with(&payload)
}

#[test]
fn a_record_that_does_not_fit_is_refused_by_name_and_those_before_it_are_taken() {
    // Once straight into the lane, once through staging memory.
    for claim_timeout in [DEADLINE, Duration::from_millis(1)] {
        let learner = Learner::checked(TcpServerSpec { claim_timeout, ..TcpServerSpec::default() });
        let mut bad = fitting([5, 2]);
        bad[0] += 8;
        let bytes = frame_of(0, &[fitting([1, 0]), fitting([0, 3]), bad, fitting([1, 1])]);
        let (mut raw, welcome) = learner.enter(1, 0, 0);
        let middle = bytes.len() - 80; // In the bad one.
        raw.write(&bytes[..middle]);
        if claim_timeout < DEADLINE {
            assert!(eventually(|| learner.server.stats().staged > 0));
        }
        raw.write(&bytes[middle..]);
        let mut acknowledged = 0;
        let (goodbye, text) = loop {
            let (header, payload) = raw.frame();
            match header.kind {
                Kind::Ack => acknowledged = header.sequence,
                Kind::Goodbye => break (header, String::from_utf8(payload).unwrap()),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!((goodbye.code, acknowledged), (GoodbyeReason::Protocol as u16, 2));
        let name = format!("record 2 of producer {}", welcome.producer_id);
        assert!(text.contains(&name) && text.contains("counts"), "{text}");
        assert!(eventually(|| learner.server.stats().connections == 0));
        let stats = learner.server.stats();
        assert_eq!((stats.refused_records, stats.cut_damaged, stats.samples), (1, 0, 2));
        let refusal = learner.server.last_refusal().unwrap();
        assert!(refusal.peer.starts_with("127.0.0.1:") && refusal.text == text);
        assert_eq!((learner.reserved(), learner.ready()), (0, 2));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Any bytes, and records that fit with some bytes changed, or cut off, or appended.
    #[test]
    fn any_bytes_are_refused_or_are_a_record_that_can_be_read(
        records in proptest::collection::vec(
            prop_oneof![
                proptest::collection::vec(prop_oneof![Just(0u8), 0u8..6, any::<u8>()], 0..80),
                (0usize..6, 0usize..6, proptest::option::of((any::<prop::sample::Index>(), any::<u8>())), 0usize..4)
                    .prop_map(|(one, two, change, cut)| {
                        let mut bytes = fitting([one, two]);
                        if let Some((at, value)) = change {
                            let at = at.index(bytes.len());
                            bytes[at] = value;
                        }
                        let length = bytes.len() + 1 - cut;
                        if cut > 0 { bytes.resize(length, 0) }
                        bytes
                    }),
            ],
            1..6,
        ),
    ) {
        let learner = Learner::checked(TcpServerSpec::default());
        let (mut raw, _) = learner.enter(1, 0, 0);
        let fits = records.iter().take_while(|record| shape().parse(record).is_ok()).count();
        raw.write(&frame_of(0, &records));
        if fits == records.len() {
            while raw.expect(Kind::Ack).0.sequence < fits as u64 {}
        } else {
            prop_assert_eq!(raw.expect(Kind::Goodbye).0.code, GoodbyeReason::Protocol as u16);
        }
        prop_assert_eq!((learner.reserved(), learner.ready()), (0, fits));
        for record in &records[..fits] {
            let taken = Consumer::take(learner.consumer.clone(), soon()).unwrap().unwrap();
            prop_assert!(taken.bytes() == &record[..] && shape().parse(taken.bytes()).is_ok());
        }
    }
}

// ── the end ────────────────────────────────────────────────────────────────────────────────────────────────────────

#[test]
fn a_server_that_stops_tells_its_clients_what_is_not_acknowledged() {
    let learner = Learner::new(64 * KIB);
    let client = learner.client();
    (0..9).for_each(|value| put(&client, value, 10 * KIB));
    assert!(eventually(|| client.acknowledged() == 6));
    learner.server.stop();
    assert_eq!(unacknowledged(client.wait(soon())), 3);
    assert_eq!(learner.reserved(), 0);
    assert_eq!(learner.values(6), [0, 1, 2, 3, 4, 5], "what is acknowledged is there");
}

#[test]
fn records_that_are_closed_end_their_clients() {
    let learner = Learner::new(64 * KIB);
    let client = learner.client();
    (0..9).for_each(|value| put(&client, value, 10 * KIB));
    assert!(eventually(|| client.acknowledged() == 6));
    learner.consumer.close().unwrap();
    assert_eq!(unacknowledged(client.wait(soon())), 3);
    assert_eq!(client.stats().connects, 1, "it does not come again");
}
