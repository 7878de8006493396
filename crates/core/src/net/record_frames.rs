//! A frame of records on the server: an index, and records that go straight into room of the lane.
//!
//! The index is read first, and says what each record needs. Then, a part of the frame at a time: reserve room for as many
//! records as there is room for, read them into it, commit, acknowledge. What there is no room for stays in the socket,
//! and what waits holds nothing (N1).

use super::connection::{Connection, End, LOOK, closed, too_slow};
use super::frame::{ENTRY_BYTES, Entry, Header};
use super::landing::Span;
use super::record_intake::{RecordIntake, Room};
use super::session::Progress;
use super::stats::add;
use crate::error::Error;
use crate::records::producer::Label;
use crate::ring::OnFull;
use tokio::time::{Instant, timeout};

/// A part of a frame for which there are places.
#[derive(Debug, Default)]
struct Part {
    rows: usize,
    bytes: usize,
    /// So many, the last ones, are refused.
    refused: usize,
}

impl Connection<'_> {
    /// A frame of records: from its header to its acknowledgement.
    pub async fn receive_records(
        &mut self,
        intake: &RecordIntake,
        header: &Header,
        progress: &mut Progress,
    ) -> Result<(), End> {
        let limits = intake.limits();
        let (index_bytes, mut left) = limits.parts(header)?;
        let mut known = self.known(header, progress)?;
        let mut index = vec![0; index_bytes];
        let read = timeout(self.server.spec.frame_timeout, self.wire.read_exact(&mut index)).await;
        read.map_err(|_| too_slow())??;
        limits.check(&index, left)?;
        let (mut index, mut sequence, mut budget) = (&index[..], header.sequence, self.budget(header));
        while !index.is_empty() {
            self.landing.clear();
            if left > 0 {
                self.readable().await?;
            }
            let part = self.place_records(intake, index, known).await?;
            let started = Instant::now();
            let read = timeout(budget, self.read(part.bytes == left)).await;
            read.map_err(|_| too_slow())??;
            budget = budget.saturating_sub(started.elapsed());
            let (settled, rest) = index.split_at(part.rows * ENTRY_BYTES);
            self.settle_records(settled, sequence, &part, progress);
            if !rest.is_empty() {
                self.acknowledge(progress.next, self.server.credit(), part.bytes as u64);
            }
            sequence += part.rows as u64;
            left -= part.bytes;
            known = known.saturating_sub(part.rows);
            index = rest;
        }
        self.settled(header, progress).await
    }

    /// Finds places for the first records of `index`, one at least. Waits only while it holds nothing (N1).
    async fn place_records(
        &mut self,
        intake: &RecordIntake,
        index: &[u8],
        known: usize,
    ) -> Result<Part, End> {
        let (server, doorman) = (self.server, intake.doorman());
        let (mut part, mut held, mut waited) = (Part::default(), 0, false);
        for entry in Entry::all(index) {
            let bytes = entry.bytes as usize;
            let span = if part.rows < known {
                Span::Discard(bytes)
            } else if part.refused > 0 {
                part.refused += 1;
                Span::Discard(bytes)
            } else if held > 0 && held + bytes > intake.part_bytes() {
                break;
            } else {
                let behind = !waited && intake.on_full() == OnFull::Block && doorman.is_crowded();
                let room = if behind { Err(Error::Full) } else { intake.reserve(bytes) };
                match room {
                    Ok(Some(room)) => Span::Record(room),
                    Ok(None) => {
                        add(&server.counters.dropped, 1);
                        Span::Discard(bytes)
                    }
                    Err(Error::Full | Error::NoMemory { .. } | Error::NoRam { .. })
                        if intake.on_full() == OnFull::Error =>
                    {
                        part.refused = 1;
                        Span::Discard(bytes)
                    }
                    Err(Error::Full) if part.rows > 0 => break,
                    Err(Error::Full) => {
                        waited = true;
                        Span::Record(self.wait_for_room(intake, bytes).await?)
                    }
                    Err(error) => return Err(closed(error)),
                }
            };
            if let Span::Record(room) = &span {
                held += room.len();
            }
            self.landing.push(span);
            (part.rows, part.bytes) = (part.rows + 1, part.bytes + bytes);
        }
        add(&server.counters.refused_full, part.refused as u64);
        Ok(part)
    }

    /// Stands in the queue until there is room for a record.
    async fn wait_for_room(&mut self, intake: &RecordIntake, bytes: usize) -> Result<Room, End> {
        add(&self.server.counters.waited, 1);
        let doorman = intake.doorman();
        let mut turn = doorman.enqueue();
        let mut futile = 0;
        loop {
            if turn.is_reached() {
                self.room(doorman, bytes, &mut futile).await?;
            } else {
                // Those before us may need more, and there may be room for this one.
                let _ = self.patiently(timeout(LOOK, turn.reached())).await?;
            }
            match intake.reserve(bytes) {
                Ok(Some(room)) => return Ok(room),
                Ok(None) | Err(Error::Full) => {}
                Err(error) => return Err(closed(error)),
            }
        }
    }

    /// Publishes what has landed, and steps over what was dropped or refused (C2).
    fn settle_records(&mut self, index: &[u8], sequence: u64, part: &Part, progress: &mut Progress) {
        let (producer_id, mut samples) = (self.producer_id, 0);
        for ((entry, sequence), span) in Entry::all(index).zip(sequence..).zip(self.landing.take_spans()) {
            if let Span::Record(room) = span {
                let Entry { version, kind, .. } = entry;
                room.commit(Label { version, kind, origin: Some((producer_id, sequence)) });
                samples += 1;
            }
        }
        add(&self.server.counters.samples, samples);
        let end = sequence + part.rows as u64;
        progress.next = progress.next.max(end);
        if part.refused > 0 {
            self.refuse(end - part.refused as u64, part.refused, progress);
        }
    }
}
