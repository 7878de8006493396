//! Sizes and times on which both ends of a connection agree.

use crate::error::{Error, Result};
use std::time::Duration;

/// The largest sample that goes over a network.
pub const MAX_SAMPLE_BYTES: usize = 1 << 30;
/// Frames have about this size; a larger sample gets a frame of its own.
pub const FRAME_BYTES: usize = 256 * 1024;
/// The payload of a frame with several rows, at most.
pub const MAX_FRAME_BYTES: usize = 4 * FRAME_BYTES;
/// Rows of a frame, at most.
pub const MAX_FRAME_ROWS: usize = 4096;
/// Records of a frame, at most: a server keeps the index of a frame until the frame is settled.
pub const MAX_FRAME_RECORDS: usize = 512;

/// So many keepalive intervals of silence end a connection.
pub const SILENCES: u32 = 3;

/// Makes the kernel break a connection whose peer acknowledges nothing for so long: the host is gone. The kernel of a stopped
/// process still acknowledges.
pub fn give_up_after(socket: impl std::os::fd::AsFd, time: Duration) -> std::io::Result<()> {
    let millis = time.as_millis().min(i32::MAX as u128) as u32;
    Ok(rustix::net::sockopt::set_tcp_user_timeout(socket, millis)?)
}

/// Limits a time to what can be added to the clock.
pub fn within_reason(time: Duration) -> Duration {
    time.clamp(Duration::from_millis(1), Duration::from_secs(365 * 24 * 3600))
}

/// An error that names the setting and its range, unless it fits.
pub fn check(fits: bool, what: &'static str, value: usize, range: &str) -> Result<()> {
    match fits {
        true => Ok(()),
        false => Err(Error::OutOfRange { what, value: value as u64, range: range.to_owned() }),
    }
}

pub fn check_at_least_one(what: &'static str, value: usize) -> Result<()> {
    check(value > 0, what, value, "at least 1")
}

pub fn check_at_most(what: &'static str, value: usize, most: usize) -> Result<()> {
    check(value <= most, what, value, &format!("at most {most} over a network"))
}
