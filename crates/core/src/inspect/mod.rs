//! A look at a segment from outside: what is in it, who takes part, and where their time goes. It takes no seat and no lock,
//! and its mapping cannot be written to.
//!
//! | module | what it is |
//! |---|---|
//! | `numbers` | the contents and counters of each kind of segment |
//! | `participants` | who takes part, alive or dead, what each of them holds, and their times |
//! | [`newest`] | the samples, records, rows or weights that were committed last, copied |
//!
//! The processes of the run may hang, be stopped or be dead: nothing here waits for them. All words that are read were
//! written by another process. Indices and sizes are checked, and a damaged segment is an [`Error`](crate::Error).

pub mod newest;
mod numbers;
mod participants;

use crate::error::{Error, Result};
use crate::records::{self, Records};
use crate::replay::{self, Field, MappedTable};
use crate::ring::{self, Ring};
use crate::schema;
use crate::segment::Segment;
use crate::segment::histogram::Snapshot;
use crate::sys::clock::monotonic_ns;
use crate::sys::sync::Ordering;
use crate::vector_env::{self, VectorEnv};
use crate::weights::{self, Weights};
pub use newest::Newest;
pub use participants::{Participant, State};

/// A segment that is looked at.
#[derive(Debug)]
pub struct Inspection {
    structure: Structure,
}

/// What is in its body.
#[derive(Debug)]
enum Structure {
    Ring(Ring),
    Records(Records),
    Weights(Weights),
    Replay(MappedTable),
    VectorEnv(VectorEnv),
    /// A block, or a kind that this version does not know.
    Other(Segment),
}

/// What was seen at one moment.
#[derive(Debug, Clone)]
pub struct Look {
    /// CLOCK_MONOTONIC.
    pub at_ns: u64,
    /// The names of `stats()`, where there is such a number.
    pub numbers: Vec<(&'static str, u64)>,
    pub histograms: Vec<(&'static str, Snapshot)>,
    pub participants: Vec<Participant>,
    /// Whether it was shut down.
    pub is_closed: bool,
    /// Whether its name leads elsewhere, or nowhere.
    pub is_unlinked: bool,
}

impl Inspection {
    /// Maps a segment of this user, read-only.
    pub fn open(name: &str) -> Result<Inspection> {
        let segment = Segment::open_read_only(name)?;
        let structure = match segment.header().kind {
            ring::layout::KIND => {
                let leaves =
                    schema::leaves(&segment.schema()).map_err(|invalid| segment.bad_schema(invalid))?;
                let bytes: Vec<usize> = leaves.iter().map(|leaf| leaf.bytes).collect();
                Structure::Ring(Ring::over(segment, &bytes)?)
            }
            records::layout::KIND => Structure::Records(Records::over(segment)?),
            weights::layout::KIND => Structure::Weights(Weights::over(segment, None)?),
            replay::layout::KIND => {
                // How a row is divided does not matter here.
                let row_bytes = segment.header().geometry[2] as usize;
                let row = [Field { offset: 0, bytes: row_bytes }];
                Structure::Replay(MappedTable::over(segment, row_bytes, &row)?)
            }
            vector_env::layout::KIND => Structure::VectorEnv(VectorEnv::over(segment)?),
            _ => Structure::Other(segment),
        };
        Ok(Inspection { structure })
    }

    pub fn segment(&self) -> &Segment {
        match &self.structure {
            Structure::Ring(ring) => ring.segment(),
            Structure::Records(records) => records.segment(),
            Structure::Weights(weights) => weights.segment(),
            Structure::Replay(table) => &table.segment,
            Structure::VectorEnv(vector_env) => vector_env.segment(),
            Structure::Other(segment) => segment,
        }
    }

    /// Looks once.
    pub fn look(&self) -> Result<Look> {
        let segment = self.segment();
        segment.check_whole()?;
        let at_ns = monotonic_ns();
        let (mut numbers, histograms) = self.numbers(at_ns)?;
        let joined = segment.seats().iter().map(|record| u64::from(record.life.load(Ordering::Relaxed)));
        numbers.push(("joined", joined.sum()));
        Ok(Look {
            at_ns,
            numbers,
            histograms,
            participants: self.participants(at_ns)?,
            is_closed: self.is_closed(),
            is_unlinked: segment.is_unlinked()?,
        })
    }

    fn is_closed(&self) -> bool {
        match &self.structure {
            Structure::Ring(ring) => ring.is_closed(),
            Structure::Records(records) => records.is_closed(),
            Structure::Weights(weights) => weights.is_closed(),
            Structure::Replay(table) => table.protocol().control.read.closed.is_set(),
            Structure::VectorEnv(vector_env) => vector_env.protocol().is_closed(),
            Structure::Other(_) => false,
        }
    }

    /// The error for a question that its contents do not answer.
    fn has_no(&self, what: &'static str) -> Error {
        Error::OutOfRange { what, value: 0, range: format!("segment '{}' has none", self.segment().name()) }
    }
}
