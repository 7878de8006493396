//! The conversation with a client of weights: it fetches, and is sent the latest version as soon as that is newer than its own.
//!
//! ```text
//! client                     server
//!         ◀────────────── Inventory            whose versions, which leaves
//! Fetch (have) ────────────▶                   waits until there is a newer one
//!         ◀────────────── Version (leaves)     those that changed since
//!         ◀────────────── Piece, Piece, …      their bytes, from where they lie to the socket
//!         ◀────────────── VersionEnd              whole, or void: overwritten meanwhile, to be thrown away
//! ```
//!
//! There is no queue: a client that is slow skips versions. Nothing here makes the writer wait, and between two pieces other
//! connections have their turn. A version must be sent in the time that a frame of its size may take.

use super::end::{End, Never, closed, too_slow};
use super::header_reader::{HeaderReader, budget, goodbye, skip};
use super::shared::Shared;
use super::stream::{FrameStream, Part};
use super::weight_source::{LatestVersion, WeightSource};
use crate::net::wire::frame::{GoodbyeReason, Header, Kind, LeafList, VersionEnd};
use crate::net::wire::stats::add;
use crate::weights::{ChangedLeaf, HeldVersion};
use std::sync::Arc;
use std::task::Poll;
use tokio::sync::watch;
use tokio::time::timeout;

/// Bytes of one piece: small enough for others to have their turn soon.
const PIECE_BYTES: usize = 256 * 1024;
/// Parts of one write: enough for most pieces, and more writes for leaves that are tiny.
const PARTS: usize = 64;

/// What happened first.
enum Event {
    Heard(Header),
    Told(LatestVersion),
}

/// From the hello on.
pub async fn serve_weights(
    wire: &mut FrameStream,
    server: &Arc<Shared>,
    weight_source: &WeightSource,
) -> Result<Never, End> {
    add(&server.counters.accepted, 1);
    add(&server.counters.weight_clients, 1);
    let _counted = ClientCount(server);
    wire.queue(&weight_source.inventory().frame());
    WeightConnection {
        wire,
        server,
        weight_source,
        header_reader: HeaderReader::default(),
        latest: weight_source.latest(),
        wanted: None,
    }
    .run()
    .await
}

/// The end of those who want weights that are shut down.
pub fn weights_ended() -> End {
    End::Goodbye(GoodbyeReason::RingClosed, "the learner has shut down its weights".to_owned())
}

/// One client less, however it leaves.
struct ClientCount<'a>(&'a Shared);

impl Drop for ClientCount<'_> {
    fn drop(&mut self) {
        self.0.counters.weight_clients.fetch_sub(1, crate::sys::sync::Ordering::Relaxed);
    }
}

/// A client of weights that was let in.
struct WeightConnection<'a> {
    wire: &'a mut FrameStream,
    server: &'a Arc<Shared>,
    weight_source: &'a WeightSource,
    header_reader: HeaderReader,
    latest: watch::Receiver<LatestVersion>,
    /// The client has this version, and wants a newer one.
    wanted: Option<u64>,
}

impl WeightConnection<'_> {
    async fn run(&mut self) -> Result<Never, End> {
        loop {
            match self.event().await? {
                Event::Heard(header) => self.handle_frame(&header).await?,
                Event::Told(latest) => {
                    let have = self.wanted.filter(|&have| latest.version > have);
                    // What was published last is sent, also when nothing will follow it.
                    let Some(have) = have else { return Err(weights_ended()) };
                    self.wanted = None;
                    self.send(have).await?;
                }
            }
            if self.wire.unsent() > 4096 {
                // It does not read what we say.
                timeout(self.server.spec.frame_timeout, self.wire.flush())
                    .await
                    .map_err(|_| too_slow())??;
            }
        }
    }

    /// Waits for a header, and for a newer version if the client wants one.
    async fn event(&mut self) -> Result<Event, End> {
        let (wire, header_reader, latest) = (&mut *self.wire, &mut self.header_reader, &mut self.latest);
        let mut header = std::pin::pin!(header_reader.header(wire, &self.server.spec, FrameStream::ping));
        let Some(have) = self.wanted else { return header.await.map(Event::Heard) };
        let mut told = std::pin::pin!(latest.wait_for(|latest| latest.version > have || latest.over));
        std::future::poll_fn(|cx| {
            if let Poll::Ready(told) = told.as_mut().poll(cx) {
                let over = LatestVersion { version: 0, over: true };
                return Poll::Ready(Ok(Event::Told(told.map_or(over, |latest| *latest))));
            }
            header.as_mut().poll(cx).map_ok(Event::Heard)
        })
        .await
    }

    async fn handle_frame(&mut self, header: &Header) -> Result<(), End> {
        let budget = budget(&self.server.spec, header.length);
        match header.kind {
            Kind::Fetch if self.wanted.is_some() => Err(End::Damaged("a fetch is out of turn".to_owned())),
            Kind::Fetch => {
                // The client may have a newer version than the watcher told us, but none newer than the weights have.
                if header.sequence > self.weight_source.version().map_err(closed)? {
                    return Err(End::Damaged("a client has a version that there is not".to_owned()));
                }
                self.wanted = Some(header.sequence);
                Ok(())
            }
            Kind::Ping => {
                self.wire.queue(&Header { kind: Kind::Pong, ..*header }.bytes());
                Ok(())
            }
            Kind::Pong => Ok(()),
            Kind::Goodbye => Err(goodbye(self.wire, header, budget).await?),
            Kind::Extension(_) => skip(self.wire, header.length, budget).await,
            _ => Err(End::Damaged("a frame is out of turn".to_owned())),
        }
    }

    /// Sends what changed since `have`.
    async fn send(&mut self, have: u64) -> Result<(), End> {
        let Some(hold) = self.weight_source.hold().map_err(closed)? else {
            return Err(weights_ended());
        };
        let changed = hold.changed_since(have);
        let list = LeafList {
            leaves: changed.iter().map(|changed| changed.leaf).collect(),
            checksums: changed.iter().map(|changed| changed.checksum).collect(),
        };
        let version = hold.version();
        self.wire.queue(&list.frame(version));
        let mut load = VersionSender::new(&hold, &changed);
        let bytes = load.left;
        let budget = budget(&self.server.spec, bytes as u64);
        let whole = timeout(budget, self.send_piece(&mut load)).await.map_err(|_| too_slow())??;
        let version_end = if whole { VersionEnd::Complete } else { VersionEnd::Overwritten };
        self.wire.queue(
            &Header { code: version_end as u16, sequence: version, ..Header::new(Kind::VersionEnd) }.bytes(),
        );
        self.wire.flush_ready().await?;
        let counters = &self.server.counters;
        add(if whole { &counters.versions } else { &counters.versions_void }, 1);
        add(&counters.weight_bytes, (bytes - load.left) as u64);
        Ok(())
    }

    /// Sends the load piece by piece; false when it was overwritten meanwhile, by a newer version. The client asks again then, so
    /// a version that can never be whole ends the connection.
    async fn send_piece(&mut self, load: &mut VersionSender<'_>) -> Result<bool, End> {
        while load.left > 0 {
            let (sequence, length) = (load.hold.version(), load.left.min(PIECE_BYTES) as u64);
            self.wire.begin_piece(&Header { sequence, length, ..Header::new(Kind::Piece) });
            while self.wire.piece_left() > 0 {
                let mut parts = [Part::default(); PARTS];
                let count = load.parts(self.wire.piece_left(), &mut parts);
                // SAFETY: the parts lie in leaves of a buffer that is mapped as long as the hold.
                load.advance(unsafe { self.wire.send_piece(&parts[..count]) }.await?);
            }
            if !load.hold.check_whole().map_err(closed)? {
                return Ok(false);
            }
            tokio::task::yield_now().await;
        }
        load.hold.check_whole().map_err(closed)
    }
}

/// What is left to be sent of a version.
struct VersionSender<'a> {
    hold: &'a HeldVersion,
    leaves: &'a [ChangedLeaf],
    /// The next byte: in which of the leaves, and where in it.
    at: (usize, usize),
    left: usize,
}

impl<'a> VersionSender<'a> {
    fn new(hold: &'a HeldVersion, leaves: &'a [ChangedLeaf]) -> VersionSender<'a> {
        let left = leaves.iter().map(|changed| hold.leaf(changed.leaf).1).sum();
        VersionSender { hold, leaves, at: (0, 0), left }
    }

    /// The next parts, of at most `most` bytes; says how many.
    fn parts(&self, most: usize, parts: &mut [Part]) -> usize {
        let (mut at, mut left, mut count) = (self.at, most.min(self.left), 0);
        while left > 0 && count < parts.len() {
            let (start, bytes) = self.hold.leaf(self.leaves[at.0].leaf);
            let length = (bytes - at.1).min(left);
            if length > 0 {
                parts[count] = Part { start: start.wrapping_add(at.1), bytes: length };
                count += 1;
                left -= length;
            }
            at = (at.0 + 1, 0);
        }
        count
    }

    fn advance(&mut self, mut sent: usize) {
        self.left -= sent;
        while sent > 0 {
            let (_, bytes) = self.hold.leaf(self.leaves[self.at.0].leaf);
            let length = (bytes - self.at.1).min(sent);
            sent -= length;
            self.at.1 += length;
            if self.at.1 == bytes {
                self.at = (self.at.0 + 1, 0);
            }
        }
    }
}
