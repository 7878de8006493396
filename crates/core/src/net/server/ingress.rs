//! What a TCP server feeds: a ring, or a lane of records.

use super::feed::Feed;
use super::record_ingress::RecordIngress;
use super::sample_ingress::SampleIngress;
use std::ops::Deref;

/// The way into a ring or a lane.
#[derive(Debug, Clone)]
pub enum Ingress {
    Samples(SampleIngress),
    Records(RecordIngress),
}

impl Deref for Ingress {
    type Target = dyn Feed;

    fn deref(&self) -> &(dyn Feed + 'static) {
        match self {
            Ingress::Samples(ingress) => ingress,
            Ingress::Records(ingress) => ingress,
        }
    }
}

impl From<SampleIngress> for Ingress {
    fn from(ingress: SampleIngress) -> Ingress {
        Ingress::Samples(ingress)
    }
}

impl From<RecordIngress> for Ingress {
    fn from(ingress: RecordIngress) -> Ingress {
        Ingress::Records(ingress)
    }
}
