//! Where copies of NCCL lie.
//!
//! A process must not use two of them: so the one that the framework has loaded comes first, then the one that it
//! would load (Python packages keep it beside the framework's own), and the system's last.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// NCCL's file, by the name under which the loader knows it.
pub(crate) const FILE: &str = "libnccl.so.2";

/// Files to try, made from the libraries this process has mapped (`/proc/self/maps`): beside PyTorch's libraries, and
/// in the package that carries NCCL alone. Places that PyTorch leads to come first.
pub(crate) fn beside_loaded(maps: &str) -> Vec<PathBuf> {
    let mapped: BTreeSet<&Path> = maps.lines().filter_map(mapped_library).collect();
    let (torch, others): (Vec<&Path>, Vec<&Path>) = mapped.into_iter().partition(|path| is_torch(path));
    let mut places = Vec::new();
    let mut add = |place: PathBuf| {
        if !places.contains(&place) {
            places.push(place);
        }
    };
    for path in &torch {
        path.parent().map(|folder| folder.join(FILE)).into_iter().for_each(&mut add);
    }
    for path in torch.iter().chain(&others) {
        packages(path)
            .map(|packages| packages.join("nvidia/nccl/lib").join(FILE))
            .into_iter()
            .for_each(&mut add);
    }
    places
}

/// The file a line of the map names, if it looks like a library.
fn mapped_library(line: &str) -> Option<&Path> {
    // Five columns come before the path, which may hold spaces itself.
    let path = &line[line.find('/')?..];
    let name = path.rsplit('/').next()?;
    (name.ends_with(".so") || name.contains(".so.")).then(|| Path::new(path))
}

fn is_torch(path: &Path) -> bool {
    path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with("libtorch"))
}

/// The folder of Python packages a file lies in.
fn packages(path: &Path) -> Option<&Path> {
    path.ancestors().find(|folder| {
        folder.file_name().is_some_and(|name| name == "site-packages" || name == "dist-packages")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pytorchs_own_copy_comes_before_the_package_and_others() {
        let maps = "\
7f00-7f01 r-xp 00000000 08:01 11  /usr/lib/python3/dist-packages/numpy/core/_umath.cpython-311.so
7f02-7f03 r-xp 00000000 08:01 12  /opt/my env/lib/python3.11/site-packages/torch/lib/libtorch_cuda.so
7f04-7f05 r--p 00000000 08:01 12  /opt/my env/lib/python3.11/site-packages/torch/lib/libtorch_cuda.so
7f06-7f07 r-xp 00000000 08:01 13  /opt/my env/lib/python3.11/site-packages/ronde/_core.abi3.so
7f08-7f09 rw-p 00000000 00:00 0
7f0a-7f0b r-xp 00000000 08:01 14  /lib/x86_64-linux-gnu/libc.so.6
7f0c-7f0d r--p 00000000 08:01 15  /opt/my env/lib/python3.11/site-packages/data.bin
";
        let expected = [
            "/opt/my env/lib/python3.11/site-packages/torch/lib/libnccl.so.2",
            "/opt/my env/lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so.2",
            "/usr/lib/python3/dist-packages/nvidia/nccl/lib/libnccl.so.2",
        ];
        assert_eq!(beside_loaded(maps), expected.map(PathBuf::from));
    }

    #[test]
    fn without_python_packages_there_is_nothing_beside() {
        assert!(beside_loaded("7f0a-7f0b r-xp 00000000 08:01 14 /lib/libc.so.6\n").is_empty());
        assert!(beside_loaded("").is_empty());
    }
}
