//! The GPUs of the hosts: which ranks may use which.
//!
//! Scripts choose a GPU by `local_rank()` among those that are visible, so by default nothing is changed, and all that is
//! said is where ranks have to share. With `--gpus-per-rank` every rank gets GPUs of its own: its `CUDA_VISIBLE_DEVICES`
//! names its share of what is visible on its host, and there they are numbered from 0. Whoever set that variable decides
//! what there is to share: the names in it, numbers or UUIDs, are handed out as they stand.
//!
//! Each agent says what its host has ([`look`], with `gpus/inventory.rs`); the rest is decided in values: who gets which GPU
//! here, and how ranks get along that share one in `gpus/mps.rs`.

mod inventory;
pub(crate) mod mps;

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::report::counted;
pub(crate) use inventory::{Device, Kernel, listed};

/// The variable by which CUDA knows which GPUs a process sees.
pub(crate) const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// The variable by which CUDA knows how many queues of work a process has. Where processes take turns on a GPU, one that has used several
/// keeps the GPU for milliseconds after it has nothing to do; with one it gives way at once.
pub(crate) const QUEUES: &str = "CUDA_DEVICE_MAX_CONNECTIONS";

/// What a host is asked about its GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Looking {
    /// What the user set for all ranks, which counts before what the host has.
    pub(crate) mask: Option<String>,
    /// The same of the folder in which programs look for NVIDIA's MPS.
    pub(crate) pipes: Option<String>,
    /// Whether they are to be handed out, or something is to be started on them: then their names must be known.
    pub(crate) by_name: bool,
}

/// The GPUs of one host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Gpus {
    /// How many there are, visible or not.
    pub(crate) present: usize,
    /// Those that programs see there, as the variable names them.
    pub(crate) visible: Vec<String>,
    /// The value of the variable there, if it is set.
    pub(crate) mask: Option<String>,
    /// Whether NVIDIA's MPS lets processes compute side by side there, instead of taking turns.
    pub(crate) mps: bool,
}

/// Looks at this host's GPUs. By name takes as long as `nvidia-smi`, otherwise no time at all.
pub(crate) fn look(looking: Looking) -> Gpus {
    let mask = looking.mask.or_else(mask_here);
    let listed = if looking.by_name { listed() } else { None };
    let devices = listed.filter(|devices| !devices.is_empty()).unwrap_or_else(|| Kernel::here().gpus());
    Gpus { mps: mps::runs_here(looking.pipes.as_deref()), ..Gpus::of(&devices, mask) }
}

/// What the variable says on this host.
pub(crate) fn mask_here() -> Option<String> {
    std::env::var_os(VISIBLE).map(|mask| mask.to_string_lossy().into_owned())
}

impl Gpus {
    /// What programs see of these devices.
    pub(crate) fn of(devices: &[Device], mask: Option<String>) -> Gpus {
        let all = names(devices);
        let visible = match &mask {
            // CUDA sees what stands before the first name that it does not know.
            Some(mask) => mask
                .split(',')
                .map(str::trim)
                .take_while(|name| is_one(name, devices))
                .map(str::to_owned)
                .collect(),
            None => all.clone(),
        };
        Gpus { present: all.len(), visible, mask, mps: false }
    }
}

/// How the variable can name all devices: by number, in whatever order CUDA counts, or, where one is divided, by UUID,
/// since only UUIDs tell its instances apart.
fn names(devices: &[Device]) -> Vec<String> {
    if devices.iter().all(|device| device.instances.is_empty()) {
        return (0..devices.len()).map(|number| number.to_string()).collect();
    }
    let each = |device: &Device| match device.instances.as_slice() {
        [] => device.uuid.clone().into_iter().collect(),
        instances => instances.to_vec(),
    };
    devices.iter().flat_map(each).collect()
}

/// Whether a name in the variable means one of the devices. UUIDs may be shortened, and where those of a device are not
/// known, one that looks like one is believed.
fn is_one(name: &str, devices: &[Device]) -> bool {
    let begins = |name: &str, uuid: Option<&str>| uuid.is_none_or(|uuid| uuid.starts_with(name));
    let gpu = |name: &str| devices.iter().any(|device| begins(name, device.uuid.as_deref()));
    if let Ok(number) = name.parse::<usize>() {
        return number < devices.len();
    }
    // Older drivers name an instance by its GPU and two numbers: MIG-GPU-…/1/0.
    if let Some((parent, _)) = name.strip_prefix("MIG-").and_then(|rest| rest.split_once('/')) {
        return gpu(parent);
    }
    if name.starts_with("MIG-") {
        let known: Vec<&String> = devices.iter().flat_map(|device| &device.instances).collect();
        return !devices.is_empty() && (known.is_empty() || known.iter().any(|uuid| uuid.starts_with(name)));
    }
    name.starts_with("GPU-") && gpu(name)
}

/// A host, its ranks and its GPUs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    pub(crate) host: &'a str,
    pub(crate) ranks: usize,
    /// Whether it is the launcher's own machine, which may go by several names: those share its GPUs.
    pub(crate) here: bool,
    pub(crate) gpus: &'a Gpus,
}

/// The places of one machine.
struct Machine<'a> {
    places: Vec<usize>,
    names: String,
    ranks: usize,
    gpus: &'a Gpus,
}

fn machines<'a>(places: &[Place<'a>]) -> Vec<Machine<'a>> {
    let mut machines: Vec<Machine<'a>> = Vec::new();
    for (number, place) in places.iter().enumerate() {
        let same =
            |machine: &&mut Machine<'_>| place.here && machine.places.iter().all(|known| places[*known].here);
        match machines.iter_mut().find(same) {
            Some(machine) => {
                machine.places.push(number);
                machine.names = format!("{} = {}", machine.names, place.host);
                machine.ranks += place.ranks;
            }
            None => machines.push(Machine {
                places: vec![number],
                names: place.host.to_owned(),
                ranks: place.ranks,
                gpus: place.gpus,
            }),
        }
    }
    machines
}

/// Gives every rank `each` GPUs of its own: for every place, the value of the variable for each of its ranks. All hosts
/// that have too few are named.
pub(crate) fn hand_out(places: &[Place<'_>], each: usize) -> Result<Vec<Vec<String>>, Vec<Error>> {
    let machines = machines(places);
    let too_few: Vec<Error> = machines
        .iter()
        .filter(|machine| machine.gpus.visible.len() / each.max(1) < machine.ranks)
        .map(|machine| Error::TooFewGpus {
            host: machine.names.clone(),
            alone: machines.len() == 1,
            there: there(machine.gpus),
            ranks: machine.ranks,
            each,
            enough_for: machine.gpus.visible.len() / each.max(1),
        })
        .collect();
    if !too_few.is_empty() {
        return Err(too_few);
    }
    let mut given = vec![Vec::new(); places.len()];
    for machine in machines {
        let mut shares = machine.gpus.visible.chunks(each.max(1)).map(|share| share.join(","));
        for number in machine.places {
            given[number] = shares.by_ref().take(places[number].ranks).collect();
        }
    }
    Ok(given)
}

/// `4 GPUs`, or `4 GPUs, of which CUDA_VISIBLE_DEVICES=0 shows 1`.
fn there(gpus: &Gpus) -> String {
    let all = if gpus.present == 0 { "no GPU".to_owned() } else { counted(gpus.present, "GPU") };
    match &gpus.mask {
        Some(mask) if gpus.present > gpus.visible.len() => {
            format!("{all}, of which {VISIBLE}={mask} shows {}", gpus.visible.len())
        }
        _ => all,
    }
}

impl Machine<'_> {
    /// Whether ranks outnumber GPUs; not where there are none.
    fn is_crowded(&self) -> bool {
        (1..self.ranks).contains(&self.gpus.visible.len())
    }
}

#[cfg(test)]
mod tests;
