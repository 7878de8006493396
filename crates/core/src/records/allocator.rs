//! Room in the data area of one lane: which bytes are free. Private to the lane's producer; nothing of it is shared.
//!
//! First fit, lowest address first: a fast stream stays in a few hot pages, and a lane grows only as far as what is in
//! flight needs. Free extents are kept in order and joined with their neighbours, in two plain vectors: a stream has two or
//! three extents.
//!
//! Not done here: whether the bytes exist (the producer grows the lane), and which process holds them (the table).

use super::layout::ALIGN;

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

/// The free extents of one lane, by address. No two touch.
#[derive(Debug, Clone)]
pub struct Allocator {
    starts: Vec<usize>,
    lens: Vec<usize>,
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
        debug_assert!(capacity.is_multiple_of(ALIGN) && capacity > 0);
        Allocator { starts: vec![0], lens: vec![capacity], free_bytes: capacity, capacity }
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
        let index = self.lens.iter().position(|&room| room >= len)?;
        let start = self.starts[index];
        self.carve(index, Extent { start, len });
        Some(Extent { start, len })
    }

    /// Takes a part out of a free extent.
    #[inline]
    fn carve(&mut self, index: usize, part: Extent) {
        let (from, end) = (self.starts[index], self.starts[index] + self.lens[index]);
        self.free_bytes -= part.len;
        match (from < part.start, part.end() < end) {
            (false, false) => {
                self.starts.remove(index);
                self.lens.remove(index);
            }
            (false, true) => {
                self.starts[index] = part.end();
                self.lens[index] = end - part.end();
            }
            (true, tail) => {
                self.lens[index] = part.start - from;
                if tail {
                    self.starts.insert(index + 1, part.end());
                    self.lens.insert(index + 1, end - part.end());
                }
            }
        }
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
        let after = self.starts.partition_point(|&from| from <= start);
        let Some(index) = after.checked_sub(1).filter(|&index| end <= self.starts[index] + self.lens[index])
        else {
            return false;
        };
        self.carve(index, extent);
        true
    }

    /// Gives an extent back, or the end of one.
    #[inline]
    pub fn release(&mut self, extent: Extent) {
        let Extent { start, len } = extent;
        if len == 0 {
            return;
        }
        self.free_bytes += len;
        debug_assert!(self.free_bytes <= self.capacity, "nothing is given back twice");
        let after = self.starts.partition_point(|&from| from < start);
        let joins_after = self.starts.get(after) == Some(&(start + len));
        let before = after.checked_sub(1).filter(|&index| self.starts[index] + self.lens[index] == start);
        match (before, joins_after) {
            (Some(before), true) => {
                self.lens[before] += len + self.lens[after];
                self.starts.remove(after);
                self.lens.remove(after);
            }
            (Some(before), false) => self.lens[before] += len,
            (None, true) => {
                self.starts[after] = start;
                self.lens[after] += len;
            }
            (None, false) => {
                self.starts.insert(after, start);
                self.lens.insert(after, len);
            }
        }
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
