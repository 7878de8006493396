//! The one error type of the core. `crates/py` turns each variant into the Python exception of the same name.

use crate::segment::memory::Shortage;
use std::path::PathBuf;

/// Result with the core's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Bytes, in a segment or from a network, that no honest participant can have written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Damage(pub &'static str);

/// What to do about a segment of another shape.
pub const REPLACE: &str =
    "throw its content away with if_exists=\"replace\" or `rollway gc`, once no process is attached";

/// Everything that can go wrong below Python.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("there is no segment '{name}' in {dir}. Start the learner first, or look at `rollway ls`")]
    NotFound { name: String, dir: String },

    #[error(
        "segment '{name}' is in use: created by pid {creator}, {alive} attached. Choose another name, or stop them"
    )]
    InUse { name: String, creator: u32, alive: usize },

    #[error(
        "segment '{name}' has a forwarder or a learner already (pid {pid}). Attach workers to it, or close it before another one \
         starts"
    )]
    Forwarded { name: String, pid: u32 },

    #[error(
        "segment '{name}' exists already. Attach to it, collect it with `rollway gc`, or choose another name"
    )]
    Exists { name: String },

    #[error(
        "cannot reserve {need} bytes of shared memory for '{name}': {dir} has {free} of {total} bytes free. \
         Ask for less (a smaller batch or capacity, fewer buffers), free stale segments with `rollway gc`, or enlarge {dir} \
         (docker: --shm-size, kubernetes: an emptyDir with medium Memory, root: mount -o remount,size=… {dir})"
    )]
    NoMemory { name: String, need: u64, free: u64, total: u64, dir: String },

    #[error(
        "cannot reserve {need} bytes for '{name}': there are {} bytes of memory left {}. Ask for less (a smaller batch or \
         capacity, fewer buffers){}",
        .shortage.left, .shortage.place, .shortage.advice
    )]
    NoRam { name: String, need: u64, shortage: Shortage },

    #[error(
        "'{name}' is not a valid segment name: use 1 to 200 letters, digits, '.', '_' or '-', not starting with '.'"
    )]
    BadName { name: String },

    #[error(
        "segment '{name}' belongs to user {owner} with mode {mode:04o}; it must belong to user {me} with mode 0600"
    )]
    NotOurs { name: String, owner: u32, me: u32, mode: u32 },

    #[error("{path} is not a Rollway segment: {what}")]
    NotASegment { path: PathBuf, what: String },

    #[error(
        "segment '{name}' has layout version {theirs}, this build reads {ours}. Use the same rollway on both sides"
    )]
    LayoutVersion { name: String, theirs: u32, ours: u32 },

    /// The schemas differ; the caller knows how to read both and says which leaf.
    #[error("segment '{name}' (created by pid {creator}) holds another schema")]
    Schema { name: String, creator: u32, theirs: Vec<u8> },

    /// A schema of our own that others could not read.
    #[error(
        "this schema cannot be shared: {what}. Use shorter names, fewer leaves, or a numeric, bool, fixed-length string or \
         structured dtype"
    )]
    BadSchema { what: String },

    /// Another structure lies there.
    #[error(
        "segment '{name}' (created by pid {creator}) holds a structure of kind {theirs}, not {ours}. Open it as what it is, choose \
         another name, or {REPLACE}"
    )]
    Kind { name: String, creator: u32, theirs: u32, ours: u32 },

    #[error(
        "segment '{name}' (created by pid {creator}) has {what} = {theirs}, but {ours} was asked for. Ask for {what} = {theirs}, \
         choose another name, or {REPLACE}"
    )]
    Geometry { name: String, creator: u32, what: &'static str, theirs: u64, ours: u64 },

    /// A second learner wants producers to do something else.
    #[error(
        "segment '{name}' (created by pid {creator}) has on_full = '{theirs}', but '{ours}' was asked for, and others are \
         attached. Ask for '{theirs}', or stop them first"
    )]
    Policy { name: String, creator: u32, theirs: &'static str, ours: &'static str },

    #[error("{what} = {value} is out of range: {range}")]
    OutOfRange { what: &'static str, value: u64, range: String },

    #[error("segment '{name}' has no seat left: all {seats} are taken. Create it with a larger max_peers")]
    NoSeat { name: String, seats: usize },

    #[error(
        "segment '{name}' has no lane left: all {lanes} lanes are taken, one by each client. Create it with more lanes, \
         or close a client"
    )]
    NoLane { name: String, lanes: usize },

    #[error(
        "a record of {bytes} bytes does not fit into a lane of {lane_bytes}. Create the records with a larger lane_bytes, \
         or send shorter ones"
    )]
    RecordTooLarge { bytes: u64, lane_bytes: u64 },

    #[error("the kernel gave no huge pages for '{name}': {why}")]
    HugePages { name: String, why: String },

    #[error("segment '{name}' is damaged: {what}. Stop its users and run `rollway gc`")]
    Corrupt { name: String, what: &'static str },

    /// The schema text of a segment is none.
    #[error(
        "segment '{name}' is damaged: its schema cannot be read: {what}. Stop its users and run `rollway gc`"
    )]
    BadText { name: String, what: String },

    #[error(
        "pid {pid} writes the weights '{name}', and lives: they cannot be created a second time. Attach to them, stop it first, \
         or choose another name"
    )]
    WriterLives { name: String, pid: u32 },

    #[error(
        "pid {pid} is in the middle of a write of the weights '{name}', and lives: one process writes at a time. Write again \
         later, or look whether it is stopped"
    )]
    Writing { name: String, pid: u32 },

    #[error(
        "pid {pid} has the lock of the tables '{name}' and lives, but does not give it back: look whether it is stopped, let it go \
         on or end it"
    )]
    Locked { name: String, pid: u32 },

    #[error("the weights '{name}' are a copy of those of a learner on another host: write them there")]
    Mirrored { name: String },

    #[error("nothing has been published in '{name}' yet: write all weights once")]
    NothingPublished { name: String },

    /// The bytes of a leaf are not those that were published.
    #[error(
        "segment '{name}' is damaged: the checksum of leaf {leaf} in version {version} does not fit. Another process wrote into \
         shared memory; publish the weights again, and find that process"
    )]
    Checksum { name: String, leaf: usize, version: u64 },

    #[error("the ring is closed")]
    Closed,

    #[error("the ring is full")]
    Full,

    #[error("timed out")]
    Timeout,

    /// A signal handler ran; check for signals and call again.
    #[error("interrupted by a signal")]
    Interrupted,

    /// No peer is left, and at least one died instead of leaving.
    #[error("{0}")]
    PeersGone(String),

    /// This consumer holds every buffer there is; waiting for another batch would never end.
    #[error("all {0} batches are held by this learner")]
    AllHeld(usize),

    /// Said by a caller's own way to copy.
    #[error("{what}")]
    Device { what: String },

    #[error("'{name}' is empty: there is no whole row to sample. Add some first, or wait for them")]
    Empty { name: String },

    /// Rows are overwritten faster than they can be copied.
    #[error(
        "the {capacity} rows of '{name}' are overwritten faster than they can be read. Make it larger than what the adders \
         have in hand"
    )]
    Overrun { name: String, capacity: u64 },

    // ── the network ────────────────────────────────────────────────────────────────────────────────────────────────
    #[error("cannot listen on {address}: {source}. Choose another port (0: any that is free) or host")]
    Bind { address: String, source: std::io::Error },

    #[error(
        "refusing to listen on {address} without a token: any process that reaches it could feed the learner. Set a token \
         (the same on every client), or listen on 127.0.0.1 and use a tunnel"
    )]
    TokenRequired { address: String },

    /// A server that was given no token cannot leave its own where clients look for it.
    #[error(
        "cannot keep the learner's token in {path}: {what}. Remove that file, choose another port, give the transport a token= \
         (the same on every client), or let ROLLWAY_SHM_DIR name a directory of your own (for every client, too)"
    )]
    TokenFile { path: String, what: String },

    #[error("cannot reach a learner at {address}: {why}. Is it running, and is the port right?")]
    Unreachable { address: String, why: String },

    /// The token is missing, wrong, or not asked for.
    #[error("{address}: {why}")]
    Token { address: String, why: String },

    /// The learner expects other samples; the caller knows how to read both texts and says which leaf.
    #[error(
        "the learner at {address} expects another schema.\nhere:  {}\nthere: {}",
        String::from_utf8_lossy(ours),
        String::from_utf8_lossy(theirs)
    )]
    ForeignSchema { address: String, ours: Vec<u8>, theirs: Vec<u8> },

    /// A client of samples at a server of records, or the other way round.
    #[error("the learner at {address} is not for this client: {why}")]
    WrongContent { address: String, why: String },

    #[error("{address} does not speak our protocol: {what}. Is it a Rollway server of the same version?")]
    Protocol { address: String, what: String },

    /// A copy of a learner's weights would take more memory than it may.
    #[error(
        "the weights of {address} need {need} bytes here ({copies} copies of them), and max_bytes is {limit}. Give a larger \
         max_bytes if that is the right learner and the memory is there"
    )]
    TooLarge { address: String, need: u64, copies: usize, limit: u64 },

    #[error("TLS: {what}")]
    Tls { what: String },

    #[error(
        "the forwarder of '{name}' to {address} has ended: {why}. {count} {content} stay in the segment. Start a forwarder with the \
         same name to go on with them"
    )]
    NotForwarded { address: String, why: String, name: String, content: &'static str, count: usize },

    #[error("the connection to {address} is closed: {why}. {}. {advice}", unsettled(content, *unacknowledged, *first))]
    ConnectionClosed {
        address: String,
        why: String,
        content: &'static str,
        unacknowledged: u64,
        first: u64,
        advice: &'static str,
    },

    /// Nothing more comes to a mirror of weights.
    #[error(
        "no more weights come from {address}: {why}. The last whole version stays readable; make a new TcpWeights when the \
         learner is back"
    )]
    WeightsLost { address: String, why: String },

    /// The learner had no room, and its policy is to say so. `content` is "samples", or "records".
    #[error(
        "there was no room: the learner refused {count} {content}, from number {first} on. Send them again later, or give the \
         server another on_full"
    )]
    Refused { content: &'static str, first: u64, count: u64 },

    #[error("this {what} belongs to process {owner}: a forked child has to make its own")]
    Forked { what: &'static str, owner: u32 },

    #[error("{what}: {source}")]
    Io { what: String, source: std::io::Error },
}

/// What may not have arrived.
fn unsettled(content: &str, unacknowledged: u64, first: u64) -> String {
    match unacknowledged {
        0 => "Everything sent is acknowledged".to_owned(),
        _ => format!(
            "{unacknowledged} {content}, from number {first} on, are not acknowledged: they may have arrived or not"
        ),
    }
}

impl Error {
    /// Whether the segment is whole and has another shape than was asked for. A learner replaces such a segment when it is stale
    /// and holds no data.
    pub fn is_mismatch(&self) -> bool {
        matches!(self, Error::Schema { .. } | Error::Kind { .. } | Error::Geometry { .. } | Error::Closed)
    }

    /// A size or an index that is not in its range.
    pub fn out_of_range(what: &'static str, value: usize, range: impl Into<String>) -> Self {
        Error::OutOfRange { what, value: value as u64, range: range.into() }
    }

    /// Wraps a failed system call with what was being attempted.
    pub fn io(what: impl Into<String>, source: impl Into<std::io::Error>) -> Self {
        Error::Io { what: what.into(), source: source.into() }
    }
}
