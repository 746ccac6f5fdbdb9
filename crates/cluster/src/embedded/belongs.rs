//! Which files of the repository are part of a cluster folder, and so of this program; `build.rs` asks, too.
//!
//! Whoever runs Terraform or Ansible in a working copy leaves keys, tokens, plans and states there, under names that
//! nobody has thought of. So what belongs is named, and everything else is left out.

/// Files of the folder itself, besides those of Terraform.
const OF_FOLDER: [&str; 5] =
    [".gitignore", "auth_data.auto.tfvars", "await-machine", "leftovers.py", "resources.auto.tfvars"];
/// Those of `ansible`, where an inventory may lie, too.
const OF_ANSIBLE: [&str; 6] =
    [".ansible-lint", "ansible.cfg", "local.yml", "remove.yml", "requirements.txt", "site.yml"];

/// Whether a file belongs, by the place that it has in a cluster folder.
pub(crate) fn belongs(place: &str) -> bool {
    let parts: Vec<&str> = place.split('/').collect();
    let ends = |ends: &[&str]| ends.iter().any(|end| place.ends_with(end));
    match parts.as_slice() {
        [name] => OF_FOLDER.contains(name) || (ends(&[".tf"]) && !ends(&["override.tf"])),
        ["ansible", name] => OF_ANSIBLE.contains(name),
        ["ansible", "roles", _, "tasks" | "handlers" | "defaults" | "vars" | "meta", .., _] => {
            ends(&[".yml"])
        }
        ["ansible", "roles", _, "templates", .., _] => ends(&[".j2"]),
        ["ansible", "roles", _, "files", .., _] => ends(&[".py", ".sh", ".conf"]),
        // That of `ronde kube`'s manager is no cluster's.
        ["image", "deploy", "images", name] => ends(&[".Dockerfile"]) && *name != "manager.Dockerfile",
        ["image", "deploy", "images", "build" | "files", name] => !name.starts_with('.') && !ends(&["~"]),
        ["image", "examples", _] => ends(&[".py", ".ipynb"]),
        _ => false,
    }
}

/// Whether something that belongs may lie in a folder. The `image` of a folder that was tried in place is none: what the
/// image is built from is taken from where it comes from.
pub(crate) fn is_searched(place: &str) -> bool {
    place == "ansible" || place.starts_with("ansible/") || place.starts_with("image/")
}
