//! The conversation with a client of weights: it fetches, and is sent the latest version as soon as that is newer than its own.
//!
//! ```text
//! client                     server
//!         ◀────────────── Inventory            whose versions, which leaves
//! Fetch (have) ────────────▶                   waits until there is a newer one
//!         ◀────────────── Version (leaves)     those that changed since
//!         ◀────────────── Piece, Piece, …      their bytes, from where they lie to the socket
//!         ◀────────────── Verdict              whole, or void: overwritten meanwhile, to be thrown away
//! ```
//!
//! There is no queue: a client that is slow skips versions. Nothing here makes the writer wait, and between two pieces other
//! connections have their turn. A version must be sent in the time that a frame of its size may take.

use super::connection::{End, Never, closed, too_slow};
use super::header_reader::{HeaderReader, budget, goodbye, skip};
use super::stream::{Part, Wire};
use super::tcp_server::Shared;
use super::weight_source::{News, WeightSource};
use crate::net::wire::frame::{Farewell, Header, Kind, LeafList, Verdict};
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
    Told(News),
}

/// From the hello on.
pub async fn give(wire: &mut Wire, server: &Arc<Shared>, weight_source: &WeightSource) -> Result<Never, End> {
    add(&server.counters.accepted, 1);
    add(&server.counters.weight_clients, 1);
    let _counted = Counted(server);
    wire.say(&weight_source.inventory().frame());
    Giving {
        wire,
        server,
        weight_source,
        header_reader: HeaderReader::default(),
        news: weight_source.news(),
        wanted: None,
    }
    .converse()
    .await
}

/// The end of those who want weights that are shut down.
pub fn over() -> End {
    End::Parted(Farewell::RingClosed, "the learner has shut down its weights".to_owned())
}

/// One client less, however it leaves.
struct Counted<'a>(&'a Shared);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.counters.weight_clients.fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
    }
}

/// A client of weights that was let in.
struct Giving<'a> {
    wire: &'a mut Wire,
    server: &'a Arc<Shared>,
    weight_source: &'a WeightSource,
    header_reader: HeaderReader,
    news: watch::Receiver<News>,
    /// The client has this version, and wants a newer one.
    wanted: Option<u64>,
}

impl Giving<'_> {
    async fn converse(&mut self) -> Result<Never, End> {
        loop {
            match self.event().await? {
                Event::Heard(header) => self.understand(&header).await?,
                Event::Told(news) => {
                    let have = self.wanted.filter(|&have| news.version > have);
                    // What was published last is sent, also when nothing will follow it.
                    let Some(have) = have else { return Err(over()) };
                    self.wanted = None;
                    self.send(have).await?;
                }
            }
            if self.wire.unsaid() > 4096 {
                // It does not read what we say.
                timeout(self.server.spec.frame_timeout, self.wire.flush())
                    .await
                    .map_err(|_| too_slow())??;
            }
        }
    }

    /// Waits for a header; and, if something is wanted, for news of it.
    async fn event(&mut self) -> Result<Event, End> {
        let (wire, header_reader, news) = (&mut *self.wire, &mut self.header_reader, &mut self.news);
        let mut header = std::pin::pin!(header_reader.header(wire, &self.server.spec, Wire::ping));
        let Some(have) = self.wanted else { return header.await.map(Event::Heard) };
        let mut told = std::pin::pin!(news.wait_for(|news| news.version > have || news.over));
        std::future::poll_fn(|cx| {
            if let Poll::Ready(told) = told.as_mut().poll(cx) {
                let over = News { version: 0, over: true };
                return Poll::Ready(Ok(Event::Told(told.map_or(over, |news| *news))));
            }
            header.as_mut().poll(cx).map_ok(Event::Heard)
        })
        .await
    }

    async fn understand(&mut self, header: &Header) -> Result<(), End> {
        let budget = budget(&self.server.spec, header.length);
        match header.kind {
            Kind::Fetch if self.wanted.is_some() => Err(End::Damaged("a fetch is out of turn".to_owned())),
            Kind::Fetch => {
                // What was sent may be newer than the last news; newer than what there is, it cannot be.
                if header.sequence > self.weight_source.version().map_err(closed)? {
                    return Err(End::Damaged("a client has a version that there is not".to_owned()));
                }
                self.wanted = Some(header.sequence);
                Ok(())
            }
            Kind::Ping => {
                self.wire.say(&Header { kind: Kind::Pong, ..*header }.bytes());
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
            return Err(over());
        };
        let changed = hold.changed_since(have);
        let list = LeafList {
            leaves: changed.iter().map(|changed| changed.leaf).collect(),
            checksums: changed.iter().map(|changed| changed.checksum).collect(),
        };
        let version = hold.version();
        self.wire.say(&list.frame(version));
        let mut load = Load::new(&hold, &changed);
        let bytes = load.left;
        let budget = budget(&self.server.spec, bytes as u64);
        let whole = timeout(budget, self.pour(&mut load)).await.map_err(|_| too_slow())??;
        let verdict = if whole { Verdict::Whole } else { Verdict::Void };
        self.wire
            .say(&Header { code: verdict as u16, sequence: version, ..Header::new(Kind::Verdict) }.bytes());
        self.wire.nudge().await?;
        let counters = &self.server.counters;
        add(if whole { &counters.versions } else { &counters.versions_void }, 1);
        add(&counters.weight_bytes, (bytes - load.left) as u64);
        Ok(())
    }

    /// Sends the load piece by piece; false when it was overwritten meanwhile, by a newer version. The client asks again then, so
    /// a version that can never be whole ends the connection.
    async fn pour(&mut self, load: &mut Load<'_>) -> Result<bool, End> {
        while load.left > 0 {
            let (sequence, length) = (load.hold.version(), load.left.min(PIECE_BYTES) as u64);
            self.wire.promise(&Header { sequence, length, ..Header::new(Kind::Piece) });
            while self.wire.promised() > 0 {
                let mut parts = [Part::default(); PARTS];
                let count = load.parts(self.wire.promised(), &mut parts);
                // SAFETY: the parts lie in leaves of a buffer that is mapped as long as the hold.
                load.advance(unsafe { self.wire.pour(&parts[..count]) }.await?);
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
struct Load<'a> {
    hold: &'a HeldVersion,
    leaves: &'a [ChangedLeaf],
    /// The next byte: in which of the leaves, and where in it.
    at: (usize, usize),
    left: usize,
}

impl<'a> Load<'a> {
    fn new(hold: &'a HeldVersion, leaves: &'a [ChangedLeaf]) -> Load<'a> {
        let left = leaves.iter().map(|changed| hold.leaf(changed.leaf).1).sum();
        Load { hold, leaves, at: (0, 0), left }
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
