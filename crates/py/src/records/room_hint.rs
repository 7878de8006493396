//! `RoomHint`: how much room a worker's coroutines wait for.

use std::sync::atomic::{AtomicUsize, Ordering};

/// The smallest record that found no room lately. A hint: a call that finds none again notes it again.
pub struct RoomHint(AtomicUsize);

impl Default for RoomHint {
    fn default() -> RoomHint {
        RoomHint(AtomicUsize::new(usize::MAX))
    }
}

impl RoomHint {
    /// A record of so many bytes found no room.
    pub fn note(&self, bytes: usize) {
        self.0.fetch_min(bytes, Ordering::Relaxed);
    }

    /// What to wait for; any room when none was noted.
    pub fn bytes(&self) -> usize {
        match self.0.load(Ordering::Relaxed) {
            usize::MAX => 1,
            bytes => bytes,
        }
    }

    /// There is room.
    pub fn forget(&self) {
        self.0.store(usize::MAX, Ordering::Relaxed);
    }
}
