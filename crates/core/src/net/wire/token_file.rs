//! The token of a server that was given none, in a file that only clients of the same user can read.
//!
//! ```text
//! server: bind, listen ── make a token ── nameless file, 0600, locked, written ── link ──▶ rollway-token.<net>.<address>.<port>
//! client: connect ── read the server's preamble ── read the file of the address that it is connected to ── prove
//! server stops: close the listener ── remove the file ── release the lock
//! ```
//!
//! F1  The name appears when the file is whole and locked, and before the server sends anything. A client that has read the
//!     server's preamble finds the token of this server, and not that of a dead one.
//! F2  The name contains the address that the client is connected to. A program of another user that took the port has no
//!     trusted file there, also when it forwards everything to a server on another port.
//! F3  A file is trusted if it is a regular file of this user with mode 0600, one name and the length of a token. Links are not
//!     followed.
//! F4  The lock is the kernel's (`flock`) and ends with the server. Only the holder of the lock removes the name, so no other
//!     process removes the file of a live server.
//!
//! The network namespace is part of the name, because containers may share the directory but not the loopback device.

use super::token::Token;
use crate::error::{Error, Result};
use crate::segment::directory;
use crate::sys::fork::CloseOnFork;
use rustix::fs::{self, AtFlags, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The start of every name; differs from that of segments.
const PREFIX: &str = "rollway-token.";
/// 64 digits and a newline.
const BYTES: usize = 65;
/// How long the last server on this address may take to let go of its lock after it let go of the port.
const HANDOVER: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(2);

/// Where the token of the server on this address is.
pub fn path(address: SocketAddr) -> PathBuf {
    // A thread may be in another namespace than its process.
    let namespace = fs::stat("/proc/thread-self/ns/net").map_or(0, |stat| stat.st_ino);
    let ip = address.ip().to_canonical();
    directory().join(format!("{PREFIX}{namespace}.{ip}.{}", address.port()))
}

/// Why there is no token in the file.
#[derive(Debug, thiserror::Error)]
pub enum Missing {
    #[error("there is no such file")]
    NoFile,
    /// There is a file, and this is wrong with it.
    #[error("{0}")]
    Unfit(String),
}

/// The token of a server of this user on that address (F3).
pub fn read(path: &Path) -> std::result::Result<Token, Missing> {
    let unfit = |what: String| Err(Missing::Unfit(what));
    let file = match open(path) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Err(Missing::NoFile),
        Err(Errno::LOOP) => return unfit("that is a link, and links are not followed".to_owned()),
        Err(errno) => {
            return match fs::lstat(path) {
                Ok(stat) if stat.st_uid != my_uid() => unfit(foreign(stat.st_uid)),
                _ => unfit(format!("it cannot be opened: {errno}")),
            };
        }
    };
    match check(&file) {
        Ok(None) => {}
        Ok(Some(what)) => return unfit(what),
        Err(errno) => return unfit(format!("it cannot be looked at: {errno}")),
    }
    let mut bytes = Vec::with_capacity(BYTES + 1);
    if let Err(error) = File::from(file).take(BYTES as u64 + 1).read_to_end(&mut bytes) {
        return unfit(format!("it cannot be read: {error}"));
    }
    let digits = bytes.strip_suffix(b"\n").filter(|text| text.len() == BYTES - 1);
    match digits.filter(|text| text.iter().all(u8::is_ascii_hexdigit)).map(Token::new) {
        Some(Ok(token)) => Ok(token),
        _ => unfit("it does not hold a token".to_owned()),
    }
}

fn open(path: &Path) -> std::result::Result<OwnedFd, Errno> {
    // Opening a pipe must not block.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    fs::open(path, flags, Mode::empty())
}

/// What is wrong with a file, if something is (F3).
fn check(file: &OwnedFd) -> std::result::Result<Option<String>, Errno> {
    let stat = fs::fstat(file)?;
    let mode = stat.st_mode & 0o7777;
    Ok(if stat.st_uid != my_uid() {
        Some(foreign(stat.st_uid))
    } else if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        Some("it is not a regular file".to_owned())
    } else if mode != 0o600 {
        Some(format!("it has mode {mode:04o}, and not 0600"))
    } else if stat.st_nlink > 1 || stat.st_size != BYTES as i64 {
        Some("it does not hold a token".to_owned())
    } else {
        None
    })
}

fn my_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn foreign(owner: u32) -> String {
    format!("it belongs to user {owner}, and this process is user {}", my_uid())
}

/// The file of a running server. Dropping it removes the file, unless the drop is a forked child's.
#[derive(Debug)]
pub struct TokenFile {
    path: PathBuf,
    pid: u32,
    _close_on_fork: CloseOnFork, // Before the descriptor.
    file: File,
}

impl TokenFile {
    /// Writes the token where clients of this user find it. The caller listens on that address, so an existing file is that of a
    /// dead server, or of another user.
    pub fn create(address: SocketAddr, token: &Token) -> Result<TokenFile> {
        let path = path(address);
        let failed = |error: std::io::Error| {
            let what = format!(
                "cannot keep the token of {address} in {}. Give the transport a token=, and every client the same; or let \
                 ROLLWAY_SHM_DIR name a directory that you may write to",
                path.display()
            );
            Error::io(what, error)
        };
        let write = || -> std::io::Result<_> {
            let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
            let (close_on_fork, file) =
                CloseOnFork::opened(|| fs::open(directory(), flags, Mode::RUSR | Mode::WUSR))?;
            fs::fchmod(&file, Mode::RUSR | Mode::WUSR)?;
            fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
            let mut file = File::from(file);
            file.write_all(&[token.secret(), b"\n"].concat())?;
            Ok((close_on_fork, file))
        };
        let (_close_on_fork, file) = write().map_err(failed)?;
        let own = format!("/proc/self/fd/{}", file.as_raw_fd());
        let deadline = Instant::now() + HANDOVER;
        loop {
            match fs::linkat(fs::CWD, &*own, fs::CWD, &path, AtFlags::SYMLINK_FOLLOW) {
                Ok(()) => {
                    return Ok(TokenFile { path, pid: std::process::id(), _close_on_fork, file });
                }
                Err(Errno::EXIST) => match remove_stale(&path) {
                    Ok(Stale::Removed) => {}
                    Ok(Stale::Foreign(what)) => return Err(squatted(&path, &what)),
                    Ok(Stale::Alive) if Instant::now() < deadline => std::thread::sleep(LOOK),
                    Ok(Stale::Alive) => {
                        return Err(squatted(&path, "a running process of this user keeps it"));
                    }
                    Err(errno) => return Err(failed(errno.into())),
                },
                Err(errno) => return Err(failed(errno.into())),
            }
        }
    }
}

impl Drop for TokenFile {
    fn drop(&mut self) {
        if self.pid == std::process::id() {
            let _ = unlink_own(&self.path, &self.file); // What stays is stale, and removed as such.
        }
    }
}

fn squatted(path: &Path, what: &str) -> Error {
    let path = path.display();
    Error::TokenFile { path: path.to_string(), what: what.to_owned() }
}

/// What became of a file that was in the way.
enum Stale {
    Removed,
    Alive,
    /// Not ours to remove.
    Foreign(String),
}

/// Removes the file of a server that has died.
fn remove_stale(path: &Path) -> std::result::Result<Stale, Errno> {
    let stat = match fs::lstat(path) {
        Err(Errno::NOENT) => return Ok(Stale::Removed),
        stat => stat?,
    };
    if stat.st_uid != my_uid() {
        return Ok(Stale::Foreign(foreign(stat.st_uid)));
    }
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Ok(Stale::Foreign("it is not a regular file".to_owned()));
    }
    let file = match open(path) {
        Err(Errno::NOENT) => return Ok(Stale::Removed),
        file => file?,
    };
    match fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => unlink_own(path, &file).map(|()| Stale::Removed),
        Err(Errno::WOULDBLOCK) => Ok(Stale::Alive),
        Err(errno) => Err(errno),
    }
}

/// Removes the name of a file whose lock we hold, if it is still that file's (F4).
fn unlink_own(path: &Path, file: impl AsFd) -> std::result::Result<(), Errno> {
    let (there, ours) = match (fs::lstat(path), fs::fstat(file)?) {
        (Err(Errno::NOENT), _) => return Ok(()),
        (there, ours) => (there?, ours),
    };
    if (there.st_dev, there.st_ino) != (ours.st_dev, ours.st_ino) {
        return Ok(());
    }
    match fs::unlink(path) {
        Err(Errno::NOENT) => Ok(()),
        done => done,
    }
}

/// Removes the file of a dead server on that address: the next one was given its token, and clients should not find an old one.
pub fn clear(address: SocketAddr) {
    let _ = remove_stale(&path(address)); // A client that finds it is told that it is wrong.
}

/// Removes the files of this user's servers that have died; says how many there were.
pub fn collect() -> Result<usize> {
    let dir = directory();
    let listing = std::fs::read_dir(&dir).map_err(|e| Error::io(format!("reading {}", dir.display()), e))?;
    let ours =
        |entry: &std::fs::DirEntry| entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
    let paths = listing.filter_map(|entry| entry.ok()).filter(ours).map(|entry| entry.path());
    Ok(paths.filter(|path| matches!(remove_stale(path), Ok(Stale::Removed))).count())
}
