//! What a transport needs to put samples into a ring, and nothing else: claims, where their leaves lie, commits in
//! somebody's name, and waiting for room without holding any.
//!
//! An [`Intake`] is one seat in the ring, shared by everything that a transport serves. A [`Run`] is a claim with a
//! guard: dropped, it is given back. The TCP transport uses nothing of the ring but this, and another transport
//! (RDMA, a message queue) needs no more.
//!
//! **Waiting.** An event loop must not sleep in the ring. A *doorman* thread does: it sleeps in
//! [`Producer::wait_writable`] while somebody waits for room, and on a condition variable otherwise.
//!
//! **No deadlock.** N1: nobody who waits holds a slot. A run of rows that finds only a part of its slots commits that
//! part at once, and keeps the rest in a *spill* buffer, of which there are [`SPILLS`]. Whoever has a spill buffer
//! can use any single slot that becomes free; whoever waits for a spill buffer holds nothing. So each free slot is of
//! use to somebody who is awake, batches become complete, and the learner goes on. Had a run kept its slots and
//! waited for more, the learner could wait for the very batch that these slots belong to; had it given them back and
//! waited for all at once, the last slots of a batch would stay empty while no other batch is free.
//!
//! **Fair.** Spill buffers, and with them the right to wait for room, are given in the order in which they were asked
//! for; nobody claims past those who wait.

use crate::error::{Error, Result};
use crate::ring::producer::Origin;
use crate::ring::protocol::Claim;
use crate::ring::{OnFull, Patience, Producer};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// How many runs may be split between the ring and a spill buffer at once. One would do for liveness; several keep a
/// slow client, which holds one while its frame arrives, from holding up the others.
pub const SPILLS: usize = 8;
/// The doorman looks up this often, to see whether he is still needed.
const SLICE: Duration = Duration::from_millis(100);

/// The way into a ring. Clones share it.
#[derive(Debug, Clone)]
pub struct Intake {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    door: Arc<Door>,
    doorman: Mutex<Option<JoinHandle<()>>>,
    spills: Arc<Semaphore>,
    /// Those who wait for a spill buffer or for room.
    queue: AtomicUsize,
    schema: Vec<u8>,
    sample_bytes: usize,
    pid: u32,
}

/// What the doorman shares with those who wait.
#[derive(Debug)]
struct Door {
    producer: Producer,
    waiting: Mutex<Waiting>,
    called: Condvar,
    room: Notify,
    stop: AtomicBool,
}

#[derive(Debug, Default)]
struct Waiting {
    count: usize,
    /// Somebody came after the last time that the doorman said there is room.
    anew: bool,
}

impl Intake {
    /// Takes over a seat in the ring.
    pub fn new(producer: Producer) -> Result<Intake> {
        let ring = producer.ring();
        let schema = ring.segment().schema();
        let sample_bytes = ring.geometry().leaf_bytes.iter().sum();
        let door = Arc::new(Door {
            producer,
            waiting: Mutex::default(),
            called: Condvar::new(),
            room: Notify::new(),
            stop: AtomicBool::new(false),
        });
        let doorman = super::thread("rollway-doorman", {
            let door = door.clone();
            move || door.mind()
        })?;
        let shared = Shared {
            door,
            doorman: Mutex::new(Some(doorman)),
            spills: Arc::new(Semaphore::new(SPILLS)),
            queue: AtomicUsize::new(0),
            schema,
            sample_bytes,
            pid: std::process::id(),
        };
        Ok(Intake { shared: Arc::new(shared) })
    }

    /// The text that clients must bring, byte for byte.
    pub fn schema(&self) -> &[u8] {
        &self.shared.schema
    }

    /// Bytes of one sample of each leaf.
    pub fn leaf_bytes(&self) -> &[usize] {
        &self.producer().ring().geometry().leaf_bytes
    }

    pub fn sample_bytes(&self) -> usize {
        self.shared.sample_bytes
    }

    pub fn batch_size(&self) -> usize {
        self.producer().ring().geometry().batch_size
    }

    pub fn on_full(&self) -> OnFull {
        self.producer().on_full()
    }

    pub fn is_closed(&self) -> bool {
        self.producer().ring().is_closed()
    }

    /// A number for somebody who brought none.
    pub fn next_producer_id(&self) -> u32 {
        self.producer().next_producer_id()
    }

    fn producer(&self) -> &Producer {
        &self.shared.door.producer
    }

    /// Claims up to `want` slots, now. `None`: dropped, as the policy says, and counted; [`Error::Full`]: wait, or
    /// say so, as the policy is.
    pub fn claim(&self, want: usize) -> Result<Option<Run>> {
        let claim = self.producer().claim(want, Patience::Never)?;
        Ok(claim.map(|claim| Run { intake: self.clone(), len: claim.len, claim: Some(claim) }))
    }

    /// Ends its thread: nobody will wait for room any more. Idempotent.
    pub fn close(&self) {
        self.shared.dismiss_doorman();
    }

    /// Notes how long copying a sample into its slot took, for the ring's histogram.
    pub fn record_copy(&self, ns: u64) {
        self.producer().ring().protocol().control.memcpy.record(ns);
    }

    /// Whether somebody waits, whom nobody should overtake.
    pub fn is_crowded(&self) -> bool {
        self.shared.queue.load(Ordering::Relaxed) != 0
    }

    /// Stands in the queue. Dropping it is leaving.
    pub fn enqueue(&self) -> Place {
        self.shared.queue.fetch_add(1, Ordering::Relaxed);
        let spills = self.shared.spills.clone();
        // The semaphore is never closed.
        let reaching = Box::pin(async move { spills.acquire_owned().await.ok() });
        Place { intake: self.clone(), reaching, permit: None, waits: true }
    }

    /// Returns when there may be room, or the ring is closed. Try then; others may have been faster.
    pub async fn room(&self) {
        let door = &self.shared.door;
        let mut notified = std::pin::pin!(door.room.notified());
        notified.as_mut().enable(); // Before the doorman is called: what he says from now on is heard.
        let _visit = Visit::begin(door);
        notified.await;
    }

    /// [`room`](Self::room) for threads. False when the time was over first.
    pub fn wait_room(&self, patience: Patience) -> Result<bool> {
        self.producer().wait_writable(patience)
    }
}

impl Shared {
    fn dismiss_doorman(&self) {
        if self.pid != std::process::id() {
            return; // A forked child: the doorman is not in it.
        }
        self.door.stop.store(true, Ordering::Relaxed);
        drop(self.door.lock()); // The doorman is asleep, or will see the flag.
        self.door.called.notify_all();
        let doorman = self.doorman.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(doorman) = doorman {
            let _ = doorman.join();
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.dismiss_doorman();
    }
}

impl Door {
    /// The doorman's work.
    fn mind(&self) {
        loop {
            let mut waiting = self.lock();
            while !(self.stop.load(Ordering::Relaxed) || waiting.anew && waiting.count > 0) {
                waiting = self.called.wait(waiting).unwrap_or_else(PoisonError::into_inner);
            }
            drop(waiting);
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            match self.producer.wait_writable(Patience::Until(Instant::now() + SLICE)) {
                Ok(false) | Err(Error::Interrupted) => {}
                // Damage, too: whoever claims will meet it, and say so.
                Ok(true) | Err(_) => {
                    self.lock().anew = false;
                    self.room.notify_waiters();
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One who waits for room: counted while he does.
struct Visit<'a>(&'a Door);

impl<'a> Visit<'a> {
    fn begin(door: &'a Door) -> Visit<'a> {
        let mut waiting = door.lock();
        waiting.count += 1;
        waiting.anew = true;
        drop(waiting);
        door.called.notify_one();
        Visit(door)
    }
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        self.0.lock().count -= 1;
    }
}

type Reaching = Pin<Box<dyn Future<Output = Option<OwnedSemaphorePermit>> + Send>>;

/// A place in the queue, and, once it was reached, the right to a spill buffer.
pub struct Place {
    intake: Intake,
    /// Kept between calls, and with it our place.
    reaching: Reaching,
    permit: Option<OwnedSemaphorePermit>,
    waits: bool,
}

impl Place {
    /// Waits until it is our turn to wait for room. May be dropped and called again.
    pub async fn reached(&mut self) {
        if self.permit.is_none() {
            self.permit = self.reaching.as_mut().await;
        }
    }

    /// Whether it is our turn, or can be at once.
    pub fn try_reach(&mut self) -> bool {
        if self.permit.is_none() {
            self.permit = self.intake.shared.spills.clone().try_acquire_owned().ok();
        }
        self.is_reached()
    }

    pub fn is_reached(&self) -> bool {
        self.permit.is_some()
    }

    /// We have not all that we came for: others stand back again.
    pub fn wait_again(&mut self) {
        if !std::mem::replace(&mut self.waits, true) {
            self.intake.shared.queue.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// We have what we came for, and nobody need stand back for us.
    pub fn serve(&mut self) {
        if std::mem::take(&mut self.waits) {
            self.intake.shared.queue.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.serve();
    }
}

impl std::fmt::Debug for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Place").field("reached", &self.is_reached()).finish_non_exhaustive()
    }
}

/// A claimed run of slots, ours to write until it is committed. Dropping it gives it back.
#[derive(Debug)]
pub struct Run {
    intake: Intake,
    claim: Option<Claim>,
    len: usize,
}

impl Run {
    #[allow(clippy::len_without_is_empty)] // A run has at least one slot.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Where the rows of a leaf lie, one after the other.
    pub fn leaf(&self, leaf: usize) -> *mut u8 {
        let claim = self.claim.as_ref().expect("a run has its claim until it is committed or dropped");
        self.intake.producer().leaf(claim, leaf)
    }

    /// Publishes it. Every byte of every leaf is written.
    pub fn commit(mut self, origin: Origin) {
        if let Some(claim) = self.claim.take() {
            self.intake.producer().commit_as(&claim, origin);
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if let Some(claim) = self.claim.take()
            && self.intake.producer().owns(&claim)
        {
            self.intake.producer().abort(&claim);
        }
    }
}
