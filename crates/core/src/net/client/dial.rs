//! The client's half of the handshake: from an address to a connection on which it was welcomed.
//!
//! Runs on the client's own thread, with a deadline, and ends early when the client is closed. Clients that send and mirrors of
//! weights use the same [`Connector`].
//!
//! A client that was given no token reads the token file of the address that it is connected to. It does so for each
//! connection, because a learner that was restarted has another token.

use super::disconnect::{Disconnect, Ended};
use super::link::{Link, unless_blocked, wait_ready};
use super::lookup::Resolver;
use crate::error::Error;
use crate::net::wire::frame::{
    Damage, HEADER_BYTES, Header, Hello, Kind, MAX_TEXT_BYTES, PREAMBLE_BYTES, PROTOCOL, Preamble, Refusal,
    parse_refuse,
};
use crate::net::wire::limits::{SILENCES, give_up_after, within_reason};
use crate::net::wire::tls::{self, ClientTls};
use crate::net::wire::token::{Side, Token, random};
use crate::net::wire::token_file::{self, Missing};
use crate::sys::sync::{AtomicBool, EventCount, Ordering, Woken};
use crate::sys::thread::lock;
use crate::sys::wait::Deadline;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with, sockopt};
use rustls::pki_types::ServerName;
use std::io::{self, ErrorKind, IoSlice};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long a client tries to say goodbye.
pub const GOODBYE_TIMEOUT: Duration = Duration::from_millis(200);

/// The reason when there is no other.
pub const TIME_IS_UP: &str = "it did not answer in time";

/// The reason while a caller has named another address.
const REDIRECTED: &str = "it was redirected to another address";

/// How to reach the learner, and how the thread that does so and its callers wake each other.
#[derive(Debug)]
pub struct Connector {
    destination: Mutex<Arc<Destination>>,
    tls: Option<ClientTls>,
    connect_timeout: Duration,
    reconnect_timeout: Duration,
    keepalive: Duration,
    /// Written by callers, to wake the thread.
    pub wakeup: Arc<OwnedFd>,
    closing: AtomicBool,
    /// Whether there is another destination since the thread last asked.
    redirected: AtomicBool,
    /// Notified by the thread, to wake callers.
    pub progress: EventCount,
}

/// Where the learner is, and what both sides prove there.
#[derive(Debug)]
struct Destination {
    resolver: Resolver,
    /// `None`: looked up in the token file.
    token: Option<Token>,
    tls: Option<(Arc<rustls::ClientConfig>, ServerName<'static>)>,
}

impl Connector {
    /// `timeouts`: for the first connection, after a connection was lost, and between signs of life.
    pub fn new(
        (host, port): (&str, u16),
        token: Option<&[u8]>,
        tls: Option<&ClientTls>,
        timeouts: [Duration; 3],
    ) -> crate::error::Result<Connector> {
        let [connect_timeout, reconnect_timeout, keepalive] = timeouts.map(within_reason);
        let wakeup = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let destination = Destination {
            resolver: Resolver::new(host, port),
            token: token.map(Token::new).transpose()?,
            tls: tls.map(|tls| Ok::<_, Error>((tls.config()?, tls.server_name(host)?))).transpose()?,
        };
        Ok(Connector {
            destination: Mutex::new(Arc::new(destination)),
            tls: tls.cloned(),
            connect_timeout,
            reconnect_timeout,
            keepalive,
            wakeup: Arc::new(wakeup.map_err(|errno| Error::io("cannot make an eventfd", errno))?),
            closing: AtomicBool::new(false),
            redirected: AtomicBool::new(false),
            progress: EventCount::default(),
        })
    }

    fn destination(&self) -> Arc<Destination> {
        lock(&self.destination).clone()
    }

    pub fn address(&self) -> String {
        self.destination().resolver.address()
    }

    /// Makes the thread leave its connection, if it has one, and connect to another address. `None`: with the same token.
    pub fn redirect(&self, (host, port): (&str, u16), token: Option<&[u8]>) -> crate::error::Result<()> {
        let mut destination = lock(&self.destination);
        let tls = match (&destination.tls, &self.tls) {
            (Some((config, _)), Some(tls)) => Some((config.clone(), tls.server_name(host)?)),
            _ => None,
        };
        let token = match token {
            Some(token) => Some(Token::new(token)?),
            None => destination.token.clone(),
        };
        *destination = Arc::new(Destination { resolver: Resolver::new(host, port), token, tls });
        drop(destination);
        self.redirected.store(true, Ordering::Relaxed);
        self.wake();
        Ok(())
    }

    /// Whether there was a redirect since the last call. The next dial goes to the new address.
    pub fn take_redirect(&self) -> bool {
        self.redirected.swap(false, Ordering::Relaxed)
    }

    pub fn is_redirected(&self) -> bool {
        self.redirected.load(Ordering::Relaxed)
    }

    /// An error when there is a reason to leave the connection, or the attempt to make one.
    pub fn check_wanted(&self) -> Result<(), Disconnect> {
        if self.is_closing() {
            return Err(Ended::Closed.into());
        }
        if self.is_redirected() { Err(Disconnect::Broken(REDIRECTED.to_owned())) } else { Ok(()) }
    }

    pub fn keepalive(&self) -> Duration {
        self.keepalive
    }

    /// How long to try without an answer.
    pub fn time_limit(&self, welcomed: bool) -> Duration {
        if welcomed { self.reconnect_timeout } else { self.connect_timeout }
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

    /// Calls `done` now and whenever the thread reports progress, until it gives a value.
    pub fn wait_until<T>(
        &self,
        deadline: Deadline,
        mut done: impl FnMut() -> crate::error::Result<Option<T>>,
    ) -> crate::error::Result<T> {
        loop {
            let ticket = self.progress.announce();
            if let Some(value) = done()? {
                return Ok(value);
            }
            let Some(left) = deadline.remaining() else { return Err(Error::Timeout) };
            if self.progress.wait(ticket, left) == Woken::Interrupted {
                return Err(Error::Interrupted);
            }
        }
    }

    /// Sleeps for a random part of `pause`, at most until `deadline`, and at most until the client is closed or redirected.
    pub fn pause(&self, pause: Duration, deadline: Instant) {
        let [dice] = random::<1>().unwrap_or([128]);
        let now = Instant::now();
        let pause = pause.min(deadline.saturating_duration_since(now));
        let until = now + pause.mul_f64(0.5 + dice as f64 / 512.0);
        while Instant::now() < until && !self.is_closing() && !self.is_redirected() {
            let _ = wait_ready(None, &self.wakeup, false, until);
        }
    }
}

/// Connects, shakes hands and says hello. Returns the link and the learner's answer, a frame of kind `welcome`.
pub fn dial(
    client: &Connector,
    hello: &Hello,
    welcome: Kind,
    deadline: Instant,
) -> Result<(Link, Header, Vec<u8>), Disconnect> {
    let attempt = DialAttempt { client, destination: client.destination(), deadline };
    let mut link = attempt.connect()?;
    while !attempt.retry(&mut link, false, Link::tls_handshake)? {}
    let (preambles, token) = attempt.exchange_preambles(&mut link)?;
    attempt.prove(&mut link, &preambles, &token).map_err(|disconnect| match disconnect {
        Disconnect::Final(Ended::Token(why)) if attempt.destination.token.is_none() => {
            Disconnect::Final(Ended::Token(format!(
                "{why}. This client was given no token and found one in the file of this address"
            )))
        }
        disconnect => disconnect,
    })?;
    attempt.write(&mut link, &hello.frame())?;
    let (header, payload) = attempt.frame(&mut link, welcome, Peer::Learner)?;
    Ok((link, header, payload))
}

/// Why a client that was given no token has none.
#[derive(Debug)]
enum NoToken {
    /// The learner is not on a loopback address, so there is no file to look for.
    Elsewhere,
    File(Missing),
}

impl NoToken {
    fn explain(&self, address: SocketAddr) -> String {
        let give = "the learner asks for a token, and this client has none. Give it the learner's token";
        match self {
            NoToken::Elsewhere => give.to_owned(),
            NoToken::File(missing) => format!(
                "{give}. A client of the learner's own user on the same machine finds a token that the learner made itself in {}, \
                 but {missing}",
                token_file::path(address).display()
            ),
        }
    }
}

/// The bytes of both preambles: the client's, the server's.
type Preambles = [[u8; PREAMBLE_BYTES]; 2];

/// Whether the other side has proved itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Peer {
    /// It has not proved that it knows the token.
    Stranger,
    Learner,
}

struct DialAttempt<'a> {
    client: &'a Connector,
    destination: Arc<Destination>,
    deadline: Instant,
}

impl DialAttempt<'_> {
    fn connect(&self) -> Result<Link, Disconnect> {
        let (client, resolver) = (self.client, &self.destination.resolver);
        let addresses = resolver.resolve(&client.wakeup, self.deadline, || client.check_wanted())?;
        let mut disconnect = Disconnect::Late(TIME_IS_UP.to_owned());
        for (tried, &address) in addresses.iter().enumerate() {
            // An address that does not answer leaves time for the next ones.
            let left = self.deadline.saturating_duration_since(Instant::now());
            let until = self.deadline - left.mul_f64(1.0 - 1.0 / (addresses.len() - tried) as f64);
            match self.connect_to(address, until) {
                Ok(socket) => {
                    let tls = self.destination.tls.as_ref();
                    let tls =
                        tls.map(|(config, name)| rustls::ClientConnection::new(config.clone(), name.clone()));
                    let tls = tls.transpose().map_err(|error| Ended::Tls(error.to_string()))?;
                    return Ok(Link::new(socket, tls));
                }
                Err(Disconnect::Final(ended)) => return Err(ended.into()),
                Err(other) => disconnect = other,
            }
        }
        Err(disconnect)
    }

    fn connect_to(&self, address: SocketAddr, until: Instant) -> Result<TcpStream, Disconnect> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(family, SocketType::STREAM, flags, None).map_err(io::Error::from)?;
        sockopt::set_tcp_nodelay(&socket, true).map_err(io::Error::from)?;
        give_up_after(&socket, self.client.keepalive() * SILENCES)?;
        match connect(&socket, &address) {
            Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => {}
            Err(errno) => return Err(io::Error::from(errno).into()),
        }
        let socket = TcpStream::from(socket);
        loop {
            let seen = self.wait_ready(&socket, true, until)?;
            if let Some(error) = socket.take_error()? {
                return Err(error.into());
            }
            if seen && socket.peer_addr().is_ok() {
                return Ok(socket);
            }
        }
    }

    /// Sleeps until the socket is ready, or there is another reason to check again (false). Gives up after three keepalive
    /// intervals of silence: the peer may have dropped this connection, and a new one has better prospects.
    fn wait_ready(&self, socket: &TcpStream, writing: bool, until: Instant) -> Result<bool, Disconnect> {
        let until = until.min(Instant::now() + self.client.keepalive() * SILENCES);
        let seen = wait_ready(Some(socket), &self.client.wakeup, writing, until)?;
        self.client.check_wanted()?;
        if Instant::now() >= until {
            return Err(Disconnect::Late(TIME_IS_UP.to_owned()));
        }
        Ok(seen.readable || seen.writable)
    }

    /// Repeats a step on the link until the socket lets it succeed. `writing`: the step waits for a writable socket.
    fn retry<T>(
        &self,
        link: &mut Link,
        mut writing: bool,
        mut step: impl FnMut(&mut Link) -> io::Result<T>,
    ) -> Result<T, Disconnect> {
        loop {
            match unless_blocked(step(link)) {
                Ok(Some(done)) => return Ok(done),
                Ok(None) => {
                    writing |= matches!(unless_blocked(link.flush()), Ok(None));
                    self.wait_ready(&link.socket(), writing, self.deadline)?;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::InvalidData => {
                    return Err(Ended::Tls(tls::explain(&error)).into());
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn write(&self, link: &mut Link, bytes: &[u8]) -> Result<(), Disconnect> {
        let mut sent = 0;
        while sent < bytes.len() {
            sent += self.retry(link, true, |link| link.write(&[IoSlice::new(&bytes[sent..])]))?;
        }
        self.retry(link, true, Link::flush)
    }

    fn read_exact(&self, link: &mut Link, room: &mut [u8]) -> Result<(), Disconnect> {
        let mut have = 0;
        while have < room.len() {
            have += self.retry(link, false, |link| link.read(&mut room[have..]))?;
        }
        Ok(())
    }

    fn exchange_preambles(&self, link: &mut Link) -> Result<(Preambles, Token), Disconnect> {
        let address = link.socket().peer_addr()?;
        let token = self.token(address).is_ok();
        let nonce = random().map_err(|error| Disconnect::Broken(error.to_string()))?;
        let client = Preamble { protocol: PROTOCOL, token, nonce }.bytes();
        self.write(link, &client)?;
        let mut server = [0; PREAMBLE_BYTES];
        let heard = self.read_exact(link, &mut server);
        if self.destination.tls.is_none() && tls::is_record(&server) {
            return Err(Ended::Tls(tls::LEARNER_HAS_TLS.to_owned()).into()); // An alert is shorter than a preamble.
        }
        heard?;
        let theirs = Preamble::parse(&server)?;
        if theirs.protocol != PROTOCOL {
            let what = format!("it speaks protocol {}, this client {PROTOCOL}", theirs.protocol);
            return Err(Ended::Protocol(what).into());
        }
        if !theirs.token {
            let why = "every learner asks for a token, but this one does not. Check the address: it may be another program";
            return Err(Ended::Token(why.to_owned()).into());
        }
        // Read again: the file that was there before the learner spoke may be that of a dead learner.
        match (token, self.token(address)) {
            (true, Ok(token)) => Ok(([client, server], token)),
            (false, Ok(_)) => Err(Disconnect::Broken("it has only just started".to_owned())),
            (true, Err(NoToken::File(Missing::NoFile))) => {
                Err(Disconnect::Broken("it is about to stop".to_owned()))
            }
            (_, Err(none)) => Err(Ended::Token(none.explain(address)).into()),
        }
    }

    /// The token that was given, or that of this user's learner on this address.
    fn token(&self, address: SocketAddr) -> Result<Token, NoToken> {
        match &self.destination.token {
            Some(token) => Ok(token.clone()),
            None if !address.ip().to_canonical().is_loopback() => Err(NoToken::Elsewhere),
            None => token_file::read(&token_file::path(address)).map_err(NoToken::File),
        }
    }

    fn prove(&self, link: &mut Link, [client, server]: &Preambles, token: &Token) -> Result<(), Disconnect> {
        let (exchange, share) = token.exchange(Side::Client, client, server);
        let (_, theirs) = self.frame(link, Kind::Share, Peer::Stranger)?;
        let key = exchange.finish(&theirs)?;
        let proof = Header::new(Kind::Proof).with(&key.prove(Side::Client));
        self.write(link, &[Header::new(Kind::Share).with(&share), proof].concat())?;
        let (_, proof) = self.frame(link, Kind::Proof, Peer::Stranger)?;
        if !key.verify(Side::Server, &proof) {
            let why =
                "the learner does not know this client's token. Check the address: it may be another learner";
            return Err(Ended::Token(why.to_owned()).into());
        }
        Ok(())
    }

    /// Reads the next frame: of that kind, or a refusal or goodbye, which is an error.
    fn frame(&self, link: &mut Link, kind: Kind, peer: Peer) -> Result<(Header, Vec<u8>), Disconnect> {
        let mut header = [0; HEADER_BYTES];
        self.read_exact(link, &mut header)?;
        let header = Header::parse(&header)?.ok_or(Damage("a header is not whole"))?;
        if header.kind != kind && header.kind != Kind::Refuse && header.kind != Kind::Goodbye {
            return Err(Damage("a frame of the handshake is out of turn").into());
        }
        if peer == Peer::Stranger && header.length > (4 + MAX_TEXT_BYTES) as u64 {
            // No peer sends a schema before the proof.
            return Err(Damage("a frame of the handshake is too long").into());
        }
        let mut payload = vec![0; header.length as usize]; // Bounded by the kind.
        self.read_exact(link, &mut payload)?;
        match header.kind {
            Kind::Refuse => {
                let (text, schema) = parse_refuse(&payload)?;
                match refused(header.code, text, schema) {
                    Disconnect::Final(Ended::Schema(_) | Ended::Content(_)) if peer == Peer::Stranger => {
                        Err(Damage("a refusal is out of turn").into())
                    }
                    disconnect => Err(disconnect),
                }
            }
            Kind::Goodbye => Err(Ended::from_goodbye(header.code, &payload).into()),
            _ => Ok((header, payload)),
        }
    }
}

fn refused(code: u16, text: String, schema: Vec<u8>) -> Disconnect {
    Disconnect::Final(match Refusal::from_code(code) {
        Some(Refusal::TokenNeeded | Refusal::TokenWrong | Refusal::TokenUnexpected) => Ended::Token(text),
        Some(Refusal::Content) => Ended::Content(text),
        Some(Refusal::Schema) => Ended::Schema(schema),
        Some(Refusal::Busy) => return Disconnect::Broken(text),
        Some(Refusal::Protocol) => Ended::Protocol(text),
        Some(Refusal::SessionUnknown) => Ended::Forgotten(text),
        Some(Refusal::Closed) => Ended::RingClosed(text),
        None => Ended::Lost(text),
    })
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
                let preamble = Preamble { protocol: PROTOCOL, token: true, nonce: [0; 32] };
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
        let timeouts = [Duration::from_secs(1); 3];
        std::thread::spawn(move || {
            let connector = Connector::new(("127.0.0.1", 1), None, None, timeouts).unwrap();
            connector.pause(Duration::from_secs(3600), Instant::now() + Duration::from_millis(20));
            let _ = over.send(());
        });
        waits.recv_timeout(Duration::from_secs(60)).unwrap();
    }
}
