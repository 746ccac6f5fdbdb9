//! `ronde kube deliver`: the first container of every pod brings `ronde`, its Python package and the job's files
//! into a folder that the training container finds.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::ExitCode;

use ronde_kube::Error;

use crate::args::KubeDeliverArgs;
use crate::refuse;

pub(crate) fn deliver(args: &KubeDeliverArgs) -> ExitCode {
    match bring(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err((doing, source)) => refuse(&Error::System { doing, source }),
    }
}

fn bring(args: &KubeDeliverArgs) -> Result<(), (&'static str, io::Error)> {
    let to = &args.folder;
    let program = to.join("bin/ronde");
    let failed = |doing: &'static str| move |error| (doing, error);
    for folder in ["bin", "home", "work", "lib/python3/site-packages"] {
        fs::create_dir_all(to.join(folder)).map_err(failed("make folders"))?;
    }
    let own = std::env::current_exe().map_err(failed("find the program"))?;
    fs::copy(own.with_file_name("ronde"), &program).map_err(failed("copy the program"))?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).map_err(failed("copy the program"))?;
    if let Some((root, files)) = ronde_launch::own_package() {
        let package = to.join("lib/python3/site-packages");
        for file in files {
            copy_file(&root.join(&file), &package.join(&file)).map_err(failed("copy the Python package"))?;
        }
    }
    if let Some(files) = &args.files {
        copy(files, &to.join("work")).map_err(failed("copy the job's files"))?;
    }
    Ok(())
}

/// Copies a folder. What a config map shows under names that begin with two dots is how it is changed, not its contents.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let name = entry.file_name();
        if name.as_encoded_bytes().starts_with(b"..") || name == "__pycache__" {
            continue;
        }
        let (source, target) = (entry.path(), to.join(&name));
        match fs::metadata(&source)?.is_dir() {
            true => copy(&source, &target)?,
            false => copy_file(&source, &target)?,
        }
    }
    Ok(())
}

/// Copies a file, which its owner may write from then on.
fn copy_file(from: &Path, to: &Path) -> io::Result<()> {
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::copy(from, to)?;
    let mode = fs::metadata(from)?.permissions().mode() | 0o200;
    fs::set_permissions(to, fs::Permissions::from_mode(mode))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_a_config_map_arrive_once_and_can_be_written() {
        let top = std::env::temp_dir().join(format!("ronde-deliver-{}", std::process::id()));
        let (from, to) = (top.join("from"), top.join("to"));
        fs::create_dir_all(from.join("..data/sub")).expect("folders");
        fs::write(from.join("..data/train.py"), "x").expect("a file");
        fs::write(from.join("..data/sub/a"), "y").expect("a file");
        fs::set_permissions(from.join("..data/train.py"), fs::Permissions::from_mode(0o555)).expect("a mode");
        for name in ["train.py", "sub"] {
            std::os::unix::fs::symlink(format!("..data/{name}"), from.join(name)).expect("a link");
        }
        copy(&from, &to).expect("copied");
        assert_eq!(fs::read_to_string(to.join("sub/a")).expect("there"), "y");
        let mode = fs::metadata(to.join("train.py")).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o755);
        assert!(!to.join("..data").exists());
        fs::remove_dir_all(top).expect("removed");
    }
}
