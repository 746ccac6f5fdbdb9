//! Which NVIDIA GPUs a host has, without opening CUDA: starting it takes a second and memory on every GPU.
//!
//! The kernel's driver lists them in `/proc`, which costs nothing. `nvidia-smi` also knows their names in
//! `CUDA_VISIBLE_DEVICES`, and those of the instances that a GPU is divided into (MIG). In a container `/proc` may list all
//! GPUs of the machine; those that were given to it have their device files in `/dev`.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::asking::said;
use crate::container;

/// A GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Device {
    /// What it is: `NVIDIA H200`.
    pub(crate) name: String,
    /// `GPU-…`; missing where it was not found out.
    pub(crate) uuid: Option<String>,
    /// The UUIDs of its instances, `MIG-…`; none if it is undivided or was not asked.
    pub(crate) instances: Vec<String>,
}

/// Where the kernel's driver and its device files are.
pub(crate) struct Kernel {
    /// `/proc/driver/nvidia`.
    driver: PathBuf,
    /// `/dev`.
    devices: PathBuf,
    /// Whether this is a container, which has only what it was given.
    contained: bool,
}

impl Kernel {
    /// Those of this machine.
    pub(crate) fn here() -> Kernel {
        Kernel {
            driver: "/proc/driver/nvidia".into(),
            devices: "/dev".into(),
            contained: container::kind().is_some(),
        }
    }

    /// The GPUs that the kernel lists and that may be used, in the order of their places on the bus: those that have device
    /// files. Outside of containers all count where none has: the first program to use one makes the files.
    pub(crate) fn gpus(&self) -> Vec<Device> {
        let Ok(folders) = fs::read_dir(self.driver.join("gpus")) else { return Vec::new() };
        let mut folders: Vec<_> = folders.flatten().map(|folder| folder.path()).collect();
        folders.sort();
        let (mut all, mut given) = (Vec::new(), Vec::new());
        for folder in folders {
            let text = fs::read_to_string(folder.join("information")).unwrap_or_default();
            let device = described(&text);
            let file = field(&text, "Device Minor").map(|minor| self.devices.join(format!("nvidia{minor}")));
            if file.is_some_and(|file| file.exists()) {
                given.push(device.clone());
            }
            all.push(device);
        }
        if given.is_empty() && !self.contained { all } else { given }
    }

    /// The version of the driver: `580.159.04`.
    pub(crate) fn version(&self) -> Option<String> {
        let text = fs::read_to_string(self.driver.join("version")).ok()?;
        let line = text.lines().find(|line| line.starts_with("NVRM version"))?;
        let is_version =
            |word: &&str| word.contains('.') && word.bytes().all(|b| b == b'.' || b.is_ascii_digit());
        line.split_whitespace().find(is_version).map(str::to_owned)
    }
}

/// A GPU by what its file `information` says.
fn described(text: &str) -> Device {
    // A GPU that has slept since the start shows question marks.
    let uuid = field(text, "GPU UUID").filter(|uuid| !uuid.contains('?'));
    Device {
        name: field(text, "Model").unwrap_or_else(|| "NVIDIA GPU".to_owned()),
        uuid,
        instances: Vec::new(),
    }
}

fn field(text: &str, name: &str) -> Option<String> {
    let (_, value) =
        text.lines().filter_map(|line| line.split_once(':')).find(|(known, _)| *known == name)?;
    Some(value.trim().to_owned()).filter(|value| !value.is_empty())
}

/// The GPUs that `nvidia-smi` lists, with all their names; `None` without that program.
pub(crate) fn listed() -> Option<Vec<Device>> {
    said(Command::new("nvidia-smi").arg("-L")).map(|text| read_list(&text))
}

/// Reads `GPU 0: NVIDIA A100 (UUID: GPU-…)`, each followed by its instances: `  MIG 1g.5gb  Device 0: (UUID: MIG-…)`.
fn read_list(text: &str) -> Vec<Device> {
    let mut devices: Vec<Device> = Vec::new();
    for line in text.lines() {
        let Some((before, uuid)) = line.trim().strip_suffix(')').and_then(|line| line.split_once("(UUID: "))
        else {
            continue;
        };
        if let Some((_, name)) = before.strip_prefix("GPU ").and_then(|rest| rest.split_once(": ")) {
            let (name, uuid) = (name.trim().to_owned(), Some(uuid.to_owned()));
            devices.push(Device { name, uuid, instances: Vec::new() });
        } else if let (true, Some(device)) = (before.starts_with("MIG "), devices.last_mut()) {
            device.instances.push(uuid.to_owned());
        }
    }
    devices
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A driver's folder and a folder of devices, as the kernel would have them; gone with this value.
    struct Pretended(PathBuf);

    impl Pretended {
        fn new(name: &str, minors: &[u32]) -> Pretended {
            let root = std::env::temp_dir().join(format!("ronde-gpus-{}-{name}", std::process::id()));
            for folder in ["driver", "dev"] {
                fs::create_dir_all(root.join(folder)).expect("a folder");
            }
            for minor in minors {
                let folder = root.join(format!("driver/gpus/0000:{:02x}:00.0", 0x19 + minor));
                fs::create_dir_all(&folder).expect("a folder");
                let text = format!(
                    "Model: \t\t NVIDIA H200\nIRQ:   \t\t 41\nGPU UUID: \t GPU-{minor}\nBus Type: \t PCIe\n\
                     Bus Location: \t 0000:00:06.0\nDevice Minor: \t {minor}\nGPU Excluded:\t No\n"
                );
                fs::write(folder.join("information"), text).expect("a file");
            }
            Pretended(root)
        }

        /// Writes files below it.
        fn with(self, files: &[(&str, &str)]) -> Pretended {
            for (name, text) in files {
                fs::write(self.0.join(name), text).expect("a file");
            }
            self
        }

        fn kernel(&self, contained: bool) -> Kernel {
            Kernel { driver: self.0.join("driver"), devices: self.0.join("dev"), contained }
        }
    }

    impl Drop for Pretended {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn uuids(devices: &[Device]) -> Vec<&str> {
        devices.iter().filter_map(|device| device.uuid.as_deref()).collect()
    }

    #[test]
    fn the_kernel_lists_gpus_in_the_order_of_the_bus() {
        let gpus = Pretended::new("order", &[1, 0]).kernel(false).gpus();
        assert_eq!(uuids(&gpus), ["GPU-0", "GPU-1"]);
        assert_eq!(gpus[0].name, "NVIDIA H200");
        assert_eq!(Pretended::new("none", &[]).kernel(false).gpus(), []);
    }

    #[test]
    fn a_container_has_those_whose_device_files_it_was_given() {
        let given = Pretended::new("given", &[0, 1, 2]).with(&[("dev/nvidia1", ""), ("dev/nvidiactl", "")]);
        assert_eq!(uuids(&given.kernel(true).gpus()), ["GPU-1"]);
        let before_first_use = Pretended::new("unused", &[0, 1]).with(&[("dev/nvidiactl", "")]);
        assert_eq!(before_first_use.kernel(false).gpus().len(), 2);
        assert_eq!(before_first_use.kernel(true).gpus(), [], "a container that was given none");
    }

    #[test]
    fn a_uuid_that_the_kernel_does_not_know_yet_is_none() {
        assert_eq!(described("GPU UUID: \t GPU-????????-????\n").uuid, None);
        assert_eq!(described("").name, "NVIDIA GPU");
    }

    #[test]
    fn the_version_is_found_whatever_the_module_is_called() {
        for line in [
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (me@)",
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  Tue Mar  3 2026",
        ] {
            let text = format!("{line}\nGCC version:  gcc 15.3.0\n");
            let pretended = Pretended::new("version", &[]).with(&[("driver/version", &text)]);
            assert_eq!(pretended.kernel(false).version().as_deref(), Some("580.159.04"), "{line}");
        }
    }

    #[test]
    fn nvidia_smi_lists_gpus_and_the_instances_they_are_divided_into() {
        let devices = read_list(
            "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5d5ba0d6)\n  \
               MIG 1g.5gb      Device  0: (UUID: MIG-c6d4f1ef)\n  \
               MIG 1g.5gb      Device  1: (UUID: MIG-cba663e8)\n\
             GPU 1: NVIDIA A100 (PCIe) (UUID: GPU-9f2a)\n",
        );
        assert_eq!(uuids(&devices), ["GPU-5d5ba0d6", "GPU-9f2a"]);
        assert_eq!(devices[0].instances, ["MIG-c6d4f1ef", "MIG-cba663e8"]);
        assert_eq!((devices[1].name.as_str(), devices[1].instances.len()), ("NVIDIA A100 (PCIe)", 0));
        assert_eq!(read_list("NVIDIA-SMI has failed because it couldn't communicate (sorry)\n"), []);
        assert_eq!(read_list("No devices found.\n"), []);
    }
}
