//! Which ready tensors travel together.
//!
//! A pure function over what is ready, in the order in which it is to go. Only the leader calls it, and its answer is
//! the log, so nobody fuses from its own view. A *unit* is what may not be torn apart: a single tensor, or a group.

use std::sync::Arc;

use super::ledger::TallyId;
use super::request::{Device, Facts, Kind};

/// A batch on devices takes no more than this, whatever the threshold. The host submits gradients long before devices have
/// computed them, and a batch starts with its last tensor: one batch of all gradients would run beside nothing. This much
/// keeps a network busy.
const DEVICE_BATCH: u64 = 25 << 20;

/// A tensor that everybody asked for in the same way.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Ready {
    pub(super) tally: TallyId,
    pub(super) facts: Arc<Facts>,
    /// Bytes that count against the threshold.
    pub(super) bytes: u64,
    /// When it was first asked for, relative to others.
    pub(super) order: u64,
}

/// What stays together.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Unit {
    pub(super) items: Vec<Ready>,
    pub(super) priority: i32,
    pub(super) order: u64,
}

impl Unit {
    /// A unit of these tensors: as urgent as the most urgent, as early as the earliest. What is on devices was submitted before it
    /// is computed, and is computed in the order in which it was submitted: the most urgent gradient, the first layer's, comes
    /// last, and all others would wait behind it. So there nothing is urgent.
    pub(super) fn of(items: Vec<Ready>) -> Unit {
        let urgency = |item: &Ready| match item.facts.device {
            Device::Host => item.facts.priority,
            Device::Gpu => 0,
        };
        let priority = items.iter().map(urgency).min().unwrap_or(0);
        let order = items.iter().map(|item| item.order).min().unwrap_or(0);
        Unit { items, priority, order }
    }

    fn bytes(&self) -> u64 {
        self.items.iter().fold(0, |sum, item| sum.saturating_add(padded(item)))
    }

    /// Queues the tensors up, those that can travel together together.
    fn split(self, apart: bool, queue: &mut Vec<Option<Unit>>) {
        if self.items.len() == 1 {
            return queue.push(Some(self));
        }
        let Unit { items, priority, order } = self;
        let own = queue.len();
        for item in items {
            let mut units = queue[own..].iter_mut().flatten();
            match units.find(|unit| !apart && may_fuse(&unit.items[0], &item)) {
                Some(unit) => unit.items.push(item),
                None => queue.push(Some(Unit { items: vec![item], priority, order })),
            }
        }
    }
}

fn fuses(kind: Kind) -> bool {
    matches!(kind, Kind::Allreduce | Kind::Allgather | Kind::Reducescatter)
}

fn may_fuse(one: &Ready, other: &Ready) -> bool {
    fuses(one.facts.kind) && one.facts.fuses_with(&other.facts)
}

/// Tensors begin at multiples of 16 bytes in a batch on a device.
fn padded(item: &Ready) -> u64 {
    match item.facts.device {
        Device::Host => item.bytes,
        Device::Gpu => item.bytes.checked_next_multiple_of(16).unwrap_or(u64::MAX),
    }
}

/// The batches of what is ready: the more urgent first, then the earlier; a batch stands where its first unit stood.
///
/// A batch takes later units of its kind while it stays within the threshold, and may pass over others while it and what
/// it passed over fit the threshold, so that mixed types do not break up every batch but nothing waits for long behind
/// what came later. A unit larger than the threshold goes alone. A threshold of 0 means no fusion, not even in groups;
/// `isolate` means that units never mix. On devices the threshold is [`DEVICE_BATCH`] at most.
pub(super) fn fuse(mut units: Vec<Unit>, threshold: u64, isolate: bool) -> Vec<Vec<Ready>> {
    units.sort_by_key(|unit| (unit.priority, unit.order));
    let mut queue = Vec::with_capacity(units.len());
    for unit in units {
        unit.split(threshold == 0, &mut queue);
    }
    let mut batches = Vec::new();
    for at in 0..queue.len() {
        let Some(Unit { items: mut batch, .. }) = queue[at].take() else { continue };
        let mut total = batch.iter().fold(0u64, |sum, item| sum.saturating_add(padded(item)));
        let mut skipped = 0u64;
        let threshold = match batch[0].facts.device {
            Device::Host => threshold,
            Device::Gpu => threshold.min(DEVICE_BATCH),
        };
        if !isolate && threshold > 0 && fuses(batch[0].facts.kind) {
            for later in &mut queue[at + 1..] {
                let Some(unit) = later else { continue };
                let bytes = unit.bytes();
                if may_fuse(&batch[0], &unit.items[0]) && total.saturating_add(bytes) <= threshold {
                    total += bytes;
                    batch.append(&mut unit.items);
                    *later = None;
                } else {
                    skipped = skipped.saturating_add(bytes);
                    if total.saturating_add(skipped) > threshold {
                        break;
                    }
                }
            }
        }
        batches.push(batch);
    }
    batches
}

/// The fusion threshold rounded up so that every rank of a host can own an equal, well aligned part of a full batch.
/// Where hosts have different numbers of ranks there is no such part, and the threshold stays as it is. 0 stays 0.
pub fn rounded_threshold(bytes: usize, local_size: usize, equal_hosts: bool) -> usize {
    let unit = local_size.max(1) * 8 * 64;
    if equal_hosts { bytes.checked_next_multiple_of(unit).unwrap_or(bytes) } else { bytes }
}

#[cfg(test)]
mod tests {
    use ronde_collective::types::{DType, ReduceOp};

    use super::super::request::Request;
    use super::*;

    /// Tensors are written as a type letter and a size: `f4` is 4 bytes of float32, `d` float64, `g` float32 on a GPU,
    /// `b` a broadcast, `m` a maximum; units are separated by spaces, tensors of a group by plus signs.
    fn units(text: &str) -> Vec<Unit> {
        let mut order = 0;
        let tensor = |word: &str, order: u64| {
            let (letter, size) = word.split_at(1);
            let mut request = Request::new(Kind::Allreduce, word, DType::F32, [1]);
            match letter {
                "d" => request.dtype = DType::F64,
                "g" => request.device = Device::Gpu,
                "b" => request.kind = Kind::Broadcast,
                "m" => request.op = ReduceOp::Max,
                _ => {}
            }
            let bytes = size.parse().expect("sizes are numbers");
            Ready { tally: 0, facts: Arc::new(Facts::of(request)), bytes, order }
        };
        let mut unit = |text: &str| {
            let items = text.split('+').map(|word| {
                order += 1;
                tensor(word, order)
            });
            Unit::of(items.collect())
        };
        text.split(' ').map(&mut unit).collect()
    }

    fn fused(text: &str, threshold: u64, isolate: bool) -> String {
        let batch = |batch: Vec<Ready>| {
            batch.iter().map(|item| item.facts.name.to_string()).collect::<Vec<_>>().join("+")
        };
        fuse(units(text), threshold, isolate).into_iter().map(batch).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn batches_follow_the_rules() {
        for (what, ready, threshold, batches) in [
            ("same type fuses", "f4 f4 f4", 100, "f4+f4+f4"),
            ("up to the threshold", "f40 f40 f40", 100, "f40+f40 f40"),
            ("exactly to the threshold", "f50 f50", 100, "f50+f50"),
            ("types stay apart", "f4 d4", 100, "f4 d4"),
            ("operations stay apart", "f4 m4", 100, "f4 m4"),
            ("devices stay apart", "f4 g4", 100, "f4 g4"),
            ("looking past other types", "f4 d4 f4 d4", 100, "f4+f4 d4+d4"),
            ("looking not too far", "f40 d70 f4", 100, "f40 d70 f4"),
            ("a tensor that does not fit is passed over", "f60 f45 f30 f9", 110, "f60+f45 f30+f9"),
            ("broadcasts go alone", "b4 b4", 100, "b4 b4"),
            ("a large tensor goes alone", "f400 f4", 100, "f400 f4"),
            ("devices pad to 16", "g1 g1 g1", 32, "g1+g1 g1"),
            ("a group larger than the threshold is one unit", "f60+f60 f4", 100, "f60+f60 f4"),
            ("a group fuses with others", "f4+f4 f4", 100, "f4+f4+f4"),
            ("a group of two types is two batches in a row", "f4+d4+f4 d8", 12, "f4+f4 d4+d8"),
            ("no fusion at all", "f4+f4 f4", 0, "f4 f4 f4"),
        ] {
            assert_eq!(fused(ready, threshold, false), batches, "{what}");
        }
        assert_eq!(fused("f4+f4 f4 f4", 100, true), "f4+f4 f4 f4");
    }

    #[test]
    fn devices_begin_before_everything_is_computed() {
        // Gradients of 8 MiB, all submitted at once.
        let gradients = |letter: &str| vec![format!("{letter}8388608"); 4].join(" ");
        let batches = |letter| fused(&gradients(letter), 128 << 20, false).split(' ').count();
        assert_eq!((batches("f"), batches("g")), (1, 2));
    }

    #[test]
    fn urgent_units_go_first_and_equals_keep_their_order() {
        let mut ready = units("b1 b2 b3 b4");
        ready[2].priority = -5;
        ready.reverse();
        let names: Vec<_> =
            fuse(ready, 10, false).iter().map(|batch| batch[0].facts.name.to_string()).collect();
        assert_eq!(names, ["b3", "b1", "b2", "b4"]);
    }

    #[test]
    fn on_devices_nothing_overtakes_what_is_computed_first() {
        for (device, order) in
            [(Device::Host, ["first layer", "last layer"]), (Device::Gpu, ["last layer", "first layer"])]
        {
            let gradient = |name: &str, priority: i32, order: u64| {
                let request = Request::new(Kind::Broadcast, name, DType::F32, [1]);
                let facts = Facts::of(Request { priority, device, ..request });
                Unit::of(vec![Ready { tally: 0, facts: Arc::new(facts), bytes: 4, order }])
            };
            let ready = vec![gradient("last layer", 1, 0), gradient("first layer", 0, 1)];
            let names: Vec<_> =
                fuse(ready, 100, false).iter().map(|batch| batch[0].facts.name.to_string()).collect();
            assert_eq!(names, order, "{device:?}");
        }
    }

    #[test]
    fn thresholds_are_rounded_up_where_hosts_are_equal() {
        assert_eq!(rounded_threshold(134_217_728, 3, true), 134_218_752);
        assert_eq!(rounded_threshold(1, 2, true), 1024);
        assert_eq!(rounded_threshold(1, 2, false), 1);
        assert_eq!(rounded_threshold(0, 2, true), 0);
        assert_eq!(rounded_threshold(usize::MAX, 2, true), usize::MAX);
    }
}
