//! Every collective against a plainly written reference: operations × types × ranks × sizes × links.

use std::net::{IpAddr, Ipv6Addr};

use crate::common::{on_labelled, on_ranks, on_ranks_at};
use crate::model::{encode, every_reduction, reduced, value};
use ronde_collective::types::{DType, ReduceOp};
use ronde_collective::{Group, LinkKind, Reduction, rows_of};

/// One host, all apart, and mixtures with unequal hosts.
const LAYOUTS: [&[usize]; 16] = [
    &[1],
    &[2],
    &[3],
    &[4],
    &[5],
    &[8],
    &[1, 1],
    &[1, 1, 1],
    &[1, 1, 1, 1],
    &[1, 1, 1, 1, 1],
    &[1, 1, 1, 1, 1, 1, 1, 1],
    &[2, 2],
    &[5, 1],
    &[1, 3],
    &[2, 1, 3],
    &[4, 4],
];
const SIZES: [usize; 5] = [0, 1, 1003, 20_011, 150_001];

fn input(dtype: DType, rank: usize, elements: usize) -> Vec<u8> {
    (0..elements).flat_map(|index| encode(dtype, value(rank, index))).collect()
}

fn expected(dtype: DType, op: ReduceOp, ranks: usize, elements: usize) -> Vec<u8> {
    let of = |index: usize| reduced(dtype, op, (0..ranks).map(|rank| value(rank, index)), ranks);
    (0..elements).flat_map(of).collect()
}

fn check_allreduce(group: &mut Group, dtype: DType, op: ReduceOp, elements: usize) {
    let how = Reduction::new(dtype, op);
    let wanted = expected(dtype, op, group.size(), elements);
    let own = input(dtype, group.rank(), elements);
    let mut apart = vec![0xAA; own.len()];
    group.allreduce(Some(&own), &mut apart, &how).expect("allreduce");
    assert!(apart == wanted, "{op:?} {dtype} {elements} of {} ranks", group.size());
    let mut in_place = own;
    group.allreduce(None, &mut in_place, &how).expect("allreduce in place");
    assert!(in_place == wanted, "in place: {op:?} {dtype} {elements} of {} ranks", group.size());
}

#[test]
fn allreduce_equals_the_reference_for_every_operation_type_size_and_layout() {
    for layout in LAYOUTS {
        on_ranks(layout, |_, group| {
            every_reduction(|dtype, op| {
                for elements in &SIZES[..4] {
                    check_allreduce(group, dtype, op, *elements);
                }
            });
            check_allreduce(group, DType::F32, ReduceOp::Sum, SIZES[4] * 9);
            check_allreduce(group, DType::F16, ReduceOp::Average, SIZES[4] * 3);
        });
    }
}

#[test]
fn reducescatter_equals_the_reference_and_first_ranks_take_the_remainder() {
    for layout in LAYOUTS {
        on_ranks(layout, |_, group| {
            let (size, rank) = (group.size(), group.rank());
            every_reduction(|dtype, op| {
                for &elements in &SIZES[..4] {
                    let lengths = rows_of(elements, size);
                    let wanted = expected(dtype, op, size, elements);
                    let start = lengths[..rank].iter().sum::<usize>() * dtype.size();
                    let mut output = vec![0xAA; lengths[rank] * dtype.size()];
                    let own = input(dtype, rank, elements);
                    group
                        .reducescatter(&own, &lengths, &mut output, &Reduction::new(dtype, op))
                        .expect("reducescatter");
                    assert!(output == wanted[start..][..output.len()], "{op:?} {dtype} {elements}");
                }
            });
        });
    }
}

#[test]
fn allgather_concatenates_unequal_contributions_in_rank_order() {
    for layout in LAYOUTS {
        on_ranks(layout, |_, group| {
            for base in SIZES {
                let lengths: Vec<usize> = (0..group.size()).map(|rank| base * (rank % 3) + rank).collect();
                let bytes = |rank: usize| (0..lengths[rank]).map(move |index| (index * 31 + rank * 17) as u8);
                let wanted: Vec<u8> = (0..group.size()).flat_map(bytes).collect();
                let own: Vec<u8> = bytes(group.rank()).collect();
                let mut output = vec![0; wanted.len()];
                group.allgather(Some(&own), &lengths, &mut output).expect("allgather");
                assert!(output == wanted, "{lengths:?}");
            }
        });
    }
}

#[test]
fn broadcast_gives_everybody_the_bytes_of_any_root() {
    for layout in LAYOUTS {
        on_ranks(layout, |_, group| {
            for root in 0..group.size() {
                for elements in [0, 1, 1003, 150_001, 2_500_000] {
                    let wanted: Vec<u8> = (0..elements).map(|index| (index * 13 + root) as u8).collect();
                    let mut buffer = if group.rank() == root { wanted.clone() } else { vec![0xAA; elements] };
                    group.broadcast(&mut buffer, root).expect("broadcast");
                    assert!(buffer == wanted, "root {root}, {elements} bytes");
                }
            }
        });
    }
}

#[test]
fn alltoall_delivers_unequal_splits() {
    for layout in LAYOUTS {
        on_ranks(layout, |_, group| {
            let (size, me) = (group.size(), group.rank());
            for base in SIZES {
                let length = |from: usize, to: usize| (from * 3 + to * 5) % 4 * base + (from + to) % 2;
                let bytes = |from: usize, to: usize| {
                    (0..length(from, to)).map(move |index| (index * 7 + from * 11 + to * 3) as u8)
                };
                let sent: Vec<usize> = (0..size).map(|to| length(me, to)).collect();
                let received: Vec<usize> = (0..size).map(|from| length(from, me)).collect();
                let input: Vec<u8> = (0..size).flat_map(|to| bytes(me, to)).collect();
                let wanted: Vec<u8> = (0..size).flat_map(|from| bytes(from, me)).collect();
                let mut output = vec![0; wanted.len()];
                group.alltoall(&input, &sent, &mut output, &received).expect("alltoall");
                assert!(output == wanted, "{sent:?}");
            }
        });
    }
}

#[test]
fn factors_apply_to_inputs_and_to_the_result() {
    for layout in LAYOUTS {
        on_ranks(layout, |_, group| {
            for elements in [5, 40_000] {
                let how =
                    Reduction { prescale: 0.5, postscale: 4.0, ..Reduction::new(DType::F32, ReduceOp::Sum) };
                let mut buffer = input(DType::F32, group.rank(), elements);
                group.allreduce(None, &mut buffer, &how).expect("allreduce");
                let doubled =
                    |index: usize| 2 * (0..group.size()).map(|rank| value(rank, index)).sum::<i64>();
                let wanted: Vec<u8> =
                    (0..elements).flat_map(|index| encode(DType::F32, doubled(index))).collect();
                assert!(buffer == wanted, "{elements} elements");
            }
        });
    }
}

#[test]
fn integer_averages_are_exact_and_truncate_toward_zero() {
    for layout in LAYOUTS {
        on_ranks(layout, |_, group| {
            let ranks = group.size() as i64;
            let average = Reduction::new(DType::U8, ReduceOp::Average);
            let mut large = vec![200u8; 70_000];
            group.allreduce(None, &mut large, &average).expect("allreduce");
            assert!(large.iter().all(|&byte| byte == 200), "an average of equal values is that value");
            for exact in [-7i64, 7, i64::MAX, i64::MIN] {
                let own = if group.rank() == 0 { exact } else { 0 };
                let mut buffer = own.to_ne_bytes();
                let how = Reduction::new(DType::I64, ReduceOp::Average);
                group.allreduce(None, &mut buffer, &how).expect("allreduce");
                assert_eq!(i64::from_ne_bytes(buffer), exact / ranks);
            }
        });
    }
}

/// The tree of pairwise combinations, written plainly.
fn adasum_reference(mut vectors: Vec<Vec<f64>>) -> Vec<f64> {
    while vectors.len() > 1 {
        vectors = vectors
            .chunks(2)
            .map(|pair| match pair {
                [a, b] => {
                    let dot = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| x * y).sum::<f64>();
                    let (ab, aa, bb) = (dot(a, b), dot(a, a), dot(b, b));
                    a.iter()
                        .zip(b)
                        .map(|(x, y)| (1.0 - ab / 2.0 / aa) * x + (1.0 - ab / 2.0 / bb) * y)
                        .collect()
                }
                _ => pair[0].clone(),
            })
            .collect();
    }
    vectors.remove(0)
}

#[test]
fn adasum_combines_by_its_formula_on_any_number_of_ranks() {
    for layout in LAYOUTS {
        on_ranks(layout, |_, group| {
            for elements in [3usize, 5000, 90_000] {
                let vector = |rank: usize| -> Vec<f64> {
                    (0..elements).map(|index| ((index * 3 + rank * 7) % 11) as f64 - 4.5).collect()
                };
                let wanted = adasum_reference((0..group.size()).map(vector).collect());
                let mut buffer: Vec<u8> = vector(group.rank()).iter().flat_map(|x| x.to_ne_bytes()).collect();
                group
                    .allreduce(None, &mut buffer, &Reduction::new(DType::F64, ReduceOp::Adasum))
                    .expect("adasum");
                for (bytes, wanted) in buffer.chunks_exact(8).zip(&wanted) {
                    let got = f64::from_ne_bytes(bytes.try_into().expect("eight bytes"));
                    assert!((got - wanted).abs() <= 1e-9 * wanted.abs().max(1.0), "{got} is not {wanted}");
                }
            }
        });
    }
}

#[test]
fn all_ranks_get_the_same_bits_for_sums_that_depend_on_order() {
    for layout in LAYOUTS {
        for elements in [40usize, 30_011, 700_001] {
            let results = on_ranks(layout, |_, group| {
                let rank = group.rank() as f32;
                let values = (0..elements).map(|index| 1.0 / (index as f32 + 1.3 * rank + 1.0));
                let mut buffer: Vec<u8> = values.flat_map(f32::to_ne_bytes).collect();
                group
                    .allreduce(None, &mut buffer, &Reduction::new(DType::F32, ReduceOp::Sum))
                    .expect("allreduce");
                buffer
            });
            assert!(results.windows(2).all(|pair| pair[0] == pair[1]), "{layout:?}, {elements} elements");
        }
    }
}

#[test]
fn links_are_what_the_layout_says_also_when_ranks_are_interleaved() {
    let labels: Vec<String> = ["a", "b", "a", "b", "a"].map(String::from).to_vec();
    let loopback = IpAddr::from([127, 0, 0, 1]);
    let links = on_labelled(loopback, &labels, |fabric, group| {
        check_allreduce(group, DType::F32, ReduceOp::Sum, 300_000);
        check_allreduce(group, DType::I32, ReduceOp::Max, 10);
        let lengths = rows_of(1001, 5);
        let mut output = vec![0; lengths[group.rank()] * 4];
        let own = input(DType::I32, group.rank(), 1001);
        let how = Reduction::new(DType::I32, ReduceOp::Sum);
        group.reducescatter(&own, &lengths, &mut output, &how).expect("reducescatter");
        let start = lengths[..group.rank()].iter().sum::<usize>() * 4;
        let wanted = expected(DType::I32, ReduceOp::Sum, 5, 1001);
        assert!(output == wanted[start..][..output.len()]);
        fabric.links()
    });
    use LinkKind::{Itself, SharedMemory, Tcp};
    assert_eq!(links[0], [Itself, Tcp, SharedMemory, Tcp, SharedMemory]);
    assert_eq!(links[3], [Tcp, SharedMemory, Tcp, Itself, Tcp]);
}

#[test]
fn the_network_may_be_ipv6() {
    on_ranks_at(IpAddr::V6(Ipv6Addr::LOCALHOST), &[1, 2], |_, group| {
        check_allreduce(group, DType::F32, ReduceOp::Sum, 100_000);
    });
}

#[test]
fn groups_of_any_members_work_at_once_from_several_threads() {
    on_ranks(&[3, 2], |fabric, world| {
        let me = fabric.rank();
        let sets: [&[usize]; 4] = [&[0, 1], &[1, 2, 3], &[0, 3, 4], &[0, 1, 2, 3, 4]];
        std::thread::scope(|scope| {
            for (id, set) in (1u64..).zip(sets).filter(|(_, set)| set.contains(&me)) {
                let mut group = fabric.group(id, set).expect("group");
                scope.spawn(move || {
                    for round in 0..40 {
                        check_allreduce(&mut group, DType::F32, ReduceOp::Sum, 1 + round * 997);
                        check_allreduce(&mut group, DType::I64, ReduceOp::Min, 17);
                    }
                });
            }
            for _ in 0..40 {
                world.barrier().expect("barrier");
            }
        });
    });
}

#[test]
fn bad_arguments_are_refused_before_anything_moves_and_the_group_lives_on() {
    on_ranks(&[2], |fabric, group| {
        let sum = Reduction::new(DType::F32, ReduceOp::Sum);
        assert!(group.allreduce(None, &mut [0; 7], &sum).is_err());
        assert!(group.allreduce(Some(&[0; 4]), &mut [0; 8], &sum).is_err());
        assert!(group.broadcast(&mut [0], 2).is_err());
        assert!(group.allgather(None, &[1], &mut [0]).is_err());
        assert!(group.alltoall(&[0; 2], &[1, 1], &mut [0; 2], &[1, 0]).is_err());
        assert!(group.allreduce(None, &mut [0; 2], &Reduction::new(DType::Bool, ReduceOp::Average)).is_err());
        assert!(group.allreduce(None, &mut [0; 4], &Reduction::new(DType::I32, ReduceOp::Adasum)).is_err());
        assert!(fabric.group(9, &[1, 0]).is_err());
        assert!(fabric.group(9, &[fabric.rank(), 7]).is_err());
        check_allreduce(group, DType::F32, ReduceOp::Sum, 100);
    });
}
