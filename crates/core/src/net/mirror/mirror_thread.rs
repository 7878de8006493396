//! The thread of a mirror: connects, fetches, and connects again, until something ends it.

use super::connection::MirrorConnection;
use super::inventory::check_inventory;
use super::shared::{Ended, LocalCopy, Shared};
use crate::error::{Error, Result};
use crate::net::client::dial::{Connector, dial};
use crate::net::client::failure::Failure;
use crate::net::client::link::Link;
use crate::net::client::reconnect::{Disconnect, Reconnecting, reconnect};
use crate::net::wire::frame::{Content, Hello, Inventory, Kind, MAX_SCHEMA_BYTES};
use crate::net::wire::stats::add;
use crate::net::wire::token::random;
use crate::sys::sync::Ordering;
use crate::weights::{Reader, WeightsSpec, mirror};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The mirror's thread: connects, fetches, and connects again.
pub struct MirrorThread<'a> {
    shared: &'a Shared,
    session: [u8; 16],
    attempt: u32,
    /// When the learner was last heard, or the connection was lost.
    contact: Instant,
    /// What the next version goes into: that of the callers, or its successor (M1).
    local: Option<Arc<LocalCopy>>,
}

impl<'a> MirrorThread<'a> {
    pub fn new(shared: &'a Shared) -> MirrorThread<'a> {
        let session = random().unwrap_or_default(); // Nothing hangs on it.
        MirrorThread { shared, session, attempt: 0, contact: Instant::now(), local: None }
    }

    /// The whole life of the thread. Whatever ends it, the callers are told.
    pub fn run(mut self) {
        let work = std::panic::AssertUnwindSafe(|| reconnect(&mut self));
        let error = std::panic::catch_unwind(work).unwrap_or_else(|_| {
            self.shared.lost("the thread that receives them failed; this is a bug in Rollway".to_owned())
        });
        let why = match &error {
            Error::WeightsLost { why, .. } => why.clone(),
            Error::Closed => "this copy was closed".to_owned(),
            other => other.to_string(),
        };
        let mut state = self.shared.lock();
        // Who comes later is told why nothing comes; the kind of the error is for who waits for the first connection.
        let error = state.local.is_none().then_some(error);
        (state.connected, state.last_error) = (false, Some(why.clone()));
        state.ended = Some(Ended { error, why });
        drop(state);
        self.shared.progress.notify();
    }

    /// Comes in, and has a local segment ready for what the learner has.
    fn try_connect(&mut self, deadline: Instant) -> Result<Link, Disconnect<Error>> {
        let shared = self.shared;
        self.attempt += 1;
        // Once it is known, the learner can say what differs; before, it tells us.
        let known = self.local.as_ref().map(|local| local.schema.clone());
        let schema = known.filter(|schema| schema.len() <= MAX_SCHEMA_BYTES).unwrap_or_default();
        let (session, attempt) = (self.session, self.attempt);
        let content = Content::Weights;
        let hello = Hello { content, session, producer_id: None, attempt, next: 0, oldest: 0, schema };
        let (link, _, payload) = dial(&shared.connector, &hello, Kind::Inventory, deadline)
            .map_err(|failure| Disconnect::of(failure, |failure| self.give_up_error(failure)))?;
        let inventory = Inventory::parse(&payload)
            .map_err(|damage| Disconnect::Final(self.give_up_error(Failure::Protocol(damage.to_string()))))?;
        self.prepare(&inventory).map_err(Disconnect::Final)?;
        add(&shared.counters.connects, 1);
        self.contact = Instant::now();
        let mut state = shared.lock();
        state.connected = true;
        if state.local.is_none() {
            state.local = self.local.clone();
            state.seen = inventory.lineage;
        }
        drop(state);
        shared.progress.notify_if_waiting();
        Ok(link)
    }

    /// What a failure means: before the first welcome the caller is told its kind, afterwards that nothing more comes.
    fn give_up_error(&self, failure: Failure) -> Error {
        let address = self.shared.connector.address();
        match (self.local.is_some(), failure) {
            (_, Failure::Cancelled) => Error::Closed,
            (false, Failure::Token(why)) => Error::Token { address, why },
            (false, Failure::Content(why)) => Error::WrongContent { address, why },
            (false, Failure::Protocol(what)) => Error::Protocol { address, what },
            (false, Failure::Tls(what)) => Error::Tls { what: format!("{address}: {what}") },
            (_, Failure::Schema(_)) => {
                self.shared.lost("the learner came back with other weights".to_owned())
            }
            (
                _,
                Failure::Passing(why)
                | Failure::Late(why)
                | Failure::Token(why)
                | Failure::Content(why)
                | Failure::Protocol(why)
                | Failure::Tls(why)
                | Failure::Final(why),
            ) => self.shared.lost(why),
        }
    }

    /// Makes the local segment, or its successor (M1).
    fn prepare(&mut self, inventory: &Inventory) -> Result<()> {
        let spec = &self.shared.spec;
        let sizes = inventory.leaf_bytes.iter().map(|&bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        let leaf_bytes: Vec<usize> = sizes.collect();
        if let Some(local) = &self.local {
            // Who reads has made room for these leaves.
            if local.schema != inventory.schema || local.weights().geometry().leaf_bytes != leaf_bytes {
                return Err(self.shared.lost("the learner came back with other weights".to_owned()));
            }
            if local.lineage == inventory.lineage {
                return Ok(());
            }
        } else {
            check_inventory(spec, self.shared.connector.address(), inventory, &leaf_bytes)?; // Before there is a segment, or a name.
        }
        let segment = WeightsSpec {
            name: spec.name.as_deref(),
            auto_named: false,
            schema: &inventory.schema,
            leaf_bytes: &leaf_bytes,
            max_buffers: spec.max_buffers,
            max_peers: spec.max_peers,
            checksum: inventory.checksums,
        };
        // The callers' is the one before; what was prepared for a learner that went away again is not.
        let before = self.shared.lock().local.clone();
        let writer = match &before {
            None => mirror::open(&segment, inventory.lineage, spec.threads)?,
            Some(before) if before.lineage == inventory.lineage => {
                self.local = Some(before.clone());
                return Ok(());
            }
            Some(_) => mirror::successor(&segment, inventory.lineage, spec.threads)?,
        };
        let floor = match &before {
            Some(before) => before.version()?.max(before.floor),
            None => 0,
        };
        let reader = Reader::attach_to(writer.weights().clone(), spec.threads)?;
        let (schema, lineage) = (inventory.schema.clone(), inventory.lineage);
        self.local = Some(Arc::new(LocalCopy { writer, reader, schema, lineage, floor }));
        Ok(())
    }
}

impl Reconnecting for MirrorThread<'_> {
    type Link = Link;
    type End = Error;

    fn connector(&self) -> &Connector {
        &self.shared.connector
    }

    fn contact(&mut self) -> &mut Instant {
        &mut self.contact
    }

    fn limit(&self) -> Duration {
        let spec = &self.shared.spec;
        if self.local.is_some() { spec.reconnect_timeout } else { spec.connect_timeout }
    }

    fn connect(&mut self, deadline: Instant) -> Result<Link, Disconnect<Error>> {
        self.try_connect(deadline)
    }

    fn serve(&mut self, link: Link) -> Disconnect<Error> {
        let local = self.local.clone().expect("it is prepared before the link is given out");
        MirrorConnection::new(self.shared, local, &mut self.contact, link).serve()
    }

    fn progress(&self) -> u64 {
        self.shared.counters.versions.load(Ordering::Relaxed)
    }

    fn connect_failed(&self) {
        add(&self.shared.counters.failed_connects, 1);
    }

    fn disconnected(&self, why: &str) {
        let mut state = self.shared.lock();
        (state.connected, state.last_error) = (false, Some(why.to_owned()));
    }

    fn away_too_long(&self, away: Duration, why: &str) -> Error {
        match self.local {
            None => Error::Unreachable { address: self.shared.connector.address(), why: why.to_owned() },
            Some(_) => self.shared.lost(format!("the learner has been away for {away:.1?} ({why})")),
        }
    }

    fn closed(&self) -> Error {
        Error::Closed
    }
}
