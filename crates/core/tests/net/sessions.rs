//! Sessions that lie in the learner's ring: what servers that follow each other on one ring know of their clients.

use crate::fixture::*;
use crate::harness::*;
use rollway_core::net::{TcpClient, TcpClientSpec, TcpServer, TcpServerSpec};
use rollway_core::policies::OnRestart;
use rollway_core::ring::{Consumer, OnFull};
use rollway_core::segment::sessions::{HeldSession, Lookup, SessionStore};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How many sessions the ring remembers.
fn remembered(consumer: &Consumer) -> usize {
    let protocol = consumer.ring().protocol();
    protocol.sessions.iter().filter(|entry| entry.id[0].load(Ordering::Relaxed) != 0).count()
}

fn serve(consumer: &Consumer, spec: TcpServerSpec) -> TcpServer {
    TcpServer::start(ingress(consumer), spec).unwrap()
}

fn connect_through(proxy: &Proxy, on_restart: OnRestart) -> TcpClient {
    connect(TcpClientSpec { port: proxy.port, on_restart, ..TcpClientSpec::default() }).unwrap()
}

/// A client with four samples in a ring that has room for no more, and two on their way there.
fn two_on_their_way(on_restart: OnRestart) -> (Learner, Proxy, TcpClient) {
    let learner = Learner::new(2, 2);
    let proxy = Proxy::new(learner.server.port(), None, 64 * 1024);
    let client = connect_through(&proxy, on_restart);
    put_many(&client, 0..4);
    client.wait(soon()).unwrap();
    put_many(&client, 4..6);
    assert!(eventually(|| learner.server.stats().waited > 0));
    (learner, proxy, client)
}

#[test]
fn the_next_server_of_a_ring_knows_what_its_clients_have_delivered() {
    for on_restart in [OnRestart::Drop, OnRestart::Resend] {
        let (first, proxy, client) = two_on_their_way(on_restart);
        first.server.stop();
        let next = serve(&first.consumer, TcpServerSpec::default());
        proxy.redirect(next.port());
        assert_eq!(first.receive(6), [0, 1, 2, 3, 4, 5]);
        client.wait(soon()).unwrap();
        let stats = client.stats();
        assert_eq!((stats.dropped, stats.resent, next.stats().resumed), (0, 0, 1));
        assert_eq!((remembered(&first.consumer), next.stats().samples), (1, 2));
    }
}

#[test]
fn a_client_that_moves_between_two_servers_of_a_ring_delivers_exactly_once() {
    let consumer = shared(private(8, 4));
    let servers = [serve(&consumer, TcpServerSpec::default()), serve(&consumer, TcpServerSpec::default())];
    let proxy = Proxy::new(servers[0].port(), None, 64 * 1024);
    let client = Arc::new(connect_through(&proxy, OnRestart::Raise));
    let sender = std::thread::spawn({
        let client = client.clone();
        move || {
            (0..3000).for_each(|value| put(&client, value));
            client.wait(soon()).unwrap();
        }
    });
    let mut all = Vec::new();
    for number in 0..10 {
        while all.len() < 300 * number {
            all.extend(receive(&consumer));
        }
        proxy.redirect(servers[number % 2].port());
        proxy.cut();
    }
    while all.len() < 3000 {
        all.extend(receive(&consumer));
    }
    sender.join().unwrap();
    assert_eq!(sorted(all), (0..3000).collect::<Vec<_>>());
    assert_eq!((consumer.ring().census().committed(), remembered(&consumer)), (0, 1));
}

#[test]
fn a_session_that_was_away_for_too_long_is_forgotten() {
    let (first, proxy, client) = two_on_their_way(OnRestart::Drop);
    first.server.stop();
    let spec = TcpServerSpec { session_ttl: Duration::ZERO, ..TcpServerSpec::default() };
    let next = serve(&first.consumer, spec);
    proxy.redirect(next.port());
    assert!(eventually(|| client.stats().dropped == 2));
    put_many(&client, 6..8);
    assert_eq!(first.receive(6), [0, 1, 2, 3, 6, 7]);
}

/// The next learner could not tell the client of them.
#[test]
fn a_client_with_refused_samples_is_remembered_again_when_it_has_been_told() {
    let spec = TcpServerSpec { max_inflight_frames: 2, ..TcpServerSpec::default() };
    let learner = Learner::with(
        &rollway_core::ring::RingSpec { on_full: OnFull::Error, ..crate::fixture::spec(None, 2, 2) },
        spec,
    );
    let client = learner.client();
    put_many(&client, 0..4);
    client.wait(soon()).unwrap();
    assert_eq!(remembered(&learner.consumer), 1);
    put(&client, 4);
    assert!(client.wait(soon()).is_err());
    assert_eq!(remembered(&learner.consumer), 0);
    learner.receive(4);
    for value in 5..7 {
        put(&client, value);
        client.wait(soon()).unwrap();
    }
    assert_eq!((remembered(&learner.consumer), learner.receive(2)), (1, vec![5, 6]));
}

#[test]
fn a_full_table_forgets_who_said_goodbye_then_who_left_first_and_nobody_who_is_there() {
    let consumer = private(2, 2);
    let producer: Arc<dyn SessionStore> = Arc::new(producer(&consumer));
    let add = |name: u16| {
        let id = std::array::from_fn(|byte| name.to_be_bytes()[byte % 2]);
        HeldSession::add(&producer, id, u64::from(name)).unwrap()
    };
    let is_known = |name: u16| {
        let id = std::array::from_fn(|byte| name.to_be_bytes()[byte % 2]);
        match HeldSession::take(&producer, id, Duration::MAX).unwrap() {
            Lookup::Taken(session) => session.next() == u64::from(name),
            Lookup::Held | Lookup::Unknown => false,
        }
    };
    drop(add(1));
    let mut finished = add(2).unwrap();
    drop(add(3));
    finished.finish();
    drop(finished);
    let mut held: Vec<_> = (4..1025).map(|name| add(name).unwrap()).collect();
    assert_eq!(remembered(&consumer), 1024);
    held.push(add(1025).unwrap());
    held.push(add(1026).unwrap());
    assert_eq!([is_known(1), is_known(2), is_known(3)], [false, false, true]);
    held.push(add(1027).unwrap());
    assert!(add(1028).is_none() && !is_known(3));
    drop(held);
    assert!(is_known(4) && is_known(1027));
}

/// Servers that are killed, one after the other, at each point and at several visits of it. A consumer of the same ring lives on, and
/// takes back what they held.
#[cfg(feature = "fault")]
pub mod kills {
    use super::*;
    use crate::kills::{die_as_told, kill_at_each};
    use rollway_core::net::Forwarder;
    use rollway_core::ring::producer::ProducerSpec;
    use rollway_core::ring::{IfExists, Producer};
    use rollway_core::segment::Role;
    use rollway_core::sys::sync::Point;
    use std::sync::atomic::AtomicBool;

    /// `RunFinished` and `SessionInherited` follow what leaves a run to finish.
    const POINTS: &[Point] = &[
        Point::SessionEmptied,
        Point::SlotClaimed,
        Point::RunPartlyClaimed,
        Point::SlotWritten,
        Point::RunPlaced,
        Point::RunLogged,
        Point::RunFinished,
        Point::SessionInherited,
        Point::SlotReady,
        Point::RunFinished,
        Point::RunCommitted,
        Point::RunFinished,
        Point::SessionMoved,
        Point::NotifyCleared,
        Point::NotifyMoved,
    ];
    pub const TOKEN: &[u8] = b"the same for each of them";

    pub fn visits(point: Point) -> &'static [usize] {
        match point {
            Point::LaneTaken | Point::SessionEmptied | Point::RunFinished | Point::SessionInherited => &[1],
            _ => &[1, 6, 15],
        }
    }

    fn server(consumer: &Consumer, port: u16) -> TcpServer {
        let network = Producer::attach_as(Role::Network, consumer.ring().clone(), ANYONE).unwrap();
        let ingress = rollway_core::net::SampleIngress::new(network).unwrap();
        let spec = TcpServerSpec { port, token: Some(TOKEN.to_vec()), ..TcpServerSpec::default() };
        TcpServer::start(ingress, spec).unwrap()
    }

    /// A learner in a process of its own, which dies on the way.
    #[test]
    #[ignore]
    fn victim() {
        die_as_told();
        let (segment, port) = (told("SEGMENT"), told("PORT").parse().unwrap());
        let ring = crate::fixture::spec(Some(&segment), 8, 4);
        let consumer = Consumer::open(&ring, IfExists::Resume, None).unwrap();
        let _server = server(&consumer, port);
        say("ready");
        stay();
    }

    #[test]
    fn killed_learners_lose_nothing_and_count_nothing_twice() {
        assert!(Point::SESSIONS.iter().all(|point| POINTS.contains(point)));
        let (name, node) = (Name::unique(), Name::unique());
        let consumer = shared(open(&crate::fixture::spec(Some(&name), 8, 4)));
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let spec = TcpClientSpec {
            port,
            token: Some(TOKEN.to_vec()),
            connect_timeout: DEADLINE,
            producer_id: Some(0),
            ..TcpClientSpec::default()
        };
        let client = TcpClient::start(spec.clone(), SCHEMA, LEAVES).unwrap();
        let forwarder = Forwarder::start(spec, &crate::fixture::spec(Some(&node), 8, 4)).unwrap();
        let of_node = ProducerSpec { producer_id: Some(1), ..ANYONE };
        let worker = Producer::attach(&node, SCHEMA, LEAVES, of_node).unwrap();
        let done = AtomicBool::new(false);
        let until_done = |send: &dyn Fn(u64)| {
            let numbers = (0..).take_while(|_| !done.load(Ordering::Relaxed));
            numbers.inspect(|value| send(*value)).count() as u64
        };
        let (sent, seen) = std::thread::scope(|scope| {
            let sends = [
                scope.spawn(|| until_done(&|value| put_many(&client, value..value + 1))),
                scope.spawn(|| until_done(&|value| send(&worker, value))),
            ];
            let reader = scope.spawn(|| {
                let mut all = Vec::new();
                while let Ok(batch) = Consumer::take(&*consumer, soon(), None) {
                    let batch = batch.unwrap();
                    all.extend(batch.stamps(&batch.runs()).into_iter().zip(values(&batch)));
                }
                all
            });
            let variables = [("SEGMENT", &*name), ("PORT", &port.to_string())];
            kill_at_each("sessions::kills::victim", &variables, POINTS, visits);
            let _last = server(&consumer, port);
            done.store(true, Ordering::Relaxed);
            let sent = sends.map(|sender| sender.join().unwrap());
            client.wait(soon()).unwrap();
            forwarder.close(soon()).unwrap();
            consumer.flush().unwrap();
            assert!(eventually(|| consumer.ring().census().committed() == 0));
            consumer.ring().shut_down();
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
