//! Where the operations in flight lie while the kernel works on them.
//!
//! Invariant: a key names one stay in the slab and no other. A place that is used again has
//! another generation, so a completion that is stale or doubled finds nothing instead of
//! somebody else's operation (a wrong byte count would be taken for good data).

/// Places with generations; a key is `generation << 32 | place`.
pub(crate) struct Slab<T> {
    places: Vec<Place<T>>,
    vacant: Vec<u32>,
}

struct Place<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> Slab<T> {
    pub(crate) fn new() -> Slab<T> {
        Slab { places: Vec::new(), vacant: Vec::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.vacant.len()
    }

    pub(crate) fn insert(&mut self, value: T) -> u64 {
        let index = match self.vacant.pop() {
            Some(index) => index,
            None => {
                self.places.push(Place { generation: 0, value: None });
                // The ring's depth is the bound, and that is a u32.
                u32::try_from(self.places.len() - 1).unwrap_or(u32::MAX)
            }
        };
        let place = &mut self.places[index as usize];
        place.value = Some(value);
        u64::from(place.generation) << 32 | u64::from(index)
    }

    /// Takes out what `key` names; `None` for a key that was taken already or never given.
    pub(crate) fn remove(&mut self, key: u64) -> Option<T> {
        let index = (key & u64::from(u32::MAX)) as usize;
        let place = self.places.get_mut(index)?;
        if u64::from(place.generation) != key >> 32 {
            return None;
        }
        let value = place.value.take()?;
        // One short of u32::MAX: the key of all ones is the ring's own wake-up.
        place.generation = (place.generation + 1) % u32::MAX;
        self.vacant.push((key & u64::from(u32::MAX)) as u32);
        Some(value)
    }

    pub(crate) fn drain(&mut self) -> impl Iterator<Item = T> {
        self.vacant.clear();
        std::mem::take(&mut self.places).into_iter().filter_map(|place| place.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_and_doubled_keys_find_nothing() {
        let mut slab = Slab::new();
        let a = slab.insert('a');
        let b = slab.insert('b');
        assert_eq!(slab.len(), 2);
        assert_eq!(slab.remove(a), Some('a'));
        assert_eq!(slab.remove(a), None);
        let c = slab.insert('c');
        assert_ne!(a, c);
        assert_eq!(slab.remove(a), None);
        assert_eq!(slab.remove(c), Some('c'));
        assert_eq!(slab.remove(77), None);
        assert_eq!(slab.remove(b), Some('b'));
        assert_eq!(slab.len(), 0);
    }

    #[test]
    fn drain_gives_what_is_left() {
        let mut slab = Slab::new();
        let a = slab.insert(1);
        slab.insert(2);
        slab.remove(a);
        assert_eq!(slab.drain().collect::<Vec<_>>(), [2]);
        assert_eq!(slab.len(), 0);
    }
}
