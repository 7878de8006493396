//! Memory for frames that arrive slowly: on the heap, and bounded for the whole server.
//!
//! A frame lies in claimed room (slots of the ring, or room of the lane) for `claim_timeout` at most, because others need that
//! room. A frame that takes longer is moved to a [`StagingRoom`], and its claims are given back. It is placed again when all
//! of it has arrived.
//!
//! G1  The sizes of all rooms together are at most the limit. The limit is at least the largest frame.
//! G2  A room is given back once: when it is dropped, or before that when it is evicted.
//! G3  When there is not enough staging memory, the slowest frames are evicted, if they are slower than the one that needs
//!     the memory. A frame that has arrived is never evicted. An evicted frame was not committed, so its client sends
//!     it again after it has reconnected.

use crate::sys::thread::lock;
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::Notify;
use tokio::time::Instant;

/// The staging memory of one server.
#[derive(Debug)]
pub struct Staging {
    limit: usize,
    state: Mutex<StagingState>,
}

#[derive(Debug, Default)]
struct StagingState {
    used: usize,
    next_id: u64,
    entries: Vec<Entry>,
}

/// One room, as the state has it.
#[derive(Debug)]
struct Entry {
    id: u64,
    bytes: usize,
    /// When the frame began to arrive, and how many bytes of it have arrived.
    began: Instant,
    arrived: usize,
    is_whole: bool,
    evicted: Arc<Notify>,
}

/// Bytes per second of a frame.
fn rate(arrived: usize, began: Instant) -> f64 {
    arrived as f64 / began.elapsed().as_secs_f64().max(0.001)
}

impl Staging {
    pub fn new(limit: usize) -> Arc<Staging> {
        Arc::new(Staging { limit, state: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, StagingState> {
        lock(&self.state)
    }

    /// Room for a frame that begins now, if none has to be evicted for it.
    pub fn try_take(self: &Arc<Self>, bytes: usize) -> Option<StagingRoom> {
        self.enter(&mut self.lock(), bytes, 0, Instant::now())
    }

    /// Room for a frame that has begun. Evicts slower frames if need be (G3), and says how many. `None`: not enough memory
    /// is held by slower frames.
    pub fn take(
        self: &Arc<Self>,
        bytes: usize,
        arrived: usize,
        began: Instant,
    ) -> Option<(StagingRoom, usize)> {
        let mut state = self.lock();
        let ours = rate(arrived, began);
        let slower = |entry: &&Entry| !entry.is_whole && rate(entry.arrived, entry.began) < ours;
        let available: usize = state.entries.iter().filter(slower).map(|entry| entry.bytes).sum();
        if bytes > self.limit - state.used + available {
            return None;
        }
        let mut evicted = 0;
        while bytes > self.limit - state.used {
            let by_rate = |one: &(usize, f64), other: &(usize, f64)| one.1.total_cmp(&other.1);
            let rates = state.entries.iter().enumerate().filter(|(_, entry)| slower(entry));
            let slowest =
                rates.map(|(index, entry)| (index, rate(entry.arrived, entry.began))).min_by(by_rate);
            let entry = state.entries.swap_remove(slowest?.0);
            state.used -= entry.bytes;
            entry.evicted.notify_one();
            evicted += 1;
        }
        Some((self.enter(&mut state, bytes, arrived, began)?, evicted))
    }

    fn enter(
        self: &Arc<Self>,
        state: &mut StagingState,
        bytes: usize,
        arrived: usize,
        began: Instant,
    ) -> Option<StagingRoom> {
        if bytes > self.limit - state.used {
            return None;
        }
        let (id, evicted) = (state.next_id, Arc::new(Notify::new()));
        state.next_id += 1;
        state.used += bytes;
        state.entries.push(Entry { id, bytes, began, arrived, is_whole: false, evicted: evicted.clone() });
        Some(StagingRoom { staging: self.clone(), id, evicted })
    }
}

/// The right to keep the bytes of one frame on the heap. Dropping it gives it back (G2).
#[derive(Debug)]
pub struct StagingRoom {
    staging: Arc<Staging>,
    id: u64,
    evicted: Arc<Notify>,
}

impl StagingRoom {
    /// Returns when a faster frame has been given our memory.
    pub fn evicted(&self) -> impl Future<Output = ()> + 'static {
        let evicted = self.evicted.clone();
        async move { evicted.notified().await }
    }

    /// Notes how much of the frame has arrived.
    pub fn note(&self, arrived: usize) {
        if let Some(entry) = self.staging.lock().entries.iter_mut().find(|entry| entry.id == self.id) {
            entry.arrived = arrived;
        }
    }

    /// Notes that all of the frame has arrived. False: it was evicted before that.
    pub fn finish(&self) -> bool {
        let mut state = self.staging.lock();
        let entry = state.entries.iter_mut().find(|entry| entry.id == self.id);
        entry.map(|entry| entry.is_whole = true).is_some()
    }
}

impl Drop for StagingRoom {
    fn drop(&mut self) {
        let mut state = self.staging.lock();
        if let Some(index) = state.entries.iter().position(|entry| entry.id == self.id) {
            state.used -= state.entries.swap_remove(index).bytes;
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::time::Duration;

    fn ago(seconds: u64) -> Instant {
        Instant::now() - Duration::from_secs(seconds)
    }

    #[test]
    fn rooms_are_bounded_and_come_back_once() {
        let staging = Staging::new(100);
        let first = staging.try_take(60).unwrap();
        assert!(staging.try_take(41).is_none());
        drop(first);
        let whole = staging.try_take(100).unwrap();
        assert!(whole.finish());
        drop(whole);
        let state = staging.lock();
        assert_eq!((state.used, state.entries.len()), (0, 0));
    }

    #[test]
    fn the_slowest_gives_way_to_a_faster_one_and_one_that_is_whole_does_not() {
        let staging = Staging::new(100);
        let (slow, _) = staging.take(40, 10, ago(10)).unwrap();
        let (slowest, _) = staging.take(40, 1, ago(10)).unwrap();
        let (faster, evicted) = staging.take(50, 50, ago(1)).unwrap();
        assert_eq!((evicted, slow.finish(), slowest.finish()), (1, true, false));
        assert_eq!(staging.lock().used, 90);
        drop(slowest); // It has nothing left to give back.
        assert_eq!(staging.lock().used, 90);
        assert!(staging.take(40, 1, ago(10)).is_none(), "the slowest of all is itself");
        assert!(staging.take(70, 1000, ago(1)).is_none(), "none is evicted when that is not enough");
        assert!(faster.finish());
    }
}
