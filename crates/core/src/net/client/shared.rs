//! What a client's thread and its callers share: the state, and the writing to the socket.

use super::dial::Connector;
use super::disconnect::Ended;
use super::link::{Link, unless_blocked, write_to};
use super::node_buffer::NodeBuffer;
use super::outbound::Outbound;
use crate::error::{Error, Result};
use crate::net::wire::frame::LearnerStatus;
use crate::net::wire::stats::ClientCounters;
use crate::policies::OnRestart;
use crate::sys::thread::lock;
use std::sync::{Mutex, MutexGuard};

/// What the client's thread and its callers share.
#[derive(Debug)]
pub struct Shared {
    pub connector: Connector,
    pub schema: Vec<u8>,
    pub session: [u8; 16],
    /// Of a forwarder: what it empties, where its session is kept.
    pub node: Option<Node>,
    pub on_restart: OnRestart,
    pub state: Mutex<State>,
    pub counters: ClientCounters,
}

/// What a forwarder empties, for the thread that connects.
#[derive(Debug)]
pub struct Node {
    pub buffer: NodeBuffer,
    /// An earlier forwarder has used the session.
    pub is_resumed: bool,
}

/// The learner's last answer about how far it is.
#[derive(Debug, Clone, Copy, Default)]
pub struct LearnerReport {
    pub status: LearnerStatus,
    /// Our records below this number are in the count, if they still wait.
    pub counted: u64,
    /// A ping that asks again is on its way.
    pub asked: bool,
}

#[derive(Debug)]
pub struct State {
    pub outbound: Outbound,
    pub link: Option<Link>,
    pub producer_id: Option<u32>,
    /// The newest weights that the learner announced.
    pub published: u32,
    pub report: LearnerReport,
    /// Why there is no connection; `None` while there is one.
    pub last_error: Option<String>,
    pub ended: Option<Ended>,
    /// Refused by the ring's policy, and no caller knows: first, and how many.
    pub refused: Option<(u64, u64)>,
    /// Refusals below this number are known; after a reconnect the learner may repeat some.
    pub refused_until: u64,
    /// A write failed; the thread has to see what came before it.
    pub broken: bool,
    /// What the thread waits for, so that callers need not wake it for that.
    pub watches_out: bool,
    pub watches_clock: bool,
    /// A caller has woken the thread, which has not looked since.
    pub called: bool,
}

impl Shared {
    /// Wakes the callers that wait, and the thread that takes batches or records.
    pub fn notify(&self) {
        self.connector.progress.notify_if_waiting();
        if let Some(node) = &self.node {
            node.buffer.wake_taker();
        }
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// The error of a connection that ended while something was not acknowledged.
    pub fn closed(&self, state: &State, why: String, advice: &'static str) -> Error {
        Error::ConnectionClosed {
            address: self.connector.address(),
            why,
            content: state.outbound.layout().content().name(),
            unacknowledged: state.outbound.unacknowledged(),
            first: state.outbound.acked,
            advice,
        }
    }

    /// What the next caller has to learn before anything else: a refusal, or why the client ended.
    pub fn check(&self, state: &mut State) -> Result<()> {
        if let Some((first, count)) = state.refused.take() {
            return Err(Error::Refused { content: state.outbound.layout().content().name(), first, count });
        }
        match state.ended.clone() {
            Some(ended) => {
                let advice = ended.advice();
                let lost = |why| self.closed(state, why, advice);
                Err(ended.error(self.connector.address(), &self.schema, lost))
            }
            None => Ok(()),
        }
    }

    /// Writes what the socket takes, unless another thread does. Releases the lock for each write.
    pub fn pump<'a>(&'a self, mut state: MutexGuard<'a, State>, eager: bool) -> MutexGuard<'a, State> {
        loop {
            if state.broken {
                return state;
            }
            let State { outbound, link: Some(link), .. } = &mut *state else { return state };
            match unless_blocked(link.flush()) {
                Ok(Some(())) => {}
                flushed => {
                    (state.outbound.blocked, state.broken) = (flushed.is_ok(), flushed.is_err());
                    return state;
                }
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

    /// Writes on the caller's thread, and wakes the client's thread for the rest. With data under way the client's thread does all
    /// of it, so that copying and writing overlap.
    pub fn push<'a>(&'a self, state: MutexGuard<'a, State>, eager: bool) {
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
