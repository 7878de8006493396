//! The worker's end, whatever it sends: takes it, keeps it until the learner has it, connects and connects again.
//!
//! [`TcpClient`](super::TcpClient) and [`TcpRecordClient`](super::TcpRecordClient) say what goes into a frame. With nothing
//! under way the frame leaves at once, on the calling thread; otherwise samples gather until an acknowledgement comes, the
//! frame is full, or 100 µs are over. One thread per client connects, reads acknowledgements, writes what the socket did
//! not take at once, and connects again when a connection breaks.
//!
//! ```text
//! start ──▶ dialling ──welcome──▶ connected ──broken──▶ dialling (backoff, until `reconnect_timeout`)
//!              │                      │
//!              └──── refused, ring closed, too late, closed by us ──▶ ended, with the reason
//! ```
//!
//! Calls wait on a futex that signals interrupt ([`Error::Interrupted`]: call again). What the thread meets is told
//! to the next caller.

use super::client_thread::ClientThread;
use super::dial::Connector;
use super::link::{Link, write_to};
use super::outbound::Outbound;
use super::packing::Layout;
use crate::error::{Error, Result};
use crate::net::wire::frame::{Header, Kind, News};
use crate::net::wire::limits::within_reason;
use crate::net::wire::stats::{ClientCounters, ClientStats};
use crate::net::wire::tls::ClientTls;
use crate::net::wire::token::random;
use crate::ring::Deadline;
use crate::sys::sync::{EventCount, Woken};
use std::io::ErrorKind;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Where the learner is, and how to treat it. `..TcpClientSpec::default()` fills in the rest.
#[derive(Debug, Clone)]
pub struct TcpClientSpec {
    pub host: String,
    pub port: u16,
    pub token: Option<Vec<u8>>,
    pub tls: Option<ClientTls>,
    /// The name on what it sends; chosen by the learner when `None`.
    pub producer_id: Option<u32>,
    /// Frames without acknowledgement, at most. Each is a buffer of about 256 KiB, or one sample or record that is larger.
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
pub enum Ended {
    Closed,
    /// After it was let in.
    Lost(String),
    /// Before.
    Unreachable(String),
    Token(String),
    Schema(Vec<u8>),
    Content(String),
    Protocol(String),
    Tls(String),
}

/// What the client's thread and its callers share.
#[derive(Debug)]
pub struct Shared {
    pub spec: TcpClientSpec,
    pub connector: Connector,
    pub schema: Vec<u8>,
    pub session: [u8; 16],
    state: Mutex<State>,
    /// Rung by the thread, to wake callers.
    pub progress: EventCount,
    pub counters: ClientCounters,
}

/// How far the learner is, as it said last.
#[derive(Debug, Clone, Copy, Default)]
pub struct LearnerReport {
    pub news: News,
    /// What we sent below this number is in its count, if it still waits.
    pub counted: u64,
    /// A ping that asks for more of it is on its way.
    pub asked: bool,
}

#[derive(Debug)]
pub struct State {
    pub outbound: Outbound,
    pub link: Option<Link>,
    pub producer_id: Option<u32>,
    /// The newest weights that the learner told of.
    pub published: u32,
    pub report: LearnerReport,
    pub ended: Option<Ended>,
    /// Refused by the ring's policy, and not yet told: first, and how many.
    pub refused: Option<(u64, u64)>,
    /// Refusals below this number were heard; after a reconnect the learner may repeat some.
    pub refused_until: u64,
    /// A write failed; the thread has to see what came before it.
    pub broken: bool,
    /// What the thread is waiting for, so that it is not woken for that.
    pub watches_out: bool,
    pub watches_clock: bool,
    /// Somebody has called it, and it has not looked since.
    pub called: bool,
}

impl Shared {
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The error for a caller that comes after the end.
    fn error(&self, state: &State, ended: &Ended) -> Error {
        let address = self.connector.address();
        match ended.clone() {
            Ended::Closed => Error::Closed,
            Ended::Lost(why) => self.closed(state, why, "Make a new client when the learner is back"),
            Ended::Unreachable(why) => Error::Unreachable { address, why },
            Ended::Token(why) => Error::Token { address, why },
            Ended::Schema(theirs) => Error::ForeignSchema { address, ours: self.schema.clone(), theirs },
            Ended::Content(why) => Error::WrongContent { address, why },
            Ended::Protocol(what) => Error::Protocol { address, what },
            Ended::Tls(what) => Error::Tls { what: format!("{address}: {what}") },
        }
    }

    /// Says what is not acknowledged.
    fn closed(&self, state: &State, why: String, advice: &'static str) -> Error {
        Error::ConnectionClosed {
            address: self.connector.address(),
            why,
            content: state.outbound.layout().content().name(),
            unacknowledged: state.outbound.unacknowledged(),
            first: state.outbound.acked,
            advice,
        }
    }

    /// What has to be told to the next caller, before anything is done.
    fn check(&self, state: &mut State) -> Result<()> {
        if let Some((first, count)) = state.refused.take() {
            return Err(Error::Refused { content: state.outbound.layout().content().name(), first, count });
        }
        match state.ended.clone() {
            Some(ended) => Err(self.error(state, &ended)),
            None => Ok(()),
        }
    }

    /// Writes what the socket takes, if nobody else is at it. Lets go of the lock for each write.
    pub fn pump<'a>(&'a self, mut state: MutexGuard<'a, State>, eager: bool) -> MutexGuard<'a, State> {
        loop {
            if state.broken {
                return state;
            }
            let State { outbound, link: Some(link), .. } = &mut *state else { return state };
            if let Err(error) = link.flush() {
                let full = error.kind() == ErrorKind::WouldBlock;
                (state.outbound.blocked, state.broken) = (full, !full);
                return state;
            }
            let Some(piece) = outbound.begin(eager) else { return state };
            let written = if link.is_plain() {
                let (layout, socket) = (outbound.layout(), link.socket());
                drop(state);
                let written = piece.write(&layout, |parts| write_to(&socket, parts));
                state = self.lock();
                written
            } else {
                piece.write(&outbound.layout(), |parts| link.write(parts))
            };
            let done = state.outbound.finish(piece, written, &self.counters);
            state.broken |= done.is_err();
        }
    }

    /// Gets things going on the caller's thread, and leaves the rest to the other. With data under way it leaves all of
    /// it: then copying and writing go side by side, and the caller is back sooner.
    fn push<'a>(&'a self, state: MutexGuard<'a, State>, eager: bool) {
        let alone = eager || !state.outbound.is_under_way();
        let mut state = if alone { self.pump(state, eager) } else { state };
        let needed = state.broken
            || (state.outbound.blocked && !state.watches_out)
            || (state.outbound.has_work() && !state.called)
            || (!state.watches_clock && state.outbound.flush_at().is_some());
        if needed {
            (state.watches_out, state.watches_clock) = (true, true); // It will.
            state.called = true;
            drop(state);
            self.connector.wake();
        }
    }
}

/// What clients of samples and of records have in common. Threads may share it.
#[derive(Debug)]
pub struct Client {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
    pid: u32,
}

impl Client {
    /// Begins to connect, and returns at once; [`ready`](Self::ready) says how it went.
    pub(super) fn start(mut spec: TcpClientSpec, schema: &[u8], layout: Layout) -> Result<Client> {
        for time in [&mut spec.connect_timeout, &mut spec.reconnect_timeout, &mut spec.keepalive] {
            *time = within_reason(*time);
        }
        if schema.len() > crate::net::wire::frame::MAX_SCHEMA_BYTES {
            let range = format!("at most {}", crate::net::wire::frame::MAX_SCHEMA_BYTES);
            return Err(Error::OutOfRange { what: "schema bytes", value: schema.len() as u64, range });
        }
        if spec.max_inflight_msgs == 0 {
            let range = "at least 1".to_owned();
            return Err(Error::OutOfRange { what: "max_inflight_msgs", value: 0, range });
        }
        if spec.producer_id == Some(u32::MAX) {
            let range = "at most 4294967294".to_owned();
            return Err(Error::OutOfRange { what: "producer_id", value: u32::MAX as u64, range });
        }
        let (token, tls) = (spec.token.as_deref(), spec.tls.as_ref());
        let shared = Arc::new(Shared {
            connector: Connector::new((&spec.host, spec.port), token, tls, spec.keepalive)?,
            schema: schema.to_vec(),
            session: random()?,
            state: Mutex::new(State {
                outbound: Outbound::new(layout, spec.max_inflight_msgs),
                link: None,
                producer_id: spec.producer_id,
                published: 0,
                report: LearnerReport::default(),
                ended: None,
                refused: None,
                refused_until: 0,
                broken: false,
                watches_out: false,
                watches_clock: false,
                called: false,
            }),
            progress: EventCount::default(),
            counters: ClientCounters::default(),
            spec,
        });
        let thread = crate::sys::thread::spawn("rollway-client", {
            let shared = shared.clone();
            move || ClientThread::new(&shared).run()
        })?;
        Ok(Client { shared, thread: Mutex::new(Some(thread)), pid: std::process::id() })
    }

    /// Waits until the learner has let us in, for the first time. Ends by itself after `connect_timeout`.
    pub fn ready(&self, deadline: Deadline) -> Result<()> {
        self.wait_until(deadline, |mut state| {
            self.shared.check(&mut state)?;
            Ok(self.shared.counters.connects.load(Ordering::Relaxed) > 0)
        })
    }

    /// Has `append` put up to `want` samples or records into the outbound: it is told how many went before, and says how
    /// many it put, 0 when there is no room. Fewer than `want` are taken when the time was over, or a signal came, in
    /// between.
    pub(super) fn take(
        &self,
        want: usize,
        deadline: Deadline,
        mut append: impl FnMut(&mut Outbound, usize) -> Result<usize>,
    ) -> Result<usize> {
        self.check_process()?;
        let mut taken = 0;
        let mut take = |mut state: MutexGuard<'_, State>| {
            if taken == 0 {
                self.shared.check(&mut state)?;
            } else if state.ended.is_some() {
                return Ok(true);
            }
            while taken < want {
                let part = append(&mut state.outbound, taken)?;
                if part == 0 {
                    break;
                }
                taken += part;
            }
            self.shared.push(state, false);
            Ok(taken == want)
        };
        let at_once = take(self.shared.lock());
        let ended = match at_once {
            Ok(true) => return Ok(want),
            Ok(false) if deadline == Deadline::Now => Err(Error::Full),
            Ok(false) => self.wait_until(deadline, take),
            Err(error) => Err(error),
        };
        match ended {
            Err(Error::Full | Error::Timeout | Error::Interrupted) if taken > 0 => Ok(taken),
            Err(error) => Err(error),
            Ok(()) => Ok(taken),
        }
    }

    /// Waits until there is room for a sample (of 0 bytes, here), or for a record of so many.
    pub(super) fn wait_room(&self, bytes: u64, deadline: Deadline) -> Result<bool> {
        self.check_process()?;
        let room = self.wait_until(deadline, |state| {
            state.outbound.check_record(bytes)?;
            Ok(state.ended.is_some() || state.outbound.has_room(bytes))
        });
        match room {
            Err(Error::Timeout) => Ok(false),
            other => other.map(|()| true),
        }
    }

    /// Waits until everything that was sent is acknowledged: committed by the learner.
    pub fn wait(&self, deadline: Deadline) -> Result<()> {
        self.check_process()?;
        self.wait_until(deadline, |mut state| {
            if state.refused.is_none() && state.outbound.unacknowledged() == 0 {
                return Ok(true);
            }
            self.shared.check(&mut state)?;
            self.shared.push(state, true);
            Ok(false)
        })
    }

    /// Waits until [`wait`](Self::wait) would not, whatever it would say then, and takes nothing: false when the time was over.
    pub fn wait_settled(&self, deadline: Deadline) -> Result<bool> {
        self.check_process()?;
        let settled = self.wait_until(deadline, |state| {
            let told = state.refused.is_some() || state.ended.is_some();
            Ok(told || state.outbound.unacknowledged() == 0)
        });
        match settled {
            Err(Error::Timeout) => Ok(false),
            other => other.map(|()| true),
        }
    }

    /// Waits as [`wait`](Self::wait) does, until `deadline`, says goodbye and ends the thread. An error
    /// says what is not acknowledged; the client is closed all the same, unless a signal came
    /// ([`Error::Interrupted`]).
    pub fn close(&self, deadline: Deadline) -> Result<()> {
        self.check_process()?;
        if matches!(self.shared.lock().ended, Some(Ended::Closed)) {
            return Ok(());
        }
        let flushed = match self.wait(deadline) {
            Err(Error::Interrupted) => return Err(Error::Interrupted),
            Err(Error::Timeout) => {
                let why = "it was closed before everything was acknowledged".to_owned();
                let advice = "Give close() a longer timeout, or see whether the learner still takes them";
                Err(self.shared.closed(&self.shared.lock(), why, advice))
            }
            other => other,
        };
        self.end();
        flushed
    }

    /// Ends the thread, with a goodbye if there is somebody to say it to.
    fn end(&self) {
        self.shared.connector.request_stop();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
        self.shared.lock().ended = Some(Ended::Closed);
        self.shared.progress.notify();
    }

    /// How far the learner is, as of its last answer, and with what we have sent since among what waits. Asks again: the
    /// answer is there soon, for the next call.
    pub(super) fn news(&self) -> News {
        if self.check_process().is_err() {
            return News::default();
        }
        let mut state = self.shared.lock();
        let LearnerReport { news, counted, asked } = state.report;
        let since = state.outbound.next.saturating_sub(counted);
        if !asked && state.link.is_some() {
            state.report.asked = state.outbound.queue(&Header::new(Kind::Ping).bytes());
            self.shared.push(state, false);
        }
        News { waiting: since.saturating_add(news.waiting as u64).min(u32::MAX as u64) as u32, ..news }
    }

    /// Samples, or records, that were taken.
    pub fn sent(&self) -> u64 {
        self.read(|state| state.outbound.next)
    }

    /// Those that the learner has settled.
    pub fn acknowledged(&self) -> u64 {
        self.read(|state| state.outbound.acked)
    }

    pub fn unacknowledged(&self) -> u64 {
        self.read(|state| state.outbound.unacknowledged())
    }

    /// How much room for records the learner has, for all of its clients; `None` before it was reached, and where it has more
    /// than the largest record may take.
    pub fn lane_bytes(&self) -> Option<u64> {
        self.read(|state| state.outbound.lane_bytes())
    }

    /// The name on what we send, once the learner has said it.
    pub fn producer_id(&self) -> Option<u32> {
        self.read(|state| state.producer_id)
    }

    /// Whether it was closed by its owner.
    pub fn is_closed(&self) -> bool {
        self.read(|state| matches!(state.ended, Some(Ended::Closed)))
    }

    /// Whether it is of no more use, for whatever reason.
    pub fn is_over(&self) -> bool {
        self.read(|state| state.ended.is_some())
    }

    /// Whether there is a connection now.
    pub fn is_connected(&self) -> bool {
        self.read(|state| state.link.is_some())
    }

    pub fn stats(&self) -> ClientStats {
        self.shared.counters.snapshot()
    }

    /// In a forked child the lock may be held by a thread that is not there.
    pub(super) fn read<T: Default>(&self, look: impl FnOnce(&State) -> T) -> T {
        if self.check_process().is_err() { T::default() } else { look(&self.shared.lock()) }
    }

    fn check_process(&self) -> Result<()> {
        if self.pid != std::process::id() {
            return Err(Error::Forked { what: "client", owner: self.pid });
        }
        Ok(())
    }

    /// Looks again whenever the thread has news.
    fn wait_until(
        &self,
        deadline: Deadline,
        mut done: impl FnMut(MutexGuard<'_, State>) -> Result<bool>,
    ) -> Result<()> {
        loop {
            let ticket = self.shared.progress.announce();
            if done(self.shared.lock())? {
                return Ok(());
            }
            let Some(left) = deadline.remaining() else { return Err(Error::Timeout) };
            if self.shared.progress.wait(ticket, left) == Woken::Interrupted {
                return Err(Error::Interrupted);
            }
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if self.check_process().is_ok() {
            self.end();
        }
    }
}
