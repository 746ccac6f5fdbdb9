//! The library as a file, the way `RONDE_NCCL_LIBRARY` names it.

use ronde_nccl::Library;

#[test]
fn the_file_is_opened_by_its_path() {
    let program = std::env::current_exe().expect("this program");
    let file = program.with_file_name("libronde_test_nccl.so");
    let path = file.to_str().expect("a path of text");
    let library = Library::open(Some(path)).expect("a library with all of NCCL's functions");
    assert_eq!(library.version().to_string(), "2.28.0");
    assert_eq!(library.path(), path);
    let again = Library::open(Some(path)).expect("the same");
    assert!(std::ptr::eq(library, again));
}
