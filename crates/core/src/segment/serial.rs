//! Numbers that grow for ever, modulo 2⁴⁰: of a ring's batches, and of a table's laps.

/// Bits of a [`Serial`].
pub const SERIAL_BITS: u32 = 40;
const MASK: u64 = (1 << SERIAL_BITS) - 1;

/// A number modulo 2⁴⁰. Two of them can be compared as long as fewer than 2³⁹ lie between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Serial(u64);

impl Serial {
    pub const FIRST: Serial = Serial(1);

    #[inline]
    pub fn new(value: u64) -> Serial {
        Serial(value & MASK)
    }

    #[inline]
    pub fn value(self) -> u64 {
        self.0
    }

    #[inline]
    pub fn next(self) -> Serial {
        Serial::new(self.0 + 1)
    }

    /// Whether this number came before `other`.
    #[inline]
    pub fn is_before(self, other: Serial) -> bool {
        let distance = other.0.wrapping_sub(self.0) & MASK;
        distance != 0 && distance < 1 << (SERIAL_BITS - 1)
    }
}
