//! How a table chooses an item: to sample it, or to remove it when it is full.
//!
//! | module | what it is |
//! |---|---|
//! | [`order`] | oldest and newest: a list through the items |
//! | [`ranks`] | any, with the same chance: an array of the items without gaps |
//! | [`heap`] | least and greatest priority |
//! | [`tree`] | any, with a chance in proportion to a power of its priority: sums of sums |
//!
//! All of them are changed with the lock held, and can be made anew from the items alone. [`ranks`] and [`tree`] are also
//! read without the lock: whoever does so may be led to an item that is gone, and looks at its word.

pub mod heap;
pub mod order;
pub mod ranks;
pub mod tree;

/// The kind of a selector.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    Fifo,
    Lifo,
    Uniform,
    /// In proportion to the priority to this power.
    Prioritised(f64),
    MinHeap,
    MaxHeap,
}

impl Kind {
    pub(super) fn words(self) -> (u64, u64) {
        match self {
            Kind::Fifo => (1, 0),
            Kind::Lifo => (2, 0),
            Kind::Uniform => (3, 0),
            Kind::Prioritised(exponent) => (4, exponent.to_bits()),
            Kind::MinHeap => (5, 0),
            Kind::MaxHeap => (6, 0),
        }
    }

    pub(super) fn of_words(kind: u64, exponent: u64) -> Option<Kind> {
        Some(match kind {
            1 => Kind::Fifo,
            2 => Kind::Lifo,
            3 => Kind::Uniform,
            4 => Kind::Prioritised(f64::from_bits(exponent)),
            5 => Kind::MinHeap,
            6 => Kind::MaxHeap,
            _ => return None,
        })
    }
}
