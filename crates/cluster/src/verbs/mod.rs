//! One file a verb. What they share: which folder is meant, and how commands for it are written.

pub(crate) mod down;
pub(crate) mod init;
pub(crate) mod jupyter;
mod mend;
pub(crate) mod run;
pub(crate) mod ssh;
pub(crate) mod status;
pub(crate) mod up;

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
