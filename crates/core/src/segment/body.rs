//! What every structure needs of the segment in whose body it lies: its words, checks against the header, errors, statistics.

use super::lease::Owner;
use super::mapping::Segment;
use crate::error::{Damage, Error, Result};
use crate::sys::sync::Ordering;

impl Segment {
    /// `count` words of the structure, from `offset` on in the body.
    ///
    /// # Safety
    /// They lie inside the body, aligned. They are atomics, or the protocol of the structure guards them.
    #[inline]
    pub(crate) unsafe fn words<T>(&self, offset: usize, count: usize) -> &[T] {
        let (body, bytes) = self.body();
        debug_assert!(offset + count * size_of::<T>() <= bytes);
        // SAFETY: the body is mapped as long as `self`; the rest is as the caller promises.
        unsafe { std::slice::from_raw_parts(body.add(offset).cast::<T>().as_ptr(), count) }
    }

    /// The words at the head of the body.
    ///
    /// # Safety
    /// As for [`words`](Self::words).
    #[inline]
    pub(crate) unsafe fn control<T>(&self) -> &T {
        // SAFETY: as the caller promises.
        unsafe { self.body().0.cast::<T>().as_ref() }
    }

    /// The error for words that no honest participant can have written.
    pub(crate) fn damaged(&self, Damage(what): Damage) -> Error {
        Error::Corrupt { name: self.name().to_owned(), what }
    }

    /// The error for sizes in the header that no structure has.
    pub(crate) fn bad_geometry(&self, _out_of_range: Error) -> Error {
        self.damaged(Damage("the geometry in its header is out of range"))
    }

    /// Refuses a segment with another schema than the expected one; `None`: any will do.
    pub(crate) fn check_schema(&self, expected: Option<&[u8]>) -> Result<()> {
        match expected {
            Some(expected) if self.schema() != expected => Err(self.other_schema()),
            _ => Ok(()),
        }
    }

    /// Refuses a header whose first numbers, or whose size, are not those of the geometry that was derived from it.
    pub(crate) fn check_geometry(&self, words: &[u64], body_bytes: usize) -> Result<()> {
        let header = self.header();
        if header.geometry[..words.len()] == *words && header.body_bytes == body_bytes as u64 {
            return Ok(());
        }
        Err(self.damaged(Damage("the geometry in its header does not fit its schema or its size")))
    }

    /// How many claims each process holds, by pid.
    pub(crate) fn count_by_pid(&self, owners: impl Iterator<Item = Owner>) -> Vec<(u32, usize)> {
        let mut counts: Vec<(u32, usize)> = Vec::new();
        for owner in owners {
            let Some(record) = self.seats().get(owner.seat()) else { continue };
            let pid = record.pid.load(Ordering::Relaxed);
            match counts.iter_mut().find(|(known, _)| *known == pid) {
                Some((_, count)) => *count += 1,
                None => counts.push((pid, 1)),
            }
        }
        counts
    }
}
