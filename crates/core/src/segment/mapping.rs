//! The memory of a segment: made, opened and checked, mapped. It knows neither leases nor other segments.

use super::header::{Extent, GEOMETRY_WORDS, Header, LAYOUT_VERSION, MAGIC, MAX_SEATS, PAGE, SeatRecord};
use crate::error::{Error, Result};
use crate::schema;
use crate::sys::sync::{AtomicBool, Ordering};
use rustix::fs::{self, Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::{self, Advice, MapFlags, ProtFlags};
use std::ffi::c_void;
use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::time::Duration;

/// In front of every name in the directory.
pub const PREFIX: &str = "rollway.";

/// Where segments live: `/dev/shm`, or what `ROLLWAY_SHM_DIR` says (a tmpfs of another size, for instance).
pub fn directory() -> PathBuf {
    std::env::var_os("ROLLWAY_SHM_DIR").map_or_else(|| PathBuf::from("/dev/shm"), PathBuf::from)
}

/// Something failed in that directory. Says what to do where there is none, or not for this user.
pub(super) fn in_directory(what: &str, source: impl Into<std::io::Error>) -> Error {
    let (dir, source) = (directory(), source.into());
    let advice = match source.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::PermissionDenied => {
            ". Mount a tmpfs there, or let ROLLWAY_SHM_DIR name a directory that you may write to"
        }
        _ => "",
    };
    Error::io(format!("{what} in {}{advice}", dir.display()), source)
}

pub(super) fn path_of(name: &str) -> PathBuf {
    directory().join(format!("{PREFIX}{name}"))
}

pub(super) fn unix_ns() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64)
}

pub(super) fn check_name(name: &str) -> Result<()> {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if name.is_empty() || name.len() > 200 || name.starts_with('.') || !name.chars().all(legal) {
        return Err(Error::BadName { name: name.to_owned() });
    }
    Ok(())
}

/// What a new segment should be.
#[derive(Debug, Clone)]
pub struct Spec<'a> {
    /// `None`: memory of this process and its forked children, with no name.
    pub name: Option<&'a str>,
    /// The structure in the body.
    pub kind: u32,
    pub schema: &'a [u8],
    pub geometry: [u64; GEOMETRY_WORDS],
    pub body_bytes: usize,
    /// How much of the body exists from the start; the rest [grows](Segment::grow).
    pub reserved_bytes: usize,
    pub seats: usize,
    /// Whether to insist on huge pages, or to do without. `None`: take them if the kernel gives them.
    pub huge_pages: Option<bool>,
    /// The name is automatic: collect the segment as soon as it is stale.
    pub auto_named: bool,
}

/// A mapped segment. Handles and views share it; the last one unmaps it.
#[derive(Debug)]
pub struct Segment {
    pub(super) name: String,
    pub(super) named: bool,
    /// Whether the name is, or was, there for others to find.
    pub(super) published: AtomicBool,
    /// Keeps the file reachable (through /proc) also when it has no name. Carries no lock.
    pub(super) anchor: OwnedFd,
    pub(super) base: NonNull<u8>,
    /// As it was checked (S5).
    header: Header,
    extent: Extent,
    schema: Box<[u8]>,
}

// SAFETY: the mapping is shared memory; everything in it that changes after creation is reached through atomics or
// through the claims of the structure in the body.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

impl Segment {
    /// Makes and maps a segment that has no name yet.
    pub(super) fn make(spec: &Spec<'_>) -> Result<Segment> {
        let display = spec.name.unwrap_or("(in process)");
        if spec.seats == 0 || spec.seats > MAX_SEATS {
            return Err(Error::out_of_range("max_peers", spec.seats, format!("1 to {MAX_SEATS}")));
        }
        if spec.schema.len() > schema::MAX_TEXT_BYTES {
            return Err(Error::BadSchema { what: "it is too long".to_owned() });
        }
        let extent = Extent::of(spec.seats, spec.schema.len(), spec.body_bytes).ok_or_else(|| {
            Error::out_of_range("segment bytes", spec.body_bytes, "what the address space holds")
        })?;
        let anchor = Self::nameless_file(spec.name)?;
        let reserved = extent.body + spec.reserved_bytes.min(spec.body_bytes);
        Self::reserve(&anchor, display, spec.name.is_some(), 0, reserved)?;
        fs::ftruncate(&anchor, extent.total as u64).map_err(|e| Error::io("sizing shared memory", e))?;
        let header = Header {
            magic: MAGIC,
            layout_version: LAYOUT_VERSION,
            kind: spec.kind,
            total_bytes: extent.total as u64,
            creator_pid: std::process::id(),
            seats: spec.seats as u32,
            created_unix_ns: unix_ns(),
            schema_bytes: spec.schema.len() as u64,
            body_bytes: spec.body_bytes as u64,
            auto_named: spec.auto_named as u64,
            geometry: spec.geometry,
        };
        let mut segment = Self::map(display, spec.name.is_some(), anchor, header, extent, WRITABLE)?;
        segment.schema = spec.schema.into();
        match spec.huge_pages {
            Some(false) => {}
            Some(true) => segment.ask_for_huge_pages()?,
            None => drop(segment.ask_for_huge_pages()), // Without them it is a little slower.
        }
        // SAFETY: the mapping is `extent.total` bytes, page-aligned, and has no name yet (S1).
        unsafe {
            segment.base.as_ptr().cast::<Header>().write(header);
            let schema = segment.base.as_ptr().add(extent.schema);
            std::ptr::copy_nonoverlapping(spec.schema.as_ptr(), schema, spec.schema.len());
        }
        Ok(segment)
    }

    fn nameless_file(name: Option<&str>) -> Result<OwnedFd> {
        match name {
            None => fs::memfd_create("rollway", fs::MemfdFlags::CLOEXEC)
                .map_err(|e| Error::io("creating shared memory", e)),
            Some(_) => {
                let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
                let made = fs::open(directory(), flags, Mode::RUSR | Mode::WUSR);
                made.map_err(|e| in_directory("creating shared memory", e))
            }
        }
    }

    /// Makes more of a sparse body exist: `bytes` from `offset` on. What exists already stays as it is. [`Error::NoMemory`] or
    /// [`Error::NoRam`] when there is no more; then nothing has changed (S2).
    pub fn grow(&self, offset: usize, bytes: usize) -> Result<()> {
        let start = self.extent.body + offset;
        assert!(start + bytes <= self.extent.total, "only the body grows");
        Self::reserve(&self.anchor, &self.name, self.named, start, bytes)?;
        self.populate_body(offset, bytes);
        Ok(())
    }

    /// As [`populate`](Self::populate), for a part of the body that exists.
    pub fn populate_body(&self, offset: usize, bytes: usize) {
        let start = (self.extent.body + offset) / PAGE * PAGE;
        let end = self.extent.body + offset + bytes;
        assert!(end <= self.extent.total, "the body ends here");
        // SAFETY: the range is in our mapping, by the assertion, and populating it changes no byte.
        unsafe {
            let _ =
                mm::madvise(self.base.as_ptr().add(start).cast(), end - start, Advice::LinuxPopulateWrite);
        }
    }

    /// Reserves pages now (S2).
    fn reserve(file: &OwnedFd, name: &str, named: bool, from: usize, bytes: usize) -> Result<()> {
        // The kernel would not refuse it when memory is short: it would kill a process.
        if let Some(shortage) = super::memory::shortage(Path::new("/"), bytes as u64) {
            return Err(Error::NoRam { name: name.to_owned(), need: bytes as u64, shortage });
        }
        match fs::fallocate(file, fs::FallocateFlags::empty(), from as u64, bytes as u64) {
            Ok(()) => Ok(()),
            Err(Errno::NOSPC | Errno::NOMEM | Errno::FBIG) => {
                let dir = if named { directory() } else { PathBuf::from("/dev/shm") };
                let (free, total) =
                    fs::statvfs(&dir).map_or((0, 0), |s| (s.f_bavail * s.f_frsize, s.f_blocks * s.f_frsize));
                let dir = dir.display().to_string();
                Err(Error::NoMemory { name: name.to_owned(), need: bytes as u64, free, total, dir })
            }
            Err(e) => Err(Error::io("reserving shared memory", e)),
        }
    }

    fn map(
        name: &str,
        named: bool,
        anchor: OwnedFd,
        header: Header,
        extent: Extent,
        protection: ProtFlags,
    ) -> Result<Segment> {
        // The mapping keeps its open file alive in forked children too, so it must not be one that carries locks.
        let base = map_aligned(&anchor, extent.total, protection)
            .map_err(|e| Error::io(format!("mapping segment '{name}'"), e))?;
        let base = NonNull::new(base.cast::<u8>()).expect("mmap does not return null");
        let published = AtomicBool::new(false);
        let (name, schema) = (name.to_owned(), Box::default());
        Ok(Segment { name, named, published, anchor, base, header, extent, schema })
    }

    /// Fills in the page table now, so that no send pays for it. The pages exist already (S2).
    pub fn populate(&self) {
        // Kernels before 5.14 refuse, and fault the pages in one by one: slower at first, as correct.
        // SAFETY: the range is our mapping, and populating it changes no byte.
        let _ =
            unsafe { mm::madvise(self.base.as_ptr().cast(), self.extent.total, Advice::LinuxPopulateWrite) };
    }

    fn ask_for_huge_pages(&self) -> Result<()> {
        let refused = |e: Errno| Error::HugePages {
            name: self.name.clone(),
            why: format!(
                "{e}. It takes Linux 6.1 or later, free memory in one piece, and anything but 'deny' in \
                 /sys/kernel/mm/transparent_hugepage/shmem_enabled. Leave huge_pages out to do without"
            ),
        };
        let base = self.base.as_ptr().cast();
        // What does not fill a huge page at the end stays as it is. Less than one: nothing to gain, nothing to refuse.
        let whole = self.extent.total / HUGE_PAGE * HUGE_PAGE;
        // SAFETY: the range is in our mapping; both hints leave its contents alone.
        unsafe {
            mm::madvise(base, self.extent.total, Advice::LinuxHugepage).map_err(refused)?;
            if whole > 0 && libc::madvise(base, whole, MADV_COLLAPSE) != 0 {
                let errno = Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL);
                return Err(refused(errno));
            }
        }
        Ok(())
    }

    /// Opens a named segment and checks its owner, header and sizes. `kind`: refuse any other structure.
    pub fn open(name: &str, kind: Option<u32>) -> Result<Segment> {
        Self::open_for(name, kind, OFlags::RDWR, WRITABLE)
    }

    /// As [`open`](Self::open), for a process that only looks: a write to what is mapped, or to the file, is a fault. The methods
    /// that grow, populate or sit down need a segment that was opened otherwise.
    pub fn open_read_only(name: &str) -> Result<Segment> {
        Self::open_for(name, None, OFlags::RDONLY, ProtFlags::READ)
    }

    fn open_for(name: &str, kind: Option<u32>, access: OFlags, protection: ProtFlags) -> Result<Segment> {
        check_name(name)?;
        let path = path_of(name);
        // A pipe under such a name would keep us waiting for its other end.
        let flags = access | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = match fs::open(&path, flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Err(not_found(name)),
            Err(Errno::ACCESS) => {
                let (owner, mode) = fs::stat(&path).map_or((0, 0), |s| (s.st_uid, s.st_mode & 0o7777));
                return Err(Error::NotOurs { name: name.to_owned(), owner, me: my_uid(), mode });
            }
            Err(e) => return Err(Error::io(format!("opening {}", path.display()), e)),
        };
        let stat = fs::fstat(&file).map_err(|e| Error::io("fstat", e))?;
        let mode = stat.st_mode & 0o7777;
        if stat.st_uid != my_uid() || mode & 0o077 != 0 {
            return Err(Error::NotOurs { name: name.to_owned(), owner: stat.st_uid, me: my_uid(), mode });
        }
        if fs::FileType::from_raw_mode(stat.st_mode) != fs::FileType::RegularFile {
            return Err(Error::NotASegment { path, what: "it is no file".to_owned() });
        }
        let (header, extent) = Self::read_header(name, &path, &file, stat.st_size as u64)?;
        if let Some(kind) = kind.filter(|&kind| kind != header.kind) {
            let (name, creator) = (name.to_owned(), header.creator_pid);
            return Err(Error::Kind { name, creator, theirs: header.kind, ours: kind });
        }
        let mut segment = Self::map(name, true, file, header, extent, protection)?;
        // SAFETY: the text lies between `schema` and `body`, inside the mapping, by the way `extent` was derived.
        segment.schema = unsafe {
            let text = segment.base.as_ptr().add(extent.schema);
            std::slice::from_raw_parts(text, header.schema_bytes as usize).into()
        };
        segment.published.store(true, Ordering::Relaxed);
        Ok(segment)
    }

    /// Read, not mapped: the file may be shorter than a header.
    pub(super) fn read_header(
        name: &str,
        path: &Path,
        file: &OwnedFd,
        bytes: u64,
    ) -> Result<(Header, Extent)> {
        let mut raw = [0u8; size_of::<Header>()];
        let got = rustix::io::pread(file, &mut raw, 0).map_err(|e| Error::io("reading the header", e))?;
        if got < raw.len() {
            return Err(Error::NotASegment { path: path.to_owned(), what: "it is too short".to_owned() });
        }
        // SAFETY: Header is plain old data; every bit pattern is a value, and `check` trusts none of them.
        let header: Header = unsafe { std::ptr::read_unaligned(raw.as_ptr().cast()) };
        let extent = header.check(name, path, bytes)?;
        Ok((header, extent))
    }

    /// A second open file for the same memory, with or without a name.
    pub(super) fn reopen(&self) -> Result<OwnedFd> {
        let own = format!("/proc/self/fd/{}", self.anchor.as_raw_fd());
        fs::open(&*own, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
            .map_err(|e| Error::io(format!("opening segment '{}' again through {own}", self.name), e))
    }

    /// Copies bytes of the body, from `offset` on, without a look through the mapping: what does not exist yet reads as zeros and
    /// still does not exist, and a file that another process has cut off is an error.
    pub fn read_body(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        let end = offset.checked_add(bytes.len()).filter(|&end| end <= self.extent.total - self.extent.body);
        let cut_off =
            || Error::Corrupt { name: self.name.clone(), what: "its file ends before its body does" };
        end.ok_or_else(cut_off)?;
        let mut done = 0;
        while done < bytes.len() {
            let at = (self.extent.body + offset + done) as u64;
            match rustix::io::pread(&self.anchor, &mut bytes[done..], at) {
                Ok(0) => return Err(cut_off()),
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(e) => return Err(Error::io(format!("reading segment '{}'", self.name), e)),
            }
        }
        Ok(())
    }

    /// An error when another process has cut the file off: to look at what is missing would end this process.
    pub fn check_whole(&self) -> Result<()> {
        let stat = fs::fstat(self.anchor.as_fd()).map_err(|e| Error::io("fstat", e))?;
        if (stat.st_size as u64) < self.extent.total as u64 {
            return Err(Error::Corrupt { name: self.name.clone(), what: "its file was cut off" });
        }
        Ok(())
    }

    /// How much memory the segment takes up now: what was reserved, in whole pages.
    pub fn used_bytes(&self) -> u64 {
        fs::fstat(self.anchor.as_fd()).map_or(0, |stat| stat.st_blocks as u64 * 512)
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// How long ago it was made.
    pub fn age(&self) -> Duration {
        Duration::from_nanos(unix_ns().saturating_sub(self.header.created_unix_ns))
    }

    /// Whether a later process can find the segment by its name: it has one, and a user chose it.
    pub fn can_be_resumed(&self) -> bool {
        self.named && self.header.auto_named == 0
    }

    /// Whether others could find the segment once, and cannot any more.
    pub fn is_unlinked(&self) -> Result<bool> {
        let stat = fs::fstat(self.anchor.as_fd()).map_err(|e| Error::io("fstat", e))?;
        Ok(stat.st_nlink == 0 && self.published.load(Ordering::Relaxed))
    }

    /// Removes the name, if it still is ours. The caller lives here or holds every lease (S3).
    pub fn unlink(&self) -> Result<bool> {
        if !self.named {
            return Ok(false);
        }
        let path = path_of(&self.name);
        let own = fs::fstat(self.anchor.as_fd()).map_err(|e| Error::io("fstat", e))?;
        match fs::stat(&path) {
            Ok(there) if (there.st_ino, there.st_dev) == (own.st_ino, own.st_dev) => {
                fs::unlink(&path).map_err(|e| Error::io(format!("removing {}", path.display()), e))?;
                Ok(true)
            }
            Ok(_) | Err(Errno::NOENT) => Ok(false),
            Err(e) => Err(Error::io(format!("looking at {}", path.display()), e)),
        }
    }

    /// The error for a name that no segment has.
    pub(crate) fn not_found(&self) -> Error {
        not_found(&self.name)
    }

    /// An error when what lies here was shut down. The last consumer takes the name away first, so there may be none.
    pub(crate) fn check_open(&self, is_closed: bool) -> Result<()> {
        match is_closed {
            false => Ok(()),
            true if self.is_unlinked()? => Err(self.not_found()),
            true => Err(Error::Closed),
        }
    }

    /// Refuses the first size that differs: what it is, theirs, ours.
    pub(crate) fn check_sizes(&self, sizes: &[(&'static str, usize, usize)]) -> Result<()> {
        let Some(&(what, theirs, ours)) = sizes.iter().find(|(_, theirs, ours)| theirs != ours) else {
            return Ok(());
        };
        let (name, creator) = (self.name.clone(), self.header().creator_pid);
        Err(Error::Geometry { name, creator, what, theirs: theirs as u64, ours: ours as u64 })
    }

    /// The header, as it was when the segment was made or opened, and checked (S5).
    pub fn header(&self) -> Header {
        self.header
    }

    /// The schema text (S5).
    pub fn schema(&self) -> Vec<u8> {
        self.schema.to_vec()
    }

    /// The error for a schema that is not the expected one: another, or no schema at all.
    pub(crate) fn other_schema(&self) -> Error {
        match schema::leaves(&self.schema) {
            Ok(_) => self.schema_differs(),
            Err(invalid) => self.bad_schema(invalid),
        }
    }

    /// The error for another schema than the expected one.
    pub(crate) fn schema_differs(&self) -> Error {
        let (name, creator) = (self.name.clone(), self.header.creator_pid);
        Error::Schema { name, creator, theirs: self.schema() }
    }

    /// The error for a text that is no schema.
    pub(crate) fn bad_schema(&self, invalid: schema::Invalid) -> Error {
        Error::BadText { name: self.name.clone(), what: invalid.to_string() }
    }

    /// The seat records.
    pub fn seats(&self) -> &[SeatRecord] {
        let seats = (self.extent.schema - PAGE) / size_of::<SeatRecord>();
        // SAFETY: the records lie inside the mapping, aligned to 64, and consist of atomics.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(PAGE).cast(), seats) }
    }

    /// The body, page-aligned.
    pub fn body(&self) -> (NonNull<u8>, usize) {
        // SAFETY: `body` lies inside the mapping.
        (unsafe { self.base.add(self.extent.body) }, self.extent.total - self.extent.body)
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: no pointer into the mapping is left: handles and views own an Arc of this (S4).
        let _ = unsafe { mm::munmap(self.base.as_ptr().cast(), self.extent.total) };
    }
}

const WRITABLE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);
const MADV_COLLAPSE: i32 = 25;
const HUGE_PAGE: usize = 2 << 20;

/// Maps a whole file. A large one starts at a multiple of the huge page size, without which it could not have any.
fn map_aligned(file: &OwnedFd, bytes: usize, protection: ProtFlags) -> rustix::io::Result<*mut c_void> {
    let shared = MapFlags::SHARED;
    if bytes < HUGE_PAGE {
        // SAFETY: a fresh mapping at an address the kernel chooses.
        return unsafe { mm::mmap(std::ptr::null_mut(), bytes, protection, shared, file, 0) };
    }
    let room = bytes + HUGE_PAGE;
    // SAFETY: we reserve more address space than we need, map the file over an aligned part of it, and give back what
    // lies before and after: all of it is ours, and nothing else is touched.
    unsafe {
        let start = mm::mmap_anonymous(std::ptr::null_mut(), room, ProtFlags::empty(), MapFlags::PRIVATE)?;
        let before = start.cast::<u8>().align_offset(HUGE_PAGE);
        let base = start.byte_add(before);
        if let Err(e) = mm::mmap(base, bytes, protection, shared | MapFlags::FIXED, file, 0) {
            let _ = mm::munmap(start, room);
            return Err(e);
        }
        if before > 0 {
            mm::munmap(start, before)?;
        }
        mm::munmap(base.byte_add(bytes), room - before - bytes)?;
        Ok(base)
    }
}

fn my_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn not_found(name: &str) -> Error {
    Error::NotFound { name: name.to_owned(), dir: directory().display().to_string() }
}
