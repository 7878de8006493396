//! The network: samples and records from other hosts, straight from the socket into shared memory, and weights to them.
//!
//! | module | what it is |
//! |---|---|
//! | [`wire`] | the bytes on the wire, and who may come in: what both ends need |
//! | [`server`] | [`TcpServer`]: one task per connection, from the socket into the slots; weights to the socket |
//! | [`client`] | [`Client`]: sends, keeps until acknowledged, reconnects, sends again |
//! | [`mirror`] | [`WeightMirror`]: a worker's copy of weights, kept up to date |
//!
//! Acknowledged means committed. A client keeps every sample until it is, and after a reconnect the server says which
//! one it wants next: nothing is lost, nothing is delivered twice. The conversation is described in
//! `docs/design/net.md`.

pub mod client;
pub mod mirror;
pub mod server;
pub mod wire;

use crate::error::Result;
pub use client::{Client, TcpClient, TcpClientSpec, TcpRecordClient};
pub use mirror::{WeightMirror, WeightMirrorSpec};
pub use server::{Ingress, RecordIngress, Refused, SampleIngress, TcpServer, TcpServerSpec};
pub use wire::limits::{FRAME_BYTES, MAX_FRAME_BYTES, MAX_FRAME_RECORDS, MAX_FRAME_ROWS, MAX_SAMPLE_BYTES};
pub use wire::stats::{ClientStats, ServerStats};
pub use wire::tls::{ClientTls, ServerTls};

/// A way for samples to come from elsewhere into a ring, or for records into a lane: TCP here; others may write their
/// own over an [`SampleIngress`], or a [`RecordIngress`].
pub trait Transport<I = SampleIngress> {
    /// Begins to serve. Whatever is wrong with the address or the settings is an error here and not later.
    fn start(&self, ingress: I) -> Result<Box<dyn Endpoint>>;
}

/// A transport at work.
pub trait Endpoint: Send + Sync {
    /// Where clients find it.
    fn address(&self) -> String;

    /// Names and numbers.
    fn stats(&self) -> Vec<(&'static str, u64)>;

    /// Says goodbye to the clients and returns when no slot is held any more. Idempotent.
    fn stop(&self);
}
