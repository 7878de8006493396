//! `Forwarder`: sends on what the workers of a node write into its ring.
//!
//! ```text
//! workers ──claim, write, commit──▶ ring of the node ──BatchTaker──▶ frames ──ClientThread──▶ learner
//!                                     ▲    └───────── the bytes are sent from here ─────────▲    │
//!                                     └────── released when all of it is acknowledged ──────┴────┘
//! ```
//!
//! It is a consumer of the ring, its only one, and a [`Client`] of the learner. A batch stays in the ring until the learner has
//! acknowledged all of it. The session and its numbers lie in the ring, too ([`crate::ring::forwarding`]): a forwarder that is
//! started after another one died continues its session, so the learner tells what it has.
//!
//! A forwarder that ends without [`close`](Forwarder::close), or because its learner was away for too long, leaves the ring: the
//! next one goes on with what is there.

use super::batch_taker::BatchTaker;
use super::disconnect::Ended;
use super::forwarded_batch::BatchRows;
use super::handle::Client;
use super::outbound::Outbound;
use super::packing::Layout;
use super::shared::{NodeRing, Shared};
use super::spec::TcpClientSpec;
use crate::error::{Error, Result};
use crate::net::wire::limits::{MAX_FRAME_BYTES, MAX_FRAME_ROWS, MAX_SAMPLE_BYTES, check_at_most};
use crate::net::wire::token::random;
use crate::ring::{Consumer, Deadline, Ring, RingSpec};
use crate::sys::sync::{AtomicBool, Ordering};
use crate::sys::thread::OwnedThread;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Instant;

/// The first number for the workers of a node that bring none, at least. The learner's own workers have smaller ones.
const FIRST_ID: u32 = 1 << 31;
/// Workers of a node, at least, before their numbers are used up.
const IDS: u32 = 1 << 20;

/// One node's connection to a learner's ring. Threads may share it.
#[derive(Debug)]
pub struct Forwarder {
    client: Client,
    ring: Arc<Ring>,
    taker: OwnedThread,
    leaves_ring: Arc<AtomicBool>,
}

impl Forwarder {
    /// Makes the ring, or goes on with the one that is there, begins to connect, and returns at once; [`ready`](Client::ready) says
    /// how it went.
    pub fn start(spec: TcpClientSpec, ring: &RingSpec<'_>) -> Result<Forwarder> {
        let sample_bytes = ring.leaf_bytes.iter().sum::<usize>();
        check_at_most("sample bytes", sample_bytes, MAX_SAMPLE_BYTES)?;
        let first_id = FIRST_ID + u32::from_ne_bytes(random()?) % (u32::MAX - FIRST_ID - IDS);
        let consumer = Arc::new(Consumer::open_alone(ring, first_id)?);
        let started = Self::start_threads(spec, ring, consumer.clone());
        if started.is_err() {
            let _ = Consumer::abandon(consumer); // What an earlier forwarder left stays there.
        }
        started
    }

    fn start_threads(spec: TcpClientSpec, ring: &RingSpec<'_>, consumer: Arc<Consumer>) -> Result<Forwarder> {
        let (session, is_resumed) = consumer.session(random()?);
        let sample_bytes = ring.leaf_bytes.iter().sum::<usize>().max(1);
        let capacity = (MAX_FRAME_BYTES / sample_bytes).clamp(1, MAX_FRAME_ROWS);
        let layout = Layout::forwarded(ring.leaf_bytes, capacity);
        let node_ring = NodeRing { ring: consumer.ring().clone(), is_resumed };
        let leaves_ring = Arc::new(AtomicBool::new(true));
        // Both threads run before batches are taken: what fails after that would let go of them.
        let begin = |shared: &Arc<Shared>, outbound: &mut Outbound| {
            let (consumer, leaves_ring) = (consumer.clone(), leaves_ring.clone());
            let taker = BatchTaker {
                shared: shared.clone(),
                consumer: consumer.clone(),
                leaves_ring,
                last_taken: Instant::now(),
            };
            let taker = OwnedThread::spawn("rollway-forwarder", move || taker.run())?;
            let (numbered, next) = Consumer::take_numbered(&consumer)?;
            outbound.restore(next, numbered.into_iter().map(|(_, batch)| BatchRows::all(batch)).collect());
            Ok(taker)
        };
        let schema = ring.schema;
        let (client, taker) = Client::start_session(spec, schema, layout, session, Some(node_ring), begin)?;
        Ok(Forwarder { client, ring: consumer.ring().clone(), taker, leaves_ring })
    }

    pub fn ring(&self) -> &Arc<Ring> {
        &self.ring
    }

    /// Waits until everything that workers have committed so far is acknowledged: committed by the learner. Closes unfinished
    /// batches early for that.
    pub fn wait(&self, deadline: Deadline) -> Result<()> {
        self.check_process()?;
        let last = self.ring.newest_batch();
        self.ring.flush()?;
        self.wait_settled(deadline, || self.ring.is_numbered_until(last, false))
    }

    /// Waits until `are_numbered`, and what has a number then is acknowledged.
    fn wait_settled(&self, deadline: Deadline, are_numbered: impl Fn() -> bool) -> Result<()> {
        let mut end = None;
        self.wait_until(deadline, |mut state| {
            if end.is_none() && are_numbered() {
                end = Some(state.outbound.next);
            }
            if end.is_some_and(|end| state.outbound.acked >= end) && state.ended.is_none() {
                state.refused.take();
                return Ok(true);
            }
            match &state.ended {
                Some(ended) => Err(self.explain(ended)),
                None => Ok(false),
            }
        })
    }

    /// Shuts the ring down, so that workers get an error, waits until everything is acknowledged, and ends. When that does not
    /// succeed in time, the ring stays as it is, for workers and for the next forwarder; the error says how much is in it. It is
    /// ended all the same, except after [`Error::Interrupted`].
    pub fn close(&self, deadline: Deadline) -> Result<()> {
        self.check_process()?;
        if self.client.is_closed() {
            return Ok(());
        }
        let sent = self.wait(deadline).and_then(|()| {
            self.ring.shut_down();
            self.ring.flush()?;
            let last = self.ring.newest_batch();
            let settled = self.wait_settled(deadline, || self.ring.is_numbered_until(last, true));
            settled.inspect_err(|_| self.ring.reopen())
        });
        let closed = match sent {
            Err(Error::Interrupted) => return Err(Error::Interrupted),
            Err(Error::Timeout) => {
                Err(self.unsettled("it was closed before the learner had everything".to_owned()))
            }
            sent => sent,
        };
        self.leaves_ring.store(closed.is_err(), Ordering::Relaxed);
        self.end();
        closed
    }

    /// Ends as if this process had been killed: what is in the ring stays there for the next forwarder. Without samples or workers,
    /// the name goes. Idempotent.
    pub fn abandon(&self) {
        if self.check_process().is_ok() {
            self.end();
        }
    }

    /// Ends at once, and shuts the ring down, with what the learner does not have: workers get an error. Idempotent.
    pub fn discard(&self) {
        if self.check_process().is_ok() {
            self.leaves_ring.store(false, Ordering::Relaxed); // First: the taker may end when the ring is shut down.
            self.ring.shut_down();
            self.end();
        }
    }

    fn end(&self) {
        self.client.end();
        self.client.shared.notify();
        self.taker.join();
    }

    /// Why it ended, if it was not closed.
    pub fn error(&self) -> Option<Error> {
        let ended = self.client.read(|state| state.ended.clone());
        ended.filter(|ended| !matches!(ended, Ended::Closed)).map(|ended| self.explain(&ended))
    }

    fn explain(&self, ended: &Ended) -> Error {
        let (address, schema) = (self.client.shared.connector.address(), &self.client.shared.schema);
        ended.clone().error(address, schema, |why| self.unsettled(why))
    }

    /// The error of a forwarder that ended before everything was acknowledged.
    fn unsettled(&self, why: String) -> Error {
        Error::NotForwarded {
            address: self.client.shared.connector.address(),
            why,
            name: self.ring.segment().name().to_owned(),
            samples: self.ring.census().committed(),
        }
    }
}

impl Deref for Forwarder {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.abandon();
    }
}
