//! What lies in the bytes of one record: the counts of its ragged leaves, then its leaves.
//!
//! ```text
//! 0    ┌─────────────────────────────────┐
//!      │ u32 × ragged leaves: their rows │  little-endian, padded to 8
//!      ├─────────────────────────────────┤
//!      │ leaf 0: rows × row_bytes        │  each leaf at a multiple of 8
//!      │ leaf 1: …                       │
//! end  └─────────────────────────────────┘  nothing behind the last one
//! ```
//!
//! A leaf with a fixed number of rows has no count. Leaves may be tied: they have equally many rows in each record. All of it is
//! pure: no segment, no unsafe. [`Shape::parse`] reads bytes that another process wrote, and gives no place that lies outside
//! them.

use crate::error::{Damage, Error, Result};
use smallvec::SmallVec;

/// Every leaf starts at a multiple of this.
pub const LEAF_ALIGN: usize = 8;

const OVERFLOW: Damage = Damage("the counts of a record overflow");
const UNTIED: Damage = Damage("leaves of a record that are tied have different lengths");
const WRONG_LENGTH: Damage = Damage("the length of a record is not what its counts say");

/// One of something for each leaf: of the usual number without an allocation.
pub type PerLeaf<T> = SmallVec<[T; 8]>;

/// One leaf of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeafShape {
    pub row_bytes: usize,
    /// How many rows every record has of it; `None`: each as many as it likes.
    pub rows: Option<usize>,
}

/// The leaves of a record, in order.
///
/// ```
/// use rollway_core::records::format::{LeafShape, Shape};
/// let tokens = LeafShape { row_bytes: 4, rows: None };
/// let score = LeafShape { row_bytes: 4, rows: Some(1) };
/// let shape = Shape::new(vec![tokens, score]);
/// let placement = shape.place(&[3]).unwrap();
/// assert_eq!(placement.offsets.as_slice(), [8, 24]); // behind one count; behind three tokens of four bytes
/// assert_eq!((placement.counts.as_slice(), placement.bytes), ([3, 1].as_slice(), 28));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Shape {
    pub leaves: Vec<LeafShape>,
    ragged: usize,
    ties: Vec<Tie>,
}

/// Two ragged leaves that have equally many rows in each record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tie {
    /// Their numbers among all leaves.
    leaves: (usize, usize),
    /// Their numbers among the ragged ones.
    counts: (usize, usize),
}

/// Where the leaves of one record lie.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Placement {
    /// Where each leaf starts.
    pub offsets: PerLeaf<usize>,
    /// How many rows each leaf has.
    pub counts: PerLeaf<usize>,
    /// How many bytes the record has.
    pub bytes: usize,
}

impl Shape {
    pub fn new(leaves: Vec<LeafShape>) -> Shape {
        let ragged = leaves.iter().filter(|leaf| leaf.rows.is_none()).count();
        Shape { leaves, ragged, ties: Vec::new() }
    }

    /// With ties: ragged leaves that `letter` gives the same letter have equally many rows.
    pub fn tied(mut self, letter: impl Fn(usize) -> Option<char>) -> Shape {
        let ragged = (0..self.leaves.len()).filter(|&leaf| self.leaves[leaf].rows.is_none());
        let mut firsts: Vec<(char, usize, usize)> = Vec::new();
        for (count, leaf) in ragged.enumerate() {
            let Some(letter) = letter(leaf) else { continue };
            match firsts.iter().find(|(known, ..)| *known == letter) {
                Some(&(_, first, first_count)) => {
                    self.ties.push(Tie { leaves: (first, leaf), counts: (first_count, count) });
                }
                None => firsts.push((letter, leaf, count)),
            }
        }
        self
    }

    /// Two leaves that are tied, and of which a record with so many rows of each leaf has different numbers.
    #[inline]
    pub fn untied(&self, rows: &[usize]) -> Option<(usize, usize)> {
        self.ties.iter().map(|tie| tie.leaves).find(|&(one, other)| rows[one] != rows[other])
    }

    /// How many leaves are ragged.
    #[inline]
    pub fn ragged(&self) -> usize {
        self.ragged
    }

    /// How many bytes lie before the first leaf.
    #[inline]
    fn head_bytes(&self) -> usize {
        (self.ragged() * size_of::<u32>()).next_multiple_of(LEAF_ALIGN)
    }

    /// Where the leaves of a record lie whose ragged leaves have so many rows.
    pub fn place(&self, counts: &[usize]) -> Result<Placement> {
        if counts.len() != self.ragged() {
            let range = format!("{}, one for each ragged leaf", self.ragged());
            return Err(Error::out_of_range("counts", counts.len(), range));
        }
        let mut counts = counts.iter().copied();
        let rows = self.leaves.iter().map(|leaf| leaf.rows.or_else(|| counts.next()).unwrap_or_default());
        let mut placement = Placement { counts: rows.collect(), ..Placement::default() };
        self.arrange(&mut placement)?;
        Ok(placement)
    }

    /// Where the leaves of a record lie that has as many rows of each as `placement.counts` says.
    #[inline]
    pub fn arrange(&self, placement: &mut Placement) -> Result<()> {
        let Placement { offsets, counts, bytes } = placement;
        offsets.clear();
        let mut end = Some(self.head_bytes());
        for (leaf, &rows) in self.leaves.iter().zip(counts.iter()) {
            if u32::try_from(rows).is_err() {
                return Err(Error::out_of_range("rows of a leaf", rows, "at most 4,294,967,295"));
            }
            let start = end.and_then(|end| end.checked_next_multiple_of(LEAF_ALIGN));
            offsets.push(start.unwrap_or_default());
            end = start.and_then(|start| start.checked_add(rows.checked_mul(leaf.row_bytes)?));
        }
        *bytes = end.filter(|&end| end <= isize::MAX as usize).ok_or_else(|| {
            Error::out_of_range("bytes of a record", usize::MAX, "what the address space holds")
        })?;
        Ok(())
    }

    /// Writes the counts of a record that has so many rows of each leaf to the start of its bytes.
    #[inline]
    pub fn write_counts(&self, rows: &[usize], bytes: &mut [u8]) {
        let ragged = self.leaves.iter().zip(rows).filter(|(leaf, _)| leaf.rows.is_none());
        for ((_, count), room) in ragged.zip(bytes.chunks_exact_mut(size_of::<u32>())) {
            room.copy_from_slice(&(*count as u32).to_le_bytes());
        }
    }

    /// Whether [`parse`](Self::parse) takes these bytes, without an allocation.
    #[inline]
    pub fn check(&self, bytes: &[u8]) -> Result<(), Damage> {
        let mut counts = self.counts(bytes)?;
        let count = |number: usize| &bytes[number * size_of::<u32>()..][..size_of::<u32>()];
        if self.ties.iter().any(|tie| count(tie.counts.0) != count(tie.counts.1)) {
            return Err(UNTIED);
        }
        let mut end = Some(self.head_bytes());
        for leaf in &self.leaves {
            let rows = leaf.rows.or_else(|| counts.next()).unwrap_or_default();
            let rows = u32::try_from(rows).ok().map(|rows| rows as usize);
            let start = end.and_then(|end| end.checked_next_multiple_of(LEAF_ALIGN));
            end = start.and_then(|start| start.checked_add(rows?.checked_mul(leaf.row_bytes)?));
        }
        match end.filter(|&end| end <= isize::MAX as usize) {
            Some(end) if end == bytes.len() => Ok(()),
            Some(_) => Err(WRONG_LENGTH),
            None => Err(OVERFLOW),
        }
    }

    /// The counts at the start of a record.
    #[inline]
    fn counts(&self, bytes: &[u8]) -> Result<impl Iterator<Item = usize>, Damage> {
        let head = bytes.get(..self.head_bytes()).ok_or(Damage("a record is shorter than its counts"))?;
        Ok(head.chunks_exact(size_of::<u32>()).map(|count| {
            let count: [u8; 4] = count.try_into().expect("a chunk of four bytes has four");
            u32::from_le_bytes(count) as usize
        }))
    }

    /// Where the leaves of a written record lie. All of it is inside `bytes`, or it is damage.
    #[inline]
    pub fn parse(&self, bytes: &[u8]) -> Result<Placement, Damage> {
        let mut counts = self.counts(bytes)?;
        let rows = self.leaves.iter().map(|leaf| leaf.rows.or_else(|| counts.next()).unwrap_or_default());
        let mut placement = Placement { counts: rows.collect(), ..Placement::default() };
        if self.untied(&placement.counts).is_some() {
            return Err(UNTIED);
        }
        self.arrange(&mut placement).map_err(|_| OVERFLOW)?;
        if placement.bytes != bytes.len() {
            return Err(WRONG_LENGTH);
        }
        Ok(placement)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn shapes() -> impl Strategy<Value = Shape> {
        let leaf = (0usize..20, proptest::option::of(0usize..5));
        let leaves = vec(leaf.prop_map(|(row_bytes, rows)| LeafShape { row_bytes, rows }), 0..6);
        let letters = vec(proptest::option::of(prop_oneof![Just('n'), Just('m')]), 6);
        (leaves, letters).prop_map(|(leaves, letters)| Shape::new(leaves).tied(|leaf| letters[leaf]))
    }

    proptest! {
        #[test]
        fn what_is_placed_is_parsed(shape in shapes(), mut counts in vec(0usize..50, 6)) {
            shape.ties.iter().for_each(|tie| counts[tie.counts.1] = counts[tie.counts.0]);
            let counts = &counts[..shape.ragged()];
            let placed = shape.place(counts).unwrap();
            let mut bytes = vec![0xaa; placed.bytes];
            shape.write_counts(&placed.counts, &mut bytes);
            prop_assert_eq!(shape.check(&bytes), Ok(()));
            prop_assert_eq!(shape.parse(&bytes), Ok(placed));
        }

        /// Any bytes: damage, or places that are inside them and do not overlap.
        #[test]
        fn any_bytes_are_damage_or_places_inside(shape in shapes(), bytes in vec(prop_oneof![Just(0u8), 0u8..4, any::<u8>()], 0..200)) {
            prop_assert_eq!(shape.check(&bytes), shape.parse(&bytes).map(drop));
            if let Ok(placement) = shape.parse(&bytes) {
                let mut end = 0;
                for (leaf, (&start, &rows)) in shape.leaves.iter().zip(placement.offsets.iter().zip(&placement.counts)) {
                    prop_assert!(start >= end && start.is_multiple_of(LEAF_ALIGN));
                    prop_assert!(leaf.rows.is_none_or(|fixed| fixed == rows));
                    end = start + rows * leaf.row_bytes;
                }
                prop_assert!(end <= bytes.len());
                prop_assert!(shape.ties.iter().all(|tie| placement.counts[tie.leaves.0] == placement.counts[tie.leaves.1]));
            }
        }
    }

    #[test]
    fn leaves_that_are_tied_have_one_length() {
        let ragged = LeafShape { row_bytes: 1, rows: None };
        let fixed = LeafShape { row_bytes: 1, rows: Some(1) };
        let letters = [None, Some('n'), None, Some('m'), Some('n')];
        let shape = Shape::new(vec![ragged, ragged, fixed, ragged, ragged]).tied(|leaf| letters[leaf]);
        assert_eq!(shape.untied(&[9, 3, 1, 5, 3]), None);
        assert_eq!(shape.untied(&[9, 3, 1, 3, 4]), Some((1, 4)));
        for (counts, expected) in [([9, 3, 5, 3], Ok(())), ([9, 3, 3, 4], Err(UNTIED))] {
            let placed = shape.place(&counts).unwrap();
            let mut bytes = vec![0; placed.bytes];
            shape.write_counts(&placed.counts, &mut bytes);
            assert_eq!((shape.check(&bytes), shape.parse(&bytes).map(drop)), (expected, expected));
        }
    }

    #[test]
    fn what_cannot_be_placed_is_an_error() {
        let ragged = |row_bytes| Shape::new(vec![LeafShape { row_bytes, rows: None }]);
        assert!(ragged(4).place(&[]).is_err(), "a count is missing");
        assert!(ragged(4).place(&[1, 2]).is_err(), "a count too many");
        assert!(ragged(1).place(&[u32::MAX as usize + 1]).is_err());
        assert!(ragged(usize::MAX / 2).place(&[3]).is_err());
        assert_eq!(ragged(usize::MAX).parse(&[2, 0, 0, 0, 0, 0, 0, 0]), Err(OVERFLOW));
        assert_eq!(ragged(usize::MAX).check(&[2, 0, 0, 0, 0, 0, 0, 0]), Err(OVERFLOW));
        assert_eq!(Shape::default().place(&[]).unwrap().bytes, 0);
    }
}
