//! Operations that nobody waits for: whoever submitted them is told how they ended, and may go on from there.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use crate::ranks::{Dice, Floats, Rendezvous, on_ranks, settings, sum};
use ronde_engine::{Engine, Error, Finished, Kind, Submission};

const LONG: Duration = Duration::from_secs(60);

/// Submits; the caller keeps the memory until it has heard.
fn submit_then(
    engine: &Engine,
    what: Submission,
    then: impl FnOnce(Result<Finished, Error>) + Send + 'static,
) -> Result<(), Error> {
    // SAFETY: every test keeps its tensors until it has heard how their operations ended.
    unsafe { engine.submit_then(0, what, then) }
}

#[test]
fn everybody_hears_of_the_end_once_and_without_waiting() {
    on_ranks(&[2, 1], |engine| {
        let rank = engine.place().rank;
        let mut tensors: Vec<(usize, Floats)> =
            (0..100).map(|index| (index, Floats(vec![index as f32; 1 + index]))).collect();
        Dice(rank as u64 + 3).shuffle(&mut tensors);
        let (told, heard) = mpsc::channel();
        for (index, tensor) in &mut tensors {
            let (told, index) = (told.clone(), *index);
            submit_then(engine, sum(format!("t{index}"), tensor.tensor()), move |outcome| {
                told.send((index, outcome.is_ok())).expect("an open end");
            })
            .expect("submitted");
        }
        let mut ended: Vec<(usize, bool)> =
            (0..100).map(|_| heard.recv_timeout(LONG).expect("word")).collect();
        ended.sort_unstable();
        assert_eq!(ended, (0..100).map(|index| (index, true)).collect::<Vec<_>>());
        for (index, tensor) in tensors {
            assert!(tensor.0.iter().all(|&value| value == 3.0 * index as f32), "tensor {index}");
        }
    });
}

#[test]
fn a_group_is_told_of_once_and_rows_are_handed_over() {
    on_ranks(&[3], |engine| {
        let mut data = [Floats(vec![1.0; 2]), Floats(vec![2.0; 3])];
        let tensors = data.iter_mut().map(Floats::tensor).collect();
        let what = Submission { grouped: true, ..Submission::new(Kind::Allgather, "rows", tensors) };
        let (told, heard) = mpsc::channel();
        submit_then(engine, what, move |outcome| told.send(outcome).expect("an open end"))
            .expect("submitted");
        let finished = heard.recv_timeout(LONG).expect("word").expect("gathered");
        let shapes: Vec<_> = finished.rows.into_iter().flatten().map(|rows| rows.shape).collect();
        assert_eq!(shapes, [[6], [9]]);
        assert!(heard.recv_timeout(LONG).is_err(), "told twice");
    });
}

#[test]
fn disagreement_is_told_and_a_refusal_here_is_returned_instead() {
    on_ranks(&[2], |engine| {
        let mut data = Floats(vec![0.0; 2 + engine.place().rank]);
        let (told, heard) = mpsc::channel();
        let here = told.clone();
        submit_then(engine, sum("uneven", data.tensor()), move |outcome| {
            told.send(outcome.map(drop)).expect("an open end");
        })
        .expect("submitted");
        let error = heard.recv_timeout(LONG).expect("word").expect_err("a mismatch");
        assert!(matches!(error, Error::Mismatch(_)), "{error}");

        let scalar = Submission::new(Kind::Reducescatter, "scalar", vec![data.shaped(&[])]);
        let refused = submit_then(engine, scalar, move |outcome| {
            here.send(outcome.map(drop)).expect("an open end");
        });
        assert!(matches!(refused, Err(Error::Invalid(_))));
        assert!(heard.recv().is_err(), "a refused operation was told of");
    });
}

/// What goes on from the end of an operation is the next one, as in a graph of a framework.
fn chain(engine: Arc<Engine>, left: usize, told: mpsc::Sender<bool>) {
    let barrier = Submission::new(Kind::Barrier, format!("b{left}"), Vec::new());
    let next = engine.clone();
    let submitted = submit_then(&engine, barrier, move |outcome| {
        if left > 0 && outcome.is_ok() {
            chain(next, left - 1, told);
        } else {
            told.send(outcome.is_ok()).expect("an open end");
        }
    });
    submitted.expect("submitted");
}

#[test]
fn the_next_operation_may_be_submitted_where_the_last_is_told_of() {
    let job = Rendezvous::new(&[1, 1]);
    std::thread::scope(|scope| {
        for rank in 0..2 {
            let job = &job;
            scope.spawn(move || {
                let engine = Arc::new(job.join(rank, settings(), &[]).expect("engine"));
                let (told, heard) = mpsc::channel();
                chain(engine, 50, told);
                assert!(heard.recv_timeout(LONG).expect("word"));
            });
        }
    });
}

#[test]
fn shutting_down_tells_those_whose_operations_are_in_flight() {
    on_ranks(&[2], |engine| {
        if engine.place().rank == 1 {
            return;
        }
        let mut data = Floats(vec![0.0; 8]);
        let (told, heard) = mpsc::channel();
        submit_then(engine, sum("alone", data.tensor()), move |outcome| {
            told.send(outcome.map(drop)).expect("an open end");
        })
        .expect("submitted");
        engine.shut_down();
        let error = heard.try_recv().expect("told before the end").expect_err("an error");
        assert!(error.to_string().contains("shut down") || error.to_string().contains("has left"), "{error}");
    });
}
