//! Sizes and times on which both ends of a connection agree.

use crate::error::{Error, Result};
use std::time::Duration;

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

/// So many keepalive intervals of silence end a connection.
pub const SILENCES: u32 = 3;

/// Has the kernel break a connection whose other end takes in nothing for so long: a host that is gone, while we do not
/// read and so cannot notice. One that is only stopped still answers, and is not broken.
pub fn give_up_after(socket: impl std::os::fd::AsFd, time: Duration) -> std::io::Result<()> {
    let millis = time.as_millis().min(i32::MAX as u128) as u32;
    Ok(rustix::net::sockopt::set_tcp_user_timeout(socket, millis)?)
}

/// Keeps a time within what can be added to the clock and waited for.
pub fn within_reason(time: Duration) -> Duration {
    time.clamp(Duration::from_millis(1), Duration::from_secs(365 * 24 * 3600))
}

pub fn check_sample_bytes(bytes: usize) -> Result<()> {
    if bytes > MAX_SAMPLE_BYTES {
        let range = format!("at most {MAX_SAMPLE_BYTES} over a network");
        return Err(Error::OutOfRange { what: "sample bytes", value: bytes as u64, range });
    }
    Ok(())
}
