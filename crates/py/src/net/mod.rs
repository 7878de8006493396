//! Handles of the network: the server, and what remote workers send through.
//!
//! | module | what it is |
//! |---|---|
//! | `tcp_server` | `TcpServer`: a TCP transport of a learner |
//! | `endpoints` | the transports that feed one learner |
//! | `sample_client` | `TcpSender`: the handle of a remote worker for samples |
//! | `record_client` | `TcpRecordSender`: the same for records |
//! | `forwarder` | `Forwarder`: sends on what the workers of a node write |
//! | `options` | `TcpOptions`: how a worker's end of a connection behaves |
//! | `connection` | `TcpConnection`: what both have in common |

pub mod connection;
pub mod endpoints;
pub mod forwarder;
pub mod options;
pub mod record_client;
pub mod sample_client;
pub mod tcp_server;
