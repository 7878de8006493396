//! The network over real sockets: samples, records and weights; cuts, stalls, pressure and hostile peers.
//!
//! `cargo test -p rollway-core --test net stalls::`

#![cfg(not(loom))]

#[path = "../support/mod.rs"]
mod fixture;
#[path = "../support/frame_probe.rs"]
mod frame_probe;
#[path = "../support/net.rs"]
mod harness;
#[cfg(feature = "fault")]
#[path = "../support/kills.rs"]
mod kills;

mod forwarder;
mod frame;
mod mirror_chain;
mod pressure;
mod record_forwarder;
mod record_sessions;
mod records;
mod restarts;
mod samples;
mod security;
mod sessions;
mod stalls;
mod weights;
