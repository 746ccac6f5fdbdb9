//! `--check-build`: the layout that scripts search, and what it says about frameworks.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use crate::job::{Folder, Outcome, outcome, ronde};

/// What a Python sees that has these modules in its path, besides its own.
fn checked(command: &mut Command, name: &str, modules: &[&str]) -> Outcome {
    let folder = Folder::new(name);
    for module in modules {
        let place = folder.0.join(module.replace('.', "/"));
        fs::create_dir_all(&place).expect("folder");
        fs::write(place.join("__init__.py"), "").expect("module");
    }
    // The system's own NCCL, if it has one, is not looked for.
    outcome(command.env("PYTHONPATH", &folder.0).env("RONDE_NCCL_LIBRARY", "/no/such/libnccl.so.2"))
}

/// Makes a library with one function that gives a version.
fn library(file: &Path, function: &str, version: u32) {
    fs::create_dir_all(file.parent().expect("a folder")).expect("folder");
    let source = file.with_extension("c");
    fs::write(&source, format!("int {function}(int *v) {{ *v = {version}; return 0; }}\n")).expect("source");
    let made = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(file).arg(&source).status();
    assert!(made.expect("the linker of every Rust").success());
}

#[test]
fn the_layout_is_horovods_and_what_follows_is_ours() {
    let modules = ["horovod", "horovod.torch", "torch"];
    let outcome = checked(&mut ronde(&["run", "--check-build"]), "layout", &modules);
    assert_eq!((outcome.code(), outcome.stderr.as_str()), (Some(0), ""));
    let (classic, ours) = outcome.stdout.split_once("\nRonde v").expect("a line about Ronde");
    let expected = "\
Horovod v0.28.1:

Available Frameworks:
    [ ] TensorFlow
    [X] PyTorch
    [ ] MXNet

Available Controllers:
    [ ] MPI
    [X] Gloo

Available Tensor Operations:
    [ ] NCCL
    [ ] DDL
    [ ] CCL
    [ ] MPI
    [X] Gloo
";
    assert_eq!(classic, expected);
    assert!(ours.starts_with(&format!("{}\n", env!("CARGO_PKG_VERSION"))), "{ours}");
    assert!(ours.contains("stand in for Gloo's") && ours.contains("looked for with /"), "{ours}");
    assert!(ours.contains("\n    NCCL: it cannot be opened: /no/such/libnccl.so.2: "), "{ours}");
}

#[test]
fn the_nccl_that_came_with_the_framework_is_found_and_shown_with_the_drivers_library() {
    let folder = Folder::new("gpu-libraries");
    let (nccl, cuda) = (folder.0.join("nvidia/nccl/lib/libnccl.so.2"), folder.0.join("driver/libcuda.so.1"));
    library(&nccl, "ncclGetVersion", 22803);
    library(&cuda, "cuDriverGetVersion", 13000);
    let mut command = ronde(&["run", "--check-build"]);
    command.env("PYTHONPATH", &folder.0).env("RONDE_CUDA_LIBRARY", &cuda).env_remove("RONDE_NCCL_LIBRARY");
    let shown = outcome(&mut command);
    assert!(shown.stdout.contains("    [X] NCCL\n"), "{}", shown.stdout);
    let lines = format!(
        "    CUDA: the driver's library is for CUDA 13.0: {}\n    NCCL: 2.28.3: {}\n",
        cuda.display(),
        nccl.display()
    );
    assert!(shown.stdout.ends_with(&lines), "{lines} not in {}", shown.stdout);
    let other = folder.0.join("mine/libnccl.so.2");
    library(&other, "ncclGetVersion", 21605);
    let shown = outcome(command.env("RONDE_NCCL_LIBRARY", &other));
    assert!(shown.stdout.ends_with(&format!("    NCCL: 2.16.5: {}\n", other.display())), "{}", shown.stdout);
}

#[test]
fn a_framework_without_its_front_is_not_available() {
    let modules = ["horovod", "torch", "tensorflow", "mxnet"];
    let outcome = checked(&mut ronde(&["run", "-cb"]), "no-front", &modules);
    assert_eq!(outcome.code(), Some(0), "{outcome:?}");
    for line in ["    [ ] TensorFlow\n", "    [ ] PyTorch\n", "    [ ] MXNet\n"] {
        assert!(outcome.stdout.contains(line), "{line:?} not in {}", outcome.stdout);
    }
}

#[test]
fn horovodrun_asks_the_python_beside_it_and_not_the_folder_it_is_called_in() {
    let folder = Folder::new("beside");
    let python = Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output();
    let python = String::from_utf8(python.expect("a Python").stdout).expect("a path");
    // A copy, because the program knows itself by where it really is.
    let horovodrun = folder.0.join("horovodrun");
    fs::copy(env!("CARGO_BIN_EXE_ronde"), &horovodrun).expect("copy");
    symlink(python.trim(), folder.0.join("python")).expect("link");
    fs::create_dir_all(folder.0.join("here/torch")).expect("folder");
    fs::write(folder.0.join("here/torch/__init__.py"), "").expect("module");
    let mut command = Command::new("sh");
    // Started by a shell: a file that was just written may still be open for writing in another test's child.
    command.args(["-c", "until \"$0\" -cb; do :; done"]).arg(&horovodrun);
    let modules = ["horovod", "horovod.mxnet", "mxnet"];
    let outcome = checked(command.current_dir(folder.0.join("here")), "beside-modules", &modules);
    assert!(outcome.stdout.starts_with("Horovod v0.28.1:\n"), "{outcome:?}");
    assert!(outcome.stdout.contains("    [X] MXNet\n"), "{}", outcome.stdout);
    let place = format!("looked for with {}/python.", folder.0.display());
    assert!(outcome.stdout.contains(&place), "{place} not in {}", outcome.stdout);
}

#[test]
fn without_a_python_it_says_so_and_still_ends_well() {
    let folder = Folder::new("no-python");
    let outcome = outcome(ronde(&["run", "--check-build"]).env("PATH", &folder.0));
    assert_eq!(outcome.code(), Some(0), "{outcome:?}");
    assert!(outcome.stdout.contains("    [ ] PyTorch\n"), "{}", outcome.stdout);
    assert!(outcome.stdout.contains("no Python was found"), "{}", outcome.stdout);
}

#[test]
fn no_command_is_asked_for_but_flags_are_still_checked() {
    assert_eq!(outcome(&mut ronde(&["run", "--check-build", "--no-such-flag"])).code(), Some(2));
}
