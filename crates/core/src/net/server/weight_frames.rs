//! Weights to a client: it fetches, and is sent the latest version as soon as that is newer than its own.
//!
//! ```text
//! client                     server
//!         ◀────────────── Inventory            the lineage, the leaves
//! Fetch (have) ────────────▶                   waits until there is a newer version
//!         ◀────────────── Version (leaves)     those that changed since
//!         ◀────────────── Piece, Piece, …      their bytes, from shared memory to the socket
//!         ◀────────────── VersionEnd           complete, or overwritten meanwhile: the client throws it away
//! ```
//!
//! There is no queue: a slow client skips versions. Nothing here makes the writer wait, and between two pieces other
//! connections have their turn. A version must be sent in the time that a frame of its size may take.

use super::end::{End, Never, closed, in_time};
use super::header_reader::{HeaderReader, budget, handle_control};
use super::shared::Shared;
use super::stream::FrameStream;
use super::weight_source::{LatestVersion, SourceEnd, WeightSource};
use crate::net::wire::frame::{GoodbyeReason, Header, Kind, LeafList, VersionEnd};
use crate::net::wire::leaf_cursor::{LeafCursor, Part};
use crate::net::wire::stats::add;
use crate::weights::HeldVersion;
use std::sync::Arc;
use std::task::Poll;
use tokio::sync::watch;

/// Bytes of one piece: small enough for other connections to have their turn soon.
const PIECE_BYTES: usize = 256 * 1024;
/// Parts of one write: enough for most pieces. Tiny leaves take more writes.
const PARTS: usize = 64;

/// What happened first: a frame came, or the weights changed.
enum Event {
    Frame(Header),
    Latest(LatestVersion),
}

/// Serves a client of weights, from its hello on.
pub async fn serve_weights(
    wire: &mut FrameStream,
    server: &Arc<Shared>,
    weight_source: &WeightSource,
) -> Result<Never, End> {
    if weight_source.ended() == Some(SourceEnd::Withdrawn) {
        return Err(ended(weight_source)); // Before the inventory, so that the client does not count as welcome.
    }
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

/// The end of a connection whose weights are shut down.
pub fn weights_ended() -> End {
    End::Goodbye(GoodbyeReason::RingClosed, "the learner has shut down its weights".to_owned())
}

/// The end of a connection whose source has ended.
fn ended(weight_source: &WeightSource) -> End {
    match weight_source.ended() {
        Some(SourceEnd::Withdrawn) => {
            let text = "this copy of the weights has lost its learner, or follows another one";
            End::Goodbye(GoodbyeReason::Stopping, text.to_owned())
        }
        _ => weights_ended(),
    }
}

/// Counts a client until it leaves.
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
                Event::Frame(header) => self.handle_frame(&header).await?,
                Event::Latest(latest) => {
                    let have = self.wanted.filter(|&have| latest.version > have);
                    // The last version is sent, too, after the weights were shut down.
                    let have = have.filter(|_| latest.end != Some(SourceEnd::Withdrawn));
                    let Some(have) = have else { return Err(ended(self.weight_source)) };
                    self.wanted = None;
                    self.send(have).await?;
                }
            }
        }
    }

    /// Waits for a header, and for a newer version if the client wants one.
    async fn event(&mut self) -> Result<Event, End> {
        let (wire, header_reader, latest) = (&mut *self.wire, &mut self.header_reader, &mut self.latest);
        let mut header = std::pin::pin!(header_reader.header(wire, &self.server.spec, |wire| wire.ping(0)));
        let Some(have) = self.wanted else { return header.await.map(Event::Frame) };
        let mut told =
            std::pin::pin!(latest.wait_for(|latest| latest.version > have || latest.end.is_some()));
        std::future::poll_fn(|cx| {
            if let Poll::Ready(told) = told.as_mut().poll(cx) {
                let over = LatestVersion { version: 0, end: Some(SourceEnd::ShutDown) };
                return Poll::Ready(Ok(Event::Latest(told.map_or(over, |latest| *latest))));
            }
            header.as_mut().poll(cx).map_ok(Event::Frame)
        })
        .await
    }

    async fn handle_frame(&mut self, header: &Header) -> Result<(), End> {
        if header.kind != Kind::Fetch {
            let pong = || Header { kind: Kind::Pong, ..*header };
            return handle_control(self.wire, &self.server.spec, header, pong).await;
        }
        // The client may have a newer version than the watcher told us, but none newer than the learner has.
        let latest = if self.weight_source.may_lag() {
            u64::MAX
        } else {
            self.weight_source.version().map_err(closed)?
        };
        if self.wanted.is_some() || header.sequence > latest {
            return Err(End::Damaged(
                "a fetch is out of turn, or has a version that there is not".to_owned(),
            ));
        }
        self.wanted = Some(header.sequence);
        Ok(())
    }

    /// Sends what changed since `have`.
    async fn send(&mut self, have: u64) -> Result<(), End> {
        let Some(hold) = self.weight_source.hold().map_err(closed)? else {
            return Err(ended(self.weight_source));
        };
        let changed = hold.changed_since(have);
        let list = LeafList {
            leaves: changed.iter().map(|changed| changed.leaf).collect(),
            checksums: changed.iter().map(|changed| changed.checksum).collect(),
        };
        let version = hold.version();
        self.wire.queue(&list.frame(version));
        let mut leaves = LeafCursor::new(list.leaves.iter().map(|&leaf| {
            let (start, bytes) = hold.leaf(leaf);
            (start.cast_mut(), bytes)
        }));
        let bytes = leaves.left();
        let budget = budget(&self.server.spec, bytes as u64);
        let whole = in_time(budget, self.send_pieces(&hold, &mut leaves)).await?;
        let version_end = if whole { VersionEnd::Complete } else { VersionEnd::Overwritten };
        self.wire.queue(
            &Header { code: version_end as u16, sequence: version, ..Header::new(Kind::VersionEnd) }.bytes(),
        );
        self.wire.flush_ready().await?;
        let counters = &self.server.counters;
        add(if whole { &counters.versions } else { &counters.versions_void }, 1);
        add(&counters.weight_bytes, (bytes - leaves.left()) as u64);
        Ok(())
    }

    /// Sends the leaves piece by piece. False when a newer version overwrote them meanwhile; the client then asks again. A
    /// version that can never be whole is an error.
    async fn send_pieces(&mut self, hold: &HeldVersion, leaves: &mut LeafCursor) -> Result<bool, End> {
        while leaves.left() > 0 {
            let (sequence, length) = (hold.version(), leaves.left().min(PIECE_BYTES) as u64);
            self.wire.begin_piece(&Header { sequence, length, ..Header::new(Kind::Piece) });
            while self.wire.piece_left() > 0 {
                let mut parts = [Part::default(); PARTS];
                let (count, _) = leaves.parts(self.wire.piece_left(), &mut parts);
                // SAFETY: the parts lie in leaves of a buffer that is mapped as long as the hold.
                leaves.advance(unsafe { self.wire.send_piece(&parts[..count]) }.await?);
            }
            if !hold.check_whole().map_err(closed)? {
                return Ok(false);
            }
            tokio::task::yield_now().await;
        }
        hold.check_whole().map_err(closed)
    }
}
