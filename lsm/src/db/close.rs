//! The end of an open database.

use std::sync::atomic::Ordering;

use super::background::Patience;
use super::{Handle, Shared};
use crate::Result;

impl Handle {
    /// See [`super::Db::close`]. A second call waits for the first and has nothing to do.
    pub(crate) fn close(&self) -> Result<()> {
        let shared = &self.shared;
        let mut threads = self.threads.lock();
        if shared.closed.load(Ordering::SeqCst) {
            return Ok(());
        }
        if shared.inline() {
            shared.run_due(Patience::BackOff);
        }
        shared.stop_threads(std::mem::take(&mut *threads));
        shared.wait_for_jobs();
        let ended = {
            // Everyone who is queued is refused; who has appended publishes first.
            let _baton = shared.queue.baton();
            shared.turnstile.wait_for_at_most(0);
            shared.close_log()
        };
        shared.remove_obsolete();
        shared.closed.store(true, Ordering::SeqCst);
        shared.wake_all();
        drop(shared.lock.lock().take());
        shared.check_poison().and(ended)
    }
}

impl Shared {
    /// Waits for jobs and edits on other callers' threads: nothing may touch the files once the
    /// lock is given back. They see that the database closes and give up soon.
    fn wait_for_jobs(&self) {
        {
            let mut state = self.state.lock();
            while state.flush.running > 0 || state.compaction.running > 0 {
                self.changed.wait(&mut state);
            }
        }
        drop(self.versions.lock());
        // Without background threads another caller may be at work on the log or remove files.
        drop(self.inline_turn.lock());
    }
}
