//! The worker's end: takes samples or records, keeps them until the learner has them, connects and reconnects.
//!
//! [`TcpClient`](super::TcpClient) and [`TcpRecordClient`](super::TcpRecordClient) fill the frames. With nothing under way a
//! frame leaves at once, on the calling thread; otherwise samples gather until an acknowledgement comes, the frame is full, or
//! 100 µs are over. One thread per client connects, reads acknowledgements, writes what the socket did not take at once, and
//! reconnects.
//!
//! ```text
//! start ──▶ dialling ──welcome──▶ connected ──broken──▶ dialling (backoff, until `reconnect_timeout`)
//!              │                      │
//!              └──── refused, ring closed, too late, closed by us ──▶ ended, with the reason
//! ```
//!
//! With [`OnRestart::Drop`](crate::policies::OnRestart) or `Resend` a learner that closes, or that does not know this client, is no
//! end: the client dials again, and goes on with the learner that follows.
//!
//! Calls wait on a futex that signals interrupt ([`Error::Interrupted`]: call again). The next caller gets the thread's error.

use super::client_thread::ClientThread;
use super::disconnect::Ended;
use super::outbound::Outbound;
use super::packing::Layout;
use super::shared::{LearnerReport, Node, Shared, State};
use super::spec::TcpClientSpec;
use crate::error::{Error, Result};
use crate::net::wire::frame::{Header, Kind, LearnerStatus, MAX_SCHEMA_BYTES};
use crate::net::wire::limits::{check, check_at_least_one, check_at_most};
use crate::net::wire::stats::{ClientCounters, ClientStats};
use crate::net::wire::token::random;
use crate::ring::Deadline;
use crate::sys::sync::Ordering;
use crate::sys::thread::OwnedThread;
use std::sync::{Arc, Mutex, MutexGuard};

/// What clients of samples and of records have in common. Threads may share it.
#[derive(Debug)]
pub struct Client {
    pub(super) shared: Arc<Shared>,
    thread: OwnedThread,
}

impl Client {
    /// Begins to connect, and returns at once; [`ready`](Self::ready) says how it went.
    pub(super) fn start(spec: TcpClientSpec, schema: &[u8], layout: Layout) -> Result<Client> {
        Self::start_session(spec, schema, layout, random()?, None, |_, _| Ok(())).map(|(client, ())| client)
    }

    /// As [`start`](Self::start), with a session that may have begun earlier. `begin` is called before the first connection.
    pub(super) fn start_session<T>(
        spec: TcpClientSpec,
        schema: &[u8],
        layout: Layout,
        session: [u8; 16],
        node: Option<Node>,
        begin: impl FnOnce(&Arc<Shared>, &mut Outbound) -> Result<T>,
    ) -> Result<(Client, T)> {
        check_at_most("schema bytes", schema.len(), MAX_SCHEMA_BYTES)?;
        check_at_least_one("max_inflight_msgs", spec.max_inflight_msgs)?;
        if let Some(most) = spec.max_unacknowledged {
            check_at_least_one("max_unacknowledged", most)?;
        }
        let has_number = spec.producer_id != Some(u32::MAX);
        check(has_number, "producer_id", u32::MAX as usize, "at most 4294967294")?;
        let shared = Arc::new(Shared {
            connector: spec.connector()?,
            schema: schema.to_vec(),
            session,
            node,
            on_restart: spec.on_restart,
            state: Mutex::new(State {
                outbound: Outbound::new(layout, spec.max_inflight_msgs, spec.max_unacknowledged),
                link: None,
                producer_id: spec.producer_id,
                published: 0,
                report: LearnerReport::default(),
                last_error: None,
                ended: None,
                refused: None,
                refused_until: 0,
                broken: false,
                watches_out: false,
                watches_clock: false,
                called: false,
            }),
            counters: ClientCounters::default(),
        });
        let mut state = shared.lock(); // The thread needs it for the first connection.
        let thread = OwnedThread::spawn("rollway-client", {
            let shared = shared.clone();
            move || ClientThread::new(&shared).run()
        })?;
        let begun = begin(&shared, &mut state.outbound);
        drop(state);
        let client = Client { shared, thread };
        begun.map(|begun| (client, begun))
    }

    /// Waits for the first connection, for at most `connect_timeout`.
    pub fn ready(&self, deadline: Deadline) -> Result<()> {
        self.wait_until(deadline, |mut state| {
            self.shared.check(&mut state)?;
            Ok(self.shared.counters.connects.load(Ordering::Relaxed) > 0)
        })
    }

    /// Calls `append` until it has put `want` samples or records into the outbound queue. `append` gets the number before, and
    /// returns how many it put; 0 when there is no room. Takes fewer than `want` when the time is over or a signal comes.
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

    /// Waits until there is room for a record of so many bytes, or for a sample (`bytes` is 0).
    pub(super) fn wait_room(&self, bytes: u64, deadline: Deadline) -> Result<bool> {
        self.check_process()?;
        let room = self.wait_until(deadline, |state| {
            state.outbound.check_record(bytes)?;
            Ok(state.ended.is_some() || state.outbound.has_room(bytes))
        });
        in_time(room)
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

    /// Waits until [`wait`](Self::wait) would return at once. False when the time was over first.
    pub fn wait_settled(&self, deadline: Deadline) -> Result<bool> {
        self.check_process()?;
        let settled = self.wait_until(deadline, |state| {
            let told = state.refused.is_some() || state.ended.is_some();
            Ok(told || state.outbound.unacknowledged() == 0)
        });
        in_time(settled)
    }

    /// Waits as [`wait`](Self::wait) does, says goodbye and ends the thread. An error says what is not acknowledged; the client is
    /// closed all the same, except after [`Error::Interrupted`].
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

    /// Ends the thread, which says goodbye if there is a connection.
    pub(super) fn end(&self) {
        self.shared.connector.request_stop();
        self.thread.join();
        self.shared.lock().ended = Some(Ended::Closed);
        self.shared.connector.progress.notify();
    }

    /// The learner's last answer, plus what was sent since. Asks again, for the next call.
    pub(super) fn learner_status(&self) -> LearnerStatus {
        if self.check_process().is_err() {
            return LearnerStatus::default();
        }
        let mut state = self.shared.lock();
        let LearnerReport { status, counted, asked } = state.report;
        let since = state.outbound.next.saturating_sub(counted);
        if !asked && state.link.is_some() {
            state.report.asked = state.outbound.queue(&Header::new(Kind::Ping).bytes());
            self.shared.push(state, false);
        }
        LearnerStatus {
            waiting: since.saturating_add(status.waiting as u64).min(u32::MAX as u64) as u32,
            ..status
        }
    }

    /// Samples, or records, that were taken.
    pub fn sent(&self) -> u64 {
        self.read(|state| state.outbound.next)
    }

    /// Those that a learner has settled.
    pub fn acknowledged(&self) -> u64 {
        let dropped = &self.shared.counters.dropped; // Changed under the lock.
        self.read(|state| state.outbound.acked - dropped.load(Ordering::Relaxed))
    }

    pub fn unacknowledged(&self) -> u64 {
        self.read(|state| state.outbound.unacknowledged())
    }

    /// The size of the learner's lane; `None` before it is known, and when it is larger than the largest record may be.
    pub fn lane_bytes(&self) -> Option<u64> {
        self.read(|state| state.outbound.lane_bytes())
    }

    /// The number on what we send, once it is known.
    pub fn producer_id(&self) -> Option<u32> {
        self.read(|state| state.producer_id)
    }

    /// Whether it was closed by its owner.
    pub fn is_closed(&self) -> bool {
        self.read(|state| matches!(state.ended, Some(Ended::Closed)))
    }

    /// Whether it ended, for whatever reason.
    pub fn is_over(&self) -> bool {
        self.read(|state| state.ended.is_some())
    }

    /// Whether there is a connection now.
    pub fn is_connected(&self) -> bool {
        self.read(|state| state.link.is_some())
    }

    /// Why there is no connection; `None` while there is one, and before the first attempt has failed.
    pub fn last_error(&self) -> Option<String> {
        self.read(|state| state.last_error.clone())
    }

    pub fn stats(&self) -> ClientStats {
        self.shared.counters.snapshot()
    }

    /// In a forked child the lock may be held by a thread that is not there.
    pub(super) fn read<T: Default>(&self, look: impl FnOnce(&State) -> T) -> T {
        if self.check_process().is_err() { T::default() } else { look(&self.shared.lock()) }
    }

    pub(super) fn check_process(&self) -> Result<()> {
        self.thread.check_process("client")
    }

    /// Checks again whenever the thread reports progress.
    pub(super) fn wait_until(
        &self,
        deadline: Deadline,
        mut done: impl FnMut(MutexGuard<'_, State>) -> Result<bool>,
    ) -> Result<()> {
        self.shared.connector.wait_until(deadline, || Ok(done(self.shared.lock())?.then_some(())))
    }
}

/// False when the time was over first.
fn in_time(waited: Result<()>) -> Result<bool> {
    match waited {
        Err(Error::Timeout) => Ok(false),
        other => other.map(|()| true),
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if self.check_process().is_ok() {
            self.end();
        }
    }
}
