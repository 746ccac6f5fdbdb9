//! Which way tensors on GPUs take, as `RONDE_GPU_PATH` says it.

use crate::value;

/// The way of tensors on GPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GpuPath {
    /// Whatever fits the ranks and their GPUs.
    #[default]
    Auto,
    /// In the memory of the one GPU that all ranks share.
    Device,
    /// Through NCCL, which wants a GPU for every rank.
    Nccl,
    /// Through the memory of the host.
    Host,
}

impl GpuPath {
    const ALL: [GpuPath; 4] = [GpuPath::Auto, GpuPath::Device, GpuPath::Nccl, GpuPath::Host];

    /// The way of this name, in any case, or a complaint.
    pub(crate) fn parse(text: &str) -> Result<GpuPath, String> {
        let words = GpuPath::ALL.map(GpuPath::name);
        let word = value::word(text, &words)?;
        Ok(GpuPath::ALL.into_iter().find(|path| path.name() == word).unwrap_or_default())
    }

    /// Its name, as `RONDE_GPU_PATH` has it.
    pub fn name(self) -> &'static str {
        match self {
            GpuPath::Auto => "auto",
            GpuPath::Device => "device",
            GpuPath::Nccl => "nccl",
            GpuPath::Host => "host",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::gpu;
    use crate::variable::Kind;

    #[test]
    fn ways_are_read_by_name_in_any_case_and_are_those_of_the_registry() {
        assert_eq!(GpuPath::parse("NCCL"), Ok(GpuPath::Nccl));
        assert_eq!(GpuPath::parse("gpu"), Err("is none of auto, device, nccl, host".to_owned()));
        let Kind::Word(words) = gpu::GPU_PATH.kind else { panic!("a choice of words") };
        assert_eq!(GpuPath::ALL.map(GpuPath::name), words);
    }
}
