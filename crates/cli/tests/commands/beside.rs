//! Verbs that are programs of their own, beside `ronde`. What `ronde-kube` itself does is tested in its own crate.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::job::{Folder, outcome};

/// A copy of `ronde` in this folder, with no other program beside it.
fn ronde_alone(folder: &Folder) -> Command {
    let alone = folder.0.join("ronde");
    fs::copy(env!("CARGO_BIN_EXE_ronde"), &alone).expect("a copy");
    Command::new(alone)
}

#[test]
fn a_verb_runs_the_program_beside_ronde_with_all_words() {
    let folder = Folder::new("beside");
    for verb in ["kube", "cluster"] {
        let program = folder.file(&format!("ronde-{verb}"), "#!/bin/sh\nprintf '<%s>' \"$@\"\nexit 7\n");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("executable");
        let outcome = outcome(ronde_alone(&folder).args([verb, "plan", "--gpus", "2", "--", "-x", "a b"]));
        assert_eq!(outcome.code(), Some(7), "{outcome:?}");
        assert_eq!(outcome.stdout, "<plan><--gpus><2><--><-x><a b>");
    }
}

#[test]
fn a_missing_program_is_named_with_a_hint() {
    let folder = Folder::new("alone");
    let outcome = outcome(ronde_alone(&folder).args(["kube", "plan", "--gpus", "1"]));
    assert_eq!(outcome.code(), Some(1), "{outcome:?}");
    assert!(outcome.stderr.starts_with("error: cannot run "), "{outcome:?}");
    assert!(outcome.stderr.contains("ronde-kube") && outcome.stderr.contains("hint: "), "{outcome:?}");
}
