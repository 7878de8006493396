//! Mirrors that give their copy to others: what reaches the end of a chain, and how a mirror changes its source.

use crate::fixture::{Name, briefly, eventually, soon};
use crate::harness::Proxy;
use crate::weights::{Origin, SMALL, bytes_of, connect, read, read_by_name, spec};
use rollway_core::Error;
use rollway_core::net::{TcpServer, TcpServerSpec, WeightMirror, WeightMirrorSpec};
use rollway_core::weights::{Reader, Weights, WeightsSpec};
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

/// A mirror with a server in front of its copy.
struct Node {
    server: TcpServer,
    mirror: WeightMirror,
}

impl Node {
    fn under(parent: &TcpServer) -> Node {
        Node::with(spec_of(parent))
    }

    fn with(spec: WeightMirrorSpec) -> Node {
        let mirror = connect(spec).unwrap();
        let outlet = mirror.outlet().unwrap();
        let server = TcpServer::serve_outlet(None, Some(outlet), TcpServerSpec::default()).unwrap();
        Node { server, mirror }
    }
}

fn spec_of(parent: &TcpServer) -> WeightMirrorSpec {
    WeightMirrorSpec { port: parent.port(), ..WeightMirrorSpec::default() }
}

fn redirect(mirror: &WeightMirror, to: &TcpServer) {
    mirror.redirect(("127.0.0.1", to.port()), None).unwrap();
}

#[test]
fn a_chain_passes_on_versions_under_the_learners_numbers_and_only_what_changed() {
    let words = [10_000, 0, 7];
    let origin = Origin::new(words);
    let first = Node::under(&origin.server);
    let second = Node::under(&first.server);
    let last = connect(spec_of(&second.server)).unwrap();
    for number in 1..=5 {
        let version = origin.write_all(number * 10);
        assert_eq!(last.wait_for(version, soon()).unwrap(), version);
        assert_eq!(read(&last, words, 0), (version, [number * 10; 2]));
    }
    let before = last.stats().bytes;
    let version = origin.write(&[2], 77);
    last.wait_for(version, soon()).unwrap();
    assert_eq!(read(&last, words, 0), (version, [50, 77]));
    assert_eq!(last.stats().bytes - before, 7 * 8);
    assert_eq!(origin.server.stats().weight_clients, 1, "the learner sends to one");
}

#[test]
fn a_chain_under_a_writer_that_never_stops_passes_on_whole_versions() {
    let words = [50_000, 0, 1];
    let origin = Origin::new(words);
    let node = Node::under(&origin.server);
    let last = connect(spec_of(&node.server)).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| (1..=300).for_each(|number| assert_eq!(origin.write_all(number), number)));
        let mut version = 0;
        while version < 300 {
            version = last.wait_for(version + 1, soon()).unwrap();
            let (there, [first, second]) = read(&last, words, 0);
            assert!(there >= version && first == there && second == there);
        }
    });
    assert_eq!(last.stats().connects, 1);
}

#[test]
fn checksums_go_down_the_chain() {
    let leaf_bytes = bytes_of(SMALL);
    let origin =
        Origin::with(&WeightsSpec { checksum: true, ..spec(None, &leaf_bytes) }, TcpServerSpec::default());
    origin.write_all(4);
    let node = Node::under(&origin.server);
    let last = connect(spec_of(&node.server)).unwrap();
    origin.write(&[2], 5);
    last.wait_for(2, soon()).unwrap();
    assert_eq!(read(&last, SMALL, 0), (2, [4, 5]));
}

#[test]
fn a_node_that_comes_late_gets_the_latest_version_from_a_node() {
    let origin = Origin::new(SMALL);
    (1..=20).for_each(|number| assert_eq!(origin.write_all(number), number));
    let node = Node::under(&origin.server);
    node.mirror.wait_for(20, soon()).unwrap();
    origin.server.stop();
    let late = connect(spec_of(&node.server)).unwrap();
    assert_eq!(late.wait_for(1, soon()).unwrap(), 20, "also while the learner is away");
    assert_eq!(late.stats().versions, 1);
}

#[test]
fn a_learner_that_begins_anew_is_followed_down_the_chain() {
    let name = Name::unique();
    let origin = Origin::new(SMALL);
    (1..=9).for_each(|number| assert_eq!(origin.write_all(number), number));
    let proxy = Proxy::new(origin.server.port(), None, 4096);
    let node = Node::with(WeightMirrorSpec { port: proxy.port, ..origin.spec() });
    let last = connect(WeightMirrorSpec { name: Some(name.to_string()), ..spec_of(&node.server) }).unwrap();
    assert_eq!(last.wait_for(9, soon()).unwrap(), 9);

    let again = Origin::new(SMALL);
    proxy.redirect(again.server.port());
    drop(origin);
    again.write_all(100);
    assert_eq!(last.wait_for(10, soon()).unwrap(), 1, "the first version of the new learner");
    assert_eq!(read(&last, SMALL, 0), (1, [100; 2]));
    assert_eq!((node.mirror.stats().lineages, last.stats().lineages), (1, 1));
    again.write(&[2], 101);
    assert_eq!(last.wait_for(2, soon()).unwrap(), 2);
    assert_eq!(read_by_name(&name, SMALL), (2, [100, 101]));
}

#[test]
fn weights_that_are_shut_down_end_the_chain_after_their_last_version() {
    let origin = Origin::new(SMALL);
    let node = Node::under(&origin.server);
    let last = connect(spec_of(&node.server)).unwrap();
    origin.write_all(3);
    origin.writer.weights().shut_down().unwrap();
    let error = last.wait_for(2, soon()).unwrap_err();
    assert!(error.to_string().contains("the learner has shut down its weights"), "{error}");
    assert_eq!(read(&last, SMALL, 0), (1, [3; 2]));
    assert!(last.is_over() && node.mirror.is_over());
    let late = connect(spec_of(&node.server)).unwrap();
    assert_eq!(late.wait_for(1, soon()).unwrap(), 1);
    assert!(node.mirror.outlet().is_err(), "there is nothing more to pass on");
}

#[test]
fn a_node_that_lost_its_learner_sends_its_clients_elsewhere() {
    let origin = Origin::new(SMALL);
    origin.write_all(1);
    let proxy = Proxy::new(origin.server.port(), None, 4096);
    let reconnect_timeout = Duration::from_millis(50);
    let node = Node::with(WeightMirrorSpec { port: proxy.port, reconnect_timeout, ..origin.spec() });
    let last = connect(spec_of(&node.server)).unwrap();
    last.wait_for(1, soon()).unwrap();
    drop(proxy);
    assert!(eventually(|| node.mirror.is_over()));
    assert!(eventually(|| !last.is_connected()));
    assert!(!last.is_over(), "it may find another server");
    redirect(&last, &origin.server);
    origin.write_all(2);
    assert_eq!(last.wait_for(2, soon()).unwrap(), 2);
}

#[test]
fn a_mirror_that_is_redirected_keeps_its_copy_and_its_readers() {
    let name = Name::unique();
    let words = [10_000, 0, 1];
    let origin = Origin::new(words);
    origin.write_all(1);
    let node = Node::under(&origin.server);
    let last = connect(WeightMirrorSpec { name: Some(name.to_string()), ..spec_of(&node.server) }).unwrap();
    last.wait_for(1, soon()).unwrap();
    let attached = Reader::attach_to(Arc::new(Weights::open(&name, None).unwrap()), 1).unwrap();
    drop(node);
    redirect(&last, &origin.server);
    let before = last.stats().bytes;
    origin.write(&[2], 2);
    assert_eq!(attached.wait_for(2, soon(), None).unwrap(), 2);
    assert_eq!(read(&last, words, 0), (2, [1, 2]));
    assert_eq!(last.stats().bytes - before, 8, "only what changed");
}

#[test]
fn a_redirect_leaves_a_connection_that_stands_and_one_that_is_being_made() {
    let origin = Origin::new(SMALL);
    origin.write_all(1);
    let mute = TcpListener::bind("127.0.0.1:0").unwrap(); // It lets in, and says nothing.
    let node = Node::under(&origin.server);
    let last = connect(spec_of(&node.server)).unwrap();
    last.wait_for(1, soon()).unwrap();
    last.redirect(("127.0.0.1", mute.local_addr().unwrap().port()), None).unwrap();
    let _caller = mute.accept().unwrap();
    assert!(eventually(|| node.server.stats().weight_clients == 0));
    redirect(&last, &origin.server);
    origin.write_all(2);
    assert_eq!(last.wait_for(2, soon()).unwrap(), 2);
}

#[test]
fn a_redirect_may_bring_another_token() {
    let [one, other] = [b"a token of sixteen".to_vec(), b"another of sixteen".to_vec()];
    let server = |token: &[u8]| TcpServerSpec { token: Some(token.to_vec()), ..TcpServerSpec::default() };
    let leaf_bytes = bytes_of(SMALL);
    let origin = Origin::with(&spec(None, &leaf_bytes), server(&one));
    let weights = origin.writer.weights().clone();
    let second = TcpServer::serve(None, Some(weights), server(&other)).unwrap();
    let mirror = connect(WeightMirrorSpec { token: Some(one), ..origin.spec() }).unwrap();
    mirror.redirect(("127.0.0.1", second.port()), Some(&other)).unwrap();
    origin.write_all(1);
    assert!(eventually(|| second.stats().weight_clients == 1));
    assert_eq!(mirror.wait_for(1, soon()).unwrap(), 1);
}

#[test]
fn a_mirror_that_is_ahead_waits_for_the_node_that_lags() {
    let origin = Origin::new(SMALL);
    origin.write_all(1);
    let proxy = Proxy::new(origin.server.port(), None, 4096);
    let node = Node::with(WeightMirrorSpec { port: proxy.port, ..origin.spec() });
    node.mirror.wait_for(1, soon()).unwrap();
    proxy.redirect(TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port());
    proxy.cut();
    assert!(eventually(|| !node.mirror.is_connected()));
    let last = origin.mirror();
    origin.write_all(2);
    last.wait_for(2, soon()).unwrap();
    redirect(&last, &node.server);
    assert!(eventually(|| node.server.stats().weight_clients == 1));
    proxy.redirect(origin.server.port());
    origin.write_all(3);
    assert_eq!(last.wait_for(3, soon()).unwrap(), 3);
    assert_eq!(last.stats().connects, 2, "it was not cut for being ahead");
}

#[test]
fn a_mirror_does_not_go_back_to_the_copy_of_an_earlier_learner() {
    let origin = Origin::new(SMALL);
    (1..=3).for_each(|number| _ = origin.write_all(number));
    let lagging = Node::under(&origin.server);
    lagging.mirror.wait_for(3, soon()).unwrap();
    let last = origin.mirror();
    last.wait_for(3, soon()).unwrap();
    let again = Origin::new(SMALL);
    again.write_all(100);
    redirect(&last, &again.server);
    assert_eq!(last.wait_for(4, soon()).unwrap(), 1);
    let failed = last.stats().failed_connects;
    redirect(&last, &lagging.server);
    assert!(eventually(|| last.stats().failed_connects > failed + 1));
    assert!(last.last_error().unwrap().contains("the weights of an earlier learner"));
    assert_eq!(read(&last, SMALL, 0), (1, [100; 2]));
    redirect(&lagging.mirror, &again.server);
    again.write_all(101);
    assert_eq!(last.wait_for(2, soon()).unwrap(), 2, "the node has caught up");
}

#[test]
fn a_mirror_that_has_ended_is_not_redirected() {
    let origin = Origin::new(SMALL);
    let mirror = origin.mirror();
    origin.writer.weights().shut_down().unwrap();
    assert!(eventually(|| mirror.is_over()));
    let refused = mirror.redirect(("127.0.0.1", origin.server.port()), None);
    assert!(matches!(refused, Err(Error::WeightsLost { .. })), "{refused:?}");
    let waits = connect(WeightMirrorSpec { outlives_learners: true, ..Origin::new(SMALL).spec() }).unwrap();
    assert!(matches!(waits.wait_for(1, briefly()), Err(Error::Timeout)));
}

#[test]
fn a_mirror_that_waits_for_the_next_learner_survives_another_program_on_the_port() {
    let origin = Origin::new(SMALL);
    origin.write_all(1);
    let proxy = Proxy::new(origin.server.port(), None, 4096);
    let spec = WeightMirrorSpec { port: proxy.port, outlives_learners: true, ..origin.spec() };
    let mirror = connect(spec).unwrap();
    mirror.wait_for(1, soon()).unwrap();
    let token = Some(b"not the token of this run".to_vec());
    let leaf_bytes = bytes_of(SMALL);
    let weights = crate::weights::spec(None, &leaf_bytes);
    let stranger = Origin::with(&weights, TcpServerSpec { token, ..TcpServerSpec::default() });
    proxy.redirect(stranger.server.port());
    proxy.cut();
    assert!(eventually(|| mirror.stats().failed_connects > 0));
    assert!(!mirror.is_over());
    redirect(&mirror, &origin.server);
    origin.write_all(2);
    assert_eq!(mirror.wait_for(2, soon()).unwrap(), 2);
}
