//! What one batch of a queue does and finds out on each device it touches: whether NOWAIT reads
//! are worth making, how many hit, and whether a miss starts the read.

use crate::os_file::{BatchPlan, Device, Nowait};
use crate::sync::Arc;

/// One device in the present batch.
#[derive(Debug)]
struct Batch {
    device: Arc<Device>,
    plan: BatchPlan,
    tried: u64,
    hits: u64,
}

/// A queue that never runs dry begins a new batch after so many NOWAIT reads.
const LONG: u64 = 64;

/// The present batch: from the first request after the queue was empty until it is empty again, or
/// long enough. Few devices, so a list.
#[derive(Debug, Default)]
pub(crate) struct Batches {
    devices: Vec<Batch>,
}

impl Batches {
    /// What this batch does on `device`.
    pub(crate) fn plan(&mut self, device: &Arc<Device>) -> BatchPlan {
        self.batch(device).plan
    }

    /// Takes note of a NOWAIT read.
    pub(crate) fn tried(&mut self, device: &Arc<Device>, gave: Nowait) {
        let batch = self.batch(device);
        batch.tried += 1;
        batch.hits += u64::from(gave == Nowait::Full);
    }

    /// Says that this batch has its miss to be looked at again, and needs no second one.
    pub(crate) fn probing(&mut self, device: &Arc<Device>) {
        self.batch(device).plan.probe_kick = false;
    }

    /// Ends the batch if it was long enough.
    pub(crate) fn end_if_long(&mut self) {
        if self.devices.iter().any(|batch| batch.tried >= LONG) {
            self.end();
        }
    }

    /// Ends the batch and passes on what it found.
    pub(crate) fn end(&mut self) {
        for batch in self.devices.drain(..) {
            batch.device.end_batch(batch.hits, batch.tried);
        }
    }

    fn batch(&mut self, device: &Arc<Device>) -> &mut Batch {
        let known = self.devices.iter().position(|batch| Arc::ptr_eq(&batch.device, device));
        let at = known.unwrap_or_else(|| {
            let plan = device.begin_batch();
            self.devices.push(Batch { device: Arc::clone(device), plan, tried: 0, hits: 0 });
            self.devices.len() - 1
        });
        &mut self.devices[at]
    }
}
