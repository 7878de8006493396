//! One connection of a mirror: asks for versions, and reads them from the socket into the local segment.

use super::shared::{LocalCopy, Shared};
use crate::error::{Error, Result};
use crate::net::client::dial::GOODBYE_TIMEOUT;
use crate::net::client::disconnect;
use crate::net::client::link::{Link, unless_blocked, wait_ready};
use crate::net::client::reconnect::Contact;
use crate::net::wire::frame::{
    Damage, GoodbyeReason, HEADER_BYTES, Header, Kind, LeafList, VersionEnd, goodbye,
};
use crate::net::wire::leaf_cursor::{LeafCursor, Part};
use crate::net::wire::stats::add;
use crate::weights::{Draft, mirror};
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::time::Instant;

/// Bytes that may wait for the learner to read. The mirror sends only small frames, one at a time.
const MOST_UNSENT: usize = 16 * 1024;

/// Rooms of one read.
const ROOMS: usize = 64;

type Disconnect = disconnect::Disconnect<Error>;

impl From<Damage> for Disconnect {
    fn from(damage: Damage) -> Disconnect {
        Disconnect::Broken(format!("the learner broke the protocol: {damage}"))
    }
}

/// One connection of the mirror.
pub struct MirrorConnection<'a> {
    shared: &'a Shared,
    local: Arc<LocalCopy>,
    contact: &'a mut Contact,
    link: Link,
    outbox: Vec<u8>,
    /// The next header, as far as it is here.
    head: [u8; HEADER_BYTES],
    have: usize,
}

impl<'a> MirrorConnection<'a> {
    pub fn new(
        shared: &'a Shared,
        local: Arc<LocalCopy>,
        contact: &'a mut Contact,
        link: Link,
    ) -> MirrorConnection<'a> {
        MirrorConnection {
            shared,
            local,
            contact,
            link,
            outbox: Vec::new(),
            head: [0; HEADER_BYTES],
            have: 0,
        }
    }

    /// Fetches version after version, until the end.
    pub fn serve(mut self) -> Disconnect {
        let disconnect = loop {
            if let Err(disconnect) = self.fetch() {
                break disconnect;
            }
        };
        if self.shared.connector.check_wanted().is_err() {
            self.say_goodbye();
        }
        disconnect
    }

    /// Asks for a version that is newer than ours, waits for it and publishes it, unless the learner overwrote it meanwhile.
    fn fetch(&mut self) -> Result<(), Disconnect> {
        self.check_wanted()?;
        let have = self.local.version().map_err(Disconnect::Final)?;
        self.queue(&Header { sequence: have, ..Header::new(Kind::Fetch) }.bytes());
        let header = self.expect(&[Kind::Version])?;
        let list = self.list(&header)?;
        let version = header.sequence;
        if version <= have {
            return Err(Damage("a version is not newer than ours").into());
        }
        let local = self.local.clone();
        if have == 0 && list.leaves.len() != local.weights().geometry().leaves() {
            return Err(Damage("the first version is not whole").into());
        }
        let draft = local.writer.draft(version, &list.leaves).map_err(Disconnect::Final)?;
        let whole = self.receive(&draft, &list, version)?;
        if !whole {
            add(&self.shared.counters.voids, 1);
            return Ok(());
        }
        match draft.publish(local.weights().has_checksums().then_some(&list.checksums)) {
            Ok(_) => self.publish().map_err(Disconnect::Final),
            Err(error @ Error::Checksum { .. }) => {
                Err(Disconnect::Broken(format!("damaged on the way: {error}")))
            }
            Err(error) => Err(Disconnect::Final(error)),
        }
    }

    /// The leaves that will come.
    fn list(&mut self, header: &Header) -> Result<LeafList, Disconnect> {
        let leaves = self.local.weights().geometry().leaves();
        if header.rows as usize > leaves {
            return Err(Damage("a version has too many leaves").into());
        }
        let mut payload = vec![0; header.length as usize]; // Bounded by the kind.
        self.read_exact(&mut payload)?;
        Ok(LeafList::parse(header.rows, leaves, &payload)?)
    }

    /// Reads the pieces into the draft; false when the learner overwrote them meanwhile.
    fn receive(&mut self, draft: &Draft<'_>, list: &LeafList, version: u64) -> Result<bool, Disconnect> {
        let mut leaves = LeafCursor::new(list.leaves.iter().map(|&leaf| draft.place(leaf)));
        loop {
            let header = self.expect(&[Kind::Piece, Kind::VersionEnd])?;
            if header.sequence != version {
                return Err(Damage("a piece is of another version").into());
            }
            if header.kind == Kind::Piece {
                let mut left = header.length as usize;
                if left > leaves.left() {
                    return Err(Damage("a version is longer than its leaves").into());
                }
                while left > 0 {
                    left -= self.fill(&mut leaves, left)?;
                }
                continue;
            }
            return match VersionEnd::from_code(header.code) {
                Some(VersionEnd::Complete) if leaves.left() == 0 => Ok(true),
                Some(VersionEnd::Overwritten) => Ok(false),
                _ => Err(Damage("a version is shorter than its leaves").into()),
            };
        }
    }

    /// Tells callers about a new version, and gives them a new local segment if the lineage is new (M1). Servers of the copy
    /// follow (M4).
    fn publish(&mut self) -> Result<()> {
        let mut state = self.shared.lock();
        let before = state.local.clone().filter(|before| before.lineage != self.local.lineage);
        if let Some(before) = before {
            mirror::replace(before.weights(), self.local.weights())?;
            state.local = Some(self.local.clone());
            state.earlier.push(before.lineage);
            add(&self.shared.counters.lineages, 1);
            drop(state);
            self.shared.tell_outlets(|outlet| outlet.follow(self.local.weights()));
        } else {
            drop(state);
        }
        add(&self.shared.counters.versions, 1);
        self.shared.connector.progress.notify_if_waiting();
        Ok(())
    }

    /// Waits for a frame of one of these kinds, and handles those that may come at any time.
    fn expect(&mut self, kinds: &[Kind]) -> Result<Header, Disconnect> {
        loop {
            while self.have < HEADER_BYTES {
                let (mut head, have) = (self.head, self.have);
                let read = self.read(&mut [IoSliceMut::new(&mut head[have..])]);
                self.head = head;
                self.have += read?;
            }
            self.have = 0;
            let header = Header::parse(&self.head)?.ok_or(Damage("a header is not whole"))?;
            match header.kind {
                kind if kinds.contains(&kind) => return Ok(header),
                Kind::Ping if self.outbox.len() > MOST_UNSENT => {
                    return Err(Damage("it pings, and does not read the answers").into());
                }
                Kind::Ping => self.queue(&Header { kind: Kind::Pong, ..header }.bytes()),
                Kind::Pong => {}
                Kind::Goodbye => {
                    let mut text = vec![0; header.length as usize]; // Bounded by the kind.
                    self.read_exact(&mut text)?;
                    let text = String::from_utf8_lossy(&text).into_owned();
                    return Err(match GoodbyeReason::from_code(header.code) {
                        // A learner that merely stops may come back.
                        Some(GoodbyeReason::RingClosed) if !self.shared.spec.outlives_learners => {
                            self.shared.lock().is_shut_down = true;
                            Disconnect::Final(self.shared.lost(text))
                        }
                        _ => Disconnect::Broken(text),
                    });
                }
                Kind::Extension(_) => self.skip(header.length)?,
                _ => return Err(Damage("a frame is out of turn").into()),
            }
        }
    }

    fn skip(&mut self, length: u64) -> Result<(), Disconnect> {
        let mut left = length as usize;
        let mut scratch = [0; 1024];
        while left > 0 {
            let part = left.min(scratch.len());
            left -= self.read(&mut [IoSliceMut::new(&mut scratch[..part])])?;
        }
        Ok(())
    }

    fn read_exact(&mut self, room: &mut [u8]) -> Result<(), Disconnect> {
        let mut have = 0;
        while have < room.len() {
            have += self.read(&mut [IoSliceMut::new(&mut room[have..])])?;
        }
        Ok(())
    }

    /// Reads at most `most` bytes into the leaves of a draft, and the start of the next header if it follows. Returns how many
    /// bytes went into the leaves.
    fn fill(&mut self, leaves: &mut LeafCursor, most: usize) -> Result<usize, Disconnect> {
        let (mut head, mut parts) = (self.head, [Part::default(); ROOMS]);
        let mut rooms: [IoSliceMut<'_>; ROOMS + 1] = std::array::from_fn(|_| IoSliceMut::new(&mut []));
        let (mut count, bytes) = leaves.parts(most, &mut parts);
        for (room, part) in rooms.iter_mut().zip(&parts[..count]) {
            // SAFETY: the part is in the buffer of a draft, which only we write to (I1 of the weights). The draft outlives the
            // cursor, and the parts do not overlap.
            *room = IoSliceMut::new(unsafe { std::slice::from_raw_parts_mut(part.start, part.bytes) });
        }
        if bytes == most {
            rooms[count] = IoSliceMut::new(&mut head);
            count += 1;
        }
        let read = self.read(&mut rooms[..count])?;
        let placed = read.min(bytes);
        leaves.advance(placed);
        self.head = head;
        self.have = read - placed;
        add(&self.shared.counters.bytes, placed as u64);
        Ok(placed)
    }

    /// Waits for some bytes. Meanwhile it writes what is queued, and pings a silent learner.
    fn read(&mut self, rooms: &mut [IoSliceMut<'_>]) -> Result<usize, Disconnect> {
        let connector = &self.shared.connector;
        loop {
            let blocked = self.flush()?;
            if let Some(read) = unless_blocked(self.link.read_vectored(rooms))? {
                self.contact.heard = Instant::now();
                return Ok(read);
            }
            self.check_wanted()?;
            let ping = self.contact.check_silence(connector.keepalive()).map_err(|silence| {
                Disconnect::Broken(format!("nothing was received from the learner for {silence:.1?}"))
            })?;
            if ping {
                self.queue(&Header::new(Kind::Ping).bytes());
                continue;
            }
            let check = Instant::now() + connector.keepalive() / 2;
            wait_ready(Some(&self.link.socket()), &connector.wakeup, blocked, check)?;
        }
    }

    /// An error when a caller has closed or redirected the mirror.
    fn check_wanted(&self) -> Result<(), Disconnect> {
        self.shared.connector.check_wanted().map_err(|disconnect| disconnect.map_final(|_| Error::Closed))
    }

    fn queue(&mut self, frame: &[u8]) {
        self.outbox.extend_from_slice(frame);
    }

    /// Writes what the socket takes; true when something is left.
    fn flush(&mut self) -> Result<bool, Disconnect> {
        while !self.outbox.is_empty() {
            match unless_blocked(self.link.write(&[IoSlice::new(&self.outbox)]))? {
                Some(written) => drop(self.outbox.drain(..written)),
                None => return Ok(true),
            }
        }
        Ok(unless_blocked(self.link.flush())?.is_none())
    }

    /// Says goodbye, if the socket takes it.
    fn say_goodbye(&mut self) {
        let until = Instant::now() + GOODBYE_TIMEOUT;
        self.queue(&goodbye(GoodbyeReason::Finished, ""));
        while Instant::now() < until && matches!(self.flush(), Ok(true)) {
            let _ = wait_ready(Some(&self.link.socket()), &self.shared.connector.wakeup, true, until);
        }
    }
}
