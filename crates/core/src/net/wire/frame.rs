//! The bytes on the wire. No I/O.
//!
//! ```text
//! preamble  ┌ "RLWY" │ protocol u16 │ flags u16 │ nonce 32 ┐                                      40 bytes, once each way
//! header    ┌ kind u8 │ flags u8 │ code u16 │ rows u32 │ version u32 │ credit u32 │ sequence u64 │ length u64 ┐  32 bytes
//! payload   `length` bytes, as the kind says
//! entry     ┌ bytes u64 │ version u32 │ kind u32 ┐       16 bytes, one for each record of a frame, in front of the records
//! origin    ┌ producer_id u32 │ 0 u32 │ sequence u64 ┐   16 bytes, one for each forwarded record, between the entries and the records
//! origins   ┌ rows u32 │ producer_id u32 │ version u32 │ 0 u32 │ sequence u64 ┐  24 bytes, one for each run of forwarded samples
//! leaf      ┌ number u32 │ 0 u32 │ checksum u64 ┐        16 bytes, one for each leaf of a version that was changed
//! ```
//!
//! Little-endian throughout. Every function here is pure, and checks what it reads: unknown kinds, lengths that do not fit their
//! kind and texts that are too long are [`Damage`]. `docs/design/net/conversation.md` explains each field.

pub use crate::error::Damage;
use std::ops::RangeInclusive;

/// The first bytes of both preambles.
pub const MAGIC: [u8; 4] = *b"RLWY";
/// What this build speaks.
pub const PROTOCOL: u16 = 3;
pub const PREAMBLE_BYTES: usize = 40;
pub const HEADER_BYTES: usize = 32;
pub const NONCE_BYTES: usize = 32;
pub const PROOF_BYTES: usize = 32;
/// The side, and a compressed point.
pub const SHARE_BYTES: usize = 33;
/// One record in the index of a frame.
pub const ENTRY_BYTES: usize = 16;
/// The worker of one record in the index of a forwarded frame.
pub const RECORD_ORIGIN_BYTES: usize = 16;
/// One run of samples in the index of a forwarded frame.
pub const ORIGIN_BYTES: usize = 24;
/// One leaf in the list of a version.
pub const LEAF_BYTES: usize = 16;
/// The longest schema text of samples and records.
pub const MAX_SCHEMA_BYTES: usize = 1 << 20;
/// The longest text of a refusal or a goodbye.
pub const MAX_TEXT_BYTES: usize = 4096;
/// The longest frame of an unknown kind, which is skipped.
pub const MAX_EXTENSION_BYTES: u64 = 16 << 20;

/// The highest sequence number. The sum of it and a count does not overflow.
pub const MAX_SEQUENCE: u64 = 1 << 62;

/// Leaves of weights, at most.
pub const MAX_LEAVES: usize = 1 << 18;
/// The longest schema text of weights, which have many more leaves than samples.
pub const MAX_WEIGHTS_SCHEMA_BYTES: usize = 32 << 20;
/// Bytes of one piece of a version, at most.
pub const MAX_PIECE_BYTES: usize = 1 << 20;

const HELLO_BYTES: usize = 40;
const INVENTORY_BYTES: usize = 16;
const MAX_INVENTORY_BYTES: u64 = (INVENTORY_BYTES + 8 * MAX_LEAVES + MAX_WEIGHTS_SCHEMA_BYTES) as u64;
const WELCOME_BYTES: usize = 24;
const NO_PRODUCER_ID: u32 = u32::MAX;

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

/// Reads the fields of a payload, one after the other.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn next<const N: usize>(&mut self) -> Result<[u8; N], Damage> {
        let (field, rest) = self.0.split_first_chunk().ok_or(Damage("a payload is too short"))?;
        self.0 = rest;
        Ok(*field)
    }

    fn u32(&mut self) -> Result<u32, Damage> {
        self.next().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Damage> {
        self.next().map(u64::from_le_bytes)
    }

    /// What follows the fields: a schema.
    fn schema(self, most: usize) -> Result<Vec<u8>, Damage> {
        if self.0.len() > most { Err(Damage("a schema is too long")) } else { Ok(self.0.to_vec()) }
    }
}

/// What each side sends first, before any secret or schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preamble {
    pub protocol: u16,
    /// The client has a token; the server always asks for one.
    pub token: bool,
    pub nonce: [u8; NONCE_BYTES],
}

impl Preamble {
    pub fn parse(bytes: &[u8; PREAMBLE_BYTES]) -> Result<Preamble, Damage> {
        if bytes[..4] != MAGIC {
            return Err(Damage("it does not begin with RLWY"));
        }
        let mut nonce = [0; NONCE_BYTES];
        nonce.copy_from_slice(&bytes[8..]);
        Ok(Preamble { protocol: u16::from_le_bytes([bytes[4], bytes[5]]), token: bytes[6] & 1 != 0, nonce })
    }

    pub fn bytes(&self) -> [u8; PREAMBLE_BYTES] {
        let mut bytes = [0; PREAMBLE_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&self.protocol.to_le_bytes());
        bytes[6] = self.token as u8;
        bytes[8..].copy_from_slice(&self.nonce);
        bytes
    }
}

fn exactly(bytes: usize) -> RangeInclusive<u64> {
    bytes as u64..=bytes as u64
}

fn up_to(bytes: usize) -> RangeInclusive<u64> {
    0..=bytes as u64
}

/// Declares the kinds of frames: the byte of each, and how long its payload may be.
macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $byte:literal, $lengths:expr;)*) => {
        /// What a frame is for.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Kind {
            $($(#[$doc])* $kind,)*
            /// 0x80 and above: a receiver that does not know it skips it.
            Extension(u8),
        }

        impl Kind {
            fn from_byte(byte: u8) -> Option<Kind> {
                match byte {
                    $($byte => Some(Kind::$kind),)*
                    0x80.. => Some(Kind::Extension(byte)),
                    _ => None,
                }
            }

            pub fn byte(self) -> u8 {
                match self {
                    $(Kind::$kind => $byte,)*
                    Kind::Extension(byte) => byte,
                }
            }

            fn lengths(self) -> RangeInclusive<u64> {
                match self {
                    $(Kind::$kind => $lengths,)*
                    Kind::Extension(_) => 0..=MAX_EXTENSION_BYTES,
                }
            }
        }
    };
}

kinds! {
    /// Both ways: proof that the sender knows the token.
    Proof = 0x01, exactly(PROOF_BYTES);
    /// Client: its session, what it has sent, and its schema.
    Hello = 0x02, HELLO_BYTES as u64..=(HELLO_BYTES + MAX_SCHEMA_BYTES) as u64;
    /// Server: where to go on, and how much at once.
    Welcome = 0x03, exactly(WELCOME_BYTES);
    /// Server: why the client is not let in.
    Refuse = 0x04, 4..=(4 + MAX_TEXT_BYTES + MAX_SCHEMA_BYTES) as u64;
    /// Server, to a client of weights: their lineage, their leaves, and their schema.
    Inventory = 0x05, INVENTORY_BYTES as u64..=MAX_INVENTORY_BYTES;
    /// Both ways: the sender's share of the key exchange.
    Share = 0x06, exactly(SHARE_BYTES);
    /// Client: a run of samples, leaf by leaf. The server checks the length.
    Data = 0x10, 0..=u64::MAX;
    /// Server: everything below `sequence` is settled; `credit` frames may be under way.
    Ack = 0x11, exactly(0);
    /// Server: `rows` samples or records from `sequence` on found no room, and the policy is to say so.
    Full = 0x12, exactly(0);
    /// Client: an index, and the records that it describes, one after the other. The server checks the length.
    Records = 0x13, 0..=u64::MAX;
    /// Client of weights: it has version `sequence`, and wants a newer one as soon as there is one.
    Fetch = 0x14, exactly(0);
    /// Server: version `sequence` follows; which leaves of it.
    Version = 0x15, up_to(LEAF_BYTES * MAX_LEAVES);
    /// Server: the next bytes of these leaves, one after the other.
    Piece = 0x16, 1..=MAX_PIECE_BYTES as u64;
    /// Server: no more pieces of version `sequence` follow. `code` is a [`VersionEnd`].
    VersionEnd = 0x17, exactly(0);
    /// Forwarder: an index of origins, and the samples that they are of, leaf by leaf. The server checks the length.
    Stamped = 0x18, ORIGIN_BYTES as u64..=u64::MAX;
    /// Forwarder: entries of records, an origin for each, and the records, one after the other. The server checks the length.
    StampedRecords = 0x19, (ENTRY_BYTES + RECORD_ORIGIN_BYTES) as u64..=u64::MAX;
    Ping = 0x20, exactly(0);
    Pong = 0x21, exactly(0);
    /// Either: the last frame, and why.
    Goodbye = 0x22, up_to(MAX_TEXT_BYTES);
}

/// The fixed part of every frame. Fields that a kind does not use are 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    pub kind: Kind,
    pub flags: u8,
    pub code: u16,
    pub rows: u32,
    pub version: u32,
    pub credit: u32,
    pub sequence: u64,
    pub length: u64,
}

impl Header {
    pub fn new(kind: Kind) -> Header {
        Header { kind, flags: 0, code: 0, rows: 0, version: 0, credit: 0, sequence: 0, length: 0 }
    }

    /// The header at the front of `bytes`; `None` while it is not whole.
    pub fn parse(bytes: &[u8]) -> Result<Option<Header>, Damage> {
        let Some(bytes) = array::<HEADER_BYTES>(bytes, 0) else { return Ok(None) };
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let long = |at: usize| word(at) as u64 | (word(at + 4) as u64) << 32;
        let kind = Kind::from_byte(bytes[0]).ok_or(Damage("a frame is of no known kind"))?;
        let header = Header {
            kind,
            flags: bytes[1],
            code: u16::from_le_bytes([bytes[2], bytes[3]]),
            rows: word(4),
            version: word(8),
            credit: word(12),
            sequence: long(16),
            length: long(24),
        };
        if !kind.lengths().contains(&header.length) {
            return Err(Damage("the length of a frame does not fit its kind"));
        }
        Ok(Some(header))
    }

    pub fn bytes(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = self.kind.byte();
        bytes[1] = self.flags;
        bytes[2..4].copy_from_slice(&self.code.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.rows.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.version.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.credit.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[24..].copy_from_slice(&self.length.to_le_bytes());
        bytes
    }

    /// A whole frame with its payload.
    pub fn with(mut self, payload: &[u8]) -> Vec<u8> {
        self.length = payload.len() as u64;
        [&self.bytes(), payload].concat()
    }
}

/// The session of a client, and how far its stream of samples is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// In the header's `code`.
    pub content: Content,
    /// Chosen at random by the client, for its lifetime.
    pub session: [u8; 16],
    pub producer_id: Option<u32>,
    /// Counts the connections of this session, from 1. One that comes after a younger one is refused.
    pub attempt: u32,
    /// One past the last sample that was ever put on a wire.
    pub next: u64,
    /// The first sample that is not acknowledged.
    pub oldest: u64,
    pub schema: Vec<u8>,
}

impl Hello {
    /// `code`: of its header.
    pub fn parse(code: u16, payload: &[u8]) -> Result<Hello, Damage> {
        let mut fields = Fields(payload);
        let hello = Hello {
            content: Content::from_code(code).ok_or(Damage("the content of a hello is unknown"))?,
            session: fields.next()?,
            producer_id: Some(fields.u32()?).filter(|&id| id != NO_PRODUCER_ID),
            attempt: fields.u32()?,
            next: fields.u64()?,
            oldest: fields.u64()?,
            schema: fields.schema(MAX_SCHEMA_BYTES)?,
        };
        if hello.oldest > hello.next || hello.next > MAX_SEQUENCE {
            return Err(Damage("the sequence numbers of a hello are out of order or out of range"));
        }
        Ok(hello)
    }

    pub fn frame(&self) -> Vec<u8> {
        let payload = [
            &self.session[..],
            &self.producer_id.unwrap_or(NO_PRODUCER_ID).to_le_bytes(),
            &self.attempt.to_le_bytes(),
            &self.next.to_le_bytes(),
            &self.oldest.to_le_bytes(),
            &self.schema,
        ];
        Header { code: self.content as u16, ..Header::new(Kind::Hello) }.with(&payload.concat())
    }
}

/// One record of a frame, as the frame's index describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    pub bytes: u64,
    pub version: u32,
    pub kind: u32,
}

impl Entry {
    /// The entries of an index, which is a whole number of them.
    pub fn all(index: &[u8]) -> impl Iterator<Item = Entry> {
        index.chunks_exact(ENTRY_BYTES).filter_map(|entry| {
            Some(Entry {
                bytes: u64::from_le_bytes(array(entry, 0)?),
                version: u32::from_le_bytes(array(entry, 8)?),
                kind: u32::from_le_bytes(array(entry, 12)?),
            })
        })
    }

    pub fn encoded(&self) -> [u8; ENTRY_BYTES] {
        let mut bytes = [0; ENTRY_BYTES];
        bytes[..8].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.version.to_le_bytes());
        bytes[12..].copy_from_slice(&self.kind.to_le_bytes());
        bytes
    }
}

/// The worker that made a forwarded record, and its number there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordOrigin {
    pub producer_id: u32,
    pub sequence: u64,
}

impl RecordOrigin {
    /// The origins of an index, one for each record.
    pub fn parse(index: &[u8]) -> Result<Vec<RecordOrigin>, Damage> {
        let parse = |bytes| {
            let mut fields = Fields(bytes);
            let (producer_id, zero, sequence) = (fields.u32()?, fields.u32()?, fields.u64()?);
            if zero != 0 || sequence > MAX_SEQUENCE {
                return Err(Damage("a number in the origin of a record is out of range"));
            }
            Ok(RecordOrigin { producer_id, sequence })
        };
        index.chunks_exact(RECORD_ORIGIN_BYTES).map(parse).collect()
    }

    pub fn encoded(&self) -> [u8; RECORD_ORIGIN_BYTES] {
        let mut bytes = [0; RECORD_ORIGIN_BYTES];
        bytes[..4].copy_from_slice(&self.producer_id.to_le_bytes());
        bytes[8..].copy_from_slice(&self.sequence.to_le_bytes());
        bytes
    }
}

/// Adjacent samples of a forwarded frame that come from one worker, with one version and with consecutive numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OriginRun {
    pub rows: u32,
    pub producer_id: u32,
    pub version: u32,
    /// The worker's number of the first one.
    pub sequence: u64,
}

impl OriginRun {
    /// How many bytes of a forwarded frame are its index. `rows_bytes`: of its rows. Every run has a row, so there are as many
    /// runs as rows at most.
    pub fn index_bytes(header: &Header, rows_bytes: u64) -> Result<usize, Damage> {
        let most = u64::from(header.rows) * ORIGIN_BYTES as u64;
        let bytes = header.length.checked_sub(rows_bytes).filter(|bytes| (1..=most).contains(bytes));
        let whole = bytes.filter(|bytes| bytes.is_multiple_of(ORIGIN_BYTES as u64));
        whole.map(|bytes| bytes as usize).ok_or(Damage("the index of a forwarded frame is not whole"))
    }

    /// The runs of an index, which together have so many rows.
    pub fn parse(rows: u32, index: &[u8]) -> Result<Vec<OriginRun>, Damage> {
        let mut fields = Fields(index);
        let mut runs = Vec::with_capacity(index.len() / ORIGIN_BYTES);
        let mut left = rows;
        while !fields.0.is_empty() {
            let (rows, producer_id, version) = (fields.u32()?, fields.u32()?, fields.u32()?);
            let (zero, sequence) = (fields.u32()?, fields.u64()?);
            if rows == 0 || zero != 0 || sequence > MAX_SEQUENCE {
                return Err(Damage("an origin has no rows, or a number is out of range"));
            }
            left = left
                .checked_sub(rows)
                .ok_or(Damage("the origins of a frame have more rows than the frame"))?;
            runs.push(OriginRun { rows, producer_id, version, sequence });
        }
        if left > 0 { Err(Damage("the origins of a frame have fewer rows than the frame")) } else { Ok(runs) }
    }

    pub fn encoded(&self) -> [u8; ORIGIN_BYTES] {
        let mut bytes = [0; ORIGIN_BYTES];
        bytes[..4].copy_from_slice(&self.rows.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.producer_id.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.version.to_le_bytes());
        bytes[16..].copy_from_slice(&self.sequence.to_le_bytes());
        bytes
    }
}

/// What a server allows a frame of records to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordLimits {
    /// Records of a frame.
    pub rows: usize,
    /// Bytes of all of them, if there are several.
    pub frame_bytes: usize,
    /// Bytes of one.
    pub record_bytes: usize,
}

impl RecordLimits {
    /// The bytes of the entries, of the origins and of the records, as the header of a frame has them.
    pub fn parts(&self, header: &Header) -> Result<(usize, usize, usize), Damage> {
        let rows = header.rows as usize;
        if rows == 0 || rows > self.rows {
            return Err(Damage("a frame has no records, or too many"));
        }
        let entries = rows * ENTRY_BYTES;
        let origins = if header.kind == Kind::StampedRecords { rows * RECORD_ORIGIN_BYTES } else { 0 };
        let index = entries + origins;
        let most = if rows == 1 { self.record_bytes } else { self.frame_bytes };
        let records = header.length.checked_sub(index as u64).ok_or(Damage("an index is not whole"))?;
        if records > most as u64 {
            return Err(Damage("a frame of records is too long, or a record larger than the lane"));
        }
        Ok((entries, origins, records as usize))
    }

    /// Checks the entries of a frame whose records have so many bytes.
    pub fn check(&self, index: &[u8], records: usize) -> Result<(), Damage> {
        let mut left = records as u64;
        for entry in Entry::all(index) {
            left = left.checked_sub(entry.bytes).ok_or(Damage("records are longer than their frame"))?;
            if entry.bytes > self.record_bytes as u64 {
                return Err(Damage("a record is larger than the lane"));
            }
        }
        if left > 0 { Err(Damage("records are shorter than their frame")) } else { Ok(()) }
    }
}

/// How far a learner of records is: in the header of a [`Welcome`] and of each pong.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LearnerStatus {
    /// In `version`: that of the newest weights that the learner announced.
    pub version: u32,
    /// In `rows`: the records of all clients that wait to be taken. Counted after `version` was read.
    pub waiting: u32,
}

impl LearnerStatus {
    pub fn of(header: &Header) -> LearnerStatus {
        LearnerStatus { version: header.version, waiting: header.rows }
    }

    pub fn header(&self, kind: Kind) -> Header {
        Header { version: self.version, rows: self.waiting, ..Header::new(kind) }
    }
}

/// The server's answer to the hello of a client that may send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Welcome {
    pub producer_id: u32,
    /// Rows of one data frame, at most.
    pub max_rows: u32,
    /// Bytes of one record, at most. 0 where samples are expected, which are all of one size.
    pub max_bytes: u32,
    /// Data frames without acknowledgement, at most.
    pub credit: u32,
    /// The sequence number of the first sample that is not settled.
    pub next: u64,
    pub status: LearnerStatus,
}

impl Welcome {
    pub fn parse(header: &Header, payload: &[u8]) -> Result<Welcome, Damage> {
        let mut fields = Fields(payload);
        let welcome = Welcome {
            producer_id: fields.u32()?,
            max_rows: fields.u32()?,
            credit: fields.u32()?,
            max_bytes: fields.u32()?,
            next: fields.u64()?,
            status: LearnerStatus::of(header),
        };
        if welcome.max_rows == 0 || welcome.credit == 0 {
            return Err(Damage("a welcome allows nothing"));
        }
        Ok(welcome)
    }

    pub fn frame(&self) -> Vec<u8> {
        let words = [self.producer_id, self.max_rows, self.credit, self.max_bytes].map(u32::to_le_bytes);
        self.status.header(Kind::Welcome).with(&[words.as_flattened(), &self.next.to_le_bytes()].concat())
    }
}

/// The server's answer to the hello of a client of weights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inventory {
    /// The history within which a version number means the same bytes.
    pub lineage: u64,
    /// Whether the lists of leaves have checksums.
    pub checksums: bool,
    /// Whether the versions come from other weights.
    pub is_mirror: bool,
    /// Bytes of each leaf.
    pub leaf_bytes: Vec<u64>,
    pub schema: Vec<u8>,
}

impl Inventory {
    pub fn parse(payload: &[u8]) -> Result<Inventory, Damage> {
        let mut fields = Fields(payload);
        let (lineage, leaves, flags) = (fields.u64()?, fields.u32()? as usize, fields.u32()?);
        if leaves == 0 || leaves > MAX_LEAVES {
            return Err(Damage("an inventory has no leaves, or too many"));
        }
        if flags > 3 {
            return Err(Damage("an inventory has unknown flags"));
        }
        let leaf_bytes = (0..leaves).map(|_| fields.u64()).collect::<Result<_, _>>()?;
        let schema = fields.schema(MAX_WEIGHTS_SCHEMA_BYTES)?;
        let (checksums, is_mirror) = (flags & 1 != 0, flags & 2 != 0);
        Ok(Inventory { lineage, checksums, is_mirror, leaf_bytes, schema })
    }

    pub fn frame(&self) -> Vec<u8> {
        let sizes: Vec<[u8; 8]> = self.leaf_bytes.iter().map(|bytes| bytes.to_le_bytes()).collect();
        let payload = [
            &self.lineage.to_le_bytes()[..],
            &(self.leaf_bytes.len() as u32).to_le_bytes(),
            &(self.checksums as u32 | (self.is_mirror as u32) << 1).to_le_bytes(),
            sizes.as_flattened(),
            &self.schema,
        ];
        Header::new(Kind::Inventory).with(&payload.concat())
    }
}

/// Which leaves of a version come, in ascending order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LeafList {
    pub leaves: Vec<usize>,
    /// Of each of them; 0 without checksums.
    pub checksums: Vec<u64>,
}

impl LeafList {
    /// `of`: how many leaves there are.
    pub fn parse(rows: u32, of: usize, payload: &[u8]) -> Result<LeafList, Damage> {
        if payload.len() != rows as usize * LEAF_BYTES {
            return Err(Damage("a list of leaves is not whole"));
        }
        let (mut list, mut fields) = (LeafList::default(), Fields(payload));
        for _ in 0..rows {
            let (leaf, zero, checksum) = (fields.u32()? as usize, fields.u32()?, fields.u64()?);
            if leaf >= of || zero != 0 || list.leaves.last().is_some_and(|&last| leaf <= last) {
                return Err(Damage("a list of leaves is out of order or out of range"));
            }
            list.leaves.push(leaf);
            list.checksums.push(checksum);
        }
        Ok(list)
    }

    pub fn frame(&self, version: u64) -> Vec<u8> {
        let entries = self.leaves.iter().zip(&self.checksums);
        let payload: Vec<[u8; 8]> =
            entries.flat_map(|(&leaf, sum)| [(leaf as u64).to_le_bytes(), sum.to_le_bytes()]).collect();
        let rows = self.leaves.len() as u32;
        Header { rows, sequence: version, ..Header::new(Kind::Version) }.with(payload.as_flattened())
    }
}

/// Declares an enum of codes with its numbers on the wire.
macro_rules! codes {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $code:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name { $($(#[$variant_doc])* $variant = $code,)* }

        impl $name {
            pub const ALL: &[$name] = &[$($name::$variant,)*];

            pub fn from_code(code: u16) -> Option<$name> {
                Self::ALL.iter().copied().find(|known| *known as u16 == code)
            }
        }
    };
}

codes! {
    /// What a connection carries.
    Content {
        /// All of one size, leaf by leaf, for a ring.
        Samples = 0,
        /// Each of its own size, for the lane of the transport.
        Records = 1,
        /// From the server to the client: versions of the learner's weights.
        Weights = 2,
        /// Samples as of a client of samples, but of many workers: each run of them says which.
        Forwarded = 3,
        /// Records as of a client of records, but of many workers: each says which.
        ForwardedRecords = 4,
    }
}

codes! {
    /// How the pieces of a version end.
    VersionEnd {
        /// All of it was sent, and all of it is of that version.
        Complete = 1,
        /// The learner overwrote it meanwhile: the client throws the pieces away and fetches again.
        Overwritten = 2,
    }
}

impl Content {
    /// Its name in error texts.
    pub fn name(self) -> &'static str {
        match self {
            Content::Samples | Content::Forwarded => "samples",
            Content::Records | Content::ForwardedRecords => "records",
            Content::Weights => "weights",
        }
    }
}

codes! {
    /// Why a client is not let in.
    Refusal {
        /// The server asks for a token, and the client has none.
        TokenNeeded = 1,
        TokenWrong = 2,
        /// The client has a token, and the server asks for none.
        TokenUnexpected = 3,
        Schema = 4,
        /// There are as many connections or sessions as are allowed. The client tries again.
        Busy = 5,
        /// The server does not know the session, so the fate of its unacknowledged samples is unknown.
        SessionUnknown = 6,
        Protocol = 7,
        /// The ring is closed, or the server stops.
        Closed = 8,
        /// The client sends samples and the server takes records, or the other way round; or the server has no weights.
        Content = 9,
    }
}

codes! {
    /// Why a connection ends.
    GoodbyeReason {
        /// The client is done. Its session may be forgotten.
        Finished = 1,
        /// The learner has closed its ring, or its records; or one of them is damaged, or cannot grow.
        RingClosed = 2,
        /// The server stops.
        Stopping = 3,
        /// The session goes on over another connection.
        TakenOver = 4,
        /// A frame was not finished in time. The client reconnects.
        TooSlow = 5,
        /// Nothing was heard for too long. The client reconnects.
        Silent = 6,
        Protocol = 7,
    }
}

/// The payload of a refusal: a text for people, and the server's schema where that is the reason.
pub fn refuse(code: Refusal, text: &str, schema: &[u8]) -> Vec<u8> {
    let text = clip(text);
    let payload = [&(text.len() as u32).to_le_bytes(), text.as_bytes(), schema].concat();
    Header { code: code as u16, ..Header::new(Kind::Refuse) }.with(&payload)
}

/// The text and the schema of a refusal.
pub fn parse_refuse(payload: &[u8]) -> Result<(String, Vec<u8>), Damage> {
    let mut fields = Fields(payload);
    let length = fields.u32()? as usize;
    if length > MAX_TEXT_BYTES || length > fields.0.len() {
        return Err(Damage("a refusal is not whole"));
    }
    let (text, schema) = fields.0.split_at(length);
    Ok((String::from_utf8_lossy(text).into_owned(), schema.to_vec()))
}

/// A goodbye with a text for people.
pub fn goodbye(code: GoodbyeReason, text: &str) -> Vec<u8> {
    Header { code: code as u16, ..Header::new(Kind::Goodbye) }.with(clip(text).as_bytes())
}

fn clip(text: &str) -> &str {
    let mut end = text.len().min(MAX_TEXT_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
