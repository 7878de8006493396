//! The worker's end: takes samples, sends them, keeps them until the learner has them.
//!
//! `send` copies into a frame. With nothing under way the frame leaves at once, on the calling thread; otherwise samples
//! gather until an acknowledgement comes, the frame is full, or 100 µs are over. One thread per client connects, reads
//! acknowledgements, writes what the socket did not take at once, and connects again when a connection breaks.
//!
//! ```text
//! start ──▶ dialling ──welcome──▶ connected ──broken──▶ dialling (backoff, until `reconnect_timeout`)
//!              │                      │
//!              └──── refused, ring closed, too late, closed by us ──▶ ended, with the reason
//! ```
//!
//! Calls wait on a futex that signals interrupt ([`Error::Interrupted`]: call again). What the thread meets is told to the next caller.

use super::dial::{Failure, dial};
use super::frame::{Farewell, HEADER_BYTES, Header, Hello, Kind, MAX_TEXT_BYTES, goodbye};
use super::link::{Link, watch};
use super::outbound::Outbound;
use super::server::SILENCES;
use super::stats::{ClientCounters, ClientStats, add};
use super::tls::ClientTls;
use super::token::{Token, random};
use super::{FRAME_BYTES, MAX_FRAME_ROWS, check_sample_bytes};
use crate::error::{Error, Result};
use crate::ring::Patience;
use crate::sync::{Bell, Woken};
use rustix::event::{EventfdFlags, eventfd};
use rustls::pki_types::ServerName;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// One attempt to connect and shake hands.
const ATTEMPT: Duration = Duration::from_secs(10);
/// How long `close` tries to say goodbye.
const PARTING: Duration = Duration::from_millis(200);
const INBOX_BYTES: usize = 2 * (HEADER_BYTES + MAX_TEXT_BYTES);

/// Where the learner is, and how to treat it. `..TcpClientSpec::default()` fills in the rest.
#[derive(Debug, Clone)]
pub struct TcpClientSpec {
    pub host: String,
    pub port: u16,
    pub token: Option<Vec<u8>>,
    pub tls: Option<ClientTls>,
    /// The name on the samples; chosen by the learner when `None`.
    pub producer_id: Option<u32>,
    /// Frames without acknowledgement, at most. Each is a buffer of about 256 KiB, or one sample.
    pub max_inflight_msgs: usize,
    /// For the first connection; the learner may start later than we.
    pub connect_timeout: Duration,
    /// How long to try again after a connection was lost.
    pub reconnect_timeout: Duration,
    pub keepalive: Duration,
}

impl Default for TcpClientSpec {
    fn default() -> TcpClientSpec {
        TcpClientSpec {
            host: "127.0.0.1".to_owned(),
            port: 0,
            token: None,
            tls: None,
            producer_id: None,
            max_inflight_msgs: 32,
            connect_timeout: Duration::from_secs(10),
            reconnect_timeout: Duration::from_secs(60),
            keepalive: Duration::from_secs(5),
        }
    }
}

/// Why a client is of no more use.
#[derive(Debug, Clone)]
enum Ended {
    Closed,
    /// After it was let in.
    Lost(String),
    /// Before.
    Unreachable(String),
    Token(String),
    Schema(Vec<u8>),
    Protocol(String),
    Tls(String),
}

/// What the client's thread and its callers share.
#[derive(Debug)]
pub struct Shared {
    pub spec: TcpClientSpec,
    pub token: Option<Token>,
    pub tls: Option<(Arc<rustls::ClientConfig>, ServerName<'static>)>,
    /// Rung by callers, to wake the thread.
    pub bell: OwnedFd,
    schema: Vec<u8>,
    leaves: usize,
    session: [u8; 16],
    state: Mutex<State>,
    /// Rung by the thread, to wake callers.
    progress: Bell,
    closing: AtomicBool,
    counters: ClientCounters,
}

#[derive(Debug)]
struct State {
    outbound: Outbound,
    link: Option<Link>,
    producer_id: Option<u32>,
    ended: Option<Ended>,
    /// Refused by the ring's policy, and not yet told: first, and how many.
    refused: Option<(u64, u64)>,
    /// Refusals below this number were heard; after a reconnect the learner may repeat some.
    refused_until: u64,
    /// A write failed; the thread has to see what came before it.
    broken: bool,
    /// What the thread is waiting for, so that it is not woken for that.
    watches_out: bool,
    watches_clock: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }

    fn call_thread(&self) {
        // Fails only when the counter is about to overflow, and then the bell has been rung.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    fn address(&self) -> String {
        format!("{}:{}", self.spec.host, self.spec.port)
    }

    /// The error for a caller that comes after the end.
    fn error(&self, state: &State, ended: &Ended) -> Error {
        let address = self.address();
        match ended.clone() {
            Ended::Closed => Error::Closed,
            Ended::Lost(why) => Error::ConnectionClosed {
                address,
                why,
                unacknowledged: state.outbound.unacknowledged(),
                first: state.outbound.acked,
            },
            Ended::Unreachable(why) => Error::Unreachable { address, why },
            Ended::Token(why) => Error::Token { address, why },
            Ended::Schema(theirs) => Error::ForeignSchema { address, ours: self.schema.clone(), theirs },
            Ended::Protocol(what) => Error::Protocol { address, what },
            Ended::Tls(what) => Error::Tls { what: format!("{address}: {what}") },
        }
    }

    /// What has to be told to the next caller, before anything is done.
    fn check(&self, state: &mut State) -> Result<()> {
        if let Some((first, count)) = state.refused.take() {
            return Err(Error::SamplesRefused { first, count });
        }
        match state.ended.clone() {
            Some(ended) => Err(self.error(state, &ended)),
            None => Ok(()),
        }
    }

    /// Writes what the socket takes.
    fn pump(&self, state: &mut State, eager: bool) {
        if !state.outbound.blocked
            && !state.broken
            && let Some(link) = &mut state.link
        {
            state.broken = state.outbound.pump(link, eager, &self.counters).is_err();
        }
    }

    /// Writes what the socket takes on the caller's thread, and leaves the rest to the other.
    fn push(&self, state: &mut State, eager: bool) {
        self.pump(state, eager);
        let needed = state.broken
            || (state.outbound.blocked && !state.watches_out)
            || (!state.watches_clock && state.outbound.gathers_until().is_some());
        if needed {
            (state.watches_out, state.watches_clock) = (true, true); // It will.
            self.call_thread();
        }
    }
}

/// One worker's connection to a learner. Threads may share it.
#[derive(Debug)]
pub struct TcpClient {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
    pid: u32,
}

impl TcpClient {
    /// Begins to connect, and returns at once; [`ready`](Self::ready) says how it went.
    pub fn start(spec: TcpClientSpec, schema: &[u8], leaf_bytes: &[usize]) -> Result<TcpClient> {
        let sample_bytes = leaf_bytes.iter().sum::<usize>();
        check_sample_bytes(sample_bytes)?;
        if schema.len() > super::frame::MAX_SCHEMA_BYTES {
            let range = format!("at most {}", super::frame::MAX_SCHEMA_BYTES);
            return Err(Error::OutOfRange { what: "schema bytes", value: schema.len() as u64, range });
        }
        if spec.max_inflight_msgs == 0 {
            let range = "at least 1".to_owned();
            return Err(Error::OutOfRange { what: "max_inflight_msgs", value: 0, range });
        }
        let capacity = (FRAME_BYTES / sample_bytes.max(1)).clamp(1, MAX_FRAME_ROWS);
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let shared = Arc::new(Shared {
            token: spec.token.as_deref().map(Token::new).transpose()?,
            tls: match &spec.tls {
                Some(tls) => Some((tls.config()?, tls.server_name(&spec.host)?)),
                None => None,
            },
            bell: bell.map_err(|errno| Error::io("cannot make an eventfd", errno))?,
            schema: schema.to_vec(),
            leaves: leaf_bytes.len(),
            session: random()?,
            state: Mutex::new(State {
                outbound: Outbound::new(leaf_bytes, capacity, spec.max_inflight_msgs),
                link: None,
                producer_id: spec.producer_id,
                ended: None,
                refused: None,
                refused_until: 0,
                broken: false,
                watches_out: false,
                watches_clock: false,
            }),
            progress: Bell::default(),
            closing: AtomicBool::new(false),
            counters: ClientCounters::default(),
            spec,
        });
        let thread = super::thread("rollway-client", {
            let shared = shared.clone();
            move || {
                Thread { shared: &shared, contact: Instant::now(), pinged: Instant::now(), welcomed: false }
                    .run()
            }
        })?;
        Ok(TcpClient { shared, thread: Mutex::new(Some(thread)), pid: std::process::id() })
    }

    /// Connects, and returns when samples may be sent. A signal ends it; `start` and `ready` can go on after one.
    pub fn connect(spec: TcpClientSpec, schema: &[u8], leaf_bytes: &[usize]) -> Result<TcpClient> {
        let client = TcpClient::start(spec, schema, leaf_bytes)?;
        client.ready(Patience::Forever)?;
        Ok(client)
    }

    /// Waits until the learner has let us in, for the first time. Ends by itself after `connect_timeout`.
    pub fn ready(&self, patience: Patience) -> Result<()> {
        self.wait_until(patience, |state| {
            self.shared.check(state)?;
            Ok(self.shared.counters.connects.load(Ordering::Relaxed) > 0)
        })
    }

    /// Takes samples: `rows` of them, each leaf's one after the other. Says how many were taken: fewer than `rows` when
    /// the time was over, or a signal came, in between; call again for the rest.
    ///
    /// # Safety
    ///
    /// There is one pointer per leaf, to `rows` times the bytes of the leaf.
    pub unsafe fn send(
        &self,
        leaves: &[*const u8],
        rows: usize,
        version: u32,
        patience: Patience,
    ) -> Result<usize> {
        self.check_process()?;
        if leaves.len() != self.shared.leaves {
            let range = format!("{}, as in the schema", self.shared.leaves);
            return Err(Error::OutOfRange { what: "leaves", value: leaves.len() as u64, range });
        }
        let mut taken = 0;
        let mut take = |state: &mut State| {
            if taken == 0 {
                self.shared.check(state)?;
            } else if state.ended.is_some() {
                return Ok(true);
            }
            while taken < rows {
                // SAFETY: the caller vouches for the leaves.
                let part = unsafe { state.outbound.append(leaves, taken, rows - taken, version) };
                if part == 0 {
                    break;
                }
                taken += part;
            }
            self.shared.push(state, false);
            Ok(taken == rows)
        };
        let at_once = take(&mut self.shared.lock());
        let ended = match at_once {
            Ok(true) => return Ok(rows),
            Ok(false) if patience == Patience::Never => Err(Error::Full),
            Ok(false) => self.wait_until(patience, take),
            Err(error) => Err(error),
        };
        match ended {
            Err(Error::Full | Error::Timeout | Error::Interrupted) if taken > 0 => Ok(taken),
            Err(error) => Err(error),
            Ok(()) => Ok(taken),
        }
    }

    /// Waits until everything that was sent is acknowledged: committed to the ring.
    pub fn wait(&self, patience: Patience) -> Result<()> {
        self.check_process()?;
        self.wait_until(patience, |state| {
            if state.refused.is_none() && state.outbound.unacknowledged() == 0 {
                return Ok(true);
            }
            self.shared.check(state)?;
            self.shared.push(state, true);
            Ok(false)
        })
    }

    /// Waits as [`wait`](Self::wait) does, as long as `patience` lasts, says goodbye and ends the thread. An error says what is
    /// not acknowledged; the client is closed all the same, unless a signal came ([`Error::Interrupted`]).
    pub fn close(&self, patience: Patience) -> Result<()> {
        self.check_process()?;
        if matches!(self.shared.lock().ended, Some(Ended::Closed)) {
            return Ok(());
        }
        let flushed = match self.wait(patience) {
            Err(Error::Interrupted) => return Err(Error::Interrupted),
            Err(Error::Timeout) => {
                let why = "it was closed before everything was acknowledged".to_owned();
                let state = self.shared.lock();
                Err(self.shared.error(&state, &Ended::Lost(why)))
            }
            other => other,
        };
        self.end();
        flushed
    }

    /// Ends the thread, with a goodbye if there is somebody to say it to.
    fn end(&self) {
        self.shared.closing.store(true, Ordering::Relaxed);
        self.shared.call_thread();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
        self.shared.lock().ended = Some(Ended::Closed);
        self.shared.progress.ring();
    }

    /// Samples that were taken.
    pub fn sent(&self) -> u64 {
        self.read(|state| state.outbound.next)
    }

    /// Samples that the learner has settled.
    pub fn acknowledged(&self) -> u64 {
        self.read(|state| state.outbound.acked)
    }

    pub fn unacknowledged(&self) -> u64 {
        self.read(|state| state.outbound.unacknowledged())
    }

    /// The name on our samples, once the learner has said it.
    pub fn producer_id(&self) -> Option<u32> {
        self.read(|state| state.producer_id)
    }

    /// Whether there is a connection now.
    pub fn is_connected(&self) -> bool {
        self.read(|state| state.link.is_some())
    }

    pub fn stats(&self) -> ClientStats {
        self.shared.counters.snapshot()
    }

    /// In a forked child the lock may be held by a thread that is not there.
    fn read<T: Default>(&self, look: impl FnOnce(&State) -> T) -> T {
        if self.check_process().is_err() { T::default() } else { look(&self.shared.lock()) }
    }

    fn check_process(&self) -> Result<()> {
        if self.pid != std::process::id() {
            return Err(Error::Forked { what: "client", owner: self.pid });
        }
        Ok(())
    }

    /// Looks again whenever the thread has news.
    fn wait_until(&self, patience: Patience, mut done: impl FnMut(&mut State) -> Result<bool>) -> Result<()> {
        loop {
            let ticket = self.shared.progress.announce();
            if done(&mut self.shared.lock())? {
                return Ok(());
            }
            let Some(left) = patience.left() else { return Err(Error::Timeout) };
            if self.shared.progress.wait(ticket, left) == Woken::Interrupted {
                return Err(Error::Interrupted);
            }
        }
    }
}

impl Drop for TcpClient {
    fn drop(&mut self) {
        if self.check_process().is_ok() {
            self.end();
        }
    }
}

/// The client's own thread.
struct Thread<'a> {
    shared: &'a Shared,
    /// When the learner was last heard, or the connection was lost.
    contact: Instant,
    pinged: Instant,
    welcomed: bool,
}

impl Thread<'_> {
    /// Dials and serves, again and again, until something ends it.
    fn run(mut self) {
        let mut pause = Duration::ZERO;
        let ended = loop {
            match self.connect() {
                Ok(()) => {
                    let before = self.shared.lock().outbound.acked;
                    if let Some(ended) = self.serve() {
                        break ended;
                    }
                    self.contact = Instant::now(); // From here on it counts how long the learner is away.
                    if self.shared.lock().outbound.acked > before {
                        pause = Duration::ZERO;
                    }
                }
                Err(Failure::Passing(why)) => {
                    add(&self.shared.counters.failed_connects, 1);
                    if let Some(ended) = self.too_late(&why) {
                        break ended;
                    }
                }
                Err(failure) => break self.given_up(failure),
            }
            pause = (pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
            self.rest(pause);
            if self.shared.is_closing() {
                break Ended::Closed;
            }
        };
        let mut state = self.shared.lock();
        state.link = None;
        state.ended.get_or_insert(ended);
        drop(state);
        self.shared.progress.ring();
    }

    fn limit(&self) -> Duration {
        let spec = &self.shared.spec;
        if self.welcomed { spec.reconnect_timeout } else { spec.connect_timeout }
    }

    fn too_late(&self, why: &str) -> Option<Ended> {
        if self.contact.elapsed() < self.limit() {
            return None;
        }
        Some(if self.welcomed {
            Ended::Lost(format!("the learner has been away for {:.1?} ({why})", self.contact.elapsed()))
        } else {
            Ended::Unreachable(why.to_owned())
        })
    }

    /// What a failure means: before the first welcome the caller is told its kind, afterwards what is lost by it.
    fn given_up(&self, failure: Failure) -> Ended {
        match (self.welcomed, failure) {
            (_, Failure::Cancelled) => Ended::Closed,
            (false, Failure::Token(why)) => Ended::Token(why),
            (false, Failure::Schema(theirs)) => Ended::Schema(theirs),
            (false, Failure::Protocol(what)) => Ended::Protocol(what),
            (false, Failure::Tls(what)) => Ended::Tls(what),
            (true, Failure::Schema(_)) => Ended::Lost("the learner came back with another schema".to_owned()),
            (
                _,
                Failure::Passing(why)
                | Failure::Token(why)
                | Failure::Protocol(why)
                | Failure::Tls(why)
                | Failure::Final(why),
            ) => Ended::Lost(why),
        }
    }

    /// Sleeps for a part of `pause`, a different one each time, unless the client is closed.
    fn rest(&self, pause: Duration) {
        let [dice] = random::<1>().unwrap_or([128]);
        let until = Instant::now() + pause.mul_f64(0.5 + dice as f64 / 512.0);
        while Instant::now() < until && !self.shared.is_closing() {
            let _ = watch(None, &self.shared.bell, false, Some(until));
        }
    }

    fn connect(&mut self) -> Result<(), Failure> {
        let shared = self.shared;
        let hello = {
            let state = shared.lock();
            Hello {
                session: shared.session,
                producer_id: state.producer_id,
                next: state.outbound.touched,
                oldest: state.outbound.acked,
                schema: shared.schema.clone(),
            }
        };
        let deadline = (Instant::now() + ATTEMPT).min(self.contact + self.limit());
        let (link, welcome) = dial(shared, &hello, deadline)?;
        let mut state = shared.lock();
        state.outbound.resume(&welcome, &shared.counters).map_err(Failure::Final)?;
        state.producer_id = Some(welcome.producer_id);
        state.link = Some(link);
        state.broken = false;
        add(&shared.counters.connects, 1);
        add(&shared.counters.resumed, self.welcomed as u64);
        (self.welcomed, self.contact) = (true, Instant::now());
        drop(state);
        shared.progress.ring_if_waiting();
        Ok(())
    }

    /// Reads and writes until the connection breaks (`None`) or the end.
    fn serve(&mut self) -> Option<Ended> {
        let mut inbox = Inbox { bytes: vec![0; INBOX_BYTES], have: 0, skip: 0 };
        let socket = self.shared.lock().link.as_ref()?.socket();
        let mut news = true; // TLS may hold bytes already.
        let outcome = loop {
            let mut state = self.shared.lock();
            if news || state.broken {
                if let Err(outcome) = self.hear(&mut state, &mut inbox) {
                    break outcome;
                }
                if state.broken {
                    break None;
                }
                state.outbound.blocked = false;
                self.shared.pump(&mut state, true);
            }
            if self.shared.is_closing() {
                drop(state);
                self.part(&socket);
                break Some(Ended::Closed);
            }
            let quiet = self.contact.elapsed();
            let keepalive = self.shared.spec.keepalive;
            if quiet >= keepalive * SILENCES {
                break None;
            }
            if quiet >= keepalive && self.pinged.elapsed() >= keepalive {
                self.pinged = Instant::now();
                state.outbound.say(&Header::new(Kind::Ping).bytes());
                state.outbound.blocked = false;
            }
            self.shared.pump(&mut state, false);
            if state.broken {
                continue;
            }
            let gathers = state.outbound.gathers_until();
            (state.watches_out, state.watches_clock) = (state.outbound.blocked, gathers.is_some());
            let writing = state.outbound.blocked;
            drop(state);
            let beat = Instant::now() + keepalive / 2;
            match watch(Some(&socket), &self.shared.bell, writing, Some(gathers.unwrap_or(beat).min(beat))) {
                Ok(seen) => {
                    news = seen.readable;
                    if seen.writable {
                        self.shared.lock().outbound.blocked = false;
                    }
                }
                Err(_) => break None,
            }
        };
        let mut state = self.shared.lock();
        state.link = None;
        state.broken = false;
        outcome
    }

    /// Reads all there is. An error ends the connection: `None`, or the client.
    fn hear(&mut self, state: &mut State, inbox: &mut Inbox) -> Result<(), Option<Ended>> {
        let mut heard = false;
        let outcome = loop {
            let Some(link) = &mut state.link else { break Err(None) };
            match link.read(&mut inbox.bytes[inbox.have..]) {
                Ok(read) => {
                    heard = true;
                    inbox.have += read;
                    if let Err(outcome) = self.understand(state, inbox) {
                        break Err(outcome);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => break Err(None),
            }
        };
        if heard {
            self.contact = Instant::now();
            self.shared.progress.ring_if_waiting();
        }
        outcome
    }

    /// Takes the whole frames out of the inbox.
    fn understand(&self, state: &mut State, inbox: &mut Inbox) -> Result<(), Option<Ended>> {
        let damaged =
            |what: &str| Some(Ended::Lost(format!("the learner does not speak our protocol: {what}")));
        loop {
            let skipped = inbox.skip.min(inbox.have as u64);
            inbox.consume(skipped as usize);
            inbox.skip -= skipped;
            let Some(header) =
                Header::parse(&inbox.bytes[..inbox.have]).map_err(|damage| damaged(damage.0))?
            else {
                return Ok(());
            };
            match header.kind {
                Kind::Ack => {
                    let acknowledged = state.outbound.acknowledge(header.sequence, header.credit);
                    acknowledged.map_err(damaged)?;
                    add(&self.shared.counters.acks, 1);
                }
                Kind::Full => {
                    let (first, count) = (header.sequence, header.rows as u64);
                    if first >= state.refused_until {
                        state.refused_until = first.saturating_add(count);
                        state.refused.get_or_insert((first, 0)).1 += count;
                        add(&self.shared.counters.refused, count);
                    }
                }
                Kind::Ping => {
                    state.outbound.say(&Header { kind: Kind::Pong, ..header }.bytes());
                    state.outbound.blocked = false;
                }
                Kind::Pong => {}
                Kind::Goodbye => {
                    let Some(text) =
                        inbox.bytes[..inbox.have].get(HEADER_BYTES..HEADER_BYTES + header.length as usize)
                    else {
                        return Ok(()); // Not whole.
                    };
                    let text = String::from_utf8_lossy(text).into_owned();
                    return Err(match Farewell::from_code(header.code) {
                        Some(Farewell::TooSlow | Farewell::Silent) => None,
                        _ => Some(Ended::Lost(text)),
                    });
                }
                Kind::Extension(_) => inbox.skip = header.length,
                _ => return Err(damaged("a frame is out of turn")),
            }
            inbox.consume(HEADER_BYTES);
        }
    }

    /// Says goodbye, if the socket takes it.
    fn part(&self, socket: &std::net::TcpStream) {
        let until = Instant::now() + PARTING;
        self.shared.lock().outbound.finish(&goodbye(Farewell::Finished, ""));
        while Instant::now() < until {
            let mut state = self.shared.lock();
            let state = &mut *state;
            let Some(link) = &mut state.link else { return };
            let pumped: io::Result<()> = state.outbound.pump(link, true, &self.shared.counters);
            if pumped.is_err() || !state.outbound.blocked {
                return;
            }
            let _ = watch(Some(socket), &self.shared.bell, true, Some(until));
        }
    }
}

/// What was read and not yet understood.
struct Inbox {
    bytes: Vec<u8>,
    have: usize,
    /// Bytes of a frame that we do not know.
    skip: u64,
}

impl Inbox {
    fn consume(&mut self, bytes: usize) {
        self.bytes.copy_within(bytes..self.have, 0);
        self.have -= bytes;
    }
}
