//! One client's connection, from its first byte to its last.
//!
//! First the handshake, then frames. For a data frame: wait for its first payload byte, claim its slots, read it into them,
//! commit, acknowledge ([`super::sample_frames`], [`super::record_frames`]). A connection keeps its header, its outbox and the
//! list of its claims, and one frame in staging memory if its client is slow.
//!
//! C1  Slots, or room, are claimed when the payload has begun to arrive, and given back when the task ends, however it ends:
//!     they are in the [`FrameScatter`], which is cleared before the session is left (E1).
//! C2  There is no await between a commit and the step of the session's `next`.
//! C3  The next frame is read when the frame before it is settled. TCP slows a client that ignores its credit.
//! C4  Claims of a frame that is not whole are held for at most `claim_timeout`. Then the frame is moved to staging memory
//!     ([`super::staging`]), and its claims are given back. A connection whose frame was late stages its next frames from the
//!     start, until one of them arrives within that time. For a second after that, so do all connections: many hosts may vanish
//!     at once, and must not hold claims one after the other. The staging memory is in the [`FrameScatter`], too (C1), or in
//!     the future that places the frame.
//! C5  Each `frame_timeout` brings [`PROGRESS_BYTES`], or the rest of the frame. Otherwise the connection is cut.

use super::end::{End, HAS_CLOSED, Never, evicted, in_time, too_slow, until_end};
use super::frame_scatter::FrameScatter;
use super::handshake::authenticate;
use super::header_reader::{HeaderReader, handle_control};
use super::ingress::Ingress;
use super::room_waiter::{Place, RoomWaiter};
use super::session::Progress;
use super::shared::{Admission, FIRST_CREDIT, Shared};
use super::staging::StagingRoom;
use super::stream::{Ack, FrameStream, Stream};
use super::weight_frames::{serve_weights, weights_ended};
use crate::net::wire::frame;
use crate::net::wire::frame::{
    Content, GoodbyeReason, HEADER_BYTES, Header, Hello, Kind, MAX_SCHEMA_BYTES, Refusal, Welcome,
};
use crate::net::wire::limits::{SILENCES, give_up_after};
use crate::net::wire::stats::add;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout, timeout_at};

/// Rooms of one read: enough for most schemas, and more reads for the others.
const ROOMS: usize = 32;
/// Connections that wait for their turn check this often whether there is room all the same.
const RECHECK: Duration = Duration::from_millis(100);
/// How long a goodbye may take.
const GOODBYE_TIMEOUT: Duration = Duration::from_millis(500);
/// Less than this of a frame in the time of `frame_timeout` is no progress, unless it is the rest of the frame (C5).
const PROGRESS_BYTES: usize = 64 * 1024;
/// How often the staging memory learns how far a frame is.
const NOTE: Duration = Duration::from_millis(100);

/// Serves one client.
pub async fn serve(stream: TcpStream, peer: String, server: Arc<Shared>, mut admission: Admission) {
    let (mut wire, mut wants_weights, address) = (None, false, stream.peer_addr().ok());
    let end = until_end(
        async {
            let deadline = Instant::now() + server.spec.handshake_timeout;
            let late = async {
                tokio::time::sleep_until(deadline).await;
                End::Stranger
            };
            let authentication = async {
                let address = stream.peer_addr()?.ip();
                let stream = accept(stream, &server).await?;
                let wire = wire.insert(FrameStream::new(stream));
                let token = (&server.token, server.guesses.as_ref(), address);
                authenticate(wire, token, |content| server.expects(content)).await
            };
            let hello = until_end(until_end(authentication, late), admission.evicted()).await?;
            admission.mark_authenticated();
            wants_weights = hello.content == Content::Weights;
            let wire = wire.as_mut().ok_or(End::Stranger)?;
            match (hello.content, &server.ingress, &server.weight_outlet) {
                (Content::Weights, _, Some(weight_outlet)) => {
                    serve_weights(wire, &server, &weight_outlet.source()).await
                }
                (_, Some(ingress), _) if hello.content != Content::Weights => {
                    let connected = Connected::begin(ingress, address);
                    let end = serve_session(wire, &hello, &server, ingress).await;
                    connected.end(&end);
                    end
                }
                _ => Err(End::Stranger), // Those were refused.
            }
        },
        server.stopped(),
    )
    .await;
    let Err(mut end) = end;
    if matches!(end, End::Goodbye(GoodbyeReason::Stopping, _))
        && wants_weights
        && server.has_no_more_weights()
    {
        end = weights_ended();
    }
    server.note(&peer, &end);
    if let Some(wire) = wire {
        say_goodbye(wire, &end, &server).await;
    }
}

/// Counts a client in the seat of the ingress, for those who look from outside.
struct Connected<'a> {
    ingress: &'a Ingress,
    address: Option<SocketAddr>,
    is_lost: bool,
}

impl<'a> Connected<'a> {
    fn begin(ingress: &'a Ingress, address: Option<SocketAddr>) -> Connected<'a> {
        ingress.seat().note_connected();
        Connected { ingress, address, is_lost: false }
    }

    /// A client that closes says goodbye; one that was refused or that the server ends is not lost.
    fn end(mut self, end: &Result<Never, End>) {
        self.is_lost = match end {
            Ok(never) => match *never {},
            Err(End::Broken | End::Damaged(_)) => true,
            Err(End::Goodbye(code, _)) => matches!(code, GoodbyeReason::TooSlow | GoodbyeReason::Silent),
            Err(_) => false,
        };
    }
}

impl Drop for Connected<'_> {
    fn drop(&mut self) {
        self.ingress.seat().note_disconnected(self.address.filter(|_| self.is_lost));
    }
}

/// With TLS, if that is asked for.
async fn accept(stream: TcpStream, server: &Shared) -> Result<Stream, End> {
    stream.set_nodelay(true)?;
    give_up_after(&stream, server.spec.keepalive * SILENCES)?;
    match &server.tls {
        None => Ok(Stream::Plain(stream)),
        Some(config) => {
            let accepted = tokio_rustls::TlsAcceptor::from(config.clone()).accept(stream).await;
            Ok(Stream::Tls(Box::new(accepted.map_err(|_| End::Stranger)?)))
        }
    }
}

/// Tells the client why, and reads on for a moment, because a socket that is closed with unread bytes discards what was sent. In
/// the middle of a piece the client would not understand it.
async fn say_goodbye(mut wire: FrameStream, end: &End, server: &Shared) {
    match end {
        _ if !wire.has_sent() || wire.piece_left() > 0 => return,
        End::Stranger | End::Broken => return,
        End::Damaged(what) | End::Malformed(what) => {
            wire.queue(&frame::goodbye(GoodbyeReason::Protocol, what))
        }
        End::Refused(code, text, theirs) => {
            let ours = theirs.as_ref().and_then(|(content, _)| server.expects(*content).ok());
            let schema = ours.unwrap_or_default();
            wire.queue(&frame::refuse(*code, text, &schema[..schema.len().min(MAX_SCHEMA_BYTES)]));
        }
        End::Goodbye(code, text) => wire.queue(&frame::goodbye(*code, text)),
    }
    let _ = timeout(GOODBYE_TIMEOUT, async {
        wire.flush().await?;
        wire.shutdown().await?;
        let mut scratch = [0; 1024];
        for _ in 0..4096 {
            wire.fill(&mut [IoSliceMut::new(&mut scratch)]).await?;
        }
        io::Result::Ok(())
    })
    .await;
}

/// Serves a client of samples or records from its hello on: finds the session, and waits until it is ours.
async fn serve_session(
    wire: &mut FrameStream,
    hello: &Hello,
    server: &Arc<Shared>,
    ingress: &Ingress,
) -> Result<Never, End> {
    if ingress.is_closed() {
        return Err(End::Refused(Refusal::Closed, HAS_CLOSED.to_owned(), None));
    }
    let session = server
        .sessions
        .enter(hello, || ingress.next_producer_id())
        .map_err(|(code, text)| End::Refused(code, text, None))?;
    let succeeded = session.succeeded();
    let resumed = session.resumed;
    let mut scatter = FrameScatter::new(&ingress.facts().leaf_bytes);
    let mut progress = None;
    let served = async {
        let progress = progress.insert(session.progress().await);
        if !(hello.oldest..=hello.next).contains(&progress.next()) {
            let text = format!(
                "the learner expects sample {} of this client, but the client has only {} to {}",
                progress.next(),
                hello.oldest,
                hello.next
            );
            return Err(End::Refused(Refusal::SessionUnknown, text, None));
        }
        add(&server.counters.accepted, 1);
        add(&server.counters.resumed, resumed as u64);
        let takes_records = matches!(ingress, Ingress::Records(_));
        let welcome = Welcome {
            producer_id: session.producer_id,
            max_rows: ingress.facts().max_rows as u32,
            max_bytes: if takes_records { ingress.facts().largest as u32 } else { 0 },
            credit: FIRST_CREDIT.min(server.window),
            next: progress.next(),
            status: ingress.status(),
        };
        wire.queue(&welcome.frame());
        for (sequence, rows) in progress.refused_from(hello.oldest) {
            wire.queue(&Header { sequence, rows, ..Header::new(Kind::Full) }.bytes());
        }
        let producer_id = session.producer_id;
        let scatter = &mut scatter;
        Connection {
            wire,
            server,
            ingress,
            scatter,
            producer_id,
            forwards: matches!(hello.content, Content::Forwarded | Content::ForwardedRecords),
            header_reader: HeaderReader::default(),
            is_late: false,
        }
        .run(progress)
        .await
    };
    let taken_over = async {
        succeeded.await;
        add(&server.counters.taken_over, 1);
        End::Goodbye(
            GoodbyeReason::TakenOver,
            "this client reconnected, and this is its old connection".to_owned(),
        )
    };
    let end = until_end(served, taken_over).await;
    scatter.clear(); // C1: before another connection has the session.
    drop(progress);
    if matches!(end, Err(End::Goodbye(GoodbyeReason::Finished, _))) {
        session.finish();
    }
    end
}

/// A client that was let in.
pub struct Connection<'a> {
    pub wire: &'a mut FrameStream,
    pub server: &'a Arc<Shared>,
    ingress: &'a Ingress,
    pub scatter: &'a mut FrameScatter,
    pub producer_id: u32,
    /// It is a forwarder: its frames say which workers their samples or records are of.
    forwards: bool,
    /// Its last frame was late: the next one is staged from the start (C4).
    pub is_late: bool,
    header_reader: HeaderReader,
}

impl Connection<'_> {
    async fn run(&mut self, progress: &mut Progress) -> Result<Never, End> {
        loop {
            let ingress = self.ingress;
            let ping = |wire: &mut FrameStream| wire.ping(ingress.published());
            let header = self.header_reader.header(self.wire, &self.server.spec, ping).await?;
            match (ingress, header.kind) {
                (Ingress::Samples(ingress), Kind::Data) if !self.forwards => {
                    self.receive_samples(ingress, &header, progress).await?;
                }
                (Ingress::Samples(ingress), Kind::Stamped) if self.forwards => {
                    self.receive_samples(ingress, &header, progress).await?;
                }
                (Ingress::Records(ingress), Kind::Records) if !self.forwards => {
                    self.receive_records(ingress, &header, progress).await?;
                }
                (Ingress::Records(ingress), Kind::StampedRecords) if self.forwards => {
                    self.receive_records(ingress, &header, progress).await?;
                }
                // What the client sent before is settled (C3), so of its records those below `next` are in the count.
                _ => {
                    let (ingress, sequence) = (self.ingress, progress.next());
                    let pong = || Header { sequence, ..ingress.status().header(Kind::Pong) };
                    handle_control(self.wire, &self.server.spec, &header, pong).await?;
                }
            }
        }
    }

    /// How many rows of a frame came before. A gap is damage.
    pub fn rows_known(&self, header: &Header, progress: &Progress) -> Result<usize, End> {
        if header.sequence > progress.next() {
            let (sequence, next) = (header.sequence, progress.next());
            return Err(End::Damaged(format!("a frame begins with number {sequence}, but {next} is next")));
        }
        let known = (progress.next() - header.sequence).min(header.rows as u64);
        add(&self.server.counters.duplicates, known);
        Ok(known as usize)
    }

    /// Counts a frame that is settled, and acknowledges it.
    pub async fn finish_frame(&mut self, header: &Header, progress: &mut Progress) -> Result<(), End> {
        let server = self.server;
        add(&server.counters.frames, 1);
        add(&server.counters.bytes, header.length + HEADER_BYTES as u64);
        progress.note_frame();
        self.acknowledge(progress.next(), server.credit(), header.length);
        if self.wire.owes_ack() {
            self.wire.flush_ready().await?;
        }
        Ok(())
    }

    /// Everything below `next` is settled.
    pub fn acknowledge(&mut self, next: u64, credit: u32, bytes: u64) {
        self.wire.acknowledge(Ack { next, credit, version: self.ingress.published() }, bytes);
    }

    /// Notes what the policy has refused, and tells the client.
    pub fn refuse(&mut self, first: u64, rows: usize, progress: &mut Progress) {
        let rows = rows as u32;
        progress.refuse(first, rows, self.server.window as usize);
        self.wire.queue(&Header { sequence: first, rows, ..Header::new(Kind::Full) }.bytes());
    }

    /// Waits until something can be read of a frame.
    pub async fn readable(&mut self) -> Result<(), End> {
        in_time(self.server.spec.frame_timeout, self.wire.readable()).await
    }

    /// Waits for a turn, or with a turn for room. Returns also when there may be room before it is our turn.
    pub async fn wait_room(
        &mut self,
        room_waiter: &RoomWaiter,
        place: &mut Place,
        want: usize,
    ) -> Result<(), End> {
        if !place.has_turn() {
            // Those before us may be slow, or need more: there may be room for this one.
            let _ = self.wait_with_pings(timeout(RECHECK, place.wait_turn())).await?;
            return Ok(());
        }
        self.wait_with_pings(room_waiter.room(want)).await?;
        place.futile += 1;
        if place.futile > 2 {
            // Others were faster, or the hints in shared memory are wrong.
            self.wait_with_pings(sleep(Duration::from_millis(1))).await?;
        }
        Ok(())
    }

    /// Waits, and pings from time to time, because the client's own pings are behind what we do not read.
    pub async fn wait_with_pings<T>(&mut self, other: impl Future<Output = T>) -> Result<T, End> {
        let mut other = std::pin::pin!(other);
        loop {
            match timeout(self.server.spec.keepalive, self.wire.flush_while(other.as_mut())).await {
                Ok(done) => return Ok(done?),
                Err(_) if self.wire.unsent() < 1024 => self.wire.ping(self.ingress.published()),
                Err(_) => {}
            }
        }
    }

    /// Reads what the scatter has places for, until the time limit of claimed room (C4). `None`: all of it is here.
    /// Otherwise, when it began: what is claimed is to be given back, and then [`read_into_staging`](Self::read_into_staging) reads on.
    pub async fn read_into_claims(&mut self, rest: bool) -> Result<Option<Instant>, End> {
        let spec = &self.server.spec;
        let limit = spec.claim_timeout.min(spec.frame_timeout);
        match timeout(limit, self.read(rest)).await {
            Ok(read) => {
                self.is_late = false;
                read?;
                if self.scatter.finish() { Ok(None) } else { Err(evicted()) }
            }
            Err(_) => {
                self.is_late = true;
                if self.scatter.has_claims() {
                    self.server.note_late();
                }
                Ok(Some(Instant::now() - limit))
            }
        }
    }

    /// Staging memory for a frame that is about to arrive, if there is some, and if the last frame was late, or one of another
    /// connection within the last second (C4).
    pub fn stage_early(&self, bytes: usize) -> Option<StagingRoom> {
        let early = bytes > 0 && (self.is_late || self.server.was_late_lately());
        if early { self.stage_now(bytes) } else { None }
    }

    /// Staging memory for a frame that is about to arrive, if there is some.
    pub fn stage_now(&self, bytes: usize) -> Option<StagingRoom> {
        let room = self.server.staging.try_take(bytes)?;
        add(&self.server.counters.staged, 1);
        Some(room)
    }

    /// Staging memory for a frame that has begun to arrive. The slowest frame pays when there is too little, and that
    /// may be this one.
    pub fn staging_room(&self, bytes: usize, began: Instant) -> Result<StagingRoom, End> {
        let (server, arrived) = (self.server, self.scatter.arrived());
        let taken = server.staging.take(bytes, arrived, began);
        add(&server.counters.evicted, taken.as_ref().map_or(1, |(_, evicted)| *evicted as u64));
        let (room, _) = taken.ok_or_else(evicted)?;
        add(&server.counters.staged, 1);
        Ok(room)
    }

    /// Reads on into staging memory, as long as the client makes progress (C5).
    pub async fn read_into_staging(&mut self, rest: bool, began: Instant) -> Result<(), End> {
        let limit = self.server.spec.frame_timeout;
        let mut gone = std::pin::pin!(self.scatter.evicted());
        let (mut before, mut due) = (0, began + limit);
        loop {
            let look = due.min(Instant::now() + NOTE);
            let reading = async { Ok(timeout_at(look, self.read(rest)).await) };
            let gone = async {
                gone.as_mut().await;
                evicted()
            };
            if let Ok(read) = until_end(reading, gone).await? {
                read?;
                return if self.scatter.finish() { Ok(()) } else { Err(evicted()) };
            }
            self.scatter.note();
            if Instant::now() >= due {
                let arrived = self.scatter.arrived();
                if arrived - before < PROGRESS_BYTES {
                    return Err(too_slow());
                }
                (before, due) = (arrived, due + limit);
            }
        }
    }

    /// Reads what the scatter has places for; if that is the rest of the frame, also what comes of the next header.
    pub async fn read(&mut self, rest: bool) -> io::Result<()> {
        self.scatter.advance(0); // Samples may have no bytes.
        while !self.scatter.has_arrived() {
            let mut rooms: [IoSliceMut<'_>; ROOMS] = std::array::from_fn(|_| IoSliceMut::new(&mut []));
            let after: &mut [u8] = if rest { &mut self.header_reader.head } else { &mut [] };
            let count = self.scatter.rooms(&mut rooms, after);
            let read = self.wire.fill(&mut rooms[..count]).await?;
            self.header_reader.have = self.scatter.advance(read);
        }
        Ok(())
    }
}
