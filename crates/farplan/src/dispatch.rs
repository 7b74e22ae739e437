//! Which instance a job of a batch runs in: one that has its back ends first, then one that is switched, then one that is created.
//!
//! The order is that of paper 002 (Algorithm 1), where an instance is a virtual machine. Here it is a set of open back ends
//! (docs/decisions/2026-11-22-far-batch.md).

/// What there is for all jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Host {
    /// Bytes of memory for all jobs that run at once.
    pub memory_bytes: u64,
    /// Most instances.
    pub instances_max: usize,
    /// Most jobs that share an instance at once.
    pub jobs_each_max: usize,
}

/// What a job needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Its back ends, in any order.
    pub back_ends: Vec<String>,
    /// Bytes of the host's memory: its budget, and what compressed back ends keep of it.
    pub memory_bytes: u64,
}

/// How a job came to its instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Others run in it, with the same back ends.
    Online,
    /// It is idle and has the back ends.
    Warm,
    /// It was idle, and its back ends are exchanged.
    Switched,
    /// It is new.
    Created,
}

/// Where a job runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The number of the instance.
    pub instance: usize,
    /// How.
    pub way: Way,
}

#[derive(Clone, Debug)]
struct Instance {
    back_ends: Vec<String>,
    running: usize,
}

/// The instances of a host, and what runs in them.
#[derive(Clone, Debug)]
pub struct Dispatcher {
    host: Host,
    instances: Vec<Instance>,
    used_bytes: u64,
}

impl Dispatcher {
    /// A host without instances.
    pub const fn new(host: Host) -> Self {
        Self { host, instances: Vec::new(), used_bytes: 0 }
    }

    /// Bytes of memory that running jobs have.
    pub const fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    /// Whether it could ever run, with the host for itself.
    pub const fn can_ever_run(&self, demand: &Demand) -> bool {
        demand.memory_bytes <= self.host.memory_bytes
    }

    /// Takes room for a job. `None`: it must wait until another one ends.
    pub fn place(&mut self, demand: &Demand) -> Option<Place> {
        if self.used_bytes.checked_add(demand.memory_bytes)? > self.host.memory_bytes {
            return None;
        }
        let mut wanted = demand.back_ends.clone();
        wanted.sort();
        let place = self.choose(&wanted)?;
        match place.way {
            Way::Created => self.instances.push(Instance { back_ends: wanted, running: 1 }),
            _ => {
                let instance = self.instances.get_mut(place.instance)?;
                instance.back_ends = wanted;
                instance.running += 1;
            }
        }
        self.used_bytes += demand.memory_bytes;
        Some(place)
    }

    fn choose(&self, wanted: &[String]) -> Option<Place> {
        let find = |suits: &dyn Fn(&Instance) -> bool| self.instances.iter().position(suits);
        let has = |instance: &Instance| instance.back_ends == wanted;
        let accepts = |instance: &Instance| (1..self.host.jobs_each_max).contains(&instance.running);
        if let Some(instance) = find(&|instance| has(instance) && accepts(instance)) {
            return Some(Place { instance, way: Way::Online });
        }
        if let Some(instance) = find(&|instance| has(instance) && instance.running == 0) {
            return Some(Place { instance, way: Way::Warm });
        }
        let common =
            |instance: &Instance| instance.back_ends.iter().filter(|one| wanted.contains(one)).count();
        let idle = self.instances.iter().enumerate().filter(|(_, instance)| instance.running == 0);
        // The one with the most of what is wanted; the first of several.
        if let Some((instance, _)) = idle.rev().max_by_key(|(_, instance)| common(instance)) {
            return Some(Place { instance, way: Way::Switched });
        }
        let instance = self.instances.len();
        (instance < self.host.instances_max).then_some(Place { instance, way: Way::Created })
    }

    /// A job has ended.
    pub fn leave(&mut self, place: Place, demand: &Demand) {
        if let Some(instance) = self.instances.get_mut(place.instance) {
            instance.running = instance.running.saturating_sub(1);
        }
        self.used_bytes = self.used_bytes.saturating_sub(demand.memory_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn demand(back_ends: &[&str], memory_bytes: u64) -> Demand {
        Demand { back_ends: back_ends.iter().map(|one| (*one).to_owned()).collect(), memory_bytes }
    }

    #[test]
    fn the_order_is_online_then_warm_then_switched_then_created() {
        let mut host = Dispatcher::new(Host { memory_bytes: 100, instances_max: 3, jobs_each_max: 2 });
        let (lz4, ssd) = (demand(&["lz4"], 10), demand(&["ssd"], 10));
        let first = host.place(&lz4).unwrap();
        assert_eq!(first, Place { instance: 0, way: Way::Created });
        let second = host.place(&lz4).unwrap();
        assert_eq!(second, Place { instance: 0, way: Way::Online });
        assert_eq!(
            host.place(&lz4).unwrap(),
            Place { instance: 1, way: Way::Created },
            "two share one at most"
        );
        host.leave(first, &lz4);
        host.leave(second, &lz4);
        assert_eq!(host.place(&lz4).unwrap(), Place { instance: 1, way: Way::Online }, "before the idle one");
        assert_eq!(host.place(&lz4).unwrap(), Place { instance: 0, way: Way::Warm });
        host.leave(first, &lz4);
        assert_eq!(host.place(&ssd).unwrap(), Place { instance: 0, way: Way::Switched });
        assert_eq!(host.place(&demand(&["zstd"], 10)).unwrap(), Place { instance: 2, way: Way::Created });
        assert_eq!(host.place(&demand(&["pool"], 10)), None, "three instances at most");
    }

    #[test]
    fn the_idle_instance_that_needs_the_least_change_is_switched() {
        let mut host = Dispatcher::new(Host { memory_bytes: 100, instances_max: 3, jobs_each_max: 1 });
        let demands = [demand(&["a"], 1), demand(&["b", "c"], 1), demand(&["d"], 1)];
        let places: Vec<Place> = demands.iter().map(|demand| host.place(demand).unwrap()).collect();
        for (place, demand) in places.iter().zip(&demands) {
            host.leave(*place, demand);
        }
        assert_eq!(host.place(&demand(&["c", "x"], 1)).unwrap(), Place { instance: 1, way: Way::Switched });
        assert_eq!(host.place(&demand(&["y"], 1)).unwrap(), Place { instance: 0, way: Way::Switched });
    }

    proptest! {
        #[test]
        fn memory_and_instances_keep_their_limits(steps in prop::collection::vec((0usize..4, 1u64..60, any::<bool>()), 1..200)) {
            let host = Host { memory_bytes: 100, instances_max: 2, jobs_each_max: 2 };
            let mut dispatcher = Dispatcher::new(host);
            let mut running: Vec<(Place, Demand)> = Vec::new();
            for (which, bytes, ends) in steps {
                if ends && !running.is_empty() {
                    let (place, demand) = running.remove(which % running.len());
                    dispatcher.leave(place, &demand);
                } else {
                    let wanted = demand(&[["a", "b", "c", "d"][which]], bytes);
                    if let Some(place) = dispatcher.place(&wanted) {
                        let same = running.iter().filter(|(other, _)| other.instance == place.instance);
                        prop_assert!(same.clone().all(|(_, other)| other.back_ends == wanted.back_ends));
                        prop_assert!(same.count() < host.jobs_each_max);
                        running.push((place, wanted));
                    }
                }
                let used: u64 = running.iter().map(|(_, demand)| demand.memory_bytes).sum();
                prop_assert_eq!(used, dispatcher.used_bytes());
                prop_assert!(used <= host.memory_bytes);
                prop_assert!(running.iter().all(|(place, _)| place.instance < host.instances_max));
            }
            if running.is_empty() {
                prop_assert!(dispatcher.place(&demand(&["a"], 100)).is_some());
            }
        }
    }
}
