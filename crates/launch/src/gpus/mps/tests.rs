//! Who starts a service, which GPUs it has, what is said, and that only one that lives answers.

use super::super::tests::{gpus, place, undivided};
use super::*;

fn served(gpus: &Gpus) -> Gpus {
    Gpus { mps: true, ..gpus.clone() }
}

fn starts(mask: Option<&str>) -> Company {
    Company::Starts(Service { mask: mask.map(str::to_owned) })
}

#[test]
fn ranks_that_share_a_gpu_take_turns_unless_a_service_runs_or_is_asked_for() {
    let (none, two) = (gpus(0, None), gpus(2, None));
    let running = served(&two);
    let places =
        [place("gpu1", 3, &two), place("gpu2", 2, &two), place("gpu3", 3, &running), place("cpu1", 3, &none)];
    use Company::{Apart, InTurns, Running};
    assert_eq!(company(&places, false), [InTurns, Apart, Running, Apart]);
    assert_eq!(company(&places, true), [starts(None), Apart, Running, Apart]);
}

#[test]
fn a_machine_that_is_named_twice_has_one_service() {
    let two = gpus(2, None);
    let here = |host, ranks| Place { here: true, ..place(host, ranks, &two) };
    let places = [place("gpu2", 3, &two), here("localhost", 1), here("127.0.0.1", 2)];
    assert_eq!(company(&places, true), [starts(None), starts(None), Company::Shares(1)]);
}

#[test]
fn the_service_gets_the_ranks_choice_only_by_names_that_mean_the_same_to_both() {
    for (mask, expected) in [
        (None, None),
        (Some("2"), None),
        (Some("GPU-2abc"), Some("GPU-2abc")),
        (Some("GPU-2abc,GPU-0abc,GPU-f00d"), Some("GPU-2abc,GPU-0abc")),
        (Some("GPU-2abc,1"), None),
    ] {
        let chosen = gpus(4, mask);
        assert_eq!(company(&[place("gpu1", 5, &chosen)], true), [starts(expected)], "{mask:?}");
    }
    let mut divided = undivided(1);
    divided[0].instances = vec!["MIG-1a".to_owned(), "MIG-2b".to_owned()];
    let part = Gpus::of(&divided, Some("MIG-2b".to_owned()));
    assert_eq!(company(&[place("gpu1", 2, &part)], true), [starts(Some("MIG-2b"))]);
}

#[test]
fn sharing_is_said_once_and_only_of_hosts_with_gpus() {
    let (none, two, masked) = (gpus(0, None), gpus(2, None), gpus(2, Some("1")));
    assert_eq!(notes(&[place("gpu1", 2, &two), place("cpu1", 9, &none)], false), [""; 0]);
    let crowd = [place("gpu1", 4, &two), place("gpu2", 2, &two), place("gpu3", 2, &masked)];
    let shared = "note: gpu1 has 2 GPUs for 4 ranks, gpu3 only shows 1 GPU for 2 ranks: GPUs will be shared; scripts \
                  choose theirs by local_rank() % number of GPUs";
    let hint = format!("{shared}. NVIDIA's MPS lets them compute side by side: --mps");
    assert_eq!(notes(&crowd, false), [hint]);
    let told = format!("{shared}, side by side by NVIDIA's MPS");
    assert_eq!(
        notes(&crowd, true),
        [told, "note: --mps does nothing on gpu2: no ranks share a GPU there".to_owned()]
    );
}

#[test]
fn a_service_that_runs_is_said_to_be_used_where_one_was_asked_for() {
    let two = served(&gpus(2, None));
    let places = [place("gpu1", 4, &two)];
    let [line] = &notes(&places, false)[..] else { panic!("one line") };
    assert!(line.ends_with("number of GPUs"), "{line}");
    assert_eq!(
        notes(&places, true)[1..],
        ["note: NVIDIA's MPS runs on gpu1 already, and is used as it is".to_owned()]
    );
}

#[test]
fn problems_name_the_host_and_a_way_out() {
    let said = vec!["no such device".to_owned(), "giving up".to_owned()];
    for (problem, text) in [
        (Problem::NoProgram, "gpu1 has no nvidia-cuda-mps-control, which --mps starts"),
        (
            Problem::Ended(Ending::Exited(1), said),
            "NVIDIA's MPS ended on gpu1 before it was ready (exit status 1); it said: no such device; giving up",
        ),
        (Problem::Silent(10, Vec::new()), "NVIDIA's MPS did not answer on gpu1 within 10 s; it said nothing"),
    ] {
        assert_eq!(problem.text("gpu1"), text);
        assert!(problem.hint().contains("leave --mps out"), "{}", problem.hint());
    }
    assert!(Problem::NoProgram.hint().contains("nvidia-compute-utils"));
}

#[test]
fn only_a_service_that_lives_answers() {
    let folder = std::env::temp_dir().join(format!("ronde-mps-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    assert!(!answers(&folder), "nothing is there");
    // As the real one has it.
    let listener = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).expect("a socket");
    let address = SocketAddrUnix::new(folder.join("control")).expect("an address");
    rustix::net::bind(&listener, &address)
        .and_then(|()| rustix::net::listen(&listener, 1))
        .expect("it listens");
    assert!(answers(&folder));
    assert!(runs_here(folder.to_str()));
    drop(listener);
    assert!(folder.join("control").exists() && !answers(&folder), "what a killed one leaves");
    std::fs::remove_dir_all(&folder).expect("removed");
    assert!(!answers(Path::new(&"/x".repeat(100))), "longer than any socket's name");
}

#[test]
fn a_folder_for_sockets_has_a_short_name_wherever_temporary_files_lie() {
    assert_eq!(for_sockets(Path::new("/var/tmp"), "x"), Path::new("/var/tmp/x"));
    let deep = PathBuf::from("/deep".repeat(20));
    assert_eq!(for_sockets(&deep, "ronde-1-mps"), Path::new("/tmp/ronde-1-mps"));
}
