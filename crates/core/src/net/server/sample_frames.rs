//! A frame of samples on the server: claims slots of the ring for its rows, reads them into the slots, and commits. A frame that
//! arrives slowly is staged, and claims slots when it is whole.

use super::connection::Connection;
use super::end::{End, closed, in_time};
use super::feed::Feed;
use super::frame_scatter::{FrameScatter, Span};
use super::room_waiter::Place;
use super::sample_ingress::SampleIngress;
use super::session::Progress;
use super::shared::FIRST_CREDIT;
use crate::error::Error;
use crate::net::wire::frame::{Header, Kind, OriginRun};
use crate::net::wire::stats::add;
use crate::ring::OnFull;
use crate::ring::producer::Origin;
use crate::sys::sync::Ordering;

/// One frame in so many is timed for the ring's `memcpy` histogram: the system call that copies it into its slots.
const TIMED: u64 = 16;

impl Connection<'_> {
    /// A frame of samples, of one client or forwarded: from its header to its acknowledgement.
    pub async fn receive_samples(
        &mut self,
        ingress: &SampleIngress,
        header: &Header,
        progress: &mut Progress,
    ) -> Result<(), End> {
        let (server, rows) = (self.server, header.rows as usize);
        let most = ingress.facts().max_rows;
        if rows == 0 || rows > most {
            return Err(End::Damaged(format!("a frame has {rows} rows; 1 to {most} are allowed")));
        }
        let expected = rows as u64 * ingress.sample_bytes() as u64;
        let origins = if header.kind == Kind::Stamped {
            self.receive_origins(header, expected).await?
        } else if header.length == expected {
            let Header { version, sequence, .. } = *header;
            Origins::One(Origin { producer_id: self.producer_id, sequence, version })
        } else {
            let length = header.length;
            return Err(End::Damaged(format!("a frame of {rows} rows has {length} bytes, not {expected}")));
        };
        self.scatter.clear();
        // Rows that came before are discarded.
        let known = self.rows_known(header, progress)?;
        if known > 0 {
            self.scatter.push(Span::Discard(known));
        }
        if expected > 0 {
            self.readable().await?;
        }
        let mut placed = match self.stage_early((rows - known) * ingress.sample_bytes()) {
            Some(room) => {
                self.scatter.push_staged(rows - known, room);
                Placed::default()
            }
            None => self.place(ingress, rows - known).await?,
        };
        if server.counters.frames.load(Ordering::Relaxed).is_multiple_of(TIMED) {
            self.wire.start_clock();
        }
        if let Some(began) = self.read_into_claims(true).await? {
            if self.scatter.has_claims() {
                let bytes = self.scatter.rows_to_stage() * ingress.sample_bytes();
                let room = self.staging_room(bytes, began)?;
                self.scatter.stage_rows(room);
                placed.turn = None; // A frame that is not whole does not wait for room.
            }
            self.read_into_staging(true, began).await?;
        }
        if let Some(ns) = self.wire.stop_clock() {
            ingress.record_copy(ns / rows as u64);
        }
        self.settle(ingress, header, &origins, placed, progress).await?;
        self.finish_frame(header, progress).await
    }

    /// The index of a forwarded frame, whose rows have so many bytes.
    async fn receive_origins(&mut self, header: &Header, rows_bytes: u64) -> Result<Origins, End> {
        let mut index = vec![0; OriginRun::index_bytes(header, rows_bytes)?];
        in_time(self.server.spec.frame_timeout, self.wire.read_exact(&mut index)).await?;
        Ok(Origins::Runs(OriginRun::parse(header.rows, &index)?))
    }

    /// Finds places for `rows` rows. Holds slots or waits, never both (N1).
    async fn place(&mut self, ingress: &SampleIngress, rows: usize) -> Result<Placed, End> {
        let mut left = rows;
        if rows == 0 {
            return Ok(Placed::default());
        }
        if !ingress.room_waiter().has_waiters() || ingress.on_full() != OnFull::Block {
            match claim(ingress, self.scatter, &mut left)? {
                Claimed::All => return Ok(Placed::default()),
                Claimed::Dropped => {
                    self.scatter.push(Span::Discard(left));
                    add(&self.server.counters.dropped, left as u64);
                    return Ok(Placed::default());
                }
                Claimed::Refused => {
                    self.scatter.push(Span::Discard(left));
                    add(&self.server.counters.refused_full, left as u64);
                    return Ok(Placed { refused: left, ..Placed::default() });
                }
                Claimed::Part => {}
            }
        }
        add(&self.server.counters.waited, 1);
        ingress.note_blocked();
        let mut turn = ingress.room_waiter().enqueue();
        while left > 0 && (left == rows || !turn.try_turn()) {
            self.scatter.give_back();
            left = rows;
            self.wait_room(ingress.room_waiter(), &mut turn, 1).await?;
            // While we waited, others were late: this frame may be the next (C4).
            if let Some(room) = self.stage_early(rows * ingress.sample_bytes()) {
                self.scatter.push_staged(rows, room);
                return Ok(Placed::default());
            }
            claim(ingress, self.scatter, &mut left)?;
        }
        if left > 0 {
            self.scatter.push(Span::Spill(left));
            add(&self.server.counters.spilled, 1);
        }
        turn.serve();
        Ok(Placed { refused: 0, turn: Some(turn) })
    }

    /// Publishes the rows in slots (C2), and then the spilled rows when there is room.
    async fn settle(
        &mut self,
        ingress: &SampleIngress,
        header: &Header,
        origins: &Origins,
        mut placed: Placed,
        progress: &mut Progress,
    ) -> Result<(), End> {
        let server = self.server;
        let origins_from = |sequence: u64| origins.starting_at((sequence - header.sequence) as usize);
        let (mut sequence, mut spilled, mut behind) = (header.sequence, 0, 0);
        for span in self.scatter.take_spans() {
            let rows = span.rows();
            match span {
                Span::Slots(run) => {
                    progress.commit(run, origins_from(sequence));
                    add(&server.counters.samples, rows as u64);
                }
                Span::Spill(_) => {
                    spilled = rows;
                    continue;
                }
                Span::Discard(_) | Span::Record(_) if spilled > 0 => {
                    behind = rows; // Dropped or refused rows behind the spilled ones.
                    continue;
                }
                Span::Discard(_) | Span::Record(_) => {}
            }
            sequence += rows as u64;
        }
        progress.skip_to(sequence);
        let mut done = 0;
        while done < spilled {
            let is_fair = ingress.on_full() == OnFull::Block && placed.turn.is_none();
            let stands_back = is_fair && ingress.room_waiter().has_waiters();
            match if stands_back { Err(Error::Full) } else { ingress.claim(spilled - done) } {
                Ok(Some(run)) => {
                    let rows = run.len();
                    self.scatter.copy_spilled(&run, done, spilled);
                    progress.commit(run, origins_from(progress.next()));
                    done += rows;
                    placed.turn.iter_mut().for_each(|turn| turn.futile = 0);
                    add(&server.counters.samples, rows as u64);
                }
                Ok(None) => {
                    add(&server.counters.dropped, (spilled - done) as u64);
                    break;
                }
                Err(Error::Full) if ingress.on_full() == OnFull::Error => {
                    add(&server.counters.refused_full, (spilled - done) as u64);
                    placed.refused += spilled - done;
                    break;
                }
                Err(Error::Full) => {
                    self.acknowledge(progress.next(), FIRST_CREDIT, 0);
                    let turn = placed.turn.get_or_insert_with(|| {
                        add(&server.counters.waited, 1);
                        ingress.note_blocked();
                        ingress.room_waiter().enqueue()
                    });
                    turn.wait_again();
                    self.wait_room(ingress.room_waiter(), turn, 1).await?;
                }
                Err(error) => return Err(closed(error)),
            }
        }
        drop(placed.turn);
        let end = header.sequence + header.rows as u64;
        debug_assert!(progress.next() + (spilled - done + behind) as u64 >= end);
        if placed.refused > 0 {
            self.refuse(end - placed.refused as u64, placed.refused, progress);
        }
        progress.skip_to(end);
        if spilled > 0 {
            self.scatter.clear(); // Frees the spill buffer.
        }
        Ok(())
    }
}

/// The workers that the rows of a frame come from.
enum Origins {
    One(Origin),
    Runs(Vec<OriginRun>),
}

impl Origins {
    /// The origin of each row, from this one on.
    fn starting_at(&self, row: usize) -> impl Iterator<Item = Origin> {
        let (one, runs) = match self {
            Origins::One(origin) => (Some(*origin), &[][..]),
            Origins::Runs(runs) => (None, &runs[..]),
        };
        let of_run = |run: &OriginRun| {
            let &OriginRun { rows, producer_id, version, sequence } = run;
            (0..u64::from(rows)).map(move |row| Origin { producer_id, sequence: sequence + row, version })
        };
        let same = one.into_iter().flat_map(move |origin| {
            (row as u64..).map(move |row| Origin { sequence: origin.sequence + row, ..origin })
        });
        same.chain(runs.iter().flat_map(of_run).skip(row))
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
fn claim(ingress: &SampleIngress, scatter: &mut FrameScatter, left: &mut usize) -> Result<Claimed, End> {
    while *left > 0 {
        match ingress.claim(*left) {
            Ok(Some(run)) => {
                *left -= run.len();
                scatter.push(Span::Slots(run));
            }
            Ok(None) => return Ok(Claimed::Dropped),
            Err(Error::Full) if ingress.on_full() == OnFull::Error => return Ok(Claimed::Refused),
            Err(Error::Full) => return Ok(Claimed::Part),
            Err(error) => return Err(closed(error)),
        }
    }
    Ok(Claimed::All)
}
