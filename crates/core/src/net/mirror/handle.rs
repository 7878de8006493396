//! [`WeightMirror`]: what callers hold.

use super::mirror_thread::MirrorThread;
use super::shared::{LocalCopy, Shared, State};
use crate::error::{Error, Result};
use crate::net::client::WeightMirrorSpec;
use crate::net::server::WeightOutlet;
use crate::net::wire::stats::{MirrorCounters, MirrorStats};
use crate::sys::thread::{OwnedThread, lock};
use crate::sys::wait::Deadline;
use crate::weights::copy::CopyLeaves;
use crate::weights::reader::Reading;
use crate::weights::{Target, Weights};
use std::sync::{Arc, Mutex, MutexGuard};

/// A copy of a learner's weights. Threads may share it; it belongs to the process that made it.
#[derive(Debug)]
pub struct WeightMirror {
    shared: Arc<Shared>,
    thread: OwnedThread,
}

impl WeightMirror {
    /// Begins to connect, and returns at once; [`ready`](Self::ready) says how it went.
    pub fn start(spec: WeightMirrorSpec) -> Result<WeightMirror> {
        let shared = Arc::new(Shared {
            connector: spec.connector()?,
            spec,
            state: Mutex::default(),
            counters: MirrorCounters::default(),
            outlets: Mutex::default(),
        });
        let thread = OwnedThread::spawn("rollway-mirror", {
            let shared = shared.clone();
            move || MirrorThread::new(&shared).run()
        })?;
        Ok(WeightMirror { shared, thread })
    }

    /// Waits for the first connection, not for a version, for at most `connect_timeout`.
    pub fn ready(&self, deadline: Deadline) -> Result<()> {
        self.wait_until(deadline, |state| Ok(state.local.is_some().then_some(())))
    }

    /// The schema of the weights.
    pub fn schema(&self) -> Result<Vec<u8>> {
        Ok(self.local()?.schema.clone())
    }

    /// Bytes of each leaf. They stay the same as long as the mirror.
    pub fn leaf_bytes(&self) -> Result<Vec<usize>> {
        Ok(self.local()?.weights().geometry().leaf_bytes.clone())
    }

    /// Where each leaf begins in a buffer.
    pub fn leaf_offsets(&self) -> Result<Vec<usize>> {
        Ok(self.local()?.weights().geometry().leaf_offsets.clone())
    }

    /// The latest version of the copy; 0 before the first.
    pub fn version(&self) -> Result<u64> {
        self.local()?.version()
    }

    /// Copies the leaves that changed after version `since` (0: all of them) into their targets. `None`: there is no version yet.
    ///
    /// # Safety
    /// As for [`Reader::read_with`](crate::weights::Reader::read_with).
    pub unsafe fn read(
        &self,
        targets: &[Target],
        since: u64,
        how: &impl CopyLeaves,
    ) -> Result<Option<Reading>> {
        let (local, since) = self.local_since(since)?;
        // SAFETY: as the caller promises.
        unsafe { local.reader.read_with(targets, since, how) }
    }

    /// As [`read`](Self::read), once: see [`Reader::try_read_with`](crate::weights::Reader::try_read_with).
    ///
    /// # Safety
    /// As for [`read`](Self::read).
    pub unsafe fn try_read(
        &self,
        targets: &[Target],
        since: u64,
        how: &impl CopyLeaves,
    ) -> Result<Option<Reading>> {
        let (local, since) = self.local_since(since)?;
        // SAFETY: as the caller promises.
        unsafe { local.reader.try_read_with(targets, since, how) }
    }

    /// The copy, and `since`; 0 in place of a number that may be of an earlier lineage (M2).
    fn local_since(&self, since: u64) -> Result<(Arc<LocalCopy>, u64)> {
        let local = self.local()?;
        let since = if since > local.floor { since } else { 0 };
        Ok((local, since))
    }

    /// Waits for a version of at least `version`, or for the first one of a learner that began anew (M2); returns its number.
    pub fn wait_for(&self, version: u64, deadline: Deadline) -> Result<u64> {
        let known = self.look()?.seen;
        self.wait_until(deadline, |state| {
            let Some(local) = &state.local else { return Ok(None) };
            let there = local.version()?;
            let enough = there >= version || (there > 0 && local.lineage != known);
            Ok(enough.then(|| {
                state.seen = local.lineage;
                there
            }))
        })
    }

    /// Fetches from another server from now on: the learner, or a mirror of it. The copy and its readers stay. `None`: with the
    /// same token. An error when the mirror has ended.
    pub fn redirect(&self, (host, port): (&str, u16), token: Option<&[u8]>) -> Result<()> {
        let mut state = self.look()?;
        match &mut state.ended {
            Some(ended) => Err(self.shared.error(ended)),
            None => self.shared.connector.redirect((host, port), token),
        }
    }

    /// What a server needs to give this copy to others (M4). An error when the mirror has ended.
    pub fn outlet(&self) -> Result<Arc<WeightOutlet>> {
        self.thread.check_process("copy of weights")?; // Before any lock.
        let mut outlets = lock(&self.shared.outlets);
        let mut state = self.look()?;
        if let Some(ended) = &mut state.ended {
            return Err(self.shared.error(ended));
        }
        let Some(local) = state.local.clone() else { return Err(Error::Closed) };
        drop(state);
        let outlet = Arc::new(WeightOutlet::of_mirror(local.weights())?);
        outlets.push(Arc::downgrade(&outlet));
        Ok(outlet)
    }

    /// Whether there is a connection now.
    pub fn is_connected(&self) -> bool {
        self.look().is_ok_and(|state| state.connected)
    }

    /// Whether nothing more will come.
    pub fn is_over(&self) -> bool {
        self.look().is_ok_and(|state| state.ended.is_some())
    }

    /// Why there is no connection; `None` while there is one.
    pub fn last_error(&self) -> Option<String> {
        let state = self.look().ok()?;
        state.last_error.clone().filter(|_| !state.connected)
    }

    pub fn stats(&self) -> MirrorStats {
        self.shared.counters.snapshot()
    }

    /// Ends the thread, and closes the copy. The last process to detach removes its name. Idempotent.
    pub fn close(&self) {
        if !self.thread.is_here() {
            return; // A forked child: the thread is not in it.
        }
        self.shared.connector.request_stop();
        self.thread.join();
        let local = self.shared.lock().local.take();
        self.shared.connector.progress.notify();
        drop(local);
        if let Some(name) = &self.shared.spec.name {
            // The next process that opens the name removes what stays behind.
            let _ = Weights::collect(name);
        }
    }

    fn look(&self) -> Result<MutexGuard<'_, State>> {
        // In a forked child the lock may be held by a thread that is not there.
        self.thread.check_process("copy of weights")?;
        Ok(self.shared.lock())
    }

    /// The copy. The caller knows its lineage from now on.
    fn local(&self) -> Result<Arc<LocalCopy>> {
        let mut state = self.look()?;
        let Some(local) = state.local.clone() else { return Err(Error::Closed) };
        state.seen = local.lineage;
        Ok(local)
    }

    /// Checks again whenever the thread reports progress.
    fn wait_until<T>(
        &self,
        deadline: Deadline,
        mut done: impl FnMut(&mut State) -> Result<Option<T>>,
    ) -> Result<T> {
        self.shared.connector.wait_until(deadline, || {
            let mut state = self.look()?;
            match (done(&mut state)?, &mut state.ended) {
                (None, Some(ended)) => Err(self.shared.error(ended)),
                (done, _) => Ok(done),
            }
        })
    }
}

impl Drop for WeightMirror {
    fn drop(&mut self) {
        self.close();
    }
}
