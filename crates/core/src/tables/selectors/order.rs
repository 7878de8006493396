//! Items in the order in which they were inserted: a list through their neighbours.

use crate::sys::sync::{AtomicU32, Ordering};
use crate::tables::layout::{Item, NONE, TableHead};

/// The list of one table.
#[derive(Debug, Clone, Copy)]
pub struct Order<'a> {
    pub head: &'a TableHead,
    pub items: &'a [Item],
}

impl Order<'_> {
    pub fn clear(&self) {
        self.head.oldest.store(NONE, Ordering::Relaxed);
        self.head.newest.store(NONE, Ordering::Relaxed);
    }

    /// Puts an item where its number says: nearly always behind the newest; before the oldest, if it was taken from there and
    /// is given back.
    #[inline]
    pub fn insert(&self, item: usize) {
        let number = |item: usize| self.items[item].number.load(Ordering::Relaxed);
        let is_first = self.oldest().is_some_and(|oldest| number(item) < number(oldest));
        let mut older = if is_first { None } else { self.newest() };
        while let Some(other) = older.filter(|&other| number(item) < number(other)) {
            older = self.there(&self.items[other].older);
        }
        let older = older.map_or(NONE, |older| older as u32);
        let newer = self.newer_of(older).load(Ordering::Relaxed);
        self.items[item].older.store(older, Ordering::Relaxed);
        self.items[item].next.store(newer, Ordering::Relaxed);
        self.newer_of(older).store(item as u32, Ordering::Relaxed);
        self.older_of(newer).store(item as u32, Ordering::Relaxed);
    }

    #[inline]
    pub fn remove(&self, item: usize) {
        let older = self.items[item].older.load(Ordering::Relaxed);
        let newer = self.items[item].next.load(Ordering::Relaxed);
        self.newer_of(older).store(newer, Ordering::Relaxed);
        self.older_of(newer).store(older, Ordering::Relaxed);
    }

    pub fn oldest(&self) -> Option<usize> {
        self.there(&self.head.oldest)
    }

    pub fn newest(&self) -> Option<usize> {
        self.there(&self.head.newest)
    }

    fn there(&self, link: &AtomicU32) -> Option<usize> {
        let item = link.load(Ordering::Relaxed) as usize;
        (item < self.items.len()).then_some(item)
    }

    fn newer_of(&self, item: u32) -> &AtomicU32 {
        self.items.get(item as usize).map_or(&self.head.oldest, |item| &item.next)
    }

    fn older_of(&self, item: u32) -> &AtomicU32 {
        self.items.get(item as usize).map_or(&self.head.newest, |item| &item.older)
    }
}
