//! Weights whose versions come from elsewhere: how their segment is found or made, and how one takes the place of another.
//!
//! A mirror keeps the numbers of its origin. Numbers of two histories never meet in one segment: a sequence that is the same
//! must be the same bytes (I4). So when the origin begins anew, a second segment takes the first one's place and name.

use super::{Weights, WeightsSpec};
use crate::error::{Error, Result};
use crate::weights::{Reader, Writer};
use std::sync::Arc;

/// Becomes the writer of a mirror of `lineage`. One of that name that was left by the dead is gone on with, if it has the same
/// history and leaves; another is shut down. What is no mirror, or has a living writer, is an error.
pub fn open(spec: &WeightsSpec<'_>, lineage: u64, threads: usize) -> Result<Writer> {
    if let Some(name) = spec.name
        && let Some(there) = find(name)?
    {
        let there = Arc::new(there);
        let same = there.lineage() == lineage
            && there.segment().schema() == spec.schema
            && there.geometry().leaf_bytes == spec.leaf_bytes
            && there.has_checksums() == spec.checksum;
        if same && there.is_mirror() {
            return Writer::attach_mirror(there, threads);
        }
        if !there.is_mirror() {
            return Err(Error::Exists { name: name.to_owned() });
        }
        if Reader::attach_to(there.clone(), 1)?.has_writer() {
            return Err(Error::WriterLives { name: name.to_owned(), pid: there.writer_pid().unwrap_or(0) });
        }
        there.shut_down()?;
    }
    let writer = successor(spec, lineage, threads)?;
    writer.weights().segment().publish()?;
    Ok(writer)
}

fn find(name: &str) -> Result<Option<Weights>> {
    match Weights::open(name, None) {
        Ok(there) if there.is_closed() => Ok(None),
        Ok(there) => Ok(Some(there)),
        Err(Error::NotFound { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// A mirror of another history, without a name. [`replace`] gives it the name.
pub fn successor(spec: &WeightsSpec<'_>, lineage: u64, threads: usize) -> Result<Writer> {
    Writer::attach_mirror(Arc::new(Weights::create(spec, lineage)?), threads)
}

/// Gives `new` the name of `old`. Readers of the old one learn that nothing more will come to it.
pub fn replace(old: &Weights, new: &Weights) -> Result<()> {
    old.shut_down()?;
    new.segment().publish()
}
