//! The page `docs/variables.md`, made from the registry.
//!
//! `cargo run --package ronde-settings --example variables > docs/variables.md` renews it.

use std::fmt::Write;

use crate::registry::{self, build_time};
use crate::variable::{Kind, Status, Variable};

const OPENING: &str = "\
# Environment variables

Every variable that jobs read, set, or are often given. This page is made from `crates/settings` by
`cargo run --package ronde-settings --example variables > docs/variables.md`.

Besides, `KUBECONFIG` says where `ronde kube` finds its cluster, the `OS_*` of OpenStack's own tools are what `ronde cluster
init` takes where its flags are not given, and `XDG_CACHE_HOME` moves `~/.cache/ronde`. In images, `JUPYTER_TOKEN` and
`JUPYTER_PORT` set the token and the port of JupyterLab.

A switch is on for `1`, `true`, `yes` and `on`, off for `0`, `false`, `no` and `off`, in any case. A value that cannot be
read is reported once, by rank 0, and the default is used; an empty value counts as not set. What is marked as *accepted*
changes nothing; about what is marked as *not to be had* rank 0 says a line, if it is set to something else than its
default.
";

/// The whole page.
pub fn markdown() -> String {
    let mut page = OPENING.to_owned();
    for group in registry::GROUPS {
        let _ = write!(page, "\n## {}\n{}\n", group.title, group.about);
        for variable in group.variables {
            describe(&mut page, variable);
        }
    }
    page.push_str("\n## For building Horovod: accepted and ignored\n");
    page.push_str("Nothing is compiled when Ronde is installed, so what steered that changes nothing:\n");
    let names: Vec<String> = build_time::NAMES.iter().map(|name| format!("`{name}`")).collect();
    let _ = writeln!(page, "{}.", names.join(", "));
    page
}

fn describe(page: &mut String, variable: &Variable) {
    // Writing to a string cannot fail.
    let _ = write!(page, "\n### `{}`\n", variable.name);
    let default = variable.default.map_or("not set".to_owned(), |text| format!("`{text}`"));
    let _ = write!(page, "*{}; default: {default}.* {}", kind(variable.kind), variable.meaning);
    let _ = match variable.status {
        Status::Honoured => writeln!(page),
        Status::Accepted(reason) => writeln!(page, " **Accepted**: {reason}."),
        Status::Explained(reason) => writeln!(page, " **Not to be had**: {reason}."),
    };
}

fn kind(kind: Kind) -> String {
    match kind {
        Kind::Switch => "Switch".to_owned(),
        Kind::Count => "Whole number".to_owned(),
        Kind::Bytes => "Bytes".to_owned(),
        Kind::Seconds => "Seconds".to_owned(),
        Kind::Milliseconds => "Milliseconds".to_owned(),
        Kind::Number => "Number".to_owned(),
        Kind::Cores => "Core numbers".to_owned(),
        Kind::Path => "Path".to_owned(),
        Kind::Text => "Text".to_owned(),
        Kind::Word(words) => {
            let words: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
            format!("One of {}", words.join(", "))
        }
    }
}
