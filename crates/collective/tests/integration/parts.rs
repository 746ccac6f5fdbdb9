//! Batches of tensors against a plainly written reference: shapes × types × operations × ranks × links, in place and
//! apart, with ranks that have no data or do not want the result.
//!
//! Tensors lie at odd addresses with gaps between them, and whole memories are compared, so a byte written beside its
//! place is found.

use crate::common::{Layout, on_ranks};
use crate::model::{encode, every_reduction, reduced, value};
use ronde_collective::types::{DType, ReduceOp};
use ronde_collective::{GatherPart, Group, Part, Reduction, ScatterPart, rows_of};

const LAYOUTS: [Layout<'static>; 7] = [&[1], &[2], &[3], &[4], &[2, 2], &[2, 1], &[1, 1, 1]];
/// What memory holds where nothing was written.
const UNTOUCHED: u8 = 0xAA;

/// Elements of each tensor: few bytes in all, with empty ones among them.
fn few() -> Vec<usize> {
    vec![0, 1, 3, 0, 17, 10, 255, 0]
}

/// Hundreds of small ones, more than goes in one phase.
fn many() -> Vec<usize> {
    (0..300).map(|tensor| tensor * 37 % 211).collect()
}

/// Odd lengths that cross the borders of chunks.
fn crossing() -> Vec<usize> {
    vec![65_537, 1, 131_071, 0, 3, 262_145, 40, 99_999]
}

/// One of many megabytes among hundreds of small ones.
fn one_large() -> Vec<usize> {
    let mut lengths: Vec<usize> = (0..200).map(|tensor| tensor * 131 % 997).collect();
    lengths.insert(77, 1_500_001);
    lengths
}

/// Tensors in one memory, at odd addresses, with gaps between them.
#[derive(Clone)]
struct Arena {
    memory: Vec<u8>,
    starts: Vec<usize>,
}

impl Arena {
    fn of(tensors: &[Vec<u8>]) -> Arena {
        let (mut memory, mut starts) = (vec![UNTOUCHED; 1], Vec::new());
        for (number, tensor) in tensors.iter().enumerate() {
            starts.push(memory.len());
            memory.extend(tensor);
            memory.extend(std::iter::repeat_n(UNTOUCHED, number % 5));
        }
        Arena { memory, starts }
    }

    /// Room for tensors of these lengths in bytes.
    fn untouched(lengths: impl Iterator<Item = usize>) -> Arena {
        Arena::of(&lengths.map(|len| vec![UNTOUCHED; len]).collect::<Vec<_>>())
    }

    /// Addresses of all tensors.
    fn addresses(&mut self) -> Vec<*mut u8> {
        let base = self.memory.as_mut_ptr();
        self.starts.iter().map(|&start| base.wrapping_add(start)).collect()
    }
}

/// Bytes of all tensors, in which element `index` is `of(index)`. All depends on what rank 0 has there, which is one of
/// three values, and elements 0, 1 and 2 have them all; so each is computed once.
fn tensors(shape: &[usize], of: impl Fn(usize) -> Vec<u8>) -> Vec<Vec<u8>> {
    let cases = [of(0), of(1), of(2)];
    let one = |(tensor, &elements): (usize, &usize)| {
        let mut bytes = Vec::with_capacity(elements * cases[0].len());
        for index in (0..elements).map(|element| tensor * 1009 + element) {
            bytes.extend_from_slice(&cases[value(0, index) as usize]);
        }
        bytes
    };
    shape.iter().enumerate().map(one).collect()
}

/// What rank `rank` gives.
fn inputs(dtype: DType, rank: usize, shape: &[usize]) -> Vec<Vec<u8>> {
    tensors(shape, |index| encode(dtype, value(rank, index)))
}

/// The reduction over all ranks but `without`.
fn results(how: &Reduction, ranks: usize, without: Option<usize>, shape: &[usize]) -> Vec<Vec<u8>> {
    tensors(shape, |index| {
        let present = (0..ranks).filter(|&rank| Some(rank) != without);
        reduced(how.dtype, how.op, present.map(|rank| value(rank, index)), ranks)
    })
}

fn parts_of(sources: &[*mut u8], targets: &[*mut u8], shape: &[usize], dtype: DType) -> Vec<Part> {
    let both = sources.iter().zip(targets).zip(shape);
    both.map(|((&source, &target), elements)| Part { source, target, len: elements * dtype.size() }).collect()
}

fn check_allreduce(group: &mut Group, how: &Reduction, shape: &[usize], wanted: &Arena) {
    let what = format!("{:?} {} of {} tensors", how.op, how.dtype, shape.len());
    let mut given = Arena::of(&inputs(how.dtype, group.rank(), shape));
    let before = given.clone();
    let mut apart = Arena::untouched(shape.iter().map(|elements| elements * how.dtype.size()));
    let (sources, targets) = (given.addresses(), apart.addresses());
    // SAFETY: both arenas hold tensors of these lengths and live on.
    unsafe {
        group.allreduce_parts(&parts_of(&sources, &targets, shape, how.dtype), how).expect("apart");
    }
    assert!(apart.memory == wanted.memory, "{what}");
    assert!(given.memory == before.memory, "sources of {what}");
    let places = given.addresses();
    // SAFETY: as above.
    unsafe {
        group.allreduce_parts(&parts_of(&places, &places, shape, how.dtype), how).expect("in place");
    }
    assert!(given.memory == wanted.memory, "in place: {what}");
}

#[test]
fn a_batch_equals_the_reference_for_every_type_and_operation() {
    for layout in LAYOUTS {
        let ranks = layout.iter().sum();
        on_ranks(layout, |_, group| {
            every_reduction(|dtype, op| {
                for shape in [few(), many()] {
                    let how = Reduction::new(dtype, op);
                    let wanted = Arena::of(&results(&how, ranks, None, &shape));
                    check_allreduce(group, &how, &shape, &wanted);
                }
            });
        });
    }
}

#[test]
fn batches_of_any_shape_equal_the_reference() {
    for layout in LAYOUTS {
        let ranks = layout.iter().sum();
        let mixture = [
            Reduction::new(DType::F32, ReduceOp::Sum),
            Reduction::new(DType::F16, ReduceOp::Average),
            Reduction::new(DType::I32, ReduceOp::Average),
        ];
        let of_a_kilobyte = vec![256; 1000];
        for shape in [crossing(), one_large(), of_a_kilobyte, vec![70_000], vec![0, 0], vec![]] {
            let wanted = mixture.map(|how| Arena::of(&results(&how, ranks, None, &shape)));
            on_ranks(layout, |_, group| {
                for (how, wanted) in mixture.iter().zip(&wanted) {
                    check_allreduce(group, how, &shape, wanted);
                }
            });
        }
    }
}

#[test]
fn a_rank_without_data_changes_nothing_and_need_not_take_the_result() {
    for layout in LAYOUTS {
        let ranks: usize = layout.iter().sum();
        for shape in [few(), many(), crossing()] {
            on_ranks(layout, |_, group| {
                for dtype in [DType::F32, DType::BF16, DType::I32, DType::U8, DType::Bool] {
                    for op in [ReduceOp::Sum, ReduceOp::Min, ReduceOp::Max, ReduceOp::Product] {
                        // Alone and without data, the result is the identity, which the kernels' tests know.
                        let absent = usize::from(op == ReduceOp::Max) * (ranks - 1);
                        if ranks > 1 || op == ReduceOp::Sum {
                            check_absent(group, &Reduction::new(dtype, op), &shape, absent);
                        }
                    }
                }
            });
        }
        on_ranks(layout, |_, group| {
            for op in [ReduceOp::Sum, ReduceOp::Average] {
                check_absent(group, &Reduction::new(DType::F32, op), &one_large(), ranks - 1);
                check_absent(group, &Reduction::new(DType::I16, op), &many(), ranks / 2);
            }
        });
    }
}

/// Rank `absent` has no data and wants only every second result; every third tensor another rank does not want either.
fn check_absent(group: &mut Group, how: &Reduction, shape: &[usize], absent: usize) {
    let size = how.dtype.size();
    let wants = |tensor: usize| {
        if group.rank() == absent { tensor.is_multiple_of(2) } else { !tensor.is_multiple_of(3) }
    };
    let results = results(how, group.size(), Some(absent), shape).into_iter().enumerate();
    let wanted = results.map(
        |(tensor, result)| {
            if wants(tensor) { result } else { vec![UNTOUCHED; shape[tensor] * size] }
        },
    );
    let wanted = Arena::of(&wanted.collect::<Vec<_>>());

    let mut given = Arena::of(&inputs(how.dtype, group.rank(), shape));
    let mut taken = Arena::untouched(shape.iter().map(|elements| elements * size));
    let mut parts = parts_of(&given.addresses(), &taken.addresses(), shape, how.dtype);
    for (tensor, part) in parts.iter_mut().enumerate() {
        if group.rank() == absent {
            part.source = std::ptr::null();
        }
        if !wants(tensor) {
            part.target = std::ptr::null_mut();
        }
    }
    // SAFETY: both arenas hold tensors of these lengths and live on.
    unsafe { group.allreduce_parts(&parts, how).expect("allreduce") };
    assert!(taken.memory == wanted.memory, "{:?} {} without rank {absent}", how.op, how.dtype);
}

#[test]
fn factors_apply_to_every_tensor() {
    let how = Reduction { prescale: 0.5, postscale: 4.0, ..Reduction::new(DType::F32, ReduceOp::Sum) };
    for layout in LAYOUTS {
        on_ranks(layout, |_, group| {
            let ranks = group.size();
            let doubled = |index: usize| 2 * (0..ranks).map(|rank| value(rank, index)).sum::<i64>();
            for shape in [few(), many(), crossing()] {
                let wanted = tensors(&shape, |index| encode(DType::F32, doubled(index)));
                check_allreduce(group, &how, &shape, &Arena::of(&wanted));
            }
        });
    }
}

#[test]
fn all_ranks_get_the_same_bits_for_sums_that_depend_on_order() {
    for layout in LAYOUTS {
        for shape in [few(), many(), crossing(), one_large()] {
            let results = on_ranks(layout, |_, group| {
                let rank = group.rank() as f32;
                let tensor = |elements: &usize| {
                    let values = (0..*elements).map(|index| 1.0 / (index as f32 + 1.3 * rank + 1.0));
                    values.flat_map(f32::to_ne_bytes).collect()
                };
                let mut arena = Arena::of(&shape.iter().map(tensor).collect::<Vec<_>>());
                let places = arena.addresses();
                let parts = parts_of(&places, &places, &shape, DType::F32);
                // SAFETY: the arena holds tensors of these lengths and lives on.
                unsafe { group.allreduce_parts(&parts, &Reduction::new(DType::F32, ReduceOp::Sum)) }
                    .expect("allreduce");
                arena.memory
            });
            assert!(results.windows(2).all(|pair| pair[0] == pair[1]), "{layout:?}");
        }
    }
}

#[test]
fn adasum_judges_each_tensor_of_a_batch_on_its_own() {
    let shape = [3usize, 0, 5000, 1, 40_000];
    let how = Reduction::new(DType::F64, ReduceOp::Adasum);
    for layout in LAYOUTS {
        on_ranks(layout, |_, group| {
            let rank = group.rank();
            let tensor = |elements: &usize| -> Vec<u8> {
                let values = (0..*elements).map(|index| ((index * 3 + rank * 7) % 11) as f64 - 4.5);
                values.flat_map(f64::to_ne_bytes).collect()
            };
            let tensors: Vec<Vec<u8>> = shape.iter().map(tensor).collect();
            for absent in [None, Some(group.size() - 1)] {
                let mut one_by_one = tensors.clone();
                for tensor in &mut one_by_one {
                    if absent == Some(rank) {
                        tensor.fill(0);
                    }
                    group.allreduce(None, tensor, &how).expect("adasum");
                }
                let mut arena = Arena::of(&tensors);
                let places = arena.addresses();
                let mut parts = parts_of(&places, &places, &shape, DType::F64);
                if absent == Some(rank) {
                    parts.iter_mut().for_each(|part| part.source = std::ptr::null());
                }
                // SAFETY: the arena holds tensors of these lengths and lives on.
                unsafe { group.allreduce_parts(&parts, &how).expect("adasum of a batch") };
                assert!(arena.memory == Arena::of(&one_by_one).memory, "without {absent:?}");
            }
        });
    }
}

/// Shares of some tensors: even ones, none for the first rank, everything for the last.
fn shares_of(shape: &[usize], ranks: usize) -> Vec<Vec<usize>> {
    let of = |(tensor, &elements): (usize, &usize)| match tensor % 3 {
        0 => rows_of(elements, ranks),
        1 => (0..ranks).map(|rank| if rank + 1 == ranks { elements } else { 0 }).collect(),
        _ => {
            let mut lengths = rows_of(elements, ranks);
            let first = std::mem::take(&mut lengths[0]);
            lengths[ranks - 1] += first;
            lengths
        }
    };
    shape.iter().enumerate().map(of).collect()
}

fn check_reducescatter(group: &mut Group, how: &Reduction, shape: &[usize], absent: Option<usize>) {
    let (rank, size) = (group.rank(), how.dtype.size());
    let lengths = shares_of(shape, group.size());
    let wants = |tensor: usize| absent.is_none() || !(tensor + rank).is_multiple_of(3);
    let own = results(how, group.size(), absent, shape).into_iter().enumerate().map(|(tensor, result)| {
        let before: usize = lengths[tensor][..rank].iter().sum();
        let share = lengths[tensor][rank] * size;
        if wants(tensor) { result[before * size..][..share].to_vec() } else { vec![UNTOUCHED; share] }
    });
    let wanted = Arena::of(&own.collect::<Vec<_>>());
    let mut given = Arena::of(&inputs(how.dtype, rank, shape));
    let mut taken = Arena::untouched(lengths.iter().map(|lengths| lengths[rank] * size));
    let (sources, targets) = (given.addresses(), taken.addresses());
    let parts: Vec<ScatterPart> = lengths
        .into_iter()
        .enumerate()
        .map(|(tensor, lengths)| ScatterPart {
            source: if absent == Some(rank) { std::ptr::null() } else { sources[tensor] },
            target: if wants(tensor) { targets[tensor] } else { std::ptr::null_mut() },
            lengths,
        })
        .collect();
    // SAFETY: sources hold all shares, targets this rank's; both arenas live on.
    unsafe { group.reducescatter_parts(&parts, how).expect("reducescatter") };
    assert!(taken.memory == wanted.memory, "{:?} {} without {absent:?}", how.op, how.dtype);
}

#[test]
fn a_scattered_batch_gives_every_rank_its_share_of_every_tensor() {
    for layout in LAYOUTS {
        on_ranks(layout, |_, group| {
            every_reduction(|dtype, op| {
                check_reducescatter(group, &Reduction::new(dtype, op), &few(), None);
            });
            let last = group.size() - 1;
            for op in [ReduceOp::Sum, ReduceOp::Average] {
                for shape in [few(), many(), crossing(), one_large(), vec![0], vec![]] {
                    check_reducescatter(group, &Reduction::new(DType::F32, op), &shape, None);
                    check_reducescatter(group, &Reduction::new(DType::F32, op), &shape, Some(last));
                }
                check_reducescatter(group, &Reduction::new(DType::I32, op), &many(), Some(0));
            }
        });
    }
}

/// What rank `rank` contributes to tensor `tensor`.
fn contribution(tensor: usize, rank: usize, len: usize) -> Vec<u8> {
    (0..len).map(|index| (index * 31 + rank * 17 + tensor * 7) as u8).collect()
}

fn check_allgather(group: &mut Group, shape: &[usize]) {
    let (rank, ranks) = (group.rank(), group.size());
    let lengths = shares_of(shape, ranks);
    let mine: Vec<Vec<u8>> =
        (0..shape.len()).map(|tensor| contribution(tensor, rank, lengths[tensor][rank])).collect();
    // Every fourth tensor one rank does not want, every other third is in place.
    let wants = |tensor: usize| tensor % 4 != 3 || rank != tensor % ranks;
    let in_place = |tensor: usize| tensor.is_multiple_of(3) && wants(tensor);
    let full = |tensor: usize| {
        (0..ranks).flat_map(|rank| contribution(tensor, rank, lengths[tensor][rank])).collect()
    };
    let wanted: Vec<Vec<u8>> = (0..shape.len())
        .map(|tensor| if wants(tensor) { full(tensor) } else { vec![UNTOUCHED; shape[tensor]] })
        .collect();
    let before = |tensor: usize| lengths[tensor][..rank].iter().sum::<usize>();
    let mut room: Vec<Vec<u8>> = shape.iter().map(|&len| vec![UNTOUCHED; len]).collect();
    for tensor in (0..shape.len()).filter(|&tensor| in_place(tensor)) {
        room[tensor][before(tensor)..][..mine[tensor].len()].copy_from_slice(&mine[tensor]);
    }
    let (mut given, mut taken) = (Arena::of(&mine), Arena::of(&room));
    let (sources, targets) = (given.addresses(), taken.addresses());
    let parts: Vec<GatherPart> = (0..shape.len())
        .map(|tensor| GatherPart {
            source: match (in_place(tensor), lengths[tensor][rank]) {
                (_, 0) => std::ptr::null(),
                (true, _) => targets[tensor].wrapping_add(before(tensor)),
                (false, _) => sources[tensor],
            },
            target: if wants(tensor) { targets[tensor] } else { std::ptr::null_mut() },
            lengths: lengths[tensor].clone(),
        })
        .collect();
    // SAFETY: sources hold this rank's contributions, targets all; both arenas live on.
    unsafe { group.allgather_parts(&parts).expect("allgather") };
    assert!(taken.memory == Arena::of(&wanted).memory, "{} tensors", shape.len());
}

#[test]
fn a_gathered_batch_concatenates_every_tensor_in_rank_order() {
    for layout in LAYOUTS {
        on_ranks(layout, |_, group| {
            let several_loads = vec![3_000_001; 7];
            for shape in
                [few(), many(), crossing(), one_large(), several_loads, vec![4_200_000; 4], vec![0], vec![]]
            {
                check_allgather(group, &shape);
            }
        });
    }
}

#[test]
fn a_batch_that_fills_the_staging_memory_several_times_still_equals_the_reference() {
    let shape = vec![700_003; 8];
    let how = Reduction::new(DType::F32, ReduceOp::Sum);
    for layout in [&[2usize, 1][..], &[1, 1, 1]] {
        let wanted = Arena::of(&results(&how, 3, None, &shape));
        on_ranks(layout, |_, group| {
            check_allreduce(group, &how, &shape, &wanted);
            check_reducescatter(group, &how, &shape, None);
        });
    }
}

#[test]
fn batches_and_single_tensors_take_turns() {
    for layout in LAYOUTS {
        on_ranks(layout, |_, group| {
            let how = Reduction::new(DType::I32, ReduceOp::Sum);
            for round in 0..20 {
                let shape: Vec<usize> = (0..round * 5).map(|tensor| tensor * round % 301).collect();
                let wanted = Arena::of(&results(&how, group.size(), None, &shape));
                check_allreduce(group, &how, &shape, &wanted);
                let mut single = inputs(DType::I32, group.rank(), &[round * 999]).remove(0);
                group.allreduce(None, &mut single, &how).expect("allreduce");
                assert!(single == results(&how, group.size(), None, &[round * 999])[0], "round {round}");
                check_allgather(group, &shape);
            }
        });
    }
}

#[test]
fn bad_batches_are_refused_before_anything_moves_and_the_group_lives_on() {
    on_ranks(&[2], |_, group| {
        let sum = Reduction::new(DType::F32, ReduceOp::Sum);
        let nowhere = (std::ptr::null::<u8>(), std::ptr::null_mut::<u8>());
        let part = |len| Part { source: nowhere.0, target: nowhere.1, len };
        let scatter = |lengths: &[usize]| ScatterPart {
            source: nowhere.0,
            target: nowhere.1,
            lengths: lengths.to_vec(),
        };
        let gather = |lengths: &[usize]| GatherPart {
            source: nowhere.0,
            target: nowhere.1,
            lengths: lengths.to_vec(),
        };
        // SAFETY: null is allowed, and nothing is touched.
        unsafe {
            assert!(group.allreduce_parts(&[part(4), part(7)], &sum).is_err());
            assert!(group.allreduce_parts(&[part(usize::MAX - 3), part(8)], &sum).is_err());
            let average = Reduction::new(DType::Bool, ReduceOp::Average);
            assert!(group.allreduce_parts(&[part(4)], &average).is_err());
            let adasum = Reduction::new(DType::I32, ReduceOp::Adasum);
            assert!(group.allreduce_parts(&[part(4)], &adasum).is_err());
            assert!(group.reducescatter_parts(&[scatter(&[1])], &sum).is_err());
            assert!(group.reducescatter_parts(&[scatter(&[1, usize::MAX])], &sum).is_err());
            assert!(group.reducescatter_parts(&[scatter(&[1, 1])], &adasum).is_err());
            assert!(group.allgather_parts(&[gather(&[1])]).is_err());
            assert!(group.allgather_parts(&[gather(&[1, 1])]).is_err());
        }
        let wanted = Arena::of(&results(&sum, 2, None, &few()));
        check_allreduce(group, &sum, &few(), &wanted);
    });
}
