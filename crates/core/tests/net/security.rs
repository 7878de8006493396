//! Who is let in, what strangers learn, and what hostile bytes can do: nothing.

use crate::fixture::*;
use crate::harness::*;
use rollway_core::Error;
use rollway_core::net::wire::frame::{
    Content, GoodbyeReason, Header, Hello, Kind, LearnerStatus, PREAMBLE_BYTES, PROTOCOL, Preamble, Refusal,
    SHARE_BYTES, Welcome,
};
use rollway_core::net::wire::token::{Side, Token};
use rollway_core::net::wire::token_file::{self, TokenFile};
use rollway_core::net::{ServerTls, TcpClient, TcpClientSpec, TcpServer, TcpServerSpec};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{PermissionsExt, symlink};
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
    let error = TcpServer::start(ingress(&consumer), everywhere.clone()).unwrap_err();
    assert!(matches!(&error, Error::TokenRequired { address } if address == "0.0.0.0:0"), "{error}");
    let spec = TcpServerSpec { token: token("open sesame"), ..everywhere.clone() };
    let error = TcpServer::start(ingress(&consumer), spec).unwrap_err();
    assert!(error.to_string().contains("at least 16 bytes"), "{error}");
    let spec = TcpServerSpec { token: token("open sesame, and close it again"), ..everywhere };
    TcpServer::start(ingress(&consumer), spec).unwrap();
}

#[test]
fn a_port_that_is_taken_is_an_error_at_the_start() {
    let learner = Learner::new(1, 2);
    let spec = TcpServerSpec { port: learner.server.port(), ..TcpServerSpec::default() };
    let error = TcpServer::start(ingress(&learner.consumer), spec).unwrap_err();
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
fn a_token_that_was_given_goes_before_one_that_could_be_found() {
    let learner = Learner::new(2, 3);
    let error = connect(TcpClientSpec { token: token("open sesame"), ..learner.spec() }).unwrap_err();
    assert!(matches!(&error, Error::Token { why, .. } if why.contains("not the learner's")), "{error}");
    assert_eq!(refusal(&learner), Refusal::TokenWrong);
    let made = Some(learner.server.token().to_vec());
    connect(TcpClientSpec { token: made, ..learner.spec() }).unwrap();
}

/// A learner by hand: what it heard from one client to which it was this, beginning with the preamble.
fn impostor(part: impl FnOnce(&mut Raw, &[u8; PREAMBLE_BYTES]) + Send + 'static) -> (TcpClientSpec, Heard) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let spec = TcpClientSpec {
        port: listener.local_addr().unwrap().port(),
        token: token("open sesame"),
        ..TcpClientSpec::default()
    };
    let heard = std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        let mut raw = Raw(stream);
        let preamble: [u8; PREAMBLE_BYTES] = raw.read(PREAMBLE_BYTES).try_into().unwrap();
        part(&mut raw, &preamble);
        raw.rest()
    });
    (spec, heard)
}

type Heard = std::thread::JoinHandle<Vec<u8>>;

const ASKS: Preamble = Preamble { protocol: PROTOCOL, token: true, nonce: [1; 32] };

#[test]
fn a_client_does_not_trust_a_server_that_asks_for_no_token() {
    for given in [token("open sesame"), None] {
        let (spec, heard) = impostor(|raw, _| raw.write(&Preamble { token: false, ..ASKS }.bytes()));
        let error = connect(TcpClientSpec { token: given, ..spec }).unwrap_err();
        assert!(matches!(&error, Error::Token { why, .. } if why.contains("this one does not")), "{error}");
        assert_eq!(heard.join().unwrap(), b"");
    }
}

#[test]
fn a_server_that_guesses_the_token_gets_one_proof_that_is_wrong_and_no_hello() {
    let (send, guess) = std::sync::mpsc::channel();
    let (spec, heard) = impostor(move |raw, client| {
        let server = ASKS.bytes();
        let (exchange, share) = Token::new(b"open wheat").unwrap().exchange(Side::Server, client, &server);
        raw.write(&[&server[..], &Header::new(Kind::Share).with(&share)].concat());
        let key = exchange.finish(&raw.expect(Kind::Share).1).unwrap();
        let proof = raw.expect(Kind::Proof).1;
        send.send(key.verify(Side::Client, &proof)).unwrap();
        raw.write(&Header::new(Kind::Proof).with(&key.prove(Side::Server)));
    });
    let error = connect(spec).unwrap_err();
    assert!(matches!(&error, Error::Token { why, .. } if why.contains("does not know")), "{error}");
    assert_eq!((guess.recv().unwrap(), heard.join().unwrap()), (false, vec![]));
}

#[test]
fn a_server_that_sends_a_clients_own_share_and_proof_back_gets_no_hello() {
    // The share cannot come first from a server that waits for the client's, so it is that of another connection.
    let share = |side| Token::new(b"open sesame").unwrap().exchange(side, &[0; 40], &[0; 40]).1;
    let (spec, heard) = impostor(move |raw, _| {
        raw.write(&[&ASKS.bytes()[..], &Header::new(Kind::Share).with(&share(Side::Client))].concat());
    });
    assert!(matches!(connect(spec), Err(Error::Protocol { .. })));
    assert_eq!(heard.join().unwrap(), b"");
    let (spec, heard) = impostor(move |raw, _| {
        raw.write(&[&ASKS.bytes()[..], &Header::new(Kind::Share).with(&share(Side::Server))].concat());
        raw.expect(Kind::Share);
        let proof = raw.expect(Kind::Proof).1;
        raw.write(&Header::new(Kind::Proof).with(&proof));
    });
    let error = connect(spec).unwrap_err();
    assert!(matches!(&error, Error::Token { why, .. } if why.contains("does not know")), "{error}");
    assert_eq!(heard.join().unwrap(), b"");
}

#[test]
fn what_a_client_says_to_an_impostor_tests_no_guess() {
    let said = [(); 2].map(|()| {
        let (send, client) = std::sync::mpsc::channel();
        let (spec, heard) = impostor(move |raw, client| {
            send.send(*client).unwrap();
            let share = Token::new(b"open wheat").unwrap().exchange(Side::Server, &[0; 40], &[0; 40]).1;
            raw.write(&[&ASKS.bytes()[..], &Header::new(Kind::Share).with(&share)].concat());
        });
        let timeout = Duration::from_millis(100);
        assert!(connect(TcpClientSpec { connect_timeout: timeout, ..spec }).is_err());
        (client.recv().unwrap(), heard.join().unwrap())
    });
    let whole = 32 + SHARE_BYTES + 32 + 32;
    assert!(said.iter().all(|(_, frames)| frames.len() == whole), "a share and a proof, and nothing else");
    assert_ne!(said[0].1[32..32 + SHARE_BYTES], said[1].1[32..32 + SHARE_BYTES]);
    for (client, frames) in said {
        // As protocol 2 proved it: a function of the token and of what went over the wire.
        for key in [&b"open sesame"[..], b"open wheat"] {
            let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, key);
            let old = ring::hmac::sign(&key, &[b"rollway client", &client[..], &ASKS.bytes()].concat());
            assert!(!frames.windows(32).any(|part| part == old.as_ref()));
        }
        // Who knows the token, but not the random numbers of this connection, cannot make the proof either.
        let (exchange, _) =
            Token::new(b"open sesame").unwrap().exchange(Side::Server, &client, &ASKS.bytes());
        let key = exchange.finish(&frames[32..32 + SHARE_BYTES]).unwrap();
        assert!(!key.verify(Side::Client, &frames[whole - 32..]));
    }
}

#[test]
fn a_conversation_that_was_recorded_is_refused() {
    let learner = guarded();
    let mut raw = Raw::open(learner.server.port());
    let client = Preamble { protocol: PROTOCOL, token: true, nonce: [7; 32] }.bytes();
    raw.write(&client);
    let server: [u8; PREAMBLE_BYTES] = raw.read(PREAMBLE_BYTES).try_into().unwrap();
    let (exchange, share) = Token::new(b"open sesame").unwrap().exchange(Side::Client, &client, &server);
    let proof = exchange.finish(&raw.frame().1).unwrap().prove(Side::Client);
    let said = [Header::new(Kind::Share).with(&share), Header::new(Kind::Proof).with(&proof)].concat();
    raw.write(&said);
    assert_eq!(raw.frame().0.kind, Kind::Proof);
    let mut again = Raw::open(learner.server.port());
    again.write(&[&client[..], &said].concat());
    again.read(PREAMBLE_BYTES);
    assert_eq!(again.expect(Kind::Refuse).0.code, Refusal::TokenWrong as u16);
}

#[test]
fn what_the_server_said_is_refused_when_it_comes_back() {
    let learner = guarded();
    let mut raw = Raw::open(learner.server.port());
    raw.write(&ASKS.bytes());
    raw.read(PREAMBLE_BYTES);
    let (header, share) = raw.expect(Kind::Share);
    raw.write(&header.with(&share));
    raw.write(&Header::new(Kind::Proof).with(&[0; 32]));
    assert_eq!(raw.frame().0.kind, Kind::Goodbye);
    let mut raw = Raw::open(learner.server.port());
    raw.write(&ASKS.bytes());
    raw.read(PREAMBLE_BYTES);
    let mut share = raw.expect(Kind::Share).1;
    share[0] = b'A'; // The same point, as if it were a client's.
    raw.write(&header.with(&share));
    raw.write(&Header::new(Kind::Proof).with(&[0; 32]));
    assert_eq!(raw.frame().0.code, Refusal::TokenWrong as u16);
}

#[test]
fn points_that_are_not_in_the_group_are_refused_on_both_sides() {
    let learner = guarded();
    let identity = [&[b'A', 1][..], &[0; 31]].concat();
    let of_order_two = [&[b'A', 0xec][..], &[0xff; 30], &[0x7f]].concat();
    let off_the_curve = [&[b'A', 2][..], &[0; 31]].concat();
    for share in [identity, of_order_two, off_the_curve] {
        let mut raw = Raw::open(learner.server.port());
        raw.write(&ASKS.bytes());
        raw.read(PREAMBLE_BYTES);
        raw.expect(Kind::Share);
        raw.write(&Header::new(Kind::Share).with(&share));
        assert_eq!(raw.frame().0.kind, Kind::Goodbye);
        let of_server = [&b"B"[..], &share[1..]].concat();
        let (spec, heard) = impostor(move |raw, _| {
            raw.write(&[&ASKS.bytes()[..], &Header::new(Kind::Share).with(&of_server)].concat());
        });
        assert!(matches!(connect(spec), Err(Error::Protocol { .. })));
        assert_eq!(heard.join().unwrap(), b"", "nothing that depends on the token");
    }
    assert_eq!(learner.server.stats().cut_damaged, 3);
}

#[test]
fn a_stranger_on_the_port_cannot_show_a_client_a_schema() {
    let refuse = rollway_core::net::wire::frame::refuse(Refusal::Schema, "no", b"{");
    let (spec, heard) = impostor(move |raw, _| raw.write(&[&ASKS.bytes()[..], &refuse].concat()));
    assert!(matches!(connect(spec), Err(Error::Protocol { .. })));
    assert_eq!(heard.join().unwrap(), b"");
}

#[test]
fn an_address_that_guesses_is_answered_slowly_and_others_are_let_in() {
    let learner = guarded();
    let port = learner.server.port();
    let answers: Vec<Refusal> = std::thread::scope(|scope| {
        let guess = |_| {
            scope.spawn(move || {
                let mut raw = Raw::open(port);
                let answer = raw.prove(Some(b"guess"));
                Refusal::from_code(answer.code).unwrap()
            })
        };
        let guesses: Vec<_> = (0..80).map(guess).collect();
        guesses.into_iter().map(|guess| guess.join().unwrap()).collect()
    });
    let wrong = answers.iter().filter(|&&answer| answer == Refusal::TokenWrong).count();
    let busy = answers.iter().filter(|&&answer| answer == Refusal::Busy).count();
    assert!(wrong + busy == 80 && busy > 0, "{wrong} {busy}");
    let client = connect(TcpClientSpec { token: token("open sesame"), ..learner.spec() }).unwrap();
    put_many(&client, 0..2);
    assert_eq!(learner.receive(2), [0, 1]);
}

#[test]
fn nobody_is_slowed_down_by_others_who_guess_a_token_that_the_server_made() {
    let learner = Learner::new(2, 3);
    for _ in 0..40 {
        let answer = Raw::open(learner.server.port()).prove(Some(b"guess"));
        assert_eq!(answer.code, Refusal::TokenWrong as u16);
    }
    learner.client();
    assert_eq!((learner.server.stats().refused_token, learner.server.stats().refused_busy), (40, 0));
}

// ── the token of a server that was given none ──────────────────────────────────────────────────────────────────────

/// Where clients look for the token of a server on this address.
fn file_of(address: SocketAddr) -> std::path::PathBuf {
    token_file::path(address)
}

#[test]
fn a_server_without_a_token_makes_one_that_clients_of_its_user_find() {
    let learner = Learner::new(2, 3);
    let path = file_of(learner.server.address());
    let file = std::fs::symlink_metadata(&path).unwrap();
    assert!(file.is_file() && file.permissions().mode() & 0o7777 == 0o600);
    assert_eq!(std::fs::read(&path).unwrap(), [learner.server.token(), b"\n"].concat());
    let client = learner.client();
    put_many(&client, 0..2);
    assert_eq!(learner.receive(2), [0, 1]);
    let other = Learner::new(2, 3);
    assert_ne!(learner.server.token(), other.server.token());
    learner.server.stop();
    assert!(!path.exists() && file_of(other.server.address()).exists());
}

#[test]
fn a_client_that_finds_no_token_says_where_it_looked() {
    let learner = guarded();
    let error = connect(learner.spec()).unwrap_err();
    let path = file_of(learner.server.address());
    assert!(!path.exists(), "a server that was given a token writes none");
    let (text, path) = (error.to_string(), path.display().to_string());
    assert!(text.contains(&path) && text.contains("there is no such file"), "{text}");
}

#[test]
fn every_address_of_loopback_has_a_token_of_its_own() {
    for (host, there) in [("127.0.0.2", "127.0.0.2"), ("::1", "::1"), ("localhost", "localhost")] {
        let consumer = shared(open(&spec_of_ring()));
        let spec = TcpServerSpec { host: host.to_owned(), ..TcpServerSpec::default() };
        let server = match TcpServer::start(ingress(&consumer), spec) {
            Err(Error::Bind { .. }) => continue, // A machine without IPv6.
            server => server.unwrap(),
        };
        assert!(file_of(server.address()).exists());
        let spec = TcpClientSpec { host: there.to_owned(), port: server.port(), ..TcpClientSpec::default() };
        connect(spec).unwrap();
    }
}

#[test]
fn a_server_that_comes_back_has_another_token_and_clients_find_that() {
    let learner = Learner::new(2, 3);
    let (port, before) = (learner.server.port(), learner.server.token().to_vec());
    let proxy = Proxy::new(port, None, 64 * 1024);
    let client = connect(TcpClientSpec { port: proxy.port, ..learner.spec() }).unwrap();
    put_many(&client, 0..2);
    assert_eq!(learner.receive(2), [0, 1]);
    client.wait(soon()).unwrap();
    proxy.redirect(1); // Nobody is there.
    proxy.cut();
    drop(learner);
    let again = Learner::with(&spec_of_ring(), TcpServerSpec { port, ..TcpServerSpec::default() });
    assert_ne!(again.server.token(), before);
    again.client();
    proxy.redirect(port);
    put_many(&client, 2..4);
    client.close(soon()).unwrap();
    assert_eq!(again.receive(2), [2, 3]);
}

#[test]
fn the_token_file_of_a_killed_server_is_replaced_or_collected_but_not_a_live_ones() {
    let free: SocketAddr = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let path = file_of(free);
    let leave = || {
        std::fs::write(&path, [&[b'0'; 64][..], b"\n"].concat()).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    };
    leave();
    let learner =
        Learner::with(&spec_of_ring(), TcpServerSpec { port: free.port(), ..TcpServerSpec::default() });
    learner.client();
    token_file::collect().unwrap();
    assert!(path.exists());
    learner.client();
    drop(learner);
    leave();
    token_file::collect().unwrap(); // Here, or by a server of another test that starts now.
    assert!(!path.exists());
    leave();
    let spec = TcpServerSpec { port: free.port(), token: token("open sesame"), ..TcpServerSpec::default() };
    let _learner = Learner::with(&spec_of_ring(), spec);
    assert!(!path.exists(), "clients would take it for this server's");
}

#[test]
fn a_file_that_is_no_token_of_this_user_is_not_believed() {
    let learner = guarded();
    let path = file_of(learner.server.address());
    let elsewhere = path.with_file_name(format!("test-{}-link", std::process::id()));
    let token = [&[b'0'; 64][..], b"\n"].concat();
    let kept = std::cell::RefCell::default(); // Servers of other tests remove what nobody has locked.
    let write = |to: &std::path::Path, bytes: &[u8], mode| {
        let made = path.with_file_name(format!("test-{}-token", std::process::id()));
        std::fs::write(&made, bytes).unwrap();
        std::fs::set_permissions(&made, std::fs::Permissions::from_mode(mode)).unwrap();
        let file = std::fs::File::open(&made).unwrap();
        rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
        kept.replace(Some(file));
        std::fs::rename(made, to).unwrap();
    };
    let cases: [(&str, &dyn Fn()); 7] = [
        ("mode 0644", &|| write(&path, &token, 0o644)),
        ("does not hold a token", &|| write(&path, b"", 0o600)),
        ("does not hold a token", &|| write(&path, &[b'0'; 1 << 16], 0o600)),
        ("does not hold a token", &|| write(&path, &[b'x'; 65], 0o600)),
        ("links are not followed", &|| {
            write(&elsewhere, &token, 0o600);
            symlink(&elsewhere, &path).unwrap();
        }),
        ("not a regular file", &|| std::fs::create_dir(&path).unwrap()),
        ("does not hold a token", &|| {
            write(&path, &token, 0o600);
            std::fs::hard_link(&path, path.with_extension("link")).unwrap();
        }),
    ];
    for (what, put) in cases {
        put();
        let error = connect(learner.spec()).unwrap_err();
        assert!(matches!(&error, Error::Token { why, .. } if why.contains(what)), "{what}: {error}");
        let _ = std::fs::remove_file(&path).or_else(|_| std::fs::remove_dir(&path));
    }
    let _ = std::fs::remove_file(path.with_extension("link"));
    let _ = std::fs::remove_file(elsewhere);
}

#[test]
fn a_name_that_is_taken_by_something_else_is_an_error_at_the_start() {
    let free: SocketAddr = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let start = || {
        let consumer = shared(open(&spec_of_ring()));
        TcpServer::start(ingress(&consumer), TcpServerSpec { port: free.port(), ..TcpServerSpec::default() })
    };
    let path = file_of(free);
    symlink("/dev/null", &path).unwrap();
    let error = start().unwrap_err();
    assert!(
        matches!(&error, Error::TokenFile { what, .. } if what.contains("not a regular file")),
        "{error}"
    );
    std::fs::remove_file(&path).unwrap();
    let held = TokenFile::create(free, &Token::generate().unwrap()).unwrap();
    let error = start().unwrap_err();
    assert!(matches!(&error, Error::TokenFile { what, .. } if what.contains("running process")), "{error}");
    drop(held);
    start().unwrap();
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
        content: Content::Samples,
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
    let error = connect_as(learner.spec(), b"something else", LEAVES).unwrap_err();
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
    let welcome = Welcome {
        producer_id: 0,
        max_rows: 64,
        credit: 4,
        max_bytes: 0,
        next: 0,
        status: LearnerStatus::default(),
    };
    std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let mut raw = Raw(stream);
        raw.greet(b"open sesame");
        raw.write(&welcome.frame());
        let mut stream = raw.0;
        let acks = Header { credit: 4, ..Header::new(Kind::Ack) }.bytes().repeat(32 * 1024);
        while stream.write_all(&acks).is_ok() {}
    });
    let client =
        connect(TcpClientSpec { port, token: token("open sesame"), ..TcpClientSpec::default() }).unwrap();
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
        assert_eq!(goodbye.code, GoodbyeReason::Protocol as u16, "{number}");
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
    Learner::with(&crate::fixture::spec(None, 64, 4), spec)
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
        TcpServer::start(ingress(&consumer), TcpServerSpec { tls, ..TcpServerSpec::default() }).unwrap_err();
    assert!(error.to_string().contains("/nowhere/key.pem"), "{error}");
}
