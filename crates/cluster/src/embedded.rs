//! The files of a cluster folder, which this program carries, so that nothing but the wheel is needed to make one.

// `FILES`: name in the folder, whether it is a program, contents.
include!(concat!(env!("OUT_DIR"), "/files.rs"));

/// The text of a file.
pub(crate) fn text(name: &str) -> Option<&'static str> {
    let (.., contents) = FILES.iter().find(|(file, ..)| *file == name)?;
    std::str::from_utf8(contents).ok()
}

#[cfg(test)]
mod belongs;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;
    use std::process::Command;

    use super::belongs::{belongs, is_searched};
    use super::*;

    #[test]
    fn all_parts_of_a_cluster_folder_are_there() {
        for name in [
            "versions.tf",
            "resources.auto.tfvars",
            "auth_data.auto.tfvars",
            "ansible/site.yml",
            "image/deploy/images/cpu.Dockerfile",
            "image/deploy/images/files/entrypoint",
            "image/examples/tensorflow2_mnist.py",
        ] {
            assert!(FILES.iter().any(|(file, ..)| *file == name), "{name}");
        }
        let is_program =
            |wanted: &str| FILES.iter().any(|(name, is_program, _)| *name == wanted && *is_program);
        assert!(is_program("image/deploy/images/build/system"));
    }

    #[test]
    fn what_a_run_leaves_in_a_working_copy_is_no_part_of_it() {
        for place in [
            ".ronde/cluster.json",
            ".terraform.lock.hcl",
            "ansible/hosts.yaml",
            "ansible/local/authority/user",
            "ansible/roles/trust/files/id_ed25519",
            "ansible/roles/trust/tasks/.main.yml.swp",
            "backend_override.tf",
            "clouds.yaml",
            "image/deploy/images/manager.Dockerfile",
            "image/dist/ronde.whl",
            "image/examples/data/mnist.npz",
            "inventory.yaml",
            "key.pub",
            "local/horovod_master/jupyter-token",
            "prod.auto.tfvars",
            "share/train.py",
            "terraform.tfstate.backup",
            "test.tfplan",
        ] {
            assert!(!belongs(place), "{place}");
        }
        for folder in [".ronde", ".terraform", "image", "local", "share"] {
            assert!(!is_searched(folder), "{folder}");
        }
        let is_left = |name: &str| {
            let words =
                ["token", "tfplan", "tfstate", "id_ed25519", "id_rsa", "clouds.yaml", "inventory.yaml"];
            words.iter().any(|word| name.contains(word)) && !name.ends_with(".j2")
        };
        let left: Vec<&str> = FILES.iter().map(|(name, ..)| *name).filter(|name| is_left(name)).collect();
        assert_eq!(left, [] as [&str; 0]);
        let has_key = |contents: &[u8]| {
            let mark = b"BEGIN OPENSSH PRIVATE KEY";
            contents.windows(mark.len()).any(|part| part == mark)
        };
        assert!(!FILES.iter().any(|(.., contents)| has_key(contents)));
    }

    /// The files that git knows below a folder, or with `others` also those that it does not ignore.
    fn known(root: &Path, folder: &str, others: bool) -> Option<BTreeSet<String>> {
        let listed = Command::new("git")
            .current_dir(root.join(folder))
            .args(["ls-files", "--cached"])
            .args(others.then_some(["--others", "--exclude-standard"]).into_iter().flatten())
            .output()
            .ok()
            .filter(|listed| listed.status.success())?;
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        // What is deleted and not committed yet is listed as well.
        let is_there = |name: &&str| root.join(folder).join(name).is_file();
        Some(listed.lines().filter(is_there).map(str::to_owned).collect())
    }

    #[test]
    fn it_is_what_the_repository_has_and_nothing_besides() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        for (folder, prefix) in [
            ("deploy/openstack", ""),
            ("deploy/images", "image/deploy/images/"),
            ("examples", "image/examples/"),
        ] {
            // Sources that were unpacked have no history to ask.
            let (Some(tracked), Some(all)) = (known(&root, folder, false), known(&root, folder, true)) else {
                return;
            };
            let of_image = |name: &str| name.starts_with("image/");
            let names = FILES.iter().map(|(name, ..)| *name);
            let carried: BTreeSet<String> = names
                .filter(|name| prefix.is_empty() != of_image(name))
                .filter_map(|name| name.strip_prefix(prefix).map(str::to_owned))
                .collect();
            let lacks: Vec<&String> = tracked.difference(&carried).collect();
            assert!(
                lacks.iter().all(|name| ["manager.Dockerfile", "README.md"].contains(&name.as_str())),
                "{folder}: name these in embedded/belongs.rs: {lacks:?}"
            );
            let more: Vec<&String> = carried.difference(&all).collect();
            assert!(more.is_empty(), "{folder}: git does not know {more:?}");
        }
    }
}
