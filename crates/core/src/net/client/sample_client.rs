//! `TcpClient`: sends samples of one size into a learner's ring.

use super::handle::Client;
use super::packing::Layout;
use super::spec::TcpClientSpec;
use crate::error::Result;
use crate::net::wire::limits::{FRAME_BYTES, MAX_FRAME_ROWS, MAX_SAMPLE_BYTES, check, check_at_most};
use crate::ring::Deadline;
use std::ops::Deref;

/// One worker's connection to a learner's ring. Threads may share it.
#[derive(Debug)]
pub struct TcpClient {
    client: Client,
    leaves: usize,
}

impl TcpClient {
    /// Begins to connect, and returns at once; [`ready`](Client::ready) says how it went.
    pub fn start(spec: TcpClientSpec, schema: &[u8], leaf_bytes: &[usize]) -> Result<TcpClient> {
        let sample_bytes = leaf_bytes.iter().sum::<usize>();
        check_at_most("sample bytes", sample_bytes, MAX_SAMPLE_BYTES)?;
        let capacity = (FRAME_BYTES / sample_bytes.max(1)).clamp(1, MAX_FRAME_ROWS);
        let client = Client::start(spec, schema, Layout::samples(leaf_bytes, capacity))?;
        Ok(TcpClient { client, leaves: leaf_bytes.len() })
    }

    /// Takes `rows` samples, leaf by leaf. Returns how many it took: fewer than `rows` when the time was over or a signal came; call
    /// again for the rest.
    ///
    /// # Safety
    ///
    /// There is one pointer per leaf, to `rows` times the bytes of the leaf.
    pub unsafe fn send(
        &self,
        leaves: &[*const u8],
        rows: usize,
        version: u32,
        deadline: Deadline,
    ) -> Result<usize> {
        let expected = self.leaves;
        check(leaves.len() == expected, "leaves", leaves.len(), &format!("{expected}, as in the schema"))?;
        self.client.take(rows, deadline, |outbound, taken| {
            // SAFETY: the caller vouches for the leaves.
            Ok(unsafe { outbound.append(leaves, taken, rows - taken, version) })
        })
    }

    /// Waits until there is room for a sample: for event loops, which then try. False when the time was over first.
    pub fn wait_writable(&self, deadline: Deadline) -> Result<bool> {
        self.client.wait_room(0, deadline)
    }
}

impl Deref for TcpClient {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}
