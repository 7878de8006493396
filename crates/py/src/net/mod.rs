//! Handles of the network: the server, and what remote workers send through.

pub mod connection;
pub mod endpoints;
pub mod options;
pub mod record_client;
pub mod sample_client;
pub mod tcp_server;
