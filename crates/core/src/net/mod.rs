//! The network: samples and records from other hosts, straight from the socket into shared memory, and weights to them.
//!
//! | module | what it is |
//! |---|---|
//! | [`wire`] | what both ends need: the bytes on the wire, tokens, TLS, limits, counters |
//! | [`server`] | [`TcpServer`]: one task per connection, from the socket into the slots; weights to the socket |
//! | [`client`] | [`Client`]: sends, keeps until acknowledged, reconnects, sends again; [`Forwarder`]: the same for a node's ring or records |
//! | [`mirror`] | [`WeightMirror`]: a worker's copy of weights, kept up to date |
//!
//! Acknowledged means committed. A client keeps every sample until the server has acknowledged it, and after a reconnect the
//! server says which one it wants next: nothing is lost, nothing is delivered twice. `docs/design/net/` describes the protocol.

pub mod client;
pub mod mirror;
pub mod server;
pub mod wire;

pub use client::{
    Client, Forwarder, NodeBuffer, TcpClient, TcpClientSpec, TcpRecordClient, WeightMirrorSpec,
};
pub use mirror::WeightMirror;
pub use server::{
    Feed, Ingress, RecordIngress, Refused, SampleIngress, TcpServer, TcpServerSpec, WeightOutlet,
};
pub use wire::limits::{FRAME_BYTES, MAX_FRAME_BYTES, MAX_FRAME_RECORDS, MAX_FRAME_ROWS, MAX_SAMPLE_BYTES};
pub use wire::stats::{ClientStats, ServerStats};
pub use wire::tls::{ClientTls, ServerTls};
