//! The files of a cluster folder, which this program carries, so that nothing but the wheel is needed to make one.

// `FILES`: name in the folder, whether it is a program, contents.
include!(concat!(env!("OUT_DIR"), "/files.rs"));

/// The text of a file.
pub(crate) fn text(name: &str) -> Option<&'static str> {
    let (.., contents) = FILES.iter().find(|(file, ..)| *file == name)?;
    std::str::from_utf8(contents).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_parts_of_a_cluster_folder_are_there_and_nothing_of_a_run() {
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
        let is_left = |name: &str| {
            name == "inventory.yaml" || name.contains(".tfstate") || name.starts_with(".terraform")
        };
        assert!(!FILES.iter().any(|(name, ..)| is_left(name)));
        let is_program =
            |wanted: &str| FILES.iter().any(|(name, is_program, _)| *name == wanted && *is_program);
        assert!(is_program("image/deploy/images/build/system"));
    }
}
