//! Weights over real sockets: what reaches a mirror, and what cuts, slow clients, restarts and strangers change.

use crate::fixture::{DEADLINE, Name, briefly, eventually, soon, weight_schema};
use crate::harness::{Certificate, Learner, Proxy, Raw, cut_everywhere};
use rollway_core::net::wire::frame::{
    Content, GoodbyeReason, Header, Hello, Inventory, Kind, LeafList, Refusal, VersionEnd,
};
use rollway_core::net::{TcpServer, TcpServerSpec, WeightMirror, WeightMirrorSpec};
use rollway_core::ring::IfExists;
use rollway_core::weights::copy::HostCopies;
use rollway_core::weights::{Reader, Source, Target, Weights, WeightsSpec, Writer};
use rollway_core::{Error, Result};
use std::io::Write;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// In words: one larger than a header, one of nothing, one of a single word.
pub const SMALL: [usize; 3] = [13, 0, 1];

/// Weights with a server in front of them.
pub struct Origin {
    pub server: TcpServer,
    pub writer: Writer,
    pub words: [usize; 3],
}

pub fn spec<'a>(name: Option<&'a str>, leaf_bytes: &'a [usize; 3]) -> WeightsSpec<'a> {
    WeightsSpec {
        name,
        auto_named: false,
        schema: weight_schema(leaf_bytes),
        leaf_bytes,
        max_buffers: 8,
        max_peers: 8,
        checksum: false,
    }
}

pub fn bytes_of(words: [usize; 3]) -> [usize; 3] {
    words.map(|words| words * 8)
}

impl Origin {
    pub fn new(words: [usize; 3]) -> Origin {
        Origin::with(&spec(None, &bytes_of(words)), TcpServerSpec::default())
    }

    pub fn with(weights: &WeightsSpec<'_>, server: TcpServerSpec) -> Origin {
        let writer = Writer::open(weights, IfExists::Resume, 1).unwrap();
        let server = TcpServer::serve(None, Some(writer.weights().clone()), server).unwrap();
        let words = [0, 1, 2].map(|leaf| weights.leaf_bytes[leaf] / 8);
        Origin { server, writer, words }
    }

    /// Publishes a version in which these leaves are filled with that number.
    pub fn write(&self, leaves: &[usize], number: u64) -> u64 {
        let filled: Vec<Vec<u64>> = self.words.iter().map(|&words| vec![number; words]).collect();
        let source = |&leaf: &usize| Source { leaf, from: filled[leaf].as_ptr().cast() };
        let sources: Vec<Source> = leaves.iter().map(source).collect();
        // SAFETY: each source is as long as its leaf.
        unsafe { self.writer.write(&sources) }.unwrap()
    }

    pub fn write_all(&self, number: u64) -> u64 {
        self.write(&[0, 1, 2], number)
    }

    pub fn spec(&self) -> WeightMirrorSpec {
        WeightMirrorSpec { port: self.server.port(), ..WeightMirrorSpec::default() }
    }

    pub fn mirror(&self) -> WeightMirror {
        connect(self.spec()).unwrap()
    }
}

pub fn connect(spec: WeightMirrorSpec) -> Result<WeightMirror> {
    let mirror = WeightMirror::start(spec)?;
    mirror.ready(soon())?;
    Ok(mirror)
}

/// What a reader got: the version, and the number that fills each leaf (the first and the last; the other is empty).
pub type Got = (u64, [u64; 2]);

/// Reads all leaves, each of which must be of one number.
fn numbers(words: [usize; 3], read: impl FnOnce(&[Target]) -> u64) -> Got {
    let mut room: Vec<Vec<u64>> = words.iter().map(|&words| vec![u64::MAX; words]).collect();
    let target = |(leaf, room): (usize, &mut Vec<u64>)| Target { leaf, to: room.as_mut_ptr().cast() };
    let targets: Vec<Target> = room.iter_mut().enumerate().map(target).collect();
    let version = read(&targets);
    for values in &room {
        assert!(values.iter().all(|value| *value == values[0]), "torn");
    }
    (version, [room[0][0], room[2][0]])
}

pub fn read(mirror: &WeightMirror, words: [usize; 3], since: u64) -> Got {
    numbers(words, |targets| {
        // SAFETY: each target is as long as its leaf, and ours.
        unsafe { mirror.read(targets, since, &HostCopies) }.unwrap().map_or(0, |reading| reading.version)
    })
}

pub fn read_by_name(name: &str, words: [usize; 3]) -> Got {
    let reader = Reader::attach_to(Arc::new(Weights::open(name, None).unwrap()), 1).unwrap();
    // SAFETY: each target is as long as its leaf, and ours.
    numbers(words, |targets| unsafe { reader.read(targets, 0) }.unwrap().map_or(0, |reading| reading.version))
}

// ── versions ───────────────────────────────────────────────────────────────────────────────────────────────────────

#[test]
fn versions_arrive_whole_under_the_learners_number() {
    let origin = Origin::new(SMALL);
    let mirror = origin.mirror();
    assert_eq!(mirror.version().unwrap(), 0);
    assert!(mirror.is_connected() && mirror.last_error().is_none());
    assert_eq!(mirror.schema().unwrap(), weight_schema(&bytes_of(SMALL)));
    for number in [10, 20, 30] {
        let version = origin.write_all(number);
        assert_eq!(mirror.wait_for(version, soon()).unwrap(), version);
        assert_eq!(read(&mirror, SMALL, 0), (version, [number; 2]));
    }
}

#[test]
fn a_mirror_that_comes_late_gets_the_latest_version_and_none_before_it() {
    let origin = Origin::new(SMALL);
    (1..=50).for_each(|number| assert_eq!(origin.write_all(number), number));
    let mirror = origin.mirror();
    assert_eq!(mirror.wait_for(1, soon()).unwrap(), 50);
    assert_eq!(mirror.stats().versions, 1);
}

#[test]
fn only_the_leaves_that_changed_travel() {
    let words = [100_000, 0, 7];
    let origin = Origin::new(words);
    origin.write_all(1);
    let mirror = origin.mirror();
    mirror.wait_for(1, soon()).unwrap();
    let before = mirror.stats().bytes;
    for number in 2..=6 {
        let version = origin.write(&[2], number);
        mirror.wait_for(version, soon()).unwrap();
        assert_eq!(read(&mirror, words, 0), (version, [1, number]));
    }
    assert_eq!(mirror.stats().bytes - before, 5 * 7 * 8);
    let version = origin.write(&[0], 9);
    mirror.wait_for(version, soon()).unwrap();
    assert_eq!(read(&mirror, words, 0), (version, [9, 6]));
}

#[test]
fn versions_larger_than_all_socket_buffers_arrive() {
    let words = [3 << 20, 5000, 1];
    let origin = Origin::new(words);
    let mirror = origin.mirror();
    for number in 1..=3 {
        origin.write_all(number);
        assert_eq!(mirror.wait_for(number, soon()).unwrap(), number);
        assert_eq!(read(&mirror, words, 0), (number, [number; 2]));
    }
}

#[test]
fn leaves_may_be_many_and_tiny() {
    let leaf_bytes: Vec<usize> = (0..3000).map(|leaf| leaf % 5).collect();
    let schema = weight_schema(&leaf_bytes);
    let weights = WeightsSpec { schema, leaf_bytes: &leaf_bytes, ..spec(None, &[0; 3]) };
    let writer = Writer::open(&weights, IfExists::Resume, 1).unwrap();
    let server = TcpServer::serve(None, Some(writer.weights().clone()), TcpServerSpec::default()).unwrap();
    let stack: Vec<u8> = (0..=255).cycle().take(4000).collect();
    let sources: Vec<Source> = (0..3000).map(|leaf| Source { leaf, from: stack[leaf..].as_ptr() }).collect();
    // SAFETY: behind each source there are more bytes than its leaf has.
    unsafe { writer.write(&sources) }.unwrap();
    let mirror = connect(WeightMirrorSpec { port: server.port(), ..WeightMirrorSpec::default() }).unwrap();
    mirror.wait_for(1, soon()).unwrap();
    let mut room = vec![[0u8; 5]; 3000];
    let targets: Vec<Target> =
        room.iter_mut().enumerate().map(|(leaf, room)| Target { leaf, to: room.as_mut_ptr() }).collect();
    // SAFETY: each target is as long as its leaf, and ours.
    unsafe { mirror.read(&targets, 0, &HostCopies) }.unwrap();
    for (leaf, room) in room.iter().enumerate() {
        assert_eq!(room[..leaf % 5], stack[leaf..][..leaf % 5]);
    }
}

#[test]
fn a_mirror_reads_whole_versions_from_a_writer_that_never_stops() {
    let words = [50_000, 0, 1];
    let origin = Origin::new(words);
    let mirror = origin.mirror();
    std::thread::scope(|scope| {
        scope.spawn(|| (1..=400).for_each(|number| assert_eq!(origin.write_all(number), number)));
        let mut last = 0;
        while last < 400 {
            last = mirror.wait_for(last + 1, soon()).unwrap();
            let (version, [first, second]) = read(&mirror, words, 0);
            assert!(version >= last && first == version && second == version);
        }
    });
    assert_eq!(mirror.stats().connects, 1);
}

#[test]
fn checksums_travel_with_the_leaves() {
    let leaf_bytes = bytes_of(SMALL);
    let origin =
        Origin::with(&WeightsSpec { checksum: true, ..spec(None, &leaf_bytes) }, TcpServerSpec::default());
    let mirror = origin.mirror();
    origin.write_all(4);
    origin.write(&[2], 5);
    mirror.wait_for(2, soon()).unwrap();
    assert_eq!(read(&mirror, SMALL, 0), (2, [4, 5]));
}

#[test]
fn samples_go_up_and_weights_come_down_on_one_port() {
    let learner = Learner::new(4, 3);
    let leaf_bytes = bytes_of(SMALL);
    let writer = Writer::open(&spec(None, &leaf_bytes), IfExists::Resume, 1).unwrap();
    let ingress = crate::harness::ingress(&learner.consumer).into();
    let server =
        TcpServer::serve(Some(ingress), Some(writer.weights().clone()), TcpServerSpec::default()).unwrap();
    let origin = Origin { server, writer, words: SMALL };
    let mirror = origin.mirror();
    let client = crate::harness::connect(rollway_core::net::TcpClientSpec {
        port: origin.server.port(),
        ..learner.spec()
    })
    .unwrap();
    origin.write_all(1);
    let version = mirror.wait_for(1, soon()).unwrap();
    (0..4).for_each(|value| crate::harness::put(&client, value * version));
    assert_eq!(learner.receive(4), [0, 1, 2, 3]);
    assert_eq!(origin.server.stats().weight_clients, 1);
}

// ── cuts ───────────────────────────────────────────────────────────────────────────────────────────────────────────

#[test]
fn a_conversation_cut_at_any_byte_leaves_no_half_version() {
    cut_everywhere(|cut| {
        let origin = Origin::new(SMALL);
        origin.write_all(1);
        let proxy = Proxy::new(origin.server.port(), cut, 4096);
        let mirror = connect(WeightMirrorSpec { port: proxy.port, ..origin.spec() }).unwrap();
        for (leaves, expected) in [(&[0, 1, 2][..], [2, 2]), (&[2], [2, 3])] {
            let before = mirror.version().unwrap();
            let version = origin.write(leaves, expected[1]);
            // Until the next one is here, the last one is, or none.
            let (there, [first, last]) = read(&mirror, SMALL, 0);
            assert!(there >= before, "cut at {cut:?}");
            let whole = [[u64::MAX; 2], [1, 1], [2, 2], [2, 3]];
            assert_eq!([first, last], whole[there as usize], "cut at {cut:?}");
            assert_eq!(mirror.wait_for(version, soon()).unwrap(), version, "cut at {cut:?}");
            assert_eq!(read(&mirror, SMALL, 0), (version, expected), "cut at {cut:?}");
        }
        [0, 1].map(|way| proxy.carried[way].load(Ordering::Relaxed))
    });
}

#[test]
fn a_version_cut_in_the_middle_is_fetched_again() {
    let words = [2 << 20, 0, 1];
    let origin = Origin::new(words);
    origin.write_all(1);
    let proxy = Proxy::new(origin.server.port(), Some((crate::harness::Way::ToClient, 5 << 20)), 1 << 16);
    let mirror = connect(WeightMirrorSpec { port: proxy.port, ..origin.spec() }).unwrap();
    mirror.wait_for(1, soon()).unwrap();
    assert_eq!(read(&mirror, words, 0), (1, [1, 1]));
    assert!(mirror.stats().connects >= 2);
}

#[test]
fn a_learner_that_falls_silent_is_noticed_and_called_again() {
    let origin = Origin::new(SMALL);
    let proxy = Proxy::new(origin.server.port(), None, 4096);
    let keepalive = Duration::from_millis(100);
    let mirror = connect(WeightMirrorSpec { port: proxy.port, keepalive, ..origin.spec() }).unwrap();
    origin.write_all(1);
    mirror.wait_for(1, soon()).unwrap();
    proxy.freeze();
    origin.write_all(2);
    assert_eq!(mirror.wait_for(2, soon()).unwrap(), 2);
    assert_eq!(mirror.stats().connects, 2);
}

#[test]
fn an_idle_connection_is_kept() {
    let server = TcpServerSpec { keepalive: Duration::from_millis(30), ..TcpServerSpec::default() };
    let origin = Origin::with(&spec(None, &bytes_of(SMALL)), server);
    let mirror = connect(WeightMirrorSpec { keepalive: Duration::from_millis(50), ..origin.spec() }).unwrap();
    origin.write_all(1);
    mirror.wait_for(1, soon()).unwrap();
    assert!(matches!(mirror.wait_for(2, briefly()), Err(Error::Timeout)));
    origin.write_all(2);
    mirror.wait_for(2, soon()).unwrap();
    assert_eq!((mirror.stats().connects, origin.server.stats().cut_silent), (1, 0));
}

// ── slow clients ───────────────────────────────────────────────────────────────────────────────────────────────────

/// Comes in as a client of weights, by hand.
fn enter(port: u16, schema: &[u8]) -> (Raw, Header, Vec<u8>) {
    let mut raw = Raw::open(port);
    assert_eq!(raw.prove(None).kind, Kind::Proof);
    let content = Content::Weights;
    let hello = Hello {
        content,
        session: [1; 16],
        producer_id: None,
        attempt: 1,
        next: 0,
        oldest: 0,
        schema: schema.to_vec(),
    };
    raw.write(&hello.frame());
    let (header, payload) = raw.frame();
    (raw, header, payload)
}

fn fetch(raw: &mut Raw, have: u64) {
    raw.write(&Header { sequence: have, ..Header::new(Kind::Fetch) }.bytes());
}

/// Begins to fetch, and reads no more than the list of the leaves.
fn stall(origin: &Origin) -> (Raw, u64) {
    let (mut raw, header, _) = enter(origin.server.port(), &[]);
    assert_eq!(header.kind, Kind::Inventory);
    fetch(&mut raw, 0);
    let version = raw.expect(Kind::Version).0.sequence;
    (raw, version)
}

/// More than socket buffers hold.
const LARGE: [usize; 3] = [3 << 20, 0, 1];

#[test]
fn a_client_that_does_not_read_stops_neither_the_writer_nor_others() {
    let origin = Origin::new(LARGE);
    origin.write_all(1);
    let (_stalled, held) = stall(&origin);
    let mirror = origin.mirror();
    for number in 2..=12 {
        origin.write_all(number);
    }
    assert_eq!(mirror.wait_for(12, soon()).unwrap(), 12);
    assert_eq!(held, 1);
    let totals = origin.writer.weights().totals();
    assert_eq!(totals.overtaken, 0, "there was always a buffer that nobody reads");
    assert!(totals.buffers <= 4);
}

#[test]
fn a_version_that_was_overwritten_on_its_way_is_void() {
    let leaf_bytes = bytes_of(LARGE);
    let tight = WeightsSpec { max_buffers: 3, ..spec(None, &leaf_bytes) };
    let origin = Origin::with(&tight, TcpServerSpec::default());
    // Two clients hold two versions, a third is the latest: there is no buffer left, and the oldest is taken.
    origin.write_all(1);
    let (mut first, _) = stall(&origin);
    origin.write_all(2);
    let (_second, version) = stall(&origin);
    assert_eq!(version, 2);
    origin.write_all(3);
    origin.write_all(4);
    assert!(origin.writer.weights().totals().overtaken > 0);
    let (version_end, _) = first.expect(Kind::VersionEnd);
    assert_eq!((version_end.code, version_end.sequence), (VersionEnd::Overwritten as u16, 1));
    fetch(&mut first, 0);
    assert_eq!(first.expect(Kind::Version).0.sequence, 4);
    assert_eq!(first.expect(Kind::VersionEnd).0.code, VersionEnd::Complete as u16);
}

#[test]
fn a_client_that_takes_too_long_is_cut_and_its_version_let_go() {
    let server = TcpServerSpec { frame_timeout: Duration::from_millis(50), ..TcpServerSpec::default() };
    let words = [5 << 17, 0, 1]; // 5 MiB: more than the socket buffers take for a client that does not read.
    let origin = Origin::with(&spec(None, &bytes_of(words)), server);
    origin.write_all(1);
    let (_stalled, _) = stall(&origin);
    // It is borne for a second per MiB.
    assert!(eventually(|| origin.server.stats().cut_slow == 1));
    assert!(eventually(|| origin.server.stats().weight_clients == 0));
}

#[test]
fn many_clients_share_one_version_and_one_pin() {
    const CLIENTS: usize = 40;
    let words = [40_000, 0, 1];
    let origin = Origin::new(words);
    let mirrors: Vec<WeightMirror> = (0..CLIENTS).map(|_| origin.mirror()).collect();
    for number in 1..=5 {
        let version = origin.write_all(number);
        for mirror in &mirrors {
            assert_eq!(mirror.wait_for(version, soon()).unwrap(), version);
            assert_eq!(read(mirror, words, 0), (version, [number; 2]));
        }
    }
    assert_eq!(origin.writer.weights().totals().overtaken, 0);
    assert_eq!(origin.server.stats().weight_clients, CLIENTS as u64);
    drop(mirrors);
    assert!(eventually(|| origin.server.stats().connections == 0));
}

// ── restarts and endings ───────────────────────────────────────────────────────────────────────────────────────────

#[test]
fn a_server_that_comes_back_with_the_same_weights_goes_on_where_it_was() {
    let mut origin = Origin::new([10_000, 0, 1]);
    origin.write_all(1);
    let proxy = Proxy::new(origin.server.port(), None, 1 << 16);
    let mirror = connect(WeightMirrorSpec { port: proxy.port, ..origin.spec() }).unwrap();
    mirror.wait_for(1, soon()).unwrap();
    origin.server.stop();
    assert!(eventually(|| !mirror.is_connected() && mirror.last_error().is_some()));
    assert_eq!(read(&mirror, origin.words, 0), (1, [1, 1]), "while it is away, the last version is there");
    origin.server =
        TcpServer::serve(None, Some(origin.writer.weights().clone()), TcpServerSpec::default()).unwrap();
    proxy.redirect(origin.server.port());
    let before = mirror.stats().bytes;
    origin.write(&[2], 2);
    assert_eq!(mirror.wait_for(2, soon()).unwrap(), 2);
    assert_eq!(read(&mirror, origin.words, 0), (2, [1, 2]));
    assert_eq!(mirror.stats().bytes - before, 8, "what it had was not sent again");
    assert_eq!(mirror.stats().lineages, 0);
}

#[test]
fn a_learner_whose_versions_begin_anew_is_followed() {
    let name = Name::unique();
    let origin = Origin::new(SMALL);
    (1..=9).for_each(|number| assert_eq!(origin.write_all(number), number));
    let proxy = Proxy::new(origin.server.port(), None, 4096);
    let named = WeightMirrorSpec { port: proxy.port, name: Some(name.to_string()), ..origin.spec() };
    let mirror = connect(named).unwrap();
    assert_eq!(mirror.wait_for(9, soon()).unwrap(), 9);
    let attached = Reader::attach_to(Arc::new(Weights::open(&name, None).unwrap()), 1).unwrap();

    let again = Origin::new(SMALL);
    proxy.redirect(again.server.port());
    drop(origin);
    assert!(eventually(|| mirror.stats().connects == 2));
    assert_eq!(read(&mirror, SMALL, 0), (9, [9, 9]), "nothing came yet from the new one");
    again.write_all(100);
    // The caller knows of version 9, and waits for the next.
    assert_eq!(mirror.wait_for(10, soon()).unwrap(), 1);
    assert_eq!(read(&mirror, SMALL, 0), (1, [100, 100]));
    // From now on the numbers are the new ones.
    assert!(matches!(mirror.wait_for(2, briefly()), Err(Error::Timeout)));
    for number in 102..=112 {
        again.write(&[2], number);
    }
    assert_eq!(mirror.wait_for(12, soon()).unwrap(), 12);
    // 9 may be the old 9, so everything is copied; 11 is certainly a new one.
    assert_eq!(read(&mirror, SMALL, 9), (12, [100, 112]));
    assert_eq!(read(&mirror, SMALL, 11), (12, [u64::MAX, 112]));
    assert_eq!(mirror.stats().lineages, 1);
    // Who is attached by name is told, and finds the new one there.
    assert!(matches!(attached.wait_for(10, soon(), None), Err(Error::Closed)));
    assert_eq!(read_by_name(&name, SMALL), (12, [100, 112]));
}

#[test]
fn a_learner_that_comes_back_with_other_weights_ends_the_mirror() {
    let origin = Origin::new(SMALL);
    origin.write_all(1);
    let proxy = Proxy::new(origin.server.port(), None, 4096);
    let mirror = connect(WeightMirrorSpec { port: proxy.port, ..origin.spec() }).unwrap();
    mirror.wait_for(1, soon()).unwrap();
    let leaf_bytes = bytes_of([14, 0, 1]);
    let other = Origin::with(&spec(None, &leaf_bytes), TcpServerSpec::default());
    proxy.redirect(other.server.port());
    drop(origin);
    let lost = mirror.wait_for(2, soon()).unwrap_err();
    assert!(matches!(&lost, Error::WeightsLost { why, .. } if why.contains("other weights")), "{lost}");
    assert!(mirror.is_over());
    assert_eq!(read(&mirror, SMALL, 0), (1, [1, 1]));
    assert_eq!(other.server.stats().refused_schema, 1);
    assert_eq!(
        other.server.last_refusal().unwrap().schema,
        Some((Content::Weights, weight_schema(&bytes_of(SMALL)).to_vec()))
    );
}

#[test]
fn weights_that_are_shut_down_end_the_mirror_after_their_last_version() {
    let origin = Origin::new(SMALL);
    let mirror = origin.mirror();
    origin.write_all(7);
    origin.writer.weights().shut_down().unwrap();
    assert_eq!(mirror.wait_for(1, soon()).unwrap(), 1);
    assert!(matches!(mirror.wait_for(2, soon()), Err(Error::WeightsLost { .. })));
    assert_eq!(read(&mirror, SMALL, 0), (1, [7, 7]));
}

#[test]
fn a_mirror_that_outlives_learners_follows_the_one_after_weights_that_were_shut_down() {
    let origin = Origin::new(SMALL);
    origin.write_all(7);
    let proxy = Proxy::new(origin.server.port(), None, 4096);
    let spec = WeightMirrorSpec { port: proxy.port, outlives_learners: true, ..origin.spec() };
    let mirror = connect(spec).unwrap();
    mirror.wait_for(1, soon()).unwrap();
    origin.writer.weights().shut_down().unwrap();
    assert!(eventually(|| mirror.last_error().is_some()));
    assert_eq!(read(&mirror, SMALL, 0), (1, [7, 7]));
    let again = Origin::new(SMALL);
    again.write_all(8);
    proxy.redirect(again.server.port());
    drop(origin);
    assert_eq!(mirror.wait_for(2, soon()).unwrap(), 1, "the first version of the next learner");
    assert_eq!(read(&mirror, SMALL, 0), (1, [8, 8]));
}

#[test]
fn a_learner_that_stays_away_is_given_up() {
    let origin = Origin::new(SMALL);
    let mirror =
        connect(WeightMirrorSpec { reconnect_timeout: Duration::from_millis(50), ..origin.spec() }).unwrap();
    drop(origin);
    let lost = mirror.wait_for(1, soon()).unwrap_err();
    assert!(matches!(&lost, Error::WeightsLost { why, .. } if why.contains("away")), "{lost}");
}

#[test]
fn closing_says_goodbye_and_stops_those_who_wait() {
    let origin = Origin::new(SMALL);
    let mirror = origin.mirror();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| mirror.wait_for(1, soon()));
        assert!(eventually(|| origin.server.stats().weight_clients == 1));
        mirror.close();
        assert!(matches!(waiting.join().unwrap(), Err(Error::WeightsLost { .. } | Error::Closed)));
    });
    mirror.close();
    assert!(matches!(mirror.version(), Err(Error::Closed)));
    assert!(eventually(|| origin.server.stats().connections == 0));
}

// ── by name ────────────────────────────────────────────────────────────────────────────────────────────────────────

#[test]
fn others_on_the_host_read_the_mirrors_copy_by_its_name() {
    let (name, origin) = (Name::unique(), Origin::new(SMALL));
    let named = || WeightMirrorSpec { name: Some(name.to_string()), ..origin.spec() };
    let mirror = connect(named()).unwrap();
    origin.write_all(3);
    mirror.wait_for(1, soon()).unwrap();
    assert_eq!(read_by_name(&name, SMALL), (1, [3, 3]));
    let second = connect(named()).unwrap_err();
    assert!(matches!(second, Error::WriterLives { .. }), "{second}");
    drop(mirror);
    // The name went with it; what is made now is another copy.
    let mirror = connect(named()).unwrap();
    mirror.wait_for(1, soon()).unwrap();
    assert_eq!(read_by_name(&name, SMALL), (1, [3, 3]));
}

#[test]
fn a_mirror_takes_the_place_of_no_weights_that_are_none() {
    let name = Name::unique();
    let leaf_bytes = bytes_of(SMALL);
    let origin = Origin::with(&spec(Some(&name), &leaf_bytes), TcpServerSpec::default());
    let refused = connect(WeightMirrorSpec { name: Some(name.to_string()), ..origin.spec() }).unwrap_err();
    assert!(matches!(refused, Error::Exists { .. }), "{refused}");
    drop(origin);
    assert!(Weights::collect(&name).unwrap());
}

// ── strangers ──────────────────────────────────────────────────────────────────────────────────────────────────────

#[test]
fn the_wrong_token_the_wrong_port_and_nobody_there_are_told_apart() {
    let token = Some(b"0123456789abcdef".to_vec());
    let server = TcpServerSpec { token: token.clone(), ..TcpServerSpec::default() };
    let origin = Origin::with(&spec(None, &bytes_of(SMALL)), server);
    origin.write_all(1);
    for wrong in [None, Some(b"fedcba9876543210".to_vec())] {
        let error = connect(WeightMirrorSpec { token: wrong, ..origin.spec() }).unwrap_err();
        assert!(matches!(error, Error::Token { .. }), "{error}");
    }
    let mirror = connect(WeightMirrorSpec { token, ..origin.spec() }).unwrap();
    assert_eq!(mirror.wait_for(1, soon()).unwrap(), 1);

    let samples = Learner::new(4, 3);
    let spec = WeightMirrorSpec { port: samples.server.port(), ..WeightMirrorSpec::default() };
    let error = connect(spec).unwrap_err();
    assert!(matches!(&error, Error::WrongContent { why, .. } if why.contains("weights")), "{error}");

    let weights = Origin::new(SMALL);
    let spec = rollway_core::net::TcpClientSpec { port: weights.server.port(), ..samples.spec() };
    let error = crate::harness::connect(spec).unwrap_err();
    assert!(matches!(&error, Error::WrongContent { why, .. } if why.contains("weights")), "{error}");

    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let spec = WeightMirrorSpec {
        port: nobody,
        connect_timeout: Duration::from_millis(50),
        ..WeightMirrorSpec::default()
    };
    let error = connect(spec).unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
}

#[test]
fn another_schema_is_refused_with_that_of_the_learner() {
    let origin = Origin::new(SMALL);
    let (_, header, payload) = enter(origin.server.port(), b"something else");
    assert_eq!((header.kind, header.code), (Kind::Refuse, Refusal::Schema as u16));
    let (_, schema) = rollway_core::net::wire::frame::parse_refuse(&payload).unwrap();
    let ours = weight_schema(&bytes_of(SMALL));
    assert_eq!(schema, ours);
    let (_, header, payload) = enter(origin.server.port(), ours);
    assert_eq!(header.kind, Kind::Inventory);
    let inventory = Inventory::parse(&payload).unwrap();
    assert_eq!((inventory.leaf_bytes, inventory.schema), (vec![104, 0, 8], ours.to_vec()));
}

#[test]
fn a_client_that_speaks_out_of_turn_is_cut() {
    let origin = Origin::new(SMALL);
    let twice = [Header::new(Kind::Fetch).bytes(), Header::new(Kind::Fetch).bytes()].concat();
    let from_the_future = Header { sequence: 1, ..Header::new(Kind::Fetch) }.bytes();
    for nonsense in [&twice[..], &from_the_future, &Header::new(Kind::VersionEnd).bytes(), &[0x33; 32]] {
        let (mut raw, _, _) = enter(origin.server.port(), &[]);
        raw.write(nonsense);
        let (header, _) = raw.expect(Kind::Goodbye);
        assert_eq!(header.code, GoodbyeReason::Protocol as u16);
    }
    assert!(eventually(|| origin.server.stats().cut_damaged == 4));
}

#[test]
fn weights_come_through_tls() {
    let certificate = Certificate::new("weights");
    let server = TcpServerSpec { tls: certificate.server(), ..TcpServerSpec::default() };
    let words = [300_000, 3, 1];
    let origin = Origin::with(&spec(None, &bytes_of(words)), server);
    let mirror =
        connect(WeightMirrorSpec { tls: certificate.client("learner.test"), ..origin.spec() }).unwrap();
    for number in 1..=3 {
        origin.write_all(number);
        mirror.wait_for(number, soon()).unwrap();
        assert_eq!(read(&mirror, words, 0), (number, [number; 2]));
    }
}

fn known() -> Option<Vec<u8>> {
    Some(b"known to both".to_vec())
}

/// A learner by hand, which says `frames` to whoever comes, twice.
fn impostor(frames: Vec<u8>) -> u16 {
    let (leaf_bytes, schema) = (vec![16, 8], weight_schema(&[16, 8]).to_vec());
    impostor_with(Inventory { lineage: 5, checksums: false, is_mirror: false, leaf_bytes, schema }, frames)
}

/// The same, with an inventory of its own.
fn impostor_with(inventory: Inventory, frames: Vec<u8>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for _ in 0..2 {
            let Ok((stream, _)) = listener.accept() else { return };
            stream.set_read_timeout(Some(DEADLINE)).unwrap();
            let mut raw = Raw(stream);
            raw.greet(b"known to both");
            let _ = raw.0.write_all(&[&inventory.frame(), &frames[..]].concat());
            raw.rest();
        }
    });
    port
}

#[test]
fn what_no_honest_learner_sends_is_thrown_away() {
    let list = |leaves: &[usize]| LeafList { leaves: leaves.to_vec(), checksums: vec![0; leaves.len()] };
    let piece = |version, bytes: usize| {
        Header { sequence: version, ..Header::new(Kind::Piece) }.with(&vec![9; bytes])
    };
    let version_end = |version, code: u16| {
        Header { sequence: version, code, ..Header::new(Kind::VersionEnd) }.bytes().to_vec()
    };
    let whole = VersionEnd::Complete as u16;
    let both = list(&[0, 1]).frame(3);
    for (what, frames) in [
        ("a first version that is not whole", vec![list(&[0]).frame(3), piece(3, 16), version_end(3, whole)]),
        ("more than the leaves hold", vec![both.clone(), piece(3, 25), version_end(3, whole)]),
        ("less than the leaves hold", vec![both.clone(), piece(3, 23), version_end(3, whole)]),
        ("a piece of another version", vec![both.clone(), piece(4, 24), version_end(3, whole)]),
        ("a version_end on another version", vec![both.clone(), piece(3, 24), version_end(4, whole)]),
        ("a version_end that nobody knows", vec![both.clone(), piece(3, 24), version_end(3, 9)]),
        ("a leaf twice", vec![list(&[1, 1]).frame(3), piece(3, 24), version_end(3, whole)]),
        ("a leaf that is none", vec![list(&[0, 2]).frame(3), piece(3, 24), version_end(3, whole)]),
        ("version 0", vec![list(&[0, 1]).frame(0), piece(0, 24), version_end(0, whole)]),
        ("a piece before its version", vec![piece(3, 24), version_end(3, whole)]),
    ] {
        let port = impostor(frames.concat());
        let mirror =
            connect(WeightMirrorSpec { port, token: known(), ..WeightMirrorSpec::default() }).unwrap();
        assert!(eventually(|| mirror.stats().connects == 2), "{what}");
        assert_eq!(mirror.version().unwrap(), 0, "{what}");
    }
    let void = [both.clone(), piece(3, 20), version_end(3, VersionEnd::Overwritten as u16)].concat();
    let port = impostor([void, list(&[0, 1]).frame(4), piece(4, 24), version_end(4, whole)].concat());
    let mirror = connect(WeightMirrorSpec { port, token: known(), ..WeightMirrorSpec::default() }).unwrap();
    assert_eq!(mirror.wait_for(3, soon()).unwrap(), 4, "and what an honest one sends is not");
    assert_eq!((mirror.stats().voids, mirror.stats().versions), (1, 1));
}

/// Whoever waits for the name would read what was said. So nothing may be there before it was checked.
#[test]
fn a_learner_whose_inventory_does_not_hold_together_gets_no_segment() {
    let honest = || weight_schema(&[16, 8]).to_vec();
    let text = String::from_utf8(honest()).unwrap();
    for (what, leaf_bytes, schema) in [
        ("a leaf is smaller than its shape", vec![16, 7], honest()),
        ("a leaf is larger than its shape", vec![17, 8], honest()),
        ("a leaf is missing", vec![16], honest()),
        ("sizes that no memory has", vec![u64::MAX, 8], honest()),
        ("no schema", vec![16, 8], b"nonsense".to_vec()),
        ("a dtype of objects", vec![16, 8], text.replace("uint8", "object").into_bytes()),
        ("a shape that overflows", vec![16, 8], text.replace("[16]", "[4294967296,4294967296]").into_bytes()),
        ("a leaf twice in the tree", vec![16, 8], text.replace("[0,1]", "[0,0]").into_bytes()),
        (
            "a tree without end",
            vec![16, 8],
            text.replace("[0,1]", &r#"[{"list":"#.repeat(100_000)).into_bytes(),
        ),
    ] {
        let name = Name::unique();
        let port = impostor_with(
            Inventory { lineage: 5, checksums: false, is_mirror: false, leaf_bytes, schema },
            Vec::new(),
        );
        let named = Some(name.to_string());
        let spec = WeightMirrorSpec { port, token: known(), name: named, ..WeightMirrorSpec::default() };
        let mirror = WeightMirror::start(spec).unwrap();
        let refused = mirror.ready(soon()).unwrap_err();
        assert!(matches!(refused, Error::Protocol { .. }), "{what}: {refused}");
        assert!(matches!(Weights::open(&name, None), Err(Error::NotFound { .. })), "{what}");
    }
}

#[test]
fn other_leaves_than_the_caller_wants_or_too_large_ones_take_no_memory() {
    let origin = Origin::new(SMALL);
    let wanted = |leaf_bytes: &[usize]| Some(weight_schema(leaf_bytes).to_vec());
    let name = Name::unique();
    let spec = || WeightMirrorSpec { name: Some(name.to_string()), ..origin.spec() };
    let other = connect(WeightMirrorSpec { wanted: wanted(&bytes_of([14, 0, 1])), ..spec() }).unwrap_err();
    assert!(
        matches!(&other, Error::ForeignSchema { theirs, .. } if theirs == weight_schema(&bytes_of(SMALL))),
        "{other}"
    );
    let large = connect(WeightMirrorSpec { max_bytes: Some(1 << 13), ..spec() }).unwrap_err();
    assert!(matches!(large, Error::TooLarge { limit: 8192, .. }), "{large}");
    assert!(matches!(Weights::open(&name, None), Err(Error::NotFound { .. })));
    let wanted = wanted(&bytes_of(SMALL));
    drop(connect(WeightMirrorSpec { wanted, max_bytes: Some(1 << 20), ..spec() }).unwrap());
}

/// An inventory of terabytes is refused by default: nobody has twice as much memory.
#[test]
fn weights_that_no_machine_holds_are_refused_without_a_bound() {
    let bytes = 1usize << 46;
    let (leaf_bytes, schema) = (vec![bytes as u64], weight_schema(&[bytes]).to_vec());
    let port = impostor_with(
        Inventory { lineage: 5, checksums: false, is_mirror: false, leaf_bytes, schema },
        Vec::new(),
    );
    let refused =
        connect(WeightMirrorSpec { port, token: known(), ..WeightMirrorSpec::default() }).unwrap_err();
    assert!(matches!(refused, Error::TooLarge { copies: 3, .. }), "{refused}");
}
