//! Batches on devices start in one order on all ranks, across process sets that share ranks; and nobody waits for a turn
//! that cannot come.
//!
//! The device here only notes what is started, after a small meeting of all members such as real ones have: starting one
//! batch here and another there would end the test, or leave it hanging.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Barrier, Mutex};

use crate::ranks::{
    Dice, Floats, Rendezvous, complete, on_ranks, on_ranks_with, refused, settings, submit, sum,
};
use ronde_collective::Group;
use ronde_engine::device::{Event, Executor, Place, Started, Worker};
use ronde_engine::negotiation::Batch;
use ronde_engine::{Device, Engine, Error, Handle, Submission};

/// A point that is always reached.
struct Reached;

impl Event for Reached {
    fn reached(&self) -> bool {
        true
    }

    fn wait(&self) -> Result<(), String> {
        Ok(())
    }

    fn order(&self, _stream: u64) -> Result<(), String> {
        Ok(())
    }
}

/// What was started: the members and the names of the tensors.
type Start = (Vec<usize>, Vec<String>);

/// A device that notes what is started on it.
#[derive(Clone, Default)]
struct Notebook {
    starts: Arc<Mutex<Vec<Start>>>,
}

impl Executor for Notebook {
    fn open(&self, _group: &mut Group) -> Result<Box<dyn Worker>, Error> {
        Ok(Box::new(self.clone()))
    }
}

impl Worker for Notebook {
    fn run(&mut self, group: &mut Group, batch: &Batch, _: &[Place<'_>]) -> Result<Started, Error> {
        let names: Vec<String> = batch.items.iter().map(|item| item.name.to_string()).collect();
        let all = group.gather_small(names.join("+").as_bytes())?;
        assert!(all.iter().all(|others| *others == all[0]), "all members start the same batch");
        self.starts.lock().expect("no panic").push((group.members().to_vec(), names));
        Ok(Started::at(Arc::new(Reached)))
    }
}

/// A device on which starting waits for somebody's word.
struct Gate {
    entered: Sender<()>,
    opened: Arc<Mutex<Receiver<()>>>,
}

impl Executor for Gate {
    fn open(&self, _group: &mut Group) -> Result<Box<dyn Worker>, Error> {
        Ok(Box::new(Gate { entered: self.entered.clone(), opened: self.opened.clone() }))
    }
}

impl Worker for Gate {
    fn run(&mut self, _: &mut Group, _: &Batch, _: &[Place<'_>]) -> Result<Started, Error> {
        self.entered.send(()).expect("the test waits for it");
        self.opened.lock().expect("no panic").recv().expect("the test opens it");
        Ok(Started::at(Arc::new(Reached)))
    }
}

fn on_device(name: &str, data: &mut Floats) -> Submission {
    Submission { device: Device::Gpu, ..sum(name, data.tensor()) }
}

const ROUNDS: usize = 40;

/// Everything that one rank does in one set: in each round some operations without waiting, in an order of its own, and one
/// that it waits for at once.
fn work(engine: &Engine, set: u32) {
    let mut dice = Dice((engine.place().rank as u64) << 32 | u64::from(set));
    for round in 0..ROUNDS {
        let mut data: Vec<Floats> = (0..5).map(|_| Floats(vec![1.0; 8])).collect();
        let mut order: Vec<usize> = (0..5).collect();
        dice.shuffle(&mut order);
        let mut handles = Vec::new();
        for index in order {
            let (name, data) = (format!("{set}.{round}.{index}"), &mut data[index]);
            let what = if index == 4 { sum(name.as_str(), data.tensor()) } else { on_device(&name, data) };
            handles.push(submit(engine, set, what).expect("submitted"));
        }
        let mut alone = Floats(vec![1.0; 8]);
        let name = format!("{set}.{round}.alone");
        let what = Submission { awaited: true, ..on_device(&name, &mut alone) };
        complete(engine, set, what).expect("started");
        for handle in handles {
            engine.wait(handle).expect("started");
        }
        let members = engine.sets().into_iter().find(|(id, _)| *id == set).expect("known").1.len();
        assert_eq!(data[4].0, vec![members as f32; 8], "in host memory nothing changed");
    }
}

#[test]
fn what_two_ranks_share_starts_in_one_order_on_both() {
    let sets = [vec![0, 1, 2], vec![1, 2, 3], vec![0, 3]];
    for layout in [&[4][..], &[2, 2], &[1, 3]] {
        let logs = on_ranks_with(layout, &settings(), &sets, |engine| {
            let device = Notebook::default();
            engine.set_executor(Arc::new(device.clone()));
            let rank = engine.place().rank;
            std::thread::scope(|scope| {
                for (set, ranks) in engine.sets() {
                    if ranks.contains(&rank) {
                        scope.spawn(move || work(engine, set));
                    }
                }
            });
            // Whoever gives turns has to stay for the others.
            engine.barrier("all are done").expect("met");
            std::mem::take(&mut *device.starts.lock().expect("no panic"))
        });
        for (one, of_one) in logs.iter().enumerate() {
            for (other, of_other) in logs.iter().enumerate().skip(one + 1) {
                let shared = |log: &[Start]| -> Vec<Start> {
                    let is_shared =
                        |(members, _): &&Start| members.contains(&one) && members.contains(&other);
                    log.iter().filter(is_shared).cloned().collect()
                };
                let (here, there) = (shared(of_one), shared(of_other));
                assert!(here.len() >= 2 * ROUNDS, "ranks {one} and {other} share two sets");
                assert!(here == there, "ranks {one} and {other} of {layout:?}:\n{here:?}\n{there:?}");
            }
        }
    }
}

#[test]
fn a_lone_call_in_a_set_gets_its_turn_while_nobody_uses_the_set_of_all_ranks() {
    // The leader of all ranks, who gives turns, is no member, has nothing in flight and sleeps.
    for layout in [&[3][..], &[1, 2], &[2, 1], &[1, 1, 1]] {
        on_ranks_with(layout, &settings(), &[vec![1, 2]], |engine| {
            engine.set_executor(Arc::new(Notebook::default()));
            if engine.place().rank > 0 {
                for round in 0..200 {
                    let mut data = Floats(vec![1.0; 4]);
                    let what = on_device(&format!("lone {round}"), &mut data);
                    let finished =
                        complete(engine, 1, Submission { awaited: true, ..what }).expect("started");
                    assert_eq!(finished.events.len(), 1);
                }
            }
            engine.barrier("all are done").expect("met");
        });
    }
}

#[test]
fn a_set_of_the_same_number_begins_with_its_first_turn_again() {
    on_ranks(&[2, 1], |engine| {
        engine.set_executor(Arc::new(Notebook::default()));
        for round in 0..10 {
            let pair = if round % 2 == 0 { [0, 1] } else { [1, 2] };
            let set = engine.add_set(&pair).expect("added");
            assert_eq!(set, 1);
            if pair.contains(&engine.place().rank) {
                for index in 0..=round {
                    let mut data = Floats(vec![1.0; 4]);
                    complete(engine, set, on_device(&format!("{index}"), &mut data)).expect("started");
                }
            }
            assert!(engine.remove_set(set).expect("removed"));
        }
    });
}

#[test]
fn a_batch_that_could_not_start_takes_its_turn_as_well() {
    on_ranks_with(&[3], &settings(), &[vec![0, 1], vec![1, 2]], |engine| {
        let rank = engine.place().rank;
        let sets = [(1, [0, 1]), (2, [1, 2])].into_iter().filter(|(_, ranks)| ranks.contains(&rank));
        let mut data = Floats(vec![1.0; 4]);
        for (set, _) in sets.clone() {
            let text = refused(engine, set, on_device("nowhere", &mut data));
            assert!(text.contains("device"), "{text}");
        }
        engine.barrier("now there is one").expect("met");
        engine.set_executor(Arc::new(Notebook::default()));
        for (set, _) in sets {
            complete(engine, set, on_device("somewhere", &mut data)).expect("started");
        }
        complete(engine, 0, on_device("everywhere", &mut data)).expect("started");
    });
}

#[test]
fn a_turn_that_a_rank_takes_with_it_when_it_leaves_is_not_waited_for() {
    for layout in [&[3][..], &[1, 2], &[1, 1, 1]] {
        let job = Rendezvous::new(layout);
        let gone = Barrier::new(3);
        std::thread::scope(|scope| {
            for rank in 0..3 {
                let (job, gone) = (&job, &gone);
                scope.spawn(move || {
                    let engine = job.join(rank, settings(), &[vec![1, 2]]).expect("engine");
                    engine.barrier("all here").expect("met");
                    engine.set_executor(Arc::new(Notebook::default()));
                    if rank == 0 {
                        drop(engine);
                        gone.wait();
                        return;
                    }
                    gone.wait();
                    let mut data = Floats(vec![1.0; 4]);
                    let text = refused(&engine, 1, on_device("late", &mut data));
                    assert!(text.contains("has left the job"), "{layout:?}: {text}");
                    if layout.len() != 2 {
                        assert!(text.contains("rank 0"), "{layout:?}: {text}");
                    }
                });
            }
        });
    }
}

/// Ranks 0 and 3 are about to start something, and rank 0 does not get to it; ranks 1 and 2 wait for the next turn, which rank 0
/// would give. Then rank 0 does `meanwhile`, and ranks 1 and 2 wait in `waiter`, whose outcomes are returned.
fn held_up(
    layout: &[usize],
    meanwhile: impl Fn(&Engine) + Sync,
    waiter: impl Fn(&Engine, Handle) -> Result<(), Error> + Sync,
) -> [Result<(), Error>; 2] {
    let (stuck, submitted, over) = (Barrier::new(3), Barrier::new(3), Barrier::new(3));
    let outcomes = on_ranks_with(layout, &settings(), &[vec![0, 3], vec![1, 2]], |engine| {
        let mut data = Floats(vec![1.0; 4]);
        let outcome = match engine.place().rank {
            0 => {
                let ((entered, has_entered), (open, opened)) = (channel(), channel());
                engine.set_executor(Arc::new(Gate { entered, opened: Arc::new(Mutex::new(opened)) }));
                submit(engine, 1, on_device("stuck", &mut data)).expect("submitted");
                has_entered.recv().expect("it is about to start");
                stuck.wait();
                submitted.wait();
                meanwhile(engine);
                over.wait();
                open.send(()).expect("somebody waits for it");
                Ok(())
            }
            3 => {
                engine.set_executor(Arc::new(Notebook::default()));
                // It meets rank 0 there only to hear that this is gone.
                complete(engine, 1, on_device("stuck", &mut data)).map(drop)
            }
            _ => {
                engine.set_executor(Arc::new(Notebook::default()));
                stuck.wait();
                let handle = submit(engine, 2, on_device("next", &mut data)).expect("submitted");
                submitted.wait();
                let outcome = waiter(engine, handle);
                over.wait();
                outcome
            }
        };
        // The tensors live as long as what is in flight.
        engine.shut_down();
        outcome
    });
    let [_, one, two, three]: [_; 4] = outcomes.try_into().expect("four ranks");
    assert!(three.is_err());
    [one, two]
}

#[test]
fn a_rank_that_fails_ends_every_wait_for_a_turn() {
    for layout in [&[4][..], &[2, 2], &[1, 3]] {
        let fail = |engine: &Engine| engine.fail("it raised Boom");
        for outcome in held_up(layout, fail, |engine, handle| engine.wait(handle).map(drop)) {
            let text = outcome.expect_err("the turn never comes").to_string();
            assert!(text.contains("rank 0") && text.contains("Boom"), "{layout:?}: {text}");
        }
    }
}

#[test]
fn an_engine_that_ends_ends_its_waits_for_turns() {
    let outcomes = held_up(
        &[4],
        |_| (),
        |engine, handle| {
            std::thread::scope(|scope| {
                let waiter = scope.spawn(|| engine.wait(handle).map(drop));
                engine.shut_down();
                waiter.join().expect("no panic")
            })
        },
    );
    for outcome in outcomes {
        assert!(matches!(outcome, Err(Error::ShutDown(_))), "{outcome:?}");
    }
}
