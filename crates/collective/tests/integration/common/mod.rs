//! Ranks as threads of one process, laid out over pretended hosts: ranks of different hosts get different labels, so
//! they reach each other by TCP over loopback exactly as ranks of different machines would.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Barrier, Mutex};

use ronde_collective::{Card, Fabric, Group, Listening};
use ronde_trust::Secret;

/// Ranks of each host; ranks count through hosts in order.
pub(crate) type Layout<'a> = &'a [usize];

/// Runs `rank` on every rank of a layout and returns the results in rank order.
pub(crate) fn on_ranks<T: Send>(
    layout: Layout<'_>,
    rank: impl Fn(&Fabric, &mut Group) -> T + Sync,
) -> Vec<T> {
    on_ranks_at(IpAddr::V4(Ipv4Addr::LOCALHOST), layout, rank)
}

/// The same with TCP on the given loopback address.
pub(crate) fn on_ranks_at<T: Send>(
    address: IpAddr,
    layout: Layout<'_>,
    rank: impl Fn(&Fabric, &mut Group) -> T + Sync,
) -> Vec<T> {
    let labels: Vec<String> = layout
        .iter()
        .enumerate()
        .flat_map(|(host, &count)| std::iter::repeat_n(format!("host {host}"), count))
        .collect();
    on_labelled(address, &labels, rank)
}

/// The same with any assignment of ranks to hosts.
pub(crate) fn on_labelled<T: Send>(
    address: IpAddr,
    labels: &[String],
    rank: impl Fn(&Fabric, &mut Group) -> T + Sync,
) -> Vec<T> {
    let meet = Barrier::new(labels.len());
    on_fabrics(address, labels, |fabric| {
        let members: Vec<usize> = (0..fabric.size()).collect();
        let mut world = fabric.group(0, &members).expect("group");
        let outcome = rank(&fabric, &mut world);
        // Nobody leaves before all are done: leaving is news that fails a neighbour's operation.
        meet.wait();
        outcome
    })
}

/// Gives every rank its fabric, without a group, to leave the job when it likes.
pub(crate) fn on_fabrics<T: Send>(
    address: IpAddr,
    labels: &[String],
    rank: impl Fn(Fabric) -> T + Sync,
) -> Vec<T> {
    let listening = labels.iter().map(|label| Listening::open(address, None).expect("loopback").apart(label));
    on_listening(&Secret::random().expect("random bytes"), listening.collect(), rank)
}

/// The same with doors that the caller has opened, in rank order.
pub(crate) fn on_listening<T: Send>(
    secret: &Secret,
    listening: Vec<Listening>,
    rank: impl Fn(Fabric) -> T + Sync,
) -> Vec<T> {
    let cards: Vec<Card> = listening.iter().map(|one| one.card().clone()).collect();
    let size = listening.len();
    let (board, meet) = (Mutex::new(vec![Vec::new(); size]), Barrier::new(size));
    std::thread::scope(|scope| {
        let threads: Vec<_> = listening
            .into_iter()
            .enumerate()
            .map(|(number, listening)| {
                let (cards, secret, board, meet, rank) =
                    (cards.clone(), secret.clone(), &board, &meet, &rank);
                scope.spawn(move || {
                    let exchange = |bytes: Vec<u8>| {
                        board.lock().expect("no panic")[number] = bytes;
                        meet.wait();
                        Ok(board.lock().expect("no panic").clone())
                    };
                    let fabric = listening
                        .connect(number, cards, secret, Arc::new(|| false), exchange)
                        .expect("fabric");
                    rank(fabric)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("rank did not panic")).collect()
    })
}
