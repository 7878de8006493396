//! `TcpClient`: sends samples of one size into a learner's ring.

use super::handle::Client;
use super::packing::Layout;
use super::shared::TcpClientSpec;
use crate::error::{Error, Result};
use crate::net::wire::limits::{FRAME_BYTES, MAX_FRAME_ROWS, check_sample_bytes};
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
        check_sample_bytes(sample_bytes)?;
        let capacity = (FRAME_BYTES / sample_bytes.max(1)).clamp(1, MAX_FRAME_ROWS);
        let client = Client::start(spec, schema, Layout::samples(leaf_bytes, capacity))?;
        Ok(TcpClient { client, leaves: leaf_bytes.len() })
    }

    /// Connects, and returns when samples may be sent. A signal ends it; `start` and `ready` can go on after one.
    pub fn connect(spec: TcpClientSpec, schema: &[u8], leaf_bytes: &[usize]) -> Result<TcpClient> {
        let client = TcpClient::start(spec, schema, leaf_bytes)?;
        client.ready(Deadline::Never)?;
        Ok(client)
    }

    /// Takes samples: `rows` of them, each leaf's one after the other. Says how many were taken: fewer than `rows`
    /// when the time was over, or a signal came, in between; call again for the rest.
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
        if leaves.len() != self.leaves {
            let range = format!("{}, as in the schema", self.leaves);
            return Err(Error::OutOfRange { what: "leaves", value: leaves.len() as u64, range });
        }
        self.client.take(rows, deadline, |outbound, taken| {
            // SAFETY: the caller vouches for the leaves.
            Ok(unsafe { outbound.append(leaves, taken, rows - taken, version) })
        })
    }

    /// Waits until there is room for a sample, and takes none: for event loops, which then try. False when the time was
    /// over first.
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
