//! The registry: one documented constant for each variable, a file a group.
//!
//! The doc comment of a constant is what the generated page says about it. The names that other crates set or read are the
//! same; a test goes through the sources and fails for a name that is not described here.

pub mod absent;
pub mod agent;
pub mod build_time;
pub mod development;
pub mod foreign;
pub mod gpu;
pub mod moving;
pub mod place;
pub mod telling;

use crate::variable::{Group, Variable};

/// All groups, in the order of the page.
pub const GROUPS: &[Group] = &[
    Group {
        title: "Who is in the job",
        about: "The launcher sets these for every rank. Only people who start ranks without `ronde run` set them \
                themselves; see [running](running.md).",
        variables: place::ALL,
    },
    Group {
        title: "Agents that dial in",
        about: "What `ronde agent` takes where its flags are not given, so that a container can be told by its environment.",
        variables: agent::ALL,
    },
    Group {
        title: "How tensors move",
        about: "Read by every rank in `init()`. Give all ranks the same values: `ronde run` passes on the environment \
                it has.",
        variables: moving::ALL,
    },
    Group {
        title: "GPUs",
        about: "For tensors in the memory of GPUs; see [running](running.md#gpus). Give all ranks the same values.",
        variables: gpu::ALL,
    },
    Group { title: "What you are told", about: "Warnings, logs and traces.", variables: telling::ALL },
    Group {
        title: "Parts that Ronde does not have",
        about: "Variables of Horovod's that speak of libraries and integrations which are not part of this version.",
        variables: absent::ALL,
    },
    Group {
        title: "Variables of others",
        about: "Not ours, but looked at, set, or expected by people who know Horovod.",
        variables: foreign::ALL,
    },
    Group {
        title: "For working on Ronde",
        about: "Used by the project's own tools and tests, not by the product.",
        variables: development::ALL,
    },
];

/// Every variable that is described, those that were for building Horovod left out ([`build_time::NAMES`]).
pub fn all() -> impl Iterator<Item = &'static Variable> {
    GROUPS.iter().flat_map(|group| group.variables)
}

/// Whether a name is in the registry.
pub fn is_known(name: &str) -> bool {
    all().any(|variable| variable.name == name) || build_time::NAMES.contains(&name)
}
