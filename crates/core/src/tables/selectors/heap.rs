//! Items by priority: the least, or the greatest, first. Of equal ones, the older.

use crate::sys::sync::{AtomicU32, Ordering};
use crate::tables::layout::Item;

/// The heap of one selector.
#[derive(Debug, Clone, Copy)]
pub struct Heap<'a> {
    pub len: &'a AtomicU32,
    pub items: &'a [Item],
    /// Items, each no later than its two children.
    pub heap: &'a [AtomicU32],
    /// Where each item is in the heap.
    pub places: &'a [AtomicU32],
    /// Whether the greatest comes first.
    pub greatest: bool,
}

impl Heap<'_> {
    pub fn clear(&self) {
        self.len.store(0, Ordering::Relaxed);
    }

    fn len(&self) -> usize {
        (self.len.load(Ordering::Relaxed) as usize).min(self.heap.len())
    }

    pub fn first(&self) -> Option<usize> {
        (self.len() > 0).then(|| self.at(0))
    }

    pub fn push(&self, item: usize) {
        let place = self.len().min(self.heap.len() - 1);
        self.len.store(place as u32 + 1, Ordering::Relaxed);
        self.put(place, item);
        self.rise(place);
    }

    pub fn remove(&self, item: usize) {
        let last = self.len().saturating_sub(1);
        let place = self.place_of(item);
        let moved = self.at(last);
        self.len.store(last as u32, Ordering::Relaxed);
        if place < last {
            self.put(place, moved);
            self.settle(place);
        }
    }

    /// After its priority changed.
    pub fn update(&self, item: usize) {
        self.settle(self.place_of(item));
    }

    fn settle(&self, place: usize) {
        let place = self.rise(place);
        self.sink(place);
    }

    fn rise(&self, mut place: usize) -> usize {
        while place > 0 {
            let parent = (place - 1) / 2;
            if !self.comes_before(self.at(place), self.at(parent)) {
                break;
            }
            self.swap(place, parent);
            place = parent;
        }
        place
    }

    fn sink(&self, mut place: usize) {
        let len = self.len();
        loop {
            let children = 2 * place + 1..(2 * place + 3).min(len);
            let first =
                children.reduce(
                    |one, other| {
                        if self.comes_before(self.at(other), self.at(one)) { other } else { one }
                    },
                );
            match first {
                Some(child) if self.comes_before(self.at(child), self.at(place)) => {
                    self.swap(child, place);
                    place = child;
                }
                _ => return,
            }
        }
    }

    fn comes_before(&self, one: usize, other: usize) -> bool {
        let key = |item: usize| {
            let item = &self.items[item];
            let priority = f64::from_bits(item.priority.load(Ordering::Relaxed));
            (if self.greatest { -priority } else { priority }, item.number.load(Ordering::Relaxed))
        };
        key(one) < key(other)
    }

    fn swap(&self, one: usize, other: usize) {
        let (first, second) = (self.at(one), self.at(other));
        self.put(one, second);
        self.put(other, first);
    }

    fn put(&self, place: usize, item: usize) {
        self.heap[place].store(item as u32, Ordering::Relaxed);
        self.places[item].store(place as u32, Ordering::Relaxed);
    }

    fn at(&self, place: usize) -> usize {
        (self.heap[place].load(Ordering::Relaxed) as usize).min(self.items.len() - 1)
    }

    fn place_of(&self, item: usize) -> usize {
        (self.places[item].load(Ordering::Relaxed) as usize).min(self.heap.len() - 1)
    }
}
