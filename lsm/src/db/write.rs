//! Group commit: one record, one append and at most one sync for all batches that wait.
//!
//! A group goes through these steps, and a failure in one ends the group there:
//! 1. under the baton: take the group, refuse members whose families are gone, make room;
//! 2. under the log lock: number the operations and append one record;
//! 3. hand the baton on;
//! 4. sync the log if a member asks for it, holding no lock;
//! 5. insert the operations into the memtables;
//! 6. when every earlier group has passed: publish the last sequence, wake the members.
//!
//! A group whose members are all `Buffered` stays in memory in step 2, and goes to the log with the
//! next one that is not ([`crate::Durability`]); for readers there is no difference.
//!
//! Nothing of a group can be seen before step 6, so a group that fails leaves no trace for
//! readers: what it inserted has sequence numbers that are never published.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use treering_env as env;

use super::Shared;
use super::queue::{Baton, Group, Joined, Ticket, Waiter, Write, outcome};
use super::view::{FamilyView, ReadView};
use crate::batch::{self, FamilyId, WriteBatch};
use crate::wal::SyncPoint;
use crate::{Durability, Error, Result, WriteOptions};

impl Shared {
    /// Writes a batch; see [`super::Db::write_opt`].
    pub(crate) fn write(&self, batch: WriteBatch, options: &WriteOptions) -> Result<()> {
        self.check_writable()?;
        batch.validate(self.id)?;
        if batch.is_empty() {
            return Ok(());
        }
        self.admit()?;
        let durability = options.durability.unwrap_or(self.options.durability);
        let families = families_of(&batch);
        let result = match self.queue.join(Write { batch, families, durability }) {
            Joined::Done(result) => result,
            Joined::Leading(baton, me) => {
                Leader::new(self, baton, &me).run();
                outcome(&me)
            }
        };
        if self.inline() && result.is_ok() {
            self.run_due_if_any();
        }
        result
    }
}

/// The families that a batch touches, each once.
fn families_of(batch: &WriteBatch) -> Vec<FamilyId> {
    let mut families = Vec::with_capacity(1);
    for op in batch::ops(batch.encoded_ops(), batch.count()) {
        let family = op.expect("a batch decodes as it was encoded").family;
        if !families.contains(&family) {
            families.push(family);
        }
    }
    families
}

/// A leader at work. However it ends, also by a panic, every member of its group is finished, the
/// group's turn passes and the baton is handed on, in this order.
struct Leader<'a> {
    shared: &'a Shared,
    group: Group,
    ticket: Option<Ticket<'a>>,
    baton: Option<Baton<'a>>,
}

/// A group in the log.
struct Appended {
    view: Arc<ReadView>,
    first_sequence: u64,
    last_sequence: u64,
    sync: Option<SyncPoint>,
}

impl<'a> Leader<'a> {
    fn new(shared: &'a Shared, baton: Baton<'a>, me: &Arc<Waiter>) -> Self {
        // Whole from the start: a panic from here on finds everyone who waits for this leader.
        let group = Group::new(vec![Arc::clone(me)]);
        let mut leader = Self { shared, group, ticket: None, baton: None };
        // At most one group waits for its turn while this one is formed: the longer the device
        // takes, the more writers gather here and share the next append and sync.
        shared.turnstile.wait_for_at_most(1);
        baton.fill(&mut leader.group);
        leader.baton = Some(baton);
        leader
    }

    fn run(mut self) {
        let result = self.commit();
        self.ticket = None;
        self.group.finish(&result);
    }

    fn commit(&mut self) -> Result<()> {
        let Some(appended) = self.append()? else { return Ok(()) };
        self.baton = None;
        if let Some(point) = &appended.sync {
            self.shared.sync_log(point)?;
        }
        self.insert(&appended);
        let ticket = self.ticket.as_ref().expect("an appended group has a ticket");
        ticket.wait();
        // An earlier group, or this one's neighbour, may have failed since: then nothing that
        // comes later in the log may be acknowledged.
        self.shared.check_poison()?;
        // Release: whoever loads this sequence sees the inserts of this and all earlier groups.
        self.shared.visible.store(appended.last_sequence, Ordering::Release);
        Ok(())
    }

    /// Steps 1 and 2; `None` if no member is left.
    fn append(&mut self) -> Result<Option<Appended>> {
        let shared = self.shared;
        shared.check_writable()?;
        let view = shared.view.load_full();
        self.group
            .refuse(|write| write.families.iter().find_map(|family| view.family(*family).err()));
        if self.group.members().is_empty() {
            return Ok(None);
        }
        let mut families: Vec<FamilyId> = Vec::with_capacity(1);
        for member in self.group.members() {
            families.extend(&member.write().families);
        }
        families.sort_unstable();
        families.dedup();
        let baton = self.baton.as_ref().expect("the leader appends with the baton in hand");
        shared.make_room(baton, &families)?;
        self.append_record(&families).map(Some)
    }

    fn append_record(&mut self, families: &[FamilyId]) -> Result<Appended> {
        let shared = self.shared;
        let members = self.group.members();
        let count = members.iter().map(|member| u64::from(member.write().batch.count())).sum();
        let count_field = u32::try_from(count)
            .map_err(|_| Error::invalid("a commit group holds 2^32 operations or more"))?;
        // Loaded again: making room may have replaced memtables. With the baton in hand nothing
        // replaces them any more until this group has passed.
        let view = shared.view.load_full();
        let mut parts: Vec<&[u8]> = Vec::with_capacity(members.len() + 1);
        let length = members.iter().map(|member| member.write().batch.size_in_bytes()).sum();
        shared.ensure_log_room(batch::HEADER_SIZE + length)?;

        let mut log = shared.log.lock();
        let first_sequence = log.next_sequences(count)?;
        let segment = log.number()?;
        let header = batch::encode_header(first_sequence, count_field);
        parts.push(&header);
        parts.extend(members.iter().map(|member| member.write().batch.encoded_ops()));
        let durability = members.iter().map(|member| member.write().durability).max();
        let durability = durability.expect("a group has a member");
        if let Err(error) = log.append(&parts, durability, members.len() as u64) {
            let failed = log.has_failed();
            drop(log);
            // A full device before anything was written leaves the log as it was.
            return Err(if failed { shared.poison(error) } else { error });
        }
        let last_sequence = log.take_sequences(count);
        for family in families {
            let family = view.family(*family).expect("families cannot vanish under the baton");
            family.active.note_record(segment);
        }
        let synced = durability == Durability::Synced;
        let sync = if synced { Some(log.sync_point()?) } else { None };
        let ahead = log.wants_attention();
        drop(log);
        self.ticket = Some(shared.turnstile.ticket());
        shared.stats.group(members.len(), length);
        if ahead {
            shared.wake_log_thread();
        }
        Ok(Appended { view, first_sequence, last_sequence, sync })
    }

    /// Step 5.
    fn insert(&self, appended: &Appended) {
        let mut sequence = appended.first_sequence;
        let mut family: Option<&FamilyView> = None;
        for member in self.group.members() {
            let batch = &member.write().batch;
            for op in batch::ops(batch.encoded_ops(), batch.count()) {
                let op = op.expect("a batch decodes as it was encoded");
                let target = match family.filter(|family| family.id == op.family) {
                    Some(same) => same,
                    None => appended
                        .view
                        .family(op.family)
                        .expect("families cannot vanish between append and publication"),
                };
                family = Some(target);
                target.active.table.insert(op.key, sequence, op.kind, op.value);
                sequence += 1;
            }
        }
        debug_assert_eq!(sequence, appended.last_sequence + 1, "every operation has a number");
    }
}

impl Drop for Leader<'_> {
    fn drop(&mut self) {
        if !self.group.members().is_empty() {
            // Only a panic comes here: the group may be in the log, and nobody will publish it.
            let what = "the thread that led a commit group panicked";
            let error = env::Error::new(env::ErrorKind::Other, "write", &self.shared.dir, what);
            let error = self.shared.poison(Error::Io(error));
            self.group.finish(&Err(error));
        }
        self.ticket = None;
        self.baton = None;
    }
}
