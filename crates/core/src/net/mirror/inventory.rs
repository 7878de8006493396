//! What a learner says about its weights, checked before memory is reserved or a name given (M3).

use super::shared::WeightMirrorSpec;
use crate::error::{Error, Result};
use crate::net::wire::frame::Inventory;
use crate::schema;
use crate::segment::memory;
use crate::weights::layout::{FIRST_BUFFERS, Geometry};
use std::path::Path;

/// Refuses an inventory that does not hold together, other leaves than the callers have room for, and more than there is
/// memory for (M3).
pub fn check_inventory(
    spec: &WeightMirrorSpec,
    address: String,
    inventory: &Inventory,
    leaf_bytes: &[usize],
) -> Result<()> {
    let protocol = |what: String| Error::Protocol { address: address.clone(), what };
    let theirs = schema::weights(&inventory.schema)
        .map_err(|invalid| protocol(format!("the schema of its weights cannot be read: {invalid}")))?;
    if !theirs.fits(leaf_bytes) {
        return Err(protocol("the sizes of its leaves do not fit their shapes".to_owned()));
    }
    if let Some(wanted) = &spec.wanted {
        let ours = schema::weights(wanted).map_err(|bad| Error::BadSchema { what: bad.to_string() })?;
        if ours.leaves != theirs.leaves {
            let (ours, theirs) = (wanted.clone(), inventory.schema.clone());
            return Err(Error::ForeignSchema { address, ours, theirs });
        }
    }
    let geometry = Geometry::new(spec.max_peers, spec.max_buffers, leaf_bytes.to_vec())?;
    let need = geometry.buffer_offset(FIRST_BUFFERS) as u64;
    let limit = spec.max_bytes.or_else(|| memory::left(Path::new("/")).map(|left| left / 2));
    match limit.filter(|&limit| need > limit) {
        Some(limit) => Err(Error::TooLarge { address, need, copies: FIRST_BUFFERS, limit }),
        None => Ok(()),
    }
}
