//! The server's header_reader: the next header of a connection, as far as it has come, and how long silence is borne.
//!
//! Every future here may be dropped at any await: what was read stays.

use super::end::{End, silent, too_slow};
use super::shared::TcpServerSpec;
use super::stream::FrameStream;
use crate::net::wire::frame::{Damage, GoodbyeReason, HEADER_BYTES, Header};
use crate::net::wire::limits::SILENCES;
use std::io::{self, IoSliceMut};
use std::time::Duration;
use tokio::time::{Instant, timeout, timeout_at};

/// Whoever sends less in a second does not get on: 1 MiB/s is slower than any network worth having.
const SLOWEST_BYTES_PER_S: u64 = 1 << 20;

/// How long so many bytes may take.
pub fn budget(spec: &TcpServerSpec, bytes: u64) -> Duration {
    spec.frame_timeout + Duration::from_millis(bytes.saturating_mul(1000) / SLOWEST_BYTES_PER_S)
}

/// The next header, as far as it is here.
#[derive(Debug, Default)]
pub struct HeaderReader {
    pub head: [u8; HEADER_BYTES],
    pub have: usize,
}

impl HeaderReader {
    /// The next header. Silence is broken by `ping`, and borne for three of them.
    pub async fn header(
        &mut self,
        wire: &mut FrameStream,
        spec: &TcpServerSpec,
        mut ping: impl FnMut(&mut FrameStream),
    ) -> Result<Header, End> {
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

/// Reads a frame that we do not know, to its end.
pub async fn skip(wire: &mut FrameStream, length: u64, budget: Duration) -> Result<(), End> {
    let mut left = length as usize;
    let mut scratch = [0; 1024];
    let skipping = async {
        while left > 0 {
            let part = left.min(scratch.len());
            left -= wire.fill(&mut [IoSliceMut::new(&mut scratch[..part])]).await?;
        }
        io::Result::Ok(())
    };
    Ok(timeout(budget, skipping).await.map_err(|_| too_slow())??)
}

/// Reads a goodbye to its end, and says what follows from it.
pub async fn goodbye(wire: &mut FrameStream, header: &Header, budget: Duration) -> Result<End, End> {
    let mut text = vec![0; header.length as usize];
    timeout(budget, wire.read_exact(&mut text)).await.map_err(|_| too_slow())??;
    // Any other reason than that it is done: it may come again.
    let done = GoodbyeReason::from_code(header.code) == Some(GoodbyeReason::Finished);
    Ok(if done { End::Goodbye(GoodbyeReason::Finished, String::new()) } else { End::Broken })
}
