//! Learners that are restarted: what their clients drop or send again, and that no learner sees a sample twice.

use crate::fixture::*;
use crate::harness::*;
use rollway_core::net::{TcpClient, TcpClientSpec};
use rollway_core::policies::OnRestart;
use rollway_core::ring::Consumer;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

fn connect_through(proxy: &Proxy, on_restart: OnRestart) -> TcpClient {
    connect(TcpClientSpec { port: proxy.port, on_restart, ..TcpClientSpec::default() }).unwrap()
}

/// A client whose first four samples are acknowledged; two more are on their way to a learner without room for them.
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

/// Sends new connections to a learner that knows no client, and waits until the client is there.
fn restart(proxy: &Proxy, learner: &Learner, client: &TcpClient) {
    proxy.redirect(learner.server.port());
    proxy.cut();
    await_next(client);
}

/// What is sent before the client notices would have an unknown fate, too.
fn await_next(client: &TcpClient) {
    assert!(eventually(|| client.stats().connects == 2));
}

#[test]
fn what_a_dead_learner_did_not_acknowledge_is_dropped_and_counted() {
    let (_first, proxy, client) = two_on_their_way(OnRestart::Drop);
    let again = Learner::new(2, 3);
    restart(&proxy, &again, &client);
    put_many(&client, 6..8);
    client.wait(soon()).unwrap();
    assert_eq!(again.receive(2), [6, 7]);
    let stats = client.stats();
    assert_eq!((stats.dropped, stats.resent, client.acknowledged(), client.sent()), (2, 0, 6, 8));
    client.close(soon()).unwrap();
}

#[test]
fn what_a_dead_learner_did_not_acknowledge_is_sent_to_the_next() {
    let (_first, proxy, client) = two_on_their_way(OnRestart::Resend);
    let again = Learner::new(2, 3);
    restart(&proxy, &again, &client);
    put_many(&client, 6..8);
    client.wait(soon()).unwrap();
    assert_eq!(again.receive(4), [4, 5, 6, 7]);
    let stats = client.stats();
    assert_eq!((stats.dropped, stats.resent, client.acknowledged()), (0, 2, 8));
    assert_eq!(again.server.stats().duplicates, 0);
}

#[test]
fn a_learner_that_says_goodbye_is_waited_for() {
    for on_restart in [OnRestart::Drop, OnRestart::Resend] {
        let (first, proxy, client) = two_on_their_way(on_restart);
        let again = Learner::new(2, 3);
        proxy.redirect(again.server.port());
        first.server.stop();
        await_next(&client);
        put_many(&client, 6..8);
        client.wait(soon()).unwrap();
        assert_eq!(again.receive(2)[..], if on_restart == OnRestart::Drop { [6, 7] } else { [4, 5] });
    }
}

/// Takes everything from a learner, until told to stop and nothing is left.
fn drain_until(learner: &Learner, stop: &AtomicBool) -> Vec<u64> {
    let mut all = Vec::new();
    loop {
        let over = stop.load(Ordering::Relaxed);
        match Consumer::take(&*learner.consumer, briefly(), Some(1)) {
            Ok(Some(batch)) => all.extend(values(&batch)),
            _ if over => return all,
            _ => {}
        }
    }
}

/// Sends to learners that are replaced, and whose connections are cut, at any moment. Returns what each of them got, and the client.
fn through_many_learners(on_restart: OnRestart, count: u64) -> (Vec<Vec<u64>>, TcpClient) {
    let stop = Arc::new(AtomicBool::new(false));
    let start = || {
        let (learner, stop) = (Arc::new(Learner::new(4, 3)), stop.clone());
        let drained = std::thread::spawn({
            let learner = learner.clone();
            move || drain_until(&learner, &stop)
        });
        (learner, drained)
    };
    let mut learners = vec![start()];
    let proxy = Proxy::new(learners[0].0.server.port(), None, 64 * 1024);
    let client = Arc::new(connect_through(&proxy, on_restart));
    let sender = std::thread::spawn({
        let client = client.clone();
        move || (0..count).for_each(|value| put(&client, value))
    });
    while client.sent() < count {
        let [step, dice] = [client.sent() % 7, client.sent() % 3];
        let enough = client.sent() + 5 + 20 * step;
        assert!(eventually(|| client.sent() >= enough.min(count)));
        if dice > 0 {
            let next = start();
            proxy.redirect(next.0.server.port());
            learners.push(next);
        }
        proxy.cut();
    }
    sender.join().unwrap();
    client.wait(soon()).unwrap();
    stop.store(true, Ordering::Relaxed);
    let got = learners.into_iter().map(|(_, drained)| drained.join().unwrap()).collect();
    (got, Arc::into_inner(client).unwrap())
}

#[test]
fn every_sample_that_is_sent_again_arrives_at_some_learner_and_at_none_twice() {
    let (got, client) = through_many_learners(OnRestart::Resend, 4000);
    for samples in &got {
        assert_eq!(samples.iter().collect::<BTreeSet<_>>().len(), samples.len(), "twice at one learner");
    }
    assert_eq!(got.iter().flatten().copied().collect::<BTreeSet<_>>(), (0..4000).collect());
    let total: usize = got.iter().map(Vec::len).sum();
    assert!(total as u64 <= 4000 + client.stats().resent && client.acknowledged() == 4000);
    assert!(got.len() > 2);
}

#[test]
fn no_sample_arrives_twice_where_they_are_dropped_and_what_was_acknowledged_is_there() {
    let (got, client) = through_many_learners(OnRestart::Drop, 4000);
    let all: BTreeSet<u64> = got.iter().flatten().copied().collect();
    let total: usize = got.iter().map(Vec::len).sum();
    assert_eq!(all.len(), total, "twice");
    let dropped = client.stats().dropped;
    assert!(client.acknowledged() == 4000 - dropped && total as u64 >= 4000 - dropped);
}
