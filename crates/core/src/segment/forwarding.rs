//! The session of the forwarder that empties a ring, or the lanes of records. It lies in the segment, and outlives the forwarder:
//! [`crate::ring::forwarding`] and [`crate::records::forwarding`] say how.

use crate::sys::sync::{AtomicU32, AtomicU64, Ordering};

#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Forwarding {
    /// 16 random bytes.
    pub session: [AtomicU64; 2],
    /// The number of the next sample, or record.
    pub next: AtomicU64,
    /// Connections that were tried; 0 before there is a session.
    pub attempts: AtomicU32,
}

impl Forwarding {
    /// The session; `fresh` if there is none yet. True when an earlier forwarder has used it.
    pub fn session(&self, fresh: [u8; 16]) -> ([u8; 16], bool) {
        let Forwarding { session, attempts, .. } = self;
        let is_used = attempts.load(Ordering::Relaxed) > 0;
        if !is_used {
            let (halves, _) = fresh.as_chunks::<8>();
            session
                .iter()
                .zip(halves)
                .for_each(|(word, half)| word.store(u64::from_ne_bytes(*half), Ordering::Relaxed));
        }
        let [first, second] = [0, 1].map(|half| session[half].load(Ordering::Relaxed).to_ne_bytes());
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&first);
        bytes[8..].copy_from_slice(&second);
        (bytes, is_used)
    }

    /// Counts an attempt to connect (F5).
    pub fn next_attempt(&self) -> u32 {
        self.attempts.fetch_add(1, Ordering::Relaxed).saturating_add(1)
    }

    /// What may not be acknowledged of what an earlier forwarder gave numbers: in their order, and the next number (F3, F4). Each
    /// has its first number; `rows` says how many it has. Drops the rest, which is acknowledged.
    pub fn unsettled<T>(
        &self,
        mut numbered: Vec<(u64, T)>,
        rows: impl Fn(&T) -> usize,
    ) -> (Vec<(u64, T)>, u64) {
        numbered.sort_by_key(|(first, _)| *first);
        let end_of = |(first, item): &(u64, T)| first.saturating_add(rows(item) as u64);
        let next = numbered.last().map_or(0, end_of).max(self.next.load(Ordering::Relaxed));
        let mut start = next;
        let unsettled = numbered.iter().rev().take_while(|numbered| {
            let follows = end_of(numbered) == start;
            start = numbered.0;
            follows
        });
        let settled = numbered.len() - unsettled.count();
        numbered.drain(..settled);
        (numbered, next)
    }
}
