//! The worker's end: sends, keeps until acknowledged, reconnects, sends again.
//!
//! | module | what it is |
//! |---|---|
//! | `spec` | the settings of clients and mirrors |
//! | `shared` | what the thread and the callers share |
//! | `handle` | [`Client`]: what clients of samples and of records have in common |
//! | `sample_client`, `record_client`, `packing` | [`TcpClient`], [`TcpRecordClient`]; the layout of their frames |
//! | `forwarder`, `taker`, `node_buffer` | [`Forwarder`]: sends on what the workers of a node write; its thread that takes it; the node's ring, or its lanes for records |
//! | `batch_taker`, `forwarded_batch` | the thread that takes batches of the ring; their rows |
//! | `record_taker`, `forwarded_records` | the same of records |
//! | `outbound` | frames that are not acknowledged |
//! | `client_thread` | the thread that connects, sends and reads the answers |
//! | `dial`, `lookup`, `link` | names to addresses, addresses to connections; one connection |
//! | `reconnect` | the reconnect loop of clients and mirrors |
//! | `disconnect` | why there is no connection |

mod batch_taker;
mod client_thread;
pub(super) mod dial;
pub(super) mod disconnect;
mod forwarded_batch;
mod forwarded_records;
mod forwarder;
mod handle;
pub(super) mod link;
mod lookup;
mod node_buffer;
mod outbound;
mod packing;
pub(super) mod reconnect;
mod record_client;
mod record_taker;
mod sample_client;
mod shared;
mod spec;
mod taker;

pub use forwarder::Forwarder;
pub use handle::Client;
pub use node_buffer::NodeBuffer;
pub use record_client::TcpRecordClient;
pub use sample_client::TcpClient;
pub use spec::{TcpClientSpec, WeightMirrorSpec};
