//! Recursive doubling between host leaders: small allreduce, and meeting for a barrier.
//!
//! In step s a host exchanges its whole partial result with the host whose number differs in bit s. Hosts beyond the
//! largest power of two first give their input to a partner and get the result back at the end.
//!
//! Steps: log2(n), and 2 more if n is not a power of two. Bytes through each link: S in each step. Both ends of an
//! exchange fold the same two values, and folding two values is commutative, so all hosts end with the same bits.

use super::MIDDLE;
use crate::error::Result;
use crate::group::Group;
use crate::kernel::FoldPlan;
use crate::net::{Flow, Landing, Span};

/// Wire that small exchanges between leaders use.
const WIRE: u32 = 0;

/// Folds the `buffer`s of all host leaders (partial results in, partial results out).
pub(super) fn allreduce(group: &mut Group, buffer: &mut [u8], plan: &FoldPlan, element: usize) -> Result<()> {
    let mut other = vec![0; buffer.len()];
    exchange_all(group, buffer, &mut other, Some((plan, element)))
}

/// Returns once all host leaders have called it.
pub(super) fn meet(group: &mut Group) -> Result<()> {
    exchange_all(group, &mut [0], &mut [0], None)
}

/// The part of each host: a step is an exchange, a gift or a receipt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Send to a host.
    Give(usize),
    /// Receive from a host and fold.
    Take(usize),
    /// Both with the same host.
    Swap(usize),
    /// Receive the finished result from a host.
    Accept(usize),
}

/// All steps of host `here` of `hosts`.
fn steps(here: usize, hosts: usize) -> Vec<Step> {
    let core = 1 << hosts.ilog2();
    let extra = hosts - core;
    // The first 2 * extra hosts pair up; the even one of each pair stays in the core.
    if here < 2 * extra && here % 2 == 1 {
        return vec![Step::Give(here - 1), Step::Accept(here - 1)];
    }
    let number = if here < 2 * extra { here / 2 } else { here - extra };
    let host_of = |number: usize| {
        if number < extra { 2 * number } else { number + extra }
    };
    let mut steps = Vec::new();
    if here < 2 * extra {
        steps.push(Step::Take(here + 1));
    }
    steps.extend((0..core.ilog2()).map(|bit| Step::Swap(host_of(number ^ (1 << bit)))));
    if here < 2 * extra {
        steps.push(Step::Give(here + 1));
    }
    steps
}

fn exchange_all(
    group: &mut Group,
    buffer: &mut [u8],
    other: &mut [u8],
    plan: Option<(&FoldPlan, usize)>,
) -> Result<()> {
    let shared = group.shared.clone();
    let len = buffer.len();
    let (home, mut current, mut spare) = (buffer.as_mut_ptr(), buffer.as_mut_ptr(), other.as_mut_ptr());
    for step in steps(group.my_host, group.hosts.len()) {
        let (Step::Give(host) | Step::Take(host) | Step::Swap(host) | Step::Accept(host)) = step;
        let leader = group.leader(host);
        let wire = group.wires.get(group.members[leader], WIRE)?;
        let mut flow = Flow::new(&shared, plan);
        if matches!(step, Step::Give(_) | Step::Swap(_)) {
            flow.send(wire.clone(), vec![Span { at: current, len }]);
        }
        let landing = match (step, plan) {
            (Step::Give(_), _) => None,
            (Step::Take(_) | Step::Swap(_), Some(_)) => {
                Some(Landing::Fold { to: Span { at: spare, len }, own: current, stage: MIDDLE })
            }
            _ => Some(Landing::Store(Span { at: spare, len })),
        };
        let received = landing.is_some();
        flow.receive(wire, landing.into_iter().collect());
        flow.run()?;
        if received {
            (current, spare) = (spare, current);
        }
    }
    if current != home {
        // SAFETY: both are the two distinct buffers of `len` bytes.
        unsafe { std::ptr::copy_nonoverlapping(current, home, len) };
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the steps of all hosts on sets of hosts: everybody must end with everybody's contribution, once.
    #[test]
    fn every_host_count_ends_with_all_contributions_exactly_once() {
        for hosts in 1..70 {
            let plans: Vec<Vec<Step>> = (0..hosts).map(|here| steps(here, hosts)).collect();
            let mut have: Vec<Vec<usize>> = (0..hosts).map(|here| vec![here]).collect();
            let mut at = vec![0; hosts];
            let mut moved = true;
            while moved {
                moved = false;
                for a in 0..hosts {
                    let Some(&step) = plans[a].get(at[a]) else {
                        continue;
                    };
                    let (Step::Give(b) | Step::Swap(b)) = step else {
                        continue;
                    };
                    let answer = plans[b].get(at[b]).copied();
                    let fits = match step {
                        Step::Swap(_) => answer == Some(Step::Swap(a)),
                        _ => matches!(answer, Some(Step::Take(x) | Step::Accept(x)) if x == a),
                    };
                    if !fits {
                        continue;
                    }
                    let (mine, theirs) = (have[a].clone(), have[b].clone());
                    match answer {
                        Some(Step::Accept(_)) => have[b] = mine,
                        Some(Step::Take(_)) => have[b].extend(mine),
                        _ => {
                            have[b].extend(mine);
                            have[a].extend(theirs);
                        }
                    }
                    at[a] += 1;
                    at[b] += 1;
                    moved = true;
                }
            }
            for (here, mut all) in have.into_iter().enumerate() {
                all.sort_unstable();
                assert_eq!(all, (0..hosts).collect::<Vec<_>>(), "host {here} of {hosts}");
            }
        }
    }
}
