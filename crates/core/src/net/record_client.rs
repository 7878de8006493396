//! `TcpRecordClient`: sends records, each of its own size, into the lane of a learner's transport.

use super::client::{Client, TcpClientSpec};
use super::frame::{Entry, News};
use super::packing::Layout;
use crate::error::Result;
use crate::ring::Patience;
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
        client.ready(Patience::Forever)?;
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
        patience: Patience,
        write: impl FnOnce(&mut [u8]),
    ) -> Result<()> {
        let entry = Entry { bytes: bytes as u64, version, kind };
        let mut write = Some(write);
        let taken = self.client.take(1, patience, |outbound, _| {
            outbound.append_record(entry, |room| {
                if let Some(write) = write.take() {
                    write(room);
                }
            })
        });
        taken.map(drop)
    }

    /// The version of the newest weights that the learner told of, as of its last word: it comes with the welcome, with
    /// acknowledgements, with pings when there is nothing to acknowledge, and with answers to [`news`](Self::news). 0 until then.
    pub fn published(&self) -> u32 {
        self.client.read(|state| state.published)
    }

    /// How far the learner is: the version of the newest weights, and how many records, from all who send, wait to be taken
    /// by it, those of ours that are on their way among them. Both as of the learner's last answer. Asks again, so that the
    /// next call knows more; never waits.
    pub fn news(&self) -> News {
        self.client.news()
    }

    /// Waits until there is room for a record of so many bytes, and takes none: for event loops, which then try. False when
    /// the time was over first. One that no lane has room for is an error, as with `send`.
    pub fn wait_writable(&self, bytes: usize, patience: Patience) -> Result<bool> {
        self.client.wait_room(bytes as u64, patience)
    }
}

impl Deref for TcpRecordClient {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}
