//! The registry against the page made from it, against Horovod's list, and against the sources that use variables.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use ronde_settings::registry::{self, build_time};
use ronde_settings::{Kind, page, value};

/// Names in capitals that are no variables: what the timeline calls the work of the data plane, and a docstring's example.
const NO_VARIABLES: [&str; 7] = [
    "RONDE_ALLGATHER",
    "RONDE_ALLREDUCE",
    "RONDE_ALLTOALL",
    "RONDE_BCAST",
    "RONDE_EXAMPLE",
    "RONDE_MEETING",
    "RONDE_REDUCESCATTER",
];

/// Folders whose sources are for tests only, which may invent their own variables.
const FOR_TESTS: [&str; 3] = ["tests", "simulated-cuda", "test-nccl"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn the_page_is_the_one_that_the_registry_makes() {
    let written = fs::read_to_string(root().join("docs/variables.md")).expect("the page");
    assert!(
        written == page::markdown(),
        "docs/variables.md is out of date: \
         cargo run --package ronde-settings --example variables > docs/variables.md"
    );
}

#[test]
fn all_of_horovods_variables_are_there_once() {
    let names: Vec<&str> = registry::all().map(|variable| variable.name).chain(build_time::NAMES).collect();
    let different: BTreeSet<&str> = names.iter().copied().collect();
    assert_eq!(names.len(), different.len(), "a name stands twice");
    let run_time = registry::all().filter(|variable| variable.name.contains("HOROVOD_"));
    assert_eq!(run_time.count(), 51);
}

#[test]
fn every_default_is_a_value_of_its_kind() {
    for variable in registry::all() {
        let Some(default) = variable.default else { continue };
        let read = match variable.kind {
            Kind::Switch => value::switch(default).map(drop),
            Kind::Count => value::count(default).map(drop),
            Kind::Bytes => value::bytes(default).map(drop),
            Kind::Seconds => value::seconds(default).map(drop),
            Kind::Milliseconds => value::milliseconds(default).map(drop),
            Kind::Number => value::number(default).map(drop),
            Kind::Cores => value::cores(default).map(drop),
            Kind::Word(words) => value::word(default, words).map(drop),
            Kind::Path | Kind::Text => Ok(()),
        };
        assert_eq!(read, Ok(()), "{}", variable.name);
    }
}

#[test]
fn every_meaning_is_a_paragraph_of_sentences() {
    for variable in registry::all() {
        let meaning = variable.meaning;
        assert!(meaning.ends_with('.') && !meaning.contains("  "), "{}: {meaning:?}", variable.name);
    }
}

#[test]
fn every_name_that_the_sources_use_is_described() {
    let mut used = BTreeSet::new();
    for folder in ["crates", "python"] {
        collect(&root().join(folder), &mut used);
    }
    assert!(used.contains("HOROVOD_RANK") && used.contains("RONDE_MEMORY_DOMAIN"), "{used:?}");
    let known = |name: &str| registry::is_known(name) || NO_VARIABLES.contains(&name);
    let unknown: Vec<&String> = used.iter().filter(|name| !known(name)).collect();
    assert!(unknown.is_empty(), "not in crates/settings/src/registry: {unknown:?}");
}

/// Adds the variables whose quoted names stand in the sources below a folder.
fn collect(folder: &Path, used: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).expect("a folder of sources").flatten() {
        let path = entry.path();
        let name = entry.file_name();
        if path.is_dir() {
            if !FOR_TESTS.iter().any(|tests| name == *tests) {
                collect(&path, used);
            }
        } else if path.extension().is_some_and(|end| end == "rs" || end == "py") && name != "tests.rs" {
            used.extend(quoted_variables(&fs::read_to_string(&path).expect("a source")));
        }
    }
}

fn quoted_variables(source: &str) -> Vec<String> {
    let pieces = source.split(['"', '\'']);
    let ours = |piece: &&str| {
        (piece.starts_with("HOROVOD_") || piece.starts_with("RONDE_"))
            && !piece.ends_with('_')
            && piece.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_')
    };
    pieces.filter(ours).map(str::to_owned).collect()
}
