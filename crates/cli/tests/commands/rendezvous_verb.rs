//! `ronde rendezvous`: a job whose ranks somebody else starts, here this test.

use std::thread;

use ronde_rendezvous::{Client, JobSpec};

use crate::job::{Folder, Job, outcome, ronde, wait_until};

/// A served job of two, and what rank 0 and rank 1 need to join it.
fn served(folder: &Folder) -> (Job, [JobSpec; 2]) {
    let file = folder.file("secret", &"5e".repeat(32));
    let file = file.to_string_lossy();
    let mut job = Job::start(&mut ronde(&[
        "rendezvous",
        "--size",
        "2",
        "--listen",
        "127.0.0.1:0",
        "--secret-file",
        &file,
    ]));
    let line = job.line();
    let (name, address) = line.split_once('=').expect("NAME=address");
    let spec = |rank: &str| {
        let var = |asked: &str| match asked {
            "HOROVOD_RANK" => Some(rank.to_owned()),
            "HOROVOD_SIZE" => Some("2".to_owned()),
            "RONDE_SECRET_FILE" => Some(file.to_string()),
            "RONDE_START_TIMEOUT" => Some("20".to_owned()),
            _ => (asked == name).then(|| address.to_owned()),
        };
        JobSpec::from_environment(var).expect("valid").expect("a job")
    };
    let specs = [spec("0"), spec("1")];
    (job, specs)
}

fn join_both(specs: &[JobSpec; 2]) -> Vec<Client> {
    let join = |spec| Client::join(spec, |_| vec![], &|| false).expect("join").0;
    thread::scope(|scope| {
        let joining: Vec<_> = specs.iter().map(|spec| scope.spawn(move || join(spec))).collect();
        joining.into_iter().map(|thread| thread.join().expect("thread")).collect()
    })
}

#[test]
fn it_ends_well_when_all_ranks_have_left() {
    let folder = Folder::new("served");
    let (job, specs) = served(&folder);
    join_both(&specs).into_iter().for_each(Client::leave);
    let outcome = job.end();
    assert_eq!((outcome.code(), outcome.stderr.as_str()), (Some(0), ""));
}

#[test]
fn it_ends_with_an_error_that_names_a_lost_rank() {
    let folder = Folder::new("lost");
    let (job, specs) = served(&folder);
    let mut clients = join_both(&specs);
    drop(clients.pop());
    let outcome = job.end();
    assert_eq!(outcome.code(), Some(1));
    assert!(outcome.stderr.starts_with("error: rank 1 on "), "{}", outcome.stderr);
    wait_until("the other rank hears nothing of it", || clients[0].loss().is_some());
}

#[test]
fn a_bad_secret_or_address_is_an_error_at_once() {
    let folder = Folder::new("bad-secret");
    let short = folder.file("short", "abc");
    let good = folder.file("good", &"5e".repeat(32));
    let serve = |listen: &str, file: &str| {
        outcome(&mut ronde(&["rendezvous", "--size", "1", "--listen", listen, "--secret-file", file]))
    };
    let refused = serve("127.0.0.1:0", &short.to_string_lossy());
    assert_eq!(refused.code(), Some(1));
    assert!(refused.stderr.contains("does not hold a job secret"), "{}", refused.stderr);
    assert!(refused.stderr.contains("\nhint: "), "{}", refused.stderr);
    // An address of the range for documentation: no machine has it.
    let refused = serve("192.0.2.1:4000", &good.to_string_lossy());
    assert_eq!(refused.code(), Some(1));
    assert!(refused.stderr.contains("cannot listen on 192.0.2.1:4000"), "{}", refused.stderr);
    assert_eq!(serve("nowhere", "x").code(), Some(2));
}
