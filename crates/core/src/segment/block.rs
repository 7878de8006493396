//! A block: one named run of zeroed bytes in shared memory, and nothing else.
//!
//! For processes that bring a layout of their own, and agree among themselves which of them writes when. The name lasts until
//! its maker [unlinks](Block::unlink) it; once all of them are dead, the next creation of a segment collects it.

use super::header::geometry_words;
use super::lease::{Role, Seat};
use super::mapping::{Segment, Spec};
use crate::error::{Error, Result};
use std::ptr::NonNull;
use std::sync::Arc;

/// The `kind` of a segment that holds a block.
pub const KIND: u32 = 6;

/// How many may be attached to a block at once.
const SEATS: usize = 64;

/// One handle on a block. The mapping lives as long as the handle.
#[derive(Debug)]
pub struct Block {
    seat: Seat,
    bytes: usize,
}

impl Block {
    /// Makes a block under an automatic name.
    pub fn create(name: &str, bytes: usize) -> Result<Block> {
        let segment = Arc::new(Segment::create(&Spec {
            name: Some(name),
            kind: KIND,
            schema: b"",
            geometry: geometry_words([bytes]),
            body_bytes: bytes,
            reserved_bytes: bytes,
            seats: SEATS,
            huge_pages: None,
            auto_named: true,
        })?);
        let seat = Seat::take(segment.clone(), Role::Consumer, |_| {})?;
        segment.publish()?;
        Ok(Block { seat, bytes })
    }

    /// Opens a block by its name.
    pub fn attach(name: &str) -> Result<Block> {
        let segment = Arc::new(Segment::open(name, Some(KIND))?);
        let header = segment.header();
        if header.geometry[0] != header.body_bytes {
            let what = "the geometry in its header does not fit its size";
            return Err(Error::Corrupt { name: name.to_owned(), what });
        }
        let bytes = header.body_bytes as usize; // Checked against the size of the file.
        let seat = Seat::take(segment, Role::Producer, |_| {})?;
        Ok(Block { seat, bytes })
    }

    /// Where the bytes lie in this process, and how many there are.
    pub fn data(&self) -> (NonNull<u8>, usize) {
        (self.seat.segment().body().0, self.bytes)
    }

    /// Takes the name away; the bytes stay for attached processes. False when it was gone.
    pub fn unlink(&self) -> Result<bool> {
        self.seat.segment().unlink()
    }
}
