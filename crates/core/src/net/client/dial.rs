//! The client's half of the handshake: from an address to a connection on which it was welcomed.
//!
//! Runs on the client's own thread, with a deadline, and gives up when it is told to. Clients that send and clients of weights
//! call the same way; a [`Connector`] is what they have in common.
//!
//! A client that was given no token looks for the one of its own user's learner, at the address that it is connected to, anew with
//! each connection: a learner that came back has another one.

use super::failure::Failure;
use super::link::{Link, wait_ready};
use super::lookup::Resolver;
use crate::error::Error;
use crate::net::wire::frame::{
    HEADER_BYTES, Header, Hello, Kind, MAX_TEXT_BYTES, PREAMBLE_BYTES, PROTOCOL, Preamble, Refusal,
    parse_refuse,
};
use crate::net::wire::limits::{SILENCES, give_up_after};
use crate::net::wire::tls::{self, ClientTls};
use crate::net::wire::token::{Side, Token, nonce, random};
use crate::net::wire::token_file::{self, Missing};
use crate::sys::sync::{AtomicBool, Ordering};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with, sockopt};
use rustls::pki_types::ServerName;
use std::io::{self, ErrorKind, IoSlice};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Pauses between attempts: the first, the longest after somebody was there, the longest.
pub const FIRST_PAUSE: Duration = Duration::from_millis(10);
pub const SHORT_PAUSE: Duration = Duration::from_millis(100);
pub const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// One attempt to connect and shake hands.
pub const ATTEMPT: Duration = Duration::from_secs(10);
/// How long a client tries to say goodbye.
pub const GOODBYE_TIMEOUT: Duration = Duration::from_millis(200);

/// The reason when there is no other.
pub const TIME_IS_UP: &str = "it did not answer in time";

/// Where to call, as whom, and how its thread is woken and told to end.
#[derive(Debug)]
pub struct Connector {
    resolver: Resolver,
    keepalive: Duration,
    /// As it was given.
    token: Option<Token>,
    tls: Option<(Arc<rustls::ClientConfig>, ServerName<'static>)>,
    /// Rung by others, to wake the thread.
    pub wakeup: Arc<OwnedFd>,
    closing: AtomicBool,
}

impl Connector {
    pub fn new(
        (host, port): (&str, u16),
        token: Option<&[u8]>,
        tls: Option<&ClientTls>,
        keepalive: Duration,
    ) -> crate::error::Result<Connector> {
        let wakeup = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        Ok(Connector {
            resolver: Resolver::new(host, port),
            keepalive,
            token: token.map(Token::new).transpose()?,
            tls: match tls {
                Some(tls) => Some((tls.config()?, tls.server_name(host)?)),
                None => None,
            },
            wakeup: Arc::new(wakeup.map_err(|errno| Error::io("cannot make an eventfd", errno))?),
            closing: AtomicBool::new(false),
        })
    }

    pub fn address(&self) -> String {
        self.resolver.address()
    }

    /// Wakes the thread.
    pub fn wake(&self) {
        // Fails only when the counter is about to overflow, and then the thread has been woken.
        let _ = rustix::io::write(&*self.wakeup, &1u64.to_ne_bytes());
    }

    /// Tells the thread to end.
    pub fn request_stop(&self) {
        self.closing.store(true, Ordering::Relaxed);
        self.wake();
    }

    pub fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }

    /// Sleeps for a part of `pause`, or of what is left until `deadline`, a different one each time, unless it is to end.
    pub fn pause(&self, pause: Duration, deadline: Instant) {
        let [dice] = random::<1>().unwrap_or([128]);
        let now = Instant::now();
        let pause = pause.min(deadline.saturating_duration_since(now));
        let until = now + pause.mul_f64(0.5 + dice as f64 / 512.0);
        while Instant::now() < until && !self.is_closing() {
            let _ = wait_ready(None, &self.wakeup, false, Some(until));
        }
    }
}

/// Connects, shakes hands, says hello; gives back the frame with which it was welcomed, which is of that kind.
pub fn dial(
    client: &Connector,
    hello: &Hello,
    welcome: Kind,
    deadline: Instant,
) -> Result<(Link, Header, Vec<u8>), Failure> {
    let dialler = DialAttempt { client, deadline };
    let mut link = dialler.connect()?;
    while !dialler.retry(&mut link, |link| link.tls_handshake())? {}
    let (preambles, token) = dialler.exchange_preambles(&mut link)?;
    dialler.prove(&mut link, &preambles, &token).map_err(|failure| match failure {
        Failure::Token(why) if client.token.is_none() => Failure::Token(format!(
            "{why}. This client was given no token and found one in the file of this address"
        )),
        failure => failure,
    })?;
    dialler.write(&mut link, &hello.frame())?;
    let (header, payload) = dialler.frame(&mut link, welcome, Peer::Learner)?;
    Ok((link, header, payload))
}

/// Why a client that was given no token has none.
#[derive(Debug)]
enum MissingToken {
    /// The learner is not on this machine's loopback address: there is no file to look for.
    Elsewhere,
    /// There is no file.
    Missing,
    /// There is one, and this is wrong with it.
    Unfit(String),
}

impl MissingToken {
    fn explain(&self, address: SocketAddr) -> String {
        let give = "the learner asks for a token, and this client has none. Give it the learner's token";
        let what = match self {
            MissingToken::Elsewhere => return give.to_owned(),
            MissingToken::Missing => "there is no such file",
            MissingToken::Unfit(what) => what,
        };
        let path = token_file::path(address);
        format!(
            "{give}. A client of the learner's own user on the same machine finds a token that the learner made itself in {}, \
             but {what}",
            path.display()
        )
    }
}

struct Preambles {
    client: [u8; PREAMBLE_BYTES],
    server: [u8; PREAMBLE_BYTES],
}

/// Who is on the other side, as far as we know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Peer {
    /// It has not proved that it knows the token.
    Stranger,
    Learner,
}

struct DialAttempt<'a> {
    client: &'a Connector,
    deadline: Instant,
}

impl DialAttempt<'_> {
    fn connect(&self) -> Result<Link, Failure> {
        let client = self.client;
        let addresses = client.resolver.resolve(&client.wakeup, self.deadline, || client.is_closing())?;
        let mut failure = Failure::Late(TIME_IS_UP.to_owned());
        for (tried, &address) in addresses.iter().enumerate() {
            // An address from which nothing comes leaves time for those behind it.
            let left = self.deadline.saturating_duration_since(Instant::now());
            let until = self.deadline - left.mul_f64(1.0 - 1.0 / (addresses.len() - tried) as f64);
            match self.connect_to(address, until) {
                Ok(socket) => {
                    let tls = match &self.client.tls {
                        None => None,
                        Some((config, name)) => {
                            let tls = rustls::ClientConnection::new(config.clone(), name.clone());
                            Some(tls.map_err(|error| Failure::Tls(error.to_string()))?)
                        }
                    };
                    return Ok(Link::new(socket, tls));
                }
                Err(Failure::Cancelled) => return Err(Failure::Cancelled),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    fn connect_to(&self, address: SocketAddr, until: Instant) -> Result<TcpStream, Failure> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(family, SocketType::STREAM, flags, None).map_err(io::Error::from)?;
        sockopt::set_tcp_nodelay(&socket, true).map_err(io::Error::from)?;
        give_up_after(&socket, self.client.keepalive * SILENCES)?;
        match connect(&socket, &address) {
            Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => {}
            Err(errno) => return Err(io::Error::from(errno).into()),
        }
        let socket = TcpStream::from(socket);
        loop {
            let seen = self.wait_ready_until(&socket, true, until)?;
            if let Some(error) = socket.take_error()? {
                return Err(error.into());
            }
            if seen && socket.peer_addr().is_ok() {
                return Ok(socket);
            }
        }
    }

    /// Sleeps until the socket is ready; false when there is another reason to look again.
    fn wait_ready(&self, socket: &TcpStream, writing: bool) -> Result<bool, Failure> {
        self.wait_ready_until(socket, writing, self.deadline)
    }

    /// A peer that says nothing for as long as the kernel waits for an acknowledgement may have given up this connection
    /// already, and its word about that may be lost: the next attempt has better prospects.
    fn wait_ready_until(&self, socket: &TcpStream, writing: bool, until: Instant) -> Result<bool, Failure> {
        let until = until.min(Instant::now() + self.client.keepalive * SILENCES);
        let seen = wait_ready(Some(socket), &self.client.wakeup, writing, Some(until))?;
        if self.client.is_closing() {
            return Err(Failure::Cancelled);
        }
        if Instant::now() >= until {
            return Err(Failure::Late(TIME_IS_UP.to_owned()));
        }
        Ok(seen.readable || seen.writable)
    }

    /// Does something on the link as often as it takes.
    fn retry<T>(
        &self,
        link: &mut Link,
        mut step: impl FnMut(&mut Link) -> io::Result<T>,
    ) -> Result<T, Failure> {
        let mut writing = false;
        loop {
            match step(link) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    writing = match link.flush() {
                        Err(error) if error.kind() == ErrorKind::WouldBlock => true,
                        _ => writing,
                    };
                    self.wait_ready(&link.socket(), writing)?;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::InvalidData => {
                    return Err(Failure::Tls(tls::explain(&error)));
                }
                done => return Ok(done?),
            }
        }
    }

    fn write(&self, link: &mut Link, bytes: &[u8]) -> Result<(), Failure> {
        let mut sent = 0;
        while sent < bytes.len() {
            let wrote = loop {
                match link.write(&[IoSlice::new(&bytes[sent..])]) {
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {
                        self.wait_ready(&link.socket(), true)?;
                    }
                    wrote => break wrote?,
                }
            };
            sent += wrote;
        }
        loop {
            match link.flush() {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.wait_ready(&link.socket(), true)?
                }
                done => return Ok(done?),
            };
        }
    }

    fn read_exact(&self, link: &mut Link, room: &mut [u8]) -> Result<(), Failure> {
        let mut have = 0;
        while have < room.len() {
            have += self.retry(link, |link| link.read(&mut room[have..]))?;
        }
        Ok(())
    }

    fn exchange_preambles(&self, link: &mut Link) -> Result<(Preambles, Token), Failure> {
        let address = link.socket().peer_addr()?;
        let token = self.token(address).is_ok();
        let nonce = nonce().map_err(|error| Failure::Passing(error.to_string()))?;
        let client = Preamble { protocol: PROTOCOL, token, nonce }.bytes();
        self.write(link, &client)?;
        let mut server = [0; PREAMBLE_BYTES];
        let heard = self.read_exact(link, &mut server);
        if self.client.tls.is_none() && tls::is_record(&server) {
            return Err(Failure::Tls(tls::LEARNER_HAS_TLS.to_owned())); // An alert, which is shorter than a preamble.
        }
        heard?;
        let theirs = Preamble::parse(&server).map_err(|damage| Failure::Protocol(damage.to_string()))?;
        if theirs.protocol != PROTOCOL {
            let what = format!("it speaks protocol {}, this client {PROTOCOL}", theirs.protocol);
            return Err(Failure::Protocol(what));
        }
        if !theirs.token {
            let why = "every learner asks for a token, but this learner asks for none: it may not be the one you mean";
            return Err(Failure::Token(why.to_owned()));
        }
        // Again: what was there before this learner spoke may be the token of one that is dead.
        match (token, self.token(address)) {
            (true, Ok(token)) => Ok((Preambles { client, server }, token)),
            (false, Ok(_)) => Err(Failure::Passing("it has only just started".to_owned())),
            (true, Err(MissingToken::Missing)) => Err(Failure::Passing("it is about to stop".to_owned())),
            (_, Err(none)) => Err(Failure::Token(none.explain(address))),
        }
    }

    /// What proves that we belong to the learner on this address.
    fn token(&self, address: SocketAddr) -> Result<Token, MissingToken> {
        match &self.client.token {
            Some(token) => Ok(token.clone()),
            None if !address.ip().to_canonical().is_loopback() => Err(MissingToken::Elsewhere),
            None => token_file::read(&token_file::path(address)).map_err(|missing| match missing {
                Missing::NoFile => MissingToken::Missing,
                Missing::Unfit(what) => MissingToken::Unfit(what),
            }),
        }
    }

    fn prove(&self, link: &mut Link, preambles: &Preambles, token: &Token) -> Result<(), Failure> {
        let Preambles { client, server } = preambles;
        let (exchange, share) = token.exchange(Side::Client, client, server);
        let (_, theirs) = self.frame(link, Kind::Share, Peer::Stranger)?;
        let key = exchange.finish(&theirs).map_err(|damage| Failure::Protocol(damage.to_string()))?;
        let proof = Header::new(Kind::Proof).with(&key.prove(Side::Client));
        self.write(link, &[Header::new(Kind::Share).with(&share), proof].concat())?;
        let (_, proof) = self.frame(link, Kind::Proof, Peer::Stranger)?;
        if !key.verify(Side::Server, &proof) {
            let why = "the learner does not know this client's token: it is not the one you mean";
            return Err(Failure::Token(why.to_owned()));
        }
        Ok(())
    }

    /// The next frame, which should be of that kind, and may be a refusal.
    fn frame(&self, link: &mut Link, kind: Kind, peer: Peer) -> Result<(Header, Vec<u8>), Failure> {
        let damaged = |what: &str| Failure::Protocol(what.to_owned());
        let mut header = [0; HEADER_BYTES];
        self.read_exact(link, &mut header)?;
        let header = Header::parse(&header)
            .map_err(|damage| damaged(damage.0))?
            .ok_or_else(|| damaged("a header is not whole"))?;
        if header.kind != kind && header.kind != Kind::Refuse && header.kind != Kind::Goodbye {
            return Err(damaged("a frame of the handshake is out of turn"));
        }
        if peer == Peer::Stranger && header.length > (4 + MAX_TEXT_BYTES) as u64 {
            return Err(damaged("a frame of the handshake is too long")); // Nobody gets a schema before the proof.
        }
        let mut payload = vec![0; header.length as usize]; // Bounded by the kind.
        self.read_exact(link, &mut payload)?;
        match header.kind {
            Kind::Refuse => {
                let (text, schema) = parse_refuse(&payload).map_err(|damage| damaged(damage.0))?;
                match refused(header.code, text, schema) {
                    Failure::Schema(_) | Failure::Content(_) if peer == Peer::Stranger => {
                        Err(damaged("a refusal is out of turn"))
                    }
                    failure => Err(failure),
                }
            }
            Kind::Goodbye => Err(Failure::Final(String::from_utf8_lossy(&payload).into_owned())),
            _ => Ok((header, payload)),
        }
    }
}

fn refused(code: u16, text: String, schema: Vec<u8>) -> Failure {
    match Refusal::from_code(code) {
        Some(Refusal::TokenNeeded | Refusal::TokenWrong | Refusal::TokenUnexpected) => Failure::Token(text),
        Some(Refusal::Content) => Failure::Content(text),
        Some(Refusal::Schema) => Failure::Schema(schema),
        Some(Refusal::Busy) => Failure::Passing(text),
        Some(Refusal::Protocol) => Failure::Protocol(text),
        Some(Refusal::SessionUnknown | Refusal::Closed) | None => Failure::Final(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::wire::frame::refuse;
    use crate::net::{TcpClient, TcpClientSpec};
    use crate::ring::Deadline;
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::sync::mpsc;

    #[test]
    fn what_a_learner_says_is_a_reason_also_where_it_speaks_of_time() {
        let learner = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = learner.local_addr().unwrap().port();
        std::thread::spawn(move || {
            let mut sockets = Vec::new();
            for text in ["every seat is taken", "nobody left in time"] {
                let (mut socket, _) = learner.accept().unwrap();
                socket.read_exact(&mut [0; PREAMBLE_BYTES]).unwrap();
                let preamble = Preamble { protocol: PROTOCOL, token: true, nonce: nonce().unwrap() };
                socket.write_all(&preamble.bytes()).unwrap();
                socket.write_all(&refuse(Refusal::Busy, text, b"")).unwrap();
                sockets.push(socket); // An answer that was read as a whole, whatever the client still says.
            }
            sockets.extend(learner.incoming().flatten()); // From now on it is mute.
        });
        let (connect_timeout, token) = (Duration::from_secs(2), Some(b"secret".to_vec()));
        let spec = TcpClientSpec {
            host: "127.0.0.1".to_owned(),
            port,
            connect_timeout,
            token,
            ..Default::default()
        };
        let client = TcpClient::start(spec, b"{}", &[4]).unwrap();
        match client.ready(Deadline::Never) {
            Err(Error::Unreachable { why, .. }) => assert_eq!(why, "nobody left in time"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_learner_that_falls_silent_in_the_handshake_is_called_again() {
        let learner = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = learner.local_addr().unwrap().port();
        let spec = TcpClientSpec {
            port,
            keepalive: Duration::from_millis(50),
            connect_timeout: Duration::from_secs(60),
            token: Some(b"secret".to_vec()),
            ..Default::default()
        };
        let _client = TcpClient::start(spec, b"{}", &[4]).unwrap();
        let (called, calls) = mpsc::channel();
        std::thread::spawn(move || {
            for caller in learner.incoming() {
                let _ = called.send(caller); // Kept open, and not answered.
            }
        });
        let soon = Duration::from_secs(5); // Less than one attempt may take.
        let _mute: Vec<_> = (0..2).map(|_| calls.recv_timeout(soon).unwrap()).collect();
    }

    #[test]
    fn a_pause_ends_with_the_time_that_is_left() {
        let (over, waits) = mpsc::channel();
        std::thread::spawn(move || {
            let connector = Connector::new(("127.0.0.1", 1), None, None, Duration::from_secs(1)).unwrap();
            connector.pause(Duration::from_secs(3600), Instant::now() + Duration::from_millis(20));
            let _ = over.send(());
        });
        waits.recv_timeout(Duration::from_secs(60)).unwrap();
    }
}
