//! The server's end of one connection: bytes in, small frames out, over a plain socket or TLS.
//!
//! Reads go straight to where the bytes belong ([`FrameStream::fill`]); TLS needs one more copy, out of the decrypted record.
//! Writes gather in a small outbox, acknowledgements merge into one, and both leave when nothing more is readable. Every future
//! here may be dropped at any await: the caller counts what was read, and what is to be written stays in the outbox.

use crate::net::wire::frame::{HEADER_BYTES, Header, Kind};
use crate::net::wire::leaf_cursor::Part;
use crate::sys::clock::monotonic_ns;
use crate::sys::fork::CloseOnFork;
use crate::weights::copy::{LeafCopy, copy_all};
use std::future::poll_fn;
use std::io::{Error, ErrorKind, IoSliceMut, Result};
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncBufRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

/// Acknowledge at the latest after so many bytes or frames, though more are readable.
const ACK_BYTES: u64 = 64 * 1024;
const ACK_FRAMES: u32 = 8;

/// Bytes of shared memory are copied into TLS through a buffer of this size: one TLS record.
const TLS_SCRATCH: usize = 16 * 1024;
/// Parts of one write, and what is in the outbox before them.
const MAX_PARTS: usize = 65;

/// Memory that an empty outbox keeps.
const LARGEST_OUTBOX: usize = 64 * 1024;

/// A socket, with TLS or without.
pub enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Stream {
    /// Reads into `rooms`, which it fills in their order. The end of the stream is an error.
    fn poll_fill(&mut self, cx: &mut Context<'_>, rooms: &mut [IoSliceMut<'_>]) -> Poll<Result<usize>> {
        let read = match self {
            Stream::Plain(stream) => loop {
                ready!(stream.poll_read_ready(cx))?;
                match stream.try_read_vectored(rooms) {
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    read => break read?,
                }
            },
            Stream::Tls(stream) => {
                let mut stream = Pin::new(&mut **stream);
                let plain = ready!(stream.as_mut().poll_fill_buf(cx))?;
                let mut read = 0;
                for room in rooms {
                    let part = room.len().min(plain.len() - read);
                    room[..part].copy_from_slice(&plain[read..read + part]);
                    read += part;
                }
                stream.consume(read);
                read
            }
        };
        Poll::Ready(if read == 0 { Err(hung_up()) } else { Ok(read) })
    }

    /// Ready when there is a byte to read.
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let some = match self {
            Stream::Plain(stream) => {
                let mut byte = [0];
                ready!(stream.poll_peek(cx, &mut ReadBuf::new(&mut byte)))? > 0
            }
            Stream::Tls(stream) => !ready!(Pin::new(&mut **stream).poll_fill_buf(cx))?.is_empty(),
        };
        Poll::Ready(if some { Ok(()) } else { Err(hung_up()) })
    }

    /// Bytes that can be read now, at least.
    fn available(&self) -> usize {
        match self {
            Stream::Plain(stream) => rustix::io::ioctl_fionread(stream).map_or(0, |bytes| bytes as usize),
            Stream::Tls(_) => 0, // Unknown: what the socket has may be a part of a TLS record.
        }
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        match self {
            Stream::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Stream::Tls(stream) => {
                let mut stream = Pin::new(&mut **stream);
                let written = ready!(stream.as_mut().poll_write(cx, bytes))?;
                // Writes as much of the record as the socket takes; the rest leaves with the next flush.
                let _ = stream.poll_flush(cx)?;
                Poll::Ready(Ok(written))
            }
        }
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        match self {
            Stream::Plain(_) => Poll::Ready(Ok(())),
            Stream::Tls(stream) => Pin::new(&mut **stream).poll_flush(cx),
        }
    }
}

fn hung_up() -> Error {
    Error::new(ErrorKind::UnexpectedEof, "the client hung up")
}

/// Everything below `next` is settled; so many frames may be under way; `version` is that of the newest weights.
#[derive(Debug, Clone, Copy)]
pub struct Ack {
    pub next: u64,
    pub credit: u32,
    pub version: u32,
}

/// One connection.
pub struct FrameStream {
    _close_on_fork: CloseOnFork,
    stream: Stream,
    outbox: Vec<u8>,
    sent: usize,
    /// The acknowledgement that is due.
    ack: Option<Ack>,
    ack_bytes: u64,
    ack_frames: u32,
    /// The last read brought less than there was room for: nothing more is likely to be there.
    drained: bool,
    has_queued: bool,
    /// Bytes of a piece whose header was sent.
    piece_left: usize,
    /// Time spent in reads since `start_clock`, in nanoseconds.
    clock: Option<u64>,
}

impl FrameStream {
    pub fn new(stream: Stream) -> FrameStream {
        let close_on_fork = match &stream {
            Stream::Plain(stream) => CloseOnFork::of(stream),
            Stream::Tls(stream) => CloseOnFork::of(stream.get_ref().0),
        };
        FrameStream {
            _close_on_fork: close_on_fork,
            stream,
            outbox: Vec::with_capacity(8 * HEADER_BYTES),
            sent: 0,
            ack: None,
            ack_bytes: 0,
            ack_frames: 0,
            drained: true,
            has_queued: false,
            piece_left: 0,
            clock: None,
        }
    }

    /// Reads some bytes into `rooms`. Before it waits, it writes the outbox.
    pub async fn fill(&mut self, rooms: &mut [IoSliceMut<'_>]) -> Result<usize> {
        let wanted: usize = rooms.iter().map(|room| room.len()).sum();
        let read = poll_fn(|cx| {
            if self.drained {
                let _ = self.poll_outbox(cx)?;
            }
            let started = self.clock.map(|_| monotonic_ns());
            match self.stream.poll_fill(cx, rooms) {
                Poll::Pending => {
                    let _ = self.poll_outbox(cx)?;
                    Poll::Pending
                }
                ready => {
                    if let (Some(clock), Some(started)) = (&mut self.clock, started) {
                        *clock += monotonic_ns() - started;
                    }
                    ready
                }
            }
        })
        .await?;
        self.drained = read < wanted;
        Ok(read)
    }

    /// Measures how long reads take from now on, without the time that they wait.
    pub fn start_clock(&mut self) {
        self.clock = Some(0);
    }

    /// What was measured, in nanoseconds.
    pub fn stop_clock(&mut self) -> Option<u64> {
        self.clock.take()
    }

    /// Bytes that can be read now, at least; with TLS that is not known.
    pub fn available(&self) -> usize {
        self.stream.available()
    }

    /// Waits for a byte, and does not take it.
    pub async fn readable(&mut self) -> Result<()> {
        poll_fn(|cx| match self.stream.poll_readable(cx) {
            Poll::Pending => {
                let _ = self.poll_outbox(cx)?;
                Poll::Pending
            }
            ready => ready,
        })
        .await
    }

    /// Fills the whole of `room`.
    pub async fn read_exact(&mut self, room: &mut [u8]) -> Result<()> {
        let mut have = 0;
        while have < room.len() {
            have += self.fill(&mut [IoSliceMut::new(&mut room[have..])]).await?;
        }
        Ok(())
    }

    /// Puts a frame into the outbox.
    pub fn queue(&mut self, frame: &[u8]) {
        if self.sent == self.outbox.len() {
            self.outbox.clear();
            self.outbox.shrink_to(LARGEST_OUTBOX);
            self.sent = 0;
        }
        self.has_queued = true;
        self.outbox.extend_from_slice(frame);
    }

    /// Asks whether the client is there, and tells it the version of the newest weights.
    pub fn ping(&mut self, version: u32) {
        self.ack.iter_mut().for_each(|ack| ack.version = version); // It is sent later.
        self.queue(&Header { version, ..Header::new(Kind::Ping) }.bytes());
    }

    /// Whether anything was sent. The client expects our preamble first, and would not understand a goodbye.
    pub fn has_sent(&self) -> bool {
        self.has_queued
    }

    /// How many bytes wait in the outbox.
    pub fn unsent(&self) -> usize {
        self.outbox.len() - self.sent
    }

    /// Acknowledges `bytes` more than the last time.
    pub fn acknowledge(&mut self, ack: Ack, bytes: u64) {
        self.ack = Some(ack);
        self.ack_bytes += bytes;
        self.ack_frames += 1;
    }

    /// Whether an acknowledgement is due though more is readable.
    pub fn owes_ack(&self) -> bool {
        self.ack_bytes >= ACK_BYTES || self.ack_frames >= ACK_FRAMES
    }

    /// Writes what the socket takes. Pending: the rest, when it is writable.
    fn poll_outbox(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        loop {
            // The next acknowledgement replaces one that was not sent yet.
            if self.unsent() == 0
                && let Some(Ack { next: sequence, credit, version }) = self.ack.take()
            {
                (self.ack_bytes, self.ack_frames) = (0, 0);
                self.queue(&Header { sequence, credit, version, ..Header::new(Kind::Ack) }.bytes());
            }
            if self.unsent() == 0 {
                return self.stream.poll_flush(cx);
            }
            let written = ready!(self.stream.poll_write(cx, &self.outbox[self.sent..]))?;
            self.sent += written;
        }
    }

    /// Writes what the socket takes now.
    pub async fn flush_ready(&mut self) -> Result<()> {
        poll_fn(|cx| match self.poll_outbox(cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            _ => Poll::Ready(Ok(())),
        })
        .await
    }

    /// Returns when everything is written.
    pub async fn flush(&mut self) -> Result<()> {
        poll_fn(|cx| self.poll_outbox(cx)).await
    }

    /// Awaits something else, and writes meanwhile.
    pub async fn flush_while<T>(&mut self, other: impl Future<Output = T>) -> Result<T> {
        let mut other = std::pin::pin!(other);
        poll_fn(|cx| {
            let _ = self.poll_outbox(cx)?;
            other.as_mut().poll(cx).map(Ok)
        })
        .await
    }

    /// Announces a piece. Until [`send_piece`](Self::send_piece) has sent it, nothing else can be sent.
    pub fn begin_piece(&mut self, piece: &Header) {
        self.queue(&piece.bytes());
        self.piece_left = piece.length as usize;
    }

    /// How many bytes of the piece are not sent yet.
    pub fn piece_left(&self) -> usize {
        self.piece_left
    }

    /// Writes the outbox, and then some of these parts; returns how many bytes of the parts. Bytes that another process overwrites
    /// meanwhile arrive as anything.
    ///
    /// # Safety
    /// The parts are mapped for reading until the future is done or dropped, and no more than the piece has left.
    pub async unsafe fn send_piece(&mut self, parts: &[Part]) -> Result<usize> {
        // SAFETY: as the caller promises.
        let sent = poll_fn(|cx| unsafe { self.poll_send_parts(cx, parts) }).await?;
        self.piece_left -= sent;
        Ok(sent)
    }

    /// # Safety
    /// As for [`send_piece`](Self::send_piece).
    unsafe fn poll_send_parts(&mut self, cx: &mut Context<'_>, parts: &[Part]) -> Poll<Result<usize>> {
        let unsent = self.unsent();
        match &mut self.stream {
            Stream::Plain(stream) => loop {
                ready!(stream.poll_write_ready(cx))?;
                let outbox = Part { start: self.outbox[self.sent..].as_mut_ptr(), bytes: unsent };
                // SAFETY: the outbox is ours; the rest is as the caller promises.
                match stream.try_io(Interest::WRITABLE, || unsafe { send_parts(stream, outbox, parts) }) {
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    sent => {
                        let sent = sent?;
                        self.sent += sent.min(unsent);
                        return Poll::Ready(Ok(sent.saturating_sub(unsent)));
                    }
                }
            },
            Stream::Tls(_) => {
                ready!(self.poll_outbox(cx))?;
                let mut scratch = [0; TLS_SCRATCH];
                // SAFETY: as the caller promises.
                let length = unsafe { gather(parts, &mut scratch) };
                self.stream.poll_write(cx, &scratch[..length])
            }
        }
    }

    /// Tells the other side that nothing more comes.
    pub async fn shutdown(&mut self) -> Result<()> {
        poll_fn(|cx| match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Tls(stream) => Pin::new(&mut **stream).poll_shutdown(cx),
        })
        .await
    }
}

/// Hands the bytes to the kernel without reading them, because other processes may be writing to them.
///
/// # Safety
/// All parts are mapped for reading.
unsafe fn send_parts(stream: &TcpStream, first: Part, parts: &[Part]) -> Result<usize> {
    let mut vectors = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; MAX_PARTS];
    let all = std::iter::once(&first).chain(parts).zip(&mut vectors).map(|(part, vector)| {
        *vector = libc::iovec { iov_base: part.start.cast(), iov_len: part.bytes };
    });
    let count = all.count();
    // SAFETY: a header of zeroes is an empty one; the vectors live until the call is over, and are as the caller promises.
    let sent = unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = vectors.as_mut_ptr();
        message.msg_iovlen = count as _;
        libc::sendmsg(stream.as_raw_fd(), &message, libc::MSG_NOSIGNAL)
    };
    if sent < 0 { Err(Error::last_os_error()) } else { Ok(sent as usize) }
}

/// Copies as much of the parts as there is room for; returns how much.
///
/// # Safety
/// All parts are mapped for reading.
unsafe fn gather(parts: &[Part], room: &mut [u8]) -> usize {
    let mut copies = Vec::with_capacity(parts.len());
    let mut length = 0;
    for part in parts {
        let bytes = part.bytes.min(room.len() - length);
        copies.push(LeafCopy { leaf: 0, from: part.start, to: room[length..].as_mut_ptr(), bytes });
        length += bytes;
    }
    // SAFETY: the sources are as the caller promises, and the targets lie in the room one after the other. If a source changes
    // meanwhile, the client is told to throw away what was sent (C1 of `copy`).
    unsafe { copy_all(&copies, 1) };
    length
}
