//! Makes a table of all files of a cluster folder, which the program carries: what Terraform and Ansible need
//! (`deploy/openstack`), and what the image is built from (`deploy/images`, `examples`). Nothing else that lies there is
//! taken along (`src/embedded/belongs.rs`).

use std::fmt::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

#[path = "src/embedded/belongs.rs"]
mod belongs;

use belongs::{belongs, is_searched};

fn main() -> io::Result<()> {
    let manifest = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let root = manifest.join("../..").canonicalize()?;
    let mut files = Vec::new();
    for (from, to) in
        [("deploy/openstack", ""), ("deploy/images", "image/deploy/images/"), ("examples", "image/examples/")]
    {
        println!("cargo::rerun-if-changed={}", root.join(from).display());
        collect(&root.join(from), to, &mut files)?;
    }
    files.sort();
    refuse_secrets(&root.join("deploy/openstack/auth_data.auto.tfvars"))?;
    let mut table = String::from("pub(crate) const FILES: &[(&str, bool, &[u8])] = &[\n");
    for (name, path) in &files {
        let is_program = fs::metadata(path)?.permissions().mode() & 0o100 != 0;
        writeln!(table, "    ({name:?}, {is_program}, include_bytes!({:?})),", path.display().to_string())
            .map_err(io::Error::other)?;
    }
    table.push_str("];\n");
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    fs::write(out.join("files.rs"), table)
}

fn collect(folder: &Path, prefix: &str, files: &mut Vec<(String, PathBuf)>) -> io::Result<()> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", folder.display()));
    for entry in fs::read_dir(folder).map_err(named)? {
        let entry = entry?;
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        let place = format!("{prefix}{name}");
        if !path.is_dir() && belongs(&place) {
            files.push((place, path));
        } else if path.is_dir() && is_searched(&place) {
            collect(&path, &format!("{place}/"), files)?;
        }
    }
    Ok(())
}

/// A developer who tries the cluster from the repository writes a password into this file. It must not get into a wheel.
fn refuse_secrets(login: &Path) -> io::Result<()> {
    let text = fs::read_to_string(login)?;
    let is_value = |line: &&str| !line.trim_start().starts_with('#') && line.contains('"');
    match text.lines().filter(is_value).find(|line| !line.contains("\"YOUR_")) {
        None => Ok(()),
        Some(_) => Err(io::Error::other(format!(
            "{} has a login in it, which would become part of this program: put the placeholders back \
             (git checkout {}), and make a folder of your own with `ronde cluster init`",
            login.display(),
            login.display(),
        ))),
    }
}
