//! The room waiter: a thread that sleeps in shared memory, so that event loops need not.
//!
//! Those who need room stand in a queue ([`RoomWaiter::enqueue`]); the first few of it have a *turn*, and wait for room
//! ([`RoomWaiter::room`]). While somebody does, the room waiter sleeps where room is announced, and wakes them; otherwise it
//! sleeps on a condition variable. What room is, and for what, is a matter of its [`RoomSource`].
//!
//! Turns are given in the order in which they were asked for; nobody should claim past those who wait
//! ([`RoomWaiter::has_waiters`]).

use crate::error::{Error, Result};
use crate::ring::Deadline;
use crate::sys::sync::{AtomicBool, AtomicUsize, Ordering};
use crate::sys::thread::{OwnedThread, lock};
use std::fmt::Debug;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// How many may wait for room at once. One would do for liveness; with several, one who needs much, or is slow, does not
/// hold up the others.
pub const MAX_TURNS: usize = 8;
/// The room waiter looks up this often, to see whether it is still needed.
const SLICE: Duration = Duration::from_millis(100);

/// A place in shared memory that may be full.
pub trait RoomSource: Debug + Send + Sync {
    /// Sleeps until there is room for `want` (slots, or bytes), or the place is closed. False when the time was over first.
    fn wait_room(&self, want: usize, deadline: Deadline) -> Result<bool>;
}

/// A thread, and the queue in front of it.
#[derive(Debug)]
pub struct RoomWaiter {
    shared: Arc<WaiterShared>,
    thread: OwnedThread,
    turns: Arc<Semaphore>,
    /// Those who wait for their turn or for room.
    queue: Arc<AtomicUsize>,
}

/// What the room waiter shares with those who wait.
#[derive(Debug)]
struct WaiterShared {
    source: Arc<dyn RoomSource>,
    waiting: Mutex<Waiting>,
    called: Condvar,
    room: Notify,
    stop: AtomicBool,
}

#[derive(Debug, Default)]
struct Waiting {
    /// How much each of them wants.
    wants: Vec<usize>,
    /// Somebody came after the last time that the room waiter said there is room.
    anew: bool,
}

impl RoomWaiter {
    pub fn new(source: Arc<dyn RoomSource>) -> Result<RoomWaiter> {
        let shared = Arc::new(WaiterShared {
            source,
            waiting: Mutex::default(),
            called: Condvar::new(),
            room: Notify::new(),
            stop: AtomicBool::new(false),
        });
        let thread = OwnedThread::spawn("rollway-room", {
            let shared = shared.clone();
            move || shared.run()
        })?;
        Ok(RoomWaiter { shared, thread, turns: Arc::new(Semaphore::new(MAX_TURNS)), queue: Arc::default() })
    }

    /// Whether somebody waits, whom nobody should overtake.
    pub fn has_waiters(&self) -> bool {
        self.queue.load(Ordering::Relaxed) != 0
    }

    /// Stands in the queue. Dropping it is leaving.
    pub fn enqueue(&self) -> Place {
        self.queue.fetch_add(1, Ordering::Relaxed);
        let turns = self.turns.clone();
        // The semaphore is never closed.
        let turn = Box::pin(async move { turns.acquire_owned().await.ok() });
        let (turns, queue) = (self.turns.clone(), self.queue.clone());
        Place { turns, queue, turn, permit: None, waits: true, futile: 0 }
    }

    /// Returns when there may be room for `want`, or the place is closed. Try then; others may have been faster.
    pub async fn room(&self, want: usize) {
        let mut notified = std::pin::pin!(self.shared.room.notified());
        notified.as_mut().enable(); // Before the room waiter is called: what it says from now on is heard.
        let _request = RoomRequest::begin(&self.shared, want);
        notified.await;
    }

    /// Ends the thread: nobody will wait for room any more. Idempotent.
    pub fn stop(&self) {
        if !self.thread.is_here() {
            return; // A forked child: the room waiter is not in it.
        }
        self.shared.stop.store(true, Ordering::Relaxed);
        drop(self.shared.lock()); // The room waiter is asleep, or will see the flag.
        self.shared.called.notify_all();
        self.thread.join();
    }
}

impl Drop for RoomWaiter {
    fn drop(&mut self) {
        self.stop();
    }
}

impl WaiterShared {
    /// The work of the thread.
    fn run(&self) {
        loop {
            let mut waiting = self.lock();
            let want = loop {
                if self.stop.load(Ordering::Relaxed) {
                    return;
                }
                match waiting.wants.iter().min() {
                    Some(&want) if waiting.anew => break want,
                    _ => waiting = self.called.wait(waiting).unwrap_or_else(PoisonError::into_inner),
                }
            };
            drop(waiting);
            match self.source.wait_room(want, Deadline::At(Instant::now() + SLICE)) {
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
        lock(&self.waiting)
    }
}

/// One request for room, counted while it waits.
struct RoomRequest<'a> {
    shared: &'a WaiterShared,
    want: usize,
}

impl<'a> RoomRequest<'a> {
    fn begin(shared: &'a WaiterShared, want: usize) -> RoomRequest<'a> {
        let mut waiting = shared.lock();
        waiting.wants.push(want);
        waiting.anew = true;
        drop(waiting);
        shared.called.notify_one();
        RoomRequest { shared, want }
    }
}

impl Drop for RoomRequest<'_> {
    fn drop(&mut self) {
        let mut waiting = self.shared.lock();
        if let Some(ours) = waiting.wants.iter().position(|&want| want == self.want) {
            waiting.wants.swap_remove(ours);
        }
    }
}

type TurnFuture = Pin<Box<dyn Future<Output = Option<OwnedSemaphorePermit>> + Send>>;

/// A place in the queue, and, once it was reached, a turn.
pub struct Place {
    turns: Arc<Semaphore>,
    queue: Arc<AtomicUsize>,
    /// Kept between calls, and with it our place.
    turn: TurnFuture,
    permit: Option<OwnedSemaphorePermit>,
    waits: bool,
    /// Waits for room in a row after which there was none.
    pub futile: u32,
}

impl Place {
    /// Waits until it is our turn to wait for room. May be dropped and called again.
    pub async fn wait_turn(&mut self) {
        if self.permit.is_none() {
            self.permit = self.turn.as_mut().await;
        }
    }

    /// Whether it is our turn, or can be at once.
    pub fn try_turn(&mut self) -> bool {
        if self.permit.is_none() {
            self.permit = self.turns.clone().try_acquire_owned().ok();
        }
        self.has_turn()
    }

    pub fn has_turn(&self) -> bool {
        self.permit.is_some()
    }

    /// We have not all that we came for: others stand back again.
    pub fn wait_again(&mut self) {
        if !std::mem::replace(&mut self.waits, true) {
            self.queue.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// We have what we came for, and nobody need stand back for us.
    pub fn serve(&mut self) {
        if std::mem::take(&mut self.waits) {
            self.queue.fetch_sub(1, Ordering::Relaxed);
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
        f.debug_struct("Place").field("reached", &self.has_turn()).finish_non_exhaustive()
    }
}
