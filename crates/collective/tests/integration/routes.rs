//! Ranks that a launcher has told how to reach each other: other addresses than the cards say, in one direction only, through
//! a door that hands connections on, at ports of a range. Hosts are loopback addresses of their own.

use std::collections::HashMap;
use std::io::{IoSlice, Read};
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Barrier;
use std::time::Duration;

use crate::common::on_listening;
use ronde_collective::types::{DType, ReduceOp};
use ronde_collective::{Error, Fabric, Listening, Reduction, Routes};
use ronde_trust::{Role, Secret, prove};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

const EVERYWHERE: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

fn secret() -> Secret {
    Secret::random().expect("random bytes")
}

/// The doors of a rank of host `h<host>`.
fn rank_of(host: usize, address: IpAddr, routes: &str) -> Listening {
    let routes = Routes::parse(routes).expect("routes");
    let open = Listening::open(address, None).expect("loopback");
    open.apart(&format!("host {host}")).named(format!("h{host}")).routed(routes)
}

/// Sums ranks, and a tensor that needs several wires, over all ranks.
fn sum_everywhere(fabric: &Fabric) -> Result<(), Error> {
    let members: Vec<usize> = (0..fabric.size()).collect();
    let mut group = fabric.group(0, &members)?;
    let expected = (fabric.size() * (fabric.size() - 1) / 2) as i64;
    for elements in [1, 200_000] {
        let mut buffer: Vec<u8> =
            std::iter::repeat_n((fabric.rank() as i64).to_le_bytes(), elements).flatten().collect();
        group.allreduce(None, &mut buffer, &Reduction::new(DType::I64, ReduceOp::Sum))?;
        assert!(buffer.chunks(8).all(|sum| sum == expected.to_le_bytes()), "{elements} elements");
    }
    Ok(())
}

/// Runs sums on ranks with these doors; nobody leaves before all are done.
fn sums(secret: &Secret, listening: Vec<Listening>) {
    let meet = Barrier::new(listening.len());
    on_listening(secret, listening, |fabric| {
        let outcome = sum_everywhere(&fabric);
        meet.wait();
        outcome.expect("sums");
    });
}

/// Cards say 0.0.0.0, so no rank can be dialled but by a route; and where the route is `await`, not at all.
#[test]
fn hosts_dial_the_addresses_they_were_told_and_wait_where_they_were_told_to() {
    let routes = ["h1=127.0.0.3;h2=await", "h0=await;h2=127.0.0.4", "h0=127.0.0.2;h1=await"];
    let layout = [0, 0, 1, 2, 2];
    let listening = layout.into_iter().map(|host| rank_of(host, EVERYWHERE, routes[host])).collect();
    sums(&secret(), listening);
}

/// Host 0 has two interfaces, and each of the other hosts sees another one.
#[test]
fn a_host_may_be_reached_at_different_addresses_from_different_hosts() {
    let at = |last: u8| IpAddr::V4(Ipv4Addr::new(127, 0, 0, last));
    let listening = vec![
        rank_of(0, EVERYWHERE, "h1=await;h2=await"),
        rank_of(1, at(3), "h0=127.0.0.2;h2=await"),
        rank_of(2, at(4), "h0=127.0.1.2;h1=127.0.0.3"),
    ];
    sums(&secret(), listening);
}

/// Ranks of one host that do not share memory need no route to each other, even if they listen on all addresses.
#[test]
fn ranks_of_one_host_that_share_no_memory_find_each_other_on_loopback() {
    for address in [EVERYWHERE, "::".parse().expect("an address")] {
        let open = |label| Listening::open(address, None).expect("loopback").apart(label).named("h0".into());
        sums(&secret(), vec![open("one"), open("other")]);
    }
}

/// What dialling rank 0 of host `h0` from another host ends in, when nobody ever answers there.
fn failure(listening: Listening, routes: &str) -> String {
    let patience = Duration::from_millis(300);
    let dialer = rank_of(1, EVERYWHERE, routes).patient(patience);
    let outcomes = on_listening(&secret(), vec![listening, dialer], |fabric| {
        if fabric.rank() == 0 {
            return String::new();
        }
        sum_everywhere(&fabric).expect_err("nobody there").to_string()
    });
    outcomes[1].clone()
}

#[test]
fn errors_name_the_rank_its_host_what_was_dialled_and_why_it_failed() {
    let listening = || rank_of(0, IpAddr::V4(Ipv4Addr::LOCALHOST), "h1=await");
    let port_of = |error: &str| {
        error.split([':', ' ']).find_map(|word| word.parse::<u16>().ok().filter(|&port| port > 1023))
    };
    let refused = failure(listening(), "h0=127.0.0.77");
    let port = port_of(&refused).unwrap_or_default();
    assert_eq!(refused, format!("cannot reach rank 0 on h0 at 127.0.0.77:{port}: connection refused"));
    // Takes connections and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let door = silent.local_addr().expect("its address");
    let error = failure(listening(), &format!("h0=via:{door}"));
    assert_eq!(
        error,
        format!("cannot reach rank 0 on h0 at {door}: it took the connection and did not answer")
    );
    let error = failure(rank_of(0, EVERYWHERE, "h1=await"), "");
    assert!(error.contains("on h0") && error.contains("RONDE_ROUTES"), "{error}");
    let nowhere =
        Listening::open(EVERYWHERE, None).expect("loopback").at_doorway("ronde no such door".into());
    let card = nowhere.card().clone();
    let never = std::sync::Arc::new(|| false);
    let error = nowhere
        .connect(0, vec![card], secret(), never, |links| Ok(vec![links]))
        .map(drop)
        .expect_err("no door")
        .to_string();
    assert!(error.contains("ronde no such door"), "{error}");
}

/// A host's doorway, as small as can be: takes in all its ranks, then passes on whatever comes.
struct Doorway {
    name: String,
    unix: UnixListener,
    tcp: TcpListener,
    secret: Secret,
}

impl Doorway {
    fn open(label: &str, secret: &Secret) -> Doorway {
        let name = format!("ronde test doorway {label} {}", std::process::id());
        let address = std::os::unix::net::SocketAddr::from_abstract_name(&name).expect("a name");
        Doorway {
            unix: UnixListener::bind_addr(&address).expect("abstract socket"),
            tcp: TcpListener::bind("127.0.0.1:0").expect("loopback"),
            name,
            secret: secret.clone(),
        }
    }

    fn address(&self) -> SocketAddr {
        self.tcp.local_addr().expect("its address")
    }

    /// Passes on `wires` connections for as many ranks, and is gone.
    fn serve(self, ranks: usize, wires: usize) {
        let mut inside = HashMap::new();
        for _ in 0..ranks {
            let (mut link, _) = self.unix.accept().expect("a rank");
            prove(&mut link, &self.secret, Role::Listener, b"ronde doorway 1").expect("a rank of this job");
            let mut rank = [0; 8];
            link.read_exact(&mut rank).expect("its rank");
            inside.insert(u64::from_le_bytes(rank), link);
        }
        for _ in 0..wires {
            let (mut stream, _) = self.tcp.accept().expect("a wire");
            let mut header = [0; 16];
            stream.read_exact(&mut header).expect("whom it is for");
            assert_eq!(&header[..8], b"ronde to");
            let rank = u64::from_le_bytes(header[8..].try_into().expect("eight bytes"));
            pass(&inside[&rank], &stream);
        }
    }
}

fn pass(link: &UnixStream, stream: &TcpStream) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = [stream.as_fd()];
    ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    let sent = rustix::net::sendmsg(link, &[IoSlice::new(&[0])], &mut ancillary, SendFlags::empty());
    assert_eq!(sent, Ok(1));
}

/// One wire a pair, in one direction, through a door that is gone before the second operation.
#[test]
fn wires_come_through_a_doorway_and_outlive_it() {
    let secret = secret();
    let doorway = Doorway::open("one", &secret);
    let nobody = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
    let listening = vec![
        rank_of(0, nobody, "h1=await").at_doorway(doorway.name.clone()),
        rank_of(1, nobody, &format!("h0=via:{}", doorway.address())),
    ];
    std::thread::scope(|scope| {
        let (done, gone) = std::sync::mpsc::channel();
        scope.spawn(move || {
            doorway.serve(1, 1);
            done.send(()).expect("somebody waits");
        });
        let (meet, gone) = (Barrier::new(2), std::sync::Mutex::new(gone));
        on_listening(&secret, listening, |fabric| {
            let mut group = fabric.group(0, &[0, 1]).expect("group");
            for round in 0..2 {
                let mut buffer = [fabric.rank() as u8; 4];
                let how = Reduction::new(DType::U8, ReduceOp::Sum);
                group.allreduce(None, &mut buffer, &how).expect("summed");
                assert_eq!(buffer, [1; 4]);
                if round == 0 && fabric.rank() == 0 {
                    gone.lock().expect("no panic").recv().expect("the doorway closes");
                }
                meet.wait();
            }
        });
    });
}

#[test]
fn ranks_listen_within_a_range_of_ports() {
    let address = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 8));
    // High enough to be out of the way of ports that the system gives out.
    let range = 61_000..=61_063;
    let open = |host: usize| {
        let open = Listening::open(address, Some(range.clone())).expect("a free port");
        open.apart(&format!("host {host}"))
    };
    sums(&secret(), (0..3).map(open).collect());
}
