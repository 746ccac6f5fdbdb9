//! What the cloud has of a cluster and Terraform does not know of, since it was cut short while it made it: asked by
//! `leftovers.py` of the folder, which needs OpenStack's library for Python.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::folder::Folder;

/// What the cloud answers.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Nothing,
    /// Things that nobody would delete.
    Left(Vec<String>),
    /// It could not be asked.
    Unknown {
        why: String,
    },
}

/// Asks the cloud; with `delete`, what is found is deleted first.
pub(crate) fn look(folder: &Folder, terraform: &Path, delete: bool) -> Answer {
    let asked = Command::new("python3")
        .arg("leftovers.py")
        .args(delete.then_some("--delete"))
        .arg("--terraform")
        .arg(terraform)
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .output();
    match asked {
        Ok(output) => {
            let [stdout, stderr] =
                [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
            read(output.status.code(), &stdout, &stderr)
        }
        Err(error) => Answer::Unknown { why: format!("python3: {error}") },
    }
}

/// Status 1 stands for things that are left, which are then named, and anything else but 0 for not knowing. A script
/// that breaks off ends with 1 as well, but names nothing.
fn read(status: Option<i32>, stdout: &str, stderr: &str) -> Answer {
    match status {
        Some(0) => Answer::Nothing,
        Some(1) if !stdout.trim().is_empty() => Answer::Left(stdout.lines().map(str::to_owned).collect()),
        _ => {
            let why =
                stderr.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it gave no reason");
            Answer::Unknown { why: why.trim().trim_start_matches("error: ").to_owned() }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_told_apart() {
        assert_eq!(read(Some(0), "", ""), Answer::Nothing);
        let left = vec!["port ronde-master (1)".to_owned()];
        assert_eq!(read(Some(1), "port ronde-master (1)\n", "hint: delete it"), Answer::Left(left));
        let why = "openstacksdk is not installed: pip install openstacksdk".to_owned();
        let broken = Answer::Unknown { why: "KeyError: 'id'".to_owned() };
        assert_eq!(read(Some(1), "", "Traceback:\nKeyError: 'id'\n"), broken);
        assert_eq!(read(Some(2), "", &format!("error: {why}\n")), Answer::Unknown { why });
    }
}
