//! Whole jobs over real sockets: a server, its ranks as threads, and strangers at the door.

use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use ronde_rendezvous::{Client, Error, JobSpec, Loss, Place, Server};
use ronde_trust::Secret;

/// Long enough for a busy machine, short enough that a hang fails the test.
const PATIENCE: Duration = Duration::from_secs(60);

fn anywhere() -> SocketAddr {
    "127.0.0.1:0".parse().expect("address")
}

fn never() -> bool {
    false
}

fn wait_until(complaint: &str, is_so: impl Fn() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < PATIENCE, "{complaint}");
        thread::yield_now();
    }
}

/// A server and what its ranks need to join.
struct Job {
    server: Server,
    secret: Secret,
    size: usize,
}

impl Job {
    fn of(size: usize) -> Job {
        let secret = Secret::random().expect("randomness");
        let server = Server::start(anywhere(), secret.clone(), size).expect("server");
        Job { server, secret, size }
    }

    fn spec(&self, rank: usize) -> JobSpec {
        spec(self.server.addr(), &self.secret, rank, self.size)
    }

    fn join(&self, rank: usize) -> Result<(Client, Vec<Vec<u8>>), Error> {
        Client::join(&self.spec(rank), |_| vec![rank as u8; 3], &never)
    }

    /// Every rank of the job, joined.
    fn clients(&self) -> Vec<Client> {
        thread::scope(|scope| {
            let joining: Vec<_> = (0..self.size).map(|rank| scope.spawn(move || self.join(rank))).collect();
            joining.into_iter().map(|thread| thread.join().expect("thread").expect("join").0).collect()
        })
    }
}

fn spec(server: SocketAddr, secret: &Secret, rank: usize, size: usize) -> JobSpec {
    JobSpec {
        server: server.to_string(),
        secret: secret.clone(),
        place: Place { rank, size, local_rank: 0, local_size: 1, cross_rank: rank, cross_size: size },
        start_timeout: PATIENCE,
    }
}

/// The error of something that should have failed.
fn refusal<T>(result: Result<T, Error>) -> Error {
    match result {
        Ok(_) => panic!("this should have failed"),
        Err(error) => error,
    }
}

#[test]
fn all_ranks_get_all_cards_exchange_and_leave_in_order() {
    let job = &Job::of(24);
    thread::scope(|scope| {
        for rank in 0..job.size {
            scope.spawn(move || {
                let card = |local: SocketAddr| {
                    assert!(local.ip().is_loopback() && local.port() != 0, "{local}");
                    vec![rank as u8; 3]
                };
                let (client, cards) = Client::join(&job.spec(rank), card, &never).expect("join");
                assert_eq!(cards, (0..job.size).map(|r| vec![r as u8; 3]).collect::<Vec<_>>());
                for round in 0..3_u8 {
                    let parts = client.exchange("shape", vec![rank as u8, round], &never).expect("exchange");
                    let expected: Vec<_> = (0..job.size).map(|other| vec![other as u8, round]).collect();
                    assert_eq!(parts, expected);
                }
                assert!(client.loss().is_none());
                client.leave();
            });
        }
    });
    assert_eq!(job.server.wait_over(PATIENCE), Some(Ok(())));
    let departures: Vec<bool> = job.server.departures().iter().map(|departure| departure.orderly).collect();
    assert_eq!(departures, [true; 24]);
}

#[test]
fn a_large_exchange_arrives_whole() {
    let job = &Job::of(3);
    thread::scope(|scope| {
        for rank in 0..3 {
            scope.spawn(move || {
                let (client, _) = job.join(rank).expect("join");
                let parts = client.exchange("big", vec![rank as u8; 4 << 20], &never);
                let parts = parts.expect("exchange");
                assert!(parts.iter().enumerate().all(|(r, p)| p == &vec![r as u8; 4 << 20]));
                client.leave();
            });
        }
    });
}

#[test]
fn a_lost_rank_is_announced_to_everybody_with_the_supervisors_reason() {
    let job = Job::of(6);
    let mut clients = job.clients();
    let (sender, told) = mpsc::channel();
    let dead = clients.remove(4);
    for client in &clients {
        let sender = sender.clone();
        client.on_loss(move |loss: &Loss| sender.send(loss.clone()).expect("test is there"));
    }
    drop(dead);
    job.server.report(4, "killed by signal 9 (SIGKILL)".to_owned());
    for _ in &clients {
        let loss = told.recv_timeout(PATIENCE).expect("announcement");
        assert_eq!(loss.rank, Some(4));
        assert_eq!(loss.reason, "killed by signal 9 (SIGKILL)");
        assert!(!loss.host.is_empty());
    }
    assert_eq!(job.server.loss().and_then(|loss| loss.rank), Some(4));

    // Whoever asks later is told at once, and nothing waits for the dead.
    let (late, told_late) = mpsc::channel();
    clients[0].on_loss(move |loss: &Loss| late.send(loss.rank).expect("test is there"));
    assert_eq!(told_late.try_recv(), Ok(Some(4)));
    let error = refusal(clients[1].exchange("after", vec![], &never));
    assert!(error.to_string().contains("rank 4"), "{error}");
}

#[test]
fn without_a_supervisor_the_lost_connection_itself_is_the_reason() {
    let job = Job::of(2);
    let mut clients = job.clients();
    drop(clients.pop());
    let error = refusal(clients[0].exchange("a", vec![], &never));
    assert!(error.to_string().contains("rank 1"), "{error}");
    assert!(error.to_string().contains("without a goodbye"), "{error}");
}

#[test]
fn an_exchange_fails_for_those_who_wait_when_a_rank_leaves() {
    let job = Job::of(3);
    let mut clients = job.clients();
    let leaver = clients.pop().expect("rank 2");
    thread::scope(|scope| {
        let waiting: Vec<_> =
            clients.iter().map(|client| scope.spawn(|| client.exchange("sizes", vec![1], &never))).collect();
        leaver.leave();
        for thread in waiting {
            let error = refusal(thread.join().expect("thread"));
            assert!(matches!(error, Error::Exchange { .. }), "{error:?}");
            assert!(error.to_string().contains("rank 2"), "{error}");
        }
    });
    assert!(clients[0].loss().is_none(), "leaving in order is no loss");
}

#[test]
fn the_same_ranks_can_leave_and_join_again() {
    let job = Job::of(4);
    for _ in 0..5 {
        thread::scope(|scope| {
            for rank in 0..4 {
                let job = &job;
                scope.spawn(move || job.join(rank).expect("join").0.leave());
            }
        });
    }
    assert!(job.server.loss().is_none());
}

#[test]
fn strangers_do_not_disturb_the_job() {
    let job = Job::of(2);
    let mut strangers = Vec::new();
    for index in 0..300 {
        let mut stranger = TcpStream::connect(job.server.addr()).expect("connect");
        match index % 3 {
            0 => stranger.write_all(b"GET / HTTP/1.1\r\nHost: me\r\n\r\n").expect("write"),
            1 => stranger.write_all(&[48, 1, 2, 3]).expect("write"),
            _ => {}
        }
        strangers.push(stranger);
    }
    let intruder = spec(job.server.addr(), &Secret::random().expect("randomness"), 0, 2);
    let error = refusal(Client::join(&intruder, |_| vec![], &never));
    assert!(matches!(error, Error::SecretRejected { .. }), "{error:?}");
    assert!(error.to_string().contains(&job.server.addr().to_string()), "{error}");

    // Ranks that had to wait until strangers are given up one by one would not come in before their timeout.
    let clients = job.clients();
    drop(strangers);
    clients.into_iter().for_each(Client::leave);
    assert_eq!(job.server.wait_over(PATIENCE), Some(Ok(())));
}

#[test]
fn a_timeout_names_the_ranks_that_never_came() {
    let job = &Job::of(8);
    let missing = "waiting for ranks 3 and 5-7 to call init()";
    thread::scope(|scope| {
        for (rank, seconds) in [(1, 60), (2, 60), (4, 60), (0, 4)] {
            // The one that gives up first comes last, so that it gives up when the others are there.
            let are_there = || [1, 2, 4].iter().all(|&other| job.server.joined()[other]);
            wait_until("the others do not join", || rank > 0 || are_there());
            scope.spawn(move || {
                let start_timeout = Duration::from_secs(seconds);
                let spec = JobSpec { start_timeout, ..job.spec(rank) };
                let error = refusal(Client::join(&spec, |_| vec![], &never));
                assert!(error.to_string().contains(missing), "rank {rank}: {error}");
                // The first to give up takes the others along, and says why.
                let gave_up_itself = matches!(error, Error::StartTimeout { .. });
                assert_eq!(gave_up_itself, rank == 0, "rank {rank}: {error}");
            });
        }
    });
    assert_eq!(job.server.joined(), [true, true, true, false, true, false, false, false]);

    let alone = Job::of(8);
    let spec = JobSpec { start_timeout: Duration::from_secs(2), ..alone.spec(4) };
    let told = refusal(Client::join(&spec, |_| vec![], &never)).to_string();
    assert!(told.contains("waiting for ranks 0-3 and 5-7 to call init()"), "{told}");
}

#[test]
fn waiting_answers_an_interruption() {
    let job = Job::of(2);
    let asked = AtomicUsize::new(0);
    let interrupted = || asked.fetch_add(1, Ordering::Relaxed) == 2;
    let error = refusal(Client::join(&job.spec(0), |_| vec![], &interrupted));
    assert!(matches!(error, Error::Interrupted), "{error:?}");
}

#[test]
fn a_second_rank_of_the_same_number_or_another_size_is_refused_with_the_reason() {
    let job = Job::of(2);
    thread::scope(|scope| {
        let first = scope.spawn(|| job.join(0));
        wait_until("it does not join", || job.server.joined()[0]);
        let twice = refusal(job.join(0)).to_string();
        assert!(twice.contains("refused rank 0") && twice.contains("already joined"), "{twice}");
        let other = spec(job.server.addr(), &job.secret, 1, 3);
        let size = refusal(Client::join(&other, |_| vec![], &never)).to_string();
        assert!(size.contains("expects 3 ranks, but this job has 2"), "{size}");
        job.join(1).expect("the real one").0.leave();
        first.join().expect("thread").expect("undisturbed").0.leave();
    });
}

#[test]
fn a_server_that_comes_up_late_is_waited_for_and_one_that_never_does_is_named() {
    let reserved = TcpListener::bind(anywhere()).expect("listen");
    let address = reserved.local_addr().expect("address");
    drop(reserved);
    let secret = Secret::random().expect("randomness");
    let hasty = JobSpec { start_timeout: Duration::from_secs(2), ..spec(address, &secret, 0, 1) };
    let error = refusal(Client::join(&hasty, |_| vec![], &never));
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
    assert!(error.to_string().contains(&address.to_string()), "{error}");

    let refused = AtomicUsize::new(0);
    let note = || {
        refused.fetch_add(1, Ordering::Relaxed);
        false
    };
    thread::scope(|scope| {
        let patient = spec(address, &secret, 0, 1);
        let joining = scope.spawn(move || Client::join(&patient, |_| vec![5], &note));
        // It is asked whether to go on after each attempt that failed.
        wait_until("nothing is tried", || refused.load(Ordering::Relaxed) >= 3);
        let _server = Server::start(address, secret.clone(), 1).expect("server");
        let (client, cards) = joining.join().expect("thread").expect("join");
        assert_eq!(cards, [[5]]);
        client.leave();
    });
}

#[test]
fn the_end_of_the_rendezvous_is_a_loss_without_a_rank() {
    let Job { server, secret, size } = Job::of(2);
    let job = Job { server, secret, size };
    let clients = job.clients();
    let address = job.server.addr().to_string();
    let (sender, told) = mpsc::channel();
    clients[0].on_loss(move |loss: &Loss| sender.send(loss.clone()).expect("test is there"));
    drop(job);
    let loss = told.recv_timeout(PATIENCE).expect("announcement");
    assert_eq!((loss.rank, loss.host), (None, address));
}
