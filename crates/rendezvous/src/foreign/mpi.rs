//! What the launchers of MPI say: Open MPI's mpirun, and Hydra, which MPICH, Intel MPI and others have.

use super::{Launcher, Said, Surroundings, in_blocks, name};

pub(super) const OMPI_RANK: &str = "OMPI_COMM_WORLD_RANK";
const OMPI_SIZE: &str = "OMPI_COMM_WORLD_SIZE";
const OMPI_LOCAL_RANK: &str = "OMPI_COMM_WORLD_LOCAL_RANK";
const OMPI_LOCAL_SIZE: &str = "OMPI_COMM_WORLD_LOCAL_SIZE";
const PMIX_NAMESPACE: &str = "PMIX_NAMESPACE";
pub(super) const PMI_RANK: &str = "PMI_RANK";
const PMI_SIZE: &str = "PMI_SIZE";
const PMI_JOBID: &str = "PMI_JOBID";
const MPI_LOCAL_RANK: &str = "MPI_LOCALRANKID";
const MPI_LOCAL_SIZE: &str = "MPI_LOCALNRANKS";

/// A job of Open MPI's.
pub(super) fn open_mpi(around: &Surroundings<'_>) -> Result<Option<Said>, String> {
    let Some(world) = around.pair(OMPI_RANK, OMPI_SIZE)? else { return Ok(None) };
    let local = around.pair(OMPI_LOCAL_RANK, OMPI_LOCAL_SIZE)?;
    Ok(Some(Said {
        launcher: Launcher::OpenMpi,
        place: in_blocks(world, local)?,
        knows_host: local.is_some(),
        identity: vec![identity_or_setter(around, PMIX_NAMESPACE, OMPI_RANK)],
        host: None,
    }))
}

/// A job of Hydra's.
pub(super) fn hydra(around: &Surroundings<'_>) -> Result<Option<Said>, String> {
    let Some(world) = around.pair(PMI_RANK, PMI_SIZE)? else { return Ok(None) };
    let local = around.pair(MPI_LOCAL_RANK, MPI_LOCAL_SIZE)?;
    Ok(Some(Said {
        launcher: Launcher::Hydra,
        place: in_blocks(world, local)?,
        knows_host: local.is_some(),
        identity: vec![identity_or_setter(around, PMI_JOBID, PMI_RANK)],
        host: None,
    }))
}

/// The launcher's own name of the job or, where it has none, its process. That is another one on every host; but then
/// `MASTER_ADDR` has to be set, which stands for it.
fn identity_or_setter(around: &Surroundings<'_>, id: &str, set_by_launcher: &'static str) -> String {
    around.get(id).unwrap_or_else(|| match around.get(name::MASTER_ADDR) {
        Some(master) => master,
        None => (around.setter)(set_by_launcher).to_string(),
    })
}
