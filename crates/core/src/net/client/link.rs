//! The client's end of one connection: a non-blocking socket, with TLS or without.
//!
//! Every call does what can be done now and says `WouldBlock` for the rest. No call raises SIGPIPE (`MSG_NOSIGNAL`), because the
//! process belongs to the application.

use crate::sys::fork::CloseOnFork;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use rustls::ClientConnection;
use std::io::{Error, ErrorKind, IoSlice, IoSliceMut, Read, Result, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The socket as rustls sees it.
struct NoSigpipeSocket<'a>(&'a TcpStream);

impl Write for NoSigpipeSocket<'_> {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> Result<usize> {
        loop {
            match sendmsg(self.0, parts, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL) {
                Err(Errno::INTR) => {}
                sent => return Ok(sent?),
            }
        }
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

/// Writes some of it to a plain socket.
pub fn write_to(socket: &TcpStream, parts: &[IoSlice<'_>]) -> Result<usize> {
    NoSigpipeSocket(socket).write_vectored(parts)
}

/// A connected socket.
#[derive(Debug)]
pub struct Link {
    _close_on_fork: CloseOnFork,
    socket: Arc<TcpStream>,
    tls: Option<Box<ClientConnection>>,
}

impl Link {
    pub fn new(socket: TcpStream, tls: Option<ClientConnection>) -> Link {
        Link { _close_on_fork: CloseOnFork::of(&socket), socket: Arc::new(socket), tls: tls.map(Box::new) }
    }

    /// Whether other threads may write to the socket directly.
    pub fn is_plain(&self) -> bool {
        self.tls.is_none()
    }

    /// To poll, or to write to, without a borrow of the link.
    pub fn socket(&self) -> Arc<TcpStream> {
        self.socket.clone()
    }

    /// Writes some of it.
    pub fn write(&mut self, parts: &[IoSlice<'_>]) -> Result<usize> {
        let Some(tls) = &mut self.tls else { return NoSigpipeSocket(&self.socket).write_vectored(parts) };
        let written = tls.writer().write_vectored(parts)?;
        match flush_tls(tls, &self.socket) {
            Err(error) if error.kind() == ErrorKind::WouldBlock && written > 0 => Ok(written),
            Err(error) => Err(error),
            Ok(()) if written == 0 => Err(ErrorKind::WouldBlock.into()),
            Ok(()) => Ok(written),
        }
    }

    /// Writes what TLS still holds.
    pub fn flush(&mut self) -> Result<()> {
        match &mut self.tls {
            Some(tls) => flush_tls(tls, &self.socket),
            None => Ok(()),
        }
    }

    /// Reads some bytes; the end of the stream is an error.
    pub fn read(&mut self, room: &mut [u8]) -> Result<usize> {
        self.read_vectored(&mut [IoSliceMut::new(room)])
    }

    /// Reads some bytes into `rooms`, which it fills in their order; the end of the stream is an error.
    pub fn read_vectored(&mut self, rooms: &mut [IoSliceMut<'_>]) -> Result<usize> {
        loop {
            let read = match &mut self.tls {
                None => (&*self.socket).read_vectored(rooms),
                Some(tls) => read_from_tls(tls, &self.socket, rooms),
            };
            match read {
                Ok(0) => return Err(hung_up()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                read => return read,
            }
        }
    }

    /// The handshake of TLS, as far as it goes; true when it is done.
    pub fn tls_handshake(&mut self) -> Result<bool> {
        let Some(tls) = &mut self.tls else { return Ok(true) };
        while tls.is_handshaking() {
            flush_tls(tls, &self.socket)?;
            if tls.wants_read() {
                if tls.read_tls(&mut &*self.socket)? == 0 {
                    return Err(hung_up());
                }
                if let Err(error) = tls.process_new_packets() {
                    let _ = flush_tls(tls, &self.socket); // Tells the learner why.
                    return Err(Error::new(ErrorKind::InvalidData, error));
                }
            }
        }
        flush_tls(tls, &self.socket)?;
        Ok(true)
    }
}

fn hung_up() -> Error {
    Error::new(ErrorKind::UnexpectedEof, "the learner hung up")
}

/// `None` in place of `WouldBlock`.
pub fn unless_blocked<T>(done: Result<T>) -> Result<Option<T>> {
    match done {
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        done => done.map(Some),
    }
}

fn read_from_tls(
    tls: &mut ClientConnection,
    socket: &TcpStream,
    rooms: &mut [IoSliceMut<'_>],
) -> Result<usize> {
    loop {
        if let Some(read) = unless_blocked(tls.reader().read_vectored(rooms))? {
            return Ok(read);
        }
        if tls.read_tls(&mut &*socket)? == 0 {
            return Ok(0);
        }
        tls.process_new_packets().map_err(|error| Error::new(ErrorKind::InvalidData, error))?;
    }
}

fn flush_tls(tls: &mut ClientConnection, socket: &TcpStream) -> Result<()> {
    while tls.wants_write() {
        tls.write_tls(&mut NoSigpipeSocket(socket))?;
    }
    Ok(())
}

/// What can be done with a socket.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Readiness {
    pub readable: bool,
    pub writable: bool,
}

/// Sleeps until the socket can be read (or written, if `writing`), another thread writes to `wakeup`, or it is `until`.
pub fn wait_ready(
    socket: Option<&TcpStream>,
    wakeup: &OwnedFd,
    writing: bool,
    until: Instant,
) -> Result<Readiness> {
    let left = until.saturating_duration_since(Instant::now()).min(Duration::from_secs(3600));
    let limit = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos() as i64 };
    let interest = if writing { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
    let mut fds = [
        PollFd::new(wakeup, PollFlags::IN),
        match socket {
            Some(socket) => PollFd::from_borrowed_fd(socket.as_fd(), interest),
            None => PollFd::new(wakeup, PollFlags::empty()),
        },
    ];
    match poll(&mut fds, Some(&limit)) {
        Err(Errno::INTR) => return Ok(Readiness::default()),
        other => other?,
    };
    if !fds[0].revents().is_empty() {
        let _ = rustix::io::read(wakeup, &mut [0; 8]); // Non-blocking; only resets the counter.
    }
    let (events, broken) = (fds[1].revents(), PollFlags::ERR | PollFlags::HUP);
    Ok(Readiness {
        readable: socket.is_some() && events.intersects(PollFlags::IN | broken),
        writable: socket.is_some() && events.intersects(PollFlags::OUT | broken),
    })
}
