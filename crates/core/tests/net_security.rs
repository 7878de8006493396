//! Who is let in, what strangers learn, and what hostile bytes can do: nothing.

#![cfg(not(loom))]

mod fixture;
#[path = "net/harness.rs"]
mod harness;

use fixture::*;
use harness::*;
use rollway_core::Error;
use rollway_core::net::frame::{
    Cargo, Farewell, Header, Hello, Kind, News, PREAMBLE_BYTES, PROTOCOL, Preamble, Refusal, Welcome,
};
use rollway_core::net::{ServerTls, TcpClient, TcpClientSpec, TcpServer, TcpServerSpec};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Duration;

fn guarded() -> Learner {
    let spec = TcpServerSpec { token: Some(b"open sesame".to_vec()), ..TcpServerSpec::default() };
    Learner::with(&spec_of_ring(), spec)
}

fn spec_of_ring() -> rollway_core::ring::RingSpec<'static> {
    spec(None, 2, 3)
}

fn token(text: &str) -> Option<Vec<u8>> {
    Some(text.as_bytes().to_vec())
}

fn refusal(learner: &Learner) -> Refusal {
    assert!(eventually(|| learner.server.last_refusal().is_some()));
    learner.server.last_refusal().unwrap().code
}

/// Comes in by hand and sends one sample: the server still works.
fn still_serves(learner: &Learner) {
    let (mut raw, welcome) = Raw::enter(learner.server.port(), 77, 0, 0);
    assert_eq!(welcome.next, 0);
    raw.write(&data(0..1));
    assert_eq!(raw.expect(Kind::Ack).0.sequence, 1);
}

// ── addresses ──────────────────────────────────────────────────────────────────────────────────────────────────────

#[test]
fn a_server_leaves_loopback_only_with_a_token() {
    let consumer = shared(private(1, 2));
    let everywhere = TcpServerSpec { host: "0.0.0.0".to_owned(), ..TcpServerSpec::default() };
    let error = TcpServer::start(intake(&consumer), everywhere.clone()).unwrap_err();
    assert!(matches!(&error, Error::TokenRequired { address } if address == "0.0.0.0:0"), "{error}");
    let spec = TcpServerSpec { token: token("open sesame"), ..everywhere.clone() };
    let error = TcpServer::start(intake(&consumer), spec).unwrap_err();
    assert!(error.to_string().contains("at least 16 bytes"), "{error}");
    let spec = TcpServerSpec { token: token("open sesame, and close it again"), ..everywhere };
    TcpServer::start(intake(&consumer), spec).unwrap();
}

#[test]
fn a_port_that_is_taken_is_an_error_at_the_start() {
    let learner = Learner::new(1, 2);
    let spec = TcpServerSpec { port: learner.server.port(), ..TcpServerSpec::default() };
    let error = TcpServer::start(intake(&learner.consumer), spec).unwrap_err();
    assert!(matches!(&error, Error::Bind { .. }), "{error}");
}

#[test]
fn nobody_there_is_an_error_that_names_the_address() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let spec =
        TcpClientSpec { port: free, connect_timeout: Duration::from_millis(60), ..TcpClientSpec::default() };
    let error = connect(spec).unwrap_err();
    assert!(
        matches!(&error, Error::Unreachable { address, .. } if address.ends_with(&free.to_string())),
        "{error}"
    );
}

#[test]
fn a_client_waits_for_a_learner_that_starts_later() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let client =
        TcpClient::start(TcpClientSpec { port: free, ..TcpClientSpec::default() }, SCHEMA, LEAVES).unwrap();
    assert!(eventually(|| client.stats().failed_connects > 0));
    let learner = Learner::with(&spec_of_ring(), TcpServerSpec { port: free, ..TcpServerSpec::default() });
    client.ready(soon()).unwrap();
    put_many(&client, 0..2);
    assert_eq!(learner.receive(2), [0, 1]);
}

// ── tokens ─────────────────────────────────────────────────────────────────────────────────────────────────────────

#[test]
fn the_right_token_lets_a_client_in() {
    let learner = guarded();
    let client = connect(TcpClientSpec { token: token("open sesame"), ..learner.spec() }).unwrap();
    put_many(&client, 0..2);
    client.close(soon()).unwrap();
    assert_eq!(learner.receive(2), [0, 1]);
}

#[test]
fn a_wrong_token_is_refused_on_both_sides() {
    let learner = guarded();
    let error = connect(TcpClientSpec { token: token("open wheat"), ..learner.spec() }).unwrap_err();
    assert!(matches!(&error, Error::Token { why, .. } if why.contains("not the learner's")), "{error}");
    assert_eq!((refusal(&learner), learner.server.stats().refused_token), (Refusal::TokenWrong, 1));
}

#[test]
fn a_client_without_a_token_is_told_to_get_one() {
    let learner = guarded();
    let error = connect(learner.spec()).unwrap_err();
    assert!(matches!(&error, Error::Token { why, .. } if why.contains("asks for a token")), "{error}");
    assert_eq!(refusal(&learner), Refusal::TokenNeeded);
}

#[test]
fn a_client_with_a_token_does_not_trust_a_server_that_asks_for_none() {
    let learner = Learner::new(2, 3);
    let error = connect(TcpClientSpec { token: token("open sesame"), ..learner.spec() }).unwrap_err();
    assert!(matches!(&error, Error::Token { why, .. } if why.contains("asks for none")), "{error}");
    assert_eq!(refusal(&learner), Refusal::TokenUnexpected);
}

#[test]
fn a_server_that_does_not_know_the_token_gets_no_hello() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let spec = TcpClientSpec {
        port: listener.local_addr().unwrap().port(),
        token: token("open sesame"),
        ..TcpClientSpec::default()
    };
    let impostor = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut preamble = [0; PREAMBLE_BYTES];
        stream.read_exact(&mut preamble).unwrap();
        stream.write_all(&Preamble { protocol: PROTOCOL, token: true, nonce: [1; 32] }.bytes()).unwrap();
        let mut proof = [0; 64];
        stream.read_exact(&mut proof).unwrap();
        stream.write_all(&proof).unwrap(); // The client's own proof is not the server's.
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        rest
    });
    let error = connect(spec).unwrap_err();
    assert!(matches!(&error, Error::Token { why, .. } if why.contains("does not know")), "{error}");
    assert_eq!(impostor.join().unwrap(), b"");
}

#[test]
fn strangers_learn_nothing_but_the_protocol() {
    let learner = guarded();
    let mut raw = Raw::open(learner.server.port());
    raw.write(b"GET / HTTP/1.1\r\nHost: learner.example\r\n\r\n");
    assert_eq!(raw.rest(), b"", "not one of ours: not a word");
    let mut raw = Raw::open(learner.server.port());
    assert_eq!(raw.prove(Some(b"guess")).kind, Kind::Refuse);
    let mut raw = Raw::open(learner.server.port());
    raw.write(&Preamble { protocol: PROTOCOL, token: true, nonce: [0; 32] }.bytes());
    raw.write(&Header::new(Kind::Proof).with(&[0; 32]));
    let hello = Hello {
        cargo: Cargo::Samples,
        session: [0; 16],
        producer_id: None,
        attempt: 1,
        next: 0,
        oldest: 0,
        schema: b"something".to_vec(),
    };
    let _ = raw.0.write_all(&hello.frame());
    let heard = raw.rest();
    assert!(!heard.windows(SCHEMA.len()).any(|part| part == SCHEMA));
    assert_eq!(learner.server.stats().accepted, 0);
}

// ── the schema and the protocol ────────────────────────────────────────────────────────────────────────────────────

#[test]
fn another_schema_is_refused_and_both_sides_see_both_texts() {
    let learner = Learner::new(2, 3);
    let error = TcpClient::connect(learner.spec(), b"something else", LEAVES).unwrap_err();
    match &error {
        Error::ForeignSchema { ours, theirs, .. } => {
            assert_eq!((&ours[..], &theirs[..]), (&b"something else"[..], SCHEMA));
        }
        other => panic!("{other}"),
    }
    assert_eq!(refusal(&learner), Refusal::Schema);
    assert_eq!(learner.server.last_refusal().unwrap().schema.unwrap().1, b"something else");
}

#[test]
fn an_older_and_a_younger_client_are_refused_with_both_protocols_named() {
    let learner = Learner::new(2, 3);
    for protocol in [PROTOCOL - 1, PROTOCOL + 1] {
        let mut raw = Raw::open(learner.server.port());
        raw.write(&Preamble { protocol, token: false, nonce: [0; 32] }.bytes());
        let answer: [u8; PREAMBLE_BYTES] = raw.read(PREAMBLE_BYTES).try_into().unwrap();
        assert_eq!(Preamble::parse(&answer).unwrap().protocol, PROTOCOL);
        let (header, payload) = raw.frame();
        assert_eq!(header.code, Refusal::Protocol as u16);
        let said = String::from_utf8_lossy(&payload).into_owned();
        assert!(said.contains(&format!("speaks protocol {protocol}, the learner {PROTOCOL}")), "{said}");
        assert_eq!(raw.rest(), b"");
    }
}

#[test]
fn a_client_refuses_an_older_and_a_younger_learner_with_both_protocols_named() {
    for protocol in [PROTOCOL - 1, PROTOCOL + 1] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.write_all(&Preamble { protocol, token: false, nonce: [0; 32] }.bytes());
            let _ = stream.read_to_end(&mut Vec::new());
        });
        let error = connect(TcpClientSpec { port, ..TcpClientSpec::default() }).unwrap_err();
        assert!(matches!(&error, Error::Protocol { .. }), "{error}");
        let both = format!("it speaks protocol {protocol}, this client {PROTOCOL}");
        assert!(error.to_string().contains(&both), "{error}");
    }
}

#[test]
fn a_client_says_when_the_other_side_is_no_learner() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.write_all(b"220 mail.example ESMTP, at your service, good morning\r\n");
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let error = connect(TcpClientSpec { port, ..TcpClientSpec::default() }).unwrap_err();
    assert!(matches!(&error, Error::Protocol { .. }), "{error}");
}

#[test]
fn a_learner_that_never_stops_talking_keeps_nobody() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let welcome =
        Welcome { producer_id: 0, max_rows: 64, credit: 4, max_bytes: 0, next: 0, news: News::default() };
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.read_exact(&mut [0; PREAMBLE_BYTES]).unwrap();
        let preamble = Preamble { protocol: PROTOCOL, token: false, nonce: [0; 32] }.bytes();
        let proof = Header::new(Kind::Proof).with(&[0; 32]);
        stream.write_all(&[&preamble[..], &proof, &welcome.frame()].concat()).unwrap();
        let acks = Header { credit: 4, ..Header::new(Kind::Ack) }.bytes().repeat(32 * 1024);
        while stream.write_all(&acks).is_ok() {}
    });
    let client = connect(TcpClientSpec { port, ..TcpClientSpec::default() }).unwrap();
    let (over, waits) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        while client.stats().acks < 100_000 {
            std::thread::yield_now();
        }
        assert_eq!(client.unacknowledged(), 0);
        drop(client);
        over.send(()).unwrap();
    });
    waits.recv_timeout(Duration::from_secs(30)).unwrap();
}

#[test]
fn frames_that_make_no_sense_end_the_connection_and_nothing_else() {
    let learner = Learner::new(2, 3);
    let header = Header { rows: 1, ..Header::new(Kind::Data) };
    let bad: Vec<Vec<u8>> = vec![
        Header { length: u64::MAX, ..header }.bytes().to_vec(), // Huge.
        Header { rows: u32::MAX, length: 48 * u32::MAX as u64, ..header }.bytes().to_vec(),
        Header { rows: 0, ..header }.bytes().to_vec(),
        Header { length: 47, ..header }.bytes().to_vec(), // Not what the schema says.
        Header { sequence: 5, length: 48, ..header }.bytes().to_vec(), // A gap.
        vec![0x42; 32],                                   // No known kind.
        Header { length: 1 << 40, ..Header::new(Kind::Goodbye) }.bytes().to_vec(),
        Header { length: u64::MAX, ..Header::new(Kind::Extension(0x80)) }.bytes().to_vec(),
        Header::new(Kind::Ack).bytes().to_vec(), // Out of turn.
    ];
    for (number, bytes) in bad.iter().enumerate() {
        let (mut raw, _) = Raw::enter(learner.server.port(), number as u8, 0, 0);
        raw.write(bytes);
        let (goodbye, text) = raw.expect(Kind::Goodbye);
        assert_eq!(goodbye.code, Farewell::Protocol as u16, "{number}");
        assert!(!text.is_empty());
    }
    assert_eq!((learner.claimed(), learner.server.stats().cut_damaged), (0, bad.len() as u64));
    still_serves(&learner);
}

#[test]
fn frames_of_kinds_to_come_are_skipped() {
    let learner = Learner::new(2, 3);
    let (mut raw, _) = Raw::enter(learner.server.port(), 1, 0, 0);
    raw.write(&Header::new(Kind::Extension(0xC0)).with(&[9; 5000]));
    raw.write(&data(0..2));
    assert_eq!(raw.expect(Kind::Ack).0.sequence, 2);
    assert_eq!(learner.receive(2), [0, 1]);
}

#[test]
fn a_hello_too_long_is_not_read() {
    let learner = Learner::new(2, 3);
    let mut raw = Raw::open(learner.server.port());
    assert_eq!(raw.prove(None).kind, Kind::Proof);
    raw.write(&Header { length: 1 << 30, ..Header::new(Kind::Hello) }.bytes());
    assert_eq!(raw.frame().0.kind, Kind::Goodbye);
}

#[test]
fn strangers_who_only_connect_keep_nobody_out() {
    let spec = TcpServerSpec { max_connections: 4, ..TcpServerSpec::default() };
    let learner = Learner::with(&spec_of_ring(), spec);
    let mut strangers: Vec<Raw> = (0..8).map(|_| Raw::open(learner.server.port())).collect();
    assert!(eventually(|| learner.server.stats().arrived == 8));
    let clients = [(); 4].map(|()| learner.client());
    assert_eq!(strangers[0].rest(), b"", "the oldest had to go");
    // Full of those who have a right to be: the fifth waits, and comes in when one leaves.
    let fifth = TcpClient::start(learner.spec(), SCHEMA, LEAVES).unwrap();
    assert!(eventually(|| learner.server.stats().refused_busy > 0));
    clients[0].close(soon()).unwrap();
    fifth.ready(soon()).unwrap();
}

#[test]
fn a_handshake_that_takes_too_long_is_cut() {
    let spec = TcpServerSpec { handshake_timeout: Duration::from_millis(40), ..TcpServerSpec::default() };
    let learner = Learner::with(&spec_of_ring(), spec);
    let mut raw = Raw::open(learner.server.port());
    raw.write(b"RLW");
    assert_eq!(raw.rest(), b"");
    assert!(eventually(|| learner.server.stats().connections == 0));
}

// ── TLS ────────────────────────────────────────────────────────────────────────────────────────────────────────────

fn encrypted(certificate: &Certificate) -> Learner {
    let spec =
        TcpServerSpec { tls: certificate.server(), token: token("open sesame"), ..TcpServerSpec::default() };
    Learner::with(&fixture::spec(None, 64, 4), spec)
}

#[test]
fn samples_go_over_tls_and_resume_after_cuts() {
    let certificate = Certificate::new("happy");
    let learner = encrypted(&certificate);
    let proxy = Proxy::new(learner.server.port(), None, 64 * 1024);
    let spec = TcpClientSpec {
        port: proxy.port,
        token: token("open sesame"),
        tls: certificate.client("learner.test"),
        ..TcpClientSpec::default()
    };
    let client = connect(spec).unwrap();
    const COUNT: u64 = 64 * 100;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            put_many(&client, 0..COUNT / 2);
            proxy.cut();
            put_many(&client, COUNT / 2..COUNT);
            client.close(soon()).unwrap();
        });
        assert_each_once(&learner.receive_stamped(COUNT as usize), 1, COUNT);
    });
}

#[test]
fn a_certificate_that_is_not_trusted_or_of_another_name_is_an_error() {
    let (certificate, other) = (Certificate::new("theirs"), Certificate::new("ours"));
    let learner = encrypted(&certificate);
    for tls in [other.client("learner.test"), certificate.client("another.test")] {
        let error =
            connect(TcpClientSpec { tls, token: token("open sesame"), ..learner.spec() }).unwrap_err();
        assert!(matches!(&error, Error::Tls { .. }), "{error}");
    }
}

#[test]
fn tls_on_one_side_only_is_an_error() {
    let certificate = Certificate::new("one-sided");
    let learner = encrypted(&certificate);
    let plain = TcpClientSpec {
        token: token("open sesame"),
        connect_timeout: Duration::from_millis(100),
        ..learner.spec()
    };
    assert!(connect(plain.clone()).is_err());
    let open = Learner::new(2, 3);
    let tls = TcpClientSpec { tls: certificate.client("learner.test"), port: open.server.port(), ..plain };
    assert!(connect(tls).is_err());
}

#[test]
fn missing_pem_files_are_named() {
    let tls = Some(ServerTls { certificate: "/nowhere/cert.pem".into(), key: "/nowhere/key.pem".into() });
    let consumer = shared(private(1, 2));
    let error =
        TcpServer::start(intake(&consumer), TcpServerSpec { tls, ..TcpServerSpec::default() }).unwrap_err();
    assert!(error.to_string().contains("/nowhere/key.pem"), "{error}");
}
