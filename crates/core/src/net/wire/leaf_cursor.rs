//! A walk through the leaves of a version: from the learner's memory to a socket, and from a socket into a mirror's segment.

/// Bytes of a leaf in shared memory.
#[derive(Debug, Clone, Copy)]
pub struct Part {
    pub start: *mut u8,
    pub bytes: usize,
}

impl Default for Part {
    fn default() -> Part {
        Part { start: std::ptr::null_mut(), bytes: 0 }
    }
}

/// What is left of some leaves, in their order.
#[derive(Debug)]
pub struct LeafCursor {
    leaves: Vec<Part>,
    /// The next byte: in which leaf, and where in it.
    at: (usize, usize),
    left: usize,
}

impl LeafCursor {
    pub fn new(leaves: impl Iterator<Item = (*mut u8, usize)>) -> LeafCursor {
        let leaves: Vec<Part> = leaves.map(|(start, bytes)| Part { start, bytes }).collect();
        let left = leaves.iter().map(|leaf| leaf.bytes).sum();
        LeafCursor { leaves, at: (0, 0), left }
    }

    /// Bytes that are left.
    pub fn left(&self) -> usize {
        self.left
    }

    /// Puts the next parts, of at most `most` bytes, into `parts`. Returns how many parts, and how many bytes.
    pub fn parts(&self, most: usize, parts: &mut [Part]) -> (usize, usize) {
        let (mut at, most, mut count, mut bytes) = (self.at, most.min(self.left), 0, 0);
        while bytes < most && count < parts.len() {
            let leaf = self.leaves[at.0];
            let length = (leaf.bytes - at.1).min(most - bytes);
            if length > 0 {
                parts[count] = Part { start: leaf.start.wrapping_add(at.1), bytes: length };
                count += 1;
                bytes += length;
            }
            at = (at.0 + 1, 0);
        }
        (count, bytes)
    }

    /// Steps over bytes that were sent or received.
    pub fn advance(&mut self, mut bytes: usize) {
        self.left -= bytes;
        while bytes > 0 {
            let size = self.leaves[self.at.0].bytes;
            let length = (size - self.at.1).min(bytes);
            bytes -= length;
            self.at.1 += length;
            if self.at.1 == size {
                self.at = (self.at.0 + 1, 0);
            }
        }
    }
}
