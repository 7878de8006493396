//! `TcpRecordClient`: sends records, each of its own size, into the lane of a learner's transport.

use super::handle::Client;
use super::packing::Layout;
use super::spec::TcpClientSpec;
use crate::error::{Error, Result};
use crate::net::wire::frame::{Entry, LearnerStatus};
use crate::records::Outgoing;
use crate::records::producer::run::first_run;
use crate::ring::Deadline;
use std::ops::Deref;

/// One worker's connection to a learner that takes records. Threads may share it.
#[derive(Debug)]
pub struct TcpRecordClient {
    client: Client,
}

impl TcpRecordClient {
    /// Begins to connect, and returns at once; [`ready`](Client::ready) says how it went.
    pub fn start(spec: TcpClientSpec, schema: &[u8]) -> Result<TcpRecordClient> {
        Ok(TcpRecordClient { client: Client::start(spec, schema, Layout::Records)? })
    }

    /// Takes one record of so many bytes. Calls `write` once, when there is room, with exactly that room, while the client is locked.
    /// A record that no lane of the learner has room for is an error ([`RecordTooLarge`](crate::Error::RecordTooLarge)).
    pub fn send(
        &self,
        bytes: usize,
        version: u32,
        kind: u32,
        deadline: Deadline,
        write: impl FnOnce(&mut [u8]),
    ) -> Result<()> {
        let entry = Entry { bytes: bytes as u64, version, kind };
        let mut write = Some(write);
        let taken = self.client.take(1, deadline, |outbound, _| {
            outbound.append_record(entry, |room| {
                if let Some(write) = write.take() {
                    write(room);
                }
            })
        });
        taken.map(drop)
    }

    /// Takes several records, in their order; returns how many, and what ended it. A call that waits may also end with
    /// [`Interrupted`](crate::Error::Interrupted) when only its time was over.
    pub fn send_many<R: Outgoing>(&self, records: &[R], deadline: Deadline) -> (usize, Result<()>) {
        let mut sent = 0;
        while sent < records.len() {
            // Not all at once: the first leave while the others are copied.
            let run = first_run(&records[sent..]);
            let before = sent;
            let taken = self.client.take(run.len(), deadline, |outbound, taken| {
                let record = &run[taken];
                let (bytes, version, kind) = (record.bytes() as u64, record.version(), record.kind());
                let put =
                    outbound.append_record(Entry { bytes, version, kind }, |room| record.write(room))?;
                sent = before + taken + put;
                Ok(put)
            });
            match taken {
                Err(error) => return (sent, Err(error)),
                // A signal may be the reason: its handler must run before we sleep again.
                Ok(taken) if taken < run.len() && deadline != Deadline::Now => {
                    return (sent, Err(Error::Interrupted));
                }
                Ok(_) => {}
            }
        }
        (sent, Ok(()))
    }

    /// An error for a record of more bytes than the learner takes, as far as it has said so.
    pub fn check_size(&self, bytes: usize) -> Result<()> {
        self.client.read(|state| Some(state.outbound.check_record(bytes as u64))).unwrap_or(Ok(()))
    }

    /// The version of the newest weights that the learner announced: with the welcome, acknowledgements, pings, and answers to
    /// [`learner_status`](Self::learner_status). 0 until then.
    pub fn published(&self) -> u32 {
        self.client.read(|state| state.published)
    }

    /// How far the learner is: the version of the newest weights, and how many records of all clients wait to be taken, including
    /// ours that are on their way. Both as of the learner's last answer. Never waits; asks again for the next call.
    pub fn learner_status(&self) -> LearnerStatus {
        self.client.learner_status()
    }

    /// Waits until there is room for a record of so many bytes: for event loops, which then try. False when the time was over
    /// first. A record that no lane has room for is an error, as with `send`.
    pub fn wait_writable(&self, bytes: usize, deadline: Deadline) -> Result<bool> {
        self.client.wait_room(bytes as u64, deadline)
    }
}

impl Deref for TcpRecordClient {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}
