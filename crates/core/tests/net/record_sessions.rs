//! Sessions that lie in the learner's records: what servers that follow each other on the same records know of their clients.

use crate::fixture::*;
use crate::harness::Proxy;
use crate::record_forwarder::node;
use crate::records::{KIB, Learner, checked, connect, producer, put, record_of};
use rollway_core::Error;
use rollway_core::net::{RecordIngress, TcpClientSpec, TcpRecordClient, TcpServer, TcpServerSpec};
use rollway_core::policies::OnRestart;
use rollway_core::records::producer::delivery::Written;
use rollway_core::records::{Consumer, Label, Producer, RecordsSpec};
use rollway_core::ring::{IfExists, OnFull};
use rollway_core::segment::Owner;
use rollway_core::segment::sessions::{HeldSession, SessionStore};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// How many sessions the records remember.
fn remembered(consumer: &Consumer) -> usize {
    let protocol = consumer.records().protocol();
    protocol.sessions.iter().filter(|entry| entry.id[0].load(Ordering::Relaxed) != 0).count()
}

fn serve(consumer: &Consumer) -> TcpServer {
    let ingress = RecordIngress::new(producer(consumer), None).unwrap();
    TcpServer::start(ingress, TcpServerSpec::default()).unwrap()
}

fn connect_through(proxy: &Proxy, on_restart: OnRestart) -> TcpRecordClient {
    connect(TcpClientSpec { port: proxy.port, on_restart, ..TcpClientSpec::default() }).unwrap()
}

#[test]
fn the_next_server_of_records_knows_what_its_clients_have_delivered() {
    for on_restart in [OnRestart::Drop, OnRestart::Resend] {
        let first = Learner::new(48 * KIB);
        let proxy = Proxy::new(first.server.port(), None, 64 * 1024);
        let client = connect_through(&proxy, on_restart);
        (0..3).for_each(|value| put(&client, value, 16 * KIB));
        client.wait(soon()).unwrap();
        (3..5).for_each(|value| put(&client, value, 16 * KIB));
        assert!(eventually(|| first.server.stats().waited > 0));
        first.server.stop();
        let next = serve(&first.consumer);
        proxy.redirect(next.port());
        let mut values = first.values(5);
        values.sort_unstable(); // The next server has another lane.
        assert_eq!(values, [0, 1, 2, 3, 4]);
        client.wait(soon()).unwrap();
        let stats = client.stats();
        assert_eq!((stats.dropped, stats.resent, next.stats().resumed), (0, 0, 1));
        assert_eq!((remembered(&first.consumer), next.stats().samples), (1, 2));
    }
}

#[test]
fn clients_that_move_between_two_servers_of_records_deliver_exactly_once() {
    const COUNT: u32 = 1500;
    let learner = Learner::new(64 * KIB);
    let servers = [&learner.server, &serve(&learner.consumer)];
    let proxy = Proxy::new(servers[0].port(), None, 64 * 1024);
    let clients = [0, 1].map(|_| connect_through(&proxy, OnRestart::Raise));
    let mut seen = std::thread::scope(|scope| {
        for client in &clients {
            scope.spawn(|| {
                (0..COUNT).for_each(|value| put(client, value, value as usize % 700));
                client.wait(soon()).unwrap();
            });
        }
        let mut seen = Vec::new();
        for count in 1..=2 * COUNT as usize {
            let (producer, sequence, value, _) = learner.take();
            assert_eq!(sequence, u64::from(value));
            seen.push((producer, value));
            if count.is_multiple_of(300) {
                proxy.redirect(servers[count / 300 % 2].port());
                proxy.cut();
            }
        }
        seen
    });
    seen.sort_unstable();
    let ids = [seen[0].0, seen[COUNT as usize].0];
    let all = ids.into_iter().flat_map(|id| (0..COUNT).map(move |value| (id, value)));
    assert_eq!(seen, all.collect::<Vec<_>>());
    assert_eq!((learner.ready(), remembered(&learner.consumer)), (0, 2));
}

#[test]
fn records_that_were_dropped_are_settled_for_the_next_server() {
    for on_full in [OnFull::DropNewest, OnFull::DropOldest] {
        let learner = Learner::policy(64 * KIB, on_full);
        let proxy = Proxy::new(learner.server.port(), None, 64 * 1024);
        let client = connect_through(&proxy, OnRestart::Drop);
        (0..9).for_each(|value| put(&client, value, 10 * KIB));
        client.wait(soon()).unwrap();
        learner.server.stop();
        let next = serve(&learner.consumer);
        proxy.redirect(next.port());
        put(&client, 9, KIB);
        client.wait(soon()).unwrap();
        let mut values = learner.values(7);
        values.sort_unstable();
        let kept = if on_full == OnFull::DropNewest { 0..6 } else { 3..9 };
        assert_eq!(values, kept.chain([9]).collect::<Vec<_>>());
        assert_eq!((client.stats().dropped, next.stats().resumed), (0, 1));
    }
}

/// The next learner could not tell the client of them.
#[test]
fn a_client_with_refused_records_is_remembered_again_when_it_has_been_told() {
    let spec = TcpServerSpec { max_inflight_frames: 2, ..TcpServerSpec::default() };
    let learner = Learner::with(64 * KIB, OnFull::Error, spec);
    let client = connect(learner.spec()).unwrap();
    put(&client, 0, 40 * KIB);
    client.wait(soon()).unwrap();
    assert_eq!(remembered(&learner.consumer), 1);
    put(&client, 1, 40 * KIB);
    assert!(client.wait(soon()).is_err());
    assert_eq!((remembered(&learner.consumer), learner.values(1)), (0, vec![0]));
    for value in 2..4 {
        put(&client, value, KIB);
        client.wait(soon()).unwrap();
    }
    assert_eq!((remembered(&learner.consumer), learner.values(2)), (1, vec![2, 3]));
}

/// A log has room for 64 numbers.
#[test]
fn records_that_lie_far_apart_in_their_lane_are_delivered_in_several_runs() {
    let name = Name::unique();
    let spec = RecordsSpec { descriptors: 256, ..node(&name) };
    let consumer = Arc::new(Consumer::open(&spec, IfExists::Resume, None).unwrap());
    let producer = Arc::new(producer(&consumer));
    let store: Arc<dyn SessionStore> = producer.clone();
    let session = HeldSession::add(&store, [7; 16], 10).unwrap().unwrap();
    let (mut records, mut others) = (Vec::new(), Vec::new());
    for value in 0..150 {
        let mut room = Producer::reserve(producer.clone(), 8, soon()).unwrap().unwrap();
        if value % 70 < 10 {
            others.push(room); // Of another connection.
            continue;
        }
        room.bytes_mut().copy_from_slice(&record_of(value, 8));
        let label = Label { version: 8, kind: value, origin: Some((1, u64::from(value))) };
        records.push(Written { room, label, end: 11 + u64::from(value) });
    }
    let (count, others_count) = (records.len(), others.len());
    producer.deliver(&session, records);
    assert_eq!(session.next(), 150); // Behind 139, the last one.
    assert_eq!((count, consumer.records().census().ready_records), (120, 120));
    assert_eq!(consumer.records().census().reserved_records, others_count);
    assert_eq!(consumer.records().totals().committed, 120);
    let values = (0..count).map(|_| checked(&Consumer::take(consumer.clone(), soon()).unwrap().unwrap()).2);
    assert!(values.eq((0..150).filter(|value| value % 70 >= 10)));
}

#[test]
fn a_log_that_names_no_records_is_damage() {
    let learner = Learner::new(64 * KIB);
    learner.server.stop();
    let protocol = learner.consumer.records().protocol();
    let entry = &protocol.sessions[7];
    for (place, run, target) in [(3 << 40, 1, 1), (1 << 40, 1, 1), (0, 3, 1), (u64::MAX, u64::MAX, u64::MAX)]
    {
        entry.holder.store(Owner::pack_maybe(Some(Owner::new(9, 1))), Ordering::Relaxed);
        entry.place.store(place, Ordering::Relaxed);
        entry.run.store(run, Ordering::Relaxed);
        entry.target.store(target, Ordering::Relaxed);
        let ingress = RecordIngress::new(producer(&learner.consumer), None).unwrap();
        let started = TcpServer::start(ingress, TcpServerSpec::default());
        assert!(matches!(started, Err(Error::Corrupt { .. })), "{place:x}");
    }
}

/// Servers that are killed, one after the other, at each point and at several visits of it. A consumer of the same records lives on,
/// and takes back what they held.
#[cfg(feature = "fault")]
mod kills {
    use super::*;
    use crate::kills::{die_as_told, kill_at_each};
    use crate::record_forwarder::{offer, worker};
    use crate::sessions::kills::{TOKEN, visits};
    use rollway_core::net::Forwarder;
    use rollway_core::segment::Role;
    use rollway_core::sys::sync::Point;
    use std::sync::atomic::AtomicBool;

    /// `RunFinished` and `SessionInherited` follow what leaves a run to finish.
    const POINTS: &[Point] = &[
        Point::LaneTaken,
        Point::SessionEmptied,
        Point::RecordReserved,
        Point::RecordNumbered,
        Point::RecordWritten,
        Point::RunPlaced,
        Point::RunLogged,
        Point::RunFinished,
        Point::SessionInherited,
        Point::RecordReady,
        Point::RunFinished,
        Point::RunCommitted,
        Point::RunFinished,
        Point::SessionMoved,
        Point::NotifyCleared,
        Point::NotifyMoved,
    ];

    fn learner(name: &str) -> RecordsSpec<'_> {
        RecordsSpec { lane_bytes: 64 * KIB, ..node(name) }
    }

    fn server(consumer: &Consumer, port: u16) -> TcpServer {
        let network = Producer::attach_as(Role::Network, consumer.records().clone(), ANYONE).unwrap();
        let spec = TcpServerSpec { port, token: Some(TOKEN.to_vec()), ..TcpServerSpec::default() };
        TcpServer::start(RecordIngress::new(network, None).unwrap(), spec).unwrap()
    }

    /// A learner in a process of its own, which dies on the way.
    #[test]
    #[ignore]
    fn victim() {
        die_as_told();
        let (segment, port) = (told("SEGMENT"), told("PORT").parse().unwrap());
        let consumer = Consumer::open(&learner(&segment), IfExists::Resume, None).unwrap();
        let _server = server(&consumer, port);
        say("ready");
        stay();
    }

    /// Kills learners at each point while `send` sends, then settles with `finish`. All of it arrives once.
    fn kill_learners(spec: &TcpClientSpec, send: impl Fn(u32) + Sync, finish: impl FnOnce()) {
        let name = Name::unique();
        let consumer = Arc::new(Consumer::open(&learner(&name), IfExists::Resume, None).unwrap());
        let done = AtomicBool::new(false);
        let (sent, mut seen) = std::thread::scope(|scope| {
            let sender = scope.spawn(|| {
                (0..).take_while(|_| !done.load(Ordering::Relaxed)).inspect(|value| send(*value)).count()
            });
            let reader = scope.spawn(|| {
                let mut all = Vec::new();
                while let Ok(record) = Consumer::take(consumer.clone(), soon()) {
                    let (_, sequence, value, _) = checked(&record.unwrap());
                    assert_eq!(sequence, u64::from(value));
                    all.push(value);
                }
                all
            });
            let variables = [("SEGMENT", &*name), ("PORT", &spec.port.to_string())];
            kill_at_each("record_sessions::kills::victim", &variables, POINTS, visits);
            let _last = server(&consumer, spec.port);
            done.store(true, Ordering::Relaxed);
            let sent = sender.join().unwrap();
            finish();
            assert!(eventually(|| consumer.records().census().committed() == 0));
            consumer.records().shut_down();
            (sent as u32, reader.join().unwrap())
        });
        seen.sort_unstable();
        assert!(seen == (0..sent).collect::<Vec<_>>(), "{sent} were sent, {} arrived", seen.len());
    }

    fn spec() -> TcpClientSpec {
        TcpClientSpec {
            port: std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port(),
            token: Some(TOKEN.to_vec()),
            connect_timeout: DEADLINE,
            ..TcpClientSpec::default()
        }
    }

    #[test]
    fn killed_learners_have_each_record_of_a_client_once() {
        assert!(Point::SESSIONS.iter().all(|point| POINTS.contains(point)));
        let spec = spec();
        let client = TcpRecordClient::start(spec.clone(), SCHEMA).unwrap();
        let send = |value| put(&client, value, value as usize % 900);
        kill_learners(&spec, send, || client.wait(soon()).unwrap());
    }

    #[test]
    fn killed_learners_have_each_record_of_a_forwarder_once() {
        let (spec, name) = (spec(), Name::unique());
        let forwarder = Forwarder::start_records(spec.clone(), &node(&name)).unwrap();
        let worker = worker(&name, 1);
        let send = |value| assert!(offer(&worker, value, value as usize % 900, soon()).unwrap());
        kill_learners(&spec, send, || forwarder.close(soon()).unwrap());
    }
}
