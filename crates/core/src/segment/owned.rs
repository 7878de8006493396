//! What one participant owns until it gives it up: a claim, or what it has taken.

use std::ops::Deref;

/// Says what is owned. There is one for each claim, it moves, and only a protocol makes one. What ends a claim takes it by value:
/// nothing is committed twice, or after it was given back.
///
/// ```compile_fail,E0382
/// # use rollway_core::ring::protocol::{Claim, Protocol};
/// fn commit_twice(ring: Protocol<'_>, claim: Claim) {
///     ring.commit(claim);
///     ring.commit(claim);
/// }
/// ```
#[must_use = "it stays claimed until it is committed, released or given back"]
#[derive(Debug, PartialEq, Eq)]
pub struct Owned<T>(T);

impl<T> Owned<T> {
    /// For the step of a protocol by which it changed hands.
    #[inline(always)]
    pub(crate) fn new(what: T) -> Owned<T> {
        Owned(what)
    }
}

impl<T> Deref for Owned<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.0
    }
}
