//! What `srun` says about a step. A batch script, or a shell inside an allocation, is not a step: there one process runs,
//! however many tasks the allocation has room for.

use super::{Launcher, Said, Surroundings};
use crate::Place;

pub(super) const STEP_ID: &str = "SLURM_STEP_ID";
const PROCID: &str = "SLURM_PROCID";
const STEP_NUM_TASKS: &str = "SLURM_STEP_NUM_TASKS";
const NTASKS: &str = "SLURM_NTASKS";
const LOCALID: &str = "SLURM_LOCALID";
const NODEID: &str = "SLURM_NODEID";
const STEP_TASKS_PER_NODE: &str = "SLURM_STEP_TASKS_PER_NODE";
const STEP_NODELIST: &str = "SLURM_STEP_NODELIST";
const JOB_ID: &str = "SLURM_JOB_ID";
const RESTART_COUNT: &str = "SLURM_RESTART_COUNT";

/// Numbers from here on stand for batch scripts, shells and the like.
const NO_STEP: u32 = 0xffff_fff0;

/// The step this process is a task of.
pub(super) fn step(around: &Surroundings<'_>) -> Result<Option<Said>, String> {
    let id = around.get(STEP_ID).and_then(|text| text.parse::<u32>().ok());
    let Some(id) = id.filter(|id| *id < NO_STEP) else { return Ok(None) };
    let tasks = if around.has(STEP_NUM_TASKS) { STEP_NUM_TASKS } else { NTASKS };
    let Some((rank, size)) = around.pair(PROCID, tasks)? else { return Ok(None) };

    let layout = match around.get(STEP_TASKS_PER_NODE) {
        None => None,
        Some(text) => {
            let counts = tasks_per_node(&text)
                .ok_or_else(|| format!("{STEP_TASKS_PER_NODE}={text:?} is no list such as 4(x2),3"))?;
            let sum: usize = counts.iter().sum();
            if sum != size {
                return Err(format!(
                    "{STEP_TASKS_PER_NODE}={text:?} makes {sum} tasks, but {tasks} says {size}"
                ));
            }
            Some(counts)
        }
    };
    let place = match &layout {
        None => Place { rank, size, local_rank: 0, local_size: 1, cross_rank: rank, cross_size: size },
        Some(counts) => on_node(around, (rank, size), counts)?,
    };
    let host = match around.get(STEP_NODELIST) {
        None => None,
        Some(list) => {
            let first = first_host(&list)
                .ok_or_else(|| format!("{STEP_NODELIST}={list:?} is no list such as n[1-3]"))?;
            Some(first)
        }
    };
    let restarts = around.get(RESTART_COUNT).unwrap_or_default();
    let identity = vec![around.get(JOB_ID).unwrap_or_default(), id.to_string(), restarts];
    Ok(Some(Said { launcher: Launcher::Slurm, place, knows_host: layout.is_some(), identity, host }))
}

/// Where a task stands, by its number on its node or, where that is not said, as if tasks filled one node after the other.
fn on_node(
    around: &Surroundings<'_>,
    (rank, size): (usize, usize),
    counts: &[usize],
) -> Result<Place, String> {
    let number = |name| around.get(name).and_then(|text| text.parse::<usize>().ok());
    let (node, local_rank) = match (number(NODEID), number(LOCALID)) {
        (Some(node), Some(local_rank)) => (node, local_rank),
        _ => {
            let mut before = 0;
            let node = counts.iter().position(|count| {
                before += count;
                rank < before
            });
            let node = node.unwrap_or_default();
            (node, rank + counts[node] - before)
        }
    };
    let local_size = counts.get(node).copied().unwrap_or_default();
    if local_rank >= local_size {
        return Err(format!(
            "{NODEID} and {LOCALID} say task {local_rank} of node {node}, but {STEP_TASKS_PER_NODE} has no such task"
        ));
    }
    let alike = |count: &&usize| **count > local_rank;
    Ok(Place {
        rank,
        size,
        local_rank,
        local_size,
        cross_rank: counts[..node].iter().filter(alike).count(),
        cross_size: counts.iter().filter(alike).count(),
    })
}

/// How many tasks each node has, in Slurm's notation: `4(x2),3` is 4, 4 and 3. `None` if it is not that.
pub fn tasks_per_node(text: &str) -> Option<Vec<usize>> {
    let mut counts = Vec::new();
    for part in text.split(',') {
        let (count, times) = match part.split_once("(x") {
            Some((count, times)) => (count, times.strip_suffix(')')?.parse().ok()?),
            None => (part, 1),
        };
        let count: usize = count.trim().parse().ok()?;
        // More nodes than there are anywhere would only take memory.
        if times > 1 << 20 {
            return None;
        }
        counts.extend(std::iter::repeat_n(count, times));
    }
    Some(counts)
}

/// The first of a list of hosts: of `gpu[01-03,7],login` that is `gpu01`.
fn first_host(list: &str) -> Option<String> {
    let mut host = String::new();
    let mut rest = list;
    while let Some(end) = rest.find(['[', ',']) {
        host.push_str(&rest[..end]);
        if rest[end..].starts_with(',') {
            return Some(host).filter(|host| !host.is_empty());
        }
        let (numbers, after) = rest[end + 1..].split_once(']')?;
        host.push_str(numbers.split([',', '-']).next().filter(|first| !first.is_empty())?);
        rest = after;
    }
    host.push_str(rest);
    Some(host).filter(|host| !host.is_empty() && !host.contains(']'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_per_node_are_counts_with_repetitions() {
        for (text, counts) in [
            ("1", Some(vec![1])),
            ("4(x2),3", Some(vec![4, 4, 3])),
            ("2,1", Some(vec![2, 1])),
            ("2(x1)", Some(vec![2])),
            ("", None),
            ("two", None),
            ("2(x", None),
            ("2(x3", None),
            ("2(x99999999999)", None),
        ] {
            assert_eq!(tasks_per_node(text), counts, "{text}");
        }
    }

    #[test]
    fn the_first_host_of_a_list_is_found_behind_brackets() {
        for (list, first) in [
            ("login", Some("login")),
            ("gpu[1-3,7],login", Some("gpu1")),
            ("gpu[7,1-3]", Some("gpu7")),
            ("n[001-010]", Some("n001")),
            ("r[2-3]n[4-5]-ib,x", Some("r2n4-ib")),
            ("a,b[1-2]", Some("a")),
            ("", None),
            (",a", None),
            ("n[1-2", None),
            ("n[]", None),
        ] {
            assert_eq!(first_host(list).as_deref(), first, "{list}");
        }
    }
}
