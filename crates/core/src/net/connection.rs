//! One client's connection, from its first byte to its last: a task that reads as a story.
//!
//! Handshake, then frames. For a data frame: wait for its first payload byte, claim its slots, read it into them,
//! commit, acknowledge. What a connection keeps is a constant: its header, its outbox, and the list of its claims.
//! What it holds in the ring it holds for at most the time that its frame may take.
//!
//! C1  Slots are claimed when the payload has begun to arrive, and given back when the task ends, however it ends:
//!     they are in the [`Landing`], which is cleared before the session is left (E1).
//! C2  The commits of a frame and the step of the session's `next` have no await in between.
//! C3  Nothing is read while the frame before it is not settled: a client that ignores its credit is slowed by TCP.

use super::frame::{Damage, Farewell, HEADER_BYTES, Header, Hello, Kind, MAX_SCHEMA_BYTES, Refusal, Welcome};
use super::handshake::greet;
use super::intake::{Intake, Place};
use super::landing::{Landing, Span};
use super::server::{Lobby, Shared};
use super::session::Progress;
use super::stats::add;
use super::wire::{Stream, Wire};
use super::{frame, server};
use crate::error::Error;
use crate::ring::OnFull;
use crate::ring::producer::Origin;
use std::io::{self, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout, timeout_at};

/// A frame may take this much longer for each byte: 1 MiB/s is slower than any network worth having.
const SLOWEST_BYTES_PER_S: u64 = 1 << 20;
/// Rooms of one read: enough for most schemas, and more reads for the others.
const ROOMS: usize = 32;
/// Those who wait for their turn look this often whether there is room for all of their frame.
const LOOK: Duration = Duration::from_millis(100);
/// One frame in so many is timed for the ring's `memcpy` histogram: the system call that copies it into its slots.
const TIMED: u64 = 16;
/// How long a parting word may take.
const PARTING: Duration = Duration::from_millis(500);
/// Frames that a client may have under way before the first acknowledgement, and while others wait for room.
pub const FIRST_CREDIT: u32 = 4;

/// Why a connection ends.
#[derive(Debug)]
pub enum End {
    /// Not one of ours: not a word.
    Stranger,
    /// The socket failed, or the client hung up: there is nobody to tell.
    Broken,
    Damaged(String),
    /// With the client's schema, where that is the reason.
    Refused(Refusal, String, Option<Vec<u8>>),
    Parted(Farewell, String),
}

impl From<io::Error> for End {
    fn from(_: io::Error) -> End {
        End::Broken
    }
}

impl From<Damage> for End {
    fn from(damage: Damage) -> End {
        End::Damaged(damage.to_string())
    }
}

/// Does `work`, unless something ends it.
async fn unless<T>(
    work: impl Future<Output = Result<T, End>>,
    end: impl Future<Output = End>,
) -> Result<T, End> {
    let (mut work, mut end) = (std::pin::pin!(work), std::pin::pin!(end));
    std::future::poll_fn(|cx| match end.as_mut().poll(cx) {
        std::task::Poll::Ready(end) => std::task::Poll::Ready(Err(end)),
        std::task::Poll::Pending => work.as_mut().poll(cx),
    })
    .await
}

/// Serves one client.
pub async fn serve(stream: TcpStream, peer: String, server: Arc<Shared>, lobby: Lobby) {
    let mut stop = server.stop.subscribe();
    let stopped = async move {
        let _ = stop.wait_for(|stop| *stop).await;
        End::Parted(Farewell::Stopping, "the learner stops serving".to_owned())
    };
    let mut wire = None;
    let end = unless(
        async {
            let deadline = Instant::now() + server.spec.handshake_timeout;
            let evicted = lobby.evicted();
            let late = async {
                tokio::time::sleep_until(deadline).await;
                End::Stranger
            };
            let greeting = async {
                let stream = accept(stream, &server).await?;
                let wire = wire.insert(Wire::new(stream));
                greet(wire, server.token.as_ref(), server.intake.schema()).await
            };
            let hello = unless(unless(greeting, late), evicted).await?;
            lobby.leave();
            let wire = wire.as_mut().ok_or(End::Stranger)?;
            stay(wire, &hello, &server).await
        },
        stopped,
    )
    .await;
    let Err(end) = end;
    server.note(&peer, &end);
    if let Some(wire) = wire {
        part(wire, &end, &server).await;
    }
}

/// With TLS, if that is asked for.
async fn accept(stream: TcpStream, server: &Shared) -> Result<Stream, End> {
    stream.set_nodelay(true)?;
    super::give_up_after(&stream, server.spec.keepalive * server::SILENCES)?;
    match &server.tls {
        None => Ok(Stream::Plain(stream)),
        Some(config) => {
            let accepted = tokio_rustls::TlsAcceptor::from(config.clone()).accept(stream).await;
            Ok(Stream::Tls(Box::new(accepted.map_err(|_| End::Stranger)?)))
        }
    }
}

/// Says the last word, and reads on for a moment: a socket that is closed with bytes unread throws away what was
/// said.
async fn part(mut wire: Wire, end: &End, server: &Shared) {
    match end {
        _ if !wire.has_spoken() => return,
        End::Stranger | End::Broken => return,
        End::Damaged(what) => wire.say(&frame::goodbye(Farewell::Protocol, what)),
        End::Refused(code, text, _) => {
            let schema: &[u8] = if *code == Refusal::Schema { server.intake.schema() } else { &[] };
            wire.say(&frame::refuse(*code, text, &schema[..schema.len().min(MAX_SCHEMA_BYTES)]));
        }
        End::Parted(code, text) => wire.say(&frame::goodbye(*code, text)),
    }
    let _ = timeout(PARTING, async {
        wire.flush().await?;
        wire.shut().await?;
        let mut scratch = [0; 1024];
        for _ in 0..4096 {
            wire.fill(&mut [IoSliceMut::new(&mut scratch)]).await?;
        }
        io::Result::Ok(())
    })
    .await;
}

type Never = std::convert::Infallible;

/// From the hello on: finds the session, waits until it is ours, and serves it.
async fn stay(wire: &mut Wire, hello: &Hello, server: &Arc<Shared>) -> Result<Never, End> {
    let intake = &server.intake;
    if intake.is_closed() {
        return Err(End::Refused(Refusal::Closed, "the learner has closed the ring".to_owned(), None));
    }
    let tenancy = server
        .sessions
        .enter(hello, || intake.next_producer_id())
        .map_err(|(code, text)| End::Refused(code, text, None))?;
    let succeeded = tenancy.succeeded();
    let resumed = tenancy.resumed;
    let mut landing = Landing::new(intake.leaf_bytes());
    let mut progress = None;
    let served = async {
        let progress = progress.insert(tenancy.progress().await);
        if !(hello.oldest..=hello.next).contains(&progress.next) {
            let text = format!(
                "the learner expects sample {} of this client, which has {} to {} to offer",
                progress.next, hello.oldest, hello.next
            );
            return Err(End::Refused(Refusal::SessionUnknown, text, None));
        }
        add(&server.counters.accepted, 1);
        add(&server.counters.resumed, resumed as u64);
        let welcome = Welcome {
            producer_id: tenancy.producer_id,
            max_rows: server.max_rows as u32,
            credit: FIRST_CREDIT.min(server.window),
            next: progress.next,
        };
        wire.say(&welcome.frame());
        for (sequence, rows) in progress.refused_from(hello.oldest) {
            wire.say(&Header { sequence, rows, ..Header::new(Kind::Full) }.bytes());
        }
        let producer_id = tenancy.producer_id;
        Connection { wire, server, landing: &mut landing, producer_id, head: [0; HEADER_BYTES], have: 0 }
            .converse(progress)
            .await
    };
    let taken_over = async {
        succeeded.await;
        add(&server.counters.taken_over, 1);
        End::Parted(Farewell::TakenOver, "this client came again over another connection".to_owned())
    };
    let end = unless(served, taken_over).await;
    landing.clear(); // C1: before the session is anybody else's.
    drop(progress);
    if matches!(end, Err(End::Parted(Farewell::Finished, _))) {
        tenancy.finish();
    }
    end
}

/// A client that was let in.
struct Connection<'a> {
    wire: &'a mut Wire,
    server: &'a Arc<Shared>,
    landing: &'a mut Landing,
    producer_id: u32,
    /// The next header, as far as it is here.
    head: [u8; HEADER_BYTES],
    have: usize,
}

impl Connection<'_> {
    async fn converse(&mut self, progress: &mut Progress) -> Result<Never, End> {
        loop {
            let header = self.header().await?;
            let budget = self.budget(&header);
            match header.kind {
                Kind::Data => self.receive(&header, progress).await?,
                Kind::Ping => {
                    self.wire.say(&Header { kind: Kind::Pong, ..header }.bytes());
                }
                Kind::Pong => {}
                Kind::Goodbye => {
                    let mut text = vec![0; header.length as usize];
                    timeout(budget, self.wire.read_exact(&mut text)).await.map_err(|_| too_slow())??;
                    // Any other reason than that it is done: it may come again.
                    let done = Farewell::from_code(header.code) == Some(Farewell::Finished);
                    return Err(if done {
                        End::Parted(Farewell::Finished, String::new())
                    } else {
                        End::Broken
                    });
                }
                Kind::Extension(_) => self.skip(header.length, budget).await?,
                _ => return Err(End::Damaged("a frame is out of turn".to_owned())),
            }
            if self.wire.unsaid() > 4096 {
                // It does not read what we say.
                timeout(self.server.spec.frame_timeout, self.wire.flush())
                    .await
                    .map_err(|_| too_slow())??;
            }
        }
    }

    /// How long a frame may take from its first payload byte on.
    fn budget(&self, header: &Header) -> Duration {
        self.server.spec.frame_timeout
            + Duration::from_millis(header.length.saturating_mul(1000) / SLOWEST_BYTES_PER_S)
    }

    /// The next header. Silence is broken by pings, and borne for three of them.
    async fn header(&mut self) -> Result<Header, End> {
        let mut silent = 0;
        let mut deadline = None;
        while self.have < HEADER_BYTES {
            let due = match (self.have, deadline) {
                (0, _) => Instant::now() + self.server.spec.keepalive,
                (_, Some(deadline)) => deadline,
                (_, None) => *deadline.insert(Instant::now() + self.server.spec.frame_timeout),
            };
            let room = &mut self.head[self.have..];
            match timeout_at(due, self.wire.fill(&mut [IoSliceMut::new(room)])).await {
                Ok(read) => self.have += read?,
                Err(_) if self.have > 0 => return Err(too_slow()),
                Err(_) => {
                    silent += 1;
                    if silent == server::SILENCES {
                        let text = "nothing was heard of the client".to_owned();
                        return Err(End::Parted(Farewell::Silent, text));
                    }
                    self.wire.say(&Header::new(Kind::Ping).bytes());
                }
            }
        }
        self.have = 0;
        Ok(Header::parse(&self.head)?.ok_or(Damage("a header is not whole"))?)
    }

    /// Reads a frame that we do not know, to its end.
    async fn skip(&mut self, length: u64, budget: Duration) -> Result<(), End> {
        let mut left = length as usize;
        let mut scratch = [0; 1024];
        let skipping = async {
            while left > 0 {
                let part = left.min(scratch.len());
                left -= self.wire.fill(&mut [IoSliceMut::new(&mut scratch[..part])]).await?;
            }
            io::Result::Ok(())
        };
        Ok(timeout(budget, skipping).await.map_err(|_| too_slow())??)
    }

    /// A data frame: from its header to its acknowledgement.
    async fn receive(&mut self, header: &Header, progress: &mut Progress) -> Result<(), End> {
        let (server, rows) = (self.server, header.rows as usize);
        if rows == 0 || rows > server.max_rows {
            return Err(End::Damaged(format!(
                "a frame has {rows} rows; 1 to {} are allowed",
                server.max_rows
            )));
        }
        let expected = rows as u64 * server.intake.sample_bytes() as u64;
        if header.length != expected {
            let length = header.length;
            return Err(End::Damaged(format!("a frame of {rows} rows has {length} bytes, not {expected}")));
        }
        if header.sequence > progress.next {
            let (sequence, next) = (header.sequence, progress.next);
            return Err(End::Damaged(format!("a frame begins with sample {sequence}, but {next} is next")));
        }
        self.landing.clear();
        // What is here already is not wanted again.
        let known = (progress.next - header.sequence).min(rows as u64) as usize;
        if known > 0 {
            self.landing.push(Span::Discard(known));
            add(&server.counters.duplicates, known as u64);
        }
        if header.length > 0 {
            let first = timeout(server.spec.frame_timeout, self.wire.readable()).await;
            first.map_err(|_| too_slow())??;
        }
        let placed = self.place(rows - known).await?;
        if server.counters.frames.load(Ordering::Relaxed).is_multiple_of(TIMED) {
            self.wire.start_clock();
        }
        let read = timeout(self.budget(header), self.read()).await;
        read.map_err(|_| too_slow())??;
        if let Some(ns) = self.wire.stop_clock() {
            server.intake.record_copy(ns / rows as u64);
        }
        self.settle(header, placed, progress).await?;
        add(&server.counters.frames, 1);
        add(&server.counters.bytes, header.length + HEADER_BYTES as u64);
        self.wire.acknowledge(progress.next, server.credit(), header.length);
        if self.wire.owes_much() {
            self.wire.nudge().await?;
        }
        Ok(())
    }

    /// Finds a place for `rows` rows. Holds slots, or waits; never both (N1).
    async fn place(&mut self, rows: usize) -> Result<Placed, End> {
        let (intake, mut left) = (&self.server.intake, rows);
        if rows == 0 {
            return Ok(Placed::default());
        }
        if !intake.is_crowded() || intake.on_full() != OnFull::Block {
            match claim(intake, self.landing, &mut left)? {
                Claimed::All => return Ok(Placed::default()),
                Claimed::Dropped => {
                    self.landing.push(Span::Discard(left));
                    add(&self.server.counters.dropped, left as u64);
                    return Ok(Placed::default());
                }
                Claimed::Refused => {
                    self.landing.push(Span::Discard(left));
                    add(&self.server.counters.refused_full, left as u64);
                    return Ok(Placed { refused: left, ..Placed::default() });
                }
                Claimed::Part => {}
            }
        }
        add(&self.server.counters.waited, 1);
        let mut turn = intake.enqueue();
        let mut futile = 0;
        while left > 0 && (left == rows || !turn.try_reach()) {
            self.landing.give_back();
            left = rows;
            if turn.is_reached() {
                self.room(&mut futile).await?;
            } else {
                // Those before us may be slow, and there may be room for all of this frame.
                let _ = self.patiently(timeout(LOOK, turn.reached())).await?;
            }
            claim(intake, self.landing, &mut left)?;
        }
        if left > 0 {
            self.landing.push(Span::Spill(left));
            add(&self.server.counters.spilled, 1);
        }
        turn.serve();
        Ok(Placed { refused: 0, turn: Some(turn) })
    }

    /// Waits for room; a little longer when that was futile, because others were faster or the ring's hints are
    /// wrong.
    async fn room(&mut self, futile: &mut u32) -> Result<(), End> {
        self.patiently(self.server.intake.room()).await?;
        *futile += 1;
        if *futile > 2 {
            self.patiently(sleep(Duration::from_millis(1))).await?;
        }
        Ok(())
    }

    /// Publishes what has landed (C2), then what was spilled, as room comes.
    async fn settle(
        &mut self,
        header: &Header,
        mut placed: Placed,
        progress: &mut Progress,
    ) -> Result<(), End> {
        let (server, producer_id) = (self.server, self.producer_id);
        let origin = |sequence| Origin { producer_id, sequence, version: header.version };
        let (mut sequence, mut spilled) = (header.sequence, 0);
        for span in self.landing.take_spans() {
            let rows = span.rows();
            match span {
                Span::Slots(run) => {
                    run.commit(origin(sequence));
                    add(&server.counters.samples, rows as u64);
                }
                Span::Spill(rows) => {
                    spilled = rows;
                    break;
                }
                Span::Discard(_) => {}
            }
            sequence += rows as u64;
        }
        progress.next = progress.next.max(sequence);
        if placed.refused > 0 {
            let (first, rows) = (sequence - placed.refused as u64, placed.refused as u32);
            progress.refuse(first, rows, server.window as usize);
            self.wire.say(&Header { sequence: first, rows, ..Header::new(Kind::Full) }.bytes());
        }
        let (mut done, mut futile) = (0, 0);
        while done < spilled {
            match server.intake.claim(spilled - done) {
                Ok(Some(run)) => {
                    let rows = run.len();
                    self.landing.copy_spilled(&run, done, spilled);
                    run.commit(origin(progress.next));
                    progress.next += rows as u64;
                    (done, futile) = (done + rows, 0);
                    add(&server.counters.samples, rows as u64);
                }
                Ok(None) => break, // Not with the policy that spills.
                Err(Error::Full) => {
                    self.wire.acknowledge(progress.next, FIRST_CREDIT, 0);
                    placed.turn.iter_mut().for_each(Place::wait_again);
                    self.room(&mut futile).await?;
                }
                Err(error) => return Err(closed(error)),
            }
        }
        drop(placed.turn);
        Ok(())
    }

    /// Waits, and lets the client know from time to time that we are alive: what it says is behind what we do not
    /// read.
    async fn patiently<T>(&mut self, other: impl Future<Output = T>) -> Result<T, End> {
        let mut other = std::pin::pin!(other);
        loop {
            match timeout(self.server.spec.keepalive, self.wire.meanwhile(other.as_mut())).await {
                Ok(done) => return Ok(done?),
                Err(_) if self.wire.unsaid() < 1024 => self.wire.say(&Header::new(Kind::Ping).bytes()),
                Err(_) => {}
            }
        }
    }

    /// Reads the payload to where it belongs, and what comes of the next header with it.
    async fn read(&mut self) -> io::Result<()> {
        self.landing.advance(0); // Samples may have no bytes.
        while !self.landing.has_landed() {
            let mut rooms: [IoSliceMut<'_>; ROOMS] = std::array::from_fn(|_| IoSliceMut::new(&mut []));
            let count = self.landing.rooms(&mut rooms, &mut self.head);
            let read = self.wire.fill(&mut rooms[..count]).await?;
            self.have = self.landing.advance(read);
        }
        Ok(())
    }
}

/// What became of the rows of a frame.
#[derive(Debug, Default)]
struct Placed {
    /// So many, the last ones, are refused.
    refused: usize,
    /// The right to the spill buffer.
    turn: Option<Place>,
}

enum Claimed {
    All,
    /// The ring is full, and to be waited for.
    Part,
    /// The rest is dropped, or refused, as the policy says.
    Dropped,
    Refused,
}

/// Claims as many of the rows that are `left` as there is room for, now.
fn claim(intake: &Intake, landing: &mut Landing, left: &mut usize) -> Result<Claimed, End> {
    while *left > 0 {
        match intake.claim(*left) {
            Ok(Some(run)) => {
                *left -= run.len();
                landing.push(Span::Slots(run));
            }
            Ok(None) => return Ok(Claimed::Dropped),
            Err(Error::Full) if intake.on_full() == OnFull::Error => return Ok(Claimed::Refused),
            Err(Error::Full) => return Ok(Claimed::Part),
            Err(error) => return Err(closed(error)),
        }
    }
    Ok(Claimed::All)
}

fn closed(error: Error) -> End {
    let text = match error {
        Error::Closed => "the learner has closed the ring".to_owned(),
        other => other.to_string(),
    };
    End::Parted(Farewell::RingClosed, text)
}

fn too_slow() -> End {
    End::Parted(Farewell::TooSlow, "a frame was not finished in time".to_owned())
}
