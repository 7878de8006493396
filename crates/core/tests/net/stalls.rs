//! Clients that stop in the middle of a frame: the others go on, and the frame arrives once when its client does.

use crate::fixture::*;
use crate::harness::{Proxy, Raw, connect_as, connect_records};
use rollway_core::net::wire::frame::{Content, Entry, GoodbyeReason, Header, Kind};
use rollway_core::net::{RecordIngress, TcpClient, TcpClientSpec, TcpRecordClient, TcpServer, TcpServerSpec};
use rollway_core::records::{self, RecordsSpec};
use rollway_core::ring::{Consumer, Deadline, IfExists, OnFull, Producer, RingSpec, Slot};
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const KIB: usize = 1024;
const MIB: usize = 1 << 20;

/// Much more than others may wait for a client that stalls in a frame of so many bytes, and less than the 5 s, and a second per
/// MiB, that such a frame was given when it held up the others.
fn promptly(bytes: usize) -> Deadline {
    Deadline::after(Some(Duration::from_secs(if bytes < MIB { 3 } else { 8 })))
}

/// How often something was counted; 0 where it is not counted.
fn counted(server: &TcpServer, name: &str) -> u64 {
    server.stats().entries().into_iter().find(|(entry, _)| *entry == name).map_or(0, |(_, value)| value)
}

// ── samples ────────────────────────────────────────────────────────────────────────────────────────────────────────

/// A ring of two batches of two, with a server in front of it. A sample is a number and `bytes` bytes that follow from it.
struct Samples {
    server: TcpServer,
    consumer: Arc<Consumer>,
    leaves: [usize; 2],
}

impl Samples {
    fn new(bytes: usize, on_full: OnFull, spec: TcpServerSpec) -> Samples {
        let leaves = [8, bytes];
        let ring = RingSpec { leaf_bytes: &leaves, on_full, ..crate::fixture::spec(None, 2, 2) };
        let consumer = shared(open(&ring));
        let server = TcpServer::start(crate::harness::ingress(&consumer), spec).unwrap();
        Samples { server, consumer, leaves }
    }

    fn client(&self) -> TcpClient {
        let spec = TcpClientSpec { port: self.server.port(), ..TcpClientSpec::default() };
        connect_as(spec, SCHEMA, &self.leaves).unwrap()
    }

    /// A frame of the samples with these numbers, the first of them as its sequence number.
    fn frame(&self, sequence: u64, values: &[u64]) -> Vec<u8> {
        let numbers = values.iter().flat_map(|value| value.to_ne_bytes());
        let payload: Vec<u8> = numbers.chain(values.iter().flat_map(|value| self.body(*value))).collect();
        Header { rows: values.len() as u32, sequence, ..Header::new(Kind::Data) }.with(&payload)
    }

    fn body(&self, value: u64) -> Vec<u8> {
        vec![value as u8; self.leaves[1]]
    }

    fn stall(&self, session: u8, value: u64) -> Stalled {
        Stalled::begin(Raw::enter(self.server.port(), session, 0, 0).0, self.frame(0, &[value]))
    }

    fn send(&self, client: &TcpClient, value: u64) {
        let (number, body) = (value.to_ne_bytes(), self.body(value));
        // SAFETY: the leaves have the sizes that the client was given.
        let sent = unsafe { client.send(&[number.as_ptr(), body.as_ptr()], 1, 0, soon()) };
        assert_eq!(sent.unwrap(), 1);
    }

    fn put(&self, producer: &Producer, value: u64) {
        self.write(Producer::reserve(producer, 1, soon()).unwrap().unwrap(), value);
    }

    fn write(&self, slot: Slot<&Producer>, value: u64) {
        let (number, body) = (value.to_ne_bytes(), self.body(value));
        // SAFETY: the slot is claimed, and its leaves have these sizes.
        unsafe {
            slot.leaf(0).copy_from_nonoverlapping(number.as_ptr(), 8);
            slot.leaf(1).copy_from_nonoverlapping(body.as_ptr(), body.len());
        }
        slot.commit(0);
    }

    /// The numbers of the next batch, which comes before `deadline`; each sample is whole.
    fn take(&self, deadline: Deadline) -> Vec<u64> {
        let batch = Consumer::take(&*self.consumer, deadline, None).unwrap().unwrap();
        let rows = batch.runs().into_iter().flat_map(|(first, len)| first..first + len);
        rows.map(|row| {
            // SAFETY: the batch is ours, the row is Ready, and the leaves have these sizes.
            let (value, body) = unsafe {
                let body = std::slice::from_raw_parts(batch.leaf(1, row), self.leaves[1]);
                (batch.leaf(0, row).cast::<u64>().read(), body)
            };
            assert!(body == self.body(value), "sample {value} is not whole");
            value
        })
        .collect()
    }

    fn claimed(&self) -> usize {
        self.consumer.ring().census().claimed_slots
    }

    /// Returns when so many frames were staged, and nothing is claimed.
    fn await_staged(&self, count: u64) {
        assert!(eventually(|| self.server.stats().staged == count && self.claimed() == 0));
    }

    /// Returns when so many frames lie in claimed room, or have been moved out of it.
    fn await_stalled(&self, stalled: usize) {
        assert!(
            eventually(|| self.claimed() == stalled || counted(&self.server, "staged") >= stalled as u64)
        );
    }
}

/// A client that has sent a part of a frame.
struct Stalled {
    raw: Raw,
    rest: Vec<u8>,
}

impl Stalled {
    fn begin(mut raw: Raw, frame: Vec<u8>) -> Stalled {
        let (first, rest) = frame.split_at(frame.len() - frame.len() / 3 - 1);
        raw.write(first);
        Stalled { raw, rest: rest.to_vec() }
    }

    /// Sends the rest, and returns when everything below `next` is acknowledged.
    fn resume(&mut self, next: u64) {
        self.raw.write(&self.rest);
        while self.raw.expect(Kind::Ack).0.sequence < next {}
    }
}

fn others_pass_stalled_samples(stalled: usize, bytes: usize) {
    let learner = Samples::new(bytes, OnFull::Block, TcpServerSpec::default());
    let client = learner.client();
    let local = producer(&learner.consumer);
    let mut peers: Vec<Stalled> =
        (0..stalled).map(|peer| learner.stall(peer as u8 + 1, 100 + peer as u64)).collect();
    learner.await_stalled(stalled);
    let (mut numbers, mut seen) = (1000.., HashSet::new());
    // Takes batches until all of `wanted` came, while a local producer goes on: the last slots of a batch want somebody.
    let mut go_on = |wanted: Range<u64>, local_ones: u64, others: &mut (dyn FnMut() + Send)| {
        let done = AtomicBool::new(false);
        let first = numbers.start;
        std::thread::scope(|scope| {
            scope.spawn(others);
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    if let Ok(Some(slot)) = Producer::reserve(&local, 1, briefly()) {
                        learner.write(slot, numbers.next().unwrap());
                    }
                }
            });
            while !wanted.clone().chain(first..first + local_ones).all(|value| seen.contains(&value)) {
                for value in learner.take(promptly(bytes)) {
                    assert!(seen.insert(value), "sample {value} came twice");
                }
            }
            done.store(true, Ordering::Relaxed);
        });
    };
    go_on(0..4, 4, &mut || (0..4).for_each(|value| learner.send(&client, value)));
    // They go on, and so does what they had begun.
    go_on(100..100 + stalled as u64, 0, &mut || peers.iter_mut().for_each(|peer| peer.resume(1)));
    assert!(counted(&learner.server, "staged") >= stalled as u64 && learner.claimed() == 0);
    assert_eq!(counted(&learner.server, "evicted"), 0);
}

#[test]
fn a_client_that_stops_in_a_small_sample_stops_nobody_else() {
    others_pass_stalled_samples(1, 40);
}

#[test]
fn a_client_that_stops_in_a_large_sample_stops_nobody_else() {
    others_pass_stalled_samples(1, 8 * MIB);
}

#[test]
fn three_clients_that_stop_in_small_samples_stop_nobody_else() {
    others_pass_stalled_samples(3, 40);
}

#[test]
fn three_clients_that_stop_in_large_samples_stop_nobody_else() {
    others_pass_stalled_samples(3, 8 * MIB);
}

/// As when a switch fails: 100 hosts vanish at once, each in the middle of a frame. One after the other they would hold the four
/// slots for 5 s.
#[test]
fn a_hundred_clients_that_stop_at_once_hold_up_others_about_as_long_as_one() {
    let learner = Samples::new(40, OnFull::Block, TcpServerSpec::default());
    let client = learner.client();
    let peers: Vec<Raw> =
        (1..=100).map(|session| Raw::enter(learner.server.port(), session, 0, 0).0).collect();
    let frame = learner.frame(0, &[7]);
    let stalled: Vec<Stalled> = peers.into_iter().map(|raw| Stalled::begin(raw, frame.clone())).collect();
    assert!(eventually(|| learner.claimed() == 4 || counted(&learner.server, "staged") > 0));
    (0..2).for_each(|value| learner.send(&client, value));
    let mut first = learner.take(promptly(40));
    first.sort_unstable();
    assert_eq!(first, [0, 1]);
    drop(stalled);
}

/// Moves every frame that is not there at once to staging memory.
fn hasty() -> TcpServerSpec {
    TcpServerSpec { claim_timeout: Duration::from_millis(1), ..TcpServerSpec::default() }
}

#[test]
fn a_frame_that_stops_at_any_byte_arrives_whole_and_once() {
    let learner = Samples::new(13, OnFull::Block, hasty());
    let local = producer(&learner.consumer);
    let bytes = learner.frame(0, &[100, 101]).len();
    for cut in 33..bytes {
        let values = [cut as u64, cut as u64 + 1000];
        let frame = learner.frame(0, &values);
        let (mut raw, _) = Raw::enter(learner.server.port(), cut as u8, 0, 0);
        learner.put(&local, 7); // So the two rows lie in two batches, and are two runs.
        raw.write(&frame[..cut]);
        learner.await_staged(cut as u64 - 32);
        raw.write(&frame[cut..]);
        assert_eq!(raw.expect(Kind::Ack).0.sequence, 2);
        learner.put(&local, 8);
        let all = [learner.take(soon()), learner.take(soon())].concat();
        assert_eq!(sorted(all), [7, 8, values[0], values[1]], "cut at {cut}");
    }
    assert_eq!(learner.server.stats().evicted, 0);
}

#[test]
fn a_frame_that_is_half_in_slots_and_half_spilled_is_staged_and_arrives_once() {
    let learner = Samples::new(40, OnFull::Block, TcpServerSpec::default());
    let local = producer(&learner.consumer);
    (0..3).for_each(|value| learner.put(&local, value));
    let (raw, _) = Raw::enter(learner.server.port(), 1, 0, 0);
    let mut peer = Stalled::begin(raw, learner.frame(0, &[100, 101]));
    learner.await_staged(1);
    learner.put(&local, 3); // The slot is for others again.
    assert_eq!(sorted([learner.take(promptly(40)), learner.take(promptly(40))].concat()), [0, 1, 2, 3]);
    peer.resume(2);
    assert_eq!(sorted(learner.take(soon())), [100, 101]);
}

#[test]
fn a_staged_frame_waits_for_a_full_ring_and_arrives_once() {
    let learner = Samples::new(40, OnFull::Block, TcpServerSpec::default());
    let local = producer(&learner.consumer);
    let mut peer = learner.stall(1, 100);
    learner.await_staged(1);
    (0..4).for_each(|value| learner.put(&local, value));
    peer.raw.write(&peer.rest);
    let client = learner.client();
    learner.send(&client, 101);
    assert!(eventually(|| learner.server.stats().waited > 0), "another one waits as well");
    let mut all = Vec::new();
    while all.len() < 6 {
        all.extend(learner.take(soon()));
    }
    assert_eq!(sorted(all), [0, 1, 2, 3, 100, 101]);
}

#[test]
fn the_policy_decides_about_a_staged_frame_when_it_is_whole() {
    for on_full in [OnFull::DropNewest, OnFull::Error, OnFull::DropOldest] {
        let learner = Samples::new(40, on_full, TcpServerSpec::default());
        let local = producer(&learner.consumer);
        let mut peer = learner.stall(1, 100);
        learner.await_staged(1);
        (0..4).for_each(|value| learner.put(&local, value));
        peer.resume(1);
        let stats = learner.server.stats();
        let counts = (stats.dropped, stats.refused_full, stats.samples);
        match on_full {
            OnFull::DropNewest => assert_eq!(counts, (1, 0, 0)),
            OnFull::Error => assert_eq!(counts, (0, 1, 0)),
            _ => assert_eq!(counts, (0, 0, 1)),
        }
        if on_full != OnFull::DropOldest {
            assert_eq!(sorted([learner.take(soon()), learner.take(soon())].concat()), [0, 1, 2, 3]);
        }
    }
}

#[test]
fn the_slowest_frame_is_evicted_when_staging_is_short_and_arrives_once_later() {
    let bytes = 3 * MIB;
    // Room for one such frame.
    let spec = TcpServerSpec { staging_bytes: 0, ..TcpServerSpec::default() };
    let learner = Samples::new(bytes, OnFull::Block, spec);
    let local = producer(&learner.consumer);
    let mut first = learner.stall(1, 100);
    learner.await_staged(1);
    let mut second = learner.stall(2, 101);
    assert!(eventually(|| learner.server.stats().evicted == 1));
    let told = first.raw.expect(Kind::Goodbye);
    assert_eq!(told.0.code, GoodbyeReason::TooSlow as u16);
    assert!(String::from_utf8_lossy(&told.1).contains("slowest"));
    second.resume(1);
    let (mut again, welcome) = Raw::enter(learner.server.port(), 1, 0, 1);
    assert_eq!(welcome.next, 0, "nothing of it was committed");
    again.write(&learner.frame(0, &[100]));
    assert_eq!(again.expect(Kind::Ack).0.sequence, 1);
    assert_eq!(sorted(learner.take(soon())), [100, 101]);
    (0..2).for_each(|value| learner.put(&local, value));
    assert_eq!(sorted(learner.take(soon())), [0, 1], "nothing came twice");
}

#[test]
fn a_real_client_whose_frame_is_evicted_delivers_it_after_its_reconnect() {
    let bytes = 3 * MIB;
    let spec = TcpServerSpec { staging_bytes: 0, ..TcpServerSpec::default() };
    let learner = Samples::new(bytes, OnFull::Block, spec);
    let proxy = Proxy::new(learner.server.port(), None, 64 * KIB);
    let spec = TcpClientSpec { port: proxy.port, ..TcpClientSpec::default() };
    let client = connect_as(spec, SCHEMA, &learner.leaves).unwrap();
    proxy.freeze_after(MIB);
    learner.send(&client, 100);
    learner.await_staged(1);
    let another = learner.stall(1, 7);
    assert!(eventually(|| learner.server.stats().evicted == 1));
    drop(another);
    client.wait(soon()).unwrap();
    assert!(client.stats().connects > 1);
    learner.put(&producer(&learner.consumer), 101);
    assert_eq!(sorted(learner.take(soon())), [100, 101]);
}

#[test]
fn a_slow_client_that_gets_on_is_borne_for_longer_than_the_limit() {
    let frame_timeout = Duration::from_secs(1);
    let spec = TcpServerSpec { frame_timeout, ..TcpServerSpec::default() };
    let learner = Samples::new(2 * MIB, OnFull::Block, spec);
    let local = producer(&learner.consumer);
    let (mut raw, _) = Raw::enter(learner.server.port(), 1, 0, 0);
    let began = std::time::Instant::now();
    let frame = learner.frame(0, &[100]);
    for chunk in frame.chunks(128 * KIB) {
        raw.write(chunk);
        // The pace of the client, not a wait for anything.
        std::thread::sleep(Duration::from_millis(140));
    }
    assert!(began.elapsed() > 2 * frame_timeout);
    assert_eq!(raw.expect(Kind::Ack).0.sequence, 1);
    learner.put(&local, 101);
    assert_eq!(sorted(learner.take(soon())), [100, 101]);
    assert_eq!((learner.server.stats().staged, learner.server.stats().cut_slow), (1, 0));
}

// ── records ────────────────────────────────────────────────────────────────────────────────────────────────────────

/// Records with a server in front of them: one lane for all its clients, and others for those in shared memory.
struct Lanes {
    server: TcpServer,
    consumer: Arc<records::Consumer>,
}

impl Lanes {
    fn new(lane_bytes: usize, on_full: OnFull, spec: TcpServerSpec) -> Lanes {
        let wanted = RecordsSpec {
            name: None,
            auto_named: false,
            schema: SCHEMA,
            lanes: 3,
            lane_bytes,
            descriptors: 8,
            max_peers: 16,
            on_full,
            preallocate: false,
        };
        let consumer = Arc::new(records::Consumer::open(&wanted, IfExists::Resume, None).unwrap());
        let producer = records::Producer::attach_to(consumer.records().clone(), ANYONE).unwrap();
        let server = TcpServer::start(RecordIngress::new(producer, None).unwrap(), spec).unwrap();
        Lanes { server, consumer }
    }

    fn client(&self) -> TcpRecordClient {
        let spec = TcpClientSpec { port: self.server.port(), ..TcpClientSpec::default() };
        connect_records(spec, SCHEMA).unwrap()
    }

    fn enter(&self, session: u8, next: u64) -> Raw {
        let (raw, welcome) = Raw::enter_with(self.server.port(), Content::Records, session, 0, next);
        assert_eq!(welcome.next, 0);
        raw
    }

    fn stall(&self, session: u8, frame: Vec<u8>) -> Stalled {
        Stalled::begin(self.enter(session, 0), frame)
    }

    /// The next record's value, its sequence number and its size; it comes before `deadline` and is whole.
    fn take(&self, deadline: Deadline) -> (u32, u64, usize) {
        let record = records::Consumer::take(self.consumer.clone(), deadline).unwrap().unwrap();
        let (stamp, bytes) = (record.info().stamp, record.bytes());
        assert!(bytes == vec![stamp.kind as u8; bytes.len()], "record {} is not whole", stamp.kind);
        (stamp.kind, stamp.sequence, bytes.len())
    }

    fn reserved(&self) -> usize {
        self.consumer.records().census().reserved_records
    }

    /// Returns when so many records were staged, and nothing is reserved.
    fn await_staged(&self, count: u64) {
        assert!(eventually(|| self.server.stats().staged == count && self.reserved() == 0));
    }

    fn await_stalled(&self, stalled: usize) {
        assert!(eventually(
            || self.reserved() >= stalled || counted(&self.server, "staged") >= stalled as u64
        ));
    }
}

/// A frame of records with these values and sizes, from number 0 on.
fn records_frame(records: &[(u32, usize)]) -> Vec<u8> {
    let entry = |&(kind, bytes): &(u32, usize)| Entry { bytes: bytes as u64, version: 0, kind }.encoded();
    let bodies = records.iter().flat_map(|&(value, bytes)| vec![value as u8; bytes]);
    let payload: Vec<u8> = records.iter().flat_map(entry).chain(bodies).collect();
    Header { rows: records.len() as u32, sequence: 0, ..Header::new(Kind::Records) }.with(&payload)
}

fn send_record(client: &TcpRecordClient, value: u32, bytes: usize) {
    client.send(bytes, 0, value, soon(), |room| room.fill(value as u8)).unwrap();
}

/// The lane has room for the records of the stalled clients, and for no more of that size; and it has eight descriptors.
fn others_pass_stalled_records(stalled: usize, bytes: usize) {
    let learner = Lanes::new(stalled * bytes.next_multiple_of(4096), OnFull::Block, TcpServerSpec::default());
    let client = learner.client();
    let mut peers: Vec<Stalled> = (0..stalled)
        .map(|peer| learner.stall(peer as u8 + 1, records_frame(&[(100 + peer as u32, bytes)])))
        .collect();
    learner.await_stalled(stalled);
    std::thread::scope(|scope| {
        let count = if bytes < MIB { 20 } else { 4 }; // Small ones go round the lane's table.
        let client = &client;
        scope.spawn(move || (0..count).for_each(|value| send_record(client, value, bytes)));
        for value in 0..count {
            assert_eq!(learner.take(promptly(bytes)), (value, value as u64, bytes));
        }
    });
    assert!(eventually(|| learner.reserved() == 0), "{} stay reserved", learner.reserved());
    let mut late = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| peers.iter_mut().for_each(|peer| peer.resume(1)));
        late.extend((0..stalled).map(|_| learner.take(soon())));
    });
    late.sort_unstable();
    assert_eq!(late, (0..stalled as u32).map(|peer| (100 + peer, 0, bytes)).collect::<Vec<_>>());
    let census = learner.consumer.records().census();
    assert_eq!((census.reserved_records, census.ready_records), (0, 0));
    assert!(counted(&learner.server, "staged") >= stalled as u64);
    assert_eq!(counted(&learner.server, "evicted"), 0);
}

#[test]
fn a_client_that_stops_in_a_small_record_stops_nobody_else() {
    others_pass_stalled_records(1, 2 * KIB);
}

#[test]
fn a_client_that_stops_in_a_large_record_stops_nobody_else() {
    others_pass_stalled_records(1, 24 * MIB);
}

#[test]
fn three_clients_that_stop_in_small_records_stop_nobody_else() {
    others_pass_stalled_records(3, 2 * KIB);
}

#[test]
fn three_clients_that_stop_in_large_records_stop_nobody_else() {
    others_pass_stalled_records(3, 24 * MIB);
}

#[test]
fn a_hundred_clients_that_stop_in_records_hold_up_others_about_as_long_as_one() {
    let learner = Lanes::new(8 * KIB, OnFull::Block, TcpServerSpec::default());
    let client = learner.client();
    let peers: Vec<Raw> = (1..=100).map(|session| learner.enter(session, 0)).collect();
    let frame = records_frame(&[(7, 2 * KIB)]);
    let stalled: Vec<Stalled> = peers.into_iter().map(|raw| Stalled::begin(raw, frame.clone())).collect();
    learner.await_stalled(1);
    (0..4).for_each(|value| send_record(&client, value, 2 * KIB));
    for value in 0..4 {
        assert_eq!(learner.take(promptly(2 * KIB)), (value, value as u64, 2 * KIB));
    }
    drop(stalled);
}

#[test]
fn a_frame_of_records_that_stops_at_any_byte_arrives_whole_and_once() {
    let learner = Lanes::new(64 * KIB, OnFull::Block, hasty());
    let records = [(1, 5), (2, 0), (3, 17), (4, 9), (5, 0)];
    let frame = records_frame(&records);
    let index = 32 + 16 * records.len();
    for cut in index..frame.len() {
        let mut raw = learner.enter(cut as u8, 0);
        raw.write(&frame[..cut]);
        if cut > index {
            // What is whole is taken, though the frame is not.
            let whole = [5, 0, 17, 9, 0].iter().scan(index, |end, bytes| {
                *end += bytes;
                Some(*end)
            });
            for (number, _) in whole.enumerate().filter(|(_, end)| *end <= cut) {
                let (value, bytes) = records[number];
                if (cut, bytes) != (index + 5, 0) {
                    assert_eq!(learner.take(soon()), (value, number as u64, bytes), "cut at {cut}");
                }
            }
            assert!(eventually(|| learner.reserved() == 0));
        }
        raw.write(&frame[cut..]);
        while raw.expect(Kind::Ack).0.sequence < 5 {}
        while learner.consumer.records().census().ready_records > 0 {
            let (value, sequence, bytes) = learner.take(soon());
            assert_eq!((value, bytes), records[sequence as usize], "cut at {cut}");
        }
        assert_eq!(learner.reserved(), 0);
    }
    assert_eq!(learner.server.stats().samples, 5 * (frame.len() - index) as u64, "each came once");
}

#[test]
fn a_staged_record_is_evicted_when_staging_is_short_and_arrives_once_later() {
    let spec = TcpServerSpec { staging_bytes: 0, ..TcpServerSpec::default() };
    let learner = Lanes::new(4 * MIB, OnFull::Block, spec);
    let frame = |value| records_frame(&[(value, 3 * MIB)]);
    let mut first = learner.stall(1, frame(100));
    learner.await_staged(1);
    let mut second = learner.stall(2, frame(101));
    assert!(eventually(|| learner.server.stats().evicted == 1));
    assert_eq!(first.raw.expect(Kind::Goodbye).0.code, GoodbyeReason::TooSlow as u16);
    second.resume(1);
    assert_eq!(learner.take(soon()), (101, 0, 3 * MIB));
    let mut again = learner.enter(1, 1);
    again.write(&frame(100));
    assert_eq!(again.expect(Kind::Ack).0.sequence, 1);
    assert_eq!(learner.take(soon()), (100, 0, 3 * MIB));
    let census = learner.consumer.records().census();
    assert_eq!((census.reserved_records, census.ready_records), (0, 0));
}

#[test]
fn the_policy_decides_about_a_staged_record_when_it_is_whole() {
    for on_full in [OnFull::DropNewest, OnFull::Error, OnFull::DropOldest] {
        let learner = Lanes::new(64 * KIB, on_full, TcpServerSpec::default());
        let mut peer = learner.stall(1, records_frame(&[(100, 40 * KIB)]));
        learner.await_staged(1);
        let client = learner.client();
        send_record(&client, 1, 40 * KIB);
        client.wait(soon()).unwrap();
        peer.resume(1);
        let stats = learner.server.stats();
        let expected = match on_full {
            OnFull::DropNewest => (1, 0, 1),
            OnFull::Error => (0, 1, 1),
            _ => (0, 0, 2),
        };
        assert_eq!((stats.dropped, stats.refused_full, stats.samples), expected);
        let kept = if on_full == OnFull::DropOldest { 100 } else { 1 };
        assert_eq!(learner.take(soon()), (kept, 0, 40 * KIB));
    }
}

/// A lane of 64 KiB of which 10 KiB are left, and a client that stops in the first of three records: the second one finds no room
/// as long as there is room for the first one.
fn stalled_before_a_full_lane() -> (Lanes, TcpRecordClient, Stalled) {
    let learner = Lanes::new(64 * KIB, OnFull::DropNewest, TcpServerSpec::default());
    let client = learner.client();
    send_record(&client, 1, 54 * KIB);
    client.wait(soon()).unwrap();
    let records = [(2, 6 * KIB), (3, 6 * KIB), (4, 3 * KIB)];
    let (frame, raw) = (records_frame(&records), learner.enter(1, 0));
    let cut = 32 + 16 * records.len() + KIB;
    let mut peer = Stalled { raw, rest: frame[cut..].to_vec() };
    peer.raw.write(&frame[..cut]);
    learner.await_staged(1);
    (learner, client, peer)
}

/// Records that a lane and its server have dropped, and records that came.
fn fates(learner: &Lanes) -> (u64, u64, u64) {
    let (totals, stats) = (learner.consumer.records().totals(), learner.server.stats());
    (totals.dropped_newest, stats.dropped, stats.samples)
}

#[test]
fn a_record_behind_a_slow_one_is_not_dropped_when_there_is_room_at_last() {
    let (learner, _client, mut peer) = stalled_before_a_full_lane();
    assert_eq!(fates(&learner), (0, 0, 1), "nothing is decided yet");
    assert_eq!(learner.take(soon()), (1, 0, 54 * KIB));
    peer.resume(3);
    assert_eq!(fates(&learner), (0, 0, 4));
    assert_eq!([(); 3].map(|()| learner.take(soon()).0), [2, 3, 4]);
}

#[test]
fn a_record_behind_a_slow_one_is_counted_once_when_it_is_dropped() {
    let (learner, _client, mut peer) = stalled_before_a_full_lane();
    peer.resume(3);
    assert_eq!(fates(&learner), (1, 1, 3));
    assert_eq!([(); 3].map(|()| learner.take(soon()).0), [1, 2, 4]);
}

#[test]
fn nothing_is_dropped_for_a_record_that_never_arrives() {
    let learner = Lanes::new(64 * KIB, OnFull::DropOldest, TcpServerSpec::default());
    let client = learner.client();
    send_record(&client, 1, 40 * KIB);
    client.wait(soon()).unwrap();
    let peer = learner.stall(1, records_frame(&[(100, 40 * KIB)]));
    learner.await_staged(1);
    drop(peer);
    assert!(eventually(|| learner.server.stats().connections == 1));
    assert_eq!(learner.consumer.records().totals().dropped_oldest, 0);
    assert_eq!(learner.take(soon()), (1, 0, 40 * KIB));
}

#[test]
fn what_is_staged_goes_with_its_connection() {
    let spec = TcpServerSpec { staging_bytes: 0, ..TcpServerSpec::default() };
    let learner = Lanes::new(MIB, OnFull::Block, spec);
    for session in 1..6 {
        // Each needs all of the staging memory, and nobody is evicted.
        let stalled = learner.stall(session, records_frame(&[(100, MIB)]));
        learner.await_staged(session as u64);
        drop(stalled);
        assert!(eventually(|| learner.server.stats().connections == 0));
    }
    assert_eq!((learner.server.stats().evicted, learner.reserved()), (0, 0));
}
