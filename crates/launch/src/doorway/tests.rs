//! The doorway with real sockets: ranks that are no more than their link, and ranks of `ronde-collective` that sum through it.

use std::io::{IoSliceMut, Write};
use std::net::{IpAddr, Ipv4Addr};

use ronde_collective::types::{DType, ReduceOp};
use ronde_collective::{Card, Listening, Reduction, Routes};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

use super::*;
use crate::probe::{Target, attempt};

const LIMIT: Duration = Duration::from_secs(60); // Ends tests that hang, and none on a busy machine.

fn secret() -> Secret {
    Secret::random().expect("random bytes")
}

fn anywhere() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::new(127, 0, 0, 2), 0))
}

fn open(secret: &Secret) -> Doorway {
    Doorway::open(secret.clone(), Some((anywhere(), 7))).expect("a doorway")
}

/// A rank's link to the doorway.
fn enter(doorway: &Doorway, secret: &Secret, rank: u64) -> UnixStream {
    let address = unix::SocketAddr::from_abstract_name(doorway.name()).expect("a name");
    let mut link = UnixStream::connect_addr(&address).expect("a doorway");
    prove(&mut link, secret, Role::Dialer, PURPOSE).expect("proven");
    link.write_all(&rank.to_le_bytes()).expect("said");
    link.set_read_timeout(Some(LIMIT)).expect("a limit");
    link
}

/// The next connection that is handed over.
fn taken(link: &UnixStream) -> TcpStream {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let parts = &mut [IoSliceMut::new(&mut byte)];
    rustix::net::recvmsg(link, parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC).expect("a message");
    let rights = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    let stream = TcpStream::from(rights.expect("a descriptor"));
    stream.set_nonblocking(false).expect("blocking");
    stream.set_read_timeout(Some(LIMIT)).expect("a limit");
    stream
}

/// Dials the doorway and says whom it means, and something for it.
fn dial(doorway: &Doorway, rank: u64, word: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(doorway.published.expect("a port")).expect("listening");
    stream.write_all(&header(rank)).and_then(|()| stream.write_all(word)).expect("sent");
    stream.set_read_timeout(Some(LIMIT)).expect("a limit");
    stream
}

fn hears(mut stream: &TcpStream, word: &[u8]) {
    let mut heard = vec![0; word.len()];
    stream.read_exact(&mut heard).expect("bytes");
    assert_eq!(heard, word);
}

/// Whether a connection ends without another word, be it by a reset. One that stays open runs into the limit.
fn has_ended(stream: &mut TcpStream) -> bool {
    match stream.read(&mut [0]) {
        Ok(length) => length == 0,
        Err(error) => error.kind() != io::ErrorKind::WouldBlock,
    }
}

#[test]
fn connections_go_to_the_rank_they_mean_with_every_byte_that_follows() {
    let secret = secret();
    let doorway = open(&secret);
    let links = [0, 1].map(|rank| enter(&doorway, &secret, rank));
    let mut dialer = dial(&doorway, 1, b"for one");
    let _other = dial(&doorway, 0, b"for zero");
    let mut one = taken(&links[1]);
    hears(&taken(&links[0]), b"for zero");
    hears(&one, b"for one");
    one.write_all(b"back").expect("sent");
    hears(&dialer, b"back");
    // Bytes do not pass through the agent, so its end ends nothing.
    drop(doorway);
    dialer.write_all(b"still there").expect("sent");
    hears(&one, b"still there");
}

#[test]
fn connections_wait_for_a_rank_that_comes_later_or_comes_back() {
    let secret = secret();
    let doorway = open(&secret);
    let _early = dial(&doorway, 3, b"early");
    let link = enter(&doorway, &secret, 3);
    hears(&taken(&link), b"early");
    drop(link);
    let _between = dial(&doorway, 3, b"between");
    let link = enter(&doorway, &secret, 3);
    hears(&taken(&link), b"between");
    // The agent itself may have one to hand on, which came another way.
    let listener = TcpListener::bind(anywhere()).expect("loopback");
    let mut relayed = TcpStream::connect(listener.local_addr().expect("its address")).expect("listening");
    doorway.hand(3, listener.accept().expect("a connection").0);
    relayed.write_all(b"relayed").expect("sent");
    hears(&taken(&link), b"relayed");
}

#[test]
fn strangers_get_nowhere_and_keep_nobody_out() {
    let secret = secret();
    let doorway = open(&secret);
    let port = doorway.published.expect("a port");
    let _silent: Vec<TcpStream> =
        (0..MOST + 20).map(|_| TcpStream::connect(port).expect("listening")).collect();
    let mut nonsense = TcpStream::connect(port).expect("listening");
    nonsense.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("sent");
    nonsense.set_read_timeout(Some(LIMIT)).expect("a limit");
    assert!(has_ended(&mut nonsense));
    // A rank of another job proves nothing, and gets nothing.
    let address = unix::SocketAddr::from_abstract_name(doorway.name()).expect("a name");
    let mut link = UnixStream::connect_addr(&address).expect("a doorway");
    assert!(prove(&mut link, &self::secret(), Role::Dialer, PURPOSE).is_err());
    let link = enter(&doorway, &secret, 0);
    let _dialer = dial(&doorway, 0, b"hello");
    hears(&taken(&link), b"hello");
}

#[test]
fn a_rank_that_does_not_look_gets_everything_when_it_does() {
    const MANY: usize = 400;
    let secret = secret();
    let doorway = open(&secret);
    let (slow, quick) = (enter(&doorway, &secret, 0), enter(&doorway, &secret, 1));
    let _dialers: Vec<TcpStream> = (0..MANY).map(|_| dial(&doorway, 0, b"x")).collect();
    let _other = dial(&doorway, 1, b"not held up");
    hears(&taken(&quick), b"not held up");
    for _ in 0..MANY {
        hears(&taken(&slow), b"x");
    }
}

#[test]
fn the_published_port_proves_whose_it_is() {
    let secret = secret();
    let doorway = open(&secret);
    let doors = vec![doorway.published.expect("a port")];
    let target = |identity| Target { host: 2, identity, addresses: Vec::new(), doors: doors.clone() };
    let attempts = attempt(&secret, &[target(7), target(8)], LIMIT);
    assert!(attempts[0].door && attempts[0].outcome.is_ok(), "{attempts:?}");
    assert_eq!(attempts[1].outcome, Err("another host answers there".to_owned()));
}

#[test]
fn a_closed_doorway_leaves_nothing_open() {
    let secret = secret();
    let doorway = open(&secret);
    let mut link = enter(&doorway, &secret, 0);
    let mut waiting = dial(&doorway, 9, b"");
    let (port, name) = (doorway.published.expect("a port"), doorway.name().to_owned());
    drop(doorway);
    assert_eq!(link.read(&mut [0]).expect("an end"), 0);
    assert!(has_ended(&mut waiting));
    assert!(TcpStream::connect(port).is_err());
    let address = unix::SocketAddr::from_abstract_name(&name).expect("a name");
    assert!(UnixStream::connect_addr(&address).is_err());
}

/// Three hosts that cannot be dialled but through their doorways: hosts 1 and 2 dial host 0, host 2 dials host 1.
#[test]
fn ranks_sum_through_the_doorways_of_their_hosts() {
    let secret = secret();
    let hosts = [0usize, 0, 1, 2];
    let doorways: Vec<Doorway> = (0..3).map(|_| open(&secret)).collect();
    let via = |host: usize| format!("h{host}=via:{}", doorways[host].published.expect("a port"));
    let routes =
        ["h1=await;h2=await".to_owned(), format!("{};h2=await", via(0)), format!("{};{}", via(0), via(1))];
    let doors = |host: usize| {
        let open = Listening::open(IpAddr::V4(Ipv4Addr::LOCALHOST), None).expect("loopback");
        open.apart(&format!("host {host}"))
            .named(format!("h{host}"))
            .routed(Routes::parse(&routes[host]).expect("routes"))
            .at_doorway(doorways[host].name().to_owned())
    };
    // The second time they come back, as after `shutdown()` and `init()`.
    for _ in 0..2 {
        sum(&secret, hosts.iter().map(|&host| doors(host)).collect());
    }
}

fn sum(secret: &Secret, listening: Vec<Listening>) {
    let cards: Vec<Card> = listening.iter().map(|one| one.card().clone()).collect();
    let size = cards.len();
    let (board, meet) = (Mutex::new(vec![Vec::new(); size]), std::sync::Barrier::new(size));
    thread::scope(|scope| {
        for (rank, listening) in listening.into_iter().enumerate() {
            let (cards, board, meet) = (cards.clone(), &board, &meet);
            scope.spawn(move || {
                let exchange = |bytes: Vec<u8>| {
                    board.lock().expect("no panic")[rank] = bytes;
                    meet.wait();
                    Ok(board.lock().expect("no panic").clone())
                };
                let never = Arc::new(|| false);
                let fabric = listening.connect(rank, cards, secret.clone(), never, exchange).expect("links");
                let mut group = fabric.group(0, &(0..size).collect::<Vec<_>>()).expect("group");
                let mut buffer = vec![1u8; 100_000];
                group
                    .allreduce(None, &mut buffer, &Reduction::new(DType::U8, ReduceOp::Sum))
                    .expect("summed");
                assert!(buffer.iter().all(|&value| usize::from(value) == size));
                // Nobody leaves before all are done.
                meet.wait();
            });
        }
    });
}
