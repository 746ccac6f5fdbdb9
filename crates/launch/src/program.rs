//! Finding the program before anything is started, so that a typing error costs one clear line
//! and not one failure a rank.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::Error;

/// Where the program called `name` lies for somebody in the folder `here`, by the rules of the shell: a name with a
/// slash is a path, any other is looked for in the folders of `search`, the `PATH`.
pub(crate) fn find(name: &OsStr, search: Option<&OsStr>, here: &Path) -> Result<PathBuf, Error> {
    if name.as_bytes().contains(&b'/') {
        let path = Path::new(name);
        let found = here.join(path);
        return match fs::metadata(&found) {
            Ok(file) => executable(path, &file).map(|()| found),
            Err(_) => Err(not_found(name, "check the path".to_owned())),
        };
    }
    let mut refused = None;
    for folder in std::env::split_paths(search.unwrap_or(OsStr::new("/usr/bin:/bin"))) {
        let path = here.join(folder).join(name);
        match fs::metadata(&path).map(|file| executable(&path, &file)) {
            Ok(Ok(())) => return Ok(path),
            // The shell goes on to the next folder as well.
            Ok(Err(error)) => refused = refused.or(Some(error)),
            Err(_) => {}
        }
    }
    Err(refused.unwrap_or_else(|| {
        let shown = name.to_string_lossy();
        not_found(
            name,
            if !name.is_empty() && here.join(name).exists() {
                here_but_not_in_path(&shown)
            } else {
                "no folder of PATH has it; is the right environment active?".to_owned()
            },
        )
    }))
}

fn executable(path: &Path, file: &fs::Metadata) -> Result<(), Error> {
    let refuse = |problem: &str, hint: String| {
        Err(Error::NotExecutable { path: path.to_owned(), problem: problem.to_owned(), hint })
    };
    let shown = path.display();
    if file.is_dir() {
        return refuse("it is a folder", "name a program inside it".to_owned());
    }
    if file.permissions().mode() & 0o111 == 0 {
        let hint = match is_python(path) {
            true => format!("write: python {shown}"),
            false => format!("make it executable: chmod +x {shown}"),
        };
        return refuse("it is not marked as executable", hint);
    }
    Ok(())
}

fn here_but_not_in_path(name: &str) -> String {
    match is_python(Path::new(name)) {
        true => format!("it is a Python file of this folder; write: python {name}"),
        false => format!("it is a file of this folder; write: ./{name}"),
    }
}

fn is_python(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "py")
}

fn not_found(name: &OsStr, hint: String) -> Error {
    Error::NotFound { name: name.to_string_lossy().into_owned(), hint }
}
