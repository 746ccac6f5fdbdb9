//! One file a verb. What they share: which folder is meant, how commands for it are written, and what an image is.

pub(crate) mod down;
pub(crate) mod init;
pub(crate) mod jupyter;
mod mend;
pub(crate) mod run;
pub(crate) mod ssh;
pub(crate) mod status;
pub(crate) mod up;

use std::path::{Path, PathBuf};

use crate::folder::Folder;
use crate::remote::quoted;

/// What has to be typed so that a command finds this folder; nothing if it finds it anyway.
pub(crate) fn option_for(folder: &Folder) -> String {
    let is_found = Folder::find(None).is_ok_and(|found| found.path() == folder.path());
    if is_found {
        return String::new();
    }
    format!(" --folder {}", quoted(&[folder.path().display().to_string()]))
}

/// The image that is meant, in words that mean the same in every folder: a name, or the place of an archive.
pub(crate) fn image(given: &str) -> String {
    whole(given, std::env::home_dir().as_deref())
}

/// A path with all that leads to it, if there is such a file. A name stays as it is.
pub(crate) fn whole(given: &str, home: Option<&Path>) -> String {
    let path = match (given.strip_prefix("~/"), home) {
        (Some(rest), Some(home)) => home.join(rest),
        _ => PathBuf::from(given),
    };
    let path = if path.is_file() { path.canonicalize().unwrap_or(path) } else { path };
    path.display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_s_archive_is_named_by_its_whole_path_and_a_name_stays() {
        let home = std::env::temp_dir().join(format!("ronde-image-{}", std::process::id()));
        std::fs::create_dir_all(&home).expect("a folder");
        std::fs::write(home.join("image.tar"), "").expect("a file");
        let expected = home.canonicalize().expect("it is there").join("image.tar").display().to_string();
        assert_eq!(whole("~/image.tar", Some(&home)), expected);
        assert_eq!(whole(&format!("{}/./image.tar", home.display()), None), expected);
        assert_eq!(whole("registry.example/ronde:cpu", Some(&home)), "registry.example/ronde:cpu");
        assert_eq!(whole("", Some(&home)), "");
        std::fs::remove_dir_all(home).expect("removed");
    }
}
