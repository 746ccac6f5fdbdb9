//! The control tree with ranks as threads and hosts pretended by label: who reports to whom, frames of all sizes in both
//! directions, and everything that must wake a sleeper.
//!
//! A sleep that is not woken would last [`FOREVER`]; one that lasts as long has missed its wake-up, and the test fails.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use crate::common::{on_fabrics, on_labelled, on_ranks};
use ronde_collective::{Bell, Error, Fabric, Sleeper, Tree};

const FOREVER: Duration = Duration::from_secs(30);
/// Long enough to see that nothing wakes a sleeper.
const A_WHILE: Duration = Duration::from_millis(30);

/// One to five ranks on one host, and several hosts.
const LAYOUTS: [&[usize]; 9] = [&[1], &[2], &[3], &[4], &[5], &[2, 2], &[3, 1], &[1, 1, 1], &[1, 3]];

/// One thread sleeps while others hold the tree or ring.
const _: fn() = || {
    fn lent_between_threads<T: Send>() {}
    fn shared_between_threads<T: Clone + Send + Sync>() {}
    lent_between_threads::<Tree>();
    shared_between_threads::<Sleeper>();
    shared_between_threads::<Bell>();
};

fn control(fabric: &Fabric) -> (Tree, Sleeper, Bell) {
    let members: Vec<usize> = (0..fabric.size()).collect();
    fabric.control(0, &members).expect("control tree")
}

fn labels(hosts: &[&str]) -> Vec<String> {
    hosts.iter().map(ToString::to_string).collect()
}

fn loopback() -> IpAddr {
    IpAddr::V4(Ipv4Addr::LOCALHOST)
}

/// Sleeps unless there is news.
fn doze(tree: &Tree, sleeper: &Sleeper) {
    tree.attend(true);
    if !tree.has_news() {
        sleep_until_woken(sleeper).expect("nobody is lost");
    }
    tree.attend(false);
}

fn sleep_until_woken(sleeper: &Sleeper) -> Result<(), Error> {
    let start = Instant::now();
    let outcome = sleeper.sleep(Some(FOREVER));
    assert!(start.elapsed() < FOREVER, "a wake-up was lost");
    outcome
}

/// Whether a sleep is left alone.
fn sleeps_through(sleeper: &Sleeper) -> bool {
    let start = Instant::now();
    sleeper.sleep(Some(A_WHILE)).expect("nobody is lost");
    start.elapsed() >= A_WHILE
}

/// Waits for the next frames.
fn frames(tree: &mut Tree, sleeper: &Sleeper) -> Vec<(usize, Vec<u8>)> {
    let mut got = Vec::new();
    loop {
        tree.pump(|from, frame| got.push((from, frame.to_vec()))).expect("pump");
        if !got.is_empty() {
            return got;
        }
        doze(tree, sleeper);
    }
}

/// Frame number `index` of a member: mostly up to 200 bytes, now and then 300 KiB, and nothing that repeats.
fn frame_of(member: usize, index: usize) -> Vec<u8> {
    let mut state = (member * 1_000_003 + index + 1) as u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize
    };
    let len = if index % 1000 == 500 { 300 << 10 } else { random() % 200 };
    let seed = random();
    (0..len).map(|at| (seed + at + at / 251) as u8).collect()
}

#[test]
fn ten_thousand_frames_a_rank_arrive_in_order_and_are_answered_in_order() {
    const FRAMES: usize = 10_000;
    /// Frames under way before the next answer must come: more than a ring holds.
    const AHEAD: usize = 1500;
    for layout in LAYOUTS {
        on_ranks(layout, |fabric, world| {
            let (mut tree, sleeper, _) = control(fabric);
            let me = world.rank();
            let parent = tree.parent();
            let mut sent = if parent.is_some() { 0 } else { FRAMES };
            let mut answered = sent;
            let mut received = vec![0; world.size()];
            let heard_all = |received: &[usize], tree: &Tree| {
                tree.children().iter().all(|&child| received[child] == FRAMES)
            };
            while answered < FRAMES || !heard_all(&received, &tree) || tree.keeps_output() {
                while let Some(parent) = parent.filter(|_| sent < FRAMES.min(answered + AHEAD)) {
                    tree.send(parent, &frame_of(me, sent)).expect("send");
                    sent += 1;
                }
                let mut echoes = Vec::new();
                let came = tree
                    .pump(|from, frame| {
                        if Some(from) == parent {
                            assert!(
                                frame == frame_of(me, answered),
                                "answer {answered} to {me} in {layout:?}"
                            );
                            answered += 1;
                        } else {
                            let index = received[from];
                            assert!(frame == frame_of(from, index), "frame {index} of {from} in {layout:?}");
                            received[from] += 1;
                            echoes.push((from, frame.to_vec()));
                        }
                    })
                    .expect("pump");
                for (to, frame) in echoes {
                    tree.send(to, &frame).expect("answer");
                }
                if !came && (answered < FRAMES || !heard_all(&received, &tree) || tree.keeps_output()) {
                    doze(&tree, &sleeper);
                }
            }
            world.barrier().expect("barrier");
        });
    }
}

#[test]
fn no_wake_up_is_lost_when_both_sides_sleep_between_messages() {
    const ROUNDS: u32 = 20_000;
    for layout in [&[2][..], &[3], &[1, 1], &[2, 1]] {
        on_ranks(layout, |fabric, world| {
            let (mut tree, sleeper, _) = control(fabric);
            for round in 0..ROUNDS {
                // Up: the leader and relays wait for all of theirs. Down: the leader's word is passed on.
                let number = round.to_le_bytes();
                let mut missing = tree.children().to_vec();
                while !missing.is_empty() {
                    for (from, frame) in frames(&mut tree, &sleeper) {
                        assert_eq!(frame, number);
                        missing.retain(|&child| child != from);
                    }
                }
                if let Some(parent) = tree.parent() {
                    tree.send(parent, &number).expect("send");
                    assert_eq!(frames(&mut tree, &sleeper), [(parent, number.to_vec())]);
                }
                for child in tree.children().to_vec() {
                    tree.send(child, &number).expect("send");
                }
            }
            world.barrier().expect("barrier");
        });
    }
}

#[test]
fn relays_report_to_the_leader_and_ranks_to_their_relay() {
    on_labelled(loopback(), &labels(&["a", "b", "a", "b", "a"]), |fabric, world| {
        let (tree, ..) = control(fabric);
        let expected: [(Option<usize>, &[usize]); 5] =
            [(None, &[2, 4, 1]), (Some(0), &[3]), (Some(0), &[]), (Some(1), &[]), (Some(0), &[])];
        assert_eq!((tree.parent(), tree.children()), expected[fabric.rank()]);
        assert_eq!(tree.hosts(), [vec![0, 2, 4], vec![1, 3]]);
        assert_eq!(tree.hosts(), world.hosts());
        world.barrier().expect("barrier");
    });
}

#[test]
fn trees_of_several_sets_do_not_mix() {
    on_ranks(&[2, 2], |fabric, world| {
        let sets: [&[usize]; 3] = [&[0, 1, 2, 3], &[1, 2, 3], &[1, 3]];
        let mut trees: Vec<_> = (0u64..)
            .zip(sets)
            .filter(|(_, set)| set.contains(&fabric.rank()))
            .map(|(id, set)| (id, fabric.control(id, set).expect("control tree")))
            .collect();
        for (id, (tree, ..)) in &mut trees {
            if let Some(parent) = tree.parent() {
                tree.send(parent, &[*id as u8, fabric.rank() as u8]).expect("send");
            }
        }
        for (id, (tree, sleeper, _)) in &mut trees {
            let mut missing = tree.children().to_vec();
            while !missing.is_empty() {
                for (from, frame) in frames(tree, sleeper) {
                    assert_eq!(frame, [*id as u8, sets[*id as usize][from] as u8]);
                    missing.retain(|&child| child != from);
                }
            }
        }
        world.barrier().expect("barrier");
    });
}

/// Rank 2 is about to end; rank 1, which hears of it first, leaves in order because of that.
#[test]
fn the_rank_that_failed_first_is_blamed_and_not_the_one_that_left_because_of_it() {
    on_fabrics(loopback(), &labels(&["a"; 3]), |fabric| {
        let (tree, sleeper, _) = control(&fabric);
        let mut group = fabric.group(0, &[0, 1, 2]).expect("group");
        match fabric.rank() {
            0 => {
                let error = group.barrier().expect_err("nobody comes");
                assert!(matches!(error, Error::PeerLost { rank: 2, .. }), "{error}");
            }
            1 => {}
            _ => {
                while tree.left() != Some(1) {
                    sleep_until_woken(&sleeper).expect("nobody is lost");
                }
                fabric.fail("it has had enough");
            }
        }
    });
}

/// What a parent does not come back for until its children have acted on it, it can push out before.
#[test]
fn what_children_are_owed_is_pushed_out_without_taking_anything_in() {
    const MUCH: usize = 4 << 20;
    for layout in [&[2][..], &[1, 1]] {
        on_ranks(layout, |fabric, world| {
            let (mut tree, sleeper, _) = control(fabric);
            match tree.parent() {
                Some(parent) => {
                    tree.send(parent, &[7]).expect("send");
                    assert!(!tree.owes_children());
                    world.barrier().expect("barrier");
                    assert_eq!(frames(&mut tree, &sleeper), [(parent, vec![1; MUCH])]);
                }
                None => {
                    tree.send(1, &vec![1; MUCH]).expect("send");
                    assert!(tree.owes_children(), "no pipe takes as much while nobody reads");
                    world.barrier().expect("barrier");
                    while tree.owes_children() {
                        tree.push().expect("push");
                        std::thread::yield_now();
                    }
                    assert_eq!(frames(&mut tree, &sleeper), [(1, vec![7])]);
                }
            }
            world.barrier().expect("barrier");
        });
    }
}

#[test]
fn a_bell_wakes_its_own_rank_alone_or_in_company() {
    for layout in [&[1][..], &[2], &[1, 1]] {
        on_ranks(layout, |fabric, world| {
            let (mut tree, sleeper, bell) = control(fabric);
            assert!(sleeps_through(&sleeper), "nothing has happened");
            std::thread::scope(|scope| {
                scope.spawn(|| bell.clone().ring());
                sleep_until_woken(&sleeper).expect("nobody is lost");
            });
            assert!(sleeps_through(&sleeper), "the ring was consumed");
            assert!(!tree.pump(|_, _| ()).expect("pump"), "a ring is no frame");
            world.barrier().expect("barrier");
        });
    }
}

#[test]
fn a_rank_that_does_not_attend_is_left_alone_and_sees_the_frame_when_it_looks() {
    on_ranks(&[2], |fabric, world| {
        let (mut tree, sleeper, _) = control(fabric);
        tree.attend(true);
        tree.attend(false);
        if let Some(parent) = tree.parent() {
            tree.send(parent, b"quietly").expect("send");
        }
        world.barrier().expect("barrier");
        if tree.parent().is_none() {
            assert!(sleeps_through(&sleeper));
            assert!(tree.has_news());
            assert_eq!(frames(&mut tree, &sleeper), [(1, b"quietly".to_vec())]);
            assert!(!tree.has_news());
        }
        world.barrier().expect("barrier");
    });
}

#[test]
fn a_rank_that_does_not_attend_can_be_woken_all_the_same() {
    for layout in [&[2][..], &[1, 1]] {
        on_ranks(layout, |fabric, world| {
            let (mut tree, sleeper, _) = control(fabric);
            if let Some(parent) = tree.parent() {
                tree.send(parent, b"urgent").expect("send");
                tree.wake(parent);
            } else {
                sleep_until_woken(&sleeper).expect("nobody is lost");
                assert_eq!(frames(&mut tree, &sleeper), [(1, b"urgent".to_vec())]);
            }
            world.barrier().expect("barrier");
        });
    }
}

#[test]
fn whoever_sleeps_on_the_bell_alone_is_left_alone_by_wires() {
    on_ranks(&[1, 1], |fabric, world| {
        let (mut tree, sleeper, bell) = control(fabric);
        if let Some(parent) = tree.parent() {
            tree.send(parent, b"later").expect("send");
        } else {
            sleep_until_woken(&sleeper).expect("nobody is lost");
            let start = Instant::now();
            sleeper.sleep_on_bell(Some(A_WHILE)).expect("nobody is lost");
            assert!(start.elapsed() >= A_WHILE, "the frame is still there, and does not wake");
            bell.ring();
            sleeper.sleep_on_bell(None).expect("nobody is lost");
            assert_eq!(frames(&mut tree, &sleeper), [(1, b"later".to_vec())]);
        }
        world.barrier().expect("barrier");
    });
}

#[test]
fn a_loss_wakes_the_sleeper_and_every_later_call_names_it() {
    for layout in [&[1][..], &[2], &[1, 1]] {
        on_ranks(layout, |fabric, world| {
            let (mut tree, sleeper, _) = control(fabric);
            world.barrier().expect("barrier");
            assert!(!tree.has_news());
            let names_it = |outcome: Result<(), Error>| match outcome {
                Err(Error::PeerLost { rank: 7, reason, .. }) => assert_eq!(reason, "it burnt down"),
                other => panic!("{other:?} does not name the rank that was lost"),
            };
            std::thread::scope(|scope| {
                scope.spawn(|| fabric.lose(Some(7), "elsewhere", "it burnt down"));
                names_it(sleep_until_woken(&sleeper));
            });
            assert!(tree.has_news());
            names_it(tree.pump(|_, _| ()).map(drop));
            names_it(tree.send(0, b"still there?"));
            names_it(sleeper.sleep(None));
            // Kept until all are done: a wire that closes would wake the other side as well.
            tree
        });
    }
}

#[test]
fn a_departure_in_the_host_wakes_the_sleeper_once_and_is_no_error() {
    on_fabrics(loopback(), &labels(&["a", "a", "a"]), |fabric| {
        let (mut tree, sleeper, _) = control(&fabric);
        let (apart, apart_sleeper, _) =
            fabric.control(1, &[fabric.rank()]).expect("a tree that the leaving rank is not part of");
        let members = [0, 1, 2];
        let mut world = fabric.group(0, &members).expect("group");
        world.barrier().expect("barrier");
        if fabric.rank() == 2 {
            return;
        }
        sleep_until_woken(&sleeper).expect("leaving is no loss");
        assert_eq!(tree.left(), Some(2));
        assert!(sleeps_through(&sleeper), "one departure wakes once");
        assert_eq!(apart.left(), None);
        assert!(sleeps_through(&apart_sleeper), "others are not woken");
        // The tree goes on. Rank 0 does not leave before rank 1 has looked: a departure rings.
        match tree.parent() {
            Some(parent) => tree.send(parent, b"done").expect("send"),
            None => assert_eq!(frames(&mut tree, &sleeper), [(1, b"done".to_vec())]),
        }
    });
}

#[test]
fn a_departure_to_another_host_is_known_after_all_it_said_and_is_no_error() {
    on_fabrics(loopback(), &labels(&["a", "b"]), |fabric| {
        let (mut tree, sleeper, _) = control(&fabric);
        let mut world = fabric.group(0, &[0, 1]).expect("group");
        world.barrier().expect("barrier");
        if fabric.rank() == 1 {
            tree.send(0, b"farewell").expect("send");
            return;
        }
        let mut said = Vec::new();
        while tree.left().is_none() {
            tree.pump(|_, frame| said.push(frame.to_vec())).expect("leaving is no loss");
            doze(&tree, &sleeper);
        }
        assert_eq!((tree.left(), said), (Some(1), vec![b"farewell".to_vec()]));
        // It neither wakes anybody any more, nor is what it does not read an error.
        assert!(sleeps_through(&sleeper), "one departure wakes once");
        tree.send(1, b"too late").expect("dropped");
        tree.pump(|_, _| panic!("nothing more was sent")).expect("pump");
        assert!(!tree.keeps_output());
    });
}

#[test]
fn what_does_not_fit_a_pipe_goes_out_while_the_sender_only_sleeps_and_pumps() {
    for layout in [&[2][..], &[1, 1]] {
        on_ranks(layout, |fabric, world| {
            const LARGE: usize = 20 << 20;
            let (mut tree, sleeper, _) = control(fabric);
            if let Some(parent) = tree.parent() {
                let large: Vec<u8> = (0..LARGE).map(|at| (at ^ (at >> 8)) as u8).collect();
                tree.send(parent, &large).expect("send");
                assert!(tree.keeps_output(), "no pipe takes as much while nobody reads");
                world.barrier().expect("barrier");
                while tree.keeps_output() {
                    doze(&tree, &sleeper);
                    tree.pump(|_, _| ()).expect("pump");
                }
            } else {
                world.barrier().expect("barrier");
                let got = frames(&mut tree, &sleeper);
                assert_eq!((got.len(), got[0].0, got[0].1.len()), (1, 1, LARGE));
                assert!(got[0].1.iter().enumerate().all(|(at, &byte)| byte == (at ^ (at >> 8)) as u8));
            }
            world.barrier().expect("barrier");
        });
    }
}

#[test]
fn what_cannot_be_is_refused_before_anything_is_sent() {
    on_ranks(&[3], |fabric, world| {
        let (mut tree, ..) = control(fabric);
        let stranger = if fabric.rank() == 0 { 0 } else { 3 - fabric.rank() };
        assert!(matches!(tree.send(stranger, b"hello"), Err(Error::Invalid(_))));
        assert!(matches!(tree.send(9, b"hello"), Err(Error::Invalid(_))));
        let child_or_parent = tree.parent().unwrap_or(1);
        let too_long = vec![0; (64 << 20) + 1];
        assert!(matches!(tree.send(child_or_parent, &too_long), Err(Error::Invalid(_))));
        for members in [&[][..], &[1, 0], &[0, 1, 7]] {
            assert!(matches!(fabric.control(5, members), Err(Error::Invalid(_))), "{members:?}");
        }
        assert!(matches!(fabric.control(1 << 63, &[fabric.rank()]), Err(Error::Invalid(_))));
        assert!(!tree.keeps_output() && !tree.pump(|_, _| ()).expect("pump"));
        world.barrier().expect("barrier");
    });
}
