//! Opening or making a segment, as [`IfExists`] says.

use super::catalog;
use super::mapping::Segment;
use crate::error::{Error, Result};
use crate::policies::IfExists;

impl IfExists {
    /// Opens what is there or makes a new one, as chosen; true when it was there. Without a name, nothing can be.
    pub(crate) fn open_or_create<T>(
        self,
        name: Option<&str>,
        open: impl FnOnce(&str) -> Result<T>,
        create: impl FnOnce() -> Result<T>,
    ) -> Result<(T, bool)> {
        let fresh = |made: T| (made, false);
        let Some(name) = name else { return create().map(fresh) };
        match self {
            IfExists::Replace => create().map(fresh),
            IfExists::Fail => match Segment::open(name, None) {
                Err(Error::NotFound { .. }) => create().map(fresh),
                Err(error) => Err(error),
                Ok(_) => Err(Error::Exists { name: name.to_owned() }),
            },
            IfExists::Resume => match open(name) {
                Ok(found) => Ok((found, true)),
                Err(Error::NotFound { .. }) => create().map(fresh),
                // Another shape: replace it if nobody lives in it, otherwise say what differs.
                Err(error) if error.is_mismatch() => {
                    if catalog::collect(name)? {
                        create().map(fresh)
                    } else {
                        Err(error)
                    }
                }
                Err(error) => Err(error),
            },
        }
    }

    /// Opens until it is settled: between the look at a name and sitting down, somebody may collect the segment, shut it
    /// down, or make it. Then it looks again.
    pub(crate) fn settle<T>(self, mut open_once: impl FnMut() -> Result<T>) -> Result<T> {
        for _ in 0..100 {
            match open_once() {
                Err(Error::NotFound { .. } | Error::InUse { .. }) if self == IfExists::Resume => {
                    std::thread::yield_now();
                }
                done => return done,
            }
        }
        open_once()
    }
}
