//! Environments in worker processes, stepped by one caller through shared memory.
//!
//! | module | what it is |
//! |---|---|
//! | [`layout`] | the bytes, and what the words say |
//! | [`protocol`] | the hand-over, its invariants, and what a dead worker leaves |
//! | [`caller`], [`worker`] | the two handles |
//! | [`parent`] | workers end with their caller |
//!
//! Only control lives here. What an observation is, and where in the data it lies, is agreed upon above; what does not fit
//! into shared memory travels by a way that the caller and its workers have of their own ([`Protocol::post_message`]).

pub mod caller;
pub mod layout;
#[cfg(not(loom))]
pub mod parent;
pub mod protocol;
pub mod worker;

use crate::error::{Damage, Error, Result};
use crate::segment::{Segment, Spec};
pub use caller::{Caller, Outcome};
use layout::{Geometry, KIND};
use protocol::Protocol;
use std::ptr::NonNull;
use std::sync::Arc;
pub use worker::{Call, Worker};

/// A mapped vector environment, shared by the handles on it.
#[derive(Debug)]
pub struct VectorEnv {
    segment: Arc<Segment>,
    geometry: Geometry,
}

impl VectorEnv {
    fn create(name: &str, geometry: Geometry) -> Result<VectorEnv> {
        let segment = Segment::create(&Spec {
            name: Some(name),
            kind: KIND,
            schema: b"",
            geometry: geometry.words(),
            body_bytes: geometry.body_bytes,
            reserved_bytes: geometry.body_bytes,
            seats: geometry.seats(),
            huge_pages: None,
            auto_named: true,
        })?;
        segment.populate();
        Ok(VectorEnv { segment: Arc::new(segment), geometry })
    }

    fn open(name: &str) -> Result<VectorEnv> {
        let vector_env = Self::over(Segment::open(name, Some(KIND))?)?;
        vector_env.segment.populate();
        Ok(vector_env)
    }

    /// What lies in a segment, checked against its header. It changes nothing.
    pub(crate) fn over(segment: Segment) -> Result<VectorEnv> {
        let [workers, envs, data_bytes, ..] = segment.header().geometry.map(|word| word as usize);
        let geometry =
            Geometry::new(workers, envs, data_bytes).map_err(|error| segment.bad_geometry(error))?;
        segment.check_geometry(&geometry.words(), geometry.body_bytes)?;
        if segment.seats().len() != geometry.seats() {
            return Err(segment.damaged(Damage("its number of seats is not that of its workers")));
        }
        Ok(VectorEnv { segment: Arc::new(segment), geometry })
    }

    pub fn protocol(&self) -> Protocol<'_> {
        let (segment, geometry) = (&self.segment, &self.geometry);
        // SAFETY: the offsets were derived from checked counts, and the body is at least `body_bytes` long, page-aligned and
        // mapped as long as `self.segment`. What lies there is atomics.
        unsafe {
            Protocol {
                control: segment.control(),
                lines: segment.words(geometry.lines_offset, geometry.workers),
                asked: segment.words(geometry.asked_offset, geometry.envs),
                answered: segment.words(geometry.answered_offset, geometry.envs),
            }
        }
    }

    /// Where the data lies in this process, and how many bytes it has.
    pub fn data(&self) -> (NonNull<u8>, usize) {
        // SAFETY: the data is inside the body.
        (unsafe { self.segment.body().0.add(self.geometry.data_offset) }, self.geometry.data_bytes)
    }

    /// For the caller: tells the workers to end, and takes the name away. A wait of another thread ends with [`Error::Closed`].
    pub fn close(&self) -> Result<()> {
        self.protocol().close();
        self.segment.unlink().map(drop)
    }

    fn damaged(&self, what: &'static str) -> Error {
        self.segment.damaged(Damage(what))
    }

    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    pub fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }
}
