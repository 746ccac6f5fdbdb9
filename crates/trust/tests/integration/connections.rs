//! The handshake and sealed connections over real sockets: who gets in, who does not, and what both ends are
//! told.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use ronde_trust::{Error, Role, Sealed, Secret, prove, prove_within};

type Outcome<T> = (Result<T, Error>, Result<T, Error>);

/// Long enough for a busy machine, short enough that a hang fails the test.
const PATIENCE: Duration = Duration::from_secs(60);

fn secret() -> Secret {
    Secret::random().expect("randomness")
}

fn pair() -> (UnixStream, UnixStream) {
    let (a, b) = UnixStream::pair().expect("socket pair");
    for end in [&a, &b] {
        end.set_read_timeout(Some(PATIENCE)).expect("timeout");
    }
    (a, b)
}

fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let dialer = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
    (dialer, listener.accept().expect("accept").0)
}

fn prove_both(dialer: (&Secret, &[u8]), listener: (&Secret, &[u8])) -> Outcome<()> {
    let (mut a, mut b) = pair();
    thread::scope(|scope| {
        let dial = scope.spawn(move || prove(&mut a, dialer.0, Role::Dialer, dialer.1));
        let listen = prove(&mut b, listener.0, Role::Listener, listener.1);
        (dial.join().expect("dialer"), listen)
    })
}

fn sealed_pair() -> (Sealed<UnixStream>, Sealed<UnixStream>) {
    let (a, b) = pair();
    let secret = &secret();
    thread::scope(|scope| {
        let dial = scope.spawn(move || Sealed::open(a, secret, Role::Dialer, b"test"));
        let listen = Sealed::open(b, secret, Role::Listener, b"test");
        (dial.join().expect("dialer").expect("dialer"), listen.expect("listener"))
    })
}

#[test]
fn two_ends_with_the_same_secret_and_purpose_trust_each_other() {
    let secret = secret();
    let (dial, listen) = prove_both((&secret, b"data"), (&secret, b"data"));
    dial.expect("dialer");
    listen.expect("listener");
}

#[test]
fn plain_bytes_follow_the_proof_untouched() {
    let (mut a, mut b) = pair();
    let secret = &secret();
    thread::scope(|scope| {
        scope.spawn(move || {
            prove(&mut a, secret, Role::Dialer, b"data").expect("dialer");
            a.write_all(b"at once").expect("write");
        });
        prove(&mut b, secret, Role::Listener, b"data").expect("listener");
        let mut rest = [0; 7];
        b.read_exact(&mut rest).expect("read");
        assert_eq!(&rest, b"at once");
    });
}

#[test]
fn a_wrong_secret_fails_on_both_sides_and_says_so() {
    let (dial, listen) = prove_both((&secret(), b"data"), (&secret(), b"data"));
    assert!(matches!(dial, Err(Error::Rejected)), "{dial:?}");
    assert!(matches!(listen, Err(Error::Unproven)), "{listen:?}");
    assert!(dial.unwrap_err().to_string().contains("job secret"));
}

#[test]
fn a_wrong_purpose_fails_on_both_sides() {
    let secret = secret();
    let (dial, listen) = prove_both((&secret, b"data"), (&secret, b"control"));
    assert!(matches!(dial, Err(Error::Rejected)), "{dial:?}");
    assert!(matches!(listen, Err(Error::Unproven)), "{listen:?}");
}

#[test]
fn two_dialers_do_not_take_each_others_first_message_for_an_answer() {
    let (mut a, mut b) = pair();
    let secret = &secret();
    thread::scope(|scope| {
        let first = scope.spawn(move || prove(&mut a, secret, Role::Dialer, b"data"));
        assert!(prove(&mut b, secret, Role::Dialer, b"data").is_err());
        assert!(first.join().expect("thread").is_err());
    });
}

#[test]
fn a_recorded_first_message_cannot_be_replayed() {
    let (mut a, mut b) = pair();
    let secret = &secret();
    let mut recorded = [0; 49];
    thread::scope(|scope| {
        let dial = scope.spawn(move || prove(&mut a, secret, Role::Dialer, b"data"));
        b.read_exact(&mut recorded).expect("first message");
        drop(b);
        assert!(dial.join().expect("thread").is_err());
    });

    let (mut replayer, mut listener) = pair();
    thread::scope(|scope| {
        let listen = scope.spawn(move || prove(&mut listener, secret, Role::Listener, b"data"));
        replayer.write_all(&recorded).expect("replay");
        let mut answer = [0; 49];
        replayer.read_exact(&mut answer).expect("the first message alone still looks right");
        replayer.write_all(&[16]).expect("length");
        replayer.write_all(&[0; 16]).expect("a confirmation without the keys");
        let outcome = listen.join().expect("thread");
        assert!(matches!(outcome, Err(Error::Unproven)), "{outcome:?}");
    });
}

#[test]
fn garbage_instead_of_a_handshake_is_refused_on_either_side() {
    for role in [Role::Dialer, Role::Listener] {
        for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[255; 300], &[48; 49], &[1, 1]] {
            let (mut us, mut stranger) = pair();
            stranger.write_all(garbage).expect("write");
            let outcome = prove(&mut us, &secret(), role, b"data");
            assert!(
                matches!(outcome, Err(Error::NotOurs | Error::Unproven)),
                "{role:?} on {garbage:?}: {outcome:?}"
            );
        }
    }
}

#[test]
fn a_handshake_cut_short_is_an_error_at_every_length() {
    for length in 0..49 {
        let (mut us, mut stranger) = pair();
        stranger.write_all(&[48; 49][..length]).expect("write");
        drop(stranger);
        let outcome = prove(&mut us, &secret(), Role::Listener, b"data");
        assert!(matches!(outcome, Err(Error::Truncated { .. })), "{length}: {outcome:?}");
    }
}

#[test]
fn a_silent_peer_is_given_up_at_the_limit_even_if_it_drips() {
    let (mut stranger, us) = tcp_pair();
    let started = Instant::now();
    thread::scope(|scope| {
        let listen = scope
            .spawn(move || prove_within(&us, &secret(), Role::Listener, b"data", Duration::from_millis(300)));
        stranger.write_all(&[48]).expect("length");
        while !listen.is_finished() && started.elapsed() < PATIENCE {
            // Each drip restarts a plain socket timeout; the deadline must not move with it.
            let _ = stranger.write_all(&[0]);
            thread::sleep(Duration::from_millis(50)); // sleep: between two drips
        }
        assert!(listen.is_finished(), "it waits for as long as something comes");
        let outcome = listen.join().expect("thread");
        assert!(matches!(outcome, Err(Error::TimedOut)), "{outcome:?}");
    });
}

#[test]
fn messages_of_all_sizes_arrive_whole_in_both_directions() {
    let (mut a, mut b) = sealed_pair();
    for length in [0, 1, 65_518, 65_519, 65_520, 200_000, 5_000_000] {
        let message: Vec<u8> = (0..length).map(|index| (index % 251) as u8).collect();
        thread::scope(|scope| {
            scope.spawn(|| a.send(&message).expect("send"));
            assert!(b.recv(length).expect("receive") == message, "{length} bytes");
        });
        thread::scope(|scope| {
            scope.spawn(|| b.send(&message).expect("send"));
            assert!(a.recv(length).expect("receive") == message, "{length} bytes back");
        });
    }
}

#[test]
fn a_message_over_the_receivers_limit_is_an_error_not_an_allocation() {
    let (mut a, mut b) = sealed_pair();
    a.send(&[7; 101]).expect("send");
    assert!(matches!(b.recv(100), Err(Error::TooLong { max: 100 })));
}

#[test]
fn split_halves_work_from_two_threads_at_once() {
    let (secret, (dialer, listener)) = (&secret(), tcp_pair());
    thread::scope(|scope| {
        let ends = [(dialer, Role::Dialer), (listener, Role::Listener)];
        for (stream, role) in ends {
            scope.spawn(move || {
                let sealed = Sealed::open_within(stream, secret, role, b"test", PATIENCE).expect("open");
                let (mut reader, mut writer) = sealed.into_split().expect("split");
                let sending = scope.spawn(move || {
                    for round in 0..200_u32 {
                        writer.send(&vec![round as u8; 10_000]).expect("send");
                    }
                });
                for round in 0..200_u32 {
                    assert!(reader.recv(10_000).expect("receive") == vec![round as u8; 10_000]);
                }
                sending.join().expect("sender");
            });
        }
    });
}

#[test]
fn an_orderly_close_is_told_apart_from_a_cut_message() {
    let (a, mut b) = sealed_pair();
    drop(a);
    assert!(matches!(b.recv(10), Err(Error::Closed)));

    let (a, mut b) = sealed_pair();
    a.stream().write_all(&[0, 40, 1, 2, 3]).expect("half a record");
    drop(a);
    assert!(matches!(b.recv(10), Err(Error::Truncated { .. })));
}

#[test]
fn forged_and_undersized_records_are_refused() {
    let (mut a, mut b) = sealed_pair();
    a.send(b"first").expect("send");
    b.recv(10).expect("receive");
    let mut forged = vec![0, 22];
    forged.extend([9; 22]);
    a.stream().write_all(&forged).expect("forge");
    assert!(matches!(b.recv(10), Err(Error::Tampered)));

    let (a, mut b) = sealed_pair();
    a.stream().write_all(&[0, 3, 1, 2, 3]).expect("forge");
    assert!(matches!(b.recv(10), Err(Error::Tampered)));
}

#[test]
fn what_travels_does_not_show_the_message() {
    let (mut a, b) = sealed_pair();
    a.send(b"the loss is 0.25").expect("send");
    let mut wire = [0; 2 + 1 + 16 + 16];
    b.stream().read_exact(&mut wire).expect("read");
    assert!(!wire.windows(4).any(|window| window == b"loss"));
}
