//! Slow learners, slow clients, learners that go away: what waits, what is dropped, what is given back, who is told.

use crate::fixture::*;
use crate::harness::*;
use rollway_core::Error;
use rollway_core::net::wire::frame::{Content, GoodbyeReason, Header, Hello, Kind, Refusal};
use rollway_core::net::{TcpClientSpec, TcpServer, TcpServerSpec};
use rollway_core::ring::{Consumer, Deadline, OnFull};
use std::io::Write;
use std::time::Duration;

/// A server that cuts what is slow after 400 ms.
fn impatient() -> TcpServerSpec {
    let limit = Duration::from_millis(400);
    TcpServerSpec { frame_timeout: limit, claim_timeout: limit, ..TcpServerSpec::default() }
}

// ── a full ring ────────────────────────────────────────────────────────────────────────────────────────────────────

#[test]
fn a_full_ring_slows_its_clients_and_everything_arrives_when_it_is_drained() {
    let learner = Learner::new(4, 2);
    let spec = TcpClientSpec { max_inflight_msgs: 2, ..learner.spec() };
    let client = connect(spec).unwrap();
    // Until nothing more is taken: the ring, the frames under way and the open one are full.
    let mut sent = 0;
    while offer(&client, sent, briefly()).is_ok() {
        sent += 1;
    }
    assert!(matches!(offer(&client, sent, Deadline::Now), Err(Error::Full)));
    assert!(matches!(client.wait(briefly()), Err(Error::Timeout)));
    assert!(eventually(|| client.acknowledged() == 8), "what is in the ring is acknowledged");
    assert_eq!(learner.claimed(), 0, "nobody who waits holds a slot");
    let sent = sent - sent % 4;
    assert_eq!(learner.receive(sent as usize)[..sent as usize], (0..sent).collect::<Vec<_>>());
}

#[test]
fn a_frame_that_finds_a_part_of_its_slots_fills_them() {
    let learner = Learner::new(4, 2);
    let client = learner.client();
    put_many(&client, 0..5); // One batch, and a slot of the next.
    client.wait(soon()).unwrap();
    let held = Consumer::take(&*learner.consumer, soon(), None).unwrap().unwrap();
    put_many(&client, 5..9); // Three have a slot; for the fourth there is none while the learner holds the other batch.
    let next = Consumer::take(&*learner.consumer, soon(), None).unwrap().unwrap();
    assert_eq!(values(&next), [4, 5, 6, 7]);
    assert!(eventually(|| client.unacknowledged() == 1));
    assert_eq!((learner.claimed(), learner.server.stats().spilled), (0, 1));
    drop((held, next));
    client.wait(soon()).unwrap();
    put_many(&client, 9..12);
    assert_eq!(learner.receive(4), [8, 9, 10, 11]);
}

#[test]
fn a_frame_that_was_split_is_resumed_in_its_middle() {
    let learner = Learner::new(4, 2);
    let proxy = Proxy::new(learner.server.port(), None, 64 * 1024);
    let client = connect(TcpClientSpec { port: proxy.port, ..learner.spec() }).unwrap();
    put_many(&client, 0..5);
    client.wait(soon()).unwrap();
    put_many(&client, 5..9);
    assert!(eventually(|| client.acknowledged() == 8));
    proxy.cut();
    assert!(eventually(|| client.stats().resumed == 1));
    put_many(&client, 9..12);
    assert_eq!(learner.receive(12), (0..12).collect::<Vec<_>>());
    client.close(soon()).unwrap();
}

#[test]
fn many_clients_share_a_ring_that_is_always_full() {
    const COUNT: u64 = 400;
    let learner = Learner::new(8, 2);
    std::thread::scope(|scope| {
        for worker in 1..=12 {
            let client = connect(TcpClientSpec { max_inflight_msgs: 2, ..learner.spec() }).unwrap();
            scope.spawn(move || {
                for first in (0..COUNT).step_by(worker) {
                    put_many(&client, first..(first + worker as u64).min(COUNT));
                }
                client.close(soon()).unwrap();
            });
        }
        assert_each_once(&learner.receive_stamped(12 * COUNT as usize), 12, COUNT);
    });
    assert!(learner.server.stats().waited > 0);
    assert_eq!(learner.claimed(), 0);
}

#[test]
fn five_hundred_clients_of_a_learner_that_stands_still_cost_little() {
    const CLIENTS: usize = 500;
    if !alone("pressure::five_hundred_clients_of_a_learner_that_stands_still_cost_little") {
        return;
    }
    let learner = Learner::new(4, 2);
    let mut raws: Vec<Raw> = Vec::new();
    let before = resident();
    for number in 0..CLIENTS {
        let mut raw = Raw::open(learner.server.port());
        raw.prove(None);
        let mut session = [0; 16];
        session[..8].copy_from_slice(&(number as u64).to_le_bytes());
        raw.write(
            &Hello {
                content: Content::Samples,
                session,
                producer_id: None,
                attempt: 1,
                next: 0,
                oldest: 0,
                schema: SCHEMA.to_vec(),
            }
            .frame(),
        );
        assert_eq!(raw.frame().0.kind, Kind::Welcome);
        raws.push(raw);
    }
    // Each sends as much as the kernel takes, whatever its credit.
    let frame = data(0..4);
    for raw in &mut raws {
        raw.0.set_nonblocking(true).unwrap();
        for _ in 0..2000 {
            if raw.0.write(&frame).is_err() {
                break;
            }
        }
    }
    let _another = learner.client(); // It still answers.
    assert!(eventually(|| learner.server.stats().waited >= CLIENTS as u64 - 3));
    let grown = resident().saturating_sub(before);
    assert!(grown < CLIENTS * 32 * 1024, "{grown} bytes for {CLIENTS} clients");
    assert_eq!(learner.claimed(), 0);
}

#[test]
fn drop_newest_drops_and_counts() {
    let learner = Learner::policy(4, 2, OnFull::DropNewest);
    let client = learner.client();
    put_many(&client, 0..13);
    client.wait(soon()).unwrap();
    assert_eq!(learner.receive(8), (0..8).collect::<Vec<_>>());
    assert_eq!((learner.consumer.ring().totals().dropped_newest, learner.server.stats().dropped), (5, 5));
}

#[test]
fn drop_oldest_keeps_the_newest() {
    let learner = Learner::policy(4, 2, OnFull::DropOldest);
    let client = learner.client();
    (0..12).for_each(|value| put(&client, value));
    client.wait(soon()).unwrap();
    assert_eq!(learner.receive(8), (4..12).collect::<Vec<_>>());
    assert_eq!(learner.consumer.ring().totals().dropped_oldest, 4);
}

#[test]
fn the_policy_error_names_what_was_refused() {
    let learner = Learner::policy(4, 2, OnFull::Error);
    let client = learner.client();
    put_many(&client, 0..10);
    let refused = client.wait(soon()).unwrap_err();
    assert!(matches!(refused, Error::Refused { content: "samples", first: 8, count: 2 }), "{refused}");
    client.wait(soon()).unwrap();
    assert_eq!((client.acknowledged(), learner.receive(8).len()), (10, 8));
    put_many(&client, 10..14); // It goes on.
    assert_eq!(learner.receive(4), [10, 11, 12, 13]);
}

#[test]
fn a_refusal_that_was_lost_with_its_connection_is_told_again() {
    let learner = Learner::policy(1, 2, OnFull::Error);
    let (mut raw, _) = Raw::enter(learner.server.port(), 1, 0, 0);
    raw.write(&data(0..1));
    raw.write(&data(1..2));
    raw.write(&data(2..3));
    assert!(eventually(|| learner.server.stats().refused_full == 1));
    drop(raw);
    let (mut raw, welcome) = Raw::enter(learner.server.port(), 1, 0, 3);
    assert_eq!(welcome.next, 3);
    let (full, _) = raw.expect(Kind::Full);
    assert_eq!((full.sequence, full.rows), (2, 1));
}

// ── slow and stuck clients ─────────────────────────────────────────────────────────────────────────────────────────

#[test]
fn a_frame_holds_no_slot_before_its_payload_comes_and_none_after_it_was_cut() {
    let learner = Learner::with(&spec(None, 2, 3), impatient());
    let (mut raw, _) = Raw::enter(learner.server.port(), 1, 0, 0);
    let frame = data(0..2);
    raw.write(&frame[..32]);
    let other = learner.client();
    put(&other, 7);
    other.wait(soon()).unwrap(); // The loop has been round, and saw the header.
    assert_eq!(learner.claimed(), 0);
    raw.write(&frame[32..50]);
    assert!(eventually(|| learner.claimed() > 0));
    put(&other, 8); // Others go on meanwhile.
    other.wait(soon()).unwrap();
    assert_eq!(raw.expect(Kind::Goodbye).0.code, GoodbyeReason::TooSlow as u16);
    assert_eq!((learner.claimed(), learner.server.stats().cut_slow), (0, 1));
    // The client comes again, is told that nothing arrived, and sends it once more.
    let (mut raw, welcome) = Raw::enter(learner.server.port(), 1, 0, 2);
    assert_eq!(welcome.next, 0);
    raw.write(&frame);
    assert_eq!(raw.expect(Kind::Ack).0.sequence, 2);
    assert_eq!(sorted(learner.receive(4)), [0, 1, 7, 8]);
}

#[test]
fn a_slow_loris_is_cut_though_it_makes_progress() {
    let learner = Learner::with(&spec(None, 2, 3), impatient());
    let (mut raw, _) = Raw::enter(learner.server.port(), 1, 0, 0);
    raw.0.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let (bytes, mut header) = (data(0..2), [0; 32]);
    let cut = bytes.iter().position(|byte| {
        raw.0.write_all(&[*byte]).is_err() || std::io::Read::read_exact(&mut raw.0, &mut header).is_ok()
    });
    assert!(cut.is_some(), "every byte came in time for the one before it, and yet it was cut");
    assert_eq!(Header::parse(&header).unwrap().unwrap().code, GoodbyeReason::TooSlow as u16);
    assert!(eventually(|| learner.claimed() == 0));
}

#[test]
fn a_silent_client_is_cut_and_one_that_only_waits_is_not() {
    let keepalive = Duration::from_millis(100);
    let learner = Learner::with(&spec(None, 2, 3), TcpServerSpec { keepalive, ..TcpServerSpec::default() });
    let client = connect(TcpClientSpec { keepalive, ..learner.spec() }).unwrap();
    let (mut raw, _) = Raw::enter(learner.server.port(), 1, 0, 0);
    assert_eq!(raw.expect(Kind::Ping).0.length, 0);
    assert_eq!(raw.expect(Kind::Goodbye).0.code, GoodbyeReason::Silent as u16);
    assert!(client.is_connected() && client.stats().connects == 1);
    put_many(&client, 0..2);
    client.wait(soon()).unwrap();
}

#[test]
fn a_client_notices_that_its_learner_is_dead() {
    let learner = Learner::new(2, 3);
    let proxy = Proxy::new(learner.server.port(), None, 64 * 1024);
    let spec =
        TcpClientSpec { port: proxy.port, keepalive: Duration::from_millis(30), ..TcpClientSpec::default() };
    let client = connect(spec).unwrap();
    proxy.freeze();
    assert!(eventually(|| client.stats().connects == 2), "it connects anew");
    put_many(&client, 0..2);
    client.wait(soon()).unwrap();
}

#[test]
fn a_client_waits_for_room_for_longer_than_the_keepalive() {
    let keepalive = Duration::from_millis(80);
    let learner = Learner::with(&spec(None, 2, 2), TcpServerSpec { keepalive, ..TcpServerSpec::default() });
    let client = connect(TcpClientSpec { keepalive, ..learner.spec() }).unwrap();
    put_many(&client, 0..6);
    assert!(matches!(client.wait(Deadline::after(Some(keepalive * 5))), Err(Error::Timeout)));
    assert_eq!(client.stats().connects, 1, "the learner is slow, not dead");
    assert_eq!(learner.receive(6), (0..6).collect::<Vec<_>>());
}

// ── sessions ───────────────────────────────────────────────────────────────────────────────────────────────────────

#[test]
fn a_second_connection_takes_over_from_one_that_is_stuck() {
    let patient =
        TcpServerSpec { claim_timeout: DEADLINE, frame_timeout: DEADLINE, ..TcpServerSpec::default() };
    let learner = Learner::with(&spec(None, 2, 3), patient);
    let (mut first, _) = Raw::enter(learner.server.port(), 1, 0, 0);
    first.write(&data(0..1));
    assert_eq!(first.expect(Kind::Ack).0.sequence, 1);
    first.write(&data(1..2)[..60]); // Half a frame, in a claimed slot.
    assert!(eventually(|| learner.claimed() == 1));
    let (mut second, welcome) = Raw::enter(learner.server.port(), 1, 1, 2);
    assert_eq!((welcome.next, learner.claimed()), (1, 0), "told only when the first is out");
    assert_eq!(first.expect(Kind::Goodbye).0.code, GoodbyeReason::TakenOver as u16);
    second.write(&data(1..2));
    assert_eq!(second.expect(Kind::Ack).0.sequence, 2);
    assert_eq!(learner.receive(2), [0, 1]);
}

#[test]
fn rows_that_come_again_are_skipped() {
    let learner = Learner::new(2, 3);
    let (mut raw, _) = Raw::enter(learner.server.port(), 1, 0, 0);
    raw.write(&data(0..2));
    raw.write(&data(0..2));
    raw.write(&data(1..3));
    raw.write(&data(3..4));
    while raw.expect(Kind::Ack).0.sequence < 4 {}
    assert_eq!(learner.receive(4), [0, 1, 2, 3]);
    assert_eq!(learner.server.stats().duplicates, 3);
}

#[test]
fn a_learner_that_was_restarted_takes_a_client_that_owes_nothing() {
    let learner = Learner::new(2, 3);
    let proxy = Proxy::new(learner.server.port(), None, 64 * 1024);
    let client = connect(TcpClientSpec { port: proxy.port, ..learner.spec() }).unwrap();
    put_many(&client, 0..2);
    client.wait(soon()).unwrap();
    let again = Learner::new(2, 3);
    proxy.redirect(again.server.port());
    proxy.cut();
    assert!(eventually(|| client.stats().connects == 2));
    put_many(&client, 2..4);
    client.close(soon()).unwrap();
    assert_eq!(again.receive(2), [2, 3]);
}

#[test]
fn a_learner_that_was_restarted_does_not_guess_the_fate_of_samples() {
    let learner = Learner::new(2, 2);
    let proxy = Proxy::new(learner.server.port(), None, 64 * 1024);
    let client = connect(TcpClientSpec { port: proxy.port, ..learner.spec() }).unwrap();
    put_many(&client, 0..4);
    client.wait(soon()).unwrap();
    put_many(&client, 4..6); // The ring is full: under way, and not acknowledged.
    assert!(eventually(|| learner.server.stats().waited > 0));
    let again = Learner::new(2, 3);
    proxy.redirect(again.server.port());
    proxy.cut();
    let error = client.wait(soon()).unwrap_err();
    assert!(error.to_string().contains("fate"), "{error}");
    assert_eq!(
        error.to_string().matches("samples").count(),
        1,
        "one count, and not two that may differ: {error}"
    );
    assert_eq!(unacknowledged(Err::<(), _>(error)), 2);
    let refusal = again.server.last_refusal().unwrap();
    assert_eq!(refusal.code, Refusal::SessionUnknown);
}

// ── the end ────────────────────────────────────────────────────────────────────────────────────────────────────────

#[test]
fn a_server_that_stops_tells_its_clients_what_is_not_acknowledged() {
    let learner = Learner::new(2, 2);
    let client = learner.client();
    put_many(&client, 0..7);
    assert!(eventually(|| client.acknowledged() == 4));
    learner.server.stop();
    learner.server.stop();
    assert_eq!(unacknowledged(client.wait(soon())), 3);
    assert_eq!(unacknowledged(offer(&client, 8, soon())), 3);
    assert_eq!(unacknowledged(client.close(soon())), 3);
    assert_eq!(learner.claimed(), 0);
    assert_eq!(learner.receive(4), [0, 1, 2, 3], "what is acknowledged is there");
}

#[test]
fn a_ring_that_is_closed_ends_its_clients() {
    let learner = Learner::new(2, 2);
    let (idle, waiting) = (learner.client(), learner.client());
    put_many(&waiting, 0..6);
    assert!(eventually(|| waiting.acknowledged() == 4));
    learner.consumer.close().unwrap();
    assert_eq!(unacknowledged(waiting.wait(soon())), 2);
    let mut told = Ok(1);
    assert!(eventually(|| {
        told = offer(&idle, 0, soon());
        told.is_err()
    }));
    assert_eq!(unacknowledged(told), idle.unacknowledged());
    assert_eq!(idle.stats().connects, 1, "it does not come again");
}

#[test]
fn a_learner_that_is_gone_for_good_is_an_error_after_a_while() {
    let learner = Learner::new(2, 2);
    let proxy = Proxy::new(learner.server.port(), None, 64 * 1024);
    let spec = TcpClientSpec {
        port: proxy.port,
        reconnect_timeout: Duration::from_millis(100),
        ..TcpClientSpec::default()
    };
    let client = connect(spec).unwrap();
    put_many(&client, 0..6);
    assert!(eventually(|| client.acknowledged() == 4));
    drop(proxy);
    assert_eq!(unacknowledged(client.wait(soon())), 2);
}

#[test]
fn close_gives_up_at_its_deadline_and_says_what_is_left() {
    let learner = Learner::new(2, 2);
    let client = learner.client();
    put_many(&client, 0..6);
    assert!(eventually(|| client.acknowledged() == 4));
    assert_eq!(unacknowledged(client.close(briefly())), 2);
    client.close(soon()).unwrap();
}

#[test]
fn a_forked_child_is_told_to_make_its_own_client() {
    let learner = Learner::new(2, 2);
    let client = learner.client();
    // SAFETY: the child calls what takes no lock and allocates nothing of weight, and leaves with _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let forked = matches!(offer(&client, 1, Deadline::Now), Err(Error::Forked { .. }))
            && matches!(client.close(Deadline::Now), Err(Error::Forked { .. }));
        drop(client);
        learner.server.stop();
        // SAFETY: ends this process at once.
        unsafe { libc::_exit(if forked { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: waits for our own child.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0);
    put_many(&client, 0..2);
    client.close(soon()).unwrap();
    assert_eq!(learner.receive(2), [0, 1]);
}

#[test]
fn a_forked_child_does_not_keep_the_port() {
    if !alone("pressure::a_forked_child_does_not_keep_the_port") {
        return; // Other tests fork, too.
    }
    let learner = Learner::new(2, 2);
    // SAFETY: the child only stops, until it is killed; we wait until it has.
    let child = unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::raise(libc::SIGSTOP);
            libc::_exit(0);
        }
        libc::waitpid(child, std::ptr::null_mut(), libc::WUNTRACED);
        child
    };
    learner.server.stop();
    let spec = TcpServerSpec { port: learner.server.port(), ..TcpServerSpec::default() };
    let again = TcpServer::start(ingress(&learner.consumer), spec);
    // SAFETY: kills and reaps our own child.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
    again.unwrap();
}

#[test]
fn a_child_that_is_forked_while_a_server_starts_does_not_keep_its_port() {
    if !alone("pressure::a_child_that_is_forked_while_a_server_starts_does_not_keep_its_port") {
        return; // Other tests fork, too.
    }
    let learner = Learner::new(2, 2);
    for _ in 0..20 {
        let started = std::sync::atomic::AtomicBool::new(false);
        let (server, children) = std::thread::scope(|scope| {
            let forks = scope.spawn(|| {
                let mut children = Vec::new();
                while children.is_empty() || !started.load(std::sync::atomic::Ordering::Relaxed) {
                    // SAFETY: the child only waits until it is killed.
                    unsafe {
                        let child = libc::fork();
                        if child == 0 {
                            loop {
                                libc::pause();
                            }
                        }
                        children.push(child);
                    }
                }
                children
            });
            let server = TcpServer::start(ingress(&learner.consumer), TcpServerSpec::default()).unwrap();
            started.store(true, std::sync::atomic::Ordering::Relaxed);
            (server, forks.join().unwrap())
        });
        server.stop();
        // A child closes its copies as its first act, which may be a moment from now.
        let is_closed = eventually(|| {
            let answer = std::net::TcpStream::connect_timeout(&server.address(), Duration::from_millis(100));
            answer.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
        });
        for child in children {
            // SAFETY: kills and reaps our own child.
            unsafe {
                libc::kill(child, libc::SIGKILL);
                libc::waitpid(child, std::ptr::null_mut(), 0);
            }
        }
        assert!(is_closed, "a child listens");
    }
}

#[test]
fn a_signal_interrupts_every_wait() {
    extern "C" fn nothing(_: i32) {}
    let learner = Learner::new(2, 2);
    let client = learner.client();
    put_many(&client, 0..6);
    // SAFETY: the handler does nothing; without SA_RESTART system calls come back with EINTR.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as extern "C" fn(i32) as usize;
        libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut());
    }
    // SAFETY: the thread of this test.
    let this = unsafe { libc::pthread_self() } as usize;
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                // SAFETY: the thread lives as long as this scope.
                unsafe { libc::pthread_kill(this as libc::pthread_t, libc::SIGUSR1) };
                std::thread::yield_now();
            }
        });
        assert!(matches!(client.wait(soon()), Err(Error::Interrupted)));
        assert!(matches!(client.close(soon()), Err(Error::Interrupted)), "and it is still open");
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert_eq!(learner.receive(6), (0..6).collect::<Vec<_>>());
    client.close(soon()).unwrap();
}
