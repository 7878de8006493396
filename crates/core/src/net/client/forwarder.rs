//! `Forwarder`: sends on what the workers of a node write into its ring, or into its lanes for records.
//!
//! ```text
//! workers ──reserve, write, commit──▶ segment of the node ──Taker──▶ frames ──ClientThread──▶ learner
//!                                     ▲    └───────── the bytes are sent from here ─────────▲    │
//!                                     └──── released when the learner has acknowledged it ──┴────┘
//! ```
//!
//! It is a consumer of the segment, its only one, and a [`Client`] of the learner. A batch stays in the ring until the learner has
//! acknowledged all of it, and so does a record in its lane. The session and its numbers lie in the segment, too
//! ([`crate::ring::forwarding`], [`crate::records::forwarding`]): a forwarder that is started after another one died continues its
//! session, so the learner tells what it has.
//!
//! A forwarder that ends without [`close`](Forwarder::close), or because its learner was away for too long, leaves the segment: the
//! next one goes on with what is there.

use super::batch_taker::BatchTaker;
use super::disconnect::Ended;
use super::forwarded_batch::BatchRows;
use super::handle::Client;
use super::node_buffer::NodeBuffer;
use super::outbound::Outbound;
use super::packing::Layout;
use super::record_taker::RecordTaker;
use super::shared::{Node, Shared};
use super::spec::TcpClientSpec;
use super::taker::{self, Taker};
use crate::error::{Error, Result};
use crate::net::wire::limits::{MAX_FRAME_BYTES, MAX_FRAME_ROWS, MAX_SAMPLE_BYTES, check_at_most};
use crate::net::wire::token::random;
use crate::records::{self, RecordsSpec};
use crate::ring::{Consumer, Deadline, RingSpec};
use crate::sys::sync::{AtomicBool, Ordering};
use crate::sys::thread::OwnedThread;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Instant;

/// The first number for the workers of a node that bring none, at least. The learner's own workers have smaller ones.
const FIRST_ID: u32 = 1 << 31;
/// Workers of a node, at least, before their numbers are used up.
const IDS: u32 = 1 << 20;

/// One node's connection to a learner. Threads may share it.
#[derive(Debug)]
pub struct Forwarder {
    client: Client,
    buffer: NodeBuffer,
    taker: OwnedThread,
    /// Whether what workers have committed stays for the next forwarder.
    leaves: Arc<AtomicBool>,
}

impl Forwarder {
    /// Makes the ring, or goes on with the one that is there, begins to connect, and returns at once; [`ready`](Client::ready) says
    /// how it went.
    pub fn start(spec: TcpClientSpec, ring: &RingSpec<'_>) -> Result<Forwarder> {
        let sample_bytes = ring.leaf_bytes.iter().sum::<usize>();
        check_at_most("sample bytes", sample_bytes, MAX_SAMPLE_BYTES)?;
        let capacity = (MAX_FRAME_BYTES / sample_bytes.max(1)).clamp(1, MAX_FRAME_ROWS);
        let layout = Layout::forwarded(ring.leaf_bytes, capacity);
        let consumer = Arc::new(Consumer::open_alone(ring, first_id()?)?);
        let buffer = NodeBuffer::Ring(consumer.ring().clone());
        let taker = |shared| BatchTaker { shared, consumer: consumer.clone(), last_taken: Instant::now() };
        let restore = |outbound: &mut Outbound| {
            let (numbered, next) = Consumer::take_numbered(&consumer)?;
            let rows = numbered.iter().map(|(_, batch)| batch.len()).sum();
            let batches = numbered.into_iter().map(|(_, batch)| BatchRows::all(batch));
            outbound.restore(next, rows, |outbound| batches.for_each(|batch| outbound.append_batch(batch)));
            Ok(())
        };
        let started = Self::start_threads(spec, ring.schema, layout, buffer, taker, restore);
        if started.is_err() {
            drop(Consumer::abandon(consumer)); // What an earlier forwarder left stays there, and a new ring goes.
        }
        started
    }

    /// As [`start`](Self::start), for records.
    pub fn start_records(spec: TcpClientSpec, records: &RecordsSpec<'_>) -> Result<Forwarder> {
        let consumer = Arc::new(records::Consumer::open_alone(records, first_id()?)?);
        let buffer = NodeBuffer::Records(consumer.records().clone());
        let taker = |shared| RecordTaker { shared, consumer: consumer.clone(), last_taken: None };
        let restore = |outbound: &mut Outbound| {
            let (numbered, next) = records::Consumer::take_numbered(&consumer)?;
            let rows = numbered.len();
            outbound.restore(next, rows, |outbound| outbound.append_records(numbered));
            Ok(())
        };
        let layout = Layout::ForwardedRecords;
        let started = Self::start_threads(spec, records.schema, layout, buffer, taker, restore);
        if started.is_err() {
            drop(records::Consumer::abandon(consumer));
        }
        started
    }

    fn start_threads<T: Taker>(
        spec: TcpClientSpec,
        schema: &[u8],
        layout: Layout,
        buffer: NodeBuffer,
        taker: impl FnOnce(Arc<Shared>) -> T,
        restore: impl FnOnce(&mut Outbound) -> Result<()>,
    ) -> Result<Forwarder> {
        let (session, is_resumed) = buffer.forwarding().session(random()?);
        let node = Node { buffer: buffer.clone(), is_resumed };
        let leaves = Arc::new(AtomicBool::new(true));
        // Both threads run before anything is taken: what fails after that would let go of it.
        let begin = |shared: &Arc<Shared>, outbound: &mut Outbound| {
            let (taker, shared, leaves) = (taker(shared.clone()), shared.clone(), leaves.clone());
            let thread =
                OwnedThread::spawn("rollway-forwarder", move || taker::run(&shared, &leaves, taker))?;
            restore(outbound)?;
            Ok(thread)
        };
        let (client, taker) = Client::start_session(spec, schema, layout, session, Some(node), begin)?;
        Ok(Forwarder { client, buffer, taker, leaves })
    }

    /// What it empties.
    pub fn buffer(&self) -> &NodeBuffer {
        &self.buffer
    }

    /// Waits until everything that workers have committed so far is acknowledged: committed by the learner. Closes unfinished
    /// batches early for that.
    pub fn wait(&self, deadline: Deadline) -> Result<()> {
        self.check_process()?;
        let mark = self.buffer.mark()?;
        self.wait_settled(deadline, || self.buffer.is_numbered_until(&mark, false))
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

    /// Shuts the segment down, so that workers get an error, waits until everything is acknowledged, and ends. When that does not
    /// succeed in time, the segment stays as it is, for workers and for the next forwarder; the error says how much is in it. It is
    /// ended all the same, except after [`Error::Interrupted`].
    pub fn close(&self, deadline: Deadline) -> Result<()> {
        self.check_process()?;
        if self.client.is_closed() {
            return Ok(());
        }
        let sent = self.wait(deadline).and_then(|()| {
            self.buffer.shut_down();
            self.buffer.mark()?; // Closes what was unfinished: what a worker had claimed may be behind it.
            let mark = self.buffer.mark()?;
            let settled = self.wait_settled(deadline, || self.buffer.is_numbered_until(&mark, true));
            settled.inspect_err(|_| self.buffer.reopen())
        });
        let closed = match sent {
            Err(Error::Interrupted) => return Err(Error::Interrupted),
            Err(Error::Timeout) => {
                Err(self.unsettled("it was closed before the learner had everything".to_owned()))
            }
            sent => sent,
        };
        self.leaves.store(closed.is_err(), Ordering::Relaxed);
        self.end();
        closed
    }

    /// Ends as if this process had been killed: what is in the segment stays there for the next forwarder. Without data or
    /// workers, the name goes. Idempotent.
    pub fn abandon(&self) {
        if self.check_process().is_ok() {
            self.end();
        }
    }

    /// Ends at once, and shuts the segment down, with what the learner does not have: workers get an error. Idempotent.
    pub fn discard(&self) {
        if self.check_process().is_ok() {
            self.leaves.store(false, Ordering::Relaxed); // First: the taker may end at the shutdown.
            self.buffer.shut_down();
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
            name: self.buffer.segment().name().to_owned(),
            content: self.buffer.content(),
            count: self.buffer.committed(),
        }
    }
}

/// The first number for the workers of a new segment that bring none.
fn first_id() -> Result<u32> {
    Ok(FIRST_ID + u32::from_ne_bytes(random()?) % (u32::MAX - FIRST_ID - IDS))
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
