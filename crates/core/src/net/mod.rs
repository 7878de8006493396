//! The network: samples and records from other hosts, straight from the socket into shared memory, and weights to them.
//!
//! | module | what it is |
//! |---|---|
//! | [`frame`] | the bytes on the wire; no I/O |
//! | [`token`], [`tls`] | who may come in; who can listen |
//! | [`token_file`], `guesses` | where a client finds the token of its own user's server; addresses that guess |
//! | [`intake`], [`record_intake`], [`doorman`] | the way into the ring, or a lane, that every transport uses; waiting for room |
//! | `session` | what each client has delivered, across connections |
//! | `server`, `connection`, `handshake`, `ears`, `landing`, `wire` | [`TcpServer`]: one task per connection |
//! | `inlet`, `sample_frames`, `record_frames` | what a server leads to, and how its frames get there |
//! | `staging` | memory for frames that arrive slowly |
//! | `client`, `courier`, `outbound`, `dial`, `lookup`, `link` | [`Client`]: sends, keeps until acknowledged, reconnects, sends again |
//! | `sample_client`, `record_client`, `packing` | [`TcpClient`], [`TcpRecordClient`]: what goes into its frames |
//! | `outlet`, `weight_frames` | weights, from where they lie to the socket |
//! | [`mirror`] | [`WeightMirror`]: a worker's copy of them, kept up to date |
//! | `alone` | sockets that forked children do not keep |
//! | [`stats`] | what both count |
//!
//! Acknowledged means committed. A client keeps every sample until it is, and after a reconnect the server says which
//! one it wants next: nothing is lost, nothing is delivered twice. The conversation is described in
//! `docs/design/net.md`.

mod alone;
mod client;
mod connection;
mod courier;
mod dial;
pub mod doorman;
mod ears;
pub mod frame;
mod guesses;
mod handshake;
mod inlet;
pub mod intake;
mod landing;
mod link;
mod lookup;
pub mod mirror;
mod outbound;
mod outlet;
mod packing;
mod record_client;
mod record_frames;
pub mod record_intake;
mod sample_client;
mod sample_frames;
mod server;
mod session;
mod staging;
pub mod stats;
pub mod tls;
pub mod token;
pub mod token_file;
mod weight_frames;
mod wire;

use crate::error::{Error, Result};
pub use client::{Client, TcpClientSpec};
pub use inlet::Inlet;
pub use intake::Intake;
pub use mirror::{WeightMirror, WeightMirrorSpec};
pub use record_client::TcpRecordClient;
pub use record_intake::RecordIntake;
pub use sample_client::TcpClient;
pub use server::{Refused, TcpServer, TcpServerSpec};
pub use stats::{ClientStats, ServerStats};
use std::thread::JoinHandle;
use std::time::Duration;
pub use tls::{ClientTls, ServerTls};

/// The largest sample that goes over a network.
pub const MAX_SAMPLE_BYTES: usize = 1 << 30;
/// Frames are made about this large; a sample that is larger gets a frame of its own.
pub const FRAME_BYTES: usize = 256 * 1024;
/// The payload of a frame with several rows, at most.
pub const MAX_FRAME_BYTES: usize = 4 * FRAME_BYTES;
/// Rows of a frame, at most.
pub const MAX_FRAME_ROWS: usize = 4096;
/// Records of a frame, at most: a server keeps the index of a frame until the frame is settled.
pub const MAX_FRAME_RECORDS: usize = 512;

/// A way for samples to come from elsewhere into a ring, or for records into a lane: TCP here; others may write their
/// own over an [`Intake`], or a [`RecordIntake`].
pub trait Transport<I = Intake> {
    /// Begins to serve. Whatever is wrong with the address or the settings is an error here and not later.
    fn start(&self, intake: I) -> Result<Box<dyn Endpoint>>;
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

/// Has the kernel break a connection whose other end takes in nothing for so long: a host that is gone, while we do not
/// read and so cannot notice. One that is only stopped still answers, and is not broken.
fn give_up_after(socket: impl std::os::fd::AsFd, time: Duration) -> std::io::Result<()> {
    let millis = time.as_millis().min(i32::MAX as u128) as u32;
    Ok(rustix::net::sockopt::set_tcp_user_timeout(socket, millis)?)
}

/// Keeps a time within what can be added to the clock and waited for.
fn within_reason(time: Duration) -> Duration {
    time.clamp(Duration::from_millis(1), Duration::from_secs(365 * 24 * 3600))
}

fn check_sample_bytes(bytes: usize) -> Result<()> {
    if bytes > MAX_SAMPLE_BYTES {
        let range = format!("at most {MAX_SAMPLE_BYTES} over a network");
        return Err(Error::OutOfRange { what: "sample bytes", value: bytes as u64, range });
    }
    Ok(())
}

/// Starts a thread of ours. Signals are for the threads of the program, whose waits they interrupt; all but those
/// that a thread raises itself, by a fault.
fn thread(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    const FAULTS: [i32; 6] =
        [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGABRT];
    // SAFETY: the sets are initialised before use, and belong to this thread. The new thread inherits the mask; ours
    // is put back.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut set);
        for fault in FAULTS {
            libc::sigdelset(&mut set, fault);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &set, &mut before);
        let started = std::thread::Builder::new().name(name.to_owned()).spawn(work);
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        started.map_err(|error| Error::io(format!("cannot start thread {name}"), error))
    }
}
