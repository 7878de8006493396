//! The client's own thread: connects, reads acknowledgements, writes what the callers could not, and connects again.
//!
//! It sleeps on the socket and on the client's wakeup descriptor, never with the lock held. It leaves results and errors in the
//! shared state, and wakes the callers that wait.

use super::dial::{Connector, GOODBYE_TIMEOUT, TIME_IS_UP, dial};
use super::disconnect::{Disconnect, Ended};
use super::link::{unless_blocked, wait_ready};
use super::reconnect::{self, Contact, Reconnecting};
use super::shared::{LearnerReport, Shared, State};
use crate::net::wire::frame::{
    GoodbyeReason, HEADER_BYTES, Header, Hello, Kind, LearnerStatus, MAX_TEXT_BYTES, Welcome, goodbye,
};
use crate::net::wire::stats::add;
use crate::policies::OnRestart;
use std::time::Instant;

const INBOX_BYTES: usize = 2 * (HEADER_BYTES + MAX_TEXT_BYTES);
/// Reads before the thread lets go of the lock.
const READS: usize = 64;

/// The thread of one client.
pub struct ClientThread<'a> {
    shared: &'a Shared,
    contact: Contact,
    /// The learner said that it does not know us: the next hello begins a session there, with what is not acknowledged.
    anew: bool,
    /// The last hello was such a one.
    was_anew: bool,
}

impl<'a> ClientThread<'a> {
    pub fn new(shared: &'a Shared) -> ClientThread<'a> {
        ClientThread { shared, contact: Contact::new(), anew: false, was_anew: false }
    }

    /// The work of the thread. Callers learn why it ended.
    pub fn run(mut self) {
        let ended = reconnect::run(&mut self);
        let mut state = self.shared.lock();
        state.link = None;
        state.ended.get_or_insert(ended);
        drop(state);
        self.shared.connector.progress.notify();
        self.shared.notify();
    }

    fn try_connect(&mut self, deadline: Instant) -> Result<(), Disconnect> {
        let shared = self.shared;
        self.contact.attempts += 1;
        let attempt = match &shared.node {
            Some(node) => node.buffer.forwarding().next_attempt(),
            None => self.contact.attempts,
        };
        // Once only: to a learner that knows us after all, such a hello would be wrong.
        let anew = std::mem::take(&mut self.anew);
        self.was_anew = anew;
        let hello = {
            let state = shared.lock();
            let outbound = &state.outbound;
            Hello {
                content: outbound.layout().content(),
                session: shared.session,
                producer_id: state.producer_id,
                attempt,
                next: if anew { outbound.acked } else { outbound.touched },
                oldest: outbound.acked,
                schema: shared.schema.clone(),
            }
        };
        let (link, header, payload) = dial(&shared.connector, &hello, Kind::Welcome, deadline)?;
        let welcome = Welcome::parse(&header, &payload)?;
        let mut state = shared.lock();
        if anew {
            add(&shared.counters.resent, state.outbound.unknown_fate());
            state.refused_until = state.outbound.acked; // This learner may refuse them again.
        }
        state.outbound.resume(&welcome, &shared.counters).map_err(Ended::Lost)?;
        (state.producer_id, state.published) = (Some(welcome.producer_id), welcome.status.version);
        state.report = LearnerReport { status: welcome.status, counted: welcome.next, asked: false };
        (state.link, state.last_error) = (Some(link), None);
        state.broken = false;
        add(&shared.counters.connects, 1);
        add(&shared.counters.resumed, self.contact.welcomed as u64);
        (self.contact.welcomed, self.contact.heard) = (true, Instant::now());
        drop(state);
        shared.notify();
        Ok(())
    }

    /// Whether a client that was welcomed, perhaps in an earlier process, waits for the next learner when this one ends.
    fn outlives_learners(&self) -> bool {
        let is_resumed = self.shared.node.as_ref().is_some_and(|node| node.is_resumed);
        (self.contact.welcomed || is_resumed) && self.shared.on_restart != OnRestart::Raise
    }

    /// Decides whether a reason ends the client.
    fn judge(&mut self, disconnect: Disconnect) -> Disconnect {
        match disconnect {
            Disconnect::Final(Ended::RingClosed(why) | Ended::Stopping(why)) if self.outlives_learners() => {
                Disconnect::Broken(why)
            }
            Disconnect::Final(Ended::Forgotten(why)) if self.outlives_learners() => {
                let mut state = self.shared.lock();
                if state.outbound.unknown_fate() == 0 {
                    return Disconnect::Final(Ended::Lost(why)); // There is nothing to drop or to send again.
                }
                match self.shared.on_restart {
                    OnRestart::Drop => state.outbound.drop_sent(&self.shared.counters),
                    // A learner that refuses a hello that begins anew knows us after all: it resumed the ring of an earlier one.
                    OnRestart::Resend | OnRestart::Raise => self.anew = !self.was_anew,
                }
                drop(state);
                self.shared.notify();
                Disconnect::Broken(why)
            }
            other => other.map_final(|ended| self.end(ended)),
        }
    }

    /// Reads and writes until the connection breaks (`None`) or the end.
    fn read_and_write(&mut self) -> Option<Ended> {
        let mut inbox = Inbox { bytes: vec![0; INBOX_BYTES], have: 0, skip: 0 };
        let socket = self.shared.lock().link.as_ref()?.socket();
        let mut readable = true; // TLS may hold bytes already.
        let outcome = loop {
            let mut state = self.shared.lock();
            state.called = false;
            let mut more = false;
            if readable || state.broken {
                more = match self.read_frames(&mut state, &mut inbox) {
                    Ok(more) => more,
                    Err(outcome) => break outcome,
                };
                if state.broken && !more {
                    break None;
                }
                state.outbound.blocked = false;
                state = self.shared.pump(state, true);
            }
            if self.shared.connector.is_closing() {
                let goes_on = state.outbound.unacknowledged() > 0 && self.shared.node.is_some();
                drop(state);
                if !goes_on {
                    self.say_goodbye(&socket); // Otherwise the next forwarder continues the session.
                }
                break Some(Ended::Closed);
            }
            let keepalive = self.shared.connector.keepalive();
            match self.contact.check_silence(keepalive) {
                Ok(false) => {}
                Ok(true) => {
                    state.outbound.queue(&Header::new(Kind::Ping).bytes());
                    state.outbound.blocked = false;
                }
                Err(_) => break None,
            }
            state = self.shared.pump(state, false);
            if state.broken {
                continue;
            }
            let gathers = state.outbound.flush_at();
            (state.watches_out, state.watches_clock) = (state.outbound.blocked, gathers.is_some());
            let writing = state.outbound.blocked;
            drop(state);
            let now = Instant::now();
            let check = if more { now } else { now + keepalive / 2 };
            let until = gathers.unwrap_or(check).min(check);
            match wait_ready(Some(&socket), &self.shared.connector.wakeup, writing, until) {
                Ok(seen) => {
                    readable = seen.readable || more;
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

    /// Reads what there is, or much of it (true: there may be more). An error ends the connection (`None`), or the client.
    fn read_frames(&mut self, state: &mut State, inbox: &mut Inbox) -> Result<bool, Option<Ended>> {
        let mut heard = false;
        let mut read_all = || {
            for _ in 0..READS {
                let link = state.link.as_mut().ok_or(None)?;
                let read = unless_blocked(link.read(&mut inbox.bytes[inbox.have..])).map_err(|_| None)?;
                let Some(read) = read else { return Ok(false) };
                heard = true;
                inbox.have += read;
                self.handle_frames(state, inbox)?;
            }
            Ok(true)
        };
        let outcome = read_all();
        if heard {
            self.contact.heard = Instant::now();
            self.shared.notify();
        }
        outcome
    }

    /// Takes the whole frames out of the inbox.
    fn handle_frames(&self, state: &mut State, inbox: &mut Inbox) -> Result<(), Option<Ended>> {
        let damaged = |what: &str| Some(Ended::Lost(format!("the learner broke the protocol: {what}")));
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
                    state.published = header.version;
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
                    state.published = header.version;
                    state.outbound.queue(&Header { kind: Kind::Pong, ..header }.bytes());
                    state.outbound.blocked = false;
                }
                Kind::Pong => {
                    state.published = header.version;
                    state.report = LearnerReport {
                        status: LearnerStatus::of(&header),
                        counted: header.sequence,
                        asked: false,
                    };
                }
                Kind::Goodbye => {
                    let Some(text) =
                        inbox.bytes[..inbox.have].get(HEADER_BYTES..HEADER_BYTES + header.length as usize)
                    else {
                        return Ok(()); // Not whole.
                    };
                    return Err(match GoodbyeReason::from_code(header.code) {
                        Some(GoodbyeReason::TooSlow | GoodbyeReason::Silent) => None,
                        _ => Some(Ended::from_goodbye(header.code, text)),
                    });
                }
                Kind::Extension(_) => inbox.skip = header.length,
                _ => return Err(damaged("a frame is out of turn")),
            }
            inbox.consume(HEADER_BYTES);
        }
    }

    /// Says goodbye, if the socket takes it.
    fn say_goodbye(&self, socket: &std::net::TcpStream) {
        let until = Instant::now() + GOODBYE_TIMEOUT;
        self.shared.lock().outbound.finish_with(&goodbye(GoodbyeReason::Finished, ""));
        while Instant::now() < until {
            let mut state = self.shared.lock();
            state.outbound.blocked = false;
            let state = self.shared.pump(state, true);
            if state.broken || state.outbound.control_is_sent() {
                return;
            }
            drop(state);
            let _ = wait_ready(Some(socket), &self.shared.connector.wakeup, true, until);
        }
    }
}

impl Reconnecting for ClientThread<'_> {
    type Link = ();
    type End = Ended;

    fn connector(&self) -> &Connector {
        &self.shared.connector
    }

    fn contact(&mut self) -> &mut Contact {
        &mut self.contact
    }

    fn connect(&mut self, deadline: Instant) -> Result<(), Disconnect> {
        self.try_connect(deadline).map_err(|disconnect| self.judge(disconnect))
    }

    fn serve(&mut self, (): ()) -> Disconnect {
        let disconnect = match self.read_and_write() {
            None => Disconnect::Late(TIME_IS_UP.to_owned()),
            Some(ended) => Disconnect::Final(ended),
        };
        self.judge(disconnect)
    }

    fn progress(&self) -> u64 {
        self.shared.lock().outbound.acked
    }

    fn connect_failed(&self) {
        add(&self.shared.counters.failed_connects, 1);
    }

    fn disconnected(&self, why: &str) {
        self.shared.lock().last_error = Some(why.to_owned());
    }

    fn end(&self, ended: Ended) -> Ended {
        match self.contact.welcomed {
            // What the learner expects now is worth an error of its own.
            true if self.outlives_learners() && matches!(ended, Ended::Schema(_)) => ended,
            true => ended.after_welcome("the learner came back with another schema"),
            false => ended,
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
