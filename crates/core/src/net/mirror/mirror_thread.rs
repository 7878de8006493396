//! The thread of a mirror: connects, fetches, and connects again, until something ends it.

use super::connection::MirrorConnection;
use super::shared::{Ended, LocalCopy, Shared};
use crate::error::{Error, Result};
use crate::net::client::WeightMirrorSpec;
use crate::net::client::dial::{Connector, dial};
use crate::net::client::disconnect::{Disconnect, Ended as ConnectionEnded};
use crate::net::client::link::Link;
use crate::net::client::reconnect::{self, Contact, Reconnecting};
use crate::net::server::SourceEnd;
use crate::net::wire::frame::{Content, Hello, Inventory, Kind, MAX_SCHEMA_BYTES};
use crate::net::wire::stats::add;
use crate::net::wire::token::random;
use crate::schema;
use crate::segment::memory;
use crate::sys::sync::Ordering;
use crate::weights::layout::{FIRST_BUFFERS, Geometry};
use crate::weights::{Reader, WeightsSpec, mirror};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

const OTHER_WEIGHTS: &str = "the learner came back with other weights";
/// M5.
const EARLIER_LINEAGE: &str = "it still has the weights of an earlier learner";

/// The mirror's thread: connects, fetches, and connects again.
pub struct MirrorThread<'a> {
    shared: &'a Shared,
    session: [u8; 16],
    contact: Contact,
    /// The segment that receives the next version: the callers' own, or its successor (M1).
    local: Option<Arc<LocalCopy>>,
}

impl<'a> MirrorThread<'a> {
    pub fn new(shared: &'a Shared) -> MirrorThread<'a> {
        let session = random().unwrap_or_default(); // The server does not read it.
        MirrorThread { shared, session, contact: Contact::new(), local: None }
    }

    /// The work of the thread. Callers learn why it ended.
    pub fn run(mut self) {
        let (error, mut state) = loop {
            let error = reconnect::run(&mut self);
            let mut state = self.shared.lock();
            // A caller that redirects holds the lock, too: it learns of the end, or we of the redirect.
            if matches!(error, Error::Closed) || !self.shared.connector.is_redirected() {
                break (error, state);
            }
            state.is_shut_down = false;
        };
        let why = match &error {
            Error::WeightsLost { why, .. } => why.clone(),
            Error::Closed => "this copy was closed".to_owned(),
            other => other.to_string(),
        };
        // The caller that waits for the first connection gets the error itself; later callers get its text.
        let error = state.local.is_none().then_some(error);
        (state.connected, state.last_error) = (false, Some(why.clone()));
        state.ended = Some(Ended { error, why });
        let end = if state.is_shut_down { SourceEnd::ShutDown } else { SourceEnd::Withdrawn };
        drop(state);
        self.shared.connector.progress.notify();
        self.shared.tell_outlets(|outlet| outlet.end(end));
    }

    /// Connects, and prepares a local segment for the learner's weights.
    fn try_connect(&mut self, deadline: Instant) -> Result<Link, Disconnect<Error>> {
        let shared = self.shared;
        self.contact.attempts += 1;
        // Empty at first: then the learner sends its schema, and does not compare.
        let known = self.local.as_ref().map(|local| local.schema.clone());
        let schema = known.filter(|schema| schema.len() <= MAX_SCHEMA_BYTES).unwrap_or_default();
        let (session, attempt) = (self.session, self.contact.attempts);
        let content = Content::Weights;
        let hello = Hello { content, session, producer_id: None, attempt, next: 0, oldest: 0, schema };
        let dialled = dial(&shared.connector, &hello, Kind::Inventory, deadline)
            .and_then(|(link, _, payload)| Ok((link, Inventory::parse(&payload)?)));
        let (link, inventory) = dialled.map_err(|disconnect| match disconnect {
            Disconnect::Final(ConnectionEnded::Stopping(why)) => Disconnect::Broken(why), // It may come back.
            Disconnect::Final(ConnectionEnded::RingClosed(why)) if shared.spec.outlives_learners => {
                Disconnect::Broken(why)
            }
            // Another program may have the port meanwhile.
            Disconnect::Final(
                ConnectionEnded::Token(why)
                | ConnectionEnded::Content(why)
                | ConnectionEnded::Protocol(why)
                | ConnectionEnded::Tls(why),
            ) if shared.spec.outlives_learners && self.contact.welcomed => Disconnect::Broken(why),
            other => other.map_final(|ended| self.end(ended)),
        })?;
        if inventory.is_mirror && shared.lock().earlier.contains(&inventory.lineage) {
            return Err(Disconnect::Broken(EARLIER_LINEAGE.to_owned()));
        }
        self.prepare(&inventory).map_err(Disconnect::Final)?;
        add(&shared.counters.connects, 1);
        (self.contact.welcomed, self.contact.heard) = (true, Instant::now());
        let mut state = shared.lock();
        state.connected = true;
        if state.local.is_none() {
            state.local = self.local.clone();
            state.seen = inventory.lineage;
        }
        drop(state);
        shared.connector.progress.notify_if_waiting();
        Ok(link)
    }

    /// Makes the local segment, or its successor (M1).
    fn prepare(&mut self, inventory: &Inventory) -> Result<()> {
        let spec = &self.shared.spec;
        let sizes = inventory.leaf_bytes.iter().map(|&bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        let leaf_bytes: Vec<usize> = sizes.collect();
        if let Some(local) = &self.local {
            // Readers have made room for these leaves.
            if local.schema != inventory.schema || local.weights().geometry().leaf_bytes != leaf_bytes {
                return Err(self.shared.lost(OTHER_WEIGHTS.to_owned()));
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
        // Not `self.local`: that may have been prepared for a learner that went away again.
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

    fn contact(&mut self) -> &mut Contact {
        &mut self.contact
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

    fn end(&self, ended: ConnectionEnded) -> Error {
        self.shared.lock().is_shut_down |= matches!(ended, ConnectionEnded::RingClosed(_));
        let ended = if self.contact.welcomed { ended.after_welcome(OTHER_WEIGHTS) } else { ended };
        let ours = self.shared.spec.wanted.as_deref().unwrap_or_default();
        ended.error(self.shared.connector.address(), ours, |why| self.shared.lost(why))
    }
}

/// Refuses an inventory that contradicts itself, other leaves than the callers have room for, and more than fits into memory
/// (M3).
fn check_inventory(
    spec: &WeightMirrorSpec,
    address: String,
    inventory: &Inventory,
    leaf_bytes: &[usize],
) -> Result<()> {
    let protocol = |what: String| Error::Protocol { address: address.clone(), what };
    let theirs = schema::weights(&inventory.schema)
        .map_err(|invalid| protocol(format!("the schema of its weights cannot be read: {invalid}")))?;
    if !theirs.fits(leaf_bytes) {
        return Err(protocol("the sizes of its leaves do not fit their shapes".to_owned()));
    }
    if let Some(wanted) = &spec.wanted {
        let ours = schema::weights(wanted).map_err(|bad| Error::BadSchema { what: bad.to_string() })?;
        if ours.leaves != theirs.leaves {
            let (ours, theirs) = (wanted.clone(), inventory.schema.clone());
            return Err(Error::ForeignSchema { address, ours, theirs });
        }
    }
    let geometry = Geometry::new(spec.max_peers, spec.max_buffers, leaf_bytes.to_vec())?;
    let need = geometry.buffer_offset(FIRST_BUFFERS) as u64;
    let limit = spec.max_bytes.or_else(|| memory::left(Path::new("/")).map(|left| left / 2));
    match limit.filter(|&limit| need > limit) {
        Some(limit) => Err(Error::TooLarge { address, need, copies: FIRST_BUFFERS, limit }),
        None => Ok(()),
    }
}
