//! Room in the data area of one lane: which bytes are free. Private to the lane's producer; nothing of it is shared.
//!
//! First fit, lowest address first: a fast stream stays in a few hot pages, and a lane grows only as far as what is in
//! flight needs. Free extents are kept by address and joined with their neighbours, so that what is held costs its own
//! bytes only and nothing is lost between.
//!
//! Not done here: whether the bytes exist (the producer grows the lane), and who holds them (the table).

use super::layout::ALIGN;
use std::collections::BTreeMap;

/// A piece of a lane: a multiple of [`ALIGN`] long, at a multiple of it. May be empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Extent {
    pub start: usize,
    pub len: usize,
}

impl Extent {
    pub fn end(self) -> usize {
        self.start + self.len
    }
}

/// The free extents of one lane.
#[derive(Debug, Clone)]
pub struct Allocator {
    /// Start to length. No two touch.
    free: BTreeMap<usize, usize>,
    free_bytes: usize,
    capacity: usize,
}

/// How much room `bytes` take; `None` when that is more than there can be.
#[inline]
pub fn rounded(bytes: usize) -> Option<usize> {
    bytes.checked_next_multiple_of(ALIGN)
}

impl Allocator {
    /// All of `capacity` is free. A multiple of [`ALIGN`].
    pub fn new(capacity: usize) -> Allocator {
        debug_assert!(capacity.is_multiple_of(ALIGN));
        let free = if capacity == 0 { BTreeMap::new() } else { BTreeMap::from([(0, capacity)]) };
        Allocator { free, free_bytes: capacity, capacity }
    }

    pub fn free_bytes(&self) -> usize {
        self.free_bytes
    }

    /// The lowest room for `bytes`; nothing needs none.
    #[inline]
    pub fn allocate(&mut self, bytes: usize) -> Option<Extent> {
        let len = rounded(bytes)?;
        if len == 0 {
            return Some(Extent::default());
        }
        let (&start, &room) = self.free.iter().find(|&(_, &room)| room >= len)?;
        self.free.remove(&start);
        if room > len {
            self.free.insert(start + len, room - len);
        }
        self.free_bytes -= len;
        Some(Extent { start, len })
    }

    /// Marks an extent as used that was found in a table. False when it is not free: two records overlap, or it is no
    /// extent of this lane at all.
    pub fn claim(&mut self, extent: Extent) -> bool {
        let Extent { start, len } = extent;
        if len == 0 {
            return true;
        }
        let aligned = start.is_multiple_of(ALIGN) && len.is_multiple_of(ALIGN);
        let Some(end) = start.checked_add(len).filter(|&end| aligned && end <= self.capacity) else {
            return false;
        };
        let Some((&from, &room)) = self.free.range(..=start).next_back() else { return false };
        if from + room < end {
            return false;
        }
        self.free.remove(&from);
        if from < start {
            self.free.insert(from, start - from);
        }
        if end < from + room {
            self.free.insert(end, from + room - end);
        }
        self.free_bytes -= len;
        true
    }

    /// Gives an extent back, or the end of one.
    #[inline]
    pub fn release(&mut self, extent: Extent) {
        let Extent { start, mut len } = extent;
        if len == 0 {
            return;
        }
        self.free_bytes += len;
        debug_assert!(self.free_bytes <= self.capacity, "nothing is given back twice");
        if let Some(after) = self.free.remove(&(start + len)) {
            len += after;
        }
        if let Some((&before, room)) = self.free.range_mut(..start).next_back()
            && before + *room == start
        {
            *room += len;
            return;
        }
        self.free.insert(start, len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_room_that_fits_is_taken_and_neighbours_join() {
        let mut lane = Allocator::new(1024);
        let [a, b, c] = [100, 64, 1].map(|bytes| lane.allocate(bytes).unwrap());
        assert_eq!((a, b, c), (extent(0, 128), extent(128, 64), extent(192, 64)));
        lane.release(a);
        lane.release(b);
        assert_eq!(lane.allocate(192), Some(extent(0, 192)), "two neighbours are one room");
        assert_eq!(lane.allocate(1024 - 256 + 1), None);
        assert_eq!(lane.allocate(1024 - 256), Some(extent(256, 768)));
        assert_eq!(lane.free_bytes(), 0);
        assert_eq!(lane.allocate(0), Some(extent(0, 0)), "nothing always fits");
        assert_eq!(lane.allocate(usize::MAX), None);
    }

    #[test]
    fn what_overlaps_cannot_be_claimed() {
        let mut lane = Allocator::new(1024);
        assert!(lane.claim(extent(128, 128)));
        for wrong in [
            extent(128, 64),
            extent(64, 128),
            extent(192, 128),
            extent(1024, 64),
            extent(960, 128),
            extent(32, 64),
        ] {
            assert!(!lane.claim(wrong), "{wrong:?}");
        }
        assert!(!lane.claim(extent(usize::MAX - 63, 64)));
        assert!(lane.claim(extent(0, 128)) && lane.claim(extent(256, 768)));
        assert_eq!(lane.free_bytes(), 0);
        lane.release(extent(0, 1024));
        assert_eq!(lane.allocate(1024), Some(extent(0, 1024)));
    }

    fn extent(start: usize, len: usize) -> Extent {
        Extent { start, len }
    }
}
