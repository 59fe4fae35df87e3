//! A table whose keys go out of date: each use of a slot has a generation of its own, so the
//! completion of an earlier use is never taken for a later one.

/// One entry; `value` is `None` while the slot is free.
#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

/// See the module. Keys are `generation << 32 | index`.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slots<T> {
    /// Stores a value under a new key.
    pub(crate) fn insert(&mut self, value: T) -> u64 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, value: None });
            u32::try_from(self.slots.len() - 1).expect("a window holds few requests")
        });
        let slot = &mut self.slots[index as usize];
        slot.generation = slot.generation.wrapping_add(1);
        slot.value = Some(value);
        u64::from(slot.generation) << 32 | u64::from(index)
    }

    /// The value stored under a key that is still good.
    pub(crate) fn get_mut(&mut self, key: u64) -> Option<&mut T> {
        self.slot_mut(key)?.value.as_mut()
    }

    /// Takes the value stored under a key that is still good.
    pub(crate) fn remove(&mut self, key: u64) -> Option<T> {
        let value = self.slot_mut(key)?.value.take()?;
        self.free.push(index_of(key));
        Some(value)
    }

    /// The keys of all stored values.
    pub(crate) fn keys(&self) -> Vec<u64> {
        let used = self.slots.iter().enumerate().filter(|(_, slot)| slot.value.is_some());
        used.map(|(index, slot)| u64::from(slot.generation) << 32 | index as u64).collect()
    }

    fn slot_mut(&mut self, key: u64) -> Option<&mut Slot<T>> {
        let slot = self.slots.get_mut(index_of(key) as usize)?;
        (u64::from(slot.generation) == key >> 32).then_some(slot)
    }
}

fn index_of(key: u64) -> u32 {
    u32::try_from(key & u64::from(u32::MAX)).expect("masked to 32 bits")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// URING-33
    #[test]
    fn a_key_of_an_earlier_use_finds_nothing_in_any_order() {
        let mut slots = Slots::default();
        let first = slots.insert("first");
        assert_eq!(slots.remove(first), Some("first"));
        let second = slots.insert("second");
        assert_eq!(index_of(first), index_of(second));
        assert_eq!(slots.remove(first), None);
        assert_eq!(slots.get_mut(second), Some(&mut "second"));
        assert_eq!(slots.remove(second), Some("second"));
        assert_eq!(slots.remove(second), None);
        assert_eq!(slots.remove(u64::MAX), None);
        assert!(slots.keys().is_empty());
    }

    #[test]
    fn keys_name_exactly_what_is_stored() {
        let mut slots = Slots::default();
        let keys: Vec<u64> = (0..5).map(|n| slots.insert(n)).collect();
        slots.remove(keys[2]);
        assert_eq!(slots.keys(), [keys[0], keys[1], keys[3], keys[4]]);
    }
}
