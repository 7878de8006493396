//! What the network tests share: a learner with a server, clients whose samples can be checked, a proxy that cuts, and a
//! connection that speaks the protocol by hand.
#![allow(dead_code)] // No test uses all of it.

use crate::fixture::*;
use rollway_core::net::wire::frame::{
    Content, Header, Hello, Kind, PREAMBLE_BYTES, PROTOCOL, Preamble, SHARE_BYTES, Welcome,
};
use rollway_core::net::wire::token::{Side, Token};
use rollway_core::net::wire::token_file::{self, TokenFile};
use rollway_core::net::{
    ClientTls, SampleIngress, ServerTls, TcpClient, TcpClientSpec, TcpRecordClient, TcpServer, TcpServerSpec,
};
use rollway_core::ring::{Consumer, Deadline, OnFull, RingSpec};
use rollway_core::{Error, Result};
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// A ring with a server in front of it.
pub struct Learner {
    pub server: TcpServer,
    pub consumer: Arc<Consumer>,
}

impl Learner {
    pub fn new(batch_size: usize, num_buffers: usize) -> Learner {
        Learner::with(&spec(None, batch_size, num_buffers), TcpServerSpec::default())
    }

    pub fn with(ring: &RingSpec<'_>, spec: TcpServerSpec) -> Learner {
        let consumer = shared(open(ring));
        let server = TcpServer::start(ingress(&consumer), spec).unwrap();
        Learner { server, consumer }
    }

    pub fn policy(batch_size: usize, num_buffers: usize, on_full: OnFull) -> Learner {
        let ring = RingSpec { on_full, ..spec(None, batch_size, num_buffers) };
        Learner::with(&ring, TcpServerSpec::default())
    }

    pub fn spec(&self) -> TcpClientSpec {
        TcpClientSpec { port: self.server.port(), ..TcpClientSpec::default() }
    }

    pub fn client(&self) -> TcpClient {
        connect(self.spec()).unwrap()
    }

    /// Takes so many samples, in batches.
    pub fn receive(&self, count: usize) -> Vec<u64> {
        let mut all = Vec::new();
        while all.len() < count {
            all.extend(receive(&self.consumer));
        }
        all
    }

    /// As many, with the number of their producer.
    pub fn receive_stamped(&self, count: usize) -> Vec<(u32, u64)> {
        let mut all = Vec::new();
        while all.len() < count {
            let batch = Consumer::take(&*self.consumer, soon(), None).unwrap().unwrap();
            let rows = batch.runs().into_iter().flat_map(|(first, len)| first..first + len);
            all.extend(rows.map(|row| batch.stamp(row).producer_id).zip(values(&batch)));
        }
        all
    }

    pub fn claimed(&self) -> usize {
        self.consumer.ring().census().claimed_slots
    }
}

pub fn ingress(consumer: &Consumer) -> SampleIngress {
    SampleIngress::new(producer(consumer)).unwrap()
}

pub fn connect(spec: TcpClientSpec) -> Result<TcpClient> {
    connect_as(spec, SCHEMA, LEAVES)
}

pub fn connect_as(spec: TcpClientSpec, schema: &[u8], leaf_bytes: &[usize]) -> Result<TcpClient> {
    let client = TcpClient::start(spec, schema, leaf_bytes)?;
    client.ready(Deadline::Never)?;
    Ok(client)
}

pub fn connect_records(spec: TcpClientSpec, schema: &[u8]) -> Result<TcpRecordClient> {
    let client = TcpRecordClient::start(spec, schema)?;
    client.ready(Deadline::Never)?;
    Ok(client)
}

/// Sends one sample.
pub fn offer(client: &TcpClient, value: u64, deadline: Deadline) -> Result<usize> {
    let (counter, check) = (value.to_ne_bytes(), check_of(value));
    let leaves = [counter.as_ptr(), check.as_ptr()];
    // SAFETY: the leaves have the sizes of `LEAVES`.
    unsafe { client.send(&leaves, 1, value as u32, deadline) }
}

pub fn put(client: &TcpClient, value: u64) {
    assert_eq!(offer(client, value, soon()).unwrap(), 1);
}

/// Sends a stack of samples, all of it.
pub fn put_many(client: &TcpClient, values: std::ops::Range<u64>) {
    let counters: Vec<u64> = values.clone().collect();
    let checks: Vec<[u8; 40]> = values.map(check_of).collect();
    let mut sent = 0;
    while sent < counters.len() {
        let leaves = [counters[sent..].as_ptr().cast(), checks[sent..].as_ptr().cast()];
        // SAFETY: the leaves have as many rows of the sizes of `LEAVES`.
        sent += unsafe { client.send(&leaves, counters.len() - sent, 0, soon()) }.unwrap();
    }
}

/// Which of the two directions a proxy cuts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    ToServer,
    ToClient,
}

/// The token that a server on this port was not given, and made.
pub fn found(port: u16) -> Option<Token> {
    token_file::read(&token_file::path(([127, 0, 0, 1], port).into())).ok()
}

/// Clients look for the token of the port that they are connected to: that of a proxy is its target's.
fn pass_on(target: u16, port: u16, passed_on: &mut Option<(Token, TokenFile)>) {
    if let Some(token) = found(target)
        && passed_on.as_ref().is_none_or(|(old, _)| *old != token)
    {
        drop(passed_on.take()); // Its file goes first.
        let file = TokenFile::create(([127, 0, 0, 1], port).into(), &token).unwrap();
        *passed_on = Some((token, file));
    }
}

/// Forwards connections; the first one only so many bytes in one direction, then it closes both sides.
pub struct Proxy {
    pub port: u16,
    /// Bytes that the connections carried, each way.
    pub carried: Arc<[AtomicUsize; 2]>,
    stop: Arc<AtomicBool>,
    frozen: Arc<AtomicUsize>,
    freeze_after: Arc<AtomicUsize>,
    target: Arc<AtomicUsize>,
    open: Arc<Mutex<Vec<TcpStream>>>,
    /// The target's token, for clients that were given none.
    token: Arc<Mutex<Option<(Token, TokenFile)>>>,
}

impl Proxy {
    /// `chunk`: forward so many bytes at a time.
    pub fn new(target: u16, cut: Option<(Way, usize)>, chunk: usize) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (stop, open) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let carried = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
        let (frozen, target) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(target as usize)));
        let freeze_after = Arc::new(AtomicUsize::new(usize::MAX));
        let proxy = Proxy {
            port,
            carried: carried.clone(),
            stop: stop.clone(),
            frozen: frozen.clone(),
            freeze_after: freeze_after.clone(),
            target: target.clone(),
            open: open.clone(),
            token: Arc::default(),
        };
        let passed_on = proxy.token.clone();
        pass_on(proxy.target.load(Ordering::Relaxed) as u16, port, &mut passed_on.lock().unwrap());
        std::thread::spawn(move || {
            let mut cut = cut;
            for (number, client) in listener.incoming().enumerate() {
                let client = client.unwrap();
                let mut passed_on = passed_on.lock().unwrap();
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let target = target.load(Ordering::Relaxed) as u16;
                let Ok(server) = TcpStream::connect(("127.0.0.1", target)) else { continue };
                pass_on(target, port, &mut passed_on);
                drop(passed_on);
                client.set_nodelay(true).unwrap();
                server.set_nodelay(true).unwrap();
                open.lock().unwrap().extend([client.try_clone().unwrap(), server.try_clone().unwrap()]);
                let cut = cut.take();
                for (way, from, to) in [(Way::ToServer, &client, &server), (Way::ToClient, &server, &client)]
                {
                    let limit = cut.filter(|(cut, _)| *cut == way).map(|(_, bytes)| bytes);
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let (carried, frozen) = (carried.clone(), frozen.clone());
                    let (limits, to_server) = (freeze_after.clone(), carried.clone());
                    let is_frozen = move || {
                        let limit = limits.load(Ordering::Relaxed);
                        let is_over = to_server[Way::ToServer as usize].load(Ordering::Relaxed) > limit;
                        number < frozen.load(Ordering::Relaxed) || (number == 0 && is_over)
                    };
                    std::thread::spawn(move || {
                        forward(from, to, limit, chunk, &carried[way as usize], is_frozen)
                    });
                }
            }
        });
        proxy
    }

    /// Loses what the first connection carries from now on, without closing it: a host that lost its network.
    pub fn freeze(&self) {
        self.frozen.store(1, Ordering::Relaxed);
    }

    /// As [`freeze`](Self::freeze), once so many bytes were carried to the server.
    pub fn freeze_after(&self, bytes: usize) {
        self.freeze_after.store(bytes, Ordering::Relaxed);
    }

    /// Sends new connections elsewhere.
    pub fn redirect(&self, target: u16) {
        self.target.store(target as usize, Ordering::Relaxed);
        pass_on(target, self.port, &mut self.token.lock().unwrap());
    }

    /// Cuts all connections.
    pub fn cut(&self) {
        for stream in self.open.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        self.cut();
        drop(self.token.lock().unwrap().take());
    }
}

/// Has a conversation that says how many bytes it carried each way: once whole, then cut at every byte of it.
pub fn cut_everywhere(conversation: impl Fn(Option<(Way, usize)>) -> [usize; 2] + Sync) {
    let whole = conversation(None);
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                loop {
                    let cut = next.fetch_add(1, Ordering::Relaxed);
                    let (way, at) = match cut.checked_sub(whole[0]) {
                        None => (Way::ToServer, cut),
                        Some(at) if at < whole[1] => (Way::ToClient, at),
                        Some(_) => return,
                    };
                    conversation(Some((way, at)));
                }
            });
        }
    });
}

fn forward(
    mut from: TcpStream,
    mut to: TcpStream,
    limit: Option<usize>,
    chunk: usize,
    carried: &AtomicUsize,
    is_frozen: impl Fn() -> bool,
) {
    let mut left = limit.unwrap_or(usize::MAX);
    let mut buffer = vec![0; chunk];
    while left > 0 {
        let room = left.min(chunk);
        match from.read(&mut buffer[..room]) {
            Ok(read) if read > 0 && is_frozen() => {} // Lost on the way; nobody is told.
            Ok(read) if read > 0 && to.write_all(&buffer[..read]).is_ok() => {
                left -= read;
                carried.fetch_add(read, Ordering::Relaxed);
            }
            _ => break,
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

/// A connection that speaks the protocol by hand.
pub struct Raw(pub TcpStream);

impl Raw {
    pub fn open(port: u16) -> Raw {
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        Raw(stream)
    }

    pub fn write(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).unwrap();
    }

    pub fn read(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.0.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// Says the client's preamble, and proves that it knows the token: this one, or that which the server made. What the server
    /// says to that.
    pub fn prove(&mut self, token: Option<&[u8]>) -> Header {
        let client = Preamble { protocol: PROTOCOL, token: true, nonce: [7; 32] }.bytes();
        self.write(&client);
        let server: [u8; PREAMBLE_BYTES] = self.read(PREAMBLE_BYTES).try_into().unwrap();
        let theirs = self.frame();
        assert_eq!(theirs.0.kind, Kind::Share);
        let token = match token {
            Some(token) => Token::new(token).unwrap(),
            None => found(self.0.peer_addr().unwrap().port()).unwrap(),
        };
        let (exchange, share) = token.exchange(Side::Client, &client, &server);
        let proof = exchange.finish(&theirs.1).unwrap().prove(Side::Client);
        self.write(&Header::new(Kind::Share).with(&share));
        self.write(&Header::new(Kind::Proof).with(&proof));
        self.frame().0
    }

    /// The learner's half of the same, with a client.
    pub fn greet(&mut self, token: &[u8]) {
        let client: [u8; PREAMBLE_BYTES] = self.read(PREAMBLE_BYTES).try_into().unwrap();
        let server = Preamble { protocol: PROTOCOL, token: true, nonce: [8; 32] }.bytes();
        let (exchange, share) = Token::new(token).unwrap().exchange(Side::Server, &client, &server);
        self.write(&[&server[..], &Header::new(Kind::Share).with(&share)].concat());
        let theirs: [u8; SHARE_BYTES] = self.expect(Kind::Share).1.try_into().unwrap();
        let key = exchange.finish(&theirs).unwrap();
        assert!(key.verify(Side::Client, &self.expect(Kind::Proof).1));
        self.write(&Header::new(Kind::Proof).with(&key.prove(Side::Server)));
    }

    /// Comes in as a client whose samples up to `next` may have been sent, and up to `oldest` are settled.
    pub fn enter(port: u16, session: u8, oldest: u64, next: u64) -> (Raw, Welcome) {
        Raw::enter_with(port, Content::Samples, session, oldest, next)
    }

    /// As [`enter`](Self::enter), with samples or records.
    pub fn enter_with(port: u16, content: Content, session: u8, oldest: u64, next: u64) -> (Raw, Welcome) {
        let mut raw = Raw::open(port);
        assert_eq!(raw.prove(None).kind, Kind::Proof);
        static ATTEMPT: AtomicU32 = AtomicU32::new(1);
        let attempt = ATTEMPT.fetch_add(1, Ordering::Relaxed);
        let hello = Hello {
            content,
            session: [session; 16],
            producer_id: None,
            attempt,
            next,
            oldest,
            schema: SCHEMA.to_vec(),
        };
        raw.write(&hello.frame());
        let (header, payload) = raw.frame();
        assert_eq!(header.kind, Kind::Welcome);
        (raw, Welcome::parse(&header, &payload).unwrap())
    }

    /// The next frame of that kind.
    pub fn expect(&mut self, kind: Kind) -> (Header, Vec<u8>) {
        loop {
            let frame = self.frame();
            if frame.0.kind == kind {
                return frame;
            }
        }
    }

    /// The next frame.
    pub fn frame(&mut self) -> (Header, Vec<u8>) {
        let header = Header::parse(&self.read(32)).unwrap().unwrap();
        (header, self.read(header.length as usize))
    }

    /// What comes until the other side closes.
    pub fn rest(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let _ = self.0.read_to_end(&mut bytes);
        bytes
    }
}

/// Asserts that each client's values came once, in order, from 0 to `count`.
pub fn assert_each_once(stamped: &[(u32, u64)], clients: usize, count: u64) {
    let mut by_client: HashMap<u32, Vec<u64>> = HashMap::new();
    for (producer, value) in stamped {
        by_client.entry(*producer).or_default().push(*value);
    }
    assert_eq!(by_client.len(), clients);
    for values in by_client.into_values() {
        assert_eq!(sorted(values), (0..count).collect::<Vec<_>>());
    }
}

pub fn unacknowledged<T: std::fmt::Debug>(result: Result<T>) -> u64 {
    match result {
        Err(Error::ConnectionClosed { unacknowledged, .. }) => unacknowledged,
        other => panic!("{other:?}"),
    }
}

/// The bytes of a data frame.
pub fn data(values: std::ops::Range<u64>) -> Vec<u8> {
    let header = Header {
        rows: (values.end - values.start) as u32,
        sequence: values.start,
        ..Header::new(Kind::Data)
    };
    let counters = values.clone().flat_map(u64::to_ne_bytes);
    let payload: Vec<u8> = counters.chain(values.flat_map(check_of)).collect();
    header.with(&payload)
}

/// Bytes of this process that are in memory.
pub fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// A self-signed certificate and its key in a directory of their own, which goes with it.
pub struct Certificate(PathBuf);

impl Certificate {
    pub fn new(name: &str) -> Certificate {
        let dir = std::env::temp_dir().join(format!("rollway-test-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let made = rcgen::generate_simple_self_signed(vec!["learner.test".to_owned()]).unwrap();
        std::fs::write(dir.join("cert.pem"), made.cert.pem()).unwrap();
        std::fs::write(dir.join("key.pem"), made.signing_key.serialize_pem()).unwrap();
        Certificate(dir)
    }

    pub fn server(&self) -> Option<ServerTls> {
        Some(ServerTls { certificate: self.0.join("cert.pem"), key: self.0.join("key.pem") })
    }

    pub fn client(&self, name: &str) -> Option<ClientTls> {
        Some(ClientTls { authority: self.0.join("cert.pem"), server_name: Some(name.to_owned()) })
    }
}

impl Drop for Certificate {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
