//! The room waiter: a thread that sleeps until shared memory has room, so that event loops need not.
//!
//! Connections that need room queue up ([`RoomWaiter::enqueue`]). The first few of the queue have a *turn*, and wait for room
//! ([`RoomWaiter::room`]). Turns are given in the order of the requests; no connection should claim past those that wait
//! ([`RoomWaiter::has_waiters`]). While a connection waits for room, the thread sleeps in its [`RoomSource`]; otherwise it
//! sleeps on a condition variable.

use crate::error::{Error, Result};
use crate::ring::Deadline;
use crate::sys::sync::{AtomicBool, AtomicUsize, Ordering};
use crate::sys::thread::{OwnedThread, lock};
use std::fmt::Debug;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// Connections that may wait for room at once. With several, one that needs much room, or is slow, does not hold up the others.
pub const MAX_TURNS: usize = 8;
/// The thread checks this often whether a connection still waits.
const SLICE: Duration = Duration::from_millis(100);

/// A ring or a lane, which may be full.
pub trait RoomSource: Debug + Send + Sync {
    /// Blocks until there is room for `want` (slots, or bytes), or the source is closed. False when the time was over first.
    fn wait_room(&self, want: usize, deadline: Deadline) -> Result<bool>;
}

/// A thread, and the queue in front of it.
#[derive(Debug)]
pub struct RoomWaiter {
    shared: Arc<WaiterShared>,
    thread: OwnedThread,
    turns: Arc<Semaphore>,
    /// Connections that wait for their turn or for room.
    queue: Arc<AtomicUsize>,
}

/// What the thread shares with the connections.
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
    /// How much each connection wants.
    wants: Vec<usize>,
    /// A connection came after the thread last announced room.
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

    /// Whether connections wait, which others should not overtake.
    pub fn has_waiters(&self) -> bool {
        self.queue.load(Ordering::Relaxed) != 0
    }

    /// Joins the queue. Dropping the place leaves it.
    pub fn enqueue(&self) -> Place {
        self.queue.fetch_add(1, Ordering::Relaxed);
        let turns = self.turns.clone();
        // The semaphore is never closed.
        let turn = Box::pin(async move { turns.acquire_owned().await.ok() });
        let (turns, queue) = (self.turns.clone(), self.queue.clone());
        Place { turns, queue, turn, permit: None, waits: true, futile: 0 }
    }

    /// Returns when there may be room for `want`, or the source is closed. Others may be faster.
    pub async fn room(&self, want: usize) {
        let mut notified = std::pin::pin!(self.shared.room.notified());
        notified.as_mut().enable(); // Before the request, so that no notification is missed.
        let _request = RoomRequest::begin(&self.shared, want);
        notified.await;
    }

    /// Ends the thread, when no connection will wait for room any more. Idempotent.
    pub fn stop(&self) {
        if !self.thread.is_here() {
            return; // A forked child: the thread is not in it.
        }
        self.shared.stop.store(true, Ordering::Relaxed);
        drop(self.shared.lock()); // The thread is asleep, or will see the flag.
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
                // After an error, too: the next claim fails with it.
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

/// A place in the queue, and later a turn.
pub struct Place {
    turns: Arc<Semaphore>,
    queue: Arc<AtomicUsize>,
    /// Kept between calls, because it holds our place.
    turn: TurnFuture,
    permit: Option<OwnedSemaphorePermit>,
    waits: bool,
    /// Waits for room in a row after which there was none.
    pub futile: u32,
}

impl Place {
    /// Waits for our turn. The future may be dropped, and the call repeated.
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

    /// Joins the queue again, for what is still missing.
    pub fn wait_again(&mut self) {
        if !std::mem::replace(&mut self.waits, true) {
            self.queue.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Leaves the queue but keeps the turn: others may claim.
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
