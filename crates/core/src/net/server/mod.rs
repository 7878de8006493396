//! The learner's end: one task per connection, from the socket into the slots.
//!
//! | module | what it is |
//! |---|---|
//! | `tcp_server`, `connection` | [`TcpServer`]: its threads; one connection |
//! | `shared`, `end` | what the tasks share; why a connection ends |
//! | `handshake`, `guesses` | checks clients; slows addresses that guess tokens |
//! | `header_reader`, `stream` | frame headers from a socket; bytes from and to it, with or without TLS |
//! | `feed` | what a server needs to know of a ring or a lane |
//! | `ingress` | what a server feeds: a ring or a lane |
//! | [`sample_ingress`], [`record_ingress`] | the way into the ring, or a lane, that every transport uses |
//! | [`room_waiter`] | a thread that waits for room, for all connections |
//! | `sample_frames`, `record_frames`, `frame_scatter` | how frames get there; their bytes from the socket to their places |
//! | `staging` | memory for frames that arrive slowly |
//! | `session` | what each client has delivered, across connections |
//! | `weight_outlet` | [`WeightOutlet`]: the weights that it gives out, also after a mirror has replaced them |
//! | `weight_source`, `weight_frames` | weights, from shared memory to the socket |

mod connection;
mod end;
mod feed;
mod frame_scatter;
mod guesses;
mod handshake;
mod header_reader;
mod ingress;
mod record_frames;
pub mod record_ingress;
pub mod room_waiter;
mod sample_frames;
pub mod sample_ingress;
mod session;
mod shared;
mod staging;
mod stream;
mod tcp_server;
mod weight_frames;
mod weight_outlet;
mod weight_source;

pub use feed::Feed;
pub use ingress::Ingress;
pub use record_ingress::RecordIngress;
pub use sample_ingress::SampleIngress;
pub use shared::{Refused, TcpServerSpec};
pub use tcp_server::TcpServer;
pub use weight_outlet::WeightOutlet;
pub(in crate::net) use weight_source::SourceEnd;
