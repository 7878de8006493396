//! Items in an array without gaps, in no order: to draw one with the same chance as any other.

use crate::sys::sync::{AtomicU32, Ordering};
use crate::tables::layout::{Item, TableHead};

/// The array of one table.
#[derive(Debug, Clone, Copy)]
pub struct Ranks<'a> {
    pub head: &'a TableHead,
    pub items: &'a [Item],
    pub ranks: &'a [AtomicU32],
}

impl Ranks<'_> {
    pub fn clear(&self) {
        self.head.ranked.store(0, Ordering::Relaxed);
    }

    #[inline]
    pub fn count(&self) -> usize {
        (self.head.ranked.load(Ordering::Relaxed) as usize).min(self.ranks.len())
    }

    #[inline]
    pub fn push(&self, item: usize) {
        let rank = self.count().min(self.ranks.len() - 1);
        self.put(rank, item as u32);
        self.head.ranked.store(rank as u32 + 1, Ordering::Relaxed);
    }

    /// The last one takes its place.
    #[inline]
    pub fn remove(&self, item: usize) {
        let last = self.count().saturating_sub(1);
        let rank = self.items[item].rank.load(Ordering::Relaxed) as usize;
        if rank <= last {
            self.put(rank, self.ranks[last].load(Ordering::Relaxed));
        }
        self.head.ranked.store(last as u32, Ordering::Relaxed);
    }

    /// The item at a rank. It may have gone a moment ago.
    #[inline]
    pub fn at(&self, rank: usize) -> usize {
        (self.ranks[rank].load(Ordering::Relaxed) as usize).min(self.items.len() - 1)
    }

    #[inline]
    fn put(&self, rank: usize, item: u32) {
        self.ranks[rank].store(item, Ordering::Relaxed);
        if let Some(item) = self.items.get(item as usize) {
            item.rank.store(rank as u32, Ordering::Relaxed);
        }
    }
}
