//! Opening or making a segment, as [`IfExists`] says.

use super::catalog;
use super::mapping::Segment;
use crate::error::{Error, Result};
use crate::policies::IfExists;
use std::sync::Arc;

impl IfExists {
    /// Opens what is there or makes a new one, and sits down in it; `sit_down` is told whether it was there. A new one gets
    /// its name after that. A stale one of another shape is replaced, unless it `holds_data`.
    pub(crate) fn open<T, H>(
        self,
        name: Option<&str>,
        open: impl Fn(&str) -> Result<T>,
        create: impl Fn() -> Result<T>,
        segment_of: impl Fn(&T) -> &Arc<Segment>,
        sit_down: impl Fn(T, bool) -> Result<H>,
        holds_data: impl Fn(&Segment) -> bool,
    ) -> Result<H> {
        self.settle(|| {
            let (structure, resumed) = self.open_or_create(name, &open, &create, &holds_data)?;
            let segment = segment_of(&structure).clone();
            let handle = sit_down(structure, resumed)?;
            if !resumed {
                segment.publish()?;
            }
            Ok(handle)
        })
    }

    /// True when it was there. Without a name, nothing can be.
    fn open_or_create<T>(
        self,
        name: Option<&str>,
        open: impl FnOnce(&str) -> Result<T>,
        create: impl FnOnce() -> Result<T>,
        holds_data: impl FnOnce(&Segment) -> bool,
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
                // Another shape: replace it if it is stale and empty, otherwise say what differs.
                Err(error) if error.is_mismatch() && catalog::collect_unless(name, holds_data)? => {
                    create().map(fresh)
                }
                Err(error) => Err(error),
            },
        }
    }

    /// Looks again when another process collects the segment, shuts it down or makes it between our look and sitting down.
    fn settle<T>(self, mut open_once: impl FnMut() -> Result<T>) -> Result<T> {
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
