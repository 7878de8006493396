//! The name of a segment: given to it, refused where a live segment has it, and taken from stale ones.

use super::header::{GEOMETRY_WORDS, Header};
use super::mapping::{Segment, Spec, check_name, path_of};
use super::{catalog, lease};
use crate::error::{Damage, Error, Result};
use crate::policies::OnFull;
use crate::sys::sync::Ordering;
use rustix::fs;
use rustix::io::Errno;
use std::os::fd::AsRawFd;

impl Segment {
    /// Makes a segment that has no name yet: fill the body, take a seat, then [`publish`](Self::publish) it.
    pub fn create(spec: &Spec<'_>) -> Result<Segment> {
        if let Some(name) = spec.name {
            check_name(name)?;
            catalog::collect_auto_named()?;
        }
        Segment::make(spec)
    }

    /// Gives the segment its name. From here on others can attach (S1).
    pub fn publish(&self) -> Result<()> {
        if !self.named {
            return Ok(());
        }
        let own = format!("/proc/self/fd/{}", self.anchor.as_raw_fd());
        loop {
            match fs::linkat(fs::CWD, &*own, fs::CWD, path_of(&self.name), fs::AtFlags::SYMLINK_FOLLOW) {
                Ok(()) => {
                    self.published.store(true, Ordering::Relaxed);
                    return Ok(());
                }
                Err(Errno::EXIST) if catalog::collect(&self.name)? => {}
                Err(Errno::EXIST) => match Segment::open(&self.name, None) {
                    Err(Error::NotFound { .. }) => {}
                    Err(error) => return Err(error),
                    Ok(there) => return Err(there.in_use()?),
                },
                Err(e) => return Err(Error::io(format!("naming segment '{}'", self.name), e)),
            }
        }
    }

    /// The policy in a word of the header's geometry.
    pub(crate) fn policy(&self, word: usize) -> Result<OnFull> {
        OnFull::from_word(self.header().geometry[word])
            .ok_or_else(|| self.damaged(Damage("its policy is unknown")))
    }

    /// Changes the policy of a stale segment, for later openers. An error where a participant lives.
    pub(crate) fn change_policy(&self, word: usize, theirs: OnFull, ours: OnFull) -> Result<()> {
        if theirs == ours {
            return Ok(());
        }
        let header = self.header();
        if self.is_live()? {
            let (name, creator) = (self.name.clone(), header.creator_pid);
            return Err(Error::Policy { name, creator, theirs: theirs.name(), ours: ours.name() });
        }
        let offset = std::mem::offset_of!(Header, geometry) + word * size_of::<u64>();
        assert!(word < GEOMETRY_WORDS, "a header has so many words");
        // SAFETY: the word lies in the header page, aligned. An opener reads one policy or the other.
        unsafe { self.base.as_ptr().add(offset).cast::<u64>().write_volatile(ours as u64) };
        Ok(())
    }

    /// The error for a name that a live segment has.
    pub fn in_use(&self) -> Result<Error> {
        let alive = lease::count_alive(self)?;
        Ok(Error::InUse { name: self.name.clone(), creator: self.header().creator_pid, alive })
    }

    /// Whether a participant lives here.
    pub fn is_live(&self) -> Result<bool> {
        Ok(lease::count_alive(self)? > 0)
    }
}
