//! `TcpRecordClient`: sends records, each of its own size, into the lane of a learner's transport.

use super::handle::Client;
use super::packing::Layout;
use super::shared::TcpClientSpec;
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

    /// Connects, and returns when records may be sent. A signal ends it; `start` and `ready` can go on after one.
    pub fn connect(spec: TcpClientSpec, schema: &[u8]) -> Result<TcpRecordClient> {
        let client = TcpRecordClient::start(spec, schema)?;
        client.ready(Deadline::Never)?;
        Ok(client)
    }

    /// Takes one record of so many bytes. `write` is called once, when there is room, with just as many, and writes all of
    /// them; the client is locked meanwhile. A record that no lane of the learner has room for is an error here
    /// ([`RecordTooLarge`](crate::Error::RecordTooLarge)), and nothing is sent.
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

    /// Takes several records, in their order, and says how many, and what ended it. Who waits is sent back to look for signals
    /// ([`Interrupted`](crate::Error::Interrupted)) also when nothing but the time was over in the middle of them.
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
                // A signal may be why: its handler has run, and nobody would hear of it if we slept again.
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

    /// The version of the newest weights that the learner told of, as of its last word: it comes with the welcome, with
    /// acknowledgements, with pings when there is nothing to acknowledge, and with answers to [`learner_status`](Self::learner_status). 0 until then.
    pub fn published(&self) -> u32 {
        self.client.read(|state| state.published)
    }

    /// How far the learner is: the version of the newest weights, and how many records, from all who send, wait to be taken
    /// by it, those of ours that are on their way among them. Both as of the learner's last answer. Asks again, so that the
    /// next call knows more; never waits.
    pub fn learner_status(&self) -> LearnerStatus {
        self.client.learner_status()
    }

    /// Waits until there is room for a record of so many bytes, and takes none: for event loops, which then try. False when
    /// the time was over first. One that no lane has room for is an error, as with `send`.
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
