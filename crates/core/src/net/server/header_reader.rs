//! The next header of a connection, as far as it has come, and the frames that any client may send at any time.
//!
//! Every future here may be dropped at any await: what was read stays.

use super::end::{End, in_time, silent, too_slow};
use super::shared::TcpServerSpec;
use super::stream::FrameStream;
use crate::net::wire::frame::{Damage, GoodbyeReason, HEADER_BYTES, Header, Kind};
use crate::net::wire::limits::SILENCES;
use std::io::{self, IoSliceMut};
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// A client that sends fewer bytes in a second makes no progress. 1 MiB/s is slower than any network worth having.
const SLOWEST_BYTES_PER_S: u64 = 1 << 20;
/// A client that leaves more bytes unread has to read them before it is heard again.
const MOST_UNSENT: usize = 4096;

/// How long so many bytes may take.
pub fn budget(spec: &TcpServerSpec, bytes: u64) -> Duration {
    spec.frame_timeout + Duration::from_millis(bytes.saturating_mul(1000) / SLOWEST_BYTES_PER_S)
}

/// The next header, as far as it has come.
#[derive(Debug, Default)]
pub struct HeaderReader {
    pub head: [u8; HEADER_BYTES],
    pub have: usize,
}

impl HeaderReader {
    /// Reads the next header. Pings a silent client, and ends the connection after three keepalive intervals of silence.
    pub async fn header(
        &mut self,
        wire: &mut FrameStream,
        spec: &TcpServerSpec,
        mut ping: impl FnMut(&mut FrameStream),
    ) -> Result<Header, End> {
        if wire.unsent() > MOST_UNSENT {
            in_time(spec.frame_timeout, wire.flush()).await?;
        }
        let mut silences = 0;
        let mut deadline = None;
        while self.have < HEADER_BYTES {
            let due = match (self.have, deadline) {
                (0, _) => Instant::now() + spec.keepalive,
                (_, Some(deadline)) => deadline,
                (_, None) => *deadline.insert(Instant::now() + spec.frame_timeout),
            };
            let room = &mut self.head[self.have..];
            match timeout_at(due, wire.fill(&mut [IoSliceMut::new(room)])).await {
                Ok(read) => self.have += read?,
                Err(_) if self.have > 0 => return Err(too_slow()),
                Err(_) => {
                    silences += 1;
                    if silences == SILENCES {
                        return Err(silent());
                    }
                    ping(wire);
                }
            }
        }
        self.have = 0;
        Ok(Header::parse(&self.head)?.ok_or(Damage("a header is not whole"))?)
    }
}

/// Handles a frame that any client may send at any time. Every other kind is damage.
pub async fn handle_control(
    wire: &mut FrameStream,
    spec: &TcpServerSpec,
    header: &Header,
    pong: impl FnOnce() -> Header,
) -> Result<(), End> {
    let budget = budget(spec, header.length);
    match header.kind {
        Kind::Ping => wire.queue(&pong().bytes()),
        Kind::Pong => {}
        Kind::Goodbye => {
            in_time(budget, skip(wire, header.length)).await?;
            // A client that gives any other reason may come back.
            let finished = GoodbyeReason::from_code(header.code) == Some(GoodbyeReason::Finished);
            return Err(match finished {
                true => End::Goodbye(GoodbyeReason::Finished, String::new()),
                false => End::Broken,
            });
        }
        Kind::Extension(_) => in_time(budget, skip(wire, header.length)).await?,
        _ => return Err(Damage("a frame is out of turn").into()),
    }
    Ok(())
}

/// Reads a payload to its end, and throws it away.
async fn skip(wire: &mut FrameStream, length: u64) -> io::Result<()> {
    let (mut left, mut scratch) = (length as usize, [0; 1024]);
    while left > 0 {
        let part = left.min(scratch.len());
        left -= wire.fill(&mut [IoSliceMut::new(&mut scratch[..part])]).await?;
    }
    Ok(())
}
