//! A frame of records on the server, of one client or forwarded: an index, and records that go straight into room of the lane.
//!
//! The index is read first, and says what each record needs. Then, for a part of the frame at a time: reserve room for as many
//! records as fit, read them into it, commit, acknowledge. The other records stay in the socket. A frame that waits holds no
//! room (N1).
//!
//! A part that arrives slowly holds its room for `claim_timeout` at most (C4). Then its whole records are committed, the next one
//! goes on in staging memory until it is whole, and the room of the others is given back: they are a later part.
//!
//! The policy drops a record, or older ones in favour of it, only when all bytes before its end have arrived, or when it is the
//! first of its part. What is dropped is counted when it is settled, because a part may be placed again.

use super::connection::Connection;
use super::end::{End, closed, in_time};
use super::feed::Feed;
use super::frame_scatter::Span;
use super::record_ingress::{Delivered, RecordIngress, Room};
use super::session::Progress;
use super::staging::StagingRoom;
use crate::error::{Damage, Error};
use crate::net::wire::frame::{ENTRY_BYTES, Entry, Header, RecordOrigin};
use crate::net::wire::stats::add;
use crate::records::producer::Label;
use crate::ring::OnFull;

/// A part of a frame for which there are places.
#[derive(Debug, Default)]
struct Part {
    rows: usize,
    bytes: usize,
    /// So many, the last ones, are refused.
    refused: usize,
}

impl Part {
    /// The first `whole` records of it, and the next one.
    fn split(&self, index: &[u8], whole: usize) -> (Part, Part) {
        let bytes = |entry: Entry| entry.bytes as usize;
        let kept = self.rows - self.refused;
        let next = Entry::all(index).nth(whole).map_or(0, bytes);
        (
            Part {
                rows: whole,
                bytes: Entry::all(index).take(whole).map(bytes).sum(),
                refused: whole.saturating_sub(kept),
            },
            Part { rows: 1, bytes: next, refused: (whole >= kept) as usize },
        )
    }
}

/// A place for a record that had to wait for one.
#[derive(Debug)]
enum Found {
    Room(Room),
    Staging(StagingRoom),
}

/// What is not settled of a frame.
#[derive(Debug)]
struct Rest<'a> {
    index: &'a [u8],
    /// Of forwarded records.
    origins: &'a [RecordOrigin],
    sequence: u64,
    bytes: usize,
    /// So many of the first records came before.
    known: usize,
}

impl Rest<'_> {
    fn pass(&mut self, part: &Part) {
        self.index = &self.index[part.rows * ENTRY_BYTES..];
        self.origins = self.origins.get(part.rows..).unwrap_or_default();
        self.sequence += part.rows as u64;
        self.bytes -= part.bytes;
        self.known = self.known.saturating_sub(part.rows);
    }
}

/// Whether the policy is to drop records.
fn drops(ingress: &RecordIngress) -> bool {
    matches!(ingress.on_full(), OnFull::DropNewest | OnFull::DropOldest)
}

impl Connection<'_> {
    /// A frame of records: from its header to its acknowledgement.
    pub async fn receive_records(
        &mut self,
        ingress: &RecordIngress,
        header: &Header,
        progress: &mut Progress,
    ) -> Result<(), End> {
        let limits = ingress.limits();
        let (index_bytes, origin_bytes, bytes) = limits.parts(header)?;
        let known = self.rows_known(header, progress)?;
        let mut index = vec![0; index_bytes + origin_bytes];
        in_time(self.server.spec.frame_timeout, self.wire.read_exact(&mut index)).await?;
        let (index, origins) = index.split_at(index_bytes);
        limits.check(index, bytes)?;
        let origins = RecordOrigin::parse(origins)?;
        let mut rest = Rest { index, origins: &origins, sequence: header.sequence, bytes, known };
        while !rest.index.is_empty() {
            self.scatter.clear();
            if rest.bytes > 0 {
                self.readable().await?;
            }
            let mut part = match self.stage_first(&rest) {
                Some(part) => part,
                None => {
                    let arrived = if drops(ingress) { self.wire.available() } else { 0 };
                    self.place_records(ingress, rest.index, rest.known, arrived).await?
                }
            };
            if let Some(began) = self.read_into_claims(part.bytes == rest.bytes).await? {
                let (whole, next) = part.split(rest.index, self.scatter.whole());
                self.publish(ingress, &rest, &whole, progress).await?;
                self.acknowledge(progress.next(), self.server.credit(), whole.bytes as u64);
                rest.pass(&whole);
                let staged = self.scatter.record_to_stage();
                let room = staged.map(|bytes| self.staging_room(bytes, began)).transpose()?;
                self.scatter.stage_record(room);
                if self.scatter.has_claims() {
                    continue; // Nothing of the next record has arrived.
                }
                part = next;
                self.read_into_staging(part.bytes == rest.bytes, began).await?;
            }
            if let Some((staged, _room)) = self.scatter.take_staged() {
                self.scatter.clear();
                part = self.place_records(ingress, &rest.index[..ENTRY_BYTES], 0, staged.len()).await?;
                self.scatter.fill(&staged);
            }
            self.publish(ingress, &rest, &part, progress).await?;
            rest.pass(&part);
            if !rest.index.is_empty() {
                self.acknowledge(progress.next(), self.server.credit(), part.bytes as u64);
            }
        }
        self.finish_frame(header, progress).await
    }

    /// Stages the first record from the start, if the last frame was late.
    fn stage_first(&mut self, rest: &Rest<'_>) -> Option<Part> {
        let bytes = Entry::all(rest.index).next()?.bytes as usize;
        if rest.known > 0 {
            return None;
        }
        let room = self.stage_early(bytes)?;
        self.scatter.push_staged(bytes, room);
        Some(Part { rows: 1, bytes, refused: 0 })
    }

    /// Finds places for the first records of `index`, at least one. Waits only while it holds nothing (N1). `arrived`: bytes that
    /// have arrived, so that the policy may drop other records for them.
    async fn place_records(
        &mut self,
        ingress: &RecordIngress,
        index: &[u8],
        known: usize,
        arrived: usize,
    ) -> Result<Part, End> {
        let room_waiter = ingress.room_waiter();
        let (mut part, mut held, mut waited) = (Part::default(), 0, false);
        for entry in Entry::all(index) {
            let bytes = entry.bytes as usize;
            let span = if part.rows < known {
                Span::Discard(bytes)
            } else if part.refused > 0 {
                part.refused += 1;
                Span::Discard(bytes)
            } else if held > 0 && held + bytes > ingress.part_bytes() {
                break;
            } else {
                let behind = !waited && ingress.on_full() == OnFull::Block && room_waiter.has_waiters();
                let room = if behind {
                    Err(Error::Full)
                } else if drops(ingress) && part.bytes + bytes > arrived {
                    ingress.reserve_free(bytes).map(Some)
                } else {
                    ingress.reserve(bytes)
                };
                match room {
                    Ok(Some(room)) => Span::Record(room),
                    Ok(None) => Span::Discard(bytes),
                    Err(Error::Full | Error::NoMemory { .. } | Error::NoRam { .. })
                        if ingress.on_full() == OnFull::Error =>
                    {
                        part.refused = 1;
                        Span::Discard(bytes)
                    }
                    Err(Error::Full) if part.rows > 0 => break,
                    Err(Error::Full) if ingress.on_full() == OnFull::DropNewest => Span::Discard(bytes),
                    Err(Error::Full) if ingress.on_full() == OnFull::DropOldest => {
                        // Nothing is dropped for a record that may never arrive, if there is memory to stage it.
                        if let Some(room) = self.stage_now(bytes) {
                            self.scatter.push_staged(bytes, room);
                            return Ok(Part { rows: 1, bytes, refused: 0 });
                        }
                        ingress.reserve(bytes).map_err(closed)?.map_or(Span::Discard(bytes), Span::Record)
                    }
                    Err(Error::Full) => {
                        waited = true;
                        match self.wait_for_room(ingress, bytes, bytes > arrived).await? {
                            Found::Room(room) => Span::Record(room),
                            Found::Staging(room) => {
                                self.scatter.push_staged(bytes, room);
                                return Ok(Part { rows: 1, bytes, refused: 0 });
                            }
                        }
                    }
                    Err(error) => return Err(closed(error)),
                }
            };
            if let Span::Record(room) = &span {
                held += room.len();
            }
            self.scatter.push(span);
            (part.rows, part.bytes) = (part.rows + 1, part.bytes + bytes);
        }
        Ok(part)
    }

    /// Waits in the queue until there is room for a record. While frames are late, a record that `may_stage` is staged instead
    /// (C4).
    async fn wait_for_room(
        &mut self,
        ingress: &RecordIngress,
        bytes: usize,
        may_stage: bool,
    ) -> Result<Found, End> {
        add(&self.server.counters.waited, 1);
        let room_waiter = ingress.room_waiter();
        let mut turn = room_waiter.enqueue();
        loop {
            self.wait_room(room_waiter, &mut turn, bytes).await?;
            if let Some(room) = may_stage.then(|| self.stage_early(bytes)).flatten() {
                return Ok(Found::Staging(room));
            }
            match ingress.reserve(bytes) {
                Ok(Some(room)) => return Ok(Found::Room(room)),
                Ok(None) | Err(Error::Full) => {}
                Err(error) => return Err(closed(error)),
            }
        }
    }

    /// Publishes the records of a part, and steps over those that were dropped or refused (C2). A record that does not fit the schema
    /// ends the connection: those before it are acknowledged, it and those behind it are given back.
    async fn publish(
        &mut self,
        ingress: &RecordIngress,
        rest: &Rest<'_>,
        part: &Part,
        progress: &mut Progress,
    ) -> Result<(), End> {
        let (producer_id, mut dropped, mut malformed) = (self.producer_id, 0, None);
        let (mut records, mut end) = (Vec::with_capacity(part.rows), rest.sequence);
        let numbered = Entry::all(rest.index).zip(rest.sequence..);
        for (row, ((entry, sequence), span)) in numbered.zip(self.scatter.take_first(part.rows)).enumerate() {
            if let Span::Record(mut room) = span {
                if let Err(Damage(what)) = ingress.check(&mut room) {
                    malformed = Some((sequence, what));
                    break;
                }
                let Entry { version, kind, .. } = entry;
                let origin = rest
                    .origins
                    .get(row)
                    .map_or((producer_id, sequence), |origin| (origin.producer_id, origin.sequence));
                let label = Label { version, kind, origin: Some(origin) };
                records.push(Delivered { room, label, end: sequence + 1 });
            } else if drops(ingress) && sequence >= rest.sequence + rest.known as u64 {
                dropped += 1;
            }
            end = sequence + 1;
        }
        add(&self.server.counters.samples, records.len() as u64);
        progress.commit_records(ingress, records, end);
        if dropped > 0 {
            add(&self.server.counters.dropped, dropped);
            ingress.count_dropped(dropped);
        }
        if let Some((sequence, what)) = malformed {
            self.acknowledge(progress.next(), self.server.credit(), 0);
            self.wire.flush_ready().await?;
            let text = format!(
                "record {sequence} of producer {producer_id} does not fit the schema: {what}. It was not taken. \
                 Use the same version of rollway for the learner and its workers"
            );
            return Err(End::Malformed(text));
        }
        if part.refused > 0 {
            add(&self.server.counters.refused_full, part.refused as u64);
            let end = rest.sequence + part.rows as u64;
            self.refuse(end - part.refused as u64, part.refused, progress);
        }
        Ok(())
    }
}
