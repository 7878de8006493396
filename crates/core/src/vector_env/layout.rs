//! The bytes of a vector environment: where everything lies, and what the words say.
//!
//! ```text
//! body ┌─────────────────────────────────────────────────────────────┐
//!      │ Control        closed, caller, limit │ answered event       │
//!      ├─────────────────────────────────────────────────────────────┤
//!      │ WorkerLine × workers (128 B)   owner, messages │ work event │
//!      ├─────────────────────────────────────────────────────────────┤
//!      │ asked    u64 × environments      written by the caller      │
//!      │ answered u64 × environments      written by its worker      │
//! page ├─────────────────────────────────────────────────────────────┤
//!      │ data: arrays, laid out by their users                       │
//!      └─────────────────────────────────────────────────────────────┘
//! ```
//!
//! | word | high to low | | |
//! |---|---|---|---|
//! | asked | number (32) | argument (24) | what (8) |
//! | answered | number (32) | | flags (8) |
//!
//! Worker `w` of `W` has the environments from `w·n/W` up to `(w+1)·n/W`.

use crate::error::{Error, Result};
use crate::segment::header::{GEOMETRY_WORDS, PAGE, geometry_words};
use crate::sys::sync::{AtomicU32, AtomicU64, ClosedFlag, EventCount};
use std::ops::Range;

/// The `kind` of a segment that holds a vector environment.
pub const KIND: u32 = 5;

/// The head of the body.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Control {
    /// 1 once the caller has closed.
    pub closed: ClosedFlag,
    /// How many answers may be missing when the sleeping caller is woken.
    pub limit: AtomicU32,
    /// The caller: an [`Owner`](crate::segment::Owner) or none.
    pub caller: AtomicU64,
    /// Rung when the caller has the answers that it waits for.
    pub answered: EventCount,
}

/// One worker's words.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct WorkerLine {
    /// The worker: an [`Owner`](crate::segment::Owner) or none.
    pub owner: AtomicU64,
    /// How many messages the caller has sent it, by another way.
    pub messages_sent: AtomicU64,
    /// Rung when there is something to do.
    pub work: EventCount,
}

#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<WorkerLine>() == 128);
    assert!(size_of::<Control>() == 128);
};

/// What the caller asks of one environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Grows by one with each request to this environment, and wraps.
    pub number: u32,
    /// 24 bits for the users: which buffer to write to.
    pub argument: u32,
    /// 8 bits for the users: which kind of step.
    pub what: u8,
}

/// The largest argument of a [`Request`].
pub const MAX_ARGUMENT: u32 = (1 << 24) - 1;

impl Request {
    pub fn unpack(word: u64) -> Request {
        Request { number: (word >> 32) as u32, argument: (word >> 8) as u32 & MAX_ARGUMENT, what: word as u8 }
    }

    pub fn pack(self) -> u64 {
        (self.number as u64) << 32 | ((self.argument & MAX_ARGUMENT) as u64) << 8 | self.what as u64
    }
}

/// What a worker says when it is done with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// Of the request.
    pub number: u32,
    /// 8 bits for the users: what else there is to read.
    pub flags: u8,
}

impl Answer {
    pub fn unpack(word: u64) -> Answer {
        Answer { number: (word >> 32) as u32, flags: word as u8 }
    }

    pub fn pack(self) -> u64 {
        (self.number as u64) << 32 | self.flags as u64
    }
}

/// The sizes of a vector environment, and every offset derived from them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    pub workers: usize,
    pub envs: usize,
    pub data_bytes: usize,
    pub lines_offset: usize,
    pub asked_offset: usize,
    pub answered_offset: usize,
    pub data_offset: usize,
    pub body_bytes: usize,
}

impl Geometry {
    /// Checks the sizes, and derives the offsets.
    pub fn new(workers: usize, envs: usize, data_bytes: usize) -> Result<Geometry> {
        if !(1..=1 << 20).contains(&envs) {
            return Err(Error::out_of_range("num_envs", envs, "1 to 1,048,576"));
        }
        if workers == 0 || workers > envs || workers > MAX_WORKERS {
            return Err(Error::out_of_range(
                "num_workers",
                workers,
                "1 to the number of environments, at most 1,000",
            ));
        }
        Self::derive(workers, envs, data_bytes).ok_or_else(|| {
            Error::out_of_range("bytes of all observations", data_bytes, "what the address space holds")
        })
    }

    fn derive(workers: usize, envs: usize, data_bytes: usize) -> Option<Geometry> {
        let lines_offset = size_of::<Control>();
        let asked_offset = lines_offset + workers * size_of::<WorkerLine>();
        let words = (envs * size_of::<AtomicU64>()).next_multiple_of(64);
        let answered_offset = asked_offset + words;
        let data_offset = (answered_offset + words).next_multiple_of(PAGE);
        let body_bytes = data_offset.checked_add(data_bytes)?;
        (body_bytes <= isize::MAX as usize).then_some(Geometry {
            workers,
            envs,
            data_bytes,
            lines_offset,
            asked_offset,
            answered_offset,
            data_offset,
            body_bytes,
        })
    }

    /// The numbers for the segment header.
    pub fn words(&self) -> [u64; GEOMETRY_WORDS] {
        let check = self.workers * self.envs; // So that one wrong word before it shows.
        geometry_words([self.workers, self.envs, self.data_bytes, check])
    }

    /// Every worker has a seat, the caller has one, and a new worker may come before an old one is buried.
    pub fn seats(&self) -> usize {
        self.workers + 16
    }
}

/// Workers that a segment has seats for.
pub const MAX_WORKERS: usize = 1000;

/// The environments of one worker.
pub fn env_range(worker: usize, workers: usize, envs: usize) -> Range<usize> {
    worker * envs / workers..(worker + 1) * envs / workers
}
