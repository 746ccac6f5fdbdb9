//! What torchrun says, and whatever else uses PyTorch's names: tasks of Kubernetes, Ray and Spark.

use super::name::{MASTER_ADDR, MASTER_PORT};
use super::{Launcher, Said, Surroundings, in_blocks, mpi, slurm};
use crate::Place;
use crate::spec::variable;

const RANK: &str = "RANK";
const WORLD_SIZE: &str = "WORLD_SIZE";
const LOCAL_RANK: &str = "LOCAL_RANK";
const LOCAL_WORLD_SIZE: &str = "LOCAL_WORLD_SIZE";
const GROUP_RANK: &str = "GROUP_RANK";
const GROUP_WORLD_SIZE: &str = "GROUP_WORLD_SIZE";
const RUN_ID: &str = "TORCHELASTIC_RUN_ID";
const RESTART_COUNT: &str = "TORCHELASTIC_RESTART_COUNT";

/// The job that these variables make.
pub(super) fn tasks(around: &Surroundings<'_>) -> Result<Option<Said>, String> {
    let others = [mpi::OMPI_RANK, mpi::PMI_RANK, slurm::STEP_ID].iter().any(|other| around.has(other));
    let meant = !others && (around.has(MASTER_ADDR) || around.has(RUN_ID));
    let complete = around.has(RANK) && around.has(WORLD_SIZE);
    if !meant && !complete {
        // One such general name alone may mean anything: scripts for srun often set some of them.
        return Ok(None);
    }
    let Some((rank, size)) = around.pair(RANK, WORLD_SIZE)? else { return Ok(None) };
    let local = around.pair(LOCAL_RANK, LOCAL_WORLD_SIZE);
    if !matches!(local, Ok(Some(_))) && is_repeated(around, (rank, size)) {
        return Ok(None);
    }
    let local = local?;
    let somewhere = around.has(MASTER_ADDR) || around.has(variable::RENDEZVOUS);
    if !somewhere && local.is_none_or(|(_, local_size)| local_size < size) {
        if others || size == 1 {
            return Ok(None);
        }
        return Err(format!(
            "{WORLD_SIZE}={size}, but {MASTER_ADDR} is not set: it names the host of rank 0"
        ));
    }
    let place = match (local, around.pair(GROUP_RANK, GROUP_WORLD_SIZE)?) {
        (Some((local_rank, local_size)), Some((cross_rank, cross_size))) => {
            Place { rank, size, local_rank, local_size, cross_rank, cross_size }
        }
        (local, _) => in_blocks((rank, size), local)?,
    };
    let identity = [MASTER_ADDR, MASTER_PORT, RUN_ID, RESTART_COUNT];
    Ok(Some(Said {
        launcher: launcher(around),
        place,
        knows_host: local.is_some(),
        identity: identity.iter().map(|name| around.get(name).unwrap_or_default()).collect(),
        host: None,
    }))
}

/// Whether these are another launcher's numbers, copied by a script. It knows more about the hosts.
fn is_repeated(around: &Surroundings<'_>, world: (usize, usize)) -> bool {
    let says_so = |read: fn(&Surroundings<'_>) -> Result<Option<Said>, String>| matches!(read(around), Ok(Some(said)) if (said.place.rank, said.place.size) == world);
    [mpi::open_mpi, mpi::hydra, slurm::step].into_iter().any(says_so)
}

/// Which of them it is.
pub(super) fn launcher(around: &Surroundings<'_>) -> Launcher {
    if around.has(RUN_ID) { Launcher::Torchrun } else { Launcher::Tasks }
}
